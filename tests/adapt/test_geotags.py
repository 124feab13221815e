"""Geotags that geometry contradicts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cyclopts import App
from tests.adapt.walls import PHOTOS, PLACES, build_walls, write_walls
from tests.localize.street import position, street_model

from sareloc.adapt import check_geotags, check_geotags_of_dataset
from sareloc.adapt.compare import Comparisons
from sareloc.adapt.geotags import GeotagCheck, find_suspicious
from sareloc.cli.data import check, geotag_lines
from sareloc.datasets import load_dataset
from sareloc.errors import ArgumentError, DatasetError, MapError
from sareloc.geo import distance_m
from sareloc.localize import Calibration
from sareloc.maps import MapConfig, PlaceMap, build_map

WRONG = {(2, 1): 6, (5, 3): 0}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_walls(tmp_path_factory.mktemp("walls"), WRONG)


@pytest.fixture(scope="module")
def checked(town: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[GeotagCheck, Path]:
    """What is found in the town, and the folder that keeps its comparisons."""
    folder = tmp_path_factory.mktemp("comparisons")
    with PlaceMap(town) as place_map:
        return check_geotags(place_map, folder=folder, progress=False), folder


def run(*words: object) -> int:
    app = App(result_action="return_value")
    app.command(check)
    return app(["check", *map(str, words)])


def test_photos_of_other_places_than_their_geotags_are_found_with_their_places(
    checked: tuple[GeotagCheck, Path],
) -> None:
    found, _ = checked
    assert found.photos == PLACES * PHOTOS
    assert {one.photo for one in found.suspicious} == {"photos/02_1.jpg", "photos/05_3.jpg"}
    by_photo = {one.photo: one for one in found.suspicious}
    second = by_photo["photos/02_1.jpg"]
    assert distance_m([second.suggested], [position(2, 3.0)])[0] < 10
    assert second.away_m == pytest.approx(320, abs=10)
    assert len(second.witnesses) >= 2
    assert all(match.photo.startswith("photos/02") for match in second.witnesses)


def test_right_geotags_are_not_suspicious(walls_map: Path) -> None:
    with PlaceMap(walls_map) as place_map:
        assert not check_geotags(place_map, progress=False).suspicious


def test_a_single_witness_does_not_say_which_geotag_is_wrong(tmp_path: Path) -> None:
    folder = write_walls(tmp_path, {(2, 0): 6}, photos=2)  # of this wall there are two, one with a wrong geotag
    config = MapConfig(keypoints=200, progress=False)
    build_map(folder, tmp_path / "walls.gpkg", street_model(), config=config)
    with PlaceMap(tmp_path / "walls.gpkg") as place_map:
        assert not check_geotags(place_map, progress=False).suspicious


@pytest.mark.parametrize(("confirming", "suspicious"), [(60, True), (20, False)])
def test_one_witness_is_enough_if_its_own_geotag_is_right(town: Path, confirming: int, suspicious: bool) -> None:
    pairs = [("02_1", "02_0", 150), ("02_1", "06_0", 5), ("02_0", "02_2", confirming)]  # 02_1 is tagged at wall 6
    assert judged(town, pairs) == ["02_1"] * suspicious


@pytest.mark.parametrize(("look_alike", "suspicious"), [(20, True), (60, False)])
def test_two_witnesses_must_agree_more_than_look_alikes_of_the_town(
    town: Path, look_alike: int, suspicious: bool
) -> None:
    pairs = [("02_1", "02_0", 40), ("02_1", "02_2", 30), ("02_1", "06_0", 5)]
    pairs += [(f"{i:02d}_0", f"{i + 3:02d}_0", look_alike) for i in (0, 1, 3, 4)]
    assert judged(town, pairs) == ["02_1"] * suspicious


def test_a_single_witness_is_said_in_the_singular(town: Path) -> None:
    found = compared(town, [("02_1", "02_0", 150), ("02_1", "06_0", 5), ("02_0", "02_2", 60)])
    assert "1 photo agrees, such as photos/02_0.jpg" in geotag_lines(found)[-1]


def judged(town: Path, pairs: list[tuple[str, str, int]]) -> list[str]:
    """The suspicious photos of the town by these comparisons: query, photo, inliers."""
    return [Path(one.photo).stem for one in compared(town, pairs).suspicious]


def compared(town: Path, pairs: list[tuple[str, str, int]]) -> GeotagCheck:
    with PlaceMap(town) as place_map:
        number = dict(zip((Path(file).stem for file in place_map.files), place_map.ids.tolist(), strict=True))
        queries, photos, inliers = zip(*((number[a], number[b], float(count)) for a, b, count in pairs), strict=True)
        rows, counts = np.argsort(queries, kind="stable"), np.array(inliers)
        distances = np.where(counts > 10, 0.3, 0.9)
        comparisons = Comparisons(np.array(queries), np.array(photos), distances, counts, counts).take(rows)
        return find_suspicious(place_map, comparisons, Calibration())


def test_comparisons_are_kept_and_an_interrupted_check_continues(
    town: Path, checked: tuple[GeotagCheck, Path], tmp_path: Path
) -> None:
    first, folder = checked
    (kept,) = folder.glob("*.npz")
    content, kept = kept.read_bytes(), tmp_path / kept.name
    kept.write_bytes(content[:100])  # as after a power cut
    with PlaceMap(town) as place_map:
        assert check_geotags(place_map, folder=tmp_path, progress=False) == first
        assert kept.read_bytes() == content


def test_a_dataset_is_checked_without_a_map(tmp_path: Path) -> None:
    places = load_dataset(write_walls(tmp_path, WRONG))
    found = check_geotags_of_dataset(places, street_model(), config=MapConfig(keypoints=200, progress=False))
    assert {Path(one.photo).name for one in found.suspicious} == {"02_1.jpg", "05_3.jpg"}


def test_positions_that_are_not_on_earth_are_no_geotags(tmp_path: Path) -> None:
    (tmp_path / "meta.csv").write_text("file,x_east_m,y_north_m,role\na.jpg,1,2,db\n")
    with pytest.raises(DatasetError, match="degrees"):
        check_geotags_of_dataset(load_dataset(tmp_path / "meta.csv"))


def test_a_map_without_local_features_is_refused(tmp_path: Path) -> None:
    with (
        PlaceMap(build_walls(tmp_path, {}, keypoints=0, photos=1)) as place_map,
        pytest.raises(MapError, match="map upgrade"),
    ):
        check_geotags(place_map)


def test_the_command_prints_them_and_writes_a_page(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "page.html"
    assert run(town, "--geometry", "--page", page) == 0
    printed = capsys.readouterr().out
    assert "2 suspicious" in printed
    assert "photos/02_1.jpg: 3" in printed
    html = page.read_text()
    assert html.count('<div class="query">') == 2
    assert "at the suggested position" in html
    assert "no photo" not in html
    assert run(town, "--geometry", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["geotags"]["suspicious"]
    assert {one["photo"] for one in listed} == {"photos/02_1.jpg", "photos/05_3.jpg"}


def test_a_map_is_checked_by_geometry_alone(town: Path) -> None:
    with pytest.raises(ArgumentError, match="--geometry"):
        run(town)
    with pytest.raises(ArgumentError, match="--geometry"):
        run(town, "--page", "page.html")
