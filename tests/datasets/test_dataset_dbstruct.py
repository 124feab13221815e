"""Pittsburgh and Tokyo from dbStruct files: made ones of the same structure, and the nine official ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat

from sareloc.datasets import DATASETS, find_positives, load_dataset, photo_paths
from sareloc.datasets.published import STRUCT_SETS
from sareloc.errors import ArgumentError, DatasetError


def cells(names):
    """A MATLAB column of strings."""
    column = np.empty((len(names), 1), dtype=object)
    column[:, 0] = names
    return column


def write_struct(path, which="test", database=12, queries=2, suffix=".jpg", **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    struct = {
        "whichSet": which,
        "dbImageFns": cells([f"000/{row:06d}{suffix}" for row in range(database)]),
        "utmDb": np.stack([385000.0 + 10 * np.arange(database), np.full(database, 3946000.0)]),
        "qImageFns": cells([f"{row:05d}.jpg" for row in range(queries)]),
        "utmQ": np.stack([385001.0 + 10 * np.arange(queries), np.full(queries, 3946000.0)]),
        "numImages": database,
        "numQueries": queries,
        "posDistThr": 25,
        "posDistSqThr": 625,
        "nonTrivPosDistSqThr": 100,
        **changes,
    }
    savemat(path, {"dbStruct": {key: value for key, value in struct.items() if value is not None}})


def test_pittsburgh(tmp_path):
    write_struct(tmp_path / "pitts30k_val.mat", "val")
    places = load_dataset("pitts30k", tmp_path, "val")
    assert (places.name, places.split, places.protocol, places.hit_radius_m) == ("pitts30k", "val", "radius", 25.0)
    assert (len(places.database), len(places.queries)) == (12, 2)
    assert places.database.positions.epsg == 32617
    assert places.database.positions.metres[1].tolist() == [385010.0, 3946000.0]
    assert places.database.times is None
    assert places.database.path(0) == tmp_path / "images" / "000" / "000000.jpg"
    assert places.queries.path(1) == tmp_path / "queries" / "00001.jpg"
    assert not any(path.exists() for path in photo_paths(places))
    assert [rows.tolist() for rows in find_positives(places)] == [[0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("photo", "folder"),
    [("images/000/000000.jpg", "images"), ("000/000000.jpg", "."), ("nowhere/000000.jpg", "images")],
)
def test_photos_are_where_the_first_one_is(tmp_path, make_photo, photo, folder):
    write_struct(tmp_path / "datasets" / "pitts250k_test.mat")
    make_photo(tmp_path / photo)
    make_photo(tmp_path / "queries_real" / "00000.jpg")
    places = load_dataset("pitts250k", tmp_path)
    assert places.database.folder == tmp_path / folder
    assert places.queries.folder == tmp_path / "queries_real"


def test_tokyo_247_counts_panoramas_and_finds_its_png_files(tmp_path, make_photo):
    write_struct(tmp_path / "tokyo247.mat", database=24)
    places = load_dataset("tokyo247", tmp_path)
    assert places.protocol == "panorama"
    assert places.panoramas.tolist() == [0] * 12 + [1] * 12
    assert places.database.positions.epsg == 32654
    assert places.database.files[0] == "000/000000.jpg"
    make_photo(tmp_path / "images" / "000" / "000000.png")
    make_photo(tmp_path / "247query_subset_v2" / "00000.jpg")
    places = load_dataset("tokyo247", tmp_path)
    assert places.database.files[:2] == ("000/000000.png", "000/000001.png")
    assert places.database.path(0).is_file()
    assert places.queries.path(0).is_file()
    write_struct(tmp_path / "tokyo247.mat", database=13)
    with pytest.raises(DatasetError, match="13 database photos"):
        load_dataset("tokyo247", tmp_path)


def test_tokyo_time_machine_has_times(tmp_path):
    stamps = {"dbTimeStamp": np.array([[201306] * 6 + [201503] * 6]), "qTimeStamp": np.array([[201306, 201503]])}
    write_struct(tmp_path / "tokyoTM_train.mat", "train", **stamps)
    places = load_dataset("tokyoTM", tmp_path, "train")
    assert places.protocol == "time"
    assert places.database.times.tolist() == [201306.0] * 6 + [201503.0] * 6
    assert [rows.tolist() for rows in find_positives(places)] == [[], [0, 1, 2, 3]]
    assert places.database.folder == places.queries.folder == tmp_path / "images"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"which": "val"}, "split 'val', expected 'test'"),
        ({"utmDb": np.zeros((2, 5))}, r"12 names in dbImageFns, but utmDb is \(2, 5\)"),
        ({"utmQ": None}, "utmQ: found whichSet, dbImageFns"),
        ({"database": 0}, "0 names in dbImageFns"),
    ],
)
def test_a_struct_that_is_not_as_it_should_be(tmp_path, changes, message):
    write_struct(tmp_path / "pitts30k_test.mat", **changes)
    with pytest.raises(DatasetError, match=message):
        load_dataset("pitts30k", tmp_path)


def test_files_that_are_no_struct(tmp_path):
    (tmp_path / "pitts30k_test.mat").write_bytes(b"hello" * 100)
    with pytest.raises(DatasetError, match=r"pitts30k_test.mat cannot be read as a MATLAB file"):
        load_dataset("pitts30k", tmp_path)
    savemat(tmp_path / "pitts30k_test.mat", {"other": 1})
    with pytest.raises(DatasetError, match="no variable 'dbStruct': found other"):
        load_dataset("pitts30k", tmp_path)
    write_struct(tmp_path / "pitts30k_test.mat")
    whole = (tmp_path / "pitts30k_test.mat").read_bytes()
    (tmp_path / "pitts30k_test.mat").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match="cannot be read as a MATLAB file"):
        load_dataset("pitts30k", tmp_path)


@pytest.mark.parametrize("name", STRUCT_SETS)
def test_missing_ground_truth_says_where_and_how(tmp_path, name):
    split = next(iter(DATASETS[name].splits))
    with pytest.raises(DatasetError, match=rf"no {name}.*\n  ROOT/"):
        load_dataset(name, tmp_path, split)
    with pytest.raises(DatasetError, match=r"absent \(no such folder\)"):
        load_dataset(name, tmp_path / "absent", split)


def test_unknown_split(tmp_path):
    with pytest.raises(ArgumentError, match="unknown split of tokyoTM 'test': known are train, val"):
        load_dataset("tokyoTM", tmp_path)


OFFICIAL = [(name, split) for name in STRUCT_SETS for split in DATASETS[name].splits]


@pytest.mark.data
@pytest.mark.parametrize(("name", "split"), OFFICIAL)
def test_the_nine_official_files(shared_data, name, split):
    places = load_dataset(name, shared_data / "netvlad_dbstruct", split)
    assert (len(places.database), len(places.queries)) == DATASETS[name].splits[split]
    assert places.hit_radius_m == 25.0
    latlon = places.database.positions.latlon()
    if name == "tokyoTM":
        # the file names say latitude, longitude and month: the zone and the time stamps can be checked against them
        named = np.array([file.rsplit("/", 1)[-1].split("_")[-5:-2] for file in places.database.files], dtype=float)
        np.testing.assert_array_equal(places.database.times, named[:, 0])
        assert np.abs(latlon - named[:, 1:]).max() < 2e-6
    elif name == "tokyo247":
        same = np.array([file.rsplit("/", 1)[0] for file in places.database.files]).reshape(-1, 12)
        assert (same == same[:, :1]).all()  # a panorama's twelve views lie in one folder
        assert np.ptp(latlon, axis=0).max() < 0.02
    else:
        assert np.abs(latlon - [40.4406, -79.9959]).max() < 0.1  # around the centre of Pittsburgh
    assert len(OFFICIAL) == 9
