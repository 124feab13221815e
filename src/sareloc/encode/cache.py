"""The descriptor cache: descriptors on disk as they are computed, so that an interrupted run can be resumed."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sareloc.arrays import Ints, Vectors
from sareloc.errors import ArgumentError
from sareloc.files import replacing, writing
from sareloc.photos import stamp

FORMAT = 1
MARK_EVERY_S = 5.0  # of work that a killed run may lose; flushing after each batch would slow a GPU down


@dataclass(frozen=True)
class CacheManifest:
    """The model and the photos that a cache belongs to."""

    format: int
    model: str
    """The model's fingerprint."""
    dim: int
    dtype: str
    photos: int
    names: str
    """A hash of the photos' paths, in their order."""


class DescriptorCache:
    """A folder of descriptors, one row for each photo, and which rows are done.

    `manifest.json` is the `CacheManifest`, `vectors.npy` the descriptors, and `stamps.npy` the size and modification
    time of each photo's file when it was described, -1 before: a file that changes is described again.
    """

    def __init__(self, vectors: Vectors, stamps: Ints, current: Ints) -> None:
        self.vectors = vectors
        """(N, dim), mapped from the disk."""
        self._stamps = stamps
        self._current = current
        self._unmarked: list[Ints] = []
        self._marked_at = time.monotonic()

    @staticmethod
    def open(folder: Path, model: str, dim: int, paths: Sequence[Path]) -> DescriptorCache:
        """Open the cache, or create it; raises ArgumentError if it is of another model, dimension or list of photos."""
        names = hashlib.sha256(os.fsencode("\n".join(path.as_posix() for path in paths))).hexdigest()[:16]
        wanted = CacheManifest(FORMAT, model, dim, "float32", len(paths), names)
        manifest, vectors, stamps = (folder / name for name in ("manifest.json", "vectors.npy", "stamps.npy"))
        if not manifest.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with writing(vectors):
                np.lib.format.open_memmap(vectors, "w+", np.float32, (len(paths), dim)).flush()
                _reserve(vectors)
            with writing(stamps):
                content = io.BytesIO()  # the error of np.save on a full disk does not say so
                np.save(content, np.full((len(paths), 2), -1, dtype=np.int64))
                stamps.write_bytes(content.getvalue())
            # the manifest is written last: a folder without one is started over
            with replacing(manifest) as beside:
                beside.write_text(json.dumps(asdict(wanted), indent=2) + "\n")
        _check(folder, json.loads(manifest.read_text()), asdict(wanted))
        current = np.array([_stamp(path) for path in paths], dtype=np.int64).reshape(-1, 2)
        return DescriptorCache(np.load(vectors, mmap_mode="r+"), np.load(stamps, mmap_mode="r+"), current)

    def todo(self) -> Ints:
        """Rows of the photos that are not described as they are now."""
        return np.flatnonzero((self._stamps != self._current).any(axis=1))

    def put(self, rows: Ints, descriptors: Vectors) -> None:
        """Write the descriptors (n, dim) of these rows; they count as done at the next `mark`, a few seconds later."""
        self.vectors[rows] = descriptors
        self._unmarked.append(rows)
        if time.monotonic() - self._marked_at >= MARK_EVERY_S:
            self.mark()

    def forget(self, rows: Sequence[int]) -> None:
        """Mark these rows as not described."""
        self._stamps[rows] = -1
        self.vectors[rows] = 0

    def mark(self) -> None:
        """Write the descriptors to the disk, then mark them as done, in this order."""
        if isinstance(self.vectors, np.memmap):
            self.vectors.flush()
        for rows in self._unmarked:
            self._stamps[rows] = self._current[rows]
        self._unmarked.clear()
        self._marked_at = time.monotonic()


def _reserve(file: Path) -> None:
    """Reserve the file's space on the disk: a process that writes to mapped memory on a full disk is killed."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, max(file.stat().st_size, 1))
            except OSError as refused:
                if refused.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system cannot reserve
                    raise


def _stamp(path: Path) -> tuple[int, int]:
    found = stamp(path)
    return (-2, -2) if found is None else found  # a missing file equals no stamp: it is tried again


def _check(folder: Path, found: dict[str, object], wanted: dict[str, object]) -> None:
    differing = [f"{key} {found.get(key)} (here {value})" for key, value in wanted.items() if found.get(key) != value]
    if differing:
        raise ArgumentError(
            f"{folder} holds descriptors of another model or list of photos: {', '.join(differing)}. "
            "Give another folder, or delete this one"
        )
