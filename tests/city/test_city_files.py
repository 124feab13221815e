"""The city as a dataset: exact positions in memory, in file names and in EXIF; runs that go on where they stopped."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from sareloc.city import SIZES, Size, city_places, draw, draw_pixels, draw_places, geotags, make_town, photo_names
from sareloc.datasets import load_dataset
from sareloc.errors import ArgumentError
from sareloc.geo import distance_m, enu_from_wgs84
from sareloc.photos import find_photos, parse_utm_name, read_exif_geotag


@pytest.fixture(scope="module")
def tiny():
    """A size of six database photos and five queries; one town of a split for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", Size(3, 2, (5.0,), 5, (24, 32)))
        yield "tiny"
    make_town.cache_clear()


@pytest.fixture(scope="module")
def two_splits(tiny, tmp_path_factory):
    """A folder of the splits "train" and "test", which no test changes."""
    folder = tmp_path_factory.mktemp("splits") / "city"
    assert draw_places(folder, 3, tiny, splits=["train", "test"]) == 22
    return folder


@pytest.fixture(scope="module")
def drawn_val(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("val") / "city"
    assert draw_places(folder, 3, tiny, splits=["val"]) == 11
    return folder


@pytest.fixture
def val(drawn_val, tmp_path):
    """A folder of the split "val" alone, for one test."""
    return shutil.copytree(drawn_val, tmp_path / "city")


def test_places_stand_where_the_cameras_stand(tiny):
    city = city_places(3, tiny, "val")
    assert (len(city.places.database), len(city.places.queries)) == (6, 5)
    enu = city.town.enu(city.poses.eye)
    assert np.array_equal(city.places.database.positions.metres, enu[:6])
    assert np.array_equal(city.places.queries.positions.metres, enu[6:])
    assert city.places.panoramas.tolist() == [0, 0, 1, 1, 2, 2]
    # turning and shifting the plan keeps distances
    for i, j in ((0, 2), (1, 8), (4, 10)):
        on_plan = np.linalg.norm(city.poses.eye[i, :2] - city.poses.eye[j, :2])
        assert np.linalg.norm(enu[i] - enu[j]) == pytest.approx(on_plan)


def test_headings_point_where_the_camera_looks(tiny):
    city = city_places(3, tiny, "test")
    yaw = city.poses.yaw
    ahead = city.poses.eye[:, :2] + np.stack([np.cos(yaw), np.sin(yaw)], axis=1)
    east, north = (city.town.enu(ahead) - city.town.enu(city.poses.eye)).T
    expected = np.rad2deg(np.arctan2(east, north)) % 360
    headings = np.concatenate([city.places.database.headings_deg, city.places.queries.headings_deg])
    assert headings == pytest.approx(expected)


def test_pixels_come_in_the_order_asked_for(tiny):
    city = city_places(3, tiny, "test")
    everything = draw_pixels(city, 24, 32)
    assert everything.shape == (11, 3, 24, 32)
    assert torch.equal(draw_pixels(city, 24, 32, rows=[9, 0, 4]), everything[[9, 0, 4]])
    assert torch.equal(draw(city.town, city.views.queries, city.views.moments, 24, 32), everything[6:])


def test_positions_survive_the_file_name_and_the_exif(tiny, two_splits):
    city = city_places(3, tiny, "test")
    tags = geotags(city)
    exact_of = dict(zip(photo_names(city, tags), tags, strict=True))
    paths = find_photos(two_splits / "images" / "test")
    assert len(paths) == 11
    found = []
    for path in paths:
        exif, name = read_exif_geotag(path), parse_utm_name(path.name)
        exact = exact_of[f"{path.parent.name}/{path.name}"]
        assert exif.heading_deg == pytest.approx(exact.heading_deg, abs=0.01)
        assert float(distance_m([exact.latlon], [exif.latlon])[0]) < 0.01
        assert float(distance_m([exact.latlon], [name.geotag().latlon])[0]) < 0.01
        assert name.heading_deg == pytest.approx(exact.heading_deg, abs=0.01)
        assert abs(exif.time - exact.time) < 1
        found.append(enu_from_wgs84([exif.latlon], city.town.origin)[0])
        with Image.open(path) as image:
            assert image.size == (32, 24)
    enu = city.town.enu(city.poses.eye)
    away = np.linalg.norm(np.array(found)[:, None] - enu[None], axis=-1)
    assert away.min(1).max() < 0.01
    assert away.min(0).max() < 0.01


def test_the_folder_is_a_dataset(tiny, two_splits):
    city = city_places(3, tiny, "train")
    places = load_dataset(two_splits, split="train")
    assert (len(places.database), len(places.queries)) == (6, 5)
    metres = places.database.positions.metres
    apart = np.linalg.norm(metres[:, None] - metres[None], axis=-1)
    enu = city.places.database.positions.metres
    exact = np.linalg.norm(enu[:, None] - enu[None], axis=-1)
    assert np.sort(apart.ravel()) == pytest.approx(np.sort(exact.ravel()), abs=0.15)  # UTM's scale, and centimetres
    assert not (two_splits / "images" / "val").exists()


def test_an_interrupted_run_goes_on_where_it_stopped(tiny, val):
    before = {path: path.read_bytes() for path in find_photos(val)}
    lost, kept = sorted(before)[2], sorted(before)[3]
    lost.unlink()
    (lost.parent / f".{lost.name}.part").write_bytes(b"half a photo")
    kept.write_bytes(b"left alone")
    assert draw_places(val, 3, tiny, splits=["val"]) == 1
    assert lost.read_bytes() == before[lost]
    assert kept.read_bytes() == b"left alone"
    assert not list(val.rglob("*.part"))
    assert draw_places(val, 3, tiny, splits=["val"]) == 0


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ArgumentError, match="is a file"):
        draw_places(tmp_path / "out")
    with pytest.raises(ArgumentError, match="unknown size of town 'huge'"):
        draw_places(tmp_path, size="huge")


def test_two_cities_are_not_mixed(tiny, val):
    for other in ({"seed": 4}, {"seed": 3, "photo_size": (32, 32)}):
        with pytest.raises(ArgumentError, match=r'another city \(.*"seed": 3'):
            draw_places(val, size=tiny, splits=["val"], **other)
    assert len(find_photos(val)) == 11
    (val / "city.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"city\.json is not JSON"):
        draw_places(val, 3, tiny)


def test_a_city_of_an_earlier_drawing_loads_but_is_not_continued(tiny, val):
    record = val / "city.json"
    record.write_text(record.read_text().replace('"format": 2', '"format": 1'))
    assert len(load_dataset(val, split="val").database) == 6
    with pytest.raises(ArgumentError, match=r'another city \(.*"format": 1'):
        draw_places(val, 3, tiny, splits=["val"])


def test_a_seed_below_zero_is_refused():
    with pytest.raises(ArgumentError, match="seed"):
        city_places(-1, "small")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_named(tiny):
    with pytest.raises(ArgumentError, match="no device cuda"):
        draw_pixels(city_places(3, tiny), 24, 32, "cuda", rows=[0])
