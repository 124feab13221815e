"""The texture atlas: drawing its pages, mipmaps in one table of texels, and the lookups of shaders.

A page is (h, w, 4) with sides that are powers of two: shade, weight of the second colour, weight of the third colour,
weight of glass; row 0 is the top. "noise" has four shades instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from sareloc.arrays import Floats, Ints
from sareloc.city.lettering import make_faces
from sareloc.city.sprites import make_sprites

Page = Floats
Pens = list[ImageDraw.ImageDraw]
"""One drawing context per channel."""

POSTERS, CARS = 48, 5
SCALE = 3
"""Supersampling factor of drawn shapes."""


def make_pages() -> dict[str, Page]:
    """The texture pages of quads by name: letters, posters, sides of cars, tiles, noise."""
    pages = {
        "plain": np.broadcast_to([1.0, 0, 0, 0], (4, 4, 4)).copy(),
        "noise": _noise(),
        "tiles": _tiles(rows=8, columns=8, rounded=True),
        "slate": _tiles(rows=8, columns=6, rounded=False),
        "stripes": _stripes(),
        "cornice": _cornice(),
        "cabin side": _paint(64, 32, _cabin_side),
        "windscreen": _paint(64, 32, _windscreen),
        "van side": _paint(128, 64, _van_side),
    }
    for i in range(CARS):
        pages[f"car side {i}"] = _paint(128, 32, partial(_car_side, np.random.default_rng([6, i])))
        pages[f"car end {i}"] = _paint(64, 32, partial(_car_end, np.random.default_rng([5, i])))
    for i in range(POSTERS):
        pages[f"poster {i}"] = _poster(i)
    return {**pages, **make_faces()}


def _paint(width: int, height: int, draw: Callable[[Pens, int, int], None]) -> Page:
    """A page from greyscale images, one per channel, drawn SCALE times larger and averaged down."""
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


def _car_side(rng: np.random.Generator, pens: Pens, w: int, h: int) -> None:
    _shapes(pens, (0, 0, w, h * rng.uniform(0.08, 0.2)), 0.8, (0, 0, 0))
    _shapes(pens, (0, h * rng.uniform(0.66, 0.8), w, h), rng.uniform(0.2, 0.6), (0, 0, 0))
    if rng.random() < 0.5:
        stripe = rng.uniform(0.3, 0.5)
        _shapes(pens, (0, h * stripe, w, h * (stripe + 0.06)), 0.7, (0, rng.uniform(0, 1), 0))
    for x in rng.choice([0.34, 0.37, 0.48, 0.6, 0.63], int(rng.integers(1, 4)), replace=False):
        _shapes(pens, (w * x, h * 0.05, w * (x + 0.006), h * 0.72), 0.45, (0, 0, 0))
        _shapes(pens, (w * (x - 0.06), h * 0.22, w * (x - 0.02), h * 0.28), 0.5, (0, 0, 0))
    front, back = rng.uniform(0.16, 0.21), rng.uniform(0.79, 0.84)
    spokes = int(rng.integers(3, 9))
    rim = rng.uniform(0.5, 0.8)
    for x in (front, back):
        radius = 0.47 * h
        for r, shade, weights in (
            (1.15, 0.12, (1, 0, 0)),
            (1.0, 0.25, (1, 0, 0)),
            (rim, 0.9, (0, 1, 0)),
            (0.2, 0.4, (0, 1, 0)),
        ):
            box = (w * x - r * radius, h * 0.62 - r * radius, w * x + r * radius, h * 0.62 + r * radius)
            _shapes(pens, box, shade, weights, "ellipse")
        for turn in 2 * np.pi * np.arange(spokes) / spokes:
            cx, cy, r = w * x + 0.4 * radius * np.cos(turn), h * 0.62 + 0.4 * radius * np.sin(turn), 0.09 * radius
            _shapes(pens, (cx - r, cy - r, cx + r, cy + r), 0.3, (1, 0, 0), "ellipse")
    _shapes(pens, (0, h * 0.2, w * 0.03, h * 0.4), 1.0, (0, 1, 0))
    _shapes(pens, (w * 0.97, h * 0.2, w, h * 0.4), 0.6, (0, 1, 0))


def _car_end(rng: np.random.Generator, pens: Pens, w: int, h: int) -> None:
    _shapes(pens, (0, h * rng.uniform(0.68, 0.8), w, h), 0.2, (0.5, 0, 0))
    grille, top = rng.uniform(0.1, 0.35), rng.uniform(0.15, 0.35)
    _shapes(pens, (w * grille, h * top, w * (1 - grille), h * rng.uniform(0.42, 0.55)), 0.35, (1, 0, 0))
    wide, low = rng.uniform(0.1, 0.2), rng.uniform(0.34, 0.46)
    for x in (0.03, 0.97 - wide):
        _shapes(
            pens, (w * x, h * 0.2, w * (x + wide), h * low), 1.0, (0, 1, 0), str(rng.choice(["rectangle", "ellipse"]))
        )
    _shapes(pens, (w * 0.38, h * 0.52, w * 0.62, h * 0.66), 1.0, (0, 0.8, 0))
    for x in rng.uniform(0.4, 0.58, 4):
        _shapes(pens, (w * x, h * 0.55, w * (x + 0.02), h * 0.63), 0.2, (1, 0, 0))


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


NOISE = 512
"""Side of the page of noise."""


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


@dataclass(frozen=True, eq=False)
class Atlas:
    """All pages with their mipmaps: `texels` (N, 4) float32."""

    texels: npt.NDArray[np.float32]
    offset: Ints
    """(pages, levels) first texel; after the smallest mipmap its entry repeats."""
    size: Ints
    """(pages, 2) width and height at level 0."""
    names: dict[str, int]


@lru_cache(maxsize=1)
def make_atlas() -> Atlas:
    """The atlas, which all towns share; cached."""
    pages = {**make_pages(), **make_sprites()}
    levels = max(int(np.log2(max(p.shape[:2]))) + 1 for p in pages.values())
    texels, offsets, at = [], [], 0
    for page in pages.values():
        starts: list[int] = []
        for level in range(levels):
            if level and max(page.shape[:2]) > 1:
                page = _halve(page)
            elif level:
                starts.append(starts[-1])
                continue
            starts.append(at)
            texels.append(page.reshape(-1, 4))
            at += page.shape[0] * page.shape[1]
        offsets.append(starts)
    return Atlas(
        np.concatenate(texels).astype(np.float32),
        np.array(offsets, dtype=np.int64),
        np.array([(p.shape[1], p.shape[0]) for p in pages.values()], dtype=np.int64),
        {name: i for i, name in enumerate(pages)},
    )


def _halve(page: Page) -> Page:
    h, w = page.shape[:2]
    a, b = min(2, h), min(2, w)
    return np.asarray(page.reshape(h // a, a, w // b, b, 4).mean((1, 3)))


def hashed(*keys: Tensor) -> Tensor:
    """Pseudo-random integers in [0, 2^24) from integer keys; 32-bit arithmetic, equal on every device."""
    h = torch.zeros_like(keys[0], dtype=torch.int32) + 0x1B873593
    for key in keys:
        h = h ^ (key.to(torch.int32) * -862048943)
        h = (h ^ ((h >> 15) & 0x1FFFF)) * -2048144789
        h = (h ^ ((h >> 13) & 0x7FFFF)) * -1028477379
    return (h ^ ((h >> 16) & 0xFFFF)) & 0xFFFFFF


def unit(h: Tensor) -> Tensor:
    """Numbers in [0, 1) from hashes."""
    return h.to(torch.float32) * 2.0**-24


def thirds(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three numbers in [0, 1), of 8 bits each, from a hash."""
    first, second, third = (((h >> shift) & 0xFF).to(torch.float32) * 2.0**-8 for shift in (0, 8, 16))
    return first, second, third


def smooth(x: Tensor) -> Tensor:
    """The smoothstep function: 0 below 0, 1 above 1."""
    x = x.clamp(0, 1)
    return x * x * (3 - 2 * x)


def mix(p: Tensor, q: Tensor, share: Tensor) -> Tensor:
    """Linear interpolation: p if `share` is 0, q if it is 1."""
    return torch.lerp(p, q, share)


def pick(table: Tensor, index: Tensor) -> Tensor:
    """Entries of a vector in the shape of `index`."""
    return table.index_select(0, index.reshape(-1)).view(index.shape)


@dataclass(frozen=True, eq=False)
class Pages:
    """An atlas on a device; channels are separate vectors, which are faster to read than rows."""

    channels: tuple[Tensor, ...]
    offset: Tensor
    width: Tensor
    height: Tensor
    """(pages * levels,)"""
    levels: int

    @staticmethod
    def on(atlas: Atlas, device: torch.device) -> Pages:
        """Copy an atlas to a device."""
        levels = atlas.offset.shape[1]
        shrink = torch.arange(levels)
        sizes = [torch.clamp(torch.from_numpy(atlas.size[:, i])[:, None] >> shrink, min=1).reshape(-1) for i in (0, 1)]
        return Pages(
            tuple(c.contiguous().to(device) for c in torch.from_numpy(atlas.texels).unbind(1)),
            torch.from_numpy(atlas.offset).reshape(-1).to(torch.int32).to(device),
            sizes[0].to(torch.int32).to(device),
            sizes[1].to(torch.int32).to(device),
            levels,
        )

    def fetch(
        self,
        page: Tensor,
        x: Tensor,
        y: Tensor,
        soft_x: Tensor,
        soft_y: Tensor,
        channels: tuple[int, ...] = (0, 1, 2, 3),
    ) -> list[Tensor]:
        """Channels of pages at x, y in units of the page (which repeats); `soft_x`, `soft_y`: the pixel's footprint.

        Trilinear: bilinear within the two nearest mipmaps and linear between them.
        """
        start = page * self.levels
        # The mean of both directions: slanted pages keep more detail at the cost of some aliasing.
        texels = 0.5 * (soft_x * pick(self.width, start) + soft_y * pick(self.height, start))
        level = texels.clamp(1.0, 2.0 ** (self.levels - 1)).log2()
        low = level.floor()
        share = level - low
        first = self._level(start + low.to(torch.int32), x, y, channels)
        higher = start + (low.to(torch.int32) + 1).clamp(max=self.levels - 1)
        second = self._level(higher, x, y, channels)
        return [mix(p, q, share) for p, q in zip(first, second, strict=True)]

    def _level(self, entry: Tensor, x: Tensor, y: Tensor, channels: tuple[int, ...]) -> list[Tensor]:
        width, height, start = pick(self.width, entry), pick(self.height, entry), pick(self.offset, entry)
        x0, fx = _texel(x, width)
        y0, fy = _texel(y, height)
        x1, y1 = (x0 + 1) & (width - 1), (y0 + 1) & (height - 1)
        top, low = start + y0 * width, start + y1 * width
        corners = (top + x0, top + x1, low + x0, low + x1)
        found = []
        for channel in channels:
            c = [pick(self.channels[channel], index) for index in corners]
            found.append(mix(mix(c[0], c[1], fx), mix(c[2], c[3], fx), fy))
        return found


def _texel(x: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """The texel left of a point in a repeating page (sizes are powers of two), and the fraction towards the next."""
    at = (x - x.floor()) * size - 0.5
    left = at.floor()
    return left.to(torch.int32) & (size - 1), at - left


def field_at(fields: list[Tensor], shape: tuple[int, int], layer: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """Bilinear values of fields (layers * rows * columns,) at x, y in cells from the grid's corner, clamped to it."""
    rows, columns = shape
    x, y = (x - 0.5).clamp(0, columns - 1.001), (y - 0.5).clamp(0, rows - 1.001)
    x0, y0 = x.floor(), y.floor()
    fx, fy = x - x0, y - y0
    at = (layer.to(torch.int32) * rows + y0.to(torch.int32)) * columns + x0.to(torch.int32)
    found = []
    for field in fields:
        c = [pick(field, at + step) for step in (0, 1, columns, columns + 1)]
        found.append(mix(mix(c[0], c[1], fx), mix(c[2], c[3], fx), fy))
    return found
