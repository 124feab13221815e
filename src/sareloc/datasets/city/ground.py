"""The ground: asphalt and its markings, kerbs, paving, grass; dry, wet, under snow or fallen leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.datasets.city.streets import MARGIN_M, PARK
from sareloc.datasets.city.surface import Air, Hit, Light
from sareloc.datasets.city.texture import hashed, mix, pick, smooth, unit

SLAB_M = (0.6, 0.45)
"""Of the paving, along x and along y."""


def _less(distance: Tensor, limit: Tensor | float, soft: Tensor) -> Tensor:
    """The share of a pixel where distance < limit."""
    return ((limit - distance) / soft + 0.5).clamp(0, 1)


def _dashes(x: Tensor, period: float, share: float, soft: Tensor) -> Tensor:
    near = ((x / period) - (x / period).round()).abs() * period
    return mix(_less(near, 0.5 * share * period, soft), torch.full_like(x, share), smooth(soft / period * 1.6 - 0.4))


def shade_ground(air: Air, hit: Hit, light: Light, soft: Tensor, mirror: Tensor) -> Tensor:
    """Colours (3, B, n) of points on the ground; `soft` is the pixel's size there, `mirror` what water shows."""
    scene = air.scene
    long, cross, kind = _streets(scene.by_y, scene.by_xy, hit, scene.rows)
    (dy, long_road, long_pave), (dx, cross_road, cross_pave) = long, cross
    on_long, on_cross = _less(dy, long_road, soft), _less(dx, cross_road, soft)
    road = torch.maximum(on_long, on_cross)
    pave = torch.maximum(_less(dy, long_road + long_pave, soft), _less(dx, cross_road + cross_pave, soft))

    noise = torch.full_like(hit.x, scene.page["noise"], dtype=torch.int32)
    broad, patch, middle = scene.pages.fetch(noise, hit.x / 23.0, hit.y / 23.0, soft / 23.0, soft / 23.0, (0, 1, 2))
    (fine,) = scene.pages.fetch(noise, hit.x / 2.7 + 0.3, hit.y / 2.7, soft / 2.7, soft / 2.7, (3,))
    asphalt = air.palette("asphalt") * (0.7 + 0.5 * broad + 0.5 * (fine - 0.5) + 0.25 * smooth((patch - 0.6) * 25))
    slabs = torch.maximum(_joints(hit.x, SLAB_M[0], soft), _joints(hit.y, SLAB_M[1], soft))
    slab = _tones(hit.x, hit.y, soft) * (1 - smooth(soft * 2.2 - 0.2)) - 0.5 * smooth(1 - soft * 3)
    paving = air.palette("paving") * (0.78 + 0.3 * broad + 0.18 * slab + 0.2 * (fine - 0.5)) * (1 - 0.4 * slabs)
    leaf_green = air.palette("grass")
    grass = mix(leaf_green, air.palette("dry grass"), air.bare * 0.6) * (0.55 + 0.6 * middle + 0.5 * fine)
    inner = mix(paving, grass, (kind == PARK).to(hit.x.dtype))

    beyond = torch.minimum(dy - long_road, dx - cross_road)
    kerb = _less((beyond - 0.08).abs(), 0.08, soft) * (1 - road)
    gutter = _less((beyond + 0.12).abs(), 0.12, soft)
    colour = mix(inner, paving, pave)
    colour = mix(colour, air.palette("kerb"), kerb)
    colour = mix(colour, asphalt * (1 - 0.35 * gutter), road)
    colour = mix(
        colour, air.palette("road paint") * (0.75 + 0.4 * middle), _markings(hit, long, cross, soft) * road * 0.85
    )

    tracks = smooth(1.6 - 4.0 * ((torch.where(on_long > on_cross, dy, dx) - 1.6).abs() - 0.75).abs())
    snow = air.snow * mix(torch.ones_like(road), 0.25 + 0.6 * middle - 0.35 * tracks, road).clamp(0, 1)
    fallen = smooth((fine + 0.5 * middle - 1.12 + 0.2 * pave - 0.12 * road) * 6) * air.litter
    fallen = mix(fallen, 0.18 * air.litter, smooth(soft * 12 - 0.4))
    colour = mix(colour, air.leaf * (0.7 + 0.6 * fine), fallen)
    colour = mix(colour, air.palette("snow") * (0.88 + 0.15 * fine), snow)

    puddle = smooth((broad + 0.35 * patch + 0.2 * middle - 0.72) * 6)
    wet = air.wet * (1 - snow)
    down = (-hit.ray[2] / (hit.ray[0] ** 2 + hit.ray[1] ** 2 + hit.ray[2] ** 2).sqrt()).clamp(0, 1)
    glint = (0.06 + 0.94 * (1 - down).square().square()) * (0.12 + 0.88 * puddle) * wet
    lamps = air.palette("lamplight") * (light.rest.mean(0) * air.night * 1.2)
    return colour * light.total * (1 - 0.55 * wet) + (mirror + lamps) * glint


def _streets(
    by_y: Tensor, by_xy: Tensor, hit: Hit, rows: int
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor], Tensor]:
    """Distance to the middle of the nearest street along x and along y, with their widths; the block's kind."""
    columns = by_xy.shape[1] // rows
    i = (hit.y + MARGIN_M).floor().clamp(0, by_y.shape[1] - 1).to(torch.int32)
    j = (hit.x + MARGIN_M).floor().clamp(0, columns - 1).to(torch.int32)
    row, middle_y, long_road, long_pave = (pick(by_y[c], i) for c in range(4))
    at = row.to(torch.int32) * columns + j
    middle_x, cross_road, cross_pave, kind = (pick(by_xy[c], at) for c in range(4))
    return ((hit.y - middle_y).abs(), long_road, long_pave), ((hit.x - middle_x).abs(), cross_road, cross_pave), kind


def _joints(x: Tensor, period: float, soft: Tensor) -> Tensor:
    near = ((x / period) - (x / period).round()).abs() * period
    return _less(near, 0.012, soft) * (1 - smooth(soft / period * 2 - 0.2))


def _tones(x: Tensor, y: Tensor, soft: Tensor) -> Tensor:
    """How bright the slabs are, 0 to 1; a pixel that lies on a joint takes its share of the slabs on both sides, so
    that it does not hang on rounding on which side its middle is."""
    (i, right), (j, above) = (_sides(at, side, soft) for at, side in zip((x, y), SLAB_M, strict=True))
    lower, upper = (mix(unit(hashed(i - 1, row)), unit(hashed(i, row)), right) for row in (j - 1, j))
    return mix(lower, upper, above)


def _sides(x: Tensor, side: float, soft: Tensor) -> tuple[Tensor, Tensor]:
    """The number of the joint nearest to x, and the share of the pixel that lies beyond it."""
    joint = (x / side).round()
    return joint, ((x - joint * side) / soft + 0.5).clamp(0, 1)


def _markings(
    hit: Hit, long: tuple[Tensor, Tensor, Tensor], cross: tuple[Tensor, Tensor, Tensor], soft: Tensor
) -> Tensor:
    """White paint: a dashed middle line, lines along wide kerbs, a crossing where a cross street ends."""
    (dy, long_road, _), (dx, cross_road, _) = long, cross
    clear_x = 1 - _less(dx, cross_road + 1.5, soft)
    clear_y = 1 - _less(dy, long_road + 4.2, soft)
    line_long = _less(dy, 0.07, soft) * _dashes(hit.x, 6.0, 0.5, soft) * clear_x
    line_cross = _less(dx, 0.07, soft) * _dashes(hit.y, 6.0, 0.5, soft) * clear_y
    edge = _less((dy - long_road + 2.2).abs(), 0.05, soft) * clear_x * (long_road > 5)
    zebra = (
        _less((dy - long_road - 2.2).abs(), 1.3, soft)
        * _dashes(hit.x + 0.25, 1.0, 0.5, soft)
        * _less(dx, cross_road - 0.3, soft)
    )
    return torch.maximum(torch.maximum(line_long, line_cross), torch.maximum(edge, zebra))
