"""No two houses, windows or signs are copies; a house is the same at every moment but for its light."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sareloc.city import draw, make_town
from sareloc.city.furnish import make_sprite
from sareloc.city.geometry import COLUMN, FACADE, Quads
from sareloc.city.lettering import FIRST_SYMBOL, GLYPHS, LONGEST, make_word, pack
from sareloc.city.render import through_lens
from sareloc.city.shaders import letter_at
from sareloc.city.styles import STYLES, make_habits, shift_colour, vary, weather_surface

HEIGHT, WIDTH = 120, 160
ROW, FLOORS, FRONT_M = 4, 3, 16.0


def front(seed, style="brick terrace"):
    """A wall of 16 x 12 m with four columns of windows, far from everything; its surface depends on the seed alone."""
    rng, kind = np.random.default_rng(seed), STYLES[style]
    look = asdict(weather_surface(rng, kind.brick, kind.ashlar, FRONT_M)) | asdict(make_habits(rng, kind))
    named = {
        "kind": FACADE, "width": FRONT_M, "height": 12.0, "normal_y": -1.0, "bays": ROW, "cells": ROW, "ground": 3.0,
        "floor": 3.0, "floors": FLOORS, "window": 0.55, "sill": 0.8, "head": 2.4, "panes_u": 2, "panes_v": 2,
        "street_floor": 1, "seed": seed, "r0": 0.3, "g0": 0.12, "b0": 0.08, "r1": 0.7, "g1": 0.7, "b1": 0.6,
        "r2": 0.05, "g2": 0.1, "b2": 0.08, **look, "pipe": -9.0, "cable": -9.0,
    }  # fmt: skip
    columns = np.zeros((1, len(COLUMN)))
    for name, value in named.items():
        columns[0, COLUMN[name]] = value
    corner, u, v = np.array([[0.0, 0, 0]]), np.array([[FRONT_M, 0.0, 0]]), np.array([[0.0, 0, 12]])
    return Quads(corner, u, v, np.zeros((1, 2)), columns)


@pytest.fixture
def photo(town, noon, make_poses):
    """photo(quads, ...): the wall of `front` seen squarely at noon, with changes of the moment."""
    pose = make_poses(((8.0, -16.0, 6.0), 90.0), angle_deg=53.13)  # exactly the wall's width
    nothing = make_sprite((-1e4, -1e4), (1.0, 1.0), 0, [np.zeros(3)] * 3)

    def make(quads, **changes):
        alone = replace(town, quads=quads, sprites=nothing)
        return draw(alone, pose, [replace(noon, **changes)], HEIGHT, WIDTH)[0].float()

    return make


def contrast(image):
    """The image without its mean brightness and colour, scaled to unit contrast."""
    image = image - image.mean((1, 2), keepdim=True)
    return image / image.std()


@pytest.mark.parametrize("style", ["brick terrace", "plaster", "sandstone"])
def test_houses_of_one_style_have_surfaces_of_their_own(photo, style):
    walls = [contrast(photo(front(seed, style))[:, 2:10]) for seed in (1, 2, 3)]  # above the windows
    for one, other in combinations(walls, 2):
        assert float((one * other).mean()) < 0.5
    again = contrast(photo(front(1, style))[:, 2:10])
    assert torch.equal(again, walls[0])


def test_a_house_is_the_same_at_every_moment_but_for_its_light(photo):
    quads = front(4)
    first, evening = photo(quads, habits=1.0), photo(quads, habits=99.0)
    changed = ((first - evening).abs().amax(0) > 2).float().mean()
    assert 0 < changed < 0.15  # curtains and blinds of some windows
    dimmer = photo(quads, habits=1.0, exposure=0.7)
    assert float((contrast(first) * contrast(dimmer)).mean()) > 0.95


def test_lit_windows_differ_from_night_to_night(photo):
    nights = [photo(front(4), night=1.0, habits=float(h), sun=(0, 0, 0), ambient=(0.02, 0.02, 0.02)) for h in (1, 2, 3)]
    for one, other in combinations(nights, 2):
        assert ((one - other).abs().amax(0) > 15).float().mean() > 0.01


def test_windows_of_a_facade_are_not_copies(photo):
    image = photo(front(5))
    cells = [
        image[:, 2 + 30 * floor : 30 + 30 * floor, 40 * column : 40 * column + 40]
        for floor in range(FLOORS)
        for column in range(ROW)
    ]
    for one, other in combinations(cells, 2):
        assert ((one - other).abs().amax(0) > 12).float().mean() > 0.05


def test_every_shop_has_its_own_word():
    columns = make_town(2, "small").quads.columns
    signs = columns[columns[:, COLUMN["letters"]] > 0]
    words = signs[:, [COLUMN[name] for name in ("letters", "text0", "text1", "text2")]]
    assert len(signs) > 30
    # a projecting sign shows its word on both sides
    assert len(np.unique(words, axis=0)) > 0.7 * len(words)
    again = make_town.__wrapped__(2, "small").quads.columns
    assert np.array_equal(columns, again)


def test_letters_are_found_where_they_were_packed():
    rng = np.random.default_rng(0)
    for _ in range(50):
        word = make_word(rng)
        assert 0 < len(word) <= LONGEST
        packed = pack(rng, word)
        n = int(packed["letters"])
        assert n <= LONGEST
        paint = SimpleNamespace(**{name: torch.full((1, n), packed[name]) for name in ("text0", "text1", "text2")})
        letters = torch.full((1, n), float(n))
        at = letter_at(paint, letters, (torch.arange(n)[None] + 0.5) / n) * GLYPHS
        cells = at.floor().int().flatten().tolist()
        assert torch.allclose(at - at.floor(), torch.tensor(0.5), atol=1e-3)
        shown = "".join(" " if cell == 0 else chr(ord("A") + cell - 1) for cell in cells if cell < FIRST_SYMBOL)
        assert shown.strip() == word.strip()


def test_builders_vary_a_style_within_reason():
    rng = np.random.default_rng(1)
    for style in STYLES.values():
        made = [vary(rng, style) for _ in range(20)]
        assert len({(one.bay, one.floor, one.window) for one in made}) == 20
        for one in made:
            assert 0 < 2 * one.window < one.bay
            assert 0 < one.sill < one.head < one.floor
            assert min(one.panes) >= 1


def test_another_bucket_of_paint_is_a_colour():
    rng = np.random.default_rng(1)
    for colour in ("000000", "ffffff", "8a4b3a"):
        other = shift_colour(rng, colour)
        assert len(other) == 6
        assert 0 <= int(other, 16) <= 0xFFFFFF


def lens(image, *, bend=0.0, blur=0.0):
    return through_lens(image[None], torch.tensor([[bend]]), torch.tensor([[blur]]))[0]


def test_a_perfect_lens_changes_nothing():
    image = torch.rand(3, 40, 60, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(lens(image), image, atol=1e-5)


def test_a_blur_spreads_light_and_loses_none():
    image = torch.zeros(3, 41, 61)
    image[:, 20, 30] = 1.0
    spread = lens(image, blur=1.0 / 61)
    assert spread.sum() == pytest.approx(3.0, abs=1e-3)
    # a Gaussian of one pixel within two pixels: exp(0) / (1 + 2 exp(-1/2) + 2 exp(-2)), squared
    peak = 1 / (1 + 2 * np.exp(-0.5) + 2 * np.exp(-2.0))
    assert float(spread[0, 20, 30]) == pytest.approx(peak**2, abs=1e-3)
    assert torch.allclose(spread, spread.flip(1).flip(2), atol=1e-6)


def test_a_distorted_pixel_shows_the_point_that_the_equation_says():
    image = (torch.arange(100) + 0.5).expand(3, 80, 100).contiguous() / 50 - 1  # x in half widths
    bent = lens(image, bend=-0.05)
    for row, column in ((40, 90), (10, 20), (70, 99)):
        x, y = (column + 0.5) / 50 - 1, ((row + 0.5) / 40 - 1) * 0.8
        assert float(bent[0, row, column]) == pytest.approx(x * (1 - 0.05 * (x * x + y * y)), abs=1e-4)
