"""A tiny backbone and a tiny dataset of synthetic photos: training in a second."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from sareloc.datasets import PhotoSet, Places
from sareloc.geo import Positions
from sareloc.models import Backbone, PlaceModel, Preprocess, init_netvlad, init_weights, make_aggregation
from sareloc.training import TensorInputs, TrainingSet
from sareloc.training.data import frozen_features

SIDE = 64
PLACES = 40


class TinyBackbone(Backbone):
    """Three small convolutions; the first is frozen."""

    def __init__(self) -> None:
        super().__init__("tiny", cut="conv3", channels=16, stride=8)
        self.conv1 = nn.Conv2d(3, 16, 5, stride=4, padding=2)
        self.conv2 = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(16, 16, 3, padding=1)
        self.relu = nn.ReLU()
        init_weights(self, torch.Generator().manual_seed(0))
        with torch.no_grad():  # mostly blind to plain brightness, as a trained first layer is
            self.conv1.weight -= 0.8 * self.conv1.weight.mean(dim=(2, 3), keepdim=True)
        self.freeze_below("conv2")

    def parts(self) -> Mapping[str, tuple[nn.Module, ...]]:
        return {"conv1": (self.conv1, self.relu), "conv2": (self.conv2, self.relu), "conv3": (self.conv3,)}


def tiny_model(aggregation: str = "netvlad", seed: int = 0) -> PlaceModel:
    return copy.deepcopy(_initial_model(aggregation, seed))


@cache
def _initial_model(aggregation: str, seed: int) -> PlaceModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        aggregate = make_aggregation(aggregation, 16, {"clusters": 4})
    model = PlaceModel(Preprocess(resize=(SIDE, SIDE)), TinyBackbone(), aggregate)
    images = [image.permute(1, 2, 0).numpy() for image in tiny_pixels(0)[:40]]
    init_netvlad(model, images, np.random.default_rng(seed))
    return model


def tiny_pixels(seed: int) -> torch.Tensor:
    """uint8 (3 PLACES, 3, SIDE, SIDE): two database photos of each place, then one query of each.

    A place is a texture in colours of its own; every photo moves it a little, and lays weather over it that is
    brighter than what tells the places apart.
    """
    return _drawn_pixels(seed).clone()


@cache
def _drawn_pixels(seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)

    def noise(count: int, cells: int) -> torch.Tensor:
        return F.interpolate(torch.randn(count, 3, cells, cells, generator=draw), SIDE, mode="bilinear")

    palettes = torch.randn(PLACES, 3, 3, generator=draw)
    textures = torch.einsum("pij,pjhw->pihw", palettes, noise(PLACES, 20)) * 0.7
    owners = torch.cat([torch.arange(PLACES).repeat_interleave(2), torch.arange(PLACES)])
    photos = textures[owners] + 1.5 * noise(len(owners), 2) + 0.2 * noise(len(owners), SIDE)
    shifts = torch.randint(-3, 4, (len(owners),), generator=draw).tolist()
    moved = torch.stack([photo.roll(shift, dims=2) for photo, shift in zip(photos, shifts, strict=True)])
    return (128 + 40 * moved).clamp(0, 255).byte()


def tiny_places(folder: Path = Path("nowhere")) -> Places:
    """Places every 30 m along a street; database photos 3 and 4 m from the query."""
    along = 30.0 * np.arange(PLACES)
    database = np.stack([along + 3, along + 4], axis=1).reshape(-1)

    def photos(role: str, x: np.ndarray) -> PhotoSet:
        names = tuple(f"{role}/{i:03d}.png" for i in range(len(x)))
        return PhotoSet(folder, names, Positions.from_local(np.stack([x, np.zeros(len(x))], axis=1)))

    return Places("tiny dataset", "train", photos("database", database), photos("queries", along))


def tiny_dataset(seed: int = 0) -> TrainingSet:
    return TrainingSet(tiny_places(), TensorInputs(tiny_pixels(seed)))


def tiny_features(model: PlaceModel, seed: int = 0) -> TrainingSet:
    """The same dataset as features of the frozen layers."""
    return TrainingSet(
        tiny_places(), TensorInputs(frozen_features(model, tiny_pixels(seed), torch.float32), "features")
    )


def write_dataset(folder: Path, seed: int = 0) -> Places:
    """The same dataset as files."""
    places = tiny_places(folder)
    paths = [photos.path(i) for photos in (places.database, places.queries) for i in range(len(photos))]
    for path, image in zip(paths, tiny_pixels(seed), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return places
