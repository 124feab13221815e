"""A client gets its own photo back: as a JPEG that browsers show, and with a position in it."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import ExifTags, Image
from tests.photos.raw_files import make_dng
from tests.serve.running import street_client

from sareloc.geo import distance_m
from sareloc.localize import Fix
from sareloc.localize.formats import estimated_geotag
from sareloc.photos import read_geotag, write_geotag
from sareloc.photos.containers import WRITERS
from sareloc.photos.xmp import geotag_from_xmp
from sareloc.serve import ServeConfig
from sareloc.serve.own_photo import WITH_EXIF

ANSWER = {"lat": -41.28664, "lon": 174.77557, "radius_m": 12.4, "confidence": 0.934}


HEIGHT, WIDTH = 160, 240
SHADES = np.stack(np.broadcast_arrays(np.linspace(0, 255, WIDTH), np.linspace(255, 0, HEIGHT)[:, None], 90), axis=2)


def photo_bytes(form: str, **options: object) -> bytes:
    content, image = io.BytesIO(), Image.fromarray(SHADES.astype(np.uint8))
    if form == "HEIC":
        pytest.importorskip("pillow_heif").from_pillow(image).save(content, quality=90)
    else:
        image.save(content, form, **options)
    return content.getvalue()


def pixels(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF", "HEIC"])
def test_a_preview_shows_the_photo_as_a_small_jpeg(client: httpx.Client, form: str) -> None:
    answer = client.post("/preview", params={"size": 96}, content=photo_bytes(form))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/jpeg"
    assert pixels(answer.content).shape == (64, 96, 3)
    corners = [pixels(answer.content)[row, column].astype(int) for row in (1, -2) for column in (1, -2)]
    expected = [[0, 255, 90], [255, 255, 90], [0, 0, 90], [255, 0, 90]]
    assert np.abs(np.array(corners) - expected).max() < 30


def test_a_preview_is_upright_and_has_no_metadata(client: httpx.Client) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    exif[ExifTags.Base.Artist] = "someone"
    answer = client.post("/preview", content=photo_bytes("JPEG", exif=exif))
    with Image.open(io.BytesIO(answer.content)) as shown:
        assert shown.size == (HEIGHT, WIDTH)
        assert dict(shown.getexif()) == {}


@pytest.mark.parametrize("size", [31, 1025, "large", "1e2"])
def test_other_sizes_of_previews_are_refused(client: httpx.Client, size: object) -> None:
    assert client.post(f"/preview?size={size}", content=photo_bytes("JPEG")).status_code == 422


def test_a_geotagged_jpeg_differs_by_its_position_alone(client: httpx.Client, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Artist] = "someone"
    original = photo_bytes("JPEG", exif=exif)
    answer = client.post("/geotag", params=ANSWER, content=original)
    assert answer.headers["content-type"] == "image/jpeg"
    (tmp_path / "tagged.jpg").write_bytes(answer.content)
    found = read_geotag(tmp_path / "tagged.jpg")
    assert found is not None
    assert float(distance_m(found.latlon, (ANSWER["lat"], ANSWER["lon"]))) < 0.01
    with Image.open(tmp_path / "tagged.jpg") as tagged:
        assert tagged.getexif()[ExifTags.Base.Artist] == "someone"
        gps = tagged.getexif().get_ifd(ExifTags.IFD.GPSInfo)
    assert float(gps[ExifTags.GPS.GPSHPositioningError]) == pytest.approx(12.4)
    assert b"sareloc" in gps[ExifTags.GPS.GPSAreaInformation]
    assert b"0.93" in gps[ExifTags.GPS.GPSAreaInformation]
    assert (pixels(answer.content) == pixels(original)).all()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_the_photo_is_written_as_by_the_command_line(client: httpx.Client, form: str, tmp_path: Path) -> None:
    original = tmp_path / f"original.{'tif' if form == 'TIFF' else form.lower()}"
    original.write_bytes(photo_bytes(form))
    answer = client.post("/geotag", params=ANSWER, content=original.read_bytes())
    assert answer.headers["content-type"] == f"image/{form.lower()}"
    fix = Fix((ANSWER["lat"], ANSWER["lon"]), ANSWER["radius_m"], ANSWER["confidence"], ())
    write_geotag(original, tmp_path / original.name, *estimated_geotag(fix))
    assert answer.content == original.read_bytes()
    assert read_geotag(original).estimated


def raw_bytes() -> bytes:
    pytest.importorskip("rawpy")
    preview = io.BytesIO()
    Image.new("RGB", (400, 300)).save(preview, "JPEG")
    return make_dng(preview.getvalue())


@pytest.mark.parametrize("form", ["AVIF", "HEIC", "RAW"])
def test_the_position_of_other_formats_is_a_sidecar(
    client: httpx.Client, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.xmp").write_text("<secret/>")  # of this machine: not of the client's photo
    content = raw_bytes() if form == "RAW" else photo_bytes(form)
    answer = client.post("/geotag", params=ANSWER, content=content)
    assert answer.headers["content-type"] == "application/rdf+xml", answer.text
    found = geotag_from_xmp(answer.content)
    assert found is not None
    assert float(distance_m(found.latlon, (ANSWER["lat"], ANSWER["lon"]))) < 0.01
    assert "sareloc" in answer.text
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lat", 90.1), ("lat", "nan"), ("lon", -180.5), ("lon", "inf"), ("radius_m", -1), ("radius_m", "inf"),
        ("radius_m", 1e9), ("confidence", 1.5), ("confidence", "nan"), ("lat", None), ("radius_m", None),
    ],
)  # fmt: skip
def test_answers_that_cannot_be_are_refused(client: httpx.Client, name: str, value: object) -> None:
    given = {key: one for key, one in (ANSWER | {name: value}).items() if one is not None}
    answer = client.post("/geotag", params=given, content=photo_bytes("JPEG"))
    assert answer.status_code == 422
    assert name in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/preview", "/geotag"])
def test_what_is_no_usable_photo_is_refused(street_folder: Path, path: str) -> None:
    limits = ServeConfig(max_pixels=10_000, max_bytes=50_000)
    cases = {
        "": (400, "empty"),
        "text": (422, "not a JPEG"),
        "large": (422, "megapixels"),
        "long": (413, "exceeds"),
    }
    contents = {
        "": b"",
        "text": b"no photo",
        "large": photo_bytes("JPEG"),
        "long": bytes(60_000),
    }
    with street_client(street_folder / "street.gpkg", config=limits) as client:
        for name, (status, word) in cases.items():
            answer = client.post(path, params=ANSWER, content=contents[name])
            assert answer.status_code == status, (name, answer.text)
            assert word in answer.json()["detail"]


def test_a_jpeg_with_damaged_exif_is_refused(client: httpx.Client) -> None:
    jpeg = photo_bytes("JPEG")
    damaged = b"Exif\0\0no tiff header"
    segment = b"\xff\xe1" + (len(damaged) + 2).to_bytes(2, "big") + damaged
    answer = client.post("/geotag", params=ANSWER, content=jpeg[:2] + segment + jpeg[2:])
    assert answer.status_code == 422
    assert "EXIF is damaged" in answer.json()["detail"]


def test_the_documented_formats_are_those_that_exif_is_written_into() -> None:
    assert sorted(WITH_EXIF) == sorted(f"image/{kind}" for kind in WRITERS)
