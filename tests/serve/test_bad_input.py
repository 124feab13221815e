"""Whatever is sent, the answer is a 4xx that says what is wrong, and the service answers the next question."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.localize.street import position, view, write_view
from tests.serve.conftest import ALLOWED

from sareloc.photos import Geotag, exif_bytes
from sareloc.photos.containers import EXIF, NO_TAGS


def encoded(image: np.ndarray, form: str = "JPEG", **options: object) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, form, **options)
    return content.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of these dimensions, all black: a few bytes that unpack to three for each pixel."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(b"\0" * (3 * width + 1)) for _ in range(min(height, 200))) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def animated_gif() -> bytes:
    frames = [Image.fromarray(view(3, seed)) for seed in range(3)]
    content = io.BytesIO()
    frames[0].save(content, "GIF", save_all=True, append_images=frames[1:])
    return content.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
NO_PHOTOS = {
    "an empty body": b"",
    "text": b"where was this taken?",
    "JSON": json.dumps({"photo": "a.jpg"}).encode(),
    "a truncated JPEG": encoded(view(3, 0))[:900],
    "a JPEG's first bytes": encoded(view(3, 0))[:20],
    "a decompression bomb": png_claiming(30_000, 30_000),
    "a 200-megapixel PNG": png_claiming(20_000, 10_000),
    "an animated GIF": animated_gif(),
    "an SVG": SVG,
    "a web page": b"<!doctype html><script>alert(1)</script>",
    "zeros": bytes(100_000),
    "a photo too small": encoded(np.zeros((8, 8, 3), dtype=np.uint8)),
    "a strip 4 pixels wide": encoded(np.zeros((4, 60_000, 3), dtype=np.uint8)),
    "32-bit pixels": encoded(np.zeros((80, 80), dtype=np.int32), "TIFF"),
}


SAID = {
    "a decompression bomb": "64 megapixels",
    "a 200-megapixel PNG": "64 megapixels",
    "a truncated JPEG": "truncated",
    "an animated GIF": "JPEG, PNG",
    "an SVG": "JPEG, PNG",
    "a photo too small": "64 px",
    "32-bit pixels": "32-bit",
}


@pytest.fixture
def alive(client: httpx.Client, street_folder: Path) -> object:
    """At the end, a good photo is still found."""
    yield
    good = client.post("/localize", content=(street_folder / "queries" / "q05.jpg").read_bytes())
    assert good.status_code == 200
    assert good.json()["latlon"]


@pytest.mark.parametrize("route", ["/localize", "/heatmap"])
@pytest.mark.parametrize("name", NO_PHOTOS)
def test_what_is_not_a_photo_is_refused(client: httpx.Client, alive: None, name: str, route: str) -> None:
    answer = client.post(route, content=NO_PHOTOS[name])
    assert answer.status_code == (422 if NO_PHOTOS[name] else 400)
    told = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(told) == {"type", "title", "status", "detail"}
    assert told["status"] == answer.status_code
    assert SAID.get(name, "") in told["detail"]
    assert "Traceback" not in answer.text
    assert ".py" not in answer.text


@pytest.mark.parametrize("name", NO_PHOTOS)
def test_what_is_not_a_photo_is_reported_in_the_answer_to_a_form(client: httpx.Client, alive: None, name: str) -> None:
    answer = client.post("/localize", files={"photos": ("a.jpg", NO_PHOTOS[name])})
    assert answer.status_code == 200
    ((told),) = answer.json()["fixes"]
    assert set(told) == {"photo", "error"}


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/json", "image/png", "application/x-www-form-urlencoded", "nonsense", ""]
)
def test_a_photo_is_known_by_its_content_whatever_its_type_says(
    client: httpx.Client, street_folder: Path, kind: str
) -> None:
    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    assert client.post("/localize", content=photo, headers={"Content-Type": kind}).json()["latlon"]


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "image/jpeg"])
def test_text_with_the_content_type_of_a_photo_is_refused(client: httpx.Client, alive: None, kind: str) -> None:
    assert client.post("/localize", content=b'{"a": 1}', headers={"Content-Type": kind}).status_code == 422


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=other",
        "multipart/form-data; boundary=x; charset=idna",
        "multipart/form-data; boundary=x; charset=unheard-of",
        'multipart/form-data; boundary="' + 500 * "x" + '"',
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        b"--x\r\n\r\n\r\n--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="photos"\r\n\r\ntext\r\n--x--\r\n',
        b'--x\r\nContent-Disposition: form-data; filename="a"\r\n\r\ntext\r\n--x--\r\n',
        b'--x\r\nContent-Disposition: form-data; name="\xff\xfe.\xad"; filename="\xff"\r\n\r\ntext\r\n--x--\r\n',
    ],
)
def test_malformed_forms_are_refused(client: httpx.Client, alive: None, kind: str, body: bytes) -> None:
    answer = client.post("/localize", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_thousand_files(client: httpx.Client, alive: None) -> None:
    answer = client.post("/localize", files=[("photos", (f"{i}.jpg", b"x")) for i in range(1000)])
    assert answer.status_code == 400
    assert answer.json()["detail"] == "Too many files. Maximum number of files is 16."


def test_a_thousand_fields(client: httpx.Client, alive: None) -> None:
    data = {f"field {i}": "x" for i in range(1000)}
    assert client.post("/localize", files={"photos": b"x"}, data=data).status_code == 400


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("/etc/shadow", "shadow"),
        ("C:\\Windows\\system.ini", "system.ini"),
        ("a\0b\x1b[31m.jpg", "ab[31m.jpg"),
        ("..", ".."),
        ("x" * 1000 + ".jpg", "x" * 255),
    ],
)
def test_path_like_file_names_are_names_and_nothing_more(
    client: httpx.Client, street_folder: Path, name: str, shown: str
) -> None:
    before = sorted(street_folder.rglob("*"))
    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    raw = name.encode("latin-1").replace(b"\\", b"\\\\")
    head = b'--x\r\nContent-Disposition: form-data; name="photos"; filename="' + raw + b'"\r\n\r\n'
    answer = client.post(
        "/localize",
        content=head + photo + b"\r\n--x--\r\n",
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    assert answer.status_code == 200
    assert answer.json()["fixes"][0]["photo"] == shown
    assert sorted(street_folder.rglob("*")) == before


def huge_exif() -> bytes:
    """A PNG whose EXIF holds 4 MiB and entries by the thousand that point to all of it."""
    count = 60_000
    entries = b"".join(struct.pack("<HHII", 40_000 + i % 20_000, 7, 2**22, 8) for i in range(count))
    tiff = b"II*\0" + struct.pack("<IH", 8, count) + entries + struct.pack("<I", 0) + bytes(2**22)
    whole = encoded(view(5, 99), "PNG")
    at = whole.index(b"IDAT") - 4
    return whole[:at] + png_chunk(b"eXIf", tiff) + whole[at:]


def gps(latitude: tuple[int, int], letters: bytes = b"NE") -> bytes:
    """An EXIF block whose latitude is this fraction of a degree, whatever that may be."""
    good = exif_bytes(Geotag((48.0, 2.0)))
    changed = good.replace(struct.pack("<II", 48, 1), struct.pack("<II", *latitude))
    return changed.replace(b"N\0\0\0", letters[:1] + b"\0\0\0")


ODD_METADATA = {
    "huge EXIF": huge_exif(),
    "EXIF with nothing in it": encoded(view(5, 99), quality=92, exif=EXIF + NO_TAGS),
    "EXIF cut short": encoded(view(5, 99), quality=92, exif=exif_bytes(Geotag((48.0, 2.0)))[:40]),
    "GPS that is not a number": encoded(view(5, 99), quality=92, exif=gps((0, 0))),
    "GPS beyond the pole": encoded(view(5, 99), quality=92, exif=gps((4_000_000_000, 1))),
    "GPS without a hemisphere": encoded(view(5, 99), quality=92, exif=gps((48, 1), b"??")),
}


@pytest.mark.parametrize("name", ODD_METADATA)
def test_odd_metadata_beside_good_pixels_is_passed_over(client: httpx.Client, alive: None, name: str) -> None:
    answer = client.post("/localize", content=ODD_METADATA[name])
    assert answer.status_code == 200
    assert answer.json()["latlon"]


def test_odd_metadata_gives_no_position_to_a_photo_that_is_added(own_client: httpx.Client) -> None:
    for name, photo in ODD_METADATA.items():
        answer = own_client.post("/photos", files={"photos": ("a.jpg", photo)}, headers=ALLOWED)
        assert answer.status_code == 422, name
        assert "has no position" in answer.json()["detail"]
    assert own_client.get("/map").json()["total"] == 90


ABSURD = [
    {"lat": "nan", "lon": "2"},
    {"lat": "inf", "lon": "2"},
    {"lat": "91", "lon": "2"},
    {"lat": "48", "lon": "-181"},
    {"lat": "north", "lon": "2"},
    {"lat": "48"},
    {"lon": "2"},
    {"lat": "", "lon": ""},
    {"lat": "1" * 2000, "lon": "2"},
]


def test_absurd_positions_are_refused(own_client: httpx.Client, tmp_path: Path) -> None:
    photo = write_view(tmp_path / "new.jpg", view(40, 0), None).read_bytes()
    for fields in ABSURD:
        answer = own_client.post("/photos", files={"photos": photo}, data=fields, headers=ALLOWED)
        assert answer.status_code in (400, 422), fields
    assert own_client.get("/map").json()["total"] == 90
    right = dict(zip(("lat", "lon"), map(str, position(40)), strict=True))
    assert own_client.post("/photos", files={"photos": photo}, data=right, headers=ALLOWED).status_code == 201
