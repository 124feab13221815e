"""Tables of geotags: CSV as written by spreadsheets, exiftool, GIS programs and for Panoramax, GeoJSON, and the image
descriptions of mapillary_tools."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from sareloc.errors import ArgumentError, DatasetError, PositionError
from sareloc.files import open_regular, read_regular
from sareloc.geo import distance_m
from sareloc.photos.record import Geotag, seconds_since_1970
from sareloc.wording import counted

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "file": (
        *("file", "sourcefile", "filename", "image", "imagename", "imagefile", "photo", "photoname", "path"),
        *("filepath", "name"),
    ),
    "lat": ("lat", "latitude", "latdeg", "latitudedeg", "gpslatitude", "gpslat"),
    "lon": ("lon", "lng", "long", "longitude", "londeg", "longitudedeg", "gpslongitude", "gpslon", "gpslng"),
    "lat_ref": ("gpslatituderef", "latituderef", "latref"),
    "lon_ref": ("gpslongituderef", "longituderef", "lonref"),
    "heading": (
        *("heading", "headingdeg", "bearing", "compass", "compassangle", "direction", "gpsimgdirection"),
        "exifgpsinfogpsimgdirection",
    ),
    "time": (
        *("time", "timestamp", "datetime", "datetimeoriginal", "date", "capturetime", "capturedat", "shotdate"),
        "exifphotodatetimeoriginal",
    ),
    "radius": ("radiusm",),
    "confidence": ("confidence",),
}
"""Columns and their accepted names, best first, as `find_columns` compares them. x and y are not accepted: they may be
metres. Radius and confidence are those of `sareloc localize` and `geotag`: such rows are estimates."""

POSITION = ("lat", "lon", "lat_ref", "lon_ref")  # columns of a CSV; GeoJSON has geometries

LONGEST_VALUE = 1 << 24  # Google Landmarks lists all positives of a query in one value; the default is 128 KiB
LARGEST_JSON = 50_000_000
LONGEST_NUMBER = 100  # characters of a coordinate or a time; the patterns below need squared time
FAR_M = 100_000.0

_NUMBER = r"(?:\d+(?:[.,]\d*)?|[.,]\d+)"
_DECIMAL = re.compile(rf"([NSEW]?)\s*([+-]?)({_NUMBER})\s*(?:°|º|˚|deg)?\s*([NSEW]?)", re.IGNORECASE)
_SEXAGESIMAL = re.compile(  # degrees, then whole minutes and seconds, or minutes
    rf"([NSEW]?)\s*([+-]?)(\d{{1,3}})(?:\s*(?:°|º|˚|deg)\s*|\s+)"
    rf"(?:(\d{{1,2}})(?:\s*['′’´]\s*|\s+)({_NUMBER})\s*(?:[\"″”]|'')?|({_NUMBER})\s*['′’´]?)\s*([NSEW]?)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CsvFile:
    """The format of a CSV file (see `open_csv`), and the names of its columns."""

    path: Path
    encoding: str
    """utf-8-sig, utf-16 or cp1252."""
    separator: str
    """A comma, a semicolon or a tab."""
    header: tuple[str, ...]

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and stripped values of each row below the header; empty lines are skipped."""
        rows = self._all_rows()
        next(rows)
        return rows

    def row_problem(self, row: Sequence[str], needed: int) -> str:
        """Why the length of a row is wrong, given that the first `needed` values are used; empty if it is right."""
        if len(row) >= needed and not any(row[len(self.header) :]):
            return ""
        hint = " (decimal commas need quotes here, or ; between values)" if self.separator == "," else ""
        return f"{len(row)} values for {len(self.header)} columns{hint if len(row) > len(self.header) else ''}"

    def notes(self) -> tuple[str, ...]:
        """Notes about assumptions on the encoding."""
        return _encoding_notes(self.path, self.encoding)

    def _all_rows(self) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(LONGEST_VALUE)
        with _open_text(self.path, self.encoding) as lines:
            reader = csv.reader(lines, delimiter=self.separator, skipinitialspace=True)
            try:
                for number, row in enumerate(row for row in reader if any(map(str.strip, row))):
                    if number > 0 or not row[0].startswith("sep="):  # Excel's own first line
                        yield reader.line_num, [value.strip() for value in row]
            except (csv.Error, UnicodeDecodeError) as error:
                raise DatasetError(f"{self.path} after line {reader.line_num}: not valid CSV ({error})") from error


@dataclass(frozen=True)
class GeotagTable:
    """The geotags of a table, and its problems."""

    path: Path
    tags: Mapping[str, Geotag]
    """Geotags by file name, relative to the table's folder with forward slashes."""
    untagged: tuple[str, ...] = ()
    """Files with an empty position."""
    problems: tuple[str, ...] = ()
    """Bad rows, which are not used, with line numbers; then other notes."""


class _Row(NamedTuple):
    where: str  # "line 3"
    values: dict[str, Any]  # by the keys of COLUMNS
    problem: str = ""


def open_csv(path: Path) -> CsvFile:
    """Detect the encoding and separator of a CSV file, and read the names of its columns.

    The encoding is UTF-8, UTF-16 with a byte-order mark, or else Windows-1252 (Latin-1), which `CsvFile.notes` reports.
    The separator is the most frequent of comma, semicolon and tab in the first line. Raises DatasetError if the file
    cannot be read, is not text, or is empty.
    """
    encoding = _encoding(path)
    try:
        with _open_text(path, encoding) as lines:
            first = next((line for line in lines if line.strip()), "")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not text in {encoding} ({error})") from error
    declared = re.fullmatch(r'"?sep=([,;\t])"?', first.strip("\n "))
    found = CsvFile(path, encoding, declared[1] if declared else max(",;\t", key=first.count), ())
    for _, header in found._all_rows():
        return CsvFile(path, encoding, found.separator, tuple(header))
    raise DatasetError(f"{path} is empty: its first line must name the columns")


def find_columns(names: Sequence[str], known: Mapping[str, Sequence[str]] = COLUMNS) -> dict[str, str]:
    """Keys of `known` -> the name of that column in `names`, for the columns that `names` has.

    Case, spaces, punctuation and a group before a colon ("EXIF:GPSLatitude") are ignored.
    """
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(re.sub(r"[^a-z0-9]", "", name.rpartition(":")[2].lower()), name)
    found = {column: next((plain[a] for a in aliases if a in plain), None) for column, aliases in known.items()}
    return {column: name for column, name in found.items() if name is not None}


def read_geotag_table(path: str | Path) -> GeotagTable:
    """The geotags in the valid rows of a table; bad rows are listed in `problems`.

    A `.csv` (see `open_csv`) has column names in its first line, any of those in `COLUMNS`: file, lat and lon (degrees
    WGS84: 52.2025, 52,2025 or 52 deg 12' 9.00" N), and optionally heading (degrees) and time (seconds since 1970, or
    ISO 8601: 2024-05-31T12:00:00+02:00). A `.geojson` or `.json` has Point features with such properties for file,
    heading and time; other features are skipped. A `.json` that is a list has the image descriptions of
    mapillary_tools (filename, MAPLatitude, MAPLongitude, MAPCaptureTime, MAPCompassHeading); videos are skipped.

    A row is bad if its position cannot be parsed, is out of range or is exactly 0, 0 (which receivers without a fix
    write), if it has too few or too many values, or if an earlier row gives the file another position. A row with an
    empty position is ignored. A heading or a time that cannot be parsed is unknown.
    Raises DatasetError if the table cannot be read or lacks the columns for file and position.
    """
    table = Path(path)
    readers = {".csv": _csv_rows, ".geojson": _json_rows, ".json": _json_rows}
    if table.suffix.lower() not in readers:
        raise ArgumentError(f"{table}: a geotag table must end in .csv, .geojson or .json")
    rows, notes = readers[table.suffix.lower()](table)
    tags: dict[str, Geotag] = {}
    places: dict[str, str] = {}  # file -> where in the table
    untagged: list[str] = []
    problems: list[str] = []
    ignored: dict[str, list[str]] = {"heading": [], "time": []}
    for where, values, problem in rows:
        file = _file_name(values.get("file"))
        label = f"{where} ({file})" if file else where
        try:
            if problem or not file:
                raise ValueError(problem or "no file name")
            position = _position(values)
        except ValueError as error:
            problems.append(f"{table} {label}: {error}")
            continue
        if position is None:
            untagged.append(file)
        elif file not in tags:
            tags[file], places[file] = _geotag(position, values, where, ignored), label
        elif tags[file].latlon != position:
            problems.append(
                f"{table} {label}: another position than in {places[file].partition(' (')[0]}; that one is used"
            )
    for name, found in ignored.items():
        if found:
            problems.append(f"{table}: {name} cannot be parsed in {counted(found, 'row')}: unknown there")
    problems += [f"{table}: {odd}" for odd in _odd_positions(tags, places)]
    return GeotagTable(table, tags, tuple(untagged), (*problems, *notes))


def parse_number(value: Any) -> float:
    """Parse a finite number with a decimal point or a decimal comma; raises ValueError for anything else."""
    text = str(value).strip()
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a value of {len(text):,} characters is not a number")
    if "," in text and re.fullmatch(r"[+-]?\d*,\d+", text):
        text = text.replace(",", ".")
    try:
        number = float("x" if "_" in text else text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a number")
    return number


def parse_degrees(value: Any, letters: str, ref: str = "") -> float:
    """Parse a latitude or a longitude in degrees from a number or a text.

    Formats: 52.2025, 52,2025, 52.2025 N, 52 deg 12' 9.00" N, N 52° 12.15', -52° 12' 9". Degrees with minutes need a
    sign or a letter.

    Args:
        value: number or text.
        letters: "NS" for a latitude, "EW" for a longitude.
        ref: the hemisphere from a separate column.

    Raises:
        ValueError: if the text has another format or is out of range.
    """
    name, limit = ("latitude", 90) if letters == "NS" else ("longitude", 180)
    text, hemisphere = str(value).strip(), ref[:1].upper()
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"{name} of {len(text):,} characters is not a number")
    try:
        degrees, sign, letter = parse_number(text), "+", ""
    except ValueError:
        decimal, parts = _DECIMAL.fullmatch(text), _SEXAGESIMAL.fullmatch(text)
        if decimal:
            before, sign, number, after = decimal.groups()
            degrees = parse_number(number)
        elif parts:
            before, sign, whole, whole_minutes, seconds, minutes, after = parts.groups()
            sixtieths = [parse_number(part) for part in ((whole_minutes, seconds) if whole_minutes else (minutes, "0"))]
            if max(sixtieths) >= 60:
                raise ValueError(f"{name} {value!r} has 60 minutes or seconds, or more") from None
            degrees = float(whole) + sixtieths[0] / 60 + sixtieths[1] / 3600
            if not (sign or before or after or (hemisphere and hemisphere in letters)):
                raise ValueError(f"{name} {value!r} has no hemisphere ({' or '.join(letters)})") from None
        else:
            raise ValueError(f"{name} {value!r} is not a number") from None
        letter = (before or after).upper()
        if (before and after) or (sign and letter) or (letter and letter not in letters):
            raise ValueError(f"{name} {value!r} is ambiguous") from None
        degrees = -degrees if sign == "-" else degrees
    if letter == letters[1] or (not letter and hemisphere == letters[1]):
        degrees = -abs(degrees)
    if abs(degrees) > limit:
        raise ValueError(f"{name} {value} is outside -{limit}..{limit} degrees")
    return degrees


def parse_time(value: Any) -> float:
    """Seconds since 1970 from a number, ISO 8601, EXIF's 2024:05:31 12:00:00 or Mapillary's 2024_05_31_12_00_00_000.

    Raises ValueError for other texts.
    """
    text = str(value).strip()
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a value of {len(text):,} characters is not a time")
    try:
        return parse_number(text)
    except ValueError:
        pass
    text = re.sub(r"^(\d{4}):(\d\d):(\d\d)\b", r"\1-\2-\3", text)
    text = re.sub(r"^(\d{4})_(\d\d)_(\d\d)_(\d\d)_(\d\d)_(\d\d)_(\d+)$", r"\1-\2-\3T\4:\5:\6.\7", text)
    try:
        return seconds_since_1970(datetime.fromisoformat(text))
    except ValueError:
        raise ValueError(
            f"{value!r} is neither seconds since 1970 nor a time such as 2024-05-31T12:00:00+02:00"
        ) from None


def _csv_rows(table: Path) -> tuple[Iterator[_Row], tuple[str, ...]]:
    file = open_csv(table)
    found = find_columns(file.header)
    for needed in ("file", "lat", "lon"):
        if needed not in found:
            raise DatasetError(
                f"{table} has no column {needed!r}: found {', '.join(file.header)}. Accepted are "
                f"{', '.join(COLUMNS[needed])}"
            )
    index = {column: file.header.index(name) for column, name in found.items()}
    least = 1 + max(index[needed] for needed in ("file", "lat", "lon"))

    def rows() -> Iterator[_Row]:
        for line, row in file.rows():
            values = {column: row[at] for column, at in index.items() if at < len(row)}
            yield _Row(f"line {line}", values, file.row_problem(row, least))

    return rows(), file.notes()


def _json_rows(table: Path) -> tuple[Iterator[_Row], tuple[str, ...]]:
    encoding, wrong = _encoding(table), f"{table} is not a GeoJSON FeatureCollection"
    if table.suffix.lower() == ".json":
        wrong += " or a list of image descriptions"
    try:
        content = json.loads(read_regular(table, LARGEST_JSON).decode(encoding, _errors(encoding)))
    except OSError as error:
        raise DatasetError(f"{table} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{wrong}: {error!r}") from error
    notes = _encoding_notes(table, encoding)
    if isinstance(content, list) and table.suffix.lower() == ".json":
        return _mapillary_rows(table, content), notes
    features = content.get("features") if isinstance(content, dict) else None
    if not isinstance(features, list):
        raise DatasetError(f"{wrong}: found {reprlib.repr(content)}")
    return _geojson_rows(table, features), notes


def _mapillary_rows(table: Path, descriptions: list[Any]) -> Iterator[_Row]:
    """Rows from image descriptions: those of images that mapillary_tools could not process have no position."""
    known = [one for one in descriptions if isinstance(one, dict) and "filename" in one]
    if descriptions and not known:
        raise DatasetError(f"{table} has no image descriptions: found {reprlib.repr(descriptions[0])}")
    for number, description in enumerate(descriptions):
        if not isinstance(description, dict):
            yield _Row(f"description {number}", {}, f"expected an object, found {reprlib.repr(description)}")
        elif "MAPGPSTrack" not in description:
            compass = description.get("MAPCompassHeading")
            values = {
                "file": description.get("filename"),
                "lat": description.get("MAPLatitude"),
                "lon": description.get("MAPLongitude"),
                "time": description.get("MAPCaptureTime"),
                "heading": compass.get("TrueHeading") if isinstance(compass, dict) else None,
            }
            yield _Row(f"description {number}", values)


def _geojson_rows(table: Path, features: list[Any]) -> Iterator[_Row]:
    properties = [feature.get("properties") if isinstance(feature, dict) else None for feature in features]
    names = list(dict.fromkeys(name for each in properties if isinstance(each, dict) for name in each))
    found = find_columns(names, {column: COLUMNS[column] for column in COLUMNS if column not in POSITION})
    if features and "file" not in found:
        raise DatasetError(
            f"{table} has no property 'file': found {', '.join(names) or 'no properties'}. Accepted are "
            f"{', '.join(COLUMNS['file'])}"
        )
    for number, (feature, given) in enumerate(zip(features, properties, strict=True)):
        if not isinstance(feature, dict):
            yield _Row(f"feature {number}", {}, f"expected an object, found {reprlib.repr(feature)}")
        elif isinstance(given, dict) and given.get(found["file"]) is not None:
            values = {column: given.get(name) for column, name in found.items()}
            position, problem = _point(feature.get("geometry"))
            yield _Row(f"feature {number}", values | position, problem)


def _point(geometry: Any) -> tuple[dict[str, Any], str]:
    """The coordinates of a geometry (empty if it has none), or its problem."""
    if geometry is None:
        return {}, ""
    kind = geometry.get("type") if isinstance(geometry, dict) else geometry
    if kind != "Point":
        return {}, f"the geometry must be a Point, found {reprlib.repr(kind)}"
    coordinates = geometry.get("coordinates")
    if not isinstance(coordinates, list) or len(coordinates) not in (0, 2, 3):
        return {}, f"a Point must have coordinates [longitude, latitude], found {reprlib.repr(coordinates)}"
    return (dict(zip(("lon", "lat"), coordinates, strict=False)) if coordinates else {}), ""


def _file_name(value: Any) -> str:
    named = str("" if value is None else value).strip().replace("\\", "/")
    return PurePosixPath(named).as_posix() if named else ""


def _position(values: Mapping[str, Any]) -> tuple[float, float] | None:
    """Latitude and longitude; None if both are empty. Raises ValueError if they are invalid."""
    given = {name: values.get(name) for name in ("lat", "lon") if _given(values.get(name))}
    if not given:
        return None
    for name in ("lat", "lon"):
        if name not in given:
            raise ValueError(f"{name} is empty")
    refs = [str(values.get(name) or "").strip() for name in ("lat_ref", "lon_ref")]
    try:
        latitude, longitude = parse_degrees(given["lat"], "NS", refs[0]), parse_degrees(given["lon"], "EW", refs[1])
    except ValueError as error:
        raise ValueError(f"{error}{_if_swapped(given)}") from None
    if latitude == longitude == 0:
        raise ValueError("the position is exactly 0, 0, which receivers without a fix write")
    return latitude, longitude


def _if_swapped(given: Mapping[str, Any]) -> str:
    try:
        parse_degrees(given["lon"], "NS"), parse_degrees(given["lat"], "EW")
    except ValueError:
        return ""
    return " (latitude and longitude swapped?)"


def _geotag(
    position: tuple[float, float], values: Mapping[str, Any], where: str, ignored: Mapping[str, list[str]]
) -> Geotag:
    """A geotag with heading and time; values that cannot be parsed are added to `ignored`."""
    heading = time = None
    if _given(values.get("heading")):
        try:
            heading = parse_number(values["heading"]) % 360
        except ValueError:
            ignored["heading"].append(f"{where}: {reprlib.repr(values['heading'])}")
    if _given(values.get("time")):
        try:
            time = Geotag(position, None, parse_time(values["time"])).time
        except (ValueError, PositionError):
            ignored["time"].append(f"{where}: {reprlib.repr(values['time'])}")
    return Geotag(position, heading, time, _given(values.get("radius")) and _given(values.get("confidence")))


def _given(value: Any) -> bool:
    return value is not None and str(value).strip() != ""


def _odd_positions(tags: Mapping[str, Geotag], places: Mapping[str, str]) -> Iterator[str]:
    """Notes on positions far from the median if most are near it: outliers, or swapped latitude and longitude."""
    if len(tags) < 3:
        return
    files, latlon = list(tags), np.array([tag.latlon for tag in tags.values()])
    middle = np.median(latlon, axis=0)
    near = distance_m(latlon, middle) <= FAR_M
    if 2 * near.sum() <= len(files):
        return
    can_turn = np.abs(latlon[:, 1]) <= 90
    swapped = ~near & (distance_m(np.where(can_turn[:, None], latlon[:, ::-1], latlon), middle) <= FAR_M)
    others = ~near & ~swapped
    far = f"far from the others, which are around {middle[0]:.5f}, {middle[1]:.5f}"
    for odd, what in ((swapped, "latitude and longitude seem to be swapped"), (others, "check them")):
        rows = np.flatnonzero(odd)
        if len(rows) and (odd is swapped or len(rows) <= max(1, len(files) // 10)):
            quoted = [f"{places[files[row]]} at {latlon[row, 0]:.5f}, {latlon[row, 1]:.5f}" for row in rows]
            yield f"{counted(quoted, 'position')} {far}: {what}"


def _encoding(path: Path) -> str:
    """UTF-8, UTF-16 by its byte-order mark, else Windows-1252; raises DatasetError if the file is not text."""
    decoder, encoding, at_end = codecs.getincrementaldecoder("utf-8")(), "utf-8-sig", False
    try:
        with open_regular(path) as content:
            if content.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                return "utf-16"
            while not at_end:
                chunk = content.read(1 << 20)
                at_end = not chunk
                if b"\0" in chunk:
                    raise DatasetError(f"{path} is not text: save it as CSV or GeoJSON in UTF-8")
                try:
                    decoder.decode(chunk, final=at_end)
                except UnicodeDecodeError:
                    encoding = "cp1252"
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    return encoding


def _open_text(path: Path, encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(open_regular(path), encoding, _errors(encoding), newline="")


def _errors(encoding: str) -> str:
    return "replace" if encoding == "cp1252" else "strict"  # five bytes are undefined in it


def _encoding_notes(path: Path, encoding: str) -> tuple[str, ...]:
    if encoding != "cp1252":
        return ()
    return (f"{path} is not UTF-8 and was read as Windows-1252 (Latin-1): save it as UTF-8 if its names look wrong",)
