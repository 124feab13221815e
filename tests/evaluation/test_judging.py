"""Each dataset's protocol, on rankings made by hand and on the published files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sareloc.datasets import PhotoSet, Places, load_dataset
from sareloc.errors import ArgumentError, DatasetError
from sareloc.evaluation import PROTOCOLS, evaluate_rankings
from sareloc.geo import Positions, ecef_from_wgs84


def photos(xs: list[float], **columns: object) -> PhotoSet:
    """Photos along a street, at these metres."""
    positions = Positions.from_local([(x, 0.0) for x in xs])
    return PhotoSet(Path("street"), tuple(f"{i}.jpg" for i in range(len(xs))), positions, **columns)


def street(**knobs: object) -> Places:
    """Database photos at 0, 20, 40, 60, 80, 100 m; queries at 0, 25 and 500 m."""
    return Places("street", "test", photos([0, 20, 40, 60, 80, 100]), photos([0, 25, 500]), **knobs)


RANKINGS = np.array([[5, 1, 0, 2, 3, 4], [1, 2, 3, 4, 5, 0], [0, 1, 2, 3, 4, 5]])


def test_recall_within_a_radius_counts_every_query() -> None:
    report = evaluate_rankings(street(), RANKINGS, ns=(1, 2, 5))
    assert report.recall == pytest.approx({1: 100 / 3, 2: 200 / 3, 5: 200 / 3})
    assert (report.queries_without_positives, report.protocol, report.plain_recall) == (1, "radius", None)
    assert report.median_error_m == 100
    assert report.error_quantiles_m == {0.25: 52.5, 0.5: 100.0, 0.75: 300.0, 0.9: 420.0}
    assert report.mean_average_precision is None


def test_the_edge_of_the_radius_is_inside() -> None:
    assert evaluate_rankings(street(hit_radius_m=5.0), RANKINGS, ns=(1,)).recall[1] == pytest.approx(100 / 3)
    assert evaluate_rankings(street(hit_radius_m=4.9), RANKINGS, ns=(1,)).recall[1] == 0


def test_one_result_per_panorama_and_the_plain_variant_beside_it() -> None:
    places = street(protocol="panorama", panoramas=np.array([0, 0, 0, 1, 1, 1]))
    rankings = np.array([[5, 4, 3, 0, 1, 2], [3, 4, 5, 0, 1, 2], [0, 1, 2, 3, 4, 5]])
    report = evaluate_rankings(places, rankings, ns=(1, 2))
    # the three photos of panorama 1 count once: the second result of the first query is photo 0
    assert report.recall == pytest.approx({1: 0, 2: 200 / 3})
    assert report.plain_recall == {1: 0, 2: 0}
    plain = evaluate_rankings(places, rankings, ns=(1, 2), protocol="radius")
    assert (plain.recall, plain.protocol, plain.plain_recall) == ({1: 0, 2: 0}, "radius", None)
    assert "every photo counted" in plain.meaning
    assert "one photo of each panorama" in report.meaning


def test_results_of_the_querys_own_time_are_dropped() -> None:
    places = Places(
        "street",
        "val",
        photos([0, 20, 40, 60, 80, 100], times=np.array([1.0, 2, 1, 1, 1, 1])),
        photos([0, 25, 500], times=np.array([1.0, 2.0, 3.0])),
        protocol="time",
    )
    rankings = np.array([[0, 1, 2, 3, 4, 5], [1, 5, 2, 3, 4, 0], [5, 4, 3, 2, 1, 0]])
    report = evaluate_rankings(places, rankings, ns=(1, 2))
    assert report.recall == pytest.approx({1: 100 / 3, 2: 200 / 3})  # photo 1 alone is left to the first query
    assert report.plain_recall == pytest.approx({1: 200 / 3, 2: 200 / 3})
    assert report.error_quantiles_m is not None
    assert report.median_error_m == 75  # from 25 m to photo 5: photo 1 was dropped


def test_place_ids_decide_where_there_are_no_positions() -> None:
    database = PhotoSet(Path(), ("a", "b", "c"), place_ids=((1, 2), (), (3,)))
    queries = PhotoSet(Path(), ("q", "r", "s"), place_ids=((2, 9), (3,), ()))
    report = evaluate_rankings(
        Places("ids", "test", database, queries, "place-id"), np.array([[1, 0, 2], [2, 0, 1], [0, 1, 2]]), ns=(1, 2)
    )
    assert report.recall == pytest.approx({1: 100 / 3, 2: 200 / 3})
    assert (report.queries_without_positives, report.median_error_m, report.error_quantiles_m) == (1, None, None)


def listed(**knobs: object) -> Places:
    database = PhotoSet(Path(), tuple("abcdef"))
    return Places(
        "lists",
        "test",
        database,
        database.take([0, 1]),
        "average-precision",
        relevant=(np.array([2, 3]), np.array([0])),
        junk=(np.array([0]), np.array([1, 5])),
        **knobs,
    )


def test_average_precision_with_junk_on_paper() -> None:
    rankings = np.array([[0, 2, 4, 3, 1, 5], [1, 5, 4, 0, 2, 3]])
    report = evaluate_rankings(listed(), rankings, ns=(1, 2))
    # first query: right, wrong, right; second: wrong, right
    first, second = (1 + (1 / 2 + 2 / 3) / 2) / 2, 1 / 4
    assert report.mean_average_precision == pytest.approx(100 * (first + second) / 2)
    assert report.recall == {1: 50, 2: 100}


def test_landmarks_average_precision_stops_at_n() -> None:
    rankings = np.array([[4, 2, 3, 1, 5, 0], [0, 1, 2, 3, 4, 5]])
    report = evaluate_rankings(listed(precision_at=2), rankings)
    assert report.mean_average_precision == pytest.approx(100 * (1 / 4 + 1) / 2)


def test_missing_results_are_missed_and_shown_as_null() -> None:
    rankings = np.array([[0, -1], [-1, -1], [-1, -1]])
    distances = np.array([[0.5, np.inf], [np.inf, np.inf], [np.inf, np.inf]])
    report = evaluate_rankings(street(), rankings, distances)
    assert report.recall[20] == pytest.approx(100 / 3)
    assert report.median_error_m is None
    assert report.error_quantiles_m is not None
    assert report.error_quantiles_m[0.25] is None
    assert [(p.distance, p.precision) for p in report.curve] == [(0.5, 100)]
    assert report.curve[0].recall == pytest.approx(100 / 3)


def test_rankings_without_a_single_result() -> None:
    report = evaluate_rankings(street(), np.zeros((3, 0), dtype=np.int64))
    assert (report.recall[1], report.median_error_m) == (0, None)


def test_the_curve_uses_the_first_result_after_the_rule() -> None:
    database = photos([0, 20, 40, 60, 80, 100], times=np.array([1.0, 2, 2, 2, 2, 1]))
    places = Places("street", "val", database, photos([0, 25, 500], times=np.array([1.0, 1, 1])), "time")
    distances = np.tile(np.linspace(0.1, 0.6, 6), (3, 1)) + np.array([[0.0], [0.01], [0.02]])
    curve = evaluate_rankings(places, RANKINGS, distances).curve
    # the first query's first result (photo 5) and the third's (photo 0) are of their own time
    assert [round(point.distance, 2) for point in curve] == [0.11, 0.2, 0.22]
    assert [point.precision for point in curve] == pytest.approx([100, 100, 200 / 3])
    assert [point.recall for point in curve] == pytest.approx([100 / 3, 200 / 3, 200 / 3])


def test_how_deep_each_protocol_searches() -> None:
    places = street(panoramas=np.repeat(np.arange(3), [12, 12, 5]))
    found = {name: PROTOCOLS[name].depth(places, 20) for name in ("radius", "panorama", "time", "place-id")}
    assert found == {"radius": 20, "panorama": 240, "time": 200, "place-id": 20}
    # junk may fill the ranking's first places
    assert PROTOCOLS["average-precision"].depth(listed(), 20) == 6
    assert PROTOCOLS["average-precision"].depth(listed(precision_at=100), 20) == 102


def test_a_long_curve_is_thinned_to_its_ends() -> None:
    n = 5000
    places = Places("row", "test", photos([0.0, 1000.0]), photos([0.0] * n))
    distances = np.linspace(0, 1, n)[:, None]
    curve = evaluate_rankings(places, np.zeros((n, 1), dtype=np.int64), distances).curve
    assert len(curve) == 101
    assert (curve[0].distance, curve[-1].distance, curve[-1].recall) == (0, 1, 100)


def test_errors_on_the_other_side_of_the_earth_follow_its_surface() -> None:
    here, there = Positions.from_wgs84([[0.0, 0.0]]), Positions.from_wgs84([[0.0, 180.0]])
    places = Places("earth", "test", PhotoSet(Path(), ("a",), there), PhotoSet(Path(), ("q",), here))
    error = evaluate_rankings(places, np.array([[0]])).median_error_m
    assert error == pytest.approx(20_015_000, rel=2e-3)
    near = Positions(ecef_from_wgs84([[48.0, 11.0001]]), "ecef")
    close = replace(places.queries, positions=Positions.from_wgs84([[48.0, 11.0]]))
    places = replace(places, database=replace(places.database, positions=near), queries=close)
    assert evaluate_rankings(places, np.array([[0]])).median_error_m == pytest.approx(7.46, abs=0.01)


def test_the_report_is_the_json_object_that_is_promised() -> None:
    report = evaluate_rankings(street(), RANKINGS, np.tile(np.arange(6.0), (3, 1)))
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert list(found["recall"]) == ["1", "5", "10", "20"]
    assert found["recall"]["1"] == pytest.approx(100 / 3)
    assert {
        "dataset": "street",
        "model": "",
        "database": 6,
        "queries": 3,
        "median_error_m": 100.0,
    }.items() <= found.items()
    assert found["error_quantiles_m"]["0.9"] == 420.0
    assert found["failures"] == {"database": [], "queries": []}
    low, high = found["recall_at_1_interval"]
    assert low <= found["recall"]["1"] <= high
    assert found["curve"][0].keys() == {"distance", "precision", "recall"}


def test_the_interval_repeats_with_its_seed() -> None:
    one, two = (evaluate_rankings(street(), RANKINGS, seed=7).recall_at_1_interval for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    ("rankings", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), "each of the 3 queries"),
        (np.zeros((3, 3)), "whole numbers"),
        (np.array([[0, 1], [4, 4], [0, 1]]), "query 1 lists a database row twice"),
        (np.array([[0, 1], [4, 3], [0, 6]]), "query 2 .* outside"),
    ],
)
def test_rankings_that_cannot_be_judged(rankings: np.ndarray, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        evaluate_rankings(street(), rankings)


def test_distances_of_another_shape_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"distances \(3, 2\)"):
        evaluate_rankings(street(), RANKINGS, np.zeros((3, 2)))


def test_a_protocol_without_its_columns_says_so() -> None:
    with pytest.raises(DatasetError, match="no panoramas"):
        evaluate_rankings(street(), RANKINGS, protocol="panorama")
    with pytest.raises(DatasetError, match="no times of queries"):
        evaluate_rankings(street(), RANKINGS, protocol="time")
    with pytest.raises(ArgumentError, match=r"recall.*panorama"):
        evaluate_rankings(street(), RANKINGS, protocol="recall")


# published files


@pytest.mark.data
@pytest.mark.slow
def test_the_published_san_francisco_curve_is_reproduced(shared_data: Path) -> None:
    """The CRN authors' own list of results gives the 100 numbers of hits that they stored."""
    h5py = pytest.importorskip("h5py")
    from scipy.io import loadmat

    folder = shared_data / "sf0"
    published = loadmat(folder / "crn_vgg_recall_curve.mat")["plot_res"].ravel()
    with h5py.File(folder / "crn_vgg_top1000.mat") as file:
        rankings = file["ret_bidx"][:, :100].astype(np.int64) - 1
    report = evaluate_rankings(load_dataset("sf0", folder), rankings, ns=range(1, 101))
    assert [round(report.recall[n], 2) for n in (1, 5, 10)] == [83.19, 85.80, 86.30]
    np.testing.assert_array_equal([round(report.recall[n] * 803 / 100) for n in range(1, 101)], published)


def nearest_first(places: Places, k: int) -> np.ndarray:
    from scipy.spatial import cKDTree

    assert places.database.positions is not None
    assert places.queries.positions is not None
    return cKDTree(places.database.positions.metres).query(places.queries.positions.metres, k)[1]


@pytest.mark.data
def test_a_ranking_by_true_distance_is_perfect_on_tokyo(shared_data: Path) -> None:
    places = load_dataset("tokyo247", shared_data / "netvlad_dbstruct")
    report = evaluate_rankings(places, nearest_first(places, 240))
    answerable = 100 * (1 - report.queries_without_positives / 315)
    assert (report.protocol, report.queries) == ("panorama", 315)
    assert report.recall == pytest.approx(dict.fromkeys((1, 5, 10, 20), answerable))


@pytest.mark.data
def test_tokyo_time_machine_queries_do_not_find_themselves(shared_data: Path) -> None:
    """The queries come from the database's own panoramas: plainly judged, they find those."""
    whole = load_dataset("tokyoTM", shared_data / "netvlad_dbstruct", "val")
    places = replace(whole, queries=whole.queries.take(np.arange(0, len(whole.queries), 20)))
    rankings = nearest_first(places, 200)
    report = evaluate_rankings(places, rankings)
    assert report.protocol == "time"
    assert report.recall[1] == pytest.approx(100 * (1 - report.queries_without_positives / report.queries))
    assert places.database.times is not None
    assert places.queries.times is not None
    same_time = places.database.times[rankings] == places.queries.times[:, None]
    fooled = evaluate_rankings(places, np.where(same_time, rankings, -1))
    assert fooled.recall[20] == 0
    assert fooled.plain_recall is not None
    assert fooled.plain_recall[20] > 95


@pytest.mark.data
def test_the_right_answers_alone_are_a_perfect_landmark_ranking(shared_data: Path) -> None:
    places = load_dataset("landmarks", shared_data / "landmarks")
    rankings = np.full((len(places.queries), 100), -1)
    for query, relevant in enumerate(places.relevant):
        rankings[query, : len(relevant)] = relevant[:100]
    assert evaluate_rankings(places, rankings).mean_average_precision == pytest.approx(100)
