"""A map that is searched while other processes change it: every batch of queries sees the map's present photos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sareloc.geometry import InlierPairs
from sareloc.localize import Fix, Localizer, Search
from sareloc.maps import Area, PlaceMap, load_map_model
from sareloc.models import PlaceModel, Precision
from sareloc.photos import ReadImage

EMPTY = Fix(None, None, 0.0, (), "this map holds no photos yet")


@dataclass(frozen=True, eq=False)
class Query:
    """A photo to localize: the area to search (None: all of the map) and the matches to return."""

    photo: ReadImage
    near: Area | None
    top: int


@dataclass(frozen=True, eq=False)
class Pair:
    """A query and a photo of the map, whose matched keypoints are asked for."""

    query: ReadImage
    photo_id: int
    file: str


class LiveMap:
    """Localizes queries by a map that may change or be empty. Not safe from several threads, except `inlier_pairs`.

    `localizer`: None if the map is empty; it is then created with `options` when the map has photos.
    """

    def __init__(self, model: PlaceModel, place_map: PlaceMap, localizer: Localizer | None, **options: Any) -> None:
        self.model = model
        self.place_map = place_map
        self._localizer = localizer
        self._options = options
        self._notes = place_map.notes
        self._version: int | None = None

    @property
    def verifies(self) -> bool:
        """Whether matches are verified, for which queries are decoded in more detail."""
        return self._localizer is not None and self._localizer.verifier is not None

    def localize(self, queries: Sequence[Query]) -> list[Fix]:
        """The fix of each query; queries of the same area are described and searched together."""
        self.refresh()
        if self._localizer is None or not len(self.place_map):
            return [EMPTY] * len(queries)
        groups: dict[Area | None, list[int]] = {}
        for row, query in enumerate(queries):
            groups.setdefault(query.near, []).append(row)
        fixes: dict[int, Fix] = {}
        for near, rows in groups.items():
            most = max(queries[row].top for row in rows)
            found = self._localizer.localize_many(
                [queries[row].photo for row in rows], near=near, top=most, condition=None
            )
            for row, fix in zip(rows, found, strict=True):
                assert isinstance(fix, Fix), "photos are decoded already"
                fixes[row] = replace(fix, matches=fix.matches[: queries[row].top])
        return [fixes[row] for row in range(len(queries))]

    def inlier_pairs(self, pairs: Sequence[Pair]) -> list[InlierPairs | None]:
        """The matched keypoints of each pair that agree; see `Localizer.inlier_pairs`. Requires `verifies`."""
        localizer = self._localizer
        assert localizer is not None, "the service checks that the map is verified"
        return [localizer.inlier_pairs(pair.query, pair.photo_id, pair.file) for pair in pairs]

    def refresh(self) -> None:
        """Read what has changed in the map since the last call; a new calibration in the map replaces the old one."""
        version = self.place_map.version()
        if version == self._version:
            return
        self.place_map.refresh()
        if len(self.place_map):
            if self._localizer is None:
                self._localizer = Localizer(self.model, self.place_map, **self._options)
            elif self.place_map.notes != self._notes:
                self._localizer = self._localizer.recalibrated()
            self._notes = self.place_map.notes
        self._version = version

    def close(self) -> None:
        """Close the map."""
        self.place_map.close()


def open_live_map(
    path: str | Path,
    model: str | Path | PlaceModel | None,
    search: Search | None,
    min_confidence: float,
    device: torch.device | str | None,
    precision: Precision,
    batch: int,
) -> LiveMap:
    """Open a map with its model, as `open_localizer` does; the map may be empty."""
    place_map = PlaceMap(path)
    if not isinstance(model, PlaceModel):
        model = load_map_model(place_map.manifest, place_map.path.name, model, device, precision)
    options: dict[str, Any] = {"search": search, "min_confidence": min_confidence, "batch": batch}
    if len(place_map):
        return LiveMap(model, place_map, Localizer(model, place_map, **options))
    place_map.check_model(model)
    return LiveMap(model, place_map, None, **options)
