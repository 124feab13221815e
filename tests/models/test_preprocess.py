"""The size rule and the pixel statistics that belong to a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sareloc.errors import ArgumentError, PhotoError
from sareloc.models import Preprocess
from sareloc.photos import Interpolation

sides = st.integers(64, 6000)


@pytest.mark.parametrize(
    ("resize", "photo", "expected"),
    [
        ((480, 640), (3000, 4000), (480, 640)),
        ((480, 640), (4000, 3000), (640, 480)),
        ((480, 640), (1000, 1000), (480, 640)),
        ((640, 480), (3000, 4000), (480, 640)),
        ((640, 480), (4000, 3000), (640, 480)),
        ((640, 480), (1000, 1000), (640, 480)),
        ((320, 320), (4000, 3000), (320, 320)),
        ((480, 640), (64, 64), (480, 640)),
        (1024, (3000, 4000), (768, 1024)),
        (1024, (4000, 3000), (1024, 768)),
        (1024, (600, 800), (600, 800)),
        (100, (64, 640), (64, 640)),
        (100, (128, 640), (64, 320)),
        (None, (97, 131), (97, 131)),
    ],
)
def test_size_rule(resize: tuple[int, int] | int | None, photo: tuple[int, int], expected: tuple[int, int]) -> None:
    assert Preprocess(resize=resize).size(*photo) == expected


@given(sides, sides, st.sampled_from([(480, 640), (240, 320), 64, 500, 1024, None]))
def test_a_photo_of_the_right_size_keeps_it(height: int, width: int, resize: tuple[int, int] | int | None) -> None:
    rule = Preprocess(resize=resize)
    size = rule.size(height, width)
    assert rule.size(*size) == size
    assert min(size) >= 64


@given(sides, sides)
def test_longest_side_keeps_the_aspect(height: int, width: int) -> None:
    h, w = Preprocess(resize=1024).size(height, width)
    assert h / height == pytest.approx(w / width, abs=1 / min(height, width))
    assert max(h, w) <= 1024 or min(h, w) == 64


def test_statistics_of_torchvision_and_of_matconvnet() -> None:
    images = torch.randint(256, (2, 3, 64, 70), dtype=torch.uint8)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (images / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(Preprocess().normalise(images), expected, atol=2e-6, rtol=0)
    raw = Preprocess(mean=(123.0, 117.0, 104.0), std=(1.0, 1.0, 1.0), scale=255.0)
    expected = images.float() - torch.tensor([123.0, 117.0, 104.0])[:, None, None]
    torch.testing.assert_close(raw.normalise(images), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_in_0_1_are_the_same_pixels(dtype: torch.dtype) -> None:
    images = torch.randint(2, (2, 3, 64, 70), dtype=torch.uint8) * 255
    found = Preprocess().normalise((images / 255).to(dtype))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.float(), Preprocess().normalise(images), atol=1e-6, rtol=0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(64, 80), (150, 130)])
def test_resizing_is_that_of_torch_with_antialiasing(interpolation: Interpolation, size: tuple[int, int]) -> None:
    # of middle brightness: Pillow cuts what overshoots 0..255 after each axis, torch after both
    image = np.random.default_rng(0).integers(80, 176, (120, 100, 3), dtype=np.uint8)
    ((_, found),) = Preprocess(resize=size, interpolation=interpolation).batches([image], 1)
    floats = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    expected = F.interpolate(floats, size=found.shape[2:], mode=interpolation, antialias=True)
    # Pillow rounds after each axis: half a level, times the sum of the other axis' absolute weights, and another half
    assert (found.double() - expected).abs().max() <= 1.2
    other = F.interpolate(
        floats, size=found.shape[2:], mode="bilinear" if interpolation == "bicubic" else "bicubic", antialias=True
    )
    assert (found.double() - other).abs().max() > 5


def test_batches_hold_one_size_and_every_row_once() -> None:
    images = [np.full((h, w, 3), i, dtype=np.uint8) for i, (h, w) in enumerate([(64, 80), (80, 64), (64, 80)] * 3)]
    seen = []
    for rows, pixels in Preprocess(resize=None).batches(images, 2):
        assert 1 <= len(rows) <= 2
        for row, image in zip(rows, pixels, strict=True):
            assert image.shape == (3, *images[row].shape[:2])
            assert (image == row).all()
        seen += rows
    assert sorted(seen) == list(range(9))


def test_resizing_is_antialiased() -> None:
    stripes = np.zeros((512, 512, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    [(_, pixels)] = Preprocess(resize=(128, 128)).batches([stripes], 1)
    assert (pixels.float() - 127.5).abs().max() < 20  # without it, whole columns would be black or white


def test_pil_images_are_turned_upright_and_made_rgb() -> None:
    marked = Image.new("L", (100, 70))
    marked.paste(255, (0, 0, 10, 70))  # white on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that this side is the top
    marked.info["exif"] = exif.tobytes()
    [(_, pixels)] = Preprocess(resize=None).batches([marked], 1)
    assert pixels.shape == (1, 3, 100, 70)
    assert (pixels[0, :, :10] == 255).all()
    assert not pixels[0, :, 10:].any()


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"63 x 200 px.*at least 64 px"):
        Preprocess().size(63, 200)
    with pytest.raises(ArgumentError, match=r"resize .* from 64 .*, found \(480, 32\)"):
        Preprocess(resize=(480, 32))
    with pytest.raises(ArgumentError, match=r"resize .* from 64 .*, found 32"):
        Preprocess(resize=32)
    with pytest.raises(ArgumentError, match=r"resize .* from 64 .*, found 0"):
        Preprocess(resize=0)
    with pytest.raises(ArgumentError, match=r"std .* positive"):
        Preprocess(std=(1.0, 0.0, 1.0))
    rule = Preprocess()
    with pytest.raises(ArgumentError, match=r"\(B, 3, H, W\), found"):
        rule.normalise(torch.zeros(3, 64, 64))
    with pytest.raises(ArgumentError, match=r"uint8.*found torch\.int64"):
        rule.normalise(torch.zeros(1, 3, 64, 64, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"uint8.*found torch\.float32"):
        list(rule.batches(torch.zeros(1, 3, 64, 64), 1))
    with pytest.raises(ArgumentError, match=r"batch .*found 0"):
        list(rule.batches([], 0))
    with pytest.raises(PhotoError, match=r"uint8, found .* float64"):
        list(rule.batches([np.zeros((64, 64, 3))], 1))  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="found int"):
        list(rule.batches([7], 1))  # type: ignore[list-item]
