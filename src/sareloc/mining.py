"""Mining: which photos make a tuple. Geography says who may be positive or negative, descriptors say who is hard.

A tuple is one query, its positive (the nearest in descriptor space among the photos taken at the same place) and its
hardest negatives (the nearest in descriptor space among a random pool of photos taken elsewhere). Everything here is
a pure function of arrays; randomness comes in by argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.datasets.places import Places, find_positives
from sareloc.errors import ArgumentError, DatasetError
from sareloc.geo import within_radius

Ints = npt.NDArray[np.int64]
SIMILARITIES_AT_ONCE = 1 << 26  # query x database numbers held at a time: 256 MiB of float32


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """What the positions alone allow, for each of Q queries.

    `positives[q]`: the database rows that may be its positive. `near[q]`: those too close to be a negative.
    """

    positives: list[Ints]
    near: list[Ints]

    @property
    def trainable(self) -> Ints:
        """The queries that have a potential positive; the others are skipped."""
        return np.array([q for q, rows in enumerate(self.positives) if len(rows)], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Tuples:
    """T mined tuples: rows of the queries (T,), of their positives (T,) and of their negatives (T, K).

    Negatives stand from the hardest to the easiest; where a query has fewer than K, the rest of its line is -1.
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
        """Those with at least one negative; the others teach nothing."""
        return self.take(np.flatnonzero((self.negatives >= 0).any(axis=1)))


def find_neighbourhoods(
    places: Places,
    *,
    positive_min_m: float = 1.0,
    positive_radius_m: float = 10.0,
    negative_radius_m: float = 25.0,
) -> Neighbourhoods:
    """Who may be positive or negative, by the rule of the dataset.

    By position: positives lie at `positive_min_m` < d <= `positive_radius_m` (the lower bound keeps views of the
    query's own panorama out), negatives at d > `negative_radius_m`. Where both photos have a time stamp and the
    protocol is "time" (TokyoTM), a positive also has another time stamp. Under the protocol "place-id" a positive
    shares a place with the query and a negative shares none. A photo that is both query and database is never its own
    positive.
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
    row_of = {places.database.path(row): row for row in range(len(places.database))}
    own = [row_of.get(places.queries.path(query)) for query in range(len(places.queries))]
    return [rows if row is None else rows[rows != row] for rows, row in zip(positives, own, strict=True)]


def join_neighbourhoods(parts: Sequence[tuple[Neighbourhoods, int]]) -> Neighbourhoods:
    """Several towns as one: databases (whose sizes are given) one after the other, and so the queries.

    A photo of another town is far from a query: it may be a negative.
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
    """Say before the first step that nothing can be mined here, and why."""
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
            f"{negatives}: lower negative_radius_m or negatives, or use a larger town"
        )


def no_memory(queries: int, remembered: int) -> Ints:
    """The memory of hard negatives before the first epoch: (Q, remembered) of -1."""
    return np.full((queries, remembered), -1, dtype=np.int64)


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
    """Mine one tuple for each of these queries: one matrix product and a top-k, no loop over queries.

    `queries` (T,) rows among all Q queries, all trainable. `query_descriptors` (T, D) theirs, `database_descriptors`
    (N, D), unit, on one device in any precision (cached: as of the last refresh). The negatives come from `pool` random
    database photos that geography allows, joined with the query's remembered ones; the nearest `negatives` are taken.
    With `margin` (NetVLAD's triplet) only those with d_n^2 < d_p^2 + margin are kept, perhaps none; SARE prunes
    nothing. A query's pool depends on `seed` and on the query alone, so it is the same on
    every device and however the queries are shared out. Returns the tuples and the new memory (Q, R): the R hardest of
    each query just mined.
    """
    if len(queries) != len(query_descriptors):
        raise ArgumentError(f"{len(queries)} queries, but {len(query_descriptors)} query descriptors")
    memory = memory.copy()
    at_once = max(1, SIMILARITIES_AT_ONCE // max(1, len(database_descriptors)))
    parts = []
    for start in range(0, len(queries), at_once):
        block = queries[start : start + at_once]
        similar = similarity(query_descriptors[start : start + at_once], database_descriptors)
        tuples, remembered = _mine_block(block, similar, neighbourhoods, memory, pool, negatives, seed, margin)
        memory[block] = remembered
        parts.append(tuples)
    return join(parts, negatives), memory


def join(parts: list[Tuples], negatives: int) -> Tuples:
    """Several lots of tuples as one; of none, the empty one."""
    nothing = Tuples(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, negatives), np.int64))
    parts = [nothing, *parts]
    return Tuples(
        np.concatenate([t.queries for t in parts]),
        np.concatenate([t.positives for t in parts]),
        np.concatenate([t.negatives for t in parts]),
    )


def _mine_block(
    block: Ints,
    similarity: Tensor,
    neighbourhoods: Neighbourhoods,
    memory: Ints,
    pool: int,
    negatives: int,
    seed: int,
    margin: float | None,
) -> tuple[Tuples, Ints]:
    """Tuples of the queries of one similarity matrix (T, N), and what each of these queries now remembers."""
    width = similarity.shape[1]
    positive = _mask([neighbourhoods.positives[q] for q in block], width).to(similarity.device)
    best, positive_row = similarity.masked_fill(~positive, -torch.inf).max(dim=1)
    near = _mask([neighbourhoods.near[q] for q in block], width).to(similarity.device)
    allowed = _draw_pools(block, near, torch.from_numpy(memory[block]).to(near.device), pool, seed)
    count = min(max(negatives, memory.shape[1]), width)
    value, row = similarity.masked_fill(~allowed, -torch.inf).topk(count, dim=1)
    row = row.masked_fill(value == -torch.inf, -1)
    remembered = _filled(row, memory.shape[1])
    if margin is not None:  # unit vectors: d^2 = 2 - 2 s, so d_n^2 < d_p^2 + margin says s_n > s_p - margin / 2
        row = row.masked_fill(value <= best[:, None] - margin / 2, -1)
    return Tuples(block, positive_row.cpu().numpy(), _filled(row, negatives)), remembered


def _filled(rows: Tensor, width: int) -> Ints:
    """(T, width): the first columns of `rows`, with -1 where there are fewer."""
    out = np.full((len(rows), width), -1, dtype=np.int64)
    first = rows[:, :width].cpu().numpy()
    out[:, : first.shape[1]] = first
    return out


def similarity(queries: Tensor, database: Tensor) -> Tensor:
    """(T, N) dot products in float32; half-precision caches are multiplied as they are where that is fast (GPU)."""
    if queries.device.type == "cpu" and queries.dtype != torch.float32:
        rows = max(1, (1 << 28) // max(1, database.shape[1]))  # 1 GiB of float32 copies at a time
        return torch.cat([queries.float() @ part.float().T for part in torch.split(database, rows)], dim=1)
    return (queries @ database.T).float()


def _mask(rows: list[Ints], width: int) -> Tensor:
    """(T, width) bool from ragged row numbers."""
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    line = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    mask[torch.from_numpy(line), torch.from_numpy(np.concatenate([*rows, np.zeros(0, np.int64)]))] = True
    return mask


def _draw_pools(block: Ints, near: Tensor, remembered: Tensor, pool: int, seed: int) -> Tensor:
    """(T, N) bool: `pool` random database photos that are not near the query, and those it remembers."""
    chosen = torch.zeros_like(near)
    key = random_keys(torch.from_numpy(block).to(near.device), near.shape[1], seed).masked_fill(near, -1)
    chosen.scatter_(1, key.topk(min(pool, near.shape[1]), dim=1).indices, True)
    line, column = torch.nonzero(remembered >= 0, as_tuple=True)
    chosen[line, remembered[line, column]] = True
    return chosen & ~near


def random_keys(queries: Tensor, width: int, seed: int) -> Tensor:
    """(T, width) int64 in [0, 2^62): a hash of (seed, query, column), the same on every device.

    Two rounds of a multiply-xorshift mixer on 64-bit integers; the products wrap, as they are meant to.
    """
    columns = torch.arange(width, device=queries.device, dtype=torch.int64)
    start = (seed * 2862933555777941757 + 2**63) % 2**64 - 2**63  # any seed, folded into a signed 64-bit number
    z = (queries[:, None] + 1) * -7046029254386353131 + (columns[None] + 1) * -4417276706812531889 + start
    for multiplier in (-4658895280553007687, -7723592293110705685):
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * multiplier
    return (z ^ ((z >> 31) & 0x1FFFFFFFF)) & 0x3FFFFFFFFFFFFFFF
