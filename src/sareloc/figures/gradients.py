"""Gradient magnitudes of losses over the distances of positive and negative: the SARE paper's figures, by autograd."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, need
from sareloc.figures.style import FAINT, INK, new_figure, require_finite, series_style, styled
from sareloc.losses import TupleLoss, make_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    `d_p` and `d_n` are the distances of positive and negative from the query, broadcast against each other; both
    results have their common shape. The directions from the query to positive and negative are orthogonal.
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
    shown = _require_some(paper_losses() if losses is None else losses)
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
    shown = _require_some(paper_losses() if losses is None else losses)
    d_n = np.linspace(0, MAX_DISTANCE, CURVE_POINTS + 1)[1:]
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    for number, (name, loss) in enumerate(shown.items()):
        look = series_style(number)
        magnitude = require_finite(gradient_magnitudes(loss, d_p, d_n)[1], f"gradient of {name!r}")
        axes.plot(d_n, magnitude, color=look.colour, linestyle=look.line, label=name,
                  marker=look.marker, markevery=(20 + 9 * number, 57), clip_on=False)  # fmt: skip
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


def _require_some(losses: Mapping[str, TupleLoss]) -> Mapping[str, TupleLoss]:
    if not losses:
        raise ArgumentError("nothing to draw: no losses were given")
    return losses
