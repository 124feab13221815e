"""Pages for flat pieces: words, posters, the sides of cars, tiles, bricks, noise.

A page is (h, w, 4): shade, weight of the second colour, weight of the third colour, weight of glass; row 0 is the top.
"wall" and "noise" hold four shades instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Page = npt.NDArray[np.float64]
Pens = list[ImageDraw.ImageDraw]
"""One drawing per channel."""

TRADES = (
    "CAFE", "BAR", "HOTEL", "BAKERY", "PHARMACY", "BOOKS", "BANK", "FLOWERS", "OPTICS", "MARKET", "TAILOR", "CINEMA",
    "PIZZA", "KEBAB", "SUSHI", "BARBER", "SHOES", "GALLERY", "TOYS", "WINES", "BISTRO", "STUDIO", "PRESS", "SALON",
)  # fmt: skip
ONSETS = ("B", "C", "D", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "T", "V", "Z", "BR", "CR", "ST", "TR")
CORES = ("A", "E", "I", "O", "U", "AI", "OU")
WORDS, POSTERS = 96, 24
SCALE = 3
"""Shapes are drawn so many times larger and averaged down."""


def make_pages() -> dict[str, Page]:
    """Every page by name."""
    pages = {
        "plain": np.broadcast_to([1.0, 0, 0, 0], (4, 4, 4)).copy(),
        "wall": _wall(),
        "noise": _noise(),
        "tiles": _tiles(rows=8, columns=8, rounded=True),
        "slate": _tiles(rows=8, columns=6, rounded=False),
        "stripes": _stripes(),
        "cornice": _cornice(),
        "car side": _paint(128, 32, _car_side),
        "car end": _paint(64, 32, _car_end),
        "cabin side": _paint(64, 32, _cabin_side),
        "windscreen": _paint(64, 32, _windscreen),
        "van side": _paint(128, 64, _van_side),
    }
    for i in range(WORDS):
        pages[f"word {i}"] = _word(i)
    for i in range(POSTERS):
        pages[f"poster {i}"] = _poster(i)
    return pages


def _paint(width: int, height: int, draw: Callable[[Pens, int, int], None]) -> Page:
    """A page from grey drawings, one per channel, made SCALE times larger and averaged down."""
    w, h = width * SCALE, height * SCALE
    images = [Image.new("L", (w, h), fill) for fill in (255, 0, 0, 0)]
    draw([ImageDraw.Draw(image) for image in images], w, h)
    stack = np.stack([np.asarray(image, dtype=np.float64) / 255 for image in images], axis=-1)
    return np.asarray(stack.reshape(height, SCALE, width, SCALE, 4).mean((1, 3)))


def _shapes(
    pens: Pens,
    box: tuple[float, ...],
    shade: float,
    weights: tuple[float, float, float],
    kind: str = "rectangle",
) -> None:
    for pen, value in zip(pens, (shade, *weights), strict=True):
        getattr(pen, kind)(box, fill=int(255 * value))


def _car_side(pens: Pens, w: int, h: int) -> None:
    _shapes(pens, (0, 0, w, h * 0.12), 0.8, (0, 0, 0))
    _shapes(pens, (0, h * 0.72, w, h), 0.25, (0, 0, 0))
    for x in (0.37, 0.63):
        _shapes(pens, (w * x, h * 0.05, w * (x + 0.006), h * 0.72), 0.45, (0, 0, 0))
        _shapes(pens, (w * (x - 0.06), h * 0.22, w * (x - 0.02), h * 0.28), 0.5, (0, 0, 0))
    for x in (0.19, 0.81):
        radius = 0.47 * h
        for r, shade, weights in (
            (1.15, 0.12, (1, 0, 0)),
            (1.0, 0.25, (1, 0, 0)),
            (0.62, 0.9, (0, 1, 0)),
            (0.2, 0.4, (0, 1, 0)),
        ):
            box = (w * x - r * radius, h * 0.62 - r * radius, w * x + r * radius, h * 0.62 + r * radius)
            _shapes(pens, box, shade, weights, "ellipse")
    _shapes(pens, (0, h * 0.2, w * 0.03, h * 0.4), 1.0, (0, 1, 0))
    _shapes(pens, (w * 0.97, h * 0.2, w, h * 0.4), 0.6, (0, 1, 0))


def _car_end(pens: Pens, w: int, h: int) -> None:
    _shapes(pens, (0, h * 0.75, w, h), 0.2, (0.5, 0, 0))
    _shapes(pens, (w * 0.25, h * 0.25, w * 0.75, h * 0.45), 0.35, (1, 0, 0))
    for x in (0.04, 0.8):
        _shapes(pens, (w * x, h * 0.2, w * (x + 0.16), h * 0.42), 1.0, (0, 1, 0))
    _shapes(pens, (w * 0.38, h * 0.52, w * 0.62, h * 0.66), 1.0, (0, 0.8, 0))


def _cabin_side(pens: Pens, w: int, h: int) -> None:
    _shapes(pens, (w * 0.06, h * 0.16, w * 0.94, h * 0.94), 1.0, (0, 0, 1))
    _shapes(pens, (w * 0.48, 0, w * 0.53, h), 0.5, (0, 0, 0))


def _windscreen(pens: Pens, w: int, h: int) -> None:
    _shapes(pens, (w * 0.06, h * 0.1, w * 0.94, h * 0.95), 1.0, (0, 0, 1))


def _van_side(pens: Pens, w: int, h: int) -> None:
    _shapes(pens, (0, h * 0.86, w, h), 0.2, (0, 0, 0))
    _shapes(pens, (w * 0.04, h * 0.15, w * 0.2, h * 0.45), 1.0, (0, 0, 1))
    _shapes(pens, (w * 0.23, 0, w * 0.24, h * 0.86), 0.6, (0, 0, 0))
    _shapes(pens, (w * 0.35, h * 0.25, w * 0.85, h * 0.55), 1.0, (0, 1, 0))
    for x in (0.17, 0.83):
        radius = 0.15 * h
        for r, shade in ((1.2, 0.1), (1.0, 0.3)):
            box = (w * x - r * radius, h * 0.85 - r * radius, w * x + r * radius, h * 0.85 + r * radius)
            _shapes(pens, box, shade, (1, 0, 0), "ellipse")


def _word(i: int) -> Page:
    rng = np.random.default_rng([7, i])
    text = "".join(str(rng.choice(part)) for _ in range(rng.integers(2, 4)) for part in (ONSETS, CORES))
    text = TRADES[i] if i < len(TRADES) else text

    def draw(pens: Pens, w: int, h: int) -> None:
        if i % 3 == 0:
            _shapes(pens, (0, 0, w, h * 0.07), 1.0, (0, 1, 0))
            _shapes(pens, (0, h * 0.93, w, h), 1.0, (0, 1, 0))
        badge = 0.2 if i % 2 else 0.04
        if i % 2:
            kind = "ellipse" if i % 4 == 1 else "rectangle"
            _shapes(pens, (w * 0.04, h * 0.2, w * 0.04 + h * 0.6, h * 0.8), 1.0, (0, 1, 0), kind)
        font = ImageFont.load_default(size=h * 0.62)
        left, _, right, _ = font.getbbox(text, stroke_width=2)
        box = Image.new("L", (max(1, round(right - left)) + 8, h), 0)
        ImageDraw.Draw(box).text((4, h * 0.1), text, fill=255, font=font, stroke_width=2)
        room = (round(w * badge), 0, round(w * 0.96), h)
        width = min(box.width, room[2] - room[0])
        pens[1].bitmap(((room[0] + room[2] - width) // 2, 0), box.resize((width, h)), fill=255)

    return _paint(256, 64, draw)


def _poster(i: int) -> Page:
    rng = np.random.default_rng([8, i])

    def draw(pens: Pens, w: int, h: int) -> None:
        for _ in range(int(rng.integers(2, 6))):
            x, y, r = rng.uniform(0, w), rng.uniform(0, h * 0.8), rng.uniform(0.08, 0.4) * w
            weights = ((1, 0, 0), (0, 1, 0), (0.5, 0.5, 0))[int(rng.integers(3))]
            kind = ("ellipse", "rectangle")[int(rng.integers(2))]
            _shapes(pens, (x - r, y - r, x + r, y + r * rng.uniform(0.3, 1)), rng.uniform(0.6, 1), weights, kind)
        for line in range(int(rng.integers(1, 4))):
            y = h * (0.78 + 0.07 * line)
            for x in np.arange(w * 0.1, w * rng.uniform(0.5, 0.9), w * 0.09):
                _shapes(pens, (x, y, x + w * 0.06, y + h * 0.04), 1.0, (1, 0, 0))
        for box in ((0, 0, w, 6), (0, h - 6, w, h), (0, 0, 6, h), (w - 6, 0, w, h)):
            _shapes(pens, box, 0.35, (0, 0, 0))

    return _paint(64, 64, draw)


def _fractal(rng: np.random.Generator, size: int, first: int) -> npt.NDArray[np.float64]:
    """Periodic noise in [0, 1]: octaves from `first` cells up, each half as strong as the one before."""
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
    """Four noises: broad, broad (another), middle, grain."""
    rng = np.random.default_rng(11)
    return np.stack([_fractal(rng, 256, c) for c in (4, 6, 24)] + [rng.random((256, 256))], axis=-1)


def _wall() -> Page:
    """Shades of brick (8 courses), of cut stone (2 courses), of plaster, and dirt; one page is 0.9 x 0.6 m of brick."""
    rng = np.random.default_rng(12)
    y, x = np.mgrid[0:128, 0:128] / 128
    return np.stack(
        [
            _courses(rng, x, y, rows=8, columns=4, joint=0.12, spread=0.35),
            _courses(rng, x, y, rows=2, columns=1, joint=0.03, spread=0.1),
            0.86 + 0.14 * _fractal(rng, 128, 8),
            0.7 + 0.3 * _fractal(rng, 128, 2),
        ],
        axis=-1,
    )


def _courses(
    rng: np.random.Generator, x: Page, y: Page, *, rows: int, columns: int, joint: float, spread: float
) -> Page:
    row = np.floor(y * rows).astype(int)
    along = (x * columns + 0.5 * (row % 2)) % columns
    column = np.floor(along).astype(int)
    shade = (1 - spread * rng.random((rows, columns)))[row, column]
    aspect = rows / columns / 2
    edge = np.minimum(np.minimum(along % 1, 1 - along % 1) * aspect * 2, np.minimum(y * rows % 1, 1 - y * rows % 1))
    return np.where(edge < joint, 1.0 - 0.35 * (spread < 0.2), shade)


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
    """Mouldings with a row of dentils; the top is row 0."""
    y, x = np.mgrid[0:64, 0:64] / 64
    shade = np.select(
        [y < 0.12, y < 0.3, y < 0.36, y < 0.6], [1.0, 0.85, 0.6, np.where(x % 0.25 < 0.15, 0.95, 0.5)], 0.75
    )
    return np.stack([shade, 0 * x, 0 * x, 0 * x], axis=-1)
