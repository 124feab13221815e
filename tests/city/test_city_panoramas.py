"""360° photos of the city: every ray lands where the convention says, faces leave no seams, tags say what was drawn."""

from __future__ import annotations

import shutil
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from sareloc.city import (
    SIZES,
    Size,
    city_places,
    draw,
    draw_places,
    gpano_xmp,
    make_scene,
    make_town,
    panorama_height,
    panorama_poses,
)
from sareloc.city.dataset import draw_spheres, sphere_rays
from sareloc.city.furnish import make_sprite
from sareloc.city.geometry import join, make_quad
from sareloc.errors import ArgumentError
from sareloc.geo import distance_m
from sareloc.photos import find_photos, parse_utm_name, read_exif_geotag

HEIGHT, WIDTH = 256, 512
RED = np.array([[1.0, 0.0, 0.0]] * 3)


@pytest.fixture(scope="module")
def tiny():
    """A size of three panoramas with two views each, and five queries; one town for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", Size(3, 2, (5.0,), 5, (24, 32)))
        yield "tiny"
    make_town.cache_clear()


def cut(sphere, yaw, pitch, angle, height, width):
    """A perspective view (height, width, 3) of an equirectangular image, by its own formulas; radians, yaw to the
    right."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    f = width / 2 / np.tan(angle / 2)
    ahead, right, up = np.ones_like(x), (x - width / 2) / f, (height / 2 - y) / f
    ahead, up = ahead * np.cos(pitch) - up * np.sin(pitch), ahead * np.sin(pitch) + up * np.cos(pitch)
    rows, columns = sphere.shape[:2]
    column = ((np.arctan2(right, ahead) + yaw) / (2 * np.pi) + 0.5) * columns - 0.5
    row = (0.5 - np.arctan2(up, np.hypot(ahead, right)) / np.pi) * rows - 0.5
    left, top = np.floor(column).astype(int), np.floor(row).astype(int)
    a, b = (column - left)[..., None], (row - top)[..., None]

    def at(r, c):
        return sphere[np.clip(r, 0, rows - 1), c % columns].astype(float)

    upper, lower = (at(r, left) * (1 - a) + at(r, left + 1) * a for r in (top, top + 1))
    return upper * (1 - b) + lower * b


@pytest.fixture(scope="module")
def on_a_street(town, noon):
    """A pose on a street of the town, its 360° photo (HEIGHT, WIDTH, 3), and the scene."""
    views = city_places(0, "small", "val").views  # split_seed(0, "val") is the town of the fixture
    pose = panorama_poses(views).take([7])
    pose = replace(pose, moment=np.zeros(1, dtype=np.int64))
    scene = make_scene(town, [noon])
    return pose, draw_spheres(scene, pose, HEIGHT)[0].permute(1, 2, 0).numpy(), scene


def test_rays_follow_the_convention():
    rays = sphere_rays(128).reshape(128, 256, 3)
    near = np.deg2rad(180 / 128)
    for row, column, expected in (
        (64, 128, [1, 0, 0]),  # the middle looks ahead
        (64, 192, [0, -1, 0]),  # a quarter turn to the right; the second axis is left
        (64, 64, [0, 1, 0]),
        (64, 0, [-1, 0, 0]),
        (0, 17, [0, 0, 1]),  # the first row is straight up
        (127, 200, [0, 0, -1]),
    ):
        assert rays[row, column] == pytest.approx(expected, abs=near)
    assert np.linalg.norm(rays, axis=-1) == pytest.approx(np.ones((128, 256)))


@pytest.mark.parametrize("towards", [(0, 5), (45, 0), (-44, 10), (130, -20), (179.9, 3), (20, 60), (-90, 46)])
def test_a_point_lands_where_its_direction_says(town, noon, make_poses, towards):
    """A small glowing square, 12 m away, in a direction to the right of the heading and up; also on edges of faces."""
    right, up = np.deg2rad(towards)
    pose = make_poses(((30.0, 27.0, 30.0), 25.0))
    yaw = pose.yaw[0] - right
    out = np.array([np.cos(up) * np.cos(yaw), np.cos(up) * np.sin(yaw), np.sin(up)])
    side = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    over = np.cross(side, out)
    corner = pose.eye[0] + 12 * out - 0.5 * (side + over)
    square = make_quad(corner, side, over, RED, glow=50.0)
    alone = replace(town, quads=join([square]), sprites=make_sprite((-1e4, -1e4), (1.0, 1.0), 0, [RED[0]] * 3))
    image = draw_spheres(make_scene(alone, [replace(noon, night=1.0)]), pose, HEIGHT)[0].float()
    share = ((image[0] - image[1:].amax(0)) / 255).clamp(min=0)
    share[share < 0.2] = 0
    columns = torch.arange(WIDTH) + 0.5
    middle = WIDTH * (0.5 + right / (2 * np.pi))
    turned = (columns - middle + WIDTH / 2) % WIDTH - WIDTH / 2  # a square on the edge of the photo is on both sides
    rows = torch.arange(HEIGHT) + 0.5
    assert float(share.sum()) > 8
    assert float(turned.abs()[share.amax(0) > 0].max()) < 30
    assert float((share * turned).sum() / share.sum()) == pytest.approx(0, abs=0.25)
    assert float((share * rows[:, None]).sum() / share.sum()) == pytest.approx(
        HEIGHT * (0.5 - up / np.pi), abs=0.35 + 0.6 * abs(np.tan(up)) / 8
    )


@pytest.mark.parametrize(("yaw_deg", "pitch_deg"), [(0, 0), (45, 0), (-110, 15), (180, 5), (60, 50), (10, -45)])
def test_a_cut_view_is_the_view_that_is_rendered_directly(town, noon, on_a_street, yaw_deg, pitch_deg):
    pose, sphere, _ = on_a_street
    yaw, pitch, angle = np.deg2rad([yaw_deg, pitch_deg, 62.0])
    direct_pose = replace(pose, yaw=pose.yaw - yaw, pitch=np.array([pitch]), width_angle=np.array([angle]))
    direct = draw(town, direct_pose, [noon], 72, 96)[0].permute(1, 2, 0).numpy().astype(float)
    assert np.abs(cut(sphere, yaw, pitch, angle, 72, 96) - direct).mean() < 10  # of 255; coarse pixels differ at edges
    # the squared difference over small rotations is a parabola, whose minimum is at no rotation
    pixel = 2 * np.pi / WIDTH
    for turn, lift in ((pixel, 0.0), (0.0, pixel)):
        before, here, after = (
            np.square(cut(sphere, yaw + k * turn, pitch + k * lift, angle, 72, 96) - direct).mean() for k in (-1, 0, 1)
        )
        assert before + after > 2.5 * here
        assert 0.5 * (before - after) / (before - 2 * here + after) == pytest.approx(0, abs=0.12)


def test_the_edges_of_the_faces_are_invisible(on_a_street):
    """Turned by 45 degrees, the edges are where the middles of the faces were: both agree, there as elsewhere."""
    pose, sphere, scene = on_a_street
    turned = draw_spheres(scene, replace(pose, yaw=pose.yaw - np.pi / 4), HEIGHT)[0].permute(1, 2, 0).numpy()
    apart = np.abs(np.roll(turned, WIDTH // 8, axis=1).astype(float) - sphere).mean(-1)
    assert apart.mean() < 2.5
    seams = [WIDTH // 8 * k + d for k in range(8) for d in (-1, 0)]
    assert apart[:, seams].mean() < 1.3 * apart.mean() + 0.5


def test_a_panorama_is_level_where_its_views_are(tiny, noon):
    city = city_places(3, tiny, "test")
    poses = panorama_poses(city.views)
    assert np.array_equal(poses.eye, city.views.database.eye[::2])
    assert np.array_equal(poses.yaw, city.views.database.yaw[::2])
    assert not poses.pitch.any()
    with pytest.raises(ArgumentError, match="32 pixels"):
        draw_spheres(make_scene(city.town, [noon]), poses, 16)


def test_the_resolution_is_that_of_the_views():
    # 320 pixels of 62 degrees are 266.3 pixels per radian, pi radians are 836.6 pixels
    assert panorama_height(320) == 848
    assert panorama_height(640) == 1680


def gpano(photo):
    with Image.open(photo) as image:
        root = ElementTree.fromstring(image.info["xmp"])
        size = image.size
    name = "{http://ns.google.com/photos/1.0/panorama/}"
    return {e.tag.removeprefix(name): e.text for e in root.iter() if e.tag.startswith(name)}, size


@pytest.fixture(scope="module")
def spheres(tiny, tmp_path_factory):
    """A folder of 360° photos and their queries, which no test changes."""
    folder = tmp_path_factory.mktemp("spheres") / "city"
    assert draw_places(folder, 3, tiny, splits=["test"], panoramas=True) == 3 + 5
    return folder


def test_files_have_tags_and_the_positions_of_the_perspective_database(tiny, spheres, tmp_path):
    draw_places(tmp_path, 3, tiny, splits=["test"])
    photos = find_photos(spheres / "images" / "test" / "database")
    views = find_photos(tmp_path / "images" / "test" / "database")
    assert len(photos) == 3
    assert len(views) == 6
    for photo in photos:
        tags, size = gpano(photo)
        height = panorama_height(32)
        assert size == (2 * height, height)
        assert tags["ProjectionType"] == "equirectangular"
        whole = ("FullPano{}Pixels", "CroppedAreaImage{}Pixels")
        assert [int(tags[t.format(side)]) for t in whole for side in ("Width", "Height")] == [2 * height, height] * 2
        assert (tags["CroppedAreaLeftPixels"], tags["CroppedAreaTopPixels"]) == ("0", "0")
        exif, name = read_exif_geotag(photo), parse_utm_name(photo.name)
        assert float(tags["PoseHeadingDegrees"]) == pytest.approx(exif.heading_deg, abs=1e-4)
        assert name.heading_deg == pytest.approx(exif.heading_deg, abs=0.01)
        same = [v for v in views if parse_utm_name(v.name).pano_id == name.pano_id]
        assert len(same) == 2
        first = read_exif_geotag(min(same, key=lambda v: parse_utm_name(v.name).tile))
        assert float(distance_m([first.latlon], [exif.latlon])[0]) < 0.001
        assert (first.heading_deg, first.time) == pytest.approx((exif.heading_deg, exif.time))
    queries = [sorted(p.name for p in (folder / "images/test/queries").iterdir()) for folder in (tmp_path, spheres)]
    assert queries[0] == queries[1]


def test_panoramas_are_resumed_and_not_mixed_with_views(tiny, spheres, tmp_path):
    folder = shutil.copytree(spheres, tmp_path / "city")
    lost = find_photos(folder / "images" / "test" / "database")[1]
    before = lost.read_bytes()
    lost.unlink()
    assert draw_places(folder, 3, tiny, splits=["test"], panoramas=True) == 1
    assert lost.read_bytes() == before
    with pytest.raises(ArgumentError, match=r'another city \(.*"panoramas": true'):
        draw_places(folder, 3, tiny, splits=["test"])


def test_a_heading_rounded_to_a_whole_turn_is_north():
    assert b"<GPano:PoseHeadingDegrees>0.000000<" in gpano_xmp(32, 359.99999999)
