"""Among which database photos a query's hard negatives are looked for: random ones, and those that it remembers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.mining.neighbourhoods import Neighbourhoods

Ints = npt.NDArray[np.int64]
FEW = 16
"""A share of the database below one in so many is few: the rest need not be looked at."""
SPARE_DRAWS = 64


def no_memory(queries: int, remembered: int) -> Ints:
    """The memory of hard negatives before the first epoch: (Q, remembered) of -1."""
    return np.full((queries, remembered), -1, dtype=np.int64)


def find_candidates(
    block: Ints, neighbourhoods: Neighbourhoods, memory: Ints, width: int, *, pool: int, seed: int, device: torch.device
) -> Tensor:
    """(T, pool + R) rows of the database, each once in a line, -1 where there are fewer.

    For each query of `block` (T,): `pool` random ones of `width` database photos that are not near it, then those of
    the R that it remembers (`memory`, (Q, R)) which are not among them.
    """
    queries = torch.from_numpy(block).to(device)
    near = [neighbourhoods.near[q] for q in block]
    draw = _draw_some if draws_some(neighbourhoods, width, pool) else _draw_among_all
    drawn = draw(queries, near, width, pool, seed)
    remembered = _without_near(torch.from_numpy(memory[block]).to(device), near, width)
    return _without_repeats(torch.cat([drawn, remembered], dim=1))


def draws_some(neighbourhoods: Neighbourhoods, width: int, pool: int) -> bool:
    """Whether so few are wanted and barred that drawing blindly and dropping some gives a whole pool.

    The same for every query, so that a pool does not depend on which queries are mined together.
    """
    return width > FEW * max([pool, *map(len, neighbourhoods.near)])


def _draw_among_all(queries: Tensor, near: list[Ints], width: int, pool: int, seed: int) -> Tensor:
    """(T, min(pool, width)): those with the largest random keys."""
    key = random_keys(queries, width, seed)
    key.view(-1)[_cells(near, width).to(key.device)] = -1
    value, rows = key.topk(min(pool, width), dim=1)
    return rows.masked_fill(value < 0, -1)


def _draw_some(queries: Tensor, near: list[Ints], width: int, pool: int, seed: int) -> Tensor:
    """(T, pool): the first that come up, without those near and those that came before. Its cost is the pool's."""
    rows = random_keys(queries, pool + pool // 4 + SPARE_DRAWS, seed) % width
    rows = _without_repeats(_without_near(rows, near, width))
    first = (rows < 0).byte().argsort(dim=1, stable=True)[:, :pool]
    return rows.gather(1, first)


def _without_near(rows: Tensor, near: list[Ints], width: int) -> Tensor:
    """The same rows (T, C), -1 for those near their query."""
    barred = torch.cat([_cells(near, width), torch.tensor([len(near) * width])]).to(rows.device)
    cells = rows + width * torch.arange(len(rows), device=rows.device)[:, None]
    return rows.masked_fill(barred[torch.searchsorted(barred, cells)] == cells, -1)


def _cells(rows: list[Ints], width: int) -> Tensor:
    """Ragged row numbers as places, rising, in a (T, width) table that is read line by line."""
    line = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    return torch.from_numpy(np.sort(line * width + np.concatenate([*rows, np.zeros(0, np.int64)])))


def _without_repeats(rows: Tensor) -> Tensor:
    """The same rows (T, C), -1 for those that stand further left in their line already."""
    values, order = rows.sort(dim=1, stable=True)
    again = torch.zeros_like(values, dtype=torch.bool)
    again[:, 1:] = values[:, 1:] == values[:, :-1]
    return rows.masked_fill(torch.zeros_like(again).scatter_(1, order, again), -1)


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
