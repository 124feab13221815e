"""Sidecars of Google Takeout: one JSON file beside each photo, with the position and time that Google Photos stores.

Takeout makes the name of the JSON from the title of the photo. It appends `.supplemental-metadata` (in older exports
nothing), cuts the result to 46 characters, and appends the counter of photos with equal titles, which in the photo's
own name is before the extension, and `.json`:

    IMG_1.jpg                            IMG_1.jpg.json, IMG_1.jpg.supplemental-metadata.json
    IMG_1(1).jpg                         IMG_1.jpg(1).json, IMG_1.jpg.supplemental-metadata(1).json
    IMG_1-edited.jpg                     those of IMG_1.jpg
    Screenshot_2017-07-05-10-05-26.png   Screenshot_2017-07-05-10-05-26.png.supplementa.json
"""

from __future__ import annotations

import json
import os
import re
import time
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from sareloc.files import read_regular
from sareloc.photos.record import Geotag, geotag_at, valid_time

LONGEST_STEM = 46  # characters of a JSON's name before its counter and ".json"
SUPPLEMENT = ".supplemental-metadata"
EDITED = (  # added to the name of a photo that was edited in Google Photos, in the language of the account
    *("-edited", "-bearbeitet", "-modifié", "-ha editado", "-editado", "-editada", "-editat", "-modificato"),
    *("-bewerkt", "-edytowane", "-編集済み"),
)
LARGEST_BYTES = 1_000_000
SETTLED_NS = 3_000_000_000  # time stamps of folders have steps of up to 2 s (FAT)


def takeout_names(photo: str) -> list[str]:
    """The names that Takeout may have given to the JSON of a photo of this name, most likely first."""
    extension = os.path.splitext(photo)[1]
    return [
        f"{(title + extension + suffix)[:LONGEST_STEM]}{number}.json"
        for title, number in _titles(photo)
        for suffix in (SUPPLEMENT, "")
    ]


def find_takeout_json(photo: str | Path) -> Path | None:
    """The existing Takeout JSON of a photo; None if there is none.

    The folder is listed once, not searched for each possible name. Photos with names of more than 46 characters, of
    which several may have JSONs of the same name but for the counter, are distinguished by the title in the JSON.
    """
    path = Path(photo)
    listed = _json_files(path.parent)
    names = [name for name in takeout_names(path.name) if name in listed] if listed else []
    if not names or len(path.name) <= LONGEST_STEM:
        return path.with_name(listed[names[0]]) if names else None
    numbered = (f"{path.name[:LONGEST_STEM]}({number}).json" for number in count(1))
    for name in (*names, *takewhile(listed.__contains__, numbered)):
        title = _field(_read(path.with_name(listed[name])), "title")
        if not isinstance(title, str) or any(_plain(title).startswith(_plain(own)) for own, _ in _titles(path.name)):
            return path.with_name(listed[name])
    return None


def read_takeout_geotag(photo: str | Path) -> Geotag | None:
    """The position and time in a photo's Takeout JSON; None if there is no JSON, or no valid position in it.

    The position is `geoData`, which Google Photos shows, else `geoDataExif`; 0, 0 means none.
    """
    content = _read(find_takeout_json(photo))
    for key in ("geoData", "geoDataExif"):
        latitude, longitude = (_number(_field(_field(content, key), axis)) for axis in ("latitude", "longitude"))
        if (geotag := geotag_at(latitude, longitude, None, _time(content), estimated=False)) is not None:
            return geotag
    return None


def read_takeout_time(photo: str | Path) -> float | None:
    """The time in a photo's Takeout JSON (`photoTakenTime`), with or without a position, as `Geotag.time`."""
    return _time(_read(find_takeout_json(photo)))


def _titles(photo: str) -> list[tuple[str, str]]:
    """The titles, without extension, that a photo of this name may have had, each with its counter, such as "(1)"."""
    stem = unicodedata.normalize("NFC", os.path.splitext(photo)[0])
    titles = [(stem, "")]  # the number may be part of the title
    if numbered := re.fullmatch(r"(.+)(\(\d+\))", stem):
        titles += [(numbered[1], numbered[2]), (stem, numbered[2])]
    return titles + [(title.removesuffix(e), number) for title, number in titles for e in EDITED if title.endswith(e)]


def _json_files(folder: Path) -> Mapping[str, str]:
    """The names of the JSON files in a folder by their Unicode form NFC; empty if the folder cannot be read.

    A listing is kept until the folder's time stamp changes; a stamp that is so recent that it might not show the next
    change is not trusted.
    """
    try:
        stamp = os.stat(folder).st_mtime_ns
        if 0 <= time.time_ns() - stamp < SETTLED_NS:
            return _list(folder)
        return _listed(folder, stamp)
    except (OSError, ValueError):  # the latter: a NUL character
        return {}


@lru_cache(maxsize=256)
def _listed(folder: Path, stamp: int) -> Mapping[str, str]:
    return _list(folder)


def _list(folder: Path) -> Mapping[str, str]:
    return {unicodedata.normalize("NFC", name): name for name in os.listdir(folder) if name.endswith(".json")}


def _read(file: Path | None) -> Any:
    """The content of a JSON file; None if it cannot be read, is too large or is not JSON."""
    if file is None:
        return None
    try:
        return json.loads(read_regular(file, LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _field(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _number(value: Any) -> float | None:
    """A number, or a number as a text, as Takeout writes times; NaN and infinity fail the range checks of `Geotag`."""
    try:
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None


def _time(content: Any) -> float | None:
    return valid_time(_number(_field(_field(content, "photoTakenTime"), "timestamp")))


def _plain(title: str) -> str:
    """A title for comparing: Takeout replaces some characters of titles in file names."""
    return re.sub(r"[\W_]+", "_", unicodedata.normalize("NFC", title)).lower()
