"""A worker process that decodes photos (`serve`), and the caller's side of it (`Worker`).

Messages between a thread of the caller and its worker:

    thread -> worker   [path, its digest or null, interpolation or null to keep its size] as a line of JSON, up to
                       `DEPTH` before a reply
    worker -> thread   for each in turn: SIZE, height, width of the upright photo, for a size that it has not seen
    thread -> worker   ... then the target [height, width], or [0, 0] to skip the photo, as a line of JSON
    worker -> thread   IMAGE, height, width; or ERROR, length, 0 and [photo, reason] in JSON

A worker always has its next request before it has finished one, since the caller's threads run in turn and would keep
it waiting for milliseconds. Pixels are in shared memory: through a pipe they would arrive in pieces, and the threads
would wait for each other at every piece. Where the system has no memory to share (no memfd), they follow IMAGE.
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
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError, PhotoError, SarelocError
from sareloc.photos.decoding import Resizing, SizeRule, interpolation_of, target_size
from sareloc.photos.images import decode, decode_unchanged

DEPTH = 3  # requests in flight for each worker, one of them being decoded; as many shared buffers
READY, SIZE, IMAGE, ERROR = range(4)
REPLY = struct.Struct("<BII")


class SharedBuffer:
    """Memory shared by a worker and its thread, as large as the largest image so far. `file`: its file descriptor."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def pixels(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """A view of the buffer as an image (height, width, 3)."""
        wanted = 3 * height * width
        if self._map is None or len(self._map) < wanted:
            if os.fstat(self._file).st_size < wanted:
                os.ftruncate(self._file, wanted)
            # the old mapping is freed with its last image
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return np.frombuffer(self._map, np.uint8, wanted).reshape(height, width, 3)

    def close(self) -> None:
        """Close the file; the memory is freed with its last user."""
        os.close(self._file)


def serve(files: list[int]) -> None:
    """Answer requests on standard input until it ends. `files`: of the shared buffers; none: send pixels."""
    buffers = [SharedBuffer(file) for file in files]
    answers: dict[tuple[int, int], tuple[int, int]] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # see `_ctrl_c_blocked`; for systems without signal masks
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the replies
    early: deque[list[Any]] = deque()  # requests read while waiting for a size

    def read() -> list[Any]:
        line = requests.readline()
        if not line:
            os._exit(0)  # the caller has ended
        message: list[Any] = json.loads(line)
        return message

    def reply(kind: int, first: int, second: int, content: bytes | memoryview = b"") -> None:
        replies.write(REPLY.pack(kind, first, second))
        replies.write(content)
        replies.flush()

    def request_size(height: int, width: int) -> tuple[int, int]:
        if (height, width) not in answers:
            reply(SIZE, height, width)
            while isinstance((message := read())[0], str):
                early.append(message)
            target = (int(message[0]), int(message[1]))
            if target == (0, 0):
                raise ArgumentError("skipped")
            answers[height, width] = target
        return answers[height, width]

    try:
        reply(READY, 0, 0)
        number = 0
        while True:
            path, digest, interpolation = early.popleft() if early else read()
            number += 1
            size = None if interpolation is None else Resizing(request_size, interpolation)
            try:
                image = load_image(path, None if digest is None else bytes.fromhex(digest), size)
            except PhotoError as error:
                message = json.dumps([error.photo, error.reason]).encode()
                reply(ERROR, len(message), 0, message)
                continue
            height, width = image.shape[:2]
            if buffers:
                np.copyto(buffers[number % len(buffers)].pixels(height, width), image)
                reply(IMAGE, height, width)
            else:
                reply(IMAGE, height, width, image.data)
    except BrokenPipeError:
        os._exit(0)  # the caller has ended


def load_image(path: str, sha256: bytes | None, size: SizeRule | None) -> npt.NDArray[np.uint8]:
    """The image at an address, which must have this content if `sha256` is given."""
    return decode(path, size=size) if sha256 is None else decode_unchanged(path, sha256, size=size)


Loaded = npt.NDArray[np.uint8] | PhotoError

START = """
import json, sys
folders, buffers = json.loads(sys.argv[1])
sys.path[:] = folders
from sareloc.loading.worker import serve
serve(buffers)
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy would start one idle thread for each core


@dataclass(eq=False)
class Request:
    """A photo to decode, and its future result."""

    path: str
    sha256: bytes | None = None
    """The content that it must have; None: any."""
    loaded: Future[Loaded] = field(default_factory=Future)
    deaths: int = 0
    """Workers that died while they decoded it."""


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Processes that this thread starts here never see SIGINT, not even while Python starts in them.

    Ctrl-C reaches all processes of a terminal's group: the caller decides, and ends its workers.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _DiedError(Exception):
    """The worker process ended before it replied."""


class Worker:
    """A process that decodes photos in order; `run` is executed by the thread that exchanges messages with it."""

    def __init__(self, size: SizeRule | None) -> None:
        self._size = size
        self._process: subprocess.Popen[bytes] | None = None
        self._buffers: list[SharedBuffer] = []
        self._sent = 0  # requests sent to the process
        self._answered = 0  # requests that it has answered
        self._interrupted = False

    def run(self, todo: queue.SimpleQueue[Request | None]) -> None:
        """Decode the requests in `todo` until it yields None, or until `interrupt`."""
        pending: deque[Request] = deque()
        while not self._interrupted:
            with contextlib.suppress(queue.Empty):
                while len(pending) < DEPTH and (photo := todo.get(block=not pending)) is not None:
                    pending.append(photo)
            if not pending:
                break
            try:
                loaded = self._exchange(pending)
            except _DiedError:
                death = self._end()
                pending[0].deaths += 1
                if pending[0].deaths == 1:  # the photo may not be the cause: try once more
                    continue
                loaded = PhotoError(pending[0].path, f"decoding it killed the worker process, twice ({death})")
            except BaseException as error:
                self._end()  # the size rule failed, and the worker still waits for a size
                pending.popleft().loaded.set_exception(error)
                continue
            pending.popleft().loaded.set_result(loaded)
        self._end()

    def interrupt(self) -> None:
        """Kill the process from another thread; an exchange in progress ends with it."""
        self._interrupted = True
        process = self._process  # the other thread may reset it at any moment
        if process is not None:
            process.kill()

    def _end(self) -> str:
        """Kill the process, if there is one; returns how it ended."""
        if self._process is None:
            return "not started"
        process, self._process = self._process, None
        for buffer in self._buffers:
            buffer.close()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # unsent bytes
                assert pipe is not None
                pipe.close()
        status = process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def _exchange(self, pending: deque[Request]) -> Loaded:
        """Send the requests that have not been sent, and return the result of the first one."""
        if self._process is None:
            self._start()
        interpolation = None if self._size is None else interpolation_of(self._size)
        for photo in list(pending)[self._sent - self._answered :]:
            self._send([photo.path, None if photo.sha256 is None else photo.sha256.hex(), interpolation])
            self._sent += 1
        path = pending[0].path
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
            if self._buffers:
                np.copyto(image, self._buffers[self._answered % DEPTH].pixels(first, second))
            else:
                self._read_into(image.data.cast("B"))
            return image
        message = bytearray(first)
        self._read_into(memoryview(message))
        return refused or PhotoError(*json.loads(message))

    def _start(self) -> None:
        can_share = hasattr(os, "memfd_create")
        files = [os.memfd_create("sareloc-photos") for _ in range(DEPTH)] if can_share else []
        self._buffers = [SharedBuffer(file) for file in files]
        self._sent = self._answered = 0
        with _ctrl_c_blocked():
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
