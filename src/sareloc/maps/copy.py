"""Copying a map between files and servers. A call that is interrupted can be repeated and continues."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.maps import gpkg
from sareloc.maps.notes import LOCAL_FEATURES, NOT_HELD, check_room, finish_map, read_features_note
from sareloc.maps.records import (
    ADAPTATION,
    Entry,
    MapManifest,
    MapPhoto,
    Storage,
    entry_of,
    has_present_aggregate,
    same_entry,
)
from sareloc.maps.rows import PACKINGS
from sareloc.maps.store import (
    NO_WHITENING,
    Address,
    MapStore,
    open_or_create_store,
    open_store,
    store_class,
)
from sareloc.photos import is_url
from sareloc.wording import plural

SCALES = {"int8": 4}
"""Bytes of a packed descriptor's scale, whose last bit may differ if it is packed again."""
MODULUS = 2**256
FEATURES_PART = 256  # photos whose local features are copied in one transaction: 9 MB


@dataclass(frozen=True)
class CopyReport:
    """What was copied."""

    photos: int
    """In both maps."""
    copied: int
    """By this call; the others were in the target before."""
    checksum: str
    """Of both maps: 16 hex digits over all data of all photos but local features, independent of the backend and of
    their order."""
    features: int = 0
    """Photos whose local features were copied by this call."""
    notes: tuple[str, ...] = ()
    """Warnings: local features that could not be copied."""


def copy_map(source: Address, target: Address, *, progress: bool = True) -> CopyReport:
    """Copy all photos, descriptors, local features and notes of a map to another, which is created if it does not
    exist.

    Then both are read again and their counts and checksums compared. The photo files are not copied: names in the
    target refer to the same files.

    Args:
        source: the map that is copied.
        target: the map that is copied to.
        progress: show progress bars, on a terminal.

    Raises:
        MapError: if the target has another model, another number of keypoints or other photos.
    """
    if str(source) == str(target):
        raise ArgumentError(f"{source} cannot be copied to itself: use another name")
    with open_store(source) as a, _open_target(a, target) as b:
        _check_same(a, b)
        _copy_whitening(a, b)
        total, copied, expected = 0, 0, 0
        with tqdm(total=a.count(), desc="copy", unit="photo", disable=None if progress else True) as bar:
            for photos, vectors in a.records():
                located = _locate(a, photos)
                copied += _write(b, [_named(b, target, photo) for photo in located], vectors)
                expected += checksum(located, vectors, a.manifest.storage)
                total += len(photos)
                bar.update(len(photos))
        for name, text in a.notes().items():
            if name != LOCAL_FEATURES or b.holds_local_features:
                b.write_note(name, text)
        _verify(a, b, total, expected % MODULUS, progress)
        b.remember_removed(a.all_removed())
        features, notes = _copy_features(a, b, progress)
        count, left, a_notes = b.count(), a.count() - total, a.notes()
    if left:
        notes = (*notes, f'{plural(left, "photo")} cannot be read, not copied: "sareloc map verify" lists them')
    if a.manifest.aggregate_dim and not has_present_aggregate(a.manifest, a_notes):
        notes = (*notes, f'its search vectors are of other constants: run "sareloc map upgrade {target}"')
    else:
        finish_map(target, changed=copied > 0)
    return CopyReport(count, copied, _short(expected % MODULUS), features, notes)


def _open_target(a: MapStore, target: Address) -> MapStore:
    """The map that is copied to, created if it does not exist and can hold all that is needed."""
    if a.whitening() is not None and not store_class(target).is_file:
        raise MapError(f"map {a.name} has its own whitening, and cannot be copied to {target}: {NO_WHITENING}")
    if ADAPTATION in a.notes() and not store_class(target).is_file:
        raise MapError(f"map {a.name} is adapted, and cannot be copied to {target}: a server stores no adaptation")
    if (note := read_features_note(a)) is not None:
        check_room(store_class(target), note.keypoints)
    return open_or_create_store(target, replace(a.manifest, map_id=""))


def _copy_whitening(a: MapStore, b: MapStore) -> None:
    """Write the whitening of map `a` to map `b`. Raises MapError if the descriptors of `b` were made with another."""
    wanted, there = a.whitening(), b.whitening()
    if wanted is not None and there is None and not b.count():
        b.write_whitening(*wanted)
    elif not _equal(wanted, there):
        raise MapError(f"map {b.name} exists, whitened in another way than map {a.name}: copy to another name")


def _equal(one: tuple[Vectors, Vectors] | None, other: tuple[Vectors, Vectors] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


def _copy_features(a: MapStore, b: MapStore, progress: bool) -> tuple[int, tuple[str, ...]]:
    """Copy the local features that the other map lacks or has otherwise; returns of how many photos, and warnings."""
    if not a.holds_local_features:
        note = f'map {a.name} has no local features: add them with "sareloc map upgrade {b.name}"'
        return 0, (note,) if b.holds_local_features else ()
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(part for part, _, _ in a.pages())])
    if not b.holds_local_features:
        return 0, (NOT_HELD,) if len(a.ids_without_features()) < len(ids) else ()
    copied = 0
    with tqdm(total=len(ids), desc="features", unit="photo", disable=None if progress else True) as bar:
        for first in range(0, len(ids), FEATURES_PART):
            copied += _copy_some_features(a, b, ids[first : first + FEATURES_PART])
            bar.update(FEATURES_PART)
    return copied, ()


def _copy_some_features(a: MapStore, b: MapStore, ids: Ints) -> int:
    blobs, photos = a.features(ids), a.photos_of(ids)
    known = b.known([photo.sha256 for photo in photos.values()])
    wanted = {
        known[photo.sha256].photo_id: blobs[photo_id]
        for photo_id, photo in photos.items()
        if photo_id in blobs and photo.sha256 in known  # else it was removed meanwhile
    }
    there = b.features(np.array(list(wanted), dtype=np.int64))
    new = {photo_id: blob for photo_id, blob in wanted.items() if there.get(photo_id) != blob}
    written = np.array(list(new), dtype=np.int64)
    count = b.write_features(written, list(new.values())) if new else 0
    if b.features(written) != new:
        raise MapError(
            f"map {b.name} has other local features than {a.name} after copying: did another process write to it? "
            "Repeat when no process writes"
        )
    return count


def checksum(photos: Sequence[MapPhoto], vectors: Vectors, storage: Storage) -> int:
    """The sum over photos of the SHA-256 of all their data, the descriptor as packed for `storage`."""
    total = 0
    for photo, blob in zip(photos, PACKINGS[storage].pack(vectors), strict=True):
        tag = photo.geotag
        seen = (*tag.latlon, tag.heading_deg, gpkg.time_text(tag.time), photo.width, photo.height)
        file = (photo.file, photo.sha256.hex(), photo.size_bytes, photo.modified_ns)
        content = json.dumps([*seen, *file]).encode() + blob[SCALES.get(storage, 0) :]
        total += int.from_bytes(hashlib.sha256(content).digest(), "big")
    return total % MODULUS


def _locate(store: MapStore, photos: Sequence[MapPhoto]) -> list[MapPhoto]:
    """The same photos with the absolute paths of their files instead of their names in the map; URLs are kept."""
    return [
        photo if is_url(photo.file) else replace(photo, file=os.path.abspath(store.photo_path(photo.file)))
        for photo in photos
    ]


def _named(b: MapStore, target: Address, photo: MapPhoto) -> MapPhoto:
    """A photo from `_locate` with its name in the target map."""
    return photo if is_url(photo.file) else replace(photo, file=b.photo_name(target, Path(photo.file)))


def _check_same(a: MapStore, b: MapStore) -> None:
    here, there = ((m.fingerprint, m.model, _dimensions(m), m.storage) for m in (a.manifest, b.manifest))
    one, other = read_features_note(a), read_features_note(b)
    if one is not None and other is not None and one != other:
        raise MapError(
            f"map {b.name} exists, with local features of {other.keypoints} keypoints a photo by {other.extractor} "
            f"(weights {other.weights}); those of map {a.name} have {one.keypoints}, by {one.extractor} (weights "
            f"{one.weights}): copy to another name"
        )
    if here != there:
        raise MapError(
            f"map {b.name} exists, of model {there[0]} ({there[1]}), {there[2]} as {there[3]}; "
            f"map {a.name} is of model {here[0]} ({here[1]}), {here[2]} as {here[3]}: copy to another name"
        )


def _dimensions(manifest: MapManifest) -> str:
    """The dimensions of a map's search vectors, and what they depend on."""
    if not manifest.aggregate_dim:
        return f"{manifest.dim} dimensions"
    return f"{manifest.dim} + {manifest.aggregate_dim} dimensions (constants {manifest.aggregate})"


def _write(b: MapStore, photos: Sequence[MapPhoto], vectors: Vectors) -> int:
    """Add the photos that are not in the map, and update the others; returns how many were added."""
    known = b.known([photo.sha256 for photo in photos])
    changed: list[Entry] = []
    for photo in photos:
        entry = known.get(photo.sha256)
        if entry is not None:
            now = entry_of(photo, entry.photo_id)
            if not same_entry(entry, now):
                changed.append(now)
    if changed:
        b.update(changed)
    new = [row for row, photo in enumerate(photos) if photo.sha256 not in known]
    return b.add([photos[row] for row in new], vectors[new]) if new else 0


def _verify(a: MapStore, b: MapStore, total: int, expected: int, progress: bool) -> None:
    counts = total, b.count()
    if counts[0] != counts[1]:
        raise MapError(
            f"map {a.name} has {counts[0]:,} photos and map {b.name} {counts[1]:,}: the latter had others before, "
            "or another process is writing. Copy to another name, or repeat when no process writes"
        )
    parts = (checksum(_locate(b, photos), vectors, b.manifest.storage) for photos, vectors in b.records())
    found = sum(_progress(parts, progress)) % MODULUS
    if found != expected:
        raise MapError(
            f"map {b.name} differs from {a.name} after copying: checksum {_short(found)}, not {_short(expected)}. "
            "Did another process write to it? Remove it and copy again"
        )


def _progress(parts: Iterable[int], progress: bool) -> Iterable[int]:
    return tqdm(parts, desc="verify", unit="part", disable=None if progress else True, leave=False)


def _short(total: int) -> str:
    return f"{total:064x}"[:16]
