"""Places with their photos opened for training, and several of them as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor
from tqdm import tqdm

from sareloc.arrays import Ints
from sareloc.datasets.places import Places
from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading import load_images
from sareloc.models import PlaceModel
from sareloc.models.fused import run_fused
from sareloc.models.preprocess import autocast
from sareloc.training.config import TrainingConfig

# What a training step eats: pixels decoded from files as they are needed, or tensors that stay in memory.
#
# The part of the network below the first trained layer computes the same features for a photo in every epoch. Kept in
# half precision they are about as large as the photo itself, and a step that starts from them skips nine tenths of
# VGG16's arithmetic: `keep_features` computes them once. Photos that cannot be decoded are found in the first pass and
# left out.

Stage = Literal["pixels", "features"]


class Inputs(Protocol):
    """N photos of one size, by row number, at one stage of the network."""

    @property
    def stage(self) -> Stage:
        """What the rows are: pixels, or features of the frozen part."""
        ...

    def __len__(self) -> int: ...

    def batches(self, rows: Iterable[Ints], device: torch.device) -> Iterator[Tensor]:
        """For each array of row numbers the stacked inputs: uint8 pixels (n, 3, H, W) or features (n, C, h, w)."""
        ...


@dataclass(frozen=True, eq=False)
class TensorInputs:
    """Inputs in memory, of the host or of the GPU."""

    tensor: Tensor
    stage: Stage = "pixels"

    def __len__(self) -> int:
        return len(self.tensor)

    def batches(self, rows: Iterable[Ints], device: torch.device) -> Iterator[Tensor]:
        """The rows, gathered where they are and brought to `device`."""
        for batch in rows:
            index = torch.from_numpy(np.asarray(batch)).to(self.tensor.device)
            yield self.tensor[index].to(device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class FileInputs:
    """Photos on disk, decoded by worker processes as they are needed and brought to one size."""

    paths: Sequence[Path]
    height: int
    width: int
    workers: int = 0
    stage: Stage = "pixels"

    def __len__(self) -> int:
        return len(self.paths)

    def batches(self, rows: Iterable[Ints], device: torch.device) -> Iterator[Tensor]:
        """The rows, decoded ahead of the caller; a photo that cannot be decoded raises its PhotoError."""
        lots = [np.asarray(batch) for batch in rows]
        wanted = [self.paths[row] for lot in lots for row in lot]
        images = load_images(wanted, lambda height, width: (self.height, self.width), workers=self.workers)
        for lot in lots:
            yield _stack([_image(next(images)[1]) for _ in lot]).to(device, non_blocking=True)


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
        """The rows, each from its part; a part is asked for its share of every batch, which may be empty."""
        lots = [np.asarray(batch) for batch in rows]
        places = [[np.flatnonzero(self.part[lot] == p) for lot in lots] for p in range(len(self.parts))]
        asked = [
            part.batches([self.rows[lot[at]] for lot, at in zip(lots, where, strict=True) if len(at)], device)
            for part, where in zip(self.parts, places, strict=True)
        ]
        for number, lot in enumerate(lots):
            present = [(where[number], part) for where, part in zip(places, asked, strict=True) if len(where[number])]
            found = [(at, next(part)) for at, part in present]
            joined = found[0][1].new_empty((len(lot), *found[0][1].shape[1:]))
            for at, images in found:
                joined[torch.from_numpy(at).to(joined.device)] = images
            yield joined


def _stack(images: Sequence[npt.NDArray[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def _image(loaded: npt.NDArray[np.uint8] | PhotoError) -> npt.NDArray[np.uint8]:
    if isinstance(loaded, PhotoError):
        raise loaded
    return loaded


Keep = Literal["auto", "features", "pixels", "nothing"]


@dataclass(frozen=True, eq=False)
class Opened:
    """Inputs of the photos that could be read, which rows of the list those are, and what is wrong with the others."""

    inputs: Inputs
    rows: Ints
    failures: list[PhotoError]


def open_inputs(
    model: PlaceModel,
    paths: Sequence[Path],
    *,
    height: int,
    width: int,
    keep: Keep,
    workers: int,
    dtype: torch.dtype,
    device: torch.device,
    batch: int = 16,
    progress: bool = True,
) -> Opened:
    """Read every photo once and keep what `keep` says in memory: frozen features, pixels, or nothing.

    `auto`: see `choose_keep`. Features have the precision the network computes in.
    """
    files = FileInputs(paths, height, width, workers)
    if keep == "auto":
        keep = choose_keep(model, len(paths), height, width, dtype, device)
    images = load_images(paths, lambda h, w: (height, width), workers=workers)
    kept: Tensor | None = None
    rows: list[int] = []
    failures: list[PhotoError] = []
    lot: list[npt.NDArray[np.uint8]] = []
    for row, image in tqdm(images, total=len(paths), desc="reading photos", unit="photo", disable=not progress):
        if isinstance(image, PhotoError):
            failures.append(image)
            continue
        rows.append(row)
        if keep != "nothing":
            lot.append(image)
        if len(lot) == batch:
            kept = _keep(model, lot, kept, len(rows), len(paths), dtype if keep == "features" else None, device)
            lot = []
    if lot:
        kept = _keep(model, lot, kept, len(rows), len(paths), dtype if keep == "features" else None, device)
    if kept is not None:
        return Opened(
            TensorInputs(kept[: len(rows)], "features" if keep == "features" else "pixels"), np.array(rows), failures
        )
    return Opened(
        FileInputs([files.paths[r] for r in rows], height, width, workers), np.array(rows, np.int64), failures
    )


def _keep(
    model: PlaceModel,
    images: Sequence[npt.NDArray[np.uint8]],
    kept: Tensor | None,
    done: int,
    total: int,
    features_dtype: torch.dtype | None,
    device: torch.device,
) -> Tensor:
    """Put these images, the last of `done`, into the tensor of all `total`, which the first ones give its shape."""
    tensor = _stack(images)
    if features_dtype is not None:
        tensor = frozen_features(model, tensor.to(device), features_dtype)
    if kept is None:
        on_device = features_dtype is not None and free_bytes(device) > 2 * total * tensor[0].nbytes
        kept = tensor.new_empty((total, *tensor.shape[1:]), device=device if on_device else "cpu")
    kept[done - len(images) : done] = tensor
    return kept


@torch.no_grad()
def frozen_features(model: PlaceModel, pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """What the part of the network below the first trained layer makes of images (n, 3, H, W), uint8 or floats."""
    with autocast(pixels.device, dtype):
        if pixels.is_cuda and dtype == torch.bfloat16:  # most of the time goes into the maps of the first layers
            return run_fused(model.backbone.lower_layers(), model.pixels(pixels), dtype)
        return model.lower(pixels)


def keep_features(model: PlaceModel, pixels: Tensor, dtype: torch.dtype, *, batch: int = 16) -> TensorInputs:
    """The frozen features of pixels (N, 3, H, W) that are in memory already, on the same device."""
    lots = [frozen_features(model, lot, dtype) for lot in torch.split(pixels, batch)]
    return TensorInputs(torch.cat(lots), "features")


def choose_keep(
    model: PlaceModel, count: int, height: int, width: int, dtype: torch.dtype, device: torch.device
) -> Keep:
    """Features where those of `count` photos fit into half of what is free on the device or the host, else pixels where
    they fit into half of the host's memory, else nothing."""
    probe = frozen_features(model, torch.zeros(1, 3, height, width, dtype=torch.uint8, device=device), dtype)
    if 2 * count * probe.nbytes < max(free_bytes(device), free_bytes(torch.device("cpu"))):
        return "features"
    return "pixels" if 2 * count * 3 * height * width < free_bytes(torch.device("cpu")) else "nothing"


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device, in bytes; on the host no more than the process's control groups allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = int(psutil.virtual_memory().available)
    allowed = cgroup_free_bytes()
    return available if allowed is None else min(available, allowed)


CGROUPS = {  # of each version: folder of the hierarchy; its files of limit and use; memory that is only file cache
    "v2": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "v1": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def cgroup_free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that the memory limits of this process's control groups (Linux, v2 or v1) leave; None: there is no limit.

    The limits of a group's ancestors count as well: the smallest remainder is returned, at least 0. File cache that the
    kernel drops on demand (`inactive_file`) counts as free, as in `docker stats`. A container may see paths of its
    host in /proc/self/cgroup: folders that do not exist are skipped.
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
    """What one group's limit leaves, in bytes; None where it has none."""
    try:
        allowed = int((folder / limit).read_text())
        taken = int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return max(0, allowed - taken + int(stat.get(cache, 0)))


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Places and their inputs: rows of the database first, then rows of the queries."""

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
    """Read every photo of these places once; the unreadable ones are named and left out."""
    closed = [dataset for dataset in datasets if isinstance(dataset, Places)]
    keep: Keep = "pixels" if config.augmented and config.keep == "auto" else config.keep
    if closed and keep == "auto":  # decided for all of them together: they share the memory, and a step mixes them
        count = sum(len(places.database) + len(places.queries) for places in closed)
        keep = choose_keep(model, count, *training_size(model, config), dtype, device)
    opened = [
        _open(model, dataset, config, keep, dtype, device, progress) if isinstance(dataset, Places) else dataset
        for dataset in datasets
    ]
    if len({dataset.inputs.stage for dataset in opened}) > 1:
        found = ", ".join(f"{dataset.places.name}: {dataset.inputs.stage}" for dataset in opened)
        raise ArgumentError(f"datasets that are trained on together hold either pixels or features, found {found}")
    return opened


def join_inputs(datasets: Sequence[TrainingSet]) -> tuple[Inputs, int]:
    """The inputs of all datasets, the databases of all of them first, then their queries; and how many are database."""
    databases = [len(dataset.places.database) for dataset in datasets]
    if len(datasets) == 1:
        return datasets[0].inputs, databases[0]
    first = [(p, np.arange(count)) for p, count in enumerate(databases)]
    last = [(p, np.arange(databases[p], len(dataset.inputs))) for p, dataset in enumerate(datasets)]
    part = np.concatenate([np.full(len(rows), p) for p, rows in (*first, *last)])
    rows = np.concatenate([rows for _, rows in (*first, *last)])
    return JoinedInputs([dataset.inputs for dataset in datasets], part, rows), sum(databases)


def _open(
    model: PlaceModel,
    places: Places,
    config: TrainingConfig,
    keep: Keep,
    dtype: torch.dtype,
    device: torch.device,
    progress: bool,
) -> TrainingSet:
    height, width = training_size(model, config)
    database = len(places.database)
    photos = [places.database.path(i) for i in range(database)]
    photos += [places.queries.path(i) for i in range(len(places.queries))]
    opened = open_inputs(
        model, photos, height=height, width=width, keep=keep, workers=config.workers, dtype=dtype, device=device,
        batch=config.batch, progress=progress,
    )  # fmt: skip
    if opened.failures:
        tqdm.write(f"{len(opened.failures)} photos cannot be read and are left out:")
        for failure in opened.failures:
            tqdm.write(f"  {failure}")
    split = int(np.searchsorted(opened.rows, database))
    readable = replace(
        places,
        database=places.database.take(opened.rows[:split]),
        queries=places.queries.take(opened.rows[split:] - database),
    )
    return TrainingSet(readable, opened.inputs)


def training_size(model: PlaceModel, config: TrainingConfig) -> tuple[int, int]:
    """Height and width of the training images: the config's, else the model's own."""
    if config.height and config.width:
        return config.height, config.width
    resize = model.preprocess.resize
    if not isinstance(resize, tuple):
        raise ArgumentError(
            f"the model's size rule is {resize!r}, but training images share one size: give height and width"
        )
    return resize
