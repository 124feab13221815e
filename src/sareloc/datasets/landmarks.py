"""Google Landmarks, from its CSV files: training by landmark id, testing by mean average precision at 100."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sareloc.datasets.columns import read_columns
from sareloc.datasets.layout import find_file
from sareloc.datasets.places import IdLists, Ints, PhotoSet, Places
from sareloc.errors import DatasetError

LAYOUT = """\
  ROOT/train.csv                 id, landmark_id           for the split train
  ROOT/index.csv                 id                        the database of the splits val and test
  ROOT/retrieval_solution.csv    id, images, Usage         queries and right answers (or retrieval_solution_v2.1.csv):
                                                           Usage Public is val, Private is test, Ignored is not asked
  ROOT/images/ID.jpg, or ROOT/train/a/b/c/abc....jpg, ROOT/index/a/b/c/abc....jpg, ROOT/test/a/b/c/abc....jpg
                                 the photos, below the first three letters of their id or not
All of it comes from github.com/cvdfoundation/google-landmark; the CSV files may also lie in ROOT/metadata/."""

SOLUTIONS = ("retrieval_solution_v2.1.csv", "retrieval_solution.csv")
USAGE = {"val": "Public", "test": "Private"}
PRECISION_AT = 100
ONE_QUERY_IN = 4


def load_landmarks(root: Path, split: str = "test") -> Places:
    """Google Landmarks: `split` is train, val or test.

    train: photos with their landmark as place id; of each landmark every fourth photo is a query and the others are
    the database, so that no photo answers itself. val and test: the index is the database, `relevant` says what is
    right, precision is averaged over the first 100.
    """
    return _load_train(root) if split == "train" else _load_retrieval(root, split)


def _load_train(root: Path) -> Places:
    path = _find(root, ("train.csv",))
    names, landmarks = [], []
    for line, (name, landmark) in read_columns(path, ("id", "landmark_id")):
        if not landmark.isdecimal():
            raise DatasetError(f"{path} line {line}: landmark_id is {landmark!r}, not a number")
        names.append(name)
        landmarks.append(int(landmark))
    ids = np.array(landmarks, dtype=np.int64)
    photos = _photos(root, "train", names)
    labelled = PhotoSet(photos.folder, photos.files, place_ids=IdLists.one_each(ids))
    asking = _number_within(ids) % ONE_QUERY_IN == ONE_QUERY_IN - 1
    database, queries = (labelled.take(np.flatnonzero(rows)) for rows in (~asking, asking))
    return Places("landmarks", "train", database, queries, "place-id")


def _load_retrieval(root: Path, split: str) -> Places:
    index = [values[0] for _, values in read_columns(_find(root, ("index.csv",)), ("id",))]
    row_of = {name: row for row, name in enumerate(index)}
    names, relevant = [], []
    solution = _find(root, SOLUTIONS)
    for line, (name, images, usage) in read_columns(solution, ("id", "images", "Usage")):
        if usage != USAGE[split]:
            continue
        absent = [image for image in images.split() if image not in row_of]
        if absent:
            raise DatasetError(f"{solution} line {line} names {absent[0]}, which is not in index.csv")
        names.append(name)
        relevant.append(np.array(sorted(row_of[image] for image in images.split()), dtype=np.int64))
    if not names:
        raise DatasetError(f"{solution} has no query of Usage {USAGE[split]}: the split {split!r} is empty")
    return Places(
        "landmarks",
        split,
        _photos(root, "index", index),
        _photos(root, "test", names),
        "average-precision",
        relevant=tuple(relevant),
        junk=tuple(np.empty(0, dtype=np.int64) for _ in names),
        precision_at=PRECISION_AT,
    )


def _find(root: Path, names: tuple[str, ...]) -> Path:
    return find_file(root, (*names, *(f"metadata/{name}" for name in names)), LAYOUT)


def _photos(root: Path, part: str, names: list[str]) -> PhotoSet:
    """The photos of these ids, in the arrangement that the first of them is found in; else in the official one."""
    if not names:
        raise DatasetError(f"{root}: the CSV file of the part {part!r} lists no photos")
    arrangements = [(part, True), (part, False), ("images", False), ("images", True)]
    folder, nested = next((a for a in arrangements if (root / a[0] / _file(names[0], a[1])).is_file()), arrangements[0])
    return PhotoSet(root / folder, tuple(_file(name, nested) for name in names))


def _file(name: str, nested: bool) -> str:
    return f"{name[0]}/{name[1]}/{name[2]}/{name}.jpg" if nested else f"{name}.jpg"


def _number_within(ids: Ints) -> Ints:
    """For each row how many earlier rows have the same id."""
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.diff(ids[order], prepend=ids[order[:1]] - 1))
    counts = np.empty(len(ids), dtype=np.int64)
    counts[order] = np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
    return counts
