"""360° photos: what their GPano tags say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.photos.panorama_files import gpano_xmp, save_panorama

from sareloc.errors import PhotoError
from sareloc.photos import Geotag, Panorama, looks_like_panorama, read_geotag, read_panorama

BLACK = np.zeros((32, 64, 3), np.uint8)
WHOLE = {"full_width": 64, "full_height": 32, "crop_width": 64, "crop_height": 32, "left": 0, "top": 0}


def read(tmp_path: Path, image: np.ndarray = BLACK, geotag: Geotag | None = None, **tags: object) -> Panorama | None:
    return read_panorama(save_panorama(tmp_path / "pano.jpg", image, geotag, gpano_xmp(**tags)))


def test_a_full_sphere(tmp_path: Path) -> None:
    assert read(tmp_path) == Panorama(64, 32)
    assert read(tmp_path, **WHOLE) == Panorama(64, 32)
    assert read(tmp_path, **WHOLE, heading=359.5, pitch=-3, roll="1.25") == Panorama(
        64, 32, heading_deg=359.5, pitch_deg=-3.0, roll_deg=1.25
    )
    assert read(tmp_path, **WHOLE, heading=360) == Panorama(64, 32, heading_deg=0.0)


def test_tags_may_be_elements_and_the_projection_may_be_missing(tmp_path: Path) -> None:
    elements = b"""<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>
    <x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
    <rdf:Description xmlns:g="http://ns.google.com/photos/1.0/panorama/">
      <g:FullPanoWidthPixels> 64 </g:FullPanoWidthPixels><g:FullPanoHeightPixels>32</g:FullPanoHeightPixels>
      <g:PoseHeadingDegrees>12.5</g:PoseHeadingDegrees>
    </rdf:Description></rdf:RDF></x:xmpmeta>\n<?xpacket end="w"?>\0"""
    path = save_panorama(tmp_path / "pano.jpg", BLACK, xmp=elements)
    assert read_panorama(path) == Panorama(64, 32, heading_deg=12.5)


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_it_is_read_from_files_and_bytes_of_any_format(tmp_path: Path, suffix: str) -> None:
    path = save_panorama(tmp_path / f"pano{suffix}", BLACK, xmp=gpano_xmp(heading=90))
    assert read_panorama(path) == read_panorama(path.read_bytes()) == Panorama(64, 32, heading_deg=90.0)


def test_a_partial_panorama_that_was_resized_after_it_was_tagged(tmp_path: Path) -> None:
    found = read(tmp_path, full_width=1280, full_height=640, crop_width=640, crop_height=320, left=320, top=160)
    assert found == Panorama(64, 32, left_deg=-90.0, width_deg=180.0, top_deg=45.0, height_deg=90.0)
    assert not found.wraps


def test_a_band_goes_all_around(tmp_path: Path) -> None:
    band = np.zeros((8, 64, 3), np.uint8)
    found = read(tmp_path, band, full_width=64, full_height=32, crop_width=64, crop_height=8, left=0, top=12)
    assert found == Panorama(64, 8, top_deg=22.5, height_deg=45.0)
    assert found.wraps


def test_the_heading_of_the_tags_comes_before_that_of_exif(tmp_path: Path) -> None:
    here = Geotag((52.0, 13.0), 40.0)
    exif, tags = read(tmp_path, geotag=here), read(tmp_path, geotag=here, heading=50)
    assert exif is not None
    assert tags is not None
    assert (exif.heading_deg, tags.heading_deg) == (40.0, 50.0)


def test_the_geotag_of_a_view_is_that_of_the_photo_turned_by_its_yaw(tmp_path: Path) -> None:
    view = "#yaw=330&pitch=0&fov=60&size=64x48"
    tagged = save_panorama(tmp_path / "a.jpg", BLACK, Geotag((52.0, 13.0), 40.0), gpano_xmp(heading=50))
    only_exif = save_panorama(tmp_path / "b.jpg", BLACK, Geotag((52.0, 13.0), 40.0))
    neither = save_panorama(tmp_path / "c.jpg", BLACK, Geotag((52.0, 13.0)))
    headings = []
    for path in (tagged, only_exif, neither):
        geotag = read_geotag(f"{path}{view}")
        assert geotag is not None
        assert geotag.latlon == pytest.approx((52.0, 13.0))
        headings.append(geotag.heading_deg)
    assert headings == [20.0, 10.0, None]


def test_an_ordinary_photo_is_not_a_panorama(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (64, 32)).save(path, xmp=b"<x:xmpmeta xmlns:x='adobe:ns:meta/'><broken")
    assert read_panorama(path) is None
    Image.new("RGB", (64, 32)).save(path, xmp=gpano_xmp(projection=None, UsePanoramaViewer="True"))
    assert read_panorama(path) is None


def test_only_a_photo_of_2_to_1_is_assumed_to_be_a_full_sphere(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (64, 32)).save(path)
    assert read_panorama(path, assume=True) == Panorama(64, 32)
    Image.new("RGB", (64, 48)).save(path)
    with pytest.raises(PhotoError, match=r"photo\.jpg: not a 360° photo: 64 x 48 px"):
        read_panorama(path, assume=True)
    assert looks_like_panorama(6080, 3040)
    assert not looks_like_panorama(4000, 3000)
    assert not looks_like_panorama(3040, 6080)


def test_a_photo_stored_sideways_has_its_upright_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "pano.jpg"
    Image.new("RGB", (32, 64)).save(path, xmp=gpano_xmp(), exif=exif)
    assert read_panorama(path) == Panorama(64, 32)


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({"projection": "cylindrical"}, "projection is 'cylindrical', expected 'equirectangular'"),
        (WHOLE | {"full_width": "wide"}, "FullPanoWidthPixels is 'wide', expected a number"),
        (WHOLE | {"left": "nan"}, "CroppedAreaLeftPixels is 'nan'"),
        (WHOLE | {"full_width": 32, "full_height": 16}, "not inside the full panorama"),
        (WHOLE | {"top": 1}, "64 x 32 px at 0, 1 of 64 x 32 px is not inside"),
        (WHOLE | {"top": -1}, "not inside"),
        (WHOLE | {"left": 64}, "not inside"),
        (WHOLE | {"full_height": 0, "crop_height": 0}, "not inside"),
        (WHOLE | {"full_height": 64}, "full panorama has 64 x 64 px"),
        (WHOLE | {"crop_height": 16}, "the image has 64 x 32 px: other proportions"),
        ({"heading": ""}, "PoseHeadingDegrees is '', expected a number"),
    ],
)
def test_malformed_tags_are_reported(tmp_path: Path, tags: dict[str, object], says: str) -> None:
    with pytest.raises(PhotoError, match=r"pano\.jpg: its GPano tags cannot be used: ") as error:
        read(tmp_path, **tags)
    assert says in error.value.reason


@pytest.mark.parametrize(
    ("xmp", "says"),
    [
        (gpano_xmp()[:-9], "malformed"),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]>" + gpano_xmp(), "document type"),
        *(
            (f'<?xml version="1.0" encoding="{name}"?>'.encode() + gpano_xmp(), f"encoding is '{name}'")
            for name in ("nonsense", "zlib", "hex", "rot13", "base64")
        ),
        (b"<a>" * 200 + gpano_xmp() + b"</a>" * 200, "100 levels"),
    ],
)
def test_xmp_that_cannot_be_trusted_is_reported(tmp_path: Path, xmp: bytes, says: str) -> None:
    path = save_panorama(tmp_path / "pano.jpg", BLACK, xmp=xmp)
    with pytest.raises(PhotoError, match=says):
        read_panorama(path)


@pytest.mark.parametrize("suffix", [".webp", ".avif"])
def test_a_packet_of_many_elements_is_refused_before_all_of_it_is_read(tmp_path: Path, suffix: str) -> None:
    xmp = gpano_xmp().replace(b"</rdf:RDF>", b"<a/>" * 2_000_000 + b"</rdf:RDF>")
    path = save_panorama(tmp_path / f"pano{suffix}", BLACK, xmp=xmp)
    with pytest.raises(PhotoError, match="more than 500,000 elements"):
        read_panorama(path)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999", "1" * 5000, "9" * 300])
def test_invalid_numbers_are_reported(tmp_path: Path, number: str) -> None:
    with pytest.raises(PhotoError, match="GPano"):
        read(tmp_path, full_width=number)
    with pytest.raises(PhotoError, match="GPano"):
        read(tmp_path, pitch=number)
