"""A map of the service: which of its photos may be shown, and how photos are added to it.

A map contains file names, and a map may come from an untrusted source: a photo is shown only if its real path is in a
folder that the operator allows.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sareloc.errors import ArgumentError
from sareloc.maps import store_class
from sareloc.photos import parse_address
from sareloc.serve.batching import BatchQueue
from sareloc.serve.config import Limits, Serving
from sareloc.serve.live_map import LiveMap
from sareloc.serve.uploads import Adder, Addition

SUGGESTED = 3


class ServedMap:
    """One of the maps: which of its photos may be shown, and how photos are added to it."""

    def __init__(self, name: str, live: LiveMap, batch: int, serving: Serving, limits: Limits) -> None:
        self.name = name
        self.live = live
        self.place_map = live.place_map
        self.photo_folders = photo_folders(live.place_map.path, serving.photos)
        self.adder = Adder(live.model, live.place_map.path, batch)
        self.additions = BatchQueue[Addition, tuple[int, ...]](
            self.adder.add, batch=batch, bound=limits.queue, name="add"
        )

    def hidden_photos(self) -> HiddenPhotos:
        """Photos without thumbnails, as they are not in the folders that may be shown; on a server, of a sample."""
        return hidden_photos(self.place_map.current_files(), self.place_map.path.parent, self.photo_folders)

    def shown_file(self, photo_id: int) -> tuple[str, Path]:
        """The name of a photo in the map and its real path. Raises FileNotFoundError if it may not be shown."""
        file = self.place_map.current_file(photo_id)
        path = None if file is None else allowed_path(self.place_map.photo_path(file), self.photo_folders)
        if file is None or path is None:
            raise FileNotFoundError
        return file, path


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


@dataclass(frozen=True)
class HiddenPhotos:
    """Photos of a map that may not be shown."""

    count: int
    folders: tuple[str, ...]
    """Folders to allow: the one that contains all these photos, else those with most of them."""


def hidden_photos(files: Sequence[str], map_folder: Path, folders: Sequence[Path]) -> HiddenPhotos:
    """The photos of a map that are in none of the folders that may be shown; names are relative to `map_folder`."""
    hidden = collections.Counter[str]()
    for parent, count in collections.Counter(os.path.dirname(os.path.join(map_folder, file)) for file in files).items():
        if allowed_path(parent, folders) is None:
            hidden[os.path.abspath(parent)] += count
    common = os.path.commonpath(hidden) if hidden else ""
    if common and common != os.path.dirname(common):
        return HiddenPhotos(hidden.total(), (common,))
    return HiddenPhotos(hidden.total(), tuple(parent for parent, _ in hidden.most_common(SUGGESTED)))
