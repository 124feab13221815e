"""Weights files that attack: zip archives, pickles, names and shapes of tensors, checkpoints, MATLAB and HDF5 files.

Each is to be refused by one of our errors, a file under 100 MB within 2 s and 300 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.models.hostile_weights import hostile_files


def cases(folder: Path) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """(kind, case, work) of each file; it is written when its case is asked for."""
    for case, open_it in hostile_files(folder / "weights"):
        yield "hostile weights", case, partial(_opened, open_it)


def _opened(open_it: Callable[[], object]) -> str:
    open_it()
    return "silently wrong"  # none of them is a network
