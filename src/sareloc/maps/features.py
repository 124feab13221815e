"""Local features of a map's photos: which a map has, and computing those that are missing.

A call that is interrupted at any time can be repeated and continues.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from sareloc.arrays import Ints
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.loading import read_images
from sareloc.maps.records import MapPhoto, shown
from sareloc.maps.store import MapStore, read_note
from sareloc.photos import is_url

if TYPE_CHECKING:
    import torch

NOTE = "local features"
"""The name of the note that says what extracted the local features of a map, and how many keypoints a photo has."""
FIRST_WEIGHTS = "2c159c8e8274d01c"
"""The fingerprint of the weights in all versions of sareloc whose notes do not name it."""
BATCH = 32
PAGE = 1024  # photos whose rows are read at a time
CHANGED = 'has changed since it was added to the map: add it again with "sareloc map add"'
NOT_HELD = (
    "the collection is of an earlier version and keeps no local features: they are computed from the photos when "
    "matches are verified. Copy the map to a new collection to add them"
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


@dataclass(frozen=True)
class FeaturesNote:
    """What extracted the local features of a map."""

    extractor: str
    weights: str
    """The fingerprint of the extractor's weights."""
    keypoints: int
    """The most that a photo has."""

    def __post_init__(self) -> None:
        if type(self.keypoints) is not int or self.keypoints <= 0:
            raise ValueError("not a number of keypoints")
        if not (isinstance(self.extractor, str) and isinstance(self.weights, str)):
            raise TypeError("not the name of an extractor, or not the fingerprint of its weights")


def read_features_note(store: MapStore) -> FeaturesNote | None:
    """What extracted the local features of a map; None: it was built without. Raises MapError if it is malformed."""
    return read_note(store, NOTE, _parse_note)


def _parse_note(note: Any) -> FeaturesNote:
    return FeaturesNote(note["extractor"], note.get("weights", FIRST_WEIGHTS), note["keypoints"])


def read_keypoints(store: MapStore) -> int | None:
    """The number of keypoints of each photo that was chosen for a map; None: it was built without local features.

    Raises MapError if the note is malformed, or if this sareloc has another extractor: its local features do not match
    those of the map.
    """
    note = read_features_note(store)
    if note is None:
        return None
    _check_extractor(store, note)
    return note.keypoints


def _check_extractor(store: MapStore, note: FeaturesNote) -> None:
    from sareloc.geometry.local_features import EXTRACTOR, weights_fingerprint

    if (note.extractor, note.weights) != (EXTRACTOR, weights_fingerprint()):
        raise MapError(
            f"map {store.name} has local features of the extractor {shown(note.extractor)} (weights "
            f"{shown(note.weights)}), this sareloc has {EXTRACTOR} (weights {weights_fingerprint()}), and the two do "
            "not match: localize without them (--verify 0), use the sareloc that made them, or build another map"
        )


def choose_keypoints(store: MapStore, keypoints: int | None = None) -> int:
    """Note in a map how many keypoints its photos have, and return that number.

    `keypoints`: default: as in `add_local_features`. Raises ArgumentError if it is not 1 to 4096, MapError if photos of
    the map have local features with another number, or of another extractor.
    """
    from sareloc.geometry.local_features import EXTRACTOR, KEYPOINTS, weights_fingerprint

    stored = read_features_note(store)
    default = KEYPOINTS if stored is None else stored.keypoints
    chosen = FeaturesNote(
        EXTRACTOR, weights_fingerprint(), check_keypoints(default if keypoints is None else keypoints, fewest=1)
    )
    if stored is not None and stored != chosen and len(store.ids_without_features()) < store.count():
        _check_extractor(store, stored)
        raise MapError(
            f"map {store.name} has local features of {stored.keypoints} keypoints a photo, requested: "
            f"{chosen.keypoints}. Use the former (--keypoints {stored.keypoints}), or build another map"
        )
    check_room(type(store), chosen.keypoints)
    text = json.dumps(asdict(chosen))
    if store.notes().get(NOTE) != text:
        store.write_note(NOTE, text)
    return chosen.keypoints


def check_keypoints(keypoints: int, fewest: int = 0) -> int:
    """The same number. Raises ArgumentError if it is not in the range."""
    from sareloc.geometry.local_features import MOST_KEYPOINTS

    if not fewest <= keypoints <= MOST_KEYPOINTS:
        raise ArgumentError(f"keypoints must be {fewest} to {MOST_KEYPOINTS}, found {keypoints}")
    return keypoints


def check_room(store: type[MapStore], keypoints: int) -> None:
    """Raise ArgumentError if maps of this class cannot store so many keypoints of a photo."""
    if store.most_keypoints is not None and keypoints > store.most_keypoints:
        raise ArgumentError(
            f"a map on a server stores at most {store.most_keypoints:,} keypoints of a photo, found {keypoints:,}: use "
            f"fewer (--keypoints {store.most_keypoints}), or a file"
        )


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
