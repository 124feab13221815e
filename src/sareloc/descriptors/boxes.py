"""Descriptors of parts of photos: Oxford's and Paris's queries, cut to their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from tqdm import tqdm

from sareloc.descriptors.describing import Descriptors
from sareloc.descriptors.encoding import Pixels
from sareloc.errors import PhotoError
from sareloc.models.backbones import Backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.photos import decode


def describe_boxes(
    model: PlaceModel,
    paths: Sequence[Path],
    boxes: npt.NDArray[np.float64],
    *,
    dim: int | None = None,
    progress: bool = True,
) -> Descriptors:
    """Descriptors of parts of photos: `boxes` (N, 4) are x0, y0, x1, y1 in pixels of the upright photo.

    Each photo is brought to the model's size as a whole, so that its parts keep their scale; then its box is grown on
    every side by half the receptive field and cut out: the features' centres fill the box (NetVLAD's 'crop').
    """
    margin = receptive_field_px(model.backbone) / 2
    vectors = np.zeros((len(paths), dim or model.dim), dtype=np.float32)
    failures: dict[int, PhotoError] = {}
    for row, path in enumerate(tqdm(paths, "describe boxes", unit="photo", disable=None if progress else True)):
        try:
            part = decode_box(path, boxes[row], margin, model)
        except PhotoError as error:
            failures[row] = error
            continue
        images = torch.from_numpy(part.copy()).permute(2, 0, 1)[None]
        vectors[row] = model.encode(images, dim=dim)[0].numpy()
    return Descriptors(vectors, failures)


def decode_box(path: Path, box: npt.NDArray[np.float64], margin: float, model: PlaceModel) -> Pixels:
    """The part of a photo, at the model's size, that lies in a box grown by `margin` pixels of that size."""
    original = np.ones(2)

    def size(height: int, width: int) -> tuple[int, int]:
        original[:] = height, width
        return model.preprocess.size(height, width)

    image = decode(path, size=size)
    shrink = np.array(image.shape[:2]) / original
    x0, y0, x1, y1 = box * shrink[[1, 0, 1, 0]] + margin * np.array([-1, -1, 1, 1])
    part = image[max(round(y0), 0) : max(round(y1), 0), max(round(x0), 0) : max(round(x1), 0)]
    if min(part.shape[:2]) < MIN_SIDE_PX:
        sides = f"{part.shape[0]} x {part.shape[1]} px (height x width)"
        raise PhotoError(path, f"the box {box.tolist()} leaves {sides}, at least {MIN_SIDE_PX} are needed each way")
    return part


def receptive_field_px(backbone: Backbone) -> int:
    """The side of the square of pixels that one location of the feature map sees (VGG16's conv5_3: 196)."""
    field_px, step_px = 1, 1
    for layer in backbone.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride = (s if isinstance(s, int) else s[0] for s in (layer.kernel_size, layer.stride))
            if kernel > 1:  # a strided 1x1 convolution is a shortcut beside the path that has the stride too
                field_px += (kernel - 1) * step_px
                step_px *= stride
    assert step_px == backbone.stride, f"{backbone.name}: layers step by {step_px} px, not {backbone.stride}"
    return field_px
