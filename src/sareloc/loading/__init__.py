"""Read many images, in order, in worker processes; an image that crashes its worker does not end the run.

A worker is a separate Python process (see `sareloc.loading.worker`). It is not forked, so threads and CUDA in the
caller are safe; nothing is pickled, so the caller's script is not imported again and size rules can be any function.
Each worker has one thread in the caller that exchanges messages with it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos.decoding import SizeRule
from sareloc.photos.panoramas import ViewOptions
from sareloc.photos.read_image import ReadImage, read_image
from sareloc.photos.record import Image, ImageRecord, record_of

if TYPE_CHECKING:
    from sareloc.loading.worker import Request

__all__ = ["AHEAD", "Loaded", "read_images"]

Loaded = ReadImage | PhotoError

AHEAD = 5  # images in flight for each worker: requested from it, or read and not yet consumed


def read_images(
    images: Iterable[Image | ImageRecord],
    sizes: Sequence[SizeRule | None],
    *,
    cut: ViewOptions | None = None,
    digest: bool = False,
    workers: int = 0,
) -> Iterator[tuple[int, Loaded]]:
    """Each image's number and what `read_image` returns, or the PhotoError with the reason, in order.

    At most `AHEAD` images for each worker are in memory, however slow the caller is. A bad image never ends the run:
    one that kills its worker process gives a PhotoError after a second try.

    Args:
        images: as for `read_image`; those that are not files are read in this process.
        sizes: size rules; called from several threads, by each worker once for images of one size. An ArgumentError
            from one makes a PhotoError, anything else it raises is raised here.
        cut: see `read_image`.
        digest: see `read_image`.
        workers: processes that read; 0: this one.
    """
    if workers < 0:
        raise ArgumentError(f"workers must be 0 (read in this process) or more, found {workers}")
    records = (
        record_of(image, f"photo {row}" if isinstance(image, bytes) else None) for row, image in enumerate(images)
    )
    if workers:
        return enumerate(_read_with_workers(records, sizes, cut, digest, workers))
    return enumerate(_read(record, sizes, cut, digest) for record in records)


def _read(record: ImageRecord, sizes: Sequence[SizeRule | None], cut: ViewOptions | None, digest: bool) -> Loaded:
    try:
        return read_image(record, sizes, cut=cut, digest=digest)
    except PhotoError as error:
        return error


def _read_with_workers(
    records: Iterable[ImageRecord],
    sizes: Sequence[SizeRule | None],
    cut: ViewOptions | None,
    digest: bool,
    workers: int,
) -> Iterator[Loaded]:
    from sareloc.loading.worker import Request, Worker

    todo: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    pool = [Worker(sizes, cut, digest) for _ in range(workers)]
    threads = [threading.Thread(target=worker.run, args=(todo,), daemon=True) for worker in pool]
    for thread in threads:
        thread.start()
    waiting: deque[Request] = deque()
    try:
        for record in records:
            waiting.append(Request(record))
            if isinstance(record.image, str | Path):
                todo.put(waiting[-1])
            else:
                waiting[-1].loaded.set_result(_read(record, sizes, cut, digest))
            if len(waiting) == workers * AHEAD:
                yield waiting.popleft().loaded.result()
        while waiting:
            yield waiting.popleft().loaded.result()
    finally:
        # The caller may have stopped early: images not started are dropped, those started end with their worker.
        for worker in pool:
            worker.interrupt()
        for _ in pool:
            todo.put(None)
        for thread in threads:
            thread.join()
