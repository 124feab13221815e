"""A map's own calibration: fitted on its photos when they were written, and stored as a note.

Fitting searches the map for 256 of its photos. The note says how many photos the map had. It is used while that number
differs from the present one by at most a tenth; else, and for a map of an earlier version, which has no note, each
opening fits one. `build_map`, `add_photos`, `sync_map`, `copy_map` and a cluster fit it again if they changed a photo;
`remove_photos` and `add_local_features` only if the note is absent or its number of photos differs by more than a
tenth; photos that the service adds do not change it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module

from sareloc.maps.store import Address, map_class, open_store

NOTE = "own calibration"
"""The name of the note. Calibrations of `sareloc map calibrate` have other names, and precedence."""
FIT = "sareloc.localize.calibration:calibrate_by_map"
"""What fits the calibration of an open map: a name, as in `MAPS`, because localizing is above maps."""
CHANGES = 10
"""A calibration is outdated if more than one photo in so many was added or removed."""


def own_calibration(notes: Mapping[str, str], photos: int) -> str | None:
    """The stored calibration (see `Calibration.from_json`) of a map with these notes and this number of photos.

    None if there is none, if it cannot be read, or if the map had another number of photos, by more than a tenth.
    """
    try:
        note = json.loads(notes.get(NOTE, ""))
        fitted, text = note["map_photos"], note["calibration"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(fitted) is not int or not isinstance(text, str) or CHANGES * abs(photos - fitted) > fitted:
        return None
    return text


def finish_map(address: Address, *, changed: bool = True) -> None:
    """After photos of a map were written: build or complete its search index, and store its own calibration.

    Args:
        address: the map.
        changed: whether photos were added, updated or removed. If not, nothing is done if the stored calibration can
            be used.
    """
    with open_store(address) as store:
        photos = store.count()
        if not photos or (not changed and own_calibration(store.notes(), photos) is not None):
            return
        store.seal()
    module, _, name = FIT.partition(":")
    with map_class(address)(address) as place_map:  # builds the index of a file
        fitted = getattr(import_module(module), name)(place_map)
        text = json.dumps({"map_photos": len(place_map), "calibration": fitted.to_json()})
        if place_map.notes.get(NOTE) == text:
            return
    with open_store(address, write=True) as store:
        store.write_note(NOTE, text)
