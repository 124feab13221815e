"""Published datasets of places: Pittsburgh and Tokyo from NetVLAD's official split files (`dbStruct`, MATLAB), San
Francisco (Sf-0); and how files of published datasets are found and read.

Pittsburgh and Tokyo load without their photos.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Ints
from sareloc.datasets.places import IdLists, PhotoSet, Places, Protocol
from sareloc.errors import DatasetError
from sareloc.files import open_regular, read_regular
from sareloc.geo import Positions
from sareloc.photos.tables import open_csv

LARGEST_BYTES = 200_000_000


def find_file(root: Path, names: Sequence[str], layout: str) -> Path:
    """The first of these files that exists in `root`; raises DatasetError with the expected `layout` if none does."""
    found = next((root / name for name in names if (root / name).is_file()), None)
    if found is None:
        raise not_found(root, " or ".join(names), layout)
    return found


def not_found(root: Path, expected: str, layout: str) -> DatasetError:
    """The error for a dataset whose `expected` files are not in `root`."""
    state = "" if root.is_dir() else " (no such folder)"
    return DatasetError(f"{root}{state} contains no {expected}. Expected layout:\n{layout}")


def find_folder(root: Path, names: Sequence[str], first_file: str) -> Path:
    """The first of these subfolders of `root` that contains `first_file`; default: the first name."""
    holders = (root / name for name in names if (root / name / first_file).is_file())
    return next(holders, root / names[0])


def read_mat(path: Path, key: str) -> Any:
    """The variable `key` of a MATLAB file (version 5); raises DatasetError if it cannot be read."""
    from scipy.io import loadmat

    try:
        with open_regular(path) as file:
            content = loadmat(file)  # type: ignore[arg-type]  # it takes open files, too
    except Exception as error:  # a damaged file raises a dozen unrelated types, zlib's and numpy's among them
        raise DatasetError(f"{path} cannot be read as a MATLAB file: {error}") from error
    if key not in content:
        found = ", ".join(name for name in content if not name.startswith("__")) or "nothing"
        raise DatasetError(f"{path} has no variable {key!r}: found {found}")
    return content[key]


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a list of a dataset; raises DatasetError if it cannot be read."""
    try:
        return read_regular(path, LARGEST_BYTES).decode(encoding)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not text in {encoding}: {error}") from error


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and stripped values of `columns` for each row of a CSV file; empty lines are skipped.

    Raises DatasetError if a column is missing, or if a row is too short.
    """
    file = open_csv(path)
    missing = [name for name in columns if name not in file.header]
    if missing:
        raise DatasetError(f"{path} has no column {missing[0]!r}: found {', '.join(file.header)}")
    indices = [file.header.index(name) for name in columns]
    for line, row in file.rows():
        if len(row) <= max(indices, default=-1):
            raise DatasetError(f"{path} line {line}: {len(row)} values for {len(file.header)} columns")
        yield line, tuple(row[index] for index in indices)


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


GROUND_TRUTH = "cartoid_groundTruth_2014_04.txt"
DATABASE_IDS = "sv_cartoid.mat"
QUERY_FOLDER = "BuildingQueryImagesCartoIDCorrected-Upright"
PANORAMA, LATITUDE, LONGITUDE, BUILDING, HEADING = 2, 3, 4, 7, 8  # fields of a file name, split at "_"
FIELDS = 10

SF_LAYOUT = f"""\
  ROOT/{GROUND_TRUTH}     one line per query: its number and the ids of the buildings in it
  ROOT/{QUERY_FOLDER}/0000.jpg ... 0802.jpg
  ROOT/**/PCI_sp_11841_37.789727_-122.386935_937762214_0_727224067_246.264_-37.8198.jpg ...
      the database, unpacked anywhere below ROOT: panorama, latitude, longitude, -, view, building id, heading, pitch
  ROOT/{DATABASE_IDS}    building ids of the 1,062,468 database photos, used if there are no photos
The photos come from purl.stanford.edu/vn158kj2087, the ids from Chen et al. (CVPR 2011) by way of Kim et al. (CRN)."""


def load_san_francisco(root: Path, split: str = "test") -> Places:
    """Sf-0: positives are database photos with one of the query's building ids.

    The database is all photos below `root`, ordered by panorama and file name, with ids, positions and headings parsed
    from the file names: the full 1,062,468 photos, or a subset such as the paper's 610,773. Without photos it is the
    list of ids in `sv_cartoid.mat`, in that order, to judge a ranking made elsewhere; `files` are then row numbers,
    because that file has no names. Queries have no positions.
    """
    ground_truth = find_file(root, (GROUND_TRUTH,), SF_LAYOUT)
    numbers, buildings = _read_ground_truth(ground_truth)
    queries = PhotoSet(
        root / QUERY_FOLDER, tuple(f"{number}.jpg" for number in numbers), place_ids=IdLists.of(buildings)
    )
    return Places("sf0", split, _database(root), queries, "place-id")


def _read_ground_truth(path: Path) -> tuple[list[str], list[list[int]]]:
    numbers, buildings = [], []
    for line, text in enumerate(read_text(path, "ascii").splitlines(), start=1):
        if not text.strip():
            continue
        number, *ids = text.split()
        if not all(word.isdecimal() for word in (number, *ids)):
            raise DatasetError(f"{path} line {line}: expected a query number and building ids, found {text!r}")
        numbers.append(number)
        buildings.append([int(building) for building in ids])
    return numbers, buildings


def _database(root: Path) -> PhotoSet:
    files = sorted(_street_view_files(root), key=_by_panorama)
    if files:
        return _from_names(root, files)
    listed = root / DATABASE_IDS
    if not listed.is_file():
        raise not_found(root, f"PCI_sp_*.jpg and no {DATABASE_IDS}", SF_LAYOUT)
    ids = np.array([cell.item() for cell in read_mat(listed, "sv_cartoid").ravel()], dtype=np.int64)
    return PhotoSet(root, tuple(f"PCI_row_{row:07d}.jpg" for row in range(len(ids))), place_ids=IdLists.one_each(ids))


def _street_view_files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        inside = Path(folder).relative_to(root).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        yield from (prefix + name for name in names if name.startswith("PCI_sp_") and name.endswith(".jpg"))


def _by_panorama(file: str) -> tuple[int, str]:
    name = file.rsplit("/", 1)[-1]
    panorama = _fields(file)[PANORAMA]
    if not panorama.isdecimal():
        raise DatasetError(f"{file}: the panorama {panorama!r} in the file name is not a number")
    return int(panorama), name


def _from_names(root: Path, files: list[str]) -> PhotoSet:
    columns = np.empty((4, len(files)))
    for row, file in enumerate(files):
        fields = _fields(file)
        try:
            columns[:, row] = [float(fields[field]) for field in (LATITUDE, LONGITUDE, HEADING, BUILDING)]
        except ValueError as error:
            raise DatasetError(f"{root / file}: {error} in the file name. Expected layout:\n{SF_LAYOUT}") from error
    latitude, longitude, heading, building = columns
    return PhotoSet(
        root,
        tuple(files),
        Positions.from_wgs84(np.stack([latitude, longitude], axis=1)),
        headings_deg=heading % 360,
        place_ids=IdLists.one_each(building.astype(np.int64)),
    )


def _fields(file: str) -> list[str]:
    fields = file.rsplit("/", 1)[-1].removesuffix(".jpg").split("_")
    if len(fields) != FIELDS:
        raise DatasetError(
            f"{file}: {len(fields)} fields in the file name, expected {FIELDS}. Expected layout:\n{SF_LAYOUT}"
        )
    return fields
