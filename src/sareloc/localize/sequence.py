"""A walk's photos support one another: candidates count by what the photos before and after say. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError
from sareloc.localize.fusion import PLACE_M

Floats = npt.NDArray[np.float64]

JUMP = 0.01
"""How well two positions out of each other's reach go together, against 1 for two of no relation: cuts happen."""
LOST = 0.2
"""How well a position goes together with a neighbour that shows none of its candidates."""
TRUST = 0.4
"""Photos of one walk look alike, and so do their mistakes: a step counts as this part of an independent proof."""
CHANCE = 0.05


@dataclass(frozen=True, eq=False)
class Belief:
    """What one photo says by itself: the probability of each of its candidates; the rest is "none of them"."""

    points_m: Floats
    """(K, 3) earth-centred metres; K may be 0."""
    chances: Floats
    """(K,) summing to at most 1."""

    @property
    def none(self) -> float:
        """The probability that the photo shows none of the candidates."""
        return max(0.0, 1.0 - float(self.chances.sum()))


def support(beliefs: Sequence[Belief], reach_m: float | npt.ArrayLike, *, chance: float = CHANCE) -> list[Floats]:
    """The probability (K,) of each candidate of each photo, given all photos of the walk.

    `reach_m`: how far apart two neighbouring photos can have been taken, one number or one for each of the T - 1 steps
    (a speed in m/s times the seconds between them). `chance`: how probable it is that two photos of the map, drawn at
    random, stand so near to each other: the rarer, the more it means that candidates do.

    A hidden Markov chain, by the forward-backward algorithm: states are a photo's candidates and "none"; neighbouring
    candidates at distance r go together by `chance^-0.4` within reach, by `exp(-(r - reach)^2 / (2 * 25 m^2))` of that
    beyond, at least `JUMP`; a candidate and "none" by `LOST`; "none" twice by 1. One photo alone keeps its chances.
    """
    if not 0 < chance <= 1:
        raise ArgumentError(f"a chance lies in 0 < chance <= 1: found {chance}")
    given, count = np.asarray(reach_m, dtype=np.float64), max(len(beliefs) - 1, 0)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count) or not (given >= 0).all():
        raise ArgumentError(
            f"a walk of {len(beliefs)} photos has {count} steps, each of 0 m or more: found a reach of {given.tolist()}"
        )
    steps = np.broadcast_to(given, count)
    links = [
        _link(a.points_m, b.points_m, float(reach), chance**-TRUST)
        for a, b, reach in zip(beliefs[:-1], beliefs[1:], steps, strict=True)
    ]
    alone = [np.append(belief.chances, belief.none) for belief in beliefs]
    ahead = _pass(alone, links)
    back = _pass(alone[::-1], [link.T for link in links[::-1]])[::-1]
    together = [f * own * b for f, own, b in zip(ahead, alone, back, strict=True)]
    return [(joint / joint.sum())[:-1] for joint in together]


def _pass(alone: list[Floats], links: list[Floats]) -> list[Floats]:
    """For each photo what those before it say of its states."""
    said = [np.ones(len(states)) for states in alone[:1]]
    for own, link in zip(alone[:-1], links, strict=True):
        heard = (said[-1] * own) @ link
        said.append(heard / heard.sum())
    return said


def _link(a: Floats, b: Floats, reach_m: float, gain: float) -> Floats:
    """How well the states of two neighbours go together: (K + 1, L + 1), the last being "none"."""
    apart = np.linalg.norm(a[:, None] - b[None], axis=2)
    beyond = np.maximum(0.0, apart - reach_m)
    table = np.full((len(a) + 1, len(b) + 1), LOST)
    table[:-1, :-1] = np.maximum(JUMP, gain * np.exp(-(beyond**2) / (2 * PLACE_M**2)))
    table[-1, -1] = 1.0
    return table
