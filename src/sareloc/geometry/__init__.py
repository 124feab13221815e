"""Geometry between photos: local features, their matches, the two-view geometry that verifies them, its evidence."""

from sareloc.geometry.evidence import Evidence, gather_evidence, match_scores
from sareloc.geometry.local_features import (
    KEYPOINTS,
    LocalFeatureExtractor,
    LocalFeatures,
    feature_size,
    focal_px_of,
    pack_features,
    unpack_features,
)
from sareloc.geometry.matching import match_features
from sareloc.geometry.two_view import TwoView, two_view, verify

__all__ = [
    "KEYPOINTS",
    "Evidence",
    "LocalFeatureExtractor",
    "LocalFeatures",
    "TwoView",
    "feature_size",
    "focal_px_of",
    "gather_evidence",
    "match_features",
    "match_scores",
    "pack_features",
    "two_view",
    "unpack_features",
    "verify",
]
