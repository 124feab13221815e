"""How many samples the tables of an MP4 or MOV file claim, before FFmpeg allocates an index of them.

A table of one entry may claim two thousand million samples, for each of which FFmpeg would allocate some 40 bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MOST_SAMPLES = 20_000_000
"""Of all tracks together: two days of video with sound."""
LARGEST_INDEX = 500_000_000  # bytes of a box that is read to be checked
MOST_BOXES = 2_000_000
CONTAINERS = {
    b"moov",
    b"trak",
    b"mdia",
    b"minf",
    b"stbl",
    b"moof",
    b"traf",
    b"mvex",
    b"udta",
    b"free",
    b"hoov",
    b"edts",
}
PCM_PACKET = 1024  # samples of uncompressed sound that FFmpeg lists as one


@dataclass
class _Count:
    """The samples claimed so far, and the tables of the present track."""

    samples: int = 0
    boxes: int = 0
    handler: bytes = b""
    times: bytes = b""
    chunks: int = 0
    in_chunk: int = 0
    """The most samples of a chunk."""

    def add(self, kind: bytes, body: memoryview) -> None:
        """Count a box."""
        if kind == b"trak":
            self.handler, self.times, self.chunks, self.in_chunk, before = b"", b"", 0, 0, self.samples
        if kind in CONTAINERS:
            for inside, content in _boxes(body):
                self.add(inside, content)
        elif kind == b"cmov":
            raise ValueError("its index is compressed: convert it to MP4")
        elif kind == b"hdlr":
            if body[8:12] in (b"soun", b"vide"):  # another one says where the data are
                self.handler = bytes(body[8:12])
        elif kind == b"stts":
            self.times = bytes(body[4:16])
        elif kind in (b"stco", b"co64"):
            self.chunks = _number(body, 4)
        elif kind == b"stsc":
            table = body[8 : 8 + 12 * _number(body, 4)]
            self.in_chunk = max((_number(table, at + 4) for at in range(0, len(table) - 11, 12)), default=0)
        elif kind in (b"stsz", b"stz2"):
            self.samples += _number(body, 8)
        elif kind == b"trun":
            self.samples += _number(body, 4)
        if kind == b"trak" and self._is_pcm():
            self.samples = before + self.chunks * -(-self.in_chunk // PCM_PACKET)
        self.boxes += 1
        if self.boxes > MOST_BOXES:
            raise ValueError(f"it has more than {MOST_BOXES:,} boxes")

    def _is_pcm(self) -> bool:
        """Whether the track is sound of which each sample lasts one unit of time: FFmpeg lists many as one."""
        return self.handler == b"soun" and self.times[:4] == b"\0\0\0\1" and self.times[8:] == b"\0\0\0\1"


def check_samples(file: BinaryIO) -> None:
    """Raise ValueError if an MP4 file claims more than `MOST_SAMPLES`; files of other formats pass."""
    size = os.fstat(file.fileno()).st_size
    count, at = _Count(), 0
    while at + 8 <= size:
        file.seek(at)
        head = file.read(16)
        length, kind = _length(head, size - at), head[4:8]
        if length < 8:
            break
        if kind in CONTAINERS:
            if length > LARGEST_INDEX:
                raise ValueError(f"its index has {length:,} bytes")
            file.seek(at)
            for inside, content in _boxes(memoryview(file.read(length))):
                count.add(inside, content)
            if count.samples > MOST_SAMPLES:
                raise ValueError(f"its index claims {count.samples:,} samples, at most {MOST_SAMPLES:,} are read")
        count.boxes += 1
        if count.boxes > MOST_BOXES:
            raise ValueError(f"it has more than {MOST_BOXES:,} boxes")
        at += length


def _boxes(content: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The types and bodies of the boxes in a container, up to damage."""
    at = 0
    while at + 8 <= len(content):
        head = bytes(content[at : at + 16])
        length = _length(head, len(content) - at)
        if length < 8:
            return
        start = at + (16 if head[:4] == b"\0\0\0\1" else 8)
        yield head[4:8], content[start : at + length]
        at += length


def _length(head: bytes, left: int) -> int:
    """Of a box by its first bytes; 0 in the file: it goes on to the end."""
    length = int.from_bytes(head[:4], "big")
    return left if length == 0 else int.from_bytes(head[8:16], "big") if length == 1 else length


def _number(body: memoryview, at: int) -> int:
    return int(struct.unpack_from(">I", body, at)[0]) if at + 4 <= len(body) else 0
