"""Textures of sprites: trees with and without leaves, lamps, people, street furniture.

A page is (h, w, 4): shade, weight of the second colour, weight of the third colour, opacity; row 0 is the top. The
colours of a tree are bark and leaves; of a person skin, coat and trousers; of a lamp iron and light.
"""

from __future__ import annotations

import numpy as np

from sareloc.city.textures import Page, Sheet

TREES, PEOPLE, LEAVES = 6, 8, 2500


def make_sprites() -> dict[str, Page]:
    """The texture pages of all sprites by name."""
    pages: dict[str, Page] = {}
    for i in range(TREES):
        pages[f"tree {i}"] = _tree(i, leaves=True)
        pages[f"bare {i}"] = _tree(i, leaves=False)
    for i in range(PEOPLE):
        pages[f"person {i}"] = _person(i)
    for name, draw in (
        ("lamp", _lamp), ("traffic light", _traffic_light), ("round sign", _round_sign), ("bin", _bin),
        ("bollard", _bollard), ("bench", _bench), ("bike", _bike), ("column", _column), ("hedge", _hedge),
    ):  # fmt: skip
        pages[name] = draw()
    return pages


def _sheet(width: int, height: int) -> Sheet:
    return Sheet(width, height, shade=200, fourth=1.0)


def _tree(i: int, *, leaves: bool) -> Page:
    """A tree that fills its page: recursive branches with leaves around their tips."""
    rng = np.random.default_rng([21, i])
    branches = np.array(_branches(rng, 0.5, 1.0, angle=0.0, length=0.25 + 0.04 * (i % 2), width=0.03))
    high = max(1.0 - branches[:, [1, 3]].min(), 1e-6)
    wide = max(np.abs(branches[:, [0, 2]] - 0.5).max(), 1e-6)
    branches[:, [0, 2]] = 0.5 + (branches[:, [0, 2]] - 0.5) * (0.44 / wide)
    branches[:, [1, 3]] = 1.0 - (1.0 - branches[:, [1, 3]]) * (0.94 / high)
    sheet = _sheet(256, 256)
    for x0, y0, x1, y1, width in branches:
        sheet.put("line", [(x0, y0), (x1, y1)], 0.5 + 0.3 * rng.random(), width=width)
    if leaves:
        tips = branches[branches[:, 4] < 0.018, 2:4]
        # some of the leaves fill the crown: branches point outwards, and their tips alone leave a hole
        inwards = 1 - 0.55 * rng.random((LEAVES, 1)) ** 2
        crown = np.array([0.5, 0.42])
        spread = (
            crown + inwards * (tips[rng.integers(len(tips), size=LEAVES)] - crown) + rng.normal(0, 0.04, (LEAVES, 2))
        )
        spread = np.clip(spread, 0.02, 0.98)
        light = 0.62 - 0.5 * (spread[:, 1] - 0.4) - 0.18 * (spread[:, 0] - 0.5) + rng.normal(0, 0.13, LEAVES)
        order = np.argsort(light + rng.normal(0, 0.12, LEAVES))
        for (x, y), shade in zip(spread[order], np.clip(light[order], 0.16, 1.0), strict=True):
            r = rng.uniform(0.005, 0.016)
            sheet.put("ellipse", [(x - r, y - r * 0.8), (x + r, y + r * 0.8)], shade, second=1.0)
    return sheet.page()


def _branches(
    rng: np.random.Generator, x: float, y: float, *, angle: float, length: float, width: float
) -> list[tuple[float, float, float, float, float]]:
    """Start, end and width of all branches from x, y upwards, as fractions of the page."""
    x1, y1 = x + length * np.sin(angle), y - length * np.cos(angle)
    found = [(x, y, x1, y1, width)]
    if length < 0.035 or width < 0.0016:
        return found
    for turn in (-0.5, 0.45, rng.uniform(-0.2, 0.2)):
        bend = angle + turn * rng.uniform(0.7, 1.5) + 0.02 * rng.normal()
        found += _branches(rng, x1, y1, angle=bend, length=length * rng.uniform(0.6, 0.82), width=width * 0.58)
    return found


def _person(i: int) -> Page:
    rng = np.random.default_rng([22, i])
    sheet = _sheet(32, 64)
    stride = 0.06 + 0.12 * (i % 3) / 2
    for side in (-1, 1):
        hip, foot = (0.5 + 0.07 * side, 0.5), (0.5 + side * stride + 0.04 * side, 0.97)
        sheet.put("line", [hip, foot], 0.8, third=1.0, width=0.17)
        sheet.put("line", [foot, (foot[0] + 0.08, 0.98)], 0.2, third=1.0, width=0.1)
    coat = 0.62 if i % 2 else 0.54
    sheet.put("polygon", [(0.3, 0.2), (0.7, 0.2), (0.72, coat), (0.28, coat)], 0.9, second=1.0)
    for side in (-1, 1):
        hand = (0.5 + side * (0.3 + 0.05 * rng.random()), 0.5)
        sheet.put("line", [(0.5 + 0.17 * side, 0.24), hand], 0.7, second=1.0, width=0.13)
    sheet.put("ellipse", [(0.39, 0.03), (0.61, 0.18)], 0.9)
    sheet.put("ellipse", [(0.38, 0.02), (0.62, 0.09)], 0.2)
    if i % 3 == 1:
        sheet.put("rectangle", [(0.7, 0.48), (0.92, 0.66)], 0.4, third=1.0)
    return sheet.page()


def _lamp() -> Page:
    sheet = _sheet(64, 256)
    sheet.put("line", [(0.5, 1.0), (0.5, 0.06)], 0.8, width=0.07)
    sheet.put("line", [(0.5, 1.0), (0.5, 0.8)], 0.7, width=0.13)
    sheet.put("line", [(0.5, 0.07), (0.9, 0.03)], 0.8, width=0.06)
    sheet.put("polygon", [(0.62, 0.03), (0.98, 0.02), (0.98, 0.045), (0.62, 0.05)], 0.7)
    sheet.put("polygon", [(0.66, 0.05), (0.96, 0.045), (0.92, 0.06), (0.7, 0.062)], 1.0, second=1.0)
    return sheet.page()


def _traffic_light() -> Page:
    sheet = _sheet(32, 128)
    sheet.put("line", [(0.5, 1.0), (0.5, 0.2)], 0.6, width=0.13)
    sheet.put("rectangle", [(0.28, 0.0), (0.72, 0.3)], 0.25)
    for y, second, third in ((0.05, 1.0, 0.0), (0.15, 0.1, 0.0), (0.25, 0.0, 0.3)):
        sheet.put("ellipse", [(0.36, y - 0.035), (0.64, y + 0.035)], 0.9, second, third)
    return sheet.page()


def _round_sign() -> Page:
    sheet = _sheet(32, 128)
    sheet.put("line", [(0.5, 1.0), (0.5, 0.1)], 0.8, width=0.1)
    sheet.put("ellipse", [(0.08, 0.0), (0.92, 0.21)], 1.0, second=1.0)
    sheet.put("ellipse", [(0.22, 0.035), (0.78, 0.175)], 1.0, third=1.0)
    return sheet.page()


def _bin() -> Page:
    sheet = _sheet(32, 32)
    sheet.put("polygon", [(0.2, 0.15), (0.8, 0.15), (0.74, 1.0), (0.26, 1.0)], 0.8)
    sheet.put("rectangle", [(0.14, 0.08), (0.86, 0.2)], 0.5)
    sheet.put("rectangle", [(0.36, 0.36), (0.64, 0.6)], 1.0, second=0.8)
    return sheet.page()


def _bollard() -> Page:
    sheet = _sheet(16, 32)
    sheet.put("rectangle", [(0.3, 0.1), (0.7, 1.0)], 0.8)
    sheet.put("rectangle", [(0.3, 0.25), (0.7, 0.36)], 1.0, second=1.0)
    sheet.put("ellipse", [(0.28, 0.02), (0.72, 0.18)], 0.9)
    return sheet.page()


def _bench() -> Page:
    sheet = _sheet(64, 32)
    for y in (0.1, 0.25, 0.5, 0.58):
        sheet.put("line", [(0.03, y), (0.97, y)], 0.8, second=1.0, width=0.045)
    for x in (0.12, 0.88):
        sheet.put("line", [(x, 0.1), (x, 1.0)], 0.5, width=0.04)
    return sheet.page()


def _bike() -> Page:
    sheet = _sheet(64, 32)
    for x in (0.22, 0.78):
        sheet.put("ellipse", [(x - 0.2, 0.2), (x + 0.2, 1.0)], 0.15)
    for x in (0.22, 0.78):
        sheet.put("ellipse", [(x - 0.17, 0.26), (x + 0.17, 0.94)], 200 / 255, fourth=0)  # as the empty sheet
    frame = [(0.22, 0.6), (0.38, 0.2), (0.66, 0.22), (0.48, 0.62), (0.22, 0.6)]
    sheet.put("line", frame, 0.9, second=1.0, width=0.03)
    sheet.put("line", [(0.48, 0.62), (0.4, 0.1)], 0.9, second=1.0, width=0.03)
    sheet.put("line", [(0.78, 0.6), (0.66, 0.08), (0.74, 0.05)], 0.7, width=0.03)
    return sheet.page()


def _column() -> Page:
    """An advertising column with two rows of posters."""
    rng = np.random.default_rng(23)
    sheet = _sheet(64, 128)
    sheet.put("rectangle", [(0.12, 0.1), (0.88, 1.0)], 0.9)
    sheet.put("polygon", [(0.05, 0.12), (0.5, 0.0), (0.95, 0.12)], 0.4)
    for y in (0.18, 0.52):
        for x in (0.14, 0.4, 0.66):
            second = float(rng.integers(2))
            box = [(x, y), (x + 0.22, y + 0.3)]
            sheet.put("rectangle", box, rng.uniform(0.6, 1), second=second, third=1 - second)
            sheet.put("ellipse", [(x + 0.05, y + 0.05), (x + 0.17, y + 0.17)], 1.0, second=1 - second)
    shade = sheet.page()
    across = (np.arange(64) + 0.5) / 64 * 2 - 1
    shade[..., 0] *= np.sqrt(np.clip(1 - across**2, 0.1, 1))
    return shade


def _hedge() -> Page:
    rng = np.random.default_rng(24)
    sheet = _sheet(128, 32)
    sheet.put("rectangle", [(0.0, 0.25), (1.0, 1.0)], 0.3, second=1.0)
    for _ in range(500):
        x, y, r = rng.random(), rng.uniform(0.12, 1.0), rng.uniform(0.01, 0.025)
        shade = np.clip(0.85 - 0.55 * y + rng.normal(0, 0.12), 0.12, 1)
        sheet.put("ellipse", [(x - r, y - 3 * r), (x + r, y + 3 * r)], float(shade), second=1.0)
    return sheet.page()
