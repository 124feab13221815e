"""Questions of many requests, answered together by one thread: the more come at once, the more go into a batch."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from sareloc.web.problems import busy

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
