"""From photo files to descriptors: streamed, in constant memory, resumable; bad photos are listed and never stop it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from tqdm import tqdm

from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading import load_images
from sareloc.models.backbones import Backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.photos import decode

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]

WINDOW_BATCHES = 4  # so many batches of images wait for others of their size


class Described(NamedTuple):
    """What became of some photos, by their row in the list: their descriptors, or why they have none."""

    rows: Ints
    """(n,) rows of the photos described."""
    descriptors: Vectors
    """(n, dim) unit vectors."""
    errors: dict[int, PhotoError]
    """Rows of photos that could not be decoded, and why."""


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The descriptors of N photos, in their order."""

    vectors: Vectors
    """(N, dim) unit vectors; zeros in the rows of `failures`. A memory map where they are stored."""
    failures: Mapping[int, PhotoError] = field(default_factory=dict)
    """Rows of photos that could not be decoded, and why."""


def describe(
    model: PlaceModel,
    paths: Sequence[Path],
    *,
    batch: int = 8,
    workers: int = 0,
    dim: int | None = None,
    progress: bool = True,
) -> Iterator[Described]:
    """Describe photo files, batch by batch, holding a few batches of images at a time however many photos there are.

    Images of equal size are described together: each photo comes once, but the rows come in another order than the
    files where sizes differ. `workers` processes decode; `dim` cuts the descriptors to their first `dim` coordinates.
    `progress` shows photos per second and the time left, on a terminal.
    """
    waiting: dict[tuple[int, ...], list[tuple[int, Pixels]]] = {}
    errors: dict[int, PhotoError] = {}
    with tqdm(total=len(paths), desc="describe", unit="photo", disable=None if progress else True) as bar:

        def finish(group: list[tuple[int, Pixels]]) -> Described:
            rows = np.array([row for row, _ in group], dtype=np.int64)
            images = torch.from_numpy(np.stack([image for _, image in group])).permute(0, 3, 1, 2)
            done = Described(rows, model.encode(images, dim=dim, batch=batch).numpy(), errors.copy())
            errors.clear()
            bar.update(len(done.rows) + len(done.errors))
            return done

        for row, image in load_images(paths, model.preprocess.size, workers=workers):
            if isinstance(image, PhotoError):
                errors[row] = image
                continue
            group = waiting.setdefault(image.shape, [])
            group.append((row, image))
            if len(group) == batch or sum(map(len, waiting.values())) >= WINDOW_BATCHES * batch:
                yield finish(waiting.pop(max(waiting, key=lambda size: len(waiting[size]))))
        for size in list(waiting):
            yield finish(waiting.pop(size))
        if errors:
            bar.update(len(errors))
            yield Described(np.zeros(0, dtype=np.int64), np.zeros((0, dim or model.dim), dtype=np.float32), errors)


def describe_all(
    model: PlaceModel,
    paths: Sequence[Path],
    *,
    store: Path | None = None,
    batch: int = 8,
    workers: int = 0,
    dim: int | None = None,
    progress: bool = True,
) -> Descriptors:
    """The descriptors of all photos, in memory or, with `store`, in a folder that an interrupted run goes on from.

    With `store`, photos described before are skipped unless their file has changed since; photos that failed are
    tried again. A folder that another model, dimension or list of photos has filled is refused.
    """
    if store is None:
        vectors = np.zeros((len(paths), dim or model.dim), dtype=np.float32)
        stamps = np.full((len(paths), 2), -1, dtype=np.int64)
    else:
        vectors, stamps = _open_store(store, _manifest(model, paths, dim))
    current = np.array([_stamp(path) for path in paths], dtype=np.int64).reshape(-1, 2)
    todo = np.flatnonzero((stamps != current).any(axis=1))
    failures: dict[int, PhotoError] = {}
    wanted = [paths[int(row)] for row in todo]
    for part in describe(model, wanted, batch=batch, workers=workers, dim=dim, progress=progress):
        rows = todo[part.rows]
        vectors[rows] = part.descriptors
        if isinstance(vectors, np.memmap):
            vectors.flush()  # a row is marked done when it is on disk, never before
        stamps[rows] = current[rows]
        failed = {int(todo[row]): error for row, error in part.errors.items()}
        vectors[list(failed)] = 0
        failures.update(failed)
    return Descriptors(vectors, failures)


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


# The store: manifest.json says what it belongs to, vectors.npy holds the descriptors, and stamps.npy the size and time
# of each file when it was described (-1 before).

FORMAT = 1


@dataclass(frozen=True)
class _Manifest:
    format: int
    model: str
    dim: int
    dtype: str
    photos: int
    names: str


def _manifest(model: PlaceModel, paths: Sequence[Path], dim: int | None) -> _Manifest:
    names = hashlib.sha256("\n".join(path.as_posix() for path in paths).encode()).hexdigest()[:16]
    return _Manifest(FORMAT, model.fingerprint(), dim or model.dim, "float32", len(paths), names)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -2, -2  # an absent file matches no stamp, and fails again
    return status.st_size, status.st_mtime_ns


def _open_store(folder: Path, wanted: _Manifest) -> tuple[Vectors, Ints]:
    manifest, vectors, stamps = (folder / name for name in ("manifest.json", "vectors.npy", "stamps.npy"))
    if not manifest.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.lib.format.open_memmap(vectors, "w+", np.float32, (wanted.photos, wanted.dim)).flush()
        np.save(stamps, np.full((wanted.photos, 2), -1, dtype=np.int64))
        # the manifest comes last: a folder without one is begun anew
        beside = manifest.with_suffix(".part")
        beside.write_text(json.dumps(asdict(wanted), indent=2))
        os.replace(beside, manifest)
    found = json.loads(manifest.read_text())
    differing = {key: value for key, value in asdict(wanted).items() if found.get(key) != value}
    if differing:
        said = ", ".join(f"{key} {found.get(key)} (here {value})" for key, value in differing.items())
        raise ArgumentError(
            f"{folder} holds descriptors of another model or list of photos: {said}. "
            "Give another folder, or delete this one to begin anew"
        )
    return np.load(vectors, mmap_mode="r+"), np.load(stamps, mmap_mode="r+")
