"""Google Landmarks, from its CSV files: training by landmark id, testing by mean average precision at 100."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Ints
from sareloc.datasets.folders_and_tables import read_columns
from sareloc.datasets.layout import find_file, not_found
from sareloc.datasets.places import IdLists, PhotoSet, Places
from sareloc.errors import DatasetError
from sareloc.photos import find_photos

# The paper's image-retrieval sets: Oxford 5k, Paris 6k and Holidays, from their groups' own ground truth.
#
# Each photo is in the database and the queries are among them. `relevant` and `junk` hold database rows.

OXFORD_LAYOUT = """\
  ROOT/groundtruth/all_souls_1_query.txt, _good.txt, _ok.txt, _junk.txt ...    55 queries (or gt_files/, or ROOT itself)
  ROOT/images/all_souls_000000.jpg ...                                        5,063 photos (or jpg/, oxbuild_images/)
Both come from www.robots.ox.ac.uk/~vgg/data/oxbuildings."""

PARIS_LAYOUT = """\
  ROOT/groundtruth/defense_1_query.txt, _good.txt, _ok.txt, _junk.txt ...    55 queries (or gt_files/, or ROOT itself)
  ROOT/images/defense/paris_defense_000000.jpg ...                          6,412 photos (or jpg/, paris/; flat or not)
  ROOT/corrupt.txt                                                          optional: a line for each photo to leave out
Both come from www.robots.ox.ac.uk/~vgg/data/parisbuildings; 20 of its photos are damaged."""

HOLIDAYS_LAYOUT = """\
  ROOT/jpg/100000.jpg, 100001.jpg ...    1,491 photos (or images/, or ROOT itself); a number that ends in 00 is a query,
                                         and the other photos with the same number before the last two digits are right
The photos come from lear.inrialpes.fr/~jegou/data.php."""

GROUND_TRUTH_FOLDERS = ("groundtruth", "gt_files", ".")
PHOTO_FOLDERS = ("images", "jpg", "oxbuild_images", "paris", ".")
OXFORD_PREFIX = "oxc1_"  # stands before the photo's name in Oxford's query files, and nowhere else


@dataclass(frozen=True, eq=False)
class _Listing:
    """The photos of a set by the name that its ground truth calls them."""

    photos: PhotoSet
    rows: dict[str, int]
    corrupt: frozenset[str]

    def rows_of(self, names: list[str], said_by: Path) -> list[int]:
        """Rows of these names, without the corrupt ones; any other absent name is an error."""
        absent = [name for name in names if name not in self.rows and name not in self.corrupt]
        if absent:
            raise DatasetError(
                f"{said_by} names {absent[0]}, which is not among the {len(self.photos)} photos in "
                f"{self.photos.folder}: is the download complete?"
            )
        return [self.rows[name] for name in names if name in self.rows]


def load_oxford(root: Path, split: str = "test") -> Places:
    """Oxford 5k: 55 queries with a box each; right is "good" or "ok", "junk" is taken out of the ranking.

    The query photo itself counts among the right ones, as the group's own program has it. `boxes` is what the
    variant 'crop' asks with; 'full' asks with the whole photo.
    """
    return _load_buildings("oxford5k", root, split, OXFORD_LAYOUT)


def load_paris(root: Path, split: str = "test") -> Places:
    """Paris 6k: as Oxford 5k. Photos listed in `corrupt.txt` are neither in the database nor right."""
    return _load_buildings("paris6k", root, split, PARIS_LAYOUT)


def load_holidays(root: Path, split: str = "test") -> Places:
    """Holidays: 500 queries among 1,491 photos; the query itself is junk, the others of its group are right."""
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
        raise not_found(root, f"*_query.txt, also not in {' or '.join(GROUND_TRUTH_FOLDERS[:-1])}", layout)
    listing = _listing(root, layout)
    asking, boxes, relevant, junk = [], [], [], []
    for query_file in sorted(folder.glob("*_query.txt")):
        photo, box = _read_query(query_file)
        asking += listing.rows_of([photo], query_file)
        boxes.append(box)
        good, ok, out = (_rows_in(query_file, judgement, listing) for judgement in ("good", "ok", "junk"))
        relevant.append(np.union1d(good, ok))
        junk.append(out)
    if len(asking) != len(boxes):
        raise DatasetError(f"{root / 'corrupt.txt'} lists a query photo: without it the query cannot be asked")
    return Places(
        name,
        split,
        listing.photos,
        listing.photos.take(asking),
        "average-precision",
        relevant=tuple(relevant),
        junk=tuple(junk),
        boxes=np.array(boxes),
    )


def _listing(root: Path, layout: str) -> _Listing:
    corrupt_file = root / "corrupt.txt"
    lines = corrupt_file.read_text(encoding="utf-8").split() if corrupt_file.is_file() else []
    corrupt = frozenset(Path(line).stem for line in lines)
    photos = _list_photos(root, PHOTO_FOLDERS, layout)
    sound = photos.take([row for row, file in enumerate(photos.files) if Path(file).stem not in corrupt])
    rows = {Path(file).stem: row for row, file in enumerate(sound.files)}
    if len(rows) != len(sound):
        raise DatasetError(f"{sound.folder} holds {len(sound) - len(rows)} photos whose name another one has too")
    return _Listing(sound, rows, corrupt)


def _list_photos(root: Path, folders: tuple[str, ...], layout: str) -> PhotoSet:
    folder = next((root / f for f in folders if (root / f).is_dir()), root)
    paths = find_photos(folder) if folder.is_dir() else []
    if not paths:
        raise not_found(root, f"photos, also not in {', '.join(folders[:-1])}", layout)
    return PhotoSet(folder, tuple(path.relative_to(folder).as_posix() for path in paths))


def _read_query(path: Path) -> tuple[str, npt.NDArray[np.float64]]:
    words = path.read_text(encoding="utf-8").split()
    try:
        name, *numbers = words
        box = np.array([float(number) for number in numbers]).reshape(4)
    except ValueError as wrong:
        raise DatasetError(f"{path}: {' '.join(words)!r} is not a photo's name and a box x0 y0 x1 y1") from wrong
    return name.removeprefix(OXFORD_PREFIX), box


def _rows_in(query_file: Path, judgement: str, listing: _Listing) -> Ints:
    path = query_file.with_name(query_file.name.replace("_query.txt", f"_{judgement}.txt"))
    if not path.is_file():
        raise DatasetError(f"{query_file} has no {path.name} beside it")
    names = path.read_text(encoding="utf-8").split()
    return np.unique(np.array(listing.rows_of(names, path), dtype=np.int64))


def _holiday_number(photos: PhotoSet, row: int) -> int:
    stem = Path(photos.files[row]).stem
    if not stem.isdecimal():
        raise DatasetError(f"{photos.path(row)}: its name is not a number. The set is laid out so:\n{HOLIDAYS_LAYOUT}")
    return int(stem)


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
