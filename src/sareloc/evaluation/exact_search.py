"""Exact search: the k nearest descriptors, in parts, on any device, ties by row number."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Vectors = npt.NDArray[np.float32]

ROWS_AT_ONCE, QUERIES_AT_ONCE = 16384, 512  # so many products at a time: 32 MB
LAST_ROW = 2**32 - 1


def search(
    database: Vectors,
    queries: Vectors,
    k: int,
    *,
    absent: Collection[int] = (),
    device: torch.device | str = "cpu",
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The k nearest database rows of each query, exactly, and their distances: (Q, k) and (Q, k), nearest first.

    database (N, dim), queries (Q, dim): unit descriptors. Equal products are ordered by row number. Rows in `absent`
    are never found. Past the last row: -1 and inf. The database is read once, in parts, so that it may be a memory
    map larger than the memory.
    """
    asked = torch.split(torch.from_numpy(queries).to(device), QUERIES_AT_ONCE)
    missing = torch.as_tensor(sorted(absent), dtype=torch.int64, device=device)
    best = [_keys(some.new_full((len(some), k), -torch.inf), LAST_ROW) for some in asked]
    for start in range(0, len(database), ROWS_AT_ONCE):
        part = torch.from_numpy(np.array(database[start : start + ROWS_AT_ONCE])).to(device)
        rows = torch.arange(start, start + len(part), device=device)
        for i, some in enumerate(asked):
            products = (some @ part.T).masked_fill_(torch.isin(rows, missing), -torch.inf)
            best[i] = torch.cat([best[i], _highest(products, rows, k)], dim=1).topk(k).values
    keys = torch.cat(best).cpu()
    cosines = _in_order((keys >> 32).int()).view(torch.float32).double()
    found = cosines > -torch.inf
    rankings = torch.where(found, LAST_ROW - (keys & LAST_ROW), -1)
    return rankings.numpy(), torch.where(found, (2 - 2 * cosines).clamp(min=0).sqrt(), torch.inf).numpy()


def _highest(products: Tensor, rows: Tensor, k: int) -> Tensor:
    """Keys (Q, k) of the k highest products of each query."""
    k = min(k, len(rows))
    values, columns = products.topk(k)
    keys = _keys(values, rows[columns])
    # where more than k reach the last value, topk has chosen among equals as it liked
    unsure = (products >= values[:, -1:]).sum(dim=1) > k
    if unsure.any():
        keys[unsure] = _keys(products[unsure], rows).topk(k).values
    return keys


def _keys(products: Tensor, rows: Tensor | int) -> Tensor:
    """One int64 for each product and its row, in the order of results: by product, equal ones by the lower row."""
    return (_in_order(products.view(torch.int32)).long() << 32) | (LAST_ROW - rows)


def _in_order(bits: Tensor) -> Tensor:
    """The bits of floats as integers of the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
