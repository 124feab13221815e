"""Looking a dataset over: counts, extent and faulty files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sareloc.datasets import PhotoSet, Places, check_places, find_extent, load_dataset
from sareloc.geo import Positions, distance_m


def places_at(positions: Positions, queries: Positions | None = None, folder: Path = Path("nowhere")) -> Places:
    sets = [
        PhotoSet(folder, tuple(f"{role}{row}.jpg" for row in range(len(where))), where)
        for role, where in (("d", positions), ("q", positions[:0] if queries is None else queries))
    ]
    return Places("own", "all", *sets)


def test_kinds_of_faulty_files_are_distinguished(tmp_path, make_photo):
    places = places_at(
        Positions.from_local([[0, 0], [30, 0], [60, 0], [90, 0]]), Positions.from_local([[10, 0], [500, 0]]), tmp_path
    )
    for name in ("d0.jpg", "q0.jpg", "q1.jpg"):
        make_photo(tmp_path / name)
    (tmp_path / "d1.jpg").write_bytes(b"")
    Image.effect_noise((64, 64), 99).save(tmp_path / "d2.jpg")
    whole = (tmp_path / "d2.jpg").read_bytes()
    (tmp_path / "d2.jpg").write_bytes(whole[: len(whole) // 2])
    found = check_places(places)
    assert (found.database, found.queries, found.photos, found.queries_with_positive) == (4, 2, 6, 1)
    assert found.missing == (str(tmp_path / "d3.jpg"),)
    assert [(Path(file).name, reason) for file, reason in found.unreadable] == [
        ("d1.jpg", "the file is empty (0 bytes)")
    ]
    decoded = check_places(places, decode=True)
    assert [Path(file).name for file, _ in decoded.unreadable] == ["d1.jpg", "d2.jpg"]
    assert "truncated" in decoded.unreadable[1][1]
    assert decoded.notes == ()
    (tmp_path / "d2.jpg").write_bytes(whole[:-9])  # almost complete: used, and said
    decoded = check_places(places, decode=True)
    assert [Path(file).name for file, _ in decoded.unreadable] == ["d1.jpg"]
    assert "d2.jpg: truncated" in decoded.notes[0]
    assert decoded.missing == found.missing
    assert json.loads(json.dumps(decoded.to_json()))["extent"]["east_west_m"] == 500


def test_photos_in_database_and_queries_count_once(tmp_path):
    photos = PhotoSet(tmp_path, ("a.jpg", "b.jpg"))
    places = Places("own", "all", photos, photos.take([1]), "average-precision", relevant=(np.array([0]),))
    found = check_places(places)
    assert (found.photos, len(found.missing), found.extent, found.queries_with_positive) == (2, 2, None, 1)


def test_extent_on_earth_counts_queries_too():
    corner, other = (48.85, 2.35), (48.86, 2.37)
    extent = find_extent(places_at(Positions.from_wgs84([corner]), Positions.from_wgs84([other])))
    box = [extent.south, extent.west, extent.north, extent.east]
    np.testing.assert_allclose(box, [*corner, *other], atol=1e-9)
    assert extent.south_north_m == pytest.approx(distance_m(corner, (48.86, 2.35)))
    assert extent.east_west_m == pytest.approx(distance_m((48.855, 2.35), (48.855, 2.37)))


def test_extent_across_the_antimeridian():
    extent = find_extent(places_at(Positions.from_wgs84([[-16.5, 179.99], [-16.5, -179.98]])))
    assert (extent.west, extent.east) == (pytest.approx(179.99), pytest.approx(-179.98))
    assert extent.east_west_m == pytest.approx(3202, abs=5)  # 0.03 degrees at 16.5 south


def test_extent_in_a_zone_and_in_no_place():
    utm = find_extent(places_at(Positions.from_utm([[448300, 5411900], [448400, 5411950]], 32631)))
    assert (utm.east_west_m, utm.south_north_m) == (pytest.approx(100, rel=0.01), pytest.approx(50, rel=0.02))
    assert utm.south == pytest.approx(48.86, abs=0.01)
    local = find_extent(places_at(Positions.from_local([[0, 0], [100, 50]])))
    assert (local.east_west_m, local.south_north_m, local.south) == (100, 50, None)


@pytest.mark.data
def test_cambridge(shared_data):
    found = check_places(load_dataset(shared_data / "cambridge"))
    assert (found.missing, found.unreadable) == ((), ())
    assert (found.queries_with_positive, found.queries) == (216, 216)
    assert (round(found.extent.east_west_m), round(found.extent.south_north_m)) == (604, 167)
