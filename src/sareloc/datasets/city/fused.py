"""Run a pixel function as one GPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled when it is called with CUDA tensors and plain elsewhere: a CPU may have no compiler, and its
    caches already hold what fusing would save."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        on_gpu = any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args)
        return (_compiled(function) if on_gpu else function)(*args, **kwargs)

    return call


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    # Not fullgraph: after many towns of different shapes torch stops compiling anew, and then plain steps must do.
    return torch.compile(function)
