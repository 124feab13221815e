"""Training inputs: photos of datasets as tensors, from files or from memory, and their augmentation.

The layers below the first trained one compute the same features for a photo in every epoch. In half precision these
features are about as large as the photo, and a step that starts from them skips nine tenths of VGG16's arithmetic: if
they fit into memory they are computed once and kept. Every photo is decoded once at the start, and photos that cannot
be decoded are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from sareloc.arrays import Ints
from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading import read_images
from sareloc.models import PlaceModel
from sareloc.models.fused import run_fused
from sareloc.models.preprocess import autocast
from sareloc.photos import Interpolation, ReadImage, Resizing
from sareloc.training.config import TrainingConfig
from sareloc.wording import plural

Stage = Literal["pixels", "features"]
Keep = Literal["auto", "features", "pixels", "nothing"]
Pixels = npt.NDArray[np.uint8]


class Inputs(Protocol):
    """N photos of one size, by row number, as pixels or as features of the frozen layers."""

    @property
    def stage(self) -> Stage:
        """What the rows are."""
        ...

    def __len__(self) -> int: ...

    def batches(self, rows: Iterable[Ints], device: torch.device) -> Iterator[Tensor]:
        """For each array of row numbers the stacked inputs: uint8 pixels (n, 3, H, W) or features (n, C, h, w)."""
        ...


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """A dataset and its inputs: rows of the database first, then rows of the queries."""

    places: Places
    inputs: Inputs


def open_datasets(
    model: PlaceModel,
    datasets: Sequence[Places | TrainingSet],
    config: TrainingConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    progress: bool = True,
) -> list[TrainingSet]:
    """Decode every photo of these datasets once; photos that cannot be decoded are printed and left out."""
    on_disk = [dataset for dataset in datasets if isinstance(dataset, Places)]
    keep: Keep = "pixels" if config.augmented and config.keep == "auto" else config.keep
    if on_disk and keep == "auto":  # for all of them together: they share the memory, and a step mixes them
        count = sum(len(places.database) + len(places.queries) for places in on_disk)
        keep = choose_keep(model, count, *training_size(model, config), dtype, device)
    opened = [
        _open(model, dataset, config, keep, dtype, device, progress) if isinstance(dataset, Places) else dataset
        for dataset in datasets
    ]
    if len({dataset.inputs.stage for dataset in opened}) > 1:
        found = ", ".join(f"{dataset.places.name}: {dataset.inputs.stage}" for dataset in opened)
        raise ArgumentError(f"datasets that are trained on together hold either pixels or features, found {found}")
    return opened


def _open(
    model: PlaceModel,
    places: Places,
    config: TrainingConfig,
    keep: Keep,
    dtype: torch.dtype,
    device: torch.device,
    progress: bool,
) -> TrainingSet:
    """Decode every photo once and keep frozen features of the type `dtype`, pixels, or nothing in memory."""
    paths = places.database.paths() + places.queries.paths()
    size, interpolation = training_size(model, config), model.preprocess.interpolation
    kept: Tensor | None = None
    rows: list[int] = []
    failures: list[PhotoError] = []
    waiting: list[Pixels] = []

    def keep_waiting() -> Tensor:
        """Write the waiting images behind those kept so far; the first ones give the tensor its shape."""
        new = _stack(waiting)
        if keep == "features":
            new = frozen_features(model, new.to(device), dtype)
        tensor = kept
        if tensor is None:
            on_device = keep == "features" and free_bytes(device) > 2 * len(paths) * new[0].nbytes
            tensor = new.new_empty((len(paths), *new.shape[1:]), device=device if on_device else "cpu")
        tensor[len(rows) - len(waiting) : len(rows)] = new
        waiting.clear()
        return tensor

    images = read_images(paths, (Resizing(lambda h, w: size, interpolation),), workers=config.workers)
    for row, image in tqdm(images, total=len(paths), desc="reading photos", unit="photo", disable=not progress):
        if isinstance(image, PhotoError):
            failures.append(image)
            continue
        rows.append(row)
        if keep != "nothing":
            waiting.append(image.pixels[0])
        if len(waiting) == config.batch:
            kept = keep_waiting()
    if waiting:
        kept = keep_waiting()
    if failures:
        tqdm.write(f"{plural(len(failures), 'photo', ('is', 'are'))} left out, not readable:")
        for failure in failures:
            tqdm.write(f"  {failure}")
    inputs: Inputs = FileInputs([paths[row] for row in rows], *size, config.workers, interpolation=interpolation)
    if kept is not None:
        inputs = TensorInputs(kept[: len(rows)], "features" if keep == "features" else "pixels")
    readable, database = np.array(rows, np.int64), len(places.database)
    split = int(np.searchsorted(readable, database))
    taken = places.database.take(readable[:split]), places.queries.take(readable[split:] - database)
    return TrainingSet(replace(places, database=taken[0], queries=taken[1]), inputs)


def training_size(model: PlaceModel, config: TrainingConfig) -> tuple[int, int]:
    """Height and width of the training images: of the config, else of the model."""
    if config.height and config.width:
        return config.height, config.width
    resize = model.preprocess.resize
    if not isinstance(resize, tuple):
        raise ArgumentError(
            f"the model's size rule is {resize!r}, but training images need one size: set height and width"
        )
    return resize


def join_inputs(datasets: Sequence[TrainingSet]) -> tuple[Inputs, int]:
    """The inputs of all datasets, all databases first, then all queries; and the number of database rows."""
    databases = [len(dataset.places.database) for dataset in datasets]
    if len(datasets) == 1:
        return datasets[0].inputs, databases[0]
    first = [(p, np.arange(count)) for p, count in enumerate(databases)]
    last = [(p, np.arange(databases[p], len(dataset.inputs))) for p, dataset in enumerate(datasets)]
    part = np.concatenate([np.full(len(rows), p) for p, rows in (*first, *last)])
    rows = np.concatenate([rows for _, rows in (*first, *last)])
    return JoinedInputs([dataset.inputs for dataset in datasets], part, rows), sum(databases)


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True, eq=False)
class TensorInputs:
    """Inputs in the memory of the host or of the GPU."""

    tensor: Tensor
    stage: Stage = "pixels"

    def __len__(self) -> int:
        return len(self.tensor)

    def batches(self, rows: Iterable[Ints], device: torch.device) -> Iterator[Tensor]:
        """The rows, copied to `device`."""
        for batch in rows:
            index = torch.from_numpy(np.asarray(batch)).to(self.tensor.device)
            yield self.tensor[index].to(device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class FileInputs:
    """Photo files, decoded by worker processes when they are needed and resized to one size."""

    paths: Sequence[Path]
    height: int
    width: int
    workers: int = 0
    stage: Stage = "pixels"
    interpolation: Interpolation = "bilinear"

    def __len__(self) -> int:
        return len(self.paths)

    def batches(self, rows: Iterable[Ints], device: torch.device) -> Iterator[Tensor]:
        """The rows, decoded ahead of the caller; raises PhotoError if a photo cannot be decoded."""
        batches = [np.asarray(batch) for batch in rows]
        wanted = [self.paths[row] for batch in batches for row in batch]
        resizing = Resizing(lambda height, width: (self.height, self.width), self.interpolation)
        images = read_images(wanted, (resizing,), workers=self.workers)
        for batch in batches:
            yield _stack([_decoded(next(images)[1]) for _ in batch]).to(device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class JoinedInputs:
    """Rows of several inputs under new numbers: row i is row `rows[i]` of `parts[part[i]]`."""

    parts: Sequence[Inputs]
    part: Ints
    rows: Ints

    @property
    def stage(self) -> Stage:
        """That of all parts."""
        return self.parts[0].stage

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, rows: Iterable[Ints], device: torch.device) -> Iterator[Tensor]:
        """The rows, each from its part."""
        batches = [np.asarray(batch) for batch in rows]
        where = [[np.flatnonzero(self.part[batch] == p) for batch in batches] for p in range(len(self.parts))]
        sources = [
            part.batches([self.rows[batch[at]] for batch, at in zip(batches, own, strict=True) if len(at)], device)
            for part, own in zip(self.parts, where, strict=True)
        ]
        for number, batch in enumerate(batches):
            present = [(own[number], source) for own, source in zip(where, sources, strict=True) if len(own[number])]
            found = [(at, next(source)) for at, source in present]
            joined = found[0][1].new_empty((len(batch), *found[0][1].shape[1:]))
            for at, images in found:
                joined[torch.from_numpy(at).to(joined.device)] = images
            yield joined


def _stack(images: Sequence[Pixels]) -> Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def _decoded(loaded: ReadImage | PhotoError) -> Pixels:
    if isinstance(loaded, PhotoError):
        raise loaded
    return loaded.pixels[0]


@torch.no_grad()
def frozen_features(model: PlaceModel, pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Features (n, C, h, w) of the layers below the first trained one, of images (n, 3, H, W), uint8 or floats."""
    with autocast(pixels.device, dtype):
        # the first convolutions, with the largest maps, take most of the time
        if pixels.is_cuda and dtype == torch.bfloat16 and model.backbone.is_sequence:
            return run_fused(model.backbone.lower_layers(), model.pixels(pixels), dtype)
        return model.lower(pixels).to(dtype)


def choose_keep(
    model: PlaceModel, count: int, height: int, width: int, dtype: torch.dtype, device: torch.device
) -> Keep:
    """Features if those of `count` photos fit into half of the free memory of the device or of the host, else pixels if
    they fit into half of the host's, else nothing."""
    probe = frozen_features(model, torch.zeros(1, 3, height, width, dtype=torch.uint8, device=device), dtype)
    if 2 * count * probe.nbytes < max(free_bytes(device), free_bytes(torch.device("cpu"))):
        return "features"
    return "pixels" if 2 * count * 3 * height * width < free_bytes(torch.device("cpu")) else "nothing"


# ---------------------------------------------------------------- free memory


def free_bytes(device: torch.device) -> int:
    """Free memory of a device in bytes; of the host, at most what the control groups of this process allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = int(psutil.virtual_memory().available)
    allowed = cgroup_free_bytes()
    return available if allowed is None else min(available, allowed)


CGROUPS = {  # version: folder of the hierarchy; files with the limit and the use; statistic of reclaimable file cache
    "v2": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "v1": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def cgroup_free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes below the memory limits of this process's control groups (Linux, v2 or v1); None: there is no limit.

    Of the group and its ancestors, the smallest remainder, at least 0. File cache that the kernel drops on demand
    (`inactive_file`) counts as free, as in `docker stats`. In a container /proc/self/cgroup may name paths of the
    host: folders that do not exist are skipped.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    left = []
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        folder, limit, used, cache = CGROUPS["v2" if number == "0" else "v1"]
        path = PurePosixPath(group.lstrip("/"))
        for ancestor in (path, *path.parents):
            found = _cgroup_left(root / folder / ancestor, limit, used, cache)
            left += [] if found is None else [found]
    return min(left, default=None)


def _cgroup_left(folder: Path, limit: str, used: str, cache: str) -> int | None:
    """Bytes below the limit of one group; None if it has no limit."""
    try:
        allowed = int((folder / limit).read_text())
        taken = int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return max(0, allowed - taken + int(stat.get(cache, 0)))


# ---------------------------------------------------------------- augmentation, off in the paper's recipes

# at strength 1 of crops
CROPPED = 0.3  # a crop keeps at least 1 - this of the height and of the width, drawn separately
ROTATED = 0.1  # radians, at most, in either direction
# at strength 1 of light
COLOUR = 0.4  # brightness, contrast and saturation are scaled by a factor in 1 ± this
TINT = 0.15  # each colour channel, likewise
GAMMA = 0.7  # of the logarithm of the exponent: dusk and glare
LAMPS = 0.5  # standard deviation of the logarithm of local light: at night a street is lit in patches
PATCHES = (4, 6)  # rows and columns of local light, interpolated between their centres
NOISE = 0.04  # of the range of a pixel, at most


def augment(
    images: Tensor, generator: torch.Generator, *, crop: float, light: float, tuple_sizes: Tensor | None = None
) -> Tensor:
    """Crop, rotate and relight each image with these strengths, and mirror half of the tuples.

    Args:
        images: uint8 (B, 3, H, W).
        generator: a CPU generator.
        crop: strength of crops and rotations, 0 to 1.
        light: strength of changes of light, 0 to 1.
        tuple_sizes: number of consecutive images of each tuple, with sum B; the images of a tuple are mirrored
            together, because a mirrored street is another place. Default: none is mirrored.

    Returns:
        Floats in [0, 1] of the shape of `images`.
    """
    draws = torch.rand(len(images), 13, generator=generator)
    noise = torch.Generator(images.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    mirrored = torch.zeros(len(images), dtype=torch.bool)
    if tuple_sizes is not None:
        mirrored = (torch.rand(len(tuple_sizes), generator=generator) < 0.5).repeat_interleave(tuple_sizes)
    signed = (2 * draws - 1).to(images.device)
    floats = _crop(images.float() / 255, draws[:, :5].to(images.device), crop, mirrored.to(images.device))
    return _relight(floats, signed[:, 5:], light, noise)


def _crop(images: Tensor, draws: Tensor, strength: float, mirrored: Tensor) -> Tensor:
    """A random rectangle of each image, rotated and resized to the full size, mirrored where `mirrored`."""
    scale = 1 - CROPPED * strength * draws[:, :2]  # of width and height
    shift = (1 - scale) * (2 * draws[:, 2:4] - 1)  # before its rotation the crop is inside: |shift| + scale <= 1
    angle = ROTATED * strength * (2 * draws[:, 4] - 1)
    aspect = images.shape[2] / images.shape[3]  # the grid has -1 to 1 along both sides, whatever their lengths
    across = torch.stack([scale[:, 0] * angle.cos(), -scale[:, 1] * angle.sin() * aspect, shift[:, 0]], 1)
    down = torch.stack([scale[:, 0] * angle.sin() / aspect, scale[:, 1] * angle.cos(), shift[:, 1]], 1)
    maps = torch.stack([across, down], 1)  # (B, 2, 3): from a point (x, y, 1) of the crop to the image
    maps[mirrored, :, 0] *= -1
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _relight(images: Tensor, draws: Tensor, strength: float, noise: torch.Generator) -> Tensor:
    """Saturation, gamma, tint, brightness and contrast by `draws` (B, 8) in ±1, local light, and camera noise."""
    brightness, contrast, saturation, gamma, grain = draws[:, :5].T[:, :, None, None, None]
    grey = images.mean(dim=1, keepdim=True)
    images = (grey + (images - grey) * (1 + COLOUR * strength * saturation)).clamp(0, 1)
    images = images ** torch.exp(GAMMA * strength * gamma)
    images = images * (1 + COLOUR * strength * brightness) * (1 + TINT * strength * draws[:, 5:, None, None])
    lamps = torch.randn(len(images), 1, *PATCHES, generator=noise, device=images.device)
    smooth = F.interpolate(lamps, size=images.shape[2:], mode="bicubic", align_corners=False)
    images = images * torch.exp(LAMPS * strength * smooth)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * (1 + COLOUR * strength * contrast)
    grains = torch.randn(images.shape, generator=noise, device=images.device)
    return torch.clamp(images + 0.5 * NOISE * strength * (1 + grain) * grains, 0, 1)
