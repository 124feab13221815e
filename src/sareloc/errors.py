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

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


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
