from __future__ import annotations

import contextlib
import io
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from sareloc.errors import PhotoError
from sareloc.photos import Estimate, Geotag, decode, exif_bytes, photo_with_geotag, read_exif_geotag, write_geotag
from sareloc.photos.write_geotags import with_gps

HERE = Geotag((-33.8567844, 151.2152967), 278.125, 1_717_156_800.25)


PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def jpeg(exif: bytes | None = None, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "JPEG", **({"exif": exif} if exif else {}), **options)
    return stream.getvalue()


def without_exif(content: bytes) -> bytes:
    """The file less its EXIF segments, by a plain walk over the segments."""
    kept, at = content[:2], 2
    while content[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if content[at + 1] != 0xE1 or not content[at + 4 :].startswith(b"Exif\0\0"):
            kept += content[at:end]
        at = end
    return kept + content[at:]


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-90, 90).filter(lambda latitude: latitude != 0),
    st.floats(-180, 180),
    st.none() | st.floats(0, 359.999),
    st.none() | st.floats(-5e9, 1e11),
)
def test_what_is_written_is_read_again(
    latitude: float, longitude: float, heading: float | None, time: float | None
) -> None:
    geotag = Geotag((latitude, longitude), heading, time)
    read = read_exif_geotag(jpeg(exif_bytes(geotag)))
    if max(abs(latitude), abs(longitude)) < 2e-11:
        return  # may round to 0, 0, which is read as no fix
    assert read is not None
    assert read.latlon == pytest.approx(geotag.latlon, abs=2e-11)  # 2 micrometres
    assert read.heading_deg == (None if heading is None else pytest.approx(heading, abs=5e-7))
    assert read.time == (None if time is None else pytest.approx(time, abs=1e-5))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "AVIF", "TIFF"])
def test_exif_bytes_go_into_every_format_that_pillow_saves(format: str) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, format, exif=exif_bytes(HERE))
    read = read_exif_geotag(stream)
    assert read is not None
    assert read.latlon == pytest.approx(HERE.latlon, abs=2e-11)


def test_rounding_never_makes_sixty_seconds() -> None:
    for latitude in (math.nextafter(56, 0), 55.99999999999, 0.016666666666666):
        gps = Image.Exif()
        gps.load(exif_bytes(Geotag((latitude, 1))))
        degrees, minutes, seconds = gps.get_ifd(IFD.GPSInfo)[GPS.GPSLatitude]
        assert minutes < 60
        assert seconds < 60
        assert degrees + minutes / 60 + seconds / 3600 == pytest.approx(latitude, abs=2e-11)


@pytest.mark.parametrize("order", ["<", ">"])
def test_pixels_and_other_metadata_stay_byte_for_byte(order: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif.endian = order
    exif[Base.Make], exif[Base.Orientation] = "Maker of cameras", 6
    exif.get_ifd(IFD.Exif)[Base.DateTimeOriginal] = "2024:05:31 14:00:00"
    exif.get_ifd(IFD.Exif)[Base.MakerNote] = b"note with offsets of its own"
    exif.get_ifd(IFD.GPSInfo)[GPS.GPSAltitude] = 77.0
    content = jpeg(exif.tobytes(), comment=b"a comment", icc_profile=b"profile" * 20)
    (tmp_path / "in.jpg").write_bytes(content)
    os.chmod(tmp_path / "in.jpg", 0o640)

    write_geotag(tmp_path / "in.jpg", tmp_path / "out.jpg", HERE)

    written = (tmp_path / "out.jpg").read_bytes()
    assert (tmp_path / "in.jpg").read_bytes() == content
    assert without_exif(written) == without_exif(content)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jpg", "out.jpg"]
    assert (tmp_path / "out.jpg").stat().st_mode & 0o777 == 0o640
    old_block = content[content.index(b"Exif\0\0") + 14 :][: len(exif.tobytes()) - 14]
    assert old_block in written  # nothing inside the block moved either: it only grew
    read = Image.open(io.BytesIO(written)).getexif()
    assert read[Base.Make] == "Maker of cameras"
    assert read[Base.Orientation] == 6
    assert read.get_ifd(IFD.Exif)[Base.MakerNote] == b"note with offsets of its own"
    assert read.get_ifd(IFD.GPSInfo)[GPS.GPSAltitude] == 77.0
    assert read.endian == order
    geotag = read_exif_geotag(tmp_path / "out.jpg")
    assert geotag is not None
    assert geotag.latlon == pytest.approx(HERE.latlon, abs=2e-11)
    np.testing.assert_array_equal(decode(tmp_path / "out.jpg"), decode(tmp_path / "in.jpg"))


def test_the_thumbnails_directory_is_still_linked() -> None:
    block = with_gps(
        b"II*\0" + struct.pack("<IHI", 8, 0, 14) + struct.pack("<HHHIII", 1, Base.Compression, 3, 1, 6, 0), HERE
    )
    exif = Image.Exif()
    exif.load(b"Exif\0\0" + block)
    assert exif.get_ifd(IFD.IFD1)[Base.Compression] == 6


def test_a_photo_without_exif_gets_it_behind_jfif() -> None:
    written = photo_with_geotag(jpeg(), HERE)
    assert without_exif(written) == jpeg()
    assert written[2:4] == b"\xff\xe0"  # JFIF stays first
    bare = without_exif(jpeg(exif_bytes(HERE)))
    bare = bare[:2] + bare[20:] if bare[2:4] == b"\xff\xe0" else bare
    assert photo_with_geotag(bare, HERE)[2:4] == b"\xff\xe1"


def test_written_over_itself_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(jpeg())
    write_geotag(path, path, HERE)
    write_geotag(path, path, Geotag((1.5, 2.5)))
    geotag = read_exif_geotag(path)
    assert geotag is not None
    assert geotag.latlon == pytest.approx((1.5, 2.5), abs=2e-11)
    assert geotag.heading_deg == HERE.heading_deg  # unknown to the second one, so it stays
    assert without_exif(path.read_bytes()) == jpeg()


def test_exif_in_several_segments_becomes_one() -> None:
    block = exif_bytes(HERE)
    plain = jpeg()
    parts = [block[:60], b"Exif\0\0" + block[60:]]
    split = plain[:20] + b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts) + plain[20:]
    written = photo_with_geotag(split, Geotag((1.5, 2.5)))
    assert written.count(b"Exif\0\0") == 1
    assert without_exif(written) == plain


def test_a_multi_picture_jpeg_keeps_its_second_picture(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (64, 48), "white").save(
        stream, "MPO", save_all=True, append_images=[Image.new("RGB", (64, 48), "red")]
    )
    with Image.open(io.BytesIO(photo_with_geotag(stream.getvalue(), HERE))) as written:
        assert written.n_frames == 2
        written.seek(1)
        assert written.convert("RGB").getpixel((5, 5)) == (254, 0, 0)


def test_errors_name_the_photo(tmp_path: Path) -> None:
    path, target = tmp_path / "photo.jpg", tmp_path / "out.jpg"
    with pytest.raises(PhotoError, match=r"photo\.jpg: no such file"):
        write_geotag(path, target, HERE)
    Image.new("RGB", (8, 8)).save(path, "GIF")
    with pytest.raises(PhotoError, match="not a JPEG"):
        write_geotag(path, target, HERE)
    for damaged, reason in [
        (jpeg()[:100], "cannot be written"),
        (b"\xff\xd8", "damaged before the image data"),
        (b"\xff\xd8\xff", "damaged before the image data"),
        (jpeg(b"Exif\0\0rubbish"), "its EXIF is damaged"),
        (jpeg(b"Exif\0\0II*\0" + b"\xff" * 8), "its EXIF is damaged"),
        (jpeg(exif_bytes(HERE).ljust(65_500, b"\0")), "65533"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(PhotoError, match=reason):
            write_geotag(path, target, HERE)
    assert not target.exists()
    path.write_bytes(jpeg())
    target.mkdir()
    with pytest.raises(OSError, match=r"directory: .*out\.jpg"):
        write_geotag(path, target, HERE)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.jpg", "photo.jpg"]  # nothing half-written


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 300))
def test_mutated_jpegs_are_tagged_or_refused(noise: bytes, at: int) -> None:
    content = jpeg(exif_bytes(HERE))
    with contextlib.suppress(PhotoError):
        photo_with_geotag(content[:at] + noise + content[at + len(noise) :], HERE)


@pytest.mark.data
def test_camera_originals_keep_their_pixels(shared_data: Path, tmp_path: Path) -> None:
    for photo in sorted((shared_data / "exif").glob("*.jpg")):
        write_geotag(photo, tmp_path / "out.jpg", HERE)
        assert without_exif((tmp_path / "out.jpg").read_bytes()) == without_exif(photo.read_bytes())
        geotag = read_exif_geotag(tmp_path / "out.jpg")
        assert geotag is not None
        assert geotag.latlon == pytest.approx(HERE.latlon, abs=2e-11)


def gps_of(path: Path) -> dict[int, object]:
    with Image.open(path) as photo:
        return photo.getexif().get_ifd(IFD.GPSInfo)


def test_an_estimate_is_marked_as_one_and_the_time_stays(tmp_path: Path) -> None:
    exif = Image.Exif()
    gps = exif.get_ifd(IFD.GPSInfo)
    gps[GPS.GPSDateStamp], gps[GPS.GPSTimeStamp] = "2024:05:31", (14.0, 0.0, 7.0)
    gps[GPS.GPSImgDirectionRef], gps[GPS.GPSImgDirection] = "M", 77.5
    for name, content in (("tagged.jpg", jpeg(exif.tobytes())), ("bare.jpg", jpeg())):
        (tmp_path / name).write_bytes(content)
        write_geotag(
            tmp_path / name, tmp_path / f"out-{name}", Geotag((1.5, 2.5)), Estimate(12.345, "by sareloc, 0.93")
        )
        written = gps_of(tmp_path / f"out-{name}")
        assert float(written[GPS.GPSHPositioningError]) == pytest.approx(12.345, abs=0.006)
        assert written[GPS.GPSAreaInformation] == b"ASCII\0\0\0by sareloc, 0.93"
        assert written[GPS.GPSProcessingMethod] == b"ASCII\0\0\0MANUAL"
        kept = {tag: written.get(tag) for tag in (GPS.GPSDateStamp, GPS.GPSTimeStamp, GPS.GPSImgDirection)}
        assert kept == {tag: (gps[tag] if name == "tagged.jpg" else None) for tag in kept}
        assert without_exif((tmp_path / f"out-{name}").read_bytes()) == without_exif(content)
        write_geotag(tmp_path / f"out-{name}", tmp_path / "again.jpg", HERE)  # without an estimate nothing is marked
        marks = {GPS.GPSHPositioningError, GPS.GPSAreaInformation, GPS.GPSProcessingMethod}
        assert not marks & gps_of(tmp_path / "again.jpg").keys()
