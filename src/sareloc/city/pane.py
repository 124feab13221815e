"""What is seen in a window: the room, curtains and blinds, things on the sill, goods of a shop, light, reflections."""

from __future__ import annotations

import torch
from torch import Tensor

from sareloc.city.atlas import hashed, less, mix, smooth, thirds, unit
from sareloc.city.bay import Bay
from sareloc.city.scene import Air, Hit, Light, Paint, length

OPPOSITE_M = 14.0
"""Distance of the houses that windows reflect."""


def shade_pane(air: Air, hit: Hit, light: Light, facing: Tensor, paint: Paint, bay: Bay, accent: Tensor) -> Tensor:
    """The colour of a window pane (3, B, n)."""
    tall = (bay.head - bay.sill).clamp(min=0.1)
    (l0, l1, l2), (c0, c1, c2), (t0, t1, t2) = bay.luck, bay.chance, thirds(hashed(bay.number + 7))
    cloth, fold = _curtains(paint, bay, tall, (t0, t1, t2))
    fabric = torch.stack([0.25 + 0.6 * t0, 0.22 + 0.55 * (0.6 * t0 + 0.4 * t1), 0.18 + 0.55 * (0.5 * t0 + 0.5 * t2)])
    inside = air.palette("dark room") * (0.4 + 2.2 * l1) + _things(bay, (t1, t2, l0)) * 0.1
    inside = mix(inside, fabric * fold, cloth)
    shelf = _goods(bay)
    wares = 0.03 + (0.1 + 0.25 * torch.stack([c0, c1, c2])) * shelf + 0.15 * accent * shelf
    inside = mix(inside, wares, bay.shop)
    on = (bay.today[1] < 0.3 + 0.42 * bay.shop) * air.night
    warm = mix(air.palette("warm room"), air.palette("cold room"), t1.square())
    strength = (
        (0.14 + 0.34 * bay.today[2] + 0.12 * bay.shop) * (1 - 0.5 * cloth) * (0.6 + 0.4 * (bay.r - bay.sill) / tall)
    )
    lamp = warm * (on * strength * mix(0.7 + 0.5 * _things(bay, (t1, t2, l0)), 0.35 + shelf, bay.shop))
    mirror = 0.09 + 0.75 * (1 - facing).clamp(0, 1).square().square()
    shine: Tensor = _reflection(air, hit, paint, (l2 - 0.5) * 0.12) * mirror
    return inside * light.rest * 0.8 + lamp + shine


def _curtains(paint: Paint, bay: Bay, tall: Tensor, third: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The coverage by curtains, a net or a blind, and the brightness of its folds."""
    kind = third[1]
    half_open = torch.where(third[2] < 0.4, bay.today[2], bay.chance[1])
    aside = less(bay.half * (0.25 + 0.75 * half_open), bay.s.abs(), bay.soft_u.clamp(min=0.02))
    one_side = less(bay.half * (1.6 * half_open - 0.8), bay.s * torch.sign(third[0] - 0.5), bay.soft_u)
    drawn = torch.maximum(aside * (kind < 0.5), one_side * (kind > 0.5) * (kind < 0.6))
    net = less(bay.r, bay.sill + tall * (0.3 + 0.4 * third[0]), bay.soft_z) * (kind > 0.4) * (kind < 0.75)
    blind = less(bay.head - tall * (0.1 + 0.9 * half_open), bay.r, bay.soft_z) * (kind > 0.7)
    cloth = torch.maximum(torch.maximum(drawn, 0.7 * net), blind) * (third[0] < paint.cloth) * (1 - bay.shop)
    fine = 1 - smooth(bay.soft_u * 16 - 0.3)
    folds = torch.sin(bay.s * (22 + 30 * third[2]) + 6 * third[0]) * (kind < 0.75)
    slats = torch.sin(bay.r * 90) * (kind > 0.85)
    return cloth, 1 + (0.25 * folds + 0.3 * slats) * fine


def _things(bay: Bay, third: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Plants, lamps and furniture behind the glass: 0 to 1."""
    total = torch.zeros_like(bay.s)
    for x, size, tall in ((third[0], third[1], third[2]), (third[2], third[0], third[1])):
        reach, high = 0.06 + 0.16 * size, 0.12 + 0.45 * tall
        away = ((bay.s - bay.half * (1.6 * x - 0.8)) / reach).square() + (
            (bay.r - bay.sill - 0.5 * high) / (0.6 * high)
        ).square()
        total = total + ((1 - away) * 0.5 * reach / bay.soft_u + 0.5).clamp(0, 1) * (0.4 + size)
    return total.clamp(max=1) * bay.plain


def _goods(bay: Bay) -> Tensor:
    """A shop display: boxes of different heights on shelves, 0 dark to 1 light; their mean at a distance."""
    rise, wide = 0.45 + 0.5 * bay.luck[1], 0.16 + 0.3 * bay.luck[2]
    shelf = (bay.r / rise).floor()
    along = bay.s / wide + 0.5 * shelf + bay.chance[0]
    box = along.floor()
    h = hashed(box, shelf, bay.number)
    first, second, third = thirds(h)
    tall = rise * (0.2 + 0.65 * first)
    inside = less((along - box - 0.5).abs() * wide, wide * (0.2 + 0.28 * second), bay.soft_u)
    inside = inside * less(bay.r - shelf * rise, tall, bay.soft_z)
    tone = (0.15 + 0.85 * third) * (unit(hashed(h)) < 0.8)
    return mix(inside * tone, torch.full_like(tone, 0.25), smooth(bay.soft_u / wide * 1.4 - 0.5)) * (shelf < 3)


def _reflection(air: Air, hit: Hit, paint: Paint, tilt: Tensor) -> Tensor:
    """The sky and, below an uneven line of roofs, the houses opposite; no pane is quite flat."""
    up = hit.ray[2] / length(hit.ray) + tilt
    # where the reflected ray meets the other side of the street, along the facade
    along = hit.x * paint.normal_y - hit.y * paint.normal_x
    slide = hit.ray[0] * paint.normal_y - hit.ray[1] * paint.normal_x
    inward = (hit.ray[0] * paint.normal_x + hit.ray[1] * paint.normal_y).abs().clamp(min=0.05)
    place = along + OPPOSITE_M * (slide / inward).clamp(-4, 4) + 40 * tilt
    roofs = 0.24 + 0.1 * torch.sin(place * 0.55) + 0.06 * torch.sin(place * 1.7 + 1)
    sky = mix(air.horizon, air.zenith, up.clamp(0, 1))
    glimmer = torch.sin(place * 2.9) + torch.sin(place * 1.3 + up * 19)
    houses = (air.ambient * 0.2 + air.sun * 0.09) * (1 + 0.25 * glimmer)
    return mix(houses, sky, smooth((up - roofs) * 9.0))
