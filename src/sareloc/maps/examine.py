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
from sareloc.photos.finding import (
    EXTENSIONS,
    FRAME,
    TableTags,
    is_url,
    match_table,
    read_tables_beside,
    remote_stamp,
    turned,
)
from sareloc.photos.images import CHANGED, read_identity
from sareloc.photos.sidecars import find_takeout_json
from sareloc.photos.tables import counted
from sareloc.photos.track_geotags import TrackOptions, geotags_by_options
from sareloc.photos.video_geotags import frames_on_track
from sareloc.photos.videos import VIDEO_EXTENSIONS, is_video
from sareloc.photos.xmp import find_sidecar

Given = str | Path | Sequence[str | Path]
"""A folder of photos or a photo, or several of them."""
Geotags = str | Path | Mapping[Path, Geotag]
"""A table of geotags: its file (see `read_geotag_table`), or the geotags of photos."""
Where = TypeVar("Where", str, Path)
CONFLICT_M = 1.0
NEEDS_TRACK = "a video: its frames are placed by a track, give one (--track FILE)"


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
    panoramas: int = 0
    """360° photos of a stream; the other numbers count their views."""
    features: int = 0
    """Images of a stream whose local features were added with them."""

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
        self.panoramas += other.panoramas
        self.features += other.features


def list_photos(given: Given, *, videos: bool = False) -> list[Path]:
    """The photos in folders and their subfolders, and single photos. Raises PhotoError if there are none.

    `videos`: also the videos in folders; a video that is given itself is always listed.
    """
    items = _items(given)
    photos = [photo for item in items for photo in files_in(item, videos=videos)]
    if not photos:
        raise PhotoError(", ".join(map(str, items)), "holds no photos")
    return photos


def files_in(item: Path, *, videos: bool) -> list[Path]:
    """The photos in a folder, with its subfolders, or a single photo, which may be at an address in a file."""
    extensions = (*EXTENSIONS, *VIDEO_EXTENSIONS) if videos else EXTENSIONS
    return [item] if file_of(item).is_file() else find_photos(item, extensions)


@dataclass(frozen=True)
class Listing:
    """The images for a map: photos, and frames of videos."""

    photos: tuple[Path, ...]
    """Their addresses."""
    tags: Mapping[str, Geotag]
    """Geotags from tables and tracks, by absolute path."""
    errors: tuple[PhotoError, ...] = ()
    """Of videos none of whose frames is used."""
    notes: tuple[str, ...] = ()


def list_images(
    given: Given, files: Sequence[Path], geotags: Geotags | None, track: TrackOptions | None = None
) -> Listing:
    """The images in `files`, which are photos and videos found in `given`, with their geotags (see `read_tables`).

    Videos become frames along the track (see `frames_on_track`). Without a track they are not used: a video that is
    given itself is an error, those in folders a note.
    """
    photos, videos = [file for file in files if not is_video(file)], [file for file in files if is_video(file)]
    table = read_tables(given, geotags, photos, track if photos else None)
    if not videos:
        return Listing(tuple(photos), table.tags, (), table.notes)
    if track is None:
        named = set(_items(given))
        errors = tuple(PhotoError(video, NEEDS_TRACK) for video in videos if video in named)
        others = [str(video) for video in videos if video not in named]
        note = (f"{counted(others, 'video')} not used: frames of a video are placed by a track (--track FILE)",)
        return Listing(tuple(photos), table.tags, errors, (*table.notes, *(note if others else ())))
    report = frames_on_track(videos, track)
    placed = {os.path.abspath(frame): geotag for frame, geotag in report.geotags.items()}
    return Listing((*photos, *report.geotags), {**placed, **table.tags}, report.errors, (*table.notes, *report.notes))


def read_tables(
    given: Given, table: Geotags | None, photos: Sequence[Path], track: TrackOptions | None = None
) -> TableTags:
    """Geotags of `photos`: from this table; default: from the `TABLES` in each given folder.

    `track`: photos that are in no table and have no position of their own get one from these tracks; what they told is
    in the notes.
    """
    tables = _read_tables(given, table, photos)
    if track is None:
        return tables
    report = geotags_by_options(photos, track, tables.tags)
    placed = {os.path.abspath(photo): geotag for photo, geotag in report.geotags.items()}
    reasons = [f"{photo}: no position from the track, {reason}" for photo, reason in report.untagged]
    notes = (*tables.notes, report.summary(), *report.notes, *reasons)
    return TableTags({**placed, **tables.tags}, tables.missing, notes)


def _read_tables(given: Given, table: Geotags | None, photos: Sequence[Path]) -> TableTags:
    if isinstance(table, Mapping):
        return TableTags({os.path.abspath(photo): geotag for photo, geotag in table.items()})
    if table is not None:
        return match_table(read_geotag_table(table), photos)
    found = [
        read_tables_beside(item, [photo for photo in photos if photo.is_relative_to(item)]) for item in _items(given)
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
    """The geotag of a photo with a sidecar, which may change while the photo does not; None without a sidecar."""
    file = file_of(photo)
    alone = find_sidecar(file) is None and find_takeout_json(file) is None
    return None if alone else read_geotag(photo)


def examine(photo: Path, name: str, table: Mapping[str, Geotag]) -> MapPhoto | None:
    """What a map stores of a photo; None if its position is unknown. Raises PhotoError if the photo cannot be read."""
    before = read_identity(photo)
    width, height = image_size(photo)
    geotag = tabled(photo, table) or read_geotag(photo)
    if geotag is None:
        return None
    found = stamp(photo)
    if found is None:
        raise PhotoError(photo, "does not exist any more")
    digest = content_digest(photo)
    if read_identity(photo) != before:
        raise PhotoError(photo, CHANGED)
    return MapPhoto(name, geotag, width, height, digest, *found)


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
        elif entry.file != photo.file and _is_there(store, entry):
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


def _is_there(store: MapStore, entry: Entry) -> bool:
    """Whether the photo of an entry still exists under its name; an image that is not a file always does."""
    return entry.file.startswith(FRAME) or entry.stamp == _stamp_now(store, entry.file)


def _stamp_now(store: MapStore, file: str) -> tuple[int, int] | None:
    return remote_stamp(without_fragment(file)) if is_url(file) else stamp(store.photo_path(file))


def _items(given: Given) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(item) for item in given]
