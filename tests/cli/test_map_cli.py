"""`sareloc map`, from its arguments to what it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App
from tests.maps.small_town import tiny_model, write_photo, write_town

import sareloc.cli.map as commands
from sareloc.cli import main
from sareloc.cli.map_text import problems_text
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.localize import Calibration
from sareloc.maps import PlaceMap, map_info, open_store
from sareloc.models import checkpoint, load_model, save_checkpoint


@pytest.fixture
def town(tmp_path: Path) -> Path:
    """A folder with photos, a model and an app's worth of surroundings."""
    write_town(tmp_path / "photos", 6)
    save_checkpoint(tiny_model(), tmp_path / "model")
    return tmp_path


def run(*words: str | Path) -> Any:
    app = App(name="map")
    for name in ("build", "add", "sync", "upgrade", "remove", "info", "verify", "compact", "copy"):
        app.command(getattr(commands, name), name=name)
    return app([*map(str, words)], result_action="return_value", exit_on_error=False)


def build(town: Path, *words: str | Path) -> Any:
    """Without local features, unless the words say otherwise."""
    options = ("--model", town / "model", "--device", "cpu", "--workers", "0")
    none = () if "--keypoints" in words else ("--keypoints", "0")
    return run("build", town / "photos", "--out", town / "town.gpkg", *options, *none, *words)


def test_build_add_info_verify_remove_compact(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = town / "town.gpkg"
    assert build(town) == 0
    assert "added 6 photos in" in capsys.readouterr().out
    extra = write_photo(town / "more" / "x.jpg", 50)
    arguments = ("--model", town / "model", "--device", "cpu", "--workers", "0", "--json")
    assert run("add", path, extra, town / "photos", *arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], report["already"], report["untagged"], report["unreadable"]) == (1, 6, [], [])
    run("info", path)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["photos"] == "7"
    assert lines["model"] == f"tiny {tiny_model().fingerprint()}"
    assert lines["latitude"] == "48.85840 to 48.86340"
    run("info", path, "--json")
    info = json.loads(capsys.readouterr().out)
    assert (info["photos"], info["manifest"]["dim"], info["extent"]["west"]) == (7, 256, pytest.approx(2.2945))
    assert run("verify", path) == 0
    assert "no problems" in capsys.readouterr().out
    run("remove", path, "0001.jpg", "more/*")
    run("remove", path, "--box", "48.8583", "2.29", "48.85841", "2.3")
    removed = [line.split()[1] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert removed == ["2", "1"]
    assert PlaceMap(path).files == tuple(f"photos/000{number}.jpg" for number in (2, 3, 4, 5))
    run("compact", path)
    assert "MB after" in capsys.readouterr().out


def test_local_features_are_built_reported_and_added_by_upgrade(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, options = town / "town.gpkg", ("--device", "cpu", "--workers", "0")
    assert build(town) == 0
    run("info", path)
    assert "features       none, add them with sareloc map upgrade\n" in capsys.readouterr().out
    run("upgrade", path, "--keypoints", "40", *options)
    assert re.search(
        r"added local features of 6 photos, up to 40 keypoints each, .*; 0 had them", capsys.readouterr().out
    )
    run("upgrade", path, *options, "--json")
    report = json.loads(capsys.readouterr().out)
    assert {key: report[key] for key in ("keypoints", "added", "already", "unreadable", "map")} == {
        "keypoints": 40,
        "added": 0,
        "already": 6,
        "unreadable": [],
        "map": str(path),
    }
    run("info", path, "--json")
    stored = json.loads(capsys.readouterr().out)["local_features"]
    assert stored == {"keypoints": 40, "photos": 6, "bytes": 6 * (8 + 35 * 40)}
    run("info", path)
    assert "features       40 keypoints, 6 photos, 0.0 MB\n" in capsys.readouterr().out
    with pytest.raises(MapError, match=r"has local features of 40 keypoints a photo, requested: 50.*--keypoints 40"):
        run("upgrade", path, "--keypoints", "50", *options)
    for words in (("build", town / "photos", "--out", path, "--model", town / "model"), ("upgrade", path)):
        with pytest.raises(ArgumentError, match="keypoints must be"):
            run(*words, "--keypoints", "5000", *options)
    path.unlink()
    assert build(town, "--keypoints", "30") == 0
    assert ", local features of 6\n" in capsys.readouterr().out
    run("copy", path, town / "copy.gpkg", "--json")
    assert json.loads(capsys.readouterr().out)["features"] == 6


def test_the_packaged_model_is_used_where_none_is_named(
    town: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, extra = town / "town.gpkg", write_photo(town / "more" / "x.jpg", 50)
    save_checkpoint(tiny_model(), town / "tiny.safetensors")
    save_checkpoint(tiny_model(seed=2), town / "other.safetensors")
    monkeypatch.setattr(checkpoint, "PACKAGED", {"fast": town / "tiny.safetensors"})  # of a CPU
    options = ("--device", "cpu", "--workers", "0", "--keypoints", "0")
    assert run("build", town / "photos", "--out", path, *options) == 0
    assert PlaceMap(path).manifest.fingerprint == tiny_model().fingerprint()
    # a later sareloc, in which the names mean other models: the map still finds its own
    later = {"fast": town / "other.safetensors", "default": town / "tiny.safetensors"}
    monkeypatch.setattr(checkpoint, "PACKAGED", later)
    assert run("add", path, extra, "--device", "cpu", "--workers", "0") == 0
    assert "added 1 photo in" in capsys.readouterr().out
    del later["default"]
    with pytest.raises(MapError, match=r"town\.gpkg was built by model 'tiny' .* does not come with this sareloc"):
        run("add", path, extra, "--device", "cpu", "--workers", "0")


def test_a_map_on_milvus_takes_the_same_commands(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("milvus_lite")
    address = f"milvus-lite:{town}/lite.db/town"
    arguments = ("--model", town / "model", "--device", "cpu", "--workers", "0")
    assert run("build", town / "photos", "--out", address, *arguments) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{address}: added 6 photos in")
    assert told.endswith("local features of 6\n")
    assert run("upgrade", address, "--device", "cpu") in (0, None)
    assert "6 had them already" in capsys.readouterr().out
    run("info", address)
    lines = {line[:15].strip(): line[15:] for line in capsys.readouterr().out.splitlines()}
    assert lines["photos"] == "6"
    assert lines["search vector"].startswith("256 + 256 dimensions")
    assert lines["index"] == "FLAT, kept by Milvus"
    assert lines["descriptors"] == "256 dimensions, float32"
    assert lines["features"] == "1024 keypoints, 6 photos"
    assert lines["latitude"] == "48.85840 to 48.85890"
    assert "file" not in lines
    run("remove", address, "0001.jpg")
    assert capsys.readouterr().out.splitlines()[0] == f"removed 1 photo from {address}"
    assert run("verify", address) == 0
    run("copy", address, town / "copy.gpkg")
    run("copy", town / "copy.gpkg", address, "--json")
    told, report = capsys.readouterr().out.splitlines()[1:]
    assert told.startswith(f"{town / 'copy.gpkg'}: copied 5 photos, 0 were in it already; checksum ")
    assert json.loads(report) == {
        "photos": 5,
        "copied": 0,
        "checksum": told.rpartition(" ")[2],
        "features": 0,
        "notes": [],
        "source": str(town / "copy.gpkg"),
        "map": address,
    }
    assert sorted(PlaceMap(town / "copy.gpkg").files) == [f"photos/000{number}.jpg" for number in (0, 2, 3, 4, 5)]


def test_bad_rows_of_a_table_are_reported_at_once(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"000{number}.jpg;{48.8 + number / 1000:.4f}".replace(".", ",").replace(",jpg", ".jpg") for number in range(6)
    ]
    rows[2], rows[4] = "0002.jpg;95", "0004.jpg;Paris"
    table = "Bild;Filename;Latitude;Lng\n" + "".join(f"é;{row};2,29\n" for row in rows) + "é;gone.jpg;48,8;2,29\n"
    (town / "photos" / "geotags.csv").write_text(table, encoding="latin-1")
    assert build(town) == 0
    printed = capsys.readouterr().out
    assert "added 6 photos" in printed  # two of them where their EXIF says
    for said in ("line 4 (0002.jpg)", "line 6 (0004.jpg)", "1 row (gone.jpg)", "Latin-1"):
        assert said in printed
    build(town, "--json")
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 4


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_name_that_is_not_utf8_is_reported(form: list[str], town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(town / "photos" / os.fsdecode(b"caf\xe9.jpg"), 50)
    write_photo(town / "photos" / os.fsdecode(b"\xe9.jpg"), 51, tagged=False)
    words = [town / "photos", "--out", town / "town.gpkg", "--model", town / "model", "--workers", "0", *form]
    with pytest.raises(SystemExit) as ended:
        main(["map", "build", *map(str, words), "--device", "cpu", "--keypoints", "0"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert re.search(r"caf\\(xe9|udce9)\.jpg: .*UTF-8", told)


def test_photos_left_out_are_reported(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        write_photo(town / "photos" / f"nowhere{number:02d}.jpg", 60 + number, tagged=False)
    (town / "photos" / "broken.jpg").write_bytes(b"?")
    assert build(town) == 0
    out = capsys.readouterr().out
    assert "12 photos have no position:" in out
    assert "nowhere09.jpg" in out
    assert "nowhere10.jpg" not in out
    assert "... and 2 more" in out
    assert "1 file cannot be read:" in out
    assert "broken.jpg: not a JPEG" in out


def test_only_commands_with_json_name_it_where_lists_end(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        write_photo(town / "photos" / f"nowhere{number:02d}.jpg", 60 + number, tagged=False)
        write_photo(town / "photos" / f"1{number:03d}.jpg", 80 + number)
    assert build(town) == 0
    assert "... and 2 more (--json lists all)\n" in capsys.readouterr().out
    run("remove", town / "town.gpkg", "photos/1*.jpg", "--dry-run")
    assert capsys.readouterr().out.endswith("... and 2 more\n")
    assert problems_text("town.gpkg", [str(number) for number in range(12)], []).endswith("\n... and 2 more")
    assert problems_text("town.gpkg", [], [str(number) for number in range(12)]).endswith("\n  ... and 2 more")


def test_no_position_at_all_is_a_failure_that_says_what_to_do(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for photo in (town / "photos").iterdir():
        write_photo(photo, 3, tagged=False)
    assert build(town) == 1
    assert "no photo has a position: give a table with --geotags" in capsys.readouterr().out


def test_a_damaged_map_is_a_failure(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3
    from contextlib import closing

    build(town)
    with closing(sqlite3.connect(town / "town.gpkg")) as connection:
        connection.execute("DELETE FROM descriptors WHERE fid = 2")
        connection.commit()
    capsys.readouterr()
    assert run("verify", town / "town.gpkg") == 1
    assert capsys.readouterr().out == "photo 2 has no descriptor\n"


def test_remove_wants_to_know_what(town: Path) -> None:
    with pytest.raises(ArgumentError, match="--box SOUTH WEST NORTH EAST"):
        run("remove", town / "town.gpkg")
    with pytest.raises(MapError, match="does not exist"):
        run("remove", town / "town.gpkg", "x")


def test_commands_that_need_no_model_and_no_server_import_neither() -> None:
    code = (
        "import sys, sareloc.cli.map, sareloc.maps.copy;"
        "assert not {'torch', 'faiss', 'pymilvus', 'milvus_lite', 'grpc'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_build_again_says_what_changed(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(town)
    (town / "photos" / "0000.jpg").unlink()
    for name in ("twin.jpg", "other.jpg"):
        shutil.copy(town / "photos" / "0001.jpg", town / "photos" / name)
    (town / "photos" / "geotags.csv").write_text("file,lat,lon\n0002.jpg,48.9,2.3\ntwin.jpg,48.9,2.3\n")
    capsys.readouterr()
    assert build(town) == 0
    out = capsys.readouterr().out
    assert "added 0 photos" in out
    assert "updated 1, 4 were in it already, 2 duplicates" in out
    assert "\n2 duplicates:\n" in out
    assert "other.jpg has the content of photos/0001.jpg\n" in out
    assert "twin.jpg has the content of photos/0001.jpg and a position 4,6" in out
    assert "1 photo no longer exists; it stays in the map" in out
    assert "  photos/0000.jpg\n" in out
    assert build(town, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["updated"], told["already"], told["duplicates"], told["gone"]) == (0, 5, 2, ["photos/0000.jpg"])
    assert told["conflicts"][0]["kept"] == "photos/0001.jpg"
    assert [Path(one["photo"]).name for one in told["duplicate_photos"]] == ["other.jpg", "twin.jpg"]


def test_sync_removes_what_is_gone_and_says_so_first(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = town / "town.gpkg"
    build(town)
    (town / "photos" / "0000.jpg").unlink()
    write_photo(town / "photos" / "new.jpg", 9)
    (town / "photos" / "geotags.csv").write_text("file,lat,lon\n0002.jpg,48.9,2.3\n")
    arguments = ("--model", town / "model", "--device", "cpu", "--workers", "0")
    capsys.readouterr()
    run("sync", path, town / "photos", "--dry-run")
    out = capsys.readouterr().out
    assert "1 photo that no longer exists would be removed:\n  photos/0000.jpg\n" in out
    assert "1 photo would be added:\n  photos/new.jpg\n" in out
    assert "1 photo would be updated:\n  photos/0002.jpg\n" in out
    assert "dry run" in out
    assert len(PlaceMap(path)) == 6
    run("sync", path, town / "photos", *arguments, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["removed"], told["gone"], told["dry_run"]) == (["photos/0000.jpg"], [], False)
    assert (told["added_photos"], told["updated_photos"]) == (["photos/new.jpg"], ["photos/0002.jpg"])
    assert len(PlaceMap(path)) == 6
    shutil.rmtree(town / "photos")
    with pytest.raises(PhotoError, match="--allow-empty"):
        run("sync", path, town / "photos", *arguments)


def test_info_and_verify_name_calibrations_and_photos_that_are_gone(
    town: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = town / "town.gpkg"
    build(town)
    with open_store(path, write=True) as store:
        store.write_note("calibration plain", Calibration(photos=216, origin="photos").to_json())
        store.write_note("calibration verify=20", "{}")
        store.write_note("another note", "text")
    (town / "photos" / "0003.jpg").unlink()
    capsys.readouterr()
    run("info", path)
    out = capsys.readouterr().out
    assert "search plain, fitted on 216 photos (photos)" in out
    assert "search verify=20, cannot be read" in out
    assert "the files of 1 photo no longer exist, such as photos/0003.jpg" in out
    run("info", path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["calibrations"][0] == {"search": "plain", "origin": "photos", "photos": 216}
    assert (len(told["calibrations"]), told["gone"]) == (2, ["photos/0003.jpg"])
    assert run("verify", path) == 0
    assert "  photos/0003.jpg" in capsys.readouterr().out


def test_nothing_removed_is_a_failure(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(town)
    assert run("remove", town / "town.gpkg", "0001.jpg") == 0
    assert run("remove", town / "town.gpkg", "0001.jpg") == 1
    assert "nothing" in capsys.readouterr().err
    assert run("remove", town / "town.gpkg", "--box", "0", "0", "1", "1") == 1


def test_a_map_is_continued_with_its_own_packaged_model(tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    out = tmp_path / "city.gpkg"
    run("build", tmp_path / "photos", "--out", out, "--model", "default", "--keypoints", "0", "--workers", "0")
    write_photo(tmp_path / "photos" / "new.jpg", 9)
    run("build", tmp_path / "photos", "--out", out, "--keypoints", "0", "--workers", "0")
    info = map_info(out)
    assert (info.photos, info.manifest.model) == (3, load_model("default", "cpu").name)
