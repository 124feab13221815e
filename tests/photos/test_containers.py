"""EXIF in JPEG, PNG, WebP and TIFF files: image data and other metadata stay, exiftool finds nothing wrong."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from PIL.ExifTags import IFD, Base

from sareloc.errors import PhotoError
from sareloc.photos import Estimate, Geotag, exif_bytes, read_exif_geotag, write_geotag
from sareloc.photos.containers import change_exif, file_kind
from sareloc.photos.write_geotags import takes_exif

HERE, GUESS = Geotag((-33.8567844, 151.2152967), 278.125), Estimate(12.34, "sareloc, confidence 0.93")
PIXELS = np.random.default_rng(0).integers(0, 256, (21, 31, 4), dtype=np.uint8)


def old_exif() -> bytes:
    exif = Image.Exif()
    exif[Base.Make] = "Maker of cameras"
    exif.get_ifd(IFD.Exif)[Base.DateTimeOriginal] = "2024:05:31 14:00:00"
    return exif.tobytes()


def raw_profile() -> PngImagePlugin.PngInfo:
    """EXIF in a text chunk, as ImageMagick writes it."""
    block, text = old_exif(), PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(block):8d}\n{block.hex()}\n", zip=True)
    return text


FILES = {
    "plain.jpg": {},
    "tagged.jpg": {"exif": old_exif()},
    "plain.png": {},
    "tagged.png": {"exif": old_exif()},
    "profile.png": {"pnginfo": raw_profile()},
    "lossless.webp": {"lossless": True},
    "alpha.webp": {"lossless": True},
    "lossy.webp": {"quality": 80},
    "tagged.webp": {"exif": old_exif(), "icc_profile": b"profile" * 21},
    "plain.tif": {"dpi": (72, 72)},
    "tagged.tif": {"exif": old_exif(), "dpi": (72, 72)},
    "deflated.tiff": {"compression": "tiff_adobe_deflate", "dpi": (72, 72)},
}


VALID = ("plain.jpg", "plain.png", "tagged.png", "lossless.webp", "alpha.webp", "lossy.webp", "plain.tif")


def write(folder: Path, name: str) -> Path:
    image = Image.fromarray(PIXELS if name.startswith("alpha") else PIXELS[..., :3])
    image.save(folder / name, **FILES[name])
    return folder / name


@pytest.mark.parametrize("name", FILES)
def test_pixels_and_other_metadata_stay(name: str, tmp_path: Path) -> None:
    photo, copy = write(tmp_path, name), tmp_path / f"copy_{name}"
    os.utime(photo, ns=(1_500_000_000 * 10**9, 1_400_000_000 * 10**9))
    before = photo.read_bytes()
    assert takes_exif(photo)
    write_geotag(photo, copy, HERE, GUESS)
    assert photo.read_bytes() == before
    with Image.open(photo) as original, Image.open(copy) as tagged:
        assert (tagged.mode, tagged.size) == (original.mode, original.size)
        assert np.array_equal(np.asarray(tagged), np.asarray(original))
        assert tagged.info.get("icc_profile") == original.info.get("icc_profile")
        exif = tagged.getexif()
    if name.startswith(("tagged", "profile")):
        assert exif[Base.Make] == "Maker of cameras"
        assert exif.get_ifd(IFD.Exif)[Base.DateTimeOriginal] == "2024:05:31 14:00:00"
    assert read_exif_geotag(copy).latlon == pytest.approx(HERE.latlon, abs=2e-11)
    assert copy.stat().st_mtime_ns == 1_400_000_000 * 10**9
    write_geotag(copy, copy, Geotag((1.5, 2.5)))  # in place: the last one counts, and times stay
    assert read_exif_geotag(copy).latlon == pytest.approx((1.5, 2.5), abs=2e-11)
    assert copy.stat().st_mtime_ns == 1_400_000_000 * 10**9


@pytest.mark.parametrize("name", FILES)
def test_exiftool_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    program = shutil.which("exiftool")
    if program is None:
        pytest.skip("exiftool is not installed")
    photo, copy = write(tmp_path, name), tmp_path / f"copy_{name}"
    write_geotag(photo, copy, HERE, GUESS)

    def warnings(file: Path) -> set[str]:
        words = [program, "-validate", "-warning", "-error", "-a", "-s3", str(file)]
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        return set(lines[1:])  # the first one counts them

    assert warnings(copy) <= warnings(photo)
    if name in VALID:
        assert warnings(copy) == set()
    read = subprocess.run([program, "-n", "-s3", "-GPSHPositioningError", str(copy)], capture_output=True, text=True)
    assert float(read.stdout) == 12.34


@pytest.mark.parametrize("name", ["plain.png", "lossless.webp", "tagged.webp", "plain.tif", "tagged.jpg"])
def test_cut_and_damaged_files_are_a_photo_error(name: str, tmp_path: Path) -> None:
    content = write(tmp_path, name).read_bytes()
    for cut in {*range(12, min(len(content), 200), 7), len(content) // 2}:
        damaged = tmp_path / f"cut{Path(name).suffix}"
        damaged.write_bytes(content[:cut])
        out = tmp_path / f"out{cut}"
        try:
            write_geotag(damaged, out, HERE)
        except PhotoError as error:
            assert "cut" in str(error)  # noqa: PT017
            assert not out.exists()


def test_raw_files_are_not_taken_for_tiff(tmp_path: Path) -> None:
    photo = write(tmp_path, "plain.tif")
    raw = photo.rename(tmp_path / "photo.nef")
    assert not takes_exif(raw)
    with pytest.raises(PhotoError, match="write_sidecar"):
        write_geotag(raw, tmp_path / "out.nef", HERE)


def test_other_kinds_are_refused() -> None:
    assert file_kind(b"GIF89a") is None
    assert file_kind(b"II+\0") is None  # BigTIFF
    with pytest.raises(ValueError, match="not a JPEG"):
        change_exif(b"GIF89a", lambda block: block)


def test_the_chunk_of_a_png_is_before_its_pixels() -> None:
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "PNG")
    written = change_exif(stream.getvalue(), lambda _: exif_bytes(HERE)[6:])
    assert 0 < written.index(b"eXIf") < written.index(b"IDAT")
    assert written.replace(written[written.index(b"eXIf") - 4 : written.index(b"IDAT") - 4], b"") == stream.getvalue()
