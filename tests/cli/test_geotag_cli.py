"""`sareloc geotag`: positions into copies, never into originals, and only sure ones."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from cyclopts import App
from PIL import Image
from PIL.ExifTags import GPS, IFD
from tests.localize.street import build_street, position, street_model, view, write_queries, write_view
from tests.photos.raw_files import make_dng

from sareloc.cli import main
from sareloc.cli.geotag import geotag_command
from sareloc.cli.map import PhotoOptions, add
from sareloc.cli.map_text import report_text
from sareloc.errors import ArgumentError
from sareloc.geo import distance_m
from sareloc.localize import find_town
from sareloc.maps import MapConfig, PlaceMap, add_photos
from sareloc.models import save_checkpoint
from sareloc.photos import decode, find_photos, read_geotag, read_geotag_table


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six photos in a subfolder, one of another town, one with a position, one no photo, one PNG."""
    folder = tmp_path / "photos"
    write_queries(folder / "day 1", range(3, 9))
    write_view(folder / "elsewhere.jpg", view(2, 99, town=5), None)
    write_view(folder / "tagged.jpg", view(6, 55), (1.0, 2.0))
    (folder / "broken.jpg").write_bytes(b"no photo")
    Image.fromarray(view(7, 99)).save(folder / "screen.png")
    return folder


def run(town: Path, *words: str | Path) -> int:
    app = App(name="sareloc")
    app.command(geotag_command, name="geotag")
    named = ["--map", town / "street.gpkg", "--model", town / "model.safetensors", "--workers", "0", "--device", "cpu"]
    return int(app(["geotag", *map(str, [*words, *named])], result_action="return_value", exit_on_error=False) or 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("sidecar", [None, "csv", "gpx"])
def test_a_name_that_is_not_utf8(
    sidecar: str | None, town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos"
    odd, good = folder / os.fsdecode(b"caf\xe9.jpg"), folder / "good.jpg"
    for path in (odd, good):
        write_view(path, view(6, 55), None)
    words = [folder, "--map", town / "street.gpkg", "--out", tmp_path / "out", "--workers", "0", "--device", "cpu"]
    words += ["--model", town / "model.safetensors", *([] if sidecar is None else ["--sidecar", sidecar])]
    with pytest.raises(SystemExit) as ended:
        main(["geotag", *map(str, words)])
    if sidecar is None:
        assert ended.value.code == 0
        assert read_geotag(tmp_path / "out" / odd.name) == read_geotag(tmp_path / "out" / "good.jpg") is not None
    else:
        assert ended.value.code == 1
        told = capsys.readouterr()
        assert "1 of 2 photos geotagged" in told.out
        assert re.search(r"caf\\udce9\.jpg: .*UTF-8", told.err)
        assert "good.jpg" in (tmp_path / "out" / f"geotags.{sidecar}").read_text(encoding="utf-8")


def test_copies_get_positions_and_originals_stay(
    town: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(photos)
    assert run(town, photos, "--out", tmp_path / "out") == 0
    assert contents(photos) == before
    told = capsys.readouterr()
    written = {path: tag for path in find_photos(tmp_path / "out") if (tag := read_geotag(path)) is not None}
    names = {str(path.relative_to(tmp_path / "out")) for path in written}
    assert "day 1/q05.jpg" in names
    assert len(names) >= 5
    assert not names & {"elsewhere.jpg", "tagged.jpg", "broken.jpg"}
    truth = [position(7 if path.stem == "screen" else int(path.stem[1:]), 3.0) for path in written]
    assert max(distance_m([tag.latlon for tag in written.values()], truth)) < 25
    assert "1 photo already has a position" in told.out
    assert f"{len(names)} of 9 photos geotagged in {tmp_path / 'out'}" in told.out
    assert "below confidence 0.8, 1 could not be read" in told.out
    assert "broken.jpg" in told.err


def test_pixels_of_a_copy_are_the_originals(town: Path, photos: Path, tmp_path: Path) -> None:
    run(town, photos / "day 1" / "q05.jpg", "--out", tmp_path / "out")
    copy, original = (np.asarray(Image.open(folder / "q05.jpg")) for folder in (tmp_path / "out", photos / "day 1"))
    assert np.array_equal(copy, original)


def test_only_sure_positions_are_written(town: Path, photos: Path, tmp_path: Path) -> None:
    assert run(town, photos / "elsewhere.jpg", "--out", tmp_path / "out") == 1
    assert not (tmp_path / "out").exists()
    assert run(town, photos / "elsewhere.jpg", "--out", tmp_path / "out", "--min-confidence", "0") == 0
    assert read_geotag(tmp_path / "out" / "elsewhere.jpg") is not None


def test_photos_with_positions_are_asked_about_on_request(town: Path, photos: Path, tmp_path: Path) -> None:
    assert run(town, photos / "tagged.jpg", "--out", tmp_path / "out") == 0  # nothing to do
    assert not (tmp_path / "out").exists()
    assert run(town, photos / "tagged.jpg", "--out", tmp_path / "out", "--retag") == 0
    assert distance_m(read_geotag(tmp_path / "out" / "tagged.jpg").latlon, position(6)) < 25


def test_a_table_that_map_build_reads(town: Path, photos: Path, tmp_path: Path) -> None:
    assert run(town, photos, "--out", tmp_path / "out", "--sidecar", "csv") == 0
    table = tmp_path / "out" / "geotags.csv"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["geotags.csv"]
    tags = read_geotag_table(table).tags
    assert distance_m(tags["../photos/day 1/q05.jpg"].latlon, position(5, 3.0)) < 25
    assert "../photos/screen.png" in tags  # what takes no EXIF can still stand in a table
    assert "../photos/elsewhere.jpg" not in tags


def test_waypoints_that_gpx_programs_read(town: Path, photos: Path, tmp_path: Path) -> None:
    assert run(town, photos, "--out", tmp_path / "out", "--sidecar", "gpx") == 0
    root = ElementTree.parse(tmp_path / "out" / "geotags.gpx").getroot()
    space = {"gpx": "http://www.topografix.com/GPX/1/1"}
    assert root.tag == "{http://www.topografix.com/GPX/1/1}gpx"
    assert root.get("version") == "1.1"
    points = {point.findtext("gpx:name", None, space): point for point in root.findall("gpx:wpt", space)}
    point = points["../photos/day 1/q05.jpg"]
    assert distance_m((float(point.get("lat")), float(point.get("lon"))), position(5, 3.0)) < 25
    assert "% sure" in point.findtext("gpx:desc", None, space)


def test_positions_as_geojson_and_kml(town: Path, photos: Path, tmp_path: Path) -> None:
    assert run(town, photos, "--out", tmp_path / "out", "--sidecar", "geojson") == 0
    tags = read_geotag_table(tmp_path / "out" / "geotags.geojson").tags  # map build reads it
    assert distance_m(tags["../photos/day 1/q05.jpg"].latlon, position(5, 3.0)) < 25
    assert run(town, photos, "--out", tmp_path / "out", "--sidecar", "kml") == 0
    names = ElementTree.parse(tmp_path / "out" / "geotags.kml").iter("{http://www.opengis.net/kml/2.2}name")
    assert sorted(name.text for name in names) == sorted(tags)


def test_nothing_that_is_there_is_replaced_unasked(
    town: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "q05.jpg").write_bytes(b"precious")
    (out / "geotags.csv").write_text("precious")
    photo = photos / "day 1" / "q05.jpg"
    assert run(town, photo, "--out", out) == 1
    assert "q05.jpg: exists" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match=r"exists"):
        run(town, photo, "--out", out, "--sidecar", "csv")
    assert (out / "q05.jpg").read_bytes() == b"precious"
    assert (out / "geotags.csv").read_text() == "precious"
    assert run(town, photo, "--out", out, "--replace") == 0
    assert read_geotag(out / "q05.jpg") is not None


@pytest.mark.parametrize("out", [".", "day 1/.."])
def test_a_copy_never_replaces_an_original(town: Path, photos: Path, out: str) -> None:
    before = contents(photos)
    with pytest.raises(ArgumentError, match="original"):
        run(town, photos, "--out", photos / out, "--replace")
    assert contents(photos) == before


def test_no_photos_are_an_error(town: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(ArgumentError, match=r"no photos in .*bare"):
        run(town, tmp_path / "bare")


def two_folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two cameras' folders with photos of other places under the same names."""
    a, b = tmp_path / "a", tmp_path / "b"
    write_view(a / "IMG_1.jpg", view(5, 99), None)
    write_view(b / "IMG_1.jpg", view(20, 99), None)
    return a, b


def test_photos_of_equal_names_from_two_folders_stay_apart(town: Path, tmp_path: Path) -> None:
    a, b = two_folders(tmp_path)
    out = tmp_path / "out"
    assert run(town, a, b, "--out", out, "--min-confidence", "0", "--replace") == 0
    assert sorted(contents(out)) == ["a/IMG_1.jpg", "b/IMG_1.jpg"]
    for copy, original in ((out / "a" / "IMG_1.jpg", a / "IMG_1.jpg"), (out / "b" / "IMG_1.jpg", b / "IMG_1.jpg")):
        assert np.array_equal(np.asarray(Image.open(copy)), np.asarray(Image.open(original)))


def test_copies_that_would_replace_one_another_are_refused_before_anything_is_written(
    town: Path, tmp_path: Path
) -> None:
    a, b = two_folders(tmp_path)
    write_view(tmp_path / "other" / "a" / "IMG_1.jpg", view(6, 99), None)
    out = tmp_path / "out"
    for given in ([a / "IMG_1.jpg", b / "IMG_1.jpg"], [a, tmp_path / "other" / "a"]):
        with pytest.raises(ArgumentError, match=r"a/IMG_1\.jpg .*(b|other/a)/IMG_1\.jpg .*same"):
            run(town, *given, "--out", out, "--replace")
    assert not out.exists()
    # a table holds both, and one photo given twice is one photo
    assert run(town, a / "IMG_1.jpg", b / "IMG_1.jpg", "--out", out, "--min-confidence", "0", "--sidecar", "csv") == 0
    assert sorted(read_geotag_table(out / "geotags.csv").tags) == ["../a/IMG_1.jpg", "../b/IMG_1.jpg"]
    assert run(town, a, tmp_path / "b" / ".." / "a" / "IMG_1.jpg", "--out", out, "--min-confidence", "0") == 0


def test_a_table_goes_beside_the_originals(town: Path, tmp_path: Path) -> None:
    a, _ = two_folders(tmp_path)
    assert run(town, a, "--out", a, "--min-confidence", "0", "--sidecar", "csv") == 0
    assert sorted(contents(a)) == ["IMG_1.jpg", "geotags.csv"]


def test_copies_say_that_their_position_is_an_estimate(town: Path, photos: Path, tmp_path: Path) -> None:
    assert run(town, photos / "day 1" / "q05.jpg", "--out", tmp_path / "out", "--min-confidence", "0") == 0
    with Image.open(tmp_path / "out" / "q05.jpg") as copy:
        gps = copy.getexif().get_ifd(IFD.GPSInfo)
    assert 0 < float(gps[GPS.GPSHPositioningError]) < 1000
    assert gps[GPS.GPSAreaInformation].startswith(b"ASCII\0\0\0sareloc")
    assert b"confidence" in gps[GPS.GPSAreaInformation]
    assert GPS.GPSDateStamp not in gps


def test_what_was_geotagged_adds_nothing_to_a_map(town: Path, photos: Path, tmp_path: Path) -> None:
    out, grown = tmp_path / "out", tmp_path / "town" / "street.gpkg"
    grown.parent.mkdir()
    shutil.copy(town / "street.gpkg", grown)
    assert run(town, photos, "--out", out, "--min-confidence", "0") == 0
    written = len([path for path in find_photos(out) if read_geotag(path).estimated])
    before = PlaceMap(grown).latlon
    report = add_photos(out, grown, town / "model.safetensors", config=MapConfig(device="cpu", progress=False))
    assert (report.added, report.updated, len(report.estimated)) == (0, 0, written)
    assert np.array_equal(PlaceMap(grown).latlon, before)
    assert report.used == 0
    assert f"{written} photos hold positions estimated by sareloc: left out; --trust-estimates takes" in (
        report_text(report, str(grown))
    )
    options = PhotoOptions(workers=0, device="cpu")
    assert add(str(grown), [out], model=str(town / "model.safetensors"), options=options) == 0  # nothing is wrong
    assert run(town, out, "--out", tmp_path / "again") == 0  # they have positions: nothing is written
    assert not (tmp_path / "again").exists()
    config = MapConfig(device="cpu", progress=False, trust_estimates=True)
    assert add_photos(out, grown, town / "model.safetensors", config=config).added == written


def test_a_raw_file_is_localized_by_its_preview_and_gets_a_sidecar(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rawpy")
    folder, preview = tmp_path / "photos", io.BytesIO()
    folder.mkdir()
    Image.fromarray(view(5, 99)).resize((400, 300)).save(preview, "JPEG", quality=95)
    (folder / "a.NEF").write_bytes(make_dng(preview.getvalue()))
    (folder / "b.NEF").write_bytes(make_dng(preview.getvalue()))
    write_view(folder / "b.jpg", view(6, 99), None)
    before = contents(folder)
    assert run(town, folder, "--out", folder, "--sidecar", "xmp", "--min-confidence", "0") == 0
    after = contents(folder)
    assert after.keys() - before.keys() == {"a.NEF.xmp", "b.jpg.xmp"}
    assert before.items() <= after.items()
    assert read_geotag(folder / "a.NEF").estimated
    assert "1 RAW file" in capsys.readouterr().err


KINDS = ("a.png", "b.webp", "c.tif", "d.JPG", "e.avif")


def write_kinds(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    for place, name in enumerate(KINDS, start=5):
        Image.fromarray(view(place, 99)).save(folder / name, **({"lossless": True} if name == "b.webp" else {}))
        os.utime(folder / name, ns=(1_500_000_000 * 10**9, 1_400_000_000 * 10**9 + place))
    return contents(folder)


def test_every_format_takes_its_position(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    before = write_kinds(given)
    assert run(town, given, "--out", out, "--min-confidence", "0") == 0
    assert "5 of 5 photos geotagged" in capsys.readouterr().out
    assert contents(given) == before
    assert sorted(contents(out)) == [*KINDS, "e.avif.xmp"]  # only the AVIF needs a sidecar
    for place, name in enumerate(KINDS, start=5):
        assert distance_m(read_geotag(out / name).latlon, position(place, 3.0)) < 25
        assert np.array_equal(np.asarray(Image.open(out / name)), np.asarray(Image.open(given / name)))
        assert (out / name).stat().st_mtime_ns == 1_400_000_000 * 10**9 + place
    assert (out / "e.avif").read_bytes() == before["e.avif"]
    assert "GPSHPositioningError" in (out / "e.avif.xmp").read_text()
    # they have a position now: there is nothing to do
    assert run(town, out, "--out", tmp_path / "again") == 0
    assert "5 photos already have a position" in capsys.readouterr().out


def test_what_was_written_is_listed(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    write_kinds(given)
    assert run(town, given, "--out", out, "--min-confidence", "0", "--dry-run") == 0
    planned = capsys.readouterr().out
    assert "5 of 5 photos would be geotagged" in planned
    assert not out.exists()
    assert run(town, given, "--out", out, "--min-confidence", "0") == 0
    told = capsys.readouterr().out
    assert told.replace(" geotagged", " would be geotagged") == planned
    lines = [line for line in told.splitlines() if line.startswith(str(given))]
    for name, line in zip(KINDS, lines, strict=True):
        files = f"{out / name}, {out / name}.xmp" if name == "e.avif" else str(out / name)
        sure = r"[\d.]+, [\d.]+ \(.*\); radius \d+ m, confidence (?:more than )?\d\.\d\d; most like photos/\d\d_\d\.jpg"
        assert re.fullmatch(f"{re.escape(str(given / name))}: {sure} -> {re.escape(files)}", line)


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--sidecar", "csv")])
def test_json_is_an_object_for_each_photo(
    words: tuple[str, ...], town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    write_kinds(given)
    assert run(town, given, "--out", out, "--min-confidence", "0", "--json", *words) == 0
    told = capsys.readouterr()
    answers = [json.loads(line) for line in told.out.splitlines()]
    assert [answer["photo"] for answer in answers] == [str(given / name) for name in KINDS]
    files = [str(out / "geotags.csv")] if "csv" in words else [str(out / "a.png")]
    assert answers[0]["written"] == files
    assert answers[0]["place"]
    assert "5 of 5 photos" in told.err


def test_names_of_places_are_written_on_request(town: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    write_kinds(given)
    town_here = find_town(position(5, 3.0))
    assert run(town, given / "a.png", "--out", out, "--min-confidence", "0", "--place-names") == 0
    assert sorted(contents(out)) == ["a.png", "a.png.xmp"]
    told = (out / "a.png.xmp").read_text()
    assert f"<photoshop:Country>{town_here.country}</photoshop:Country>" in told
    assert f"<Iptc4xmpCore:CountryCode>{town_here.country_code}</Iptc4xmpCore:CountryCode>" in told
    assert (f"<photoshop:City>{town_here.name}</photoshop:City>" in told) == town_here.inside


def test_exiftool_is_asked_for_where_it_is_not_installed(
    town: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kinds(tmp_path / "given")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ArgumentError, match="not installed"):
        run(town, tmp_path / "given" / "e.avif", "--out", tmp_path / "out", "--exiftool")
    assert not (tmp_path / "out").exists()


def validated(photo: Path) -> set[str]:
    """What exiftool finds wrong in a photo."""
    words = ["exiftool", "-validate", "-warning", "-error", "-a", "-s3", str(photo)]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[1:])


@pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
@pytest.mark.parametrize(("name", "extra"), [("a.avif", None), ("a.heic", "pillow_heif"), ("a.dng", "rawpy")])
def test_exiftool_writes_what_is_not_written_here(name: str, extra: str | None, town: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "given" / name, tmp_path / "out"
    given.parent.mkdir()
    image, content = Image.fromarray(view(5, 99)).resize((400, 300)), io.BytesIO()
    if extra is None:
        image.save(given)
    elif name == "a.heic":
        pytest.importorskip(extra).from_pillow(image).save(given, quality=95)
    else:
        pytest.importorskip(extra)
        image.save(content, "JPEG", quality=95)
        given.write_bytes(make_dng(content.getvalue()))
    os.utime(given, ns=(1_500_000_000 * 10**9, 1_400_000_000 * 10**9))
    before = given.read_bytes(), validated(given)
    assert run(town, given, "--out", out, "--min-confidence", "0", "--exiftool") == 0
    assert (given.read_bytes(), validated(given)) == before
    assert sorted(contents(out)) == [name]
    geotag = read_geotag(out / name)
    assert geotag.estimated
    assert distance_m(geotag.latlon, position(5, 3.0)) < 25
    assert np.array_equal(decode(out / name), decode(given))
    assert validated(out / name) <= before[1]
    assert (out / name).stat().st_mtime_ns == 1_400_000_000 * 10**9


def test_sidecars_alone_beside_the_originals(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, _ = two_folders(tmp_path)
    photo = (a / "IMG_1.jpg").read_bytes()
    words = (a, "--out", a, "--min-confidence", "0", "--sidecar", "xmp")
    assert run(town, *words) == 0
    assert sorted(contents(a)) == ["IMG_1.jpg", "IMG_1.jpg.xmp"]
    assert (a / "IMG_1.jpg").read_bytes() == photo
    held = (a / "IMG_1.jpg.xmp").read_text().replace("<x:xmpmeta ", '<x:xmpmeta x:xmptk="mine" ')
    (a / "IMG_1.jpg.xmp").write_text(held)
    assert run(town, *words, "--retag") == 1
    assert "IMG_1.jpg.xmp: exists" in capsys.readouterr().err
    assert (a / "IMG_1.jpg.xmp").read_text() == held
    assert run(town, *words, "--retag", "--replace") == 0
    assert 'x:xmptk="mine"' in (a / "IMG_1.jpg.xmp").read_text()
    assert run(town, *words, "--retag", "--xmp-names", "replaced") == 0
    assert sorted(contents(a)) == ["IMG_1.jpg", "IMG_1.jpg.xmp", "IMG_1.xmp"]
    Image.fromarray(view(7, 99)).save(a / "IMG_1.png")
    with pytest.raises(ArgumentError, match=r"IMG_1\.jpg .*IMG_1\.png .*IMG_1\.xmp"):
        run(town, *words, "--retag", "--replace", "--xmp-names", "replaced")


def test_photos_below_the_confidence_are_listed_with_their_best_guess(
    town: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((), ("--sidecar", "csv")):
        run(town, photos, "--out", tmp_path / "out", *words)
        told = capsys.readouterr().out.splitlines()
        (heading,) = (row for row, line in enumerate(told) if "low-confidence" in line)
        listed = dict(line.strip().split(": ", 1) for line in told[heading + 1 :])
        guess = listed[str(photos / "elsewhere.jpg")]
        latitude, longitude, radius, sure = map(
            float, re.fullmatch(r"([\d.]+), ([\d.]+) \(.*\); radius (\d+) m, confidence (0\.\d+); .*", guess).groups()
        )
        assert distance_m((latitude, longitude), position(15)) < 2000
        assert radius > 0
        assert sure < 0.8
        assert f"{len(listed)} below confidence 0.8" in told[heading - 1]
        assert not {str(photos / "tagged.jpg"), str(photos / "broken.jpg")} & listed.keys()


def test_photos_are_geotagged_by_their_condition(town: Path, tmp_path: Path) -> None:
    photos, kept, tables = tmp_path / "photos", tmp_path / "day.json", {}
    write_queries(photos, range(20))  # so many are centred
    for name, words in {
        "saved": ("--save-condition", kept),
        "file": ("--condition", kept),
        "none": ("--condition", "none"),
    }.items():
        out = tmp_path / name
        run(town, photos, "--out", out, "--sidecar", "geojson", "--min-confidence", "0.1", *words)
        tables[name] = (out / "geotags.geojson").read_text()
    assert tables["saved"] == tables["file"]
    assert tables["saved"] != tables["none"]
