"""A worker of a cluster: encodes packets of images, and returns or writes them.

Packets and results are sent as JSON between the process that builds the map and the workers.
"""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from sareloc.arrays import Vectors
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geometry.adaptation import Adaptation
from sareloc.maps import MapConfig, MapManifest, MapPhoto, open_store
from sareloc.maps.examine import Duplicate, Tally, examine, split_usable
from sareloc.maps.writer import MapWriter, Packed
from sareloc.models.checkpoint import load_model
from sareloc.photos import Geotag, ImageRecord, is_url, read_geotag_table
from sareloc.photos.collect import collect_records, list_photos, record_with
from sareloc.photos.finding import (
    TABLES,
    fetch_file,
    find_remote_photos,
    raw_twins,
    read_tables_of_any_program,
    remote_stamp,
    twins_note,
    usual_url,
)
from sareloc.photos.track_geotags import TrackOptions
from sareloc.wording import counted

FILE_URL = "file://"
FETCHING = 16  # parallel downloads


@dataclass(frozen=True)
class Work:
    """The settings of a worker."""

    address: str
    """The map, which names its photos."""
    writes: bool
    """Whether the worker writes to the map; else it returns what it encoded."""
    manifest: MapManifest
    config: MapConfig
    """With the keypoints and the views of the map, and the number format of its model."""
    adaptation: Adaptation | None = None
    """Of the map."""


@dataclass
class Done:
    """The result of a packet of images."""

    worker: str
    """Host and process."""
    tally: Tally
    images: list[tuple[str, Packed]] = field(default_factory=list)
    """The names of the records, and the images that are not written to the map yet."""


def list_records(
    given: str | Path | Sequence[str | Path], geotags: str | Path | None, track: TrackOptions | None = None
) -> tuple[list[ImageRecord], tuple[str, ...]]:
    """The images in folders, with their geotags, as `build_map` lists them; and warnings.

    Args:
        given: folders, local or at URLs.
        geotags: a table with positions, or None.
        track: a GPS track that gives the positions of photos and videos in local folders.
    """
    items = [given] if isinstance(given, str | Path) else list(given)
    local = [path for item in items if (path := _local_path(item)) is not None]
    remote = [str(item) for item in items if _local_path(item) is None]
    if remote and track is not None:
        raise ArgumentError(f"{remote[0]} is a URL: photos are placed on a track if they are in folders (--track)")
    records: list[ImageRecord] = []
    notes: list[str] = []
    if local:
        collected = collect_records(local, list_photos(local, videos=True), geotags, track)
        records += collected.records
        notes += [*map(str, collected.errors), *collected.notes]
    for url in remote:
        found = find_remote_photos(url)
        if not found:
            raise PhotoError(url, "holds no photos")
        twins = {str(twin) for twin in raw_twins({PurePosixPath(photo) for photo in found})}
        if left_out := [photo for photo in found if str(PurePosixPath(photo)) in twins]:
            notes.append(twins_note(left_out))
            found = {photo: changed for photo, changed in found.items() if photo not in left_out}
        by_url, problems = _remote_table(url, geotags)
        records += [replace(record_with(photo, by_url.get(photo)), stamp=changed) for photo, changed in found.items()]
        notes += problems
        if missing := [named for named in by_url if named not in found]:
            notes.append(f"{url}: {counted(missing, 'row')} of its table without a photo")
    return records, tuple(notes)


def _local_path(item: str | Path) -> Path | None:
    if str(item).startswith(FILE_URL):
        return Path(url2pathname(urlsplit(str(item)).path))
    return None if is_url(item) else Path(item)


def _remote_table(folder: str, geotags: str | Path | None) -> tuple[dict[str, Geotag], list[str]]:
    """Geotags by URL from a table with names relative to the folder, default: the table in the folder; and warnings."""
    head, colons, behind = usual_url(folder).partition("::")
    within, after = head if head.endswith("/") else f"{head}/", f"{colons}{behind}"
    with TemporaryDirectory() as scratch:
        beside = [f"{within}{name}{after}" for name in TABLES if geotags is None]
        tables = [fetch_file(url, Path(scratch)) for url in beside if remote_stamp(url) is not None]
        read, notes = ([read_geotag_table(geotags)], []) if geotags is not None else read_tables_of_any_program(tables)
    tags = {f"{within}{file}{after}": geotag for table in reversed(read) for file, geotag in table.tags.items()}
    return tags, [*notes, *(problem for table in read for problem in table.problems)]


def packets_of(records: Sequence[ImageRecord], size: int) -> list[str]:
    """Records in packets of `size`, as JSON."""
    rows = [{**vars(record), "image": str(record.image)} for record in records]
    return [json.dumps(rows[first : first + size]) for first in range(0, len(rows), size)]


def read_packet(packet: str) -> list[ImageRecord]:
    """The records of a packet."""
    records = []
    for row in json.loads(packet):
        fields: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        records.append(ImageRecord(**fields))
    return records


def write_done(done: Done) -> dict[str, Any]:
    """A result as a row of a table."""
    photos = [photo for _, (photo, _, _) in done.images]
    blobs = [blob for _, (_, _, blob) in done.images]
    about = {
        "worker": done.worker,
        "tally": asdict(replace(done.tally, unreadable=[])),
        "unreadable": [[error.photo, error.reason] for error in done.tally.unreadable],
        "names": [name for name, _ in done.images],
        "photos": [asdict(photo) | {"sha256": photo.sha256.hex()} for photo in photos],
        "features": [None if blob is None else len(blob) for blob in blobs],
    }
    vectors = [vector.astype("<f4").tobytes() for _, (_, vector, _) in done.images]
    return {
        "about": json.dumps(about),
        "descriptors": b"".join(vectors),
        "features": b"".join(blob for blob in blobs if blob is not None),
    }


def read_done(row: dict[str, Any]) -> Done:
    """A result from a row of a table."""
    about = json.loads(row["about"])
    unreadable = [PhotoError(photo, reason) for photo, reason in about["unreadable"]]
    photos = [_photo(known) for known in about["photos"]]
    vectors: Vectors = np.frombuffer(row["descriptors"], dtype="<f4").reshape(len(photos), -1 if photos else 0)
    features = io.BytesIO(row["features"])
    blobs = [None if length is None else features.read(length) for length in about["features"]]
    duplicates = [Duplicate(**known) for known in about["tally"]["duplicates"]]
    tally = Tally(**about["tally"] | {"unreadable": unreadable, "duplicates": duplicates})
    images = zip(about["names"], zip(photos, vectors, blobs, strict=True), strict=True)
    return Done(about["worker"], tally, list(images))


def _photo(known: dict[str, Any]) -> MapPhoto:
    geotag = Geotag(**known["geotag"] | {"latlon": tuple(known["geotag"]["latlon"])})
    return MapPhoto(**known | {"geotag": geotag, "sha256": bytes.fromhex(known["sha256"])})


class PacketEncoder:
    """Processes packets. Processing one twice, as when a worker was lost, leaves the same map as once."""

    def __init__(self, checkpoint: bytes, work: Work) -> None:
        """`checkpoint`: the content of a model's .safetensors file."""
        self._work = work
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        if work.writes:
            open_store(work.address, write=True).close()  # raises MapError if this machine does not have the map
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            file.write_bytes(checkpoint)
            model = load_model(file, None, work.config.precision)
        self._writer = MapWriter(work.address, work.manifest, lambda: model, work.config, adaptation=work.adaptation)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The packet's images as `Done`."""
        with TemporaryDirectory(prefix="sareloc-") as scratch, ThreadPoolExecutor(FETCHING) as threads:
            tally = Tally()
            fetched = list(threads.map(lambda record: _fetched(record, Path(scratch)), read_packet(row["packet"])))
            tally.unreadable += [one for one in fetched if isinstance(one, PhotoError)]
            records = [one for one in fetched if isinstance(one, ImageRecord)]
            if self._work.writes:
                with self._writer as writer:
                    tally.include(writer.add(records))
                return write_done(Done(self._name, tally))
            examined = threads.map(lambda one: examine(one, self._writer.name_of(one), self._writer.views), records)
            new = list(split_usable(examined, self._work.config.trust_estimates, tally))
            encoded = self._writer.encode(new, self._writer.encoder(None, tally), tally)
            return write_done(Done(self._name, tally, [(record.name, packed) for record, packed in encoded]))


def _fetched(record: ImageRecord, scratch: Path) -> ImageRecord | PhotoError:
    """The record with a file on this machine, downloaded if it is a URL."""
    if not is_url(str(record.image)):
        return record
    try:
        return replace(record, image=fetch_file(str(record.image), scratch))
    except PhotoError as error:
        return PhotoError(record.name, error.reason)
