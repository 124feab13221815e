"""The pixels of an image in square tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Grid:
    """The pixels of B views by tiles: `column`, `row` (B or 1, T, P) are pixel centres; tiles may be in any order."""

    column: Tensor
    row: Tensor
    height: int
    width: int
    tile: int

    @property
    def across(self) -> int:
        """Tiles in a row of tiles."""
        return -(-self.width // self.tile)

    @property
    def down(self) -> int:
        """Rows of tiles."""
        return -(-self.height // self.tile)

    def take(self, order: Tensor) -> Grid:
        """The same pixels with the tiles in another order."""
        return Grid(self.column[:, order], self.row[:, order], self.height, self.width, self.tile)


def make_grid(height: int, width: int, device: torch.device) -> Grid:
    """All pixels of an image; tiles are a twentieth of the width, at least 8 pixels."""
    tile = max(8, -(-width // 20))
    down, across = -(-height // tile), -(-width // tile)
    local = torch.arange(tile, device=device, dtype=torch.float32) + 0.5
    left = torch.arange(across, device=device, dtype=torch.float32) * tile
    top = torch.arange(down, device=device, dtype=torch.float32) * tile
    column = (left[None, :, None, None] + local[None, None, None, :]).expand(down, across, tile, tile)
    row = (top[:, None, None, None] + local[None, None, :, None]).expand(down, across, tile, tile)
    flat = (1, down * across, tile * tile)
    return Grid(column.reshape(flat), row.reshape(flat), height, width, tile)


def assemble(pixels: Tensor, grid: Grid) -> Tensor:
    """(C, B, T * P) in the grid's first order of tiles -> (B, C, height, width)."""
    c, b = pixels.shape[:2]
    t = grid.tile
    image = pixels.reshape(c, b, grid.down, grid.across, t, t).permute(1, 0, 2, 4, 3, 5)
    return image.reshape(b, c, grid.down * t, grid.across * t)[:, :, : grid.height, : grid.width]
