"""Thumbnails of a map's photos, and which photos may be shown.

A map contains file names, and a map may come from an untrusted source: a photo is shown only if its real path is in a
folder that the operator allows.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from sareloc.errors import ArgumentError
from sareloc.maps import store_class
from sareloc.photos import decode, file_of, longest_side, parse_address

SUGGESTED = 3


def photo_folders(map_path: Path, added: Iterable[Path]) -> tuple[Path, ...]:
    """The folders whose photos may be shown, as real paths: the map file's own, and `added`."""
    for folder in added:
        if not folder.is_dir():
            raise ArgumentError(f"--photos {folder} is not a folder: give a folder with photos of the map")
    own = (map_path.parent,) if store_class(map_path).is_file else ()
    return tuple(Path(os.path.realpath(folder)) for folder in (*own, *added))


def allowed_path(path: str | Path, folders: Iterable[Path]) -> Path | None:
    """The address with the real path of its file if that is in one of these folders (real paths) or their subfolders;
    else None."""
    address = parse_address(path)
    try:
        real = Path(os.path.realpath(address.file))
    except (OSError, ValueError):  # too long, or with a NUL
        return None
    return replace(address, file=real).path if any(real.is_relative_to(folder) for folder in folders) else None


def etag_of(path: Path, size: int) -> str:
    """The ETag of a thumbnail of this size; it changes with the file. Raises OSError if there is no such file."""
    status = file_of(path).stat()
    stamp = f"{path} {status.st_size} {status.st_mtime_ns} {size}"
    return f'"{hashlib.sha256(os.fsencode(stamp)).hexdigest()[:24]}"'


def draw_thumbnail(path: Path, size: int) -> bytes:
    """A JPEG whose longer side has at most `size` px. Raises PhotoError if the file cannot be decoded."""
    content = io.BytesIO()
    Image.fromarray(decode(path, size=longest_side(size))).save(content, "JPEG", quality=85)
    return content.getvalue()


@dataclass(frozen=True)
class HiddenPhotos:
    """Photos of a map that may not be shown."""

    count: int
    folders: tuple[str, ...]
    """Folders to allow: the one that contains all these photos, else those with most of them."""


def hidden_photos(files: Sequence[str], map_folder: Path, folders: Sequence[Path]) -> HiddenPhotos:
    """The photos of a map that are in none of the folders that may be shown; names are relative to `map_folder`."""
    hidden = Counter[str]()
    for parent, count in Counter(os.path.dirname(os.path.join(map_folder, file)) for file in files).items():
        if allowed_path(parent, folders) is None:
            hidden[os.path.abspath(parent)] += count
    common = os.path.commonpath(hidden) if hidden else ""
    if common and common != os.path.dirname(common):
        return HiddenPhotos(hidden.total(), (common,))
    return HiddenPhotos(hidden.total(), tuple(parent for parent, _ in hidden.most_common(SUGGESTED)))
