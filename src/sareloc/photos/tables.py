"""Geotags from a file beside the photos: a CSV or a GeoJSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from sareloc.errors import ArgumentError, DatasetError, PositionError
from sareloc.photos.geotag import Geotag, seconds_since_1970

Row = tuple[str, dict[str, Any]]
"""Where it stands ("line 3"), and its values: file, lat, lon, heading, time."""


def read_geotag_table(path: str | Path) -> dict[str, Geotag]:
    """Geotags by file name, relative to the table's folder with forward slashes.

    A `.csv` has the columns file, lat, lon and may have heading (degrees) and time (seconds since 1970, or ISO 8601:
    2024-05-31T12:00:00+02:00), separated by commas, semicolons or tabs. A `.geojson` or `.json` has Point features
    with the property `file` and may have `heading` and `time`; other features are passed over. Empty headings and
    times are unknown. Raises DatasetError for anything else, naming the line.
    """
    table = Path(path)
    readers = {".csv": _csv_rows, ".geojson": _geojson_rows, ".json": _geojson_rows}
    if table.suffix.lower() not in readers:
        raise ArgumentError(f"{table}: a table of geotags ends in .csv, .geojson or .json")
    try:
        text = table.read_text(encoding="utf-8-sig")  # spreadsheets begin with a byte-order mark
    except (OSError, UnicodeDecodeError) as unreadable:
        raise DatasetError(f"{table} cannot be read as UTF-8 text: {unreadable}") from unreadable
    geotags: dict[str, Geotag] = {}
    for where, row in readers[table.suffix.lower()](table, text):
        named = str(row["file"] or "").strip().replace("\\", "/")
        if not named:
            raise DatasetError(f"{table} {where}: no file is named")
        file = PurePosixPath(named).as_posix()
        if file in geotags:
            raise DatasetError(f"{table} {where}: {file} is there twice")
        geotags[file] = _geotag(row, f"{table} {where} ({file})")
    return geotags


def _csv_rows(table: Path, text: str) -> Iterator[Row]:
    header = text.lstrip().partition("\n")[0]
    separator = max(",;\t", key=header.count)
    reader = csv.DictReader(text.splitlines(), delimiter=separator, skipinitialspace=True)
    names = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
    missing = [name for name in ("file", "lat", "lon") if name not in names]
    if missing:
        raise DatasetError(f"{table} has no column {missing[0]!r}: it has {', '.join(names) or 'no columns'}")
    known = [name for name in ("file", "lat", "lon", "heading", "time") if name in names]
    try:
        for row in reader:
            yield f"line {reader.line_num}", {name: row[names[name]] for name in known}
    except csv.Error as broken:
        raise DatasetError(f"{table} line {reader.line_num}: {broken}") from broken


def _geojson_rows(table: Path, text: str) -> Iterator[Row]:
    try:
        features = json.loads(text)["features"]
        for number, feature in enumerate(features):
            properties = feature.get("properties") or {}
            if "file" not in properties:
                continue
            where = f"feature {number}"
            geometry = feature.get("geometry") or {}
            if geometry.get("type") != "Point":
                raise DatasetError(f"{table} {where}: a photo stands on a Point, found {geometry.get('type')}")
            longitude, latitude = geometry["coordinates"][:2]
            yield where, {**properties, "lat": latitude, "lon": longitude}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as broken:
        raise DatasetError(f"{table} is not a GeoJSON FeatureCollection of Points: {broken!r}") from broken


def _geotag(row: dict[str, Any], where: str) -> Geotag:
    latitude, longitude = (_number(row[name], name, where) for name in ("lat", "lon"))
    heading = _number(row["heading"], "heading", where) if _given(row.get("heading")) else None
    try:
        time = _time(row["time"], where) if _given(row.get("time")) else None
        return Geotag((latitude, longitude), None if heading is None else heading % 360, time)
    except PositionError as outside:
        raise DatasetError(f"{where}: {outside}") from outside


def _given(value: Any) -> bool:
    return value is not None and str(value).strip() != ""


def _number(value: Any, name: str, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DatasetError(f"{where}: {name} must be a number, found {value!r}")
    return number


def _time(value: Any, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    try:
        return seconds_since_1970(datetime.fromisoformat(str(value).strip()))
    except ValueError:
        raise DatasetError(
            f"{where}: time must be seconds since 1970 or like 2024-05-31T12:00:00+02:00, found {value!r}"
        ) from None
