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
from sareloc.cluster.worker import Done, Work, list_records, packets_of
from sareloc.config_files import merge_options
from sareloc.maps import BuildReport, Entry
from sareloc.maps.build import finish_build, in_order, load_build_model, open_writer
from sareloc.maps.config import MapConfig
from sareloc.maps.examine import Tally, find_new
from sareloc.maps.store import map_model
from sareloc.maps.writer import MapWriter, prepare_whitening
from sareloc.models.checkpoint import save_checkpoint
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import choose_precision
from sareloc.photos import ImageRecord, is_url
from sareloc.photos.track_geotags import TrackOptions


@dataclass(frozen=True)
class ClusterReport(BuildReport):
    """What was done with the photos, and by which workers."""

    workers: Mapping[str, int] = field(default_factory=dict)
    """The number of packets that each worker (host:process) processed."""


def build_map_on_cluster(
    photos: str | Path | Sequence[str | Path],
    out: str | Path,
    model: PlaceModel | str | Path | None = None,
    *,
    cluster: str,
    geotags: str | Path | None = None,
    track: TrackOptions | None = None,
    config: MapConfig | None = None,
    **options: Any,
) -> ClusterReport:
    """Build a map as `build_map` does; the workers of a Ray cluster compute the descriptors.

    A map file is written by this process; to a map on a server the workers write themselves. Photos that were moved
    since they were added to a map file are encoded again.

    Args:
        photos: folders that all machines have under the same path, or URLs that fsspec reads (s3://bucket/photos).
        out: the map.
        model: as for `build_map`.
        cluster: ray://host:10001, ray://auto on a machine of the cluster, or ray://local.
        geotags: a table of positions.
        track: as for `build_map`, for photos in folders.
        config: as for `build_map`; `workers`: decoding processes of each worker, `packet`: photos that a worker gets at
            a time.
        options: deprecated: options of `config`.

    Raises:
        ArgumentError: if a track is given with URLs.
    """
    photos, out, model = in_order(photos, out, model)
    config = merge_options(config or MapConfig(), options)
    if not isinstance(model, PlaceModel):
        model = load_build_model(out, model, replace(config, device="cpu"))
    start = time.monotonic()
    with open_writer(out, model, config) as writer:
        records, notes = list_records(photos, geotags, track)
        tally, packets = Tally(), Counter[str]()
        rest, entries = writer.split_known(records, tally)
        if rest:
            local = [record for record in records if not is_url(record.name)]
            tally.notes += prepare_whitening(writer, model, local)
            on_server = writer.store_class.has_remote_writers(out)
            if on_server:
                writer.open()  # before the workers
            checkpoint = checkpoint_of(model if writer.store is None else map_model(model, writer.store))
            settled = replace(
                config, keypoints=writer.stored_keypoints(tally), views=writer.views, progress=False,
                precision=choose_precision(model.precision),
            )  # fmt: skip
            work = Work(str(out), False, writer.manifest, settled, writer.adaptation())
            # A file with new content may have the former content of another file: these photos are added by one
            # process, in order, when the workers have finished.
            fresh = [record for name, record in rest.items() if on_server and name not in entries]
            others = [record for name, record in rest.items() if not on_server or name in entries]
            with (
                joined(cluster, len(checkpoint)) as ray,
                tqdm(total=len(records), desc="map", unit="photo", disable=None if config.progress else True) as bar,
            ):
                for part, settings in ((fresh, replace(work, writes=True)), (others, work)):
                    for done in run_packets(ray, packets_of(part, config.packet), checkpoint, settings) if part else ():
                        packets[done.worker] += 1
                        _take(writer, done, entries, tally)
                        bar.update(tally.total - bar.n)
        report = finish_build(writer, tally, notes, start)
    return ClusterReport(**vars(report), workers=dict(packets))


def _take(writer: MapWriter, done: Done, entries: dict[str, Entry], tally: Tally) -> None:
    """Count what a worker did, and write the images that it encoded."""
    tally.include(done.tally)
    packed = {photo.sha256: image for _, image in done.images for photo in image[:1]}
    found = [(ImageRecord(name, name), photo) for name, (photo, _, _) in done.images]
    new, changed = find_new(found, writer.store, entries, tally, writer.config.restore)
    writer.update(changed)
    writer.write([(photo, *packed[photo.sha256][1:]) for _, photo in new], tally)


def checkpoint_of(model: PlaceModel) -> bytes:
    """The content of the model's .safetensors file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_checkpoint(model, file)
        return file.read_bytes()
