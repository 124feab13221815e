"""Views of 360° photos: exact against an analytic scene and a slow twin, at seams, poles and edges."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.photos.panorama_files import camera, draw_panorama, gpano_xmp, save_panorama, scene

from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import distance_m
from sareloc.photos import (
    Address,
    Geotag,
    Panorama,
    View,
    ViewOptions,
    cut_view,
    decode,
    panorama_pixels,
    read_focal_35mm,
    read_geotag,
    views_of,
    write_views,
)
from sareloc.photos.panoramas import matching_size, share_inside

FULL = Panorama(1024, 512)
VIEWS = [
    View(0.0),
    View(77.5, 10.0),
    View(180.0),  # the seam in its middle
    View(179.9, -45.0, 120.0),
    View(0.0, 90.0, 90.0),  # the poles in their middle
    View(35.0, -90.0, 120.0),
    View(200.0, 80.0, 100.0, 480, 640),
]


def ray(view: View, row: int, column: int, height: int, width: int) -> npt.NDArray[np.float64]:
    """The direction (right, ahead, up) in the world of the middle of one pixel, by the formula."""
    half = math.tan(math.radians(view.fov_deg / 2))
    x = half * (2 * (column + 0.5) / width - 1)
    y = half * view.height / view.width * (1 - 2 * (row + 0.5) / height)
    return np.asarray(camera(view.yaw_deg, view.pitch_deg).apply([x, 1.0, y]))


def slow_view(image: npt.NDArray[np.uint8], view: View, height: int, width: int) -> npt.NDArray[np.float64]:
    """A view of a full level sphere, pixel by pixel: bilinear, with the neighbours beyond seam and poles."""
    rows, columns, _ = image.shape

    def pixel(row: int, column: int) -> npt.NDArray[np.float64]:
        if row < 0:
            row, column = -1 - row, column + columns // 2
        if row >= rows:
            row, column = 2 * rows - 1 - row, column + columns // 2
        return image[row, column % columns].astype(np.float64)

    cut = np.empty((height, width, 3))
    for row in range(height):
        for column in range(width):
            x, y, z = ray(view, row, column, height, width)
            across = (math.atan2(x, y) / (2 * math.pi) + 0.5) * columns - 0.5
            down = (0.5 - math.atan2(z, math.hypot(x, y)) / math.pi) * rows - 0.5
            left, top = math.floor(across), math.floor(down)
            a, b = across - left, down - top
            cut[row, column] = (1 - b) * ((1 - a) * pixel(top, left) + a * pixel(top, left + 1)) + b * (
                (1 - a) * pixel(top + 1, left) + a * pixel(top + 1, left + 1)
            )
    return cut


def expected(view: View, height: int, width: int) -> npt.NDArray[np.float64]:
    """The scene as a camera sees it, without a panorama."""
    return np.array(
        [[scene(ray(view, row, column, height, width)) for column in range(width)] for row in range(height)]
    )


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_the_scene_as_a_camera_would(view: View) -> None:
    pixels = panorama_pixels(draw_panorama(FULL), FULL)
    difference = cut_view(pixels, view, 12, 16) - expected(view, 12, 16)
    assert np.abs(difference).max() < 1.1  # half a level of the panorama, half of the view, and the bilinear part


@pytest.mark.parametrize("view", VIEWS)
def test_it_agrees_with_a_slow_twin_on_noise(view: View) -> None:
    image = np.random.default_rng(0).integers(0, 256, (16, 32, 3), dtype=np.uint8)
    cut = cut_view(panorama_pixels(image, Panorama(32, 16)), view, 12, 16)
    assert np.abs(cut - slow_view(image, view, 12, 16)).max() < 0.51


@pytest.mark.parametrize(("pitch", "roll"), [(12.0, 0.0), (0.0, 15.0), (-20.0, 8.0), (5.0, -170.0)])
def test_the_tilt_of_a_panorama_is_removed(pitch: float, roll: float) -> None:
    tilted = Panorama(1024, 512, pitch_deg=pitch, roll_deg=roll)
    pixels = panorama_pixels(draw_panorama(tilted), tilted)
    for view in (View(0.0), View(123.0, 20.0, 90.0), View(180.0, -90.0, 90.0)):
        assert np.abs(cut_view(pixels, view, 9, 12) - expected(view, 9, 12)).max() < 1.1


def test_the_signs_of_pitch_and_roll() -> None:
    """Google's: pitch is that of the middle above the horizon; as roll grows the horizon turns counterclockwise."""
    image = np.zeros((180, 360, 3), np.uint8)
    image[79:82, 179:182] = 255  # ten degrees above the middle of the image
    raised = panorama_pixels(image, Panorama(360, 180, pitch_deg=20.0))
    row, column = brightest(cut_view(raised, View(0.0, 30.0, 40.0, 41, 41), 41, 41))  # 20 + 10 degrees
    assert abs(row - 20) <= 1
    assert abs(column - 20) <= 1
    image = np.zeros((180, 360, 3), np.uint8)
    image[79:82, 189:192] = 255  # right of the middle and above: on a horizon that is turned counterclockwise
    rolled = panorama_pixels(image, Panorama(360, 180, roll_deg=45.0))
    row, column = brightest(cut_view(rolled, View(0.0, 0.0, 60.0, 61, 61), 61, 61))
    assert abs(row - 30) <= 1  # level again
    assert column > 40


def brightest(image: npt.NDArray[np.uint8]) -> tuple[int, int]:
    row, column = np.argwhere(image[..., 0] > 128).mean(axis=0).round()
    return int(row), int(column)


def test_the_middle_is_yaw_0_which_grows_to_the_right() -> None:
    image = np.zeros((64, 128, 3), np.uint8)
    image[:, :64, 0] = 255  # red to the left of the middle
    pixels = panorama_pixels(image, Panorama(128, 64))
    ahead = cut_view(pixels, View(0.0), 48, 64)
    assert (ahead[:, :30, 0] == 255).all()
    assert (ahead[:, 34:, 0] == 0).all()
    assert (cut_view(pixels, View(90.0), 48, 64) == 0).all()
    assert (cut_view(pixels, View(270.0), 48, 64)[..., 0] == 255).all()


def test_neighbouring_views_join() -> None:
    """The last column of a view and the first of the next lie on both sides of one meridian."""
    pixels = panorama_pixels(draw_panorama(FULL), FULL)
    cuts = [cut_view(pixels, View(yaw, 0.0, 90.0, 512, 512), 512, 512).astype(int) for yaw in (0.0, 90.0, 180.0, 270.0)]
    for left, right in zip(cuts, [*cuts[1:], cuts[0]], strict=True):
        assert np.abs(left[:, -1] - right[:, 0]).max() <= 3


@pytest.mark.parametrize(
    "part",
    [
        Panorama(512, 256, left_deg=-90.0, width_deg=180.0, top_deg=45.0, height_deg=90.0),
        Panorama(512, 128, left_deg=120.0, width_deg=180.0, top_deg=30.0, height_deg=45.0),  # across the seam
        Panorama(1024, 128, top_deg=22.5, height_deg=45.0),  # a band that goes all around
        Panorama(256, 512, left_deg=-45.0, width_deg=90.0),  # from pole to pole
    ],
)
@pytest.mark.parametrize("view", [View(0.0, 0.0, 50.0), View(180.0, 5.0, 70.0), View(20.0, 85.0, 90.0)])
def test_a_partial_panorama_shows_the_scene_inside_and_black_outside(part: Panorama, view: View) -> None:
    cut, wanted = cut_view(panorama_pixels(draw_panorama(part), part), view, 12, 16), expected(view, 12, 16)
    inside = np.empty((12, 16), bool)
    for row in range(12):
        for column in range(16):
            x, y, z = ray(view, row, column, 12, 16)
            right = (math.degrees(math.atan2(x, y)) - part.left_deg) % 360
            below = part.top_deg - math.degrees(math.atan2(z, math.hypot(x, y)))
            inside[row, column] = right <= part.width_deg and 0 <= below <= part.height_deg
    assert np.abs(cut - wanted)[inside].max(initial=0) < 2.5  # at its edge the last pixel is repeated
    assert (cut[~inside] == 0).all()
    assert share_inside(part, view) == pytest.approx(inside.mean(), abs=0.05)


def test_twelve_views_of_60_degrees_by_default() -> None:
    views = views_of(Panorama(8192, 4096))
    assert [view.yaw_deg for view in views] == [*range(0, 360, 30)]
    assert set(views) == {View(float(yaw), 0.0, 60.0, 640, 480) for yaw in range(0, 360, 30)}


def test_a_view_is_not_larger_than_its_panorama_is_sharp() -> None:
    (view,) = views_of(Panorama(1000, 500), ViewOptions((0.0,)))
    assert (view.width, view.height) == (192, 144)  # 1.1 * 1000 / pi * tan(30 degrees) = 202
    assert {(v.width, v.height) for v in views_of(Panorama(1000, 500), enlarge=True)} == {(640, 480)}
    half = Panorama(1000, 1000, left_deg=-90.0, width_deg=180.0)
    assert views_of(half, ViewOptions((0.0,)))[0].width == 384


def test_views_outside_a_partial_panorama_are_left_out() -> None:
    part = Panorama(2048, 1024, left_deg=-90.0, width_deg=180.0, top_deg=45.0, height_deg=90.0)
    assert [view.yaw_deg for view in views_of(part)] == [0, 30, 60, 300, 330]
    assert views_of(part, ViewOptions((180.0,))) == ()
    assert views_of(part, ViewOptions((0.0,), (80.0,))) == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"yaw_deg": ()}, "at least one"),
        ({"yaw_deg": (math.nan,)}, "yaw"),
        ({"pitch_deg": (100.0,)}, "pitch"),
        ({"fov_deg": 180.0}, "field of view"),
        ({"width": 0}, "sides"),
    ],
)
def test_options_check_themselves(options: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        ViewOptions(**options)


def test_yaws_are_in_0_to_360() -> None:
    assert [view.yaw_deg for view in ViewOptions((-90.0, 360.0, -1e-9)).views()] == [270.0, 0.0, 0.0]


def test_an_address_is_decoded_to_its_view(tmp_path: Path) -> None:
    path = save_panorama(tmp_path / "pano.webp", draw_panorama(FULL))
    view = View(170.0, 5.0, 70.0, 64, 48)
    image = decode(Address(path, view).path)
    assert np.abs(image - expected(view, 48, 64)).max() < 1.5  # reduced to 288 x 144 px
    squeezed = decode(str(Address(path, view).path), size=lambda height, width: (height // 4, width // 2))
    assert squeezed.shape == (12, 32, 3)
    assert np.abs(squeezed - expected(view, 12, 32)).max() < 6
    assert read_focal_35mm(Address(path, View(0.0, 0.0, 90.0, 1200, 1200)).path) == pytest.approx(
        43.267 / 2 / 2**0.5, rel=1e-3
    )


def test_detail_finer_than_the_view_is_averaged(tmp_path: Path) -> None:
    board = np.indices((512, 1024)).sum(axis=0) % 2 * 255
    path = save_panorama(tmp_path / "pano.webp", np.repeat(board.astype(np.uint8)[..., None], 3, axis=2))
    assert matching_size(FULL, View(0.0, 0.0, 60.0, 64, 48), 48, 64)(512, 1024) == (175, 349)
    small = decode(Address(path, View(0.0, 0.0, 60.0, 64, 48)).path)
    assert np.abs(small.astype(int) - 127).max() < 30
    large = decode(Address(path, View(0.0, 0.0, 20.0, 640, 480)).path)
    assert large.max() == 255
    assert large.min() == 0


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "pano.webp"
    view = Address(path, View(0.0, 0.0, 60.0, 32, 24)).path
    for colour in (10, 200):
        save_panorama(path, np.full((32, 64, 3), colour, np.uint8))
        os.utime(path, ns=(colour, colour))
        assert (decode(view) == colour).all()


def test_errors_name_the_address(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match=r"gone\.jpg#yaw=0.*no such file"):
        decode(Address(tmp_path / "gone.jpg", View(0.0)).path)
    path = save_panorama(tmp_path / "photo.jpg", np.zeros((30, 40, 3), np.uint8), xmp=b"")
    with pytest.raises(PhotoError, match="not a 360° photo"):
        decode(Address(path, View(0.0)).path)


def test_written_views_have_position_heading_and_focal_length(tmp_path: Path) -> None:
    here = Geotag((52.5, 13.4), 350.0, 1e9)
    path = save_panorama(tmp_path / "pano.jpg", draw_panorama(FULL), here, gpano_xmp(heading=20))
    files, left_out = write_views(path, tmp_path / "out", ViewOptions((0.0, -30.0, 22.5), (0.0, -15.0), 90.0, 96, 96))
    assert not left_out
    assert [file.name for file in files[:3]] == [
        "pano_yaw000_pitch+00.jpg",
        "pano_yaw330_pitch+00.jpg",
        "pano_yaw22.5_pitch+00.jpg",
    ]
    assert files[-1].name == "pano_yaw22.5_pitch-15.jpg"
    for file, heading in zip(files, [20.0, 350.0, 42.5] * 2, strict=True):
        geotag = read_geotag(file)
        assert geotag is not None
        assert geotag.heading_deg == pytest.approx(heading)
        assert geotag.time == 1e9
        assert distance_m([here.latlon], [geotag.latlon])[0] < 0.01
        assert read_focal_35mm(file) == 15.0  # 43.3 mm / 2 / sqrt(2), which EXIF stores as an integer
    shown = decode(files[1]).astype(int)
    assert np.abs(shown - expected(View(330.0, 0.0, 90.0, 96, 96), 96, 96)).mean() < 2


def test_views_outside_are_named_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    tags = {"full_width": 512, "full_height": 256, "crop_width": 256, "crop_height": 128, "left": 128, "top": 64}
    part = Panorama(256, 128, left_deg=-90.0, width_deg=180.0, top_deg=45.0, height_deg=90.0)
    path = save_panorama(tmp_path / "pano.jpg", draw_panorama(part), xmp=gpano_xmp(**tags))
    files, left_out = write_views(path, tmp_path, ViewOptions((0.0, 90.0, 180.0), (0.0,), 60.0, 32, 24))
    assert len(files) == 1
    assert [view.yaw_deg for view in left_out] == [90.0, 180.0]
    assert read_geotag(files[0]) is None
    with pytest.raises(PhotoError, match="none of these views"):
        write_views(path, tmp_path, ViewOptions((180.0,)))


@pytest.mark.data
def test_a_real_panorama(shared_data: Path) -> None:
    """Views of 90 degrees around join, and one of 30 degrees is the enlarged middle of one of 90."""
    path = shared_data / "inputs" / "panorama.jpg"
    around = [
        decode(Address(path, View(yaw, 0.0, 90.0, 512, 512)).path).astype(int) for yaw in (0.0, 90.0, 180.0, 270.0)
    ]
    for left, right in zip(around, [*around[1:], around[0]], strict=True):
        step = np.abs(left[:, -1] - right[:, 0]).mean()
        assert step < 1.5 * np.abs(left[:, -1] - left[:, -2]).mean() + 1
    half = math.tan(math.radians(15))
    close = decode(Address(path, View(0.0, 0.0, 30.0, 100, 100)).path).astype(int)
    middle = around[0][
        round(256 * (1 - half)) : round(256 * (1 + half)), round(256 * (1 - half)) : round(256 * (1 + half))
    ]
    assert abs(close.mean() - middle.mean()) < 2
