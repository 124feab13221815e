"""A worker of a cluster: holds the model, takes packets of photos, gives or writes their descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sareloc.checkpoint import load_model
from sareloc.descriptors import describe
from sareloc.errors import PhotoError
from sareloc.photos.decoding import TRUNCATED, is_truncated
from sareloc.photos.remote import fetch_file, is_url
from sareloc.place_map.cluster_packets import Done, Wanted, read_packet, write_done
from sareloc.place_map.examining import examine
from sareloc.place_map.records import Photo
from sareloc.place_map.sorting import Tally, pick_new, set_aside
from sareloc.place_map.store import open_store

FETCHING = 16  # photos on their way from a storage at a time

Found = tuple[str, Photo]


@dataclass(frozen=True)
class Work:
    """What a worker is there for."""

    dim: int
    batch: int
    """Photos described at once."""
    decoders: int
    """Processes that decode; 0: the worker itself."""
    out: str | None
    """The map that the worker writes to; None: it gives the descriptors back."""


class Describer:
    """Called with one packet after another. Done twice, as when a worker was lost, a packet leaves the map as once."""

    def __init__(self, checkpoint: bytes, work: Work) -> None:
        """`checkpoint`: the content of a model's .safetensors file."""
        self._work = work
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._store = None if work.out is None else open_store(work.out, write=True)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            file.write_bytes(checkpoint)
            self._model = load_model(file, None)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The packet's photos as `Done`."""
        tally = Tally()
        with TemporaryDirectory(prefix="sareloc-") as scratch:
            files: dict[str, Path] = {}
            with ThreadPoolExecutor(FETCHING) as threads:
                wanted = list(read_packet(row["packet"]))
                examined = list(threads.map(lambda one: _examine(one, Path(scratch), files), wanted))
            found = set_aside(((one.where, photo) for one, photo in zip(wanted, examined, strict=True)), tally)
            if self._store is not None:
                found, changed = pick_new(found, self._store, {}, tally)
                if changed:
                    self._store.update(changed)
            done = self._describe(found, [files[where] for where, _ in found], tally)
        if self._store is not None and done.photos:
            photos = [photo for _, photo in done.photos]
            tally.count_written(photos, self._store.add(photos, done.descriptors))
            done = Done(self._name, tally)
        return write_done(done)

    def _describe(self, found: Sequence[Found], files: Sequence[Path], tally: Tally) -> Done:
        vectors = np.zeros((len(found), self._work.dim), dtype=np.float32)
        described = np.zeros(len(found), dtype=bool)
        knobs = self._work
        for part in describe(
            self._model, files, batch=knobs.batch, workers=knobs.decoders, dim=knobs.dim, progress=False
        ):
            vectors[part.rows], described[part.rows] = part.descriptors, True
            tally.notes += [f"{found[row][0]}: {TRUNCATED}" for row in part.rows if is_truncated(files[row])]
            tally.unreadable += [PhotoError(found[row][0], error.reason) for row, error in part.errors.items()]
        rows = np.flatnonzero(described).tolist()
        return Done(self._name, tally, [found[row] for row in rows], vectors[rows])


def _examine(wanted: Wanted, scratch: Path, files: dict[str, Path]) -> Photo | PhotoError | None:
    """What a map knows of a photo, which from here on is a file: noted in `files`."""
    try:
        file = fetch_file(wanted.where, scratch) if is_url(wanted.where) else Path(wanted.where)
        table = {} if wanted.geotag is None else {os.path.abspath(file): wanted.geotag}
        photo = examine(file, wanted.name, table)
    except PhotoError as error:
        return PhotoError(wanted.where, error.reason)
    files[wanted.where] = file
    if photo is None or not is_url(wanted.where) or wanted.stamp is None:
        return photo
    return replace(photo, size_bytes=wanted.stamp[0], modified_ns=wanted.stamp[1])
