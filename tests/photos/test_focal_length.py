"""The 35 mm equivalent focal length in EXIF."""

from __future__ import annotations

from io import BytesIO

import pytest
from PIL import Image

from sareloc.photos import Geotag, exif_bytes, read_exif_geotag, read_focal_35mm

TAG = Geotag((48.5, 2.5), 90.0, 1.6e9)


def jpeg(exif: bytes) -> bytes:
    content = BytesIO()
    Image.new("RGB", (16, 16)).save(content, "JPEG", exif=exif)
    return content.getvalue()


def test_a_focal_length_is_written_beside_the_geotag_and_read() -> None:
    photo = jpeg(exif_bytes(TAG, focal_35mm=28.4))
    assert read_focal_35mm(photo) == 28.0  # EXIF stores an integer
    geotag = read_exif_geotag(photo)
    assert geotag is not None
    assert geotag.latlon == pytest.approx(TAG.latlon)


def test_a_photo_without_one_has_none() -> None:
    assert read_focal_35mm(jpeg(exif_bytes(TAG))) is None
    assert read_focal_35mm(b"not a photo") is None


@pytest.mark.parametrize("millimetres", [0, 3, 60_000])
def test_impossible_values_are_unknown(millimetres: int) -> None:
    assert read_focal_35mm(jpeg(exif_bytes(TAG, focal_35mm=millimetres))) is None
