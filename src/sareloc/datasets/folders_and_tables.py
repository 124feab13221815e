"""A dataset from folders of photos that say themselves where they were taken.

    images/{train,val,test}/{database,queries}/@...@.jpg    the format of VPR-datasets-downloader; images/ may be absent
    database/ and queries/                                  without splits; queries/ may be absent
    any folder of geotagged photos                          all of them are the database

In the first two, positions are those of the file names where every name is in the field's format, and then in the
metres of its UTM zone where there is one, as the field's numbers are computed. Otherwise, and in the third, they are
the photos' own geotags (EXIF, a geotags.csv beside them, or the name), and a photo without one is left out and listed
in `Places.left_out`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.datasets.places import IdLists, PhotoSet, Places, Protocol
from sareloc.errors import ArgumentError, DatasetError, look_up
from sareloc.geo import Positions, wgs84_from_utm
from sareloc.photos import GeotaggedPhotos, UtmName, find_geotagged, find_photos, parse_utm_name
from sareloc.photos.tables import (
    COLUMNS,
    CsvFile,
    counted,
    find_columns,
    open_csv,
    parse_degrees,
    parse_number,
    parse_time,
)

# Reading named columns of a CSV file, with the line number for whatever must be said about a value.


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


# A dataset from a CSV file: a row for each photo, with its position or its place.
#
# Columns (others are passed over), each under the first of its names that the file has; file, lat and lon also in the
# other spellings that `sareloc.photos.tables.COLUMNS` lists (image, GPSLatitude, lng, ...):
#
# file file, filename, path relative to the CSV's folder (or to the photo folder given); needed lat, lon lat, latitude;
# lon, lng, longitude degrees x_m, y_m x_m, x_east_m; y_m, y_north_m metres in a frame of the dataset's own role role
# database, db, query or queries; without this column: all database split split, geo_split train, val, test or any
# word; rows without a word belong to no split time time, timestamp a number, or a moment such as
# 2024-05-31T12:00:00+02:00 (UTC unless said) heading_deg heading_deg, heading compass direction; may be empty place_id
# place_id a number or a word, several separated by ";"; may be empty
#
# A file needs lat and lon, or x_m and y_m, or place_id. Degrees are preferred to metres where it has both, because
# they lead to a map. Photos with positions are judged by distance, those with place ids alone by place.
#
# Encoding, separator, decimal commas and degrees with minutes are those of `sareloc.photos.tables`. A row whose two
# coordinates are empty is left out and listed in `Places.left_out`. Any other bad row of the split is an error,
# because a result measured without it would not be comparable: one DatasetError lists all of them with their line
# numbers.

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
SPELLED = ("file", "lat", "lon")
"""Columns that are also accepted in the other spellings of `sareloc.photos.tables.COLUMNS`."""
LISTED = 100  # bad rows in one error
ROLES = {"database": "database", "db": "database", "query": "queries", "queries": "queries"}


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
    file = open_csv(path)
    read, problems = _read(file, _find_columns(file, columns or {}))
    lines, split_name = _lines_of_split(path, read, split)
    unplaced = _without_position(read, lines)
    left_out = [read["file"][line] for line in unplaced]
    lines = [line for line in lines if line not in unplaced]
    queries = np.array([_role(line, read, problems) == "queries" for line in lines], dtype=bool)
    values = _values(read, lines, problems, decimal_comma=file.separator != ",")
    if problems:
        raise _bad_rows(path, problems)
    if not lines:
        raise DatasetError(
            f"{path} lists no photos"
            + ("" if split_name == "all" else f" in the split {split!r}")
            + (f" with a position: {len(left_out):,} have none" if left_out else "")
        )
    notes = [f"{path}: {counted(left_out, 'row')} without a position left out"] if left_out else []
    folder = Path(photo_folder) if photo_folder else path.parent
    photos = PhotoSet(
        folder,
        tuple(read["file"][line] for line in lines),
        _positions(values),
        values.get("time"),
        values.get("heading_deg"),
        _place_ids(read["place_id"], lines) if "place_id" in read else None,
    )
    return Places(
        path.resolve().parent.name if path.name == "meta.csv" else path.stem,
        split_name,
        photos.take(np.flatnonzero(~queries)),
        photos.take(np.flatnonzero(queries)),
        protocol or ("radius" if photos.positions is not None else "place-id"),
        left_out=tuple(str(folder / name) for name in left_out),
        notes=(*file.notes(), *notes),
    )


_Columns = dict[str, dict[int, str]]  # our name of a column -> line number -> value
_Problems = dict[int, str]  # line number -> what is wrong with it


def _find_columns(file: CsvFile, columns: Mapping[str, str | None]) -> dict[str, str]:
    """Our names of the columns in use -> the file's."""
    unknown = [name for name in columns if name not in NAMES]
    if unknown:
        raise ArgumentError(f"unknown column {unknown[0]!r}: known are {', '.join(NAMES)}")
    said, spelled = ", ".join(file.header), find_columns(file.header, {name: COLUMNS[name] for name in SPELLED})
    found = {}
    for ours, aliases in NAMES.items():
        exact = next((alias for alias in aliases if alias in file.header), spelled.get(ours))
        theirs = columns.get(ours, exact)
        if theirs is not None:
            found[ours] = theirs
    absent = [theirs for theirs in found.values() if theirs not in file.header]
    if absent:
        raise DatasetError(f"{file.path} has no column {absent[0]!r}: it has {said}")
    if "file" not in found:
        raise DatasetError(
            f"{file.path} has no column 'file': it has {said}. Accepted are {', '.join(COLUMNS['file'])}"
        )
    if not (found.keys() >= {"lat", "lon"} or found.keys() >= {"x_m", "y_m"} or "place_id" in found):
        raise DatasetError(
            f"{file.path} says neither where nor what its photos show: it needs columns lat and lon, or x_m and y_m, "
            f"or place_id, and has {said}"
        )
    return found


def _read(file: CsvFile, found: dict[str, str]) -> tuple[_Columns, _Problems]:
    """The columns by line; lines that name no file, name one again or are too short or too long are problems."""
    read: _Columns = {ours: {} for ours in found}
    problems: _Problems = {}
    first_line: dict[str, int] = {}
    index = {ours: file.header.index(theirs) for ours, theirs in found.items()}
    for line, row in file.rows():
        problem = file.row_problem(row, 1 + max(index.values()))
        name = "" if problem else row[index["file"]].replace("\\", "/")
        if not problem and not name:
            problem = "no file name"
        if not problem and first_line.setdefault(name, line) != line:
            problem = f"{name} is listed twice, first in line {first_line[name]}"
        if problem:
            problems[line] = problem
            continue
        for ours, column in index.items():
            read[ours][line] = row[column]
        read["file"][line] = name
    return read, problems


def _without_position(read: _Columns, lines: list[int]) -> set[int]:
    """Lines whose two coordinates are empty."""
    pair = next((pair for pair in (("lat", "lon"), ("x_m", "y_m")) if read.keys() >= set(pair)), None)
    return set() if pair is None else {line for line in lines if not any(read[name][line] for name in pair)}


def _bad_rows(path: Path, problems: _Problems) -> DatasetError:
    listed = [f"  line {line}: {problem}" for line, problem in sorted(problems.items())]
    more = [f"  ... and {len(listed) - LISTED:,} more"] if len(listed) > LISTED else []
    rows = "1 bad row" if len(listed) == 1 else f"{len(listed):,} bad rows"
    return DatasetError("\n".join([f"{path} has {rows}: correct or delete them", *listed[:LISTED], *more]))


def _lines_of_split(path: Path, read: _Columns, split: str) -> tuple[list[int], str]:
    if "split" not in read:
        return list(read["file"]), "all"
    lines = [line for line, value in read["split"].items() if value == split]
    known = sorted(set(read["split"].values()) - {""})
    if not lines:
        raise ArgumentError(f"unknown split {split!r} of {path}: known are {', '.join(known) or 'none'}")
    return lines, split


def _role(line: int, read: _Columns, problems: _Problems) -> str:
    word = read["role"][line].lower() if "role" in read else "database"
    if word not in ROLES:
        problems[line] = f"role is {word!r}, not one of {', '.join(ROLES)}"
    return ROLES.get(word, "")


def _values(read: _Columns, lines: list[int], problems: _Problems, *, decimal_comma: bool) -> dict[str, Floats]:
    """The columns that are numbers, a row for each line; what is wrong is added to `problems`."""

    def metres(value: str) -> float:
        if "," in value and not decimal_comma:  # 1,234 may be a thousand
            raise ValueError(f"{value!r} is not a number")
        return parse_number(value)

    parsers: dict[str, Callable[[str], float]] = {
        "lat": lambda value: parse_degrees(value, "NS"),
        "lon": lambda value: parse_degrees(value, "EW"),
        "x_m": metres,
        "y_m": metres,
        "time": lambda value: parse_time(value) if value.lower() not in ("", "nan") else math.nan,
        "heading_deg": lambda value: parse_number(value) % 360 if value else math.nan,
    }
    if read.keys() >= {"lat", "lon"}:
        del parsers["x_m"], parsers["y_m"]
    values = {name: np.full(len(lines), math.nan) for name in parsers if name in read}
    for name, column in values.items():
        for row, line in enumerate(lines):
            try:
                column[row] = parsers[name](read[name][line])
            except ValueError as wrong:
                problems[line] = str(wrong) if name in ("lat", "lon") else f"{name} {wrong}"
    return values


def _positions(values: dict[str, Floats]) -> Positions | None:
    if values.keys() >= {"lat", "lon"}:
        return Positions.from_wgs84(np.stack([values["lat"], values["lon"]], axis=1))
    if values.keys() >= {"x_m", "y_m"}:
        return Positions.from_local(np.stack([values["x_m"], values["y_m"]], axis=1))
    return None


def _place_ids(column: dict[int, str], lines: list[int]) -> IdLists:
    """Numbers as they stand; if any value of the whole file is a word, all are numbered in alphabetical order."""
    words = {line: [word.strip() for word in value.split(";") if word.strip()] for line, value in column.items()}
    distinct = {word for row in words.values() for word in row}
    if all(word.isdecimal() for word in distinct):
        number_of = {word: int(word) for word in distinct}
    else:
        number_of = {word: number for number, word in enumerate(sorted(distinct))}
    return IdLists.of([number_of[word] for word in words[line]] for line in lines)


def find_splits(folder: Path) -> dict[str, Path]:
    """The splits of a folder by name, each with the folder that holds its database/; {"all": ...} where it has none.

    Empty where the folder is not in this format.
    """
    parents = [parent for parent in (folder / "images", folder) if parent.is_dir()]
    for parent in parents:
        splits = {entry.name: entry for entry in sorted(parent.iterdir()) if (entry / "database").is_dir()}
        if splits:
            return splits
    unsplit = next((parent for parent in parents if (parent / "database").is_dir()), None)
    return {} if unsplit is None else {"all": unsplit}


def load_split_folder(folder: Path, split: str = "test") -> Places:
    """One split of a folder with database/ and queries/; a folder without splits gives all of it for any split."""
    splits = find_splits(folder)
    if "all" in splits:
        split = "all"
    holder = look_up(splits, split, f"split of {folder}")
    roles = [holder / role for role in ("database", "queries")]
    paths = [find_photos(role) if role.is_dir() else [] for role in roles]
    if not paths[0]:
        raise DatasetError(f"{roles[0]} holds no photos: there is nothing to search")
    names = [parse_utm_name(path.name) for of_role in paths for path in of_role]
    known = [name for name in names if name is not None]
    left_out: list[str] = []
    notes: list[str] = []
    if len(known) == len(names):
        both = _from_names(holder, [path for of_role in paths for path in of_role], known)
        rows = np.arange(len(known))
        database, queries = both.take(rows[: len(paths[0])]), both.take(rows[len(paths[0]) :])
    else:
        database, queries = (_from_geotags(role, left_out, notes) for role in roles)
        if not len(database):
            raise _nothing_tagged(roles[0], len(paths[0]))
    return Places(folder.resolve().name, split, database, queries, left_out=tuple(left_out), notes=tuple(notes))


def load_photo_folder(folder: Path) -> Places:
    """All geotagged photos of a folder tree as a database without queries."""
    left_out: list[str] = []
    notes: list[str] = []
    database = _from_geotags(folder, left_out, notes)
    if not len(database):
        raise _nothing_tagged(folder, len(left_out))
    name, none = folder.resolve().name, database.take([])
    return Places(name, "all", database, none, left_out=tuple(left_out), notes=tuple(notes))


def _from_names(holder: Path, paths: Sequence[Path], names: Sequence[UtmName]) -> PhotoSet:
    return PhotoSet(
        holder,
        _relative(holder, paths),
        _folder_positions(holder, names),
        _column(name.time for name in names),
        _column(name.heading_deg for name in names),
    )


def _folder_positions(holder: Path, names: Sequence[UtmName]) -> Positions:
    """In one frame: the metres of their only UTM zone, or of none, or, from several zones, those of the Earth."""
    metres = np.array([name.east_north for name in names])
    zones = np.array([name.epsg or 0 for name in names])
    if (zones == 0).all():
        return Positions.from_local(metres)
    if (zones == zones[0]).all():
        return Positions.from_utm(metres, int(zones[0]))
    if (zones == 0).any():
        raise DatasetError(
            f"{holder}: {(zones == 0).sum()} of {len(zones)} file names do not say their UTM zone: "
            "their metres cannot be compared with the others'"
        )
    latlon = np.empty_like(metres)
    for zone in np.unique(zones).tolist():
        latlon[zones == zone] = wgs84_from_utm(metres[zones == zone], zone)
    return Positions.from_wgs84(latlon)


def _from_geotags(folder: Path, left_out: list[str], notes: list[str]) -> PhotoSet:
    """The photos of a folder that have a geotag; the others are added to `left_out`, faults of tables to `notes`."""
    found = find_geotagged(folder) if folder.is_dir() else GeotaggedPhotos((), ())
    left_out.extend(str(path) for path in found.untagged)
    notes.extend(found.notes)
    return PhotoSet(
        folder,
        _relative(folder, found.photos),
        found.positions(),
        _column(geotag.time for geotag in found.geotags),
        _column(geotag.heading_deg for geotag in found.geotags),
    )


def _relative(folder: Path, paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(path.relative_to(folder).as_posix() for path in paths)


def _column(values: Iterable[float | None]) -> npt.NDArray[np.float64] | None:
    """Numbers with NaN for what is unknown; None where all is."""
    numbers = np.array([math.nan if value is None else value for value in values])
    return None if np.isnan(numbers).all() else numbers


def _nothing_tagged(folder: Path, photos: int) -> DatasetError:
    return DatasetError(
        f"none of the {photos} photos in {folder} says where it was taken, by EXIF or by name: list them in a CSV file "
        "with the columns file, lat, lon"
    )
