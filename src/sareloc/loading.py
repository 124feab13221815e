"""Many photos to images, in order, decoded in worker processes that a bad photo may kill without harm.

A worker is a plain Python process of its own that imports this module: nothing is forked, so threads and CUDA in the
caller do not matter, and nothing is pickled, so the caller's script is not run again and any function can be the size
rule. One thread for each worker asks it for one photo after another, and answers when it asks for the size:

    thread -> worker   [path, whether to ask for a size] as a line of JSON
    worker -> thread   SIZE, height, width of the upright photo, if it has not asked about such photos before
    thread -> worker   the height and width to give it, or 0, 0: never mind
    worker -> thread   IMAGE, height, width, or ERROR, length, 0 and [photo, reason] in JSON

The pixels lie in memory that both share. Through a pipe they would come in pieces, and for each piece the threads of
the caller would wait for one another; where a system has no memory to share, they follow IMAGE all the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
import queue
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError, PhotoError, SarelocError
from sareloc.photos.decoding import SizeRule, decode, target_size

Loaded = npt.NDArray[np.uint8] | PhotoError

AHEAD = 3  # photos on the way for each worker: one being decoded, the others done and waiting to be taken
READY, SIZE, IMAGE, ERROR = range(4)
REPLY = struct.Struct("<BII")
ANSWER = struct.Struct("<II")
NOT_SHARED = -1
START = """
import json, sys
folders, shelf = json.loads(sys.argv[1])
sys.path[:] = folders
from sareloc.loading import serve
serve(shelf)
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy would start one for each core, to idle


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
    crew = [_Worker() for _ in range(workers)]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in crew:
        idle.put(worker)

    def load(path: str | Path) -> Loaded:
        worker = idle.get()
        try:
            return worker.decode(str(path), size)
        finally:
            idle.put(worker)

    waiting: deque[Future[Loaded]] = deque()
    threads = ThreadPoolExecutor(workers, thread_name_prefix="sareloc-loading")
    row = 0
    try:
        for path in paths:
            waiting.append(threads.submit(load, path))
            if len(waiting) == workers * AHEAD:
                yield row, waiting.popleft().result()
                row += 1
        while waiting:
            yield row, waiting.popleft().result()
            row += 1
    finally:
        # The caller may have stopped half-way: photos not begun are dropped, those begun end with their worker.
        for future in waiting:
            future.cancel()
        for worker in crew:
            worker.interrupt()
        threads.shutdown()
        for worker in crew:
            worker.end()


class _Shelf:
    """Memory that a worker and its thread share: room for the largest image so far."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def pixels(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """An image's place on it (height, width, 3)."""
        wanted = 3 * height * width
        if self._map is None or len(self._map) < wanted:
            if os.fstat(self._file).st_size < wanted:
                os.ftruncate(self._file, wanted)
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)  # the old one goes with its last image
        return np.frombuffer(self._map, np.uint8, wanted).reshape(height, width, 3)

    def close(self) -> None:
        """Give the file back; the memory goes with its last user."""
        os.close(self._file)


class _DiedError(Exception):
    """The worker process ended in the middle of a conversation."""


class _Worker:
    """A process that decodes one photo at a time: started when first needed, and again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._shelf: _Shelf | None = None
        self._interrupted = False

    def decode(self, path: str, size: SizeRule | None) -> Loaded:
        """The photo's image, or why there is none."""
        death = ""
        for _ in range(2):  # killed for what the photo did not do (memory was short), it deserves a second try
            try:
                return self._converse(path, size)
            except _DiedError:
                death = self.end()
                if self._interrupted:
                    break
            except BaseException:
                self.end()  # the size rule failed, and the worker still waits for its answer
                raise
        return PhotoError(path, f"decoding it killed the worker process, twice ({death})")

    def interrupt(self) -> None:
        """Kill the process from another thread; a conversation under way ends with it."""
        self._interrupted = True
        process = self._process  # the other thread may let go of it at any moment
        if process is not None:
            process.kill()

    def end(self) -> str:
        """Kill the process, if there is one, and say how it ended."""
        if self._process is None:
            return "not started"
        process, self._process = self._process, None
        if self._shelf is not None:
            self._shelf.close()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what it was not sent before it died
                assert pipe is not None
                pipe.close()
        status = process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def _converse(self, path: str, size: SizeRule | None) -> Loaded:
        if self._process is None:
            self._start()
        self._send(json.dumps([path, size is not None]).encode() + b"\n")
        kind, first, second = self._reply()
        refused: PhotoError | None = None
        if kind == SIZE:
            assert size is not None
            try:
                target = target_size(size, first, second, path)
            except PhotoError as error:
                refused, target = error, (0, 0)
            self._send(ANSWER.pack(*target))
            kind, first, second = self._reply()
        if kind == IMAGE:
            image = np.empty((first, second, 3), dtype=np.uint8)
            if self._shelf is None:
                self._read_into(image.data.cast("B"))
            else:
                np.copyto(image, self._shelf.pixels(first, second))
            return image
        message = bytearray(first)
        self._read_into(memoryview(message))
        return refused or PhotoError(*json.loads(message))

    def _start(self) -> None:
        shared = os.memfd_create("sareloc-photos") if hasattr(os, "memfd_create") else NOT_SHARED
        self._shelf = None if shared == NOT_SHARED else _Shelf(shared)
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps([[str(folder) for folder in sys.path], shared])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            pass_fds=() if shared == NOT_SHARED else (shared,),
        )
        try:
            self._reply()
        except _DiedError:
            if self._interrupted:
                raise
            raise SarelocError(
                f"a worker process did not start ({self.end()}; its own message is on standard error): "
                "workers=0 decodes in this process"
            ) from None

    def _send(self, message: bytes) -> None:
        requests = self._running().stdin
        assert requests is not None
        try:
            requests.write(message)
            requests.flush()
        except OSError as broken_pipe:
            raise _DiedError from broken_pipe

    def _reply(self) -> tuple[int, int, int]:
        message = bytearray(REPLY.size)
        self._read_into(memoryview(message))
        kind, first, second = REPLY.unpack(message)
        return kind, first, second

    def _read_into(self, place: memoryview) -> None:
        replies = self._running().stdout
        assert isinstance(replies, io.BufferedReader)
        if replies.readinto(place) < len(place):
            raise _DiedError

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process


def serve(shared: int) -> None:
    """The worker's side: answer requests on standard input until it ends. `shared`: the file of the shelf."""
    shelf = None if shared == NOT_SHARED else _Shelf(shared)
    answers: dict[tuple[int, int], tuple[int, int]] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the caller decides, and ends us
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the replies

    def reply(kind: int, first: int, second: int, content: bytes | memoryview = b"") -> None:
        replies.write(REPLY.pack(kind, first, second))
        replies.write(content)
        replies.flush()

    def ask(height: int, width: int) -> tuple[int, int]:
        if (height, width) not in answers:
            reply(SIZE, height, width)
            target: tuple[int, int] = ANSWER.unpack(requests.read(ANSWER.size))
            if target == (0, 0):
                raise ArgumentError("never mind")
            answers[height, width] = target
        return answers[height, width]

    try:
        reply(READY, 0, 0)
        for line in iter(requests.readline, b""):
            path, wants_size = json.loads(line)
            try:
                image = decode(path, size=ask if wants_size else None)
            except PhotoError as error:
                message = json.dumps([error.photo, error.reason]).encode()
                reply(ERROR, len(message), 0, message)
                continue
            height, width = image.shape[:2]
            if shelf is None:
                reply(IMAGE, height, width, image.data)
            else:
                np.copyto(shelf.pixels(height, width), image)
                reply(IMAGE, height, width)
    except (BrokenPipeError, struct.error):
        os._exit(0)  # the caller is gone
