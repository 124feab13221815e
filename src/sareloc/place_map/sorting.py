"""What becomes of photos that were examined: set aside, known already, moved, or new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sareloc.errors import PhotoError
from sareloc.photos.remote import is_url, remote_stamp
from sareloc.place_map.examining import stamp
from sareloc.place_map.records import Entry, Photo
from sareloc.place_map.store import MapStore

Where = TypeVar("Where", str, Path)


@dataclass
class Tally:
    """How many photos went which way."""

    added: int = 0
    already: int = 0
    untagged: list[str] = field(default_factory=list)
    unreadable: list[PhotoError] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All photos so far."""
        return self.added + self.already + len(self.untagged) + len(self.unreadable)


def set_aside(examined: Iterable[tuple[Where, Photo | PhotoError | None]], tally: Tally) -> list[tuple[Where, Photo]]:
    """The photos that can be read and have a position; the others are listed."""
    found: list[tuple[Where, Photo]] = []
    for where, photo in examined:
        if photo is None:
            tally.untagged.append(str(where))
        elif isinstance(photo, PhotoError):
            tally.unreadable.append(photo)
        else:
            found.append((where, photo))
    return found


def pick_new(
    found: Iterable[tuple[Where, Photo]], store: MapStore, entries: dict[str, Entry], tally: Tally
) -> list[tuple[Where, Photo]]:
    """The photos whose content is not in the map, each content once; the others are counted.

    `entries`: what the map holds under the photos' file names.
    """
    found = list(found)
    known = store.known([photo.sha256 for _, photo in found])
    new: dict[bytes, tuple[Where, Photo]] = {}
    for where, photo in found:
        before = entries.get(photo.file)
        photo = replace(photo, replaces=None if before is None else before.photo_id)
        entry = known.get(photo.sha256)
        if entry is not None:
            _keep_up(store, photo, entry, known, entries)
        if entry is not None or photo.sha256 in new:
            tally.already += 1
        else:
            new[photo.sha256] = where, photo
    return list(new.values())


def _keep_up(store: MapStore, photo: Photo, entry: Entry, known: dict[bytes, Entry], entries: dict[str, Entry]) -> None:
    """A photo that was moved or renamed gets its new name in the map, in place of what had that name before."""
    if entry.file != photo.file and entry.stamp == _stamp_now(store, entry.file):
        return  # it is still there under its other name
    store.rename(entry.photo_id, photo)
    for digest, other in list(known.items()):
        if other.photo_id == photo.replaces and other.photo_id != entry.photo_id and other.file == photo.file:
            del known[digest]
    known[photo.sha256] = entries[photo.file] = Entry(entry.photo_id, photo.file, (photo.size_bytes, photo.modified_ns))


def _stamp_now(store: MapStore, file: str) -> tuple[int, int] | None:
    return remote_stamp(file) if is_url(file) else stamp(store.photo_path(file))
