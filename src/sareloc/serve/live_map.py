"""A map that is asked while others add to it: every batch of questions sees the map as it is on disk by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.localize import Fix, Localizer
from sareloc.maps import Area, PlaceMap, map_backend
from sareloc.models.place_model import PlaceModel

EMPTY = Fix(None, None, 0.0, (), "this map holds no photos yet")


@dataclass(frozen=True, eq=False)
class Question:
    """Where was this image (H, W, 3) taken?"""

    image: npt.NDArray[np.uint8]
    near: Area | None
    top: int


class LiveMap:
    """Answers questions by a map that may change, be empty, or be filled later. For one thread.

    `localizer`: None while the map is empty; made as `options` say when photos have come.
    """

    def __init__(self, model: PlaceModel, place_map: PlaceMap, localizer: Localizer | None, **options: Any) -> None:
        self.model = model
        self.place_map = place_map
        self._localizer = localizer
        self._options = options
        self._watch = map_backend(place_map.path).watch(place_map.path)
        self._notes = place_map.notes
        self._seen: tuple[int, ...] | None = None

    def answer(self, questions: Sequence[Question]) -> list[Fix]:
        """The fix of each; questions about the same area go to the model together."""
        self.catch_up()
        if self._localizer is None or not len(self.place_map):
            return [EMPTY] * len(questions)
        groups: dict[Area | None, list[int]] = {}
        for row, question in enumerate(questions):
            groups.setdefault(question.near, []).append(row)
        fixes: dict[int, Fix] = {}
        for near, rows in groups.items():
            most = max(questions[row].top for row in rows)
            found = self._localizer.localize_many([questions[row].image for row in rows], near=near, top=most)
            for row, fix in zip(rows, found, strict=True):
                assert isinstance(fix, Fix), "images are decoded already"
                fixes[row] = replace(fix, matches=fix.matches[: questions[row].top])
        return [fixes[row] for row in range(len(questions))]

    def catch_up(self) -> None:
        """Take in what has changed in the map's file since the last time."""
        version = self._watch.version()
        if version == self._seen:
            return
        self.place_map.refresh()
        if self._localizer is None and len(self.place_map):
            self._localizer = Localizer(self.model, self.place_map, **self._options)
        elif self._localizer is not None and self.place_map.notes != self._notes:
            self._localizer = self._localizer.recalibrated()
        self._notes, self._seen = self.place_map.notes, version

    def close(self) -> None:
        """Let go of the map's file."""
        self._watch.close()
