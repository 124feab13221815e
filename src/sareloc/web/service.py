"""The service behind the routes: a map that is asked, the queues before the model, and threads that decode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from sareloc.engines.milvus_address import is_milvus_address, read_milvus_address
from sareloc.errors import ArgumentError, PhotoError
from sareloc.localize import Fix
from sareloc.photos import Geotag, SizeRule, decode
from sareloc.place_map import Area
from sareloc.web.adding import Adder, NewPhoto, examine_upload
from sareloc.web.batching import BatchQueue
from sareloc.web.heat import draw_heat, heat_size
from sareloc.web.limits import Limits, Serving
from sareloc.web.listing import Catalogue
from sareloc.web.live_map import LiveMap, Question
from sareloc.web.metrics import Metrics
from sareloc.web.thumbnails import HiddenPhotos, hidden_photos, photo_folders
from sareloc.web.uploads import Upload

if TYPE_CHECKING:
    from sareloc.web.milvus_listing import MilvusCatalogue

Image = npt.NDArray[np.uint8]
T = TypeVar("T")

HEATS_WAITING = 4


class Service:
    """Everything that requests share; open while `running`."""

    def __init__(self, live: LiveMap, batch: int, serving: Serving, limits: Limits) -> None:
        self.live = live
        self.serving = serving
        self.limits = limits
        self.metrics = Metrics()
        self.photo_folders = photo_folders(live.place_map.path, serving.photos)
        self.catalogue = _catalogue(live.place_map.path)
        self.adder = Adder(live.model, live.place_map.path, batch)
        self.questions = BatchQueue[Question, Fix](
            live.answer, batch=batch, bound=limits.queue, name="localize", observe=self.metrics.batches.observe
        )
        self.additions = BatchQueue[NewPhoto, int](self.adder.add, batch=batch, bound=limits.queue, name="add")
        self.heats = BatchQueue[Image, bytes](self._draw_heats, batch=1, bound=HEATS_WAITING, name="heat")
        self.metrics.watch("sareloc_queue_photos", "Photos accepted, not answered.", lambda: self.questions.accepted)
        self.metrics.watch("sareloc_waiting_photos", "Photos waiting for the model.", lambda: self.questions.waiting)
        self.metrics.watch("sareloc_map_photos", "Photos in the map, as last asked.", lambda: len(live.place_map))
        self._decoders: ThreadPoolExecutor | None = None

    @property
    def name(self) -> str:
        """Of the map, for people."""
        return self.serving.name or self.live.place_map.path.stem

    def hidden_photos(self) -> HiddenPhotos:
        """Photos that have no thumbnails, as they lie outside the folders that may be shown (of Milvus, a sample)."""
        return hidden_photos(self.catalogue.files(), self.live.place_map.path.parent, self.photo_folders)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Threads and queues at work; left when every request has its answer."""
        with ExitStack() as stack:
            stack.callback(self.catalogue.close)
            stack.callback(self.live.close)
            self._decoders = stack.enter_context(ThreadPoolExecutor(self.limits.decoders, "sareloc-decode"))
            for queue in (self.questions, self.additions, self.heats):
                stack.enter_context(queue.running())
            await self.questions.in_thread(self.live.prepare)
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
            self.metrics.photos.add(_outcome(fix))
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


def _catalogue(path: Path) -> Catalogue | MilvusCatalogue:
    if not is_milvus_address(path):
        return Catalogue(path)
    from sareloc.web.milvus_listing import MilvusCatalogue

    return MilvusCatalogue(read_milvus_address(path))


def _outcome(fix: Fix | PhotoError) -> str:
    if isinstance(fix, PhotoError):
        return "unreadable"
    return "found" if fix.found else "not in the map"
