"""What can go wrong, as a tree: catch `SarelocError` to catch everything this package raises on purpose.

    SarelocError
    ├── ArgumentError (also a ValueError)   an argument, a knob, a shape or a name is not one we can use
    ├── PhotoError                          a photo cannot be found or decoded; has .photo and .reason
    ├── PositionError                       a position is missing, outside the Earth, or in another frame
    ├── DatasetError                        a dataset's folder or ground-truth file is not as its format says
    ├── WeightsError                        a weights file or a checkpoint cannot be used
    ├── MapError                            a map cannot be opened, or does not belong to this model
    └── MissingExtraError (also ImportError) an optional dependency is not installed; names the pip line

A message says what is wrong, what was found, and what to do.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

REFUSALS = {
    errno.ENOSPC: ("no space left on the device", "free some space and run again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space and run again"),
    errno.EROFS: ("the file system is read-only", "choose another folder"),
    errno.EACCES: ("permission denied", "change the permissions or choose another path"),
    errno.EPERM: ("operation not permitted", "change the permissions or choose another path"),
    errno.EIO: ("input/output error of the device", "check the disk and run again"),
    errno.EMFILE: ("too many open files", "raise the limit (ulimit -n) and run again"),
    errno.ENFILE: ("too many open files on this machine", "close some programs and run again"),
    errno.EFBIG: ("the file is larger than the file system or the limit of this process allows", "choose another disk"),
}
"""Errors of the system that are nobody's bug: what is wrong, and what to do."""
FULL_DATABASE = "database or disk is full"  # SQLite
NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|bad_alloc", re.IGNORECASE)


class SarelocError(Exception):
    """The root of every error that this package raises on purpose."""


class ArgumentError(SarelocError, ValueError):
    """An argument, a knob, a shape or a name is not one we can use."""


class PhotoError(SarelocError):
    """A photo cannot be found or decoded: `photo` is its path or name, `reason` says why."""

    def __init__(self, photo: str | Path, reason: str) -> None:
        super().__init__(f"{photo}: {reason}")
        self.photo = str(photo)
        self.reason = reason

    def __reduce__(self) -> tuple[type[PhotoError], tuple[str, str]]:
        """Travel between worker processes unchanged (the default would call the class with one argument)."""
        return PhotoError, (self.photo, self.reason)


class PositionError(SarelocError):
    """A position is missing, outside the Earth, or in a frame that cannot answer the question."""


class DatasetError(SarelocError):
    """A dataset's folder or ground-truth file is not as its format says."""


class WeightsError(SarelocError):
    """A weights file or a checkpoint cannot be used."""


class MapError(SarelocError):
    """A map cannot be opened, or does not belong to this model."""


class MissingExtraError(SarelocError, ImportError):
    """An optional dependency is not installed."""


def look_up(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of `table` under exactly `name`; an unknown name raises an error that lists the known ones."""
    if name not in table:
        raise ArgumentError(f"unknown {what} {name!r}: known are {', '.join(sorted(table))}")
    return table[name]


def need(module: str, extra: str) -> Any:
    """Import an optional dependency where it is used; its absence names the pip line."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise MissingExtraError(f'{module} is not installed ({missing}): pip install "sareloc[{extra}]"') from missing


def errno_of(error: BaseException) -> int | None:
    """The number of the system's error behind `error`, also of an error that only quotes it; None if there is none."""
    if isinstance(error, OSError):
        return error.errno
    if isinstance(error, SarelocError):
        return None
    said = str(error)
    if number := re.search(r"\(os error (\d+)\)", said):  # safetensors and other programs in Rust
        return int(number[1])
    if FULL_DATABASE in said:
        return errno.ENOSPC
    return next((number for number in REFUSALS if os.strerror(number) in said), None)


def explain(error: BaseException) -> str | None:
    """One sentence for the user about an error of this package or of the machine; None: it is a bug, show all of it.

    Of the machine are errors of files and devices (OSError, or an error that quotes one) and a lack of memory.
    """
    if isinstance(error, SarelocError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        return "not enough memory: use a smaller batch or smaller photos, or close other programs"
    number = errno_of(error)
    if number is None:
        return str(error) if isinstance(error, OSError) else None
    cause, remedy = REFUSALS.get(number, (os.strerror(number).lower(), ""))
    names = [getattr(error, "filename", None), getattr(error, "filename2", None)]
    where = "".join(f": {name}" for name in names if name is not None)
    return f"{cause}{where}" + (f"; {remedy}" if remedy else "")
