"""Geometry between photos: local features, their matches, and the two-view geometry that verifies them."""

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
    "LocalFeatureExtractor",
    "LocalFeatures",
    "TwoView",
    "feature_size",
    "focal_px_of",
    "match_features",
    "pack_features",
    "two_view",
    "unpack_features",
    "verify",
]
