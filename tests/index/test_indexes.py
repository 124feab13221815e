"""The indexes at hand, held against the contract, and the approximate one against the exact one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.drawn_descriptors import WHITE, Walk, draw
from tests.index.contract_suite import DIM, IndexContract, unit_vectors

from sareloc.errors import ArgumentError
from sareloc.index import ExactIndex, Hits, Index, ShardedIndex
from sareloc.index import sharded as approximate
from sareloc.index import sharded as part
from sareloc.index.cache import IndexCache, check_index
from sareloc.index.exact import half_precision

ALL = np.arange(4000)


class TestExact(IndexContract):
    def make(self) -> Index:
        return ExactIndex(DIM)


class TestApproximateBeforeItsIndex(IndexContract):
    def make(self) -> Index:
        return ShardedIndex(DIM)


@pytest.fixture
def one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors get an index, as many do."""
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 500 * DIM)


@pytest.fixture
def parts(one_part: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors get an index in several parts, as very many do."""
    monkeypatch.setattr(approximate, "PART_VECTORS", 2500)


@pytest.mark.usefixtures("one_part")
class TestApproximateInOnePart(IndexContract):
    count = 3100

    def make(self) -> Index:
        return ShardedIndex(DIM)


@pytest.mark.usefixtures("parts")
class TestApproximateInParts(IndexContract):
    count = 4400

    def make(self) -> Index:
        return ShardedIndex(DIM)


def test_an_index_is_not_built_for_fewer_vectors_than_its_rotation_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "EXACT_NUMBERS", 1000)
    vectors, index = unit_vectors(321, dim=160), ShardedIndex(160)
    for count, kind in ((320, "exact"), (321, "approximate")):
        index.upsert(np.arange(count), vectors[:count])
        index.build_index()
        assert index.info().kind == kind
    assert [approximate.exact_below(dim) for dim in (5, 512)] == [200, 1024]


def recall_at_10(found: Hits, truth: Hits) -> float:
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.ids, truth.ids, strict=True)]))


STREETS = Walk(dim=64)
HARDEST = replace(WHITE, dim=64)
DISTRICTS = replace(STREETS, structure_shares=(0.2, 0.2, 0.18), structure_photos=(4.0, 40.0, 1000.0))  # clusters


@pytest.mark.parametrize("index", ["one_part", "parts"])
@pytest.mark.parametrize("walk", [STREETS, HARDEST, DISTRICTS], ids=["streets", "hardest", "districts"])
def test_recall_of_the_approximate_index_is_98_percent_of_the_exact_one(
    walk: Walk, index: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(index)
    vectors, queries = draw(walk, 8_000, 200, np.random.default_rng(0))
    exact, approximate = ExactIndex(64), ShardedIndex(64)
    for searched in (exact, approximate):
        searched.upsert(np.arange(len(vectors)), vectors)
    assert approximate.build_index()
    assert approximate.info().kind == "approximate"
    assert recall_at_10(approximate.search(queries, 10), exact.search(queries, 10)) >= 0.98


@pytest.mark.usefixtures("parts")
def test_one_query_at_a_time_finds_what_a_batch_finds() -> None:
    vectors, queries = draw(STREETS, 8000, 40, np.random.default_rng(0))
    searched = ShardedIndex(64)
    searched.upsert(np.arange(len(vectors)), vectors)
    batch = searched.search(queries, 10)
    single = [searched.search(query, 10) for query in queries]
    assert recall_at_10(Hits(np.concatenate([hits.ids for hits in single]), batch.distances), batch) >= 0.995


def indexed(count: int = 4000) -> ShardedIndex:
    searched = ShardedIndex(DIM)
    searched.upsert(np.arange(count), unit_vectors(4000)[:count])
    assert searched.build_index()
    assert not searched.build_index()
    return searched


def sizes(searched: ShardedIndex) -> list[int]:
    return [len(part) for part in searched._state.parts]


@pytest.mark.usefixtures("parts")
def test_vectors_that_come_fill_parts_and_full_ones_are_left_alone() -> None:
    searched = indexed(4000)
    assert sizes(searched) == [2000, 2000]
    full = searched._state.parts
    searched.upsert(np.arange(4000, 4125), unit_vectors(125, seed=1))
    assert not searched.build_index()  # so few are compared exactly
    searched.upsert(np.array([4125]), unit_vectors(1, seed=2))
    assert searched.build_index()
    assert sizes(searched) == [2000, 2000, 126]
    searched.upsert(np.arange(5000, 6000), unit_vectors(1000, seed=3))
    assert searched.build_index()
    assert sizes(searched) == [2000, 2000, 1126]  # filled up, not added to
    assert searched._state.parts[:2] == full


@pytest.mark.usefixtures("parts")
def test_a_part_is_made_anew_after_a_tenth_has_gone_and_not_before() -> None:
    searched = indexed(4000)
    kept = searched._state.parts[1]
    searched.delete(np.arange(200))
    assert not searched.build_index()
    searched.delete(np.array([200]))
    assert searched.build_index()
    assert searched._state.parts[0] is kept
    assert sizes(searched) == [2000, 1799]
    searched.delete(np.arange(1900))
    assert searched.build_index()
    assert (sizes(searched), len(searched._state.late.ids)) == ([2000], 100)
    assert searched.info().vectors == 2100


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexCache:
    monkeypatch.setenv("SARELOC_CACHE", str(tmp_path / "cache"))
    return IndexCache("0123456789abcdef" * 2, DIM, "float16")


def checksums(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Some that are not 0."""
    return ids * 7 + 1


def held_ids(index: ShardedIndex) -> npt.NDArray[np.int64]:
    parts, late = index._state
    return np.sort(np.concatenate([*(part.alive() for part in parts), late.ids]))


def save(searched: ShardedIndex, cache: IndexCache) -> None:
    ids = held_ids(searched)
    searched.save(cache, ids, checksums(ids), "a change")


def load(cache: IndexCache, ids: npt.NDArray[np.int64] = ALL) -> tuple[ShardedIndex, list[int]]:
    searched = ShardedIndex(DIM)
    return searched, searched.load(cache, ids, checksums(ids)).tolist()


@pytest.mark.usefixtures("parts")
def test_saved_parts_find_the_same_and_take_changes(cache: IndexCache) -> None:
    searched, queries = indexed(), unit_vectors(20, seed=2)
    before = searched.search(queries, 10).ids
    save(searched, cache)
    np.testing.assert_array_equal(searched.search(queries, 10).ids, before)
    again, taken = load(cache)
    assert taken == ALL.tolist()
    assert again.info() == searched.info()
    np.testing.assert_array_equal(again.search(queries, 10).ids, before)
    again.upsert(np.array([9000]), queries[:1])
    again.delete(np.array([0]))
    assert again.search(queries[:1], 1).ids.tolist() == [[9000]]
    assert again.info().vectors == 4000


@pytest.mark.usefixtures("parts")
def test_only_vectors_with_the_same_id_and_checksum_are_loaded(cache: IndexCache) -> None:
    save(indexed(), cache)
    searched, ids = ShardedIndex(DIM), np.arange(100, 5000)
    marks = checksums(ids)
    marks[ids == 300] += 1
    marks[ids == 301] = 0
    expected = [number for number in range(100, 4000) if number not in (300, 301)]
    assert searched.load(cache, ids, marks).tolist() == expected
    assert held_ids(searched).tolist() == expected
    assert searched.search(unit_vectors(4000)[[99, 300, 301, 302]], 1).ids[:, 0].tolist()[3] == 302
    assert not np.isin(searched.search(unit_vectors(4000)[:400], 10).ids, [*range(100), 300, 301]).any()


@pytest.mark.usefixtures("parts")
def test_a_vector_replaced_before_saving_is_loaded_as_it_was_last(cache: IndexCache) -> None:
    searched = indexed()
    searched.upsert(np.arange(100, 230), unit_vectors(130, seed=6))  # these ids are in two parts now, once deleted
    assert searched.build_index()
    save(searched, cache)
    again, taken = load(cache)
    assert taken == ALL.tolist()
    assert again.info().vectors == 4000
    np.testing.assert_allclose(again.fetch(np.arange(100, 230)), unit_vectors(130, seed=6), atol=1e-3)


def names(cache: IndexCache) -> set[str]:
    return {file.name for file in cache.folder.iterdir()}


@pytest.mark.usefixtures("parts")
def test_the_cache_deletes_the_parts_it_named_and_nothing_else(cache: IndexCache, tmp_path: Path) -> None:
    searched = indexed()
    save(searched, cache)
    first = names(cache)
    assert len(first) == 3  # two parts and the manifest
    killed, outside = cache.folder / f"{'a' * 32}.new", tmp_path / "keys.pem"
    outside.write_text("secret")
    for path in (killed, cache.folder / f"{'b' * 32}.part", cache.folder / "keys.pem"):
        path.write_text("here")
    (cache.folder / f"{'c' * 32}.part").symlink_to(outside)
    os.utime(killed, (0, 0))
    searched.delete(np.arange(2000))
    searched.build_index()
    save(searched, cache)
    left = names(cache)
    assert len(left & first) == 2  # the part that stayed was not written again
    assert left - first == {f"{'b' * 32}.part", f"{'c' * 32}.part", "keys.pem"}
    assert outside.read_text() == "secret"


@pytest.mark.usefixtures("one_part")
@pytest.mark.parametrize("linked", ["folder", "parent", "manifest", "part"])
def test_links_are_not_followed(cache: IndexCache, tmp_path: Path, linked: str) -> None:
    save(indexed(), cache)
    (part,) = cache.folder.glob("*.part")
    path = {"folder": cache.folder, "parent": cache.folder.parent, "manifest": cache.folder / "manifest.json"}
    path.get(linked, part).rename(tmp_path / "elsewhere")
    path.get(linked, part).symlink_to(tmp_path / "elsewhere")
    assert load(cache)[1] == []
    before = sorted(str(file) for file in tmp_path.rglob("*"))
    if linked in ("folder", "parent"):
        with pytest.raises(OSError, match="link"):
            save(indexed(), cache)
        assert sorted(str(file) for file in tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("one_part")
def test_a_folder_that_others_may_write_to_is_not_used(cache: IndexCache) -> None:
    save(indexed(), cache)
    cache.folder.chmod(0o777)
    assert load(cache)[1] == []
    cache.folder.chmod(0o700)
    assert load(cache)[1] == ALL.tolist()
    assert cache.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("one_part")
def test_parts_of_something_else_or_damaged_are_passed_over(cache: IndexCache, tmp_path: Path) -> None:
    assert load(cache)[1] == []
    save(indexed(), cache)
    assert load(IndexCache("f" * 32, DIM, "float16"))[1] == []
    assert load(IndexCache(cache.folder.name, DIM, "int8"))[1] == []
    (path,) = cache.folder.glob("*.part")
    whole, manifest = path.read_bytes(), cache.folder / "manifest.json"
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (b"", whole[:40], whole[:-1], whole[: len(whole) // 2], b"x" * 100 + whole[100:], flipped):
        path.write_bytes(damaged)
        assert load(cache)[1] == []
    path.write_bytes(whole)
    told = json.loads(manifest.read_text())
    (entry,) = told["parts"]
    for odd in (
        *("", "{", "[]", "null", "[" * 100_000, "{}"),
        *(json.dumps(told | {"parts": parts}) for parts in (7, [7], [{}], [entry | {"name": "../x.part"}])),
        *(json.dumps(told | {"parts": [entry | {"vectors": count}]}) for count in (-1, 0, 1.5, 10, "x", 10**30)),
        json.dumps(told | {"parts": [entry | {"size": entry["size"] - 8}]}),
    ):
        manifest.write_text(odd)
        assert load(cache)[1] == []
    manifest.write_text(json.dumps(told))
    assert load(cache)[1] == ALL.tolist()
    path.unlink()
    assert (load(cache)[1], cache.rows()) == ([], [])


@pytest.mark.usefixtures("one_part")
def test_an_index_whose_parts_disagree_never_reaches_a_search(cache: IndexCache) -> None:
    """As a hostile file has it: faiss reads it without complaint and, searched, reads past the end of its vectors."""
    searched = indexed()
    index = searched._state.parts[0].index
    few = half_precision(DIM)
    few.add(unit_vectors(10))
    full = half_precision(DIM)
    full.add(unit_vectors(4000))
    short = faiss.IndexRefine(index.base_index, full)
    short.refine_index = few
    with pytest.raises(ValueError, match="vectors"):
        check_index(short, DIM, 4000)
    with pytest.raises(ValueError, match="index is a"):
        check_index(few, DIM, 10)
    with pytest.raises(ValueError, match="consists of"):
        check_index(faiss.IndexRefine(few, few), DIM, 10)
    check_index(index, DIM, 4000)
    save(searched, cache)
    (path,) = cache.folder.glob("*.part")
    rows = path.read_bytes()[-16 * 4000 :]
    faiss.write_index(short, str(path))
    with path.open("ab") as file:
        file.write(rows)
    manifest = cache.folder / "manifest.json"
    told = json.loads(manifest.read_text())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    told["parts"][0] |= {"size": path.stat().st_size, "sha256": digest}
    manifest.write_text(json.dumps(told))
    assert load(cache)[1] == []


@pytest.mark.usefixtures("one_part")
def test_a_save_that_fails_leaves_no_half_file(cache: IndexCache) -> None:
    searched = indexed()
    cache.folder.mkdir(parents=True, mode=0o700)
    with pytest.raises(ValueError, match="expected 4000 of 8"):
        save(searched, IndexCache(cache.folder.name, 8, "float16"))
    assert names(cache) == set()
    assert searched.search(unit_vectors(4000)[:1], 1).ids.tolist() == [[0]]


@pytest.mark.usefixtures("one_part")
def test_indexes_of_maps_that_were_not_opened_for_months_are_deleted(cache: IndexCache) -> None:
    save(indexed(), cache)
    old, kept = IndexCache("a" * 32, DIM, "float16"), IndexCache("b" * 32, DIM, "float16")
    for other in (old, kept):
        save(indexed(), other)
        os.utime(other.folder / "manifest.json", (0, 0))
    (kept.folder / "notes.txt").write_text("not ours")
    save(indexed(), cache)
    assert not old.folder.exists()
    assert names(kept) == {"notes.txt"}
    assert load(cache)[1] == ALL.tolist()


@pytest.mark.usefixtures("one_part")
def test_a_part_that_another_process_deleted_is_written_again(cache: IndexCache) -> None:
    first, second = indexed(), indexed()
    save(first, cache)
    save(second, cache)
    assert first.search(unit_vectors(4000)[:1], 1).ids.tolist() == [[0]]  # mapped, though its file is gone
    save(first, cache)
    assert load(cache)[1] == ALL.tolist()


@pytest.mark.parametrize("map_id", ["", "../../elsewhere", "A" * 32, "a" * 31, "a" * 33, "a" * 32 + "\n", "²" * 32])
def test_a_map_id_is_no_path(map_id: str) -> None:
    with pytest.raises(ArgumentError, match="32 hexadecimal digits"):
        IndexCache(map_id, DIM, "float16")


@pytest.mark.usefixtures("one_part")
def test_odd_dimensions_work() -> None:
    searched = ShardedIndex(33)
    vectors = unit_vectors(3000, dim=33)
    searched.upsert(np.arange(3000), vectors)
    assert searched.search(vectors[:100], 1).ids[:, 0].tolist() == list(range(100))
    assert searched.info().kind == "approximate"


@pytest.mark.usefixtures("one_part")
@pytest.mark.parametrize(("candidates", "codes"), [(1000, 24), (20, 48)])
def test_codes_are_as_short_as_the_vectors_allow(monkeypatch: pytest.MonkeyPatch, candidates: int, codes: int) -> None:
    monkeypatch.setattr(part, "CANDIDATES", candidates)
    searched = ShardedIndex(96)
    searched.upsert(np.arange(4000), unit_vectors(4000, dim=96))
    assert searched.build_index()
    two_codes_to_a_byte = searched._state.parts[0].index.base_index.sa_code_size()
    assert codes == 2 * two_codes_to_a_byte


@pytest.mark.usefixtures("one_part")
def test_threads_that_search_at_once_build_the_index_once() -> None:
    vectors = unit_vectors(4000)
    searched = ShardedIndex(DIM)
    searched.upsert(np.arange(4000), vectors)
    together = threading.Barrier(4)

    def search(rows: npt.NDArray[np.int64]) -> list[int]:
        together.wait(timeout=300)
        found: list[int] = searched.search(vectors[rows], 1).ids[:, 0].tolist()
        return found

    shares = np.array_split(np.arange(4000), 4)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(search, shares))
    assert found == [share.tolist() for share in shares]
    assert (searched.info().vectors, searched.info().kind) == (4000, "approximate")
    assert held_ids(searched).tolist() == list(range(4000))
