"""Positions edited and photos removed by another program, such as QGIS, or by `map remove`: building keeps them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyogrio
import pytest
from PIL import Image
from tests.maps.small_town import build_map, geotag_of, gis, tiny_model, write_photo, write_town
from tests.maps.test_map_file import make_format_5, make_map, photo

from sareloc.cli import main
from sareloc.maps import (
    MapConfig,
    PlaceMap,
    add_photos,
    copy_map,
    gpkg,
    map_info,
    open_map_file,
    remove_photos,
    sync_map,
    verify_map,
)
from sareloc.models import PlaceModel
from sareloc.photos import exif_bytes

ELSEWHERE = (48.9, 2.5)
QUIET = MapConfig(progress=False, keypoints=0)
RESTORE = MapConfig(progress=False, keypoints=0, restore=True)


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture
def town(model: PlaceModel, tmp_path: Path) -> Path:
    """A map of five photos in photos/."""
    write_town(tmp_path / "photos", 5)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, progress=False)
    return tmp_path / "town.gpkg"


def edit(path: Path, sql: str, *values: object) -> None:
    """As a GIS program writes: plain SQL, with the functions that the triggers of an R-tree call."""
    with closing(gis(path)) as connection:
        connection.execute(sql, values)
        connection.commit()


def move(path: Path, name: str, latlon: tuple[float, float]) -> None:
    edit(path, "UPDATE photos SET geom = ? WHERE file = ?", gpkg.point_blob(latlon), f"photos/{name}")


def delete(path: Path, name: str) -> None:
    """By plain SQLite, without these functions."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM photos WHERE file = ?", (f"photos/{name}",))
        connection.commit()


def rounded(latlon: Sequence[float]) -> tuple[float, float]:
    """To what EXIF holds."""
    return round(latlon[0], 7), round(latlon[1], 7)


def at(number: int) -> tuple[float, float]:
    return rounded(geotag_of(number).latlon)


def positions(path: Path) -> dict[str, tuple[float, float]]:
    with PlaceMap(path) as opened:
        return {Path(f).name: rounded(p) for f, p in zip(opened.files, opened.latlon.tolist(), strict=True)}


def indexed(path: Path) -> dict[int, tuple[float, float]]:
    """Latitude and longitude of the R-tree's boxes, by id."""
    with closing(gis(path)) as connection:
        rows = connection.execute("SELECT id, minx, maxx, miny, maxy FROM rtree_photos_geom").fetchall()
    return {i: ((south + north) / 2, (west + east) / 2) for i, west, east, south, north in rows}


def assert_indexed(path: Path) -> None:
    with PlaceMap(path) as opened:
        wanted = dict(zip(opened.ids.tolist(), map(tuple, opened.latlon.tolist()), strict=True))
    found = indexed(path)
    assert found.keys() == wanted.keys()
    for photo_id, latlon in wanted.items():
        assert found[photo_id] == pytest.approx(latlon, abs=1e-5)


def touch(folder: Path) -> None:
    """Copy all photos, so that their times differ and their content does not."""
    for file in folder.glob("*.jpg"):
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
        os.utime(file, (1_790_000_000, 1_790_000_000))


@pytest.mark.parametrize("how", ["build", "add", "sync"])
@pytest.mark.parametrize("copied", [False, True])
def test_a_gis_round_trip_keeps_everything(how: str, copied: bool, town: Path, model: PlaceModel) -> None:
    move(town, "0001.jpg", ELSEWHERE)
    edit(town, "UPDATE photos SET heading_deg = 77 WHERE file = 'photos/0002.jpg'")
    delete(town, "0003.jpg")
    photos = town.parent / "photos"
    if copied:
        touch(photos)
    write_photo(photos / "new.jpg", 9)
    before = positions(town)
    run = {
        "build": lambda config: build_map(photos, town, model, progress=False, restore=config.restore),
        "add": lambda config: add_photos(photos, town, model, config=config),
        "sync": lambda config: sync_map(photos, town, model, config=config),
    }[how]
    for added in (1, 0):
        report = run(QUIET)
        assert (report.added, report.updated, report.already) == (added, 0, 5 - added)
        assert [Path(name).name for name in report.kept_edits] == ["0001.jpg", "0002.jpg"]
        assert [Path(name).name for name in report.kept_removals] == ["0003.jpg"]
        assert report.restored == ()
        assert positions(town) == before | {"new.jpg": at(9)}
        assert positions(town)["0001.jpg"] == ELSEWHERE
    with open_map_file(town) as file:
        entry = file.entries()["photos/0002.jpg"]
    assert (entry.geotag.heading_deg, rounded(entry.geotag.latlon), entry.edited) == (77, at(2), ("heading_deg",))
    info = map_info(town)
    assert (sorted(info.edited), info.removed) == (["photos/0001.jpg", "photos/0002.jpg"], 1)
    assert verify_map(town) == []
    assert_indexed(town)
    restored = run(RESTORE)
    assert sorted(Path(name).name for name in restored.restored) == ["0001.jpg", "0002.jpg", "0003.jpg"]
    assert (restored.added, restored.updated, restored.kept_edits, restored.kept_removals) == (1, 2, (), ())
    assert positions(town) == {f"{n:04d}.jpg": at(n) for n in range(5)} | {"new.jpg": at(9)}
    info = map_info(town)
    assert (info.edited, info.removed) == ((), 0)
    assert run(QUIET).restored == ()
    assert_indexed(town)


def test_a_dry_run_says_what_is_kept_and_what_would_be_restored(town: Path) -> None:
    move(town, "0001.jpg", ELSEWHERE)
    delete(town, "0003.jpg")
    content = town.read_bytes()
    kept = sync_map(town.parent / "photos", town, None, dry_run=True, config=QUIET)
    assert (kept.kept_edits, len(kept.kept_removals)) == (("photos/0001.jpg",), 1)
    undone = sync_map(town.parent / "photos", town, None, dry_run=True, config=RESTORE)
    assert [Path(name).name for name in undone.restored] == ["0001.jpg", "0003.jpg"]
    assert town.read_bytes() == content


def test_what_was_not_edited_is_updated(town: Path) -> None:
    """A table that gives new headings to photos whose positions were edited."""
    move(town, "0001.jpg", ELSEWHERE)
    (town.parent / "photos" / "geotags.csv").write_text("file,lat,lon,heading\n0001.jpg,10,20,123\n")
    report = sync_map(town.parent / "photos", town, None, config=QUIET)
    assert (report.updated, report.kept_edits) == (1, ("photos/0001.jpg",))
    with open_map_file(town) as file:
        entry = file.entries()["photos/0001.jpg"]
    assert (entry.geotag.latlon, entry.geotag.heading_deg) == (ELSEWHERE, 123)
    assert entry.source is not None
    assert entry.source.latlon == (10, 20)
    sync_map(town.parent / "photos", town, None, config=RESTORE)
    assert positions(town)["0001.jpg"] == (10, 20)


def test_a_photo_that_is_saved_again_keeps_its_edit_and_another_photo_does_not(town: Path, model: PlaceModel) -> None:
    move(town, "0001.jpg", ELSEWHERE)
    move(town, "0002.jpg", ELSEWHERE)
    photos = town.parent / "photos"
    write_photo(photos / "0002.jpg", 77)  # another photo of this name
    with Image.open(photos / "0001.jpg") as image:
        image.convert("L").save(photos / "0001.jpg", exif=exif_bytes(geotag_of(1)))
    report = sync_map(photos, town, model, config=QUIET)
    assert (report.updated, report.kept_edits, report.restored) == (2, ("photos/0001.jpg",), ("photos/0002.jpg",))
    assert positions(town)["0001.jpg"] == ELSEWHERE
    assert positions(town)["0002.jpg"] == at(77)
    again = sync_map(photos, town, model, config=QUIET)
    assert (again.already, again.kept_edits) == (5, ("photos/0001.jpg",))


def blob(srs: int, x: float, y: float) -> bytes:
    return struct.pack("<2sBBiBIdd", b"GP", 0, 1, srs, 1, 1, x, y)


SPATIALITE = b"\0\1" + struct.pack("<i4d", 4326, 2.5, 48.9, 2.5, 48.9) + b"\x7c\1\0\0\0" + bytes(16) + b"\xfe"


@pytest.mark.parametrize(
    ("geometry", "said"),
    [
        (SPATIALITE, "not GeoPackage binary"),
        (blob(4326, 2.5, 95.0), "latitude 95"),
        (blob(4326, float("nan"), float("nan")), "nan"),
        (blob(3857, 278_000.0, 6_250_000.0), "reference system 3857"),
    ],
)
def test_an_edit_that_makes_no_sense_leaves_out_one_photo(
    geometry: bytes, said: str, town: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(town, "UPDATE photos SET geom = ? WHERE fid = 2", geometry)
    assert positions(town).keys() == {f"{number:04d}.jpg" for number in (0, 2, 3, 4)}
    (logged,) = [record.getMessage() for record in caplog.records]
    assert "1 photo is left out" in logged
    assert "photo 2 (photos/0001.jpg)" in logged
    assert said in logged
    (problem,) = verify_map(town)
    assert problem.startswith("photo 2: ")
    assert said in problem
    report = sync_map(town.parent / "photos", town, None, config=QUIET)  # no model: nothing is encoded
    assert (report.already, report.updated, report.added) == (5, 0, 0)
    (kept,) = report.kept_edits
    assert "0001.jpg" in kept
    assert said in kept
    with open_map_file(town) as file:
        assert file.query("SELECT geom FROM photos WHERE fid = 2") == [(geometry,)]
    undone = sync_map(town.parent / "photos", town, None, config=RESTORE)
    assert (undone.updated, undone.restored) == (1, ("photos/0001.jpg",))
    assert positions(town)["0001.jpg"] == at(1)
    assert verify_map(town) == []
    assert_indexed(town)


def test_a_heading_and_a_time_that_make_no_sense_do_not_leave_out_their_photos(town: Path) -> None:
    edit(town, "UPDATE photos SET heading_deg = 'north' WHERE fid = 2")
    edit(town, "UPDATE photos SET time = 'tomorrow' WHERE fid = 3")
    assert len(positions(town)) == 5
    first, second = sync_map(town.parent / "photos", town, None, config=QUIET).kept_edits
    assert first == "photos/0001.jpg: not valid: its heading is a str, expected a number"
    assert second.startswith("photos/0002.jpg: not valid: its time 'tomorrow' is not")
    assert "tomorrow" not in str(map_info(town).last)
    undone = sync_map(town.parent / "photos", town, None, config=RESTORE)
    assert undone.restored == ("photos/0001.jpg", "photos/0002.jpg")
    assert verify_map(town) == []


def test_removing_remembers_and_has_a_dry_run(
    town: Path, model: PlaceModel, capsys: pytest.CaptureFixture[str]
) -> None:
    content = town.read_bytes()
    assert remove_photos(town, files=["000[12].jpg"], dry_run=True) == ("photos/0001.jpg", "photos/0002.jpg")
    assert town.read_bytes() == content
    with pytest.raises(SystemExit) as ended:
        main(["map", "remove", str(town), "0001.jpg", "--dry-run"])
    assert ended.value.code in (0, None)
    assert "would remove 1 photo" in capsys.readouterr().out
    assert len(positions(town)) == 5
    assert remove_photos(town, files=["000[12].jpg"]) == ("photos/0001.jpg", "photos/0002.jpg")
    report = sync_map(town.parent / "photos", town, model, config=QUIET)
    assert (report.added, len(report.kept_removals), report.removed) == (0, 2, ())
    shutil.copy(town.parent / "photos" / "0001.jpg", town.parent / "photos" / "again.jpg")
    assert len(sync_map(town.parent / "photos", town, model, config=QUIET).kept_removals) == 3
    assert len(positions(town)) == 3


def test_a_file_that_went_and_came_back_is_added_again(town: Path, model: PlaceModel) -> None:
    """What sync removes is not remembered: only what a user removed from the map."""
    photos = town.parent / "photos"
    (photos / "0001.jpg").rename(town.parent / "away.jpg")
    assert len(sync_map(photos, town, model, config=QUIET).removed) == 1
    (town.parent / "away.jpg").rename(photos / "0001.jpg")
    assert sync_map(photos, town, model, config=QUIET).added == 1


def test_a_copy_has_the_edits_and_the_removals(town: Path, model: PlaceModel) -> None:
    move(town, "0001.jpg", ELSEWHERE)
    delete(town, "0003.jpg")
    delete(town, "0004.jpg")
    other = town.with_name("copy.gpkg")
    for _ in range(2):
        copy_map(town, other, progress=False)
        report = sync_map(town.parent / "photos", other, model, config=QUIET)
        assert (report.added, report.kept_edits, len(report.kept_removals)) == (0, ("photos/0001.jpg",), 2)
    assert positions(other) == positions(town)
    assert sync_map(town.parent / "photos", other, model, config=RESTORE).added == 2
    assert map_info(other).removed == 0


def test_an_older_map_knows_its_edits_when_it_is_upgraded(tmp_path: Path) -> None:
    """Those of positions, which its checksums tell."""
    path = make_format_5(tmp_path / "old.gpkg", 3)
    edit(path, "UPDATE photos SET geom = ? WHERE fid = 2", gpkg.point_blob(ELSEWHERE))
    edited = [(), ("latlon",), ()]
    with open_map_file(path) as file:
        assert file.manifest.format == 5
        assert [entry.edited for entry in file.entries().values()] == edited
    with open_map_file(path, write=True) as file:
        assert file.manifest.format == 6
        assert [entry.edited for entry in file.entries().values()] == edited
    assert_indexed(path)
    delete_row = "DELETE FROM photos WHERE fid = 3"
    edit(path, delete_row)
    with open_map_file(path) as file:
        assert file.removed([photo(n).sha256 for n in range(3)]) == {photo(2).sha256}
    assert verify_map(path) == []


def test_gdal_reads_the_r_tree(tmp_path: Path) -> None:
    """It answers whether a layer has a spatial index, and finds the photos in a box."""
    path = make_map(tmp_path / "town.gpkg", 5)
    answered = pyogrio.raw.read(path, sql="SELECT HasSpatialIndex('photos', 'geom')", sql_dialect="SQLITE")[3]
    assert [value.tolist() for value in answered] == [[1]]
    lat, lon = geotag_of(2).latlon
    found = pyogrio.raw.read(path, layer="photos", bbox=(lon - 1e-5, lat - 1e-5, lon + 1e-5, lat + 1e-5))
    assert found[3][0].tolist() == ["0002.jpg"]


def test_rows_are_deleted_without_the_functions_of_a_gis_program(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 3)
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("DELETE FROM photos WHERE fid = 2")
        plain.commit()
    assert indexed(path).keys() == {1, 3}
    assert_indexed(path)
