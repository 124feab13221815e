"""Building a map of geotagged photos, adding photos to it, and synchronizing it with folders of photos.

A call that is interrupted at any time can be repeated and continues.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from sareloc.config_files import merge_options
from sareloc.errors import PhotoError
from sareloc.maps.config import MapConfig
from sareloc.maps.examine import Duplicate, Tally
from sareloc.maps.notes import finish_map, read_keypoints, read_view_options
from sareloc.maps.records import MapManifest, check_aggregate, with_aggregate
from sareloc.maps.store import Address, MapStore, gone_photos, is_gone, load_map_model, open_store, store_class
from sareloc.maps.upgrade import add_missing_features
from sareloc.maps.writer import MapWriter, check_same
from sareloc.models.checkpoint import STANDARD, load_model
from sareloc.models.place_model import PlaceModel
from sareloc.photos import ImageRecord, ViewOptions, file_of, parse_address
from sareloc.photos.collect import Collected, Geotags, PhotoPaths, collect_records, files_in, list_photos
from sareloc.photos.record import without_fragment
from sareloc.photos.track_geotags import TrackOptions
from sareloc.wording import plural


@dataclass(frozen=True)
class BuildReport:
    """What was done with the photos: each given photo is counted once."""

    added: int
    """New in the map."""
    updated: int
    """In the map before, now with another position, heading, time, file name or content."""
    already: int
    """In the map before, unchanged."""
    duplicates: int
    """With the same content as another photo of the map whose file still exists."""
    conflicts: tuple[Duplicate, ...]
    """Duplicates with another position than the photo in the map."""
    untagged: tuple[str, ...]
    """Photos without a position."""
    unreadable: tuple[PhotoError, ...]
    """Photos that cannot be decoded, and why."""
    gone: tuple[str, ...]
    """Photos of the map, given or not, whose files no longer exist; they stay in it. Not searched for on a server."""
    seconds: float
    notes: tuple[str, ...]
    """Warnings: bad rows of tables, rows without a photo, odd positions, truncated photos, photos without local
    features."""
    features: int = 0
    """Photos of the map, given or not, whose local features were added."""
    panoramas: int = 0
    """360° photos among the given ones; the other numbers count their views."""
    duplicate_photos: tuple[Duplicate, ...] = ()
    """The duplicates, and which photo of the map each equals."""
    estimated: tuple[str, ...] = ()
    """Photos that were left out because sareloc estimated their positions (see `MapConfig.trust_estimates`)."""
    kept_edits: tuple[str, ...] = ()
    """Given photos that keep the position, heading or time that another program has written to the map."""
    kept_removals: tuple[str, ...] = ()
    """Given photos that were removed from the map, and were not added again."""
    restored: tuple[str, ...] = ()
    """Given photos that have the position of their file again, or were added again after they were removed: with
    `restore`. An edit also ends with the photo: if its file has other content and another position now."""

    @property
    def used(self) -> int:
        """How many of the photos have a position: they are in the map, or were and are kept out of it."""
        return self.added + self.updated + self.already + self.duplicates + len(self.kept_removals)


@dataclass(frozen=True)
class SyncReport(BuildReport):
    """What was done with the photos, and with those of the map that are no longer in the folders."""

    removed: tuple[str, ...] = ()
    """Photos that were removed from the map: their files no longer exist or are cut into other views, or they are
    frames of the given videos that were not chosen along the track."""
    dry_run: bool = False
    """Whether nothing was written."""
    added_photos: tuple[str, ...] = ()
    """Names in the map of the photos that were added."""
    updated_photos: tuple[str, ...] = ()
    """Those of the photos that were updated."""


def build_map(
    photos: PhotoPaths | Iterable[ImageRecord],
    out: str | Path,
    model: PlaceModel | str | Path | None = None,
    *,
    geotags: Geotags | None = None,
    track: TrackOptions | None = None,
    config: MapConfig | None = None,
    **options: Any,
) -> BuildReport:
    """Build a map of photos, or continue one that was begun.

    Photos without a position are skipped and listed. Photos in the map whose position, heading or time has changed are
    updated and keep their descriptors. What another program has changed in the map or removed from it stays so (see
    `MapConfig.restore`). 360° photos are stored as their views, each as its file with the direction
    behind the name (see `sareloc.photos.record`), videos as frames along the tracks (see `frames_on_track`).

    Args:
        photos: a folder (with its subfolders), or folders and files; or records of images, also from a stream, of which
            a few are in memory at a time. A record's own geotag counts before all others.
        out: a file (.gpkg) or a server address (milvus://host:19530/city); the map is created when the first photos are
            written.
        model: computes the descriptors: a model, a checkpoint or a packaged model's name; default: the packaged model
            that the map was built with if it exists, else `fast`.
        geotags: a table of positions, a file or the geotags by photo; default: geotags.csv or another table in the
            folder (see `find_geotagged`). Photos that are in none have the position of `read_geotag`.
        track: photos without any position get one from these tracks, at their times.
        config: what few people change: dimensions, storage, keypoints, views of 360° photos, batch, workers.
        options: deprecated: options of `config`.

    Raises:
        MapError: if the map was built by another model, has local features with another number of keypoints, or other
            views.
        PhotoError: if there are no photos.
    """
    photos, out, model = in_order(photos, out, model)
    config = merge_options(config or MapConfig(), options)
    if not isinstance(model, PlaceModel):
        model = load_build_model(out, model, config)
    start, given = time.monotonic(), None if _are_records(photos) else cast("PhotoPaths", photos)
    files = [] if given is None else list_photos(given, videos=True)
    with open_writer(out, model, config) as writer:
        if given is None:
            collected, records = Collected(()), cast("Iterable[ImageRecord]", photos)
        else:
            collected = collect_records(given, files, geotags, track)
            records = collected.records
        tally = writer.add(records)
        tally.unreadable += collected.errors
        notes = (*collected.notes, *_add_missing_features(writer, model.runs_on, tally))
        return finish_build(writer, tally, notes, start)


def in_order(first: Any, second: Any, third: Any) -> tuple[Any, Any, Any]:
    """Photos, map and model, also of a call in the order model, photos, map, as until version 0.1."""
    if not isinstance(first, PlaceModel) and (first is not None or third is None):
        return first, second, third
    warnings.warn(
        "the arguments (model, photos, map) will end with the next version: use (photos, map, model)",
        DeprecationWarning,
        stacklevel=3,
    )
    return second, third, first


def load_build_model(out: str | Path, model: str | Path | None, config: MapConfig) -> PlaceModel:
    """The model to build a map with.

    Args:
        out: the map.
        model: a checkpoint or a packaged model's name; default: that of the map if it exists, else the packaged one for
            the device.
        config: device and precision.
    """
    if model is None and store_class(out).exists(out):
        with open_store(out) as store:
            return load_map_model(store.manifest, store.name, None, config.device, config.precision)
    return load_model(model or STANDARD, config.device, config.precision)


def open_writer(out: Address, model: PlaceModel, config: MapConfig) -> MapWriter:
    """The writer of a map, for a `with`.

    Args:
        out: the map, which need not exist.
        model: computes the descriptors.
        config: dimensions, storage, keypoints, views, batch and workers.
    """
    manifest = MapManifest(model.name, model.fingerprint(), config.dim or model.dim, config.storage)
    if config.keypoints != 0:
        manifest = with_aggregate(manifest)
    return MapWriter(out, manifest, lambda: model, config)


def finish_build(writer: MapWriter, tally: Tally, notes: tuple[str, ...], start: float) -> BuildReport:
    """Close the writer, build the map's index and its own calibration, and report.

    Args:
        writer: of the map, which may have written nothing.
        tally: of the photos.
        notes: other warnings.
        start: `time.monotonic` at the start.
    """
    gone: list[str] = []
    if writer.store is not None:
        if writer.store.is_file:
            gone = [name for _, name in gone_photos(writer.store)]
        writer.close()
        finish_map(writer.address, changed=tally.added + tally.updated > 0)
    return make_report(tally, tuple(gone), notes, start)


def _are_records(photos: object) -> bool:
    """Whether these are records of images: a list of them, or an iterator."""
    if isinstance(photos, str | Path):
        return False
    return not isinstance(photos, Sequence) or (len(photos) > 0 and isinstance(photos[0], ImageRecord))


def _add_missing_features(writer: MapWriter, device: torch.device | str | None, tally: Tally) -> tuple[str, ...]:
    """Compute the local features of photos that were added to the map without them; returns warnings."""
    store = writer.store
    if store is None or writer.dry_run or not writer.keypoints or not store.holds_local_features:
        return ()
    if not len(store.ids_without_features()):
        return ()
    config = writer.config
    report = add_missing_features(
        store, writer.keypoints, device=device, workers=config.workers, progress=config.progress
    )
    tally.features += report.added
    if not report.unreadable:
        return ()
    without = plural(len(report.unreadable), "photo")
    return (f"{without} of the map without local features, such as {report.unreadable[0]}",)


def add_photos(
    photos: PhotoPaths,
    path: str | Path,
    model: PlaceModel | str | Path | None = None,
    *,
    geotags: Geotags | None = None,
    track: TrackOptions | None = None,
    config: MapConfig | None = None,
    **options: Any,
) -> BuildReport:
    """Add photos to a map; see `build_map`. Dimensions, storage and keypoints are those of the map.

    Args:
        photos: a folder (with its subfolders), or folders and files.
        path: the map, which exists.
        model: the one that the map was built with, or its checkpoint; default: the packaged model that it was built
            with.
        geotags: as for `build_map`.
        track: as for `build_map`.
        config: batch, workers, views and the device of a model that is loaded here.
        options: deprecated: options of `config`.

    Raises:
        MapError: if the map does not exist, or was built by another model.
    """
    photos, path, model = in_order(photos, path, model)
    config = merge_options(config or MapConfig(), options)
    with open_store(path) as store:  # raises MapError if there is none
        manifest, keypoints = store.manifest, read_keypoints(store)
    config = replace(config, dim=manifest.dim, storage=manifest.storage, keypoints=keypoints or 0)
    return build_map(photos, path, model, geotags=geotags, track=track, config=config)


def sync_map(
    photos: PhotoPaths,
    path: str | Path,
    model: PlaceModel | str | Path | None = None,
    *,
    geotags: Geotags | None = None,
    track: TrackOptions | None = None,
    allow_empty: bool = False,
    dry_run: bool = False,
    config: MapConfig | None = None,
    **options: Any,
) -> SyncReport:
    """Synchronize a map with folders of photos: add new photos, update changed ones, remove those that no longer exist.

    Photos of the map outside of these folders are not changed. 360° photos are cut as before in this map. Local
    features are computed if the map was built with them.

    Args:
        photos: a folder (with its subfolders), or folders and files.
        path: the map, which exists.
        model: the one that the map was built with, or its checkpoint; default: the packaged model that the map was
            built with. It is loaded only if there are photos to encode.
        geotags: as for `build_map`.
        track: as for `build_map`.
        allow_empty: remove all photos of the map that were in a folder that does not exist or has no photos, as when
            its disk is not mounted.
        dry_run: only report what would be done; nothing is written.
        config: batch, workers and the device of a model that is loaded here.
        options: deprecated: options of `config`.

    Raises:
        PhotoError: if a folder does not exist or has no photos, unless `allow_empty`.
    """
    photos, path, model = in_order(photos, path, model)
    config = merge_options(config or MapConfig(), options)
    start = time.monotonic()
    items = [Path(photos)] if isinstance(photos, str | Path) else [Path(item) for item in photos]
    files = [file for item in items for file in _files_in(item, allow_empty)]
    with open_store(path, write=not dry_run) as store:
        check_aggregate(store.manifest, store.name, store.notes())
        load = cache(lambda: _load(model, store, config))
        if isinstance(model, PlaceModel):
            load()  # raises MapError before anything is read
        collected = collect_records(photos, files, geotags, track)
        as_before = replace(config, keypoints=0 if dry_run else read_keypoints(store) or 0, views=None)
        writer = MapWriter(path, store.manifest, load, as_before, dry_run=dry_run)
        writer.store, writer.views = store, read_view_options(store) or ViewOptions()
        tally, inside = writer.add(collected.records), _inside(store, items)
        tally.unreadable += collected.errors
        gone = {i: name for i, name in gone_photos(store) if i not in writer.updated_ids}
        removed = {i: name for i, name in gone.items() if inside(name)}
        removed |= _outdated(store, writer.names)
        if removed and not dry_run:
            store.remove(np.array(list(removed), dtype=np.int64))
        on = model.runs_on if isinstance(model, PlaceModel) else config.device
        notes = (*collected.notes, *_add_missing_features(writer, on, tally))
    if not dry_run:
        finish_map(path, changed=bool(tally.added or tally.updated or removed))
    left = tuple(name for i, name in gone.items() if i not in removed)
    report = make_report(tally, left, notes, start)
    return SyncReport(
        **vars(report),
        removed=tuple(removed.values()),
        dry_run=dry_run,
        added_photos=tuple(tally.added_photos),
        updated_photos=tuple(tally.updated_photos),
    )


def _outdated(store: MapStore, now: Collection[str]) -> dict[int, str]:
    """Ids and names of the images in a map that are not among the images `now`, of files of which others are.

    They were cut in another way, were ordinary photos and are cut now, or are frames of a video of which others were
    chosen.
    """
    files = {without_fragment(name) for name in now}
    return {
        photo_id: name
        for ids, _, names in store.pages()
        for photo_id, name in zip(ids.tolist(), names, strict=True)
        if name not in now and without_fragment(name) in files
    }


def make_report(tally: Tally, gone: tuple[str, ...], notes: tuple[str, ...], start: float) -> BuildReport:
    """The report of a tally.

    Args:
        tally: of the photos.
        gone: photos of the map whose files no longer exist.
        notes: other warnings.
        start: `time.monotonic` at the start.
    """
    errors = tally.unreadable
    return BuildReport(
        added=tally.added,
        updated=tally.updated,
        already=tally.already,
        duplicates=len(tally.duplicates),
        conflicts=tuple(one for one in tally.duplicates if one.is_conflict),
        untagged=tuple(dict.fromkeys(map(_whole, tally.untagged))),
        unreadable=tuple(PhotoError(*error) for error in {(_whole(e.photo), e.reason): 0 for e in errors}),
        gone=gone,
        seconds=time.monotonic() - start,
        notes=tuple(dict.fromkeys((*notes, *tally.notes))),
        features=tally.features,
        panoramas=tally.panoramas,
        duplicate_photos=tuple(tally.duplicates),
        estimated=tuple(dict.fromkeys(map(_whole, tally.estimated))),
        kept_edits=tuple(tally.kept_edits),
        kept_removals=tuple(tally.kept_removals),
        restored=tuple(tally.restored),
    )


def _whole(photo: str) -> str:
    """The 360° photo of a view, so that it is named once for all of them; any other photo itself."""
    return photo if parse_address(photo).view is None else without_fragment(photo)


def _load(model: PlaceModel | str | Path | None, store: MapStore, config: MapConfig) -> PlaceModel:
    """The model that a map was built with. Raises MapError if the given one differs."""
    if not isinstance(model, PlaceModel):
        model = load_map_model(store.manifest, store.name, model, config.device, config.precision)
    check_same(store, replace(store.manifest, model=model.name, fingerprint=model.fingerprint()))
    return model


def _files_in(item: Path, allow_empty: bool) -> list[Path]:
    found = [] if is_gone(item) else files_in(item, videos=True)
    if not found and not allow_empty:
        raise PhotoError(
            item,
            f"{'does not exist' if is_gone(item) else 'has no photos'}, and the map was not changed: is its disk "
            "mounted? To remove all photos of the map that were in it, use --allow-empty",
        )
    return found


def _inside(store: MapStore, folders: Iterable[Path]) -> Callable[[str], bool]:
    """Whether a photo of the map is in one of these folders, or is one of these files."""
    roots = [os.path.abspath(folder) for folder in folders]

    def is_inside(file: str) -> bool:
        path = os.path.abspath(file_of(store.photo_path(file)))
        return any(path == root or path.startswith(os.path.join(root, "")) for root in roots)

    return is_inside
