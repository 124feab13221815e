"""The caller's side of a worker process: started when first needed, asked ahead, started again after it died."""

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
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError, PhotoError, SarelocError
from sareloc.photos.decoding import SizeRule, decode, target_size

# How a thread of the caller and its worker process talk.
#
# thread -> worker [path, whether to ask for a size] as a line of JSON, up to `DEPTH` of them before an answer worker
# -> thread for each in turn: SIZE, height, width of the upright photo, if such a size is new to it thread -> worker
# ... then [height, width] to give it, or [0, 0]: never mind, as a line of JSON worker -> thread IMAGE, height, width;
# or ERROR, length, 0 and [photo, reason] in JSON
#
# A worker always has its next photo before it is done with one: the threads of the caller run in turns, and each would
# let its worker wait for milliseconds otherwise. The pixels lie in memory that both share. Through a pipe they would
# come in pieces, and for each piece the threads would wait for one another; where a system has no memory to share,
# they follow IMAGE all the same.

DEPTH = 3  # photos asked of a worker at a time, one of them in work; as many shelves
READY, SIZE, IMAGE, ERROR = range(4)
REPLY = struct.Struct("<BII")


class Shelf:
    """Memory that a worker and its thread share: room for the largest image so far. `file`: its descriptor."""

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


# The worker process: decodes the photos that its standard input names, one after another.


def serve(files: list[int]) -> None:
    """Answer requests on standard input until it ends. `files`: the shelves', used in turn; none: pixels are sent."""
    shelves = [Shelf(file) for file in files]
    answers: dict[tuple[int, int], tuple[int, int]] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the caller decides, and ends us
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the replies
    early: deque[list[Any]] = deque()  # requests that came before an answer

    def read() -> list[Any]:
        line = requests.readline()
        if not line:
            os._exit(0)  # the caller is gone
        message: list[Any] = json.loads(line)
        return message

    def reply(kind: int, first: int, second: int, content: bytes | memoryview = b"") -> None:
        replies.write(REPLY.pack(kind, first, second))
        replies.write(content)
        replies.flush()

    def ask(height: int, width: int) -> tuple[int, int]:
        if (height, width) not in answers:
            reply(SIZE, height, width)
            while isinstance((message := read())[0], str):
                early.append(message)
            target = (int(message[0]), int(message[1]))
            if target == (0, 0):
                raise ArgumentError("never mind")
            answers[height, width] = target
        return answers[height, width]

    try:
        reply(READY, 0, 0)
        number = 0
        while True:
            path, wants_size = early.popleft() if early else read()
            number += 1
            try:
                image = decode(path, size=ask if wants_size else None)
            except PhotoError as error:
                message = json.dumps([error.photo, error.reason]).encode()
                reply(ERROR, len(message), 0, message)
                continue
            height, width = image.shape[:2]
            if shelves:
                np.copyto(shelves[number % len(shelves)].pixels(height, width), image)
                reply(IMAGE, height, width)
            else:
                reply(IMAGE, height, width, image.data)
    except BrokenPipeError:
        os._exit(0)  # the caller is gone


Loaded = npt.NDArray[np.uint8] | PhotoError

START = """
import json, sys
folders, shelves = json.loads(sys.argv[1])
sys.path[:] = folders
from sareloc.loading.worker import serve
serve(shelves)
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy would start one for each core, to idle


@dataclass(eq=False)
class Photo:
    """A photo that shall be decoded, and what becomes of it."""

    path: str
    loaded: Future[Loaded] = field(default_factory=Future)
    deaths: int = 0
    """Workers that died while it was the next one to come."""


class _DiedError(Exception):
    """The worker process ended in the middle of a conversation."""


class Worker:
    """A process that decodes photos in their order, and the thread that talks with it (`run`)."""

    def __init__(self, size: SizeRule | None) -> None:
        self._size = size
        self._process: subprocess.Popen[bytes] | None = None
        self._shelves: list[Shelf] = []
        self._sent = 0  # requests that the process has got, and
        self._answered = 0  # those that it has answered
        self._interrupted = False

    def run(self, todo: queue.SimpleQueue[Photo | None]) -> None:
        """Decode what `todo` holds until it says None, or until `interrupt`."""
        asked: deque[Photo] = deque()
        while not self._interrupted:
            with contextlib.suppress(queue.Empty):
                while len(asked) < DEPTH and (photo := todo.get(block=not asked)) is not None:
                    asked.append(photo)
            if not asked:
                break
            try:
                loaded = self._converse(asked)
            except _DiedError:
                death = self._end()
                asked[0].deaths += 1
                if asked[0].deaths == 1:  # killed for what the photo did not do, it deserves a second try
                    continue
                loaded = PhotoError(asked[0].path, f"decoding it killed the worker process, twice ({death})")
            except BaseException as error:
                self._end()  # the size rule failed, and the worker still waits for its answer
                asked.popleft().loaded.set_exception(error)
                continue
            asked.popleft().loaded.set_result(loaded)
        self._end()

    def interrupt(self) -> None:
        """Kill the process from another thread; a conversation under way ends with it."""
        self._interrupted = True
        process = self._process  # the other thread may let go of it at any moment
        if process is not None:
            process.kill()

    def _end(self) -> str:
        """Kill the process, if there is one, and say how it ended."""
        if self._process is None:
            return "not started"
        process, self._process = self._process, None
        for shelf in self._shelves:
            shelf.close()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what it was not sent before it died
                assert pipe is not None
                pipe.close()
        status = process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def _converse(self, asked: deque[Photo]) -> Loaded:
        """Ask for all of these that have not been asked for, and take the first one."""
        if self._process is None:
            self._start()
        for photo in list(asked)[self._sent - self._answered :]:
            self._send([photo.path, self._size is not None])
            self._sent += 1
        path = asked[0].path
        kind, first, second = self._reply()
        refused: PhotoError | None = None
        if kind == SIZE:
            assert self._size is not None
            try:
                target = target_size(self._size, first, second, path)
            except PhotoError as error:
                refused, target = error, (0, 0)
            self._send([*target])
            kind, first, second = self._reply()
        self._answered += 1
        if kind == IMAGE:
            image = np.empty((first, second, 3), dtype=np.uint8)
            if self._shelves:
                np.copyto(image, self._shelves[self._answered % DEPTH].pixels(first, second))
            else:
                self._read_into(image.data.cast("B"))
            return image
        message = bytearray(first)
        self._read_into(memoryview(message))
        return refused or PhotoError(*json.loads(message))

    def _start(self) -> None:
        can_share = hasattr(os, "memfd_create")
        files = [os.memfd_create("sareloc-photos") for _ in range(DEPTH)] if can_share else []
        self._shelves = [Shelf(file) for file in files]
        self._sent = self._answered = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps([[str(folder) for folder in sys.path], files])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            pass_fds=files,
        )
        try:
            self._reply()
        except _DiedError:
            if self._interrupted:
                raise
            raise SarelocError(
                f"a worker process did not start ({self._end()}; its own message is on standard error): "
                "workers=0 decodes in this process"
            ) from None

    def _send(self, message: list[object]) -> None:
        requests = self._running().stdin
        assert requests is not None
        try:
            requests.write(json.dumps(message).encode() + b"\n")
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
