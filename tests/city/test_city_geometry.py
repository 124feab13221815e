"""Rays, pieces, pixels: what is drawn stands where the pinhole camera says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sareloc.city import Poses, draw, make_scene, make_views, project
from sareloc.city.furnish import make_sprite
from sareloc.city.geometry import axes, join, make_quad
from sareloc.city.raster import (
    assemble,
    covered,
    make_candidates,
    make_grid,
    piece_coefficients,
    surface_point,
    tile_lists,
    two_nearest,
)
from sareloc.city.render import view_of, visible_quads

HEIGHT, WIDTH = 96, 128
RED = np.array([[1.0, 0.0, 0.0]] * 3)


def with_quads(town, *quads):
    """The town with nothing in it but these pieces, far from its streets."""
    nothing = make_sprite((-1e4, -1e4), (1.0, 1.0), 0, [RED[0]] * 3)
    return replace(town, quads=join(list(quads)), sprites=nothing)


def red_share(images):
    """How red a pixel is against its other channels: 1 on a glowing red piece, about 0 elsewhere."""
    r, g, b = images.float().unbind(1)
    return ((r - torch.maximum(g, b)) / 255).clamp(0, 1)


def test_a_known_pose_projects_by_hand(make_poses):
    poses = make_poses(((10.0, 20.0, 2.0), 90.0), angle_deg=90.0)
    # ahead is +y, right is +x; the focal length of 90 degrees is half the width
    found = project(poses, [[10, 30, 2], [20, 30, 2], [10, 30, 7], [10, 10, 2]], HEIGHT, WIDTH)[0]
    assert found[0] == pytest.approx([64, 48, 10])
    assert found[1] == pytest.approx([128, 48, 10])
    assert found[2] == pytest.approx([64, 16, 10])
    assert found[3, 2] == pytest.approx(-10)


@given(st.floats(-4, 4), st.floats(-1, 1), st.floats(-1, 1))
def test_axes_are_a_right_handed_frame(yaw, pitch, roll):
    one = np.zeros(1)
    poses = Poses(np.zeros((1, 3)), one + yaw, one + pitch, one + roll, one + 1.0, one.astype(int), one.astype(int))
    forward, right, up = axes(poses)[0]
    assert np.allclose(axes(poses)[0] @ axes(poses)[0].T, np.eye(3), atol=1e-12)
    assert np.allclose(np.cross(right, forward), up)


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_rays_meet_pieces_where_a_linear_solver_says(make_poses_seed):
    rng = np.random.default_rng(make_poses_seed)
    eye, corner = rng.normal(0, 2, 3), rng.normal(0, 10, 3)
    u, v = rng.normal(0, 5, 3), rng.normal(0, 5, 3)
    if np.cross(u, v) @ (corner - eye) > 0:
        u, v = v, u
    one = np.ones(1)
    poses = Poses(eye[None], one * rng.uniform(-3, 3), one * 0.1, one * 0.2, one, one.astype(int), one.astype(int))
    view = view_of(poses, HEIGHT, WIDTH, torch.device("cpu"))
    parts = [torch.tensor(x, dtype=torch.float64)[None, None] for x in (corner, u, v)]
    rays = view.rays.double()
    c, _ = piece_coefficients(*parts, rays, torch.tensor(eye)[None])
    column, row = rng.uniform(0, WIDTH), rng.uniform(0, HEIGHT)
    ray = (rays[0, 0] + column * rays[0, 1] + row * rays[0, 2]).numpy()
    t, a, b = np.linalg.solve(np.stack([ray, -u, -v], axis=1), corner - eye)
    if not 0.2 < t < 200:
        return
    here, there = torch.tensor([column, row], dtype=torch.float64)
    found = surface_point(list(c[0, 0].flatten()), here, there)
    assert [float(x) for x in found[:3]] == pytest.approx([t, a, b], rel=1e-8, abs=1e-8)
    step = 1e-4
    moved = [surface_point(list(c[0, 0].flatten()), here + dx, there + dy) for dx, dy in ((step, 0), (0, step))]
    slope = sum(abs(float(m[1] - found[1])) for m in moved) / step
    assert float(found[3]) == pytest.approx(slope, rel=1e-2, abs=1e-6)


@pytest.mark.parametrize("lean", [(0.0, 0.0), (0.25, 0.1), (0.5, 0.5), (0.0, 1.0)])
def test_covered_shares_add_up_to_the_area(lean):
    grid = make_grid(HEIGHT, WIDTH, torch.device("cpu"))
    width, height = 57.3, 41.8
    a, b = (grid.column - 20.2) / width, (grid.row - 11.7) / height
    fa, fb = torch.full_like(a, 1 / width), torch.full_like(a, 1 / height)
    left, right = (torch.full_like(a, x) for x in lean)
    area = float(covered(a, b, fa, fb, left, right).sum())
    assert area == pytest.approx(width * height * (1 - sum(lean) / 2), rel=0.02)


def test_a_piece_thinner_than_a_pixel_covers_its_share():
    a, size = torch.tensor(0.5), torch.tensor(4.0)  # a pixel four times as wide as the piece
    one = torch.tensor(1.0)
    assert float(covered(a, one * 0.5, size, one * 0.01, one * 0, one * 0)) == pytest.approx(0.25)


def test_a_building_corner_seen_from_two_poses_is_where_the_pinhole_says(town, noon, make_poses):
    corner, u, v = np.array([52.0, 31.0, 1.0]), np.array([0.0, -6.0, 0.0]), np.array([0.0, 0.0, 4.0])
    alone = with_quads(town, make_quad(corner, u, v, RED, glow=50.0))
    night = replace(noon, night=1.0)
    poses = make_poses(((30.0, 27.0, 1.7), 5.0), ((34.0, 33.0, 2.5), -12.0), pitch=3.0, roll=2.0)
    share = red_share(draw(alone, poses, [night], HEIGHT, WIDTH))
    corners = np.stack([corner, corner + u, corner + u + v, corner + v])
    for image, points in zip(share, project(poses, corners, HEIGHT, WIDTH), strict=True):
        rows, columns = torch.nonzero(image > 0.3, as_tuple=True)
        assert columns.min() == pytest.approx(points[:, 0].min(), abs=1.0)
        assert columns.max() + 1 == pytest.approx(points[:, 0].max(), abs=1.0)
        assert rows.min() == pytest.approx(points[:, 1].min(), abs=1.0)
        assert rows.max() + 1 == pytest.approx(points[:, 1].max(), abs=1.0)
        inside = depth_inside(points[:, :2])
        assert (image.numpy()[inside > 1.5] > 0.3).all()
        assert (image.numpy()[inside < -1.5] < 0.2).all()


def depth_inside(corners):
    """(HEIGHT, WIDTH) how many pixels each pixel's centre lies within a convex polygon, negative outside."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH] + 0.5
    edges = np.roll(corners, -1, axis=0) - corners
    turn = np.sign(edges[0, 0] * edges[1, 1] - edges[0, 1] * edges[1, 0])
    sides = [
        turn * (ex * (y - cy) - ey * (x - cx)) / np.hypot(ex, ey)
        for (cx, cy), (ex, ey) in zip(corners, edges, strict=True)
    ]
    return np.min(sides, axis=0)


def test_the_back_of_a_piece_is_not_seen(town, noon, make_poses):
    quad = make_quad(np.array([20.0, 5, 0]), np.array([0.0, -6, 0]), np.array([0.0, 0, 4]), RED, glow=50.0)
    poses = make_poses(((10.0, 2.0, 2.0), 0.0), ((30.0, 2.0, 2.0), 180.0))
    share = red_share(draw(with_quads(town, quad), poses, [replace(noon, night=1.0)], HEIGHT, WIDTH))
    assert share[0].max() > 0.5
    assert share[1].max() < 0.1


def test_a_wall_seen_squarely_is_not_hidden_behind_itself(make_poses):
    """Its depth is the same everywhere, and the occlusion limit of the tiles that it fills is that depth."""
    grid = make_grid(16, 16, torch.device("cpu"))
    for x, y in ((38.36, -1.3), (41.2, 63.8)):
        view = view_of(make_poses(((x, y, 2.5), -90.0)), 16, 16, torch.device("cpu"))
        corner = torch.tensor([[[x + 14.0, y - 4.0 - k / 20, -9.0] for k in range(80)]])
        u, v = (torch.tensor(edge).expand_as(corner) for edge in ([-28.0, 0.0, 0.0], [0.0, 0.0, 24.0]))
        for wall in range(corner.shape[1]):
            parts = [part[:, wall : wall + 1] for part in (corner, u, v)]
            candidates = make_candidates(*parts, view.rays, view.unproject, view.eye)
            _, counts, _ = tile_lists(candidates, torch.ones(1, 1, dtype=torch.bool), grid, 16)
            assert (counts == 1).all()


def test_culling_loses_nothing(town, noon):
    """The tiles' short lists name the piece that a search over all pieces finds."""
    views = make_views(town)
    rows = [7, 31, 88, 140]
    scene = make_scene(town, [noon], dense=True)
    poses = replace(views.database.take(rows), moment=np.zeros(len(rows), dtype=np.int64))
    view = view_of(poses, HEIGHT, WIDTH, torch.device("cpu"))
    grid = make_grid(HEIGHT, WIDTH, torch.device("cpu"))
    ids, numbers, lists, counts, _ = visible_quads(scene, view, grid)
    first, _ = two_nearest(numbers, lists, counts, grid, dense=True)
    names = torch.cat([ids, torch.full((len(rows), 1), -1)], 1)
    found = torch.gather(names, 1, first.flatten(1).long())
    image = assemble(found[None].float(), grid)[:, 0].long().numpy()
    rng = np.random.default_rng(0)
    checked = 0
    for i in range(len(rows)):
        for column, row in zip(rng.integers(WIDTH, size=60), rng.integers(HEIGHT, size=60), strict=True):
            nearest, clear = brute_force(town.quads, poses.take([i]), column + 0.5, row + 0.5)
            checked += clear
            assert not clear or image[i, row, column] == nearest
    assert checked > 80


def brute_force(quads, pose, column, row):
    """The nearest piece along one ray, and whether the answer is clear: a piece there, no edge or rival nearby."""
    frame = axes(pose)[0]
    f = WIDTH / 2 / np.tan(pose.width_angle[0] / 2)
    ray = frame[0] + (column - WIDTH / 2) / f * frame[1] - (row - HEIGHT / 2) / f * frame[2]
    w, n = quads.corner - pose.eye[0], np.cross(quads.u, quads.v)
    wn, dn = (w * n).sum(1), n @ ray
    ahead = (wn < 0) & (dn < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = wn / dn
        a, b = (t * (np.cross(*pair) @ ray) / wn for pair in ((quads.v, w), (w, quads.u)))
        inside = np.min([a - quads.lean[:, 0] * b, 1 - a - quads.lean[:, 1] * b, b, 1 - b], axis=0)
        # How far a step of three pixels moves the point on the piece, in shares of its shorter side.
        short = np.minimum(np.linalg.norm(quads.u, axis=1), np.linalg.norm(quads.v, axis=1))
        margin = 3 * t / f / short * np.linalg.norm(n, axis=1) / np.abs(dn)
    t = np.where(ahead & (inside > 0), t, np.inf)
    nearest = int(t.argmin())
    if not np.isfinite(t[nearest]):
        return -1, False
    rivals = ahead & (inside > -margin) & (wn / np.where(ahead, dn, 1) < t[nearest] + 0.05)
    return nearest, bool(inside[nearest] > margin[nearest] and rivals.sum() == 1)
