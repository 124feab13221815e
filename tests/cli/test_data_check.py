"""`sareloc data check`: what it prints and how it ends."""

from __future__ import annotations

import json
import re
import sys

import pytest
from cyclopts import App
from PIL import Image
from tests.photos.raw_files import write_dng

from sareloc.cli.data import check
from sareloc.cli.options import print_notes
from sareloc.errors import ArgumentError
from sareloc.photos import Geotag, exif_bytes, sidecar_with_geotag


@pytest.fixture
def table(tmp_path):
    rows = ["a.jpg,48.8566,2.3522,db", "b.jpg,48.8580,2.3540,db", "c.jpg,48.8566,2.3523,query", "d.jpg,48.8,2.3,query"]
    (tmp_path / "meta.csv").write_text("file,lat,lon,role\n" + "\n".join(rows) + "\n")
    for name in "abcd":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg")
    return tmp_path


def run(*words: object) -> int:
    """The command as it is typed, by way of the parser."""
    app = App(result_action="return_value")
    app.command(check)
    return app(["check", *map(str, words)])


def test_a_sound_dataset(table, capsys):
    assert run(table, "--decode") == 0
    printed = capsys.readouterr().out
    assert "database    2 photos\n" in printed
    assert "queries     2, of which 1 (50.0 %) have a positive within 25 m\n" in printed
    assert "latitude 48.80000 to 48.85800, longitude 2.30000 to 2.35400\n" in printed
    assert "files       4 of 4 decoded\n" in printed
    assert "missing" not in printed


def test_faults_are_listed_and_end_with_status_1(table, capsys):
    (table / "a.jpg").unlink()
    (table / "b.jpg").write_bytes(b"no photo")
    assert run(table) == 1
    printed = capsys.readouterr().out
    assert "files       2 of 4 opened" in printed
    assert f"missing     1\n            {table / 'a.jpg'}\n" in printed
    assert f"unreadable  1\n            {table / 'b.jpg'}: not a JPEG" in printed


def test_a_photo_that_cannot_be_read_is_not_one_without_a_geotag(tmp_path, capsys, monkeypatch):
    """Its EXIF may have one: a RAW file without the extra, a damaged photo."""
    monkeypatch.setitem(sys.modules, "rawpy", None)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", exif=exif_bytes(Geotag((48.1, 2.0))))
    Image.new("RGB", (8, 8)).save(tmp_path / "b.jpg")
    write_dng(tmp_path / "c.NEF", Geotag((48.1, 2.0)))
    (tmp_path / "d.jpg").write_bytes(b"no photo")
    assert run(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "files       1 of 3 opened" in printed
    assert "positions   1 EXIF, 1 none" in printed
    assert "unreadable  2\n" in printed
    assert re.search(r"c\.NEF: .*sareloc\[raw\]", printed)
    assert f"left out    1\n            {tmp_path / 'b.jpg'}: no geotag" in printed


def test_bad_rows_beside_photos_are_listed(tmp_path, capsys):
    for name in "ab":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg")
    (tmp_path / "geotags.csv").write_text("filename,latitude,lng\na.jpg,48.1,2\nb.jpg,95,2\nc.jpg,48.1,2\n")
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "database    1 photo\n" in printed
    assert "line 3 (b.jpg): latitude 95" in printed
    assert "1 row (c.jpg)" in printed
    run(tmp_path, "--json")
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 2


def test_where_positions_come_from(tmp_path, capsys):
    here = {"latitude": 48.1, "longitude": 2.0}
    for name in "abcde":
        exif = exif_bytes(Geotag((48.1, 2.0))) if name in "ab" else b""
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg", exif=exif)
    for name in "acd":
        (tmp_path / f"{name}.jpg.json").write_text(json.dumps({"geoData": here}))
    (tmp_path / "b.jpg.json").write_text(json.dumps({"geoData": here | {"latitude": 48.101}}))
    (tmp_path / "c.xmp").write_bytes(sidecar_with_geotag("c.jpg", Geotag((48.10001, 2.0))))
    (tmp_path / "geotags.csv").write_text("file,lat,lon\nd.jpg,48.2,2\n")
    run(tmp_path)
    printed = capsys.readouterr().out
    assert "positions   1 table, 2 EXIF, 1 XMP sidecar, 1 none\n" in printed
    assert "of each photo the first of: table, EXIF, embedded XMP, XMP sidecar, Takeout JSON, file name\n" in printed
    assert f"{tmp_path / 'c.jpg'}: XMP sidecar" not in printed
    assert "more than 50 m from the one used: 2 positions" in printed
    assert "b.jpg: Takeout JSON 111 m away" in printed
    assert "d.jpg: Takeout JSON 11,1" in printed
    run(tmp_path, "--json")
    assert json.loads(capsys.readouterr().out)["position_sources"] == {"EXIF": 2, "XMP sidecar": 1, "table": 1}
    run(tmp_path, "--sources", "--json")
    used = {"a": "EXIF", "b": "EXIF", "c": "XMP sidecar", "d": "table"}
    assert json.loads(capsys.readouterr().out)["sources"] == {
        str(tmp_path / f"{name}.jpg"): source for name, source in used.items()
    }
    run(tmp_path, "--sources")
    assert f"            {tmp_path / 'c.jpg'}: XMP sidecar\n" in capsys.readouterr().out


def test_long_lists_are_cut(tmp_path, capsys):
    rows = "".join(f"{row}.jpg,1,2\n" for row in range(9))
    (tmp_path / "meta.csv").write_text("file,lat,lon\n" + rows)
    assert run(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "queries     none: " in printed
    assert "4.jpg\n            and 4 more (--json lists all)" in printed
    assert "5.jpg" not in printed


def test_json_and_figure(table, capsys):
    pytest.importorskip("matplotlib")
    assert run(table, "--json", "--figure", table / "map.png") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["database"], found["queries"], found["queries_with_positive"]) == (2, 2, 1)
    assert found["missing"] == []
    with Image.open(table / "map.png") as drawn:
        assert drawn.format == "PNG"


def test_split_and_root(table, tmp_path, capsys):
    with pytest.raises(ArgumentError, match=r"unknown split of .* 'night': known are"):
        run("tokyo247", "--root", tmp_path, "--split", "night")
    (table / "elsewhere").mkdir()
    assert run(table / "meta.csv", "--root", table / "elsewhere") == 1
    assert "missing     4" in capsys.readouterr().out


def test_a_part_of_a_published_set_says_so(tmp_path, capsys):
    for name in ("100000", "100001"):
        (tmp_path / "jpg").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "jpg" / f"{name}.jpg")
    assert run("holidays", "--root", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "1,491 database photos and 500 queries" in printed
    assert "queries     1, of which 1 (100.0 %) have a positive\n" in printed


def test_long_lists_of_notes_stop_at_ten(capsys: pytest.CaptureFixture[str]) -> None:
    print_notes(f"row {number}" for number in range(80))
    told = capsys.readouterr().err.splitlines()
    assert told[:2] == ["sareloc: row 0", "sareloc: row 1"]
    assert told[9:] == ["sareloc: row 9", "sareloc: and 70 more"]
    print_notes(f"row {number}" for number in range(10))
    assert "more" not in capsys.readouterr().err
