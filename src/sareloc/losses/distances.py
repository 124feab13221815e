"""The tuple layout that every loss takes, and the distances inside a tuple.

A batch of B tuples is a query (B, D), a positive (B, D) and negatives (B, N, D). Descriptors are usually unit
vectors; nothing here needs them to be.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.losses.numerics import root


def as_tuples(query: Tensor, positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same tuples, checked and in one precision: float64 if any of the three is, else float32.

    Half-precision descriptors, as a model under autocast gives, are widened here. The losses after it use elementwise
    operations and sums alone, which autocast leaves in this precision; a matrix product would be narrowed again.
    """
    for name, descriptors in (("query", query), ("positive", positive), ("negatives", negatives)):
        if not isinstance(descriptors, Tensor) or not descriptors.is_floating_point():
            kind = descriptors.dtype if isinstance(descriptors, Tensor) else type(descriptors).__name__
            raise ArgumentError(f"{name} must be a tensor of floating-point descriptors, found {kind}")
    if not _is_tuple_layout(query, positive, negatives):
        found = f"query {_shape(query)}, positive {_shape(positive)}, negatives {_shape(negatives)}"
        hint = ": reshape the negatives, negatives.view(B, N, D)" if negatives.dim() == 2 else ""
        raise ArgumentError(
            "a loss takes query (B, D), positive (B, D) and negatives (B, N, D), N and D at least 1; "
            f"found {found}{hint}"
        )
    dtype = reduce(torch.promote_types, (query.dtype, positive.dtype, negatives.dtype), torch.float32)
    return query.to(dtype), positive.to(dtype), negatives.to(dtype)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances |a - b|^2 over the last dimension, (..., D) and (..., D) -> (...).

    From the difference, not from dot products: |a|^2 + |b|^2 - 2 a.b cancels where a is near b, even to below 0.
    """
    return (a - b).square().sum(dim=-1)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances |a - b| over the last dimension; the gradient is 0 where a equals b."""
    return root(squared_distances(a, b))


def _is_tuple_layout(query: Tensor, positive: Tensor, negatives: Tensor) -> bool:
    if query.dim() != 2 or negatives.dim() != 3 or query.shape != positive.shape:
        return False
    tuples, count, dim = negatives.shape
    return (tuples, dim) == tuple(query.shape) and count >= 1 and dim >= 1


def _shape(descriptors: Tensor) -> str:
    return str(tuple(descriptors.shape))
