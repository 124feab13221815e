"""Local features: what XFeat finds in an image, packed to bytes and back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kornia.feature import XFeat
from safetensors.torch import load_file
from tests.geometry.scenes import texture

from sareloc.arrays import Image, Vectors
from sareloc.errors import MapError
from sareloc.geometry import (
    KEYPOINTS,
    LocalFeatureExtractor,
    LocalFeatures,
    feature_size,
    focal_px_of,
    match_features,
    pack_features,
    unpack_features,
)
from sareloc.geometry.local_features import strict_maxima

PIXEL = b"\1\0\1\0\0\0\0\0"  # the header of an image of one pixel


@pytest.fixture(scope="module")
def extractor() -> LocalFeatureExtractor:
    return LocalFeatureExtractor("cpu")


def test_keypoints_move_with_the_image(extractor: LocalFeatureExtractor) -> None:
    """An image and itself shifted by (16, 32) px: matched keypoints are shifted by as much."""
    whole = texture(256, 320)
    first, second = whole[:224, :288], whole[32:, 16 : 16 + 288]
    one, other = extractor.extract([first, second], 400)
    (pairs,) = match_features(one, [other])
    shifts = one.xy[pairs[:, 0]] - other.xy[pairs[:, 1]]
    assert len(pairs) > 100
    assert np.mean(np.abs(shifts - (16, 32)).max(axis=1) <= 1.5) > 0.9


def test_the_best_keypoints_are_the_first(extractor: LocalFeatureExtractor) -> None:
    image = texture(224, 288)
    few, many = extractor.extract([image], 50)[0], extractor.extract([image], 300)[0]
    assert len(few) == 50
    np.testing.assert_array_equal(few.xy, many.best(50).xy)
    np.testing.assert_array_equal(few.descriptors, many.best(50).descriptors)


def test_images_of_different_sizes_keep_their_order(extractor: LocalFeatureExtractor) -> None:
    images = [texture(96, 128, seed=1), texture(128, 96, seed=2), texture(96, 128, seed=3)]
    together, alone = extractor.extract(images, 60), [extractor.extract([image], 60)[0] for image in images]
    for one, other, image in zip(together, alone, images, strict=True):
        assert one.size == image.shape[1::-1]
        np.testing.assert_array_equal(one.xy, other.xy)


def test_a_blank_image_has_no_keypoints(extractor: LocalFeatureExtractor) -> None:
    (found,) = extractor.extract([np.full((96, 128, 3), 128, dtype=np.uint8)])
    assert len(found) == 0
    assert len(unpack_features(pack_features(found))) == 0
    assert [len(pairs) for pairs in match_features(found, [found])] == [0]


def by_kornia(image: Image, keypoints: int) -> tuple[Vectors, Vectors]:
    """Keypoints (N, 2) and descriptors (N, 64) as kornia alone computes them."""
    network = XFeat().eval()
    weights = load_file(str(files("sareloc") / "weights" / "xfeat.safetensors"))
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    (found,) = network.detectAndCompute(pixels, top_k=keypoints)
    return found["keypoints"].float().numpy(), found["descriptors"].numpy()


@pytest.mark.parametrize("device", ["cpu", "openvino", "openvino-int8"])
@pytest.mark.parametrize("size", [(360, 480), (128, 96), (40, 480)])
def test_every_runtime_finds_what_kornia_finds(
    device: str, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    """The same keypoints, but for a few whose scores are equal up to rounding, with the same descriptors."""
    if device != "cpu":
        request.getfixturevalue("openvino")
    image = texture(*size, seed=7)
    xy, descriptors = by_kornia(image, 1000)
    (found,) = LocalFeatureExtractor(device).extract([image], 1000)
    rows = {tuple(place): row for row, place in enumerate(found.xy.tolist())}
    pairs = np.array([(row, rows[place]) for row, place in enumerate(map(tuple, xy.tolist())) if place in rows])
    assert len(xy) > 50
    assert len(pairs) >= 0.995 * max(len(xy), len(found))
    assert np.abs(pairs[:, 0] - pairs[:, 1]).max() <= 5
    units = found.descriptors[pairs[:, 1]] / 254
    np.testing.assert_allclose(units, descriptors[pairs[:, 0]], atol=0.5 / 254 + 1e-3)


@pytest.mark.usefixtures("openvino")
def test_openvino_takes_images_of_any_size_from_several_threads(extractor: LocalFeatureExtractor) -> None:
    other = LocalFeatureExtractor("openvino")
    images = [texture(*size, seed=seed) for seed, size in enumerate([(96, 128), (128, 96), (224, 288)] * 4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda image: other.extract([image], 80)[0], images))
    for one, same in zip(found, extractor.extract(images, 80), strict=True):
        assert len(set(map(tuple, one.xy.tolist())) & set(map(tuple, same.xy.tolist()))) >= 0.98 * len(same) > 0


def test_a_plateau_is_no_maximum() -> None:
    """One peak; two equal neighbours; one in the border: against the 24 comparisons of each pixel."""
    heat = torch.zeros(2, 9, 12)
    heat[0, 4, 3] = heat[0, 4, 9] = heat[0, 5, 8] = heat[0, 1, 6] = 1.0
    heat[1] = torch.rand(9, 12, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros_like(heat, dtype=torch.bool)
    for b, y, x in product(range(2), range(2, 7), range(2, 10)):
        window = heat[b, y - 2 : y + 3, x - 2 : x + 3]
        expected[b, y, x] = (window >= heat[b, y, x]).sum() == 1
    assert expected[0].nonzero().tolist() == [[4, 3]]
    assert torch.equal(strict_maxima(heat), expected)


def test_descriptors_are_unit_vectors_in_integers(extractor: LocalFeatureExtractor) -> None:
    (found,) = extractor.extract([texture(224, 288)], 200)
    assert np.linalg.norm(found.descriptors.astype(float) / 254, axis=1) == pytest.approx(1.0, abs=0.02)


@given(count=st.integers(0, 40), width=st.integers(1, 480), height=st.integers(1, 480), seed=st.integers(0, 99))
def test_packing_rounds_keypoints_and_descriptors(count: int, width: int, height: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    xy = (rng.random((count, 2)) * (width, height)).astype(np.float32)
    unit = rng.normal(size=(count, 64))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    steps = np.clip(np.rint(254 * unit), -127, 127).astype(np.int8)
    focal = None if seed % 2 else 400.0
    packed = pack_features(LocalFeatures(xy, steps, (width, height), focal))
    found = unpack_features(packed)
    assert len(packed) == 8 + 35 * count
    assert (found.size, found.focal_px) == ((width, height), focal)
    np.testing.assert_allclose(found.xy, xy, atol=0.0626)
    back = found.descriptors / np.linalg.norm(found.descriptors, axis=1, keepdims=True)
    assert ((back * unit).sum(axis=1) > 0.97).all()
    again = unpack_features(pack_features(found))
    np.testing.assert_array_equal(again.descriptors, found.descriptors)
    np.testing.assert_array_equal(again.xy, found.xy)


def test_each_byte_holds_two_numbers_of_a_descriptor_the_lower_half_first() -> None:
    header, place = bytes([*(64).to_bytes(2, "little"), *(48).to_bytes(2, "little"), 0, 0, 0, 0]), bytes(3 * 8)
    halves = bytes(range(256))  # of eight keypoints
    found = unpack_features(header + place + halves).descriptors
    one_by_one = [12 * max(half - 8, -7) for byte in halves for half in (byte % 16, byte // 16)]
    assert found.dtype == np.int8
    assert found.ravel().tolist() == one_by_one


def test_a_stored_photo_has_at_most_36_kb() -> None:
    features = LocalFeatures(np.zeros((KEYPOINTS, 2), np.float32), np.zeros((KEYPOINTS, 64), np.int8), (480, 360))
    assert len(pack_features(features)) <= 36_000


@pytest.mark.parametrize(
    "blob",
    [b"", b"\0" * 7, PIXEL + b"\0", b"\0" * 8, PIXEL[:6] + b"\xc0\x7f", PIXEL + b"\0" * 35 * 4097],
    ids=["empty", "short", "odd length", "no image", "focal length is not a number", "too many"],
)
def test_bytes_that_are_no_features_are_refused(blob: bytes) -> None:
    with pytest.raises(MapError, match="malformed"):
        unpack_features(blob)


def test_the_35_mm_equivalent_gives_the_field_of_view_along_the_diagonal() -> None:
    """A 50 mm lens on the 36 x 24 frame itself: 50 px for 1 px a mm; the same for any aspect of that diagonal."""
    assert focal_px_of(50.0, (36, 24)) == pytest.approx(50.0)
    assert focal_px_of(50.0, (24, 36)) == pytest.approx(50.0)
    assert focal_px_of(None, (36, 24)) is None


def test_images_are_reduced_to_480_px() -> None:
    assert feature_size(3000, 4000) == (360, 480)
    assert feature_size(240, 320) == (360, 480)
    assert feature_size(100, 200) == (200, 400)
    assert feature_size(1, 5000) == (1, 480)
