"""Batch after batch of images to descriptors, as fast as the model's device allows.

On a GPU a batch's way there, its descriptors' way back and the next batch's arithmetic overlap: pixels are put into
page-locked memory once, travel on a stream of their own, and the host waits for a batch only when the next one is on
its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.models.folding import fold_norms
from sareloc.models.fusing import fuse_relus
from sareloc.models.place_model import PlaceModel, evaluating
from sareloc.models.precision import cudnn_tries
from sareloc.runtimes import RuntimeModel

T = TypeVar("T")
Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Fetch = Callable[[], Vectors]

IN_FLIGHT = 2  # batches on a GPU at once: one in work, one on its way
CPU_PIXELS = 480 * 640  # more at once takes more memory on a CPU, and not less time
COMPILE_FROM = 500_000  # photos: compiling takes 14 s, and saves a thirtieth of a millisecond a photo from files


def encode_batches(
    model: PlaceModel,
    batches: Iterable[tuple[T, Sequence[Pixels]]],
    *,
    batch: int,
    dim: int | None = None,
    compiled: bool = False,
) -> Iterator[tuple[T, Vectors]]:
    """Each batch's tag with its descriptors (n, dim), in order; the images of a batch are of one size, `batch` at most.

    compiled: by torch.compile, once for each size of images (CUDA only).
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
    """Images of one size as one tensor (n, H, W, 3), in page-locked memory if asked for.

    With `rows` it has so many; what stands in those beyond the images is not defined.
    """
    stacked = torch.empty(rows or len(images), *images[0].shape, dtype=torch.uint8, pin_memory=pinned)
    np.stack(images, out=stacked[: len(images)].numpy())
    return stacked


class GpuLauncher:
    """Sets a batch off to the GPU; what it gives back waits for that batch's descriptors and fetches them.

    `rows`: compile the model for batches of exactly so many rows; smaller ones are filled up.
    """

    def __init__(self, model: PlaceModel, rows: int | None, dim: int | None) -> None:
        self._model, self._rows, self._dim = model, rows, dim
        self._run = model if rows is None else torch.compile(model, dynamic=False)
        self._copies = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]
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
        with evaluating(self._model), cudnn_tries(self._rows is not None):
            found = self._run(there.permute(0, 3, 1, 2), self._dim)[:count].float()
        back = torch.empty(found.shape, dtype=torch.float32, pin_memory=True)
        back.copy_(found, non_blocking=True)
        # waiting must not keep a core busy: the workers that decode have use for it
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record(work)

        def fetch() -> Vectors:
            done.synchronize()
            return np.array(back.numpy())  # page-locked memory goes back to be used again

        return fetch
