"""Relative pose: how a camera is turned against that of another photo of the same place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sareloc.geometry.local_features import LocalFeatures, focal_px_of
from sareloc.geometry.two_view import EPIPOLAR_PX, RANSAC, TwoView

USUAL_FOCAL_35MM = 28.0
"""Of photos whose EXIF does not tell their focal length: the main camera of most phones, in mm."""


def turn_deg(query: LocalFeatures, other: LocalFeatures, view: TwoView) -> float | None:
    """The query's heading minus that of the other photo, in degrees, -180 to 180; None if fewer than 8 inliers agree.

    From the essential matrix of their inliers (PoseLib), with the focal lengths of the photos, 28 mm equivalent if
    unknown. With `x_other = R x_query + t` the query's optical axis is `R (0, 0, 1)` in the other camera, whose x axis
    points to the right and z axis ahead: the angle is `atan2(x, z)`. Cameras are assumed to be held upright.
    """
    import poselib

    pairs = view.pairs[view.inlier]
    if len(pairs) < 8:
        return None
    a, b = query.xy[pairs[:, 0]].astype(np.float64), other.xy[pairs[:, 1]].astype(np.float64)
    options = {**RANSAC, "max_epipolar_error": EPIPOLAR_PX}
    pose, found = poselib.estimate_relative_pose(a, b, camera_of(query), camera_of(other), options, {})
    if found["num_inliers"] < 8:
        return None
    x, _, z = pose.R[:, 2]
    return math.degrees(math.atan2(x, z))


def camera_of(features: LocalFeatures) -> dict[str, Any]:
    """A camera of PoseLib: the principal point is the middle of the image."""
    width, height = features.size
    focal_px = features.focal_px or focal_px_of(USUAL_FOCAL_35MM, features.size)
    return {
        "model": "SIMPLE_PINHOLE",
        "width": width,
        "height": height,
        "params": [focal_px, width / 2, height / 2],
    }
