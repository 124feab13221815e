"""The condition of photos asked together: centred searches against a plain loop, and what a constant offset costs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.localize.street import position, street_model, view, write_queries
from tests.photos.panorama_files import save_panorama

from sareloc.encode import Encoded
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import distance_m
from sareloc.localize import (
    Condition,
    Fix,
    Localizer,
    VideoWalk,
    localize_video,
    open_condition,
    save_condition,
)
from sareloc.localize.condition import centre, count_places, search_centred, spread
from sareloc.maps import Box, Circle, MapManifest, MapPhoto, PlaceMap, create_map_file, open_store
from sareloc.photos import Geotag

DIM, PHOTOS = 16, 700
SPACE = "0" * 16


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def map_photo(row: int, spacing_m: float) -> MapPhoto:
    at = Geotag(position(0, spacing_m * row))
    return MapPhoto(f"{row:03d}.jpg", at, 8, 8, row.to_bytes(32, "big"), size_bytes=1, modified_ns=1)


@pytest.fixture(scope="module")
def rng_vectors() -> np.ndarray:
    rng = np.random.default_rng(3)
    return unit(rng.normal(0.4, 1.0, (PHOTOS, DIM)) * rng.uniform(0.5, 1.5, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory, rng_vectors: np.ndarray) -> PlaceMap:
    """700 photos, 30 m apart, of random vectors whose mean is not 0."""
    path = tmp_path_factory.mktemp("vectors") / "town.gpkg"
    photos = [map_photo(row, 30.0) for row in range(PHOTOS)]
    create_map_file(path, MapManifest("vectors", "f" * 16, DIM, "float32"))
    with open_store(path, write=True) as store:
        store.add(photos, rng_vectors)
    return PlaceMap(path)


def all_centred(place_map: PlaceMap, query: np.ndarray, condition: Condition) -> tuple[list[int], list[float]]:
    """Every photo of the map centred and compared, in a loop: the slow twin."""
    held = place_map.descriptors(place_map.ids).astype(np.float64)
    mean, weight = held.mean(axis=0), condition.weight
    length = np.sqrt(np.mean([((vector - weight * mean) ** 2).sum() for vector in held]))
    asked = query.astype(np.float64) - weight * condition.mean.astype(np.float64)
    asked /= np.sqrt((asked**2).sum())
    found = []
    for photo_id, vector in zip(place_map.ids.tolist(), held, strict=True):
        rest = vector - weight * mean
        away = np.sqrt((((rest / np.sqrt((rest**2).sum())) - asked) ** 2).sum())
        found.append((float(length * away), photo_id))
    found.sort()
    return [photo_id for _, photo_id in found], [away for away, _ in found]


def test_the_two_steps_find_what_a_loop_over_all_photos_finds(town: PlaceMap) -> None:
    rng = np.random.default_rng(8)
    queries = unit(rng.normal(size=(12, DIM)) + 0.8).astype(np.float32)
    condition = Condition(queries.mean(axis=0), 60, 40, SPACE)
    found = search_centred(town, queries, 25, None, condition)
    assert found.ids.shape == (12, 25)
    held = dict(zip(town.ids.tolist(), zip(town.files, town.latlon.tolist(), strict=True), strict=True))
    moved = 0
    for row, query in enumerate(queries):
        ids, distances = all_centred(town, query, condition)
        assert found.distances[row] == pytest.approx(distances[:25], abs=1e-3)
        assert len({*found.ids[row].tolist()} & {*ids[:25]}) >= 24  # half precision: near ties may change sides
        moved += found.ids[row].tolist() != town.search(query[None], 25).ids[0].tolist()
        for column, photo_id in enumerate(found.ids[row].tolist()):
            assert (found.files[row][column], found.latlon[row, column].tolist()) == held[photo_id]
    assert moved == 12  # the plain search finds others


def test_a_constant_offset_of_all_queries_is_repaired(town: PlaceMap, rng_vectors: np.ndarray) -> None:
    """Queries are noisy photos of the map, and all of them have night added."""
    rng = np.random.default_rng(5)
    rows = rng.permutation(PHOTOS)[:200]
    night = unit(rng.normal(size=DIM)) * 1.2
    queries = unit(rng_vectors[rows] + rng.normal(0, 0.1, (200, DIM)) + night).astype(np.float32)
    condition = Condition(queries.mean(axis=0), 200, 200, SPACE)
    truth = town.ids[rows]
    plain = float((town.search(queries, 1).ids[:, 0] == truth).mean())
    centred = float((search_centred(town, queries, 1, None, condition).ids[:, 0] == truth).mean())
    assert plain < 0.8
    assert centred > plain + 0.1


@pytest.mark.parametrize(
    ("photos", "places", "weight"),
    [
        (19, 19, 0.0),
        (20, 20, 0.4),
        (20, 10, 0.4),
        (200, 9, 0.0),
        (200, 100, 0.5 * 200 / 205),
        (200, 20, 0.5 * 40 / 45),
        (0, 0, 0.0),
    ],
)
def test_the_weight_shrinks_for_few_photos_and_for_few_places(photos: int, places: int, weight: float) -> None:
    assert Condition(np.zeros(DIM, dtype=np.float32), photos, places, SPACE).weight == pytest.approx(weight)


def test_centred_on_paper() -> None:
    vectors, mean = np.array([[1.0, 0.0], [0.0, 1.0], [0.3, 0.4]], dtype=np.float32), np.array([0.6, 0.8], dtype="f4")
    found = centre(vectors, mean, 0.5)
    assert found[0] == pytest.approx(np.array([0.7, -0.4]) / np.sqrt(0.65), abs=1e-6)
    assert found[1] == pytest.approx(np.array([-0.3, 0.6]) / np.sqrt(0.45), abs=1e-6)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found[2]) <= 1 + 1e-6  # a vector that is half of the mean
    assert centre(vectors[:2], mean, 0.0) == pytest.approx(vectors[:2])


def test_places_are_cells_of_25_m() -> None:
    apart = [position(place) for place in range(30)]
    assert count_places(apart) == 30
    assert count_places([apart[0]] * 50) == 1
    assert count_places([position(0, metres / 10) for metres in range(50)]) <= 3
    assert count_places([]) == 0


@given(st.integers(1, 5000), st.integers(1, 300))
def test_photos_are_chosen_evenly(count: int, most: int) -> None:
    rows = spread(count, most)
    assert len(rows) == min(count, most)
    assert rows[0] == 0
    steps = np.diff(rows)
    assert not len(steps) or (steps.min() >= 1 and steps.max() - steps.min() <= 1)
    assert rows[-1] < count
    assert count - rows[-1] <= -(-count // len(rows))


def test_a_search_in_an_area_finds_photos_of_the_area_only(town: PlaceMap) -> None:
    query = town.descriptors(town.ids[:1])
    condition = Condition(query[0] * 0.5, 60, 60, SPACE)
    near = Circle(position(0), 200.0)
    found = search_centred(town, query, 50, near, condition)
    assert 5 <= found.ids.shape[1] <= 10
    assert float(np.max(distance_m(found.latlon[0], position(0)))) <= 200.0
    assert search_centred(town, query, 50, Box(10.0, 10.0, 11.0, 11.0), condition).ids.shape == (1, 0)


def test_the_mean_of_a_map_follows_its_photos(tmp_path: Path, rng_vectors: np.ndarray) -> None:
    path = tmp_path / "map.gpkg"
    photos = [map_photo(row, 80.0) for row in range(40)]
    create_map_file(path, MapManifest("vectors", "f" * 16, DIM, "float32"))
    with open_store(path, write=True) as store:
        store.add(photos[:30], rng_vectors[:30])
    place_map = PlaceMap(path)
    assert place_map.mean_vector() == pytest.approx(rng_vectors[:30].mean(axis=0), abs=1e-3)
    assert place_map.mean_vector() is place_map.mean_vector()
    with open_store(path, write=True) as store:
        store.add(photos[30:], rng_vectors[30:40])
    place_map.refresh()
    assert place_map.mean_vector() == pytest.approx(rng_vectors[:40].mean(axis=0), abs=1e-3)


def test_the_mean_of_a_large_map_is_of_a_sample_that_is_always_the_same(
    town: PlaceMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sareloc.maps.place_map.MEAN_OF", 100)
    first, second = (PlaceMap(town.path).mean_vector() for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, town.mean_vector())


@pytest.fixture(scope="module")
def localizer(street: PlaceMap) -> Localizer:
    return Localizer(street_model(), street, min_confidence=0)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The fewest photos that are centred."""
    return write_queries(tmp_path_factory.mktemp("queries"), range(20))


@pytest.fixture(scope="module")
def condition(localizer: Localizer, queries: list[Path]) -> Condition:
    return localizer.estimate_condition(queries)


def vectors_of(localizer: Localizer, photos: list[Path]) -> np.ndarray:
    loaded = [one for one in localizer.load(photos) if not isinstance(one, PhotoError)]
    return np.stack([views[0].vector for views in localizer.encode(loaded)])


def test_the_condition_of_photos_is_the_mean_of_their_vectors(
    localizer: Localizer, queries: list[Path], condition: Condition
) -> None:
    found = condition
    assert found.mean == pytest.approx(vectors_of(localizer, queries).mean(axis=0), abs=1e-6)
    assert found.photos == 20
    assert 0.8 * 20 <= found.places <= 20
    assert localizer.estimate_condition(queries[::-1]).mean == pytest.approx(found.mean, abs=1e-7)
    assert localizer.estimate_condition(queries[:3] * 10).places <= 3


def test_photos_that_cannot_be_read_are_left_out(
    localizer: Localizer, queries: list[Path], condition: Condition
) -> None:
    found = localizer.estimate_condition([*queries, b"no photo", b"neither"])
    assert (found.photos, found.mean.tolist()) == (20, condition.mean.tolist())
    nothing = localizer.estimate_condition([b"no photo"])
    assert (nothing.photos, nothing.places, nothing.weight) == (0, 0, 0.0)


def test_no_more_than_200_photos_are_encoded(
    localizer: Localizer, queries: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sareloc.localize.localizer.SAMPLED", 10)
    found = localizer.estimate_condition(queries)
    assert (found.photos, found.weight) == (10, 0.0)
    assert found.mean == pytest.approx(vectors_of(localizer, queries[::2]).mean(axis=0), abs=1e-6)


def test_20_photos_are_centred_on_their_condition_and_19_are_not(
    localizer: Localizer, queries: list[Path], condition: Condition
) -> None:
    few = localizer.localize_many(queries[:19])
    assert few == localizer.localize_many(queries[:19], condition=None)
    together = localizer.localize_many(queries)
    assert together != localizer.localize_many(queries, condition=None)
    assert together == localizer.localize_many(queries, condition=condition)
    assert list(localizer.localize_each(queries)) == together  # equal calls, equal answers


def test_photos_of_few_places_are_searched_as_they_are(localizer: Localizer, queries: list[Path]) -> None:
    same = [*queries[:3]] * 8
    assert localizer.localize_many(same) == localizer.localize_many(same, condition=None)


def test_a_condition_serves_a_single_photo(localizer: Localizer, queries: list[Path], condition: Condition) -> None:
    together = localizer.localize_many(queries, condition=condition)
    alone = localizer.localize(queries[4], condition=condition)
    assert isinstance(together[4], Fix)
    assert [match.photo for match in alone.matches[:3]] == [match.photo for match in together[4].matches[:3]]
    assert alone.matches[0].distance == pytest.approx(together[4].matches[0].distance, abs=1e-4)
    assert alone.matches[0].distance != pytest.approx(localizer.localize(queries[4]).matches[0].distance, abs=1e-4)
    (one,) = (views[0] for views in localizer.encode([next(localizer.load([queries[4]]))]))
    ids, distances = all_centred(localizer.place_map, one.vector, condition)
    assert [match.id for match in alone.matches[:3]] == ids[:3]
    assert [match.distance for match in alone.matches[:3]] == pytest.approx(distances[:3], abs=1e-3)


def test_a_walk_is_centred_on_its_condition(localizer: Localizer, queries: list[Path], condition: Condition) -> None:
    together = localizer.localize_walk(queries, 100.0)
    assert together == localizer.localize_walk(queries, 100.0, condition=condition)
    assert together != localizer.localize_walk(queries, 100.0, condition=None)
    some = queries[:10]
    assert localizer.localize_walk(some, 100.0) == localizer.localize_walk(some, 100.0, condition=None)


def test_a_video_is_centred_on_its_condition(localizer: Localizer, queries: list[Path]) -> None:
    video = VideoWalk(Path("drive.mp4"), tuple(queries), (None,) * 20, 100.0)
    centred = tuple(localizer.localize_walk(queries, 100.0))
    alone = tuple(localizer.localize_walk(queries, 100.0, condition=None))
    assert localize_video(localizer, video).fixes == centred
    assert localize_video(localizer, video, condition=None).fixes == alone
    assert [fix.matches for fix in centred] != [fix.matches for fix in alone]


def test_the_views_of_a_panorama_count_as_one_photo(localizer: Localizer, tmp_path: Path) -> None:
    sphere = np.concatenate([np.kron(view(place, 99), np.ones((4, 2, 1), dtype=np.uint8)) for place in (0, 9)], axis=1)
    panorama = save_panorama(tmp_path / "sphere.jpg", np.asarray(Image.fromarray(sphere).resize((512, 256))))
    (query,) = localizer.load([panorama])
    assert not isinstance(query, PhotoError)
    (views,) = localizer.encode([query])
    assert len(views) > 1
    found = localizer.estimate_condition([panorama])
    assert found.mean == pytest.approx(np.mean([one.vector for one in views], axis=0), abs=1e-6)
    assert (found.photos, found.places) == (1, 1)
    condition = replace(found, photos=50, places=50)
    retrieved = localizer.retrieve(views, 5, None, condition)
    for row, one in enumerate(views):
        assert retrieved.ids[row, 0] == all_centred(localizer.place_map, one.vector, condition)[0][0]
    centred = localizer.localize(panorama, condition=condition)
    assert centred.matches[0].distance != localizer.localize(panorama).matches[0].distance


def test_a_condition_of_other_vectors_is_refused(
    localizer: Localizer, queries: list[Path], condition: Condition
) -> None:
    for other in (replace(condition, vector_space=SPACE), replace(condition, mean=condition.mean[:-1])):
        with pytest.raises(ArgumentError, match="vector space"):
            localizer.localize(queries[0], condition=other)
    with pytest.raises(ArgumentError, match="open_condition"):
        localizer.localize_many(queries, condition="night.json")  # type: ignore[arg-type]


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_saved_condition_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, photos: int, fewer: int, seed: int, dim: int
) -> None:
    mean = (unit(np.random.default_rng(seed).normal(size=dim)) * 0.9).astype(np.float32)
    condition = Condition(mean, photos, max(0, photos - fewer), SPACE)
    read = open_condition(save_condition(condition, tmp_path_factory.mktemp("saved") / "night.json"))
    assert np.array_equal(read.mean, mean)
    assert (read.photos, read.places, read.vector_space) == (photos, condition.places, SPACE)
    assert read.to_json() == condition.to_json()


GOOD = json.loads(Condition(np.full(4, 0.25, dtype=np.float32), 30, 20, SPACE).to_json())


def test_the_file_that_the_hostile_ones_differ_from_is_read() -> None:
    assert Condition.from_json(json.dumps(GOOD)).mean.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "null",
        "[" * 100_000,
        "\xff\xfe",
        json.dumps(GOOD | {"format": 2}),
        json.dumps({key: value for key, value in GOOD.items() if key != "mean"}),
        json.dumps(GOOD | {"photos": "30"}),
        json.dumps(GOOD | {"photos": True}),
        json.dumps(GOOD | {"photos": 1e300}),
        json.dumps(GOOD | {"photos": -1}),
        json.dumps(GOOD | {"places": 31}),
        json.dumps(GOOD | {"vector_space": 5}),
        json.dumps(GOOD | {"mean": [0.25] * 4}),
        json.dumps(GOOD | {"mean": "not base64!"}),
        json.dumps(GOOD | {"mean": "AAAA"}),  # three bytes
        json.dumps(GOOD | {"mean": "AADAfw=="}),  # NaN
        json.dumps(GOOD | {"mean": "AACAfw=="}),  # infinity
        json.dumps(GOOD | {"mean": "AAAAQA=="}),  # 2
    ],
    ids=range(20),
)
def test_hostile_conditions_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ArgumentError, match="not a condition"):
        open_condition(path)


def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * (2**20 + 1))
    for name in ("pipe", "large", "absent"):
        with pytest.raises(OSError, match=name):
            open_condition(tmp_path / name)


def test_images_that_are_encoded_elsewhere_are_retrieved_with_a_condition(localizer: Localizer) -> None:
    """`retrieve` needs the search vector alone."""
    vector = localizer.place_map.descriptors(localizer.place_map.ids[:1])[0]
    image = Encoded(vector, None, vector)
    condition = Condition(np.zeros_like(vector), 100, 100, localizer.vector_space)
    assert int(localizer.retrieve([image], 1, None, condition).ids[0, 0]) == int(localizer.place_map.ids[0])
