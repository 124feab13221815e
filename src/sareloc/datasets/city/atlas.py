"""All the small drawings that a town is papered with, as one table of texels.

A page is (h, w, 4), sides powers of two. Its copies at half, a quarter, ... the size follow it, so that a pixel of any
surface at any distance is one kind of lookup.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sareloc.datasets.city.pages import make_pages
from sareloc.datasets.city.sprites import make_sprites

Page = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Atlas:
    """All pages: `texels` (N, 4) float32; for each page and level the first texel; widths and heights at level 0."""

    texels: npt.NDArray[np.float32]
    offset: npt.NDArray[np.int64]
    """(pages, levels); past a page's smallest copy its last entry repeats."""
    size: npt.NDArray[np.int64]
    """(pages, 2) width, height."""
    names: dict[str, int]


@lru_cache(maxsize=1)
def make_atlas() -> Atlas:
    """Every page; the same in every town, so that it is drawn once."""
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
