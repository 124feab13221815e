"""A worker of a cluster: computes the descriptors of packets of photos, and returns or writes them.

Packets and results are sent as JSON between the process that builds the map and the workers.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from sareloc.arrays import Vectors
from sareloc.describe import describe
from sareloc.errors import ArgumentError, PhotoError
from sareloc.maps import MapPhoto, open_store
from sareloc.maps.examine import Conflict, Tally, examine, list_images, list_photos, pick_new, set_aside, tabled
from sareloc.maps.expand import Expanded, expand
from sareloc.models.checkpoint import load_model
from sareloc.models.preprocess import Precision
from sareloc.photos import Geotag, ViewOptions, file_of, parse_address, read_geotag_table, stamp
from sareloc.photos.decoding import TRUNCATED, is_truncated
from sareloc.photos.finding import (
    TABLES,
    fetch_file,
    find_remote_photos,
    is_url,
    read_tables_of_any_program,
    remote_stamp,
    usual_url,
)
from sareloc.photos.tables import counted
from sareloc.photos.track_geotags import TrackOptions

FILE_URL = "file://"


@dataclass(frozen=True)
class Wanted:
    """A photo to add to a map."""

    where: str
    """Its path, the same on every machine, or its URL."""
    stamp: tuple[int, int] | None
    """Size in bytes and modification time in ns when it was listed; None if it does not exist."""
    geotag: Geotag | None = None
    """From a table; None: read it from the photo."""
    name: str = ""
    """Its name in the map."""


@dataclass
class Done:
    """The result of a packet of photos."""

    worker: str
    """Host and process."""
    tally: Tally
    photos: list[tuple[str, MapPhoto]] = field(default_factory=list)
    """Path or URL, and record, of photos that are not written to the map yet."""
    descriptors: Vectors = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    """(n, dim) of `photos`."""


def list_wanted(
    given: str | Path | Sequence[str | Path],
    geotags: str | Path | None,
    track: TrackOptions | None = None,
    images_of: Callable[[Sequence[Path]], Expanded] | None = None,
) -> tuple[list[Wanted], tuple[str, ...]]:
    """The images in folders, local or at URLs, with their geotags in tables, as `build_map` does; and warnings.

    images_of: gives the images of local files, default: as a new map stores them; those of files at URLs are found by
    the worker that reads them.
    """
    items = [given] if isinstance(given, str | Path) else list(given)
    local = [path for item in items if (path := _local_path(item)) is not None]
    remote = [str(item) for item in items if _local_path(item) is None]
    if remote and track is not None:
        raise ArgumentError(f"{remote[0]} is a URL: photos are placed on a track if they are in folders (--track)")
    wanted: list[Wanted] = []
    notes: list[str] = []
    if local:
        listing = list_images(local, list_photos(local, videos=True), geotags, track)
        images = expand(listing.photos, ViewOptions()) if images_of is None else images_of(listing.photos)
        wanted += [Wanted(str(path), stamp(path), tabled(path, listing.tags)) for path in images.images]
        notes += [*map(str, listing.errors), *listing.notes, *images.notes]
    for url in remote:
        found = find_remote_photos(url)
        if not found:
            raise PhotoError(url, "holds no photos")
        by_url, problems = _remote_table(url, geotags)
        wanted += [Wanted(photo, changed, by_url.get(photo)) for photo, changed in found.items()]
        notes += problems
        if missing := [named for named in by_url if named not in found]:
            notes.append(f"{url}: {counted(missing, 'row')} of its table without a photo")
    return wanted, tuple(notes)


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


def packets_of(wanted: Sequence[Wanted], size: int) -> list[str]:
    """Photos in packets of `size`, as JSON."""
    return [json.dumps([asdict(one) for one in wanted[i : i + size]]) for i in range(0, len(wanted), size)]


def read_packet(packet: str) -> Iterator[Wanted]:
    """The photos of a packet."""
    for row in json.loads(packet):
        known = row["stamp"] and tuple(row["stamp"])
        yield Wanted(row["where"], known, row["geotag"] and _geotag(row["geotag"]), row["name"])


def write_done(done: Done) -> dict[str, Any]:
    """A result as a row of a table."""
    about = {
        "worker": done.worker,
        "tally": asdict(replace(done.tally, unreadable=[])),
        "unreadable": [[error.photo, error.reason] for error in done.tally.unreadable],
        "photos": [[where, asdict(photo) | {"sha256": photo.sha256.hex()}] for where, photo in done.photos],
    }
    return {"about": json.dumps(about), "descriptors": done.descriptors.astype("<f4").tobytes()}


def read_done(row: dict[str, Any]) -> Done:
    """A result from a row of a table."""
    about = json.loads(row["about"])
    unreadable = [PhotoError(photo, reason) for photo, reason in about["unreadable"]]
    photos = [(where, _photo(known)) for where, known in about["photos"]]
    vectors = np.frombuffer(row["descriptors"], dtype="<f4").reshape(len(photos), -1 if photos else 0)
    conflicts = [Conflict(**known) for known in about["tally"]["conflicts"]]
    tally = Tally(**about["tally"] | {"unreadable": unreadable, "conflicts": conflicts})
    return Done(about["worker"], tally, photos, vectors)


def _geotag(known: dict[str, Any]) -> Geotag:
    return Geotag(**known | {"latlon": tuple(known["latlon"])})


def _photo(known: dict[str, Any]) -> MapPhoto:
    return MapPhoto(**known | {"geotag": _geotag(known["geotag"]), "sha256": bytes.fromhex(known["sha256"])})


FETCHING = 16  # parallel downloads

Found = tuple[str, MapPhoto]


@dataclass(frozen=True)
class Work:
    """The settings of a worker."""

    dim: int
    batch: int
    """Photos in one forward pass."""
    decoders: int
    """Decoding processes; 0: the worker itself."""
    out: str | None
    """The map that the worker writes to; None: it returns the descriptors."""
    views: ViewOptions = field(default_factory=ViewOptions)
    """How 360° photos at URLs are cut."""
    precision: Precision = "auto"
    """Number format of the model on the worker; auto: the worker's device decides."""


class Describer:
    """Processes packets. Processing one twice, as when a worker was lost, leaves the same map as once."""

    def __init__(self, checkpoint: bytes, work: Work) -> None:
        """`checkpoint`: the content of a model's .safetensors file."""
        self._work = work
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._store = None if work.out is None else open_store(work.out, write=True)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            file.write_bytes(checkpoint)
            self._model = load_model(file, None, work.precision)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The packet's photos as `Done`."""
        tally = Tally()
        with TemporaryDirectory(prefix="sareloc-") as scratch:
            files: dict[str, Path] = {}
            with ThreadPoolExecutor(FETCHING) as threads:
                wanted = list(read_packet(row["packet"]))
                read = partial(_examine, scratch=Path(scratch), files=files, views=self._work.views)
                examined = [image for images in threads.map(read, wanted) for image in images]
            found = set_aside(examined, tally)
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
        digests, work = [photo.sha256 for _, photo in found], self._work
        options: dict[str, Any] = {"batch": work.batch, "workers": work.decoders, "dim": work.dim}
        for part in describe(self._model, files, digests=digests, **options, progress=False):
            vectors[part.rows], described[part.rows] = part.descriptors, True
            tally.notes += [f"{found[row][0]}: {TRUNCATED}" for row in part.rows if is_truncated(file_of(files[row]))]
            tally.unreadable += [PhotoError(found[row][0], error.reason) for row, error in part.errors.items()]
        rows = np.flatnonzero(described).tolist()
        return Done(self._name, tally, [found[row] for row in rows], vectors[rows])


def _examine(
    wanted: Wanted, scratch: Path, files: dict[str, Path], views: ViewOptions
) -> list[tuple[str, MapPhoto | PhotoError | None]]:
    """The images of a file and their records; the local file, downloaded if needed, is stored in `files`."""
    remote = is_url(wanted.where)
    try:
        file = fetch_file(wanted.where, scratch) if remote else Path(wanted.where)
    except PhotoError as error:
        return [(wanted.where, PhotoError(wanted.where, error.reason))]
    images = expand([file], views).images if remote else [file]
    table = {} if wanted.geotag is None else {os.path.abspath(file): wanted.geotag}
    return [
        _examine_image(wanted, parse_address(image).fragment if remote else "", image, table, files) for image in images
    ]


def _examine_image(
    wanted: Wanted, fragment: str, image: Path, table: dict[str, Geotag], files: dict[str, Path]
) -> tuple[str, MapPhoto | PhotoError | None]:
    where = wanted.where + fragment
    files[where] = image
    try:
        photo = examine(image, wanted.name + fragment, table)
    except PhotoError as error:
        return where, PhotoError(where, error.reason)
    if photo is None or not is_url(where) or wanted.stamp is None:
        return where, photo
    return where, replace(photo, size_bytes=wanted.stamp[0], modified_ns=wanted.stamp[1])
