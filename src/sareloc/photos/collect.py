"""From what a user gives (folders, photos, videos, tables of geotags, tracks) to records of images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos.finding import (
    EXTENSIONS,
    TableTags,
    find_photos,
    match_table,
    raw_twins_note,
    read_folder_tables,
    turned,
)
from sareloc.photos.panoramas import read_panorama
from sareloc.photos.record import VIDEO_EXTENSIONS, Geotag, ImageRecord, file_of, is_video, parse_address
from sareloc.photos.tables import read_geotag_table
from sareloc.photos.track_geotags import TrackOptions, frames_on_track, geotags_by_options
from sareloc.photos.tracks import NO_TRACK
from sareloc.wording import counted

PhotoPaths = str | Path | Sequence[str | Path]
"""A folder of photos or a photo, or several of them."""
Geotags = str | Path | Mapping[Path, Geotag]
"""A table of geotags: its file (see `read_geotag_table`), or the geotags of photos."""


def list_photos(given: PhotoPaths, *, videos: bool = False) -> list[Path]:
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
class Collected:
    """The images that a user gave: photos, and frames of videos."""

    records: tuple[ImageRecord, ...]
    """With the geotags of tables and tracks; others have those in their files."""
    errors: tuple[PhotoError, ...] = ()
    """Of videos none of whose frames is used."""
    notes: tuple[str, ...] = ()


def collect_records(
    given: PhotoPaths, files: Sequence[Path], geotags: Geotags | None, track: TrackOptions | None = None
) -> Collected:
    """The records of the images in `files`, which are photos and videos found in `given` (see `read_tables`).

    Videos become frames along the track, default: their own telemetry (see `frames_on_track`). If a video has none, it
    is an error if it was given itself, and a note if it was found in a folder; so are clips of the same name as a photo
    beside them (Live Photos).
    """
    photos, videos = [file for file in files if not is_video(file)], [file for file in files if is_video(file)]
    has_track = track is not None and bool(track.track)
    if not (track is None or has_track or videos or track == TrackOptions()):
        raise ArgumentError(NO_TRACK)
    table = read_tables(given, geotags, photos, track if photos and has_track else None)
    records = [record_with(photo, geotag_from_table(photo, table.tags)) for photo in photos]
    named = set(_items(given))
    notes = [*table.notes, *raw_twins_note([photo for photo in photos if photo not in named])]
    if not videos:
        return Collected(tuple(records), (), tuple(notes))
    if not has_track:
        beside = {photo.with_suffix("") for photo in photos}
        clips = {video for video in videos if video not in named and video.with_suffix("") in beside}
        videos = [video for video in videos if video not in clips]
        if clips:
            names = counted(sorted(map(str, clips)), "video")
            notes.append(f"{names} not used: clips of photos of the same name; give a clip itself to use it")
    report = frames_on_track(videos, track or TrackOptions())
    errors, unused = [], dict[str, list[str]]()
    for error in report.errors:
        if has_track or Path(error.photo) in named:
            errors.append(error)
        else:
            unused.setdefault(error.reason, []).append(error.photo)
    notes += [f"{counted(names, 'video')} not used: {reason}" for reason, names in unused.items()]
    for frame, geotag in report.geotags.items():
        row = geotag_from_table(frame, table.tags)
        records.append(record_with(frame, geotag if row is None or (row.estimated and not geotag.estimated) else row))
    return Collected(tuple(records), tuple(errors), (*report.notes, *notes))


def record_with(photo: str | Path, geotag: Geotag | None) -> ImageRecord:
    """The record of an image in a file, with this geotag; None: that in the file."""
    if geotag is None:
        return ImageRecord(str(photo), photo)
    return ImageRecord(str(photo), photo, geotag.latlon, geotag.heading_deg, geotag.time, estimated=geotag.estimated)


def read_tables(
    given: PhotoPaths, table: Geotags | None, photos: Sequence[Path], track: TrackOptions | None = None
) -> TableTags:
    """Geotags of `photos`: from this table; default: from the `TABLES` in each given folder.

    `track`: photos that are in no table and have no position of their own get one from these tracks; their report
    is in the notes.
    """
    tables = _read_tables(given, table, photos)
    if track is None:
        return tables
    report = geotags_by_options(photos, track, tables.tags)
    placed = {os.path.abspath(photo): geotag for photo, geotag in report.geotags.items()}
    reasons = [f"{photo}: no position from the track, {reason}" for photo, reason in report.untagged]
    notes = (*tables.notes, report.summary(), *report.notes, *reasons)
    return TableTags({**tables.tags, **placed}, tables.missing, notes)


def _read_tables(given: PhotoPaths, table: Geotags | None, photos: Sequence[Path]) -> TableTags:
    if isinstance(table, Mapping):
        return TableTags({os.path.abspath(photo): geotag for photo, geotag in table.items()})
    if table is not None:
        return match_table(read_geotag_table(table), photos)
    found = [
        read_folder_tables(item, [photo for photo in photos if photo.is_relative_to(item)]) for item in _items(given)
    ]
    return TableTags(
        {path: tag for one in found for path, tag in one.tags.items()},
        tuple(file for one in found for file in one.missing),
        tuple(note for one in found for note in one.notes),
    )


def geotag_from_table(photo: Path, table: Mapping[str, Geotag]) -> Geotag | None:
    """The geotag of the image at an address in a table by absolute paths: its own, else that of its file."""
    own = table.get(os.path.abspath(photo))
    whole = None if own is not None else table.get(os.path.abspath(file_of(photo)))
    if whole is None:
        return own
    view = parse_address(photo).view
    known = view is None or whole.heading_deg is not None
    return turned(whole, view, None if known else read_panorama(file_of(photo)))


def _items(given: PhotoPaths) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(item) for item in given]
