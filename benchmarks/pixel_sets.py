"""The sets that experiments train and judge on, as pixels of one size: read or drawn once, into .npy files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from benchmarks import real_sets

from sareloc.datasets import Places, photo_paths
from sareloc.errors import PhotoError
from sareloc.loading import read_images
from sareloc.models import PlaceModel
from sareloc.training import TensorInputs
from sareloc.training.data import frozen_features

if TYPE_CHECKING:
    from sareloc.city import CityPlaces

SPLITS = ("train", "val", "test")
HELD_OUT = 0.2
"""Share of the landmarks, and of the western buildings of TMBuD, that no training sees: they choose between models."""


def unmarked(name: str) -> str:
    """A set's name without the mark that says who of it asks (see `PixelSets.places`)."""
    return name.rstrip("+-")


def frozen_inputs(model: PlaceModel, pixels: torch.Tensor, dtype: torch.dtype, *, batch: int) -> TensorInputs:
    """Training inputs from pixels (N, 3, H, W) in memory: features of the frozen layers, on the same device."""
    return TensorInputs(torch.cat([frozen_features(model, part, dtype) for part in pixels.split(batch)]), "features")


@dataclass(frozen=True)
class PixelSets:
    """Every set by its name. `data`: the folder of `real_sets`; `out`: where the pixels are kept."""

    data: Path
    out: Path
    height: int
    width: int
    city: str = "medium"
    """Size of the drawn towns, or none."""
    city_seed: int = 1
    """Of the town whose sets are city-train, city-val and city-test."""
    more_seeds: tuple[int, ...] = ()
    """Of further towns, whose sets are city11-train and so on."""

    @cached_property
    def loaders(self) -> dict[str, Callable[[], Places]]:
        """How each set is made."""
        found: dict[str, Callable[[], Places]] = {
            f"cambridge-{split}": partial(real_sets.cambridge, self.data, split) for split in SPLITS
        }
        for name, pair in zip(("day", "light", "both"), real_sets.GARDENS_POINT_PAIRS, strict=True):
            found[f"gardens-{name}"] = partial(real_sets.gardens_point, self.data, *pair)
        found["tmbud-night"] = lambda: real_sets.tmbud_night_to_day(self.data)
        found["tmbud-east-day"] = lambda: real_sets.tmbud_east(self.data, "DAY")
        found["tmbud-east-night"] = lambda: real_sets.tmbud_east(self.data, "NIGHT")
        found["landmarks-test"] = lambda: real_sets.landmarks(self.data)
        for part, split in enumerate(("train", "val")):
            found[f"tmbud-{split}"] = partial(self._held_out, real_sets.tmbud_west, part)
            found[f"landmarks-{split}"] = partial(self._held_out, partial(real_sets.landmarks, split="train"), part)
        for town in ("city", *(f"city{seed}" for seed in self.more_seeds)) if self.city != "none" else ():
            found |= {f"{town}-{split}": partial(self._city_places, f"{town}-{split}") for split in SPLITS}
        return found

    def _held_out(self, whole: Callable[[Path], Places], part: int) -> Places:
        return real_sets.hold_out(whole(self.data), HELD_OUT)[part]

    def _city_places(self, name: str) -> Places:
        return self._city(name).places

    def places(self, name: str) -> Places:
        """The set of this name; with "+" at its end, every photo of it also asks; with "-", none does."""
        found = self.loaders[unmarked(name)]()
        if name.endswith("-"):
            return replace(found, queries=found.queries.take([]))
        return real_sets.ask_with_all(found) if name.endswith("+") else found

    def prepare(self, names: Sequence[str], workers: int, device: torch.device) -> None:
        """Read or draw what is not there yet."""
        self.out.mkdir(parents=True, exist_ok=True)
        for name in dict.fromkeys(map(unmarked, names)):
            path = self.out / f"{name}.npy"
            if path.exists():
                continue
            if name.startswith("city"):
                from sareloc.city import draw_pixels

                drawn = draw_pixels(self._city(name), self.height, self.width, device)
                np.save(path, drawn.cpu().numpy())
            else:
                np.save(path, read_pixels(self.places(name), self.height, self.width, workers))

    def pixels(self, name: str) -> torch.Tensor:
        """uint8 (database + queries, 3, height, width) of the set of this name."""
        held = torch.from_numpy(np.load(self.out / f"{unmarked(name)}.npy"))
        if name.endswith("-"):
            return held[: len(self.places(name).database)]
        return torch.cat([held, held]) if name.endswith("+") else held

    def _city(self, name: str) -> CityPlaces:
        from sareloc.city import city_places

        town, split = name.split("-")
        return city_places(int(town.removeprefix("city") or self.city_seed), self.city, split)


def read_pixels(places: Places, height: int, width: int, workers: int) -> np.ndarray:
    """uint8 (database + queries, 3, height, width)."""
    paths = photo_paths(places)
    row_of = {path: row for row, path in enumerate(paths)}
    images = []
    for _, image in read_images(paths, (lambda h, w: (height, width),), workers=workers):
        if isinstance(image, PhotoError):
            raise image
        images.append(image.pixels[0])
    rows = [row_of[photos.path(i)] for photos in (places.database, places.queries) for i in range(len(photos))]
    return np.stack(images)[rows].transpose(0, 3, 1, 2)
