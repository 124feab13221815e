"""Feature map -> descriptor: NetVLAD, CRN, VLAD, SALAD, MegaLoc's head, BoQ, MixVPR, GeM, CosPlace's head, and others.

Every aggregation maps (B, C, h, w), for any h and w unless it says otherwise, to unit rows (B, dim). All of them
compute in at least float32, independent of the backbone's precision: bfloat16 is too coarse for a softmax as sharp as
NetVLAD's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from sareloc.errors import ArgumentError, look_up
from sareloc.models.aggregation.aggregation import (
    CRN,
    NORM_EPS,
    VLAD,
    Aggregation,
    Average,
    ClassToken,
    CosPlace,
    GeM,
    Maximum,
    NetVLAD,
    Norm,
    Option,
)
from sareloc.models.aggregation.heads import SALAD, BoQ, MegaLoc, MixVPR

__all__ = [
    "AGGREGATIONS",
    "CRN",
    "NORM_EPS",
    "SALAD",
    "VLAD",
    "Aggregation",
    "Average",
    "BoQ",
    "ClassToken",
    "CosPlace",
    "GeM",
    "Maximum",
    "MegaLoc",
    "MixVPR",
    "NetVLAD",
    "Norm",
    "Option",
    "make_aggregation",
]

KINDS = (NetVLAD, CRN, VLAD, GeM, CosPlace, Average, Maximum, ClassToken, SALAD, MegaLoc, MixVPR, BoQ)
AGGREGATIONS: dict[str, Callable[..., Aggregation]] = {kind.name: kind for kind in KINDS}


def make_aggregation(
    name: str,
    channels: int,
    options: Mapping[str, Option] = MappingProxyType({}),
    *,
    rng: torch.Generator | None = None,
) -> Aggregation:
    """The aggregation of this name, with random weights.

    Args:
        name: one of `AGGREGATIONS`.
        channels: of the feature maps.
        options: arguments of its class, such as `clusters` (netvlad, crn, vlad, salad) or `out_dim` (cosplace,
            megaloc).
        rng: the source of random weights; default: torch's generator.

    Raises:
        ArgumentError: if the name or an option is unknown; it lists the known ones.
    """
    kind = look_up(AGGREGATIONS, name, "aggregation")
    known = [k for k in inspect.signature(kind).parameters if k not in ("channels", "rng")]
    for option in options:
        if option not in known:
            raise ArgumentError(f"{name} has no option {option!r}: known are {', '.join(known) or 'none'}")
    return kind(channels, **options, rng=rng)
