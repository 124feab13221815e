"""Lookups that a pixel makes: hashes, pages of the atlas, fields on the plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.datasets.city.atlas import Atlas


def hashed(*keys: Tensor) -> Tensor:
    """Whole numbers in [0, 2^24) that look random, from integer keys; 32-bit arithmetic, the same on every device."""
    h = torch.zeros_like(keys[0], dtype=torch.int32) + 0x1B873593
    for key in keys:
        h = h ^ (key.to(torch.int32) * -862048943)
        h = (h ^ ((h >> 15) & 0x1FFFF)) * -2048144789
        h = (h ^ ((h >> 13) & 0x7FFFF)) * -1028477379
    return (h ^ ((h >> 16) & 0xFFFF)) & 0xFFFFFF


def unit(h: Tensor) -> Tensor:
    """A number in [0, 1) from a hash."""
    return h.to(torch.float32) * 2.0**-24


def smooth(x: Tensor) -> Tensor:
    """0 below 0, 1 above 1, smooth between."""
    x = x.clamp(0, 1)
    return x * x * (3 - 2 * x)


def mix(p: Tensor, q: Tensor, share: Tensor) -> Tensor:
    """p where `share` is 0, q where it is 1."""
    return torch.lerp(p, q, share)


def pick(table: Tensor, index: Tensor) -> Tensor:
    """Entries of a vector, in the shape of `index`."""
    return table.index_select(0, index.reshape(-1)).view(index.shape)


@dataclass(frozen=True, eq=False)
class Pages:
    """An atlas on a device; channels lie apart, because a vector is read faster than rows are."""

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
        """Channels of pages at x, y in pages (they repeat); `soft_x`, `soft_y` are the pixel's size in pages.

        Bilinear within the two nearest of the halved copies and linear between them: continuous in all arguments.
        """
        start = page * self.levels
        # The mean of both ways: a slanted page keeps some of its detail for a little noise.
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
    """The texel left of a point of a repeating page (sizes are powers of two), and how far it lies towards the next."""
    at = (x - x.floor()) * size - 0.5
    left = at.floor()
    return left.to(torch.int32) & (size - 1), at - left


def field_at(fields: list[Tensor], shape: tuple[int, int], layer: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """Fields (layers * rows * columns,) at x, y in cells from the grid's corner; beyond the edge the edge."""
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
