"""Maintaining a map: its content, its integrity, removing photos and reclaiming their space."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from sareloc.errors import ArgumentError, MapError
from sareloc.geo import Area, Box
from sareloc.index.sharded import ShardedIndex, exact_below
from sareloc.maps.file_reader import PART, FileReader
from sareloc.maps.notes import finish_map, read_features_note, read_keypoints
from sareloc.maps.records import FeaturesInfo, MapInfo, read_calibrations
from sareloc.maps.rows import PACKINGS
from sareloc.maps.schema import FEATURES
from sareloc.maps.store import Address, gone_photos, open_store
from sareloc.photos import parse_address
from sareloc.wording import plural

HALF = 1e-3  # rounding to half precision changes a number of a unit vector by less
SAMPLE = 1000
FEATURES_PART = 256  # photos whose local features are read at a time: 9 MB
UNIT = 1e-2  # tolerance of the length of a stored descriptor: 8-bit storage changes it by up to 0.005
DATED = "time GLOB '[0-9][0-9][0-9][0-9]-*'"  # not words that a GIS program wrote there


def map_info(address: Address) -> MapInfo:
    """The content of a map."""
    with open_store(address) as store:
        return store.info()


def list_maps(folder: str | Path) -> dict[Path, MapInfo | MapError]:
    """The maps in a folder (not in its subfolders), by name, each with its content, or why it cannot be read.

    Raises ArgumentError if it is not a folder.
    """
    if not Path(folder).is_dir():
        raise ArgumentError(f"{folder} is not a folder: name the folder of the maps")
    found: dict[Path, MapInfo | MapError] = {}
    for path in sorted(Path(folder).iterdir()):
        if path.suffix.lower() == ".gpkg":
            try:
                found[path] = map_info(path)
            except MapError as error:
                found[path] = error
    return found


def find_gone(path: str | Path) -> tuple[str, ...]:
    """The names of the photos of a map whose files no longer exist; URLs are not checked.

    They can still be retrieved, but not shown.
    """
    with open_store(path) as store:
        return tuple(name for _, name in gone_photos(store))


def remove_photos(
    path: str | Path, *, files: Sequence[str] = (), area: Area | None = None, dry_run: bool = False
) -> tuple[str, ...]:
    """Remove photos from a map. If files and an area are given, photos that meet both.

    They are not added again by `build_map`, `add_photos` and `sync_map` unless with `restore`.

    Args:
        path: the map.
        files: names in the map or patterns like "2019/*.jpg"; a pattern without a slash is compared with the last part
            of the name.
        area: photos inside.
        dry_run: remove nothing.

    Returns:
        The names in the map of the photos that were removed, or would be.

    Raises:
        ArgumentError: if neither is given.
    """
    if not files and area is None:
        raise ArgumentError("nothing to remove: give files or an area")
    removed: list[str] = []
    with open_store(path, write=not dry_run) as store:
        for ids, _, names in store.pages(area):
            rows = [row for row, name in enumerate(names) if not files or any(_fits(name, one) for one in files)]
            removed += [names[row] for row in rows]
            if rows and not dry_run:
                store.remove(ids[rows], remember=True)
    if not dry_run:
        finish_map(path, changed=False)
    return tuple(removed)


def verify_map(address: Address) -> list[str]:
    """Check a map's integrity: what is wrong with it, one sentence each. Reads all of it."""
    with open_store(address) as store:
        return store.verify()


def compact_map(address: Address) -> tuple[int, int]:
    """Free the disk space of removed photos; returns the size of the file in bytes before and after.

    Needs as much free space as the map takes, and no other process that has the map open. Raises ArgumentError if the
    map is on a server.
    """
    with open_store(address, write=True) as store:
        before = os.path.getsize(address) if store.is_file else 0
        store.compact()
    return before, os.path.getsize(address)


def _fits(file: str, pattern: str) -> bool:
    return fnmatch(file if "/" in pattern else file.rpartition("/")[2], pattern)


def file_info(file: FileReader) -> MapInfo:
    """`map_info` of a map file."""
    ids, latlon, names = file.photos()
    cut = [address.file for address in map(parse_address, names) if address.view is not None]
    first, last = file.query(f"SELECT min(time), max(time) FROM photos WHERE typeof(time) = 'text' AND {DATED}")[0]
    return MapInfo(
        manifest=file.manifest,
        photos=len(ids),
        extent=Box(*latlon.min(axis=0), *latlon.max(axis=0)) if len(ids) else None,
        first=first,
        last=last,
        file_bytes=file.path.stat().st_size,
        index=_index_state(file) + _unused_index(file.path),
        calibrations=read_calibrations(file.notes()),
        gone=tuple(name for _, name in gone_photos(file)),
        local_features=_stored_features(file),
        views=len(cut),
        panoramas=len(set(cut)),
        whitened_from=None if (whitening := file.whitening()) is None else len(whitening[0]),
        edited=tuple(entry.file for entry in file.entries().values() if entry.edited),
        removed=len(file.all_removed()),
        unusable=file.unusable(),
    )


def _stored_features(file: FileReader) -> FeaturesInfo | None:
    note = read_features_note(file)
    if note is None or file.manifest.format < 3:
        return None
    photos, size = file.query(f"SELECT count(*), coalesce(sum(length(features)), 0) FROM {FEATURES}")[0]
    return FeaturesInfo(note.keypoints, photos, int(size))


def verify_file(file: FileReader) -> list[str]:
    """`verify_map` of a map file. The checks depend on each other: the first one with a problem is the last one run."""
    with file.snapshot():
        for check in (_damage, _bad_values, _lost, _bad_whitening, _bad_descriptors, _bad_features, _bad_index):
            try:
                problems = check(file)
            except MapError as error:
                problems = [str(error)]
            if problems:
                return problems
    return []


def _index_state(file: FileReader) -> str:
    parts = file.index_cache().rows()
    with file.snapshot():
        photos = file.photos()[0]
        checksums = file.checksums(photos)
    if not parts:
        needed = len(photos) > exact_below(file.manifest.vector_dim)
        return "absent: built when the map is opened" if needed else "none needed"
    now = set(zip(photos.tolist(), checksums.tolist(), strict=True))
    held = {row for ids, marks in parts for row in zip(ids.tolist(), marks.tolist(), strict=True) if row[1]}
    came, went = len(now - held), len(held - now)
    return f"{plural(came, 'photo')} added and {went:,} removed since it was built" if came or went else "fresh"


def _unused_index(path: Path) -> str:
    """Earlier versions stored indexes in the folder of the map: they are neither read nor deleted."""
    beside = path.with_name(f"{path.name}.index")
    return f"; {beside} is no longer used: delete it" if beside.is_dir() else ""


def _damage(file: FileReader) -> list[str]:
    return [f"SQLite: {said}" for (said,) in file.query("PRAGMA integrity_check") if said != "ok"]


def _lost(file: FileReader) -> list[str]:
    pairs = [
        ("photos", "descriptors", "photo {} has no descriptor"),
        ("descriptors", "photos", "descriptor {} has no photo"),
    ]
    if file.manifest.format > 2:
        pairs.append((FEATURES, "photos", "the local features of photo {} have no photo"))
    return [
        said.format(fid)
        for one, other, said in pairs
        for (fid,) in file.query(f"SELECT fid FROM {one} WHERE fid NOT IN (SELECT fid FROM {other})")
    ]


def _bad_values(file: FileReader) -> list[str]:
    return [f"photo {photo_id}: {wrong}" for photo_id, wrong in file.bad_values()]


def _bad_whitening(file: FileReader) -> list[str]:
    """Read the map's own whitening: raises MapError if it is damaged."""
    file.whitening()
    return []


def _bad_descriptors(file: FileReader) -> list[str]:
    """Descriptors that do not match their checksums, or are not unit vectors."""
    ids, _, files = file.photos()
    unpack, dim, problems = PACKINGS[file.manifest.storage].unpack, file.manifest.vector_dim, list[str]()
    names = dict(zip(ids.tolist(), files, strict=True))
    for start in range(0, len(ids), PART):
        whole = list[tuple[int, bytes]]()
        for fid, blob, checksum in file.blobs(ids[start : start + PART].tolist()):
            if (wrong := file.bad_blob(blob, checksum)) is None:
                whole.append((fid, blob))
            else:
                problems.append(f"the descriptor of photo {fid} ({names[fid]}) {wrong}")
        vectors = unpack([blob for _, blob in whole], dim).astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        for row in np.flatnonzero(~(np.abs(lengths - 1) <= UNIT)):
            fid = whole[row][0]
            problems.append(f"the descriptor of photo {fid} ({names[fid]}) has length {lengths[row]:.3f}, not 1")
    return problems


def _bad_features(file: FileReader) -> list[str]:
    """Local features of another extractor or photo, that do not match their checksums, or that cannot be unpacked."""
    if file.manifest.format < 3 or not file.query(f"SELECT 1 FROM {FEATURES} LIMIT 1"):
        return []
    read_keypoints(file)
    ids, problems = file.photos()[0], list[str]()
    for start in range(0, len(ids), FEATURES_PART):
        for row in file.feature_rows(ids[start : start + FEATURES_PART]):
            try:
                if not row.is_empty:
                    row.unpack()
            except ValueError as wrong:
                problems.append(f"the local features of photo {row.photo_id} ({row.file}) {wrong}")
    return problems


def _bad_index(file: FileReader) -> list[str]:
    """Compare a sample of the index's vectors with the map's descriptors."""
    cache, index = file.index_cache(), ShardedIndex(file.manifest.vector_dim)
    photos = file.photos()[0]
    loaded = index.load(cache, photos, file.checksums(photos))
    for ids, vectors in file.descriptors(loaded[:: max(1, len(loaded) // SAMPLE)]):
        far = np.abs(index.fetch(ids) - vectors).max(axis=1) > HALF
        if far.any():
            return [f"the index has another descriptor of photo {ids[far][0]} than the map: delete {cache.folder}"]
    return []
