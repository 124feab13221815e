"""Datasets of one's own photos: folders of geotagged photos (`load_split_folder`, `load_photo_folder`) and CSV files
(`load_table`).

Folders:

    images/{train,val,test}/{database,queries}/@...@.jpg    the format of VPR-datasets-downloader; images/ is optional
    database/ and queries/                                  without splits; queries/ is optional
    any folder of geotagged photos                          all of them are the database

In the first two, positions come from the file names if every name has the VPR-datasets format, in metres of their UTM
zone. Otherwise, and in the third, they come from the geotags of the photos (a table in the folder, else EXIF and the
other sources of `sareloc.photos.SOURCES`); a photo without a geotag is left out and listed in `Places.left_out`.

CSV files have one row per photo. Other columns than these are ignored; file, lat and lon are also accepted under the
other names in `sareloc.photos.tables.COLUMNS` (image, GPSLatitude, lng, ...):

    column       names in the file            content
    file         file, filename, path         relative to the CSV file's folder or to `photo_folder`; required
    lat, lon     lat, latitude; lon, lng, longitude    degrees WGS84
    x_m, y_m     x_m, x_east_m; y_m, y_north_m         metres in a local frame
    role         role                         database, db, query or queries; default: database
    split        split, geo_split             train, val, test or another word; empty: in no split
    time         time, timestamp              a number, or a time such as 2024-05-31T12:00:00+02:00 (default: UTC)
    heading_deg  heading_deg, heading         compass direction; may be empty
    place_id     place_id                     a number or a word, several separated by ";"; may be empty

A file needs lat and lon, or x_m and y_m, or place_id; degrees are preferred to metres. Photos with positions are judged
by distance, photos with only place ids by place id. A row with empty coordinates is left out and listed in
`Places.left_out`. Any other bad row of the split is an error, because results without it would not be comparable: one
DatasetError lists all of them with line numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sareloc.arrays import Floats
from sareloc.datasets.places import IdLists, PhotoSet, Places, Protocol
from sareloc.errors import ArgumentError, DatasetError, look_up
from sareloc.geo import Positions, wgs84_from_utm
from sareloc.photos import GeotaggedPhotos, UtmName, find_geotagged, find_photos, parse_utm_name
from sareloc.photos.finding import TABLE
from sareloc.photos.tables import (
    COLUMNS,
    CsvFile,
    find_columns,
    open_csv,
    parse_degrees,
    parse_number,
    parse_time,
)
from sareloc.wording import counted

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
ALIASED = ("file", "lat", "lon")
"""Columns that are also accepted under the names in `sareloc.photos.tables.COLUMNS`."""
LISTED = 10  # bad rows in one error
ROLES = {"database": "database", "db": "database", "query": "queries", "queries": "queries"}


def load_table(
    table: str | Path,
    split: str = "test",
    *,
    photo_folder: str | Path | None = None,
    columns: Mapping[str, str | None] | None = None,
    protocol: Protocol | None = None,
) -> Places:
    """One split of a CSV file, in the file's order; the module docstring lists its columns.

    A file without a split column has one split, "all", which is returned for every `split`.

    Args:
        table: the CSV file.
        split: name in the split column.
        photo_folder: the folder that file names are relative to; default: that of the CSV file.
        columns: names in the file by column ({"split": "split_3_N", "place_id": "building_id"}); None: ignore it.
        protocol: overrides how results are judged ("place-id" for photos that also have positions).

    Raises:
        DatasetError: for bad rows.
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
            f"{path} has no photos"
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
        position_sources={} if photos.positions is None else {TABLE: len(photos)},
    )


_Columns = dict[str, dict[int, str]]  # column -> line number -> value
_Problems = dict[int, str]  # line number -> problem


def _find_columns(file: CsvFile, columns: Mapping[str, str | None]) -> dict[str, str]:
    """Columns -> their names in the file, of those that it has."""
    unknown = [name for name in columns if name not in NAMES]
    if unknown:
        raise ArgumentError(f"unknown column {unknown[0]!r}: known are {', '.join(NAMES)}")
    listed, aliased = ", ".join(file.header), find_columns(file.header, {name: COLUMNS[name] for name in ALIASED})
    found = {}
    for column, names in NAMES.items():
        exact = next((name for name in names if name in file.header), aliased.get(column))
        used = columns.get(column, exact)
        if used is not None:
            found[column] = used
    absent = [name for name in found.values() if name not in file.header]
    if absent:
        raise DatasetError(f"{file.path} has no column {absent[0]!r}: found {listed}")
    if "file" not in found:
        raise DatasetError(
            f"{file.path} has no column 'file': found {listed}. Accepted are {', '.join(COLUMNS['file'])}"
        )
    if not (found.keys() >= {"lat", "lon"} or found.keys() >= {"x_m", "y_m"} or "place_id" in found):
        raise DatasetError(
            f"{file.path} has neither positions nor place ids: it needs columns lat and lon, or x_m and y_m, or "
            f"place_id; found {listed}"
        )
    return found


def _read(file: CsvFile, found: dict[str, str]) -> tuple[_Columns, _Problems]:
    """The columns by line; problems: rows without a file name, with a duplicate one, or of a wrong length."""
    read: _Columns = {column: {} for column in found}
    problems: _Problems = {}
    first_line: dict[str, int] = {}
    index = {column: file.header.index(name) for column, name in found.items()}
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
        for column, at in index.items():
            read[column][line] = row[at]
        read["file"][line] = name
    return read, problems


def _without_position(read: _Columns, lines: list[int]) -> set[int]:
    """Lines with two empty coordinates."""
    pair = next((pair for pair in (("lat", "lon"), ("x_m", "y_m")) if read.keys() >= set(pair)), None)
    return set() if pair is None else {line for line in lines if not any(read[name][line] for name in pair)}


def _bad_rows(path: Path, problems: _Problems) -> DatasetError:
    listed = [f"  line {line}: {problem}" for line, problem in sorted(problems.items())]
    more = [f"  ... and {len(listed) - LISTED:,} more"] if len(listed) > LISTED else []
    rows = "1 bad row" if len(listed) == 1 else f"{len(listed):,} bad rows"
    return DatasetError("\n".join([f"{path} has {rows}: correct or delete them", *listed[:LISTED], *more]))


def table_splits(table: Path) -> list[str]:
    """The names in the column split of a CSV file; ["all"] without one."""
    file = open_csv(table)
    read, _ = _read(file, _find_columns(file, {}))
    return sorted(set(read.get("split", {}).values()) - {""}) or ["all"]


def _lines_of_split(path: Path, read: _Columns, split: str) -> tuple[list[int], str]:
    if "split" not in read:
        return list(read["file"]), "all"
    lines = [line for line, value in read["split"].items() if value == split]
    known = sorted(set(read["split"].values()) - {""})
    if not lines:
        raise ArgumentError(f"unknown split {split!r} of {path}: known are {', '.join(known) or 'none'}")
    return lines, split


def _role(line: int, read: _Columns, problems: _Problems) -> str:
    role = read["role"][line].lower() if "role" in read else "database"
    if role not in ROLES:
        problems[line] = f"role is {role!r}, not one of {', '.join(ROLES)}"
    return ROLES.get(role, "")


def _values(read: _Columns, lines: list[int], problems: _Problems, *, decimal_comma: bool) -> dict[str, Floats]:
    """The numeric columns, one row per line; values that cannot be parsed are added to `problems`."""

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
            except ValueError as error:
                problems[line] = str(error) if name in ("lat", "lon") else f"{name} {error}"
    return values


def _positions(values: dict[str, Floats]) -> Positions | None:
    if values.keys() >= {"lat", "lon"}:
        return Positions.from_wgs84(np.stack([values["lat"], values["lon"]], axis=1))
    if values.keys() >= {"x_m", "y_m"}:
        return Positions.from_local(np.stack([values["x_m"], values["y_m"]], axis=1))
    return None


def _place_ids(column: dict[int, str], lines: list[int]) -> IdLists:
    """Numeric ids as they are; if any id of the file is not a number, all are numbered in alphabetical order."""
    words = {line: [word.strip() for word in value.split(";") if word.strip()] for line, value in column.items()}
    distinct = {word for row in words.values() for word in row}
    if all(word.isdecimal() for word in distinct):
        number_of = {word: int(word) for word in distinct}
    else:
        number_of = {word: number for number, word in enumerate(sorted(distinct))}
    return IdLists.of([number_of[word] for word in words[line]] for line in lines)


def find_splits(folder: Path) -> dict[str, Path]:
    """The splits of a folder by name, each with the folder that contains its database/.

    {"all": ...} if the folder has a database/ and no splits, {} if it has another format.
    """
    parents = [parent for parent in (folder / "images", folder) if parent.is_dir()]
    for parent in parents:
        splits = {entry.name: entry for entry in sorted(parent.iterdir()) if (entry / "database").is_dir()}
        if splits:
            return splits
    unsplit = next((parent for parent in parents if (parent / "database").is_dir()), None)
    return {} if unsplit is None else {"all": unsplit}


def load_split_folder(folder: Path, split: str = "test") -> Places:
    """One split of a folder with database/ and queries/; a folder without splits has the split "all".

    Raises DatasetError if the database is empty or none of its photos has a position.
    """
    splits = find_splits(folder)
    if "all" in splits:
        split = "all"
    holder = look_up(splits, split, f"split of {folder}")
    roles = [holder / role for role in ("database", "queries")]
    paths = [find_photos(role) if role.is_dir() else [] for role in roles]
    if not paths[0]:
        raise DatasetError(f"{roles[0]} contains no photos: the database is empty")
    names = [parse_utm_name(path.name) for of_role in paths for path in of_role]
    known = [name for name in names if name is not None]
    left_out: list[str] = []
    notes: list[str] = []
    sources: Counter[str] = Counter()
    if len(known) == len(names):
        sources["file name"] = len(known)
        both = _from_names(holder, [path for of_role in paths for path in of_role], known)
        rows = np.arange(len(known))
        database, queries = both.take(rows[: len(paths[0])]), both.take(rows[len(paths[0]) :])
    else:
        database, queries = (_from_geotags(role, left_out, notes, sources) for role in roles)
        if not len(database):
            raise _nothing_tagged(roles[0], len(paths[0]))
    return Places(
        folder.resolve().name,
        split,
        database,
        queries,
        left_out=tuple(left_out),
        notes=tuple(notes),
        position_sources=sources,
    )


def load_photo_folder(folder: Path) -> Places:
    """All geotagged photos of a folder and its subfolders as a database without queries."""
    left_out: list[str] = []
    notes: list[str] = []
    sources: Counter[str] = Counter()
    database = _from_geotags(folder, left_out, notes, sources)
    if not len(database):
        raise _nothing_tagged(folder, len(left_out))
    name, none = folder.resolve().name, database.take([])
    return Places(name, "all", database, none, left_out=tuple(left_out), notes=tuple(notes), position_sources=sources)


def _from_names(holder: Path, paths: Sequence[Path], names: Sequence[UtmName]) -> PhotoSet:
    return PhotoSet(
        holder,
        _relative(holder, paths),
        _folder_positions(holder, names),
        _column(name.time for name in names),
        _column(name.heading_deg for name in names),
    )


def _folder_positions(holder: Path, names: Sequence[UtmName]) -> Positions:
    """Positions in one frame: local without UTM zones, "utm" for one zone, "ecef" for several."""
    metres = np.array([name.east_north for name in names])
    zones = np.array([name.epsg or 0 for name in names])
    if (zones == 0).all():
        return Positions.from_local(metres)
    if (zones == zones[0]).all():
        return Positions.from_utm(metres, int(zones[0]))
    if (zones == 0).any():
        raise DatasetError(
            f"{holder}: {(zones == 0).sum()} of {len(zones)} file names have no UTM zone: their metres cannot be "
            "compared with those of the other photos"
        )
    latlon = np.empty_like(metres)
    for zone in np.unique(zones).tolist():
        latlon[zones == zone] = wgs84_from_utm(metres[zones == zone], zone)
    return Positions.from_wgs84(latlon)


def _from_geotags(folder: Path, left_out: list[str], notes: list[str], sources: Counter[str]) -> PhotoSet:
    """The geotagged photos of a folder; others are added to `left_out`, problems of geotag tables to `notes`, and the
    sources of the geotags to `sources`."""
    found = find_geotagged(folder) if folder.is_dir() else GeotaggedPhotos((), ())
    left_out.extend(str(path) for path in found.untagged)
    notes.extend(found.notes)
    sources.update(found.sources)
    return PhotoSet(
        folder,
        _relative(folder, found.photos),
        found.positions(),
        _column(geotag.time for geotag in found.geotags),
        _column(geotag.heading_deg for geotag in found.geotags),
        sources=found.sources,
    )


def _relative(folder: Path, paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(path.relative_to(folder).as_posix() for path in paths)


def _column(values: Iterable[float | None]) -> Floats | None:
    """Numbers with NaN for unknown values; None if all are unknown."""
    numbers = np.array([math.nan if value is None else value for value in values])
    return None if np.isnan(numbers).all() else numbers


def _nothing_tagged(folder: Path, photos: int) -> DatasetError:
    return DatasetError(
        f"none of the {photos} photos in {folder} has a position in its EXIF, a sidecar or its file name: list them in "
        "a CSV file with the columns file, lat, lon"
    )
