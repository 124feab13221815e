"""A town at some moments, as tensors on a device: what the renderer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sareloc.arrays import Floats
from sareloc.city.atlas import Pages, make_atlas
from sareloc.city.furnish import Sprites, make_traffic
from sareloc.city.geometry import Quads
from sareloc.city.moment import MOMENT_COLUMNS, Moment, ground_shade, shadow_height, splat
from sareloc.city.plan import ground_tables
from sareloc.city.styles import PALETTE
from sareloc.city.town import Town
from sareloc.devices import TORCH_DEVICES, find_device

NOWHERE = (-1e4, -1e4)


@dataclass(frozen=True, eq=False)
class Scene:
    """V moments of one town. Pieces and sprites that stay come first, then those of each moment, padded to equal
    numbers."""

    device: torch.device
    pages: Pages
    page: dict[str, int]
    fixed_pieces: Tensor
    """(N, 14) corner, U, V, leans, longest side, centre of the car it belongs to (far away for all but cars)."""
    moving_pieces: Tensor
    """(V, M, 14)"""
    columns: Tensor
    """(columns, N + V * M) how each piece is painted."""
    fixed_sprites: Tensor
    """(S, 18) foot, size, pages, colours, glow, leafy."""
    moving_sprites: Tensor
    """(V, Q, 18)"""
    fields: tuple[Tensor, ...]
    """Shadow height, shade of trees, lamp light, share of the sky: each (V * rows * columns,)."""
    field_shape: tuple[int, int]
    moments: Tensor
    """(V, columns of `MOMENT_COLUMNS`)"""
    by_y: Tensor
    """(4, Y) and (4, R * X): see `streets.ground_tables`."""
    by_xy: Tensor
    rows: int
    """Rows of blocks."""
    palette: dict[str, Tensor]
    """(3, 1, 1) each."""
    dense: bool
    """Draw a batch of views at once with every shader on every pixel (a GPU), rather than one view after the other
    with each shader on just the pixels that need it (a CPU)."""

    def moment(self, name: str, rows: Tensor) -> Tensor:
        """A number of the moments `rows` (B,): (B, 1), or (3, B, 1) for a colour."""
        values = self.moments.index_select(0, rows)[:, MOMENT_COLUMNS[name]].t()
        return values[..., None] if len(values) == 3 else values[0, :, None]


def make_scene(
    town: Town, moments: Sequence[Moment], device: torch.device | str = "cpu", *, dense: bool | None = None
) -> Scene:
    """Put a town at these moments on a device; `dense` (see `Scene`) is chosen by the device."""
    device = usable(device)
    atlas = make_atlas()
    traffic = [
        make_traffic(np.random.default_rng([41, m.seed]), list(town.kerbs), m.cars, m.people, atlas) for m in moments
    ]
    pieces = _pad([_piece_rows(quads, centres) for quads, centres, _ in traffic])
    columns = _pad([quads.columns for quads, _, _ in traffic])
    walkers = _pad([_sprite_rows(sprites) for _, _, sprites in traffic])
    fields = [_fields(town, m, centres) for m, (_, centres, _) in zip(moments, traffic, strict=True)]
    away = np.full((len(town.quads), 2), NOWHERE[0])
    by_y, by_xy = ground_tables(town.streets)

    def put(array: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(device)

    return Scene(
        device=device,
        pages=Pages.on(atlas, device),
        page=atlas.names,
        fixed_pieces=put(_piece_rows(town.quads, away)),
        moving_pieces=put(pieces),
        columns=put(np.concatenate([town.quads.columns, columns.reshape(-1, columns.shape[-1])]).T),
        fixed_sprites=put(_sprite_rows(town.sprites)),
        moving_sprites=put(walkers),
        fields=tuple(put(np.stack(field).reshape(-1)) for field in zip(*fields, strict=True)),
        field_shape=(town.heights.shape[0], town.heights.shape[1]),
        moments=put(np.stack([m.row() for m in moments])),
        by_y=put(by_y.T),
        by_xy=put(by_xy.reshape(-1, 4).T),
        rows=len(by_xy),
        palette={name: put(np.array(colour)[:, None, None]) for name, colour in PALETTE.items()},
        dense=device.type != "cpu" if dense is None else dense,
    )


def usable(device: torch.device | str) -> torch.device:
    """The device, if it is there to draw on."""
    return find_device(device, TORCH_DEVICES)


def _piece_rows(quads: Quads, centres: Floats) -> Floats:
    longest = np.maximum(np.linalg.norm(quads.u, axis=1), np.linalg.norm(quads.v, axis=1))
    return np.column_stack([quads.corner, quads.u, quads.v, quads.lean, longest, centres])


def _sprite_rows(sprites: Sprites) -> Floats:
    return np.column_stack([sprites.foot, sprites.size, sprites.page, sprites.colours, sprites.glow, sprites.leafy])


def _pad(parts: list[Floats]) -> Floats:
    """Stack tables of different lengths; added rows repeat a table's first row far away, where nobody sees it."""
    longest = max(len(p) for p in parts)
    padded = []
    for part in parts:
        extra = np.repeat(part[:1], longest - len(part), axis=0)
        extra[:, :2] = NOWHERE
        padded.append(np.concatenate([part, extra]))
    return np.stack(padded)


def _fields(town: Town, moment: Moment, cars: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    shape = (town.heights.shape[0], town.heights.shape[1])
    sunny = max(moment.sun) > 0.2
    shadow = shadow_height(town.heights, moment.sun_direction) if sunny else np.zeros(shape)
    spots = cars[::2]
    under = np.minimum(1, splat(shape, np.unique(spots, axis=0), 1.5, 4.0))
    shade = ground_shade(shape, moment, town.trees[:, :2], town.trees[:, 2]) if sunny else np.zeros(shape)
    return shadow, shade, town.lamp_light, town.sky_share * (1 - 0.8 * under)
