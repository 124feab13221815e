"""Building a map with a Ray cluster: its workers compute descriptors; this process or the workers write the map."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from sareloc.cluster.ray import joined, run_packets
from sareloc.cluster.worker import Done, Wanted, Work, list_wanted, packets_of
from sareloc.errors import ArgumentError, PhotoError
from sareloc.maps import BuildReport, Entry, MapManifest
from sareloc.maps.build import make_report
from sareloc.maps.examine import Tally, corrected, pick_new, read_beside
from sareloc.maps.store import Storage, build_index
from sareloc.maps.target import Target
from sareloc.maps.whitening import map_model, prepare_whitening
from sareloc.models.checkpoint import save_checkpoint
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import choose_precision
from sareloc.photos import Geotag, ViewOptions, parse_address
from sareloc.photos.finding import NOT_UTF8, is_url, is_utf8
from sareloc.photos.track_geotags import TrackOptions


@dataclass(frozen=True)
class ClusterReport(BuildReport):
    """What was done with the photos, and by which workers."""

    workers: Mapping[str, int] = field(default_factory=dict)
    """The number of packets that each worker (host:process) processed."""


def build_map_on_cluster(
    model: PlaceModel,
    photos: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    cluster: str,
    geotags: str | Path | None = None,
    track: TrackOptions | None = None,
    dim: int | None = None,
    storage: Storage = "float16",
    keypoints: int | None = None,
    views: ViewOptions | None = None,
    batch: int = 8,
    workers: int = 0,
    packet: int = 256,
    progress: bool = True,
) -> ClusterReport:
    """Build a map as `build_map` does; the workers of a Ray cluster compute the descriptors.

    `photos`: folders that all machines have under the same path, or URLs that fsspec reads (s3://bucket/photos).
    `cluster`: ray://host:10001, ray://auto on a machine of the cluster, or ray://local. `packet`: photos that a worker
    gets at a time, and that are processed again if the worker is lost. `workers`: decoding processes of each worker.
    `track`: as for `build_map`, for photos in folders; raises ArgumentError with URLs.

    A map file is written by this process; to a map on a server the workers write themselves. Descriptors of photos that
    were moved since they were added to a map file are computed again. Local features are computed by this process, of
    the photos that it can read.
    """
    if packet < 1:
        raise ArgumentError(f"packet must be 1 or more, found {packet}")
    start = time.monotonic()
    manifest = MapManifest(model.name, model.fingerprint(), dim or model.dim, storage)
    with Target(out, manifest, keypoints, views) as target:
        wanted, notes = list_wanted(photos, geotags, track, lambda local: target.expand(local, workers, progress))
        local = [Path(one.where) for one in wanted if not is_url(one.where)]
        notes += prepare_whitening(target, model, local, batch=batch, workers=workers, progress=progress)
        checkpoint = checkpoint_of(model if target.store is None else map_model(model, target.store))
        with joined(cluster, len(checkpoint)) as ray:
            work = Work(manifest.dim, batch, workers, None, target.views, choose_precision(model.precision))
            building = _Building(target, ray, checkpoint, work, packet)
            building.build(wanted, str(out) if target.backend.has_remote_writers(out) else None, progress)
        features, warnings = target.add_features(None, workers, progress)
        report = make_report(building.tally, target.gone(), (*notes, *warnings), start, features)
    if target.store is not None:
        build_index(out)
    return ClusterReport(**vars(report), workers=dict(building.workers))


@dataclass
class _Building:
    target: Target
    ray: Any
    checkpoint: bytes
    work: Work
    packet: int
    tally: Tally = field(default_factory=Tally)
    workers: Counter[str] = field(default_factory=Counter)

    def build(self, listed: Sequence[Wanted], server: str | None, progress: bool) -> None:
        named = {one.name: one for one in (replace(one, name=self._name(one.where)) for one in listed)}
        self.tally.unreadable += [PhotoError(one.where, NOT_UTF8) for name, one in named.items() if not is_utf8(name)]
        wanted = [one for name, one in named.items() if is_utf8(name)]
        entries = self.target.entries([one.name for one in wanted])
        todo = [one for one in wanted if one.name not in entries or entries[one.name].stamp != one.stamp]
        new = {one.name for one in todo}
        unchanged = ((one.name, _given(one)) for one in wanted if one.name not in new)
        self._update(corrected(unchanged, entries, self.tally))
        with tqdm(
            total=len(wanted), initial=self.tally.total, desc="map", unit="photo", disable=None if progress else True
        ) as bar:
            if server is not None:
                if todo:
                    self.target.open()  # before the workers
                # A file with new content may have the former content of another file: these photos are added by one
                # process, in order, when the workers have finished.
                fresh = [one for one in todo if one.name not in entries]
                self._run(fresh, {}, replace(self.work, out=server), bar)
                todo = [one for one in todo if one.name in entries]
            self._run(todo, entries, self.work, bar)

    def _name(self, where: str) -> str:
        return where if is_url(where) else self.target.photo_name(Path(where))

    def _update(self, entries: Sequence[Entry]) -> None:
        if entries:
            self.target.open().update(entries)

    def _run(self, wanted: Sequence[Wanted], entries: dict[str, Entry], work: Work, bar: Any) -> None:
        if not wanted:
            return
        for done in run_packets(self.ray, packets_of(wanted, self.packet), self.checkpoint, work):
            self._take(done, entries)
            bar.update(self.tally.total - bar.n)

    def _take(self, done: Done, entries: dict[str, Entry]) -> None:
        self.tally.include(done.tally)
        self.workers[done.worker] += 1
        rows = {where: row for row, (where, _) in enumerate(done.photos)}
        new, changed = pick_new(done.photos, self.target.store, entries, self.tally)
        self._update(changed)
        if new:
            self.target.unnoted_views |= any(parse_address(photo.file).view for _, photo in new)
            photos, vectors = [photo for _, photo in new], done.descriptors[[rows[where] for where, _ in new]]
            self.tally.count_written(photos, self.target.open().add(photos, vectors))


def _given(wanted: Wanted) -> Geotag | None:
    return wanted.geotag if is_url(wanted.where) else wanted.geotag or read_beside(Path(wanted.where))


def checkpoint_of(model: PlaceModel) -> bytes:
    """The content of the model's .safetensors file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_checkpoint(model, file)
        return file.read_bytes()
