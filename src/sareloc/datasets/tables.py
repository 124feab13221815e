"""A dataset from a CSV file: a row for each photo, with its position or its place.

Columns (others are passed over), each under the first of its names that the file has:

    file         file, filename, path       relative to the CSV's folder (or to the photo folder given); needed
    lat, lon     lat, latitude; lon, lng, longitude     degrees
    x_m, y_m     x_m, x_east_m; y_m, y_north_m          metres in a frame of the dataset's own
    role         role                       database, db, query or queries; without this column: all database
    split        split, geo_split           train, val, test or any word; rows without a word belong to no split
    time         time, timestamp            a number, or a moment such as 2024-05-31T12:00:00+02:00 (UTC unless said)
    heading_deg  heading_deg, heading       compass direction; may be empty
    place_id     place_id                   a number or a word, several separated by ";"; may be empty

A file needs lat and lon, or x_m and y_m, or place_id. Degrees are preferred to metres where it has both, because they
lead to a map. Photos with positions are judged by distance, those with place ids alone by place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.datasets.columns import read_columns, read_header
from sareloc.datasets.places import IdLists, PhotoSet, Places, Protocol
from sareloc.errors import ArgumentError, DatasetError
from sareloc.geo import Positions
from sareloc.photos.geotag import seconds_since_1970

NAMES = {
    "file": ("file", "filename", "path"),
    "lat": ("lat", "latitude"),
    "lon": ("lon", "lng", "longitude"),
    "x_m": ("x_m", "x_east_m"),
    "y_m": ("y_m", "y_north_m"),
    "role": ("role",),
    "split": ("split", "geo_split"),
    "time": ("time", "timestamp"),
    "heading_deg": ("heading_deg", "heading"),
    "place_id": ("place_id",),
}
ROLES = {"database": "database", "db": "database", "query": "queries", "queries": "queries"}

Floats = npt.NDArray[np.float64]


def load_table(
    table: str | Path,
    split: str = "test",
    *,
    photo_folder: str | Path | None = None,
    columns: Mapping[str, str | None] | None = None,
    protocol: Protocol | None = None,
) -> Places:
    """One split of a CSV file, in the file's order; see the module for its columns.

    `columns` says under which name the file has a column ({"split": "split_3_N", "place_id": "building_id"}), or, by
    None, that a column is not to be used. A file without a split column has one split, "all", which is given whatever
    split is asked for. `protocol` overrides how answers are judged ("place-id" for photos that also have positions).
    """
    path = Path(table)
    found = _find_columns(path, columns or {})
    read = _read(path, found)
    lines, split_name = _lines_of_split(path, read, split)
    if not lines:
        raise DatasetError(f"{path} lists no photos" + ("" if split_name == "all" else f" in the split {split!r}"))
    photos = _photos(path, Path(photo_folder) if photo_folder else path.parent, read, lines)
    queries = np.array([_role(path, line, read) == "queries" for line in lines])
    return Places(
        path.resolve().parent.name if path.name == "meta.csv" else path.stem,
        split_name,
        photos.take(np.flatnonzero(~queries)),
        photos.take(np.flatnonzero(queries)),
        protocol or ("radius" if photos.positions is not None else "place-id"),
    )


_Columns = dict[str, dict[int, str]]  # our name of a column -> line number -> value


def _find_columns(path: Path, columns: Mapping[str, str | None]) -> dict[str, str]:
    """Our names of the columns in use -> the file's."""
    unknown = [name for name in columns if name not in NAMES]
    if unknown:
        raise ArgumentError(f"unknown column {unknown[0]!r}: known are {', '.join(NAMES)}")
    header = read_header(path)
    found = {}
    for ours, aliases in NAMES.items():
        theirs = columns.get(ours, next((alias for alias in aliases if alias in header), None))
        if theirs is not None:
            found[ours] = theirs
    if "file" not in found:
        raise DatasetError(f"{path} has no column 'file' (or filename, path): it has {', '.join(header)}")
    if not (found.keys() >= {"lat", "lon"} or found.keys() >= {"x_m", "y_m"} or "place_id" in found):
        raise DatasetError(
            f"{path} says neither where nor what its photos show: it needs columns lat and lon, or x_m and y_m, or "
            f"place_id, and has {', '.join(header)}"
        )
    return found


def _read(path: Path, found: dict[str, str]) -> _Columns:
    read: _Columns = {ours: {} for ours in found}
    first_line: dict[str, int] = {}
    for line, values in read_columns(path, list(found.values())):
        for ours, value in zip(found, values, strict=True):
            read[ours][line] = value
        file = read["file"][line] = read["file"][line].replace("\\", "/")
        if not file:
            raise DatasetError(f"{path} line {line}: no file name")
        if file in first_line:
            raise DatasetError(f"{path} line {line}: {file} is listed twice, first in line {first_line[file]}")
        first_line[file] = line
    return read


def _lines_of_split(path: Path, read: _Columns, split: str) -> tuple[list[int], str]:
    if "split" not in read:
        return list(read["file"]), "all"
    lines = [line for line, value in read["split"].items() if value == split]
    known = sorted(set(read["split"].values()) - {""})
    if not lines:
        raise ArgumentError(f"unknown split {split!r} of {path}: known are {', '.join(known) or 'none'}")
    return lines, split


def _role(path: Path, line: int, read: _Columns) -> str:
    word = read["role"][line].lower() if "role" in read else "database"
    if word not in ROLES:
        raise DatasetError(f"{path} line {line}: role is {word!r}, not one of {', '.join(ROLES)}")
    return ROLES[word]


def _photos(path: Path, folder: Path, read: _Columns, lines: list[int]) -> PhotoSet:
    def numbers(column: str, limit: float = math.inf) -> Floats:
        return np.array([_number(path, line, column, read[column][line], limit) for line in lines])

    positions = None
    if read.keys() >= {"lat", "lon"}:
        positions = Positions.from_wgs84(np.stack([numbers("lat", 90), numbers("lon", 180)], axis=1))
    elif read.keys() >= {"x_m", "y_m"}:
        positions = Positions.from_local(np.stack([numbers("x_m"), numbers("y_m")], axis=1))
    return PhotoSet(
        folder,
        tuple(read["file"][line] for line in lines),
        positions,
        np.array([_moment(path, line, read["time"][line]) for line in lines]) if "time" in read else None,
        np.array([_heading(path, line, read["heading_deg"][line]) for line in lines])
        if "heading_deg" in read
        else None,
        _place_ids(read["place_id"], lines) if "place_id" in read else None,
    )


def _number(path: Path, line: int, column: str, value: str, limit: float = math.inf) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DatasetError(f"{path} line {line}: {column} is {value!r}, not a number")
    if abs(number) > limit:
        raise DatasetError(f"{path} line {line}: {column} is {value}, outside -{limit:.0f}..{limit:.0f} degrees")
    return number


def _heading(path: Path, line: int, value: str) -> float:
    return _number(path, line, "heading_deg", value) % 360 if value else math.nan


def _moment(path: Path, line: int, value: str) -> float:
    """Seconds since 1970 of a moment; a bare number as it stands; NaN where nothing is said."""
    if not value:
        return math.nan
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as wrong:
        raise DatasetError(
            f"{path} line {line}: time is {value!r}, neither a number nor a moment such as 2024-05-31T12:00:00"
        ) from wrong
    return seconds_since_1970(moment)


def _place_ids(column: dict[int, str], lines: list[int]) -> IdLists:
    """Numbers as they stand; if any value of the whole file is a word, all are numbered in alphabetical order."""
    words = {line: [word.strip() for word in value.split(";") if word.strip()] for line, value in column.items()}
    distinct = {word for row in words.values() for word in row}
    if all(word.isdecimal() for word in distinct):
        number_of = {word: int(word) for word in distinct}
    else:
        number_of = {word: number for number, word in enumerate(sorted(distinct))}
    return IdLists.of([number_of[word] for word in words[line]] for line in lines)
