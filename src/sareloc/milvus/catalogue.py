"""The photos of a map on Milvus as a page shows them: asked for there, none of them held here."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from sareloc.maps import Area
from sareloc.maps.gpkg import time_text
from sareloc.milvus.connection import MilvusAddress
from sareloc.milvus.engine import Row
from sareloc.milvus.maintain import milvus_info
from sareloc.milvus.store import ALL as EVERYTHING
from sareloc.milvus.store import inside, open_milvus_store, photo_of
from sareloc.serve.catalogue import collection, feature

EXTENT_S = 60.0
"""How long an extent counts: a dozen questions to the server for each of its sides."""


class MilvusCatalogue:
    """As `Catalogue`, of a map on Milvus. Safe from several threads."""

    def __init__(self, address: MilvusAddress) -> None:
        self._address = address
        self._store = open_milvus_store(address, consistency="Bounded")
        self._lock = threading.Lock()
        self._bbox: list[float] | None = None
        self._bbox_until = 0.0

    def count(self) -> int:
        """How many photos there are now."""
        return self._store.count()

    def files(self) -> Sequence[str]:
        """The names of the files of some thousand photos, at random."""
        return [str(row["file"]) for row in next(self._store.engine.select(fields=["file"]), [])]

    def file_of(self, photo_id: int) -> str | None:
        """What the map calls the file of a photo; None for an id that is not in the map now."""
        row = self._store.engine.rows(np.array([photo_id]), ["file"]).get(photo_id)
        return None if row is None else str(row["file"])

    def geojson(self, area: Area | None, limit: int) -> dict[str, Any]:
        """A FeatureCollection of the photos in an area; of more than `limit`, those of the smallest ids.

        Ids are hashes, so that these are photos at random.
        """
        where = "" if area is None else inside(area.bounds())
        shown = islice(chain.from_iterable(self._store.engine.select(where, EVERYTHING)), limit)
        features = [_feature(row) for row in shown]
        counted = len(features) if len(features) < limit else self._store.engine.count(where)
        return collection(features, self._extent(), total=self.count(), inside=counted)

    def close(self) -> None:
        """Let go of the server."""
        self._store.__exit__()

    def _extent(self) -> list[float] | None:
        """West, south, east, north in degrees."""
        with self._lock:
            if time.monotonic() >= self._bbox_until:
                extent = milvus_info(self._address).extent
                self._bbox = None if extent is None else [extent.west, extent.south, extent.east, extent.north]
                self._bbox_until = time.monotonic() + EXTENT_S
            return self._bbox


def _feature(row: Row) -> dict[str, Any]:
    tag = photo_of(row).geotag
    taken = None if tag.time is None else time_text(tag.time)
    return feature(int(row["id"]), tag.latlon, str(row["file"]), tag.heading_deg, taken)
