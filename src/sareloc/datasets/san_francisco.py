"""San Francisco (Sf-0): a million street-view photos and 803 phone queries, judged by building id."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sareloc.datasets.places import IdLists, PhotoSet, Places
from sareloc.datasets.published import find_file, not_found, read_mat, read_text
from sareloc.errors import DatasetError
from sareloc.geo import Positions

GROUND_TRUTH = "cartoid_groundTruth_2014_04.txt"
DATABASE_IDS = "sv_cartoid.mat"
QUERY_FOLDER = "BuildingQueryImagesCartoIDCorrected-Upright"
PANORAMA, LATITUDE, LONGITUDE, BUILDING, HEADING = 2, 3, 4, 7, 8  # fields of a file name, split at "_"
FIELDS = 10

LAYOUT = f"""\
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
    ground_truth = find_file(root, (GROUND_TRUTH,), LAYOUT)
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
        raise not_found(root, f"PCI_sp_*.jpg and no {DATABASE_IDS}", LAYOUT)
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
            raise DatasetError(f"{root / file}: {error} in the file name. Expected layout:\n{LAYOUT}") from error
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
            f"{file}: {len(fields)} fields in the file name, expected {FIELDS}. Expected layout:\n{LAYOUT}"
        )
    return fields
