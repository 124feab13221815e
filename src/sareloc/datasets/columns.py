"""Reading named columns of a CSV file, with the line number for whatever must be said about a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sareloc.errors import DatasetError
from sareloc.photos.tables import open_csv


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the values of `columns`, stripped, for each row; empty lines are passed over.

    Raises DatasetError where a column is missing (naming those found), and where a row ends before its last column.
    """
    file = open_csv(path)
    missing = [name for name in columns if name not in file.header]
    if missing:
        raise DatasetError(f"{path} has no column {missing[0]!r}: it has {', '.join(file.header)}")
    wanted = [file.header.index(name) for name in columns]
    for line, row in file.rows():
        if len(row) <= max(wanted, default=-1):
            raise DatasetError(f"{path} line {line}: {len(row)} values for {len(file.header)} columns")
        yield line, tuple(row[column] for column in wanted)
