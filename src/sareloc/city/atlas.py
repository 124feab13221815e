"""The texture atlas: mipmaps of all pages in one table of texels, and the lookups of shaders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.arrays import Ints
from sareloc.city.lettering import make_faces
from sareloc.city.sprites import make_sprites
from sareloc.city.textures import make_pages, shrink


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
    pages = {**make_pages(), **make_faces(), **make_sprites()}
    levels = max(int(np.log2(max(p.shape[:2]))) + 1 for p in pages.values())
    texels, offsets, at = [], [], 0
    for page in pages.values():
        starts: list[int] = []
        for level in range(levels):
            if level and max(page.shape[:2]) > 1:
                page = shrink(page, min(2, page.shape[0]), min(2, page.shape[1]))
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


def less(distance: Tensor, limit: Tensor | float, soft: Tensor) -> Tensor:
    """The fraction of a pixel where distance < limit; `soft`: the pixel's footprint."""
    return ((limit - distance) / soft + 0.5).clamp(0, 1)


def from_multiple(x: Tensor, period: Tensor | float) -> Tensor:
    """The distance of x from the nearest multiple of a period."""
    return ((x / period) - (x / period).round()).abs() * period


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


def field_at(fields: list[Tensor], shape: tuple[int, ...], layer: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
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
