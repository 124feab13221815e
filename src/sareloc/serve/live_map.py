"""Maps that are searched while other processes change them: every batch of queries sees their present photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sareloc.localize import Fix, Localizer, SeveralMaps
from sareloc.maps import Area, PlaceMap
from sareloc.models import PlaceModel
from sareloc.photos import ReadImage

EMPTY = Fix(None, None, 0.0, (), "this map holds no photos yet")
ALL_EMPTY = Fix(None, None, 0.0, (), "these maps hold no photos yet")


@dataclass(frozen=True, eq=False)
class Query:
    """A photo to localize: the area to search (None: all of the map) and the matches to return."""

    photo: ReadImage
    """Read at the size of each of `LiveMaps.preprocesses`, then at that of local features."""
    near: Area | None
    top: int


class LiveMap:
    """A map that may change or be empty. Not safe from several threads.

    `localizer`: None if the map is empty; it is then created with `options` when the map has photos.
    """

    def __init__(self, model: PlaceModel, place_map: PlaceMap, localizer: Localizer | None, **options: Any) -> None:
        self.model = model
        self.place_map = place_map
        self.localizer = localizer
        self._options = options
        self._notes = place_map.notes
        self._version: int | None = None

    @property
    def verifies(self) -> bool:
        """Whether matches are verified."""
        return self.localizer is not None and self.localizer.verifier is not None

    def refresh(self) -> None:
        """Read what has changed in the map since the last call; a new calibration in the map replaces the old one."""
        version = self.place_map.version()
        if version == self._version:
            return
        self.place_map.refresh()
        if len(self.place_map):
            if self.localizer is None:
                self.localizer = Localizer(self.model, self.place_map, **self._options)
            elif self.place_map.notes != self._notes:
                self.localizer = self.localizer.recalibrated()
            self._notes = self.place_map.notes
        self._version = version

    def close(self) -> None:
        """Close the map."""
        self.place_map.close()


class LiveMaps:
    """Localizes queries by one or several maps, by their names; not safe from several threads.

    Answers of several maps name the map, as those of `SeveralMaps`; `min_confidence` is then theirs together.
    """

    def __init__(self, maps: Mapping[str, LiveMap], min_confidence: float) -> None:
        self.maps = dict(maps)
        self.preprocesses = tuple(dict.fromkeys(live.model.preprocess for live in maps.values()))
        """How the models of all maps, also of empty ones, resize images; each once."""
        self.min_confidence = min_confidence

    def localizer(self) -> Localizer | SeveralMaps | None:
        """Of the maps that hold photos; None: all are empty."""
        full = {name: live.localizer for name, live in self.maps.items() if live.localizer and len(live.place_map)}
        if not full:
            return None
        return next(iter(full.values())) if len(self.maps) == 1 else SeveralMaps(full, self.min_confidence)

    def localize(self, queries: Sequence[Query]) -> list[Fix]:
        """The fix of each query; queries of the same area are described and searched together."""
        self.refresh()
        localizer = self.localizer()
        if localizer is None:
            return [EMPTY if len(self.maps) == 1 else ALL_EMPTY] * len(queries)
        models = localizer.preprocesses if isinstance(localizer, SeveralMaps) else [localizer.model.preprocess]
        sizes = [*map(self.preprocesses.index, models), -1]
        groups: dict[Area | None, list[int]] = {}
        for row, query in enumerate(queries):
            groups.setdefault(query.near, []).append(row)
        fixes: dict[int, Fix] = {}
        for near, rows in groups.items():
            most = max(queries[row].top for row in rows)
            photos = [queries[row].photo.take(sizes) for row in rows]
            found = localizer.localize_many(photos, near=near, top=most, condition=None)
            for row, fix in zip(rows, found, strict=True):
                assert isinstance(fix, Fix), "photos are decoded already"
                own = [match for match in fix.matches if match.map == fix.map]
                others = [match for match in fix.matches if match.map != fix.map]
                fixes[row] = replace(fix, matches=(*own[: queries[row].top], *others))
        return [fixes[row] for row in range(len(queries))]

    def refresh(self) -> None:
        """Read what has changed in the maps, see `LiveMap.refresh`."""
        for live in self.maps.values():
            live.refresh()

    def close(self) -> None:
        """Close the maps."""
        for live in self.maps.values():
            live.close()
