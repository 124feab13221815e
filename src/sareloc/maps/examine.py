"""Images before they are encoded: what a map stores of each, and which are new, moved, changed, known or duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sareloc.errors import PhotoError, PositionError
from sareloc.geo import distance_m
from sareloc.maps.records import Entry, MapPhoto, entry_of, same_entry, same_geotag
from sareloc.maps.store import MapStore
from sareloc.photos import (
    Address,
    Geotag,
    ImageRecord,
    ReadImage,
    ViewOptions,
    file_of,
    is_url,
    parse_address,
    read_geotag,
    read_image,
    remote_stamp,
    stamp,
)
from sareloc.photos.finding import FRAME, turned
from sareloc.photos.record import without_fragment
from sareloc.photos.sidecars import find_takeout_json
from sareloc.photos.xmp import find_sidecar

CONFLICT_M = 1.0


@dataclass(frozen=True)
class Duplicate:
    """Two files with the same content."""

    photo: str
    """The file that is not used."""
    kept: str
    """The file that is in the map."""
    distance_m: float
    """Between their positions."""

    @property
    def is_conflict(self) -> bool:
        """Whether the two positions differ."""
        return self.distance_m > CONFLICT_M

    def __str__(self) -> str:
        elsewhere = f" and a position {self.distance_m:,.0f} m away: not used" if self.is_conflict else ""
        return f"{self.photo} has the content of {self.kept}{elsewhere}"


@dataclass
class Tally:
    """Counts of images by what was done with them; each is counted once. See `BuildReport`."""

    added: int = 0
    updated: int = 0
    already: int = 0
    added_photos: list[str] = field(default_factory=list)
    """Names in the map."""
    updated_photos: list[str] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    untagged: list[str] = field(default_factory=list)
    estimated: list[str] = field(default_factory=list)
    """Left out: sareloc estimated their positions."""
    unreadable: list[PhotoError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Warnings about photos that were used."""
    untagged_spheres: list[str] = field(default_factory=list)
    """Photos that look like full spheres and have no GPano tags; they were used as ordinary photos."""
    panoramas: int = 0
    """360° photos; the other numbers count their views."""
    features: int = 0
    """Images whose local features were written."""
    kept_edits: list[str] = field(default_factory=list)
    """Photos that keep what another program has changed in the map."""
    kept_removals: list[str] = field(default_factory=list)
    """Photos that were removed from the map and are not added again."""
    restored: list[str] = field(default_factory=list)
    """Photos whose edits or removals were undone."""

    @property
    def total(self) -> int:
        """The number of images counted so far."""
        left_out = len(self.duplicates) + len(self.untagged) + len(self.estimated) + len(self.unreadable)
        return self.added + self.updated + self.already + left_out + len(self.kept_removals)

    def count_written(self, photos: Sequence[MapPhoto], written: int) -> None:
        """Count new photos, of which `written` were written; the others had been added by another process."""
        replacing = min(sum(photo.replaces is not None for photo in photos), written)
        self.updated += replacing
        self.updated_photos += [photo.file for photo in photos if photo.replaces is not None]
        self.added_photos += [photo.file for photo in photos if photo.replaces is None]
        self.added += written - replacing
        self.already += len(photos) - written

    def include(self, other: Tally) -> None:
        """Add the counts and lists of another tally."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True, eq=False)
class Examined:
    """What a map stores of the images of a record, before they are encoded."""

    record: ImageRecord
    photos: tuple[MapPhoto, ...] = ()
    """One, or one for each view of a 360° photo; none without a position."""
    read: ReadImage | None = None
    """Without pixels."""
    error: PhotoError | None = None


New = tuple[ImageRecord, MapPhoto]
"""An image and what a map stores of it: the record that it is read from, and its row."""


def examine(record: ImageRecord, name: str, views: ViewOptions) -> Examined:
    """What a map stores of the images of a record: one open of its file, no pixels.

    Args:
        record: an image; its own geotag counts before that in the file.
        name: of the image in the map.
        views: how a 360° photo is cut.
    """
    try:
        found = stamp_of(record)
        read = read_image(record, cut=views, digest=True)  # after the stamp: the next run notices a change in between
        if found is None:
            return Examined(record, error=PhotoError(record.name, "does not exist any more"))
        return Examined(record, photos_of(record, read, name, found), read)
    except PhotoError as error:
        return Examined(record, error=error)
    except PositionError as error:
        return Examined(record, error=PhotoError(record.name, str(error)))


def photos_of(record: ImageRecord, read: ReadImage, name: str, file_stamp: tuple[int, int]) -> tuple[MapPhoto, ...]:
    """What a map stores of the images of a record; empty without a position.

    Args:
        record: an image.
        read: what was read of it, with its digest.
        name: in the map.
        file_stamp: size in bytes and modification time in ns of its file.
    """
    photos = []
    for image in read.images:
        geotag = _geotag(record, read, image)
        if geotag is None:
            return ()
        assert image.sha256 is not None
        fragment = "" if image is read else Address(Path(), image.view).fragment
        photos.append(MapPhoto(f"{name}{fragment}", geotag, image.width, image.height, image.sha256, *file_stamp))
    return tuple(photos)


def stamp_of(record: ImageRecord) -> tuple[int, int] | None:
    """Size and time of a record's file; of another image its size, and 0."""
    if record.stamp is not None or isinstance(record.image, str | Path):
        return record.stamp or stamp(str(record.image))
    return len(record.image) if isinstance(record.image, bytes) else int(np.asarray(record.image).nbytes), 0


def _geotag(record: ImageRecord, read: ReadImage, image: ReadImage) -> Geotag | None:
    """The geotag of an image of a record: the record's own, else that in its file; of a view, turned by its yaw.

    A record's own that is an estimate counts after a measured one in its file.
    """
    own = record.geotag
    if own is not None and image is not read:
        own = turned(own, image.view, read.panorama)
    if (own is None or own.estimated) and isinstance(record.image, str | Path):
        path = Path(record.image) if image is read else Address(Path(record.image), image.view).path
        found = read_geotag(path, image.metadata or read.metadata)
        return own if found is None or (own is not None and found.estimated) else found
    return own


def find_new(
    found: Sequence[New], store: MapStore | None, entries: dict[str, Entry], tally: Tally, restore: bool = False
) -> tuple[list[New], list[Entry]]:
    """The images whose content is not in the map, each content once, and the updates of those that are in the map.

    The latter are counted, the former are not. An image in the map gets its present name,
    stamp and geotag, unless its file still exists under the name in the map: then this one is a duplicate. What was
    edited in the map stays, and what was removed from it is not added (see `MapConfig.restore`).

    Args:
        found: images with a position.
        store: the map; None if it does not exist yet.
        entries: the entries of the images' names in the map; changed in place.
        tally: counts.
        restore: undo edits and removals.
    """
    digests = [photo.sha256 for _, photo in found]
    known = {} if store is None else store.known(digests)
    removed = set[bytes]() if store is None else store.removed(digests)
    new: dict[bytes, New] = {}
    changed: list[Entry] = []
    for record, photo in found:
        where = shown_name(record, photo)
        before = entries.get(photo.file)
        photo = replace(photo, replaces=None if before is None else before.photo_id)
        entry = known.get(photo.sha256)
        if photo.sha256 in new:
            kept, first = new[photo.sha256]
            _count_duplicate(where, photo.geotag, shown_name(kept, first), first.geotag, tally)
        elif entry is None and photo.sha256 in removed and not restore:
            tally.kept_removals.append(where)
        elif store is None or entry is None:
            if photo.sha256 in removed:
                tally.restored.append(where)
            new[photo.sha256] = record, photo if before is None else _keep_edits(photo, before, tally, restore)
        elif entry.file != photo.file and _is_there(store, entry):
            _count_duplicate(where, photo.geotag, entry.file, entry.geotag, tally)
        else:
            now = _updated(entry, entry_of(photo, entry.photo_id), tally, restore)
            if not same_entry(entry, now):
                changed.append(now)
            _count_update(entry, now, tally)
            for digest, other in list(known.items()):  # the photo that had this name is removed by the update
                if other.photo_id == now.replaces != entry.photo_id and other.file == now.file:
                    del known[digest]
            known[photo.sha256] = entries[photo.file] = now
    return list(new.values()), changed


def _updated(entry: Entry, now: Entry, tally: Tally, restore: bool) -> Entry:
    """An entry as it is to be written: with what was edited in the map, unless `restore`.

    Args:
        entry: in the map.
        now: by its file.
        tally: names what is kept and what is restored.
        restore: undo edits.
    """
    if not (entry.edited or entry.problem):
        return now
    if restore:
        tally.restored.append(now.file)
        return now
    if entry.problem:
        tally.kept_edits.append(f"{entry.file}: not valid: {entry.problem}")
        return entry
    tally.kept_edits.append(now.file)
    return replace(now, geotag=_with_edits(entry, now.geotag), source=now.geotag, edited=entry.edited)


def _keep_edits(photo: MapPhoto, before: Entry, tally: Tally, restore: bool) -> MapPhoto:
    """A photo with the edits of the one that had its name before, if its file has the geotag of that one's file.

    Then a photo was saved again, such as with other keywords. Else it is another photo, and the edits end.
    """
    if not (before.edited or before.problem):
        return photo
    if restore or before.problem or before.source is None or not same_geotag(before.source, photo.geotag):
        tally.restored.append(photo.file)
        return photo
    tally.kept_edits.append(photo.file)
    return replace(photo, geotag=_with_edits(before, photo.geotag), source=photo.geotag)


def _with_edits(entry: Entry, geotag: Geotag) -> Geotag:
    """A geotag by the file of a photo, with what was edited in the map."""
    edits: dict[str, Any] = {name: getattr(entry.geotag, name) for name in entry.edited}
    return replace(geotag, **edits)


def split_usable(examined: Iterable[Examined], trust_estimates: bool, tally: Tally) -> Iterator[New]:
    """The images that can be read and have a position; the others are listed in the tally.

    Args:
        examined: images.
        trust_estimates: also those whose positions sareloc estimated.
        tally: counts.
    """
    for one in examined:
        if one.error is not None:
            tally.unreadable.append(one.error)
            continue
        assert one.read is not None
        if one.read.note:
            tally.notes.append(one.read.note)
        tally.panoramas += one.read.panorama is not None
        if one.read.is_untagged_sphere:
            tally.untagged_spheres.append(one.record.name)
        if not one.photos:
            tally.untagged += [shown_name(one.record, image) for image in one.read.images]
        for photo in one.photos:
            if photo.geotag.estimated and not trust_estimates:
                tally.estimated.append(shown_name(one.record, photo))
            else:
                yield one.record, photo


def shown_name(record: ImageRecord, image: MapPhoto | ReadImage) -> str:
    """How a report calls an image: by its record, and its view."""
    name = image.file if isinstance(image, MapPhoto) else image.name
    return f"{without_fragment(record.name)}{parse_address(name).fragment}"


def _count_duplicate(where: str, geotag: Geotag, kept: str, kept_geotag: Geotag, tally: Tally) -> None:
    tally.duplicates.append(Duplicate(where, kept, float(distance_m(geotag.latlon, kept_geotag.latlon))))


def _is_there(store: MapStore, entry: Entry) -> bool:
    """Whether the photo of an entry still exists under its name; an image that is not a file always does."""
    if entry.file.startswith(FRAME):
        return True
    now = remote_stamp(without_fragment(entry.file)) if is_url(entry.file) else stamp(store.photo_path(entry.file))
    return entry.stamp == now


def geotag_updates(
    unchanged: Iterable[tuple[Entry, Geotag | None]], trust_estimates: bool, tally: Tally, restore: bool = False
) -> list[Entry]:
    """The updates of photos whose files have not changed but whose geotags have; all photos are counted.

    Args:
        unchanged: entries of the map, each with the photo's geotag in a table or sidecar, None if it is in neither.
        trust_estimates: also update them to positions that sareloc estimated.
        tally: counts.
        restore: undo edits.
    """
    changed: list[Entry] = []
    for entry, geotag in unchanged:
        left_out = geotag is None or (geotag.estimated and not trust_estimates)
        known = entry.source or entry.geotag if geotag is None or left_out else geotag
        now = _updated(entry, replace(entry, geotag=known, source=None, edited=(), problem=None), tally, restore)
        if not same_entry(entry, now):
            changed.append(now)
        _count_update(entry, now, tally)
    return changed


def _count_update(entry: Entry, now: Entry, tally: Tally) -> None:
    if (entry.file, entry.problem) == (now.file, now.problem) and same_geotag(entry.geotag, now.geotag):
        tally.already += 1
    else:
        tally.updated += 1
        tally.updated_photos.append(now.file)


def present_geotag(record: ImageRecord) -> Geotag | None:
    """The geotag of a record, else of a sidecar of its file: what may change while the file does not.

    None if there is neither.
    """
    if record.geotag is not None or not isinstance(record.image, str | Path) or is_url(record.image):
        return record.geotag
    photo = Path(record.image)
    file = file_of(photo)
    alone = find_sidecar(file) is None and find_takeout_json(file) is None
    return None if alone else read_geotag(photo)
