"""How hard each loss pulls and pushes: the paper's figure of gradient magnitudes, computed from our losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, need
from sareloc.figures.style import FAINT, INK, drawn, finite, look_of, new_figure
from sareloc.losses import TupleLoss, make_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FARTHEST = 2.0  # between unit vectors
CELLS, CURVE_POINTS = 144, 400
RANDOM_PAIR = math.sqrt(2)  # how far apart unit vectors of many dimensions are when nothing has been learned


def paper_losses() -> dict[str, TupleLoss]:
    """The losses of the paper's figure, by the names it shows: margin 0.1 for triplet, 0.7 for contrastive."""
    return {
        "Triplet ranking": make_loss("triplet", margin=0.1),
        "Contrastive": make_loss("contrastive", margin=0.7),
        "Gaussian SARE": make_loss("sare-ind", kernel="gaussian"),
        "Cauchy SARE": make_loss("sare-ind", kernel="cauchy"),
        "Exponential SARE": make_loss("sare-ind", kernel="exponential"),
    }


def gradient_magnitudes(loss: TupleLoss, d_p: npt.ArrayLike, d_n: npt.ArrayLike) -> tuple[Floats, Floats]:
    """How long the gradients of a loss with one negative are: |dL/dp| and |dL/dn|, by autograd.

    `d_p` and `d_n` are the distances of positive and negative from the query, broadcast against each other; both
    results have their common shape. Positive and negative stand at right angles seen from the query.
    """
    to_positive, to_negative = np.broadcast_arrays(finite(d_p, "d_p"), finite(d_n, "d_n"))
    if min(to_positive.min(), to_negative.min()) < 0:
        raise ArgumentError("a distance cannot be negative: d_p and d_n must be at least 0")
    axes = torch.eye(2, dtype=torch.float64)
    positive = (torch.tensor(to_positive.reshape(-1, 1)) * axes[0]).requires_grad_()  # (B, 2)
    negative = (torch.tensor(to_negative.reshape(-1, 1)) * axes[1]).requires_grad_()  # (B, 2)
    total = loss(torch.zeros_like(positive), positive, negative[:, None]).sum()
    of_positive, of_negative = torch.autograd.grad(total, (positive, negative))
    return (
        of_positive.norm(dim=1).numpy().reshape(to_positive.shape),
        of_negative.norm(dim=1).numpy().reshape(to_positive.shape),
    )


@drawn
def draw_gradients(losses: Mapping[str, TupleLoss] | None = None) -> Figure:
    """The paper's figure: for each loss |dL/dp| (above) and |dL/dn| (below) over the distances d_n and d_p.

    Above the diagonal lie the hard negatives, nearer than the positive. Hatched: no gradient at all.
    """
    shown = _some(paper_losses() if losses is None else losses)
    edges = np.linspace(0, FARTHEST, CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    figure = new_figure(2.3 * len(shown) + 0.6, 4.7)
    panels = figure.subplots(2, len(shown), sharex=True, sharey=True, squeeze=False)
    for column, (name, loss) in enumerate(shown.items()):
        magnitudes = gradient_magnitudes(loss, middles[:, None], middles[None, :])
        for axes, of, magnitude in zip(panels[:, column], "pn", magnitudes, strict=True):
            finite(magnitude, f"gradient of {name!r}")
            axes.set_facecolor("#f6f8fa")
            axes.patch.set_hatch("////")
            axes.patch.set_edgecolor(FAINT)
            colours = axes.pcolormesh(
                edges, edges, np.ma.masked_equal(magnitude, 0), cmap="viridis", vmin=0, rasterized=True
            )
            for colour, line in ((INK, "-"), ("white", "--")):  # seen on every colour
                axes.plot([0, FARTHEST], [0, FARTHEST], color=colour, linewidth=1.2, linestyle=line)
            axes.set(xlim=(0, FARTHEST), ylim=(0, FARTHEST), aspect="equal", xticks=(0, 1, 2), yticks=(0, 1, 2))
            axes.grid(visible=False)
            if axes is panels[0, column]:
                axes.set_title(name)
            bar = figure.colorbar(colours, ax=axes, shrink=0.8, aspect=16, pad=0.03)
            bar.outline.set_visible(False)
            axes.set_gid(f"{name}, gradient of {of}")
    for row, of in zip(panels, ("pull on the positive  $|∂L/∂p|$", "push on the negative  $|∂L/∂n|$"), strict=True):
        row[0].set_ylabel(f"{of}\n\ndistance $d_p$")
    for axes in panels[1]:
        axes.set_xlabel("distance $d_n$")
    figure.supxlabel(
        "above the dashed line: negatives nearer than the positive · hatched: no gradient · every panel its own scale",
        fontsize=9,
    )
    return figure


@drawn
def draw_gradient_decay(losses: Mapping[str, TupleLoss] | None = None, d_p: float = RANDOM_PAIR) -> Figure:
    """How hard each loss pushes a negative away, |dL/dn| over its distance d_n, with the positive at `d_p`.

    The paper's second figure, at d_p = sqrt(2): the margins of triplet and contrastive switch the push off, SARE's
    fades.
    """
    shown = _some(paper_losses() if losses is None else losses)
    d_n = np.linspace(0, FARTHEST, CURVE_POINTS + 1)[1:]
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    for number, (name, loss) in enumerate(shown.items()):
        look, push = look_of(number), finite(gradient_magnitudes(loss, d_p, d_n)[1], f"gradient of {name!r}")
        axes.plot(d_n, push, color=look.colour, linestyle=look.line, label=name,
                  marker=look.marker, markevery=(20 + 9 * number, 57), clip_on=False)  # fmt: skip
    axes.axvline(d_p, color=INK, linewidth=0.8, alpha=0.5)
    at = "√2" if math.isclose(d_p, RANDOM_PAIR) else f"{d_p:g}"
    top = need("matplotlib.transforms", "plot").blended_transform_factory(axes.transData, axes.transAxes)
    axes.text(d_p, 1.01, f"$d_p$ = {at}", transform=top, ha="center", va="bottom")
    axes.set(xlabel="distance $d_n$ of the negative", ylabel="push on the negative  $|∂L/∂n|$", xlim=(0, FARTHEST))
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _some(losses: Mapping[str, TupleLoss]) -> Mapping[str, TupleLoss]:
    if not losses:
        raise ArgumentError("there is nothing to draw: no losses were given")
    return losses
