"""Photos before they are described: what a map stores of each, and which are new, updated, known or duplicates."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sareloc.errors import PhotoError
from sareloc.geo import distance_m
from sareloc.maps.store import Entry, MapPhoto, MapStore, entry_of, same_entry, same_geotag
from sareloc.photos import (
    Geotag,
    content_digest,
    file_of,
    find_photos,
    image_size,
    read_geotag,
    read_geotag_table,
    stamp,
)
from sareloc.photos.addresses import without_fragment
from sareloc.photos.finding import TABLES, TableTags, is_url, match_table, remote_stamp, turned
from sareloc.photos.xmp import find_sidecar

Given = str | Path | Sequence[str | Path]
"""A folder of photos or a photo, or several of them."""
Geotags = str | Path | Mapping[Path, Geotag]
"""A table of geotags: its file (see `read_geotag_table`), or the geotags of photos."""
Where = TypeVar("Where", str, Path)
CONFLICT_M = 1.0


@dataclass(frozen=True)
class Conflict:
    """Two files with the same content and different positions."""

    photo: str
    """The file whose position is not used."""
    kept: str
    """The file whose position is in the map."""
    distance_m: float
    """Between the two positions."""

    def __str__(self) -> str:
        return f"{self.photo} has the content of {self.kept} and a position {self.distance_m:,.0f} m away: not used"


@dataclass
class Tally:
    """Counts of photos by what was done with them; each photo is counted once. See `BuildReport`."""

    added: int = 0
    updated: int = 0
    already: int = 0
    duplicates: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    """Of some of the duplicates."""
    untagged: list[str] = field(default_factory=list)
    unreadable: list[PhotoError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Warnings about photos that were used."""

    @property
    def total(self) -> int:
        """The number of photos counted so far."""
        return self.added + self.updated + self.already + self.duplicates + len(self.untagged) + len(self.unreadable)

    def count_written(self, photos: Sequence[MapPhoto], written: int) -> None:
        """Count new photos, of which `written` were written; the others had been added by another process."""
        replacing = min(sum(photo.replaces is not None for photo in photos), written)
        self.updated += replacing
        self.added += written - replacing
        self.already += len(photos) - written

    def include(self, other: Tally) -> None:
        """Add the counts and lists of another tally."""
        self.added += other.added
        self.updated += other.updated
        self.already += other.already
        self.duplicates += other.duplicates
        self.conflicts += other.conflicts
        self.untagged += other.untagged
        self.unreadable += other.unreadable
        self.notes += other.notes


def list_photos(given: Given) -> list[Path]:
    """The photos in folders and their subfolders, and single photos. Raises PhotoError if there are none."""
    items = _items(given)
    photos = [photo for item in items for photo in ([item] if item.is_file() else find_photos(item))]
    if not photos:
        raise PhotoError(", ".join(map(str, items)), "holds no photos")
    return photos


def read_tables(given: Given, table: Geotags | None, photos: Sequence[Path]) -> TableTags:
    """Geotags of `photos`: from this table; default: from geotags.csv or geotags.geojson in each given folder."""
    if isinstance(table, Mapping):
        return TableTags({os.path.abspath(photo): geotag for photo, geotag in table.items()})
    if table is not None:
        return match_table(read_geotag_table(table), photos)
    beside = [item / name for item in _items(given) for name in TABLES if (item / name).is_file()]
    found = [
        match_table(read_geotag_table(source), [photo for photo in photos if photo.is_relative_to(source.parent)])
        for source in beside
    ]
    return TableTags(
        {path: tag for one in found for path, tag in one.tags.items()},
        tuple(file for one in found for file in one.missing),
        tuple(note for one in found for note in one.notes),
    )


def tabled(photo: Path, table: Mapping[str, Geotag]) -> Geotag | None:
    """The geotag of the image at an address in a table by absolute paths: its own, else that of its file."""
    own = table.get(os.path.abspath(photo))
    whole = None if own is not None else table.get(os.path.abspath(file_of(photo)))
    return own if whole is None else turned(whole, photo)


def read_beside(photo: Path) -> Geotag | None:
    """The geotag of a photo with an XMP sidecar, which may change while the photo does not; None without a sidecar."""
    return None if find_sidecar(file_of(photo)) is None else read_geotag(photo)


def examine(photo: Path, name: str, table: Mapping[str, Geotag]) -> MapPhoto | None:
    """What a map stores of a photo; None if its position is unknown. Raises PhotoError if the photo cannot be read."""
    width, height = image_size(photo)
    geotag = tabled(photo, table) or read_geotag(photo)
    if geotag is None:
        return None
    found = stamp(photo)  # before reading the content: the next run notices a change in between
    if found is None:
        raise PhotoError(photo, "does not exist any more")
    return MapPhoto(name, geotag, width, height, content_digest(photo), *found)


def set_aside(
    examined: Iterable[tuple[Where, MapPhoto | PhotoError | None]], tally: Tally
) -> list[tuple[Where, MapPhoto]]:
    """The photos that can be read and have a position; the others are listed in the tally."""
    found: list[tuple[Where, MapPhoto]] = []
    for where, photo in examined:
        if photo is None:
            tally.untagged.append(str(where))
        elif isinstance(photo, PhotoError):
            tally.unreadable.append(photo)
        else:
            found.append((where, photo))
    return found


def corrected(unchanged: Iterable[tuple[str, Geotag | None]], entries: dict[str, Entry], tally: Tally) -> list[Entry]:
    """The updates of photos whose files have not changed but whose geotags have; all photos are counted.

    `unchanged`: names of photos in the map, each with its geotag in a table or sidecar, None if it is in neither.
    `entries`: the entries of these names in the map.
    """
    changed: list[Entry] = []
    for name, geotag in unchanged:
        entry = entries[name]
        if geotag is None or same_geotag(geotag, entry.geotag):
            tally.already += 1
        else:
            tally.updated += 1
            changed.append(replace(entry, geotag=geotag))
    return changed


def pick_new(
    found: Iterable[tuple[Where, MapPhoto]], store: MapStore | None, entries: dict[str, Entry], tally: Tally
) -> tuple[list[tuple[Where, MapPhoto]], list[Entry]]:
    """The photos whose content is not in the map, each content once, and the updates of those that are in the map.

    The latter are counted, the former are not. A photo in the map gets its present name, stamp and geotag, unless its
    file still exists under the name in the map: then this one is a duplicate. `store`: None if the map does not exist
    yet. `entries`: the entries of the photos' names in the map; changed in place.
    """
    found = list(found)
    known = {} if store is None else store.known([photo.sha256 for _, photo in found])
    new: dict[bytes, tuple[Where, MapPhoto]] = {}
    changed: list[Entry] = []
    for where, photo in found:
        before = entries.get(photo.file)
        photo = replace(photo, replaces=None if before is None else before.photo_id)
        entry = known.get(photo.sha256)
        if photo.sha256 in new:
            kept, first = new[photo.sha256]
            _count_duplicate(str(where), photo.geotag, str(kept), first.geotag, tally)
        elif store is None or entry is None:
            new[photo.sha256] = where, photo
        elif entry.file != photo.file and entry.stamp == _stamp_now(store, entry.file):
            _count_duplicate(str(where), photo.geotag, entry.file, entry.geotag, tally)
        else:
            now = entry_of(photo, entry.photo_id)
            if not same_entry(entry, now):
                changed.append(now)
            if entry.file == now.file and same_geotag(entry.geotag, now.geotag):
                tally.already += 1
            else:
                tally.updated += 1
            for digest, other in list(known.items()):  # the photo that had this name is removed by the update
                if other.photo_id == now.replaces != entry.photo_id and other.file == now.file:
                    del known[digest]
            known[photo.sha256] = entries[photo.file] = now
    return list(new.values()), changed


def _count_duplicate(where: str, geotag: Geotag, kept: str, kept_geotag: Geotag, tally: Tally) -> None:
    tally.duplicates += 1
    metres = float(distance_m(geotag.latlon, kept_geotag.latlon))
    if metres > CONFLICT_M:
        tally.conflicts.append(Conflict(where, kept, metres))


def _stamp_now(store: MapStore, file: str) -> tuple[int, int] | None:
    return remote_stamp(without_fragment(file)) if is_url(file) else stamp(store.photo_path(file))


def _items(given: Given) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(item) for item in given]
