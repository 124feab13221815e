"""Upgrading a map of an earlier version: local features of its photos, and the aggregated ones in its search vectors.

The latter are computed from the stored local features: no photo is read. New search vectors are written beside the
present ones, in batches, and replace all of them in one transaction: a kill at any moment leaves the old map or the new
one, and the same call continues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from sareloc.arrays import Ints, Vectors
from sareloc.errors import MapError, PhotoError
from sareloc.loading import read_images
from sareloc.maps.file import MapFile
from sareloc.maps.notes import NOT_HELD, OWN_CALIBRATION, choose_keypoints, finish_map
from sareloc.maps.records import (
    ADAPTATION,
    CALIBRATION,
    MapPhoto,
    has_present_aggregate,
    read_adaptation,
    with_aggregate,
)
from sareloc.maps.store import Address, MapStore, open_store
from sareloc.photos import is_url

if TYPE_CHECKING:
    import torch

    from sareloc.maps.file_reader import FeatureRow

BATCH = 32
PAGE = 1024  # photos whose rows are read at a time
CHANGED = 'has changed since it was added to the map: add it again with "sareloc map add"'
VECTORS_PART = 256  # photos whose search vectors are computed in one transaction: 9 MB of local features
FIXED = (
    "the search vectors of a map on a server have no aggregated local features of this sareloc, and none can be added: "
    "copy the map to a file, upgrade that, and copy it to a new collection"
)


@dataclass(frozen=True)
class FeaturesReport:
    """What was done with the photos of a map."""

    keypoints: int
    """The most that a photo has."""
    added: int
    """Photos whose local features were computed and stored."""
    already: int
    """Photos that had them before."""
    unreadable: tuple[PhotoError, ...]
    """Photos that still have none, and why: they cannot be read, have changed, or are behind a URL."""
    seconds: float
    aggregated: int = 0
    """Photos whose search vectors were computed again, with the aggregated local features."""
    notes: tuple[str, ...] = ()
    """Warnings: calibrations that were removed, what a server cannot do."""


def add_local_features(
    path: Address,
    *,
    keypoints: int | None = None,
    device: torch.device | str | None = None,
    batch: int = BATCH,
    workers: int = 0,
    progress: bool = True,
) -> FeaturesReport:
    """Add what a map of an earlier version lacks: local features, and the aggregated ones in the search vectors.

    Local features of photos that have none are computed from their files. Then, if the search vectors have no
    aggregated local features, or those of other constants, they are computed from the stored local features; photos
    without any keep the descriptor alone. Calibrations that were fitted on the former search vectors are removed, and
    the map's own calibration is fitted again.

    Args:
        path: the map.
        keypoints: of each photo, 1 to 4096; default: those of the map, 1024 if it has none.
        device: default: the GPU if there is one.
        batch: photos in one transaction, and on a GPU in one forward pass.
        workers: processes that decode photos; 0: this one.
        progress: show progress bars, on a terminal.

    Raises:
        MapError: if the map has local features with another number of keypoints, or is in a collection of an earlier
            version on a server.
    """
    on = checked_device(device)
    with open_store(path, write=True) as store:
        if not store.holds_local_features:
            raise MapError(f"local features cannot be added to map {store.name}: {NOT_HELD}")
        chosen = choose_keypoints(store, keypoints)
        report = add_missing_features(store, chosen, device=on, batch=batch, workers=workers, progress=progress)
        if not has_present_aggregate(store.manifest, store.notes()):
            if isinstance(store, MapFile):
                report = add_aggregate(store, report, progress)
            else:
                report = replace(report, notes=(*report.notes, FIXED))
    finish_map(path, changed=False)
    return report


def add_aggregate(file: MapFile, report: FeaturesReport, progress: bool) -> FeaturesReport:
    """Compute the search vectors of a map file with aggregated local features, unless no photo has any.

    Args:
        file: the map, open for writing.
        report: of the local features, which is completed.
        progress: show a progress bar, on a terminal.
    """
    photos = file.count()
    if not file.manifest.aggregate_dim and len(file.ids_without_features()) == photos:
        return report
    made = with_aggregate(file.manifest)
    with (
        tqdm(total=photos, desc="vectors", unit="photo", disable=None if progress else True) as bar,
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):
        while True:
            waiting = file.unstaged_photos(made)
            ids = np.array(list(waiting), dtype=np.int64)
            bar.update(photos - len(ids) - bar.n)
            for first in range(0, len(ids), VECTORS_PART):
                _stage(file, made.aggregate_dim, ids[first : first + VECTORS_PART], waiting, threads)
                bar.update(min(VECTORS_PART, len(ids) - first))
            removed = file.replace_vectors(made, is_of_vectors)
            if removed is not None:  # else another process added or changed photos meanwhile
                break
    notes = list(report.notes)
    if ADAPTATION in removed:
        notes.append('the adaptation was fitted on the former search vectors and removed: repeat "sareloc map adapt"')
    if fitted := [name.removeprefix(CALIBRATION) for name in removed if name.startswith(CALIBRATION)]:
        notes.append(
            f"calibrations for {', '.join(fitted)} were fitted on the former search vectors and removed: fit them "
            'again with "sareloc map calibrate"'
        )
    return replace(report, aggregated=file.count(), notes=tuple(notes))


def is_of_vectors(note: str) -> bool:
    """Whether a note of this name holds what was fitted on the map's search vectors."""
    return note in (OWN_CALIBRATION, ADAPTATION) or note.startswith(CALIBRATION)


def _stage(
    file: MapFile, aggregate_dim: int, ids: Ints, sources: Mapping[int, int], threads: ThreadPoolExecutor
) -> None:
    """Compute the search vectors of these photos, and write them beside the present ones."""
    from sareloc.geometry.local_features import search_vector

    with file.snapshot():
        rows = file.feature_rows(ids)  # without photos that were removed meanwhile
        there = np.array([row.photo_id for row in rows], dtype=np.int64)
        vectors = [vector for _, part in file.descriptors(there) for vector in part]
        adaptation = read_adaptation(file.notes(), file.manifest, str(file.path))

    def new_vector(row: FeatureRow, before: Vectors) -> Vectors:
        try:
            features = None if row.is_empty or not row.is_own else row.unpack()
        except ValueError as wrong:
            raise row.damage(file.path, wrong) from wrong
        descriptor = (before if adaptation is None else adaptation.inverse(before))[: file.manifest.dim]
        if file.manifest.aggregate_dim:  # a part of a unit vector
            descriptor = descriptor / max(float(np.linalg.norm(descriptor)), 1e-9)
        return search_vector(descriptor, features, aggregate_dim)

    if rows:
        new = np.stack(list(threads.map(new_vector, rows, vectors)))
        file.stage_vectors({row.photo_id: sources[row.photo_id] for row in rows}, new)


def add_missing_features(
    store: MapStore,
    keypoints: int,
    *,
    device: torch.device | str | None = None,
    batch: int = BATCH,
    workers: int = 0,
    progress: bool = True,
) -> FeaturesReport:
    """Compute the local features of all photos of a map that have none, and store them in the map.

    Args:
        store: the map, open for writing.
        keypoints: of each photo, see `choose_keypoints`.
        device: default: the GPU if there is one.
        batch: photos in one transaction, and on a GPU in one forward pass.
        workers: processes that decode photos; 0: this one.
        progress: show a progress bar, on a terminal.
    """
    from sareloc.geometry.local_features import LocalFeatureExtractor, feature_size, pack_features

    start, ids = time.monotonic(), store.ids_without_features()
    already, added, unreadable = store.count() - len(ids), 0, list[PhotoError]()
    if len(ids):
        extractor = LocalFeatureExtractor(device)
        reading: dict[int, tuple[int, MapPhoto]] = {}
        ready: list[tuple[int, bytes]] = []

        def paths() -> Iterator[Path]:
            for row, (photo_id, photo) in enumerate(_readable(store, ids, unreadable)):
                reading[row] = photo_id, photo
                yield store.photo_path(photo.file)

        def write() -> int:
            written = store.write_features(
                np.array([photo_id for photo_id, _ in ready], dtype=np.int64), [blob for _, blob in ready]
            )
            ready.clear()
            return written

        with tqdm(total=len(ids), desc="features", unit="photo", disable=None if progress else True) as bar:
            for row, read in read_images(paths(), (feature_size,), digest=True, workers=workers):
                photo_id, photo = reading.pop(row)
                if isinstance(read, PhotoError):
                    unreadable.append(read)
                elif read.sha256 != photo.sha256:
                    unreadable.append(PhotoError(read.name, CHANGED))
                else:
                    (found,) = extractor.extract(read.pixels, keypoints, focal_35mm=[read.focal_35mm])
                    ready.append((photo_id, pack_features(found)))
                if len(ready) >= batch:
                    added += write()
                bar.update(added + len(unreadable) - bar.n)
            added += write()
            bar.update(added + len(unreadable) - bar.n)
    return FeaturesReport(keypoints, added, already, tuple(unreadable), time.monotonic() - start)


def checked_device(name: torch.device | str | None) -> torch.device | str:
    """The torch device or runtime of this name. Raises ArgumentError if it is unknown or not on this machine."""
    from sareloc.models.preprocess import RUNTIME_DEVICES, find_device

    return name if isinstance(name, str) and name in RUNTIME_DEVICES else find_device(name)


def _readable(store: MapStore, ids: Ints, unreadable: list[PhotoError]) -> Iterator[tuple[int, MapPhoto]]:
    """The ids and photos whose files are on this machine; the others are listed."""
    for first in range(0, len(ids), PAGE):
        for photo_id, photo in store.photos_of(ids[first : first + PAGE]).items():
            if is_url(photo.file):
                reason = "is a URL: local features are computed from files on this machine"
                unreadable.append(PhotoError(photo.file, reason))
            else:
                yield photo_id, photo
