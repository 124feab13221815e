"""Descriptors on a GPU: the copy of a batch to the GPU, the copy of descriptors back and the next batch overlap.

Pixels are put into page-locked memory once and copied on a stream of their own, and the host waits for a batch only
when the next one is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from sareloc.arrays import Image, Vectors
from sareloc.errors import PhotoError
from sareloc.models.place_model import PlaceModel, evaluating
from sareloc.photos import ReadImage

T = TypeVar("T")
Fetch = Callable[[], Vectors]

IN_FLIGHT = 2  # batches on a GPU at once: one being computed, one being copied
WINDOW_BATCHES = 4  # batches of images that wait for others of their size


class GpuLauncher:
    """Queues a batch on the GPU; returns a function that waits for its descriptors (n, dim) and fetches them."""

    def __init__(self, model: PlaceModel, dim: int | None) -> None:
        self._model, self._dim = model, dim
        self._copies = torch.cuda.Stream(model.device)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, images: Sequence[Image]) -> Fetch:
        """Images of one size, not more than a batch."""
        if not images:
            return lambda: np.zeros((0, self._dim or self._model.dim), dtype=np.float32)
        here = torch.empty(len(images), *images[0].shape, dtype=torch.uint8, pin_memory=True)
        np.stack(images, out=here.numpy())
        work = torch.cuda.current_stream(self._model.device)
        with torch.cuda.stream(self._copies):
            there = here.to(self._model.device, non_blocking=True)
        work.wait_stream(self._copies)
        there.record_stream(work)
        with evaluating(self._model):
            found = self._model(there.permute(0, 3, 1, 2), self._dim).float()
        back = torch.empty(found.shape, dtype=torch.float32, pin_memory=True)
        back.copy_(found, non_blocking=True)
        # blocking: a busy wait would take a core from the decoding workers
        done = torch.cuda.Event(blocking=True)
        done.record(work)

        def fetch() -> Vectors:
            done.synchronize()
            return np.array(back.numpy())  # a copy: page-locked memory is reused

        return fetch


def group_by_size(
    loaded: Iterable[tuple[T, ReadImage | PhotoError]], batch: int
) -> Iterator[tuple[list[tuple[T, ReadImage]], list[tuple[T, PhotoError]]]]:
    """Batches of images whose first pixels have one size, and the errors since the last batch; one may be empty."""
    waiting: dict[tuple[int, ...], list[tuple[T, ReadImage]]] = {}
    errors: list[tuple[T, PhotoError]] = []
    for tag, image in loaded:
        if isinstance(image, PhotoError):
            errors.append((tag, image))
            continue
        group = waiting.setdefault(image.pixels[0].shape, [])
        group.append((tag, image))
        if len(group) == batch or sum(map(len, waiting.values())) >= WINDOW_BATCHES * batch:
            yield waiting.pop(max(waiting, key=lambda size: len(waiting[size]))), errors
            errors = []
    for group in waiting.values():
        yield group, errors
        errors = []
    if errors:
        yield [], errors
