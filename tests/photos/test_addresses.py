"""Addresses: which image of which file, as text that a map can store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos import Address, Geotag, Panorama, View, content_digest, file_of, image_size, parse_address, stamp
from sareloc.photos.finding import turned

VIEWS = st.builds(
    View,
    st.integers(0, 359_999_999).map(lambda n: n / 1e6),
    st.integers(-90_000_000, 90_000_000).map(lambda n: n / 1e6),
    st.integers(1, 179_999_999).map(lambda n: n / 1e6),
    st.integers(1, 16_384),
    st.integers(1, 16_384),
)


@given(view=VIEWS)
def test_a_view_is_read_as_it_was_written(view: View) -> None:
    address = Address(Path("street/a#b.jpg"), view)
    assert parse_address(address.path) == address


@given(microseconds=st.integers(0, 10**12 - 1))
def test_a_frame_is_read_as_it_was_written(microseconds: int) -> None:
    address = Address(Path("drive.mp4"), time_s=microseconds / 1e6)
    assert parse_address(str(address.path)) == address


def test_addresses_are_short_and_readable() -> None:
    assert str(Address(Path("a/pano.jpg"), View(30.0)).path) == "a/pano.jpg#yaw=30&pitch=0&fov=60&size=640x480"
    assert str(Address(Path("drive.mp4"), time_s=12.345).path) == "drive.mp4#t=12.345"
    assert Address(Path("a.jpg")).path == Path("a.jpg")


@pytest.mark.parametrize(
    "name",
    [
        "photo.jpg",
        "#t=1",
        "a#1.jpg",
        "drive.mp4#t=",
        "drive.mp4#t=1e3",
        "drive.mp4#t=-1",
        "drive.mp4#t=9999999",
        "drive.mp4#t=١",
        "pano.jpg#yaw=30",
        "pano.jpg#yaw=360&pitch=0&fov=60&size=640x480",
        "pano.jpg#yaw=0&pitch=91&fov=60&size=640x480",
        "pano.jpg#yaw=0&pitch=0&fov=180&size=640x480",
        "pano.jpg#yaw=0&pitch=0&fov=60&size=99999x1",
        "pano.jpg#yaw=0&pitch=0&fov=60&size=0x10",
        "pano.jpg#t=1&yaw=0&pitch=0&fov=60&size=640x480",
    ],
)
def test_other_names_are_plain_files(name: str) -> None:
    assert parse_address(name) == Address(Path(name))


@pytest.mark.parametrize("wrong", [{"yaw_deg": 360.0}, {"pitch_deg": -91.0}, {"fov_deg": 0.0}, {"width": 0}])
def test_a_view_checks_its_values(wrong: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=r"view|field|sides"):
        replace(View(0.0), **wrong)


def test_a_view_has_the_stamp_of_its_file_and_a_digest_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "pano.jpg"
    file.write_bytes(b"pixels")
    ahead, behind = (Address(file, View(yaw)).path for yaw in (0.0, 180.0))
    assert file_of(ahead) == file
    assert stamp(file) is not None
    assert stamp(ahead) == stamp(file)
    assert content_digest(file) == hashlib.sha256(b"pixels").digest()
    assert len({content_digest(file), content_digest(ahead), content_digest(behind)}) == 3
    assert image_size(ahead) == (640, 480)
    moved = tmp_path / "moved.jpg"
    file.rename(moved)
    assert (
        content_digest(Address(moved, View(0.0)).path)
        == hashlib.sha256(hashlib.sha256(b"pixels").digest() + b"#yaw=0&pitch=0&fov=60&size=640x480").digest()
    )


def test_the_digest_of_a_view_notices_a_changed_file(tmp_path: Path) -> None:
    file = tmp_path / "pano.jpg"
    view = Address(file, View(0.0)).path
    file.write_bytes(b"before")
    before = content_digest(view)
    file.write_bytes(b"after!")
    os.utime(file, ns=(1, 1))
    assert content_digest(view) != before


def test_a_missing_file_has_no_stamp_and_no_digest(tmp_path: Path) -> None:
    missing = tmp_path / "gone.mp4#t=1"
    assert stamp(missing) is None
    with pytest.raises(PhotoError, match=r"gone\.mp4: no such file"):
        content_digest(missing)


def test_a_view_is_turned_by_its_yaw() -> None:
    tag = Geotag((1.0, 2.0), 350.0, 5.0)
    assert turned(tag, View(30.0), None) == Geotag((1.0, 2.0), 20.0, 5.0)
    assert turned(tag, None, None) == tag
    unknown = Geotag((1.0, 2.0))
    assert turned(unknown, View(30.0), None) == unknown
    assert turned(unknown, View(30.0), Panorama(200, 100, heading_deg=340.0)) == Geotag((1.0, 2.0), 10.0)


@pytest.mark.parametrize("read", [parse_address, image_size, content_digest, file_of, stamp])
@pytest.mark.parametrize("image", [b"content", np.zeros((8, 8, 3), dtype=np.uint8), None], ids=type)
def test_an_address_is_a_path_or_text(read: Callable[[Any], object], image: object) -> None:
    with pytest.raises(ArgumentError, match=f"path.*found {type(image).__name__}"):
        read(image)
