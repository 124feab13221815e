"""From matches to a fix, of one photo or of a walk. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sareloc.geo import ecef_from_wgs84
from sareloc.localize.calibration import MIN_CONFIDENCE, Calibration
from sareloc.localize.fix import Fix, Match
from sareloc.localize.fusion import PLACE_M, Place, fuse, weigh
from sareloc.localize.sequence import CHANCE, Belief, support

Floats = npt.NDArray[np.float64]

OTHER_MATCHES, NO_MATCH = 0.15, 0.2
"""Where a fix is wrong, the chance that another of its matches is right, and that none is though the map shows it."""
NO_MATCHES = "there is no photo of the map to compare with in the area asked for"


def estimate(
    matches: Sequence[Match], calibration: Calibration | None = None, *, min_confidence: float = MIN_CONFIDENCE
) -> Fix:
    """The fix that matches of one photo give together.

    The position is the place where they agree (see `fuse`, weights by `weigh`), radius and confidence come from the
    calibration (without one, from cautious numbers that fit no map in particular). Below `min_confidence` there is no
    position: the photo is not in this map. No matches: no position, confidence 0. Their order does not matter.
    """
    known = calibration or Calibration()
    if not matches:
        return Fix(None, None, 0.0, (), NO_MATCHES)
    latlon, distances = _columns(matches)
    place = fuse(latlon, distances, weigh(distances, known.temperature))
    return _fix(place, known.confidence(place), matches, known, min_confidence)


def estimate_walk(
    walk: Sequence[Sequence[Match]],
    reach_m: float | npt.ArrayLike,
    calibration: Calibration | None = None,
    *,
    chance: float = CHANCE,
    min_confidence: float = MIN_CONFIDENCE,
) -> list[Fix]:
    """The fixes of a walk's photos, in order, each from the matches of all.

    A photo whose own fix has confidence c believes in that place by c, in its other matches together by 0.15 (1 - c),
    each by its weight, in the rest of the map by 0.2 (1 - c), and by what is left in a place outside. `support` makes
    of all photos' beliefs one walk with steps of at most `reach_m` (`chance`: see there), which may leave the map.
    Positions are fused by the chances it gives, and the confidence is their sum within 25 m. A photo without matches
    has no position. A walk of one photo is `estimate`.
    """
    known = calibration or Calibration()
    supported = support([believe(matches, known) for matches in walk], reach_m, chance=chance)
    fixes = []
    for matches, chances in zip(walk, supported, strict=True):
        if not matches or len(walk) == 1:
            fixes.append(estimate(matches, known, min_confidence=min_confidence))
            continue
        place = fuse(*_columns(matches), chances)
        fixes.append(_fix(place, float(chances.sum()) * place.share, matches, known, min_confidence))
    return fixes


def believe(matches: Sequence[Match], calibration: Calibration) -> Belief:
    """What a photo of a walk says by its own matches, see `estimate_walk`."""
    if not matches:
        return Belief(np.zeros((0, 3)), np.zeros(0), 0.0)
    latlon, distances = _columns(matches)
    weights = weigh(distances, calibration.temperature)
    place = fuse(latlon, distances, weights)
    points = ecef_from_wgs84(latlon)
    inside = np.linalg.norm(points - ecef_from_wgs84(place.latlon), axis=1) <= PLACE_M
    sure = calibration.confidence(place)
    chances = np.where(inside, sure * weights, OTHER_MATCHES * (1 - sure) * weights)
    chances[inside] /= weights[inside].sum()
    chances[~inside] /= weights[~inside].sum() or 1.0
    return Belief(points, chances, NO_MATCH * (1 - sure))


def _fix(
    place: Place, confidence: float, matches: Sequence[Match], calibration: Calibration, min_confidence: float
) -> Fix:
    ordered = tuple(sorted(matches, key=lambda match: match.distance))
    if confidence < min_confidence:
        reason = f"not in this map: the best guess has confidence {confidence:.2f}, asked for is {min_confidence:.2f}"
        return Fix(None, None, confidence, ordered, reason, place.latlon, calibration.radius_m(place))
    return Fix(place.latlon, calibration.radius_m(place), confidence, ordered)


def _columns(matches: Sequence[Match]) -> tuple[Floats, Floats]:
    return np.array([match.latlon for match in matches]), np.array([match.distance for match in matches])
