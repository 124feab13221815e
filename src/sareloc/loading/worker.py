"""A worker process that reads images (`serve`), and the caller's side of it (`Worker`).

Messages between a thread of the caller and its worker, both as JSON after its length:

    thread -> worker   {"path", "name", "focal_35mm"}, up to `DEPTH` of them before a reply
    worker -> thread   for each in turn: SIZE {"rule", "height", "width"} of the upright image, for those not seen yet
    thread -> worker   ... then the target {"size": [height, width]}, or {"size": null} to skip the image
    worker -> thread   IMAGE and the fields of `ReadImage`; or ERROR {"photo", "reason"}

A worker always has its next request before it has finished one, since the caller's threads run in turn and would keep
it waiting for milliseconds. Pixels are in shared memory: through a pipe they would arrive in pieces, and the threads
would wait for each other at every piece. Where the system has no memory to share (no memfd), they follow IMAGE.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import mmap
import os
import queue
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc import arrays
from sareloc.errors import ArgumentError, PhotoError, SarelocError
from sareloc.loading import Loaded
from sareloc.photos.decoding import Resizing, SizeRule, interpolation_of, target_size
from sareloc.photos.panoramas import Panorama, ViewOptions
from sareloc.photos.read_image import ReadImage, read_image
from sareloc.photos.record import ImageRecord, View

DEPTH = 3  # requests in flight for each worker, one of them being read; as many shared buffers
READY, SIZE, IMAGE, ERROR = range(4)
REPLY = struct.Struct("<BI")  # the kind, and the bytes of JSON that follow
Message = dict[str, Any]


class SharedBuffer:
    """Memory shared by a worker and its thread, as large as the largest images so far. `file`: its file descriptor."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def pixels(self, wanted: int) -> npt.NDArray[np.uint8]:
        """The first `wanted` bytes of the buffer."""
        if self._map is None or len(self._map) < wanted:
            if os.fstat(self._file).st_size < wanted:
                os.ftruncate(self._file, wanted)
            # the old mapping is freed with its last image
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return np.frombuffer(self._map, np.uint8, wanted)

    def close(self) -> None:
        """Close the file; the memory is freed with its last user."""
        os.close(self._file)


def serve(files: list[int], sizes: list[str | None], cut: dict[str, Any] | None, digest: bool) -> None:
    """Answer requests on standard input until it ends.

    Args:
        files: of the shared buffers; none: send pixels.
        sizes: the interpolations of the size rules, which the caller has; None: not resized.
        cut: the `ViewOptions` of 360° photos; None: they are not cut.
        digest: see `read_image`.
    """
    buffers = [SharedBuffer(file) for file in files]
    answers: dict[tuple[int, int, int], tuple[int, int]] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # see `_ctrl_c_blocked`; for systems without signal masks
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the replies
    early: deque[Message] = deque()  # requests read while waiting for a size

    def read() -> Message:
        line = requests.readline()
        if not line:
            os._exit(0)  # the caller has ended
        message: Message = json.loads(line)
        return message

    def reply(kind: int, message: Message, pixels: bytes = b"") -> None:
        content = json.dumps(message).encode()
        replies.write(REPLY.pack(kind, len(content)) + content + pixels)
        replies.flush()

    def request_size(rule: int, height: int, width: int) -> tuple[int, int]:
        if (rule, height, width) not in answers:
            reply(SIZE, {"rule": rule, "height": height, "width": width})
            while "size" not in (message := read()):
                early.append(message)
            if message["size"] is None:
                raise ArgumentError("skipped")
            target_height, target_width = message["size"]
            answers[rule, height, width] = target_height, target_width
        return answers[rule, height, width]

    rules = [
        None if interpolation is None else Resizing(partial(request_size, rule), interpolation)  # type: ignore[arg-type]
        for rule, interpolation in enumerate(sizes)
    ]
    options: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in (cut or {}).items()}
    views = None if cut is None else ViewOptions(**options)
    try:
        reply(READY, {})
        number = 0
        while True:
            request = early.popleft() if early else read()
            number += 1
            try:
                record = ImageRecord(request["name"], request["path"], focal_35mm=request["focal_35mm"])
                image = read_image(record, rules, cut=views, digest=digest)
            except PhotoError as error:
                reply(ERROR, {"photo": error.photo, "reason": error.reason})
                continue
            pixels = [one for part in image.images for one in part.pixels]
            if buffers:
                place, at = buffers[number % len(buffers)].pixels(sum(one.size for one in pixels)), 0
                for one in pixels:
                    place[at : at + one.size] = one.reshape(-1)
                    at += one.size
                reply(IMAGE, _fields(image))
            else:
                reply(IMAGE, _fields(image), b"".join(one.tobytes() for one in pixels))
    except BrokenPipeError:
        os._exit(0)  # the caller has ended


def _fields(image: ReadImage) -> Message:
    """An image as JSON, without its pixels."""
    return {
        "name": image.name,
        "shapes": [one.shape for one in image.pixels],
        "width": image.width,
        "height": image.height,
        "focal_35mm": image.focal_35mm,
        "sha256": None if image.sha256 is None else image.sha256.hex(),
        "truncated": image.truncated,
        "note": image.note,
        "panorama": None if image.panorama is None else asdict(image.panorama),
        "view": None if image.view is None else asdict(image.view),
        "time_s": image.time_s,
        "views": [_fields(view) for view in image.views],
    }


def _image_of(fields: Message, pixels: Iterator[arrays.Image]) -> ReadImage:
    """The image of `_fields`, with the next of these pixels."""
    digest, panorama, view = fields["sha256"], fields["panorama"], fields["view"]
    return ReadImage(
        fields["name"],
        tuple(next(pixels) for _ in fields["shapes"]),
        fields["width"],
        fields["height"],
        fields["focal_35mm"],
        None if digest is None else bytes.fromhex(digest),
        truncated=fields["truncated"],
        note=fields["note"],
        panorama=None if panorama is None else Panorama(**panorama),
        view=None if view is None else View(**view),
        time_s=fields["time_s"],
        views=tuple(_image_of(part, pixels) for part in fields["views"]),
    )


def _shapes(fields: Message) -> list[list[int]]:
    return [*fields["shapes"], *(shape for view in fields["views"] for shape in _shapes(view))]


START = """
import json, sys
folders, arguments = json.loads(sys.argv[1])
sys.path[:] = folders
from sareloc.loading.worker import serve
serve(*arguments)
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy would start one idle thread for each core


@dataclass(eq=False)
class Request:
    """An image to read, and its future result."""

    record: ImageRecord
    loaded: Future[Loaded] = field(default_factory=Future)
    deaths: int = 0
    """Workers that died while they read it."""


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
    """A process that reads images in order; `run` is executed by the thread that exchanges messages with it."""

    def __init__(self, sizes: Sequence[SizeRule | None], cut: ViewOptions | None, digest: bool) -> None:
        self._sizes, self._cut, self._digest = sizes, cut, digest
        self._process: subprocess.Popen[bytes] | None = None
        self._buffers: list[SharedBuffer] = []
        self._sent = 0  # requests sent to the process
        self._answered = 0  # requests that it has answered
        self._interrupted = False

    def run(self, todo: queue.SimpleQueue[Request | None]) -> None:
        """Read the requests in `todo` until it yields None, or until `interrupt`."""
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
                loaded = PhotoError(pending[0].record.name, f"decoding it killed the worker process, twice ({death})")
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
        for photo in list(pending)[self._sent - self._answered :]:
            record = photo.record
            self._send({"path": str(record.image), "name": record.name, "focal_35mm": record.focal_35mm})
            self._sent += 1
        refused: PhotoError | None = None
        while (reply := self._reply())[0] == SIZE:
            asked = reply[1]
            rule = self._sizes[asked["rule"]]
            assert rule is not None
            try:
                target = target_size(rule, asked["height"], asked["width"], pending[0].record.name)
            except PhotoError as error:
                refused = error
            self._send({"size": None if refused else target})
        kind, message = reply
        self._answered += 1
        if kind == ERROR:
            return refused or PhotoError(message["photo"], message["reason"])
        shapes = _shapes(message)
        pixels = np.empty(sum(map(math.prod, shapes)), dtype=np.uint8)
        if self._buffers:
            np.copyto(pixels, self._buffers[self._answered % DEPTH].pixels(pixels.size))
        else:
            self._read_into(pixels.data)
        ends = np.cumsum([0, *map(math.prod, shapes)])
        parts = (pixels[ends[row] : ends[row + 1]].reshape(shape) for row, shape in enumerate(shapes))
        return _image_of(message, parts)

    def _start(self) -> None:
        can_share = hasattr(os, "memfd_create")
        files = [os.memfd_create("sareloc-photos") for _ in range(DEPTH)] if can_share else []
        self._buffers = [SharedBuffer(file) for file in files]
        self._sent = self._answered = 0
        interpolations = [None if size is None else interpolation_of(size) for size in self._sizes]
        arguments = [files, interpolations, None if self._cut is None else asdict(self._cut), self._digest]
        with _ctrl_c_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps([[str(folder) for folder in sys.path], arguments])],
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

    def _send(self, message: Message) -> None:
        requests = self._running().stdin
        assert requests is not None
        try:
            requests.write(json.dumps(message).encode() + b"\n")
            requests.flush()
        except OSError as broken_pipe:
            raise _DiedError from broken_pipe

    def _reply(self) -> tuple[int, Message]:
        head = bytearray(REPLY.size)
        self._read_into(memoryview(head))
        kind, length = REPLY.unpack(head)
        content = bytearray(length)
        self._read_into(memoryview(content))
        return kind, json.loads(content)

    def _read_into(self, place: memoryview) -> None:
        replies = self._running().stdout
        assert isinstance(replies, io.BufferedReader)
        if replies.readinto(place) < len(place):
            raise _DiedError

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process
