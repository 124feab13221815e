"""What a map notes of itself: its local features, the views of its 360° photos, its own calibration; as JSON texts.

Its own calibration is fitted on its photos when they were written. Fitting searches the map for 256 of its photos. The
note says how many photos the map had. It is used while that number differs from the present one by at most a tenth;
else, and for a map of an earlier version, which has no note, each opening fits one. `build_map`, `add_photos`,
`sync_map`, `copy_map` and a cluster fit it again if they changed a photo; `remove_photos` and `add_local_features` only
if the note is absent or its number of photos differs by more than a tenth; photos that the service adds do not change
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, TypeVar

from sareloc.errors import ArgumentError, MapError
from sareloc.maps.records import shown
from sareloc.maps.store import Address, MapStore, map_class, open_store
from sareloc.photos import ViewOptions

T = TypeVar("T")

LOCAL_FEATURES = "local features"
"""The name of the note that says what extracted the local features of a map, and how many keypoints a photo has."""
FIRST_WEIGHTS = "2c159c8e8274d01c"
"""The fingerprint of the weights in all versions of sareloc whose notes do not name it."""
NOT_HELD = (
    "the collection is of an earlier version and keeps no local features: they are computed from the photos when "
    "matches are verified. Copy the map to a new collection to add them"
)
PANORAMA_VIEWS = "panorama views"
"""The name of the note that says which views of 360° photos a map stores."""
OWN_CALIBRATION = "own calibration"
"""The name of the note. Calibrations of `sareloc map calibrate` have other names, and precedence."""
FIT = "sareloc.localize.calibration:calibrate_by_map"
"""What fits the calibration of an open map: a name, as in `MAPS`, because localizing is above maps."""
CHANGES = 10
"""A calibration is outdated if more than one photo in so many was added or removed."""


def read_note(store: MapStore, name: str, parse: Callable[[Any], T]) -> T | None:
    """What `parse` makes of a map's note in JSON; None if there is no such note.

    Args:
        store: the map.
        name: of the note.
        parse: gets the decoded JSON.

    Raises:
        MapError: if the note is not JSON, or if `parse` raises: maps come from anywhere.
    """
    text = store.notes().get(name)
    if text is None:
        return None
    try:
        return parse(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ArgumentError) as wrong:
        raise MapError(
            f"map {store.name} is damaged: its note {name!r} is {shown(text)}. Restore a backup, or build it again"
        ) from wrong


@dataclass(frozen=True)
class FeaturesNote:
    """What extracted the local features of a map."""

    extractor: str
    weights: str
    """The fingerprint of the extractor's weights."""
    keypoints: int
    """The most that a photo has."""

    def __post_init__(self) -> None:
        if type(self.keypoints) is not int or self.keypoints <= 0:
            raise ValueError("not a number of keypoints")
        if not (isinstance(self.extractor, str) and isinstance(self.weights, str)):
            raise TypeError("not the name of an extractor, or not the fingerprint of its weights")


def read_features_note(store: MapStore) -> FeaturesNote | None:
    """What extracted the local features of a map; None: it was built without. Raises MapError if it is malformed."""
    return read_note(store, LOCAL_FEATURES, _features_note)


def _features_note(note: Any) -> FeaturesNote:
    return FeaturesNote(note["extractor"], note.get("weights", FIRST_WEIGHTS), note["keypoints"])


def read_keypoints(store: MapStore) -> int | None:
    """The number of keypoints of each photo that was chosen for a map; None: it was built without local features.

    Raises MapError if the note is malformed, or if this sareloc has another extractor: its local features do not match
    those of the map.
    """
    note = read_features_note(store)
    if note is None:
        return None
    _check_extractor(store, note)
    return note.keypoints


def _check_extractor(store: MapStore, note: FeaturesNote) -> None:
    from sareloc.geometry.local_features import EXTRACTOR, weights_fingerprint

    if (note.extractor, note.weights) != (EXTRACTOR, weights_fingerprint()):
        raise MapError(
            f"map {store.name} has local features of the extractor {shown(note.extractor)} (weights "
            f"{shown(note.weights)}), this sareloc has {EXTRACTOR} (weights {weights_fingerprint()}), and the two do "
            "not match: localize without them (--verify 0), use the sareloc that made them, or build another map"
        )


def choose_keypoints(store: MapStore, keypoints: int | None = None) -> int:
    """Note in a map how many keypoints its photos have, and return that number.

    `keypoints`: default: as in `add_local_features`. Raises ArgumentError if it is not 1 to 4096, MapError if photos of
    the map have local features with another number, or of another extractor.
    """
    from sareloc.geometry.local_features import EXTRACTOR, KEYPOINTS, weights_fingerprint

    stored = read_features_note(store)
    default = KEYPOINTS if stored is None else stored.keypoints
    chosen = FeaturesNote(
        EXTRACTOR, weights_fingerprint(), check_keypoints(default if keypoints is None else keypoints, fewest=1)
    )
    if stored is not None and stored != chosen and len(store.ids_without_features()) < store.count():
        _check_extractor(store, stored)
        raise MapError(
            f"map {store.name} has local features of {stored.keypoints} keypoints a photo, requested: "
            f"{chosen.keypoints}. Use the former (--keypoints {stored.keypoints}), or build another map"
        )
    check_room(type(store), chosen.keypoints)
    text = json.dumps(asdict(chosen))
    if store.notes().get(LOCAL_FEATURES) != text:
        store.write_note(LOCAL_FEATURES, text)
    return chosen.keypoints


def check_keypoints(keypoints: int, fewest: int = 0) -> int:
    """The same number. Raises ArgumentError if it is not in the range."""
    from sareloc.geometry.local_features import MOST_KEYPOINTS

    if not fewest <= keypoints <= MOST_KEYPOINTS:
        raise ArgumentError(f"keypoints must be {fewest} to {MOST_KEYPOINTS}, found {keypoints}")
    return keypoints


def check_room(store: type[MapStore], keypoints: int) -> None:
    """Raise ArgumentError if maps of this class cannot store so many keypoints of a photo."""
    if store.most_keypoints is not None and keypoints > store.most_keypoints:
        raise ArgumentError(
            f"a map on a server stores at most {store.most_keypoints:,} keypoints of a photo, found {keypoints:,}: use "
            f"fewer (--keypoints {store.most_keypoints}), or a file"
        )


def read_view_options(store: MapStore) -> ViewOptions | None:
    """The views of 360° photos that a map stores; None: it was built without any.

    Raises MapError if the note is malformed.
    """
    return read_note(store, PANORAMA_VIEWS, _view_options)


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
        store.write_note(PANORAMA_VIEWS, json.dumps(asdict(options)))


def describe_options(options: ViewOptions) -> str:
    """View options in words."""
    yaws, pitches = (", ".join(f"{angle:g}" for angle in angles) for angles in (options.yaw_deg, options.pitch_deg))
    untagged = ", also of photos without GPano tags" if options.untagged else ""
    return (
        f"yaw {yaws}; pitch {pitches}; field of view {options.fov_deg:g}; {options.width} x {options.height} px"
        f"{untagged}"
    )


def untagged_note(photos: Sequence[str]) -> str:
    """A note on photos, at least one, that look like full spheres and have no GPano tags."""
    many = f"{len(photos):,} photos, such as {photos[0]}, are" if len(photos) > 1 else f"{photos[0]} is"
    return f"{many} 2:1 as a 360° photo, without GPano tags: used as an ordinary photo; --panorama cuts it into views"


def own_calibration(notes: Mapping[str, str], photos: int) -> str | None:
    """The stored calibration (see `Calibration.from_json`) of a map with these notes and this number of photos.

    None if there is none, if it cannot be read, or if the map had another number of photos, by more than a tenth.
    """
    try:
        note = json.loads(notes.get(OWN_CALIBRATION, ""))
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
        if place_map.notes.get(OWN_CALIBRATION) == text:
            return
    with open_store(address, write=True) as store:
        store.write_note(OWN_CALIBRATION, text)
