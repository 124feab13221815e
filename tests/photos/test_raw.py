"""RAW files are read by their previews; a RAW file and its JPEG are one photo; none is skipped in silence."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.maps.small_town import build_map, geotag_of, tiny_model, write_photo
from tests.photos.raw_files import jpeg, make_dng, make_raf, write_dng

from sareloc.errors import PhotoError
from sareloc.maps import PlaceMap
from sareloc.photos import (
    decode,
    find_photos,
    read_geotag,
    read_image,
    read_time,
    write_geotag,
    write_sidecar,
)
from sareloc.photos.finding import raw_twins_note
from sareloc.photos.raw import RawFile, is_raw

HERE = geotag_of(3)


def tiff_as(content: bytes, magic: bytes) -> bytes:
    return magic + content[4:]


def cr3(preview_exif: bytes) -> bytes:
    """The boxes of a CR3 file around blocks of EXIF, without its images."""

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", 8 + len(content)) + kind + content

    blocks = box(b"CMT1", preview_exif) + box(b"CMT2", preview_exif) + box(b"CMT4", preview_exif)
    canon = box(b"uuid", bytes.fromhex("85c0b687820f11e08111f4ce462b6a48") + blocks)
    return box(b"ftyp", b"crx \0\0\0\1crx isom") + box(b"moov", canon)


def test_a_preview_is_read_with_the_position_and_the_time_of_its_file(tmp_path: Path) -> None:
    pytest.importorskip("rawpy")
    photo = write_dng(tmp_path / "a.dng", HERE)
    read = read_image(photo, (None,), digest=True)
    assert (read.width, read.height, read.metadata.format) == (400, 300, "RAW")
    assert np.array_equal(read.pixels[0], decode(jpeg(400, 300)))
    assert read.sha256 == hashlib.sha256(photo.read_bytes()).digest()
    found = read_geotag(photo)
    assert found.latlon == pytest.approx(HERE.latlon)
    assert found.heading_deg == HERE.heading_deg
    photo.write_bytes(make_dng(jpeg(400, 300)))
    assert read_time(photo) == pytest.approx(1717156800)  # 2024-05-31 12:00
    assert read_geotag(photo) is None
    write_sidecar(photo, tmp_path / "a.dng.xmp", HERE)
    assert read_geotag(photo).latlon == pytest.approx(HERE.latlon)


def test_the_position_and_the_time_of_a_raf_file_are_in_its_preview(tmp_path: Path) -> None:
    pytest.importorskip("rawpy")
    preview, photo = tmp_path / "preview.jpg", tmp_path / "a.raf"
    preview.write_bytes(jpeg(400, 300))
    write_geotag(preview, preview, HERE)
    content = preview.read_bytes()
    assert content[2:4] == b"\xff\xe0"  # JFIF, which cameras do not write
    photo.write_bytes(make_raf(content[:2] + content[4 + int.from_bytes(content[4:6], "big") :]))
    read = read_image(photo, (None,))
    assert (read.width, read.height, read.metadata.format) == (400, 300, "RAW")
    assert np.array_equal(read.pixels[0], decode(preview))
    assert read_geotag(photo).latlon == pytest.approx(HERE.latlon)
    assert read_time(photo) == read_time(preview) == HERE.time


@pytest.mark.parametrize(
    ("orientation", "size", "dark"),
    [(1, (400, 300), "left"), (6, (400, 300), "top"), (8, (400, 300), "bottom"), (3, (400, 300), "right"),
     (6, (300, 400), "left")],
)  # fmt: skip
def test_a_preview_is_turned_as_the_sensor_unless_it_is_upright(
    orientation: int, size: tuple[int, int], dark: str
) -> None:
    pytest.importorskip("rawpy")
    pixels = decode(make_dng(jpeg(*size), orientation=orientation)).astype(float)
    height, width = pixels.shape[:2]
    sides = {
        "left": pixels[:, : width // 4],
        "right": pixels[:, -width // 4 :],
        "top": pixels[: height // 4],
        "bottom": pixels[-height // 4 :],
    }
    assert min(sides, key=lambda side: sides[side].mean()) == dark


@pytest.mark.parametrize("magic", [b"IIU\0", b"IIRO", b"IIRS"])
def test_exif_of_nearly_tiff_files(magic: bytes) -> None:
    content = tiff_as(make_dng(jpeg(400, 300), HERE), magic)
    exif = RawFile(content, b"", 1, True).read_exif()
    assert exif.get(271) == "Little"
    assert exif.get_ifd(34853)[3] == "E"


def test_exif_of_the_boxes_of_a_cr3_file() -> None:
    gps = Image.Exif()
    gps[1], gps[271] = "N", "Canon"
    block = gps.tobytes().removeprefix(b"Exif\0\0")
    exif = RawFile(cr3(block), b"", 1, True).read_exif()
    assert exif[271] == "Canon"
    assert exif.get_ifd(34853)[1] == "N"
    for cut in range(0, len(cr3(block)), 7):  # never more than an empty EXIF, or Pillow's errors
        with suppress(SyntaxError, OSError, ValueError):
            RawFile(cr3(block)[:4] + b"ftypcrx " + cr3(block)[12:cut], b"", 1, True).read_exif()


@pytest.mark.parametrize(
    ("content", "meaning"),
    [
        (make_dng(None), "no embedded preview"),
        (make_dng(jpeg(160, 120)), "160 x 120 px"),
        (make_dng(jpeg(400, 300))[:300], "damaged|preview"),
        (b"FUJIFILMCCD-RAW 0201FF" + b"\0" * 200, "LibRaw"),
        (b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", "LibRaw"),
        (b"IIRO\x08\0\0\0" + b"\xff" * 100, "LibRaw"),
        (b"II*\0\x10\0\0\0CR\x02\0" + b"\xff" * 64, "LibRaw"),
    ],
)
def test_a_raw_file_that_cannot_be_used_says_why(content: bytes, meaning: str, tmp_path: Path) -> None:
    pytest.importorskip("rawpy")
    photo = tmp_path / "a.dng"
    photo.write_bytes(content)
    with pytest.raises(PhotoError, match=meaning):
        read_image(photo, (None,))
    with pytest.raises(PhotoError, match=meaning):
        read_image(photo)


def test_damaged_raw_files_are_photo_errors_or_photos() -> None:
    pytest.importorskip("rawpy")
    whole, rng = make_dng(jpeg(400, 300), HERE), np.random.default_rng(0)
    failed = 0
    for _ in range(200):
        broken = bytearray(whole)
        for at in rng.integers(len(whole) - 700, len(whole), 6):  # the directories are at the end
            broken[at] = rng.integers(256)
        try:
            read_image(bytes(broken), (None,))
        except PhotoError:
            failed += 1
    assert failed


def test_exif_that_claims_more_than_the_file_is_not_read() -> None:
    content = bytearray(make_dng(jpeg(400, 300)))
    (start,) = struct.unpack_from("<I", content, 4)
    for entry in range(3):
        struct.pack_into("<HI", content, start + 2 + 12 * entry + 2, 7, len(content) - 8)
        struct.pack_into("<I", content, start + 2 + 12 * entry + 8, 8)
    with pytest.raises(ValueError, match="larger than the file"):
        RawFile(bytes(content), b"", 1, True).read_exif()


def test_ordinary_photos_are_not_raw(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "a.tif", "a.webp"):
        Image.new("RGB", (40, 30)).save(tmp_path / name)
        with (tmp_path / name).open("rb") as file:
            assert not is_raw(file)
    assert decode(tmp_path / "a.tif").shape == (30, 40, 3)


def test_a_fifo_with_the_name_of_a_raw_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.nef")
    with pytest.raises(PhotoError, match="not a regular file"):
        read_image(tmp_path / "a.nef")


def test_a_raw_file_and_its_jpeg_are_one_photo(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_dng(photos / "DSC1.NEF", HERE)
    write_photo(photos / "DSC1.JPG", 1)
    write_dng(photos / "sub" / "DSC1.NEF", geotag_of(5), seed=2)
    assert [path.relative_to(photos).as_posix() for path in find_photos(photos)] == ["DSC1.JPG", "sub/DSC1.NEF"]
    (note,) = raw_twins_note(find_photos(photos))
    assert "1 RAW file (" in note
    assert "DSC1.NEF" in note
    pytest.importorskip("rawpy")
    report = build_map(photos, tmp_path / "town.gpkg", tiny_model())
    assert (report.added, report.untagged, report.unreadable) == (2, (), ())
    assert any("1 RAW file" in line for line in report.notes)
    assert sorted(PlaceMap(tmp_path / "town.gpkg").files) == ["photos/DSC1.JPG", "photos/sub/DSC1.NEF"]


def test_without_the_extra_they_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rawpy", None)
    write_dng(tmp_path / "photos" / "a.ARW", HERE)
    write_photo(tmp_path / "photos" / "b.jpg", 1)
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", tiny_model())
    assert report.added == 1
    (error,) = report.unreadable
    assert Path(error.photo).name == "a.ARW"
    assert "sareloc[raw]" in error.reason
