"""The renderer's entry points (`draw`, `draw_scene`) and its passes: quads, background, sprites, lens, exposure.

The same code runs in two ways (`Scene.dense`). On a CPU each view is rendered separately, and each shader runs on the
pixels that need it; on a GPU a batch is rendered at once, and each shader runs on every pixel as a compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from sareloc.city.atlas import hashed, less, mix, pick, smooth, thirds
from sareloc.city.geometry import COLUMN, FACADE, Poses, axes, focal_px
from sareloc.city.moment import Moment
from sareloc.city.raster import (
    Candidates,
    Grid,
    assemble,
    covered,
    fused,
    make_candidates,
    make_grid,
    nearest_pieces,
    rows_at,
    surface_point,
    tile_lists,
    two_nearest,
)
from sareloc.city.scene import Air, Scene, fields_at, make_scene, through_air
from sareloc.city.shaders import View, facade_pixels, ground_pixels, panel_pixels, ray_through, sky_pixels
from sareloc.city.town import Town
from sareloc.errors import ArgumentError
from sareloc.models.preprocess import TORCH_DEVICES, find_device

SPRITES_PER_VIEW, SPRITES_PER_TILE = 96, 8
NEAREST_M = 1.6
PIECES_PER_VIEW, PIECES_PER_TILE = 512, 16
CLEAR_OF_CARS_M = 4.5
"""Cars nearer to the camera are not drawn."""
BLUR_TAPS = 2
"""Reach of the lens's blur in pixels."""
DENSE_BATCH = 32
"""Views per batch on a GPU; constant, so that a view's pixels do not depend on the number of views."""


def lay_sprites(air: Air, view: View, grid: Grid, wall: Tensor, colour: Tensor, depth: Tensor) -> Tensor:
    """Composite all sprites nearer than `depth` (B, T * P) over colours (3, B, T * P), from far to near; `wall`: see
    `tile_lists`."""
    rows, lists, counts = _sprite_candidates(air, view, grid, wall)
    tiled = (lists.shape[1], grid.column.shape[2])
    colour = colour.view(*colour.shape[:2], *tiled).clone()
    depth = depth.view(len(depth), *tiled)
    for slot in reversed(range(lists.shape[2])):
        used, index = counts > slot, lists[:, :, slot]
        if air.scene.dense:
            colour = fused(_lay)(air, rows_at(rows, index), used, grid.column, grid.row, colour, depth)
            continue
        tiles = used[0].nonzero()[:, 0]
        if len(tiles):
            pixels = (grid.column[:, tiles], grid.row[:, tiles], colour[:, :, tiles], depth[:, tiles])
            colour[:, :, tiles] = _lay(air, rows_at(rows, index[:, tiles]), used[:, tiles], *pixels)
    return colour.flatten(2)


def _of_views(fixed: Tensor, moving: Tensor, view: View) -> Tensor:
    """(B, n, columns) the rows of a table that is the same at all moments, and those at the moment of each view."""
    return torch.cat([fixed.expand(len(view.eye), -1, -1), moving.index_select(0, view.moment)], 1)


def _choose(
    view: View, grid: Grid, edges: tuple[Tensor, Tensor, Tensor], allowed: Tensor, reach_m: Tensor, keep: int
) -> tuple[Tensor, Candidates]:
    """(B, keep) the nearest of the quads with these corners and edges that are allowed (B, n), and their screen
    bounds."""
    everything = make_candidates(*edges, view.rays, view.unproject, view.eye)
    everything = replace(everything, seen=everything.seen & allowed)
    chosen = nearest_pieces(everything, reach_m, grid, keep)
    return chosen, everything.take(chosen)


def _sprite_candidates(air: Air, view: View, grid: Grid, wall: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The potentially visible sprites (B, K, 23), nine coefficients and what `_looks` returns, and the lists of them
    per tile."""
    sprites = _of_views(air.scene.fixed_sprites, air.scene.moving_sprites, view)
    edges, distance = _turned(sprites, view.eye)
    chosen, candidates = _choose(view, grid, edges, distance > NEAREST_M, sprites[..., 4], SPRITES_PER_VIEW)
    lists, counts, _ = tile_lists(
        candidates, torch.zeros_like(candidates.seen), grid, SPRITES_PER_TILE, hidden_behind=wall
    )
    looks = _looks(air, rows_at(sprites, chosen), torch.gather(distance, 1, chosen))
    return torch.cat([candidates.coefficients.flatten(2), looks], -1), lists, counts


def _turned(sprites: Tensor, eye: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Corner and edges of each sprite facing each camera, and its distance on the plan."""
    foot, size = sprites[..., 0:3], sprites[..., 3:5]
    off = foot[..., :2] - eye[:, None, :2]
    distance = off.square().sum(-1).sqrt().clamp(min=1e-3)
    side = torch.stack([off[..., 1], -off[..., 0]], -1) / distance[..., None]
    u = torch.cat([side * size[..., :1].abs(), torch.zeros_like(size[..., :1])], -1)
    v = torch.cat([torch.zeros_like(side), size[..., 1:]], -1)
    return (foot - 0.5 * u, u, v), distance


def _looks(air: Air, sprites: Tensor, distance: Tensor) -> Tensor:
    """(B, K, 14) page, mirrored, distance, seed, leafy, and the three colours in the light at each sprite."""
    size, page, glow, leafy = sprites[..., 3:5], sprites[..., 5:7], sprites[..., 16], sprites[..., 17]
    shown = mix(page[..., 0], page[..., 1], air.bare)
    shadow, _, lamps, sky = fields_at(air, sprites[..., 0], sprites[..., 1])
    sun = ((size[..., 1] * 0.6 - shadow) * 0.4 + 1).clamp(0, 1)
    lamplight = air.palette("lamplight") * (0.16 * lamps * air.night)
    light = air.ambient * (0.35 + 0.65 * sky) + air.sun * (0.6 * sun) + lamplight
    first, second, third = (sprites[..., i : i + 3].permute(2, 0, 1) for i in (7, 10, 13))
    second = second * mix(torch.ones_like(air.leaf), air.leaf, leafy)
    white, snow = air.palette("snow") * light, 0.45 * air.snow * leafy
    colours = [mix(first * light, white, snow), mix(second * (light + glow * air.night), white, snow), third * light]
    numbers = torch.stack([shown, (size[..., 0] < 0).to(shown.dtype), distance, sprites[..., 18], leafy])
    return torch.cat([numbers, *colours]).permute(1, 2, 0)


def _lay(air: Air, rows: Tensor, used: Tensor, column: Tensor, row: Tensor, colour: Tensor, depth: Tensor) -> Tensor:
    """Composite one more sprite per tile."""
    c = [x[..., None] for x in rows.unbind(-1)]
    page, mirrored, distance = c[9].to(torch.int32), c[10], c[11]
    t, a, b, fa, fb = surface_point(c[:9], column, row)
    a = mix(a, 1 - a, mirrored)
    x, y = a.clamp(0.004, 0.996), (1 - b).clamp(0.004, 0.996)
    # every tree is bent and thinned by its own part of the noise; its foot stays where it is
    seed, grown = c[12], c[13]
    broad, other, middle = air.noise(0.25 * x + seed, 0.25 * y + 7.3 * seed, 0.25 * fa, 0.25 * fb, (0, 1, 2))
    x = (x + grown * (1 - y) * (broad - 0.5) * 0.25).clamp(0.004, 0.996)
    y = (y + grown * (1 - y) * (other - 0.5) * 0.2).clamp(0.004, 0.996)
    shade, second, third, opacity = air.scene.pages.fetch(page.expand_as(x), x, y, fa, fb)
    shade = shade * (1 + grown * (middle - 0.5) * 1.3)
    opacity = opacity * (1 - grown * second * smooth((0.29 - middle) * 9))
    inside = less((a - 0.5).abs(), 0.5, fa) * less((b - 0.5).abs(), 0.5, fb)
    ahead = c[0] + c[1] * column + c[2] * row > 1e-4
    alpha = opacity * inside * ((depth - t) * 4 + 0.5).clamp(0, 1) * ahead * used[..., None]
    first, rest = shade * (1 - second - third), (shade * second, shade * third)
    look = torch.stack([c[14 + i] * first + c[17 + i] * rest[0] + c[20 + i] * rest[1] for i in range(3)])
    seen = through_air(air, look.flatten(2), distance.expand_as(t).flatten(1)).view(look.shape)
    return mix(colour, seen, alpha)


def through_lens(light: Tensor, bend: Tensor, blur: Tensor) -> Tensor:
    """Images (B, 3, H, W) of light, blurred and distorted; `bend`, `blur` (B, 1): see `Moment`."""
    height, width = light.shape[2:]
    steps = torch.arange(-BLUR_TAPS, BLUR_TAPS + 1, device=light.device, dtype=light.dtype)
    weights = torch.exp(-0.5 * (steps / (blur * width).clamp(min=1e-3)).square())
    weights = (weights / weights.sum(1, keepdim=True))[..., None, None, None]  # (B, taps, 1, 1, 1)
    for axis in (2, 3):
        size = light.shape[axis]
        wide = pad(light, (BLUR_TAPS, BLUR_TAPS, 0, 0) if axis == 3 else (0, 0, BLUR_TAPS, BLUR_TAPS), mode="replicate")
        light = sum((weights[:, i] * wide.narrow(axis, i, size) for i in range(1, 2 * BLUR_TAPS + 1)),
                    start=weights[:, 0] * wide.narrow(axis, 0, size))  # fmt: skip
    x = (torch.arange(width, device=light.device) + 0.5) * (2 / width) - 1
    y = ((torch.arange(height, device=light.device) + 0.5) * (2 / height) - 1)[:, None]
    scale = 1 + bend[..., None] * (x.square() + (y * (height / width)).square())  # (B, H, W)
    return grid_sample(light, torch.stack([x * scale, y * scale], -1), padding_mode="border", align_corners=False)


def expose(air: Air, seed: Tensor, light: Tensor) -> Tensor:
    """Camera values 0..255 of images (B, 3, H, W) of light; `seed` (B,) is that of the noise."""
    height, width = light.shape[2:]
    row, column = (
        torch.arange(size, device=light.device, dtype=torch.int32).view(shape)
        for size, shape in ((height, (1, height, 1)), (width, (1, 1, width)))
    )
    x, y = (column + 0.5) / width - 0.5, (row + 0.5) / height - 0.5
    fall = 1 - air.vignette[..., None] * (x * x + y * y) * 1.4  # (B, H, W)
    gain = air.balance.permute(1, 0, 2)[..., None] * air.exposure[..., None, None]  # (B, 3, 1, 1)
    light = (light * gain * fall[:, None]).clamp(min=0)
    # A filmic tone curve: nearly linear in the dark, a soft shoulder at white.
    value = (light * (light * 2.51 + 0.03)) / (light * (light * 2.43 + 0.59) + 0.14)
    value = value.clamp(0, 1) ** (1 / 2.2)
    place = (column + row * width).expand_as(fall)
    first = hashed(seed[:, None, None].expand_as(place), place)
    # The sum of two uniform numbers for each channel: 16 bits are enough for 8-bit pixels.
    noise = torch.stack(thirds(first), 1) + torch.stack(thirds(hashed(first)), 1)
    grain = (noise - 255 / 256) * (2.45 * air.grain[..., None, None])
    return ((value + grain) * 255 + 0.5).clamp(0, 255).floor()


def draw_views(scene: Scene, view: View, grid: Grid) -> Tensor:
    """Images (B, 3, height, width) uint8: rasterize, shade, composite sprites, expose."""
    air, b = Air(scene, view.moment), len(view.eye)
    ids, numbers, lists, counts, wall = visible_quads(scene, view, grid)
    order = None if scene.dense else torch.argsort(counts[0], descending=True, stable=True)
    here = grid if order is None else grid.take(order)
    if order is not None:
        lists, counts, wall = lists[:, order], counts[:, order], wall[:, order]
    first, second = (x.reshape(b, -1) for x in two_nearest(numbers, lists, counts, here, scene.dense))
    column, row = (x.expand(b, -1, -1).reshape(b, -1) for x in (here.column, here.row))
    pixels = _Pixels(air, view, column, row)
    table = _Table.of(ids, numbers)
    colour, alpha, depth = pixels.pieces(table, first, first < numbers.shape[1])
    rest = 1 - alpha
    behind, alpha2, _ = pixels.pieces(table, second, (second < numbers.shape[1]) & (rest > 0))
    # The rest of the pixel is filled by the second quad, then by the background.
    filled = torch.minimum(rest, alpha2)
    left = rest - filled
    colour = colour * alpha + behind * filled + pixels.backdrop(left > 0) * left
    colour = lay_sprites(air, view, here, wall, colour, depth)
    if order is not None:
        colour = colour.view(3, b, len(order), -1)[:, :, torch.argsort(order)].flatten(2)
    light = through_lens(assemble(colour, grid), air.bend, air.blur)
    return fused(expose)(air, view.seed, light).to(torch.uint8)


def visible_quads(scene: Scene, view: View, grid: Grid) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The potentially visible quads: their rows in the scene's columns (B, K), their numbers (B, K, 11), and the lists
    of them per tile (see `tile_lists`)."""
    pieces = _of_views(scene.fixed_pieces, scene.moving_pieces, view)
    edges = (pieces[..., 0:3], pieces[..., 3:6], pieces[..., 6:9])
    clear = (pieces[..., 12:14] - view.eye[:, None, :2]).square().sum(-1) > CLEAR_OF_CARS_M**2
    chosen, candidates = _choose(view, grid, edges, clear, pieces[..., 11], PIECES_PER_VIEW)
    lean = rows_at(pieces[..., 9:11], chosen)
    lists, counts, wall = tile_lists(candidates, (lean == 0).all(-1), grid, PIECES_PER_TILE)
    shift = (view.moment * scene.moving_pieces.shape[1])[:, None]
    ids = torch.where(chosen < len(scene.fixed_pieces), chosen, chosen + shift)
    return ids, torch.cat([candidates.coefficients.flatten(2), lean], -1), lists, counts, wall


@dataclass(frozen=True, eq=False)
class _Table:
    """The candidates of B views for lookups per pixel; the last of each view is a quad that covers nothing."""

    ids: Tensor
    """(B * (K + 1),) their rows in the scene's columns."""
    numbers: Tensor
    """(11, B * (K + 1))"""
    size: int
    """K + 1."""

    @staticmethod
    def of(ids: Tensor, numbers: Tensor) -> _Table:
        """From (B, K) and (B, K, 11)."""
        b, k, _ = numbers.shape
        nothing = numbers.new_tensor([1.0, 0, 0, -9.0, 1e-3, 1e-3, -9.0, 1e-3, 1e-3, 0, 0]).expand(b, 1, -1)
        flat = torch.cat([numbers, nothing], 1).reshape(b * (k + 1), -1).t().contiguous()
        return _Table(torch.cat([ids, torch.zeros_like(ids[:, :1])], 1).reshape(-1).to(torch.int32), flat, k + 1)


def _resolve(table: _Table, piece: Tensor, column: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    """Of candidates `piece` (B, n) at pixels: their rows in the scene's columns, t, a, b, the pixel's footprint in a
    and b, and the fraction of the pixel that they cover."""
    views = torch.arange(len(piece), device=piece.device, dtype=torch.int32)[:, None]
    at = piece + views * table.size
    c = [pick(numbers, at) for numbers in table.numbers]
    t, a, b, fa, fb = surface_point(c[:9], column, row)
    return pick(table.ids, at), t, a, b, fa, fb, covered(a, b, fa, fb, c[9], c[10])


@dataclass(frozen=True, eq=False)
class _Pixels:
    """All pixels of B views, by tiles."""

    air: Air
    view: View
    column: Tensor
    row: Tensor

    def shade(self, mask: Tensor, shader: Callable[..., Tensor], *numbers: Tensor) -> Tensor:
        """Colours (3, B, n) of `shader` where `mask` is True, 0 elsewhere."""
        inputs = (*numbers, self.column, self.row)
        if self.air.scene.dense:
            return torch.where(mask, fused(shader)(self.air, self.view, *inputs), 0.0)
        index = mask[0].nonzero()[:, 0]
        out = torch.zeros(3, *mask.shape)
        if len(index):
            colour = shader(self.air, self.view, *(x.index_select(1, index) for x in inputs))
            out[:, 0].index_copy_(1, index, colour[:, 0])
        return out

    def pieces(self, table: _Table, piece: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Colour, coverage and depth of candidates `piece` (B, n) where `wanted` is True."""
        number, t, a, b, fa, fb, share = fused(_resolve)(table, piece, self.column, self.row)
        alpha = share * wanted
        facade = pick(self.air.scene.columns[COLUMN["kind"]], number) == FACADE
        colour = self.shade(wanted & facade, facade_pixels, number, t, a, fa, fb)
        colour = colour + self.shade(wanted & ~facade, panel_pixels, number, t, a, b, fa, fb)
        return colour, alpha, torch.where(wanted & (alpha > 0.5), t, 1e6)

    def backdrop(self, wanted: Tensor) -> Tensor:
        """The background: ground below the horizon, sky above it."""
        below = ray_through(self.view, self.column, self.row)[2] < -1e-4
        return self.shade(wanted & below, ground_pixels) + self.shade(wanted & ~below, sky_pixels)


def draw(
    town: Town, poses: Poses, moments: Sequence[Moment], height: int, width: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Render the view of each pose at its moment: images (N, 3, height, width) uint8 on the device.

    Deterministic on one machine and kind of device, and independent of the other poses.

    Args:
        town: the town.
        poses: the N cameras; `Poses.moment` are indices of `moments`.
        moments: time, weather and light.
        height: image height in pixels.
        width: image width in pixels.
        device: where to render.
    """
    if not len(poses):
        return torch.empty(0, 3, height, width, dtype=torch.uint8, device=find_device(device, TORCH_DEVICES))
    scene, poses = scene_of(town, poses, moments, device)
    return draw_scene(scene, poses, height, width)


def scene_of(town: Town, poses: Poses, moments: Sequence[Moment], device: torch.device | str) -> tuple[Scene, Poses]:
    """A scene with only the moments of these poses, and the poses with indices into it."""
    used, row = np.unique(poses.moment, return_inverse=True)
    if not 0 <= used[0] <= used[-1] < len(moments):
        raise ArgumentError(f"the poses refer to moment {used[-1]}, but there are {len(moments)} moments")
    return make_scene(town, [moments[m] for m in used], device), replace(poses, moment=row.reshape(-1))


def draw_scene(scene: Scene, poses: Poses, height: int, width: int) -> Tensor:
    """Render images (N, 3, height, width) uint8 on the scene's device.

    Args:
        scene: see `make_scene`.
        poses: the N cameras; `Poses.moment` are indices of the scene's moments.
        height: image height in pixels.
        width: image width in pixels.
    """
    if min(height, width) < 8:
        raise ArgumentError(f"an image must have at least 8 x 8 pixels: found {height} x {width}")
    grid = make_grid(height, width, scene.device)
    step = DENSE_BATCH if scene.dense else 1
    rows = np.arange(-(-len(poses) // step) * step) % len(poses)
    view = view_of(poses.take(rows), height, width, scene.device)

    def part(start: int) -> Tensor:
        with torch.inference_mode():
            some = View(*(getattr(view, f.name)[start : start + step] for f in fields(View)))
            return draw_views(scene, some, grid)

    starts = range(0, len(rows), step)
    return torch.cat(list(map(part, starts)) if scene.dense else _side_by_side(part, starts))[: len(poses)]


def _side_by_side(part: Callable[[int], Tensor], starts: range) -> list[Tensor]:
    """Render each view in one thread, as many in parallel as torch has threads: the operations of a view are too small
    to be split over threads."""
    workers = min(torch.get_num_threads(), len(starts))
    if workers == 1:
        return [part(start) for start in starts]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(part, starts))
    finally:
        torch.set_num_threads(threads)


def view_of(poses: Poses, height: int, width: int, device: torch.device) -> View:
    """Rays and projections of cameras.

    Args:
        poses: of the cameras.
        height: of the images, in pixels.
        width: of the images, in pixels.
        device: of the tensors.
    """
    frame, f = axes(poses), focal_px(poses, width)
    right, down = frame[:, 1] / f[:, None], -frame[:, 2] / f[:, None]
    start = frame[:, 0] - 0.5 * width * right - 0.5 * height * down
    screen = np.zeros((len(poses), 3, 3))
    screen[:, 0, 1], screen[:, 1, 2], screen[:, 2, 0] = f, -f, 1
    screen[:, 0, 0], screen[:, 1, 0] = width / 2, height / 2

    def put(array: np.typing.NDArray[np.generic], kind: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(kind).to(device)

    return View(
        put(poses.eye, torch.float32),
        put(np.stack([start, right, down], axis=1), torch.float32),
        put(screen @ frame, torch.float32),
        put(poses.moment, torch.int64),
        put(poses.seed, torch.int64),
        put(1 / f, torch.float32),
    )
