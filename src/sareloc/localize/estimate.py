"""From matches to a fix, of one photo or of a walk. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sareloc.geo import ecef_from_wgs84
from sareloc.localize.calibration import Calibration
from sareloc.localize.fix import Fix, Match
from sareloc.localize.fusion import Place, fuse, weigh
from sareloc.localize.sequence import CHANCE, Belief, support

Floats = npt.NDArray[np.float64]

MIN_CONFIDENCE = 0.5
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

    A photo whose own fix has confidence c, with a share s of the weight, believes in each of its matches by
    `weight * min(1, c / s)` and by the rest in none of them; `support` makes the chances of all photos agree with steps
    of at most `reach_m` (`chance`: see there). Positions are fused by these chances, and the confidence is their sum
    within 25 m. A photo without matches has no position. A walk of one photo is `estimate`.
    """
    known = calibration or Calibration()
    beliefs = [_belief(matches, known) for matches in walk]
    fixes = []
    for matches, chances in zip(walk, support(beliefs, reach_m, chance=chance), strict=True):
        if not matches or not chances.sum() > 0:
            fixes.append(estimate(matches, known, min_confidence=min_confidence))
            continue
        place = fuse(*_columns(matches), chances)
        fixes.append(_fix(place, float(chances.sum()) * place.share, matches, known, min_confidence))
    return fixes


def _belief(matches: Sequence[Match], calibration: Calibration) -> Belief:
    if not matches:
        return Belief(np.zeros((0, 3)), np.zeros(0))
    latlon, distances = _columns(matches)
    weights = weigh(distances, calibration.temperature)
    place = fuse(latlon, distances, weights)
    return Belief(ecef_from_wgs84(latlon), weights * min(1.0, calibration.confidence(place) / place.share))


def _fix(
    place: Place, confidence: float, matches: Sequence[Match], calibration: Calibration, min_confidence: float
) -> Fix:
    ordered = tuple(sorted(matches, key=lambda match: match.distance))
    if confidence < min_confidence:
        reason = f"not in this map: the best guess has confidence {confidence:.2f}, asked for is {min_confidence:.2f}"
        return Fix(None, None, confidence, ordered, reason)
    return Fix(place.latlon, calibration.radius_m(place), confidence, ordered)


def _columns(matches: Sequence[Match]) -> tuple[Floats, Floats]:
    return np.array([match.latlon for match in matches]), np.array([match.distance for match in matches])
