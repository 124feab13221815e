"""The gains of an adaptation: recall and answers before and after, on parts of the area that it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sareloc.adapt.learn import Queries, bootstrap_gain, first_right
from sareloc.adapt.training_data import Source
from sareloc.arrays import Bools, Floats, Ints, Vectors
from sareloc.encode import Encoded
from sareloc.geo import ecef_from_wgs84
from sareloc.geometry.adaptation import Adaptation, Step
from sareloc.localize import Localizer
from sareloc.localize.calibration import make_trials, search_depth
from sareloc.localize.estimate import CANDIDATES
from sareloc.localize.photo_calibration import FAR_M, Judged, judge_all, verifying

INTERVAL = (2.5, 97.5)


@dataclass(frozen=True)
class Gain:
    """A share of queries before and after, and the 95 % interval of the difference, in percent."""

    queries: int
    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True)
class HeldOutGains:
    """The gains for one kind of queries in the held-out part of the area."""

    kind: str
    """Such as "photos of the map": each without the photos of its own spot."""
    recall_1: Gain
    """Queries whose nearest photo, by the search vector alone, was taken within 25 m."""
    answered: Gain | None
    """Queries that are answered, with verification, and correctly: within 25 m, with a confidence of 0.5 or more."""
    rejected: Gain | None
    """The same queries without the map's photos within 200 m: those that are not answered."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What was found before and after for n queries of one kind, in these cells."""

    cells: Ints
    before: Bools
    after: Bools

    def gain(self, rng: np.random.Generator) -> tuple[Gain, Floats]:
        """The gain, and the draws of a paired bootstrap over cells."""
        drawn = 100 * bootstrap_gain(self.after.astype(np.float64) - self.before, self.cells, rng)
        low, high = np.percentile(drawn, INTERVAL).tolist()
        return Gain(len(self.cells), 100 * float(self.before.mean()), 100 * float(self.after.mean()), low, high), drawn

    @staticmethod
    def join(parts: Sequence[Answers]) -> Answers:
        """Those of several folds."""
        return Answers(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("cells", "before", "after"))
        )


def recall_answers(queries: Queries, database: Vectors, adaptation: Adaptation | None) -> Answers:
    """Whether the nearest photo is right, by the search vectors (N, D) of the map alone, and by the adapted ones.

    adaptation: None: no change, and after is as before.
    """
    before = first_right(queries, database)
    if adaptation is None:
        return Answers(queries.cells, before, before)
    adapted = replace(queries, vectors=adaptation(queries.vectors))
    return Answers(queries.cells, before, first_right(adapted, adaptation(database)))


def judge(localizer: Localizer, encoded: Sequence[Encoded], source: Source, rows: Ints) -> Judged:
    """The answers of a localizer to queries, twice each: as they are, and as if the map did not show their places.

    Args:
        localizer: verifies matches.
        encoded: the queries, with vectors as the map has them.
        source: of the queries.
        rows: their rows there.
    """
    candidates, truth_m = localizer.search.candidates or CANDIDATES, ecef_from_wgs84(source.latlon[rows])
    matches = localizer.retrieve(encoded, search_depth(localizer.place_map, truth_m, candidates, FAR_M))
    trials = make_trials(
        matches, truth_m, candidates, same_spot_m=source.same_spot_m, absent_m=FAR_M,
        verify=verifying(localizer, encoded, matches),
    )  # fmt: skip
    return judge_all(trials, [localizer.calibration] * len(trials))


def verified_answers(
    before: Localizer, after: tuple[Localizer, Adaptation] | None, source: Source, rows: Ints
) -> tuple[Answers, Answers] | None:
    """Whether queries of these rows are answered correctly, and whether they are rejected where they are absent.

    None if no query can be read, or if the map has so few photos that some are never absent.

    Args:
        before: the localizer of the map.
        after: that of the adapted map, and the adaptation from the vectors of the former to those of the latter; None:
            no change, and after is as before.
        source: of the queries.
        rows: of the queries.
    """
    found = source.encode(rows)
    used = np.array([row for row, _ in found], dtype=np.int64)
    queries = [one for _, one in found]
    if not queries:
        return None
    old = new = judge(before, queries, source, used)
    if after is not None:
        adapted, change = after
        changed = [replace(query, vector=change(query.vector)) for query in queries]
        new = judge(adapted, changed, source, used)
    if len(old.absent) != 2 * len(used) or not np.array_equal(old.absent, new.absent):
        return None
    cells, absent = source.cells[used], old.absent
    right = [(one.answered & one.right)[~absent] for one in (old, new)]
    rejected = [~one.answered[absent] for one in (old, new)]
    return Answers(cells, right[0], right[1]), Answers(cells, rejected[0], rejected[1])


Fits = Sequence[tuple[Step | None, Sequence[tuple[Source, Queries, Ints]]]]
"""Of each fold: the adaptation by the others, None if no change is better there, and the queries in it with their rows.
Queries of a fold without a change count, as no gain."""


def recall_gains(
    fits: Fits, vectors: Vectors, dim: int, rng: np.random.Generator
) -> tuple[list[HeldOutGains], tuple[float, float, float]]:
    """The gains of recall@1 of each kind of queries, and their mean with its interval.

    Args:
        fits: of each fold.
        vectors: search vectors of the map (N, D).
        dim: of the descriptors in them.
        rng: of the bootstrap.
    """
    parts: dict[str, list[Answers]] = {}
    for step, inside in fits:
        for source, queries, _ in inside:
            change = None if step is None else Adaptation(dim, (step,))
            parts.setdefault(source.kind, []).append(recall_answers(queries, vectors, change))
    gains = {kind: Answers.join(found).gain(rng) for kind, found in parts.items()}
    found = [HeldOutGains(kind, gain, None, None) for kind, (gain, _) in gains.items()]
    if not found:
        return [], (0.0, 0.0, 0.0)
    low, high = np.percentile(np.mean([drawn for _, drawn in gains.values()], axis=0), INTERVAL).tolist()
    return found, (float(np.mean([one.recall_1.after - one.recall_1.before for one in found])), low, high)


def objection(gains: Sequence[HeldOutGains], mean: tuple[float, float, float]) -> str | None:
    """Why an adapted map is not written, by its gains and the mean gain of recall@1 with its interval; None: it is."""
    if not gains or mean[1] <= 0:
        found = f"{mean[0]:+.1f} points, at least {mean[1]:+.1f}"
        return f"the 95 % interval of the gain of recall@1 is not above zero: {found}"
    for one in gains:
        for gain, what in ((one.recall_1, "recall@1"), (one.answered, "correct answers"), (one.rejected, "rejections")):
            if gain is not None and gain.high < 0:
                return f"{what} of {one.kind} fall, from {gain.before:.1f} to {gain.after:.1f} %"
    return None
