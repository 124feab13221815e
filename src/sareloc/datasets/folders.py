"""A dataset from folders of photos that say themselves where they were taken.

    images/{train,val,test}/{database,queries}/@...@.jpg    the format of VPR-datasets-downloader; images/ may be absent
    database/ and queries/                                  without splits; queries/ may be absent
    any folder of geotagged photos                          all of them are the database

In the first two, positions are those of the file names where every name is in the field's format, and then in the
metres of its UTM zone where there is one, as the field's numbers are computed. Otherwise, and in the third, they are
the photos' own geotags (EXIF, a geotags.csv beside them, or the name), and a photo without one is left out and listed
in `Places.left_out`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.datasets.places import PhotoSet, Places
from sareloc.errors import DatasetError, look_up
from sareloc.geo import Positions, wgs84_from_utm
from sareloc.photos import GeotaggedPhotos, UtmName, find_geotagged, find_photos, parse_utm_name


def find_splits(folder: Path) -> dict[str, Path]:
    """The splits of a folder by name, each with the folder that holds its database/; {"all": ...} where it has none.

    Empty where the folder is not in this format.
    """
    parents = [parent for parent in (folder / "images", folder) if parent.is_dir()]
    for parent in parents:
        splits = {entry.name: entry for entry in sorted(parent.iterdir()) if (entry / "database").is_dir()}
        if splits:
            return splits
    unsplit = next((parent for parent in parents if (parent / "database").is_dir()), None)
    return {} if unsplit is None else {"all": unsplit}


def load_split_folder(folder: Path, split: str = "test") -> Places:
    """One split of a folder with database/ and queries/; a folder without splits gives all of it for any split."""
    splits = find_splits(folder)
    if "all" in splits:
        split = "all"
    holder = look_up(splits, split, f"split of {folder}")
    roles = [holder / role for role in ("database", "queries")]
    paths = [find_photos(role) if role.is_dir() else [] for role in roles]
    if not paths[0]:
        raise DatasetError(f"{roles[0]} holds no photos: there is nothing to search")
    names = [parse_utm_name(path.name) for of_role in paths for path in of_role]
    known = [name for name in names if name is not None]
    left_out: list[str] = []
    notes: list[str] = []
    if len(known) == len(names):
        both = _from_names(holder, [path for of_role in paths for path in of_role], known)
        rows = np.arange(len(known))
        database, queries = both.take(rows[: len(paths[0])]), both.take(rows[len(paths[0]) :])
    else:
        database, queries = (_from_geotags(role, left_out, notes) for role in roles)
        if not len(database):
            raise _nothing_tagged(roles[0], len(paths[0]))
    return Places(folder.resolve().name, split, database, queries, left_out=tuple(left_out), notes=tuple(notes))


def load_photo_folder(folder: Path) -> Places:
    """All geotagged photos of a folder tree as a database without queries."""
    left_out: list[str] = []
    notes: list[str] = []
    database = _from_geotags(folder, left_out, notes)
    if not len(database):
        raise _nothing_tagged(folder, len(left_out))
    name, none = folder.resolve().name, database.take([])
    return Places(name, "all", database, none, left_out=tuple(left_out), notes=tuple(notes))


def _from_names(holder: Path, paths: Sequence[Path], names: Sequence[UtmName]) -> PhotoSet:
    return PhotoSet(
        holder,
        _relative(holder, paths),
        _positions(holder, names),
        _column(name.time for name in names),
        _column(name.heading_deg for name in names),
    )


def _positions(holder: Path, names: Sequence[UtmName]) -> Positions:
    """In one frame: the metres of their only UTM zone, or of none, or, from several zones, those of the Earth."""
    metres = np.array([name.east_north for name in names])
    zones = np.array([name.epsg or 0 for name in names])
    if (zones == 0).all():
        return Positions.from_local(metres)
    if (zones == zones[0]).all():
        return Positions.from_utm(metres, int(zones[0]))
    if (zones == 0).any():
        raise DatasetError(
            f"{holder}: {(zones == 0).sum()} of {len(zones)} file names do not say their UTM zone: "
            "their metres cannot be compared with the others'"
        )
    latlon = np.empty_like(metres)
    for zone in np.unique(zones).tolist():
        latlon[zones == zone] = wgs84_from_utm(metres[zones == zone], zone)
    return Positions.from_wgs84(latlon)


def _from_geotags(folder: Path, left_out: list[str], notes: list[str]) -> PhotoSet:
    """The photos of a folder that have a geotag; the others are added to `left_out`, faults of tables to `notes`."""
    found = find_geotagged(folder) if folder.is_dir() else GeotaggedPhotos((), ())
    left_out.extend(str(path) for path in found.untagged)
    notes.extend(found.notes)
    return PhotoSet(
        folder,
        _relative(folder, found.photos),
        found.positions(),
        _column(geotag.time for geotag in found.geotags),
        _column(geotag.heading_deg for geotag in found.geotags),
    )


def _relative(folder: Path, paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(path.relative_to(folder).as_posix() for path in paths)


def _column(values: Iterable[float | None]) -> npt.NDArray[np.float64] | None:
    """Numbers with NaN for what is unknown; None where all is."""
    numbers = np.array([math.nan if value is None else value for value in values])
    return None if np.isnan(numbers).all() else numbers


def _nothing_tagged(folder: Path, photos: int) -> DatasetError:
    return DatasetError(
        f"none of the {photos} photos in {folder} says where it was taken, by EXIF or by name: list them in a CSV file "
        "with the columns file, lat, lon"
    )
