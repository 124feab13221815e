"""Upgrading a map of an earlier version: local features of its photos, and the aggregated ones in its search vectors.

The latter are computed from the stored local features: no photo is read. New search vectors are written beside the
present ones, in batches, and replace all of them in one transaction: a kill at any moment leaves the old map or the new
one, and the same call continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from sareloc.arrays import Ints, Vectors
from sareloc.errors import MapError
from sareloc.maps.features import (
    BATCH,
    NOT_HELD,
    FeaturesReport,
    add_missing_features,
    checked_device,
    choose_keypoints,
)
from sareloc.maps.file import MapFile
from sareloc.maps.own_calibration import NOTE as OWN_CALIBRATION
from sareloc.maps.own_calibration import finish_map
from sareloc.maps.records import CALIBRATION
from sareloc.maps.search_vectors import has_present_aggregate, with_aggregate
from sareloc.maps.store import Address, open_store

if TYPE_CHECKING:
    import torch

    from sareloc.maps.file_reader import FeatureRow

VECTORS_PART = 256  # photos whose search vectors are computed in one transaction: 9 MB of local features
FIXED = (
    "the search vectors of a map on a server have no aggregated local features of this sareloc, and none can be added: "
    "copy the map to a file, upgrade that, and copy it to a new collection"
)


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
        if not has_present_aggregate(store.manifest):
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
            removed = file.replace_vectors(made, _is_of_vectors)
            if removed is not None:  # else another process added or changed photos meanwhile
                break
    notes = list(report.notes)
    if fitted := [name.removeprefix(CALIBRATION) for name in removed if name != OWN_CALIBRATION]:
        notes.append(
            f"calibrations for {', '.join(fitted)} were fitted on the former search vectors and removed: fit them "
            'again with "sareloc map calibrate"'
        )
    return replace(report, aggregated=file.count(), notes=tuple(notes))


def _is_of_vectors(note: str) -> bool:
    """Whether a note of this name holds what was fitted on the map's search vectors."""
    return note == OWN_CALIBRATION or note.startswith(CALIBRATION)


def _stage(
    file: MapFile, aggregate_dim: int, ids: Ints, sources: Mapping[int, int], threads: ThreadPoolExecutor
) -> None:
    """Compute the search vectors of these photos, and write them beside the present ones."""
    from sareloc.geometry.local_features import search_vector

    with file.snapshot():
        rows = file.feature_rows(ids)  # without photos that were removed meanwhile
        there = np.array([row.photo_id for row in rows], dtype=np.int64)
        vectors = [vector for _, part in file.descriptors(there) for vector in part]

    def new_vector(row: FeatureRow, before: Vectors) -> Vectors:
        try:
            features = None if row.is_empty or not row.is_own else row.unpack()
        except ValueError as wrong:
            raise row.damage(file.path, wrong) from wrong
        descriptor = before[: file.manifest.dim]
        if file.manifest.aggregate_dim:  # a part of a unit vector
            descriptor = descriptor / max(float(np.linalg.norm(descriptor)), 1e-9)
        return search_vector(descriptor, features, aggregate_dim)

    if rows:
        new = np.stack(list(threads.map(new_vector, rows, vectors)))
        file.stage_vectors({row.photo_id: sources[row.photo_id] for row in rows}, new)
