"""The plan of a town: streets, houses, what is the same for a seed and what differs."""

from __future__ import annotations

import numpy as np
import pytest

from sareloc.city import SIZES, SPLITS, city_places, make_town, make_views, split_seed
from sareloc.city.furnish import make_kerbs
from sareloc.city.plan import MARGIN_M, ground_tables, make_houses, make_streets
from sareloc.city.town import METRES_PER_PANORAMA, make_tracks
from sareloc.errors import ArgumentError


def roads(streets):
    """Every road as a rectangle x0, y0, x1, y1."""
    width, _ = streets.extent
    found = [(0, y - w, width, y + w) for y, w in zip(streets.long_y, streets.long_road, strict=True)]
    for r, xs in enumerate(streets.cross_x):
        found += [
            (x - w, streets.long_y[r], x + w, streets.long_y[r + 1])
            for x, w in zip(xs, streets.cross_road[r], strict=True)
        ]
    return np.array(found)


def test_a_seed_gives_one_town():
    first, again = (make_town.__wrapped__(5, "small") for _ in range(2))
    assert np.array_equal(first.quads.columns, again.quads.columns)
    assert np.array_equal(first.quads.corner, again.quads.corner)
    assert np.array_equal(first.sprites.foot, again.sprites.foot)
    assert first.origin == again.origin
    other = make_town(6, "small")
    assert other.streets.extent != first.streets.extent or len(other.quads) != len(first.quads)


def test_splits_are_different_towns():
    assert len({split_seed(seed, split) for seed in range(4) for split in SPLITS}) == 12
    towns = [city_places(0, "small", split).town for split in SPLITS]
    assert len({town.origin for town in towns}) == 3
    assert len({town.quads.corner.tobytes() for town in towns}) == 3


@pytest.mark.parametrize("seed", range(6))
def test_houses_stand_clear_of_the_roads(seed):
    rng = np.random.default_rng(seed)
    streets = make_streets(rng, 1500)
    boxes = np.array([house.box for house in make_houses(rng, streets)])[:, None]
    road = roads(streets)[None]
    overlap_x = np.minimum(boxes[..., 2], road[..., 2]) - np.maximum(boxes[..., 0], road[..., 0])
    overlap_y = np.minimum(boxes[..., 3], road[..., 3]) - np.maximum(boxes[..., 1], road[..., 1])
    assert not ((overlap_x > 1e-9) & (overlap_y > 1e-9)).any()


def test_houses_of_a_block_do_not_overlap():
    rng = np.random.default_rng(3)
    boxes = np.array([house.box for house in make_houses(rng, make_streets(rng, 1500))])
    i, j = np.triu_indices(len(boxes), 1)
    x = np.minimum(boxes[i, 2], boxes[j, 2]) - np.maximum(boxes[i, 0], boxes[j, 0])
    y = np.minimum(boxes[i, 3], boxes[j, 3]) - np.maximum(boxes[i, 1], boxes[j, 1])
    assert not ((x > 1e-6) & (y > 1e-6)).any()


def test_few_styles_make_many_houses():
    rng = np.random.default_rng(0)
    houses = make_houses(rng, make_streets(rng, 2750))
    assert len(houses) > 250
    assert len({house.style.walls for house in houses}) <= 7
    assert len({house.colours for house in houses}) > 0.9 * len(houses)
    assert len({house.style.window for house in houses}) > 0.5 * len(houses)


def test_the_tables_name_the_street_of_every_metre():
    rng = np.random.default_rng(2)
    streets = make_streets(rng, 2000)
    by_y, by_xy = ground_tables(streets)
    width, height = streets.extent
    for x, y in zip(rng.uniform(0, width, 300), rng.uniform(0, height, 300), strict=True):
        row, middle, road, pave = by_y[int(np.floor(y)) + MARGIN_M]
        inside = max(r for r, low in enumerate(streets.long_y[:-1]) if low <= y)
        assert row == inside
        metre = np.floor(y) + 0.5
        nearest = min(range(len(streets.long_y)), key=lambda j: abs(streets.long_y[j] - metre))
        assert (middle, road, pave) == (
            streets.long_y[nearest],
            streets.long_road[nearest],
            streets.long_pave[nearest],
        )
        crossing = by_xy[inside, int(np.floor(x)) + MARGIN_M]
        metre = np.floor(x) + 0.5
        near = min(range(streets.cross_x.shape[1]), key=lambda i: abs(streets.cross_x[inside, i] - metre))
        assert crossing[0] == streets.cross_x[inside, near]


def test_a_small_town_has_its_views(town):
    views = make_views(town)
    assert (len(views.database), len(views.queries)) == (150, 50)
    assert len(np.unique(views.panoramas)) == 25
    assert set(views.tiles) == set(range(6))
    assert max(views.database.moment) < min(views.queries.moment)
    for pano in range(25):
        eyes = views.database.eye[views.panoramas == pano]
        assert (eyes == eyes[0]).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(5))
def test_panoramas_are_eight_to_twelve_metres_apart(size, seed):
    panoramas = SIZES[size].panoramas
    streets = make_streets(np.random.default_rng(seed), panoramas * METRES_PER_PANORAMA)
    length_m = sum(track.length for track in make_tracks(streets))
    assert 8 <= length_m / panoramas <= 12


def test_cameras_stand_on_the_street_and_queries_near_the_drive(town):
    views = make_views(town)
    x, y = np.concatenate([views.database.eye, views.queries.eye])[:, :2].T
    boxes = town.boxes
    for x0, y0, x1, y1, _ in boxes:
        assert not ((x > x0) & (x < x1) & (y > y0) & (y < y1)).any()
    away = np.linalg.norm(views.queries.eye[:, None, :2] - views.database.eye[None, :, :2], axis=-1).min(1)
    assert away.max() < 15


def test_kerbs_leave_the_junctions_free(town):
    road = roads(town.streets)
    for kerb in make_kerbs(town.streets):
        for s in np.linspace(0, kerb.length, 5):
            x, y = kerb.at(float(s), 0.5)
            assert not ((road[:, 0] < x) & (x < road[:, 2]) & (road[:, 1] < y) & (y < road[:, 3])).any()


def test_an_unknown_size_names_the_known_ones():
    with pytest.raises(ArgumentError, match=r"huge.*small"):
        make_town(0, "huge")
    with pytest.raises(ArgumentError, match=r"dev.*val"):
        city_places(0, "small", "dev")
