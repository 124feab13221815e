"""The views of a 360° query answer together: their matches and poses become those of one photo.

A view's heading is that of the middle of the panorama plus its yaw. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Ints
from sareloc.geo import enu_from_wgs84, wgs84_from_enu
from sareloc.localize.estimate import Candidates, Match, Pose, columns, weigh

AGREEING_DEG = 15.0
"""Views whose headings differ by more do not agree on a pose."""


def depths(distances: npt.NDArray[np.floating], most: int) -> Ints:
    """How many first matches of each view (V,) are verified: the `most` smallest of all descriptor distances (V, K).

    The distances of a view ascend. Equal ones at the limit are all verified.
    """
    if distances.size <= most:
        return np.full(len(distances), distances.shape[1] if distances.ndim == 2 else 0)
    limit = np.partition(distances, most - 1, axis=None)[most - 1] if most else -np.inf
    return np.asarray((distances <= limit).sum(axis=1))


def combine_views(views: Sequence[Candidates], yaws_deg: Sequence[float], temperature: float) -> Candidates:
    """What the views of one 360° query found, with headings of the middle of the panorama.

    A photo of the map that several views found is listed once, as the view with most inliers has it, then the one with
    the smallest distance. Matches are sorted by their weights (see `weigh`).
    """
    best: dict[int, Match] = {}
    for found, yaw in zip(views, yaws_deg, strict=True):
        for match in found.matches:
            known = best.get(match.id)
            if known is None or _rank(match) > _rank(known):
                heading = None if match.heading_deg is None else (match.heading_deg - yaw) % 360
                best[match.id] = replace(match, heading_deg=heading)
    matches = list(best.values())
    if not matches:
        return Candidates(())
    _, distances, evidence = columns(matches)
    order = np.lexsort((distances, -weigh(distances, temperature, evidence)))
    poses = [
        replace(found.pose, heading_deg=(found.pose.heading_deg - yaw) % 360)
        for found, yaw in zip(views, yaws_deg, strict=True)
        if found.pose is not None
    ]
    return Candidates(tuple(matches[row] for row in order), combine_poses(poses))


def combine_poses(poses: Sequence[Pose]) -> Pose | None:
    """The mean of the poses that agree with the most certain one, weighted by the inverse squares of their radii.

    They agree if their headings differ by 15 degrees at most and their positions by the sum of their radii. The radius
    is that of the most certain one: the views share the errors of the map's photos. None if there are none.
    """
    if not poses:
        return None
    first = min(poses, key=lambda pose: pose.radius_m)
    metres = enu_from_wgs84([pose.latlon for pose in poses], first.latlon)
    radii = np.array([pose.radius_m for pose in poses])
    turns = np.array([(pose.heading_deg - first.heading_deg + 180) % 360 - 180 for pose in poses])
    agree = (np.linalg.norm(metres, axis=1) <= radii + first.radius_m) & (np.abs(turns) <= AGREEING_DEG)
    weights = agree / np.maximum(radii, 1e-3) ** 2
    weights /= weights.sum()
    (latitude, longitude), *_ = wgs84_from_enu([weights @ metres], first.latlon).tolist()
    return Pose((latitude, longitude), first.radius_m, float(first.heading_deg + weights @ turns) % 360)


def _rank(match: Match) -> tuple[int, float]:
    return -1 if match.inliers is None else match.inliers, -match.distance
