"""The few functions that must not overflow, cancel or divide by zero, so that every loss built on them does not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def root(squared: Tensor) -> Tensor:
    """The square root of values >= 0, with gradient 0 where the value is 0 (where the true one is infinite).

    Two equal descriptors thus pull on each other with no force: the direction of the force is undefined there.
    """
    is_zero = squared == 0
    return torch.where(is_zero, 1.0, squared).sqrt().masked_fill(is_zero, 0.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), exact to the last digits for every x (torch's own switches to x above 20)."""
    return -F.logsigmoid(-x)


def log1p_sum_exp(x: Tensor) -> Tensor:
    """log(1 + sum exp(x)) over the last dimension (B, N) -> (B,).

    Written so that a sum far below 1 is kept: adding it to 1 first would round the loss, and its gradient, to 0.
    """
    return softplus(x.logsumexp(dim=-1))
