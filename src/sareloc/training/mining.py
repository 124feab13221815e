"""Mining of tuples: a query, its best positive and its hardest negatives.

Positions decide which database photos may be a positive or a negative of a query (`Neighbourhoods`). Descriptors choose
among them: the potential positive nearest to the query, and the nearest of a pool of random negatives and of those that
were hardest in the last epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sareloc.arrays import Ints
from sareloc.datasets.places import Places, find_positives
from sareloc.errors import ArgumentError, DatasetError
from sareloc.geo import within_radius

FEW = 16
"""If at most one in this many database photos is needed, the others are not looked at."""
SPARE_DRAWS = 64
NUMBERS_AT_ONCE = 1 << 22  # of a table of queries by photos, or of gathered descriptors: 16 MiB of float32


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """For each of Q queries: database rows that may be its positive, and rows that are too near to be a negative."""

    positives: list[Ints]
    near: list[Ints]

    @property
    def trainable(self) -> Ints:
        """The queries that have a potential positive."""
        return np.array([q for q, rows in enumerate(self.positives) if len(rows)], dtype=np.int64)


def find_neighbourhoods(
    places: Places,
    *,
    positive_min_m: float = 1.0,
    positive_radius_m: float = 10.0,
    negative_radius_m: float = 25.0,
) -> Neighbourhoods:
    """Potential positives and near photos of every query, by the protocol of the dataset.

    With the protocol "time" (TokyoTM), if both photos have a time stamp, a positive has another one than the query.
    With the protocol "place-id" a positive shares a place with the query and a negative shares none; a photo that is
    both query and database photo is not its own positive.

    Args:
        places: the dataset.
        positive_min_m: positives are farther than this, which excludes views of the query's own panorama.
        positive_radius_m: positives are within this distance.
        negative_radius_m: negatives are farther than this.
    """
    if places.protocol == "place-id":
        same_place = find_positives(places)
        return Neighbourhoods(_without_itself(places, same_place), same_place)
    if places.database.positions is None or places.queries.positions is None:
        raise DatasetError(
            f"{places.name}: tuples are mined by position, and its photos have none: give lat and lon, or place_id"
        )
    points, centres = places.database.positions.metres, places.queries.positions.metres
    too_close = within_radius(points, centres, positive_min_m)
    close = within_radius(points, centres, positive_radius_m)
    near = within_radius(points, centres, negative_radius_m)
    positives = [np.setdiff1d(c, t, assume_unique=True) for c, t in zip(close, too_close, strict=True)]
    times = (places.database.times, places.queries.times)
    if places.protocol == "time" and times[0] is not None and times[1] is not None:
        positives = [rows[times[0][rows] != times[1][q]] for q, rows in enumerate(positives)]
    return Neighbourhoods(positives, near)


def _without_itself(places: Places, positives: list[Ints]) -> list[Ints]:
    row_of = {path: row for row, path in enumerate(places.database.paths())}
    own = map(row_of.get, places.queries.paths())
    return [rows if row is None else rows[rows != row] for rows, row in zip(positives, own, strict=True)]


def join_neighbourhoods(parts: Sequence[tuple[Neighbourhoods, int]]) -> Neighbourhoods:
    """Several datasets, each with the size of its database, as one: databases are concatenated, and queries too.

    Photos of another dataset may be negatives.
    """
    positives: list[Ints] = []
    near: list[Ints] = []
    first = 0
    for part, database in parts:
        positives += [rows + first for rows in part.positives]
        near += [rows + first for rows in part.near]
        first += database
    return Neighbourhoods(positives, near)


def check_minable(places: Places, neighbourhoods: Neighbourhoods, negatives: int) -> None:
    """Raises DatasetError if no tuple, or none with enough negatives, can be mined."""
    if not len(places.queries):
        raise DatasetError(
            f"{places.name} has no queries: training takes them from a folder queries/ beside database/, or from a "
            "CSV file with a column role"
        )
    if not len(neighbourhoods.trainable):
        raise DatasetError(
            f"{places.name}: none of its {len(places.queries)} queries has a potential positive among "
            f"{len(places.database)} database photos: raise positive_radius_m, or check the positions with "
            f'"sareloc data check"'
        )
    fewest = min(len(places.database) - len(neighbourhoods.near[q]) for q in neighbourhoods.trainable)
    if fewest < negatives:
        raise DatasetError(
            f"{places.name}: a query has only {fewest} database photos that may be a negative, and a tuple takes "
            f"{negatives}: lower negative_radius_m or negatives, or use a larger dataset"
        )


@dataclass(frozen=True, eq=False)
class Tuples:
    """T mined tuples: rows of the queries (T,), of their positives (T,) and of their negatives (T, K).

    Negatives are in order from the hardest to the easiest; if a query has fewer than K, the rest of its line is -1.
    """

    queries: Ints
    positives: Ints
    negatives: Ints

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, rows: slice | Ints) -> Tuples:
        """The tuples of these rows."""
        return Tuples(self.queries[rows], self.positives[rows], self.negatives[rows])

    def usable(self) -> Tuples:
        """The tuples with at least one negative."""
        return self.take(np.flatnonzero((self.negatives >= 0).any(axis=1)))


def mine(
    queries: Ints,
    query_descriptors: Tensor,
    database_descriptors: Tensor,
    neighbourhoods: Neighbourhoods,
    memory: Ints,
    *,
    pool: int,
    negatives: int,
    seed: int,
    margin: float | None = None,
) -> tuple[Tuples, Ints]:
    """Mine one tuple for each of these queries: matrix products and a top-k for many at a time, no loop over queries.

    Negatives come from a pool of random database photos that are not near the query, and from its R hardest of the
    last epoch. A query's pool depends on `seed` and the query alone, so it is the same on every device and for any
    number of processes. For a large database only the pool is compared, so the cost does not grow with the database.

    Args:
        queries: (T,) rows of trainable queries.
        query_descriptors: (T, D) unit vectors of the last refresh, in any precision.
        database_descriptors: (N, D), on the same device.
        neighbourhoods: of all queries.
        memory: (Q, R) the hardest negatives of the last epoch; -1: none.
        pool: number of random database photos.
        negatives: number of negatives of a tuple, the nearest.
        seed: of the pools.
        margin: take only negatives with d_n^2 < d_p^2 + margin, possibly none (NetVLAD's triplet); default: all.

    Returns:
        The tuples, and the new memory.
    """
    if len(queries) != len(query_descriptors):
        raise ArgumentError(f"{len(queries)} queries, but {len(query_descriptors)} query descriptors")
    memory = memory.copy()
    width = len(database_descriptors)
    looked_at = FEW * pool if draws_some(neighbourhoods, width, pool) else width
    at_once = max(1, NUMBERS_AT_ONCE // max(1, looked_at))
    parts = []
    for start in range(0, len(queries), at_once):
        block = queries[start : start + at_once]
        positives = _table([neighbourhoods.positives[q] for q in block]).to(database_descriptors.device)
        pools = find_candidates(block, neighbourhoods, memory, width, pool=pool, seed=seed, device=positives.device)
        rows = torch.cat([positives, pools], dim=1)
        similar = similarity_with(query_descriptors[start : start + at_once], database_descriptors, rows)
        tuples, memory[block] = _hardest(block, rows, similar, positives.shape[1], negatives, memory.shape[1], margin)
        parts.append(tuples)
    return join_tuples(parts, negatives), memory


def no_memory(queries: int, remembered: int) -> Ints:
    """Hard negatives of every query before the first epoch: (Q, remembered) of -1."""
    return np.full((queries, remembered), -1, dtype=np.int64)


def find_candidates(
    block: Ints, neighbourhoods: Neighbourhoods, memory: Ints, width: int, *, pool: int, seed: int, device: torch.device
) -> Tensor:
    """Candidates for negatives (T, pool + R): distinct database rows, -1 if there are fewer.

    For each query of `block` (T,): `pool` random ones of the `width` database photos that are not near it, then its R
    hardest negatives of the last epoch (`memory`, (Q, R)) that are not among them.
    """
    queries = torch.from_numpy(block).to(device)
    near = [neighbourhoods.near[q] for q in block]
    draw = _draw_some if draws_some(neighbourhoods, width, pool) else _draw_among_all
    drawn = draw(queries, near, width, pool, seed)
    remembered = _without_near(torch.from_numpy(memory[block]).to(device), near, width)
    return _without_repeats(torch.cat([drawn, remembered], dim=1))


def draws_some(neighbourhoods: Neighbourhoods, width: int, pool: int) -> bool:
    """Whether the pool and the near photos are so small a part of the database that drawing with repetition and
    dropping repeated and near photos fills the pool. The same for every query, so that a pool does not depend on which
    queries are mined together."""
    return width > FEW * max([pool, *map(len, neighbourhoods.near)])


def _draw_among_all(queries: Tensor, near: list[Ints], width: int, pool: int, seed: int) -> Tensor:
    """(T, min(pool, width)): the rows with the largest random keys."""
    key = random_keys(queries, width, seed)
    key.view(-1)[_flat_indices(near, width).to(key.device)] = -1
    value, rows = key.topk(min(pool, width), dim=1)
    return rows.masked_fill(value < 0, -1)


def _draw_some(queries: Tensor, near: list[Ints], width: int, pool: int, seed: int) -> Tensor:
    """(T, pool): the first rows drawn, without near and repeated ones; the cost does not depend on `width`."""
    rows = random_keys(queries, pool + pool // 4 + SPARE_DRAWS, seed) % width
    rows = _without_repeats(_without_near(rows, near, width))
    first = (rows < 0).byte().argsort(dim=1, stable=True)[:, :pool]
    return rows.gather(1, first)


def _without_near(rows: Tensor, near: list[Ints], width: int) -> Tensor:
    """The rows (T, C), with -1 for those near their query."""
    excluded = torch.cat([_flat_indices(near, width), torch.tensor([len(near) * width])]).to(rows.device)
    cells = rows + width * torch.arange(len(rows), device=rows.device)[:, None]
    return rows.masked_fill(excluded[torch.searchsorted(excluded, cells)] == cells, -1)


def _flat_indices(rows: list[Ints], width: int) -> Tensor:
    """Ragged row numbers as sorted flat indices of a (T, width) table."""
    line = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    return torch.from_numpy(np.sort(line * width + np.concatenate([*rows, np.zeros(0, np.int64)])))


def _without_repeats(rows: Tensor) -> Tensor:
    """The rows (T, C), with -1 for those that occur further left in their line."""
    values, order = rows.sort(dim=1, stable=True)
    again = torch.zeros_like(values, dtype=torch.bool)
    again[:, 1:] = values[:, 1:] == values[:, :-1]
    return rows.masked_fill(torch.zeros_like(again).scatter_(1, order, again), -1)


def random_keys(queries: Tensor, width: int, seed: int) -> Tensor:
    """(T, width) int64 in [0, 2^62): a hash of (seed, query, column), the same on every device.

    Two rounds of a multiply-xorshift mixer on 64-bit integers; the products overflow by design.
    """
    columns = torch.arange(width, device=queries.device, dtype=torch.int64)
    start = (seed * 2862933555777941757 + 2**63) % 2**64 - 2**63  # any seed, folded into a signed 64-bit number
    z = (queries[:, None] + 1) * -7046029254386353131 + (columns[None] + 1) * -4417276706812531889 + start
    for multiplier in (-4658895280553007687, -7723592293110705685):
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * multiplier
    return (z ^ ((z >> 31) & 0x1FFFFFFFF)) & 0x3FFFFFFFFFFFFFFF


def _hardest(
    block: Ints, rows: Tensor, similar: Tensor, positives: int, negatives: int, remembered: int, margin: float | None
) -> tuple[Tuples, Ints]:
    """Tuples of these queries, and their `remembered` hardest negatives.

    `rows` (T, C) of the database with their similarities; the first columns are the potential positives.
    """
    best, column = similar[:, :positives].max(dim=1)
    positive = rows.gather(1, column[:, None])[:, 0]
    value, column = similar[:, positives:].topk(min(max(negatives, remembered), rows.shape[1] - positives), dim=1)
    row = rows[:, positives:].gather(1, column)
    kept = _filled(row, remembered)
    if margin is not None:  # unit vectors: d^2 = 2 - 2 s, so d_n^2 < d_p^2 + margin says s_n > s_p - margin / 2
        row = row.masked_fill(value <= best[:, None] - margin / 2, -1)
    return Tuples(block, positive.cpu().numpy(), _filled(row, negatives)), kept


def join_tuples(parts: list[Tuples], negatives: int) -> Tuples:
    """Concatenate tuples."""
    nothing = Tuples(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, negatives), np.int64))
    parts = [nothing, *parts]
    return Tuples(
        np.concatenate([t.queries for t in parts]),
        np.concatenate([t.positives for t in parts]),
        np.concatenate([t.negatives for t in parts]),
    )


def _filled(rows: Tensor, width: int) -> Ints:
    """(T, width): the first columns of `rows`, filled with -1."""
    out = np.full((len(rows), width), -1, dtype=np.int64)
    first = rows[:, :width].cpu().numpy()
    out[:, : first.shape[1]] = first
    return out


def _table(rows: list[Ints]) -> Tensor:
    """(T, longest) from ragged row numbers, filled with -1."""
    lengths = np.array([len(r) for r in rows])
    table = np.full((len(rows), lengths.max(initial=0)), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < lengths[:, None]] = np.concatenate([*rows, np.zeros(0, np.int64)])
    return torch.from_numpy(table)


def similarity_with(queries: Tensor, database: Tensor, rows: Tensor) -> Tensor:
    """(T, C) dot products in float32 of each query with its own rows (T, C) of the database; -inf where a row is -1.

    If the rows are a large part of the database, one product with all of it is faster than gathering them per query.
    """
    many = len(database) <= FEW * rows.shape[1]
    numbers = len(database) if many else rows.shape[1] * database.shape[1]
    at_once = max(1, NUMBERS_AT_ONCE // max(1, numbers))
    found = []
    for some, wanted in zip(torch.split(queries, at_once), torch.split(rows.clamp(min=0), at_once), strict=True):
        if many:
            found.append(similarity(some, database).gather(1, wanted))
        else:
            found.append(_float_on_cpu(database[wanted]).matmul(_float_on_cpu(some)[:, :, None])[:, :, 0].float())
    return torch.cat(found).masked_fill(rows < 0, -torch.inf)


def similarity(queries: Tensor, database: Tensor) -> Tensor:
    """(T, N) dot products in float32; on a GPU half-precision descriptors are multiplied in half precision."""
    at_once = max(1, (1 << 28) // max(1, database.shape[1]))  # 1 GiB of float32 copies at a time
    parts = [_float_on_cpu(queries) @ _float_on_cpu(part).T for part in torch.split(database, at_once)]
    return torch.cat(parts, dim=1).float()


def _float_on_cpu(descriptors: Tensor) -> Tensor:
    return descriptors.float() if descriptors.device.type == "cpu" else descriptors
