"""What becomes of photos that were examined: left out, known already, updated, or new."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sareloc.errors import PhotoError
from sareloc.geo import distance_m
from sareloc.maps.examine import stamp
from sareloc.maps.records import Entry, MapPhoto, entry_of, same_entry, same_geotag
from sareloc.maps.store import MapStore
from sareloc.photos import Geotag
from sareloc.photos.finding import is_url, remote_stamp

CONFLICT_M = 1.0
Where = TypeVar("Where", str, Path)


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
    """How many photos went which way: each is counted once."""

    added: int = 0
    updated: int = 0
    already: int = 0
    duplicates: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    """Of some of the duplicates."""
    untagged: list[str] = field(default_factory=list)
    unreadable: list[PhotoError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a person should know of photos that were used."""

    @property
    def total(self) -> int:
        """All photos so far."""
        return self.added + self.updated + self.already + self.duplicates + len(self.untagged) + len(self.unreadable)

    def count_written(self, photos: Sequence[MapPhoto], written: int) -> None:
        """Count new photos, of which so many were written; the others were added by another process before."""
        replacing = min(sum(photo.replaces is not None for photo in photos), written)
        self.updated += replacing
        self.added += written - replacing
        self.already += len(photos) - written

    def include(self, other: Tally) -> None:
        """Count the photos of another tally, too."""
        self.added += other.added
        self.updated += other.updated
        self.already += other.already
        self.duplicates += other.duplicates
        self.conflicts += other.conflicts
        self.untagged += other.untagged
        self.unreadable += other.unreadable
        self.notes += other.notes


def set_aside(
    examined: Iterable[tuple[Where, MapPhoto | PhotoError | None]], tally: Tally
) -> list[tuple[Where, MapPhoto]]:
    """The photos that can be read and have a position; the others are listed."""
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
    """What to update of photos whose files have not changed, but their geotags have; counts all of them.

    `unchanged`: names of files in the map, each with its geotag in a table or sidecar, None if it has none there.
    `entries`: what the map holds under these names.
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
    """The photos whose content is not in the map, each content once, and what to update of those in the map.

    The latter are counted, the former are not. A photo in the map gets its present name, stamp and geotag; if its
    file is still there under another name, this one is a duplicate. `store`: None if the map does not exist yet.
    `entries`: what the map holds under the photos' file names; updated.
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
            for digest, other in list(known.items()):  # what had this name before is removed with the update
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
    return remote_stamp(file) if is_url(file) else stamp(store.photo_path(file))
