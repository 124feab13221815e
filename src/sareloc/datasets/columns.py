"""Reading named columns of a CSV file, with the line number for whatever must be said about a value."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from sareloc.errors import DatasetError

LONGEST_VALUE = 1 << 24  # Google Landmarks lists all right answers of a query in one value; the default is 128 KiB


def read_header(path: Path) -> list[str]:
    """The column names: the first line that is not empty."""
    for _, row in _rows(path):
        return [name.strip() for name in row]
    raise DatasetError(f"{path} is empty: its first line must name the columns")


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the values of `columns`, stripped, for each row; empty lines are passed over.

    Raises DatasetError where a column is missing (naming those found), and where a row ends before its last column.
    """
    header = read_header(path)
    missing = [name for name in columns if name not in header]
    if missing:
        raise DatasetError(f"{path} has no column {missing[0]!r}: it has {', '.join(header)}")
    wanted = [header.index(name) for name in columns]
    rows = _rows(path)
    next(rows)
    for line, row in rows:
        if len(row) <= max(wanted, default=-1):
            raise DatasetError(f"{path} line {line}: {len(row)} values for {len(header)} columns")
        yield line, tuple(row[column].strip() for column in wanted)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_VALUE)
    with path.open(newline="", encoding="utf-8-sig") as lines:  # spreadsheets begin with a byte-order mark
        reader = csv.reader(lines, delimiter=_separator(lines, path))
        try:
            for row in reader:
                if any(row):
                    yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as broken:
            raise DatasetError(
                f"{path} after line {reader.line_num}: not readable as CSV in UTF-8 ({broken})"
            ) from broken


def _separator(lines: TextIO, path: Path) -> str:
    """A comma, or what spreadsheets of other countries write: whichever the first line has most of."""
    try:
        first = lines.readline()
    except UnicodeDecodeError as broken:
        raise DatasetError(f"{path} is not text in UTF-8 ({broken})") from broken
    lines.seek(0)
    return max(",;\t", key=first.count)
