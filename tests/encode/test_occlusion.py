"""The occlusion map is high where the model looks, and exactly as defined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sareloc.encode import occlusion_map
from sareloc.errors import ArgumentError, PhotoError
from sareloc.models import PlaceModel, Preprocess, make_model
from sareloc.photos import ImageRecord

IMAGE = np.random.default_rng(0).integers(0, 256, (80, 100, 3), dtype=np.uint8)


class OneSpot:
    """Stands in for a model: its descriptor is the brightness of one pixel, or nothing at all."""

    name = "one spot"
    preprocess = Preprocess()

    def __init__(self, row: int, column: int, weight: float = 1.0) -> None:
        self.row, self.column, self.weight = row, column, weight
        self.batches: list[int] = []

    def encode(self, images: Tensor, *, batch: int = 8) -> Tensor:
        self.batches.append(len(images))
        return images[:, :, self.row, self.column].float().mean(dim=1, keepdim=True) * self.weight


def slow_occlusion_map(model: PlaceModel, image: np.ndarray, box: int, stride: int) -> np.ndarray:
    """One box at a time, one pixel at a time."""
    height, width = image.shape[:2]
    tops, lefts = ([*range(0, n - box, stride), n - box] for n in (height, width))
    fill = np.round(np.array(model.preprocess.mean) * 255).astype(np.uint8)
    sums, counts = np.zeros((height, width)), np.zeros((height, width))
    before = model.encode(torch.from_numpy(image).permute(2, 0, 1)[None])[0]
    for top in tops:
        for left in lefts:
            copy = image.copy()
            copy[top : top + box, left : left + box] = fill
            moved = (model.encode(torch.from_numpy(copy).permute(2, 0, 1)[None])[0] - before).norm().item()
            for y in range(top, top + box):
                for x in range(left, left + box):
                    sums[y, x] += moved
                    counts[y, x] += 1
    means = sums / counts
    return means / means.max()


@pytest.mark.parametrize(("box", "stride"), [(30, 15), (32, 20), (40, 40)])
def test_it_agrees_with_the_plain_loop_twin(box: int, stride: int) -> None:
    model = make_model("alexnet", "avg", size=96, rng=torch.Generator().manual_seed(1))
    twin = slow_occlusion_map(model, IMAGE, box, stride)
    # convolutions may run in bfloat16, whose rounding depends on the batch
    np.testing.assert_allclose(occlusion_map(model, IMAGE, box, stride, batch=5), twin, atol=2e-2)


def test_only_boxes_over_the_one_spot_matter() -> None:
    heat = occlusion_map(OneSpot(21, 63), IMAGE, 10, 10)
    np.testing.assert_array_equal(np.argwhere(heat == 1)[[0, -1]], [[20, 60], [29, 69]])
    assert heat.max() == 1
    assert (heat > 0).sum() == 100


def test_the_edges_are_covered_too() -> None:
    for spot in ((0, 0), (79, 99), (0, 99), (79, 0)):
        assert occlusion_map(OneSpot(*spot), IMAGE, 24, 12)[spot] == 1


def test_the_image_is_not_touched_and_batches_are_bounded() -> None:
    model, before = OneSpot(5, 5), IMAGE.copy()
    occlusion_map(model, IMAGE, 20, 10, batch=7)
    np.testing.assert_array_equal(IMAGE, before)
    assert max(model.batches) == 7
    assert sum(model.batches) == 1 + 7 * 9


def test_a_model_that_sees_nothing_gives_zeros() -> None:
    assert not occlusion_map(OneSpot(5, 5, weight=0.0), IMAGE).any()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"box": 81}, "stride 40, box 81, image 80 x 100 px"),
        ({"box": 10, "stride": 11}, "so that every pixel is covered"),
        ({"box": 0}, "1 <= stride <= box"),
    ],
)
def test_boxes_that_would_leave_pixels_out_are_refused(options: dict, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        occlusion_map(OneSpot(5, 5), IMAGE, **options)


def test_a_descriptor_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="not finite"):
        occlusion_map(OneSpot(5, 5, weight=np.nan), IMAGE)


def test_every_kind_of_image_has_the_map_of_its_pixels(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.fromarray(IMAGE).save(path)
    wanted = occlusion_map(OneSpot(21, 63), IMAGE, 10)
    for given in (path, str(path), path.read_bytes(), Image.fromarray(IMAGE), ImageRecord("front/1", path)):
        np.testing.assert_array_equal(occlusion_map(OneSpot(21, 63), given, 10), wanted)


def test_what_is_not_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match="float64"):
        occlusion_map(OneSpot(0, 0), np.zeros((4, 4)))
    with pytest.raises(PhotoError, match="no such file"):
        occlusion_map(OneSpot(0, 0), tmp_path / "absent.jpg")
    with pytest.raises(ArgumentError, match="found NoneType"):
        occlusion_map(OneSpot(0, 0), None)
