"""The service behind the routes: the threads that decode photos, and the queues that give them to the model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from sareloc.arrays import Image
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.geometry import InlierPairs, feature_size
from sareloc.localize import Fix
from sareloc.maps import Area, ListedPhotos
from sareloc.models.preprocess import Preprocess
from sareloc.photos import Geotag, ImageRecord, ReadImage, Resizing, SizeRule, ViewOptions, decode, read_image
from sareloc.serve.batching import BatchQueue, thread_pool
from sareloc.serve.config import ServeConfig
from sareloc.serve.guard import INTERNAL, Problem
from sareloc.serve.live_map import LiveMaps, Query
from sareloc.serve.pictures import heatmap_png, heatmap_size
from sareloc.serve.served_map import Addition, ServedMap, read_addition

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
HEATMAP_QUEUE, INLIERS_QUEUE = 4, 8
log = logging.getLogger("sareloc.serve")


class Service:
    """What requests share: the maps, the models, the queues and the metrics; open inside `running`."""

    def __init__(self, live: LiveMaps, config: ServeConfig) -> None:
        self.live = live
        self.maps = {name: ServedMap(name, one, config) for name, one in live.maps.items()}
        self.model = next(iter(live.maps.values())).model
        """That of the first map, which heat maps are of."""
        self.config = config
        self.registry = Registry()
        self._photos = Counter("sareloc_photos_total", "Query photos by outcome.", ("outcome",), registry=self.registry)
        self._batches = Histogram(
            "sareloc_batch_photos", "Photos given to the model at once.", buckets=BATCH_SIZES, registry=self.registry
        )
        self.queries = BatchQueue[Query, Fix](
            live.localize, batch=config.batch, bound=config.queue, name="localize", observe=self._batches.observe
        )
        self.heatmaps = BatchQueue[Image, bytes](self._draw_heatmaps, batch=1, bound=HEATMAP_QUEUE, name="heat")
        self.pairs = BatchQueue[Callable[[], InlierPairs | None], InlierPairs | None](
            lambda works: [work() for work in works], batch=1, bound=INLIERS_QUEUE, name="inliers"
        )
        self._gauge("sareloc_queue_photos", "Photos accepted and not answered.", lambda: self.queries.accepted)
        self._gauge("sareloc_waiting_photos", "Photos waiting for the model.", lambda: self.queries.waiting)
        self._gauge(
            "sareloc_map_photos",
            "Photos in the map at the last query.",
            lambda: sum(len(served.place_map) for served in self.maps.values()),
        )
        self._decoders: ThreadPoolExecutor | None = None
        self._free_decoders = asyncio.Semaphore(config.decoders)

    def _gauge(self, name: str, text: str, value: Callable[[], int]) -> None:
        Gauge(name, text, registry=self.registry).set_function(value)

    @property
    def name(self) -> str:
        """The name of the map, or the names of the maps, on the page."""
        return self.config.name or ", ".join(served.place_map.path.stem for served in self.maps.values())

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
        if inside <= limit or len(listed) == 1:
            return listed
        sampled = {}
        for name, one in listed.items():
            share = limit * one.inside // inside
            sampled[name] = replace(one, photos=[one.photos[row * len(one.photos) // share] for row in range(share)])
        return sampled

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the threads and queues while inside; leave after all requests are answered."""
        async with AsyncExitStack() as stack:
            stack.callback(self.live.close)
            self._decoders = await stack.enter_async_context(thread_pool(self.config.decoders, "sareloc-decode"))
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
                uploads, lambda upload: Query(self._read_query(upload, self.live.preprocesses), near, top), self.queries
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
        localizer = served.live.localizer
        assert localizer is not None, "the map is verified"

        def read(upload: ImageRecord) -> Callable[[], InlierPairs | None]:
            return partial(
                localizer.inlier_pairs, self._read_query(upload, [localizer.model.preprocess]), photo_id, file
            )

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
            sizes = (self._resizing(served.live.model.preprocess), feature_size)
            return read_addition(upload, position, sizes, self.config.max_pixels, views)

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

    def _read_query(self, upload: ImageRecord, preprocesses: Iterable[Preprocess]) -> ReadImage:
        """A query, read once for models that resize images so; see `Query.photo`."""
        sizes: list[SizeRule] = [*map(self._resizing, preprocesses), feature_size]
        return read_image(upload, sizes, cut=ViewOptions(), max_pixels=self.config.max_pixels)

    def _read_heatmap_image(self, upload: ImageRecord) -> Image:
        return decode(upload, size=self._heatmap_size, max_pixels=self.config.max_pixels)

    async def in_decoder(self, work: Callable[[], Result]) -> Result:
        """Call a function in one of the decoding threads; not if the caller is cancelled before one is free."""
        assert self._decoders is not None, "the service is running"
        await self._free_decoders.acquire()
        loop, job = asyncio.get_running_loop(), self._decoders.submit(work)
        # when the work ends, even if its caller was cancelled: else jobs and their photos would pile up in the executor
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(self._free_decoders.release))
        return await asyncio.wrap_future(job)

    def model_size(self, preprocess: Preprocess, height: int, width: int) -> tuple[int, int]:
        """A model's size rule. Raises ArgumentError if the resized photo exceeds `Limits.model_pixels`."""
        size = preprocess.size(height, width)
        if size[0] * size[1] > self.config.model_pixels:
            raise ArgumentError(
                f"the model would resize it to {size[0]} x {size[1]} px, more than "
                f"{self.config.model_pixels / 1e6:g} megapixels: send a smaller or less elongated photo"
            )
        return size

    def _resizing(self, preprocess: Preprocess) -> Resizing:
        """The size at which photos are encoded, with the limits of the service."""
        return Resizing(partial(self.model_size, preprocess), preprocess.interpolation)

    def _heatmap_size(self, height: int, width: int) -> tuple[int, int]:
        self.model_size(self.model.preprocess, height, width)  # the same photos are rejected as by `localize`
        return heatmap_size(height, width)

    def _draw_heatmaps(self, images: Sequence[Image]) -> list[bytes]:
        from sareloc.encode import occlusion_map  # few services draw heat maps

        return [heatmap_png(occlusion_map(self.model, image)) for image in images]


class FailedPhotoError(PhotoError):
    """The service failed on a photo by an error of its own, which it logged."""


def _outcome(fix: Fix | PhotoError) -> str:
    if isinstance(fix, FailedPhotoError):
        return "failed"
    if isinstance(fix, PhotoError):
        return "unreadable"
    return "found" if fix.found else "not in the map"


class Registry(CollectorRegistry):
    """The metrics of one app, without the `_created` series of counters and histograms.

    prometheus_client can switch these off only for the whole process, which may have other registries.
    """

    def collect(self) -> Iterator[Metric]:
        """The metrics with their present values."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
