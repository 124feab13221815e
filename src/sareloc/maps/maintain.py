"""Maintaining a map: its content, its integrity, removing photos and reclaiming their space."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from sareloc.errors import ArgumentError
from sareloc.geo import Area
from sareloc.maps.records import MapInfo
from sareloc.maps.store import Address, gone_photos, open_store


def map_info(address: Address) -> MapInfo:
    """The content of a map."""
    with open_store(address) as store:
        return store.info()


def find_gone(path: str | Path) -> tuple[str, ...]:
    """The names of the photos of a map whose files no longer exist; URLs are not checked.

    They can still be retrieved, but not shown.
    """
    with open_store(path) as store:
        return tuple(name for _, name in gone_photos(store))


def remove_photos(path: str | Path, *, files: Sequence[str] = (), area: Area | None = None) -> int:
    """Remove photos from a map; returns how many. If files and an area are given, photos that meet both.

    Args:
        path: the map.
        files: names in the map or patterns like "2019/*.jpg"; a pattern without a slash is compared with the last part
            of the name.
        area: photos inside.

    Raises:
        ArgumentError: if neither is given.
    """
    if not files and area is None:
        raise ArgumentError("nothing to remove: give files or an area")
    removed = 0
    with open_store(path, write=True) as store:
        for ids, _, names in store.pages(area):
            fits = [not files or any(_fits(name, pattern) for pattern in files) for name in names]
            removed += store.remove(ids[np.array(fits, dtype=bool)])
    return removed


def verify_map(address: Address) -> list[str]:
    """Check a map's integrity: what is wrong with it, one sentence each. Reads all of it."""
    with open_store(address) as store:
        return store.verify()


def compact_map(address: Address) -> tuple[int, int]:
    """Give the space of removed photos back to the disk; returns the file's bytes before and after.

    Needs as much free space as the map takes, and no other process that has the map open. Raises ArgumentError if the
    map is on a server.
    """
    with open_store(address, write=True) as store:
        before = os.path.getsize(address) if store.is_file else 0
        store.compact()
    return before, os.path.getsize(address)


def _fits(file: str, pattern: str) -> bool:
    return fnmatch(file if "/" in pattern else file.rpartition("/")[2], pattern)
