"""The service behind the routes: a map that is asked, the queues before the model, and threads that decode."""

from __future__ import annotations

import asyncio
import io
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from scipy.ndimage import gaussian_filter

from sareloc.arrays import Image
from sareloc.describe import occlusion_map
from sareloc.errors import ArgumentError, PhotoError
from sareloc.localize import Fix
from sareloc.maps import Area, map_backend
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.photos import Geotag, SizeRule, decode
from sareloc.serve.catalogue import HiddenPhotos, hidden_photos, photo_folders
from sareloc.serve.config import Limits, Serving
from sareloc.serve.guard import busy
from sareloc.serve.live_map import LiveMap, Question
from sareloc.serve.uploads import Adder, NewPhoto, Upload, examine_upload

# Questions of many requests, answered together by one thread: the more come at once, the more go into a batch.

Q = TypeVar("Q")
A = TypeVar("A")

MEMORY = 0.9  # of the pace: about the last ten batches count


class BatchQueue(Generic[Q, A]):
    """Holds questions until the thread is free, then gives it up to `batch` of them at once.

    Nobody waits for a batch to fill: what came while the last one was worked on is the next one. `answer` gets the
    questions in order and returns as many answers; it runs in one thread, always the same. `bound`: as many questions
    may be accepted and not answered. `observe` is told the size of each batch.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], Sequence[A]],
        *,
        batch: int,
        bound: int,
        name: str,
        observe: Callable[[float], None] = lambda size: None,
    ) -> None:
        self._answer = answer
        self._batch = batch
        self._bound = bound
        self._observe = observe
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._something = asyncio.Event()
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._pace_s = 0.1  # a question, as measured lately
        self.accepted = 0
        """Questions that have a reserved place and no answer yet."""

    @property
    def waiting(self) -> int:
        """Questions that nobody works on yet."""
        return len(self._waiting)

    @contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Places for so many questions, or a 503 that says when to come back."""
        if self.accepted + count > self._bound:
            wait_s = max(1, math.ceil(self.accepted * self._pace_s))
            raise busy(f"the service is busy with {self.accepted} photos: try again in {wait_s} s", wait_s)
        self.accepted += count
        try:
            yield
        finally:
            self.accepted -= count

    async def ask(self, question: Q) -> A:
        """The answer, as soon as it is there; who stops waiting before the question's turn withdraws it."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        self._something.set()
        return await future

    @contextmanager
    def running(self) -> Iterator[None]:
        """Answer questions while inside; at the end those that wait are answered by nobody."""
        with ThreadPoolExecutor(1, f"sareloc-{self._name}") as self._thread:
            worker = asyncio.get_running_loop().create_task(self._work())
            try:
                yield
            finally:
                worker.cancel()

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Do something between two batches."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._something.wait()
            taken = self._take()
            if not taken:
                continue
            start = time.monotonic()
            self._observe(len(taken))
            try:
                answers = await loop.run_in_executor(self._thread, self._answer, [question for question, _ in taken])
            except Exception as wrong:
                for _, future in taken:
                    if not future.done():
                        future.set_exception(wrong)
                continue
            for (_, future), answer in zip(taken, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
            self._pace_s = MEMORY * self._pace_s + (1 - MEMORY) * (time.monotonic() - start) / len(taken)

    def _take(self) -> list[tuple[Q, asyncio.Future[A]]]:
        taken: list[tuple[Q, asyncio.Future[A]]] = []
        while self._waiting and len(taken) < self._batch:
            question, future = self._waiting.popleft()
            if not future.done():  # else its request was given up
                taken.append((question, future))
        if not self._waiting:
            self._something.clear()
        return taken


# What in a photo mattered, as a picture to lay over it: coloured where it did, transparent where it did not.

LOOKED_AT_PX = 224
SHOWN_PX = 512
SMOOTHING = 30  # of the shorter side, for the eye
OPAQUE = 0.85
LITTLE, MOST = np.array([200.0, 30.0, 60.0]), np.array([255.0, 225.0, 90.0])  # brighter also where colours are not seen


def heat_size(height: int, width: int) -> tuple[int, int]:
    """The size that a photo is looked at: its longer side 224 px, as some eighty copies of it go through the model."""
    scale = LOOKED_AT_PX / max(height, width)
    return max(MIN_SIDE_PX, round(height * scale)), max(MIN_SIDE_PX, round(width * scale))


def draw_heat(model: PlaceModel, image: Image) -> bytes:
    """A PNG with transparency, of the shape of the image (H, W, 3), its longer side 512 px."""
    return png_of_heat(occlusion_map(model, image))


def png_of_heat(heat: npt.NDArray[np.float32]) -> bytes:
    """Heat (H, W) as a PNG: stretched from its least (transparent) to its most, smoothed."""
    height, width = heat.shape
    scale = SHOWN_PX / max(height, width)
    size = (round(width * scale), round(height * scale))
    large = np.asarray(Pillow.fromarray(heat).resize(size, Pillow.Resampling.BILINEAR))
    smooth = gaussian_filter(large, min(size) / SMOOTHING)
    shares = ((smooth - smooth.min()) / max(float(np.ptp(smooth)), 1e-9))[..., None]
    pixels = np.concatenate([LITTLE + (MOST - LITTLE) * shares, 255 * OPAQUE * shares], axis=2)
    png = io.BytesIO()
    Pillow.fromarray(pixels.round().astype(np.uint8), "RGBA").save(png, "PNG")
    return png.getvalue()


T = TypeVar("T")

HEATS_WAITING = 4
BATCHES = (1, 2, 4, 8, 16, 32)


class Registry(CollectorRegistry):
    """The metrics of one app, without the `_created` series of counters and histograms.

    prometheus_client can switch them off for the process only, which may hold other registries.
    """

    def collect(self) -> Iterator[Metric]:
        """The metrics with their present values."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Service:
    """Everything that requests share; open while `running`."""

    def __init__(self, live: LiveMap, batch: int, serving: Serving, limits: Limits) -> None:
        self.live = live
        self.serving = serving
        self.limits = limits
        self.registry = Registry()
        self._photos = Counter("sareloc_photos_total", "Query photos by outcome.", ("outcome",), registry=self.registry)
        self._batches = Histogram(
            "sareloc_batch_photos", "Photos given to the model at once.", buckets=BATCHES, registry=self.registry
        )
        self.photo_folders = photo_folders(live.place_map.path, serving.photos)
        self.listing = map_backend(live.place_map.path).listing(live.place_map.path)
        self.adder = Adder(live.model, live.place_map.path, batch)
        self.questions = BatchQueue[Question, Fix](
            live.answer, batch=batch, bound=limits.queue, name="localize", observe=self._batches.observe
        )
        self.additions = BatchQueue[NewPhoto, int](self.adder.add, batch=batch, bound=limits.queue, name="add")
        self.heats = BatchQueue[Image, bytes](self._draw_heats, batch=1, bound=HEATS_WAITING, name="heat")
        self._gauge("sareloc_queue_photos", "Photos accepted and not answered.", lambda: self.questions.accepted)
        self._gauge("sareloc_waiting_photos", "Photos waiting for the model.", lambda: self.questions.waiting)
        self._gauge("sareloc_map_photos", "Photos in the map at the last query.", lambda: len(live.place_map))
        self._decoders: ThreadPoolExecutor | None = None

    def _gauge(self, name: str, text: str, value: Callable[[], int]) -> None:
        Gauge(name, text, registry=self.registry).set_function(value)

    @property
    def name(self) -> str:
        """Of the map, for people."""
        return self.serving.name or self.live.place_map.path.stem

    def hidden_photos(self) -> HiddenPhotos:
        """Photos without thumbnails, as they are outside the folders that may be shown; on a server, of a sample."""
        return hidden_photos(self.listing.files(), self.live.place_map.path.parent, self.photo_folders)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Threads and queues at work; left when every request has its answer."""
        with ExitStack() as stack:
            stack.callback(self.listing.close)
            stack.callback(self.live.close)
            self._decoders = stack.enter_context(ThreadPoolExecutor(self.limits.decoders, "sareloc-decode"))
            for queue in (self.questions, self.additions, self.heats):
                stack.enter_context(queue.running())
            await self.questions.in_thread(self.live.catch_up)
            yield

    def model_size(self, height: int, width: int) -> tuple[int, int]:
        """The size rule of the model, within the limit of pixels for it."""
        size = self.live.model.preprocess.size(height, width)
        if size[0] * size[1] > self.limits.model_pixels:
            raise ArgumentError(
                f"it would be looked at with {size[0]} x {size[1]} px, more than {self.limits.model_pixels / 1e6:g} "
                "megapixels: send a smaller or less elongated one"
            )
        return size

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do something that takes a while, such as decoding, in one of the threads for it."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, work)

    async def decode(self, upload: Upload, size: SizeRule) -> Image | PhotoError:
        """Pixels of a photo, or why there are none."""

        def work() -> Image | PhotoError:
            try:
                return decode(upload.content, size=size, name=upload.name, max_pixels=self.limits.max_pixels)
            except PhotoError as error:
                return error

        return await self.off_loop(work)

    async def localize(self, uploads: Sequence[Upload], near: Area | None, top: int) -> list[Fix | PhotoError]:
        """Where each photo was taken, or why it cannot be decoded."""

        async def one(upload: Upload) -> Fix | PhotoError:
            image = await self.decode(upload, self.model_size)
            if isinstance(image, PhotoError):
                return image
            return await self.questions.ask(Question(image, near, top))

        with self.questions.reserve(len(uploads)):
            found = await asyncio.gather(*map(one, uploads))
        for fix in found:
            self._photos.labels(_outcome(fix)).inc()
        return found

    async def heat(self, upload: Upload) -> bytes | PhotoError:
        """A heat map of what in the photo mattered, as PNG."""
        with self.heats.reserve(1):
            image = await self.decode(upload, self._heat_size)
            return image if isinstance(image, PhotoError) else await self.heats.ask(image)

    def _heat_size(self, height: int, width: int) -> tuple[int, int]:
        self.model_size(height, width)  # what cannot be localized has no heat map
        return heat_size(height, width)

    def _draw_heats(self, images: Sequence[Image]) -> list[bytes]:
        return [draw_heat(self.live.model, image) for image in images]

    async def add(self, uploads: Sequence[Upload], position: Geotag | None) -> list[int | PhotoError]:
        """The ids under which the map holds these photos from now on; `position` counts for those without a geotag."""

        async def one(upload: Upload) -> int | PhotoError:
            photo = await self.off_loop(
                lambda: examine_upload(upload, position, self.model_size, self.limits.max_pixels)
            )
            return photo if isinstance(photo, PhotoError) else await self.additions.ask(photo)

        with self.additions.reserve(len(uploads)):
            return await asyncio.gather(*map(one, uploads))


def _outcome(fix: Fix | PhotoError) -> str:
    if isinstance(fix, PhotoError):
        return "unreadable"
    return "found" if fix.found else "not in the map"
