"""Datasets for visual place recognition: published datasets by name, and folders or CSV files of one's own photos.

`load_dataset` returns a `Places`: a database and queries with positions, and the protocol that judges results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sareloc.datasets.check import Check, Extent, check_places, find_extent
from sareloc.datasets.folders_and_tables import (
    find_splits,
    load_photo_folder,
    load_split_folder,
    load_table,
    table_splits,
)
from sareloc.datasets.places import IdLists, PhotoSet, Places, find_positives, photo_paths, split_places
from sareloc.datasets.published import SF_LAYOUT, STRUCT_SETS, load_dbstruct, load_san_francisco
from sareloc.datasets.retrieval import (
    HOLIDAYS_LAYOUT,
    LANDMARKS_LAYOUT,
    OXFORD_LAYOUT,
    PARIS_LAYOUT,
    load_holidays,
    load_landmarks,
    load_oxford,
    load_paris,
)
from sareloc.errors import ArgumentError, DatasetError, look_up
from sareloc.photos import find_photos
from sareloc.photos.finding import TABLES

__all__ = [
    "DATASETS",
    "Check",
    "Extent",
    "IdLists",
    "NamedSet",
    "PhotoSet",
    "Places",
    "check_places",
    "choose_split",
    "find_extent",
    "find_positives",
    "load_dataset",
    "load_table",
    "photo_paths",
    "split_places",
]

FORMATS = """\
  images/{train,val,test}/{database,queries}/@...@.jpg, or the same without images/ (VPR-datasets-downloader's format)
  database/ and queries/                                without splits
  a CSV file, or a folder with one (or with meta.csv)   columns file, and lat, lon or x_m, y_m or place_id
  a folder of photos with EXIF positions                all of them are the database"""


@dataclass(frozen=True)
class NamedSet:
    """A published dataset: its loader, its layout on disk, and its splits with their published sizes."""

    load: Callable[[Path, str], Places]
    layout: str
    splits: Mapping[str, tuple[int, int] | None]
    """The number of database photos and queries of each split; None: several numbers are published."""


def _struct_set(name: str, splits: Mapping[str, tuple[int, int] | None]) -> NamedSet:
    return NamedSet(partial(load_dbstruct, name), STRUCT_SETS[name].layout, splits)


DATASETS: Mapping[str, NamedSet] = {
    "pitts30k": _struct_set("pitts30k", {"train": (10000, 7416), "val": (10000, 7608), "test": (10000, 6816)}),
    "pitts250k": _struct_set("pitts250k", {"train": (91464, 7824), "val": (78648, 7608), "test": (83952, 8280)}),
    "tokyoTM": _struct_set("tokyoTM", {"train": (49104, 7277), "val": (49056, 7186)}),
    "tokyo247": _struct_set("tokyo247", {"test": (75984, 315)}),
    "sf0": NamedSet(load_san_francisco, SF_LAYOUT, {"test": (1062468, 803)}),
    "oxford5k": NamedSet(load_oxford, OXFORD_LAYOUT, {"test": (5063, 55)}),
    "paris6k": NamedSet(load_paris, PARIS_LAYOUT, {"test": (6412, 55)}),
    "holidays": NamedSet(load_holidays, HOLIDAYS_LAYOUT, {"test": (1491, 500)}),
    "landmarks": NamedSet(load_landmarks, LANDMARKS_LAYOUT, {"train": None, "val": None, "test": None}),
}


def load_dataset(name_or_folder: str | Path, root: str | Path | None = None, split: str = "test") -> Places:
    """Load one split of a published dataset, a folder or a CSV file.

    The format of a folder is detected (see FORMATS). Published datasets whose ground truth lists the photos load
    without the photos. A dataset without splits has the split "all", which is returned for every `split`.

    Args:
        name_or_folder: a key of DATASETS, a folder or a CSV file; a folder with the name of a published dataset is
            given as a Path or as "./pitts30k".
        root: of a published dataset its folder; of a CSV file the folder that file names are relative to, default:
            that of the file.
        split: train, val or test, or another name of the dataset's.

    Raises:
        ArgumentError: for an unknown name or split.
        DatasetError: if files are missing or malformed.
    """
    if isinstance(name_or_folder, str) and name_or_folder in DATASETS:
        return _load_named(name_or_folder, root, split)
    path = Path(name_or_folder)
    table = _find_table(path)
    if table is not None:
        return load_table(table, split, photo_folder=root)
    if not path.is_dir():
        raise ArgumentError(
            f"unknown dataset {str(name_or_folder)!r}: no such folder, CSV file or published dataset. Known are "
            f"{', '.join(sorted(DATASETS))}"
        )
    if root is not None:
        raise ArgumentError(f"{path} is a folder of photos: root is for published datasets and CSV files")
    if find_splits(path):
        return load_split_folder(path, split)
    if find_photos(path):
        return load_photo_folder(path)
    raise DatasetError(
        f"{path} has no known dataset format. Known are\n{FORMATS}\n"
        f"and the published datasets {', '.join(sorted(DATASETS))} (give the name, and this folder as root)"
    )


def choose_split(name_or_folder: str | Path) -> str:
    """The split to evaluate: test if the dataset has it, else val, else train, else its first; "all" without splits."""
    if isinstance(name_or_folder, str) and name_or_folder in DATASETS:
        known = list(DATASETS[name_or_folder].splits)
    else:
        table = _find_table(Path(name_or_folder))
        known = list(find_splits(Path(name_or_folder))) if table is None else table_splits(table)
    return next((split for split in ("test", "val", "train") if split in known), known[0] if known else "all")


def _load_named(name: str, root: str | Path | None, split: str) -> Places:
    named = DATASETS[name]
    look_up(named.splits, split, f"split of {name}")
    if root is None:
        raise ArgumentError(f"{name} is a published dataset: give its folder as root. Expected layout:\n{named.layout}")
    return named.load(Path(root), split)


def _find_table(path: Path) -> Path | None:
    """The CSV file of a dataset: the path itself, or the folder's meta.csv or only CSV file; None if there is none."""
    if path.suffix.lower() == ".csv":
        if not path.is_file():
            raise ArgumentError(f"no such file: {path}")
        return path
    if not path.is_dir() or find_splits(path):
        return None
    if (path / "meta.csv").is_file():
        return path / "meta.csv"
    tables = sorted(table for table in path.glob("*.csv") if table.name not in TABLES)  # those are read with the photos
    if len(tables) > 1:
        raise DatasetError(
            f"{path} contains {len(tables)} CSV files ({', '.join(table.name for table in tables[:5])}): give the one "
            "that lists the photos, or the name of a published dataset with this folder as root"
        )
    return tables[0] if tables else None
