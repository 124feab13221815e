"""A photo as a row of a Milvus collection.

Its id is the first 63 bits of the SHA-256 of its content, so that whoever adds it, however often, writes the same row.
(Of 100 million photos two share an id with a chance of 1 in 1,800: the later one is left out.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sareloc.engines.milvus import Row
from sareloc.engines.milvus_schema import Column
from sareloc.photos import Geotag
from sareloc.place_map.areas import Box
from sareloc.place_map.records import Entry, Photo

UNKNOWN = -1e18
"""Stands where a time or a heading is not known: old servers have no empty fields."""
COLUMNS = (
    Column("lat", "DOUBLE", 0.0),
    Column("lon", "DOUBLE", 0.0),
    Column("file", "VARCHAR", ""),
    Column("sha256", "VARCHAR", ""),
    Column("time", "DOUBLE", UNKNOWN),
    Column("heading_deg", "DOUBLE", UNKNOWN),
    Column("width", "INT64", 0),
    Column("height", "INT64", 0),
    Column("size_bytes", "INT64", 0),
    Column("modified_ns", "INT64", 0),
)
ALL = [column.name for column in COLUMNS]
ENTRY = ["lat", "lon", "file", "sha256", "time", "heading_deg", "size_bytes", "modified_ns"]
PLACE = ["lat", "lon", "file"]


def photo_id(sha256: bytes) -> int:
    """The id of the photo with this content."""
    return int.from_bytes(sha256[:8], "big") >> 1


def inside(box: Box) -> str:
    """The condition, in Milvus's words, that a photo stands in a box, borders included."""
    between = "and" if box.west <= box.east else "or"  # the latter across the antimeridian
    return (
        f"lat >= {float(box.south)!r} and lat <= {float(box.north)!r} "
        f"and (lon >= {float(box.west)!r} {between} lon <= {float(box.east)!r})"
    )


def row_of(photo: Photo) -> Row:
    """What is known of a photo, without its id and its descriptor."""
    tag = photo.geotag
    return {
        "lat": float(tag.latlon[0]),
        "lon": float(tag.latlon[1]),
        "file": photo.file,
        "sha256": photo.sha256.hex(),
        "time": UNKNOWN if tag.time is None else float(tag.time),
        "heading_deg": UNKNOWN if tag.heading_deg is None else float(tag.heading_deg),
        "width": photo.width,
        "height": photo.height,
        "size_bytes": photo.size_bytes,
        "modified_ns": photo.modified_ns,
    }


def photo_of(row: Row) -> Photo:
    """The photo of a row with all columns."""
    sizes: tuple[Any, ...] = row["size_bytes"], row["modified_ns"]
    return Photo(row["file"], _geotag(row), row["width"], row["height"], bytes.fromhex(row["sha256"]), *sizes)


def entry_of(row: Row) -> Entry:
    """What an entry says, of a row with its columns."""
    return Entry(row["id"], row["file"], (row["size_bytes"], row["modified_ns"]), _geotag(row))


def _geotag(row: Row) -> Geotag:
    heading, time = (None if row[name] == UNKNOWN else row[name] for name in ("heading_deg", "time"))
    return Geotag((row["lat"], row["lon"]), heading, time)


def text_list(values: Sequence[str]) -> str:
    """Texts as a list in a condition."""
    return json.dumps(list(values), ensure_ascii=False)
