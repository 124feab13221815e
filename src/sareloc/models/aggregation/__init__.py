"""Feature map -> descriptor: NetVLAD, NetVLAD with contextual reweighting (CRN), GeM, average, maximum; whitening.

Every aggregation maps (B, C, h, w), for any h and w, to unit rows (B, dim). All of them compute in at least float32,
independent of the backbone's precision: bfloat16 is too coarse for a softmax as sharp as NetVLAD's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from sareloc.errors import ArgumentError, look_up
from sareloc.models.aggregation.aggregation import Aggregation, Option
from sareloc.models.aggregation.netvlad import CRN, NORM_EPS, NetVLAD, Norm
from sareloc.models.aggregation.pooling import Average, GeM, Maximum

__all__ = [
    "AGGREGATIONS",
    "CRN",
    "NORM_EPS",
    "Aggregation",
    "Average",
    "GeM",
    "Maximum",
    "NetVLAD",
    "Norm",
    "Option",
    "make_aggregation",
]

AGGREGATIONS: dict[str, Callable[..., Aggregation]] = {c.name: c for c in (NetVLAD, CRN, GeM, Average, Maximum)}


def make_aggregation(
    name: str,
    channels: int,
    options: Mapping[str, Option] = MappingProxyType({}),
    *,
    rng: torch.Generator | None = None,
) -> Aggregation:
    """The aggregation of this name for feature maps with `channels` channels, with random weights drawn from `rng`.

    Options: `clusters`, `bias` and `norm` (netvlad, crn), `p` (gem). Raises ArgumentError, which lists the known ones,
    if one is unknown.
    """
    kind = look_up(AGGREGATIONS, name, "aggregation")
    known = [k for k in inspect.signature(kind).parameters if k not in ("channels", "rng")]
    for option in options:
        if option not in known:
            raise ArgumentError(f"{name} has no option {option!r}: known are {', '.join(known) or 'none'}")
    return kind(channels, **options, rng=rng)
