"""Texture pages of quads: posters, sides of cars, tiles, noise; and the sheet on which pages of shapes are drawn.

A page is (h, w, 4) with sides that are powers of two: shade, weight of the second colour, weight of the third colour,
weight of glass; row 0 is the top. "noise" has four shades instead. The fourth channel of a sprite is its opacity.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from sareloc.arrays import Floats

Page = Floats

POSTERS, CARS = 48, 5
NOISE = 512
"""Side of the page of noise."""
SCALE = 3
"""Supersampling factor of drawn shapes."""


def shrink(page: Page, rows: int, columns: int) -> Page:
    """The means of blocks of so many rows and columns of texels."""
    h, w = page.shape[:2]
    return np.asarray(page.reshape(h // rows, rows, w // columns, columns, 4).mean((1, 3)))


class Sheet:
    """Four greyscale images, one per channel, SCALE times larger; coordinates are fractions of width and height.

    Args:
        width: of the page, in texels.
        height: of the page, in texels.
        shade: of the empty sheet, 0 to 255; its other channels are 0.
        fourth: the fourth channel of shapes that do not give it.
    """

    def __init__(self, width: int, height: int, shade: int, fourth: float) -> None:
        self.w, self.h, self.fourth = width * SCALE, height * SCALE, fourth
        self.images = [Image.new("L", (self.w, self.h), fill) for fill in (shade, 0, 0, 0)]
        self.pens = [ImageDraw.Draw(image) for image in self.images]

    def put(
        self,
        kind: str,
        points: list[tuple[float, float]],
        shade: float,
        second: float = 0,
        third: float = 0,
        fourth: float | None = None,
        width: float = 0,
    ) -> None:
        """Draw a line, polygon, ellipse or rectangle."""
        flat = [(x * self.w, y * self.h) for x, y in points]
        values = (shade, second, third, self.fourth if fourth is None else fourth)
        for pen, value in zip(self.pens, values, strict=True):
            fill = int(255 * min(1.0, value))
            if kind == "line":
                pen.line(flat, fill=fill, width=max(1, round(width * self.w)))
            else:
                getattr(pen, kind)(flat, fill=fill)

    def disc(self, x: float, y: float, radius: float, shade: float, second: float = 0, third: float = 0) -> None:
        """Draw a circle; the radius is a fraction of the height."""
        wide = radius * self.h / self.w
        self.put("ellipse", [(x - wide, y - radius), (x + wide, y + radius)], shade, second, third)

    def page(self) -> Page:
        """The page, averaged down."""
        return shrink(np.stack([np.asarray(image, dtype=np.float64) / 255 for image in self.images], -1), SCALE, SCALE)


def make_pages() -> dict[str, Page]:
    """The texture pages of quads by name, without letters (see `lettering`)."""
    pages = {
        "plain": np.broadcast_to([1.0, 0, 0, 0], (4, 4, 4)).copy(),
        "noise": _noise(),
        "tiles": _tiles(rows=8, columns=8, rounded=True),
        "slate": _tiles(rows=8, columns=6, rounded=False),
        "stripes": _stripes(),
        "cornice": _cornice(),
        "cabin side": _cabin_side(),
        "windscreen": _windscreen(),
        "van side": _van_side(),
    }
    for i in range(CARS):
        pages[f"car side {i}"] = _car_side(np.random.default_rng([6, i]))
        pages[f"car end {i}"] = _car_end(np.random.default_rng([5, i]))
    for i in range(POSTERS):
        pages[f"poster {i}"] = _poster(np.random.default_rng([8, i]))
    return pages


def _sheet(width: int, height: int) -> Sheet:
    return Sheet(width, height, shade=255, fourth=0.0)


def _car_side(rng: np.random.Generator) -> Page:
    sheet = _sheet(128, 32)
    sheet.put("rectangle", [(0, 0), (1, rng.uniform(0.08, 0.2))], 0.8)
    sheet.put("rectangle", [(0, rng.uniform(0.66, 0.8)), (1, 1)], rng.uniform(0.2, 0.6))
    if rng.random() < 0.5:
        stripe = rng.uniform(0.3, 0.5)
        sheet.put("rectangle", [(0, stripe), (1, stripe + 0.06)], 0.7, third=rng.uniform(0, 1))
    for x in rng.choice([0.34, 0.37, 0.48, 0.6, 0.63], int(rng.integers(1, 4)), replace=False):
        sheet.put("rectangle", [(x, 0.05), (x + 0.006, 0.72)], 0.45)
        sheet.put("rectangle", [(x - 0.06, 0.22), (x - 0.02, 0.28)], 0.5)
    front, back = rng.uniform(0.16, 0.21), rng.uniform(0.79, 0.84)
    spokes = int(rng.integers(3, 9))
    rim = rng.uniform(0.5, 0.8)
    for x in (front, back):
        wheel = 0.47
        for r, shade, second, third in ((1.15, 0.12, 1, 0), (1.0, 0.25, 1, 0), (rim, 0.9, 0, 1), (0.2, 0.4, 0, 1)):
            sheet.disc(x, 0.62, r * wheel, shade, second, third)
        for turn in 2 * np.pi * np.arange(spokes) / spokes:
            aside = 0.4 * wheel * np.cos(turn) * sheet.h / sheet.w
            sheet.disc(x + aside, 0.62 + 0.4 * wheel * np.sin(turn), 0.09 * wheel, 0.3, second=1)
    sheet.put("rectangle", [(0, 0.2), (0.03, 0.4)], 1.0, third=1)
    sheet.put("rectangle", [(0.97, 0.2), (1, 0.4)], 0.6, third=1)
    return sheet.page()


def _car_end(rng: np.random.Generator) -> Page:
    sheet = _sheet(64, 32)
    sheet.put("rectangle", [(0, rng.uniform(0.68, 0.8)), (1, 1)], 0.2, second=0.5)
    grille, top = rng.uniform(0.1, 0.35), rng.uniform(0.15, 0.35)
    sheet.put("rectangle", [(grille, top), (1 - grille, rng.uniform(0.42, 0.55))], 0.35, second=1)
    wide, low = rng.uniform(0.1, 0.2), rng.uniform(0.34, 0.46)
    for x in (0.03, 0.97 - wide):
        sheet.put(str(rng.choice(["rectangle", "ellipse"])), [(x, 0.2), (x + wide, low)], 1.0, third=1)
    sheet.put("rectangle", [(0.38, 0.52), (0.62, 0.66)], 1.0, third=0.8)
    for x in rng.uniform(0.4, 0.58, 4):
        sheet.put("rectangle", [(x, 0.55), (x + 0.02, 0.63)], 0.2, second=1)
    return sheet.page()


def _cabin_side() -> Page:
    sheet = _sheet(64, 32)
    sheet.put("rectangle", [(0.06, 0.16), (0.94, 0.94)], 1.0, fourth=1)
    sheet.put("rectangle", [(0.48, 0), (0.53, 1)], 0.5)
    return sheet.page()


def _windscreen() -> Page:
    sheet = _sheet(64, 32)
    sheet.put("rectangle", [(0.06, 0.1), (0.94, 0.95)], 1.0, fourth=1)
    return sheet.page()


def _van_side() -> Page:
    sheet = _sheet(128, 64)
    sheet.put("rectangle", [(0, 0.86), (1, 1)], 0.2)
    sheet.put("rectangle", [(0.04, 0.15), (0.2, 0.45)], 1.0, fourth=1)
    sheet.put("rectangle", [(0.23, 0), (0.24, 0.86)], 0.6)
    sheet.put("rectangle", [(0.35, 0.25), (0.85, 0.55)], 1.0, third=1)
    for x in (0.17, 0.83):
        for r, shade in ((1.2, 0.1), (1.0, 0.3)):
            sheet.disc(x, 0.85, r * 0.15, shade, second=1)
    return sheet.page()


def _poster(rng: np.random.Generator) -> Page:
    sheet = _sheet(64, 64)
    for _ in range(int(rng.integers(2, 6))):
        x, y, r = rng.uniform(0, 1), rng.uniform(0, 0.8), rng.uniform(0.08, 0.4)
        weights = ((1, 0), (0, 1), (0.5, 0.5))[int(rng.integers(3))]
        kind = ("ellipse", "rectangle")[int(rng.integers(2))]
        box = [(x - r, y - r), (x + r, y + r * rng.uniform(0.3, 1))]
        sheet.put(kind, box, rng.uniform(0.6, 1), *weights)
    for line in range(int(rng.integers(1, 4))):
        y = 0.78 + 0.07 * line
        for x in np.arange(0.1, rng.uniform(0.5, 0.9), 0.09):
            sheet.put("rectangle", [(x, y), (x + 0.06, y + 0.04)], 1.0, second=1)
    edge = 1 / 32
    for left, top, right, low in ((0, 0, 1, edge), (0, 1 - edge, 1, 1), (0, 0, edge, 1), (1 - edge, 0, 1, 1)):
        sheet.put("rectangle", [(left, top), (right, low)], 0.35)
    return sheet.page()


def _fractal(rng: np.random.Generator, size: int, first: int) -> Floats:
    """Periodic fractal noise in [0, 1]: octaves from `first` cells up, each with half the amplitude of the previous."""
    total = np.zeros((size, size))
    cells, strength = first, 1.0
    at = np.arange(size) / size
    while cells <= size // 2:
        grid = rng.random((cells, cells))
        i = np.floor(at * cells).astype(int)
        f = at * cells - i
        f = f * f * (3 - 2 * f)
        j = (i + 1) % cells
        top = grid[i][:, i] * (1 - f) + grid[i][:, j] * f
        low = grid[j][:, i] * (1 - f) + grid[j][:, j] * f
        total += strength * (top * (1 - f[:, None]) + low * f[:, None])
        cells, strength = cells * 2, strength / 2
    return np.asarray((total - total.min()) / (total.max() - total.min()))


def _noise() -> Page:
    """Four noise channels: two broad, one medium, one fine."""
    rng = np.random.default_rng(11)
    return np.stack([_fractal(rng, NOISE, c) for c in (4, 6, 24)] + [rng.random((NOISE, NOISE))], axis=-1)


def _tiles(*, rows: int, columns: int, rounded: bool) -> Page:
    rng = np.random.default_rng(13 + rounded)
    y, x = np.mgrid[0:128, 0:128] / 128
    row = np.floor(y * rows).astype(int)
    along = (x * columns + (0 if rounded else 0.5 * (row % 2))) % columns
    shade = (1 - 0.3 * rng.random((rows, columns)))[row, np.floor(along).astype(int)]
    shade = shade * (0.55 + 0.45 * np.minimum(1, (y * rows % 1) * 4))
    shade = shade * (0.75 + 0.25 * np.sin(np.pi * (along % 1)) if rounded else np.where(along % 1 < 0.06, 0.6, 1.0))
    return np.stack([shade] + [np.zeros_like(x)] * 3, axis=-1)


def _stripes() -> Page:
    y, x = np.mgrid[0:64, 0:64] / 64
    weight = ((x * 2) % 1 < 0.5) * 1.0
    return np.stack([0.85 + 0.15 * y, weight, 0 * x, 0 * x], axis=-1)


def _cornice() -> Page:
    """Mouldings with a row of dentils."""
    y, x = np.mgrid[0:64, 0:64] / 64
    shade = np.select(
        [y < 0.12, y < 0.3, y < 0.36, y < 0.6], [1.0, 0.85, 0.6, np.where(x % 0.25 < 0.15, 0.95, 0.5)], 0.75
    )
    return np.stack([shade, 0 * x, 0 * x, 0 * x], axis=-1)
