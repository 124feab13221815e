"""A 360° query: its views answer together with one position and the heading of the panorama's middle."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.geometry.scenes import texture
from tests.localize.street import position, street_model
from tests.photos.panorama_files import gpano_xmp, save_panorama

from sareloc.cli.calibrate import calibration_table
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import distance_m, ecef_from_wgs84, wgs84_from_enu
from sareloc.localize import Calibration, Localizer, Match, Search, calibrate, estimate
from sareloc.localize.candidates import combine_poses, combine_views, joint_chances
from sareloc.localize.estimate import Candidates, Pose
from sareloc.localize.walk import Belief
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.photos import Geotag, Panorama, PhotoSource, ReadImage, ViewOptions, cut_view, panorama_pixels, read_image

PLACES, HEADING_DEG, WIDTH = 4, 350.0, 512


def sphere(place: int, turned_deg: float = 0.0) -> np.ndarray:
    """A full sphere of boxes, seen by a camera that was turned to the right; darker, as at another time."""
    whole = texture(WIDTH // 2, WIDTH, seed=place)
    return np.roll((whole * (1 - turned_deg / 720)).astype(np.uint8), -round(turned_deg / 360 * WIDTH), axis=1)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Localizer:
    """A map of four 360° photos with local features, 80 m apart; the last one without a heading."""
    folder = tmp_path_factory.mktemp("spheres")
    for place in range(PLACES):
        xmp = gpano_xmp(heading=HEADING_DEG if place < 3 else None)
        save_panorama(folder / f"{place}.jpg", sphere(place), Geotag(position(place)), xmp)
    build_map(folder, folder / "town.gpkg", street_model(), config=MapConfig(keypoints=256, progress=False))
    return Localizer(street_model(), PlaceMap(folder / "town.gpkg"), Search(verify=8), min_confidence=0)


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """The place 2, by a camera that was turned to the right by 75 degrees."""
    return save_panorama(tmp_path / "query.jpg", sphere(2, 75.0))


def off(one: float | None, other: float) -> float:
    assert one is not None
    return abs((one - other + 180) % 360 - 180)


def test_one_fix_with_the_heading_of_the_middle(town: Localizer, query: Path) -> None:
    for photo in (query, query.read_bytes()):
        fix = town.localize(photo, top=3)
        assert distance_m([fix.latlon], [position(2)])[0] < 1
        assert off(fix.heading_deg, HEADING_DEG + 75) < 4
        assert [Path(match.photo).name.partition("#")[0] for match in fix.matches] == ["2.jpg"] * 3
        assert len({match.id for match in fix.matches}) == 3
    unknown = town.localize(save_panorama(query, sphere(3, 75.0)))
    assert distance_m([unknown.latlon], [position(3)])[0] < 1
    assert unknown.heading_deg is None


def test_a_record_of_a_360_photo_is_cut_by_its_tags_and_pixels_if_asked_for(town: Localizer, query: Path) -> None:
    asked = Localizer(town.model, town.place_map, Search(verify=8), min_confidence=0, views=ViewOptions(untagged=True))
    for localizer, image in ((town, query), (town, query.read_bytes()), (asked, sphere(2, 75.0))):
        fix = localizer.localize(PhotoSource("front/1", image))
        assert distance_m([fix.latlon], [position(2)])[0] < 1
        assert off(fix.heading_deg, HEADING_DEG + 75) < 4
    (ordinary,) = town.load([PhotoSource("a", sphere(2))])
    assert isinstance(ordinary, ReadImage)
    assert not ordinary.views


def test_a_partial_panorama_answers_with_the_heading_of_the_middle_of_the_full_one(
    town: Localizer, tmp_path: Path
) -> None:
    tags = {"full_width": 512, "full_height": 256, "crop_width": 256, "crop_height": 128, "left": 200, "top": 64}
    part = sphere(1, 75.0)[64:192, 200:456]
    fix = town.localize(save_panorama(tmp_path / "part.jpg", part, xmp=gpano_xmp(**tags)))
    assert distance_m([fix.latlon], [position(1)])[0] < 1
    assert off(fix.heading_deg, HEADING_DEG + 75) < 4


def test_among_ordinary_photos_in_order_and_by_workers(town: Localizer, query: Path, tmp_path: Path) -> None:
    ordinary = cut_view(panorama_pixels(sphere(0), Panorama(WIDTH, WIDTH // 2)), ViewOptions().views()[4], 144, 192)
    (tmp_path / "damaged.jpg").write_bytes(b"no photo")
    photo = save_panorama(tmp_path / "photo.jpg", ordinary, xmp=b"")
    photos = [photo, query, tmp_path / "damaged.jpg", *[photo] * 6]
    alone = town.localize_many(photos)
    many = Localizer(town.model, town.place_map, town.search, min_confidence=0, workers=2).localize_many(photos)
    for fixes in (alone, many):
        assert isinstance(fixes[2], PhotoError)
        answers = [fix for fix in fixes if not isinstance(fix, PhotoError)]
        truth = [position(0 if file == photo else 2) for file in photos if file.name != "damaged.jpg"]
        assert distance_m([fix.latlon for fix in answers], truth).max() < 1
        assert off(answers[1].heading_deg, HEADING_DEG + 75) < 4
        assert off(answers[0].heading_deg, HEADING_DEG + 120) < 4


def test_matched_keypoints_are_placed_in_the_panorama(town: Localizer, query: Path) -> None:
    match = town.localize(query).matches[0]
    pairs = town.inlier_pairs(query, match.id, match.photo)
    assert pairs is not None
    assert pairs.query_size == (WIDTH, WIDTH // 2)
    assert ((pairs.query_xy >= 0) & (pairs.query_xy <= 1)).all()
    # the same point of the sphere is 75 degrees to the left in the query
    other = town.inlier_pairs(town.place_map.photo_path("2.jpg"), match.id, match.photo)
    assert other is not None
    gaps = np.linalg.norm(pairs.photo_xy[:, None] - other.photo_xy[None], axis=2)
    rows, found = np.arange(len(pairs)), gaps.argmin(axis=1)
    same = gaps[rows, found] < 1e-3
    assert same.sum() > 20
    moved = (other.query_xy[found, 0] - pairs.query_xy[:, 0])[same] % 1
    assert np.median(np.abs(moved - 75 / 360)) < 2e-3
    assert np.median(np.abs(other.query_xy[found, 1] - pairs.query_xy[:, 1])[same]) < 2e-3


def test_photos_without_tags_are_cut_if_asked(town: Localizer, tmp_path: Path) -> None:
    photo = save_panorama(tmp_path / "query.jpg", sphere(2, 75.0), xmp=b"")
    assert read_image(photo, cut=ViewOptions()).images[0].view is None
    assert len(read_image(photo, cut=ViewOptions(untagged=True)).views) == 12


def test_tags_that_cannot_be_used_are_reported(
    town: Localizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photo = save_panorama(tmp_path / "query.jpg", sphere(2), xmp=gpano_xmp(projection="cylindrical"))
    with caplog.at_level(logging.WARNING, "sareloc.localize"):
        (query,) = town.load([photo])
    assert isinstance(query, ReadImage)
    assert not query.views
    assert "the projection is 'cylindrical'" in caplog.text
    assert "used as an ordinary photo" in caplog.text


def test_a_calibration_leaves_360_photos_out(town: Localizer, query: Path, tmp_path: Path) -> None:
    ordinary = [
        save_panorama(tmp_path / f"{n}.jpg", sphere(n % PLACES)[50:150, 20 * n : 20 * n + 150], xmp=b"")
        for n in range(12)
    ]
    truth = [position(n % PLACES) for n in range(12)]
    report = calibrate(town, [*ordinary, query], [*truth, position(2)])
    assert (report.photos, report.panoramas, report.unreadable) == (12, (str(query),), ())
    lines = calibration_table(report, [], []).splitlines()
    assert lines[-2].startswith("1 photo is a 360° photo")
    assert lines[-1].strip() == str(query)
    with pytest.raises(ArgumentError, match="1 are 360° photos"):
        calibrate(town, [query], [position(2)])


def match(photo_id: int, distance: float, inliers: int | None = None, **known: Any) -> Match:
    east = known.pop("east", 0.0)
    return Match(photo_id, f"{photo_id}.jpg", position(0, east), distance, inliers, inliers, **known)


def test_a_photo_that_two_views_found_is_listed_once_as_the_better_one_has_it() -> None:
    views = [
        Candidates((match(1, 0.5, 40, heading_deg=100.0), match(2, 0.9))),
        Candidates((match(1, 0.4, 90, heading_deg=131.0), match(3, 0.7, 20, east=500.0))),
        Candidates((match(2, 0.95),)),
        Candidates(()),
    ]
    found = combine_views(views, [0.0, 30.0, 60.0, 90.0], Calibration(), 0.05)
    assert sorted(one.id for one in found.matches) == [1, 2, 3]
    first = found.matches[0]
    assert (first.id, first.inliers, first.heading_deg, first.distance) == (1, 90, 101.0, 0.4)
    assert next(one for one in found.matches if one.id == 2).distance == 0.9
    assert found.pose is None
    assert combine_views([Candidates(())] * 2, [0.0, 30.0], Calibration(), 0.05) == Candidates(())


def test_views_that_agree_outvote_one_that_is_more_alike() -> None:
    """One view has the nearest match of all, elsewhere; three views have their best matches at one place."""
    wrong = Candidates((match(9, 0.5, east=900.0), match(8, 0.8, east=1800.0)))
    right = [Candidates((match(n, 0.62), match(20 + n, 0.66, east=-700.0 * n - 700))) for n in range(3)]
    yaws = [0.0, 90.0, 180.0, 270.0]
    found = combine_views([wrong, *right], yaws, Calibration(), 0.02)
    assert found.place is not None
    assert distance_m([found.place.latlon], [position(0)])[0] < 1
    alone = combine_views([Candidates(()), right[0], *[Candidates(())] * 2], yaws, Calibration(), 0.02)
    assert 0 < alone.confidence < found.confidence <= 1
    union = estimate([one for view in (wrong, *right) for one in view.matches], min_confidence=0)
    assert distance_m([union.latlon], [position(0)])[0] > 800


def test_views_that_disagree_have_a_low_confidence() -> None:
    views = [Candidates((match(n, 0.6, east=400.0 * n), match(20 + n, 0.65, east=-400.0 * n - 400))) for n in range(6)]
    found = combine_views(views, [60.0 * n for n in range(6)], Calibration(), 0.02)
    agreeing = combine_views(
        [Candidates((match(n, 0.6), match(20 + n, 0.65, east=-400.0 * n - 400))) for n in range(6)],
        [60.0 * n for n in range(6)],
        Calibration(),
        0.02,
    )
    assert found.confidence < 0.5 < agreeing.confidence


def test_one_view_alone_gives_its_own_belief() -> None:
    found = (match(1, 0.5), match(2, 0.55, east=3.0), match(3, 0.6, east=700.0))
    alone = combine_views([Candidates(found)], [30.0], Calibration(), 0.02)
    own = estimate(found, Calibration(), min_confidence=0)
    assert alone.place is not None
    assert own.latlon is not None
    assert alone.confidence == pytest.approx(own.confidence, abs=0.05)
    assert distance_m([alone.place.latlon], [own.latlon])[0] < 1


def test_joint_chances_by_bayes_rule() -> None:
    """Two views of places A and B, 1 km apart; solved by hand with the prior odds chance : chance : 1 : 1."""
    at = ecef_from_wgs84([position(0), position(0, 1000.0)])
    first, second = Belief(at, np.array([0.5, 0.1]), 0.1), Belief(at[:1], np.array([0.3]), 0.2)
    power, chance = (1 + 0.2) / 2, 0.05
    a = chance * ((0.5 / chance + 0.1) * (0.3 / chance + 0.2)) ** power
    b = chance * ((0.1 / chance + 0.1) * 0.2) ** power
    elsewhere, outside = (0.1 * 0.2) ** power, (0.3 * 0.5) ** power
    total = a / 2 + b + a / 2 + elsewhere + outside  # A is named by both: each mention has half of its prior
    found = joint_chances([first, second], chance)
    np.testing.assert_allclose(found, [a / 2 / total, b / total, a / 2 / total], rtol=1e-9)


def test_poses_that_agree_with_the_most_certain_one_are_averaged() -> None:
    def pose(east: float, north: float, radius_m: float, heading: float) -> Pose:
        latitude, longitude = wgs84_from_enu([(east, north)], (50.0, 10.0))[0].tolist()
        return Pose((latitude, longitude), radius_m, heading)

    found = combine_poses([pose(0, 0, 2.0, 359.0), pose(3, 0, 4.0, 4.0), pose(50, 0, 3.0, 0.0), pose(0, 1, 2.5, 90.0)])
    assert found is not None
    assert found.radius_m == 2.0
    weights = np.array([1 / 4, 1 / 16])
    assert found.heading_deg == pytest.approx((359 + 5 * weights[1] / weights.sum()) % 360)
    expected = wgs84_from_enu([(3 * weights[1] / weights.sum(), 0.0)], (50.0, 10.0))[0]
    assert distance_m([found.latlon], [expected])[0] < 0.01
    assert combine_poses([]) is None
