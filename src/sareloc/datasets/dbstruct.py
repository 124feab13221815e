"""Pittsburgh and Tokyo from NetVLAD's official split files (`dbStruct`, MATLAB): names, UTM positions, time stamps.

These datasets load without their photos.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Ints
from sareloc.datasets.places import PhotoSet, Places, Protocol
from sareloc.datasets.published import find_file, find_folder, read_mat
from sareloc.errors import DatasetError
from sareloc.geo import Positions

VIEWS_PER_PANORAMA = 12

PITTSBURGH_LAYOUT = """\
  ROOT/pitts30k_train.mat, pitts30k_val.mat, pitts30k_test.mat (pitts250k_*.mat), or the same in ROOT/datasets/
  ROOT/images/000/000062_pitch1_yaw1.jpg ...     the database (or ROOT/000/...)
  ROOT/queries/000/000097_pitch1_yaw1.jpg ...    the queries (or ROOT/queries_real/000/...)
The .mat files come with NetVLAD (www.di.ens.fr/willow/research/netvlad), the photos from its authors on request.
Photos already renamed by VPR-datasets-downloader: give that folder's path instead of the set's name."""

TOKYO_TM_LAYOUT = """\
  ROOT/tokyoTM_train.mat, tokyoTM_val.mat, or the same in ROOT/datasets/
  ROOT/images/-2/-2T_5846xKuIeVvHFs88mQ/_201306/...jpg    database and queries
The .mat files come with NetVLAD (www.di.ens.fr/willow/research/netvlad), the photos from its authors on request."""

TOKYO_247_LAYOUT = """\
  ROOT/tokyo247.mat, or the same in ROOT/datasets/
  ROOT/images/03814/381418.231_3946450.428/..._012_000.png    the database, 12 views per panorama (or ROOT/03814/...);
                                                              the .mat lists .jpg, photos come as .png: both are found
  ROOT/query/00010.jpg ...                                    the 315 queries (or 247query_subset_v2/, 247query_v3/)
The .mat file comes with NetVLAD (www.di.ens.fr/willow/research/netvlad), the photos from its authors on request.
Photos already renamed by VPR-datasets-downloader: give that folder's path instead of the set's name."""


@dataclass(frozen=True)
class StructSet:
    """What the split files of a dataset do not contain."""

    epsg: int
    """EPSG code of the UTM zone of the positions."""
    database: tuple[str, ...]
    """Possible folders of the database, the official one first."""
    queries: tuple[str, ...]
    layout: str
    protocol: Protocol = "radius"


PITTSBURGH = StructSet(32617, ("images", "."), ("queries", "queries_real"), PITTSBURGH_LAYOUT)
TOKYO_TM = StructSet(32654, ("images", "."), ("images", "."), TOKYO_TM_LAYOUT, "time")
TOKYO_247 = StructSet(
    32654,
    ("images", "."),
    ("query", "queries", "247query_subset_v2", "247query_v3"),
    TOKYO_247_LAYOUT,
    "panorama",
)
STRUCT_SETS = {"pitts30k": PITTSBURGH, "pitts250k": PITTSBURGH, "tokyoTM": TOKYO_TM, "tokyo247": TOKYO_247}


def load_dbstruct(name: str, root: Path, split: str) -> Places:
    """One split of a NetVLAD dataset: `name` is a key of STRUCT_SETS, `split` a split of that dataset."""
    struct_set = STRUCT_SETS[name]
    file = f"{name}.mat" if name == "tokyo247" else f"{name}_{split}.mat"
    path = find_file(root, (file, f"datasets/{file}"), struct_set.layout)
    struct = read_mat(path, "dbStruct")
    found = _text(_column(struct, "whichSet", path))
    if found != split:
        raise DatasetError(f"{path} contains the split {found!r}, expected {split!r}: was it renamed?")
    database = _read_photos(struct, ("dbImageFns", "utmDb", "dbTimeStamp"), path, root, struct_set.database, struct_set)
    queries = _read_photos(struct, ("qImageFns", "utmQ", "qTimeStamp"), path, root, struct_set.queries, struct_set)
    return Places(
        name,
        split,
        database,
        queries,
        struct_set.protocol,
        hit_radius_m=float(_column(struct, "posDistThr", path).item()),
        panoramas=_panoramas(len(database), path) if struct_set.protocol == "panorama" else None,
    )


def _read_photos(
    struct: Any, columns: tuple[str, str, str], path: Path, root: Path, folders: tuple[str, ...], of: StructSet
) -> PhotoSet:
    names_column, positions_column, times_column = columns
    names = tuple(_text(cell) for cell in _column(struct, names_column, path).ravel())
    east_north = np.asarray(_column(struct, positions_column, path), dtype=np.float64).T
    if not names or east_north.shape != (len(names), 2):
        raise DatasetError(
            f"{path}: {len(names)} names in {names_column}, but {positions_column} is {east_north.T.shape}"
        )
    times = None
    if of.protocol == "time":
        times = np.asarray(_column(struct, times_column, path), dtype=np.float64).ravel()
        if len(times) != len(names):
            raise DatasetError(f"{path}: {len(names)} names in {names_column}, {len(times)} numbers in {times_column}")
    folder, files = _on_disk(root, folders, names)
    return PhotoSet(folder, files, Positions.from_utm(east_north, of.epsg), times)


def _on_disk(root: Path, folders: tuple[str, ...], names: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """The folder of these photos and their names in it: Tokyo 24/7 lists .jpg files and is delivered as .png."""
    as_png = tuple(str(PurePosixPath(name).with_suffix(".png")) for name in names)
    folder = find_folder(root, folders, names[0])
    png_folder = find_folder(root, folders, as_png[0])
    if not (folder / names[0]).is_file() and (png_folder / as_png[0]).is_file():
        return png_folder, as_png
    return folder, names


def _panoramas(count: int, path: Path) -> Ints:
    if count % VIEWS_PER_PANORAMA:
        raise DatasetError(f"{path}: {count} database photos are not a multiple of {VIEWS_PER_PANORAMA} views")
    return np.arange(count, dtype=np.int64) // VIEWS_PER_PANORAMA


def _column(struct: Any, name: str, path: Path) -> npt.NDArray[Any]:
    fields = struct.dtype.names or ()
    if name not in fields:
        raise DatasetError(f"{path}: dbStruct has no field {name}: found {', '.join(fields) or 'no fields'}")
    return np.asarray(struct[name].item())


def _text(cell: Any) -> str:
    return str(np.asarray(cell).item())
