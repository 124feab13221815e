"""From photo files to descriptors: `describe` streams them, `describe_all` collects them, `describe_boxes` crops first.

All go through `encode_batches`. On a GPU it overlaps the copy of a batch to the GPU, the copy of descriptors back and
the computation of the next batch: pixels are put into page-locked memory once and copied on a stream of their own, and
the host waits for a batch only when the next one is queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from tqdm import tqdm

from sareloc.arrays import Ints, Vectors
from sareloc.describe.cache import DescriptorCache
from sareloc.errors import PhotoError
from sareloc.loading import Loaded, load_images
from sareloc.models.backbones import Backbone
from sareloc.models.fused import fold_norms, fuse_relus
from sareloc.models.place_model import PlaceModel, RuntimeModel, evaluating
from sareloc.models.preprocess import MIN_SIDE_PX, cudnn_benchmark
from sareloc.photos import Resizing, decode

T = TypeVar("T")
Pixels = npt.NDArray[np.uint8]
Fetch = Callable[[], Vectors]

IN_FLIGHT = 2  # batches on a GPU at once: one being computed, one being copied
CPU_PIXELS = 480 * 640  # on a CPU larger batches need more memory and are not faster
COMPILE_FROM = 500_000  # photos: compiling takes 14 s and saves 0.03 ms a photo


def encode_batches(
    model: PlaceModel,
    batches: Iterable[tuple[T, Sequence[Pixels]]],
    *,
    batch: int,
    dim: int | None = None,
    compiled: bool = False,
) -> Iterator[tuple[T, Vectors]]:
    """Each batch's tag with its descriptors (n, dim), in order; a batch has at most `batch` images, all of one size.

    compiled: use torch.compile, once for each size of images (CUDA only).
    """
    fast = model if isinstance(model, RuntimeModel) else fold_norms(model)
    if model.device.type != "cuda":
        for tag, images in batches:
            yield tag, _encode_on_cpu(fast, images, batch, dim)
        return
    launch = GpuLauncher(fuse_relus(fast), batch if compiled else None, dim)
    flying: deque[tuple[T, Fetch]] = deque()
    for tag, images in batches:
        flying.append((tag, launch(images)))
        if len(flying) == IN_FLIGHT:
            first, fetch = flying.popleft()
            yield first, fetch()
    for tag, fetch in flying:
        yield tag, fetch()


def _encode_on_cpu(model: PlaceModel, images: Sequence[Pixels], batch: int, dim: int | None) -> Vectors:
    if not images:
        return model.encode([], dim=dim).numpy()
    pixels = stack(images).permute(0, 3, 1, 2)
    at_once = max(1, CPU_PIXELS // (pixels.shape[2] * pixels.shape[3]))
    return model.encode(pixels, dim=dim, batch=min(batch, at_once)).numpy()


def stack(images: Sequence[Pixels], *, pinned: bool = False, rows: int | None = None) -> Tensor:
    """Images of one size as one tensor (n, H, W, 3); pinned: in page-locked memory.

    rows: the number of rows; default: that of the images. Rows beyond the images are not initialised.
    """
    stacked = torch.empty(rows or len(images), *images[0].shape, dtype=torch.uint8, pin_memory=pinned)
    np.stack(images, out=stacked[: len(images)].numpy())
    return stacked


class GpuLauncher:
    """Queues a batch on the GPU; returns a function that waits for its descriptors and fetches them.

    rows: compile the model for batches of exactly this many rows; smaller ones are padded. None: do not compile.
    """

    def __init__(self, model: PlaceModel, rows: int | None, dim: int | None) -> None:
        self._model, self._rows, self._dim = model, rows, dim
        self._run = model if rows is None else torch.compile(model, dynamic=False)
        self._copies = torch.cuda.Stream(model.device)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, images: Sequence[Pixels]) -> Fetch:
        """Images of one size, not more than a batch."""
        count = len(images)
        if not count:
            return lambda: np.zeros((0, self._dim or self._model.dim), dtype=np.float32)
        here = stack(images, pinned=True, rows=self._rows)
        work = torch.cuda.current_stream(self._model.device)
        with torch.cuda.stream(self._copies):
            there = here.to(self._model.device, non_blocking=True)
        work.wait_stream(self._copies)
        there.record_stream(work)
        with evaluating(self._model), cudnn_benchmark(self._rows is not None):
            found = self._run(there.permute(0, 3, 1, 2), self._dim)[:count].float()
        back = torch.empty(found.shape, dtype=torch.float32, pin_memory=True)
        back.copy_(found, non_blocking=True)
        # blocking: a busy wait would take a core from the decoding workers
        done = torch.cuda.Event(blocking=True)
        done.record(work)

        def fetch() -> Vectors:
            done.synchronize()
            return np.array(back.numpy())  # a copy: page-locked memory is reused

        return fetch


Tag = tuple[Ints, dict[int, PhotoError]]

WINDOW_BATCHES = 4  # batches of images that wait for others of their size


class Described(NamedTuple):
    """The descriptors of some of the photos, or their errors, by row of the list of photos."""

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
    """(N, dim) unit vectors; zeros in the rows of `failures`. A memory map if they are in a cache."""
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
    compiled: bool | None = None,
    digests: Sequence[bytes] | None = None,
) -> Iterator[Described]:
    """Describe photo files, batch by batch, with a few batches of images in memory whatever the number of photos.

    Images of equal size are described together: each photo comes once, but if sizes differ not in the order of the
    files. workers: number of processes that decode. dim: keep the first `dim` coordinates; default: all. progress: show
    a progress bar, on a terminal. compiled: use torch.compile; default: on a GPU, from 500,000 photos on. digests: the
    `content_digest` of each photo; one whose content is another by now is an error.
    """
    if compiled is None:
        compiled = len(paths) >= COMPILE_FROM
    with tqdm(total=len(paths), desc="describe", unit="photo", disable=None if progress else True) as bar:
        known = None if digests is None else digests.__getitem__
        loaded = load_images(paths, model.preprocess.resizing, workers=workers, sha256_of=known)
        groups = _groups(loaded, batch)
        for (rows, errors), vectors in encode_batches(model, groups, batch=batch, dim=dim, compiled=compiled):
            bar.update(len(rows) + len(errors))
            yield Described(rows, vectors, errors)


def _groups(loaded: Iterator[tuple[int, Loaded]], batch: int) -> Iterator[tuple[Tag, list[Pixels]]]:
    """Batches of images of one size, with their rows and the errors since the last batch; a batch may be empty."""
    waiting: dict[tuple[int, ...], list[tuple[int, Pixels]]] = {}
    errors: dict[int, PhotoError] = {}

    def finish(size: tuple[int, ...]) -> tuple[Tag, list[Pixels]]:
        group = waiting.pop(size)
        met = errors.copy()
        errors.clear()
        return (np.array([row for row, _ in group], dtype=np.int64), met), [image for _, image in group]

    for row, image in loaded:
        if isinstance(image, PhotoError):
            errors[row] = image
            continue
        group = waiting.setdefault(image.shape, [])
        group.append((row, image))
        if len(group) == batch or sum(map(len, waiting.values())) >= WINDOW_BATCHES * batch:
            yield finish(max(waiting, key=lambda size: len(waiting[size])))
    for size in list(waiting):
        yield finish(size)
    if errors:
        yield (np.zeros(0, dtype=np.int64), errors), []


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
    """The descriptors of all photos, in memory or, with `store`, in the `DescriptorCache` of that folder.

    With `store`, an interrupted run is resumed: photos described before are skipped unless their file has changed;
    photos that failed are tried again. Raises ArgumentError if the folder is of another model, dimension or list of
    photos. For the other arguments see `describe`.
    """
    kept = None if store is None else DescriptorCache.open(store, model.fingerprint(), dim or model.dim, paths)
    vectors = np.zeros((len(paths), dim or model.dim), dtype=np.float32) if kept is None else kept.vectors
    todo = np.arange(len(paths)) if kept is None else kept.todo()
    failures: dict[int, PhotoError] = {}
    wanted = [paths[int(row)] for row in todo]
    for part in describe(model, wanted, batch=batch, workers=workers, dim=dim, progress=progress):
        failed = {int(todo[row]): error for row, error in part.errors.items()}
        failures.update(failed)
        if kept is None:
            vectors[todo[part.rows]] = part.descriptors
        else:
            kept.put(todo[part.rows], part.descriptors)
            kept.forget(list(failed))
    if kept is not None:
        kept.mark()
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

    Each photo is resized as one image, so that its parts keep their scale; then its box is enlarged on every side by
    half the receptive field and cut out: the centres of the features fill the box (NetVLAD's 'crop'; Oxford, Paris).
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
