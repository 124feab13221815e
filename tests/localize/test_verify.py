"""Verification of matches by local features: which photos of a map show the query's place."""

from __future__ import annotations

import io
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.geometry.scenes import texture
from tests.localize.street import position, street_model, write_view
from tests.localize.town import HEADING_DEG, PLACES, wall, write_town

from sareloc.errors import ArgumentError, PhotoError
from sareloc.geometry import Evidence, LocalFeatureExtractor, LocalFeatures, feature_size, match_features
from sareloc.loading import read_images
from sareloc.localize import Localizer, Search, calibrate, estimate, estimate_walk
from sareloc.localize.estimate import Match, Pose, agreed_heading, fuse, weigh
from sareloc.localize.verify import Verifier
from sareloc.maps import Matches, PlaceMap
from sareloc.photos import decode, read_image


@pytest.fixture(scope="module")
def town_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    write_town(folder, keypoints=200)
    return folder


@pytest.fixture(scope="module")
def bare_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The town without local features."""
    folder = tmp_path_factory.mktemp("bare")
    write_town(folder, keypoints=0)
    return folder


def copy_bare(bare_folder: Path, folder: Path) -> PlaceMap:
    shutil.copytree(bare_folder, folder, dirs_exist_ok=True)
    return PlaceMap(folder / "town.gpkg")


@pytest.fixture
def town(town_folder: Path) -> PlaceMap:
    return PlaceMap(town_folder / "town.gpkg")


def evidence_of(verifier: Verifier, place: int, place_map: PlaceMap) -> Evidence:
    query = read_image(wall(place, 20), (feature_size,))
    return verifier.verify(verifier.extractor.extract(query.pixels)[0], place_map.ids, place_map.files).evidence


@pytest.mark.parametrize("place", [0, 5, 11])
def test_photos_of_the_place_have_inliers_and_others_have_few(place: int, town: PlaceMap) -> None:
    evidence = evidence_of(Verifier(town, LocalFeatureExtractor("cpu")), place, town)
    here = np.array([file.startswith(f"photos/{place:02d}") for file in town.files])
    assert here.sum() == 2
    assert evidence.inliers[here].min() > 2 * evidence.inliers[~here].max()
    assert evidence.planar[here].min() > 3 * evidence.planar[~here].max()


def test_a_map_without_features_is_verified_by_its_photos(town: PlaceMap, bare_folder: Path, tmp_path: Path) -> None:
    bare = copy_bare(bare_folder, tmp_path)
    stored, computed = (evidence_of(Verifier(one, LocalFeatureExtractor("cpu")), 3, one) for one in (town, bare))
    here = np.array([file.startswith("photos/03") for file in bare.files])
    assert computed.inliers[here].min() > 30
    assert np.corrcoef(stored.inliers, computed.inliers)[0, 1] > 0.95  # other numbers of keypoints, the same photos


def test_features_of_files_are_computed_once(bare_folder: Path, tmp_path: Path) -> None:
    bare = copy_bare(bare_folder, tmp_path)
    verifier = Verifier(bare, LocalFeatureExtractor("cpu"))
    first = evidence_of(verifier, 3, bare)
    shutil.rmtree(tmp_path / "photos")
    np.testing.assert_array_equal(evidence_of(verifier, 3, bare).inliers, first.inliers)


def test_the_cache_keeps_what_was_used_last(bare_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = copy_bare(bare_folder, tmp_path)
    verifier = Verifier(bare, LocalFeatureExtractor("cpu"))
    verifier._from_file(bare.files[0])
    monkeypatch.setattr("sareloc.localize.verify.CACHE_BYTES", 2 * verifier._cached_bytes + 5000)
    for file in (bare.files[1], bare.files[0], bare.files[2]):
        verifier._from_file(file)
    assert list(verifier._cache) == [bare.files[0], bare.files[2]]


def test_verification_is_the_default_of_maps_that_hold_features(
    town: PlaceMap, bare_folder: Path, tmp_path: Path
) -> None:
    model = street_model()
    assert Localizer(model, town).search == Search(100, 10)
    assert Localizer(model, town, Search(verify=0)).search == Search(20, 0)
    assert Localizer(model, town, Search(verify=0)).verifier is None
    assert Localizer(model, copy_bare(bare_folder, tmp_path)).search == Search(20, 0)
    assert Localizer(model, town, Search(candidates=5, verify=8)).search == Search(8, 8)


def all_photos(town: PlaceMap) -> Matches:
    """All photos of the town as if they had been retrieved, at rising distances."""
    distances = np.linspace(0.5, 0.6, len(town.ids), dtype=np.float32)
    return Matches(town.ids[None], distances[None], town.latlon[None], (town.files,))


def features_of(verifier: Verifier, pixels: np.ndarray) -> LocalFeatures:
    return verifier.extractor.extract(read_image(pixels, (feature_size,)).pixels)[0]


def test_the_prefilter_orders_by_matches_of_the_best_keypoints_and_distance(town: PlaceMap) -> None:
    verifier, retrieved = Verifier(town, LocalFeatureExtractor("cpu")), all_photos(town)
    query = features_of(verifier, wall(9, 20))
    held = town.local_features(town.ids)
    scores = []
    for photo_id, distance in zip(town.ids.tolist(), retrieved.distances[0].tolist(), strict=True):
        (pairs,) = match_features(query.best(256), [held[photo_id].best(256)])
        scores.append(2 * math.log(1 + len(pairs)) - distance**2 / 0.05)
    order = verifier.prefilter(query, town.ids, retrieved.distances[0], 0.05)
    assert order.tolist() == sorted(range(len(scores)), key=lambda row: -scores[row])
    assert {town.files[row][:9] for row in order[:2]} == {"photos/09"}


@pytest.mark.parametrize(
    ("place", "photos", "verified"),
    [(9, 2, 3), (9, 3, 6), (PLACES + 5, 2, 12)],
    ids=["no doubt: half", "not enough photos of the place: all", "nothing found: twice as many"],
)
def test_how_many_photos_are_verified_depends_on_the_evidence(
    place: int, photos: int, verified: int, town: PlaceMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sareloc.localize.verify.OVERWHELMING_PHOTOS", photos)
    monkeypatch.setattr("sareloc.localize.verify.SURE_INLIERS", 30)  # these textures share corners
    verifier = Verifier(town, LocalFeatureExtractor("cpu"))
    order, found = verifier.verify_best(features_of(verifier, wall(place, 20)), all_photos(town), 6, 0.05)
    assert len(order) == len(town.ids)
    assert len(found.views) == len(found.evidence.inliers) == len(found.headings_deg) == verified
    assert (found.evidence.inliers[:2].min() > 30) == (place < PLACES)


def test_only_what_is_verified_makes_the_fix(town: PlaceMap) -> None:
    localizer = Localizer(street_model(), town, Search(verify=4), min_confidence=0)
    fix = localizer.localize(wall(7, 20), top=24)
    inliers = [match.inliers for match in fix.matches]
    assert None not in inliers[:2]
    assert set(inliers[8:]) == {None}
    verified = [match for match in fix.matches if match.inliers is not None]
    assert fix.latlon == estimate(verified, localizer.calibration, min_confidence=0).latlon


def test_a_localizer_puts_the_photos_with_most_evidence_first(town: PlaceMap) -> None:
    """All 24 photos are verified, so that the model of random weights does not matter."""
    localizer = Localizer(street_model(), town, Search(verify=24), min_confidence=0)
    for place in (2, 7):
        fix = localizer.localize(wall(place, 20), top=24)
        assert {match.photo[:9] for match in fix.matches[:2]} == {f"photos/{place:02d}"}
        assert fix.latlon == pytest.approx(position(place, 1.5), abs=1e-4)
        assert len(fix.matches) == 24
        assert None not in {match.inliers for match in fix.matches}


def test_the_heading_is_that_of_the_photos_and_the_turn_between_them(town: PlaceMap) -> None:
    localizer = Localizer(street_model(), town, Search(verify=24), min_confidence=0)
    heading = localizer.localize(wall(7, 20)).heading_deg
    assert heading is not None
    assert abs((heading - HEADING_DEG + 180) % 360 - 180) < 20  # a flat wall: turning and moving look alike
    assert Localizer(street_model(), town, Search(verify=0), min_confidence=0).localize(wall(7)).heading_deg is None


def test_keypoints_that_agree_are_moved_as_the_photos_are(town: PlaceMap) -> None:
    """The query shows the wall 20 px of 224 farther to the right than the map's first photo of it."""
    localizer = Localizer(street_model(), town, Search(verify=24), min_confidence=0)
    match = next(match for match in localizer.localize(wall(7, 20), top=24).matches if match.photo.endswith("07_0.jpg"))
    pairs = localizer.inlier_pairs(wall(7, 20), match.id, match.photo)
    assert pairs is not None
    assert len(pairs) == max(match.inliers or 0, match.planar_inliers or 0) > 30
    assert (pairs.query_size, pairs.photo_size) == ((448, 320), (448, 320))
    moved = (pairs.photo_xy - pairs.query_xy) * (224, 160)
    np.testing.assert_allclose(np.median(moved, axis=0), (20, 0), atol=0.5)
    assert (np.abs(moved - (20, 0)).max(axis=1) < 5).mean() > 0.9


def test_without_features_of_both_photos_no_keypoints_agree(bare_folder: Path, tmp_path: Path) -> None:
    bare = copy_bare(bare_folder, tmp_path)
    with pytest.raises(ArgumentError, match="not verified"):
        Localizer(street_model(), bare).inlier_pairs(wall(0), 1, bare.files[0])
    localizer = Localizer(street_model(), bare, Search(verify=5))
    with pytest.raises(PhotoError):
        localizer.inlier_pairs(b"no photo", 1, bare.files[0])
    shutil.rmtree(tmp_path / "photos")
    assert localizer.inlier_pairs(wall(0), 1, bare.files[0]) is None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(350.0, 40), (10.0, 40)], 0.0),
        ([(80.0, 90), (100.0, 30)], 85.0),
        ([(0.0, 50), (180.0, 50)], None),
        ([(None, 50)], None),
        ([], None),
    ],
)
def test_headings_of_matches_are_averaged_on_the_circle(
    told: list[tuple[float | None, int]], expected: float | None
) -> None:
    matches = [
        Match(i, f"{i}.jpg", position(0), 0.8, inliers=n, planar_inliers=n, heading_deg=heading)
        for i, (heading, n) in enumerate(told)
    ]
    far = Match(9, "far.jpg", position(5), 0.8, inliers=500, planar_inliers=0, heading_deg=123.0)
    found = agreed_heading([*matches, far], fuse([position(0)], [0.8]))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert abs((found - expected + 180) % 360 - 180) < 0.1


def test_a_place_that_matches_is_surer_than_one_that_does_not(town: PlaceMap) -> None:
    localizer = Localizer(street_model(), town, Search(verify=24), min_confidence=0)
    known = [localizer.localize(wall(place, 20)).confidence for place in range(4)]
    unknown = [localizer.localize(wall(place, 20)).confidence for place in range(50, 54)]
    assert min(known) > 0.5 > max(unknown)


def test_only_some_matches_are_verified_and_come_first(town: PlaceMap) -> None:
    localizer = Localizer(street_model(), town, Search(verify=5), min_confidence=0)
    matches = localizer.localize(wall(2, 20), top=24).matches
    assert [match.inliers is None for match in matches] == [False] * 5 + [True] * 19
    assert len({match.id for match in matches}) == 24


def test_where_no_photo_can_be_read_matches_keep_their_order_with_one_warning(
    bare_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = copy_bare(bare_folder, tmp_path)
    shutil.rmtree(tmp_path / "photos")
    localizer = Localizer(street_model(), bare, Search(verify=10), min_confidence=0)
    plain = Localizer(street_model(), bare, min_confidence=0)
    for place in (0, 1):
        assert localizer.localize(wall(place, 20)) == plain.localize(wall(place, 20))
    (said,) = caplog.messages
    assert "town.gpkg" in said
    assert "not verified" in said


def test_files_bytes_and_pixels_are_read_alike(tmp_path: Path) -> None:
    size = street_model().preprocess.size
    image = wall(1)
    path = write_view(tmp_path / "1.png", image, None)
    with io.BytesIO() as content:
        Image.fromarray(image).save(content, "PNG")
        packed = content.getvalue()
    asked = [path, packed, image, *[path] * 8]
    for workers in (0, 1):
        for _, query in read_images(asked, (size, feature_size), workers=workers):
            assert not isinstance(query, PhotoError)
            np.testing.assert_array_equal(query.pixels[0], decode(path, size=size))
            np.testing.assert_array_equal(query.pixels[1], decode(path, size=feature_size))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_photo_that_cannot_be_decoded_is_an_error_in_its_place(tmp_path: Path, workers: int) -> None:
    good, bad = write_view(tmp_path / "1.png", wall(1), None), tmp_path / "2.png"
    bad.write_bytes(b"no photo")
    asked = [good, bad] * 6
    found = read_images(asked, (street_model().preprocess.size, feature_size), workers=workers)
    assert [isinstance(query, PhotoError) for _, query in found] == [False, True] * 6


def test_large_pixels_are_reduced_for_local_features() -> None:
    query = read_image(texture(600, 960), (lambda height, width: (64, 96), feature_size))
    assert [image.shape for image in query.pixels] == [(64, 96, 3), (300, 480, 3)]


def test_inliers_outweigh_a_shorter_distance() -> None:
    """By hand: two matches; the second is farther, and has 50 and 40 inliers."""
    evidence = Evidence(np.array([5.0, 50.0]), np.array([3.0, 40.0]))
    found = weigh([0.8, 0.9], 0.1, evidence)
    score = -0.5 * (0.81 - 0.64) / 0.1 + 0.9 * np.log1p(43) + 1.6 * np.log1p(36)
    assert found[1] / found[0] == pytest.approx(np.exp(score))


def test_unverified_matches_have_no_evidence() -> None:
    evidence = Evidence(np.array([np.nan, 5.0]), np.array([np.nan, 3.0]))
    assert weigh([0.8, 0.9], 0.1, evidence) == pytest.approx(weigh([0.8, 0.9], 0.2))


def test_the_order_of_verified_matches_does_not_matter() -> None:
    matches = [
        Match(i, f"{i}.jpg", position(i // 2, float(i)), 0.7 + 0.01 * i, inliers=10 * i, planar_inliers=5 * i)
        for i in range(6)
    ]
    assert estimate(matches) == estimate(matches[::-1])


def test_a_map_is_calibrated_for_verified_matches(town_folder: Path, tmp_path: Path) -> None:
    """The photos of other light are found; the stored weights are those of verified matches."""
    shutil.copytree(town_folder, tmp_path / "own")
    localizer = Localizer(street_model(), PlaceMap(tmp_path / "own" / "town.gpkg"), Search(verify=20))
    photos = [write_view(tmp_path / f"{place}.png", wall(place, 16), None) for place in range(PLACES)]
    report = calibrate(localizer, photos, [position(place, 1.0) for place in range(PLACES)])
    assert report.right == 1.0
    assert report.calibration.weights == localizer.calibration.weights or report.rejected_because is None
    assert report.after.right_kept is not None
    assert report.after.right_kept > 0.5


def test_a_pose_in_the_place_gives_position_radius_and_heading() -> None:
    matches = [Match(i, f"{i}.jpg", position(0, 3.0 * i), 0.8, inliers=60, planar_inliers=40) for i in range(3)]
    without = estimate(matches, min_confidence=0)
    assert without.latlon is not None
    near, far = Pose(position(0, 8.0), 2.5, 123.0), Pose(position(5), 2.5, 123.0)
    with_pose = estimate(matches, pose=near, min_confidence=0)
    assert (with_pose.latlon, with_pose.radius_m, with_pose.heading_deg) == (near.latlon, 2.5, 123.0)
    assert with_pose.confidence == without.confidence
    assert estimate(matches, pose=far, min_confidence=0) == without
    unsure = estimate(matches, pose=near, min_confidence=1)
    assert (unsure.latlon, unsure.guess, unsure.guess_radius_m, unsure.heading_deg) == (None, near.latlon, 2.5, None)


def test_a_walk_uses_the_poses_of_its_photos() -> None:
    walk = [
        [Match(9 * step + i, f"{i}.jpg", position(step, 3.0 * i), 0.8, 60, 40) for i in range(3)] for step in range(3)
    ]
    poses = [None, Pose(position(1, 8.0), 2.5, 123.0), None]
    fixes = estimate_walk(walk, 1000.0, poses=poses, min_confidence=0)
    plain = estimate_walk(walk, 1000.0, min_confidence=0)
    assert fixes[1].latlon == poses[1].latlon
    assert fixes[1].heading_deg == 123.0
    assert (fixes[0], fixes[2]) == (plain[0], plain[2])
    assert estimate_walk(walk[1:2], 1.0, poses=poses[1:2], min_confidence=0)[0].latlon == poses[1].latlon
