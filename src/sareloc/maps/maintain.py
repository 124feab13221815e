"""Maintaining a map: its content, its integrity, removing photos and reclaiming their space."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from sareloc.errors import ArgumentError, MapError
from sareloc.geo import Area, Box
from sareloc.index.cache import IndexCache
from sareloc.index.sharded import ShardedIndex, exact_below
from sareloc.maps.features import read_features_note, read_keypoints
from sareloc.maps.file import PART, MapFile, open_map_file
from sareloc.maps.gpkg import FEATURES
from sareloc.maps.store import PACKINGS, Address, MapManifest, gone_photos, map_backend, open_store
from sareloc.photos import parse_address

HALF = 1e-3  # rounding to half precision changes a number of a unit vector by less
SAMPLE = 1000
FEATURES_PART = 256  # photos whose local features are read at a time: 9 MB
CALIBRATION = "calibration "  # start of the name of a note; the search follows
UNIT = 1e-2  # tolerance of the length of a stored descriptor: 8-bit storage changes it by up to 0.005


@dataclass(frozen=True)
class StoredCalibration:
    """A calibration that is stored in a map."""

    search: str
    """The search that it is for, such as "plain" or "verify=20"."""
    origin: str
    """What it was fitted on: "photos" or "map"; "unreadable" if the stored text is not a calibration."""
    photos: int
    """The number of photos that it was fitted on."""


@dataclass(frozen=True)
class StoredFeatures:
    """The local features that are stored in a map."""

    keypoints: int
    """The most that a photo has."""
    photos: int
    """The number of photos that have local features."""
    bytes: int


@dataclass(frozen=True)
class MapInfo:
    """The content of a map."""

    manifest: MapManifest
    photos: int
    """Ordinary photos and views of 360° photos."""
    extent: Box | None
    """The box that contains all photos; None without photos."""
    first: str | None
    """The time of the oldest photo, as 2024-05-31T12:00:00.000Z; None if no time is known."""
    last: str | None
    file_bytes: int | None
    """None if the map is on a server."""
    index: str
    """The state of the index: "none needed", "fresh", "absent", or the number of photos added and removed since it was
    built; then the folder of an index of an earlier version, which is not used."""
    calibrations: tuple[StoredCalibration, ...] = ()
    """Sorted by search."""
    gone: tuple[str, ...] | None = None
    """Photos whose files no longer exist; None if the map is on a server, see `find_gone`."""
    local_features: StoredFeatures | None = None
    """None if the map was built without local features, or is on a server."""
    views: int = 0
    """Views of 360° photos among the photos; 0 if the map is on a server."""
    panoramas: int = 0
    """The 360° photos whose views they are."""
    whitened_from: int | None = None
    """Dimensions of the model's descriptors, which the map's own whitening reduces; None if it has none."""


def map_info(address: Address) -> MapInfo:
    """The content of a map."""
    return map_backend(address).info(address)


def file_info(path: str | Path) -> MapInfo:
    """`map_info` of a map file."""
    with open_map_file(path) as file:
        ids, latlon, names = file.photos()
        cut = [address.file for address in map(parse_address, names) if address.view is not None]
        first, last = file.query("SELECT min(time), max(time) FROM photos WHERE typeof(time) = 'text'")[0]
        extent = Box(*latlon.min(axis=0), *latlon.max(axis=0)) if len(ids) else None
        return MapInfo(
            manifest=file.manifest,
            photos=len(ids),
            extent=extent,
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
        )


def _stored_features(file: MapFile) -> StoredFeatures | None:
    note = read_features_note(file)
    if note is None or file.manifest.format < 3:
        return None
    photos, size = file.query(f"SELECT count(*), coalesce(sum(length(features)), 0) FROM {FEATURES}")[0]
    return StoredFeatures(note.keypoints, photos, int(size))


def read_calibrations(notes: Mapping[str, str]) -> tuple[StoredCalibration, ...]:
    """The calibrations among the notes of a map."""
    return tuple(
        _read_calibration(name.removeprefix(CALIBRATION), text)
        for name, text in sorted(notes.items())
        if name.startswith(CALIBRATION)
    )


def _read_calibration(search: str, text: str) -> StoredCalibration:
    try:
        given = json.loads(text)
        return StoredCalibration(search, str(given["origin"]), int(given["photos"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return StoredCalibration(search, "unreadable", 0)


def find_gone(path: str | Path) -> tuple[str, ...]:
    """The names of the photos of a map whose files no longer exist; URLs are not checked.

    They can still be retrieved, but not shown.
    """
    with open_store(path) as store:
        return tuple(name for _, name in gone_photos(store))


def remove_photos(path: str | Path, *, files: Sequence[str] = (), area: Area | None = None) -> int:
    """Remove photos from a map; returns how many.

    `files`: names in the map or patterns like "2019/*.jpg"; a pattern without a slash is compared with the last part of
    the name. `area`: photos inside. If both are given, photos that meet both. Raises ArgumentError if neither is.
    """
    if not files and area is None:
        raise ArgumentError("nothing to remove: give files or an area")
    removed = 0
    with open_store(path, write=True) as store:
        for ids, _, names in store.pages(area):
            fits = [not files or any(_fits(name, pattern) for pattern in files) for name in names]
            removed += store.remove(ids[np.array(fits, dtype=bool)])
    return removed


def verify_map(address: Address) -> list[str]:
    """Check a map's integrity: what is wrong with it, one sentence each. Reads all of it."""
    return map_backend(address).verify(address)


def verify_file(path: str | Path) -> list[str]:
    """`verify_map` of a map file. The checks depend on each other: the first one with a problem is the last one run."""
    with open_map_file(path) as file, file.snapshot():
        for check in (_damage, _bad_values, _lost, _bad_whitening, _bad_descriptors, _bad_features, _bad_index):
            try:
                problems = check(file)
            except MapError as error:
                problems = [str(error)]
            if problems:
                return problems
    return []


def compact_map(address: Address) -> tuple[int, int]:
    """Give the space of removed photos back to the disk; returns the file's bytes before and after.

    Needs as much free space as the map takes, and no other process that has the map open. Raises ArgumentError if the
    map is on a server.
    """
    return map_backend(address).compact(address)


def compact_file(path: str | Path) -> tuple[int, int]:
    """`compact_map` of a map file."""
    where = Path(path)
    with open_map_file(where, write=True) as file:
        before = where.stat().st_size
        file.compact()
    return before, where.stat().st_size


def _fits(file: str, pattern: str) -> bool:
    return fnmatch(file if "/" in pattern else file.rpartition("/")[2], pattern)


def index_cache(manifest: MapManifest) -> IndexCache:
    """The index of a map file in the user's cache folder: it may be deleted at any time."""
    return IndexCache(manifest.map_id, manifest.dim, manifest.storage)


def _index_state(file: MapFile) -> str:
    parts = index_cache(file.manifest).rows()
    with file.snapshot():
        photos, checksums = file.photos()[0], file.checksums()
    if not parts:
        return (
            "none needed" if len(photos) <= exact_below(file.manifest.dim) else "absent: built when the map is opened"
        )
    now = set(zip(photos.tolist(), checksums.tolist(), strict=True))
    held = {row for ids, marks in parts for row in zip(ids.tolist(), marks.tolist(), strict=True) if row[1]}
    came, went = len(now - held), len(held - now)
    return f"{came} photos added and {went} removed since it was built" if came or went else "fresh"


def _unused_index(path: Path) -> str:
    """Earlier versions stored indexes in the folder of the map: they are neither read nor deleted."""
    beside = path.with_name(f"{path.name}.index")
    return f"; {beside} is no longer used: delete it" if beside.is_dir() else ""


def _damage(file: MapFile) -> list[str]:
    return [f"SQLite: {said}" for (said,) in file.query("PRAGMA integrity_check") if said != "ok"]


def _lost(file: MapFile) -> list[str]:
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


def _bad_values(file: MapFile) -> list[str]:
    return [f"photo {photo_id}: {wrong}" for photo_id, wrong in file.bad_values()]


def _bad_whitening(file: MapFile) -> list[str]:
    """Read the map's own whitening: raises MapError if it is damaged."""
    file.whitening()
    return []


def _bad_descriptors(file: MapFile) -> list[str]:
    """Descriptors that do not match their checksums, or are not unit vectors."""
    ids, _, files = file.photos()
    unpack, dim, problems = PACKINGS[file.manifest.storage].unpack, file.manifest.dim, list[str]()
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


def _bad_features(file: MapFile) -> list[str]:
    """Local features of another extractor or photo, that do not match their checksums, or that cannot be unpacked."""
    if file.manifest.format < 3 or not file.query(f"SELECT 1 FROM {FEATURES} LIMIT 1"):
        return []
    read_keypoints(file)
    from sareloc.geometry.local_features import unpack_features

    ids, _, files = file.photos()
    problems, names = list[str](), dict(zip(ids.tolist(), files, strict=True))
    for start in range(0, len(ids), FEATURES_PART):
        for fid, blob, wrong in file.feature_blobs(ids[start : start + FEATURES_PART]):
            try:
                if wrong is None:
                    unpack_features(blob)
            except MapError as error:
                wrong = f"cannot be unpacked ({error})"
            if wrong is not None:
                problems.append(f"the local features of photo {fid} ({names[fid]}) {wrong}")
    return problems


def _bad_index(file: MapFile) -> list[str]:
    """Compare a sample of the index's vectors with the map's descriptors."""
    cache, index = index_cache(file.manifest), ShardedIndex(file.manifest.dim)
    loaded = index.load(cache, file.photos()[0], file.checksums())
    for ids, vectors in file.descriptors(loaded[:: max(1, len(loaded) // SAMPLE)]):
        far = np.abs(index.fetch(ids) - vectors).max(axis=1) > HALF
        if far.any():
            return [f"the index has another descriptor of photo {ids[far][0]} than the map: delete {cache.folder}"]
    return []
