"""Queues that give the photos of many requests to the model together, and the threads in which that runs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Generic, TypeVar

from sareloc.errors import MapError
from sareloc.serve.guard import busy
from sareloc.wording import plural

Item = TypeVar("Item")
Result = TypeVar("Result")

DECAY = 0.9  # of the mean seconds per item: about the last ten batches count
log = logging.getLogger("sareloc.serve")


@asynccontextmanager
async def thread_pool(threads: int, name: str) -> AsyncIterator[ThreadPoolExecutor]:
    """Threads that complete their work at the end, while the event loop goes on and answers cancelled requests."""
    pool = ThreadPoolExecutor(threads, name)
    try:
        yield pool
    finally:
        await asyncio.to_thread(pool.shutdown)


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
            raise busy(f"the service is busy with {plural(self.accepted, 'photo')}: try again in {wait_s} s", wait_s)
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
