"""Recall@N, precision-recall and training, as curves of several models on one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError
from sareloc.evaluation import Report
from sareloc.evaluation.metrics import precision_recall
from sareloc.figures.style import drawn, finite, look_of, new_figure
from sareloc.training import EpochRecord
from sareloc.training.loop import best_epoch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FAR_APART = 30.0
_RING: Mapping[str, Any] = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "markeredgewidth": 1.8}


@dataclass(frozen=True, eq=False)
class SurenessCurve:
    """Precision and recall (%) when only answers of at least a sureness are given, from the surest down.

    `thresholds` (T,) are confidences (an answer needs at least that much) or distances (at most that much).
    """

    thresholds: Floats
    precision: Floats
    recall: Floats
    of: Literal["confidence", "distance"]

    @staticmethod
    def of_report(report: Report) -> SurenessCurve:
        """Over the distance to the first result, as the report has it."""
        points = np.array([(p.distance, p.precision, p.recall) for p in report.curve]).reshape(-1, 3)
        return SurenessCurve(points[:, 0], points[:, 1], points[:, 2], of="distance")

    @staticmethod
    def of_confidence(confidence: Floats, right: Sequence[bool]) -> SurenessCurve:
        """Over the confidence (Q,) of each query's answer, and whether it is right (Q,)."""
        thresholds, precision, recall = precision_recall(
            np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.bool_)
        )
        return SurenessCurve(thresholds, 100 * precision, 100 * recall, of="confidence")

    def at(self, threshold: float) -> tuple[float, float]:
        """Precision and recall (%) of the operating point; an ArgumentError where it gives no answer at all."""
        sure = self.thresholds >= threshold if self.of == "confidence" else self.thresholds <= threshold
        if not sure.any():
            surest = self.thresholds[0] if len(self.thresholds) else math.nan
            raise ArgumentError(f"no answer has {self.words(threshold)}: the surest has {self.of} {surest:.3g}")
        last = int(np.flatnonzero(sure)[-1])
        return float(self.precision[last]), float(self.recall[last])

    def words(self, threshold: float) -> str:
        """The threshold as a condition on answers."""
        return f"{self.of} {'≥' if self.of == 'confidence' else '≤'} {threshold:.3g}"


@drawn
def draw_recall(reports: Mapping[str, Report]) -> Figure:
    """Recall@N over N for several reports, by the names the legend shows; bars: the 95 % interval of recall@1."""
    _some(reports, "no reports were given")
    figure = new_figure(6.0, 4.2)
    axes = figure.subplots()
    for number, (name, report) in enumerate(reports.items()):
        look, ns = look_of(number), sorted(report.recall)
        recall = finite([report.recall[n] for n in ns], f"recall of {name!r}")
        axes.plot(ns, recall, color=look.colour, linestyle=look.line, marker=look.marker, label=name)
        if report.recall_at_1_interval is not None and 1 in report.recall:
            low, high = finite(report.recall_at_1_interval, f"interval of {name!r}")
            # side by side, so that the bars of similar models do not hide one another
            axes.errorbar(0.95 * 0.96**number, report.recall[1], [[report.recall[1] - low], [high - report.recall[1]]],
                          color=look.colour, linewidth=1.2, capsize=2.5, fmt="none")  # fmt: skip
    every_n = sorted({n for report in reports.values() for n in report.recall})
    axes.set_xscale("log")  # the first results are what differs
    axes.set_xticks(every_n, map(str, every_n))
    axes.set_xticks([], minor=True)
    axes.set(xlabel="N, first results looked at", ylabel="recall@N (% of queries)")
    axes.set_title(_datasets(reports))
    _percent_axis(axes, "y")
    axes.legend(loc="lower right")
    return figure


@drawn
def draw_precision_recall(curves: Mapping[str, SurenessCurve], at: float | None = None) -> Figure:
    """Precision over recall as answers of less and less sureness are given; `at`: the operating point, marked."""
    _some(curves, "no curves were given")
    operating_at = None
    figure = new_figure(6.0, 4.2 + 0.2 * len(curves))
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        look = look_of(number)
        recall, precision = finite(curve.recall, f"curve of {name!r}"), finite(curve.precision, f"curve of {name!r}")
        # before the surest answer nothing is answered: the curve begins there, not at an invented precision of 100 %
        (line,) = axes.plot(recall, precision, color=look.colour, linestyle=look.line, label=name,
                            marker=look.marker, markevery=[0, len(recall) - 1], clip_on=False)  # fmt: skip
        if at is not None:
            precise, found = curve.at(at)
            axes.plot(found, precise, **_RING, color=look.colour, clip_on=False)
            line.set_label(f"{name}: {precise:.1f} % right, {found:.1f} % found")
            operating_at = f"ringed: {curve.words(at)}"
    axes.set(xlabel="recall (% of all queries answered rightly)", ylabel="precision (% of answers that are right)")
    _percent_axis(axes, "x")
    _percent_axis(axes, "y")
    # such curves may run anywhere: the legend stands below them
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), title=operating_at, alignment="left")
    return figure


@drawn
def draw_training(runs: Mapping[str, Sequence[EpochRecord]]) -> Figure:
    """Loss and validation recall over the epochs of one or several runs; the best epoch is ringed. Epoch 0: the start.

    Runs without a validation set have no recall to show: where none has, the loss stands alone.
    """
    _some(runs, "no training runs were given")
    judged = [name for name, history in runs.items() if any(not math.isnan(r.recall_5) for r in history)]
    figure = new_figure(9.0 if judged else 5.0, 3.8)
    panels = figure.subplots(1, 2 if judged else 1, squeeze=False)[0]
    for number, (name, history) in enumerate(runs.items()):
        look, epochs = look_of(number), [record.epoch for record in history]
        style = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
        learned = [record for record in history if record.epoch]  # epoch 0 is the start: it has no loss
        loss = finite([record.loss for record in learned], f"loss of {name!r}")
        panels[0].plot([record.epoch for record in learned], loss, label=name, clip_on=False, **style)
        if name not in judged:
            continue
        recall = 100 * finite([record.recall_5 for record in history], f"recall@5 of {name!r}")
        panels[1].plot(epochs, recall, label=name, **style)
        best = best_epoch(tuple(history))
        panels[1].plot(best.epoch, 100 * best.recall_5, **_RING, color=look.colour)
        first = 100 * finite([record.recall_1 for record in history], f"recall@1 of {name!r}")
        panels[1].plot(epochs, first, alpha=0.45, **{**style, "marker": ""})
    panels[0].set(ylabel="loss")
    _far_apart_on_a_log_axis(panels[0])
    panels[0].set_title("Loss")
    if judged:
        panels[1].set(ylabel="% of validation queries")
        panels[1].set_title("Recall@5 (ringed: best), recall@1 (pale)")
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        shown = [record.epoch for history in runs.values() for record in history]
        axes.set_xlim(min(1, *shown) - 0.5, max(1, *shown) + 0.5)
        axes.margins(y=0.08)
    panels[-1].legend(loc="best")
    return figure


def _some(given: Mapping[str, object], complaint: str) -> None:
    if not given:
        raise ArgumentError(f"there is nothing to draw: {complaint}")


def _datasets(reports: Mapping[str, Report]) -> str:
    return ", ".join(dict.fromkeys(f"{report.dataset} {report.split}" for report in reports.values()))


def _far_apart_on_a_log_axis(axes: Axes) -> None:
    """Losses of different kinds differ by orders of magnitude: on a plain axis all but one would lie flat."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
    some = values[values > 0]
    if len(some) and some.max() > FAR_APART * some.min():
        # below a hundredth of the largest the axis is plain, so that a loss of zero has a place
        axes.set_yscale("symlog", linthresh=max(some.max() / 100, some.min()))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(bottom=0)


def _percent_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """Up to just over 100 %, from the lowest value's ten."""
    low = axes.get_xlim()[0] if which == "x" else axes.get_ylim()[0]
    axes.locator_params(axis=which, steps=[1, 2, 5, 10])
    axes.set(**{f"{which}lim": (max(0, 10 * math.floor(low / 10)), 101)})
