"""Averages of descriptors: on paper, against a plain loop, and over a map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.localize.street import position, street_model, view, write_queries

from sareloc.errors import MapError
from sareloc.geo import distance_m
from sareloc.localize import Localizer, Search
from sareloc.localize.search import AveragedMap, Searcher, blend, expand_queries
from sareloc.maps import Circle, PlaceMap


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def test_blend_on_paper() -> None:
    vectors = np.array([[1.0, 0.0]], dtype=np.float32)
    neighbours = np.array([[[0.6, 0.8], [-1.0, 0.0]]], dtype=np.float32)
    distances = np.linalg.norm(neighbours - vectors[:, None], axis=2)  # cosines 0.6 and -1
    mixed = np.array([1.0, 0.0]) + 0.6**3 * np.array([0.6, 0.8])
    assert blend(vectors, neighbours, distances, 3.0)[0] == pytest.approx(mixed / np.linalg.norm(mixed), abs=1e-6)


def test_neighbours_that_do_not_count_change_nothing() -> None:
    rng = np.random.default_rng(0)
    vectors, neighbours = unit(rng, 4, 8), unit(rng, 4, 3, 8)
    assert blend(vectors, neighbours, np.full((4, 3), np.inf), 1.0) == pytest.approx(vectors, abs=1e-6)
    assert blend(vectors, neighbours[:, :0], np.zeros((4, 0)), 1.0) == pytest.approx(vectors, abs=1e-6)


def test_expanded_queries_are_what_a_loop_makes_of_the_matches(street: PlaceMap) -> None:
    queries = unit(np.random.default_rng(1), 3, street.manifest.dim)
    ours = expand_queries(queries, street, 4)
    everything = street.descriptors(street.ids)
    for query, found in zip(queries, ours, strict=True):
        distances = np.linalg.norm(everything - query, axis=1)
        mixed = query.astype(np.float64)
        for row in np.argsort(distances)[:4]:
            mixed = mixed + max(0.0, 1 - distances[row] ** 2 / 2) ** 3 * everything[row]
        assert found == pytest.approx(mixed / np.linalg.norm(mixed), abs=1e-3)


def test_expansion_stays_in_the_area(street: PlaceMap) -> None:
    query = unit(np.random.default_rng(2), 1, street.manifest.dim)
    area = Circle(position(3), 30.0)
    inside = street.descriptors(street.ids[area.rows(street.latlon)])
    cosines = np.maximum(0, inside @ query[0])
    mixed = query[0] + (cosines**3) @ inside
    found = expand_queries(query, street, 3, area)[0]
    assert found == pytest.approx(mixed / np.linalg.norm(mixed), abs=1e-3)


def test_a_map_is_averaged_with_neighbours_that_stand_near(street: PlaceMap) -> None:
    """By a loop: of the six most alike those within 25 m, the photo itself apart."""
    averaged = AveragedMap(street, 6)
    everything = street.descriptors(street.ids)
    ours = averaged.descriptors(street.ids)
    for row in (0, 17, 44):
        distances = np.linalg.norm(everything - everything[row], axis=1)
        mixed = everything[row].astype(np.float64)
        for other in np.argsort(distances, kind="stable")[:7]:
            if other != row and distance_m(street.latlon[other], street.latlon[row]) <= 25:
                mixed = mixed + max(0.0, 1 - distances[other] ** 2 / 2) * everything[other]
        assert ours[row] == pytest.approx(mixed / np.linalg.norm(mixed), abs=2e-3)


def test_an_averaged_map_leaves_the_map_alone(street: PlaceMap) -> None:
    before = street.descriptors(street.ids)
    averaged = AveragedMap(street, 3)
    assert np.array_equal(street.descriptors(street.ids), before)
    assert not np.allclose(averaged.descriptors(street.ids), before, atol=1e-3)
    assert (averaged.files, len(averaged)) == (street.files, len(street))
    with pytest.raises(MapError, match=r"averaged descriptors of map .*street\.gpkg are of one moment: refresh"):
        averaged.refresh()


@pytest.mark.parametrize("search", [Search(expand=2), Search(average=3), Search(expand=2, average=3, centre=True)])
def test_photos_are_found_with_either(street: PlaceMap, search: Search, tmp_path: Path) -> None:
    localizer = Localizer(street_model(), street, search, min_confidence=0)
    fixes = localizer.localize_many(write_queries(tmp_path)[:10])
    assert localizer.calibration.origin == "map"
    found = [fix.latlon for fix in fixes]  # type: ignore[union-attr]
    assert max(distance_m(found, [position(place, 3.0) for place in range(10)])) < 25


def test_a_search_is_named_by_what_is_special_about_it() -> None:
    assert Search().name == "plain"
    assert Search(expand=3, rerank=50).name == "expand=3 rerank=50"


def test_a_search_expands_its_queries_where_asked_to(street: PlaceMap) -> None:
    queries = street_model().encode([view(5, 99), view(8, 99)]).numpy()
    plain, expanded = (Searcher(street, Search(expand=count)).find(queries, 7) for count in (0, 3))
    assert plain.distances.tolist() == street.search(queries, 7).distances.tolist()
    by_hand = street.search(expand_queries(queries, street, 3), 7)
    assert expanded.distances.tolist() == by_hand.distances.tolist() != plain.distances.tolist()
