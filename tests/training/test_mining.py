"""Mining against a plain loop, and the rules of geography."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sareloc.datasets import PhotoSet, Places
from sareloc.errors import DatasetError
from sareloc.geo import Positions
from sareloc.training import Neighbourhoods, find_neighbourhoods, mine, no_memory
from sareloc.training.mining import check_minable, find_candidates, random_keys, similarity_with


def places_at(database_m: list[float], queries_m: list[float], **more: object) -> Places:
    """A dataset along a line: photos at these metres."""

    def photos(x: list[float], key: str) -> PhotoSet:
        columns = {c: more.get(f"{key}_{c}") for c in ("times", "place_ids")}
        at = Positions.from_local(np.stack([x, np.zeros(len(x))], axis=1))
        return PhotoSet(Path("."), tuple(f"{key}/{i}.jpg" for i in range(len(x))), at, **columns)  # type: ignore[arg-type]

    protocol = more.get("protocol", "radius")
    return Places("line", "train", photos(database_m, "db"), photos(queries_m, "q"), protocol)  # type: ignore[arg-type]


def test_positives_lie_beyond_one_metre_and_up_to_ten() -> None:
    found = find_neighbourhoods(places_at([0.0, 1.0, 1.5, 10.0, 10.5, 25.0, 26.0], [0.0]))
    assert found.positives[0].tolist() == [2, 3]
    assert found.near[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_queries_without_positives_are_not_trainable() -> None:
    assert find_neighbourhoods(places_at([5.0, 100.0], [0.0, 60.0, 95.0])).trainable.tolist() == [0, 2]


def test_under_the_time_protocol_a_positive_was_taken_at_another_time() -> None:
    times = {"db_times": np.array([1.0, 2.0]), "q_times": np.array([1.0])}
    dataset = places_at([5.0, 6.0], [0.0], protocol="time", **times)
    assert find_neighbourhoods(dataset).positives[0].tolist() == [1]


def test_place_ids_decide_where_the_protocol_says_so() -> None:
    ids = {"db_place_ids": ((1,), (2, 3), (3,)), "q_place_ids": ((3,), (9,))}
    found = find_neighbourhoods(places_at([0.0, 0.0, 500.0], [0.0, 0.0], protocol="place-id", **ids))
    assert found.positives[0].tolist() == [1, 2]
    assert found.near[0].tolist() == [1, 2]
    assert found.trainable.tolist() == [0]


def test_a_photo_that_asks_and_is_searched_is_not_its_own_positive() -> None:
    by_place = places_at(
        [0.0, 0.0, 0.0], [0.0], protocol="place-id", db_place_ids=((1,), (1,), (2,)), q_place_ids=((1,),)
    )
    by_place = replace(by_place, queries=by_place.database)
    found = find_neighbourhoods(by_place)
    assert [rows.tolist() for rows in found.positives] == [[1], [0], []]
    assert [rows.tolist() for rows in found.near] == [[0, 1], [0, 1], [2]]
    by_metres = places_at([0.0, 5.0], [0.0])
    found = find_neighbourhoods(replace(by_metres, queries=by_metres.database), positive_min_m=0.0)
    assert [rows.tolist() for rows in found.positives] == [[1], [0]]


def test_a_dataset_without_positives_is_refused_before_the_first_step() -> None:
    dataset = places_at([100.0], [0.0])
    with pytest.raises(DatasetError, match="potential positive"):
        check_minable(dataset, find_neighbourhoods(dataset), 10)


def test_a_dataset_too_small_for_the_negatives_is_refused() -> None:
    dataset = places_at([5.0, 100.0], [0.0])
    with pytest.raises(DatasetError, match="negative_radius_m"):
        check_minable(dataset, find_neighbourhoods(dataset), 10)


def random_dataset(
    queries: int = 30, database: int = 200, dim: int = 16
) -> tuple[Neighbourhoods, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(3)
    dataset = places_at(list(rng.uniform(0, 900, database)), list(rng.uniform(0, 900, queries)))
    make = torch.Generator().manual_seed(4)
    q, d = (F.normalize(torch.randn(n, dim, generator=make), dim=1) for n in (queries, database))
    return find_neighbourhoods(dataset), q, d


def mine_by_loops(
    near: Neighbourhoods, q: torch.Tensor, d: torch.Tensor, n: int, margin: float | None
) -> dict[int, tuple[int, list[int]]]:
    """The slow twin: whole database as the pool, one query at a time, distances spelled out."""
    found = {}
    for query in near.trainable:
        distance = [float(((q[query] - row) ** 2).sum()) for row in d]
        positive = min(near.positives[query], key=lambda row: distance[row])
        far = [row for row in range(len(d)) if row not in set(near.near[query])]
        hardest = sorted(far, key=lambda row: distance[row])[:n]
        if margin is not None:
            hardest = [row for row in hardest if distance[row] < distance[positive] + margin]
        if hardest:
            found[int(query)] = (int(positive), hardest)
    return found


@pytest.mark.parametrize("margin", [None, 0.1])
@pytest.mark.parametrize("at_once", [1, 7 * 200, 1 << 26])
def test_mining_agrees_with_plain_loops(margin: float | None, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.training.mining.NUMBERS_AT_ONCE", at_once)
    near, q, d = random_dataset()
    rows = near.trainable
    tuples, _ = mine(
        rows, q[rows], d, near, no_memory(len(q), 10), pool=10_000, negatives=10,
        seed=0, margin=margin,
    )  # fmt: skip
    tuples = tuples.usable()
    ours = {
        int(query): (int(positive), [int(n) for n in negatives if n >= 0])
        for query, positive, negatives in zip(tuples.queries, tuples.positives, tuples.negatives, strict=True)
    }
    assert ours == mine_by_loops(near, q, d, 10, margin)


def test_negatives_come_from_the_pool_and_the_memory_and_never_from_nearby() -> None:
    near, q, d = random_dataset()
    rows = near.trainable
    full = mine_by_loops(near, q, d, 3, None)
    memory = no_memory(len(q), 3)
    remembers = int(rows[0])
    memory[remembers] = full[remembers][1]
    tuples, after = mine(rows, q[rows], d, near, memory, pool=20, negatives=3, seed=0)
    assert tuples.negatives[0].tolist() == full[remembers][1]  # the remembered three are the hardest of all
    assert after[remembers].tolist() == full[remembers][1]
    others = [n.tolist() == full[int(query)][1] for query, n in zip(tuples.queries, tuples.negatives, strict=True)]
    assert not all(others)  # twenty of two hundred: most queries cannot have found their three hardest
    for query, negatives in zip(tuples.queries, tuples.negatives, strict=True):
        assert not set(negatives) & set(near.near[query])


def test_the_same_seed_mines_the_same_and_another_seed_does_not() -> None:
    near, q, d = random_dataset()
    rows = near.trainable

    def negatives(seed: int) -> list[list[int]]:
        tuples, _ = mine(
            rows, q[rows], d, near, no_memory(len(q), 5), pool=30, negatives=5,
            seed=seed,
        )  # fmt: skip
        return [n.tolist() for n in tuples.negatives]

    assert negatives(1) == negatives(1)
    assert negatives(1) != negatives(2)


def test_memory_of_queries_not_mined_stays() -> None:
    near, q, d = random_dataset()
    memory = no_memory(len(q), 2)
    untouched = int(near.trainable[-1])
    memory[untouched] = (7, 8)
    rows = near.trainable[:3]
    _, after = mine(rows, q[rows], d, near, memory, pool=50, negatives=2, seed=0)
    assert after[untouched].tolist() == [7, 8]
    assert (after[rows] >= 0).all()
    assert (memory[rows] == -1).all()  # the caller's own array is left alone


def test_half_precision_caches_mine_nearly_the_same() -> None:
    near, q, d = random_dataset()
    rows = near.trainable

    def hardest(dtype: torch.dtype) -> np.ndarray:
        tuples, _ = mine(
            rows, q[rows].to(dtype), d.to(dtype), near, no_memory(len(q), 1), pool=10_000, negatives=1,
            seed=0,
        )  # fmt: skip
        return tuples.negatives

    assert (hardest(torch.float16) == hardest(torch.float32)).mean() > 0.9


def test_pools_do_not_depend_on_how_queries_are_shared_out() -> None:
    near, q, d = random_dataset()
    rows = near.trainable
    memory = no_memory(len(q), 4)
    config = {"pool": 30, "negatives": 4, "seed": 5}
    whole, _ = mine(rows, q[rows], d, near, memory, **config)
    halves = [mine(part, q[part], d, near, memory, **config)[0] for part in (rows[::2], rows[1::2])]
    for part, mined in zip((slice(0, None, 2), slice(1, None, 2)), halves, strict=True):
        assert (whole.take(part).negatives == mined.negatives).all()


def test_random_keys_look_random() -> None:
    keys = random_keys(torch.arange(200), 500, seed=1).double() / 2**62
    assert keys.min() >= 0
    assert keys.max() < 1
    assert abs(keys.mean() - 0.5) < 0.01
    assert abs(keys.std() - 12**-0.5) < 0.01
    correlation = torch.corrcoef(keys)  # of 200 queries: no two draw the same order
    assert (correlation - torch.eye(200)).abs().max() < 0.25
    assert len(random_keys(torch.arange(200), 500, seed=1).unique()) == 100_000


def test_missing_negatives_are_marked() -> None:
    dataset = places_at([5.0, 100.0, 200.0], [0.0])
    near = find_neighbourhoods(dataset)
    one = F.normalize(torch.randn(4, 8), dim=1)
    tuples, memory = mine(near.trainable, one[:1], one[1:], near, no_memory(1, 5), pool=10, negatives=4, seed=0)
    assert sorted(tuples.negatives[0].tolist()) == [-1, -1, 1, 2]
    assert sorted(memory[0].tolist()) == [-1, -1, -1, 1, 2]


def large_dataset(queries: int = 20, database: int = 4000) -> tuple[Neighbourhoods, torch.Tensor, torch.Tensor]:
    """So many photos that a pool of a hundred is drawn without looking at the others."""
    rng = np.random.default_rng(5)
    near = [np.sort(rng.choice(database, rng.integers(1, 200), replace=False)) for _ in range(queries)]
    make = torch.Generator().manual_seed(6)
    q, d = (F.normalize(torch.randn(n, 8, generator=make), dim=1) for n in (queries, database))
    return Neighbourhoods([rows[:3] for rows in near], near), q, d


def pools_of(near: Neighbourhoods, queries: np.ndarray, width: int, pool: int, seed: int = 0) -> np.ndarray:
    device = torch.device("cpu")
    memory = no_memory(len(near.near), 0)
    return find_candidates(queries, near, memory, width, pool=pool, seed=seed, device=device).numpy()


@pytest.mark.parametrize("pool", [1, 100, 250])
def test_a_pool_is_whole_without_repeats_and_not_from_nearby(pool: int) -> None:
    near, q, d = large_dataset()
    pools = pools_of(near, np.arange(len(q)), len(d), pool)
    assert pools.shape == (len(q), pool)
    for rows, barred in zip(pools, near.near, strict=True):
        assert len(set(rows)) == pool
        assert 0 <= rows.min() <= rows.max() < len(d)
        assert not set(rows) & set(barred)


def test_a_pool_of_a_large_dataset_depends_on_the_seed_and_the_query_alone() -> None:
    near, q, d = large_dataset()
    everyone = pools_of(near, np.arange(len(q)), len(d), 100)
    assert (pools_of(near, np.array([7, 3]), len(d), 100) == everyone[[7, 3]]).all()
    assert not (pools_of(near, np.array([7]), len(d), 100, seed=1) == everyone[7]).any()


def test_pools_of_a_large_dataset_take_every_photo_equally_often() -> None:
    none = [np.zeros(0, np.int64)] * 3000
    drawn = np.bincount(pools_of(Neighbourhoods(none, none), np.arange(3000), 1000, 50).ravel(), minlength=1000)
    assert drawn.sum() == 150_000
    assert drawn.min() > 90  # five standard deviations below
    surprise = ((drawn - 150) ** 2 / (150 * 0.95)).sum()  # chi-squared: 1000 on average, give or take 45
    assert 820 < surprise < 1180


def test_the_hardest_of_a_large_dataset_are_those_of_the_pool_and_the_memory() -> None:
    near, q, d = large_dataset()
    rows = np.arange(len(q))
    pools = pools_of(near, rows, len(d), 100)
    memory = no_memory(len(q), 3)
    far = [np.setdiff1d(np.arange(len(d)), barred) for barred in near.near]
    hardest = [rows_[np.argsort(-(d[rows_] @ one).numpy())] for rows_, one in zip(far, q, strict=True)]
    memory[:, 0] = [order[0] for order in hardest]
    memory[:, 1] = pools[:, 0]  # remembered and drawn again
    memory[:, 2] = [barred[-1] for barred in near.near]  # no longer allowed
    tuples, after = mine(rows, q, d, near, memory, pool=100, negatives=5, seed=0)
    for query, pool in enumerate(pools):
        among = [row for row in hardest[query] if row in set(pool) or row == memory[query, 0]]
        assert tuples.negatives[query].tolist() == among[:5]
        assert after[query].tolist() == among[:3]
        here = near.positives[query]
        assert tuples.positives[query] == here[(d[here] @ q[query]).argmax()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("database", [30, 2000])  # one product with all, or rows fetched for each query
def test_similarities_with_rows_of_ones_own(dtype: torch.dtype, database: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.training.mining.NUMBERS_AT_ONCE", 100)
    rng = torch.Generator().manual_seed(0)
    q, d = (torch.randn(n, 6, generator=rng).to(dtype) for n in (9, database))
    rows = torch.randint(-1, database, (9, 5), generator=rng)
    found = similarity_with(q, d, rows)
    assert found.dtype == torch.float32
    for line in range(9):
        for column, row in enumerate(rows[line].tolist()):
            expected = float(q[line].double() @ d[row].double()) if row >= 0 else -np.inf
            assert float(found[line, column]) == pytest.approx(expected, abs=1e-5)
