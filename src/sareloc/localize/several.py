"""Several maps that are asked at once: one search over all, one fix, and which map it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import distance_m
from sareloc.geometry import feature_size
from sareloc.localize.condition import UsedCondition
from sareloc.localize.estimate import PLACE_M, Candidates, Fix, check_confidence, estimate
from sareloc.localize.localizer import Localizer, Localizes
from sareloc.localize.queries import Near, Query, read_queries, readable, split_into_chunks, with_warnings
from sareloc.photos import ReadImage, SizeRule

SUREST = 1 - 1e-9
ONE_MAP = "a saved condition belongs to one map: estimate and use it with each map alone"


class SeveralMaps(Localizes[dict[str, Candidates]]):
    """Localizes photos in several maps. Open it with `open_localizer([map, map])`.

    A photo is read once for all maps. Maps with the same search vectors are asked as if they were one: it is encoded
    once, and the matches of all compete. Those of other models give fixes of their own, the most confident of which is
    the answer (`choose_fix`): its matches, then the first of each other map. A walk is estimated in each map, and of
    each photo the most confident map answers, so that it may lead from one map into another. A condition is estimated
    for each map.
    """

    def __init__(self, localizers: Mapping[str, Localizer], min_confidence: float) -> None:
        """Join localizers.

        Args:
            localizers: by the names of their maps (see `map_names`), with a `min_confidence` of 0. Photos are read by
                the options of the first.
            min_confidence: a fix of a lower confidence has no position.
        """
        check_confidence(min_confidence)
        self.min_confidence = min_confidence
        self.localizers = dict(localizers)
        self.preprocesses = tuple(dict.fromkeys(one.model.preprocess for one in self.localizers.values()))
        """How the models resize images, each once."""

    def __repr__(self) -> str:
        return f"<SeveralMaps: {', '.join(self.localizers)}>"

    @property
    def sizes(self) -> tuple[SizeRule, ...]:
        """The size rules with which photos must be read: one of each of `preprocesses`, then that of local features."""
        extracts = any(one.encoder.extractor is not None for one in self.localizers.values())
        return (*(one.resizing for one in self.preprocesses), *((feature_size,) if extracts else ()))

    def _own(self, localizer: Localizer, photo: ReadImage) -> ReadImage:
        """A photo that was read at `sizes`, at those of one map."""
        row = self.preprocesses.index(localizer.model.preprocess)
        return photo.take([row] if localizer.encoder.extractor is None else [row, -1])

    def _search(
        self, photos: Sequence[Query], near: Near, top: int, condition: UsedCondition
    ) -> Iterator[dict[str, Candidates] | PhotoError]:
        used = {
            name: one.used_condition(
                [self._own(one, photo) if isinstance(photo, ReadImage) else photo for photo in photos], near, condition
            )
            for name, one in self.localizers.items()
        }
        first = next(iter(self.localizers.values()))
        for loaded in split_into_chunks(with_warnings(read_queries(photos, self.sizes, first.views, first.workers))):
            queries = readable(loaded)
            found: dict[str, Iterator[Candidates]] = {}
            for group in self._groups if queries else ():
                encoder = next(iter(group.values()))
                own = [self._own(encoder, query) for query in queries]
                encoded = encoder.encode(own)
                for name, one in group.items():
                    found[name] = iter(one.find_candidates(own, encoded, near, top, used[name]))
            for query in loaded:
                yield query if isinstance(query, PhotoError) else {name: next(each) for name, each in found.items()}

    @cached_property
    def _groups(self) -> tuple[dict[str, Localizer], ...]:
        """The maps, those with the same search vectors together."""
        groups: dict[tuple[str, bool], dict[str, Localizer]] = {}
        for name, localizer in self.localizers.items():
            groups.setdefault((localizer.vector_space, localizer.verifier is None), {})[name] = localizer
        return tuple(groups.values())

    def answer(self, found: dict[str, Candidates], top: int) -> Fix:
        """See `Localizes`."""
        fixes: dict[str, Fix] = {}
        for group in self._groups:
            fixes |= _joint_fix(group, {name: found[name] for name in group}, top)
        return choose_fix(fixes, self.min_confidence)

    def answer_walk(
        self, found: Sequence[dict[str, Candidates] | None], reach_m: float | Sequence[float], top: int
    ) -> list[Fix]:
        """The fixes of a walk.

        Args:
            found: what each map finds for each photo; None: it cannot be decoded.
            reach_m: as for `localize_walk`.
            top: how many matches each fix lists.
        """
        walks = [
            one.answer_walk([None if seen is None else seen[name] for seen in found], reach_m, top)
            for name, one in self.localizers.items()
        ]
        return [
            choose_fix(dict(zip(self.localizers, fixes, strict=True)), self.min_confidence)
            for fixes in zip(*walks, strict=True)
        ]

    def estimate_condition(self, *_: object, **__: object) -> NoReturn:
        """Raises ArgumentError: a condition belongs to the search vectors and the places of one map."""
        raise ArgumentError(ONE_MAP)


def map_names(paths: Sequence[Path]) -> list[str]:
    """The names of maps in answers: of each the file name, with as many folders as needed to tell all apart.

    Raises ArgumentError if there are none, or if one was given twice.
    """
    if not paths:
        raise ArgumentError("no maps were given: name at least one")
    if len(set(paths)) < len(paths):
        raise ArgumentError(f"the same map was given twice: {', '.join(map(str, paths))}")
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = [Path(*path.parts[-depth:]).as_posix() for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def choose_fix(fixes: dict[str, Fix], min_confidence: float) -> Fix:
    """The fix of the map with the highest confidence, less what other maps say of another place.

    Each map gives odds o = p / (1 - p) that its position is within 25 m of the truth. Positions more than 25 m apart
    exclude each other, so that the confidence is o / (1 + o + sum of the odds of other places): two maps of equal
    confidence 0.9 leave 0.47, one of 0.9 beside one of 0.05 leaves 0.90. A map that gives the same place changes
    nothing.

    Args:
        fixes: of each map, with a position if there are matches; ties: the first.
        min_confidence: a fix of a lower confidence has no position.

    Returns:
        The fix, with its own matches and the first of each other map.
    """
    placed = {name: fix for name, fix in fixes.items() if fix.latlon is not None}
    if not placed:
        return next(iter(fixes.values()))
    name, best = max(placed.items(), key=lambda item: item[1].confidence)
    assert best.latlon is not None
    others = [fix for other, fix in placed.items() if other != name and _apart(fix, best)]
    own = _odds(best.confidence)
    confidence = own / (1 + own + math.fsum(_odds(fix.confidence) for fix in others))
    matches = [replace(match, map=match.map or name) for match in best.matches]
    matches += [
        replace(match, map=match.map or other)
        for other, fix in fixes.items()
        if other != name
        for match in fix.matches[:1]
    ]
    chosen = replace(best, confidence=confidence, matches=tuple(matches), map=name)
    if confidence >= min_confidence:
        return chosen
    reason = f"not in these maps: the best position has confidence {confidence:.2f}, below {min_confidence:.2f}"
    guess, radius_m = best.latlon, best.radius_m
    return replace(
        chosen, latlon=None, radius_m=None, heading_deg=None, reason=reason, guess=guess, guess_radius_m=radius_m
    )


def _joint_fix(group: dict[str, Localizer], found: dict[str, Candidates], top: int) -> dict[str, Fix]:
    """The fix of a query by what was found in maps with the same search vectors, as if they were one map.

    Their matches compete: distances and inliers mean the same in all. The calibration is that of the map with the most
    inliers, or the smallest distance if none was verified. The places of a 360° query are compared as of other maps.
    """
    fixes = {name: replace(group[name].fix(one), matches=one.matches[:top]) for name, one in found.items()}
    if len(found) == 1 or any(one.place is not None for one in found.values()):
        return fixes
    listed = [replace(match, map=name) for name, one in found.items() for match in group[name].fused(one)]
    matches = [match for match in listed if match.inliers is not None] or listed
    if not matches:
        return fixes
    strongest = min(matches, key=lambda match: (-(match.inliers or 0), match.distance)).map
    assert strongest is not None
    calibration, pose = group[strongest].calibration, found[strongest].pose
    fix = estimate(tuple(matches), calibration, pose=pose, min_confidence=0.0)
    if fix.latlon is None:
        return fixes
    at = fix.latlon
    name = min(matches, key=lambda match: float(distance_m(match.latlon, at))).map
    assert name is not None
    others = [replace(match, map=other) for other, one in found.items() if other != name for match in one.matches[:1]]
    return {name: replace(fix, matches=(*found[name].matches[:top], *others))}


def _apart(one: Fix, other: Fix) -> bool:
    assert one.latlon is not None
    assert other.latlon is not None
    return float(distance_m(one.latlon, other.latlon)) > PLACE_M


def _odds(confidence: float) -> float:
    return min(confidence, SUREST) / (1 - min(confidence, SUREST))
