"""XMP sidecars: what is written is read again, by us and by others, and nothing that was there is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sareloc.errors import PhotoError
from sareloc.photos import (
    Estimate,
    Geotag,
    find_sidecar,
    read_embedded_geotag,
    read_geotag,
    read_sidecar_geotag,
    read_time,
    sidecar_path,
    sidecar_with_geotag,
    write_sidecar,
)

HERE = Geotag((-33.8567844, 151.2152967), 278.12)
GUESS = Estimate(12.3, "sareloc visual place recognition, confidence 0.93")
EXIF = "{http://ns.adobe.com/exif/1.0/}"
DIGIKAM = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:digiKam="http://www.digikam.org/ns/1.0/"
    xmlns:exif="http://ns.adobe.com/exif/1.0/" xmlns:dc="http://purl.org/dc/elements/1.1/"
    digiKam:ColorLabel="3" exif:GPSLatitude="10,30.0N" exif:GPSLongitude="20,15,30E"
    exif:GPSAltitude="77/1" exif:GPSTimeStamp="2024-05-31T14:00:00Z">
   <dc:subject><rdf:Bag><rdf:li>Zürich &amp; lake</rdf:li></rdf:Bag></dc:subject>
   <exif:GPSMapDatum>Tokyo</exif:GPSMapDatum>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""


LIGHTROOM = """<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0-c000 1.000000, 0000/00/00-00:00:00">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:exif="http://ns.adobe.com/exif/1.0/"
    xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/" xmp:CreateDate="2024-05-31T16:00:00.25"
    photoshop:DateCreated="2024-05-31T16:00:00.25+02:00" exif:GPSVersionID="2.3.0.0" exif:GPSLatitude="52,12.15S"
    exif:GPSLongitude="0,7.5W" exif:GPSImgDirectionRef="T" exif:GPSImgDirection="1763/10"/>
 </rdf:RDF>
</x:xmpmeta>"""
DARKTABLE = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:exif="http://ns.adobe.com/exif/1.0/" xmlns:darktable="http://darktable.sf.net/"
   exif:DateTimeOriginal="2024:05:31 14:00:00.000" exif:GPSVersionID="2.2.0.0" exif:GPSLongitude="0,7.500000W"
   exif:GPSLatitude="52,12.150000S" darktable:xmp_version="5"/>
 </rdf:RDF>
</x:xmpmeta>"""
ELEMENTS = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
 <rdf:Description rdf:about="" xmlns:exif="http://ns.adobe.com/exif/1.0/">
  <exif:GPSLatitude>52,12,9S</exif:GPSLatitude><exif:GPSLongitude>0,7,30W</exif:GPSLongitude>
  <exif:GPSImgDirection>176.3</exif:GPSImgDirection>
  <exif:DateTimeOriginal>2024-05-31T16:00:00</exif:DateTimeOriginal>
  <exif:GPSTimeStamp>2024-05-31T14:00:00Z</exif:GPSTimeStamp>
 </rdf:Description>
</rdf:RDF>"""


def exif_properties(xmp: bytes) -> list[tuple[str, str]]:
    found = []
    for block in ElementTree.fromstring(xmp).iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}Description"):
        found += [*block.attrib.items(), *((child.tag, child.text or "") for child in block)]
    return sorted((tag.removeprefix(EXIF), value) for tag, value in found if tag.startswith(EXIF))


@settings(max_examples=40)
@given(st.floats(-90, 90), st.floats(-180, 180))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, latitude: float, longitude: float
) -> None:
    photo = tmp_path_factory.getbasetemp() / "again.png"
    sidecar_path(photo).unlink(missing_ok=True)
    sidecar_path(photo).write_bytes(sidecar_with_geotag(photo, Geotag((latitude, longitude), 12.5)))
    read = read_sidecar_geotag(photo)
    if max(abs(latitude), abs(longitude)) < 1e-9:
        return  # may round to 0, 0, which is read as no fix
    assert read is not None
    assert read.latlon == pytest.approx((latitude, longitude), abs=2e-10)
    assert read.heading_deg == 12.5


def test_the_forms_of_the_specification(tmp_path: Path) -> None:
    told = dict(exif_properties(sidecar_with_geotag(tmp_path / "photo.png", Geotag((52.2025, -0.125)), GUESS)))
    assert told == {
        "GPSVersionID": "2.3.0.0",
        "GPSLatitude": "52,12.15000000N",
        "GPSLongitude": "0,7.50000000W",
        "GPSMapDatum": "WGS-84",
        "GPSHPositioningError": "1230/100",
        "GPSAreaInformation": GUESS.method,
        "GPSProcessingMethod": "MANUAL",
    }
    rounded = dict(exif_properties(sidecar_with_geotag(tmp_path / "photo.png", Geotag((56 - 1e-11, 1)))))
    assert rounded["GPSLatitude"] == "56,0.00000000N"  # never sixty minutes


def test_exiftool_reads_it(tmp_path: Path) -> None:
    exiftool = shutil.which("exiftool")
    if exiftool is None:
        pytest.skip("exiftool is not installed")
    sidecar = tmp_path / "photo.png.xmp"
    sidecar.write_bytes(sidecar_with_geotag(tmp_path / "photo.png", HERE, GUESS))
    words = [exiftool, "-validate", "-all", "-json", "-n", sidecar]
    (told,) = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    assert (told["GPSLatitude"], told["GPSLongitude"]) == pytest.approx(HERE.latlon, abs=1e-7)
    assert told["GPSHPositioningError"] == 12.3
    assert told["GPSAreaInformation"] == GUESS.method
    assert told["Validate"] == "0 0 0"  # errors, warnings, minor warnings


def test_names_of_sidecars(tmp_path: Path) -> None:
    photo = tmp_path / "a.b.png"
    assert sidecar_path(photo).name == "a.b.png.xmp"
    assert sidecar_path(photo, "replaced").name == "a.b.xmp"
    assert find_sidecar(photo) is None
    assert find_sidecar(tmp_path / f"{'x' * 251}.png") is None  # a sidecar's name would be too long
    (tmp_path / "a.b.xmp").touch()
    assert find_sidecar(photo) == tmp_path / "a.b.xmp"
    (tmp_path / "a.b.png.xmp").touch()
    assert find_sidecar(photo) == tmp_path / "a.b.png.xmp"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_what_another_program_has_written_stays(tmp_path: Path, encoding: str) -> None:
    photo, target = tmp_path / "photo.png", tmp_path / "out" / "photo.png"
    photo.write_bytes(b"any bytes at all")
    sidecar_path(photo).write_bytes(DIGIKAM.encode(encoding))
    assert read_geotag(photo).latlon == pytest.approx((10.5, 20 + 15 / 60 + 30 / 3600))
    write_sidecar(photo, sidecar_path(target), Geotag((1.5, -2.5)), GUESS, copy=target)
    assert sidecar_path(photo).read_bytes() == DIGIKAM.encode(encoding)
    assert target.read_bytes() == photo.read_bytes()
    assert target.stat().st_mtime_ns == photo.stat().st_mtime_ns
    written = sidecar_path(target).read_bytes()
    assert exif_properties(written) == sorted(
        {
            "GPSVersionID": "2.3.0.0",
            "GPSLatitude": "1,30.00000000N",
            "GPSLongitude": "2,30.00000000W",
            "GPSMapDatum": "WGS-84",
            "GPSHPositioningError": "1230/100",
            "GPSAreaInformation": GUESS.method,
            "GPSProcessingMethod": "MANUAL",
            "GPSAltitude": "77/1",
            "GPSTimeStamp": "2024-05-31T14:00:00Z",
        }.items()
    )
    text = written.decode()
    assert 'digiKam:ColorLabel="3"' in text
    assert "<rdf:li>Zürich &amp; lake</rdf:li>" in text
    assert 'x:xmptk="XMP Core 4.4.0-Exiv2"' in text
    assert sorted(path.name for path in target.parent.iterdir()) == ["photo.png", "photo.png.xmp"]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"<x",
        b"<html/>",
        DIGIKAM.encode()[:300],
        b'<!DOCTYPE r [<!ENTITY a "aaaa">]><r>&a;</r>',
        b'<r xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        + b"<a>" * 5_000
        + b"<rdf:RDF/>"
        + b"</a>" * 5_000
        + b"</r>",
    ],
)
def test_a_sidecar_that_is_no_xmp_is_named_and_stays(tmp_path: Path, damaged: bytes) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"x")
    sidecar_path(photo).write_bytes(damaged)
    assert read_geotag(photo) is None
    with pytest.raises(PhotoError, match=r"photo\.png\.xmp.*XMP"):
        write_sidecar(photo, sidecar_path(photo), HERE)
    assert sidecar_path(photo).read_bytes() == damaged


def test_on_a_full_disk_neither_file_is_left(small_disk: Path, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(bytes(65_536))  # the copy fits, the sidecar does not
    with pytest.raises(OSError, match="No space left"):
        write_sidecar(photo, sidecar_path(small_disk / "photo.png"), HERE, GUESS, copy=small_disk / "photo.png")
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize(
    ("xmp", "heading", "time"),
    [
        (LIGHTROOM, 176.3, 1717164000.25),
        (DARKTABLE, None, 1717164000.0),
        (ELEMENTS, 176.3, 1717164000.0),
        (LIGHTROOM.replace("+02:00", ""), 176.3, 1717171200.25),  # no zone: read as UTC
        (ELEMENTS.replace("176.3", "0/0"), None, 1717164000.0),
        (ELEMENTS.replace("176.3", "1e999999999"), None, 1717164000.0),
        (ELEMENTS.replace("176.3", "361"), None, 1717164000.0),
        (ELEMENTS.replace("T14:00:00Z", ""), 176.3, 1717171200.0),
        (ELEMENTS.replace("2024-", "0000-"), 176.3, None),
    ],
)
def test_what_other_programs_write(tmp_path: Path, xmp: str, heading: float | None, time: float | None) -> None:
    (tmp_path / "a.xmp").write_text(xmp)
    read = read_sidecar_geotag(tmp_path / "a.jpg")
    assert read is not None
    assert read.latlon == pytest.approx((-52.2025, -0.125))
    assert (read.heading_deg, read.time) == (heading, time)
    assert read_time(tmp_path / "a.jpg") == time


@pytest.mark.parametrize("position", ["52,12.15E", "91,0.0N", "52,61.0N", "52.2025", "0,0.0N", "", "x" * 100])
def test_an_invalid_position_is_no_geotag(tmp_path: Path, position: str) -> None:
    xmp = LIGHTROOM.replace("52,12.15S", position)
    (tmp_path / "a.xmp").write_text(xmp.replace("0,7.5W", "0,0.0W") if position == "0,0.0N" else xmp)
    assert read_sidecar_geotag(tmp_path / "a.jpg") is None


@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tif"])
def test_xmp_inside_a_photo(tmp_path: Path, extension: str) -> None:
    photo = tmp_path / f"a.{extension}"
    if extension == "png":
        from PIL.PngImagePlugin import PngInfo

        chunks = PngInfo()
        chunks.add_itxt("XML:com.adobe.xmp", LIGHTROOM)
        Image.new("RGB", (8, 8)).save(photo, pnginfo=chunks)
    elif extension == "tif":
        Image.new("RGB", (8, 8)).save(photo, tiffinfo={700: LIGHTROOM.encode()})
    else:
        Image.new("RGB", (8, 8)).save(photo, xmp=LIGHTROOM.encode() + bytes(9))
    read = read_geotag(photo)
    assert read is not None
    assert (read.latlon, read.heading_deg, read.time) == (pytest.approx((-52.2025, -0.125)), 176.3, 1717164000.25)


@pytest.mark.parametrize("packet", [b"x", b'<!DOCTYPE r [<!ENTITY a "a">]><r>&a;</r>', b"<a>" * 9_000, bytes(60_000)])
def test_a_damaged_packet_is_no_geotag(tmp_path: Path, packet: bytes) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", xmp=packet)
    assert read_embedded_geotag(tmp_path / "a.jpg") is None
    assert read_embedded_geotag(tmp_path / "none.jpg") is None


def test_a_document_type_is_refused_in_utf_16_too(tmp_path: Path) -> None:
    document = f"<!DOCTYPE r [<!ENTITY a 'a'>]>{LIGHTROOM}"
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "a.xmp").write_bytes(document.encode(encoding))
        assert read_sidecar_geotag(tmp_path / "a.jpg") is None


@pytest.mark.data
def test_a_photo_with_a_position_in_adobes_xmp_alone(shared_data: Path) -> None:
    read = read_geotag(shared_data / "inputs" / "adobe_coords.jpg")
    assert read is not None
    assert read.latlon == pytest.approx((-4.21601 / 60, 34 + 22.91611 / 60))
    assert read.heading_deg == pytest.approx(176.3)
    assert read.time == 1563272771  # 2019-07-16 10:26:11, no zone


ENCODINGS = ["nonsense", "zlib", "hex", "rot13", "base64", "utf-7", "idna", "unicode_escape", "shift-jis"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_xmp_in_an_unknown_encoding_is_no_geotag_and_a_sidecar_of_it_is_named(tmp_path: Path, encoding: str) -> None:
    packet = f'<?xml version="1.0" encoding="{encoding}"?>{LIGHTROOM}'.encode()
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", xmp=packet)
    Image.new("RGB", (8, 8)).save(tmp_path / "b.jpg")
    (tmp_path / "b.xmp").write_bytes(packet)
    for photo in (tmp_path / "a.jpg", tmp_path / "b.jpg"):
        assert read_geotag(photo) is None
        assert read_time(photo) is None
    with pytest.raises(PhotoError, match=f"b.xmp.*encoding is '{encoding}'"):
        write_sidecar(tmp_path / "b.jpg", tmp_path / "b.xmp", HERE)


@pytest.mark.parametrize("encoding", ["iso-8859-1", "windows-1252", "US-ASCII", "utf-16", "UTF-8"])
def test_xmp_in_other_encodings_of_text_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.xmp").write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>{LIGHTROOM}'.encode(encoding))
    assert read_sidecar_geotag(tmp_path / "a.jpg") is not None


MANY = "".join(f' a{number:x}=""' for number in range(400_000))


@pytest.mark.parametrize(
    "inside",
    ["<a/>" * 6_000, f"<a{MANY}/>", "<a>" * 101 + "</a>" * 101, f"<!--{'x' * 3_000_000}-->"],
    ids=["elements", "attributes", "levels", "comment"],
)
def test_xmp_beyond_the_limits_is_no_geotag(tmp_path: Path, inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.photos.xmp.MOST_ELEMENTS", 5_000)
    (tmp_path / "a.xmp").write_text(LIGHTROOM.replace("<rdf:Description", f"{inside}<rdf:Description", 1))
    assert read_sidecar_geotag(tmp_path / "a.jpg") is None
    with pytest.raises(PhotoError, match="more than"):
        write_sidecar(tmp_path / "a.jpg", tmp_path / "a.xmp", HERE)


@pytest.mark.timeout(60)
def test_an_absurdly_long_value_is_not_used(tmp_path: Path) -> None:
    spaces = LIGHTROOM.replace("2024-05-31T16:00:00", f"2024-05-31T{' ' * 100_000}x")  # squared time in a pattern
    assert len(spaces) > 200_000
    (tmp_path / "a.xmp").write_text(spaces)
    assert read_sidecar_geotag(tmp_path / "a.jpg") is not None
