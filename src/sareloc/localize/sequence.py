"""A walk's photos support one another: places count by what the photos before and after say. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError
from sareloc.localize.fusion import PLACE_M, kernel

Floats = npt.NDArray[np.float64]

HEARD = 5
"""Whether a photo was taken in the map at all is asked of those up to so many steps away."""
TRUST = 0.4
"""Photos of one walk look alike, and so do their mistakes: each counts as this part of an independent witness."""
JUMP = 0.02
"""The chance that a walk goes on anywhere in the map: cuts happen."""
UNSEEN = 1.0
"""So many places of which no photo tells are thought to be within reach of each one."""
CHANCE = 0.05
LEAST = 1e-9  # nothing is impossible: two photos may be sure and disagree


@dataclass(frozen=True, eq=False)
class Belief:
    """What one photo says by itself. Probabilities; what is left is "taken outside of the map"."""

    points_m: Floats
    """(K, 3) the places where it may have been taken, earth-centred metres; K may be 0."""
    chances: Floats
    """(K,) of each of them."""
    elsewhere: float
    """In the map, but at none of them."""

    @property
    def outside(self) -> float:
        """Of not having been taken in the map."""
        return max(0.0, 1.0 - float(self.chances.sum()) - self.elsewhere)


def support(beliefs: Sequence[Belief], reach_m: float | npt.ArrayLike, *, chance: float = CHANCE) -> list[Floats]:
    """The probability (K,) of each place that each photo believes in, given all photos of the walk.

    `reach_m`: how far apart two neighbouring photos can have been taken, one number or one for each of the T - 1 steps
    (a speed in m/s times the seconds between them). `chance`: how probable it is that two photos of the map, drawn at
    random, show the same place: the rarer, the more it means that photos agree.

    Two questions are asked apart. Where, if in the map: a hidden Markov chain over places, by the forward-backward
    algorithm (see `_Step`). Whether in the map: the odds of the photos around are multiplied, its own in full and
    the others' to the power `TRUST`. The chances are the product of both answers. Without photos: [].
    """
    if not 0 < chance <= 1:
        raise ArgumentError(f"a chance lies in 0 < chance <= 1: found {chance}")
    given, count = np.asarray(reach_m, dtype=np.float64), max(len(beliefs) - 1, 0)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count) or not (given >= 0).all():
        raise ArgumentError(
            f"a walk of {len(beliefs)} photos has {count} steps, each of 0 m or more: found a reach of {given.tolist()}"
        )
    steps = [_Step(belief, chance) for belief in beliefs]
    reach = np.broadcast_to(given, count).tolist()
    ahead = _told(steps, reach)
    back = _told(steps[::-1], reach[::-1])[::-1]
    found = []
    for step, before, after, inside in zip(steps, ahead, back, _inside(beliefs), strict=True):
        together = before * after / step.prior * step.likelihood
        found.append(inside * together[:-1] / together.sum())
    return found


class _Step:
    """The states of one photo in the chain: its places, and last "elsewhere in the map"."""

    def __init__(self, own: Belief, chance: float) -> None:
        self.points_m = own.points_m
        self.chance = chance
        same = kernel(own.points_m, own.points_m)
        # points that stand together are one place: together they are as probable, beforehand, as a lone one
        each = chance / same.sum(axis=1)
        self.prior = np.append(each, max(1 - each.sum(), chance))
        self.prior /= self.prior.sum()
        # by Bayes' rule: what the photo says, over what was to be expected beforehand
        said = np.append(own.elsewhere + same @ own.chances / chance, own.elsewhere)
        self.likelihood = np.maximum(said, LEAST) if len(own.points_m) else np.ones(1)

    def onto(self, other: _Step, reach_m: float) -> Floats:
        """The probability (N + 1, M + 1) of each state of the next photo, for each state of this one.

        From a place to those within reach, each as probable as the other, beyond reach less by
        `exp(-(r - reach)^2 / (2 * 25 m^2))`; or to one of which nobody tells; or, by `JUMP`, anywhere.
        """
        apart = np.linalg.norm(self.points_m[:, None] - other.points_m[None], axis=2)
        near = np.exp(-(np.maximum(0.0, apart - reach_m) ** 2) / (2 * PLACE_M**2)) * other.prior[:-1]
        steps = np.column_stack([near, np.full(len(near), UNSEEN * self.chance)])
        steps /= steps.sum(axis=1, keepdims=True)
        return np.vstack([(1 - JUMP) * steps + JUMP * other.prior, other.prior])


def _told(steps: Sequence[_Step], reach_m: Sequence[float]) -> list[Floats]:
    """For each photo the probability of its states by what those before it say."""
    told = [step.prior for step in steps[:1]]
    for before, after, reach in zip(steps[:-1], steps[1:], reach_m, strict=True):
        heard = told[-1] * before.likelihood
        told.append(heard / heard.sum() @ before.onto(after, reach))
    return told


def _inside(beliefs: Sequence[Belief]) -> Floats:
    """The probability (T,) that each photo was taken in the map, by itself and by those around it."""
    out = np.clip([belief.outside if len(belief.points_m) else 0.5 for belief in beliefs], LEAST, 1 - LEAST)
    odds = np.log1p(-out) - np.log(out)
    heard = np.array([odds[max(0, row - HEARD) : row + HEARD + 1].sum() for row in range(len(odds))])
    return np.asarray(1 / (1 + np.exp(-(odds + TRUST * (heard - odds)))))
