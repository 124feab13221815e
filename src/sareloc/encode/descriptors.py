"""Descriptors of lists of photos: `describe` collects them, `describe_boxes` crops first.

In memory, or in a `DescriptorCache`: on disk as they are computed, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn
from tqdm import tqdm

from sareloc import arrays
from sareloc.arrays import Ints, Vectors
from sareloc.encode.encoder import Encoder
from sareloc.errors import ArgumentError, PhotoError
from sareloc.files import replacing, writing
from sareloc.loading import read_images
from sareloc.models.backbones import Backbone
from sareloc.models.checkpoint import STANDARD, load_model
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.photos import Image, ImageRecord, ReadImage, Resizing, decode, stamp
from sareloc.photos.read_image import check_several


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The descriptors of N photos, in their order."""

    vectors: Vectors
    """(N, dim) unit vectors; zeros in the rows of `failures`. A memory map if they are in a cache."""
    failures: Mapping[int, PhotoError] = field(default_factory=dict)
    """Rows of photos that could not be decoded, and why."""


def describe(
    photos: Sequence[Image | ImageRecord],
    model: str | Path | PlaceModel | None = None,
    *,
    store: Path | None = None,
    batch: int = 8,
    workers: int = 0,
    dim: int | None = None,
    progress: bool = True,
) -> Descriptors:
    """The descriptors of photos: unit vectors, whose distance is small if the photos show the same place.

    With `store`, an interrupted run is resumed: photos described before are skipped unless their file has changed;
    photos that failed are tried again.

    Args:
        photos: files or addresses of images in files, contents of files, pixels or records of images (see
            `read_image`); with `store` files only.
        model: a model, a checkpoint or a packaged model's name; default: the packaged model `fast`, on its
            GPU if there is one.
        store: the folder of a `DescriptorCache` that keeps the descriptors; default: in memory.
        batch: images in one forward pass on a GPU.
        workers: processes that read photos; 0: this one.
        dim: keep the first `dim` coordinates; default: all.
        progress: show a progress bar, on a terminal.

    Raises:
        ArgumentError: if the photos are not a list of images, or the folder is of another model, dimension or list of
            photos.
    """
    check_several(photos, "describe([image])")
    if not isinstance(model, PlaceModel):
        model = load_model(model or STANDARD, None)
    encoder = Encoder(model, dim=dim, keypoints=0, batch=batch)
    kept = None if store is None else DescriptorCache.open(store, model.fingerprint(), encoder.dim, _files(photos))
    vectors = np.zeros((len(photos), encoder.dim), dtype=np.float32) if kept is None else kept.vectors
    todo = np.arange(len(photos)) if kept is None else kept.todo()
    failures: dict[int, PhotoError] = {}
    wanted = [photos[int(row)] for row in todo]
    loaded = read_images(wanted, encoder.sizes, workers=workers)
    for number, encoded in tqdm(
        encoder.encode_each(loaded), "describe", len(wanted), unit="photo", disable=None if progress else True
    ):
        row = int(todo[number])
        if isinstance(encoded, PhotoError):
            failures[row] = encoded
            if kept is not None:
                kept.forget(row)
        elif kept is None:
            vectors[row] = encoded.descriptor
        else:
            kept.put(row, encoded.descriptor)
    if kept is not None:
        kept.mark()
    return Descriptors(vectors, failures)


def _files(photos: Sequence[Image | ImageRecord]) -> list[Path]:
    """The files of photos; raises ArgumentError if one is not a file."""
    files = [Path(photo) for photo in photos if isinstance(photo, str | Path)]
    if len(files) < len(photos):
        raise ArgumentError("descriptors are stored for files: give paths, or leave out store")
    return files


def describe_boxes(
    model: PlaceModel,
    paths: Sequence[Path],
    boxes: npt.NDArray[np.float64],
    *,
    dim: int | None = None,
    progress: bool = True,
) -> Descriptors:
    """Descriptors of parts of photos.

    Each photo is resized as one image, so that its parts keep their scale; then its box is enlarged on every side by
    half the receptive field and cut out: the centres of the features fill the box (NetVLAD's 'crop'; Oxford, Paris).

    Args:
        model: the model.
        paths: the N photos.
        boxes: (N, 4) x0, y0, x1, y1 in pixels of the upright photo.
        dim: keep the first `dim` coordinates; default: all.
        progress: show a bar on standard error.
    """
    margin, encoder = receptive_field_px(model.backbone) / 2, Encoder(model, dim=dim, keypoints=0)
    vectors = np.zeros((len(paths), encoder.dim), dtype=np.float32)
    failures: dict[int, PhotoError] = {}
    for row, path in enumerate(tqdm(paths, "describe boxes", unit="photo", disable=None if progress else True)):
        try:
            part = decode_box(path, boxes[row], margin, model)
        except PhotoError as error:
            failures[row] = error
            continue
        (encoded,) = encoder.encode([ReadImage(str(path), (part.copy(),), part.shape[1], part.shape[0])])
        vectors[row] = encoded.descriptor
    return Descriptors(vectors, failures)


def decode_box(path: Path, box: npt.NDArray[np.float64], margin: float, model: PlaceModel) -> arrays.Image:
    """The part of a photo, resized for the model, within a box enlarged by `margin` pixels of that size."""
    original = np.ones(2)

    def size(height: int, width: int) -> tuple[int, int]:
        original[:] = height, width
        return model.preprocess.size(height, width)

    image = decode(path, size=Resizing(size, model.preprocess.interpolation))
    shrink = np.array(image.shape[:2]) / original
    x0, y0, x1, y1 = box * shrink[[1, 0, 1, 0]] + margin * np.array([-1, -1, 1, 1])
    part = image[max(round(y0), 0) : max(round(y1), 0), max(round(x0), 0) : max(round(x1), 0)]
    if min(part.shape[:2]) < MIN_SIDE_PX:
        sides = f"{part.shape[0]} x {part.shape[1]} px (height x width)"
        raise PhotoError(path, f"the box {box.tolist()} gives {sides}, at least {MIN_SIDE_PX} px are needed each way")
    return part


def receptive_field_px(backbone: Backbone) -> int:
    """The side of the square of pixels that one location of the feature map depends on (VGG16's conv5_3: 196).

    Of a transformer, whose locations all depend on each other, the side of a patch.
    """
    field_px, step_px = 1, 1
    for layer in backbone.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride = (s if isinstance(s, int) else s[0] for s in (layer.kernel_size, layer.stride))
            if kernel > 1:  # a strided 1x1 convolution is a shortcut beside the path that has the stride too
                field_px += (kernel - 1) * step_px
                step_px *= stride
    assert step_px == backbone.stride, f"{backbone.name}: layers step by {step_px} px, not {backbone.stride}"
    return field_px


FORMAT = 1
MARK_EVERY_S = 5.0  # of work that a killed run may lose; flushing after each batch would slow a GPU down


@dataclass(frozen=True)
class CacheManifest:
    """The model and the photos that a cache belongs to."""

    format: int
    model: str
    """The model's fingerprint."""
    dim: int
    dtype: str
    photos: int
    names: str
    """A hash of the photos' paths, in their order."""


class DescriptorCache:
    """A folder of descriptors, one row for each photo, and which rows are done.

    `manifest.json` is the `CacheManifest`, `vectors.npy` the descriptors, and `stamps.npy` the size and modification
    time of each photo's file when it was described, -1 before: a file that changes is described again.
    """

    def __init__(self, vectors: Vectors, stamps: Ints, current: Ints) -> None:
        self.vectors = vectors
        """(N, dim), mapped from the disk."""
        self._stamps = stamps
        self._current = current
        self._unmarked: list[int] = []
        self._marked_at = time.monotonic()

    @staticmethod
    def open(folder: Path, model: str, dim: int, paths: Sequence[Path]) -> DescriptorCache:
        """Open the cache, or create it; raises ArgumentError if it is of another model, dimension or list of photos."""
        names = hashlib.sha256(os.fsencode("\n".join(path.as_posix() for path in paths))).hexdigest()[:16]
        wanted = CacheManifest(FORMAT, model, dim, "float32", len(paths), names)
        manifest, vectors, stamps = (folder / name for name in ("manifest.json", "vectors.npy", "stamps.npy"))
        if not manifest.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with writing(vectors):
                np.lib.format.open_memmap(vectors, "w+", np.float32, (len(paths), dim)).flush()
                _reserve(vectors)
            with writing(stamps):
                content = io.BytesIO()  # the error of np.save on a full disk does not say so
                np.save(content, np.full((len(paths), 2), -1, dtype=np.int64))
                stamps.write_bytes(content.getvalue())
            # the manifest is written last: a folder without one is started over
            with replacing(manifest) as beside:
                beside.write_text(json.dumps(asdict(wanted), indent=2) + "\n")
        _check(folder, json.loads(manifest.read_text()), asdict(wanted))
        current = np.array([_stamp(path) for path in paths], dtype=np.int64).reshape(-1, 2)
        return DescriptorCache(np.load(vectors, mmap_mode="r+"), np.load(stamps, mmap_mode="r+"), current)

    def todo(self) -> Ints:
        """Rows of the photos that are not described as they are now."""
        return np.flatnonzero((self._stamps != self._current).any(axis=1))

    def put(self, row: int, descriptor: Vectors) -> None:
        """Write the descriptor (dim,) of a row; it counts as done at the next `mark`, a few seconds later."""
        self.vectors[row] = descriptor
        self._unmarked.append(row)
        if time.monotonic() - self._marked_at >= MARK_EVERY_S:
            self.mark()

    def forget(self, row: int) -> None:
        """Mark a row as not described."""
        self._stamps[row] = -1
        self.vectors[row] = 0

    def mark(self) -> None:
        """Write the descriptors to the disk, then mark them as done, in this order."""
        if isinstance(self.vectors, np.memmap):
            self.vectors.flush()
        self._stamps[self._unmarked] = self._current[self._unmarked]
        self._unmarked.clear()
        self._marked_at = time.monotonic()


def _reserve(file: Path) -> None:
    """Reserve the file's space on the disk: a process that writes to mapped memory on a full disk is killed."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, max(file.stat().st_size, 1))
            except OSError as refused:
                if refused.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system cannot reserve
                    raise


def _stamp(path: Path) -> tuple[int, int]:
    found = stamp(path)
    return (-2, -2) if found is None else found  # a missing file equals no stamp: it is tried again


def _check(folder: Path, found: dict[str, object], wanted: dict[str, object]) -> None:
    differing = [f"{key} {found.get(key)} (here {value})" for key, value in wanted.items() if found.get(key) != value]
    if differing:
        raise ArgumentError(
            f"{folder} holds descriptors of another model or list of photos: {', '.join(differing)}. "
            "Give another folder, or delete this one"
        )
