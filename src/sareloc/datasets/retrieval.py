"""Image-retrieval datasets: Oxford 5k, Paris 6k and Holidays from their ground-truth files, Google Landmarks from CSV.

In the first three every photo is in the database and the queries are among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sareloc.arrays import Floats, Ints
from sareloc.datasets.places import IdLists, PhotoSet, Places
from sareloc.datasets.published import find_file, not_found, read_columns, read_text
from sareloc.errors import DatasetError
from sareloc.photos import find_photos
from sareloc.wording import plural

OXFORD_LAYOUT = """\
  ROOT/groundtruth/all_souls_1_query.txt, _good.txt, _ok.txt, _junk.txt ...    55 queries (or gt_files/, or ROOT itself)
  ROOT/images/all_souls_000000.jpg ...                                        5,063 photos (or jpg/, oxbuild_images/)
Both come from www.robots.ox.ac.uk/~vgg/data/oxbuildings."""

PARIS_LAYOUT = """\
  ROOT/groundtruth/defense_1_query.txt, _good.txt, _ok.txt, _junk.txt ...    55 queries (or gt_files/, or ROOT itself)
  ROOT/images/defense/paris_defense_000000.jpg ...                          6,412 photos (or jpg/, paris/; flat or not)
  ROOT/corrupt.txt                                                          optional: photos to leave out, one per line
Both come from www.robots.ox.ac.uk/~vgg/data/parisbuildings; 20 of its photos are damaged."""

HOLIDAYS_LAYOUT = """\
  ROOT/jpg/100000.jpg, 100001.jpg ...    1,491 photos (or images/, or ROOT itself); a number ending in 00 is a query,
                                         its positives have the same number except for the last two digits
The photos come from lear.inrialpes.fr/~jegou/data.php."""

GROUND_TRUTH_FOLDERS = ("groundtruth", "gt_files", ".")
PHOTO_FOLDERS = ("images", "jpg", "oxbuild_images", "paris", ".")
OXFORD_PREFIX = "oxc1_"  # before the photo's name in Oxford's query files only


@dataclass(frozen=True, eq=False)
class _Listing:
    """The photos of a dataset by their names in the ground truth."""

    photos: PhotoSet
    rows: dict[str, int]
    corrupt: frozenset[str]

    def rows_of(self, names: list[str], source: Path) -> list[int]:
        """Rows of these names, without the corrupt ones; raises DatasetError for any other missing name."""
        absent = [name for name in names if name not in self.rows and name not in self.corrupt]
        if absent:
            raise DatasetError(
                f"{source} lists {absent[0]}, which is not among the {len(self.photos)} photos in "
                f"{self.photos.folder}: is the download complete?"
            )
        return [self.rows[name] for name in names if name in self.rows]


def load_oxford(root: Path, split: str = "test") -> Places:
    """Oxford 5k: 55 queries with a box each; positives are "good" or "ok", "junk" is removed from the ranking.

    The query photo itself is a positive, as in the official evaluation program. `boxes` are the query regions of the
    'crop' variant; the 'full' variant uses full photos.
    """
    return _load_buildings("oxford5k", root, split, OXFORD_LAYOUT)


def load_paris(root: Path, split: str = "test") -> Places:
    """Paris 6k: as Oxford 5k. Photos listed in `corrupt.txt` are left out of the database and of the positives."""
    return _load_buildings("paris6k", root, split, PARIS_LAYOUT)


def load_holidays(root: Path, split: str = "test") -> Places:
    """Holidays: 500 queries among 1,491 photos; the query itself is junk, the others of its group are positives."""
    photos = _list_photos(root, ("jpg", "images", "."), HOLIDAYS_LAYOUT)
    numbers = np.array([_holiday_number(photos, row) for row in range(len(photos))], dtype=np.int64)
    groups, places_in_group = np.divmod(numbers, 100)
    asking = np.flatnonzero(places_in_group == 0)
    relevant = tuple(np.setdiff1d(np.flatnonzero(groups == groups[row]), row) for row in asking)
    junk = tuple(np.array([row], dtype=np.int64) for row in asking)
    return Places("holidays", split, photos, photos.take(asking), "average-precision", relevant=relevant, junk=junk)


def _load_buildings(name: str, root: Path, split: str, layout: str) -> Places:
    folder = next((root / f for f in GROUND_TRUTH_FOLDERS if any((root / f).glob("*_query.txt"))), None)
    if folder is None:
        raise not_found(root, f"*_query.txt (nor do {' or '.join(GROUND_TRUTH_FOLDERS[:-1])})", layout)
    listing = _listing(root, layout)
    query_rows, boxes, relevant, junk = [], [], [], []
    for query_file in sorted(folder.glob("*_query.txt")):
        photo, box = _read_query(query_file)
        query_rows += listing.rows_of([photo], query_file)
        boxes.append(box)
        good, ok, out = (_rows_in(query_file, judgement, listing) for judgement in ("good", "ok", "junk"))
        relevant.append(np.union1d(good, ok))
        junk.append(out)
    if len(query_rows) != len(boxes):
        raise DatasetError(f"{root / 'corrupt.txt'} lists a query photo: queries cannot be left out")
    return Places(
        name,
        split,
        listing.photos,
        listing.photos.take(query_rows),
        "average-precision",
        relevant=tuple(relevant),
        junk=tuple(junk),
        boxes=np.array(boxes),
    )


def _listing(root: Path, layout: str) -> _Listing:
    corrupt_file = root / "corrupt.txt"
    lines = read_text(corrupt_file).split() if corrupt_file.is_file() else []
    corrupt = frozenset(Path(line).stem for line in lines)
    photos = _list_photos(root, PHOTO_FOLDERS, layout)
    sound = photos.take([row for row, file in enumerate(photos.files) if Path(file).stem not in corrupt])
    rows = {Path(file).stem: row for row, file in enumerate(sound.files)}
    if len(rows) != len(sound):
        raise DatasetError(f"{sound.folder} contains {plural(len(sound) - len(rows), 'photo')} with duplicate names")
    return _Listing(sound, rows, corrupt)


def _list_photos(root: Path, folders: tuple[str, ...], layout: str) -> PhotoSet:
    folder = next((root / f for f in folders if (root / f).is_dir()), root)
    paths = find_photos(folder) if folder.is_dir() else []
    if not paths:
        raise not_found(root, f"photos (nor do {', '.join(folders[:-1])})", layout)
    return PhotoSet(folder, tuple(path.relative_to(folder).as_posix() for path in paths))


def _read_query(path: Path) -> tuple[str, Floats]:
    words = read_text(path).split()
    try:
        name, *numbers = words
        box = np.array([float(number) for number in numbers]).reshape(4)
    except ValueError as error:
        raise DatasetError(f"{path}: expected a photo name and a box x0 y0 x1 y1, found {' '.join(words)!r}") from error
    return name.removeprefix(OXFORD_PREFIX), box


def _rows_in(query_file: Path, judgement: str, listing: _Listing) -> Ints:
    path = query_file.with_name(query_file.name.replace("_query.txt", f"_{judgement}.txt"))
    if not path.is_file():
        raise DatasetError(f"{query_file} has no {path.name} beside it")
    names = read_text(path).split()
    return np.unique(np.array(listing.rows_of(names, path), dtype=np.int64))


def _holiday_number(photos: PhotoSet, row: int) -> int:
    stem = Path(photos.files[row]).stem
    if not stem.isdecimal():
        raise DatasetError(f"{photos.path(row)}: the file name is not a number. Expected layout:\n{HOLIDAYS_LAYOUT}")
    return int(stem)


LANDMARKS_LAYOUT = """\
  ROOT/train.csv                 id, landmark_id           for the split train
  ROOT/index.csv                 id                        the database of the splits val and test
  ROOT/retrieval_solution.csv    id, images, Usage         queries and positives (or retrieval_solution_v2.1.csv):
                                                           Usage Public is val, Private is test, Ignored is not used
  ROOT/images/ID.jpg, or ROOT/train/a/b/c/abc....jpg, ROOT/index/a/b/c/abc....jpg, ROOT/test/a/b/c/abc....jpg
                                 the photos, in folders of the first three letters of their id or not
All of it comes from github.com/cvdfoundation/google-landmark; the CSV files may also be in ROOT/metadata/."""

SOLUTIONS = ("retrieval_solution_v2.1.csv", "retrieval_solution.csv")
USAGE = {"val": "Public", "test": "Private"}
PRECISION_AT = 100
QUERY_EVERY = 4


def load_landmarks(root: Path, split: str = "test") -> Places:
    """Google Landmarks: `split` is train, val or test.

    train: photos with their landmark as place id; every fourth photo of each landmark is a query, the others are the
    database, so that no photo matches itself. val and test: the index is the database, `relevant` lists the positives,
    and average precision is computed over the top 100.
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
    is_query = _number_within(ids) % QUERY_EVERY == QUERY_EVERY - 1
    database, queries = (labelled.take(np.flatnonzero(rows)) for rows in (~is_query, is_query))
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
            raise DatasetError(f"{solution} line {line} lists {absent[0]}, which is not in index.csv")
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
    return find_file(root, (*names, *(f"metadata/{name}" for name in names)), LANDMARKS_LAYOUT)


def _photos(root: Path, part: str, names: list[str]) -> PhotoSet:
    """The photos of these ids, in the folder layout in which the first is found; default: the official layout."""
    if not names:
        raise DatasetError(f"{root}: the CSV file of the part {part!r} lists no photos")
    layouts = [(part, True), (part, False), ("images", False), ("images", True)]
    existing = (layout for layout in layouts if (root / layout[0] / _file(names[0], layout[1])).is_file())
    folder, nested = next(existing, layouts[0])
    return PhotoSet(root / folder, tuple(_file(name, nested) for name in names))


def _file(name: str, nested: bool) -> str:
    return f"{name[0]}/{name[1]}/{name[2]}/{name}.jpg" if nested else f"{name}.jpg"


def _number_within(ids: Ints) -> Ints:
    """The number of earlier rows with the same id, for each row."""
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.diff(ids[order], prepend=ids[order[:1]] - 1))
    counts = np.empty(len(ids), dtype=np.int64)
    counts[order] = np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
    return counts
