"""Tuples: of the photos that geography allows, those that the descriptors make hard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.mining.neighbourhoods import Neighbourhoods
from sareloc.mining.pools import FEW, draws_some, find_candidates

Ints = npt.NDArray[np.int64]
NUMBERS_AT_ONCE = 1 << 22  # of a table of queries by photos, or of fetched descriptors: 16 MiB of float32


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
    """Mine one tuple for each of these queries: products and a top-k for many at a time, no loop over queries.

    `queries` (T,) rows among all Q queries, all trainable. `query_descriptors` (T, D) theirs, `database_descriptors`
    (N, D), unit, on one device in any precision (cached: as of the last refresh). The negatives come from `pool` random
    database photos that geography allows, joined with the query's remembered ones; the nearest `negatives` are taken.
    With `margin` (NetVLAD's triplet) only those with d_n^2 < d_p^2 + margin are kept, perhaps none; SARE prunes
    nothing. A query's pool depends on `seed` and on the query alone, so it is the same on every device and however the
    queries are shared out. In a large database the cost does not grow with it: only the pool is looked at. Returns the
    tuples and the new memory (Q, R): the R hardest of each query just mined.
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
    return join(parts, negatives), memory


def _hardest(
    block: Ints, rows: Tensor, similar: Tensor, positives: int, negatives: int, remembered: int, margin: float | None
) -> tuple[Tuples, Ints]:
    """Tuples of these queries, and what each of them now remembers.

    `rows` (T, C) of the database and how similar they are: in the first columns the query's potential positives.
    """
    best, column = similar[:, :positives].max(dim=1)
    positive = rows.gather(1, column[:, None])[:, 0]
    value, column = similar[:, positives:].topk(min(max(negatives, remembered), rows.shape[1] - positives), dim=1)
    row = rows[:, positives:].gather(1, column)
    kept = _filled(row, remembered)
    if margin is not None:  # unit vectors: d^2 = 2 - 2 s, so d_n^2 < d_p^2 + margin says s_n > s_p - margin / 2
        row = row.masked_fill(value <= best[:, None] - margin / 2, -1)
    return Tuples(block, positive.cpu().numpy(), _filled(row, negatives)), kept


def join(parts: list[Tuples], negatives: int) -> Tuples:
    """Several lots of tuples as one; of none, the empty one."""
    nothing = Tuples(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, negatives), np.int64))
    parts = [nothing, *parts]
    return Tuples(
        np.concatenate([t.queries for t in parts]),
        np.concatenate([t.positives for t in parts]),
        np.concatenate([t.negatives for t in parts]),
    )


def _filled(rows: Tensor, width: int) -> Ints:
    """(T, width): the first columns of `rows`, with -1 where there are fewer."""
    out = np.full((len(rows), width), -1, dtype=np.int64)
    first = rows[:, :width].cpu().numpy()
    out[:, : first.shape[1]] = first
    return out


def _table(rows: list[Ints]) -> Tensor:
    """(T, as many columns as the longest has) from ragged row numbers, with -1 where there are fewer."""
    lengths = np.array([len(r) for r in rows])
    table = np.full((len(rows), lengths.max(initial=0)), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < lengths[:, None]] = np.concatenate([*rows, np.zeros(0, np.int64)])
    return torch.from_numpy(table)


def similarity_with(queries: Tensor, database: Tensor, rows: Tensor) -> Tensor:
    """(T, C) dot products in float32 of each query with rows of its own (T, C) of the database; -inf where a row is -1.

    Where many of the database's rows are wanted, one product with all is cheaper than fetching them for each query.
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
    """(T, N) dot products in float32; half-precision caches are multiplied as they are where that is fast (GPU)."""
    at_once = max(1, (1 << 28) // max(1, database.shape[1]))  # 1 GiB of float32 copies at a time
    parts = [_float_on_cpu(queries) @ _float_on_cpu(part).T for part in torch.split(database, at_once)]
    return torch.cat(parts, dim=1).float()


def _float_on_cpu(descriptors: Tensor) -> Tensor:
    return descriptors.float() if descriptors.device.type == "cpu" else descriptors
