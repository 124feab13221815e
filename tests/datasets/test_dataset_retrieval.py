"""Oxford, Paris and Holidays from made files in their groups' formats."""

from __future__ import annotations

import numpy as np
import pytest

from sareloc.datasets import load_dataset
from sareloc.errors import DatasetError

OXFORD = {
    "all_souls_1": (
        "oxc1_all_souls_000013 136.5 34.1 648.5 955.7",
        ["all_souls_000013"],
        ["radcliffe_000001"],
        ["x_1"],
    ),
    "all_souls_2": ("oxc1_x_1 0 1 2 3", ["x_1", "all_souls_000013"], [], []),
}


def write_ground_truth(folder, queries):
    folder.mkdir(parents=True)
    for name, (query, *lists) in queries.items():
        (folder / f"{name}_query.txt").write_text(query + "\n")
        for judgement, photos in zip(("good", "ok", "junk"), lists, strict=True):
            (folder / f"{name}_{judgement}.txt").write_text("".join(f"{photo}\n" for photo in photos))


@pytest.mark.parametrize(
    ("truth", "photos"), [("groundtruth", "images"), ("gt_files", "oxbuild_images"), ("gt_files", "jpg")]
)
def test_oxford(tmp_path, make_photo, truth, photos):
    write_ground_truth(tmp_path / truth, OXFORD)
    for name in ("x_1", "all_souls_000013", "distractor_1", "radcliffe_000001"):
        make_photo(tmp_path / photos / f"{name}.jpg")
    places = load_dataset("oxford5k", tmp_path)
    assert places.database.files == ("all_souls_000013.jpg", "distractor_1.jpg", "radcliffe_000001.jpg", "x_1.jpg")
    assert places.queries.files == ("all_souls_000013.jpg", "x_1.jpg")
    assert places.queries.path(0).is_file()
    assert [rows.tolist() for rows in places.relevant] == [[0, 2], [0, 3]]
    assert [rows.tolist() for rows in places.junk] == [[3], []]
    assert places.boxes.tolist() == [[136.5, 34.1, 648.5, 955.7], [0, 1, 2, 3]]
    assert (places.protocol, places.precision_at) == ("average-precision", None)


def test_paris_lies_in_folders_and_leaves_corrupt_photos_out(tmp_path, make_photo):
    queries = {"defense_1": ("paris_defense_000605 1 2 3 4", ["paris_defense_000605"], ["paris_louvre_000136"], [])}
    write_ground_truth(tmp_path / "groundtruth", queries)
    make_photo(tmp_path / "images" / "defense" / "paris_defense_000605.jpg")
    make_photo(tmp_path / "images" / "louvre" / "paris_louvre_000136.jpg")
    assert load_dataset("paris6k", tmp_path).relevant[0].tolist() == [0, 1]
    (tmp_path / "corrupt.txt").write_text("louvre/paris_louvre_000136.jpg\n")
    places = load_dataset("paris6k", tmp_path)
    assert places.database.files == ("defense/paris_defense_000605.jpg",)
    assert places.relevant[0].tolist() == [0]
    (tmp_path / "corrupt.txt").write_text("paris_defense_000605.jpg\n")
    with pytest.raises(DatasetError, match=r"corrupt.txt lists a query photo"):
        load_dataset("paris6k", tmp_path)


def test_oxford_errors(tmp_path, make_photo):
    with pytest.raises(DatasetError, match=r"no \*_query.txt.*\n  ROOT/groundtruth"):
        load_dataset("oxford5k", tmp_path)
    write_ground_truth(tmp_path / "groundtruth", OXFORD)
    with pytest.raises(DatasetError, match=r"no photos.*\n.*\n  ROOT/images"):
        load_dataset("oxford5k", tmp_path)
    make_photo(tmp_path / "images" / "all_souls_000013.jpg")
    with pytest.raises(DatasetError, match=r"all_souls_1_ok.txt .*radcliffe_000001"):
        load_dataset("oxford5k", tmp_path)
    for name in ("x_1.jpg", "radcliffe_000001.jpg"):
        make_photo(tmp_path / "images" / name)
    make_photo(tmp_path / "images" / "again" / "x_1.jpg")
    with pytest.raises(DatasetError, match="duplicate"):
        load_dataset("oxford5k", tmp_path)
    (tmp_path / "images" / "again" / "x_1.jpg").unlink()
    (tmp_path / "groundtruth" / "all_souls_2_junk.txt").unlink()
    with pytest.raises(DatasetError, match=r"all_souls_2_junk.txt"):
        load_dataset("oxford5k", tmp_path)
    (tmp_path / "groundtruth" / "all_souls_2_query.txt").write_text("oxc1_x_1 0 1 two 3\n")
    with pytest.raises(DatasetError, match="a box"):
        load_dataset("oxford5k", tmp_path)


@pytest.mark.parametrize("folder", ["jpg", "."])
def test_holidays(tmp_path, make_photo, folder):
    for name in ("100000", "100001", "100010", "100100", "100101", "149900"):
        make_photo(tmp_path / folder / f"{name}.jpg")
    places = load_dataset("holidays", tmp_path)
    assert len(places.database) == 6
    assert places.queries.files == ("100000.jpg", "100100.jpg", "149900.jpg")
    assert [rows.tolist() for rows in places.relevant] == [[1, 2], [4], []]
    assert [rows.tolist() for rows in places.junk] == [[0], [3], [5]]
    make_photo(tmp_path / folder / "beach.jpg")
    with pytest.raises(DatasetError, match=r"beach.jpg: .*not a number.*\n  ROOT/jpg"):
        load_dataset("holidays", tmp_path)


def test_rows_are_whole_numbers(tmp_path, make_photo):
    make_photo(tmp_path / "jpg" / "100000.jpg")
    places = load_dataset("holidays", tmp_path)
    assert all(rows.dtype == np.int64 for rows in (*places.relevant, *places.junk))
