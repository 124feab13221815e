"""Pillow within limits: without its own warnings and limits, its errors as PhotoErrors, its memory bounded."""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from sareloc.errors import PhotoError, SarelocError

DECODING_BYTES = 600_000_000  # limit for all photos that one process decodes at the same time
BYTES_PER_PIXEL = 8  # Pillow uses four for RGB and RGBA, and there are two copies
LARGE_BYTES = 100_000_000


class _QuietPillow:
    """A context without Pillow's warnings and pixel limit (`MAX_PIXELS` is checked instead).

    Both are global to the process. Threads may overlap in any order, so the first to enter changes them and the last to
    leave restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._warnings = warnings.catch_warnings()
                self._warnings.__enter__()
                warnings.simplefilter("ignore")
                self._limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                Image.MAX_IMAGE_PIXELS = self._limit
                self._warnings.__exit__(None, None, None)


_QUIET = _QuietPillow()


@contextmanager
def pillow_errors(photo: str) -> Iterator[None]:
    """A context that silences Pillow's warnings and raises its errors (a dozen types) as PhotoError."""
    with _QUIET:
        try:
            yield
        except PhotoError:
            raise
        except SarelocError as error:
            raise PhotoError(photo, str(error)) from error
        except UnidentifiedImageError as unknown:
            raise PhotoError(photo, "not a JPEG, PNG, WebP, AVIF, TIFF, HEIC or RAW photo, or damaged") from unknown
        except Exception as error:
            why = str(error) or type(error).__name__
            raise PhotoError(photo, f"cannot be decoded: {why}") from error


class DecodingMemory:
    """The memory limit for decoding, shared by all threads of a process; a photo that needs more is decoded alone."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._freed = threading.Condition()
        self._queue = threading.Lock()  # first come, first served: small photos must not starve a large one

    @contextmanager
    def hold(self, needed: int) -> Iterator[None]:
        """A context that holds `needed` bytes; waits until they are free."""
        needed = min(needed, self._total)
        with self._queue, self._freed:
            self._freed.wait_for(lambda: self._used + needed <= self._total)
            self._used += needed
        try:
            yield
        finally:
            if needed >= LARGE_BYTES:
                _trim_heap()
            with self._freed:
                self._used -= needed
                self._freed.notify_all()


MEMORY = DecodingMemory(DECODING_BYTES)


def _trim_heap() -> None:
    """Return freed memory to the system; glibc would keep it for the thread that used it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
        if trim is not None:
            trim(0)
