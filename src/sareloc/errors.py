"""The exceptions of this package, all subclasses of `SarelocError`.

    SarelocError
    ├── ArgumentError (also a ValueError)    an argument, option, shape or name is invalid
    ├── PhotoError                           a photo cannot be found or decoded; has .photo and .reason
    │   └── PanoramaError                    the GPano tags of a 360° photo cannot be used; has .problem
    ├── PositionError                        a position is missing, invalid, or in another frame
    ├── DatasetError                         a dataset's folder or ground-truth file is missing or malformed
    ├── WeightsError                         a weights file or a checkpoint cannot be used
    ├── MapError                             a map cannot be opened, or was built with another model
    └── MissingExtraError (also ImportError) an optional dependency is not installed; names the pip command

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
"""Errors of the operating system that users can fix: what is wrong, and what to do."""
FULL_DATABASE = "database or disk is full"  # SQLite
NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|bad_alloc", re.IGNORECASE)


class SarelocError(Exception):
    """The base class of all errors that this package raises."""


class ArgumentError(SarelocError, ValueError):
    """An argument, option, shape or name is invalid."""


class PhotoError(SarelocError):
    """A photo cannot be found or decoded: `photo` is its path or name, `reason` says why."""

    def __init__(self, photo: str | Path, reason: str) -> None:
        super().__init__(f"{photo}: {reason}")
        self.photo = str(photo)
        self.reason = reason

    def __reduce__(self) -> tuple[type[PhotoError], tuple[str, str]]:
        """For pickling between worker processes (the default would call the class with one argument)."""
        return type(self), (self.photo, self.reason)


class PanoramaError(PhotoError):
    """The GPano tags of a 360° photo cannot be used: `problem` says why. It can be used as an ordinary photo."""

    def __init__(self, photo: str | Path, problem: str) -> None:
        super().__init__(photo, f"its GPano tags cannot be used: {problem}")
        self.problem = problem

    def __reduce__(self) -> tuple[type[PhotoError], tuple[str, str]]:
        """As that of PhotoError."""
        return type(self), (self.photo, self.problem)


class PositionError(SarelocError):
    """A position is missing, invalid, or in a frame that does not support the operation."""


class DatasetError(SarelocError):
    """A dataset's folder or ground-truth file is missing or malformed."""


class WeightsError(SarelocError):
    """A weights file or a checkpoint cannot be used."""


class MapError(SarelocError):
    """A map cannot be opened, or was built with another model."""


class MissingExtraError(SarelocError, ImportError):
    """An optional dependency is not installed."""


def look_up(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of a table for exactly this name.

    Args:
        table: the entries by name.
        name: the name.
        what: what the entries are, for the message.

    Raises:
        ArgumentError: if the name is unknown; it lists the known names.
    """
    if name not in table:
        raise ArgumentError(f"unknown {what} {name!r}: known are {', '.join(sorted(table))}")
    return table[name]


def need(module: str, extra: str) -> Any:
    """Import an optional dependency; raises MissingExtraError with the pip command if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise MissingExtraError(f'{module} is not installed ({missing}): pip install "sareloc[{extra}]"') from missing


def errno_of(error: BaseException) -> int | None:
    """The errno behind `error`, also if it only quotes an operating-system error; None if there is none."""
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
    """One sentence for the user about an error of this package or of the machine; None for other errors (bugs).

    Errors of the machine are those of files and devices (OSError, or an error that quotes one) and lack of memory.
    """
    if isinstance(error, SarelocError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        return "not enough memory: use a smaller batch or smaller photos, or close other programs"
    number = errno_of(error)
    if number is None:
        return str(error) if isinstance(error, OSError) else None
    cause, remedy = REFUSALS.get(number, (os.strerror(number).lower(), ""))
    if (own := getattr(error, "strerror", None)) and own != os.strerror(number):  # a sentence of this package
        cause, remedy = own, ""
    names = [getattr(error, "filename", None), getattr(error, "filename2", None)]
    where = "".join(f": {name}" for name in names if name is not None)
    return f"{cause}{where}" + (f"; {remedy}" if remedy else "")
