"""Images: the same bytes for the same view, other light at other moments, the same place."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from sareloc.city import WEATHER, city_places, draw, draw_scene, make_moment, make_scene, make_views, raster, render
from sareloc.city import raster as layers
from sareloc.city import render as billboards
from sareloc.city.atlas import Pages, make_atlas
from sareloc.errors import ArgumentError

HEIGHT, WIDTH = 48, 64


@pytest.fixture(scope="module")
def views(town):
    return make_views(town)


@pytest.fixture(scope="module")
def some(views):
    """Views of several moments, database and queries."""
    return [views.database.take([3, 60, 111]), views.queries.take([0, 5, 17, 23])]


@pytest.fixture(scope="module")
def together(town, views, some):
    """The queries of `some`, drawn at once by one thread."""
    return draw(town, some[1], views.moments, HEIGHT, WIDTH)


def test_the_same_view_gives_the_same_bytes(town, views, some, together):
    again = draw(town, some[1], views.moments, HEIGHT, WIDTH)
    assert again.shape == (4, 3, HEIGHT, WIDTH)
    assert again.dtype == torch.uint8
    assert torch.equal(together, again)


def test_a_view_does_not_depend_on_what_is_drawn_with_it(town, views, some, together):
    alone = torch.cat([draw(town, some[1].take([i]), views.moments, HEIGHT, WIDTH) for i in (2, 0)])
    assert torch.equal(together[[2, 0]], alone)


def test_sparse_and_dense_drawing_agree(town, views, some):
    moments = [views.moments[m] for m in some[1].moment[:2]]
    poses = replace(some[1].take([0, 1]), moment=np.arange(2))
    sparse, dense = (draw_scene(make_scene(town, moments, dense=d), poses, HEIGHT, WIDTH) for d in (False, True))
    assert torch.equal(sparse, dense)


def test_threads_do_not_change_pixels(town, views, some):
    """Two views of two moments: what a thread draws is not what another does."""
    threads, two = torch.get_num_threads(), some[1].take([0, 1])
    try:
        images = []
        for n in (1, 3):
            torch.set_num_threads(n)
            images.append(draw(town, two, views.moments, HEIGHT, WIDTH))
            assert torch.get_num_threads() == n
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*images)


def test_rounding_decides_nothing_that_can_be_seen(monkeypatch):
    """Another machine rounds otherwise: with every depth and place on a piece off by half a step, the same is drawn.

    Row houses stand in one plane, so that equal depths are everywhere.
    """
    city = city_places(0, "small", "test")
    scene, poses = make_scene(city.town, city.views.moments), city.poses.take([30, 54, 132])
    still = draw_scene(scene, poses, 240, 320).int()
    rng = torch.Generator().manual_seed(0)

    def disturbed(function):
        def other_machine(*args):
            return tuple(
                x * (1 + 2.0**-24 * (2 * torch.rand(x.shape, generator=rng) - 1)) if x.is_floating_point() else x
                for x in function(*args)
            )

        return other_machine

    for module, name in ((layers, "surface_point"), (raster, "piece_coefficients"), (raster, "_overlap")):
        monkeypatch.setattr(module, name, disturbed(getattr(module, name)))
    apart = (draw_scene(scene, poses, 240, 320).int() - still).abs()
    assert int(apart.max()) <= 2
    assert int(apart.max()) > 0  # it was disturbed


def test_unused_places_in_a_list_may_name_any_piece(town, views, some, monkeypatch):
    """Which of equal numbers comes first is for each machine's topk to say, and a tile's unused places are equal."""
    poses, moments = replace(some[1].take([0, 1]), moment=np.arange(2)), [views.moments[m] for m in some[1].moment[:2]]
    still = draw_scene(make_scene(town, moments), poses, HEIGHT, WIDTH).int()
    rng = torch.Generator().manual_seed(0)
    listed = render.tile_lists

    def other_machine(pieces, *args, **kwargs):
        lists, counts, wall = listed(pieces, *args, **kwargs)
        unused = torch.arange(lists.shape[2]) >= counts[..., None]
        any_piece = torch.randint(pieces.seen.shape[1], lists.shape, generator=rng)
        return torch.where(unused, any_piece, lists), counts, wall

    monkeypatch.setattr(render, "tile_lists", other_machine)
    drawn = draw_scene(make_scene(town, moments, dense=True), poses, HEIGHT, WIDTH).int()
    assert int((drawn - still).abs().max()) <= 2


@pytest.mark.slow
def test_every_pixel_function_can_be_compiled_whole(town, views, some, monkeypatch):
    """As on a GPU, but only captured: a graph break or an operation that cannot be traced fails here."""
    poses, moments = replace(some[1], moment=np.arange(4)), [views.moments[m] for m in some[1].moment]
    scene = make_scene(town, moments, dense=True)
    plain = draw_scene(scene, poses, HEIGHT, WIDTH)
    captured = set()

    @functools.cache
    def capture(function):
        captured.add(function.__name__)
        return torch.compile(function, fullgraph=True, backend="eager")

    for module in (render, layers, billboards):
        monkeypatch.setattr(module, "fused", capture)
    assert torch.equal(draw_scene(scene, poses, HEIGHT, WIDTH), plain)
    assert len(captured) > 4


@pytest.mark.gpu
def test_a_gpu_draws_what_the_cpu_draws(town, views):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    poses = views.queries.take(range(40))
    here, there = (draw(town, poses, views.moments, 240, 320, device).cpu().int() for device in ("cpu", "cuda"))
    apart = (here - there).abs().amax(1)
    assert (apart > 2).float().mean() < 1e-5
    again = draw(town, poses.take([7, 3]), views.moments, 240, 320, "cuda").cpu().int()
    assert torch.equal(again, there[[7, 3]])


def test_moments_change_the_light(town, views, noon):
    poses = replace(views.database.take([40]), moment=np.zeros(1, dtype=np.int64))
    others = [make_moment(np.random.default_rng(1), kind, 50.0, 0.0) for kind in WEATHER]
    still = [replace(m, cars=0.0, people=0.0) for m in [noon, *others]]
    images = torch.cat([draw(town, poses, [m], HEIGHT, WIDTH) for m in still]).float()
    for i in range(1, len(images)):
        assert (images[i] - images[0]).abs().mean() > 8, list(WEATHER)[i - 1]


def test_night_is_dark_above_and_lit_in_windows(town, views, noon):
    night = make_moment(np.random.default_rng(2), "night", 50.0, 0.0)
    night = replace(night, cars=0.0, people=0.0, grain=0.0, vignette=0.0, exposure=noon.exposure, balance=(1, 1, 1))
    poses = replace(views.database.take(range(0, 150, 20)), moment=np.zeros(8, dtype=np.int64))
    day, dark = (draw(town, poses, [m], HEIGHT, WIDTH).float() for m in (noon, night))
    assert dark.mean() < 0.45 * day.mean()
    assert dark.amax((1, 2, 3)).max() > 120  # a lamp or a lit window


def test_snow_whitens_the_ground(town, views, noon):
    poses = replace(views.database.take([0, 6, 12]), moment=np.zeros(3, dtype=np.int64))
    bare, white = (
        draw(town, poses, [m], HEIGHT, WIDTH).float()[:, :, -8:].mean() for m in (noon, replace(noon, snow=1.0))
    )
    assert white > bare + 15


def test_cars_and_people_stand_in_the_way(town, views, noon):
    busy = replace(noon, cars=1.0, people=1.0)
    poses = replace(views.database.take(range(0, 60, 12)), moment=np.zeros(5, dtype=np.int64))
    empty, full = (draw(town, poses, [m], HEIGHT, WIDTH).float() for m in (noon, busy))
    changed = ((empty - full).abs().amax(1) > 20).float().mean()
    assert 0.01 < changed < 0.6


def test_noise_belongs_to_the_photo(town, views, noon):
    pose = replace(views.database.take([10]), moment=np.zeros(1, dtype=np.int64))
    grainy = replace(noon, grain=0.02)
    images = [draw(town, replace(pose, seed=np.array([s])), [grainy], HEIGHT, WIDTH).float() for s in (1, 1, 2)]
    clean = draw(town, pose, [noon], HEIGHT, WIDTH).float()
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])
    assert (images[0] - clean).std() == pytest.approx(0.02 * 255, rel=0.25)


def test_no_pixel_is_broken(town, views, some):
    """A number that is not finite would come out black between bright neighbours."""
    images = draw(town, views.database.take(range(0, 150, 15)), views.moments, HEIGHT, WIDTH).float()
    assert (images.amax(1) == 0).float().mean() < 1e-4


def test_errors_say_what_is_wrong(town, views):
    pose = views.queries.take([0])
    with pytest.raises(ArgumentError, match="moment"):
        draw(town, pose, views.moments[:2], HEIGHT, WIDTH)
    with pytest.raises(ArgumentError, match="4 x 64"):
        draw(town, pose, views.moments, 4, WIDTH)


def test_no_poses_give_no_images(town, views):
    assert draw(town, views.queries.take([]), views.moments, HEIGHT, WIDTH).shape == (0, 3, HEIGHT, WIDTH)


def test_pages_are_read_exactly_at_texels_and_by_their_mean_from_afar():
    atlas = make_atlas()
    pages = Pages.on(atlas, torch.device("cpu"))
    number = atlas.names["poster 3"]
    width, height = atlas.size[number]
    page = atlas.texels[atlas.offset[number, 0] :][: width * height].reshape(height, width, 4)
    at = torch.tensor([[number]], dtype=torch.int32)
    x, y = (torch.tensor([[v]], dtype=torch.float32) for v in ((11 + 0.5) / width, (40 + 0.5) / height))
    tiny, huge = torch.tensor([[1e-6]]), torch.tensor([[1e6]])
    near = torch.cat(pages.fetch(at, x, y, tiny, tiny)).flatten()
    assert near.numpy() == pytest.approx(page[40, 11], abs=1e-5)
    far = torch.cat(pages.fetch(at, x + 3.7, y, huge, huge)).flatten()
    assert far.numpy() == pytest.approx(page.mean((0, 1)), abs=1e-4)
    left, right = (pages.fetch(at, x - x + edge, y, tiny, tiny)[0] for edge in (0.0, 1.0))
    assert torch.allclose(left, right)
