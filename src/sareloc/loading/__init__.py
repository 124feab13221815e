"""Decode many photos, in order, in worker processes; a photo that crashes its worker does not end the run.

A worker is a separate Python process (see `sareloc.loading.worker`). It is not forked, so threads and CUDA in the
caller are safe; nothing is pickled, so the caller's script is not imported again and the size rule can be any function.
Each worker has one thread in the caller that exchanges messages with it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading.worker import Loaded, Request, Worker, load_image
from sareloc.photos.decoding import SizeRule

__all__ = ["AHEAD", "Loaded", "load_images"]

AHEAD = 5  # photos in flight for each worker: requested from it, or decoded and not yet consumed


def load_images(
    paths: Iterable[str | Path],
    size: SizeRule | None,
    *,
    workers: int = 0,
    sha256_of: Callable[[int], bytes] | None = None,
) -> Iterator[tuple[int, Loaded]]:
    """Each photo's number and its image (H, W, 3) uint8, or the PhotoError with the reason, in order.

    Images are decoded by `sareloc.photos.decode` to `size(height, width)`, in `workers` processes or, with 0, in this
    one. At most `AHEAD` photos for each worker are in memory, however slow the caller is. A bad photo never ends
    the run: one that kills its worker process gives a PhotoError after a second try. `size` is called
    from several threads, by each worker once for photos of one size; an ArgumentError from it makes a PhotoError,
    anything else it raises is raised here. `sha256_of`: the `content_digest` of the photo of a number, asked for when
    the photo is requested: a photo whose content is another gives a PhotoError.
    """
    if workers < 0:
        raise ArgumentError(f"workers must be 0 (decode in this process) or more, found {workers}")
    photos = (Request(str(path), None if sha256_of is None else sha256_of(row)) for row, path in enumerate(paths))
    return _load_with_workers(photos, size, workers) if workers else _load_here(photos, size)


def _load_here(photos: Iterable[Request], size: SizeRule | None) -> Iterator[tuple[int, Loaded]]:
    for row, photo in enumerate(photos):
        try:
            image: Loaded = load_image(photo.path, photo.sha256, size)
        except PhotoError as error:
            image = error
        yield row, image


def _load_with_workers(photos: Iterable[Request], size: SizeRule | None, workers: int) -> Iterator[tuple[int, Loaded]]:
    todo: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    pool = [Worker(size) for _ in range(workers)]
    threads = [threading.Thread(target=worker.run, args=(todo,), daemon=True) for worker in pool]
    for thread in threads:
        thread.start()
    waiting: deque[Request] = deque()
    row = 0
    try:
        for photo in photos:
            waiting.append(photo)
            todo.put(waiting[-1])
            if len(waiting) == workers * AHEAD:
                yield row, waiting.popleft().loaded.result()
                row += 1
        while waiting:
            yield row, waiting.popleft().loaded.result()
            row += 1
    finally:
        # The caller may have stopped early: photos not started are dropped, those started end with their worker.
        for worker in pool:
            worker.interrupt()
        for _ in pool:
            todo.put(None)
        for thread in threads:
            thread.join()
