"""Google Landmarks from CSV files in its forms."""

from __future__ import annotations

import pytest

from sareloc.datasets import find_positives, load_dataset
from sareloc.errors import ArgumentError, DatasetError


@pytest.fixture
def root(tmp_path):
    landmarks = [5, 5, 5, 5, 5, 9, 5, 9, 9, 9, 7]
    rows = "".join(f"{row:016x},http://x/{row},{landmark}\n" for row, landmark in enumerate(landmarks))
    (tmp_path / "train.csv").write_text("id,url,landmark_id\n" + rows)
    (tmp_path / "index.csv").write_text("id\nabc1\nabc2\nabc3\n")
    (tmp_path / "test.csv").write_text("id\nqqq1\nqqq2\nqqq3\n")
    (tmp_path / "retrieval_solution.csv").write_text(
        "id,images,Usage\nqqq1,abc3 abc1,Private\nqqq2,None,Ignored\nqqq3,abc2,Public\n"
    )
    return tmp_path


def test_test_asks_private_queries_of_the_index(root):
    places = load_dataset("landmarks", root)
    assert (places.protocol, places.precision_at) == ("average-precision", 100)
    assert len(places.database) == 3
    assert places.queries.files == ("q/q/q/qqq1.jpg",)
    assert [rows.tolist() for rows in places.relevant] == [[0, 2]]
    assert [rows.tolist() for rows in places.junk] == [[]]
    public = load_dataset("landmarks", root, "val")
    assert public.queries.files == ("q/q/q/qqq3.jpg",)
    assert public.relevant[0].tolist() == [1]


def test_train_asks_every_fourth_photo_of_a_landmark(root):
    places = load_dataset("landmarks", root, "train")
    assert places.protocol == "place-id"
    numbers = [int(file[-20:-4], 16) for file in places.queries.files]
    assert numbers == [3, 9]  # the fourth of landmark 5, the fourth of landmark 9
    assert list(places.queries.place_ids) == [(5,), (9,)]
    assert len(places.database) == 9
    assert set(places.database.files).isdisjoint(places.queries.files)
    assert [len(rows) for rows in find_positives(places)] == [5, 3]


@pytest.mark.parametrize(
    ("photo", "file"),
    [
        ("images/abc1.jpg", "images/abc1.jpg"),
        ("images/a/b/c/abc1.jpg", "images/a/b/c/abc1.jpg"),
        ("index/abc1.jpg", "index/abc1.jpg"),
        ("index/a/b/c/abc1.jpg", "index/a/b/c/abc1.jpg"),
        ("elsewhere/abc1.jpg", "index/a/b/c/abc1.jpg"),
    ],
)
def test_arrangements_of_the_photos(root, make_photo, photo, file):
    make_photo(root / photo)
    assert load_dataset("landmarks", root).database.path(0) == root / file


def test_csv_files_in_their_own_folder_and_of_the_second_version(root):
    (root / "metadata").mkdir()
    (root / "index.csv").rename(root / "metadata" / "index.csv")
    (root / "metadata" / "retrieval_solution_v2.1.csv").write_text("id,images,Usage\nqqq1,abc2,Private\n")
    (root / "retrieval_solution.csv").unlink()
    assert load_dataset("landmarks", root).relevant[0].tolist() == [1]


def test_a_very_long_list_of_right_answers(root):
    ids = [f"{row:016x}" for row in range(9000)]
    (root / "index.csv").write_text("id\n" + "\n".join(ids) + "\n")
    (root / "retrieval_solution.csv").write_text(f"id,images,Usage\nqqq1,{' '.join(ids)},Private\n")
    assert len(load_dataset("landmarks", root).relevant[0]) == 9000


def test_errors(root):
    with pytest.raises(ArgumentError, match="unknown split of landmarks 'index': known are test, train, val"):
        load_dataset("landmarks", root, "index")
    (root / "retrieval_solution.csv").write_text("id,images,Usage\nqqq1,abc1,Private\nqqq2,abc9,Private\n")
    with pytest.raises(DatasetError, match=r"line 3 .*abc9"):
        load_dataset("landmarks", root)
    with pytest.raises(DatasetError, match="no query of Usage Public"):
        load_dataset("landmarks", root, "val")
    (root / "retrieval_solution.csv").write_text("id,images\nqqq1,abc1\n")
    with pytest.raises(DatasetError, match="no column 'Usage': found id, images"):
        load_dataset("landmarks", root)
    (root / "train.csv").write_text("id,landmark_id\nabc1,Eiffel\n")
    with pytest.raises(DatasetError, match="line 2: landmark_id"):
        load_dataset("landmarks", root, "train")
    (root / "train.csv").write_text("id,landmark_id\n")
    with pytest.raises(DatasetError, match="no photos"):
        load_dataset("landmarks", root, "train")
    (root / "train.csv").unlink()
    with pytest.raises(DatasetError, match=r"no train.csv.*\n  ROOT/"):
        load_dataset("landmarks", root, "train")


@pytest.mark.data
def test_the_real_landmarks(shared_data):
    test = load_dataset("landmarks", shared_data / "landmarks")
    assert (len(test.database), len(test.queries)) == (620, 80)
    assert test.queries.path(0).is_file()
    assert test.database.path(619).is_file()
    train = load_dataset("landmarks", shared_data / "landmarks", "train")
    assert len(train.database) + len(train.queries) == 2800
    assert len(set(train.database.place_ids)) == 40
    assert train.database.path(0).is_file()
