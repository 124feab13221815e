"""`sareloc localize` and `sareloc map calibrate`, from their arguments to what they print."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import gpxpy
import numpy as np
import pytest
from cyclopts import App
from PIL import Image
from PIL.ExifTags import IFD, Base
from tests.localize.street import build_street, position, street_model, view, write_queries, write_view

from sareloc.cli import main
from sareloc.cli.calibrate import calibrate_command
from sareloc.cli.localize import localize_command
from sareloc.errors import ArgumentError, MapError
from sareloc.geo import distance_m
from sareloc.localize import Calibration
from sareloc.maps import PlaceMap, copy_map, open_store
from sareloc.models import save_checkpoint

CENTRED = range(20)
"""Places of so many photos that they are centred on their condition."""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """street.gpkg, its model, a folder of queries, and one photo of another town."""
    folder = tmp_path_factory.mktemp("town")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    write_queries(folder / "queries")
    write_view(folder / "elsewhere.jpg", view(2, 99, town=5), None)
    return folder


def run(name: str, *words: str | Path) -> int:
    app = App(name="sareloc")
    app.command(localize_command, name="localize")
    app.command(calibrate_command, name="calibrate")
    quick = ["--workers", "0", "--device", "cpu"]
    status = app([name, *map(str, words), *quick], result_action="return_value", exit_on_error=False)
    return int(status or 0)


def localize(town: Path, *words: str | Path) -> int:
    return run("localize", town / "street.gpkg", *words, "--model", town / "model.safetensors")


def test_json_is_one_object_a_line(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(town, town / "queries" / "q05.jpg", town / "elsewhere.jpg", "--json", "--top", "3") == 0
    found, lost = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert list(found) == ["photo", "latlon", "radius_m", "confidence", "heading_deg", "place", "matches"]
    assert found["photo"] == str(town / "queries" / "q05.jpg")
    assert distance_m(found["latlon"], position(5, 3.0)) < 25
    assert len(found["matches"]) == 3
    assert list(found["matches"][0]) == [
        "id",
        "photo",
        "latlon",
        "distance",
        "inliers",
        "planar_inliers",
        "heading_deg",
    ]
    assert lost["latlon"] is None
    assert lost["reason"].startswith("not in this map")


def test_people_get_a_block_for_each_photo_and_a_total(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    assert localize(town, town / "queries" / "q05.jpg", town / "elsewhere.jpg", tmp_path / "broken.jpg") == 0
    first, second, total = capsys.readouterr().out.split("\n\n")
    said = re.search(r"q05\.jpg\n  position    (\S+), (\S+)  https://www.openstreetmap.org/\S+mlat=\1", first)
    assert distance_m([float(degrees) for degrees in said.groups()], position(5, 3.0)) < 25
    for part in (r"place +\S", r"radius +9 of 10 such answers are within \d+ m", r"most like +photos/05_\d\.jpg"):
        assert re.search(rf"^  {part}", first, re.MULTILINE)
    assert re.search(r"elsewhere\.jpg\n  not in this map; low-confidence position  \S+, \S+  https://", second)
    assert total == "1 of 3 photos found, 1 could not be read\n"


def test_geojson_is_one_collection(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(town, town / "queries" / "q05.jpg", town / "elsewhere.jpg", "--geojson") == 0
    told = json.loads(capsys.readouterr().out)
    found, lost = told["features"]
    assert told["type"] == "FeatureCollection"
    longitude, latitude = found["geometry"]["coordinates"]
    assert distance_m((latitude, longitude), position(5, 3.0)) < 25
    assert found["properties"]["confidence"] > 0.5
    assert lost["geometry"] is None


def test_csv_is_a_table(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(town, write_queries(tmp_path / "few", range(3, 7))[0].parent, "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == [
        "photo",
        "lat",
        "lon",
        "radius_m",
        "confidence",
        "match",
        "distance",
        "heading_deg",
        "time",
        "place",
        "map",
    ]
    assert len(rows) == 4
    assert distance_m((float(rows[2]["lat"]), float(rows[2]["lon"])), position(5, 3.0)) < 25
    assert rows[2]["match"].startswith("photos/05_")


def test_unreadable_photos_go_to_standard_error(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photo")
    assert localize(town, broken, tmp_path / "absent.jpg", town / "queries" / "q02.jpg", "--json") == 0
    told = capsys.readouterr()
    assert [json.loads(line)["photo"] for line in told.out.splitlines()] == [str(town / "queries" / "q02.jpg")]
    assert "broken.jpg: not a JPEG" in told.err
    assert "absent.jpg" in told.err
    assert localize(town, broken, "--json") == 1
    assert capsys.readouterr().out == ""


def test_a_photo_without_its_last_bytes_is_answered_with_a_note(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    whole = (town / "queries" / "q05.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: int(len(whole) * 0.97)])
    assert localize(town, tmp_path / "cut.jpg") == 0
    assert "most like   photos/05_" in capsys.readouterr().out
    assert "cut.jpg: truncated" in caplog.text


def test_a_photo_that_may_be_a_sphere_is_named_and_answered(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    wall = np.kron(np.tile(view(1, 0), (1, 2, 1)), np.ones((4, 4, 1), np.uint8))
    wide = write_view(tmp_path / "wide.jpg", wall[:256, :512], None)
    assert localize(town, wide) == 0
    assert capsys.readouterr().out.startswith(f"{wide}\n  ")
    assert f"{wide} is 2:1 as a 360° photo, without GPano tags" in caplog.text
    caplog.clear()
    assert localize(town, wide, "--panorama") == 0
    assert "360°" not in caplog.text


@pytest.mark.parametrize("form", ["--json", "--csv", "--geojson", "--top=1"])
def test_a_name_that_is_not_utf8_is_answered(
    form: str, town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = shutil.copy(town / "queries" / "q05.jpg", tmp_path / os.fsdecode(b"caf\xe9.jpg"))
    words = [
        town / "street.gpkg",
        odd,
        form,
        "--model",
        town / "model.safetensors",
        "--workers",
        "0",
        "--device",
        "cpu",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["localize", *map(str, words)])
    assert ended.value.code in (0, None)
    told = capsys.readouterr().out
    assert re.search(r"caf\\(xe9|udce9)\.jpg", told)
    assert "photos/05_" in told


def test_where_to_look(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latitude, longitude = position(20)
    asked = [town / "queries" / "q02.jpg", "--json"]
    localize(town, *asked, "--circle", str(latitude), str(longitude), "100")
    localize(town, *asked, "--box", "0", "0", "1", "1")
    inside, nothing = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert all(distance_m(match["latlon"], (latitude, longitude)) <= 100 for match in inside["matches"])
    assert nothing["matches"] == []
    with pytest.raises(ArgumentError, match="choose one"):
        localize(town, *asked, "--box", "0", "0", "1", "1", "--circle", "0", "0", "5")


def test_a_walk_and_the_other_options(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk = [town / "queries" / f"q{place:02d}.jpg" for place in range(3, 10)]
    assert localize(town, *walk, "--json", "--walk-step-m", "90", "--candidates", "12", "--verify", "5") == 0
    found = [json.loads(line)["latlon"] for line in capsys.readouterr().out.splitlines()]
    assert max(distance_m(found, [position(place, 3.0) for place in range(3, 10)])) < 25


def stamped(path: Path, place: int, second: int | None) -> Path:
    """A photo of a place without a position, whose EXIF says when it was taken."""
    exif = Image.Exif()
    if second is not None:
        exif.get_ifd(IFD.Exif)[Base.DateTimeOriginal] = f"2024:05:31 12:00:{second:02d}"
    Image.fromarray(view(place, 99)).save(path, quality=92, exif=exif)
    return path


def test_a_walk_is_sorted_by_time(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two cameras of one walk, whose file names do not sort by time; equal times keep the order given."""
    names = {"b1": (3, 10), "a1": (4, 20), "b2": (5, 30), "a2": (6, 40), "a0": (6, 40)}
    photos = [stamped(tmp_path / f"{name}.jpg", *there) for name, there in names.items()]
    given = [photos[row] for row in (1, 3, 0, 4, 2)]
    assert localize(town, *given, "--json", "--walk-step-m", "90") == 0
    told = capsys.readouterr()
    assert [Path(json.loads(line)["photo"]).stem for line in told.out.splitlines()] == list(names)
    assert "time" not in told.err
    assert localize(town, *given, "--json") == 0  # no walk: the order given
    assert [json.loads(line)["photo"] for line in capsys.readouterr().out.splitlines()] == list(map(str, given))


def test_a_walk_without_all_times_stays_in_the_order_given(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        stamped(tmp_path / "a.jpg", 4, 20),
        stamped(tmp_path / "b.jpg", 3, 10),
        stamped(tmp_path / "c.jpg", 5, None),
    ]
    assert localize(town, *given, "--json", "--walk-step-m", "90") == 0
    told = capsys.readouterr()
    assert [json.loads(line)["photo"] for line in told.out.splitlines()] == list(map(str, given))
    assert "1 of 3 photos have no time" in told.err


def test_gpx_and_kml_have_the_times_of_the_photos(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(town / "queries" / "q04.jpg", tmp_path / "b.jpg")
    shutil.copy(town / "queries" / "q05.jpg", tmp_path / "a.jpg")
    (tmp_path / "geotags.csv").write_text("file,lat,lon,time\na.jpg,1,2,1717156860\nb.jpg,1,2,1717156800\n")
    assert localize(town, tmp_path, town / "elsewhere.jpg", "--gpx") == 0
    points = gpxpy.parse(capsys.readouterr().out).waypoints
    assert [(Path(point.name).name, point.time.timestamp()) for point in points] == [
        ("a.jpg", 1717156860),
        ("b.jpg", 1717156800),
    ]
    assert localize(town, tmp_path, "--gpx", "--walk-step-m", "90") == 0
    read = gpxpy.parse(capsys.readouterr().out)
    assert [Path(point.name).name for point in read.tracks[0].segments[0].points] == ["b.jpg", "a.jpg"]
    assert localize(town, tmp_path, "--kml", "--walk-step-m", "90") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("<?xml")
    assert "<LineString>" in printed
    assert printed.index("2024-05-31T12:00:00Z") < printed.index("2024-05-31T12:01:00Z")


def test_a_table_says_when_the_photos_of_a_walk_were_taken(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, place in (("a", 4), ("b", 3), ("c", 5)):
        stamped(tmp_path / f"{name}.jpg", place, None)
    rows = (f"{name}.jpg,48.9,2.3,{time}\n" for name, time in (("a", 200), ("b", 100), ("c", 300)))
    (tmp_path / "geotags.csv").write_text("file,lat,lon,time\n" + "".join(rows))
    assert localize(town, tmp_path, "--json", "--walk-step-m", "90") == 0
    found = [Path(json.loads(line)["photo"]).stem for line in capsys.readouterr().out.splitlines()]
    assert found == ["b", "a", "c"]


def test_wrong_calls_say_so(town: Path, tmp_path: Path) -> None:
    photo = town / "queries" / "q00.jpg"
    with pytest.raises(ArgumentError, match="choose one"):
        localize(town, photo, "--json", "--csv")
    (tmp_path / "bare").mkdir()
    with pytest.raises(ArgumentError, match=r"no photos in .*bare"):
        localize(town, tmp_path / "bare")
    with pytest.raises(ArgumentError, match="no photos given"):
        localize_command(town / "street.gpkg", [])
    with pytest.raises(MapError, match=r"street.* checkpoint"):
        run("localize", town / "street.gpkg", photo)
    save_checkpoint(street_model(seed=2), tmp_path / "other")
    with pytest.raises(MapError, match="was built by model"):
        run("localize", town / "street.gpkg", photo, "--model", tmp_path / "other")
    with pytest.raises(MapError, match=r"absent\.gpkg"):
        run("localize", tmp_path / "absent.gpkg", photo, "--model", town / "model.safetensors")


def test_a_calibration_is_printed_and_stored(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    city = tmp_path / "street.gpkg"
    shutil.copy(town / "street.gpkg", city)
    write_queries(tmp_path / "known", tagged=True)
    write_view(tmp_path / "known" / "untagged.jpg", view(1, 55), None)
    words = (city, tmp_path / "known", "--model", town / "model.safetensors")
    assert run("calibrate", *words) == 0
    told = capsys.readouterr().out
    assert "30 photos of 30 places" in told
    assert re.search(r"right fixes answered +\d+\.\d% +\d+\.\d%\n", told)
    assert re.search(r"absent photos rejected +\d+\.\d% +\d+\.\d%\n", told)
    assert "keeps its calibration (fitted to the map" in told
    assert "1 photo has no position and was left out:\n" in told
    assert PlaceMap(city).notes.keys() == {"own calibration"}
    with open_store(city, write=True) as store:  # one that answers everything
        store.write_note("calibration plain", Calibration(weights=(3.0, 0.0, 0.0, 0.0), origin="photos").to_json())
    assert run("calibrate", *words, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rejected_because"] is None
    assert report["calibration"]["photos"] == 30
    assert report["before"]["absent_rejected"] == 0
    assert report["after"]["absent_rejected"] > 0.8
    assert report["untagged"] == [str(tmp_path / "known" / "untagged.jpg")]
    assert Calibration.from_json(PlaceMap(city).notes["calibration plain"]).photos == 30


def test_a_table_gives_positions(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    city = tmp_path / "street.gpkg"
    shutil.copy(town / "street.gpkg", city)
    rows = [
        f"q{place:02d}.jpg,{latitude},{longitude}" for place in range(30) for latitude, longitude in [position(place)]
    ]
    shutil.copytree(town / "queries", tmp_path / "queries")
    (tmp_path / "queries" / "geotags.csv").write_text("\n".join(["file,lat,lon", *rows]))
    run("calibrate", city, tmp_path / "queries", "--model", town / "model.safetensors", "--json")
    assert json.loads(capsys.readouterr().out)["photos"] == 30


def test_a_map_on_milvus_answers_alike(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("milvus_lite")
    address = f"milvus-lite:{tmp_path}/lite.db/street"
    copy_map(town / "street.gpkg", address, progress=False)
    words = (town / "queries" / "q05.jpg", "--model", town / "model.safetensors", "--json")
    near = ("--circle", *map(str, position(5)), "200")
    for city in (address, town / "street.gpkg"):
        run("localize", city, *words, *near)
    milvus, file = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert milvus["latlon"] == pytest.approx(file["latlon"], abs=1e-5)
    (names, distances), (others, expected) = (
        ({Path(match["photo"]).name for match in one["matches"][:3]}, [match["distance"] for match in one["matches"]])
        for one in (milvus, file)
    )
    assert names == others  # the three of the place, whose order is that of rounding
    assert distances == pytest.approx(expected, abs=0.02)
    run("calibrate", address, write_queries(tmp_path / "known", tagged=True)[0].parent, *words[1:])
    assert json.loads(capsys.readouterr().out)["photos"] == 30


def answers(town: Path, capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, object]]:
    assert localize(town, *words, "--json", "--min-confidence", "0") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_photos_asked_together_are_centred_unless_it_is_switched_off(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries, kept = write_queries(tmp_path / "queries", CENTRED)[0].parent, tmp_path / "day.json"
    together = answers(town, capsys, queries, "--save-condition", kept)
    assert together == answers(town, capsys, queries, "--condition", "auto")
    assert together != answers(town, capsys, queries, "--condition", "none")
    assert together == answers(town, capsys, queries, "--condition", kept)
    alone = answers(town, capsys, town / "queries" / "q05.jpg")
    with_condition = answers(town, capsys, town / "queries" / "q05.jpg", "--condition", kept)
    assert with_condition != alone
    assert with_condition[0]["confidence"] == pytest.approx(together[5]["confidence"], abs=0.02)


def test_a_walk_uses_the_condition_too(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk = (write_queries(tmp_path / "queries", CENTRED)[0].parent, "--walk-step-m", "100")
    assert answers(town, capsys, *walk) != answers(town, capsys, *walk, "--condition", "none")


def test_a_condition_of_few_photos_is_saved_with_a_warning(
    town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert localize(town, town / "queries" / "q05.jpg", "--save-condition", tmp_path / "one.json") == 0
    assert "no effect" in capsys.readouterr().err
    photo = town / "queries" / "q06.jpg"
    assert answers(town, capsys, photo, "--condition", tmp_path / "one.json") == answers(town, capsys, photo)


def test_conditions_that_cannot_be_used(town: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo, bad = town / "queries" / "q05.jpg", tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(ArgumentError, match="not a condition"):
        localize(town, photo, "--condition", bad)
    with pytest.raises(ArgumentError, match="choose one"):
        localize(town, photo, "--condition", "none", "--save-condition", bad)
    assert bad.read_text() == "{}"
    with pytest.raises(SystemExit) as ended:
        main(["localize", str(town / "street.gpkg"), str(photo), "--model", str(town / "model.safetensors"),
              "--condition", str(tmp_path / "absent.json")])  # fmt: skip
    assert ended.value.code != 0
    assert "absent.json" in capsys.readouterr().err
