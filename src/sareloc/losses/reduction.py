"""From one value per tuple to the one number that training takes the gradient of. The choice sets the step's scale.

The paper's learning rates belong to `mean_over_pairs`. With 10 negatives per tuple `mean_over_tuples` is 10 times
larger, so the same learning rate takes steps 10 times longer: whoever compares numbers must say which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from sareloc.errors import ArgumentError

DIVISORS: dict[str, Callable[[Sequence[int]], int]] = {"pairs": sum, "tuples": len}
"""By what a step's summed losses are divided, from the number of negatives of each of its tuples.

Training computes a step in parts and over several processes: each part's sum is divided by the whole step's number.
"""


def mean_over_pairs(losses: Tensor, negatives_per_tuple: int) -> Tensor:
    """The sum divided by all (tuple, negative) pairs of the batch: the authors' reduction, for every loss alike.

    `losses` (B,) -> scalar, `sum(losses) / (B N)`. For SARE-Joint too, where a tuple has one term and not N: the
    paper's batch of 4 tuples with 10 negatives is divided by 40.
    """
    if isinstance(negatives_per_tuple, bool) or not isinstance(negatives_per_tuple, int) or negatives_per_tuple < 1:
        raise ArgumentError(f"negatives_per_tuple must be a whole number of at least 1, found {negatives_per_tuple!r}")
    return mean_over_tuples(losses) / negatives_per_tuple


def mean_over_tuples(losses: Tensor) -> Tensor:
    """The mean of the tuples' values, whatever their number of negatives: what OpenIBL does for SARE-Joint.

    `losses` (B,) -> scalar, `sum(losses) / B`: `negatives_per_tuple` times the authors' reduction.
    """
    if losses.dim() != 1 or len(losses) == 0:
        raise ArgumentError(f"losses must be one value per tuple, (B,) with B at least 1; found {tuple(losses.shape)}")
    return losses.mean()
