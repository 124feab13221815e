"""Draw views of a town: the door to the renderer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from sareloc.datasets.city.camera import Poses, axes, focal_px
from sareloc.datasets.city.grid import make_grid
from sareloc.datasets.city.moment import Moment
from sareloc.datasets.city.render import draw_views
from sareloc.datasets.city.scene import Scene, make_scene, usable
from sareloc.datasets.city.shaders import View
from sareloc.datasets.city.town import Town
from sareloc.errors import ArgumentError

DENSE_BATCH = 32
"""Views drawn at once on a GPU; always so many, so that a view's pixels do not depend on how many were asked for."""


def draw(
    town: Town, poses: Poses, moments: Sequence[Moment], height: int, width: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Images (N, 3, height, width) uint8 on `device`: what each pose sees at its moment of the list.

    On one machine and kind of device the same arguments give the same bytes, whatever else is drawn with them.
    """
    if not len(poses):
        return torch.empty(0, 3, height, width, dtype=torch.uint8, device=usable(device))
    scene, poses = scene_of(town, poses, moments, device)
    return draw_scene(scene, poses, height, width)


def scene_of(town: Town, poses: Poses, moments: Sequence[Moment], device: torch.device | str) -> tuple[Scene, Poses]:
    """A scene of just the moments that these poses use, and the poses counting in it."""
    used, row = np.unique(poses.moment, return_inverse=True)
    if not 0 <= used[0] <= used[-1] < len(moments):
        raise ArgumentError(f"the poses count moments up to {used[-1]}, but there are {len(moments)}")
    return make_scene(town, [moments[m] for m in used], device), replace(poses, moment=row.reshape(-1))


def draw_scene(scene: Scene, poses: Poses, height: int, width: int) -> Tensor:
    """Images (N, 3, height, width) uint8 on the scene's device; the poses' moments count in the scene's."""
    if min(height, width) < 8:
        raise ArgumentError(f"an image is at least 8 pixels high and wide, found {height} x {width}")
    grid = make_grid(height, width, scene.device)
    step = DENSE_BATCH if scene.dense else 1
    rows = np.arange(-(-len(poses) // step) * step) % len(poses)
    view = _view(poses.take(rows), height, width, scene.device)

    def part(start: int) -> Tensor:
        with torch.inference_mode():
            some = View(*(getattr(view, f.name)[start : start + step] for f in fields(View)))
            return draw_views(scene, some, grid)

    starts = range(0, len(rows), step)
    return torch.cat(list(map(part, starts)) if scene.dense else _side_by_side(part, starts))[: len(poses)]


def _side_by_side(part: Callable[[int], Tensor], starts: range) -> list[Tensor]:
    """Draw each view in one thread, as many at a time as torch has threads: the thousands of small steps of a view are
    not worth sharing out, and on a busy machine threads that wait for each other stand still."""
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


def _view(poses: Poses, height: int, width: int, device: torch.device) -> View:
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
