"""Building a map on many machines: they describe, and one process, or a server that they all reach, keeps the map."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from sareloc.checkpoint import save_checkpoint
from sareloc.engines.milvus_address import is_milvus_address, read_milvus_address
from sareloc.errors import ArgumentError
from sareloc.models.place_model import PlaceModel
from sareloc.photos.remote import is_url
from sareloc.place_map.building import BuildReport, check_same
from sareloc.place_map.cluster_packets import Done, Wanted, list_wanted, packets_of
from sareloc.place_map.cluster_worker import Work
from sareloc.place_map.place_map import PlaceMap
from sareloc.place_map.ray_cluster import joined, run_packets
from sareloc.place_map.records import Entry, Manifest
from sareloc.place_map.sorting import Tally, pick_new
from sareloc.place_map.storage import Storage
from sareloc.place_map.store import MapStore, open_or_create_store


@dataclass(frozen=True)
class ClusterReport(BuildReport):
    """What became of the photos, and who saw to it."""

    workers: Mapping[str, int] = field(default_factory=dict)
    """How many packets each worker (host:process) has done."""


def build_map_on_cluster(
    model: PlaceModel,
    photos: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    cluster: str,
    geotags: str | Path | None = None,
    dim: int | None = None,
    storage: Storage = "float16",
    batch: int = 8,
    workers: int = 0,
    packet: int = 256,
    progress: bool = True,
) -> ClusterReport:
    """Make a map of photos as `build_map` does, described by the workers of a Ray cluster.

    `photos`: folders that all machines see under the same path, or URLs that fsspec reads (s3://bucket/photos).
    `cluster`: ray://host:10001, ray://auto on a machine of the cluster, or ray://local. `packet` photos are handed to a
    worker at a time: so many are done again where one is lost. `workers` processes decode for each of them.

    A map in a file is written by this process alone; to a Milvus server the workers write. Photos that were moved
    since they were put into a file's map are described once more.
    """
    if packet < 1:
        raise ArgumentError(f"a packet holds one photo or more, found {packet}")
    start, checkpoint = time.monotonic(), checkpoint_of(model)
    manifest = Manifest(model.name, model.fingerprint(), dim or model.dim, storage)
    with joined(cluster, len(checkpoint)) as ray, open_or_create_store(out, manifest) as store:
        check_same(store, model, manifest.dim, storage)
        building = _Building(store, ray, checkpoint, Work(manifest.dim, batch, workers, None), packet)
        wanted, notes = list_wanted(photos, geotags)
        building.build(wanted, _server(out), progress)
    PlaceMap(out).settle()
    tally = building.tally
    return ClusterReport(
        added=tally.added,
        already=tally.already,
        untagged=tuple(tally.untagged),
        unreadable=tuple(tally.unreadable),
        seconds=time.monotonic() - start,
        notes=notes,
        workers=dict(building.workers),
    )


@dataclass
class _Building:
    store: MapStore
    ray: Any
    checkpoint: bytes
    work: Work
    packet: int
    tally: Tally = field(default_factory=Tally)
    workers: Counter[str] = field(default_factory=Counter)

    def build(self, listed: Sequence[Wanted], server: str | None, progress: bool) -> None:
        wanted = [replace(one, name=self._name(one.where)) for one in listed]
        entries = self.store.entries([one.name for one in wanted])
        todo = [one for one in wanted if one.name not in entries or entries[one.name].stamp != one.stamp]
        self.tally.already = len(wanted) - len(todo)
        with tqdm(
            total=len(wanted), initial=self.tally.already, desc="map", unit="photo", disable=None if progress else True
        ) as bar:
            if server is not None:
                # A file with new content may hold what was another file's: only who sees all of them in order may
                # put these in, and when nobody else writes any more.
                fresh = [one for one in todo if one.name not in entries]
                self._run(fresh, {}, replace(self.work, out=server), bar)
                todo = [one for one in todo if one.name in entries]
            self._run(todo, entries, self.work, bar)

    def _name(self, where: str) -> str:
        return where if is_url(where) else self.store.file_name(Path(where))

    def _run(self, wanted: Sequence[Wanted], entries: dict[str, Entry], work: Work, bar: Any) -> None:
        if not wanted:
            return
        for done in run_packets(self.ray, packets_of(wanted, self.packet), self.checkpoint, work):
            self._take(done, entries)
            bar.update(self.tally.total - bar.n)

    def _take(self, done: Done, entries: dict[str, Entry]) -> None:
        tally = self.tally
        tally.added += done.tally.added
        tally.already += done.tally.already
        tally.untagged += done.tally.untagged
        tally.unreadable += done.tally.unreadable
        self.workers[done.worker] += 1
        rows = {where: row for row, (where, _) in enumerate(done.photos)}
        new = pick_new(done.photos, self.store, entries, tally)
        if new:
            added = self.store.add([photo for _, photo in new], done.descriptors[[rows[where] for where, _ in new]])
            tally.added += added
            tally.already += len(new) - added


def checkpoint_of(model: PlaceModel) -> bytes:
    """The content of the model's .safetensors file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_checkpoint(model, file)
        return file.read_bytes()


def _server(out: str | Path) -> str | None:
    """The address that workers can write to; None where this process must."""
    return str(out) if is_milvus_address(out) and not read_milvus_address(out).local else None
