"""The boxes of MP4, MOV and CR3 files (ISO base media), and how many samples the index of a video claims.

Nothing of a file is trusted. Before FFmpeg allocates an index, the samples that the tables of a video claim are
counted: a table of one entry may claim two thousand million, some 40 bytes each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

MOST_SAMPLES = 20_000_000
"""Of all tracks together: two days of video with sound."""
LARGEST_INDEX = 500_000_000  # bytes of a box that is read to be checked
MOST_BOXES = 2_000_000
CONTAINERS = set(b"moov trak mdia minf stbl moof traf mvex udta free hoov edts".split())
DEEPEST = 20
ONE = b"\0\0\0\1"
PCM_PACKET = 1024  # samples of uncompressed sound that FFmpeg lists as one


@dataclass
class _Track:
    """What the tables of a track claim."""

    handlers: set[bytes] = field(default_factory=set)
    times: list[bytes] = field(default_factory=list)
    samples: int = 0
    chunks: int = 0
    in_chunk: int = 0
    """The most samples of a chunk."""

    def listed(self) -> int:
        """The entries of FFmpeg's index: of sound of which each sample lasts one unit of time, many are one entry."""
        if self.handlers == {b"soun"} and [(one[:4], one[8:]) for one in self.times] == [(ONE, ONE)]:
            return self.chunks * -(-self.in_chunk // PCM_PACKET)
        return self.samples


@dataclass
class _Count:
    """The tracks so far."""

    tracks: list[_Track] = field(default_factory=lambda: [_Track()])  # the first: what is in none, such as fragments
    boxes: int = 0

    def add(self, kind: bytes, body: memoryview, parents: tuple[bytes, ...] = ()) -> None:
        """Count a box and those inside."""
        self.boxes += 1
        if self.boxes > MOST_BOXES or len(parents) > DEEPEST or (kind == b"trak" and kind in parents):
            raise ValueError(f"it has more than {MOST_BOXES:,} boxes, {DEEPEST} levels, or a track in a track")
        if kind == b"trak":
            self.tracks.append(_Track())
        track = self.tracks[-1 if b"trak" in parents else 0]
        if kind in CONTAINERS:
            for inside, content in boxes(body):
                self.add(inside, content, (*parents, kind))
        elif kind == b"cmov":
            raise ValueError("its index is compressed: convert it to MP4")
        elif kind == b"hdlr" and bytes(body[8:12]) not in (b"url ", b"alis"):  # these say where the data are
            track.handlers.add(bytes(body[8:12]))
        elif kind == b"stts":
            track.times.append(bytes(body[4:16]))
        elif kind in (b"stco", b"co64"):
            track.chunks = max(track.chunks, _number(body, 4))
        elif kind == b"stsc":
            rows = np.frombuffer(body[8 : 8 + (len(body) - 8) // 12 * 12], ">u4") if len(body) > 8 else np.zeros(0)
            track.in_chunk = max(track.in_chunk, int(rows[1::3].max(initial=0)))
        elif kind in (b"stsz", b"stz2"):
            track.samples += _number(body, 8)
        elif kind == b"trun":
            track.samples += _number(body, 4)

    def listed(self) -> int:
        """The entries of FFmpeg's index."""
        return sum(track.listed() for track in self.tracks)


def check_samples(file: BinaryIO) -> None:
    """Raise ValueError if an MP4 file claims more than `MOST_SAMPLES`; files of other formats pass."""
    count = _Count()
    for kind, body, _ in top_boxes(file, CONTAINERS):
        count.add(kind, body)
        if (claimed := count.listed()) > MOST_SAMPLES:
            raise ValueError(f"its index claims {claimed:,} samples, at most {MOST_SAMPLES:,} are read")


def top_boxes(file: BinaryIO, kinds: Container[bytes]) -> Iterator[tuple[bytes, memoryview, bool]]:
    """The boxes of these kinds on the top level of an MP4 file, up to damage: type, body, and whether it is whole.

    Raises ValueError if one is larger than `LARGEST_INDEX`, or if there are more than `MOST_BOXES` of all kinds.
    """
    size = os.fstat(file.fileno()).st_size
    at = seen = 0
    while at + 8 <= size:
        file.seek(at)
        head = file.read(16)
        length, kind = _length(head, size - at), head[4:8]
        if length < 8:
            return
        if kind in kinds:
            if length > LARGEST_INDEX:
                raise ValueError(f"its index has {length:,} bytes")
            file.seek(at)
            content = memoryview(file.read(length))
            yield kind, content[_head_bytes(head) :], len(content) == length
        seen += 1
        if seen > MOST_BOXES:
            raise ValueError(f"it has more than {MOST_BOXES:,} boxes")
        at += length


def boxes(content: memoryview, *, whole: bool = False) -> Iterator[tuple[bytes, memoryview]]:
    """The types and bodies of the boxes in a container, up to damage; `whole`: without one that is cut off."""
    at = 0
    while at + 8 <= len(content):
        head = bytes(content[at : at + 16])
        length = _length(head, len(content) - at)
        if length < 8 or (whole and at + length > len(content)):
            return
        yield head[4:8], content[at + _head_bytes(head) : at + length]
        at += length


def first_box(content: memoryview, name: bytes) -> memoryview:
    """The body of the first box of a type in a container; empty if there is none."""
    return next((body for kind, body in boxes(content) if kind == name), memoryview(b""))


def _head_bytes(head: bytes) -> int:
    """Of a box by its first bytes: those before its body."""
    return 16 if head[:4] == ONE else 8


def _length(head: bytes, left: int) -> int:
    """Of a box by its first bytes; 0 in the file: it goes on to the end."""
    length = int.from_bytes(head[:4], "big")
    return left if length == 0 else int.from_bytes(head[8:16], "big") if length == 1 else length


def _number(body: memoryview, at: int) -> int:
    return int(struct.unpack_from(">I", body, at)[0]) if at + 4 <= len(body) else 0
