"""Encoder: the place model and the extractor of local features together, from images to what a map stores of them.

Maps, queries, streams, uploads, workers of a cluster and evaluation encode by it, with the same folded layers and
number format. On a CPU the images are encoded one by one, whatever is encoded beside them: an image has the same
`Encoded` to the last bit, in a map and as a query. On a GPU they are encoded in batches, whose size changes the last
bits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
import torch

from sareloc.arrays import Image, Vectors
from sareloc.errors import PhotoError
from sareloc.geometry.adaptation import Adaptation
from sareloc.geometry.local_features import KEYPOINTS, LocalFeatureExtractor, LocalFeatures, feature_size, search_vector
from sareloc.models.fused import fold_norms, fuse_relus, with_stored_format
from sareloc.models.place_model import PlaceModel, RuntimeModel, evaluating
from sareloc.photos import ReadImage, SizeRule

T = TypeVar("T")

Fetch = Callable[[], Vectors]

AHEAD = 4  # images for each thread that are being encoded
IN_FLIGHT = 2  # batches on a GPU at once: one being computed, one being copied
WINDOW_BATCHES = 4  # batches of images that wait for others of their size


@dataclass(frozen=True, eq=False)
class Encoded:
    """What a map stores of an image, and what a query is searched and verified by."""

    descriptor: Vectors
    """(dim,) of unit length."""
    features: LocalFeatures | None
    """None: none were asked for."""
    vector: Vectors
    """The search vector (dim + aggregate_dim,), of unit length; see `search_vector`."""


class Encoder:
    """Encodes images by a place model and, unless `keypoints` is 0, local features. Safe from several threads."""

    def __init__(
        self,
        model: PlaceModel,
        *,
        dim: int | None = None,
        keypoints: int = KEYPOINTS,
        aggregate_dim: int = 0,
        adaptation: Adaptation | None = None,
        batch: int = 8,
    ) -> None:
        """Prepare the networks.

        Args:
            model: the place model; its device and number format are those of the encoder.
            dim: dimensions of the descriptors; default: those of the model.
            keypoints: local features of each image; 0: none.
            aggregate_dim: dimensions of the aggregated local features in the search vectors; 0: the search vectors
                are the descriptors.
            adaptation: of the map, applied to the search vectors; default: none.
            batch: images in one forward pass on a GPU.
        """
        self.model = model
        self.dim = dim or model.dim
        self.keypoints = keypoints
        self.aggregate_dim = aggregate_dim
        self.adaptation = adaptation
        self.batch = batch
        self.extractor = LocalFeatureExtractor(model.runs_on) if keypoints else None
        self._folded = model if isinstance(model, RuntimeModel) else with_stored_format(fold_norms(model))
        self._on_gpu = model.device.type != "cpu" and not isinstance(model, RuntimeModel)
        # small layers are not faster on several threads; a runtime has its own threads
        self._alone = model.backbone.uses_one_thread and not isinstance(model, RuntimeModel)

    @cached_property
    def _launch(self) -> GpuLauncher:
        return GpuLauncher(fuse_relus(self._folded), None if self.dim == self.model.dim else self.dim)

    @property
    def sizes(self) -> tuple[SizeRule, ...]:
        """The size rules with which images must be read (see `read_image`)."""
        return (self.model.preprocess.resizing, *((feature_size,) if self.extractor else ()))

    def encode(self, images: Sequence[ReadImage]) -> list[Encoded]:
        """Encode images that were read at `sizes`, in order; see `encode_each`."""
        found = {row: one for row, one in self.encode_each(enumerate(images)) if isinstance(one, Encoded)}
        return [found[row] for row in range(len(images))]

    def encode_each(
        self, loaded: Iterable[tuple[T, ReadImage | PhotoError]]
    ) -> Iterator[tuple[T, Encoded | PhotoError]]:
        """Encode images as they are read; few are in memory at a time.

        Args:
            loaded: each image, read at `sizes`, with a tag; or the error that says why it cannot be read.

        Yields:
            The tag of each image, and what it was encoded to, or its error. In the given order on a CPU; on a GPU
            images of one size share a batch, so that the order may differ.
        """
        if self._on_gpu:
            yield from self._encode_on_gpu(loaded)
            return
        pool = single_threads("encode", os.getpid())
        waiting: deque[tuple[T, PhotoError | Callable[[], Encoded]]] = deque()

        def finish() -> tuple[T, Encoded | PhotoError]:
            tag, work = waiting.popleft()
            return tag, work if isinstance(work, PhotoError) else work()

        for tag, image in loaded:
            waiting.append((tag, image if isinstance(image, PhotoError) else self._start(image, pool)))
            if len(waiting) >= AHEAD * torch.get_num_threads():
                yield finish()
        while waiting:
            yield finish()

    def _start(self, image: ReadImage, pool: ThreadPoolExecutor) -> Callable[[], Encoded]:
        """Begin to encode an image on a CPU; returns a function that waits for the result."""
        extracted = None if self.extractor is None else pool.submit(self._extract, image)
        described = Future[Vectors]()
        if self._alone:
            described = pool.submit(self._describe, image.pixels[0])
        else:
            described.set_result(self._describe(image.pixels[0]))

        def features() -> LocalFeatures | None:
            return None if extracted is None else extracted.result()

        combined = described
        if self.aggregate_dim:  # threads begin what they are given in order: it waits for what has begun
            combined = pool.submit(lambda: self.search_vector(described.result(), features()))
        return lambda: Encoded(described.result(), features(), combined.result())

    def search_vector(self, descriptor: Vectors, features: LocalFeatures | None) -> Vectors:
        """The search vector of an image by its descriptor (dim,) and its local features, as the map holds it."""
        vector = search_vector(descriptor, features, self.aggregate_dim)
        return vector if self.adaptation is None else self.adaptation(vector)

    def _describe(self, pixels: Image) -> Vectors:
        dim = None if self.dim == self.model.dim else self.dim
        return self._folded.encode([pixels], dim=dim)[0].numpy()

    def _extract(self, image: ReadImage) -> LocalFeatures:
        assert self.extractor is not None
        return self.extractor.extract([image.pixels[1]], self.keypoints, focal_35mm=[image.focal_35mm])[0]

    def _encode_on_gpu(
        self, loaded: Iterable[tuple[T, ReadImage | PhotoError]]
    ) -> Iterator[tuple[T, Encoded | PhotoError]]:
        flying: deque[Callable[[], list[tuple[T, Encoded | PhotoError]]]] = deque()

        def start(group: list[tuple[T, ReadImage]]) -> Callable[[], list[tuple[T, Encoded | PhotoError]]]:
            fetch = self._launch([image.pixels[0] for _, image in group])
            features: Sequence[LocalFeatures | None] = [None] * len(group)
            if self.extractor is not None:
                details = [image.pixels[1] for _, image in group]
                focal_35mm = [image.focal_35mm for _, image in group]
                features = self.extractor.extract(details, self.keypoints, focal_35mm=focal_35mm)

            def finish() -> list[tuple[T, Encoded | PhotoError]]:
                descriptors = fetch()
                vectors = single_threads("encode", os.getpid()).map(self.search_vector, descriptors, features)
                rows = zip(group, descriptors, features, vectors, strict=True)
                return [(tag, Encoded(descriptor, one, vector)) for (tag, _), descriptor, one, vector in rows]

            return finish

        for group, errors in group_by_size(loaded, self.batch):
            yield from errors
            flying.append(start(group))
            if len(flying) == IN_FLIGHT:
                yield from flying.popleft()()
        for finish in flying:
            yield from finish()


@cache
def single_threads(name: str, process: int) -> ThreadPoolExecutor:
    """As many threads as torch uses for one operation, each of which uses one: the pool of this name of a process.

    Args:
        name: of the pool. A task of one pool may wait for those of another, not for those of its own.
        process: its number: a forked process has no threads of its parent.
    """
    count, started = torch.get_num_threads(), threading.Barrier(torch.get_num_threads() + 1)
    pool = ThreadPoolExecutor(count, name, initializer=torch.set_num_threads, initargs=(1,))
    for _ in range(count):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(count)  # of threads that are started later
    return pool


class GpuLauncher:
    """Queues a batch on the GPU; returns a function that waits for its descriptors (n, dim) and fetches them.

    The copy of a batch to the GPU, the copy of descriptors back and the next batch overlap: pixels are put into
    page-locked memory once and copied on a stream of their own, and the host waits for a batch only when the next one
    is queued.
    """

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
