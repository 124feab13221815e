"""The views of a 360° query answer together: their matches and poses become those of one photo.

A view's heading is that of the middle of the panorama plus its yaw. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sareloc.arrays import Floats
from sareloc.geo import ecef_from_wgs84, enu_from_wgs84, wgs84_from_enu
from sareloc.localize.estimate import PLACE_M, Calibration, Candidates, Match, Pose, columns, fuse, kernel
from sareloc.localize.walk import LEAST, Belief, own_belief

TRUST = 0.2
"""The part of independent evidence that each further view counts for: less than a photo of a walk, since neighbouring
views overlap and are matched with the same photos. Chosen on a drawn town, by 360° photos of it and of another one."""
AGREEING_DEG = 15.0
"""Views whose headings differ by more do not agree on a pose."""


def combine_views(
    views: Sequence[Candidates], yaws_deg: Sequence[float], calibration: Calibration, chance: float
) -> Candidates:
    """What the views of one 360° query found, with headings of the middle of the panorama.

    The place is where the matches of all views agree (see `fuse`), with their probabilities given all views as weights
    (see `joint_chances`), and the confidence is their sum there. chance: see `joint_chances`.

    A photo of the map that several views found is listed once, as the view with most inliers has it, then the one with
    the smallest distance. The most probable photos come first, then those of smaller distance.
    """
    matches = [
        replace(match, heading_deg=None if match.heading_deg is None else (match.heading_deg - yaw) % 360)
        for found, yaw in zip(views, yaws_deg, strict=True)
        for match in found.matches
    ]
    if not matches:
        return Candidates(())
    latlon, distances, evidence = columns(matches)
    weights = joint_chances([own_belief(found.matches, calibration) for found in views], chance)
    place = fuse(latlon, distances, weights, evidence)
    inside = np.linalg.norm(ecef_from_wgs84(latlon) - ecef_from_wgs84(place.latlon), axis=1) <= PLACE_M
    confidence = float(weights[inside].sum())
    best: dict[int, Match] = {}
    for row in np.lexsort((distances, -weights)):  # the order of the first mention stays
        match = matches[row]
        best[match.id] = max(best.get(match.id, match), match, key=_rank)
    poses = [
        replace(found.pose, heading_deg=(found.pose.heading_deg - yaw) % 360)
        for found, yaw in zip(views, yaws_deg, strict=True)
        if found.pose is not None
    ]
    return Candidates(tuple(best.values()), combine_poses(poses), place, min(confidence, 1.0))


def joint_chances(beliefs: Sequence[Belief], chance: float) -> Floats:
    """The probability (K,) of the places of all beliefs, in order, given that all V views were taken at one place.

    With a prior of 1/2 for "in the map", of which every place has the part `chance` (the probability that two photos of
    the map, drawn at random, show the same place), a view's belief b at a place p gives the likelihood
    `b(p) / prior(p)` by Bayes' rule. Its matches within some 12 m add up (see `kernel`); for a place that it does not
    name, "elsewhere in the map" counts. The views' errors are alike: V views count as `1 + 0.2 (V - 1)` independent
    ones. One view alone gives its own belief. A view without matches says nothing.
    """
    points = np.concatenate([belief.points_m for belief in beliefs])
    power = (1 + TRUST * (len(beliefs) - 1)) / len(beliefs)
    there, outside = np.zeros(len(points)), 0.0  # logarithms
    elsewhere = 0.0
    for belief in beliefs:
        if len(belief.points_m):
            named = kernel(points, belief.points_m) @ belief.chances
            there += np.log(np.maximum(named / chance + belief.elsewhere, LEAST))
            elsewhere += math.log(max(belief.elsewhere, LEAST))
            outside += math.log(max(belief.outside, LEAST))
    same = kernel(points, points).sum(axis=1)  # points near each other are one place: together they have its prior
    logs = np.array([*(power * there + np.log(chance / same)), power * elsewhere, power * outside])
    shares = np.exp(logs - logs.max())
    return np.asarray(shares[: len(points)] / shares.sum())


def combine_poses(poses: Sequence[Pose]) -> Pose | None:
    """The mean of the poses that agree with the most certain one, weighted by the inverse squares of their radii.

    They agree if their headings differ by 15 degrees at most and their positions by the sum of their radii. The radius
    is that of the most certain one: the views share the errors of the map's photos. None if there are none.
    """
    if not poses:
        return None
    first = min(poses, key=lambda pose: pose.radius_m)
    latlon, radii = np.array([pose.latlon for pose in poses]), np.array([pose.radius_m for pose in poses])
    turns = np.array([(pose.heading_deg - first.heading_deg + 180) % 360 - 180 for pose in poses])
    away_m = np.linalg.norm(ecef_from_wgs84(latlon) - ecef_from_wgs84(first.latlon), axis=1)
    agree = (away_m <= radii + first.radius_m) & (np.abs(turns) <= AGREEING_DEG)
    weights = 1 / np.maximum(radii[agree], 1e-3) ** 2
    weights /= weights.sum()
    metres = enu_from_wgs84(latlon[agree], first.latlon)  # of near poses only: the plane has no image of the far ones
    (latitude, longitude), *_ = wgs84_from_enu([weights @ metres], first.latlon).tolist()
    return Pose((latitude, longitude), first.radius_m, float(first.heading_deg + weights @ turns[agree]) % 360)


def _rank(match: Match) -> tuple[int, float]:
    return -1 if match.inliers is None else match.inliers, -match.distance
