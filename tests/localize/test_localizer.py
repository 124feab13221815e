"""Localizer: from photo files, bytes and pixels to fixes, over a real map."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.localize.street import PLACES, SPACING_M, position, street_model, view, write_queries, write_view

from sareloc.errors import ArgumentError, MapError, PhotoError, WeightsError
from sareloc.geo import distance_m
from sareloc.localize import Calibration, Fix, Localizer, Search, calibrate, open_localizer
from sareloc.maps import Box, Circle, MapManifest, PlaceMap, create_map_file
from sareloc.models import PACKAGED, save_checkpoint
from sareloc.photos import ReadImage, read_image


@pytest.fixture(scope="module")
def localizer(street: PlaceMap) -> Localizer:
    return Localizer(street_model(), street)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_queries(tmp_path_factory.mktemp("queries"))


def errors_m(fixes: list[Fix | PhotoError], places: list[int]) -> np.ndarray:
    found = [fix.latlon if isinstance(fix, Fix) and fix.latlon else (0.0, 0.0) for fix in fixes]
    return distance_m(found, [position(place, 3.0) for place in places])


def test_new_photos_are_found_and_another_towns_are_not(
    localizer: Localizer, queries: list[Path], tmp_path: Path
) -> None:
    ours, theirs = localizer.localize_many(queries), localizer.localize_many(write_queries(tmp_path, town=5))
    found = [place for place, fix in enumerate(ours) if isinstance(fix, Fix) and fix.found]
    assert len(found) >= 0.8 * PLACES
    assert errors_m([ours[place] for place in found], found).max() < 25
    assert sum(isinstance(fix, Fix) and fix.found for fix in theirs) <= 0.1 * PLACES


def test_the_fix_lists_the_photos_of_the_place(localizer: Localizer, queries: list[Path]) -> None:
    fix = localizer.localize(queries[7])
    assert {match.photo for match in fix.matches[:3]} == {f"photos/07_{i}.jpg" for i in range(3)}
    assert [m.distance for m in fix.matches] == sorted(m.distance for m in fix.matches)
    held = dict(zip(localizer.place_map.ids.tolist(), localizer.place_map.files, strict=True))
    assert [held[m.id] for m in fix.matches] == [m.photo for m in fix.matches]
    assert distance_m(fix.latlon, position(7, 3.0)) <= fix.radius_m


def test_files_bytes_and_pixels_of_a_photo_give_one_answer(localizer: Localizer, tmp_path: Path) -> None:
    image = view(4, 99)
    path = tmp_path / "q.png"
    Image.fromarray(image).save(path)
    answers = [
        localizer.localize(photo) for photo in (path, str(path), path.read_bytes(), image, Image.fromarray(image))
    ]
    assert all(answer == answers[0] for answer in answers)


def test_many_photos_give_what_each_gives_alone(localizer: Localizer, queries: list[Path]) -> None:
    some = queries[:5]
    together = localizer.localize_many(some)
    for photo, fix in zip(some, together, strict=True):
        alone = localizer.localize(photo)
        assert isinstance(fix, Fix)
        assert fix.confidence == pytest.approx(alone.confidence, abs=1e-3)
        assert {m.photo for m in fix.matches[:3]} == {m.photo for m in alone.matches[:3]}


def test_an_unreadable_photo_does_not_stop_the_others(
    localizer: Localizer, queries: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photo")
    fixes = localizer.localize_many([queries[0], broken, b"neither", tmp_path / "absent.jpg", queries[1]])
    assert [type(fix) for fix in fixes] == [Fix, PhotoError, PhotoError, PhotoError, Fix]
    assert "photo 2" in str(fixes[2])
    with pytest.raises(PhotoError, match=r"broken\.jpg"):
        localizer.localize(broken)


def test_near_looks_only_there(localizer: Localizer, queries: list[Path]) -> None:
    elsewhere = Circle(position(20), 100.0)
    fix = localizer.localize(queries[3], near=elsewhere)
    assert all(distance_m(match.latlon, position(20)) <= 100 for match in fix.matches)
    assert localizer.localize(queries[3], near=Circle(position(3), 500.0)).found
    nothing = localizer.localize(queries[3], near=Box(10.0, 10.0, 11.0, 11.0))
    assert (nothing.latlon, nothing.matches) == (None, ())
    assert "no photo of the map" in nothing.reason


def test_near_a_fix_is_within_500_m_of_it(localizer: Localizer, queries: list[Path]) -> None:
    last = localizer.localize(queries[0])
    assert last.found
    following = localizer.localize(queries[20], near=last, top=100)
    reach = 500 + last.radius_m
    assert len(following.matches) == pytest.approx(3 * reach / SPACING_M, abs=4)
    assert max(distance_m(match.latlon, last.latlon) for match in following.matches) <= reach
    lost = Fix(None, None, 0.1, (), "not in this map")
    assert localizer.localize(queries[20], near=lost) == localizer.localize(queries[20])


def test_more_matches_than_photos_are_all_photos(localizer: Localizer, queries: list[Path]) -> None:
    assert len(localizer.localize(queries[0], top=10_000).matches) == 3 * PLACES
    assert len(localizer.localize(queries[0], top=1).matches) == 1
    wide = Localizer(localizer.model, localizer.place_map, Search(candidates=10_000))
    assert distance_m(wide.localize(queries[0]).latlon, position(0)) < 25


def test_listing_more_matches_does_not_move_the_fix(street: PlaceMap, queries: list[Path]) -> None:
    few = Localizer(street_model(), street, Search(candidates=2), min_confidence=0)
    short, long = (few.localize(queries[5], top=top) for top in (1, 60))
    assert (len(short.matches), len(long.matches)) == (1, 60)
    assert (short.latlon, short.confidence) == (long.latlon, long.confidence)


def test_verification_looks_deeper_than_the_matches_that_are_fused(street: PlaceMap) -> None:
    localizer = Localizer(street_model(), street, Search(candidates=2, verify=30))
    queries = [query for query in localizer.load([view(5, 99)]) if isinstance(query, ReadImage)]
    assert [len(found.matches) for found in localizer.find_matches(queries, localizer.encode(queries), 2)] == [30]


def test_a_walk_keeps_its_photos_on_the_street(localizer: Localizer, queries: list[Path], tmp_path: Path) -> None:
    """One photo of the walk was swapped for one of a place 1.6 km away: the walk does not follow it there."""
    swapped = write_view(tmp_path / "swapped.jpg", view(25, 99), None)
    walk = [*queries[3:6], swapped, *queries[7:10]]
    assert localizer.localize(swapped).found
    fixes = localizer.localize_walk(walk, reach_m=SPACING_M)
    assert errors_m([*fixes[:3], *fixes[4:]], [3, 4, 5, 7, 8, 9]).max() < 25
    there = fixes[3]
    assert isinstance(there, Fix)
    assert there.confidence < localizer.localize(swapped).confidence


def test_a_walk_passes_over_a_photo_that_cannot_be_read(localizer: Localizer, queries: list[Path]) -> None:
    fixes = localizer.localize_walk([queries[1], b"no photo", queries[2]], reach_m=[100.0, 100.0])
    assert [type(fix) for fix in fixes] == [Fix, PhotoError, Fix]


def test_a_given_calibration_is_used(street: PlaceMap, queries: list[Path]) -> None:
    doubt = Calibration(weights=(-20.0, 0.0, 0.0, 0.0))
    assert not Localizer(street_model(), street, calibration=doubt).localize(queries[0]).found


def test_a_calibration_that_is_better_on_other_photos_is_stored(street_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(street_folder, tmp_path / "town")
    path = tmp_path / "town" / "street.gpkg"
    known = write_queries(tmp_path / "known", tagged=True)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photo")
    inside = path.parent / "photos" / "00_0.jpg"
    before = Localizer(street_model(), PlaceMap(path), calibration=Calibration(weights=(3.0, 0.0, 0.0, 0.0)))
    truth = [position(place, 3.0) for place in range(PLACES)]
    report = calibrate(before, [*known, inside, broken], [*truth, position(0), position(1)])
    assert report.calibration.photos == PLACES
    assert report.right > 0.9
    assert report.in_map == (str(inside),)
    assert [error.photo for error in report.unreadable] == [str(broken)]
    assert report.rejected_because is None
    assert (report.photos, report.places) == (PLACES, PLACES)
    assert report.before_origin == "nothing"
    assert report.before.absent_rejected == 0
    assert report.after.absent_rejected > 0.8
    assert report.after.log_loss < report.before.log_loss
    assert report.after.calibration_error < report.before.calibration_error
    after = Localizer(street_model(), PlaceMap(path))
    assert after.calibration == report.calibration
    assert after.calibration.origin == "photos"
    other = Localizer(street_model(), PlaceMap(path), Search(verify=5))
    assert other.calibration.origin == "map"  # a calibration belongs to its way of searching


def test_the_maps_own_calibration_is_kept_where_photos_give_none_better(street_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(street_folder, tmp_path / "town")
    path = tmp_path / "town" / "street.gpkg"
    localizer = Localizer(street_model(), PlaceMap(path))
    known = write_queries(tmp_path / "known", tagged=True)
    report = calibrate(localizer, known, [position(place, 3.0) for place in range(PLACES)])
    assert "standard error" in str(report.rejected_because)
    assert report.calibration == localizer.calibration
    assert report.before_origin == "map"
    assert min(report.before.right_kept, report.after.right_kept) > 0.8
    assert PlaceMap(path).notes == localizer.place_map.notes


def test_too_few_photos_are_no_calibration(street: PlaceMap, tmp_path: Path) -> None:
    localizer = Localizer(street_model(), street)
    known = write_queries(tmp_path, tagged=True)[:9]
    with pytest.raises(ArgumentError, match="found 9 of 9"):
        calibrate(localizer, known, [position(place) for place in range(9)])
    one_spot = [write_view(tmp_path / f"same{seed}.jpg", view(4, seed), None) for seed in range(50, 62)]
    with pytest.raises(ArgumentError, match="found 12 of 1 "):
        calibrate(localizer, one_spot, [position(4)] * 12)
    with pytest.raises(ArgumentError, match="positions, found 1"):
        calibrate(localizer, known, [position(0)])


def test_a_model_that_does_not_belong_is_refused(street: PlaceMap) -> None:
    with pytest.raises(MapError, match=r"street\.gpkg .* model"):
        Localizer(street_model(seed=2), street)


def test_an_empty_map_is_refused(tmp_path: Path) -> None:
    model = street_model()
    create_map_file(tmp_path / "empty.gpkg", MapManifest(model.name, model.fingerprint(), model.dim))
    with pytest.raises(MapError, match="no photos"):
        Localizer(model, PlaceMap(tmp_path / "empty.gpkg"))


def test_wrong_arguments_say_so(localizer: Localizer, street: PlaceMap, queries: list[Path]) -> None:
    with pytest.raises(ArgumentError, match="no photos"):
        localizer.localize_many([])
    with pytest.raises(ArgumentError, match=r"top .* found 0"):
        localizer.localize(queries[0], top=0)
    query = queries[0]
    for photo in (str(query), query.read_bytes(), io.BytesIO(query.read_bytes()), read_image(query)):
        with pytest.raises(ArgumentError, match=r"list.* a single one .* localize$"):
            localizer.localize_many(photo)
    with pytest.raises(ArgumentError, match=r"0 to 1: found 1\.5"):
        Localizer(street_model(), street, min_confidence=1.5)
    with pytest.raises(ArgumentError, match=r"verify .* found -1"):
        Search(verify=-1)
    with pytest.raises(ArgumentError, match=r"candidates .* found 0"):
        Search(candidates=0)


def test_a_map_opens_with_the_packaged_model_that_it_was_built_by(
    street: PlaceMap, queries: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MapError, match="street"):
        open_localizer(street.path)
    with pytest.raises(WeightsError, match="nowhere"):
        open_localizer(street.path, "nowhere")
    save_checkpoint(street_model(), tmp_path / "street.safetensors")
    by_path = open_localizer(street.path, tmp_path / "street.safetensors", device="cpu")
    # by its fingerprint, whatever it is called
    monkeypatch.setitem(PACKAGED, "avenue", tmp_path / "street.safetensors")
    by_name = open_localizer(street.path, device="cpu")
    by_hand = open_localizer(street.path, street_model())
    answers = [each.localize(queries[2]) for each in (by_path, by_name, by_hand)]
    assert answers[0] == answers[1] == answers[2]
