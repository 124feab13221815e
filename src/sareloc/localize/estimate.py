"""From the matches of a photo to its fix: where the matches agree, how probable that place is, and its radius.

Pure functions and records: `Match` and `Fix`; `Place`, what a list of matches says; `Calibration`, the parameters of
confidence and radius (`sareloc.localize.calibration` fits them).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Bools, Floats
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import ecef_from_wgs84, wgs84_from_ecef
from sareloc.geometry import Evidence, match_scores
from sareloc.localize.place_names import place_name

CANDIDATES = 20
"""Default: how many matches are fused into a fix if they are not verified."""
MIN_CONFIDENCE = 0.5
"""Default: a fix of a lower confidence has no position."""
PLACE_M = 25.0
"""Photos nearer to each other show the same place: the field's radius of a correct answer."""
KERNEL_M = PLACE_M / 2
TEMPERATURE = 0.05
MAX_STEPS, CONVERGED_M = 100, 1e-4  # of the mean shift
PRIOR = (0.0, -3.0, 16.0, 3.0)
"""Weights of the confidence that whitened descriptors of street photos gave, in a drawn and in a real city, rounded."""
VERIFIED_PRIOR = (-2.8, -1.3, 0.25, 2.2, 0.75, -1.0, 1.05, -0.1, 0.15)
"""Weights of the confidence of verified matches, see `features`: fitted on training towns, rounded."""
SURE_INLIERS = 15
"""Photos with so many inliers or more confirm one another."""
GRAIN_M = 5.0
FORMAT = 1
MAP_ORIGIN = "map"
"""Of a calibration that was fitted to the map's own photos, without verification."""
AGREEING = 0.8
"""Least length of the mean of headings as unit vectors: 1 if all are equal."""
NO_MATCHES = "there is no photo of the map to compare with in the area asked for"


JSON_ORDER = (
    "latlon",
    "radius_m",
    "confidence",
    "heading_deg",
    "place",
    "map",
    "matches",
    "reason",
    "guess",
    "guess_radius_m",
)

LatLon = tuple[float, float]
"""Latitude, longitude in degrees, WGS84."""


@dataclass(frozen=True)
class Match:
    """A photo of the map that was retrieved for the query."""

    id: int
    """Of the photo in the map; never reused."""
    photo: str
    """Its file, as the map names it."""
    latlon: LatLon
    distance: float
    """Between the search vectors, 0 to 2."""
    inliers: int | None = None
    """Local features that match and agree on one epipolar geometry; None: the match was not verified."""
    planar_inliers: int | None = None
    """Local features that match and agree on one homography; None: the match was not verified."""
    heading_deg: float | None = None
    """The query's heading by this photo's own and the relative pose of the two; None: not estimated."""
    map: str | None = None
    """The map of the photo, if several were asked."""


@dataclass(frozen=True)
class Pose:
    """Where a query was taken and where it looks, by its relative poses to verified matches."""

    latlon: LatLon
    radius_m: float
    """The distance that contains the truth with a probability of 0.9, by the covariance of the pose."""
    heading_deg: float
    """The direction of the optical axis, clockwise from north, 0 to 360."""


@dataclass(frozen=True)
class Candidates:
    """What a search found for a query."""

    matches: tuple[Match, ...]
    """The most probable first."""
    pose: Pose | None = None
    """By verified matches of known heading at two or more positions; None: not estimated."""
    place: Place | None = None
    """Of a 360° query: where its views agree; None: `fuse` finds it."""
    confidence: float = 0.0
    """Of this place."""

    def best(self, count: int) -> Candidates:
        """The same with the first `count` matches."""
        return replace(self, matches=self.matches[:count])


@dataclass(frozen=True)
class Fix:
    """Where a photo was taken, or that it is not in the map."""

    latlon: LatLon | None
    """None: the photo is not in this map, judging by its confidence."""
    radius_m: float | None
    """Of 10 positions of photos in the map, right or wrong, 9 are within this distance of the truth. None without one.

    Of positions with a confidence of 0.5 or more; photos of places that the map does not show are not counted."""
    confidence: float
    """The probability that the position, or `guess` where none is given, is within 25 m of the truth."""
    matches: tuple[Match, ...]
    """The most probable first: by distance, or by distance and inliers if they were verified."""
    reason: str | None = None
    """Why there is no position."""
    guess: LatLon | None = None
    """Without a position but with matches: the position that a lower `min_confidence` would have given."""
    guess_radius_m: float | None = None
    """The radius of `guess`."""
    heading_deg: float | None = None
    """The direction of the optical axis, clockwise from north, 0 to 360; None: unknown, or the matches disagree."""
    map: str | None = None
    """The map that the position came from, if several were asked."""

    @property
    def found(self) -> bool:
        """Whether there is a position."""
        return self.latlon is not None

    def to_json(self, photo: str) -> dict[str, Any]:
        """A JSON object: photo, latlon, radius_m, confidence, heading_deg, place, matches; if latlon is null also
        reason, and guess and guess_radius_m if there are matches. place: see `place_name`, of latlon, else of guess.
        map, also of each match: only if several maps were asked."""
        stated = asdict(self) | {"place": place_name(self.latlon or self.guess)}
        if self.map is None:
            for match in stated["matches"]:
                del match["map"]
        answer: dict[str, Any] = {"photo": photo, **{name: stated[name] for name in JSON_ORDER}}
        absent = {name for name in ("reason", "guess", "guess_radius_m", "map") if answer[name] is None}
        return {name: value for name, value in answer.items() if name not in absent}


@dataclass(frozen=True)
class Calibration:
    """The parameters that turn a `Place` into a probability and a radius.

    The probability that the place is within 25 m of the truth is `1 / (1 + exp(-weights . features))`; the radius is
    `radius_scale * sqrt(scatter^2 + (5 m)^2)`.
    """

    weights: tuple[float, ...] = PRIOR
    """(4,) for matches that were not verified."""
    verified_weights: tuple[float, ...] = VERIFIED_PRIOR
    """(9,) for verified matches."""
    radius_scale: float = 4.0
    temperature: float = TEMPERATURE
    """Temperature of the weights of matches, see `weigh`."""
    photos: int = 0
    """Number of photos with known positions that it was fitted on; 0: none, the values are the defaults."""
    origin: str = "nothing"
    """What it was fitted on: "photos" of the user's, the "map" itself, or "nothing"."""

    def confidence(self, place: Place) -> float:
        """The probability that the place is within 25 m of the truth."""
        weights = self.weights if place.support is None else self.verified_weights
        return float(sigmoid(features(place) @ np.array(weights)))

    def radius_m(self, place: Place) -> float:
        """The distance from the truth that 9 of 10 answers (confidence 0.5 or more) in the map do not exceed."""
        return self.radius_scale * math.hypot(place.scatter_m, GRAIN_M)

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> Calibration:
        """The calibration that `to_json` wrote; raises MapError if malformed, as a map may come from anywhere."""
        try:
            given: dict[str, Any] = json.loads(text)
            if given.pop("format") != FORMAT:
                raise ValueError("it was written by a newer version of sareloc")
            weights, verified_weights = (
                tuple(float(weight) for weight in given.pop(name, default))
                for name, default in (("weights", ()), ("verified_weights", VERIFIED_PRIOR))
            )
            if (len(weights), len(verified_weights)) != (len(PRIOR), len(VERIFIED_PRIOR)):
                raise ValueError("its number of weights differs")
            read = Calibration(weights, verified_weights, **given)
            if read.origin == MAP_ORIGIN:  # those of the version that stored it, not fitted to the map
                read = replace(read, verified_weights=VERIFIED_PRIOR)
            numbers = (*read.weights, *read.verified_weights, read.radius_scale, read.temperature)
            if not all(math.isfinite(number) for number in numbers):
                raise ValueError("a number is not finite")
            if read.radius_scale < 0 or read.temperature <= 0 or type(read.photos) is not int or read.photos < 0:
                raise ValueError("a number is out of range")
            if not isinstance(read.origin, str):
                raise TypeError("its origin is not a text")
            return read
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as wrong:
            raise MapError(
                f'the calibration in this map cannot be read ({wrong}): make it again with "sareloc map calibrate"'
            ) from wrong


def features(place: Place) -> Floats:
    """What the confidence depends on: (4,), or (9,) if the matches were verified.

    1; the first distance; the ratio margin over any other place; agreement. With d the smallest descriptor distance in
    the place and d' the smallest elsewhere, the ratio margin is `1 - d / d'` (0 if both are equal, at least -1);
    agreement is the share of weight in the place. If verified also, each as a logarithm: the most inliers of a photo in
    the place, and of one elsewhere; the same of a homography; the number of photos in the place with 15 inliers.
    """
    margin = 1 - place.nearest / place.other if place.other > 0 else 0.0 if place.nearest == 0 else -1.0
    return np.array([1.0, place.nearest, max(margin, -1.0), place.share, *(place.support or ())])


def sigmoid(x: npt.ArrayLike) -> Floats:
    """`1 / (1 + exp(-x))` without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -np.asarray(x, dtype=np.float64))))


def estimate(
    matches: Sequence[Match],
    calibration: Calibration | None = None,
    *,
    pose: Pose | None = None,
    min_confidence: float = MIN_CONFIDENCE,
) -> Fix:
    """The fix that the matches of one photo give together.

    The position is the place where they agree (see `fuse`, weights by `weigh`). The order of the matches does not
    matter.

    Args:
        matches: the matches of one photo; without matches there is no position, and the confidence is 0.
        calibration: gives radius and confidence; default: cautious values that were fitted to no map.
        pose: the camera pose, if known; if it is in that place, position, radius and heading are those of the pose.
        min_confidence: below it there is no position: the photo is not in this map.
    """
    known = calibration or Calibration()
    if not matches:
        return Fix(None, None, 0.0, (), NO_MATCHES)
    latlon, distances, evidence = columns(matches)
    weights = weigh(distances, known.temperature, evidence)
    place = fuse(latlon, distances, weights, evidence)
    ordered = [matches[row] for row in np.lexsort((distances, -weights))]
    return fix_at(place, known.confidence(place), ordered, known, min_confidence, pose)


def check_confidence(min_confidence: float) -> None:
    """Raise ArgumentError if a threshold is no probability."""
    if not 0 <= min_confidence <= 1:
        raise ArgumentError(f"min_confidence is a probability, 0 to 1: found {min_confidence}")


def fix_at(
    place: Place,
    confidence: float,
    matches: Sequence[Match],
    calibration: Calibration,
    min_confidence: float,
    pose: Pose | None = None,
) -> Fix:
    """The fix at a place, or, below `min_confidence`, one without a position whose `guess` is that place.

    If a pose is within 25 m of the place, position, radius and heading are those of the pose.
    """
    if pose is not None and np.linalg.norm(np.diff(ecef_from_wgs84([pose.latlon, place.latlon]), axis=0)) > PLACE_M:
        pose = None
    latlon = place.latlon if pose is None else pose.latlon
    radius_m = calibration.radius_m(place) if pose is None else pose.radius_m
    if confidence < min_confidence:
        reason = f"not in this map: the best position has confidence {confidence:.2f}, below {min_confidence:.2f}"
        return Fix(None, None, confidence, tuple(matches), reason, latlon, radius_m)
    heading = agreed_heading(matches, place) if pose is None else pose.heading_deg
    return Fix(latlon, radius_m, confidence, tuple(matches), heading_deg=heading)


def agreed_heading(matches: Sequence[Match], place: Place) -> float | None:
    """The query's heading in degrees by the matches in a place: their circular mean, weighted by inliers.

    None if no match in the place has one, or if they disagree: the mean vector is shorter than 0.8.
    """
    here = ecef_from_wgs84(place.latlon)
    headings = [
        (math.radians(match.heading_deg), match.inliers)
        for match in matches
        if match.heading_deg is not None
        and match.inliers
        and float(np.linalg.norm(ecef_from_wgs84(match.latlon) - here)) <= PLACE_M
    ]
    if not headings:
        return None
    angles, weights = np.array(headings).T
    mean = weights @ np.exp(1j * angles) / weights.sum()
    return math.degrees(np.angle(mean)) % 360 if abs(mean) >= AGREEING else None


def columns(matches: Sequence[Match]) -> tuple[Floats, Floats, Evidence | None]:
    """Positions (K, 2) in degrees, descriptor distances (K,) and evidence of matches; None if none was verified."""
    inliers, planar = (
        np.array([np.nan if count is None else count for count in counts], dtype=np.float64)
        for counts in ([match.inliers for match in matches], [match.planar_inliers for match in matches])
    )
    evidence = None if np.isnan(inliers).all() else Evidence(inliers, planar)
    return np.array([match.latlon for match in matches]), np.array([match.distance for match in matches]), evidence


@dataclass(frozen=True)
class Place:
    """What a list of matches says together."""

    latlon: LatLon
    scatter_m: float
    """Root mean square distance of the matches in this place from `latlon`, weighted."""
    share: float
    """The part of all weight that is within `PLACE_M` of `latlon`, 0 to 1."""
    nearest: float
    """The smallest descriptor distance in this place."""
    other: float
    """The smallest one elsewhere; without matches elsewhere the largest of the list: the others are farther still."""
    support: tuple[float, ...] | None = None
    """(5,) what verification adds to `features`; None: the matches were not verified."""


def weigh(distances: npt.ArrayLike, temperature: float = TEMPERATURE, evidence: Evidence | None = None) -> Floats:
    """Weights (K,) of matches: the softmax of their scores (see `match_scores`).

    Without evidence `softmax(-d^2 / temperature)`. `exp(-d^2 / t)` is SARE's Gaussian affinity: the share of a match is
    the probability, in the loss's own model, that it is the one that attracts the query.
    """
    affinity = np.exp(match_scores(distances, temperature, evidence))
    return np.asarray(affinity / affinity.sum()) if len(affinity) else affinity


def fuse(
    latlon: npt.ArrayLike,
    distances: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    evidence: Evidence | None = None,
) -> Place:
    """The place where matches at `latlon` (K, 2) degrees with descriptor `distances` (K,) agree.

    With weights w_i (default: those of `weigh`), positions p_i and the kernel `g(r) = exp(-r^2 / (2 * 12.5 m^2))`, the
    density is `f(x) = sum_i w_i g(|x - p_i|)`. The place is the mode of f that is reached uphill from the match where f
    is highest: `x <- sum_i w_i g_i p_i / sum_i w_i g_i` until it converges (mean shift). A match hundreds of metres
    away has no part in that sum and does not move the place, whereas neighbours add up. Metres are earth-centred: the
    antimeridian and the poles need no special case. `evidence`: of the matches, for the confidence of the place.

    Two equally high places: the one with the smallest descriptor distance, then the southernmost, then the westernmost.
    The order of the matches does not matter. One match: its position, scatter 0, share 1. Raises ArgumentError if there
    are none.
    """
    degrees = np.asarray(latlon, dtype=np.float64).reshape(-1, 2)
    alike = np.asarray(distances, dtype=np.float64).reshape(-1)
    if not len(alike) or len(alike) != len(degrees):
        raise ArgumentError(
            f"a place is fused from one match or more: found {len(degrees)} positions, {len(alike)} distances"
        )
    order = np.lexsort((degrees[:, 1], degrees[:, 0], alike))  # so that rounding does not depend on the order given
    degrees, alike = degrees[order], alike[order]
    shares = weigh(alike) if weights is None else np.asarray(weights, dtype=np.float64)[order]
    shares = shares / shares.sum()
    points = ecef_from_wgs84(degrees)
    density = kernel(points, points) @ shares
    mode = _mean_shift(points, shares, points[int(density.argmax())])
    away = np.linalg.norm(points - mode, axis=1)
    inside = away <= PLACE_M
    mass = min(1.0, float(shares[inside].sum()))
    latitude, longitude = wgs84_from_ecef(mode)[0]
    return Place(
        (float(latitude), float(longitude)),
        float(np.sqrt(shares[inside] @ away[inside] ** 2 / mass)) if mass else 0.0,
        mass,
        float(alike[inside].min(initial=np.inf)),
        float(alike[~inside].min(initial=np.inf)) if not inside.all() else float(alike.max()),
        None if evidence is None else _support(evidence.take(order), inside),
    )


def _support(evidence: Evidence, inside: Bools) -> tuple[float, ...]:
    """See `features`; `inside` (K,): which matches are in the place."""
    best = [float(counts[rows].max(initial=0.0)) for counts in evidence.beyond_chance for rows in (inside, ~inside)]
    return *best, math.log1p(int((evidence.inliers[inside] >= SURE_INLIERS).sum()))


def kernel(a: Floats, b: Floats) -> Floats:
    """How far points a (N, 3) and b (M, 3), in metres, are one place: `exp(-r^2 / (2 * 12.5 m^2))`, (N, M)."""
    squared = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-squared / (2 * KERNEL_M**2)))


def _mean_shift(points: Floats, weights: Floats, start: Floats) -> Floats:
    mode = start
    for _ in range(MAX_STEPS):
        pull = weights * kernel(points, mode[None])[:, 0]
        moved = pull @ points / pull.sum()
        if np.linalg.norm(moved - mode) < CONVERGED_M:
            return np.asarray(moved)
        mode = moved
    return mode
