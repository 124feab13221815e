"""Building a map: every photo once, nothing twice, what cannot go in is listed, and what was stopped goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.maps.small_town import build_map, geotag_of, tiny_model, write_photo, write_town

from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.maps import (
    Box,
    Circle,
    MapManifest,
    PlaceMap,
    add_photos,
    copy_map,
    map_info,
    open_map_file,
    open_or_create_store,
    open_store,
    remove_photos,
)
from sareloc.models import PlaceModel
from sareloc.photos import Geotag, decode, exif_bytes, make_utm_name, sidecar_path, sidecar_with_geotag


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


def contents(path: Path) -> dict[str, tuple[bytes, bytes]]:
    """For each file its content hash and the bytes of its descriptor."""
    with open_map_file(path) as file:
        rows = file.query("SELECT file, sha256, descriptor FROM photos JOIN descriptors USING (fid)")
        assert len(rows) == len(file.photos()[0])
    return {name: (digest, descriptor) for name, digest, descriptor in rows}


def count_described(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    encode = PlaceModel.encode

    def counted(self: PlaceModel, images: torch.Tensor, **options: Any) -> torch.Tensor:
        sizes.append(len(images))
        return encode(self, images, **options)

    monkeypatch.setattr(PlaceModel, "encode", counted)
    return sizes


def test_every_photo_is_found_again_where_it_was_taken(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_town(tmp_path / "photos", 11)
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, batch=4)
    assert (report.added, report.already, report.untagged, report.unreadable) == (11, 0, (), ())
    town = PlaceMap(tmp_path / "town.gpkg")
    town.check_model(model)
    matches = town.search(model.encode([decode(path) for path in paths]).numpy(), 1)
    assert [town.photo_path(files[0]) for files in matches.files] == paths
    np.testing.assert_allclose(matches.latlon[:, 0], [geotag_of(number).latlon for number in range(11)], atol=1e-9)
    assert (matches.distances < 0.01).all()
    with open_map_file(town.path) as file:
        assert file.query("SELECT time, heading_deg, width, height FROM photos WHERE file LIKE '%0002.jpg'") == [
            ("2023-11-14T22:13:22.000Z", 2.0, 72, 64)
        ]


def test_the_same_command_again_does_nothing(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_town(tmp_path / "photos", 6)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    before = contents(tmp_path / "town.gpkg")
    sizes = count_described(monkeypatch)
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    assert (report.added, report.already, sizes) == (0, 6, [])
    write_photo(tmp_path / "photos" / "later.jpg", 77)
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    assert (report.added, report.already, sizes) == (1, 6, [1])
    assert contents(tmp_path / "town.gpkg").items() > before.items()


def test_unchanged_files_are_not_even_read(model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_town(tmp_path / "photos", 3)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    monkeypatch.setattr("sareloc.maps.writer.examine", None)
    assert build_map(tmp_path / "photos", tmp_path / "town.gpkg", model).already == 3


def test_photos_that_cannot_go_in_are_listed(model: PlaceModel, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    paths = write_town(folder, 4)
    untagged = write_photo(folder / "nowhere.jpg", 50, tagged=False)
    broken = folder / "broken.jpg"
    broken.write_bytes(b"no photo")
    cut = write_photo(folder / "cut.jpg", 51)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    for _ in range(2):  # the second run says the same
        report = build_map(folder, tmp_path / "town.gpkg", model, batch=2)
        assert report.untagged == (str(untagged),)
        assert sorted(error.photo for error in report.unreadable) == [str(broken), str(cut)]
        assert report.added + report.already == 4
    assert set(contents(tmp_path / "town.gpkg")) == {f"photos/{path.name}" for path in paths}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_photo_without_its_last_bytes_is_used_with_a_note(workers: int, model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    cut = tmp_path / "photos" / "cut.jpg"
    Image.fromarray(noise).save(cut, exif=exif_bytes(geotag_of(7)))
    cut.write_bytes(cut.read_bytes()[: int(cut.stat().st_size * 0.97)])
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, workers=workers)
    assert (report.added, report.unreadable) == (3, ())
    (note,) = report.notes
    assert str(cut) in note
    assert "truncated" in note


@pytest.mark.parametrize("kind", ["file", "milvus"])
def test_a_name_that_is_not_utf8_is_listed_and_stops_nothing(kind: str, model: PlaceModel, tmp_path: Path) -> None:
    folder, out = tmp_path / "photos", where_to(kind, tmp_path)
    write_town(folder, 2)
    odd = [write_photo(folder / os.fsdecode(name), 50) for name in (b"caf\xe9.jpg", b"\xff/a.jpg")]
    (folder / "geotags.csv").write_bytes(b"file;lat;lon\ncaf\xe9.jpg;48,8;2,3\n0000.jpg;48,9;2,3\n")
    for _ in range(2):
        report = build_map(folder, out, model)
        assert report.added + report.already == 2
        assert sorted(error.photo for error in report.unreadable) == sorted(map(str, odd))
        assert all("UTF-8" in error.reason for error in report.unreadable)


def test_a_map_may_lie_in_a_folder_whose_name_is_not_utf8(model: PlaceModel, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_town(folder / "photos", 2)
    assert build_map(folder / "photos", folder / "town.gpkg", model).added == 2


@pytest.mark.parametrize("year", [2400, 1950])
@pytest.mark.parametrize("kind", ["file", "milvus"])
def test_a_file_dated_far_from_today_stops_nothing(kind: str, year: int, model: PlaceModel, tmp_path: Path) -> None:
    paths, out = write_town(tmp_path / "photos", 2), where_to(kind, tmp_path)
    seconds = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    os.utime(paths[0], (seconds, seconds))
    if paths[0].stat().st_mtime != seconds:
        pytest.skip("this file system does not hold such a date")
    assert build_map(paths[0].parent, out, model).added == 2
    report = build_map(paths[0].parent, out, model)
    assert (report.added, report.updated, report.already) == (0, 0, 2)


def test_the_same_photo_under_two_names_goes_in_once(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_town(tmp_path / "photos", 3)
    shutil.copy(paths[1], tmp_path / "photos" / "copy.jpg")
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    assert (report.added, report.already, report.duplicates, report.conflicts) == (3, 0, 1, ())
    shutil.copy(paths[2], tmp_path / "photos" / "another.jpg")
    for given in (tmp_path / "photos", [tmp_path / "photos", paths[0]]):  # a file given twice is one file
        report = build_map(given, tmp_path / "town.gpkg", model)
        assert (report.added, report.already, report.duplicates) == (0, 3, 2)
    assert "photos/0002.jpg" in contents(tmp_path / "town.gpkg")


def test_a_file_that_changed_replaces_its_photo(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_town(tmp_path / "photos", 3)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    before = contents(tmp_path / "town.gpkg")
    write_photo(paths[1], 1234)
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    assert (report.added, report.updated, report.already) == (0, 1, 2)
    after = contents(tmp_path / "town.gpkg")
    assert before["photos/0001.jpg"] != after["photos/0001.jpg"]
    assert {**before, "photos/0001.jpg": after["photos/0001.jpg"]} == after


def test_moved_and_renumbered_photos_are_known_by_their_content(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_town(tmp_path / "old", 4)
    build_map(tmp_path / "old", tmp_path / "town.gpkg", model)
    before = contents(tmp_path / "town.gpkg")
    (tmp_path / "old").rename(tmp_path / "new")
    twin = shutil.copy(tmp_path / "new" / "0000.jpg", tmp_path / "new" / "twin.jpg")
    sizes = count_described(monkeypatch)
    report = build_map(tmp_path / "new", tmp_path / "town.gpkg", model)
    assert (report.added, report.updated, report.already, report.duplicates) == (0, 4, 0, 1)
    assert contents(tmp_path / "town.gpkg") == {name.replace("old", "new"): value for name, value in before.items()}
    assert sizes == []
    twin.unlink()
    moved = [tmp_path / "new" / path.name for path in paths]
    moved[3].unlink()
    for number in (2, 1, 0):  # every photo gets the next number
        moved[number].rename(moved[number + 1])
    build_map(tmp_path / "new", tmp_path / "town.gpkg", model)
    after = contents(tmp_path / "town.gpkg")
    assert after == {f"new/{n + 1:04d}.jpg": before[f"old/{n:04d}.jpg"] for n in range(3)}


def test_a_touched_file_is_the_same_photo(model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_town(tmp_path / "photos", 2)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    os.utime(paths[0], ns=(5, 5))
    assert build_map(tmp_path / "photos", tmp_path / "town.gpkg", model).already == 2
    monkeypatch.setattr("sareloc.maps.writer.examine", None)
    assert build_map(tmp_path / "photos", tmp_path / "town.gpkg", model).already == 2


def test_positions_come_from_a_table_or_from_file_names(model: PlaceModel, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    named = write_photo(folder / make_utm_name(geotag_of(5)), 5, tagged=False)
    write_photo(folder / "a.jpg", 6, tagged=False)
    write_photo(folder / "b.jpg", 7)
    (folder / "geotags.csv").write_text("file,lat,lon,heading\na.jpg,10,20,90\nb.jpg,11,21,\n")
    assert build_map(folder, tmp_path / "one.gpkg", model).added == 3
    one = dict(zip(PlaceMap(tmp_path / "one.gpkg").files, PlaceMap(tmp_path / "one.gpkg").latlon.tolist(), strict=True))
    assert one["photos/a.jpg"] == [10, 20]
    assert one["photos/b.jpg"] == [11, 21]
    np.testing.assert_allclose(one[f"photos/{named.name}"], geotag_of(5).latlon, atol=1e-6)
    table = tmp_path / "elsewhere.csv"
    table.write_text("file;lat;lon\nphotos/a.jpg;-1;-2\n")
    assert build_map(folder / "a.jpg", tmp_path / "two.gpkg", model, geotags=table).added == 1
    assert PlaceMap(tmp_path / "two.gpkg").latlon.tolist() == [[-1, -2]]


def test_photos_outside_the_maps_folder_keep_their_whole_path(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_town(tmp_path / "photos", 2)
    build_map(tmp_path / "photos", tmp_path / "maps" / "town.gpkg", model)
    town = PlaceMap(tmp_path / "maps" / "town.gpkg")
    assert town.files == tuple(path.as_posix() for path in paths)
    assert town.photo_path(town.files[1]) == paths[1]


def test_a_map_and_its_photos_travel_together(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_town(tmp_path / "here" / "photos", 3)
    monkeypatch.chdir(tmp_path)
    build_map("here/photos", "here/town.gpkg", model)
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.setattr("sareloc.maps.writer.examine", None)
    monkeypatch.chdir(tmp_path / "there")
    assert build_map("photos", "town.gpkg", model).already == 3
    assert PlaceMap("town.gpkg").photo_path("photos/0000.jpg").is_file()


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_other_storage(model: PlaceModel, tmp_path: Path, storage: str) -> None:
    paths = write_town(tmp_path / "photos", 3)
    build_map(paths, tmp_path / "town.gpkg", model, storage=storage)  # type: ignore[arg-type]
    town = PlaceMap(tmp_path / "town.gpkg")
    assert town.manifest.storage == storage
    matches = town.search(model.encode([decode(path) for path in paths]).numpy(), 1)
    assert [files[0] for files in matches.files] == [f"photos/{path.name}" for path in paths]
    assert (matches.distances < 0.03).all()


def test_add_takes_the_maps_own_settings(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 3)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, storage="int8")
    extra = write_photo(tmp_path / "more" / "x.jpg", 30)
    report = add_photos([extra, tmp_path / "photos"], tmp_path / "town.gpkg", model)
    assert (report.added, report.already) == (1, 3)
    with pytest.raises(MapError, match="does not exist"):
        add_photos(extra, tmp_path / "absent.gpkg", model)


def test_a_map_of_another_model_or_other_settings_is_not_added_to(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    path = tmp_path / "town.gpkg"
    build_map(tmp_path / "photos", path, model)
    before = contents(path)
    other = tiny_model(seed=2)
    with pytest.raises(MapError, match=f"built by model {model.fingerprint()} .* this is model {other.fingerprint()}"):
        build_map(tmp_path / "photos", path, other)
    with pytest.raises(MapError, match="float16, not 256 as int8"):
        build_map(tmp_path / "photos", path, model, storage="int8")
    assert contents(path) == before


def test_an_empty_folder_makes_no_map(model: PlaceModel, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(PhotoError, match="photos: holds no photos"):
        build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    with pytest.raises(PhotoError, match="no such folder"):
        build_map(tmp_path / "absent", tmp_path / "town.gpkg", model)
    assert not (tmp_path / "town.gpkg").exists()


def test_out_that_is_no_map_is_left_alone(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 1)
    (tmp_path / "notes.gpkg").write_text("my notes" * 100)
    with pytest.raises(MapError, match="not a map"):
        build_map(tmp_path / "photos", tmp_path / "notes.gpkg", model)
    assert (tmp_path / "notes.gpkg").read_text() == "my notes" * 100


def test_remove_by_name_pattern_and_area(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 20)
    path = tmp_path / "town.gpkg"
    build_map(tmp_path / "photos", path, model)
    assert len(remove_photos(path, files=["0003.jpg"])) == 1
    assert len(remove_photos(path, files=["0003.jpg", "nothing*"])) == 0
    assert len(remove_photos(path, files=["photos/001?.jpg"])) == 10
    assert len(remove_photos(path, area=Circle(geotag_of(0).latlon, 12))) == 2
    box = Box(geotag_of(4).latlon[0] - 1e-6, -180, geotag_of(6).latlon[0] + 1e-6, 180)
    assert len(remove_photos(path, area=box, files=["0005*", "0009*"])) == 1
    assert PlaceMap(path).files == tuple(f"photos/000{n}.jpg" for n in (2, 4, 6, 7, 8, 9))
    with pytest.raises(ArgumentError, match="files or an area"):
        remove_photos(path)


def geotags(path: str | Path) -> dict[str, Geotag]:
    with open_store(path) as store:
        return {Path(photo.file).name: photo.geotag for photos, _ in store.records() for photo in photos}


def where_to(kind: str, tmp_path: Path) -> str | Path:
    if kind == "milvus":
        pytest.importorskip("milvus_lite")
        return f"milvus-lite:{tmp_path}/lite.db/town"
    return tmp_path / "town.gpkg"


@pytest.mark.parametrize("kind", ["file", "milvus"])
def test_corrected_positions_are_updated_and_descriptors_kept(
    kind: str, model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "photos", where_to(kind, tmp_path)
    for number in range(3):
        write_photo(folder / f"{number}.jpg", number, tagged=False)
    table = folder / "geotags.csv"
    table.write_text("file,lat,lon,heading\n0.jpg,10,20,90\n1.jpg,11,21,\n2.jpg,12,22,5\n")
    build_map(folder, out, model)
    with open_store(out) as store:
        before = {
            photo.sha256: vector for photos, rows in store.records() for photo, vector in zip(photos, rows, strict=True)
        }
    sizes = count_described(monkeypatch)
    table.write_text("file,lat,lon,heading\n0.jpg,10,20,90\n1.jpg,11.5,21,\n2.jpg,12,22,6\n")
    report = build_map(folder, out, model)
    assert (report.added, report.updated, report.already, sizes) == (0, 2, 1, [])
    assert geotags(out) == {"0.jpg": Geotag((10, 20), 90), "1.jpg": Geotag((11.5, 21)), "2.jpg": Geotag((12, 22), 6)}
    with open_store(out) as store:
        for photos, rows in store.records():
            for photo, vector in zip(photos, rows, strict=True):
                np.testing.assert_array_equal(vector, before[photo.sha256])
    other = tmp_path / "corrected.csv"
    other.write_text("file,lat,lon\nphotos/0.jpg,-10,-20\n")
    report = add_photos([folder / "0.jpg"], out, model, geotags=other)
    assert (report.updated, report.already, geotags(out)["0.jpg"]) == (1, 0, Geotag((-10, -20)))
    assert add_photos([folder / "0.jpg"], out, model, geotags=other).already == 1
    if kind == "file":
        assert map_info(out).extent == Box(-10, -20, 12, 22)


def test_a_corrected_exif_position_replaces_the_old_one(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_town(tmp_path / "photos", 2)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    with Image.open(paths[1]) as image:
        image.save(paths[1], quality=90, exif=exif_bytes(geotag_of(70)))
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    assert (report.added, report.updated, report.already) == (0, 1, 1)
    assert geotags(tmp_path / "town.gpkg")["0001.jpg"].latlon == pytest.approx(geotag_of(70).latlon, abs=1e-6)
    assert len(PlaceMap(tmp_path / "town.gpkg")) == 2


def test_a_corrected_sidecar_updates_a_photo_that_has_not_changed(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = write_photo(tmp_path / "photos" / "a.png", 1, tagged=False)
    sidecar = sidecar_path(photo)
    sidecar.write_bytes(sidecar_with_geotag(photo, Geotag((10, 20))))
    build_map(photo.parent, tmp_path / "town.gpkg", model)
    sidecar.write_bytes(sidecar_with_geotag(photo, Geotag((11, 20), 45.0)))
    sizes = count_described(monkeypatch)
    report = build_map(photo.parent, tmp_path / "town.gpkg", model)
    assert (report.added, report.updated, sizes) == (0, 1, [])
    assert geotags(tmp_path / "town.gpkg") == {"a.png": Geotag((11, 20), 45.0)}
    assert build_map(photo.parent, tmp_path / "town.gpkg", model).already == 1


def test_a_corrected_takeout_json_updates_a_photo_that_has_not_changed(model: PlaceModel, tmp_path: Path) -> None:
    photo = write_photo(tmp_path / "photos" / "a.png", 1, tagged=False)
    sidecar = photo.with_name("a.png.supplemental-metadata.json")
    for latitude, counts in ((10, (1, 0, 0)), (11, (0, 1, 0)), (11, (0, 0, 1))):
        sidecar.write_text(f'{{"geoData": {{"latitude": {latitude}, "longitude": 20}}}}')
        report = build_map(photo.parent, tmp_path / "town.gpkg", model)
        assert (report.added, report.updated, report.already) == counts
        assert geotags(tmp_path / "town.gpkg") == {"a.png": Geotag((latitude, 20))}


def test_duplicates_with_another_position_are_named(model: PlaceModel, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    first = write_photo(folder / "a.jpg", 1, tagged=False)
    copies = [folder / name for name in ("b.jpg", "c.jpg")]
    for copy in copies:
        shutil.copy(first, copy)
    (folder / "geotags.csv").write_text("file,lat,lon\na.jpg,10,20\nb.jpg,10.001,20\nc.jpg,10,20\n")
    for _ in range(2):  # the second run says the same, of photos that are in the map
        report = build_map(folder, tmp_path / "town.gpkg", model)
        assert (report.added + report.already, report.duplicates) == (1, 2)
        (conflict,) = report.conflicts
        assert (Path(conflict.photo).name, Path(conflict.kept).name) == ("b.jpg", "a.jpg")
        assert conflict.distance_m == pytest.approx(110.6, abs=0.1)
    assert PlaceMap(tmp_path / "town.gpkg").latlon.tolist() == [[10, 20]]


def test_photos_that_are_gone_are_listed_and_stay(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_town(tmp_path / "photos", 4)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    paths[2].unlink()
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    assert (report.already, report.gone) == (3, ("photos/0002.jpg",))
    assert map_info(tmp_path / "town.gpkg").gone == ("photos/0002.jpg",)
    assert len(PlaceMap(tmp_path / "town.gpkg")) == 4


@pytest.mark.parametrize(
    ("kind", "fault"), [("file", "untagged"), ("file", "unreadable"), ("file", "stopped"), ("milvus", "stopped")]
)
def test_a_first_build_that_fails_leaves_no_map(
    kind: str, fault: str, model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, photo = where_to(kind, tmp_path), write_photo(tmp_path / "photos" / "a.jpg", 1, tagged=fault != "untagged")
    if fault == "unreadable":
        photo.write_bytes(
            photo.read_bytes()[: photo.stat().st_size // 2]
        )  # what this lacks is missed only when all of it is decoded

    def stop(*images: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if fault == "stopped":
            patched.setattr(PlaceModel, "encode", stop)
            with pytest.raises(KeyboardInterrupt):
                build_map(photo.parent, out, model)
        else:
            report = build_map(photo.parent, out, model)
            assert report.added == 0
            assert len(report.untagged) + len(report.unreadable) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    write_photo(photo, 1)
    assert build_map(photo.parent, out, model).added == 1


def test_an_empty_map_that_was_there_stays(model: PlaceModel, tmp_path: Path) -> None:
    write_photo(tmp_path / "photos" / "a.jpg", 1, tagged=False)
    path = tmp_path / "town.gpkg"
    with open_or_create_store(path, MapManifest(model.name, model.fingerprint(), model.dim)):
        pass
    assert len(build_map(tmp_path / "photos", path, model).untagged) == 1
    assert len(PlaceMap(path)) == 0


@pytest.mark.parametrize("name", ["town.txt", "town", "town.gpkg.bak"])
def test_a_name_that_no_program_knows_as_a_geopackage_is_refused(name: str, model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 1)
    with pytest.raises(ArgumentError, match=r"\.gpkg"):
        build_map(tmp_path / "photos", tmp_path / name, model)
    build_map(tmp_path / "photos", tmp_path / "town.GPKG", model)
    with pytest.raises(ArgumentError, match=r"\.gpkg"):
        copy_map(tmp_path / "town.GPKG", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "town.GPKG"]


CREATE_AT_ONCE = """
import sys
import numpy as np
from sareloc.photos import Geotag
from sareloc import maps
from sareloc.maps import MapManifest, schema
from sareloc.maps import MapPhoto
create = schema.create_map_file
def create_at_once(path, manifest):
    print("ready", flush=True)  # there is no map, and this process is about to create one
    sys.stdin.readline()
    create(path, manifest)
schema.create_map_file = create_at_once
with maps.open_or_create_store(sys.argv[1], MapManifest("tiny", "0" * 16, 4)) as town:
    photo = MapPhoto(sys.argv[2], Geotag((1, 2)), 8, 8, sys.argv[2].encode(), 1, 1)
    print(town.add([photo], np.full((1, 4), 0.5, dtype=np.float32)), flush=True)
"""


def test_two_processes_that_create_one_map_at_once_both_continue_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE_AT_ONCE, tmp_path / "town.gpkg", name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one.jpg", "two.jpg")
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    ends = [process.communicate("go\n", timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert [out for out, _ in ends] == ["1\n", "1\n"]
    assert sorted(PlaceMap(tmp_path / "town.gpkg").files) == ["one.jpg", "two.jpg"]
