"""From geotagged photos to a map: build one, add to one. Stopped at any moment, the same call goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import compress, repeat
from pathlib import Path

from tqdm import tqdm

from sareloc.descriptors import describe
from sareloc.errors import MapError, PhotoError
from sareloc.models.place_model import PlaceModel
from sareloc.photos import Geotag
from sareloc.place_map.examining import Given, examine, list_photos, name_in_map, read_tables, stamp
from sareloc.place_map.map_file import Manifest, MapFile, Photo
from sareloc.place_map.opening import create_map_file, open_map_file
from sareloc.place_map.place_map import PlaceMap
from sareloc.place_map.storage import Storage

CHUNK = 2048  # photos examined before they are described; a resumed run must cut them the same way


Stamps = dict[str, tuple[int, int, int]]
NEVER = (0, -1, -1)
Examined = tuple[Path, Photo | PhotoError | None]


@dataclass(frozen=True)
class BuildReport:
    """What became of the photos."""

    added: int
    already: int
    """In the map before, or the same content under another name."""
    untagged: tuple[str, ...]
    """Photos without a position."""
    unreadable: tuple[PhotoError, ...]
    """Photos that cannot be decoded, and why."""
    seconds: float


@dataclass
class _Tally:
    added: int = 0
    already: int = 0
    untagged: list[str] = field(default_factory=list)
    unreadable: list[PhotoError] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.added + self.already + len(self.untagged) + len(self.unreadable)


def build_map(
    model: PlaceModel,
    photos: Given,
    out: str | Path,
    *,
    geotags: str | Path | None = None,
    dim: int | None = None,
    storage: Storage = "float16",
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> BuildReport:
    """Make a map of photos, or go on with one that was begun.

    `photos`: a folder (with its subfolders), or folders and files. Positions come from the table `geotags` or one
    named geotags.csv or geotags.geojson in the folder (see `read_geotag_table`), else from EXIF, else from file names;
    photos without one are left out and listed. `dim`: cut descriptors to so many dimensions. `storage`: of each number
    of a descriptor, float16, float32 or int8. `batch` photos are one transaction; `workers` processes decode.
    """
    listed, path = list_photos(photos), Path(out)
    if not path.exists():
        create_map_file(path, Manifest(model.name, model.fingerprint(), dim or model.dim, storage))
    with open_map_file(path, write=True) as file:
        _check_same(file, model, dim or model.dim, storage)
        report = _add(model, listed, read_tables(photos, geotags), file, batch, workers, progress)
    PlaceMap(path)  # makes the index, so that the first search need not
    return report


def add_photos(
    model: PlaceModel,
    photos: Given,
    path: str | Path,
    *,
    geotags: str | Path | None = None,
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> BuildReport:
    """Add photos to a map that is there; see `build_map`."""
    listed = list_photos(photos)
    with open_map_file(Path(path), write=True) as file:
        _check_same(file, model, file.manifest.dim, file.manifest.storage)
        report = _add(model, listed, read_tables(photos, geotags), file, batch, workers, progress)
    PlaceMap(path)
    return report


def _check_same(file: MapFile, model: PlaceModel, dim: int, storage: Storage) -> None:
    found, here = file.manifest, f"map {file.path.name}"
    if found.fingerprint != model.fingerprint():
        raise MapError(
            f"{here} was built by model {found.fingerprint} ({found.model}), this is model {model.fingerprint()} "
            f"({model.name}): use the first, or build another map"
        )
    if (found.dim, found.storage) != (dim, storage):
        raise MapError(
            f"{here} holds descriptors of {found.dim} dimensions as {found.storage}, asked for are {dim} as {storage}: "
            "ask for the first, or build another map"
        )


def _add(
    model: PlaceModel,
    paths: Sequence[Path],
    table: Mapping[str, Geotag],
    file: MapFile,
    batch: int,
    workers: int,
    progress: bool,
) -> BuildReport:
    start, tally, known = time.monotonic(), _Tally(), file.stamps()
    named = [(path, name_in_map(path, file.path)) for path in paths]
    changed = [known.get(name, NEVER)[1:] != stamp(path) for path, name in named]
    tally.already = len(paths) - sum(changed)
    with (
        ThreadPoolExecutor(max(workers, 1)) as threads,
        tqdm(
            total=len(paths), initial=tally.already, desc="map", unit="photo", disable=None if progress else True
        ) as bar,
    ):
        for first in range(0, len(paths), CHUNK):
            chunk = list(compress(named[first : first + CHUNK], changed[first : first + CHUNK]))
            found = threads.map(_examine, chunk, repeat(table))
            new = _sort_out(found, file, known, tally)
            files = [path for path, _ in new]
            for part in describe(model, files, batch=batch, workers=workers, dim=file.manifest.dim, progress=False):
                added = file.add([new[row][1] for row in part.rows], part.descriptors)
                tally.added += added
                tally.already += len(part.rows) - added  # another process was faster
                tally.unreadable += part.errors.values()
                bar.update(tally.total - bar.n)
            bar.update(tally.total - bar.n)
    return BuildReport(
        tally.added, tally.already, tuple(tally.untagged), tuple(tally.unreadable), time.monotonic() - start
    )


def _examine(photo: tuple[Path, str], table: Mapping[str, Geotag]) -> Examined:
    path, name = photo
    try:
        return path, examine(path, name, table)
    except PhotoError as error:
        return path, error


def _sort_out(found: Iterable[Examined], file: MapFile, known: Stamps, tally: _Tally) -> list[tuple[Path, Photo]]:
    """The photos whose content is not in the map, each content once; the others are counted."""
    new: dict[bytes, tuple[Path, Photo]] = {}
    for path, photo in found:
        if photo is None:
            tally.untagged.append(str(path))
            continue
        if isinstance(photo, PhotoError):
            tally.unreadable.append(photo)
            continue
        photo = replace(photo, replaces=known[photo.file][0] if photo.file in known else None)
        if photo.sha256 in new or _knows(file, photo, known):
            tally.already += 1
        else:
            new[photo.sha256] = path, photo
    return list(new.values())


def _knows(file: MapFile, photo: Photo, known: Stamps) -> bool:
    """Whether the map holds this content; one that was moved or renamed gets its new name there."""
    found = file.find(photo.sha256)
    if found is None:
        return False
    photo_id, name = found
    if name == photo.file or known.get(name, NEVER)[1:] != stamp(file.path.parent / name):
        file.rename(photo_id, photo)
        known[photo.file] = photo_id, photo.size_bytes, photo.modified_ns
    return True
