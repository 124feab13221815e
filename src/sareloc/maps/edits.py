"""Edits of a map file by other programs, such as QGIS: how they are recognized, so that writing the map keeps them.

The table `file_geotags` has a row for each photo that sareloc wrote: its content, and its geotag by its file (or table,
sidecar, track). A photo whose geotag in the map differs was edited. A row without a photo is of one that was removed
from the map, by another program or by `remove_photos`: it is not added again unless that is asked for (`restore`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sareloc.maps import gpkg
from sareloc.maps.records import Entry, MapPhoto, same_geotag
from sareloc.photos import Geotag

TABLE = "file_geotags"
COLUMNS = {"fid", "sha256", "geom", "heading_deg", "time"}
READ = "source.geom, source.heading_deg, source.time"
"""What a photo's row is read with, from `JOINED`; NULL if the table has no row of it."""
JOINED = f"photos LEFT JOIN {TABLE} AS source USING (fid)"
FIELDS = ("latlon", "heading_deg", "time")
"""Of a geotag, each of which may be edited."""


def make_table(connection: sqlite3.Connection) -> None:
    """Create the table, with a row for each photo of the map.

    The position by the file is unknown (NULL) of those whose checksum says that they were edited before.
    """
    gpkg.make_attributes(
        connection,
        TABLE,
        "fid INTEGER PRIMARY KEY, sha256 BLOB NOT NULL UNIQUE, geom BLOB, heading_deg DOUBLE, time DATETIME",
        "geotag of the photo with the same fid by its file: in photos it differs if it was edited; without a photo: "
        "removed from the map",
    )
    connection.execute(
        f"INSERT OR IGNORE INTO {TABLE} (fid, sha256, geom, heading_deg, time) SELECT fid, sha256, "
        "CASE WHEN photo_checksum != 0 THEN geom END, heading_deg, time FROM photos WHERE typeof(sha256) = 'blob'"
    )


def write_source(sql: sqlite3.Connection, photo_id: int, sha256: bytes, geotag: Geotag) -> None:
    """Write the geotag of a photo by its file; a removed photo of the same content is forgotten."""
    time = None if geotag.time is None else gpkg.time_text(geotag.time)
    row = (photo_id, sha256, gpkg.point_blob(geotag.latlon), geotag.heading_deg, time)
    sql.execute(f"INSERT OR REPLACE INTO {TABLE} (fid, sha256, geom, heading_deg, time) VALUES (?, ?, ?, ?, ?)", row)


def write_removed(sql: sqlite3.Connection, digests: Collection[bytes]) -> None:
    """Write that photos of these contents were removed; their ids are below 0, as no photo's is."""
    sql.executemany(
        f"INSERT OR IGNORE INTO {TABLE} (fid, sha256) SELECT min(0, coalesce(min(fid), 0)) - 1, ? FROM {TABLE}",
        [(digest,) for digest in sorted(digests)],
    )


def edited_fields(geotag: Geotag, source: Geotag | None, checksum: int) -> tuple[str, ...]:
    """The fields of a geotag that another program has changed in the map.

    Args:
        geotag: in the map.
        source: by the file; None if it is unknown.
        checksum: of position and file name in the map; 0: another program has changed one of them.
    """
    if source is None:
        return () if checksum else FIELDS[:1]
    return tuple(name for name in FIELDS if not same_geotag(replace(geotag, **{name: getattr(source, name)}), geotag))


def with_edits(entry: Entry, geotag: Geotag) -> Geotag:
    """A geotag by the file of a photo, with what was edited in the map."""
    edits: dict[str, Any] = {name: getattr(entry.geotag, name) for name in entry.edited}
    return replace(geotag, **edits)


def inherit_edits(photo: MapPhoto, before: Entry) -> MapPhoto:
    """A photo with the edits of the one whose file name it has, if its file has the geotag of that one's file.

    Then a photo was saved again, such as with other keywords. Else it is another photo, and the edits end.
    """
    if not before.edited or before.problem or before.source is None or not same_geotag(before.source, photo.geotag):
        return photo
    return replace(photo, geotag=with_edits(before, photo.geotag), source=photo.geotag)
