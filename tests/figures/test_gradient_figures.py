"""The gradients figure shows the paper's Table 1, written out here by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.figures import draw_gradient_decay, draw_gradients, gradient_magnitudes, paper_losses
from sareloc.losses import make_loss

D_P = np.linspace(0.05, 2.0, 14)[:, None]
D_N = np.linspace(0.07, 1.95, 15)[None, :]


def table_1(name: str, d_p: np.ndarray, d_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the gradients in the paper's Table 1, m = 0.1, tau = 0.7."""
    d_p, d_n = np.broadcast_arrays(d_p, d_n)
    if name == "Triplet ranking":
        violated = 0.1 + d_p**2 - d_n**2 > 0
        return 2 * d_p * violated, 2 * d_n * violated
    if name == "Contrastive":
        return d_p, np.maximum(0.7 - d_n, 0)
    if name == "Gaussian SARE":
        c = np.exp(-(d_p**2)) / (np.exp(-(d_p**2)) + np.exp(-(d_n**2)))
        return 2 * (1 - c) * d_p, 2 * (1 - c) * d_n
    if name == "Cauchy SARE":
        c = (1 / (1 + d_p**2)) / (1 / (1 + d_p**2) + 1 / (1 + d_n**2))
        return 2 * (1 - c) * d_p / (1 + d_p**2), 2 * (1 - c) * d_n / (1 + d_n**2)
    c = np.exp(-d_p) / (np.exp(-d_p) + np.exp(-d_n))
    return 1 - c, 1 - c


@pytest.mark.parametrize("name", paper_losses())
def test_magnitudes_are_those_of_table_1(name: str) -> None:
    for ours, theirs in zip(gradient_magnitudes(paper_losses()[name], D_P, D_N), table_1(name, D_P, D_N), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_ten_panels_show_them_with_d_n_across_and_d_p_up() -> None:
    figure = draw_gradients()
    panels = {axes.get_gid(): axes for axes in figure.axes if axes.get_gid()}
    assert len(panels) == 10
    for name in paper_losses():
        for of, column in (("p", 0), ("n", 1)):
            (mesh,) = panels[f"{name}, gradient of {of}"].collections
            shown = mesh.get_array().filled(0)
            middles = (np.arange(len(shown)) + 0.5) * 2 / len(shown)
            np.testing.assert_allclose(shown, table_1(name, middles[:, None], middles[None, :])[column], atol=1e-9)


def test_saturation_is_left_open_for_the_hatching() -> None:
    (mesh,) = next(a for a in draw_gradients().axes if a.get_gid() == "Contrastive, gradient of n").collections
    masked = np.ma.getmaskarray(mesh.get_array())
    middles = (np.arange(masked.shape[1]) + 0.5) * 2 / masked.shape[1]
    np.testing.assert_array_equal(masked, np.broadcast_to(middles > 0.7, masked.shape))


def test_the_decay_is_taken_at_the_square_root_of_two() -> None:
    (axes,) = draw_gradient_decay().axes
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert list(lines) == list(paper_losses())
    for name, line in lines.items():
        d_n, push = line.get_data()
        np.testing.assert_allclose(push, table_1(name, np.full_like(d_n, math.sqrt(2)), d_n)[1], atol=1e-9)
    assert any("√2" in text.get_text() for text in axes.texts)


def test_any_losses_can_be_compared() -> None:
    figure = draw_gradients({"ratio": make_loss("ratio")})
    assert [axes.get_title(loc="left") for axes in figure.axes[:1]] == ["ratio"]


def not_a_number(query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
    return math.nan * (positive.sum() + negatives.sum())


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda: draw_gradients({}), "no losses were given"),
        (lambda: draw_gradient_decay({}), "no losses were given"),
        (lambda: draw_gradient_decay(d_p=math.nan), "d_p has nan"),
        (lambda: draw_gradients({"odd": not_a_number}), "gradient of 'odd' has nan"),
        (lambda: draw_gradient_decay({"odd": not_a_number}), "gradient of 'odd' has nan"),
        (lambda: gradient_magnitudes(make_loss("ratio"), -1.0, 1.0), "negative distance"),
        (lambda: gradient_magnitudes(make_loss("ratio"), [], 1.0), "d_p has no values"),
    ],
)
def test_nothing_to_draw_is_an_error(draw, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        draw()
