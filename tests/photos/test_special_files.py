"""Only regular files are read, whatever a path is for: pipes, devices, sockets and folders are a sentence, at once."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from sareloc.datasets.published import read_mat, read_text
from sareloc.errors import SarelocError, explain
from sareloc.figures.report import read_history, read_report
from sareloc.files import open_regular, read_regular
from sareloc.photos import (
    Geotag,
    content_digest,
    decode,
    find_photos,
    image_size,
    is_truncated,
    read_geotag,
    read_geotag_table,
    read_time,
    read_track,
    read_video,
    stamp,
    write_geotag,
    write_sidecar,
)
from sareloc.photos.write_geotags import takes_exif
from sareloc.training import read_config

HERE = Geotag((48.8584, 2.2945))
pytestmark = pytest.mark.timeout(60)  # opening a pipe, or reading a device, would never end


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS = {"pipe": make_pipe, "device": make_device, "socket": make_socket, "folder": Path.mkdir}


@pytest.fixture(params=KINDS)
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        KINDS[request.param](tmp_path / name)
        return tmp_path / name

    return make


READERS: dict[str, Callable[[Path], object]] = {
    "a.jpg": decode,
    "view.jpg": lambda path: decode(f"{path}#yaw=0&pitch=0&fov=60&size=64x48"),
    "frame.mp4": lambda path: decode(f"{path}#t=1"),
    "size.jpg": image_size,
    "digest.jpg": content_digest,
    "part.jpg": lambda path: content_digest(f"{path}#yaw=0&pitch=0&fov=60&size=64x48"),
    "a.mp4": read_video,
    "a.csv": read_geotag_table,
    "a.geojson": read_geotag_table,
    "a.json": read_geotag_table,
    "a.gpx": read_track,
    "a.nmea": read_track,
    "tagged.jpg": lambda path: write_geotag(path, path.with_name("out.jpg"), HERE),
    "copied.png": lambda path: write_sidecar(path, path.with_name("o.xmp"), HERE, copy=path.with_name("out.png")),
    "list.txt": read_text,
    "list.mat": lambda path: read_mat(path, "x"),
    "report.json": read_report,
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_not_a_regular_file_is_reported(special: Callable[[str], Path], name: str) -> None:
    path = special(name)
    with pytest.raises(SarelocError, match=f"{re.escape(str(path))}.*(is not a regular file|is a folder)"):
        READERS[name](path)


def test_a_config_or_history_that_is_not_a_regular_file_is_reported(special: Callable[[str], Path]) -> None:
    path = special("a.toml")
    with pytest.raises(OSError, match=r"is not a regular file|is a folder") as error:
        read_config(path)
    assert explain(error.value) == f"{error.value.strerror}: {path}"
    with pytest.raises(SarelocError, match="history"):
        read_history(path)


def test_a_sidecar_that_is_not_a_regular_file_is_ignored(special: Callable[[str], Path], tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg")
    for name in ("a.jpg.json", "a.jpg.supplemental-metadata.json", "a.jpg.xmp", "a.xmp"):
        special(name)
    assert read_geotag(tmp_path / "a.jpg") is None
    assert read_time(tmp_path / "a.jpg") is None


def test_what_only_looks_at_a_file_says_no(special: Callable[[str], Path]) -> None:
    path = special("a.jpg")
    assert not takes_exif(path)
    assert not is_truncated(path)


def test_as_a_folder_of_photos_it_is_reported(tmp_path: Path) -> None:
    make_pipe(tmp_path / "a.jpg")
    with pytest.raises(SarelocError, match="is not a regular file or folder"):
        find_photos(tmp_path / "a.jpg")
    assert find_photos(tmp_path) == []


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    with open_regular(tmp_path / "a") as file:
        assert file.read() == b"12345"
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", 4)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "b")


@pytest.mark.parametrize("name", [name for name in READERS if name != "report.json"])
def test_a_nul_in_a_path_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(SarelocError, match="NUL character"):
        READERS[name](tmp_path / f"x\0{name}")


def test_a_nul_in_the_path_of_a_folder_is_named_and_has_no_sidecars(tmp_path: Path) -> None:
    with pytest.raises(SarelocError, match="NUL character"):
        find_photos(tmp_path / "x\0y")
    assert stamp(tmp_path / "x\0.jpg#t=1") is None
    assert read_geotag(tmp_path / "x\0y" / "a.jpg") is None
    assert read_time(tmp_path / "x\0.mp4#t=1") is None
