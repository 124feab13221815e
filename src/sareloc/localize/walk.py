"""The fixes of a walk: photos taken one after another, whose places are estimated together.

Two forward-backward passes over the photos: one over the places where each may have been taken, one over "inside the
map" and "outside". Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import ecef_from_wgs84
from sareloc.localize.estimate import (
    MIN_CONFIDENCE,
    PLACE_M,
    Calibration,
    Fix,
    Match,
    Pose,
    columns,
    estimate,
    fix_at,
    fuse,
    kernel,
    weigh,
)
from sareloc.maps import PlaceMap

if TYPE_CHECKING:
    from sareloc.photos import ClockOffset, Track

SWITCH = 0.1
"""The probability, at each step, that a walk leaves the map, or comes back to it."""
TRUST = 0.4
"""Photos of one walk look alike, and so do their errors: each counts as this part of independent evidence."""
JUMP = 0.02
"""The probability that a walk continues anywhere in the map: recordings have cuts."""
UNSEEN = 1.0
"""The number of places without matches that are assumed to be within reach of each place."""
OTHER_MATCHES, NO_MATCH = 0.15, 0.2
"""If a fix is wrong: the probability that another of its matches is right, and that none is though the map shows it."""
CHANCE = 0.05
SAMPLE = 256
LEAST = 1e-9  # no probability is 0: two photos may be sure and disagree


def estimate_walk(
    walk: Sequence[Sequence[Match]],
    reach_m: float | npt.ArrayLike,
    calibration: Calibration | None = None,
    *,
    poses: Sequence[Pose | None] | None = None,
    chance: float = CHANCE,
    min_confidence: float = MIN_CONFIDENCE,
) -> list[Fix]:
    """The fixes of a walk's photos, in order, each from the matches of all photos.

    A photo whose own fix has confidence c gives that place the probability c, its other matches together 0.15 (1 - c),
    divided by their weights, the rest of the map 0.2 (1 - c), and what is left to a place outside of the map. `support`
    combines these of all photos into one walk, which may leave the map. Positions are fused with the probabilities that
    it gives as weights, and the confidence is their sum within 25 m. A photo without matches has no position. A walk of
    one photo is `estimate`.

    Args:
        walk: the matches of each of the T photos.
        reach_m: the largest distance of each of the T - 1 steps, or one for all.
        calibration: as for `estimate`.
        poses: the camera pose of each photo, if known: if it is in that place, position, radius and heading are its
            own.
        chance: see `support`.
        min_confidence: as for `estimate`.
    """
    known = calibration or Calibration()
    supported = support([own_belief(matches, known) for matches in walk], reach_m, chance=chance)
    fixes = []
    for matches, chances, pose in zip(walk, supported, poses or [None] * len(walk), strict=True):
        if not matches or len(walk) == 1:
            fixes.append(estimate(matches, known, pose=pose, min_confidence=min_confidence))
            continue
        latlon, distances, evidence = columns(matches)
        place = fuse(latlon, distances, chances, evidence)
        ordered = [matches[row] for row in np.lexsort((distances, -weigh(distances, known.temperature, evidence)))]
        fixes.append(fix_at(place, float(chances.sum()) * place.share, ordered, known, min_confidence, pose))
    return fixes


def walk_clock_offset(fixes: Sequence[Fix | PhotoError], times: Sequence[float | None], track: Track) -> ClockOffset:
    """The offset of a camera's clock against a track, by where a map says that its photos were taken.

    Args:
        fixes: one of each photo; those without a position do not count.
        times: of each photo by the camera's clock, in seconds since 1970 (frames of a video: see `read_time`);
            photos without a time do not count.
        track: the GPS track.

    Raises:
        PositionError: see `estimate_offset`.
    """
    from sareloc.photos import estimate_offset

    placed = [
        (time, fix.latlon)
        for fix, time in zip(fixes, times, strict=True)
        if isinstance(fix, Fix) and fix.latlon is not None and time is not None
    ]
    latlon = np.array([latlon for _, latlon in placed]).reshape(-1, 2)
    return estimate_offset([time for time, _ in placed], latlon, track)


def chance_of_place(place_map: PlaceMap) -> float:
    """The probability that two photos of the map, drawn at random, show the same place; estimated on 256 photos."""
    _, latlon = place_map.sample(SAMPLE, np.random.default_rng(0))
    return float(place_map.count_around(ecef_from_wgs84(latlon), PLACE_M).mean()) / len(place_map)


@dataclass(frozen=True, eq=False)
class Belief:
    """What one photo says without the others. Probabilities; the rest to 1 is "taken outside of the map"."""

    points_m: Floats
    """(K, 3) the places where it may have been taken, earth-centred metres; K may be 0."""
    chances: Floats
    """(K,) of each of them."""
    elsewhere: float
    """In the map, but at none of them."""

    @property
    def outside(self) -> float:
        """The probability that it was not taken in the map."""
        return max(0.0, 1.0 - float(self.chances.sum()) - self.elsewhere)


def own_belief(matches: Sequence[Match], calibration: Calibration) -> Belief:
    """What a photo of a walk says by its own matches, see `estimate_walk`."""
    if not matches:
        return Belief(np.zeros((0, 3)), np.zeros(0), 0.0)
    latlon, distances, evidence = columns(matches)
    weights = weigh(distances, calibration.temperature, evidence)
    place = fuse(latlon, distances, weights, evidence)
    points = ecef_from_wgs84(latlon)
    inside = np.linalg.norm(points - ecef_from_wgs84(place.latlon), axis=1) <= PLACE_M
    confidence = calibration.confidence(place)
    chances = np.where(inside, confidence * weights, OTHER_MATCHES * (1 - confidence) * weights)
    chances[inside] /= weights[inside].sum()
    chances[~inside] /= weights[~inside].sum() or 1.0
    return Belief(points, chances, NO_MATCH * (1 - confidence))


def support(beliefs: Sequence[Belief], reach_m: float | npt.ArrayLike, *, chance: float = CHANCE) -> list[Floats]:
    """The probability (K,) of each place of each photo's belief, given all photos of the walk.

    `reach_m`: how far apart two neighbouring photos can have been taken, one number or one for each of the T - 1 steps
    (a speed in m/s times the seconds between them). `chance`: the probability that two photos of the map, drawn
    at random, show the same place: the lower, the more it means that photos agree.

    Two questions are answered separately, both by the forward-backward algorithm. Where, if in the map: a hidden
    Markov chain over places (see `_Step`). Whether in the map: a chain of two states, inside and outside (see
    `_inside`). Places out of reach of one another count against both (see `_in_reach`, `_contradicted`): photos that
    agree on a place that cannot be reached from where the walk surely was do not confirm one another. The result is the
    product of both answers. Without photos: [].
    """
    if not 0 < chance <= 1:
        raise ArgumentError(f"chance must be in 0 < chance <= 1: found {chance}")
    given, count = np.asarray(reach_m, dtype=np.float64), max(len(beliefs) - 1, 0)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count) or not (given >= 0).all():
        raise ArgumentError(
            f"a walk of {len(beliefs)} photos has {count} steps, each of 0 m or more: found a reach of {given.tolist()}"
        )
    steps = [_Step(belief, chance) for belief in beliefs]
    reach = np.broadcast_to(given, count).tolist()
    ahead = _forward(steps, reach)
    back = _forward(steps[::-1], reach[::-1])[::-1]
    where = []
    for step, before, after in zip(steps, ahead, back, strict=True):
        together = before * after / step.prior * step.likelihood
        where.append(together / together.sum())
    inside = _inside(beliefs, _in_reach(steps, where, reach))
    odds = inside / (1 - inside) * (1 - (1 - JUMP) * _contradicted(steps, where, inside, reach))
    return [one / (1 + one) * places[:-1] for one, places in zip(odds, where, strict=True)]


class _Step:
    """The states of one photo in the chain: its places, and last "elsewhere in the map"."""

    def __init__(self, own: Belief, chance: float) -> None:
        self.points_m = own.points_m
        self.chance = chance
        same = kernel(own.points_m, own.points_m)
        # points near each other are one place: together they have the prior of a single point
        each = chance / same.sum(axis=1)
        self.prior = np.append(each, max(1 - each.sum(), chance))
        self.prior /= self.prior.sum()
        # by Bayes' rule: what the photo says, divided by the prior
        said = np.append(own.elsewhere + same @ own.chances / chance, own.elsewhere)
        self.likelihood = np.maximum(said, LEAST) if len(own.points_m) else np.ones(1)

    def reaches(self, other: _Step, reach_m: float) -> Floats:
        """1 for places (N, M) of this photo and another within reach of each other, beyond it falling to 0."""
        apart = np.linalg.norm(self.points_m[:, None] - other.points_m[None], axis=2)
        return np.asarray(np.exp(-(np.maximum(0.0, apart - reach_m) ** 2) / (2 * PLACE_M**2)))

    def onto(self, other: _Step, reach_m: float) -> Floats:
        """The probability (N + 1, M + 1) of each state of the next photo, for each state of this one.

        From a place to those within reach, each as probable as the other, beyond reach less by
        `exp(-(r - reach)^2 / (2 * 25 m^2))`; or to one without matches; or, by `JUMP`, anywhere.
        """
        near = self.reaches(other, reach_m) * other.prior[:-1]
        steps = np.column_stack([near, np.full(len(near), UNSEEN * self.chance)])
        steps /= steps.sum(axis=1, keepdims=True)
        return np.vstack([(1 - JUMP) * steps + JUMP * other.prior, other.prior])


def _forward(steps: Sequence[_Step], reach_m: Sequence[float]) -> list[Floats]:
    """For each photo the probability of its states given the photos before it (the forward pass)."""
    passed = [step.prior for step in steps[:1]]
    for before, after, reach in zip(steps[:-1], steps[1:], reach_m, strict=True):
        message = passed[-1] * before.likelihood
        passed.append(message / message.sum() @ before.onto(after, reach))
    return passed


def _in_reach(steps: Sequence[_Step], where: Sequence[Floats], reach_m: Sequence[float]) -> Floats:
    """The probability (T - 1,) that each step leads no farther than it can, if both photos were taken in the map.

    A photo at none of its places does not contradict the others.
    """
    found = []
    for row, reach in enumerate(reach_m):
        here, there = where[row][:-1], where[row + 1][:-1]
        near = float(here @ steps[row].reaches(steps[row + 1], reach) @ there)
        found.append(near + 1 - float(here.sum() * there.sum()))
    return np.clip(found, 0.0, 1.0)


def _inside(beliefs: Sequence[Belief], in_reach: Floats) -> Floats:
    """The probability (T,) that each photo was taken in the map, by all photos of the walk.

    A walk inside stays inside by `1 - SWITCH`, times the evidence for the step: `in_reach`, and `JUMP` if it is too
    long, since then one of the two places is probably wrong. What other photos say counts to the power `TRUST`. The
    next photo may be outside whatever they say: the support of neighbours is bounded, and the confidence falls from the
    first photo outside of the map on.
    """
    out = np.clip([belief.outside if len(belief.points_m) else 0.5 for belief in beliefs], LEAST, 1 - LEAST)
    own = np.stack([1 - out, out], axis=1)  # (T, 2)
    stays = (1 - SWITCH) * (in_reach + JUMP * (1 - in_reach))
    steps = [np.array([[stay, SWITCH], [SWITCH, 1 - SWITCH]]) for stay in stays]

    def forward(said: Floats, between: Sequence[Floats]) -> Floats:
        passed = [np.array([0.5, 0.5]) for _ in said[:1]]
        for one, step in zip(said[:-1], between, strict=True):
            message = (passed[-1] * one) @ step
            passed.append(message / message.sum())
        return np.array(passed).reshape(-1, 2)

    said = own**TRUST
    together = forward(said, steps) * forward(said[::-1], steps[::-1])[::-1] * own
    return np.asarray(together[:, 0] / together.sum(axis=1))


def _contradicted(steps: Sequence[_Step], where: Sequence[Floats], inside: Floats, reach_m: Sequence[float]) -> Floats:
    """The largest probability (T,) with which another photo was taken where this one's place is out of reach.

    Of each photo its most probable place counts, by its probability. Only the number of steps from one photo to the
    other matters, not whether the photos between were taken in the map.
    """
    at, sure = np.zeros((len(steps), 3)), np.zeros(len(steps))
    for row, (step, places) in enumerate(zip(steps, where, strict=True)):
        if len(step.points_m):
            at[row] = step.points_m[int(places[:-1].argmax())]
            together = np.linalg.norm(step.points_m - at[row], axis=1) <= PLACE_M
            sure[row] = inside[row] * places[:-1][together].sum()
    travelled = np.concatenate([[0.0], np.cumsum(reach_m)])
    found = np.zeros(len(steps))
    for row in np.flatnonzero(sure).tolist():
        beyond = np.linalg.norm(at - at[row], axis=1) - np.abs(travelled[: len(steps)] - travelled[row])
        found[row] = (sure * (1 - np.exp(-(np.maximum(0.0, beyond) ** 2) / (2 * PLACE_M**2)))).max()
    return found
