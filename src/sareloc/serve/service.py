"""The service behind the routes: decoding threads, queues that give the photos of many requests to the model, and which
photos may be shown.

A map contains file names, and a map may come from an untrusted source: a photo is shown only if its real path is in a
folder that the operator allows.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import io
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from scipy.ndimage import gaussian_filter

from sareloc.arrays import Image
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.geometry import InlierPairs, feature_size
from sareloc.localize import Fix
from sareloc.maps import Area, ListedPhotos, store_class
from sareloc.models import PlaceModel
from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.photos import (
    MAX_PIXELS,
    Geotag,
    ImageRecord,
    ReadImage,
    Resizing,
    SizeRule,
    ViewOptions,
    decode,
    file_of,
    longest_side,
    parse_address,
    read_image,
)
from sareloc.serve.config import Limits, Serving
from sareloc.serve.guard import INTERNAL, Problem, busy
from sareloc.serve.live_map import LiveMap, LiveMaps, Pair, Query
from sareloc.serve.uploads import Adder, Addition, read_addition

SUGGESTED = 3


def photo_folders(map_path: Path, added: Iterable[Path]) -> tuple[Path, ...]:
    """The folders whose photos may be shown, as real paths: the map file's own, and `added`."""
    for folder in added:
        if not folder.is_dir():
            raise ArgumentError(f"--photos {folder} is not a folder: give a folder with photos of the map")
    own = (map_path.parent,) if store_class(map_path).is_file else ()
    return tuple(Path(os.path.realpath(folder)) for folder in (*own, *added))


def allowed_path(path: str | Path, folders: Iterable[Path]) -> Path | None:
    """The address with the real path of its file if that is in one of these folders (real paths) or their subfolders;
    else None."""
    address = parse_address(path)
    try:
        real = Path(os.path.realpath(address.file))
    except (OSError, ValueError):  # too long, or with a NUL
        return None
    return replace(address, file=real).path if any(real.is_relative_to(folder) for folder in folders) else None


def etag_of(path: Path, size: int) -> str:
    """The ETag of a thumbnail of this size; it changes with the file. Raises OSError if there is no such file."""
    status = file_of(path).stat()
    stamp = f"{path} {status.st_size} {status.st_mtime_ns} {size}"
    return f'"{hashlib.sha256(os.fsencode(stamp)).hexdigest()[:24]}"'


def draw_thumbnail(photo: Path | ImageRecord, size: int, max_pixels: int = MAX_PIXELS) -> bytes:
    """A JPEG of a photo whose longer side has at most `size` px. Raises PhotoError if it cannot be decoded.

    max_pixels: larger photos are refused before they are decoded.
    """
    content = io.BytesIO()
    image = decode(photo, size=longest_side(size), max_pixels=max_pixels)
    Pillow.fromarray(image).save(content, "JPEG", quality=85)
    return content.getvalue()


@dataclass(frozen=True)
class HiddenPhotos:
    """Photos of a map that may not be shown."""

    count: int
    folders: tuple[str, ...]
    """Folders to allow: the one that contains all these photos, else those with most of them."""


def hidden_photos(files: Sequence[str], map_folder: Path, folders: Sequence[Path]) -> HiddenPhotos:
    """The photos of a map that are in none of the folders that may be shown; names are relative to `map_folder`."""
    hidden = collections.Counter[str]()
    for parent, count in collections.Counter(os.path.dirname(os.path.join(map_folder, file)) for file in files).items():
        if allowed_path(parent, folders) is None:
            hidden[os.path.abspath(parent)] += count
    common = os.path.commonpath(hidden) if hidden else ""
    if common and common != os.path.dirname(common):
        return HiddenPhotos(hidden.total(), (common,))
    return HiddenPhotos(hidden.total(), tuple(parent for parent, _ in hidden.most_common(SUGGESTED)))


Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
HEATMAP_QUEUE, INLIERS_QUEUE = 4, 8
HEATMAP_INPUT_PX = 224
HEATMAP_OUTPUT_PX = 512
SMOOTHING = 30  # standard deviation of the smoothing: the shorter side divided by this
OPACITY = 0.85
LOW, HIGH = np.array([200.0, 30.0, 60.0]), np.array([255.0, 225.0, 90.0])  # also differ in brightness
DECAY = 0.9  # of the mean seconds per item: about the last ten batches count
log = logging.getLogger("sareloc.serve")


class ServedMap:
    """One of the maps: which of its photos may be shown, and how photos are added to it."""

    def __init__(self, name: str, live: LiveMap, batch: int, serving: Serving, limits: Limits) -> None:
        self.name = name
        self.live = live
        self.place_map = live.place_map
        self.photo_folders = photo_folders(live.place_map.path, serving.photos)
        self.adder = Adder(live.model, live.place_map.path, batch)
        self.additions = BatchQueue[Addition, tuple[int, ...]](
            self.adder.add, batch=batch, bound=limits.queue, name="add"
        )

    def hidden_photos(self) -> HiddenPhotos:
        """Photos without thumbnails, as they are not in the folders that may be shown; on a server, of a sample."""
        return hidden_photos(self.place_map.current_files(), self.place_map.path.parent, self.photo_folders)

    def shown_file(self, photo_id: int) -> tuple[str, Path]:
        """The name of a photo in the map and its real path. Raises FileNotFoundError if it may not be shown."""
        file = self.place_map.current_file(photo_id)
        path = None if file is None else allowed_path(self.place_map.photo_path(file), self.photo_folders)
        if file is None or path is None:
            raise FileNotFoundError
        return file, path


class Service:
    """What requests share: the maps, the models, the queues and the metrics; open inside `running`."""

    def __init__(self, live: LiveMaps, batch: int, serving: Serving, limits: Limits) -> None:
        self.live = live
        self.maps = {name: ServedMap(name, one, batch, serving, limits) for name, one in live.maps.items()}
        self.model = next(iter(live.maps.values())).model
        """That of the first map, which heat maps are of."""
        self.serving = serving
        self.limits = limits
        self.registry = Registry()
        self._photos = Counter("sareloc_photos_total", "Query photos by outcome.", ("outcome",), registry=self.registry)
        self._batches = Histogram(
            "sareloc_batch_photos", "Photos given to the model at once.", buckets=BATCH_SIZES, registry=self.registry
        )
        self.queries = BatchQueue[Query, Fix](
            live.localize, batch=batch, bound=limits.queue, name="localize", observe=self._batches.observe
        )
        self.heatmaps = BatchQueue[Image, bytes](self._draw_heatmaps, batch=1, bound=HEATMAP_QUEUE, name="heat")
        self.pairs = BatchQueue[Pair, InlierPairs | None](
            lambda pairs: [pair.live.inlier_pairs(pair) for pair in pairs],
            batch=1,
            bound=INLIERS_QUEUE,
            name="inliers",
        )
        self._gauge("sareloc_queue_photos", "Photos accepted and not answered.", lambda: self.queries.accepted)
        self._gauge("sareloc_waiting_photos", "Photos waiting for the model.", lambda: self.queries.waiting)
        self._gauge(
            "sareloc_map_photos",
            "Photos in the map at the last query.",
            lambda: sum(len(served.place_map) for served in self.maps.values()),
        )
        self._decoders: ThreadPoolExecutor | None = None
        self._free_decoders = asyncio.Semaphore(limits.decoders)

    def _gauge(self, name: str, text: str, value: Callable[[], int]) -> None:
        Gauge(name, text, registry=self.registry).set_function(value)

    @property
    def name(self) -> str:
        """The name of the map, or the names of the maps, on the page."""
        return self.serving.name or ", ".join(served.place_map.path.stem for served in self.maps.values())

    def map_named(self, name: str | None) -> ServedMap:
        """The map of this name; of a service of one map it need not be named. Raises Problem (422) if there is none."""
        if name is None and len(self.maps) == 1:
            return next(iter(self.maps.values()))
        if name not in self.maps:
            found = "is missing" if name is None else f"is {name[:80]!r}"
            raise Problem(422, f"map {found}: name one of the maps of this service, {', '.join(self.maps)}")
        return self.maps[name]

    def list_photos(self, near: Area | None, limit: int, name: str | None) -> dict[str, ListedPhotos]:
        """The photos of each map, or of one; together at most `limit`, of each map its share of an even sample."""
        chosen = self.maps if name is None else {name: self.map_named(name)}
        listed = {name: served.place_map.list_photos(near, limit) for name, served in chosen.items()}
        inside = sum(one.inside for one in listed.values())
        if inside <= limit:
            return listed
        shares = {name: limit * one.inside // inside for name, one in listed.items()}
        return {
            name: replace(
                one, photos=[one.photos[row * len(one.photos) // shares[name]] for row in range(shares[name])]
            )
            if len(listed) > 1
            else one
            for name, one in listed.items()
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the threads and queues while inside; leave after all requests are answered."""
        async with AsyncExitStack() as stack:
            stack.callback(self.live.close)
            self._decoders = await stack.enter_async_context(thread_pool(self.limits.decoders, "sareloc-decode"))
            for served in self.maps.values():
                await stack.enter_async_context(served.additions.running())
            for queue in (self.queries, self.heatmaps, self.pairs):
                await stack.enter_async_context(queue.running())
            await self.queries.in_thread(self.live.refresh)
            yield

    async def localize(self, uploads: Sequence[ImageRecord], near: Area | None, top: int) -> list[Fix | PhotoError]:
        """The fix of each photo, or the error of a photo that cannot be decoded or failed."""
        try:
            found = await self._process(
                uploads, lambda upload: Query(self._read_localized(upload), near, top), self.queries
            )
        except asyncio.CancelledError:
            self._photos.labels("dropped").inc(len(uploads))
            raise
        for fix in found:
            self._photos.labels(_outcome(fix)).inc()
        return found

    async def heatmap(self, upload: ImageRecord) -> bytes | PhotoError:
        """The occlusion heat map of a photo as PNG, or the error of a photo that cannot be decoded or failed."""
        (png,) = await self._process([upload], self._read_heatmap_image, self.heatmaps)
        return png

    async def inlier_pairs(
        self, served: ServedMap, upload: ImageRecord, photo_id: int, file: str
    ) -> InlierPairs | PhotoError | None:
        """The matched keypoints of a photo and one of a map that agree, or the error of a photo that is unreadable.

        Args:
            served: the map, with `live.verifies`.
            upload: the query.
            photo_id: of the map's photo.
            file: of the map's photo.

        Returns:
            The pairs; None if the map's photo has no local features and its file cannot be read.
        """

        def read(upload: ImageRecord) -> Pair:
            return Pair(served.live, self._read_query(upload, served.live.model), photo_id, file)

        (pairs,) = await self._process([upload], read, self.pairs)
        return pairs

    async def add(
        self, served: ServedMap, uploads: Sequence[ImageRecord], position: Geotag | None
    ) -> list[tuple[int, ...] | PhotoError]:
        """Add photos to a map; the ids of their images, or the error, of each; a 360° photo becomes its views.

        Args:
            served: the map.
            uploads: the photos.
            position: of photos without a geotag.
        """
        views = await self.in_decoder(served.adder.view_options)

        def read(upload: ImageRecord) -> Addition:
            return read_addition(upload, position, self._sizes(served.live.model), self.limits.max_pixels, views)

        return await self._process(uploads, read, served.additions)

    async def _process(
        self, uploads: Sequence[ImageRecord], read: Callable[[ImageRecord], Item], queue: BatchQueue[Item, Result]
    ) -> list[Result | PhotoError]:
        """The result of each photo that `read`, in a decoding thread, prepares for the queue; or the photo's error.

        An unexpected error is that of one photo, too, and its traceback is logged. Errors of the map are raised.
        """

        async def process(upload: ImageRecord) -> Result | PhotoError:
            try:
                try:
                    item = await self.in_decoder(partial(read, upload))
                except PhotoError as unreadable:
                    return unreadable
                return await queue.submit(item)
            except MapError:
                raise
            except Exception:
                log.exception("a photo failed in the queue %r", queue.name)
                return FailedPhotoError(upload.name, INTERNAL)

        with queue.reserve(len(uploads)):
            tasks = [asyncio.create_task(process(upload)) for upload in uploads]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:  # those that an error of the map, or the end of the request, leaves behind
                    task.cancel()

    def _read_localized(self, upload: ImageRecord) -> ReadImage | ImageRecord:
        """A query, checked and read; of maps of different models, each reads it again at its own size."""
        models = {served.live.model.fingerprint(): served.live.model for served in self.maps.values()}
        read = [self._read_query(upload, model) for model in models.values()]
        return read[0] if len(read) == 1 else upload

    def _read_query(self, upload: ImageRecord, model: PlaceModel) -> ReadImage:
        return read_image(upload, self._sizes(model), cut=ViewOptions(), max_pixels=self.limits.max_pixels)

    def _read_heatmap_image(self, upload: ImageRecord) -> Image:
        return decode(upload, size=self._heatmap_size, max_pixels=self.limits.max_pixels)

    async def in_decoder(self, work: Callable[[], Result]) -> Result:
        """Call a function in one of the decoding threads; not if the caller is cancelled before one is free."""
        assert self._decoders is not None, "the service is running"
        await self._free_decoders.acquire()
        loop, job = asyncio.get_running_loop(), self._decoders.submit(work)
        # when the work ends, even if its caller was cancelled: else jobs and their photos would pile up in the executor
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(self._free_decoders.release))
        return await asyncio.wrap_future(job)

    async def in_turn(self, work: Callable[[], Result]) -> Result:
        """Call a function about an uploaded photo by `in_decoder`, as one of the photos that `Limits.queue` bounds."""
        with self.queries.reserve(1):
            return await self.in_decoder(work)

    def model_size(self, model: PlaceModel, height: int, width: int) -> tuple[int, int]:
        """A model's size rule. Raises ArgumentError if the resized photo exceeds `Limits.model_pixels`."""
        size = model.preprocess.size(height, width)
        if size[0] * size[1] > self.limits.model_pixels:
            raise ArgumentError(
                f"the model would resize it to {size[0]} x {size[1]} px, more than "
                f"{self.limits.model_pixels / 1e6:g} megapixels: send a smaller or less elongated photo"
            )
        return size

    def _sizes(self, model: PlaceModel) -> tuple[SizeRule, SizeRule]:
        """The sizes at which photos are encoded (see `Encoder.sizes`), with the limits of the service."""
        return Resizing(partial(self.model_size, model), model.preprocess.interpolation), feature_size

    def _heatmap_size(self, height: int, width: int) -> tuple[int, int]:
        self.model_size(self.model, height, width)  # the same photos are rejected as by `localize`
        return heatmap_size(height, width)

    def _draw_heatmaps(self, images: Sequence[Image]) -> list[bytes]:
        from sareloc.encode import occlusion_map  # few services draw heat maps

        return [heatmap_png(occlusion_map(self.model, image)) for image in images]


@asynccontextmanager
async def thread_pool(threads: int, name: str) -> AsyncIterator[ThreadPoolExecutor]:
    """Threads that complete their work at the end, while the event loop goes on and answers cancelled requests."""
    pool = ThreadPoolExecutor(threads, name)
    try:
        yield pool
    finally:
        await asyncio.to_thread(pool.shutdown)


class FailedPhotoError(PhotoError):
    """The service failed on a photo by an error of its own, which it logged."""


def _outcome(fix: Fix | PhotoError) -> str:
    if isinstance(fix, FailedPhotoError):
        return "failed"
    if isinstance(fix, PhotoError):
        return "unreadable"
    return "found" if fix.found else "not in the map"


class BatchQueue(Generic[Item, Result]):
    """Collects the items of many requests and processes up to `batch` of them at once, in one thread.

    It does not wait for a batch to fill: the items that arrive while a batch is processed are the next batch. If a
    batch fails, each of its items is processed alone: only those that fail again get their error.
    `process` gets items in order and returns as many results; it always runs in the same thread. `bound`: maximum
    items that are accepted and not processed. `observe` is called with the size of each batch.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        batch: int,
        bound: int,
        name: str,
        observe: Callable[[float], None] = lambda size: None,
    ) -> None:
        self._process = process
        self._batch = batch
        self._bound = bound
        self._observe = observe
        self._waiting: dict[asyncio.Future[Result], Item] = {}
        self._arrived = asyncio.Event()
        self.name = name
        self._thread: ThreadPoolExecutor | None = None
        self._item_s = 0.1  # seconds per item, an exponential mean
        self.accepted = 0
        """Items that are reserved and not processed yet."""

    @property
    def waiting(self) -> int:
        """Items that are not in a batch yet."""
        return len(self._waiting)

    @contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Reserve places for `count` items while inside. Raises Problem (503) if there are not as many free."""
        if self.accepted + count > self._bound:
            wait_s = max(1, math.ceil(self.accepted * self._item_s))
            raise busy(f"the service is busy with {self.accepted} photos: try again in {wait_s} s", wait_s)
        self.accepted += count
        try:
            yield
        finally:
            self.accepted -= count

    async def submit(self, item: Item) -> Result:
        """The result of an item; an item whose caller is cancelled before its batch starts is dropped."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[future] = item
        self._arrived.set()
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Process items while inside; items that still wait at the end are not processed."""
        async with thread_pool(1, f"sareloc-{self.name}") as self._thread:
            worker = asyncio.get_running_loop().create_task(self._work())
            try:
                yield
            finally:
                worker.cancel()

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Call a function in the queue's thread, between two batches."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            taken = self._take()
            if taken:
                await self._process_batch(taken)

    async def _process_batch(self, taken: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        start = time.monotonic()
        self._observe(len(taken))
        work = partial(self._process, [item for item, _ in taken])
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:
            if len(taken) > 1 and not isinstance(error, MapError):  # which concerns all of them
                log.warning("a batch of %d photos failed (%r): each is processed alone", len(taken), error)
                for item, future in taken:
                    if not future.done():
                        await self._process_batch([(item, future)])
                return
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(taken, results, strict=True):
            if not future.done():
                future.set_result(result)
        self._item_s = DECAY * self._item_s + (1 - DECAY) * (time.monotonic() - start) / len(taken)

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        taken: list[tuple[Item, asyncio.Future[Result]]] = []
        while self._waiting and len(taken) < self._batch:
            future = next(iter(self._waiting))
            item = self._waiting.pop(future)
            if not future.done():  # else its request was cancelled just now
                taken.append((item, future))
        if not self._waiting:
            self._arrived.clear()
        return taken


class Registry(CollectorRegistry):
    """The metrics of one app, without the `_created` series of counters and histograms.

    prometheus_client can switch these off only for the whole process, which may have other registries.
    """

    def collect(self) -> Iterator[Metric]:
        """The metrics with their present values."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def heatmap_size(height: int, width: int) -> tuple[int, int]:
    """The size of a photo for its heat map, the longer side 224 px: about eighty copies of it are described."""
    scale = HEATMAP_INPUT_PX / max(height, width)
    return max(MIN_SIDE_PX, round(height * scale)), max(MIN_SIDE_PX, round(width * scale))


def heatmap_png(heat: npt.NDArray[np.float32]) -> bytes:
    """An occlusion map (H, W) as PNG, the longer side 512 px: smoothed; the minimum is transparent."""
    height, width = heat.shape
    scale = HEATMAP_OUTPUT_PX / max(height, width)
    size = (round(width * scale), round(height * scale))
    large = np.asarray(Pillow.fromarray(heat).resize(size, Pillow.Resampling.BILINEAR))
    smooth = gaussian_filter(large, min(size) / SMOOTHING)
    shares = ((smooth - smooth.min()) / max(float(np.ptp(smooth)), 1e-9))[..., None]
    pixels = np.concatenate([LOW + (HIGH - LOW) * shares, 255 * OPACITY * shares], axis=2)
    png = io.BytesIO()
    Pillow.fromarray(pixels.round().astype(np.uint8), "RGBA").save(png, "PNG")
    return png.getvalue()
