"""The cache of search indexes in the user's cache folder; a missing, damaged or outdated index is built again.

    $SARELOC_CACHE, else the system's cache folder for sareloc (on Linux ~/.cache/sareloc)
      index/<map id>/manifest.json   the map that the parts belong to, their sizes and SHA-256
      index/<map id>/<random>.part   a faiss index, then the ids (int64) and checksums (int64) of its rows

Nothing is written to or read from the folder of a map, which may come from an untrusted source. faiss reads a part only
if its SHA-256 is the one in the manifest, which costs one read of it; its vectors are then mapped, not copied. Only
regular files in folders of the user are read. Only files that a manifest names are deleted, and files with random names
of this module that a killed process left. Links are never followed. Parts are written to a temporary name and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from sareloc.arrays import Ints
from sareloc.errors import ArgumentError
from sareloc.index.exact import load_faiss

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES = 2**20
DAY_S = 86_400
UNUSED_S = 90 * DAY_S
"""The parts of a map that was not opened for this long are deleted."""
ROW_BYTES = 16  # an id and a checksum

_MAP_ID = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-9a-f]{32}\.part")
_LEFTOVER = re.compile(r"[0-9a-f]{32}\.(part|new)")


def cache_root() -> Path:
    """The cache folder; default: the system's for sareloc, unless the environment variable SARELOC_CACHE is set."""
    given = os.environ.get("SARELOC_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("sareloc"))


@dataclass(frozen=True)
class PartFile:
    """A part as listed in the manifest."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    vectors: int


@dataclass(frozen=True, eq=False)
class SavedPart:
    """A part from the cache: a faiss index mapped from its file, and its rows."""

    file: PartFile
    index: Any
    ids: Ints
    """(n,) ascending."""
    checksums: Ints
    """(n,) of the descriptors that the vectors were made from; 0 for a vector that was deleted before saving."""


class IndexCache:
    """The saved parts of one map's index. Reading never raises: parts that cannot be used are skipped."""

    def __init__(self, map_id: str, dim: int, storage: str) -> None:
        if _MAP_ID.fullmatch(map_id) is None:  # it becomes a folder's name
            raise ArgumentError(f"a map id has 32 hexadecimal digits, found {map_id[:50]!r}")
        self.dim = dim
        self.folder = cache_root() / "index" / map_id
        self._about = {"format": FORMAT, "map": map_id, "dim": dim, "storage": storage}

    def read(self) -> list[SavedPart]:
        """The parts whose files are intact."""
        files = self._files()
        if not files:
            return []
        with suppress(OSError):
            os.utime(self.folder / MANIFEST)  # the time of the last use
        with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as threads:
            whole = list(threads.map(self._is_whole, files))
        found = (self._open(file) for file, good in zip(files, whole, strict=True) if good)
        return [part for part in found if part is not None]

    def rows(self) -> list[tuple[Ints, Ints]]:
        """The ids and checksums of each part's rows, without reading their vectors."""
        with suppress(OSError, ValueError):
            return [_read_rows(self.folder / file.name, file) for file in self._files() if self.holds(file)]
        return []

    def holds(self, file: PartFile) -> bool:
        """Whether the file of a part exists."""
        path = self.folder / file.name
        return _is_ours(path, stat.S_ISREG) and path.stat().st_size == file.size

    def write(self, index: Any, ids: Ints, checksums: Ints) -> SavedPart:
        """Write a part; `write_manifest` must follow. Raises OSError, or RuntimeError (of faiss)."""
        _make_folders(self.folder)
        faiss, name = load_faiss(), uuid.uuid4().hex
        beside = self.folder / f"{name}.new"
        try:
            faiss.write_index(index, str(beside))
            with beside.open("ab") as out:
                out.write(ids.astype("<i8").tobytes() + checksums.astype("<i8").tobytes())
            size = beside.stat().st_size
            mapped = faiss.read_index(str(beside), faiss.IO_FLAG_MMAP_IFC)
            check_index(mapped, self.dim, len(ids))
            file = PartFile(f"{name}.part", size, _digest(beside), len(ids))
            os.replace(beside, self.folder / file.name)
        finally:
            beside.unlink(missing_ok=True)
        return SavedPart(file, mapped, ids, checksums)

    def write_manifest(self, files: Sequence[PartFile], change_id: str) -> None:
        """List the parts of the index of a map at this change id, and delete those listed before.

        Indexes of maps that were not opened for 90 days are deleted too. Raises OSError.
        """
        _make_folders(self.folder)
        before = self._files()
        manifest = self._about | {"change_id": change_id, "parts": [asdict(file) for file in files]}
        beside = self.folder / f"{uuid.uuid4().hex}.new"
        try:
            beside.write_text(json.dumps(manifest, indent=1))
            os.replace(beside, self.folder / MANIFEST)
        finally:
            beside.unlink(missing_ok=True)
        used = {file.name for file in files}
        _delete(self.folder, {file.name for file in before} - used)
        _delete(self.folder, set(_leftovers(self.folder, DAY_S)) - used)
        _delete_unused(self.folder.parent, keep=self.folder)

    def _files(self) -> list[PartFile]:
        return _named_parts(self.folder, self._about)

    def _is_whole(self, file: PartFile) -> bool:
        try:
            return self.holds(file) and _digest(self.folder / file.name) == file.sha256
        except OSError:
            return False

    def _open(self, file: PartFile) -> SavedPart | None:
        faiss, path = load_faiss(), self.folder / file.name
        try:
            ids, checksums = _read_rows(path, file)
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            check_index(index, self.dim, len(ids))
        except (OSError, ValueError, RuntimeError):  # deleted meanwhile, or written by an incompatible faiss
            return None
        return SavedPart(file, index, ids, checksums) if (np.diff(ids) > 0).all() else None


def check_index(index: Any, dim: int, vectors: int) -> None:
    """Raise ValueError unless this is an index of `make_index` with this number of vectors of this dimension.

    faiss trusts the numbers in a file: if the refining index had fewer rows than codes, it would read out of bounds.
    """
    faiss = load_faiss()
    if not isinstance(index, faiss.IndexRefine):
        raise ValueError(f"the index is a {type(index).__name__}")
    codes, exact = faiss.downcast_index(index.base_index), faiss.downcast_index(index.refine_index)
    if not (isinstance(codes, faiss.IndexPreTransform) and isinstance(exact, faiss.IndexScalarQuantizer)):
        raise ValueError(f"the index consists of {type(codes).__name__} and {type(exact).__name__}")
    inner = faiss.downcast_index(codes.index)
    counts = {part.ntotal for part in (index, codes, inner, exact)}
    lengths = {part.d for part in (index, codes, exact)}
    if counts != {vectors} or lengths != {dim}:
        raise ValueError(f"the index holds {counts} vectors of {lengths} numbers, expected {vectors} of {dim}")
    if exact.sa_code_size() != 2 * dim or exact.codes.size() != 2 * dim * vectors:
        raise ValueError(f"the index holds {exact.codes.size()} bytes of vectors, expected {2 * dim * vectors}")


def _named_parts(folder: Path, about: dict[str, Any] | None = None) -> list[PartFile]:
    """The parts that the manifest of a folder lists; none if it is malformed, of another user or of another map."""
    path = folder / MANIFEST
    if not (_is_own_folder(folder.parent) and _is_own_folder(folder) and _is_ours(path, stat.S_ISREG)):
        return []
    try:
        with path.open("rb") as content:
            manifest = json.loads(content.read(MANIFEST_BYTES))
        files = [PartFile(**entry) for entry in manifest["parts"]]
        fits = about is None or all(manifest[key] == value for key, value in about.items())
        plain = all(_PART.fullmatch(file.name) and isinstance(file.sha256, str) for file in files)
        whole = all(type(file.vectors) is type(file.size) is int for file in files)
        large = all(0 < ROW_BYTES * file.vectors < file.size for file in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return files if fits and plain and whole and large else []


def _read_rows(path: Path, file: PartFile) -> tuple[Ints, Ints]:
    with path.open("rb") as content:
        content.seek(file.size - ROW_BYTES * file.vectors)
        rows = np.frombuffer(content.read(ROW_BYTES * file.vectors), dtype="<i8").astype(np.int64)
    ids, checksums = rows.reshape(2, file.vectors)
    return ids, checksums


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _is_ours(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether this is a file of a kind (not a link) that the user of this process owns."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return kind(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())


def _is_own_folder(path: Path) -> bool:
    """Whether this is a folder (not a link) that the user owns and no other user may write to."""
    return _is_ours(path, stat.S_ISDIR) and (os.name == "nt" or not path.lstat().st_mode & 0o022)


def _make_folders(folder: Path) -> None:
    folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        if not _is_own_folder(path):
            raise PermissionError(f"{path} is a link, or other users may write to it: it is not used as a cache")


def _leftovers(folder: Path, older_s: float) -> Iterator[str]:
    """Files with random names of this module that were last changed more than `older_s` seconds ago."""
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name) and _is_ours(path, stat.S_ISREG) and _age_s(path) > older_s:
            yield path.name


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _delete(folder: Path, names: set[str]) -> None:
    for name in names:
        if _is_ours(folder / name, stat.S_ISREG):
            with suppress(OSError):  # on Windows another process may have mapped it
                (folder / name).unlink()


def _delete_unused(folder: Path, keep: Path) -> None:
    for other in folder.iterdir():
        manifest = other / MANIFEST
        if other != keep and _MAP_ID.fullmatch(other.name) and _is_own_folder(other) and _age_s(manifest) > UNUSED_S:
            _delete(other, {MANIFEST, *(file.name for file in _named_parts(other)), *_leftovers(other, DAY_S)})
            with suppress(OSError):  # it has files of another origin
                other.rmdir()
