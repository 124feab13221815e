"""Pixel shaders of panels, ground, facades and sky, and the camera's exposure.

Each takes the moments (`Air`), the view and values of pixels (B, n); pixels do not depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sareloc.city.atlas import hashed, mix, pick, smooth, unit
from sareloc.city.facade import shade_facade
from sareloc.city.plan import MARGIN_M, PARK
from sareloc.city.scene import Air, Hit, Light, Paint, Vector, length, light_on, reflected, shade_sky, through_air

SLAB_M = (0.6, 0.45)
"""Size of the paving slabs along x and y."""


def shade_panel(
    air: Air, paint: Paint, hit: Hit, light: Light, a: Tensor, b: Tensor, soft_a: Tensor, soft_b: Tensor, facing: Tensor
) -> Tensor:
    """Colours (3, B, n) of points a, b of textured quads; `soft_a`, `soft_b`: the pixel's footprint in a and b."""
    across, up = paint.repeat_u, paint.repeat_v
    shade, second, third, glass = air.scene.pages.fetch(
        paint.page.to(torch.int32), _within(a, across), _within(1 - b, up), soft_a * across, soft_b * up
    )
    colour = paint.colour(0) * (1 - second - third - glass) + paint.colour(1) * second + paint.colour(2) * third
    snow = air.snow * smooth((paint.normal_z - 0.25) * 3)
    colour = mix(colour * shade, air.palette("snow"), snow)
    mirror = 0.12 + 0.6 * (1 - facing).clamp(0, 1).square().square()
    pane = air.palette("car window") + reflected(air, hit, torch.zeros_like(a)) * mirror
    return mix(colour * light.total, pane, glass * (1 - snow)) + colour * (0.5 * paint.glow * air.night)


def _within(x: Tensor, repeat: Tensor) -> Tensor:
    """Texture coordinates; those of a page that does not repeat are clamped, because pages wrap around."""
    return torch.where(repeat > 1.5, x * repeat, x.clamp(0.01, 0.99))


def _less(distance: Tensor, limit: Tensor | float, soft: Tensor) -> Tensor:
    """The fraction of a pixel where distance < limit."""
    return ((limit - distance) / soft + 0.5).clamp(0, 1)


def _dashes(x: Tensor, period: float, share: float, soft: Tensor) -> Tensor:
    near = ((x / period) - (x / period).round()).abs() * period
    return mix(_less(near, 0.5 * share * period, soft), torch.full_like(x, share), smooth(soft / period * 1.6 - 0.4))


def shade_ground(air: Air, hit: Hit, light: Light, soft: Tensor, mirror: Tensor) -> Tensor:
    """Colours (3, B, n) of the ground: asphalt with markings, kerbs, paving, grass; dry, wet, with snow or leaves.

    `soft`: the pixel's footprint, `mirror`: the reflection in water.
    """
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
    """Distance to the centre line of the nearest street along x and along y, with their widths; kind of block."""
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
    """Brightness of the slabs, 0 to 1; a pixel on a joint blends the slabs on both sides, so that it does not depend on
    rounding."""
    (i, right), (j, above) = (_sides(at, side, soft) for at, side in zip((x, y), SLAB_M, strict=True))
    lower, upper = (mix(unit(hashed(i - 1, row)), unit(hashed(i, row)), right) for row in (j - 1, j))
    return mix(lower, upper, above)


def _sides(x: Tensor, side: float, soft: Tensor) -> tuple[Tensor, Tensor]:
    """The number of the joint nearest to x, and the fraction of the pixel beyond it."""
    joint = (x / side).round()
    return joint, ((x - joint * side) / soft + 0.5).clamp(0, 1)


def _markings(
    hit: Hit, long: tuple[Tensor, Tensor, Tensor], cross: tuple[Tensor, Tensor, Tensor], soft: Tensor
) -> Tensor:
    """Road markings: a dashed centre line, lines along wide kerbs, zebra crossings at the ends of cross streets."""
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


@dataclass(frozen=True, eq=False)
class View:
    """B cameras on the device."""

    eye: Tensor
    """(B, 3)"""
    rays: Tensor
    """(B, 3, 3): the ray of a pixel is rays[0] + column rays[1] + row rays[2]; its forward component is 1."""
    unproject: Tensor
    """(B, 3, 3) the inverse: maps an offset from the camera to column t, row t and t."""
    moment: Tensor
    """(B,)"""
    seed: Tensor
    """(B,)"""
    pixel: Tensor
    """(B,) angle of a pixel at the image centre in radians."""


def ray_through(view: View, column: Tensor, row: Tensor) -> Vector:
    """The ray through each pixel."""
    r = view.rays
    x, y, z = (r[:, 0, i, None] + column * r[:, 1, i, None] + row * r[:, 2, i, None] for i in range(3))
    return x, y, z


def _hit(view: View, t: Tensor, column: Tensor, row: Tensor) -> Hit:
    ray = ray_through(view, column, row)
    x, y, z = (view.eye[:, i, None] + t * part for i, part in enumerate(ray))
    return Hit(x, y, z, ray, t * length(ray))


def _painted(
    air: Air, view: View, piece: Tensor, t: Tensor, column: Tensor, row: Tensor
) -> tuple[Paint, Hit, Light, Tensor]:
    """Material and light of points on quads, and the cosine between their normal and the ray."""
    paint, hit = Paint(air.scene.columns, piece), _hit(view, t, column, row)
    normal = (paint.normal_x, paint.normal_y, paint.normal_z)
    along = sum(n * r for n, r in zip(normal, hit.ray, strict=True))
    assert isinstance(along, Tensor)
    return paint, hit, light_on(air, hit, normal), along.abs() / length(hit.ray)


def facade_pixels(
    air: Air, view: View, piece: Tensor, t: Tensor, a: Tensor, fa: Tensor, fb: Tensor, column: Tensor, row: Tensor
) -> Tensor:
    """Colours of facades at depth t and coordinate a; `fa`, `fb`: the pixel's footprint in a and b."""
    paint, hit, light, facing = _painted(air, view, piece, t, column, row)
    width, height = paint.width, paint.height
    u = torch.minimum((a * width).clamp(min=0.0), width * 0.9999)
    soft_u, soft_z = (fa * width).clamp(min=1e-3), (fb * height).clamp(min=1e-3)
    return through_air(air, shade_facade(air, paint, hit, light, u, soft_u, soft_z, facing), hit.away)


def panel_pixels(
    air: Air,
    view: View,
    piece: Tensor,
    t: Tensor,
    a: Tensor,
    b: Tensor,
    fa: Tensor,
    fb: Tensor,
    column: Tensor,
    row: Tensor,
) -> Tensor:
    """Colours of textured quads at depth t and coordinates a, b."""
    paint, hit, light, facing = _painted(air, view, piece, t, column, row)
    return through_air(air, shade_panel(air, paint, hit, light, a, b, fa, fb, facing), hit.away)


def ground_pixels(air: Air, view: View, column: Tensor, row: Tensor) -> Tensor:
    """Colours of the ground below the horizon."""
    z = ray_through(view, column, row)[2].clamp(max=-1e-4)
    t = (-view.eye[:, 2, None] / z).clamp(max=2000.0)
    hit, zero = _hit(view, t, column, row), torch.zeros_like(t)
    light = light_on(air, hit, (zero, zero, zero + 1))
    down = (-z * t / hit.away).clamp(min=1e-3)
    # A pixel on the ground is longer than wide; slightly more than the geometric mean avoids aliasing of lines.
    soft = (hit.away * view.pixel[:, None] / down.sqrt() * 1.3).clamp(min=2e-3)
    # Wet streets reflect the sky at their end, lower than a window does.
    mirror = reflected(air, replace(hit, ray=(hit.ray[0], hit.ray[1], -z)), zero + 0.15)
    return through_air(air, shade_ground(air, hit, light, soft, mirror), hit.away)


def sky_pixels(air: Air, view: View, column: Tensor, row: Tensor) -> Tensor:
    """Colours of the sky above the horizon, with haze."""
    ray = ray_through(view, column, row)
    up = (ray[2] / length(ray)).clamp(min=0)
    return through_air(air, shade_sky(air, ray, view.pixel[:, None]), 120.0 / (up + 0.08))


def expose(air: Air, view: View, colour: Tensor, column: Tensor, row: Tensor, height: int, width: int) -> Tensor:
    """Camera values 0..255 of light (3, B, n): exposure, white balance, tone curve, vignette, noise."""
    x, y = column / width - 0.5, row / height - 0.5
    fall = 1 - air.vignette * (x * x + y * y) * 1.4
    light = (colour * air.balance * (air.exposure * fall)).clamp(min=0)
    # A filmic tone curve: nearly linear in the dark, a soft shoulder at white.
    value = (light * (light * 2.51 + 0.03)) / (light * (light * 2.43 + 0.59) + 0.14)
    value = value.clamp(0, 1) ** (1 / 2.2)
    place = column.to(torch.int32) + row.to(torch.int32) * width
    first = hashed(view.seed[:, None].expand_as(place), place)
    noise = [unit(hashed(first + i)) for i in range(6)]
    grain = torch.stack([noise[i] + noise[i + 3] - 1 for i in range(3)]) * (2.45 * air.grain)
    return ((value + grain) * 255 + 0.5).clamp(0, 255).floor()
