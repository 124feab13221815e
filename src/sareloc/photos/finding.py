"""Finding photos and their geotags: in folders, and below URLs of object storage or anything else fsspec reaches.

URLs: s3://bucket/folder, gs://bucket/folder, zip://photos::s3://bucket/photos.zip, ... Each kind of storage needs its
own package (s3fs, gcsfs).
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

from sareloc.errors import DatasetError, PanoramaError, PhotoError, SarelocError, need
from sareloc.files import NUL
from sareloc.geo import Positions
from sareloc.photos.geotags import geotag_from_exif, parse_utm_name, seconds_from_exif
from sareloc.photos.panoramas import Panorama, panorama_from
from sareloc.photos.photo_file import PhotoMetadata, find_metadata, read_metadata
from sareloc.photos.raw import RAW_EXTENSIONS
from sareloc.photos.read_image import Stamp, fitting_ns
from sareloc.photos.record import Geotag, View, parse_address
from sareloc.photos.sidecars import read_takeout_geotag, read_takeout_time
from sareloc.photos.tables import GeotagTable, read_geotag_table
from sareloc.photos.xmp import geotag_from_xmp, read_sidecar_geotag, read_sidecar_time, time_from_xmp
from sareloc.wording import counted

PathOrUrl = TypeVar("PathOrUrl", bound=PurePath)

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".tif", ".tiff", ".heic", ".heif", *RAW_EXTENSIONS)
OWN_TABLES = ("geotags.csv", "geotags.geojson")
TABLES = (*OWN_TABLES, "mapillary_image_description.json", "_panoramax.csv", "_geovisio.csv")
"""Names of tables that are read beside photos, in order of priority; those of other programs may lack positions."""
TABLE = "table"
"""The source of geotags that are in a table."""
NOT_UTF8 = "its file or folder name is not UTF-8, so that it cannot be listed in a map or a table: rename it"
TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")  # names of it in storages


FRAME = "frame://"
"""Scheme of the names of images that are not files, such as a robot's frames (see `PhotoSource`)."""


def find_remote_photos(url: str) -> dict[str, Stamp]:
    """URLs and stamps of the photos in a remote folder and its subfolders, or of one photo, sorted by URL."""
    with _storage(url) as (storage, root):
        found: Mapping[str, Any] = storage.find(root, detail=True)
        photos = {
            _url_of(storage, path, url): _stamp(info)
            for path, info in found.items()
            if _is_photo(path.removeprefix(root) or PurePosixPath(path).name)
        }
    return dict(sorted(photos.items()))


def usual_url(url: str) -> str:
    """The normalized URL, as `find_remote_photos` returns it: memory:///town for memory://town/."""
    with _storage(url) as (storage, path):
        return _url_of(storage, path, url)


def remote_stamp(url: str) -> Stamp | None:
    """The stamp of a remote photo; None if it does not exist."""
    try:
        with _storage(url) as (storage, path):
            return _stamp(storage.info(path))
    except PhotoError:
        return None


def fetch_file(url: str, folder: Path) -> Path:
    """Copy a file from its URL into a subfolder of `folder`, one for each URL, under its own name; returns its path."""
    own = folder / hashlib.sha256(url.encode()).hexdigest()[:16]
    own.mkdir(exist_ok=True)
    with _storage(url) as (storage, path):
        target = own / PurePosixPath(path).name
        storage.get_file(path, str(target))
    return target


def _url_of(storage: Any, path: str, like: str) -> str:
    """The URL of a path in the storage, with the archive chain (after "::") of another URL."""
    _, colons, chain = like.partition("::")
    return f"{storage.unstrip_protocol(path)}{colons}{chain}"


def _is_photo(path: str) -> bool:
    parts = PurePosixPath(path.strip("/")).parts
    return path.lower().endswith(EXTENSIONS) and not any(part.startswith(".") for part in parts)


def _stamp(info: Mapping[str, Any]) -> Stamp:
    changed = next((info[name] for name in TIMES if info.get(name) is not None), 0)
    if isinstance(changed, str):
        changed = datetime.fromisoformat(changed)
    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    return int(info.get("size") or 0), fitting_ns(int(changed * 1e9))


@contextmanager
def _storage(url: str) -> Iterator[tuple[Any, str]]:
    """A context with the storage of a URL and the path in it; errors of the storage are PhotoErrors with the URL."""
    try:
        yield need("fsspec", "ray").core.url_to_fs(url)
    except SarelocError:
        raise
    except FileNotFoundError:
        raise PhotoError(url, "no such file or folder") from None
    except ImportError as missing:
        raise PhotoError(url, f"this storage needs another package: {missing}") from missing
    except Exception as error:
        raise PhotoError(url, f"cannot be read: {error}") from error


@dataclass(frozen=True)
class TableTags:
    """The rows of tables that belong to photos (see `match_table`)."""

    tags: Mapping[str, Geotag]
    """Geotags by the photo's absolute path."""
    missing: tuple[str, ...] = ()
    """Files listed in the table that do not exist."""
    notes: tuple[str, ...] = ()
    """Problems of the tables."""


@dataclass(frozen=True)
class GeotaggedPhotos:
    """The result of `find_geotagged`: photos with geotags, sorted by name, and what was left out."""

    photos: tuple[Path, ...]
    geotags: tuple[Geotag, ...]
    sources: tuple[str, ...] = ()
    """Where the geotag of each photo is from: `TABLE`, or a name of `SOURCES`."""
    untagged: tuple[Path, ...] = ()
    """Photos without a geotag, or with one that sareloc estimated, which a note counts."""
    unreadable: tuple[PhotoError, ...] = ()
    """Errors of those `untagged` photos that could not be opened: damaged, or HEIC without the extra."""
    missing: tuple[str, ...] = ()
    """Files listed in the table that are not in the folder."""
    notes: tuple[str, ...] = ()
    """Problems of the table: bad rows, rows without a photo, positions far from the others."""

    def positions(self) -> Positions:
        """The positions of the photos."""
        return Positions.from_wgs84([geotag.latlon for geotag in self.geotags])


def find_photos(folder: str | Path, extensions: tuple[str, ...] = EXTENSIONS) -> list[Path]:
    """The photos in a folder and its subfolders, sorted; may be empty. Raises PhotoError if it cannot be read.

    A photo is a file with one of the `extensions`, in upper or lower case. Hidden files and folders (".thumbnails",
    "._IMG.jpg") are skipped, links are followed, and a folder that is reached twice counts once. A RAW file beside a
    photo of the same name is left out (see `raw_twins`).
    """
    root = Path(folder)
    if not root.is_dir():
        what = "is a file, not a folder" if root.is_file() else "is not a regular file or folder"
        raise PhotoError(root, NUL if "\0" in str(root) else what if root.exists() else "no such folder")
    found: list[Path] = []
    waiting, seen = [root], {_identity(root)}
    while waiting:
        here = waiting.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            raise PhotoError(here, f"the folder cannot be read: {error.strerror}") from error
        for entry in entries:
            path = here / entry.name
            if entry.name.startswith("."):
                continue
            if _is(entry.is_dir):
                if _identity(path) not in seen:
                    seen.add(_identity(path))
                    waiting.append(path)
            elif path.suffix.lower() in extensions and _is(entry.is_file):
                found.append(path)
    twins = raw_twins(found)
    return sorted(photo for photo in found if photo not in twins)


def raw_twins(photos: Collection[PathOrUrl]) -> set[PathOrUrl]:
    """The RAW files of which these photos hold another file of the same name in the same folder, such as DSC1.NEF
    beside DSC1.JPG: both are one photo, and the camera's JPEG is used."""
    raw = {photo for photo in photos if photo.suffix.lower() in RAW_EXTENSIONS}
    others = {photo.with_suffix("") for photo in photos if photo.suffix.lower() in EXTENSIONS and photo not in raw}
    return {photo for photo in raw if photo.with_suffix("") in others}


def raw_twins_note(photos: Sequence[Path]) -> list[str]:
    """A note on the RAW files that `find_photos` left out beside these photos; none if there are none."""
    beside: list[Path] = []
    for folder, names in groupby(sorted(photos), key=lambda photo: photo.parent):
        own = {*names}
        try:
            listed = {folder / name for name in os.listdir(folder)}
        except OSError:
            continue
        beside += sorted(raw_twins(own | listed) - own)
    return [twins_note(list(map(str, beside)))] if beside else []


def twins_note(raw: Sequence[str]) -> str:
    """A note on RAW files that are left out as twins of other photos."""
    used = "the photo of its name beside it is" if len(raw) == 1 else "the photos of their names beside them are"
    return f"{counted(raw, 'RAW file')} not used: {used}"


def is_utf8(name: str) -> bool:
    """Whether a file name is valid UTF-8 text; Python keeps other bytes as surrogates, which cannot be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def turned(geotag: Geotag, view: View | None, panorama: Panorama | None) -> Geotag:
    """The geotag of an image, given that of its file: a view is turned by its yaw.

    A geotag without a heading gets that of the panorama, if it is known.
    """
    if view is None:
        return geotag
    known = panorama.heading_deg if panorama is not None and geotag.heading_deg is None else geotag.heading_deg
    return replace(geotag, heading_deg=None if known is None else (known + view.yaw_deg) % 360)


SOURCES: tuple[tuple[str, Callable[[Path, PhotoMetadata | None], Geotag | None]], ...] = (
    ("EXIF", lambda _, metadata: None if metadata is None else geotag_from_exif(metadata.exif)),
    ("embedded XMP", lambda _, metadata: None if metadata is None else geotag_from_xmp(metadata.xmp)),
    ("XMP sidecar", lambda photo, _: read_sidecar_geotag(photo)),
    ("Takeout JSON", lambda photo, _: read_takeout_geotag(photo)),
    ("file name", lambda photo, _: None if (name := parse_utm_name(photo.name)) is None else name.geotag()),
)
"""Where a photo's geotag is read from, in order of priority; a table has priority over all (see `find_geotagged`).
First what the camera wrote, then what programs wrote into the photo, then files beside it. Each gets the photo's path
and what its file says of it, None if that cannot be read."""

TIME_SOURCES: tuple[Callable[[Path, PhotoMetadata | None], float | None], ...] = (
    lambda _, metadata: None if metadata is None else seconds_from_exif(metadata.exif),
    lambda _, metadata: None if metadata is None else time_from_xmp(metadata.xmp),
    lambda photo, _: read_sidecar_time(photo),
    lambda photo, _: read_takeout_time(photo),
    lambda photo, _: None if (name := parse_utm_name(photo.name)) is None else name.time,
)


def find_geotag(path: str | Path, metadata: PhotoMetadata | None = None) -> tuple[str, Geotag] | None:
    """The first geotag of a photo in the order of `SOURCES`, with the name of its source; None if there is none.

    An estimated position counts after the measured ones of all sources. The position and the heading are of this
    source; a time that it lacks, unless it is EXIF, is that of `read_time`.

    Args:
        path: the photo.
        metadata: what its file says of it; default: it is read.
    """
    photo, known = Path(path), metadata or find_metadata(Path(path))
    found: tuple[str, Geotag] | None = None
    for source, read in SOURCES:
        geotag = read(photo, known)
        if geotag is not None and (found is None or not geotag.estimated):
            found = source, geotag
            if not geotag.estimated:
                break
    if found is None or found[1].time is not None or found[0] == "EXIF":
        return found
    return found[0], replace(found[1], time=_first_time(photo, known))


def read_geotag(path: str | Path, metadata: PhotoMetadata | None = None) -> Geotag | None:
    """The geotag of a photo; None if it has none.

    In this order: EXIF, the XMP packet inside the photo, its XMP sidecar, its Google Takeout JSON, its file name in the
    VPR-datasets format. The first that has a position is used (see `SOURCES`), one that sareloc estimated after all
    others. Of a view, that of its 360° photo,
    turned by its yaw; the heading is that of the GPano tags if they have one.

    Args:
        path: the photo, or the address of a view.
        metadata: what the photo's file says of it; default: it is read.
    """
    address = parse_address(path)
    if address.view is None:
        found = find_geotag(path, metadata)
        return None if found is None else found[1]
    known = metadata or find_metadata(address.file)
    found = find_geotag(address.file, known)
    if found is None:
        return None
    try:
        panorama = None if known is None else panorama_from(known, name=str(address.file))
    except PanoramaError:
        panorama = None
    heading = None if panorama is None else panorama.heading_deg
    whole = found[1] if heading is None else replace(found[1], heading_deg=heading)
    return turned(whole, address.view, None)


def read_geotags(path: str | Path) -> dict[str, Geotag]:
    """The geotags of a photo by the names of their sources, in the order of `SOURCES`."""
    photo, known = Path(path), find_metadata(Path(path))
    return {source: geotag for source, read in SOURCES if (geotag := read(photo, known)) is not None}


def read_time(path: str | Path) -> float | None:
    """The time of a photo (as `Geotag.time`), from the sources of its geotag in the same order; None if none has one. A
    photo without a position can have a time. Of a frame of a video: by the video's clock."""
    address = parse_address(path)
    if address.time_s is not None:
        from sareloc.photos.videos import frame_time

        return frame_time(address.file, address.time_s)
    return _first_time(address.file, find_metadata(address.file))


def _first_time(photo: Path, metadata: PhotoMetadata | None) -> float | None:
    return next((time for read in TIME_SOURCES if (time := read(photo, metadata)) is not None), None)


def find_geotagged(folder: str | Path, table: str | Path | None = None) -> GeotaggedPhotos:
    """The photos of a folder with their geotags: from a table, else by `read_geotag`.

    `table`: see `read_geotag_table`; default: the `TABLES` in the folder.
    """
    from tqdm import tqdm

    root, listed = Path(folder), find_photos(folder)
    rows = read_folder_tables(root, listed) if table is None else match_table(read_geotag_table(table), listed)
    used: dict[Path, tuple[str, Geotag]] = {}
    estimated: list[str] = []
    for photo in tqdm(listed, desc="geotags", unit="photo", disable=None, leave=False):
        row = rows.tags.get(os.path.abspath(photo))
        found = (TABLE, row) if row is not None and not row.estimated else find_geotag(photo)
        if found is not None and not found[1].estimated:
            used[photo] = found
        elif found is not None or row is not None:
            estimated.append(str(photo))
    untagged = tuple(photo for photo in listed if photo not in used)
    left_out = [f"{counted(estimated, 'photo')} with a position that sareloc estimated: left out"] if estimated else []
    return GeotaggedPhotos(
        tuple(used),
        tuple(tag for _, tag in used.values()),
        tuple(source for source, _ in used.values()),
        untagged,
        tuple(error for error in map(_why_unreadable, untagged) if error is not None),
        rows.missing,
        (*rows.notes, *left_out),
    )


def read_folder_tables(folder: Path, photos: Sequence[Path]) -> TableTags:
    """The geotags of photos in the `TABLES` of a folder; if several have a photo, the first."""
    read, notes = read_tables_of_any_program([path for name in TABLES if (path := folder / name).is_file()])
    found = [match_table(table, photos) for table in read]
    return TableTags(
        {path: tag for one in reversed(found) for path, tag in one.tags.items()},
        tuple(file for one in found for file in one.missing),
        (*notes, *(note for one in found for note in one.notes)),
    )


def read_tables_of_any_program(paths: Sequence[Path]) -> tuple[list[GeotagTable], list[str]]:
    """The tables in these files, and notes on those of other programs that cannot be used.

    Raises DatasetError for one of the `OWN_TABLES`: they are written for sareloc.
    """
    tables: list[GeotagTable] = []
    notes: list[str] = []
    for path in paths:
        try:
            tables.append(read_geotag_table(path))
        except DatasetError as error:
            if path.name in OWN_TABLES:
                raise
            notes.append(f"not used: {error}")
    return tables, notes


def match_table(table: GeotagTable, photos: Sequence[Path]) -> TableTags:
    """The geotags of a table for these photos.

    A row lists a photo by its path relative to the table's folder. If no path matches, as in a table that was written
    elsewhere, rows and photos are matched by file names that are unique on both sides.
    """
    rows = {_comparable(table.path.parent / file): file for file in (*table.tags, *table.untagged)}
    listed = {_comparable(photo): photo for photo in photos}
    matched = {listed[path]: file for path, file in rows.items() if path in listed}
    notes = list(table.problems)
    if rows and listed and not matched:
        matched = _match_by_name(list(rows.values()), list(listed.values()))
        if matched:
            notes.append(f"{table.path}: no row matches a photo by its path, {len(matched):,} match by file name alone")
        else:
            notes.append(
                f"{table.path} lists none of the {len(photos):,} photos: it lists {next(iter(rows.values()))!r} in "
                f"{table.path.parent}, a photo is {str(photos[0])!r}"
            )
    used = set(matched.values())
    missing = tuple(file for path, file in rows.items() if file not in used and not os.path.isfile(path))
    if missing and matched:
        notes.append(f"{table.path}: {counted(missing, 'row')} without a photo")
    tags = {os.path.abspath(photo): table.tags[file] for photo, file in matched.items() if file in table.tags}
    return TableTags(tags, missing, tuple(notes))


def _match_by_name(files: Sequence[str], photos: Sequence[Path]) -> dict[Path, str]:
    names = [_comparable(Path(file).name) for file in files]
    own_names = [_comparable(photo.name) for photo in photos]
    counts, own_counts = Counter(names), Counter(own_names)
    row_of = dict(zip(names, files, strict=True))
    return {
        photo: row_of[name]
        for photo, name in zip(photos, own_names, strict=True)
        if counts[name] == own_counts[name] == 1
    }


def _comparable(path: str | Path) -> str:
    """The absolute path in Unicode form NFC: macOS writes é as two characters."""
    return unicodedata.normalize("NFC", os.path.abspath(path))


def _why_unreadable(photo: Path) -> PhotoError | None:
    try:
        read_metadata(photo)
    except PhotoError as error:
        return error
    return None


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself is neither file nor folder
        return False
