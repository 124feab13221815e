"""The records of a map: its manifest, its photos, what a search finds and what a page lists.

The search vector of a photo is its descriptor and the aggregated local features beside it (see `search_vector` in
`sareloc.geometry`). Vectors of other constants cannot be compared: the manifest names those of the map.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from sareloc import __version__
from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError
from sareloc.geo import Box
from sareloc.photos import Geotag

if TYPE_CHECKING:
    from sareloc.geometry.adaptation import Adaptation

FORMAT = 6
"""Of maps. Format 1 had no checksums and no change id, formats 1 and 2 no local features, format 3 local features
without `features_checksum`, formats 1 to 4 no aggregated local features, formats 1 to 5 no geotags by files; they
are read, and files are upgraded when opened for writing."""
LARGEST_FEATURES = 2**20
"""Bytes of a photo's packed local features: more are not read."""
TIME_S = 1e-3  # a map file stores milliseconds
LARGEST_DIM = 2**18
LARGEST_AGGREGATE_DIM = 512
CALIBRATION = "calibration "  # start of the name of a note; the search follows

Storage = Literal["float16", "float32", "int8"]


@dataclass(frozen=True)
class MapManifest:
    """The model that a map's descriptors come from, and how its search vectors are stored."""

    model: str
    fingerprint: str
    dim: int
    """Of the model's descriptors, the first part of a search vector."""
    storage: Storage = "float16"
    map_id: str = ""
    """Random, drawn when the map is created; identifies the map in the cache of search indexes."""
    made_by: str = f"sareloc {__version__}"
    format: int = FORMAT
    aggregate: str = ""
    """The fingerprint of the constants by which local features were aggregated (see `sareloc.geometry.local_features`);
    "": the search vectors are the descriptors."""
    aggregate_dim: int = 0
    """Of the aggregated local features, the second part of a search vector."""

    @property
    def vector_dim(self) -> int:
        """Of the search vectors."""
        return self.dim + self.aggregate_dim


@dataclass(frozen=True)
class MapPhoto:
    """A photo as a map stores it, without its search vector."""

    file: str
    """Its address (see `sareloc.photos.record`): relative to the map's folder if it is inside, else absolute;
    forward slashes."""
    geotag: Geotag
    width: int
    """Pixels, as stored in the file."""
    height: int
    sha256: bytes
    """Identifies its content, whatever its name (see `content_digest`)."""
    size_bytes: int
    modified_ns: int
    """The file's modification time when it was read: a file with the same time and size is not read again."""
    replaces: int | None = None
    """The id of the photo that had this file name before."""
    source: Geotag | None = None
    """The geotag by its file, if that in the map was edited; None: the same."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a map stores of a photo that may change while its content, and so its descriptor, stays the same."""

    photo_id: int
    file: str
    stamp: tuple[int, int]
    """Size in bytes and modification time in ns of the file when it was read."""
    geotag: Geotag
    replaces: int | None = None
    """For `MapStore.update`: the id of the photo that had this file name before."""
    source: Geotag | None = None
    """The geotag by its file, if that in the map was edited; None: the same, or unknown."""
    edited: tuple[str, ...] = ()
    """The fields of the geotag that another program has changed in the map, such as "latlon"."""
    problem: str | None = None
    """Why the row in the map, which another program has changed, cannot be read; then `geotag` is that by its file."""


@dataclass(frozen=True, eq=False)
class Matches:
    """The photos of a map whose search vectors are nearest to those of Q queries, the nearest first.

    K is the requested k, or the number of photos in the map (in the area) if that is smaller.
    """

    ids: Ints
    """(Q, K) ids of photos in the map."""
    distances: Vectors
    """(Q, K) Euclidean distances of search vectors, 0 to 2."""
    latlon: Floats
    """(Q, K, 2) latitude, longitude in degrees, WGS84."""
    files: tuple[tuple[str, ...], ...]
    """Q x K file names."""

    def take(self, row: int, columns: Ints) -> Matches:
        """Of the query in this row, the photos in these columns (k,), as matches (1, k)."""
        files = (tuple(self.files[row][column] for column in columns.tolist()),)
        ids, distances, latlon = (held[row][columns][None] for held in (self.ids, self.distances, self.latlon))
        return Matches(ids, distances, latlon, files)


@dataclass(frozen=True)
class ListedPhoto:
    """A photo of a map, without its descriptor."""

    photo_id: int
    latlon: tuple[float, float]
    """Degrees, WGS84."""
    file: str
    """Its name in the map."""
    heading_deg: float | None
    time: str | None
    """As 2024-05-31T12:00:00.000Z; None if it is unknown."""


@dataclass(frozen=True)
class ListedPhotos:
    """Photos in an area of a map, or a sample of them."""

    photos: list[ListedPhoto]
    inside: int
    """Photos in the area."""
    total: int
    """Photos in the map."""
    extent: Box | None
    """The smallest box that holds all photos of the map; None if it has none."""


@dataclass(frozen=True, eq=False)
class PhotoTable:
    """All photos of a map at one time."""

    ids: Ints
    """(N,) ascending."""
    latlon: Floats
    """(N, 2) degrees, WGS84."""
    files: tuple[str, ...]

    def file_of(self, photo_id: int) -> str | None:
        """The name of a photo in the map; None if the map has no photo of this id."""
        row = int(np.searchsorted(self.ids, photo_id))
        return self.files[row] if row < len(self.ids) and self.ids[row] == photo_id else None

    @cached_property
    def extent(self) -> Box | None:
        """The smallest box that holds all photos, across the antimeridian if that is shorter; None without photos."""
        if not len(self.ids):
            return None
        (south, _), (north, _) = self.latlon.min(axis=0), self.latlon.max(axis=0)
        longitudes = np.unique(self.latlon[:, 1])
        widest = int(np.argmax(np.diff(longitudes, append=longitudes[0] + 360)))  # the gap outside the box
        west, east = longitudes[(widest + 1) % len(longitudes)], longitudes[widest]
        return Box(float(south), float(west), float(north), float(east))


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
class FeaturesInfo:
    """The local features that are stored in a map."""

    keypoints: int
    """The most that a photo has."""
    photos: int
    """The number of photos that have local features."""
    bytes: int | None
    """None if the map is on a server."""


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
    local_features: FeaturesInfo | None = None
    """None if the map was built without local features."""
    views: int = 0
    """Views of 360° photos among the photos; 0 if the map is on a server."""
    panoramas: int = 0
    """The 360° photos whose views they are."""
    whitened_from: int | None = None
    """Dimensions of the model's descriptors, which the map's own whitening reduces; None if it has none."""
    edited: tuple[str, ...] = ()
    """Photos whose position, heading or time another program has changed in the map: those are kept."""
    removed: int = 0
    """Contents that were removed from the map, by another program or by `remove_photos`: they are not added again."""
    unusable: tuple[str, ...] = ()
    """Photos that are left out of the search because their rows cannot be read, and why."""


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


def entry_of(photo: MapPhoto, photo_id: int) -> Entry:
    """The entry of a photo whose content is in a map under `photo_id`."""
    stamp = (photo.size_bytes, photo.modified_ns)
    return Entry(photo_id, photo.file, stamp, photo.geotag, photo.replaces, photo.source)


def same_geotag(one: Geotag, other: Geotag) -> bool:
    """Whether two geotags are equal as stored in a map: time to the millisecond."""
    if (one.latlon, one.heading_deg) != (other.latlon, other.heading_deg):
        return False
    if one.time is None or other.time is None:
        return one.time is other.time
    return abs(one.time - other.time) <= TIME_S


def same_entry(one: Entry, other: Entry) -> bool:
    """Whether two entries are equal as stored in a map."""
    sources = (one.source or one.geotag, other.source or other.geotag)
    same = same_geotag(one.geotag, other.geotag) and same_geotag(*sources)
    return same and (one.file, one.stamp, one.problem) == (other.file, other.stamp, other.problem)


def shown(value: object) -> str:
    """A value of a map for an error message: unprintable text is quoted, long text is cut."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 100 else f"{text[:90]}... ({len(text)} characters)"


ADAPTATION = "adaptation"
"""The name of the note that holds the adaptation of a map, see `sareloc.geometry.adaptation`."""
NO_AGGREGATE = 0.05  # of a unit vector: a part that is shorter, after rounding, is zero

OTHER_VECTORS = "the search vectors of map {} were changed by another process meanwhile: repeat the command"


def with_aggregate(manifest: MapManifest) -> MapManifest:
    """The manifest of a map whose search vectors have aggregated local features, of this sareloc's constants."""
    from sareloc.geometry.local_features import constants_fingerprint

    dim = min(LARGEST_AGGREGATE_DIM, manifest.dim)
    return replace(manifest, aggregate=constants_fingerprint(), aggregate_dim=dim)


def vectors_fingerprint(notes: Mapping[str, str]) -> str:
    """The `aggregate` of the manifest of a map with these notes: of this sareloc's constants, and of its adaptation."""
    from sareloc.geometry.local_features import constants_fingerprint

    constants, adaptation = constants_fingerprint(), notes.get(ADAPTATION)
    if adaptation is None:
        return constants
    return hashlib.sha256(f"{constants} {adaptation}".encode()).hexdigest()[:16]


def read_adaptation(notes: Mapping[str, str], manifest: MapManifest, name: str) -> Adaptation | None:
    """The adaptation of the map `name` with these notes; None if it has none. Raises MapError if it is damaged."""
    from sareloc.geometry.adaptation import Adaptation

    text = notes.get(ADAPTATION)
    if text is None:
        return None
    try:
        return Adaptation.from_json(json.loads(text), manifest.dim, manifest.vector_dim)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as wrong:
        raise MapError(
            f"map {name} is damaged: its adaptation cannot be used ({wrong}). Restore a backup, or adapt it again"
        ) from wrong


def has_present_aggregate(manifest: MapManifest, notes: Mapping[str, str]) -> bool:
    """Whether a map's search vectors have aggregated local features of this sareloc's constants."""
    return manifest.aggregate == vectors_fingerprint(notes)


def check_aggregate(manifest: MapManifest, name: str, notes: Mapping[str, str]) -> None:
    """Raise MapError if the map `name` has aggregated local features of other constants than this sareloc has."""
    if manifest.aggregate_dim and not has_present_aggregate(manifest, notes):
        raise MapError(
            f"map {name} has search vectors with local features aggregated by the constants {manifest.aggregate}, this "
            f'sareloc has {vectors_fingerprint(notes)}: compute them again with "sareloc map upgrade", or use the '
            f"sareloc that made them ({manifest.made_by})"
        )


def complete_vectors(
    vectors: Vectors, blobs: Sequence[bytes], manifest: MapManifest, adaptation: Adaptation | None = None
) -> Vectors:
    """Search vectors (n, vector_dim) of photos whose packed local features are stored now.

    Those of photos that had no local features get the aggregated ones; the others are returned as they are.

    Args:
        vectors: as they are in the map.
        blobs: packed local features (n).
        manifest: of the map.
        adaptation: of the map.
    """
    from sareloc.geometry.local_features import search_vector, unpack_features

    completed = vectors.copy()
    if not manifest.aggregate_dim:
        return completed
    before = vectors if adaptation is None else adaptation.inverse(vectors)
    lengths = np.linalg.norm(before[:, manifest.dim :], axis=1)
    for row in np.flatnonzero(lengths < (NO_AGGREGATE if adaptation else np.finfo(np.float32).tiny)).tolist():
        features = unpack_features(blobs[row])
        vector = search_vector(before[row, : manifest.dim], features, manifest.aggregate_dim)
        completed[row] = vector if adaptation is None else adaptation(vector)
    return completed
