"""How a thread of the caller and its worker process talk.

    thread -> worker   [path, whether to ask for a size] as a line of JSON, up to `DEPTH` of them before an answer
    worker -> thread   for each in turn: SIZE, height, width of the upright photo, if such a size is new to it
    thread -> worker   ... then [height, width] to give it, or [0, 0]: never mind, as a line of JSON
    worker -> thread   IMAGE, height, width; or ERROR, length, 0 and [photo, reason] in JSON

A worker always has its next photo before it is done with one: the threads of the caller run in turns, and each would
let its worker wait for milliseconds otherwise. The pixels lie in memory that both share. Through a pipe they would come
in pieces, and for each piece the threads would wait for one another; where a system has no memory to share, they
follow IMAGE all the same.
"""

from __future__ import annotations

import mmap
import os
import struct

import numpy as np
import numpy.typing as npt

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
