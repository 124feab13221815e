"""Geometry between photos: local features, their matches, two-view geometry that verifies them, and camera poses."""

from sareloc.geometry.aggregate import aggregate, search_vector
from sareloc.geometry.camera_pose import CameraPose, Reference, estimate_camera_pose
from sareloc.geometry.evidence import Evidence, count_inliers, match_scores
from sareloc.geometry.local_features import (
    KEYPOINTS,
    LONGEST_PX,
    LocalFeatureExtractor,
    LocalFeatures,
    feature_size,
    focal_px_of,
    pack_features,
    unpack_features,
)
from sareloc.geometry.matching import count_matches, match_features
from sareloc.geometry.relative_pose import turn_deg
from sareloc.geometry.two_view import InlierPairs, TwoView, inlier_pairs, two_view, verify

__all__ = [
    "KEYPOINTS",
    "LONGEST_PX",
    "CameraPose",
    "Evidence",
    "InlierPairs",
    "LocalFeatureExtractor",
    "LocalFeatures",
    "Reference",
    "TwoView",
    "aggregate",
    "count_inliers",
    "count_matches",
    "estimate_camera_pose",
    "feature_size",
    "focal_px_of",
    "inlier_pairs",
    "match_features",
    "match_scores",
    "pack_features",
    "search_vector",
    "turn_deg",
    "two_view",
    "unpack_features",
    "verify",
]
