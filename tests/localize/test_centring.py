"""What all photos of a map have in common, taken away: on paper, against plain numpy, and through a localizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.localize.street import position, street_model, write_queries

from sareloc.errors import MapError
from sareloc.geo import distance_m
from sareloc.localize import Localizer, Search
from sareloc.localize.search import CentredMap, Searcher, centred
from sareloc.maps import PlaceMap
from sareloc.photos import decode


def test_centred_on_paper() -> None:
    vectors = np.array([[0.5, 0.75], [1.0, 0.0], [0.5, 0.0]], dtype=np.float32)
    found = centred(vectors, np.array([0.5, 0.0]))
    assert found == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]), abs=1e-6)
    assert found.dtype == np.float32


def test_what_photos_share_hides_what_tells_them_apart() -> None:
    """Two places and a strong part that one of the four photos has less of: only without it the places win."""
    shared = np.array([3.0, 0.0, 0.0])
    photos = np.array([[0, 1, 0], [0, 0, 1], [0.4, 1, 0.1], [-0.4, 0.1, 1]]) + shared * [[1], [1], [0.4], [1]]
    unit = (photos / np.linalg.norm(photos, axis=1, keepdims=True)).astype(np.float32)
    rest = centred(unit, unit.mean(axis=0, dtype=np.float64))
    assert (unit[:2] @ unit[2]).argmax() == 0
    gap, gap_of_rest = (np.diff(np.sort(v[:2] @ v[2]))[0] for v in (unit, rest))
    assert gap_of_rest > 10 * gap


def test_a_centred_map_finds_what_plain_numpy_finds(street: PlaceMap) -> None:
    queries = street_model().encode([decode(street.photo_path(street.files[row])) for row in (3, 20)]).numpy()
    everything = street.descriptors(street.ids)
    mean = everything.mean(axis=0)
    there, asked = everything - mean, queries - mean
    there, asked = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (there, asked))
    distances = np.linalg.norm(asked[:, None] - there[None], axis=2)
    found = Searcher(street, Search(centre=True)).find(queries, 5)
    assert found.distances == pytest.approx(np.sort(distances, axis=1)[:, :5], abs=2e-3)
    assert found.ids[:, 0].tolist() == street.ids[distances.argmin(axis=1)].tolist()
    plain = Searcher(street, Search()).find(queries, 5)
    assert (found.distances[:, 1:] > plain.distances[:, 1:] + 0.01).all()  # no longer all on one side


def test_a_centred_map_is_of_one_moment_and_leaves_the_map_alone(street: PlaceMap) -> None:
    before = street.descriptors(street.ids)
    there = CentredMap(street)
    lengths = np.linalg.norm(there.descriptors(street.ids), axis=1)
    assert lengths == pytest.approx(1, abs=1e-3)
    assert np.array_equal(street.descriptors(street.ids), before)
    with pytest.raises(MapError, match=r"centred descriptors of map .*street\.gpkg are of one moment: refresh"):
        there.refresh()


def test_photos_are_found_and_confidence_is_that_of_the_centred_distances(street: PlaceMap, tmp_path: Path) -> None:
    photos = write_queries(tmp_path)[:10]
    plain, localizer = (
        Localizer(street_model(), street, search, min_confidence=0) for search in (Search(), Search(centre=True))
    )
    found = [fix.latlon for fix in localizer.localize_many(photos)]  # type: ignore[union-attr]
    assert max(distance_m(found, [position(place, 3.0) for place in range(10)])) < 25
    assert localizer.note == "calibration centre=True"
    assert localizer.calibration.origin == "map"
    assert localizer.calibration != plain.calibration
    sure = [fix.confidence for fix in localizer.localize_many(photos)]  # type: ignore[union-attr]
    by_plain = Localizer(street_model(), street, Search(centre=True), calibration=plain.calibration, min_confidence=0)
    misled = [fix.confidence for fix in by_plain.localize_many(photos)]  # type: ignore[union-attr]
    assert np.mean(sure) > np.mean(misled)
