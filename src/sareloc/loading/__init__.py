"""Many photos to images, in order, decoded in worker processes that a bad photo may kill without harm.

A worker is a plain Python process of its own (`serving`): nothing is forked, so threads and CUDA in the caller do not
matter, and nothing is pickled, so the caller's script is not run again and any function can be the size rule. One
thread for each worker (`worker`) talks with it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading.worker import Loaded, Photo, Worker
from sareloc.photos.decoding import SizeRule, decode

__all__ = ["AHEAD", "Loaded", "load_images"]

AHEAD = 5  # photos on the way for each worker: some asked of it, the others done and waiting to be taken


def load_images(
    paths: Iterable[str | Path], size: SizeRule | None, *, workers: int = 0
) -> Iterator[tuple[int, Loaded]]:
    """Each photo's number and its image (H, W, 3) uint8, or the PhotoError that says why there is none, in order.

    Images are decoded by `sareloc.photos.decode` to `size(height, width)`, in `workers` processes or, with 0, in this
    one. At most `AHEAD` photos for each worker are in memory, however long the caller takes. A bad photo never ends
    the run: even one that kills the process which decodes it gives a PhotoError, after a second try. `size` is called
    from several threads, by each worker once for photos of one size; an ArgumentError from it makes a PhotoError,
    anything else it raises is raised here.
    """
    if workers < 0:
        raise ArgumentError(f"workers must be 0 (decode in this process) or more, found {workers}")
    return _load_with_workers(paths, size, workers) if workers else _load_here(paths, size)


def _load_here(paths: Iterable[str | Path], size: SizeRule | None) -> Iterator[tuple[int, Loaded]]:
    for row, path in enumerate(paths):
        try:
            image: Loaded = decode(path, size=size)
        except PhotoError as error:
            image = error
        yield row, image


def _load_with_workers(
    paths: Iterable[str | Path], size: SizeRule | None, workers: int
) -> Iterator[tuple[int, Loaded]]:
    todo: queue.SimpleQueue[Photo | None] = queue.SimpleQueue()
    crew = [Worker(size) for _ in range(workers)]
    threads = [threading.Thread(target=worker.run, args=(todo,), daemon=True) for worker in crew]
    for thread in threads:
        thread.start()
    waiting: deque[Photo] = deque()
    row = 0
    try:
        for path in paths:
            waiting.append(Photo(str(path)))
            todo.put(waiting[-1])
            if len(waiting) == workers * AHEAD:
                yield row, waiting.popleft().loaded.result()
                row += 1
        while waiting:
            yield row, waiting.popleft().loaded.result()
            row += 1
    finally:
        # The caller may have stopped half-way: photos not begun are dropped, those begun end with their worker.
        for worker in crew:
            worker.interrupt()
        for _ in crew:
            todo.put(None)
        for thread in threads:
            thread.join()
