"""Results of long work that are kept in files, so that a call that was interrupted continues."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sareloc.files import read_regular, replacing

Arrays = dict[str, np.ndarray]
CHUNK = 64  # photos whose results are in one file
LARGEST_BYTES = 2**28  # of a file


def in_chunks(
    compute: Callable[[range], Arrays], count: int, name: str, folder: Path | None, title: str, progress: bool
) -> Arrays:
    """The results for `count` rows, computed some rows at a time; those that are in files of the folder are read.

    Args:
        compute: gives the results for some rows, which may be none: arrays by name, to be joined along the first axis.
        count: of rows.
        name: of what the results are computed from; files of another name are not used.
        folder: where files are kept; None: nowhere.
        title: of the progress bar.
        progress: show it, on a terminal.
    """
    parts = []
    with tqdm(total=count, desc=title, unit="photo", disable=None if progress else True) as bar:
        for first in range(0, max(count, 1), CHUNK):
            rows = range(first, min(first + CHUNK, count))
            file = None if folder is None else folder / f"{name}-{rows.start:08d}.npz"
            parts.append(load_or_compute(file, compute, rows))
            bar.update(len(rows))
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def load_or_compute(file: Path | None, compute: Callable[[range], Arrays], rows: range) -> Arrays:
    """The arrays in a file, or, if it does not exist or cannot be used, those of `compute`, which are written to it."""
    if file is None:
        return compute(rows)
    try:
        with np.load(io.BytesIO(read_regular(file, LARGEST_BYTES))) as held:
            return dict(held)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        found = compute(rows)
    content = io.BytesIO()
    np.savez(content, **found)  # type: ignore[arg-type]
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as beside:
        beside.write_bytes(content.getvalue())
    return found
