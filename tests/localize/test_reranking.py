"""Re-ranking: mutual matches, inliers, and the new order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.localize.street import street_model, view, write_queries

from sareloc.localize import Localizer, Search
from sareloc.localize.rerank import (
    GAIN,
    SPREAD,
    LocalFeatures,
    Reranker,
    _bytes,
    inlier_share,
    inliers,
    local_features,
    mutual_matches,
    shorten,
)
from sareloc.maps import PlaceMap


def test_mutual_matches_by_a_loop() -> None:
    a, b = F.normalize(torch.randn(20, 6), dim=1), F.normalize(torch.randn(15, 6), dim=1)
    cosines = (a @ b.T).numpy()
    slow = [
        (i, j)
        for i in range(20)
        for j in range(15)
        if cosines[i].argmax() == j and cosines[:, j].argmax() == i
    ]  # fmt: skip
    assert list(zip(*mutual_matches(a, b), strict=True)) == slow


def grid(rows: int, columns: int) -> np.ndarray:
    return np.array([(x, y) for y in range(rows) for x in range(columns)], dtype=np.float64)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, (3, -2)), (0.5, (1, 1)), (2.0, (-4, 0)), (1.19, (0.5, 2.5))])
def test_a_common_movement_is_found_among_chance_pairs(scale: float, shift: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    a = grid(8, 10)
    b = scale * a + shift
    b[::2] = rng.uniform(-20, 40, b[::2].shape)
    alike = inliers(a, b)
    assert alike[1::2].all()
    assert alike[::2].mean() < 0.15


def test_refining_finds_what_a_scale_and_a_shift_do_not_explain() -> None:
    """A view from the side: columns drawn together and slanted, as no single scale does."""
    a = grid(12, 16)
    b = a @ np.array([[0.8, 0.12], [0.05, 1.1]]) + (2, 1)
    assert inliers(a, b).mean() > 0.95


def test_of_equal_movements_the_one_that_changes_the_size_least_wins() -> None:
    """The first two pairs agree at double size, the last two at the same size."""
    a = np.array([[0.0, 0.0], [10.0, 0.0], [10.0, 20.0]])
    b = np.array([[-20.0, 0.0], [0.0, 0.0], [0.0, 20.0]])
    assert inliers(a, b).tolist() == [False, True, True]


def test_chance_pairs_hardly_agree() -> None:
    rng = np.random.default_rng(1)
    assert inliers(rng.uniform(0, 30, (80, 2)), rng.uniform(0, 30, (80, 2))).sum() < 12
    assert len(inliers(np.zeros((0, 2)), np.zeros((0, 2)))) == 0
    assert inliers(np.zeros((1, 2)), np.ones((1, 2))).all()


def test_a_photo_agrees_with_itself_and_with_itself_moved() -> None:
    features = torch.randn(16, 9, 12)
    whole = local_features(features)
    assert inlier_share(whole, whole) == 1
    moved = local_features(features.roll((0, 3), dims=(1, 2)))
    assert inlier_share(whole, moved) == pytest.approx(0.75, abs=0.05)
    assert inlier_share(whole, local_features(torch.randn(16, 9, 12))) < 0.2
    left_half = local_features(features[:, :, :6])
    assert inlier_share(whole, left_half) == pytest.approx(0.5, abs=0.03)  # a share of the query's locations
    assert inlier_share(left_half, whole) == pytest.approx(1.0, abs=0.03)


def test_locations_are_rows_of_unit_length() -> None:
    found = local_features(torch.arange(24.0).reshape(2, 3, 4) + 1)
    assert isinstance(found, LocalFeatures)
    assert found.vectors[5].float().numpy() == pytest.approx(np.array([6, 18]) / np.hypot(6, 18), abs=1e-3)
    assert found.cells[5].tolist() == [1, 1]


def test_distances_shorten_by_more_than_usual_agreement_alone() -> None:
    distances = np.array([[1.0, 1.1, 1.2]], dtype=np.float32)
    assert shorten(distances, np.full((1, 3), 0.3))[0] == pytest.approx([1.0, 1.1, 1.2])
    five = np.array([[1.0, 1.1, 1.2, 1.3, 1.4]], dtype=np.float32)
    shares = np.array([[0.1, 0.0, 0.05, 0.02, 0.6]])  # upper quartile 0.1
    assert shorten(five, shares) == pytest.approx(five * (1 + GAIN * 0.1) / (1 + GAIN * shares))
    far = shorten(np.full((1, 4), 1.9, np.float32), np.array([[0.0, 0.5, 0.5, 0.5]]))[0]
    assert far == pytest.approx([2.0, 1.9, 1.9, 1.9])  # no two unit vectors are farther apart
    assert shorten(distances[:, :0], np.zeros((1, 0))).shape == (1, 0)


def test_the_photo_that_agrees_comes_first(street: PlaceMap) -> None:
    """Matches in the order of the map: the three of place 11 must rise to the top of all ninety."""
    model = street_model()
    matches = street.search(model.encode([view(11, 99)]).numpy(), 1000)
    shuffled = type(matches)(
        matches.ids[:, ::-1], np.full_like(matches.distances, 1.0), matches.latlon[:, ::-1], (matches.files[0][::-1],)
    )
    first = Reranker(model, street).rerank([view(11, 99)], shuffled, 1000).files[0][:3]
    assert {file[:9] for file in first} == {"photos/11"}


def test_only_the_first_matches_are_looked_at_again(street: PlaceMap) -> None:
    model = street_model()
    matches = street.search(model.encode([view(11, 99)]).numpy(), 30)
    found = Reranker(model, street).rerank([view(11, 99)], matches, 5)
    assert set(found.ids[0]) == set(matches.ids[0])
    kept = dict(zip(matches.ids[0][5:], matches.distances[0][5:], strict=True))
    assert {i: d for i, d in zip(found.ids[0], found.distances[0], strict=True) if i in kept} == kept
    assert (np.diff(found.distances[0]) >= 0).all()


def test_feature_maps_are_computed_once(street: PlaceMap, monkeypatch: pytest.MonkeyPatch) -> None:
    model = street_model()
    reranker = Reranker(model, street)
    matches = street.search(model.encode([view(3, 99)]).numpy(), 6)
    first = reranker.rerank([view(3, 99)], matches, 6)
    loaded: list[object] = []
    monkeypatch.setattr(reranker, "_load", lambda files: loaded.extend(files) or {})
    again = reranker.rerank([view(3, 99)], matches, 6)
    assert loaded == []
    assert np.array_equal(first.distances, again.distances)


def test_the_cache_forgets_what_was_used_longest_ago(street: PlaceMap, monkeypatch: pytest.MonkeyPatch) -> None:
    model = street_model()
    monkeypatch.setattr("sareloc.localize.rerank.CACHE_BYTES", 1)
    reranker = Reranker(model, street)
    matches = street.search(model.encode([view(3, 99)]).numpy(), 4)
    reranker.rerank([view(3, 99)], matches, 4)
    assert len(reranker._cache) == 0
    assert reranker._cached_bytes == 0
    files = street.files[:3]
    each = _bytes(reranker._features_of_files(files[:1])[files[0]])
    monkeypatch.setattr("sareloc.localize.rerank.CACHE_BYTES", 2 * each)
    for file in (files[0], files[1], files[0], files[2]):
        reranker._features_of_files([file])
    assert list(reranker._cache) == [files[0], files[2]]


def test_a_map_that_calibrates_itself_expects_wider_distances_from_reranking(street: PlaceMap) -> None:
    plain, reranked = (Localizer(street_model(), street, Search(rerank=rerank)).calibration for rerank in (0, 10))
    assert reranked.temperature == pytest.approx(SPREAD * plain.temperature)
    assert reranked.weights == plain.weights


def test_a_localizer_reranks(street: PlaceMap, tmp_path: Path) -> None:
    localizer = Localizer(street_model(), street, Search(rerank=10), min_confidence=0)
    fixes = localizer.localize_many(write_queries(tmp_path)[:4])
    assert [fix.matches[0].photo[:9] for fix in fixes] == [f"photos/0{i}" for i in range(4)]  # type: ignore[union-attr]


def test_photos_that_are_gone_or_damaged_keep_their_distance(street_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(street_folder / "photos", tmp_path / "photos")
    shutil.copy(street_folder / "street.gpkg", tmp_path / "street.gpkg")
    model, town = street_model(), PlaceMap(tmp_path / "street.gpkg")
    matches = town.search(model.encode([view(11, 99)]).numpy(), 20)
    all_of_them = Reranker(model, town).rerank([view(11, 99)], matches, 20)
    gone, damaged = (town.photo_path(matches.files[0][rank]) for rank in (3, 7))
    gone.unlink()
    damaged.write_bytes(b"no photo")
    found = Reranker(model, town).rerank([view(11, 99)], matches, 20)
    before = dict(zip(matches.files[0], matches.distances[0].tolist(), strict=True))
    after = dict(zip(found.files[0], found.distances[0].tolist(), strict=True))
    kept = {matches.files[0][3], matches.files[0][7]}
    assert {file for file in before if after[file] == before[file]} >= kept
    assert after.keys() == before.keys()
    assert (np.diff(found.distances[0]) >= 0).all()
    expected = [file for file in all_of_them.files[0] if file not in kept]
    assert [file for file in found.files[0] if file not in kept] == expected


def test_where_no_photo_can_be_read_matches_keep_their_order_and_it_is_said_once(
    street_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(street_folder / "street.gpkg", tmp_path / "moved.gpkg")
    town = PlaceMap(tmp_path / "moved.gpkg")
    localizer = Localizer(street_model(), town, Search(rerank=10), min_confidence=0)
    plain = Localizer(street_model(), town, min_confidence=0)
    for place in (0, 1):
        fix = localizer.localize(view(place, 99))
        assert fix.matches == plain.localize(view(place, 99)).matches
        assert fix.latlon is not None
    (said,) = caplog.messages
    assert "moved.gpkg" in said
    assert "re-ranking" in said


def test_unknown_shares_leave_distances_as_they_are() -> None:
    distances = np.array([[1.0, 1.1, 0.8], [1.0, 1.1, 0.8]], dtype=np.float32)
    shares = np.array([[0.5, np.nan, 0.1], [np.nan, np.nan, np.nan]])
    usual = np.quantile([0.5, 0.1], 0.75)
    expected = [1.0 * (1 + GAIN * usual) / (1 + GAIN * 0.5), 1.1, 0.8 * (1 + GAIN * usual) / (1 + GAIN * 0.1)]
    assert shorten(distances, shares)[0] == pytest.approx(expected)
    assert shorten(distances, shares)[1] == pytest.approx([1.0, 1.1, 0.8])
