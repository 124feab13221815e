"""From files to the images that a map stores: a 360° photo becomes its views, any other photo is stored as it is."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sareloc.errors import MapError, PhotoError
from sareloc.maps.examine import Listing
from sareloc.maps.store import MapStore, read_note
from sareloc.photos import Address, ViewOptions, image_size, looks_like_panorama, parse_address
from sareloc.photos.addresses import without_fragment
from sareloc.photos.panoramas import UNUSABLE
from sareloc.photos.views import cut_photo

NOTE = "panorama views"
"""The name of the note that says which views of 360° photos a map stores."""


@dataclass(frozen=True)
class Expanded:
    """The images of some files."""

    by_file: Mapping[Path, tuple[Path, ...]]
    """The addresses of the images of each file; of an ordinary photo, the file."""
    notes: tuple[str, ...] = ()
    unread: frozenset[Path] = frozenset()
    """Files that cannot be opened; each is its own image, whose error is found when it is read."""

    def in_place_of(self, listing: Listing) -> Listing:
        """The listing with the images of its files in their place."""
        return replace(listing, photos=tuple(self.images))

    @property
    def images(self) -> list[Path]:
        """The addresses of all images."""
        return [image for images in self.by_file.values() for image in images]

    @property
    def panoramas(self) -> int:
        """How many files are 360° photos, stored as views."""
        return sum(images != (file,) for file, images in self.by_file.items())


@dataclass(frozen=True)
class _Cut:
    images: tuple[Path, ...]
    note: str = ""
    unread: bool = False
    untagged: bool = False
    """2:1 without GPano tags, not cut."""


def expand(photos: Sequence[Path], options: ViewOptions, *, threads: int = 1, progress: bool = False) -> Expanded:
    """The images that a map stores of these files, by their GPano tags and the options.

    A photo with GPano tags that cannot be used is stored as it is, with a note; so are photos without tags that have
    the proportions of a full sphere, unless the options cut them.
    """
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        bar = tqdm(
            pool.map(partial(_cut, options=options), photos),
            total=len(photos),
            desc="files",
            unit="file",
            disable=None if progress else True,
            leave=False,
        )
        cut = dict(zip(photos, bar, strict=True))
    notes = [one.note for one in cut.values() if one.note]
    if untagged := [str(photo) for photo, one in cut.items() if one.untagged]:
        notes.append(untagged_note(untagged))
    return Expanded(
        {photo: one.images for photo, one in cut.items()},
        tuple(notes),
        frozenset(photo for photo, one in cut.items() if one.unread),
    )


def untagged_spheres(photos: Iterable[Path]) -> list[str]:
    """The photos that look like full spheres and have no GPano tags."""
    return [str(photo) for photo in photos if _cut(photo, ViewOptions()).untagged]


def untagged_note(photos: Sequence[str]) -> str:
    """What is said about photos, at least one, that look like full spheres and have no GPano tags."""
    many = f"{len(photos):,} photos, such as {photos[0]}, are" if len(photos) > 1 else f"{photos[0]} is"
    return f"{many} 2:1 as a 360° photo, without GPano tags: used as an ordinary photo; --panorama cuts it into views"


def outdated(store: MapStore, now: Collection[str], unread: Collection[str]) -> dict[int, str]:
    """Ids and names of the images in a map that are not among the images `now`, of files of which others are.

    They were cut in another way, were ordinary photos and are cut now, or are frames of a video of which others were
    chosen. now: names in the map; unread: names of files whose images are not known.
    """
    files = {without_fragment(name) for name in now}.difference(unread)
    return {
        photo_id: name
        for ids, _, names in store.pages()
        for photo_id, name in zip(ids.tolist(), names, strict=True)
        if name not in now and without_fragment(name) in files
    }


def _cut(photo: Path, options: ViewOptions) -> _Cut:
    if parse_address(photo).fragment:
        return _Cut((photo,))  # a frame, or a view that was given as such
    try:
        panorama, views = cut_photo(photo, options)
        if panorama is not None:
            return _Cut(tuple(Address(photo, view).path for view in views))
        return _Cut((photo,), untagged=looks_like_panorama(*image_size(photo)))
    except PhotoError as error:
        if error.reason.startswith(UNUSABLE):
            return _Cut((photo,), note=f"{error}; used as an ordinary photo")
        return _Cut((photo,), unread=True)


def read_view_options(store: MapStore) -> ViewOptions | None:
    """The views of 360° photos that a map stores; None: it was built without any.

    Raises MapError if the note is malformed.
    """
    return read_note(store, NOTE, _view_options)


def _view_options(note: Any) -> ViewOptions:
    yaws, pitches = (tuple(float(angle) for angle in note.pop(name)) for name in ("yaw_deg", "pitch_deg"))
    if type(note["untagged"]) is not bool or type(note["width"]) is not int or type(note["height"]) is not int:
        raise ValueError("a value has another type")
    return ViewOptions(yaws, pitches, **note)


def check_view_options(store: MapStore, options: ViewOptions | None) -> ViewOptions:
    """The views that a map stores: those of its note, else these, else the default ones.

    Raises MapError if the map has others than these.
    """
    stored = read_view_options(store)
    if stored is not None and options is not None and stored != options:
        raise MapError(
            f"map {store.name} stores other views of 360° photos ({told(stored)}), requested: {told(options)}. Use the "
            "former, or leave the options out, or build another map"
        )
    return stored or options or ViewOptions()


def write_view_options(store: MapStore, options: ViewOptions) -> None:
    """Note in a map which views of 360° photos it stores."""
    if read_view_options(store) != options:
        store.write_note(NOTE, json.dumps(asdict(options)))


def told(options: ViewOptions) -> str:
    """View options in words."""
    yaws, pitches = (", ".join(f"{angle:g}" for angle in angles) for angles in (options.yaw_deg, options.pitch_deg))
    untagged = ", also of photos without GPano tags" if options.untagged else ""
    return (
        f"yaw {yaws}; pitch {pitches}; field of view {options.fov_deg:g}; {options.width} x {options.height} px"
        f"{untagged}"
    )
