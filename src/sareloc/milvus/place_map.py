"""MilvusMap: a map on Milvus, opened for searching."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.errors import MapError
from sareloc.geo import ROUNDING_M, SMALLEST_RADIUS_M, Area, Box, Circle, ecef_from_wgs84, wgs84_from_ecef
from sareloc.index import Hits, IndexInfo
from sareloc.maps import ListedPhoto, ListedPhotos, Matches, PlaceMap
from sareloc.maps.gpkg import time_text
from sareloc.maps.notes import read_keypoints
from sareloc.maps.records import check_aggregate
from sareloc.maps.store import Address
from sareloc.milvus.collection import Row
from sareloc.milvus.store import ALL, FEATURES, PLACE, UNKNOWN, MilvusStore, inside, latlon_of, manifest_of, photo_of

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatures

IDS = 2**63
SPARE = 2  # a circle fills three quarters of its box
EXTENT_S = 60.0
"""An extent is used for this long: it takes about 50 queries to the server."""
CHANGED_S = 5.0
"""A server does not report changes: a map may have changed after so many seconds."""


class MilvusMap(PlaceMap):
    """A map on Milvus, opened for searching; nothing of it is in memory.

    Opening and refreshing wait for all earlier writes (consistency level Strong). Searches do not wait (Bounded): they
    may miss what was added in the last seconds.
    """

    store_class = MilvusStore

    def __init__(self, path: Address, *, exact: bool = False) -> None:
        self.path = Path(path)
        self._store = MilvusStore.open(path, consistency="Bounded")
        self._collection = self._store.collection
        self.manifest = self._store.manifest
        check_aggregate(self.manifest, self._store.name, {})
        self._extent: Box | None = None
        self._extent_until = 0.0
        self._lock = threading.Lock()
        self._look_again()

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """See `PlaceMap`."""
        self._store.close()

    def _photos(self) -> NoReturn:
        raise MapError(
            f"the photos of map {self.path.name} are on a server, not in memory, and this needs all of them: copy the "
            'map to a file with "sareloc map copy"'
        )

    def search(self, vectors: npt.ArrayLike, k: int = 10, near: Area | None = None) -> Matches:
        """See `PlaceMap`."""
        queries = np.asarray(vectors, dtype=np.float32)
        if isinstance(near, Circle):
            hits, rows = self._find_in_circle(queries, k, near)
        else:
            hits, rows = self._collection.find(queries, k, "" if near is None else inside(near), PLACE)
        found = [[rows[i] for i in line] for line in hits.ids.tolist()]
        latlon = latlon_of(row for line in found for row in line)
        files = tuple(tuple(row["file"] for row in line) for line in found)
        return Matches(hits.ids, hits.distances, latlon.reshape(*hits.ids.shape, 2), files)

    def _find_in_circle(self, queries: Vectors, k: int, circle: Circle) -> tuple[Hits, dict[int, Row]]:
        """Search in the box around the circle, then select by exact distance; servers compute it in various ways."""
        hits, rows = self._collection.find(queries, SPARE * k, inside(circle.bounds()), PLACE)
        held = np.array(list(rows), dtype=np.int64)[circle.rows(latlon_of(rows.values()))]
        in_circle = np.isin(hits.ids, held)
        enough = int(in_circle.sum(axis=1).min(initial=k))
        if enough < k and hits.ids.shape[1] == SPARE * k:  # there may be more in the circle
            ids = [ids for ids, _, _ in self._store.pages(circle)]
            return self._collection.find_among(queries, k, np.concatenate([held, *ids]), PLACE)
        first = np.argsort(~in_circle, axis=1, kind="stable")[:, : min(k, enough)]
        taken = Hits(np.take_along_axis(hits.ids, first, 1), np.take_along_axis(hits.distances, first, 1))
        return taken, rows

    def descriptors(self, ids: npt.ArrayLike) -> Vectors:
        """See `PlaceMap`."""
        return self._collection.fetch(np.asarray(ids, dtype=np.int64))

    def features_and_headings(
        self, ids: npt.ArrayLike, best: int | None = None
    ) -> tuple[dict[int, LocalFeatures], Floats]:
        """See `PlaceMap`; a server returns whole texts, of which the best keypoints are unpacked."""
        wanted = np.asarray(ids, dtype=np.int64)
        if not self._features_checked:
            read_keypoints(self._store)  # raises MapError if they are of another extractor
            self._features_checked = True
        fields = ["heading_deg", *([FEATURES.name] if self._store.holds_local_features else [])]
        rows = self._collection.rows(np.unique(wanted), fields)
        features = {i: self._unpacked(row, best) for i, row in rows.items() if row.get(FEATURES.name)}
        known = {i: row["heading_deg"] for i, row in rows.items() if row["heading_deg"] != UNKNOWN}
        return features, np.array([known.get(i, np.nan) for i in wanted.tolist()], dtype=np.float64)

    def _unpacked(self, row: Row, best: int | None) -> LocalFeatures:
        from sareloc.geometry.local_features import unpack_features

        blob = self._store.decoded(row)
        try:
            features = unpack_features(blob)
        except MapError as wrong:
            raise MapError(
                f"map {self._store.name} is damaged: the local features of photo {row['id']} cannot be unpacked "
                f"({wrong}). Remove the photo and add it again"
            ) from wrong
        return features if best is None else features.best(best)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """See `PlaceMap`; always the same photos: those with the smallest ids, which are hashes."""
        limit = IDS * SPARE * count // max(self._count, 1)
        parts = list(self._collection.select(f"id < {min(limit, IDS - 1)}", PLACE))
        rows = [row for part in parts for row in part][:count]
        return np.array([row["id"] for row in rows], dtype=np.int64), latlon_of(rows)

    def _state(self) -> object:
        return self._count

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """See `PlaceMap`."""
        ground_m = (
            2 * SMALLEST_RADIUS_M * math.asin(min(1.0, radius_m / (2 * SMALLEST_RADIUS_M)))
        )  # longer than a chord
        counts = []
        for point, latlon in zip(points_m, wgs84_from_ecef(points_m), strict=True):
            box = Circle((float(latlon[0]), float(latlon[1])), ground_m).bounds()
            around = [there for _, there, _ in self._store.pages(box)]
            away = [np.linalg.norm(ecef_from_wgs84(there) - point, axis=1) for there in around if len(there)]
            counts.append(sum(int((part <= radius_m + ROUNDING_M).sum()) for part in away))
        return np.array(counts, dtype=np.int64)

    def whitening(self) -> None:
        """See `PlaceMap`: none, a property of a collection is too small for one."""

    def index_info(self) -> IndexInfo:
        """See `PlaceMap`."""
        return self._collection.info()

    def refresh(self) -> None:
        """See `PlaceMap`."""
        if manifest_of(self._collection.connection) != self.manifest:
            raise MapError(f"{self._store.name} was replaced since it was opened: open it again")
        self._look_again()

    def version(self) -> int:
        """See `PlaceMap`: equal for `CHANGED_S` seconds."""
        return int(time.monotonic() / CHANGED_S)

    def current_count(self) -> int:
        """See `PlaceMap`."""
        return self._store.count()

    def current_files(self) -> Sequence[str]:
        """See `PlaceMap`: of some thousand photos."""
        return [str(row["file"]) for row in next(self._collection.select(fields=["file"]), [])]

    def current_file(self, photo_id: int) -> str | None:
        """See `PlaceMap`."""
        row = self._collection.rows(np.array([photo_id]), ["file"]).get(photo_id)
        return None if row is None else str(row["file"])

    def list_photos(self, area: Area | None, limit: int) -> ListedPhotos:
        """See `PlaceMap`; the sample has the smallest ids, which are hashes and so a random choice."""
        where = "" if area is None else inside(area.bounds())
        rows = islice(chain.from_iterable(self._collection.select(where, ALL)), limit)
        photos = [_listed(row) for row in rows]
        counted = len(photos) if len(photos) < limit else self._collection.count(where)
        return ListedPhotos(photos, inside=counted, total=self.current_count(), extent=self._current_extent())

    def _current_extent(self) -> Box | None:
        with self._lock:
            if time.monotonic() >= self._extent_until:
                self._extent = self._store.extent()
                self._extent_until = time.monotonic() + EXTENT_S
            return self._extent

    def _look_again(self) -> None:
        self._count = self._store.count()
        self._features_checked = False
        self.notes = self._store.notes()


def _listed(row: Row) -> ListedPhoto:
    tag = photo_of(row).geotag
    return ListedPhoto(int(row["id"]), tag.latlon, str(row["file"]), tag.heading_deg, time_text(tag.time))
