"""From a list of matches to one place: those that stand together count together. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError
from sareloc.geo import ecef_from_wgs84, wgs84_from_ecef
from sareloc.localize.fix import LatLon

PLACE_M = 25.0
"""Photos nearer to each other show the same place: the field's radius of a right answer."""
KERNEL_M = PLACE_M / 2
TEMPERATURE = 0.05
MOST_STEPS, STILL_M = 100, 1e-4


@dataclass(frozen=True)
class Place:
    """What a list of matches says together."""

    latlon: LatLon
    scatter_m: float
    """How far from `latlon` the matches of this place stand, root mean square, weighted."""
    share: float
    """The part of all weight that stands within `PLACE_M` of `latlon`, 0 to 1."""
    nearest: float
    """The smallest descriptor distance in this place."""
    other: float
    """The smallest one elsewhere; where the list knows no other place, its largest: the others are farther still."""


def weigh(distances: npt.ArrayLike, temperature: float = TEMPERATURE) -> Floats:
    """Weights (K,) of matches from their descriptor distances: `softmax(-d^2 / temperature)`.

    `exp(-d^2 / t)` is SARE's Gaussian affinity: the share of a match is the probability, in the loss's own model, that
    it is the one that attracts the query.
    """
    squared = np.asarray(distances, dtype=np.float64) ** 2
    affinity = np.exp(-(squared - squared.min(initial=np.inf)) / temperature)
    return np.asarray(affinity / affinity.sum()) if len(affinity) else affinity


def fuse(latlon: npt.ArrayLike, distances: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Place:
    """The place where matches at `latlon` (K, 2) degrees with descriptor `distances` (K,) agree.

    With weights w_i (by default those of `weigh`), positions p_i and the kernel `g(r) = exp(-r^2 / (2 * 12.5 m^2))`,
    the density is `f(x) = sum_i w_i g(|x - p_i|)`. The place is the mode of f that is reached uphill from the match
    where f is highest: `x <- sum_i w_i g_i p_i / sum_i w_i g_i` until it rests (mean shift). A match hundreds of
    metres away has no part in that sum, so that it does not drag the place, whereas neighbours add up. Metres are
    earth-centred: the antimeridian and the poles are places like any other.

    Two equally high places: the one whose match is most alike, then the southernmost, then the westernmost. The order
    of the matches does not matter. One match: its position, scatter 0, share 1. None: ArgumentError.
    """
    degrees = np.asarray(latlon, dtype=np.float64).reshape(-1, 2)
    alike = np.asarray(distances, dtype=np.float64).reshape(-1)
    if not len(alike) or len(alike) != len(degrees):
        raise ArgumentError(
            f"a place is fused from one match or more: found {len(degrees)} positions, {len(alike)} distances"
        )
    order = np.lexsort(
        (degrees[:, 1], degrees[:, 0], alike)
    )  # so that not even the rounding depends on the order given
    degrees, alike = degrees[order], alike[order]
    heavy = weigh(alike) if weights is None else np.asarray(weights, dtype=np.float64)[order]
    heavy = heavy / heavy.sum()
    points = ecef_from_wgs84(degrees)
    density = kernel(points, points) @ heavy
    centre = _climb(points, heavy, points[int(density.argmax())])
    away = np.linalg.norm(points - centre, axis=1)
    inside = away <= PLACE_M
    mass = min(1.0, float(heavy[inside].sum()))
    latitude, longitude = wgs84_from_ecef(centre)[0]
    return Place(
        (float(latitude), float(longitude)),
        float(np.sqrt(heavy[inside] @ away[inside] ** 2 / mass)) if mass else 0.0,
        mass,
        float(alike[inside].min(initial=np.inf)),
        float(alike[~inside].min(initial=np.inf)) if not inside.all() else float(alike.max()),
    )


def kernel(a: Floats, b: Floats) -> Floats:
    """How much points a (N, 3) and b (M, 3), in metres, are one place: `exp(-r^2 / (2 * 12.5 m^2))`, (N, M)."""
    squared = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-squared / (2 * KERNEL_M**2)))


def _climb(points: Floats, weights: Floats, start: Floats) -> Floats:
    centre = start
    for _ in range(MOST_STEPS):
        pull = weights * kernel(points, centre[None])[:, 0]
        moved = pull @ points / pull.sum()
        if np.linalg.norm(moved - centre) < STILL_M:
            return np.asarray(moved)
        centre = moved
    return centre
