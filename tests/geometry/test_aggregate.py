"""Aggregated local features: the formula written out, and what the vector must not depend on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors import safe_open
from tests.geometry.scenes import texture

from sareloc.geometry import (
    LocalFeatureExtractor,
    LocalFeatures,
    aggregate,
    pack_features,
    search_vector,
    unpack_features,
)
from sareloc.geometry.local_features import constants_fingerprint, constants_path, packed_prefix, vlad
from sareloc.maps.records import LARGEST_AGGREGATE_DIM


def random_features(count: int, seed: int = 0) -> LocalFeatures:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 64))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    steps = np.clip(np.rint(254 * vectors), -127, 127).astype(np.int8)
    return LocalFeatures(rng.uniform(0, 400, (count, 2)).astype(np.float32), steps, (480, 360))


def test_vlad_is_the_formula_written_out() -> None:
    rng = np.random.default_rng(1)
    points, centres = rng.normal(size=(7, 5)), rng.normal(size=(3, 5))
    rows = []
    for k in range(3):
        total = np.zeros(5)
        for point in points:
            x = point / np.linalg.norm(point)
            scores = [math.exp(30 * float(x @ centre)) for centre in centres]
            total += scores[k] / sum(scores) * (x - centres[k])
        rows.append(total / np.linalg.norm(total))
    expected = np.concatenate(rows) / math.sqrt(3)
    np.testing.assert_allclose(vlad(points.astype(np.float32), centres.astype(np.float32)), expected, atol=1e-5)


def test_the_vector_is_that_of_the_features_as_a_map_stores_them() -> None:
    features = random_features(50)
    stored = unpack_features(pack_features(features))
    assert not np.array_equal(features.descriptors, stored.descriptors)
    np.testing.assert_array_equal(aggregate(features), aggregate(stored))


def test_the_order_of_keypoints_does_not_matter() -> None:
    features = random_features(60)
    rows = np.random.default_rng(2).permutation(60)
    turned = LocalFeatures(features.xy[rows], features.descriptors[rows], features.size)
    np.testing.assert_allclose(aggregate(features), aggregate(turned), atol=1e-5)


def test_fewer_dimensions_are_the_first_ones_of_unit_length() -> None:
    features = random_features(40)
    whole, some = aggregate(features), aggregate(features, 32)
    assert len(whole) == LARGEST_AGGREGATE_DIM
    np.testing.assert_allclose(some, whole[:32] / np.linalg.norm(whole[:32]), atol=1e-6)


def test_an_image_without_keypoints_has_a_vector_of_zeros() -> None:
    empty = random_features(0)
    assert not aggregate(empty).any()
    descriptor = np.array([0.6, 0.8], dtype=np.float32)
    np.testing.assert_allclose(search_vector(descriptor, empty, 3), [0.6, 0.8, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(search_vector(descriptor, None, 3), [0.6, 0.8, 0, 0, 0], atol=1e-6)


def test_the_cosine_of_search_vectors_is_the_mean_of_both_parts() -> None:
    a, b = random_features(80, 1), random_features(80, 2)
    one, two = (np.array(values, dtype=np.float32) for values in ((1.0, 0.0), (0.6, 0.8)))
    together = float(search_vector(one, a, LARGEST_AGGREGATE_DIM) @ search_vector(two, b, LARGEST_AGGREGATE_DIM))
    assert together == pytest.approx((0.6 + float(aggregate(a) @ aggregate(b))) / 2, abs=1e-5)
    np.testing.assert_array_equal(search_vector(one, a, 0), one)


def test_views_of_one_texture_are_nearer_than_of_another() -> None:
    images = [texture(400, 500, seed)[shift : 300 + shift, shift : 400 + shift] for seed in (1, 2) for shift in (0, 24)]
    vectors = [aggregate(found) for found in LocalFeatureExtractor("cpu").extract(images)]
    assert vectors[0] @ vectors[1] > 0.2 + max(vectors[0] @ vectors[2], vectors[1] @ vectors[3])


def test_the_constants_say_what_they_were_fitted_on() -> None:
    with safe_open(constants_path(), "numpy") as file:
        assert set(json.loads(file.metadata()["card"])["photos"]) == {"landmarks", "drawn towns"}
    assert len(constants_fingerprint()) == 16


@pytest.mark.parametrize("count", [0, 1, 256, 400])
def test_the_first_bytes_hold_the_best_keypoints(count: int) -> None:
    features = unpack_features(pack_features(random_features(300)))
    packed = pack_features(features)
    some = unpack_features(packed[: packed_prefix(300, count)], size=len(packed))
    np.testing.assert_array_equal(some.descriptors, features.descriptors[:count])
    np.testing.assert_array_equal(some.xy, features.xy[:count])
