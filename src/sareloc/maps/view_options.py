"""The views of 360° photos that a map stores: a note in the map, so that all its 360° photos are cut alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sareloc.errors import MapError
from sareloc.maps.store import MapStore, read_note
from sareloc.photos import ViewOptions

NOTE = "panorama views"
"""The name of the note that says which views of 360° photos a map stores."""


def read_view_options(store: MapStore) -> ViewOptions | None:
    """The views of 360° photos that a map stores; None: it was built without any.

    Raises MapError if the note is malformed.
    """
    return read_note(store, NOTE, _view_options)


def _view_options(note: Any) -> ViewOptions:
    yaws, pitches = (tuple(float(angle) for angle in note.pop(name)) for name in ("yaw_deg", "pitch_deg"))
    if type(note["untagged"]) is not bool or type(note["width"]) is not int or type(note["height"]) is not int:
        raise ValueError("a value has the wrong type")
    return ViewOptions(yaws, pitches, **note)


def check_view_options(store: MapStore, options: ViewOptions | None) -> ViewOptions:
    """The views that a map stores: those of its note, else these, else the default ones.

    Raises MapError if the map has others than these.
    """
    stored = read_view_options(store)
    if stored is not None and options is not None and stored != options:
        raise MapError(
            f"map {store.name} stores other views of 360° photos ({describe_options(stored)}), requested: "
            f"{describe_options(options)}. Use the former, or leave the options out, or build another map"
        )
    return stored or options or ViewOptions()


def write_view_options(store: MapStore, options: ViewOptions) -> None:
    """Note in a map which views of 360° photos it stores."""
    if read_view_options(store) != options:
        store.write_note(NOTE, json.dumps(asdict(options)))


def describe_options(options: ViewOptions) -> str:
    """View options in words."""
    yaws, pitches = (", ".join(f"{angle:g}" for angle in angles) for angles in (options.yaw_deg, options.pitch_deg))
    untagged = ", also of photos without GPano tags" if options.untagged else ""
    return (
        f"yaw {yaws}; pitch {pitches}; field of view {options.fov_deg:g}; {options.width} x {options.height} px"
        f"{untagged}"
    )


def untagged_note(photos: Sequence[str]) -> str:
    """What is said about photos, at least one, that look like full spheres and have no GPano tags."""
    many = f"{len(photos):,} photos, such as {photos[0]}, are" if len(photos) > 1 else f"{photos[0]} is"
    return f"{many} 2:1 as a 360° photo, without GPano tags: used as an ordinary photo; --panorama cuts it into views"
