"""Pixel shaders of panels, ground, facades and sky.

Each takes the moments (`Air`), the view and values of pixels (B, n); pixels do not depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.city.atlas import from_multiple, hashed, less, mix, pick, smooth, thirds, unit
from sareloc.city.facade import shade_facade
from sareloc.city.lettering import GLYPHS, PACKED
from sareloc.city.plan import MARGIN_M, PARK
from sareloc.city.scene import Air, Hit, Light, Paint, Vector, dot, length, light_on, reflected, shade_sky, through_air

TURNS = ((0.829, 0.559, 37.3), (-0.342, 0.940, 4.71))
"""Cosine, sine and size in metres of two layers of noise on the ground: together they do not repeat."""


def shade_panel(
    air: Air, paint: Paint, hit: Hit, light: Light, a: Tensor, b: Tensor, soft_a: Tensor, soft_b: Tensor, facing: Tensor
) -> Tensor:
    """Colours (3, B, n) of points a, b of textured quads; `soft_a`, `soft_b`: the pixel's footprint in a and b."""
    across, up, letters = paint.repeat_u, paint.repeat_v, paint.letters
    page = paint.page.to(torch.int32)
    lettered = letters > 0
    x = torch.where(lettered, letter_at(paint, letters, a), _within(a, across))
    soft_x = torch.where(lettered, soft_a * letters / GLYPHS, soft_a * across)
    shade, second, third, glass = air.scene.pages.fetch(page, x, _within(1 - b, up), soft_x, soft_b * up)
    size = paint.stain_m.clamp(min=1.0)
    u, v = a * paint.width / size, b * paint.height / size
    broad, middle = air.noise(
        u + paint.stain_u, v + paint.stain_v, soft_a * paint.width / size, soft_b * paint.height / size, (0, 2)
    )
    shade = shade * (1 - paint.worn * (0.9 * smooth((0.6 * broad + 0.4 * middle - 0.4) * 4) - 0.2))
    colour = paint.colour(0) * (1 - second - third - glass) + paint.colour(1) * second + paint.colour(2) * third
    snow = air.snow * smooth((paint.normal_z - 0.25) * 3)
    colour = mix(colour * shade, air.palette("snow"), snow)
    mirror = 0.12 + 0.6 * (1 - facing).clamp(0, 1).square().square()
    pane = air.palette("car window") + reflected(air, hit.ray) * mirror
    return mix(colour * light.total, pane, glass * (1 - snow)) + colour * (0.5 * paint.glow * air.night)


def letter_at(paint: Paint, letters: Tensor, a: Tensor) -> Tensor:
    """Coordinates in the page of a sign's face: the cell of the letter at a (see `lettering.pack`)."""
    at = (a * letters).clamp(min=0)
    place = torch.minimum(at.floor(), letters - 1)
    number = (place / PACKED).floor()
    packed = torch.where(number < 0.5, paint.text0, torch.where(number < 1.5, paint.text1, paint.text2)).to(torch.int32)
    cell = (packed >> (5 * (place - PACKED * number)).clamp(min=0).to(torch.int32)) & (GLYPHS - 1)
    return (cell + (at - place).clamp(0.02, 0.98)) / GLYPHS


def _within(x: Tensor, repeat: Tensor) -> Tensor:
    """Texture coordinates; those of a page that does not repeat are clamped, because pages wrap around."""
    return torch.where(repeat > 1.5, x * repeat, x.clamp(0.01, 0.99))


def _dashes(x: Tensor, period: float, share: float, soft: Tensor) -> Tensor:
    return mix(
        less(from_multiple(x, period), 0.5 * share * period, soft),
        torch.full_like(x, share),
        smooth(soft / period * 1.6 - 0.4),
    )


def shade_ground(air: Air, hit: Hit, light: Light, soft: Tensor, mirror: Tensor) -> Tensor:
    """Colours (3, B, n) of the ground: asphalt with markings, kerbs, paving, grass; dry, wet, with snow or leaves.

    `soft`: the pixel's footprint, `mirror`: the reflection in water.
    """
    scene = air.scene
    long, cross, kind = _streets(scene.by_y, scene.by_xy, hit, scene.rows)
    (dy, long_road, long_pave, _), (dx, cross_road, cross_pave, _) = long, cross
    on_long, on_cross = less(dy, long_road, soft), less(dx, cross_road, soft)
    road = torch.maximum(on_long, on_cross)
    pave = torch.maximum(less(dy, long_road + long_pave, soft), less(dx, cross_road + cross_pave, soft))

    (broad, patch), (middle, fine) = (
        air.noise((c * hit.x + s * hit.y) / size, (c * hit.y - s * hit.x) / size, soft / size, soft / size, channels)
        for (c, s, size), channels in zip(TURNS, ((0, 1), (2, 3)), strict=True)
    )
    asphalt = _asphalt(air, hit, long[3], cross[3], (broad, patch, middle, fine), soft)
    paving = _paving(air, hit, long, cross, (broad, middle, fine), soft)
    leaf_green = air.palette("grass")
    grass = mix(leaf_green, air.palette("dry grass"), air.bare * 0.6) * (0.55 + 0.6 * middle + 0.5 * fine)
    inner = mix(paving, grass, (kind == PARK).to(hit.x.dtype))

    beyond = torch.minimum(dy - long_road, dx - cross_road)
    kerb = less((beyond - 0.08).abs(), 0.08, soft) * (1 - road)
    gutter = less((beyond + 0.12).abs(), 0.12, soft)
    colour = mix(inner, paving, pave)
    stone = unit(hashed(((hit.x + hit.y) / 0.9).floor()))
    colour = mix(colour, air.palette("kerb") * (0.65 + 0.5 * stone + 0.3 * (middle - 0.5)), kerb)
    colour = mix(colour, asphalt * (1 - 0.35 * gutter), road)
    colour = mix(
        colour,
        air.palette("road paint") * (0.75 + 0.4 * middle),
        _markings(hit, long, cross, soft)
        * road
        * (0.25 + 1.1 * smooth((broad + 0.6 * middle - 0.45) * 2.5)).clamp(max=0.92),
    )

    tracks = smooth(1.6 - 4.0 * ((torch.where(on_long > on_cross, dy, dx) - 1.6).abs() - 0.75).abs())
    snow = air.snow * mix(torch.ones_like(road), 0.25 + 0.6 * middle - 0.35 * tracks, road).clamp(0, 1)
    fallen = smooth((fine + 0.5 * middle - 1.12 + 0.2 * pave - 0.12 * road) * 6) * air.litter
    fallen = mix(fallen, 0.18 * air.litter, smooth(soft * 12 - 0.4))
    colour = mix(colour, air.leaf * (0.7 + 0.6 * fine), fallen)
    colour = mix(colour, air.palette("snow") * (0.88 + 0.15 * fine), snow)

    puddle = smooth((broad + 0.35 * patch + 0.2 * middle - 0.86) * 6)
    wet = air.wet * (1 - snow)
    down = (-hit.ray[2] / length(hit.ray)).clamp(0, 1)
    glint = (0.05 + 0.8 * (1 - down).square().square()) * (0.16 + 0.7 * puddle) * wet
    lamps = air.palette("lamplight") * (light.rest.mean(0) * air.night * 1.2)
    return colour * light.total * (1 - 0.55 * wet) + (mirror + lamps) * glint


Street = tuple[Tensor, Tensor, Tensor, Tensor]
"""Distance to the centre line of a street, half width of its road, width of its pavement, and the line's coordinate."""


def _streets(by_y: Tensor, by_xy: Tensor, hit: Hit, rows: int) -> tuple[Street, Street, Tensor]:
    """Distance to the centre line of the nearest street along x and along y, with its widths and centre; kind of
    block."""
    columns = by_xy.shape[1] // rows
    i = (hit.y + MARGIN_M).floor().clamp(0, by_y.shape[1] - 1).to(torch.int32)
    j = (hit.x + MARGIN_M).floor().clamp(0, columns - 1).to(torch.int32)
    row, middle_y, long_road, long_pave = (pick(by_y[c], i) for c in range(4))
    at = row.to(torch.int32) * columns + j
    middle_x, cross_road, cross_pave, kind = (pick(by_xy[c], at) for c in range(4))
    return (
        ((hit.y - middle_y).abs(), long_road, long_pave, middle_y),
        ((hit.x - middle_x).abs(), cross_road, cross_pave, middle_x),
        kind,
    )


def _asphalt(
    air: Air, hit: Hit, long: Tensor, cross: Tensor, noise: tuple[Tensor, Tensor, Tensor, Tensor], soft: Tensor
) -> Tensor:
    """Asphalt with repairs, cracks and manhole covers; each street has its own age."""
    broad, patch, middle, fine = noise
    age = unit(hashed(long, cross))
    shade = 0.55 + 0.35 * age + 0.5 * broad + (0.25 + 0.4 * age) * (fine - 0.5) + 0.3 * (middle - 0.5)
    i, j = (hit.x / 5.3).floor(), (hit.y / 3.7).floor()
    luck, tone, size = thirds(hashed(i, j))
    aside = ((hit.x / 5.3 - i - 0.5).abs() * 5.3, (hit.y / 3.7 - j - 0.5).abs() * 3.7)
    repair = less(aside[0], 0.6 + 1.9 * tone, soft) * less(aside[1], 0.4 + 1.3 * size, soft) * (luck < 0.22)
    shade = mix(shade, 0.6 + 0.7 * tone + 0.35 * (fine - 0.5), repair)
    crack = less((patch - 0.3 - 0.4 * age).abs(), 0.0035 + 0.012 * (middle - 0.4).clamp(min=0), soft * 0.06)
    shade = shade * (1 - 0.55 * crack * (1 - repair))
    away = ((aside[0] - 1.1).square() + (aside[1] - 0.9).square()).sqrt()
    cover = less(away, 0.34, soft) * (luck > 0.9) * (tone > 0.25)
    ribs = 0.75 + 0.35 * torch.sin(away * (40 + 40 * size)) * (1 - smooth(soft * 14))
    return air.palette("asphalt") * mix(shade, 0.8 * ribs, cover)


def _paving(
    air: Air, hit: Hit, long: Street, cross: Street, noise: tuple[Tensor, Tensor, Tensor], soft: Tensor
) -> Tensor:
    """Slabs or setts: size, colour and joints differ from block to block."""
    broad, middle, fine = noise
    kind = hashed(long[3], cross[3], 2.0 * (hit.y > long[3]) + 1.0 * (hit.x > cross[3]))
    size, square, tint = thirds(kind)
    wide = 0.14 + 0.75 * size.square()
    deep = wide * (0.6 + 0.6 * square)
    row = (hit.y / deep).floor()
    x = hit.x + 0.5 * wide * (row % 2) * (tint < 0.5)
    slabs = torch.maximum(_joints(x, wide, soft), _joints(hit.y, deep, soft))
    tone = _tones(x, hit.y, wide, deep, soft) * (1 - smooth(soft / wide * 1.3 - 0.2)) - 0.5 * smooth(
        1 - soft / wide * 1.8
    )
    spots = smooth((middle + 0.5 * fine - 0.95) * 8)
    shade = (
        0.72 + 0.35 * broad + (0.12 + 0.3 * square) * tone + 0.2 * (fine - 0.5) + 0.2 * (middle - 0.5) - 0.25 * spots
    )
    hue = torch.stack([0.85 + 0.35 * tint, 0.95 + 0.05 * tint, 1.1 - 0.3 * tint]) * (0.65 + 0.5 * square)
    return air.palette("paving") * hue * (shade * (1 - 0.45 * slabs))


def _joints(x: Tensor, period: Tensor, soft: Tensor) -> Tensor:
    return less(from_multiple(x, period), 0.012, soft) * (1 - smooth(soft / period * 2 - 0.2))


def _tones(x: Tensor, y: Tensor, wide: Tensor, deep: Tensor, soft: Tensor) -> Tensor:
    """Brightness of the slabs, 0 to 1; a pixel on a joint blends the slabs on both sides, so that it does not depend on
    rounding."""
    (i, right), (j, above) = (_sides(at, side, soft) for at, side in ((x, wide), (y, deep)))
    lower, upper = (mix(unit(hashed(i - 1, row)), unit(hashed(i, row)), right) for row in (j - 1, j))
    return mix(lower, upper, above)


def _sides(x: Tensor, side: Tensor, soft: Tensor) -> tuple[Tensor, Tensor]:
    """The number of the joint nearest to x, and the fraction of the pixel beyond it."""
    joint = (x / side).round()
    return joint, less(joint * side, x, soft)


def _markings(hit: Hit, long: Street, cross: Street, soft: Tensor) -> Tensor:
    """Road markings: a dashed centre line, lines along wide kerbs, zebra crossings at the ends of cross streets."""
    (dy, long_road, *_), (dx, cross_road, *_) = long, cross
    clear_x = 1 - less(dx, cross_road + 1.5, soft)
    clear_y = 1 - less(dy, long_road + 4.2, soft)
    line_long = less(dy, 0.07, soft) * _dashes(hit.x, 6.0, 0.5, soft) * clear_x
    line_cross = less(dx, 0.07, soft) * _dashes(hit.y, 6.0, 0.5, soft) * clear_y
    edge = less((dy - long_road + 2.2).abs(), 0.05, soft) * clear_x * (long_road > 5)
    zebra = (
        less((dy - long_road - 2.2).abs(), 1.3, soft)
        * _dashes(hit.x + 0.25, 1.0, 0.5, soft)
        * less(dx, cross_road - 0.3, soft)
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
    return paint, hit, light_on(air, hit, normal), dot(normal, hit.ray).abs() / length(hit.ray)


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
    mirror = reflected(air, (hit.ray[0], hit.ray[1], -z), 0.15)
    return through_air(air, shade_ground(air, hit, light, soft, mirror), hit.away)


def sky_pixels(air: Air, view: View, column: Tensor, row: Tensor) -> Tensor:
    """Colours of the sky above the horizon, with haze."""
    ray = ray_through(view, column, row)
    up = (ray[2] / length(ray)).clamp(min=0)
    return through_air(air, shade_sky(air, ray, view.pixel[:, None]), 120.0 / (up + 0.08))
