"""The photos of a folder, and their geotags."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sareloc.errors import PhotoError
from sareloc.geo import Positions
from sareloc.photos.decoding import open_photo
from sareloc.photos.exif import read_exif_geotag, read_exif_time
from sareloc.photos.geotag import Geotag
from sareloc.photos.names import parse_utm_name
from sareloc.photos.tables import read_geotag_table

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".tif", ".tiff", ".heic", ".heif")
TABLES = ("geotags.csv", "geotags.geojson")


@dataclass(frozen=True)
class GeotaggedPhotos:
    """What `find_geotagged` found: photos with their geotags, in order of name, and what had to be left out."""

    photos: tuple[Path, ...]
    geotags: tuple[Geotag, ...]
    untagged: tuple[Path, ...] = ()
    """Photos for which no geotag was found."""
    unreadable: tuple[PhotoError, ...] = ()
    """Why some of `untagged` could not even be opened: damaged, or HEIC without its extra."""
    missing: tuple[str, ...] = ()
    """Files that the table names and the folder does not hold."""

    def positions(self) -> Positions:
        """Where the photos stand."""
        return Positions.from_wgs84([geotag.latlon for geotag in self.geotags])


def find_photos(folder: str | Path) -> list[Path]:
    """The photos in a folder and its subfolders, sorted; none is an empty list.

    A photo is a file with one of the `EXTENSIONS`, in either case. Hidden files and folders (".thumbnails",
    "._IMG.jpg") are passed over, links are followed, and a folder reached twice, as in a loop of links, counts once.
    """
    root = Path(folder)
    if not root.is_dir():
        raise PhotoError(root, "is a file, not a folder" if root.exists() else "no such folder")
    found: list[Path] = []
    waiting, seen = [root], {_identity(root)}
    while waiting:
        here = waiting.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as denied:
            raise PhotoError(here, f"the folder cannot be read: {denied.strerror}") from denied
        for entry in entries:
            path = here / entry.name
            if entry.name.startswith("."):
                continue
            if _holds(entry.is_dir):
                if _identity(path) not in seen:
                    seen.add(_identity(path))
                    waiting.append(path)
            elif path.suffix.lower() in EXTENSIONS and _holds(entry.is_file):
                found.append(path)
    return sorted(found)


def read_geotag(path: str | Path) -> Geotag | None:
    """The geotag of a photo: from its EXIF, else from its file name in the field's format, else None."""
    geotag = read_exif_geotag(Path(path))
    if geotag is not None:
        return geotag
    name = parse_utm_name(Path(path).name)
    return None if name is None else name.geotag()


def read_time(path: str | Path) -> float | None:
    """When a photo was taken (as `Geotag.time`): from its EXIF, else from its file name in the field's format.

    A photo without a position can have a time. None where neither says it.
    """
    time = read_exif_time(Path(path))
    if time is not None:
        return time
    name = parse_utm_name(Path(path).name)
    return None if name is None else name.time


def find_geotagged(folder: str | Path, table: str | Path | None = None) -> GeotaggedPhotos:
    """The photos of a folder with their geotags: from the table, else from the photo's EXIF, else from its name.

    `table` is read by `read_geotag_table`; without one, a `geotags.csv` or `geotags.geojson` in the folder is used.
    """
    from tqdm import tqdm

    root, listed = Path(folder), find_photos(folder)
    beside = next((root / name for name in TABLES if (root / name).is_file()), None)
    source = beside if table is None else Path(table)
    rows = {} if source is None else {(source.parent / file): tag for file, tag in read_geotag_table(source).items()}
    by_path = {os.path.abspath(path): tag for path, tag in rows.items()}
    tags = {
        photo: by_path.get(os.path.abspath(photo)) or read_geotag(photo)
        for photo in tqdm(listed, desc="geotags", unit="photo", disable=None, leave=False)
    }
    tagged = [(photo, tag) for photo, tag in tags.items() if tag is not None]
    untagged = tuple(photo for photo, tag in tags.items() if tag is None)
    return GeotaggedPhotos(
        tuple(photo for photo, _ in tagged),
        tuple(tag for _, tag in tagged),
        untagged,
        tuple(error for error in map(_why_unreadable, untagged) if error is not None),
        tuple(str(path.relative_to(source.parent)) for path in rows if source and not path.is_file()),
    )


def _why_unreadable(photo: Path) -> PhotoError | None:
    try:
        with open_photo(photo):
            return None
    except PhotoError as error:
        return error


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _holds(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError:  # a link to itself is neither file nor folder
        return False
