"""An open video, which decodes the frame shown at any time: it decodes on from the last one, or seeks to a keyframe.

Times are counted from the first frame that can be decoded. A frame is the same whether the video is read in order or
not: decoding starts at a keyframe, and frames that need others from before it are not used. Only local files are read:
a video that refers to other files or to the network is an error. What the index of an MP4 or MOV file claims is checked
before FFmpeg reads it (`sareloc.photos.boxes`).
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sareloc import arrays
from sareloc.errors import PhotoError, need
from sareloc.photos.boxes import check_samples
from sareloc.photos.decoding import REDUCING_GAP, RESAMPLINGS, Interpolation, SizeRule, interpolation_of, target_size
from sareloc.photos.photo_file import MAX_PIXELS, SIDEWAYS, Turn, open_file

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts"  # no others: playlists would open other files
CODECS = {"h264", "hevc", "mpeg4", "mjpeg", "vp8", "vp9", "libdav1d", "av1", "mpeg2video", "prores"}
MOST_PIXELS = 100_000_000
"""Of a frame: 360° cameras record up to 12K, 80 megapixels; a decoder keeps many frames."""
MOST_STREAMS = 32
TOLERANCE_S = 0.001  # a frame's time is often rounded to milliseconds
JUMP_S = 0.5  # a keyframe farther ahead is sought; up to there decoding on costs less
NO_INDEX_JUMP_S = 5.0  # the same where the keyframes are unknown
LOOKAHEAD = 16  # packets read before they are decoded, to know which frames are not needed
BACK_S = (0.0, 1.0, 4.0, 16.0)  # how long before a time to look for a keyframe, until the frame can be decoded from it
MAX_IDLE = 2  # open videos kept for the next frame
UNSPECIFIED = 2  # FFmpeg's number of a colour space that the video does not name
HD_ROWS = 720  # from here on colours are BT.709 where the video does not say
ASPECTS = (Fraction(1, 4), Fraction(4))  # of pixels; others are errors of the file

TURNS: dict[tuple[int, int, int, int], Turn | None] = {  # the display matrix a, b, c, d: x' = ax + cy, y' = bx + dy
    (1, 0, 0, 1): None,
    (0, 1, -1, 0): Turn.ROTATE_270,
    (-1, 0, 0, -1): Turn.ROTATE_180,
    (0, -1, 1, 0): Turn.ROTATE_90,
    (-1, 0, 0, 1): Turn.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Turn.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Turn.TRANSPOSE,
    (0, -1, -1, 0): Turn.TRANSVERSE,
}


def open_container(path: str | Path) -> Any:
    """The file as an `av` container, its header read. Raises PhotoError if it is missing or not a video."""
    av = need("av", "video")
    with open_file(path, str(path), "video") as file:
        try:
            check_samples(file)
        except ValueError as error:
            raise PhotoError(path, f"not read as a video: {error}") from error
    options = {
        "protocol_whitelist": "file",
        "format_whitelist": FORMATS,
        "codec_whitelist": ",".join(sorted(CODECS)),
        "max_streams": str(MOST_STREAMS),
    }
    try:
        return av.open(
            f"file:{os.path.abspath(path)}",
            options={"max_pixels": str(MOST_PIXELS)},  # of all streams, which are decoded to learn their format
            container_options=options,
            metadata_errors="replace",
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        if os.path.getsize(path) == 0:
            raise PhotoError(path, "the file is empty (0 bytes)") from error
        reason = "not a video (mp4, mov, mkv, webm, avi, ts), or its beginning or end is missing"
        raise PhotoError(path, f"{reason}: a recording that was cut off may lack its index") from error


def video_stream(container: Any, path: str | Path, max_pixels: int = MAX_PIXELS) -> Any:
    """The main video stream of a container. Raises PhotoError if it has none that can be decoded."""
    stream = container.streams.best("video")
    if stream is None:
        raise PhotoError(path, "has no video stream")
    context = stream.codec_context
    if context is None or context.name not in CODECS:
        found = "unknown" if context is None else context.name
        raise PhotoError(path, f"its codec ({found}) is not supported: convert it to H.264")
    _check_size(context.width, context.height, path, max_pixels)
    return stream


def _check_size(width: int, height: int, path: str | Path, max_pixels: int) -> None:
    most = min(max_pixels, MOST_PIXELS)
    if width * height > most:
        raise PhotoError(
            path, f"{width} x {height} px is more than the limit of {most / 1e6:g} megapixels: use a smaller copy"
        )


class VideoReader:
    """An open video. Not thread-safe. Raises PhotoError if no frame of it can be decoded."""

    def __init__(self, path: str | Path, max_pixels: int = MAX_PIXELS) -> None:
        self._av = need("av", "video")
        self.path = path
        self.container = open_container(path)
        self._shown: Any = None  # the frame of the last time
        self._next: Any = None  # the frame after it
        try:
            self.stream = video_stream(self.container, path, max_pixels)
            context = self.stream.codec_context
            context.thread_count = 1  # with several, errors are reported with later frames than those they are in
            most = min(max_pixels, MOST_PIXELS)
            context.options = {"max_pixels": str(most + most // 8 + 2**20)}  # if the size changes; with margins
            self._start_here()
            self._read_ahead()
            first_packet = self._ahead[0]
            first = self._next_frame()
            if first is not None:  # the size in the header may be unknown
                _check_size(first.width, first.height, path, max_pixels)
        except BaseException:
            self.container.close()
            raise
        if first is None:
            self.container.close()
            limit = f"{min(max_pixels, MOST_PIXELS) / 1e6:g} megapixels"
            reason = f"it is damaged or truncated, or its frames have more than {limit}"
            raise PhotoError(path, f"no frame of it can be decoded: {reason}")
        self.origin: int = first.pts
        """The time of the first frame, in units of the stream's time base."""
        self._begin: int = min(time for time in (first.pts, first_packet.pts, first_packet.dts) if time is not None)
        self.turn = _turn(first)
        self._next = first

    def close(self) -> None:
        """Close the file."""
        self.container.close()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the upright frames, in square pixels."""
        context = self.stream.codec_context
        return self._upright(context.height, context.width)

    def seconds(self, pts: int) -> float:
        """The time of a frame in seconds after the first one."""
        return float((pts - self.origin) * self.stream.time_base)

    def images(self, time_s: float, sizes: Sequence[SizeRule | None], name: str) -> tuple[arrays.Image, ...]:
        """The frame shown at a time, upright, at each size; `name`: for errors (PhotoError)."""
        frame = self._frame_at(time_s, name)
        height, width = self._upright(frame.height, frame.width)
        targets = [(height, width) if size is None else target_size(size, height, width, name) for size in sizes]
        colours = "ITU709" if frame.colorspace == UNSPECIFIED and min(frame.height, frame.width) >= HD_ROWS else None
        pixels = frame.reformat(format="rgb24", src_colorspace=colours).to_ndarray()
        return tuple(
            self._resized(pixels, target, "bilinear" if size is None else interpolation_of(size))
            for target, size in zip(targets, sizes, strict=True)
        )

    def _resized(self, pixels: arrays.Image, target: tuple[int, int], interpolation: Interpolation) -> arrays.Image:
        stored = target if self.turn in SIDEWAYS else target[::-1]  # (width, height) as in the file
        if pixels.shape[1::-1] == stored and self.turn is None:
            return np.ascontiguousarray(pixels)
        upright = Image.fromarray(pixels)
        if upright.size != stored:
            upright = upright.resize(stored, RESAMPLINGS[interpolation], reducing_gap=REDUCING_GAP)
        return np.array(upright if self.turn is None else upright.transpose(self.turn))

    def _upright(self, height: int, width: int) -> tuple[int, int]:
        aspect = self.stream.sample_aspect_ratio
        if aspect and aspect != 1 and ASPECTS[0] <= aspect <= ASPECTS[1]:
            width = max(1, round(width * aspect))
        return (width, height) if self.turn in SIDEWAYS else (height, width)

    def _frame_at(self, time_s: float, name: str) -> Any:
        if not 0 <= time_s < math.inf:
            raise PhotoError(name, "the time of a frame must be 0 or more seconds")
        target = self.origin + math.floor((time_s + TOLERANCE_S) / self.stream.time_base)
        if not self._can_decode_on(target):
            self._seek(target)
        while self._next is not None and self._next.pts <= target:
            self._shown, self._next = self._next, self._next_frame(target)
        if self._shown is not None:
            self._due.difference_update([pts for pts in self._due if pts <= self._shown.pts])  # skipped frames
        if self._shown is None or any(self._shown.pts < pts <= target for pts in self._lost):
            raise PhotoError(name, f"the video cannot be decoded at {time_s:.3f} s: it is damaged there")
        if self._next is None:
            end = self.seconds(self._shown.pts)
            if time_s > end + self._shown_s() + TOLERANCE_S:
                raise PhotoError(name, f"the video ends at {end:.3f} s, or cannot be read after it")
        return self._shown

    def _shown_s(self) -> float:
        """How long the last frame is shown."""
        rate = self.stream.average_rate
        return max(float(self._shown.duration * self.stream.time_base), float(1 / rate) if rate else 0.0)

    def _can_decode_on(self, target: int) -> bool:
        """Whether the frame at `target` is the last one or is reached soonest by decoding on."""
        here = self._shown or self._next
        if here is None or (here is self._shown and target < here.pts):
            return False
        if here is self._next and target <= here.pts:
            return bool(here.pts == self.origin)  # else a frame before it is shown
        if self._next is None:
            return True
        entries = self.stream.index_entries
        found = entries.search_timestamp(target, backward=True) if len(entries) else -1
        at, limit_s = (target, NO_INDEX_JUMP_S) if found < 0 else (entries[found].timestamp, JUMP_S)
        return bool((at - self._next.pts) * self.stream.time_base <= limit_s)

    def _seek(self, target: int) -> None:
        """Go to a keyframe from which the frame at `target` can be decoded; to a later one if there is none."""
        for back_s in BACK_S:
            wanted = max(target - int(back_s / self.stream.time_base), self._begin)
            self.container.seek(wanted, stream=self.stream, backward=True)
            self._start_here()
            self._next = self._next_frame(target)
            if wanted == self._begin or (self._next is not None and self._next.pts <= target):
                return

    def _start_here(self) -> None:
        """Reset what is known of frames before the present position of the container."""
        self._packets = self.container.demux(self.stream)
        self._ahead: deque[Any] = deque()
        self._ready: deque[Any] = deque()
        self._shown = self._next = None
        self._after_key: int | None = None  # the time of the last keyframe that follows a gap; None: within a gap
        self._due: set[int] = set()  # times of frames given to the decoder and not returned by it
        self._lost: set[int] = set()  # times of frames that cannot be decoded

    def _next_frame(self, target: int | None = None) -> Any:
        """The next frame that can be decoded, in order of time; None at the end.

        Frames before the one at `target` may be left out.
        """
        while not self._ready:
            if not self._ahead:
                self._read_ahead()
            packet = self._ahead.popleft()
            if packet is None:
                self._ahead.append(None)
                self._ready.extend(self._decoded(None))
                return self._ready.popleft() if self._ready else None
            self._read_ahead()
            self._ready.extend(self._decoded(packet, target))
        return self._ready.popleft()

    def _read_ahead(self) -> None:
        while len(self._ahead) < LOOKAHEAD and (not self._ahead or self._ahead[-1] is not None):
            try:
                packet = next(self._packets, None)
            except self._av.FFmpegError:  # a damaged or truncated file
                packet = None
            self._ahead.append(None if packet is None or packet.size == 0 else packet)

    def _decoded(self, packet: Any, target: int | None = None) -> list[Any]:
        """The frames that a packet completes; at the end of the video (None): the remaining ones."""
        context = self.stream.codec_context
        if packet is not None:
            if self._after_key is None and packet.is_keyframe:
                context.flush_buffers()  # a damaged frame must not be taken for one that the next ones refer to
                self._after_key = packet.dts if packet.pts is None else packet.pts
            if packet.pts is not None and not packet.is_discard:
                self._due.add(packet.pts)
            if self._after_key is None or packet.is_corrupt:
                return self._lose()
            if packet.pts is not None and packet.pts < self._after_key:
                self._lost.add(packet.pts)  # it needs frames from before the keyframe
            context.skip_frame = "NONREF" if self._is_passed(packet, target) else "DEFAULT"
        try:
            frames = context.decode(packet)
        except self._av.FFmpegError:
            return self._lose()
        self._due.difference_update(frame.pts for frame in frames)
        self._lost |= {frame.pts for frame in frames if frame.is_corrupt}
        return [frame for frame in frames if frame.pts is not None and frame.pts not in self._lost]

    def _lose(self) -> list[Any]:
        """Give up the frames that are due, and those up to the next keyframe: some of them need what is missing."""
        self._after_key = None
        self._lost |= self._due
        return []

    def _is_passed(self, packet: Any, target: int | None) -> bool:
        """Whether a later frame than that of `packet` is shown at `target`."""
        if packet.pts is None or target is None:
            return False
        times = [later.pts for later in self._ahead if later is not None and not later.is_discard]
        return any(packet.pts < time <= target for time in times if time is not None)


def _turn(frame: Any) -> Turn | None:
    """The transposition that makes the frames upright, from the display matrix; other angles are rounded to 90°."""
    side_data = frame.side_data.get("DISPLAYMATRIX")
    if side_data is None or len(bytes(side_data)) < 36:
        return None
    matrix = np.frombuffer(bytes(side_data), np.int32)[[0, 1, 3, 4]].astype(np.float64)
    return TURNS[max(TURNS, key=lambda quarter: float(np.dot(quarter, matrix)))]


_idle: OrderedDict[tuple[object, ...], VideoReader] = OrderedDict()
_idle_lock = threading.Lock()


@contextmanager
def borrowed_reader(path: str | Path, max_pixels: int = MAX_PIXELS) -> Iterator[VideoReader]:
    """A context with an open video; the last `MAX_IDLE` ones stay open, so that the next frame is decoded from there.

    A file that has changed is opened again. Two threads never have the same reader.
    """
    with open_file(path, str(path), "video") as file:
        status = os.fstat(file.fileno())
    identity = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    key = (os.path.abspath(path), *identity, max_pixels)
    with _idle_lock:
        reader = _idle.pop(key, None)
    reader = reader or VideoReader(path, max_pixels)
    try:
        yield reader
    except PhotoError:
        _keep(key, reader)
        raise
    except BaseException:
        reader.close()
        raise
    _keep(key, reader)


def _keep(key: tuple[object, ...], reader: VideoReader) -> None:
    with _idle_lock:
        closing = [_idle.pop(key)] if key in _idle else []  # that of another thread
        _idle[key] = reader
        closing += [_idle.popitem(last=False)[1] for _ in range(len(_idle) - MAX_IDLE)]
    for old in closing:
        old.close()
