"""Building a map of geotagged photos, adding photos to it, and synchronizing it with folders of photos.

A call that is interrupted at any time can be repeated and continues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
from tqdm import tqdm

from sareloc.describe import describe
from sareloc.errors import PhotoError
from sareloc.maps.examine import (
    Conflict,
    Geotags,
    Given,
    Listing,
    Tally,
    corrected,
    examine,
    files_in,
    list_images,
    list_photos,
    pick_new,
    read_beside,
    set_aside,
    tabled,
)
from sareloc.maps.expand import Expanded, check_view_options, outdated
from sareloc.maps.features import read_keypoints
from sareloc.maps.frames import add_frames, are_sources, chunks, cut_panoramas, split_sources
from sareloc.maps.store import (
    Entry,
    MapManifest,
    MapPhoto,
    MapStore,
    Storage,
    build_index,
    gone_photos,
    is_gone,
    load_map_model,
    open_store,
)
from sareloc.maps.target import Target, check_same
from sareloc.maps.whitening import map_model, prepare_whitening
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Precision
from sareloc.photos import Geotag, PhotoSource, ViewOptions, file_of, parse_address, stamp
from sareloc.photos.addresses import without_fragment
from sareloc.photos.decoding import TRUNCATED, is_truncated
from sareloc.photos.finding import NOT_UTF8, is_utf8
from sareloc.photos.track_geotags import TrackOptions

CHUNK = 2048  # photos examined before they are described; a resumed run must divide them in the same way

Examined = tuple[Path, MapPhoto | PhotoError | None]


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
    conflicts: tuple[Conflict, ...]
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


@dataclass(frozen=True)
class SyncReport(BuildReport):
    """What was done with the photos, and with those of the map that are no longer in the folders."""

    removed: tuple[str, ...] = ()
    """Photos that were removed from the map: their files no longer exist or are cut into other views, or they are
    frames of the given videos that were not chosen along the track."""
    dry_run: bool = False
    """Whether nothing was written."""


def build_map(
    model: PlaceModel,
    photos: Given | Iterable[PhotoSource],
    out: str | Path,
    *,
    geotags: Geotags | None = None,
    track: TrackOptions | None = None,
    dim: int | None = None,
    storage: Storage = "float16",
    keypoints: int | None = None,
    views: ViewOptions | None = None,
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> BuildReport:
    """Build a map of photos, or continue one that was begun.

    `photos`: a folder (with its subfolders), or folders and files; or records of `PhotoSource` with their own geotags,
    also from a stream, of which a few are in memory at a time, and of which 360° photos become views, too. `out`: a
    file (.gpkg) or a server address (milvus://host:19530/city); the map is created when the first photos are written.
    Positions come from the table `geotags`, a file or the geotags by photo (default: geotags.csv or another table in
    the folder, see `find_geotagged`), else by `read_geotag`, else from the tracks in `track` at the photos' times;
    photos without a position are skipped and listed. Photos in the map whose position, heading or time has changed are
    updated and keep their descriptors. Videos, given or in folders, become frames along the tracks (see
    `frames_on_track`). `dim`: dimensions of the descriptors; default: all. A model with a whitening keeps its first
    ones; for another model the map gets a whitening of its own, fitted on a sample of the photos (see
    `sareloc.maps.whitening`). `storage`: type of the numbers of a descriptor in a file. `keypoints`: of the local
    features of each photo, which are then computed for all photos of the map that have none, and which a server does
    not store; 0: no local features; default: those of the map, 1024 if it has none (see `add_local_features`). `views`:
    how 360° photos, which have GPano tags, are cut into views; default: as before in this map, else twelve around. A
    view is stored as its file with the direction behind the name (see `sareloc.photos.addresses`). `batch`: photos in
    one forward pass and one transaction. `workers`: processes that decode photos; 0: this one. Raises MapError if the
    map was built by another model, has local features with another number of keypoints, or other views, PhotoError if
    there are no photos.
    """
    start, given = time.monotonic(), None if are_sources(photos) else cast(Given, photos)
    files = [] if given is None else list_photos(given, videos=True)
    manifest = MapManifest(model.name, model.fingerprint(), dim or model.dim, storage)
    with Target(out, manifest, keypoints, views) as target:
        adding = _Adding(target, lambda: model, batch, workers)
        if given is None:
            listing, found = Listing((), {}), Expanded({})
            tally = adding.add_sources(cast(Iterable[PhotoSource], photos), progress)
        else:
            listing = list_images(given, files, geotags, track)
            found = target.expand(listing.photos, workers, progress)
            tally = adding.add(found.in_place_of(listing), progress)
        features, notes = target.add_features(model.runs_on, workers, progress)
        report = make_report(tally, target.gone(), (*listing.notes, *found.notes, *notes), start, features)
        report = replace(report, panoramas=found.panoramas + tally.panoramas)
    if target.store is not None:
        build_index(out)
    return report


def add_photos(
    model: PlaceModel,
    photos: Given,
    path: str | Path,
    *,
    geotags: str | Path | None = None,
    track: TrackOptions | None = None,
    views: ViewOptions | None = None,
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> BuildReport:
    """Add photos to a map; see `build_map`. Local features are computed if the map was built with them.

    Raises MapError if the map does not exist.
    """
    with open_store(path) as store:  # raises MapError if there is none
        manifest, keypoints = store.manifest, read_keypoints(store)
    return build_map(
        model,
        photos,
        path,
        geotags=geotags,
        track=track,
        dim=manifest.dim,
        storage=manifest.storage,
        keypoints=keypoints or 0,
        views=views,
        batch=batch,
        workers=workers,
        progress=progress,
    )


def sync_map(
    model: PlaceModel | str | Path | None,
    photos: Given,
    path: str | Path,
    *,
    geotags: str | Path | None = None,
    track: TrackOptions | None = None,
    batch: int = 8,
    workers: int = 0,
    device: str | None = None,
    precision: Precision = "auto",
    allow_empty: bool = False,
    dry_run: bool = False,
    progress: bool = True,
) -> SyncReport:
    """Synchronize a map with folders of photos: add new photos, update changed ones, remove those that no longer exist.

    Photos of the map outside of these folders are not changed. 360° photos are cut as before in this map. Local
    features are computed if the map was built with them. See `build_map` for `photos`, `geotags`, `track`, `batch` and
    `workers`. `model`: the one that the map was built with, or its checkpoint; default: the packaged model that the map
    was built with. It is loaded, on `device` and in `precision` (see `load_model`), only if there are photos to
    describe. Raises PhotoError if a folder does not exist or has no photos, as when its disk is not mounted, unless
    `allow_empty`: then all photos of the map that were in it are removed. `dry_run`: only report what would be done;
    nothing is written.
    """
    start = time.monotonic()
    items = [Path(photos)] if isinstance(photos, str | Path) else [Path(item) for item in photos]
    files = [file for item in items for file in _files_in(item, allow_empty)]
    with open_store(path, write=not dry_run) as store:
        target = Target(path, store.manifest, 0 if dry_run else read_keypoints(store) or 0)
        target.store = store
        if isinstance(model, PlaceModel):
            check_same(store, _manifest_with(store.manifest, model))
        listing = list_images(photos, files, geotags, track)
        load = cache(lambda: _load(model, store, device, precision))
        adding = _Adding(target, load, batch, workers, dry_run)
        target.views = check_view_options(store, None)
        found = target.expand(listing.photos, workers, progress)
        tally, inside = adding.add(found.in_place_of(listing), progress), _inside(store, items)
        gone = {i: name for i, name in gone_photos(store) if i not in adding.updated_ids}
        removed = {i: name for i, name in gone.items() if inside(name)}
        unread = {target.photo_name(photo) for photo in found.unread}
        removed |= outdated(store, {target.photo_name(image) for image in found.images}, unread)
        if removed and not dry_run:
            store.remove(np.array(list(removed), dtype=np.int64))
        on = model.runs_on if isinstance(model, PlaceModel) else device
        features, notes = target.add_features(on, workers, progress)
    if not dry_run:
        build_index(path)
    left = tuple(name for i, name in gone.items() if i not in removed)
    report = make_report(tally, left, (*listing.notes, *found.notes, *notes), start, features)
    report = replace(report, panoramas=found.panoramas)
    return SyncReport(**vars(report), removed=tuple(removed.values()), dry_run=dry_run)


def make_report(
    tally: Tally, gone: tuple[str, ...], notes: tuple[str, ...], start: float, features: int
) -> BuildReport:
    """The report of a tally; `notes`: other warnings; `start`: `time.monotonic` at the start; `features`: of files."""
    errors = tally.unreadable
    return BuildReport(
        added=tally.added,
        updated=tally.updated,
        already=tally.already,
        duplicates=tally.duplicates,
        conflicts=tuple(tally.conflicts),
        untagged=tuple(dict.fromkeys(map(_whole, tally.untagged))),
        unreadable=tuple(PhotoError(*told) for told in {(_whole(e.photo), e.reason): 0 for e in errors}),
        gone=gone,
        seconds=time.monotonic() - start,
        notes=tuple(dict.fromkeys((*notes, *tally.notes))),
        features=features + tally.features,
    )


def _whole(photo: str) -> str:
    """The 360° photo of a view, so that it is named once for all of them; any other photo itself."""
    return photo if parse_address(photo).view is None else without_fragment(photo)


@dataclass
class _Adding:
    target: Target
    model: Callable[[], PlaceModel]
    """Called if there are photos to describe."""
    batch: int
    workers: int
    dry_run: bool = False
    """Count, and write nothing."""
    updated_ids: set[int] = field(default_factory=set)
    """Ids of the photos whose name or geotag was updated, or would be."""
    _describer: PlaceModel | None = None

    def add(self, listing: Listing, progress: bool) -> Tally:
        """Update the photos that are in the map, and add the others."""
        tally = Tally(unreadable=list(listing.errors))
        named = {self.target.photo_name(path): path for path in listing.photos}
        for name in [name for name in named if not is_utf8(name)]:
            tally.unreadable.append(PhotoError(named.pop(name), NOT_UTF8))
        entries = self.target.entries(list(named))
        same = {name: path for name, path in named.items() if name in entries and entries[name].stamp == stamp(path)}
        given = ((name, tabled(path, listing.tags) or read_beside(path)) for name, path in same.items())
        self._update(corrected(given, entries, tally))
        with (
            ThreadPoolExecutor(max(self.workers, 1)) as threads,
            tqdm(
                total=len(named) + tally.total,
                initial=tally.total,
                desc="map",
                unit="photo",
                disable=None if progress else True,
            ) as bar,
        ):
            # a dry run writes nothing that the next chunk could find: it examines all photos at once
            for chunk in _chunks(list(named.items()), len(named) if self.dry_run else CHUNK):
                rest = [(path, name) for name, path in chunk if name not in same]
                examined = threads.map(_examine, rest, repeat(listing.tags))
                new, changed = pick_new(set_aside(examined, tally), self.target.store, entries, tally)
                self._update(changed)
                if new and not self.dry_run:
                    self._prepare(listing.photos, tally, progress)
                self._describe(new, tally, bar)
                bar.update(tally.total - bar.n)
        return tally

    def add_sources(self, sources: Iterable[PhotoSource], progress: bool) -> Tally:
        """Add the images of a stream, some at a time: files as `add` does, the others see `sareloc.maps.frames`."""
        from sareloc.geometry.local_features import LocalFeatureExtractor

        tally = Tally()
        model = self._prepare(None, tally, progress)
        extractor: LocalFeatureExtractor | None = None
        with tqdm(sources, desc="map", unit="image", disable=None if progress else True) as bar:
            for chunk in chunks(cut_panoramas(bar, self.target.views, tally)):
                self.target.unnoted_views |= tally.panoramas > 0
                files, frames = split_sources(chunk, model.preprocess.size, tally)
                if files:
                    tags = {os.path.abspath(file): tag for file, tag in files.items()}
                    tally.include(self.add(Listing(tuple(files), tags), progress=False))
                if frames:
                    store = self.target.open()
                    if extractor is None and self.target.keypoints != 0 and store.holds_local_features:
                        extractor = LocalFeatureExtractor(model.runs_on)
                    keypoints = read_keypoints(store) or 0
                    add_frames(store, model, frames, tally, batch=self.batch, extractor=extractor, keypoints=keypoints)
        return tally

    def _prepare(self, photos: Sequence[Path] | None, tally: Tally, progress: bool) -> PlaceModel:
        """The model that computes the map's descriptors; fits the map's own whitening if it lacks one."""
        if self._describer is None:
            model, options = self.model(), {"batch": self.batch, "workers": self.workers}
            tally.notes += prepare_whitening(self.target, model, photos, **options, progress=progress)
            self._describer = model if self.target.store is None else map_model(model, self.target.store)
        return self._describer

    def _update(self, entries: Sequence[Entry]) -> None:
        self.updated_ids |= {entry.photo_id for entry in entries}
        if entries and not self.dry_run:
            self.target.open().update(entries)

    def _describe(self, new: Sequence[tuple[Path, MapPhoto]], tally: Tally, bar: Any) -> None:
        if self.dry_run or not new:
            tally.count_written([photo for _, photo in new], len(new))
            return
        files, digests = [path for path, _ in new], [photo.sha256 for _, photo in new]
        options: dict[str, Any] = {"batch": self.batch, "workers": self.workers, "dim": self.target.manifest.dim}
        assert self._describer is not None
        for part in describe(self._describer, files, digests=digests, **options, progress=False):
            photos = [new[row][1] for row in part.rows]
            if photos:
                tally.count_written(photos, self.target.open().add(photos, part.descriptors))
            tally.unreadable += part.errors.values()
            tally.notes += [
                f"{file_of(files[row])}: {TRUNCATED}" for row in part.rows if is_truncated(file_of(files[row]))
            ]
            bar.update(tally.total - bar.n)


def _load(
    model: PlaceModel | str | Path | None, store: MapStore, device: str | None, precision: Precision
) -> PlaceModel:
    if isinstance(model, PlaceModel):
        return model
    loaded = load_map_model(store.manifest, store.name, model, device, precision)
    check_same(store, _manifest_with(store.manifest, loaded))
    return loaded


def _manifest_with(manifest: MapManifest, model: PlaceModel) -> MapManifest:
    return replace(manifest, model=model.name, fingerprint=model.fingerprint())


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


def _chunks(named: Sequence[tuple[str, Path]], size: int) -> Iterable[Sequence[tuple[str, Path]]]:
    return (named[first : first + size] for first in range(0, len(named), max(size, 1)))


def _examine(photo: tuple[Path, str], table: Mapping[str, Geotag]) -> Examined:
    path, name = photo
    try:
        return path, examine(path, name, table)
    except PhotoError as error:
        return path, error
