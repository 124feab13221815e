"""From geotagged photos to a map: build one, add to one. Stopped at any moment, the same call goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import compress, repeat
from pathlib import Path

from tqdm import tqdm

from sareloc.descriptors import describe
from sareloc.errors import MapError, PhotoError
from sareloc.models.place_model import PlaceModel
from sareloc.photos import Geotag
from sareloc.photos.finding import TableTags
from sareloc.place_map.examining import Given, examine, list_photos, read_tables, stamp
from sareloc.place_map.place_map import PlaceMap
from sareloc.place_map.records import Manifest, Photo
from sareloc.place_map.sorting import Tally, pick_new, set_aside
from sareloc.place_map.storage import Storage
from sareloc.place_map.store import MapStore, open_or_create_store, open_store

CHUNK = 2048  # photos examined before they are described; a resumed run must cut them the same way

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
    notes: tuple[str, ...] = ()
    """What a person should know: bad rows of tables, rows that name no photo, odd positions."""


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

    `photos`: a folder (with its subfolders), or folders and files. `out`: a file, or an address of Milvus. Positions
    come from the table `geotags` or one named geotags.csv or geotags.geojson in the folder (see `read_geotag_table`),
    else from EXIF, else from file names; photos without one are left out and listed. `dim`: cut descriptors to so many
    dimensions. `storage`: of each number of a descriptor in a file, float16, float32 or int8. `batch` photos are one
    transaction; `workers` processes decode.
    """
    listed, manifest = list_photos(photos), Manifest(model.name, model.fingerprint(), dim or model.dim, storage)
    with open_or_create_store(out, manifest) as store:
        check_same(store, model, manifest.dim, storage)
        report = _add(model, listed, read_tables(photos, geotags, listed), store, batch, workers, progress)
    PlaceMap(out).settle()
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
    with open_store(path, write=True) as store:
        check_same(store, model, store.manifest.dim, store.manifest.storage)
        report = _add(model, listed, read_tables(photos, geotags, listed), store, batch, workers, progress)
    PlaceMap(path).settle()
    return report


def check_same(store: MapStore, model: PlaceModel, dim: int, storage: Storage) -> None:
    """Refuse to add to a map that another model or another storage has filled."""
    found, here = store.manifest, f"map {store.name}"
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
    table: TableTags,
    store: MapStore,
    batch: int,
    workers: int,
    progress: bool,
) -> BuildReport:
    start, tally = time.monotonic(), Tally()
    named = [(path, store.file_name(path)) for path in paths]
    entries = store.entries([name for _, name in named])
    changed = [name not in entries or entries[name].stamp != stamp(path) for path, name in named]
    tally.already = len(paths) - sum(changed)
    with (
        ThreadPoolExecutor(max(workers, 1)) as threads,
        tqdm(
            total=len(paths), initial=tally.already, desc="map", unit="photo", disable=None if progress else True
        ) as bar,
    ):
        for first in range(0, len(paths), CHUNK):
            chunk = list(compress(named[first : first + CHUNK], changed[first : first + CHUNK]))
            found = threads.map(_examine, chunk, repeat(table.tags))
            new = pick_new(set_aside(found, tally), store, entries, tally)
            files = [path for path, _ in new]
            for part in describe(model, files, batch=batch, workers=workers, dim=store.manifest.dim, progress=False):
                added = store.add([new[row][1] for row in part.rows], part.descriptors)
                tally.added += added
                tally.already += len(part.rows) - added  # another process was faster
                tally.unreadable += part.errors.values()
                bar.update(tally.total - bar.n)
            bar.update(tally.total - bar.n)
    return BuildReport(
        tally.added,
        tally.already,
        tuple(tally.untagged),
        tuple(tally.unreadable),
        time.monotonic() - start,
        table.notes,
    )


def _examine(photo: tuple[Path, str], table: Mapping[str, Geotag]) -> Examined:
    path, name = photo
    try:
        return path, examine(path, name, table)
    except PhotoError as error:
        return path, error
