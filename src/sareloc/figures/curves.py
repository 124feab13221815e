"""Curves of several models on common axes (recall@N, precision-recall, training), and the gradient magnitudes of losses
over the distances of positive and negative: the figures of the SARE paper, by autograd.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, need
from sareloc.evaluation import Report
from sareloc.evaluation.metrics import precision_recall
from sareloc.figures.style import FAINT, INK, Styles, new_figure, require_finite, series_styles, styled
from sareloc.losses import TupleLoss, make_loss
from sareloc.training import EpochRecord, best_epoch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_SCALE_RATIO = 30.0
"""The loss axis is logarithmic if the largest loss is more than this many times the smallest."""
_RING: Mapping[str, Any] = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "markeredgewidth": 1.8}


@dataclass(frozen=True, eq=False)
class PrecisionRecallCurve:
    """Precision and recall (%) over a threshold on the score of each query's first result, strictest threshold first.

    `thresholds`, `precision` and `recall` are (T,). `score` is what the threshold applies to: a confidence (accepted
    if at least the threshold) or a descriptor distance (accepted if at most the threshold).
    """

    thresholds: Floats
    precision: Floats
    recall: Floats
    score: Literal["confidence", "distance"]

    @staticmethod
    def of_report(report: Report) -> PrecisionRecallCurve:
        """The curve stored in a report, over the distance of the first result."""
        points = np.array([(p.distance, p.precision, p.recall) for p in report.curve]).reshape(-1, 3)
        return PrecisionRecallCurve(points[:, 0], points[:, 1], points[:, 2], score="distance")

    @staticmethod
    def of_confidence(confidence: Floats, right: Sequence[bool]) -> PrecisionRecallCurve:
        """The curve of confidences (Q,), NaN for a query without an answer, and whether each answer is right (Q,)."""
        thresholds, precision, recall = precision_recall(
            np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.bool_)
        )
        return PrecisionRecallCurve(thresholds, 100 * precision, 100 * recall, score="confidence")

    def at(self, threshold: float) -> tuple[float, float]:
        """Precision and recall (%) at the operating point; raises ArgumentError if no query passes the threshold."""
        passed = self.thresholds >= threshold if self.score == "confidence" else self.thresholds <= threshold
        if not passed.any():
            best = self.thresholds[0] if len(self.thresholds) else math.nan
            raise ArgumentError(f"no query has {self.condition(threshold)}: the best {self.score} is {best:.3g}")
        last = int(np.flatnonzero(passed)[-1])
        return float(self.precision[last]), float(self.recall[last])

    def condition(self, threshold: float) -> str:
        """The threshold as text, such as "confidence ≥ 0.5"."""
        return f"{self.score} {'≥' if self.score == 'confidence' else '≤'} {threshold:.3g}"


@styled
def draw_recall(reports: Mapping[str, Report], *, styles: Styles | None = None) -> Figure:
    """Recall@N over N of several reports, keyed by legend name; error bars: the 95 % interval of recall@1.

    `styles`: by legend name, as in other figures; default: in their order.
    """
    _require_some(reports, "no reports were given")
    styles = styles or series_styles(reports)
    figure = new_figure(6.0, 4.2)
    axes = figure.subplots()
    for number, (name, report) in enumerate(reports.items()):
        ns = sorted(report.recall)
        recall = require_finite([report.recall[n] for n in ns], f"recall of {name!r}")
        axes.plot(ns, recall, label=name, **styles[name].options)
        if report.recall_at_1_interval is not None and 1 in report.recall:
            low, high = require_finite(report.recall_at_1_interval, f"interval of {name!r}")
            # offset horizontally, so that the error bars of similar models do not overlap
            axes.errorbar(0.95 * 0.96**number, report.recall[1], [[report.recall[1] - low], [high - report.recall[1]]],
                          color=styles[name].colour, linewidth=1.2, capsize=2.5, fmt="none")  # fmt: skip
    every_n = sorted({n for report in reports.values() for n in report.recall})
    axes.set_xscale("log")  # models differ most at small N
    axes.set_xticks(every_n, map(str, every_n))
    axes.set_xticks([], minor=True)
    axes.set(xlabel="N (number of top results)", ylabel="recall@N (% of queries)")
    axes.set_title(_dataset_names(reports))
    _percent_axis(axes, "y")
    axes.legend(loc="lower right")
    return figure


@styled
def draw_precision_recall(
    curves: Mapping[str, PrecisionRecallCurve], at: float | None = None, *, styles: Styles | None = None
) -> Figure:
    """Precision over recall of several curves.

    Args:
        curves: by legend name.
        at: threshold of the operating point to mark; default: none.
        styles: by legend name, as in other figures; default: in the order of the curves.
    """
    _require_some(curves, "no curves were given")
    styles = styles or series_styles(curves)
    operating_point = None
    figure = new_figure(6.0, 4.2 + 0.2 * len(curves))
    axes = figure.subplots()
    for name, curve in curves.items():
        recall = require_finite(curve.recall, f"curve of {name!r}")
        precision = require_finite(curve.precision, f"curve of {name!r}")
        # above the highest score no query is answered: the curve starts there, not at an assumed precision of 100 %
        (line,) = axes.plot(
            recall, precision, label=name, markevery=[0, len(recall) - 1], clip_on=False, **styles[name].options
        )
        if at is not None:
            precision_at, recall_at = curve.at(at)
            axes.plot(recall_at, precision_at, **_RING, color=styles[name].colour, clip_on=False)
            line.set_label(f"{name}: precision {precision_at:.1f} %, recall {recall_at:.1f} %")
            operating_point = f"circled: {curve.condition(at)}"
    axes.set(xlabel="recall (% of all queries)", ylabel="precision (% of answered queries)")
    _percent_axis(axes, "x")
    _percent_axis(axes, "y")
    # the curves may cover any part of the axes: the legend is placed below them
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), title=operating_point, alignment="left")
    return figure


@styled
def draw_training(runs: Mapping[str, Sequence[EpochRecord]], *, styles: Styles | None = None) -> Figure:
    """Loss and validation recall over the epochs of training runs, keyed by legend name; the best epoch is circled.

    Epoch 0 is the model before training: it has a recall and no loss. The recall panel is left out if no run has a
    validation set. `styles`: by legend name, as in other figures; default: in their order.
    """
    _require_some(runs, "no training runs were given")
    styles = styles or series_styles(runs)
    judged = [name for name, history in runs.items() if any(not math.isnan(r.recall_5) for r in history)]
    figure = new_figure(9.0 if judged else 5.0, 3.8)
    panels = figure.subplots(1, 2 if judged else 1, squeeze=False)[0]
    for name, history in runs.items():
        look, epochs = styles[name], [record.epoch for record in history]
        trained = [record for record in history if record.epoch]
        loss = require_finite([record.loss for record in trained], f"loss of {name!r}")
        panels[0].plot([record.epoch for record in trained], loss, label=name, clip_on=False, **look.options)
        if name not in judged:
            continue
        recall = 100 * require_finite([record.recall_5 for record in history], f"recall@5 of {name!r}")
        panels[1].plot(epochs, recall, label=name, **look.options)
        best = best_epoch(tuple(history))
        panels[1].plot(best.epoch, 100 * best.recall_5, **_RING, color=look.colour)
        first = 100 * require_finite([record.recall_1 for record in history], f"recall@1 of {name!r}")
        panels[1].plot(epochs, first, alpha=0.45, **{**look.options, "marker": ""})
    panels[0].set(ylabel="loss")
    _scale_loss_axis(panels[0])
    panels[0].set_title("Loss")
    if judged:
        panels[1].set(ylabel="% of validation queries")
        panels[1].set_title("Recall@5 (circled: best), recall@1 (pale)")
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        shown = [record.epoch for history in runs.values() for record in history]
        axes.set_xlim(min(1, *shown) - 0.5, max(1, *shown) + 0.5)
        axes.margins(y=0.08)
    panels[-1].legend(loc="best")
    return figure


def _require_some(given: Mapping[str, object], complaint: str) -> None:
    if not given:
        raise ArgumentError(f"nothing to draw: {complaint}")


def _dataset_names(reports: Mapping[str, Report]) -> str:
    return ", ".join(dict.fromkeys(f"{report.dataset} {report.split}" for report in reports.values()))


def _scale_loss_axis(axes: Axes) -> None:
    """Use a logarithmic axis if the losses differ by orders of magnitude, as losses of different kinds do."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
    positive = values[values > 0]
    if len(positive) and positive.max() > LOG_SCALE_RATIO * positive.min():
        # linear below a hundredth of the largest loss, so that a loss of 0 can be shown
        axes.set_yscale("symlog", linthresh=max(positive.max() / 100, positive.min()))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(bottom=0)


def _percent_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """Set the limits to just over 100 % above and to the lowest value, rounded down to a multiple of 10, below."""
    low = axes.get_xlim()[0] if which == "x" else axes.get_ylim()[0]
    axes.locator_params(axis=which, steps=[1, 2, 5, 10])
    axes.set(**{f"{which}lim": (max(0, 10 * math.floor(low / 10)), 101)})


MAX_DISTANCE = 2.0  # between unit vectors
CELLS, CURVE_POINTS = 144, 400
RANDOM_PAIR = math.sqrt(2)  # the distance between random unit vectors of many dimensions


def paper_losses() -> dict[str, TupleLoss]:
    """The losses of the paper's figure by their titles there: margin 0.1 for triplet, 0.7 for contrastive."""
    return {
        "Triplet ranking": make_loss("triplet", margin=0.1),
        "Contrastive": make_loss("contrastive", margin=0.7),
        "Gaussian SARE": make_loss("sare-ind", kernel="gaussian"),
        "Cauchy SARE": make_loss("sare-ind", kernel="cauchy"),
        "Exponential SARE": make_loss("sare-ind", kernel="exponential"),
    }


def gradient_magnitudes(loss: TupleLoss, d_p: npt.ArrayLike, d_n: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Gradient magnitudes |dL/dp| and |dL/dn| of a loss with one negative, by autograd.

    The directions from the query to positive and negative are orthogonal.

    Args:
        loss: see `make_loss`.
        d_p: distance of the positive from the query.
        d_n: distance of the negative; broadcast against `d_p`, both results have the common shape.
    """
    to_positive, to_negative = np.broadcast_arrays(require_finite(d_p, "d_p"), require_finite(d_n, "d_n"))
    if min(to_positive.min(), to_negative.min()) < 0:
        raise ArgumentError("d_p and d_n must be at least 0: found a negative distance")
    axes = torch.eye(2, dtype=torch.float64)
    positive = (torch.tensor(to_positive.reshape(-1, 1)) * axes[0]).requires_grad_()  # (B, 2)
    negative = (torch.tensor(to_negative.reshape(-1, 1)) * axes[1]).requires_grad_()  # (B, 2)
    total = loss(torch.zeros_like(positive), positive, negative[:, None]).sum()
    of_positive, of_negative = torch.autograd.grad(total, (positive, negative))
    return (
        of_positive.norm(dim=1).numpy().reshape(to_positive.shape),
        of_negative.norm(dim=1).numpy().reshape(to_positive.shape),
    )


@styled
def draw_gradients(losses: Mapping[str, TupleLoss] | None = None) -> Figure:
    """The paper's figure: for each loss |dL/dp| (upper row) and |dL/dn| (lower row) over the distances d_n and d_p.

    Above the diagonal are hard negatives, nearer than the positive. Hatched: the gradient is 0. Default:
    `paper_losses`.
    """
    shown = paper_losses() if losses is None else losses
    _require_some(shown, "no losses were given")
    edges = np.linspace(0, MAX_DISTANCE, CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    figure = new_figure(2.3 * len(shown) + 0.6, 4.7)
    panels = figure.subplots(2, len(shown), sharex=True, sharey=True, squeeze=False)
    for column, (name, loss) in enumerate(shown.items()):
        magnitudes = gradient_magnitudes(loss, middles[:, None], middles[None, :])
        for axes, of, magnitude in zip(panels[:, column], "pn", magnitudes, strict=True):
            require_finite(magnitude, f"gradient of {name!r}")
            axes.set_facecolor("#f6f8fa")
            axes.patch.set_hatch("////")
            axes.patch.set_edgecolor(FAINT)
            colours = axes.pcolormesh(
                edges, edges, np.ma.masked_equal(magnitude, 0), cmap="viridis", vmin=0, rasterized=True
            )
            for colour, line in ((INK, "-"), ("white", "--")):  # visible on every colour
                axes.plot([0, MAX_DISTANCE], [0, MAX_DISTANCE], color=colour, linewidth=1.2, linestyle=line)
            axes.set(xlim=(0, MAX_DISTANCE), ylim=(0, MAX_DISTANCE), aspect="equal", xticks=(0, 1, 2), yticks=(0, 1, 2))
            axes.grid(visible=False)
            if axes is panels[0, column]:
                axes.set_title(name)
            bar = figure.colorbar(colours, ax=axes, shrink=0.8, aspect=16, pad=0.03)
            bar.outline.set_visible(False)
            axes.set_gid(f"{name}, gradient of {of}")
    for row, of in zip(
        panels, ("gradient of the positive  $|∂L/∂p|$", "gradient of the negative  $|∂L/∂n|$"), strict=True
    ):
        row[0].set_ylabel(f"{of}\n\ndistance $d_p$")
    for axes in panels[1]:
        axes.set_xlabel("distance $d_n$")
    figure.supxlabel(
        "above the dashed line: negatives nearer than the positive · hatched: zero gradient · one scale per panel",
        fontsize=9,
    )
    return figure


@styled
def draw_gradient_decay(losses: Mapping[str, TupleLoss] | None = None, d_p: float = RANDOM_PAIR) -> Figure:
    """The gradient of the negative, |dL/dn|, over its distance d_n, with the positive at distance `d_p`.

    The paper's second figure, at d_p = sqrt(2): the gradients of triplet and contrastive loss become 0 beyond their
    margins, those of SARE decay smoothly. Default: `paper_losses`.
    """
    shown = paper_losses() if losses is None else losses
    _require_some(shown, "no losses were given")
    d_n = np.linspace(0, MAX_DISTANCE, CURVE_POINTS + 1)[1:]
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    for number, (name, look) in enumerate(series_styles(shown).items()):
        magnitude = require_finite(gradient_magnitudes(shown[name], d_p, d_n)[1], f"gradient of {name!r}")
        axes.plot(d_n, magnitude, label=name, markevery=(20 + 9 * number, 57), clip_on=False, **look.options)
    axes.axvline(d_p, color=INK, linewidth=0.8, alpha=0.5)
    at = "√2" if math.isclose(d_p, RANDOM_PAIR) else f"{d_p:g}"
    top = need("matplotlib.transforms", "plot").blended_transform_factory(axes.transData, axes.transAxes)
    axes.text(d_p, 1.01, f"$d_p$ = {at}", transform=top, ha="center", va="bottom")
    axes.set(
        xlabel="distance $d_n$ of the negative", ylabel="gradient of the negative  $|∂L/∂n|$", xlim=(0, MAX_DISTANCE)
    )
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure
