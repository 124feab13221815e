"""Files of published datasets: find them below the user's folder, and read MATLAB and CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sareloc.errors import DatasetError
from sareloc.files import open_regular, read_regular
from sareloc.photos.tables import open_csv

LARGEST_BYTES = 200_000_000


def find_file(root: Path, names: Sequence[str], layout: str) -> Path:
    """The first of these files that exists in `root`; raises DatasetError with the expected `layout` if none does."""
    found = next((root / name for name in names if (root / name).is_file()), None)
    if found is None:
        raise not_found(root, " or ".join(names), layout)
    return found


def not_found(root: Path, expected: str, layout: str) -> DatasetError:
    """The error for a dataset whose `expected` files are not in `root`."""
    state = "" if root.is_dir() else " (no such folder)"
    return DatasetError(f"{root}{state} contains no {expected}. Expected layout:\n{layout}")


def find_folder(root: Path, names: Sequence[str], first_file: str) -> Path:
    """The first of these subfolders of `root` that contains `first_file`; default: the first name."""
    holders = (root / name for name in names if (root / name / first_file).is_file())
    return next(holders, root / names[0])


def read_mat(path: Path, key: str) -> Any:
    """The variable `key` of a MATLAB file (version 5); raises DatasetError if it cannot be read."""
    from scipy.io import loadmat

    try:
        with open_regular(path) as file:
            content = loadmat(file)  # type: ignore[arg-type]  # it takes open files, too
    except Exception as error:  # a damaged file raises a dozen unrelated types, zlib's and numpy's among them
        raise DatasetError(f"{path} cannot be read as a MATLAB file: {error}") from error
    if key not in content:
        found = ", ".join(name for name in content if not name.startswith("__")) or "nothing"
        raise DatasetError(f"{path} has no variable {key!r}: found {found}")
    return content[key]


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a list of a dataset; raises DatasetError if it cannot be read."""
    try:
        return read_regular(path, LARGEST_BYTES).decode(encoding)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not text in {encoding}: {error}") from error


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and stripped values of `columns` for each row of a CSV file; empty lines are skipped.

    Raises DatasetError if a column is missing, or if a row is too short.
    """
    file = open_csv(path)
    missing = [name for name in columns if name not in file.header]
    if missing:
        raise DatasetError(f"{path} has no column {missing[0]!r}: found {', '.join(file.header)}")
    indices = [file.header.index(name) for name in columns]
    for line, row in file.rows():
        if len(row) <= max(indices, default=-1):
            raise DatasetError(f"{path} line {line}: {len(row)} values for {len(file.header)} columns")
        yield line, tuple(row[index] for index in indices)
