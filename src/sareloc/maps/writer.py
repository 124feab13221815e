"""MapWriter: the one way by which images come into a map.

Records of images, from files, videos, streams, uploads or the workers of a cluster, are examined (which are new, moved,
changed, known or duplicates), encoded, and written: photo, search vector and local features in one transaction. A kill
at any moment leaves whole photos only; the same call continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sareloc.arrays import Vectors
from sareloc.encode import Encoded, Encoder
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.geometry.adaptation import Adaptation
from sareloc.geometry.local_features import KEYPOINTS, pack_features
from sareloc.loading import read_images
from sareloc.maps.config import MapConfig
from sareloc.maps.examine import (
    New,
    Tally,
    examine,
    find_new,
    geotag_updates,
    present_geotag,
    shown_name,
    split_usable,
    stamp_of,
)
from sareloc.maps.notes import (
    NOT_HELD,
    check_room,
    check_view_options,
    choose_keypoints,
    untagged_note,
    write_view_options,
)
from sareloc.maps.records import OTHER_VECTORS, Entry, MapManifest, MapPhoto, check_aggregate, read_adaptation
from sareloc.maps.store import NO_WHITENING, MapStore, map_model, needs_whitening, open_or_create_store, store_class
from sareloc.models.place_model import PlaceModel
from sareloc.models.whitening import fit_whitening
from sareloc.photos import ImageRecord, ReadImage, SizeRule, ViewOptions, is_url, parse_address
from sareloc.photos.decoding import TRUNCATED
from sareloc.photos.finding import FRAME, NOT_UTF8, is_utf8
from sareloc.photos.record import without_fragment

AT_ONCE = 2048
"""Files that are examined before they are encoded; a resumed run must divide them in the same way."""
IN_MEMORY = 32
"""Images that are not files and are examined before they are encoded."""
WHITENING_SAMPLE = 4096
"""At most as many photos are described to fit a map's own whitening."""
WHITENING_POWER = 0.25
"""Of `fit_whitening`, between PCA (0), which keeps the model's distances, and full whitening (1), which amplifies
directions that a small map determines badly."""
CHANGED = "was changed while it was being added: add it again"

Packed = tuple[MapPhoto, Vectors, bytes | None]
"""An image as it is written: its row, its search vector and its packed local features; None: it has none."""


def pack(encoded: Encoded) -> bytes | None:
    """The packed local features of an image."""
    return None if encoded.features is None else pack_features(encoded.features)


class MapWriter:
    """Writes images to a map, which is created when the first ones are written: a call that fails before leaves none.

    Use it in a `with`. Raises MapError if the map was built by another model, or with other dimensions, storage,
    keypoints or views.
    """

    def __init__(
        self,
        address: str | Path,
        manifest: MapManifest,
        model: Callable[[], PlaceModel],
        config: MapConfig,
        *,
        dry_run: bool = False,
        adaptation: Adaptation | None = None,
    ) -> None:
        """Describe the map; it is opened by `with`.

        Args:
            address: a file, or the address of a server.
            manifest: of the map, if it is created.
            model: loads the place model; called when there are images to encode.
            config: keypoints, views, batch, workers, progress, `trust_estimates` and `restore`.
            dry_run: examine and count, and write nothing.
            adaptation: of a map that is not opened here; default: none.
        """
        self.address = address
        self.manifest = manifest
        self.config = config
        self.views = config.views or ViewOptions()
        self.store_class = store_class(address)
        self.keypoints = config.keypoints
        check_room(self.store_class, config.keypoints or 0)
        self.dry_run = dry_run
        self.store: MapStore | None = None
        self.updated_ids: set[int] = set()
        """Ids of the photos whose name or geotag was updated, or would be."""
        self.names: set[str] = set()
        """Names in the map of all images that were given, as far as their files could be read."""
        self._load_model = model
        self._adaptation = adaptation
        self.write_views = config.views is not None
        """Whether the views must be noted in the map when it is written next."""
        self._encoder: Encoder | None = None

    def __enter__(self) -> MapWriter:
        if self.store_class.exists(self.address):
            self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the map."""
        if self.store is not None:
            self.store.close()
            self.store = None

    def open(self) -> MapStore:
        """The map, open for writing."""
        if self.store is None:
            self.store = open_or_create_store(self.address, self.manifest)
            try:
                check_same(self.store, self.manifest)
                self._use_aggregate(self.store)
                self.views = check_view_options(self.store, self.config.views)
                if self.keypoints != 0 and self.store.holds_local_features:
                    self.keypoints = choose_keypoints(self.store, self.keypoints)
            except MapError:
                self.store.close()
                raise
        if self.write_views:
            write_view_options(self.store, self.views)
            self.write_views = False
        return self.store

    def _use_aggregate(self, store: MapStore) -> None:
        """Compute search vectors as the map has them. Raises MapError if they were computed otherwise until now."""
        found = store.manifest
        check_aggregate(found, store.name, store.notes())
        if self._encoder is not None and self._encoder.aggregate_dim != found.aggregate_dim:
            raise MapError(OTHER_VECTORS.format(store.name))
        self.manifest = replace(self.manifest, aggregate=found.aggregate, aggregate_dim=found.aggregate_dim)

    def name_of(self, record: ImageRecord) -> str:
        """The name of a record's image in the map."""
        if is_url(record.name):
            return record.name
        if not isinstance(record.image, str | Path):
            return f"{FRAME}{record.name}"
        return self.store_class.photo_name(self.address, Path(record.image))

    def add(self, records: Iterable[ImageRecord]) -> Tally:
        """Add images to the map, and update those that are in it; few that are not files are in memory at a time."""
        tally, listed = Tally(), records if isinstance(records, Sequence) else None
        total = None if listed is None else len(listed)
        with (
            tqdm(total=total, desc="map", unit="photo", disable=None if self.config.progress else True) as bar,
            ThreadPoolExecutor(max(self.config.workers, 1)) as threads,
        ):
            for chunk in _chunks(records, self.dry_run):
                new = self._examine(chunk, threads, tally)
                bar.update(tally.total - bar.n)
                if self.dry_run or not new:
                    tally.count_written([photo for _, photo in new], len(new))
                else:
                    self._write_new(new, self.encoder(listed, tally), tally, bar)
        if tally.untagged_spheres and not self.views.untagged:
            tally.notes.append(untagged_note(tally.untagged_spheres))
        return tally

    def split_known(
        self, records: Sequence[ImageRecord], tally: Tally
    ) -> tuple[dict[str, ImageRecord], dict[str, Entry]]:
        """The records, by name in the map, whose files are new or have changed; and the map's entries of all names.

        The geotags of the others are updated, and they are counted.
        """
        named = {self.name_of(record): record for record in records}
        for name in [name for name in named if not is_utf8(name)]:
            tally.unreadable.append(PhotoError(named.pop(name).name, NOT_UTF8))
        entries = {} if self.store is None else self.store.entries(list(named))
        same = {
            name
            for name, record in named.items()
            if name in entries
            and not name.startswith(FRAME)
            and entries[name].stamp == stamp_of(record)
            and not (self.config.restore and (entries[name].edited or entries[name].problem))
        }
        unchanged = [(entries[name], present_geotag(named[name])) for name in named if name in same]
        cut = {without_fragment(name) for name in entries if parse_address(name).view is not None}
        for name in cut.intersection(named).difference(same):
            photos = examine(named[name], name, self.views).photos
            if photos and all(
                photo.file in entries and entries[photo.file].stamp == stamp_of(named[name]) for photo in photos
            ):
                unchanged += [(entries[photo.file], photo.geotag) for photo in photos]
                tally.panoramas += 1
                same.add(name)
        self.names |= {entry.file for entry, _ in unchanged}
        self.update(geotag_updates(unchanged, self.config.trust_estimates, tally, self.config.restore))
        return {name: record for name, record in named.items() if name not in same}, entries

    def _examine(self, records: Sequence[ImageRecord], threads: ThreadPoolExecutor, tally: Tally) -> list[New]:
        """The new images among these records; those that are in the map are updated and counted."""
        rest, entries = self.split_known(records, tally)
        examined = list(threads.map(lambda name: examine(rest[name], name, self.views), rest))
        self.names |= {photo.file for one in examined for photo in one.photos}
        views = [photo.file for one in examined for photo in one.photos if one.read and one.read.panorama]
        if views and self.store is not None:
            entries |= self.store.entries(views)
        usable = list(split_usable(examined, self.config.trust_estimates, tally))
        new, changed = find_new(usable, self.store, entries, tally, self.config.restore)
        self.update(changed)
        return new

    def update(self, entries: Sequence[Entry]) -> None:
        """Write the names, stamps and geotags of photos in the map."""
        self.updated_ids |= {entry.photo_id for entry in entries}
        if entries and not self.dry_run:
            self.open().update(entries)

    def _write_new(self, new: Sequence[New], encoder: Encoder, tally: Tally, bar: Any) -> None:
        ready: list[Packed] = []
        for _, packed in self.encode(new, encoder, tally):
            ready.append(packed)
            if len(ready) == self.config.batch:
                self.write(ready, tally)
                ready = []
                bar.update(tally.total - bar.n)
        self.write(ready, tally)
        bar.update(tally.total - bar.n)

    def encode(self, new: Sequence[New], encoder: Encoder, tally: Tally) -> Iterator[tuple[ImageRecord, Packed]]:
        """Read and encode images, which `write` writes; the tally lists those that cannot be read or are truncated."""
        for (record, photo), encoded in encoder.encode_each(self._read(new, encoder.sizes, tally)):
            if isinstance(encoded, PhotoError):
                tally.unreadable.append(encoded)
            else:
                yield record, (photo, encoded.vector, pack(encoded))

    def _read(
        self, new: Sequence[New], sizes: Sequence[SizeRule], tally: Tally
    ) -> Iterator[tuple[New, ReadImage | PhotoError]]:
        """The pixels of images, or why they cannot be read; each record is read once, whatever the number of its views.

        Args:
            new: the images.
            sizes: at which they are encoded.
            tally: lists those that are truncated.
        """
        records = {id(record): record for record, _ in new}
        photos: dict[int, dict[bytes, New]] = {key: {} for key in records}
        for record, photo in new:
            photos[id(record)][photo.sha256] = record, photo
        loaded = read_images(list(records.values()), sizes, cut=self.views, digest=True, workers=self.config.workers)
        for (_, read), by_digest in zip(loaded, photos.values(), strict=True):
            for image in () if isinstance(read, PhotoError) else read.images:
                if (one := by_digest.pop(image.sha256 or b"", None)) is not None:
                    if image.truncated:
                        tally.notes.append(f"{without_fragment(one[0].name)}: {TRUNCATED}")
                    yield one, image
            for one in by_digest.values():  # unreadable, or not what was examined
                yield one, PhotoError(shown_name(*one), read.reason if isinstance(read, PhotoError) else CHANGED)

    def write(self, images: Sequence[Packed], tally: Tally) -> None:
        """Write images with their search vectors and local features in one transaction, and count them."""
        if not images:
            return
        photos, blobs = [photo for photo, _, _ in images], [blob for _, _, blob in images]
        self.write_views |= any(parse_address(photo.file).view for photo in photos)
        written = self.open().add(photos, np.stack([vector for _, vector, _ in images]), blobs)
        tally.count_written(photos, written)
        tally.features += min(written, sum(blob is not None for blob in blobs))

    def encoder(self, sample: Sequence[ImageRecord] | None, tally: Tally) -> Encoder:
        """The encoder of the map's images. The map's own whitening, if it needs one, is fitted on the sample before."""
        if self._encoder is None:
            model = self._load_model()
            tally.notes += prepare_whitening(self, model, sample)
            model = model if self.store is None else map_model(model, self.store)
            keypoints = self.stored_keypoints(tally)
            self._encoder = Encoder(
                model,
                dim=self.manifest.dim,
                keypoints=keypoints,
                aggregate_dim=self.manifest.aggregate_dim,
                adaptation=self.adaptation(),
                batch=self.config.batch,
            )
        return self._encoder

    def adaptation(self) -> Adaptation | None:
        """That of the map, if it has one."""
        if self.store is None:
            return self._adaptation
        return read_adaptation(self.store.notes(), self.manifest, self.store.name)

    def stored_keypoints(self, tally: Tally) -> int:
        """Local features of each image that the map stores; 0: none, which is noted if they were asked for."""
        if self.store is None or self.store.holds_local_features or self.keypoints == 0:
            return KEYPOINTS if self.keypoints is None else self.keypoints
        tally.notes.append(NOT_HELD)
        return 0


def check_same(store: MapStore, wanted: MapManifest) -> None:
    """Raise MapError if a map was built by another model, or with other dimensions or storage."""
    found, here = store.manifest, f"map {store.name}"
    if found.fingerprint != wanted.fingerprint:
        raise MapError(
            f"{here} was built by model {found.fingerprint} ({found.model}), this is model {wanted.fingerprint} "
            f"({wanted.model}): use the former, or build another map"
        )
    if (found.dim, found.storage) != (wanted.dim, wanted.storage):
        raise MapError(
            f"{here} has descriptors of {found.dim} dimensions as {found.storage}, not {wanted.dim} as "
            f"{wanted.storage}: use the former (--dim, --storage), or build another map"
        )


def _chunks(records: Iterable[ImageRecord], all_at_once: bool) -> Iterator[list[ImageRecord]]:
    """Records in lists of at most `AT_ONCE` files and `IN_MEMORY` other images.

    A dry run writes nothing that the next list could find: it examines all at once.
    """
    chunk: list[ImageRecord] = []
    in_memory = 0
    for record in records:
        chunk.append(record)
        in_memory += not isinstance(record.image, str | Path)
        if not all_at_once and (len(chunk) == AT_ONCE or in_memory == IN_MEMORY):
            yield chunk
            chunk, in_memory = [], 0
    if chunk:
        yield chunk


def prepare_whitening(writer: MapWriter, model: PlaceModel, records: Sequence[ImageRecord] | None) -> tuple[str, ...]:
    """Fit a whitening on a sample of these images and write it to the map, if the map needs one and has no photos yet.

    The sample is spread over the list: every call takes the same one. Images that cannot be read are left out.

    Args:
        writer: of the map.
        model: the place model, without a whitening.
        records: all images; None if they are not known in advance.

    Returns:
        Warnings: if the images span fewer than the map's dimensions, the other numbers of each descriptor are 0.

    Raises:
        ArgumentError: if the images are not known, or all equal.
        MapError: if the map is on a server.
    """
    dim, store = writer.manifest.dim, writer.store
    if not needs_whitening(model, dim) or (store is not None and (store.count() or store.whitening() is not None)):
        return ()
    reduce = (
        f"{model.name} has no whitening: to reduce its {model.dim} dimensions to {dim}, one is fitted on the photos"
    )
    if not writer.store_class.is_file:
        raise MapError(f"{reduce} and stored in the map. {NO_WHITENING}")
    if not records:
        raise ArgumentError(
            f"{reduce}, which must be known in advance: build the map with a list of some of them first, or keep all "
            "dimensions"
        )
    rows = np.unique(np.linspace(0, len(records) - 1, WHITENING_SAMPLE).round().astype(np.int64))
    encoder = Encoder(model, keypoints=0, batch=writer.config.batch)
    loaded = read_images([records[row] for row in rows], encoder.sizes, cut=writer.views, workers=writer.config.workers)
    images = (image for _, read in loaded if not isinstance(read, PhotoError) for image in read.images)
    found = [one.descriptor for _, one in encoder.encode_each(enumerate(images)) if not isinstance(one, PhotoError)]
    vectors = np.stack(found) if found else np.zeros((0, model.dim), dtype=np.float32)
    try:
        fitted = fit_whitening(vectors, dim, power=WHITENING_POWER, at_most=True)
    except ArgumentError as error:
        raise ArgumentError(f"{reduce}. {error}") from error
    projection = np.zeros((dim, model.dim), dtype=np.float32)
    projection[: fitted.dim] = fitted.projection.numpy()
    writer.open().write_whitening(fitted.mean.numpy(), projection)
    if fitted.dim == dim:
        return ()
    return (
        f"the whitening was fitted on {len(vectors):,} photos, which span {fitted.dim:,} dimensions: the others of the "
        f"{dim:,} are 0, also for photos that are added later. With more photos, build the map again",
    )
