"""Parts of an index on disk: files that can be thrown away and made again.

A file is faiss's own, so that its vectors are mapped rather than read, followed by the ids of its rows, a line of JSON
that says what it belongs to, and the lengths of both. It is written beside and renamed, and never changed: a file that
is there is whole.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from sareloc.engines.contract import Ints
from sareloc.engines.exact import load_faiss

SUFFIX = ".part"
MAGIC = b"sareloc index 1\n"
END = struct.Struct("<QQ16s")  # bytes of ids, bytes of JSON, magic


def save_index(folder: Path, index: Any, ids: Ints, about: dict[str, Any]) -> tuple[Path, Any]:
    """Write an index, the ids of its rows and what it belongs to; returns the file, and the index mapped from it."""
    faiss = load_faiss()
    path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
    beside = path.with_suffix(".new")
    try:
        faiss.write_index(index, str(beside))
        names, told = ids.astype("<i8").tobytes(), json.dumps(about).encode()
        with beside.open("ab") as file:
            file.write(names + told + END.pack(len(names), len(told), MAGIC))
        mapped = faiss.read_index(str(beside), faiss.IO_FLAG_MMAP_IFC)
        os.replace(beside, path)
        return path, mapped
    finally:
        beside.unlink(missing_ok=True)


def open_index(path: Path, about: dict[str, Any]) -> tuple[Any, Ints] | None:
    """The index and the ids of its rows; None where there is none, or one that belongs to something else."""
    faiss = load_faiss()
    ids = read_index_ids(path, about)
    if ids is None:
        return None
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:  # gone meanwhile, or made by a version of faiss that this one does not read
        return None
    return (index, ids) if index.ntotal == len(ids) else None


def read_index_ids(path: Path, about: dict[str, Any]) -> Ints | None:
    """The ids of an index's rows, without the index; None as for `open_index`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(size - END.size)
            ids_length, told_length, magic = END.unpack(file.read())
            if magic != MAGIC:
                return None
            file.seek(size - END.size - told_length - ids_length)
            ids = np.frombuffer(file.read(ids_length), dtype="<i8").astype(np.int64)
            return ids if json.loads(file.read(told_length)) == about else None
    except (OSError, ValueError, struct.error):
        return None
