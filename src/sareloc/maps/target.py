"""The map that photos are written to, and whether it fits what is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sareloc.errors import MapError
from sareloc.maps.expand import Expanded, check_view_options, expand, write_view_options
from sareloc.maps.features import NOT_HELD, add_missing_features, check_keypoints, choose_keypoints
from sareloc.maps.store import Entry, MapManifest, MapStore, gone_photos, map_backend, open_or_create_store
from sareloc.photos import ViewOptions, stamp
from sareloc.photos.finding import is_utf8


class Target:
    """The map that photos are written to: opened if it exists, else created when the first photos are written.

    A build that fails before that leaves no file. Raises MapError if the map's model, dimension or storage differ from
    `manifest`, or if it has local features with another number of keypoints, or other views. `keypoints`, `views`: as
    for `build_map`.
    """

    def __init__(
        self,
        where: str | Path,
        manifest: MapManifest,
        keypoints: int | None = None,
        views: ViewOptions | None = None,
    ) -> None:
        self.keypoints = keypoints if keypoints is None else check_keypoints(keypoints)
        self.where = where
        self.backend = map_backend(where)
        self.manifest = manifest
        self.views = views or ViewOptions()
        self._given_views = views
        self.unnoted_views = views is not None
        """Whether the views must be noted in the map when it is written next."""
        self.store: MapStore | None = None

    def __enter__(self) -> Target:
        if self.backend.exists(self.where):
            self.open()
        return self

    def __exit__(self, *error: object) -> None:
        if self.store is not None:
            self.store.__exit__(*error)

    def open(self) -> MapStore:
        """The map, open for writing."""
        if self.store is None:
            self.store = open_or_create_store(self.where, self.manifest)
            try:
                check_same(self.store, self.manifest)
                self.views = check_view_options(self.store, self._given_views)
                if self.keypoints != 0 and self.store.holds_local_features:
                    self.keypoints = choose_keypoints(self.store, self.keypoints)
            except MapError:
                self.store.__exit__()
                raise
        if self.unnoted_views:
            write_view_options(self.store, self.views)
            self.unnoted_views = False
        return self.store

    def expand(self, photos: Sequence[Path], workers: int, progress: bool) -> Expanded:
        """The images of these files that the map stores (see `sareloc.maps.expand`).

        Files that are in the map as ordinary photos and have not changed are not opened.
        """
        names = {photo: self.photo_name(photo) for photo in photos}
        entries = self.entries([name for name in names.values() if is_utf8(name)])
        known = {photo for photo, name in names.items() if name in entries and entries[name].stamp == stamp(photo)}
        unknown = [photo for photo in photos if photo not in known]
        found = expand(unknown, self.views, threads=workers, progress=progress)
        self.unnoted_views |= found.panoramas > 0
        return replace(found, by_file={photo: found.by_file.get(photo, (photo,)) for photo in photos})

    def entries(self, names: Sequence[str]) -> dict[str, Entry]:
        """The entries of the map with these file names."""
        return {} if self.store is None else self.store.entries(names)

    def photo_name(self, photo: Path) -> str:
        """The name of a photo in the map."""
        return self.backend.photo_name(self.where, photo)

    def add_features(
        self, device: torch.device | str | None, workers: int, progress: bool
    ) -> tuple[int, tuple[str, ...]]:
        """Add the local features that photos of the map lack; returns of how many photos, and warnings."""
        if self.store is None or self.keypoints == 0:
            return 0, ()
        if not self.store.holds_local_features:
            return 0, (NOT_HELD,)
        keypoints = choose_keypoints(self.store, self.keypoints)
        report = add_missing_features(self.store, keypoints, device=device, workers=workers, progress=progress)
        if not report.unreadable:
            return report.added, ()
        return report.added, (
            f"{len(report.unreadable):,} photos of the map have no local features, such as {report.unreadable[0]}",
        )

    def gone(self) -> tuple[str, ...]:
        """The photos of the map whose files no longer exist; not searched for on a server, which may hold millions."""
        if self.store is None or not self.backend.is_file:
            return ()
        return tuple(name for _, name in gone_photos(self.store))


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
