"""The photos of a map on Milvus: searched and looked up there, nothing of them held here."""

from __future__ import annotations

import math

import numpy as np

from sareloc.engines import EngineInfo
from sareloc.engines.contract import Hits, Ints
from sareloc.engines.milvus import Row
from sareloc.engines.milvus_address import MilvusAddress
from sareloc.errors import MapError
from sareloc.geo import ecef_from_wgs84, wgs84_from_ecef
from sareloc.place_map.areas import ROUNDING_M, SMALLEST_RADIUS_M, Area, Circle
from sareloc.place_map.matches import Floats, Matches, Vectors
from sareloc.place_map.milvus_rows import PLACE, inside
from sareloc.place_map.milvus_store import manifest_of, open_milvus_store

IDS = 2**63
SPARE = 2  # a circle fills three quarters of its box


class MilvusPhotos:
    """See `MapPhotos`.

    Opening and refreshing wait for whatever was written before (consistency level Strong); searches do not wait
    (Bounded), so that they may miss what others have added in the last seconds, and never take longer for it.
    """

    def __init__(self, address: MilvusAddress) -> None:
        self._store = open_milvus_store(address, consistency="Bounded")
        self._engine = self._store.engine
        self.manifest = self._store.manifest
        self._look_again()

    def __len__(self) -> int:
        return self._count

    def search(self, descriptors: Vectors, k: int, near: Area | None) -> Matches:
        """See `MapPhotos`."""
        if isinstance(near, Circle):
            hits, rows = self._find_in_circle(descriptors, k, near)
        else:
            hits, rows = self._engine.find(descriptors, k, "" if near is None else inside(near), PLACE)
        found = [[rows[i] for i in line] for line in hits.ids.tolist()]
        latlon = np.array([[(row["lat"], row["lon"]) for row in line] for line in found], dtype=np.float64)
        files = tuple(tuple(row["file"] for row in line) for line in found)
        return Matches(hits.ids, hits.distances, latlon.reshape(*hits.ids.shape, 2), files)

    def _find_in_circle(self, queries: Vectors, k: int, circle: Circle) -> tuple[Hits, dict[int, Row]]:
        """By the box around the circle, and the exact distance here; servers measure circles in various ways."""
        hits, rows = self._engine.find(queries, SPARE * k, inside(circle.bounds()), PLACE)
        latlon = np.array([[row["lat"], row["lon"]] for row in rows.values()], dtype=np.float64).reshape(-1, 2)
        held = np.array(list(rows), dtype=np.int64)[circle.rows(latlon)]
        in_circle = np.isin(hits.ids, held)
        enough = int(in_circle.sum(axis=1).min(initial=k))
        if enough < k and hits.ids.shape[1] == SPARE * k:  # there may be more than were looked at
            ids = [ids for ids, _, _ in self._store.pages(circle)]
            return self._engine.find_among(queries, k, np.concatenate([held, *ids]), PLACE)
        first = np.argsort(~in_circle, axis=1, kind="stable")[:, : min(k, enough)]
        taken = Hits(np.take_along_axis(hits.ids, first, 1), np.take_along_axis(hits.distances, first, 1))
        return taken, rows

    def descriptors(self, ids: Ints) -> Vectors:
        """See `MapPhotos`."""
        return self._engine.fetch(ids)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """See `MapPhotos`; always the same ones: ids are hashes, so that the smallest belong to photos at random."""
        limit = IDS * SPARE * count // max(self._count, 1)
        parts = list(self._engine.select(f"id < {min(limit, IDS - 1)}", PLACE))
        rows = [row for part in parts for row in part][:count]
        latlon = np.array([[row["lat"], row["lon"]] for row in rows], dtype=np.float64).reshape(-1, 2)
        return np.array([row["id"] for row in rows], dtype=np.int64), latlon

    def count_around(self, points_m: Floats, radius_m: float) -> Ints:
        """See `MapPhotos`."""
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

    def settle(self) -> None:
        """See `MapPhotos`."""
        self._engine.seal()

    def engine_info(self) -> EngineInfo:
        """See `MapPhotos`."""
        return self._engine.info()

    def refresh(self) -> None:
        """See `MapPhotos`."""
        if manifest_of(self._engine.connection) != self.manifest:
            raise MapError(f"{self._store.name} has become another map since it was opened: open it again")
        self._look_again()

    def _look_again(self) -> None:
        self._count = self._store.count()
        self.notes = self._store.notes()
