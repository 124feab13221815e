"""load_dataset: names, paths, and what it says when it knows neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sareloc.datasets import DATASETS, load_dataset
from sareloc.errors import ArgumentError, DatasetError
from sareloc.photos import Geotag


def test_unknown_name_lists_the_known():
    with pytest.raises(ArgumentError, match=r"unknown dataset 'pitts30K'.*holidays, landmarks, oxford5k.*pitts30k"):
        load_dataset("pitts30K")


@pytest.mark.parametrize("name", DATASETS)
def test_a_published_set_needs_its_folder(name):
    split = next(iter(DATASETS[name].splits))
    with pytest.raises(ArgumentError, match=rf"{name}.*as root.*\n  ROOT/"):
        load_dataset(name, split=split)


def test_folder_without_a_format_lists_the_formats(tmp_path):
    (tmp_path / "notes.txt").write_text("no photos here")
    with pytest.raises(DatasetError) as error:
        load_dataset(tmp_path)
    for part in (
        "no known dataset format",
        "images/{train,val,test}",
        "database/ and queries/",
        "CSV",
        "EXIF",
        "tokyo247",
    ):
        assert part in str(error.value)


def test_folder_called_like_a_published_set(tmp_path, make_photo, monkeypatch):
    make_photo(tmp_path / "pitts30k" / "database" / "@1@2@@@@@@@@@@@@@.jpg")
    monkeypatch.chdir(tmp_path)
    assert len(load_dataset("./pitts30k").database) == 1
    assert len(load_dataset(Path("pitts30k")).database) == 1
    with pytest.raises(ArgumentError, match="as root"):
        load_dataset("pitts30k")


def test_csv_in_a_folder(tmp_path, make_photo):
    (tmp_path / "walk.csv").write_text("file,lat,lon\na.jpg,1,2\n")
    make_photo(tmp_path / "b.jpg", Geotag((48.0, 2.0)))
    assert load_dataset(tmp_path).database.files == ("a.jpg",)  # the table is the dataset, not the folder
    (tmp_path / "other.csv").write_text("file,lat,lon\nc.jpg,1,2\n")
    with pytest.raises(DatasetError, match=r"2 CSV files \(other.csv, walk.csv\)"):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path / "other.csv").database.files == ("c.jpg",)
    (tmp_path / "meta.csv").write_text("file,lat,lon\nd.jpg,1,2\n")
    assert load_dataset(str(tmp_path)).database.files == ("d.jpg",)


def test_csv_that_is_not_there(tmp_path):
    with pytest.raises(ArgumentError, match=r"no such file: .*meta.csv"):
        load_dataset(tmp_path / "meta.csv")


def test_root_with_a_folder_of_photos(tmp_path, make_photo):
    make_photo(tmp_path / "a.jpg", Geotag((48.0, 2.0)))
    with pytest.raises(ArgumentError, match="root is for"):
        load_dataset(tmp_path, root=tmp_path)


def test_importing_datasets_is_light():
    heavy = "faiss,pyproj,scipy,matplotlib,tqdm,torch"
    code = f"import sys, sareloc.datasets; print([m for m in '{heavy}'.split(',') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.data
def test_camera_originals(shared_data):
    places = load_dataset(shared_data / "exif")
    assert (len(places.database), len(places.queries)) == (9, 0)
    assert places.left_out == ()
    latlon = dict(zip(places.database.files, places.database.positions.latlon().tolist(), strict=True))
    assert latlon["berlin_01.jpg"] == pytest.approx([52.519, 13.400], abs=0.001)
    assert latlon["lund_01.jpg"] == pytest.approx([55.698, 13.195], abs=0.001)
