"""The paper's image-retrieval sets: Oxford 5k, Paris 6k and Holidays, from their groups' own ground truth.

Each photo is in the database and the queries are among them. `relevant` and `junk` hold database rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.datasets.layout import not_found
from sareloc.datasets.places import Ints, PhotoSet, Places
from sareloc.errors import DatasetError
from sareloc.photos import find_photos

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
