"""The map on disk: what is in it, who may open it, and what everything else is told."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyogrio
import pytest
from tests.conftest import make_read_only
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import geotag_of, gis

from sareloc.errors import ArgumentError, MapError
from sareloc.maps import (
    MapFile,
    MapManifest,
    MapPhoto,
    PlaceMap,
    compact_map,
    create_map_file,
    file_reader,
    open_map_file,
    open_or_create_store,
    verify_map,
)
from sareloc.maps import schema as opening
from sareloc.maps.records import entry_of
from sareloc.maps.rows import PACKINGS

DIM = 32
TINY = MapManifest("tiny", "0123456789abcdef", DIM)


def photo(number: int) -> MapPhoto:
    digest = hashlib.sha256(str(number).encode()).digest()
    return MapPhoto(f"{number:04d}.jpg", geotag_of(number), 640, 480, digest, 1000 + number, number)


def make_map(path: Path, count: int = 0, manifest: MapManifest = TINY) -> Path:
    create_map_file(path, manifest)
    with open_map_file(path, write=True) as file:
        file.add([photo(number) for number in range(count)], unit_vectors(count, dim=manifest.dim) if count else EMPTY)
    return path


EMPTY = np.zeros((0, DIM), dtype=np.float32)


def test_gdal_reads_the_map_without_a_warning(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 5)
    assert {tuple(row) for row in pyogrio.list_layers(path)} == {
        ("photos", "Point"),
        ("descriptors", None),
        ("file_geotags", None),
        ("local_features", None),
        ("manifest", None),
    }
    meta, _, geometry, columns = pyogrio.raw.read(path, layer="photos")
    table = dict(zip(meta["fields"], columns, strict=True))
    assert list(table) == [
        "file",
        "time",
        "heading_deg",
        "width",
        "height",
        "sha256",
        "size_bytes",
        "modified_ns",
        "descriptor_checksum",
        "photo_checksum",
        "features_checksum",
    ]
    assert table["file"].tolist() == [f"{number:04d}.jpg" for number in range(5)]
    assert table["heading_deg"].tolist() == [0, 1, 2, 3, 4]
    assert str(table["time"][0]).startswith("2023-11-14T22:13:20")
    lonlat = np.array([np.frombuffer(wkb[5:], "<f8") for wkb in geometry])
    np.testing.assert_array_equal(lonlat[:, ::-1], [geotag_of(number).latlon for number in range(5)])
    descriptors = pyogrio.raw.read(path, layer="descriptors")[3][0]
    np.testing.assert_allclose(np.frombuffer(descriptors[2], "<f2"), unit_vectors(5)[2], atol=1e-3)
    manifest = pyogrio.raw.read(path, layer="manifest")[3]
    assert dict(zip(*manifest, strict=True))["fingerprint"] == "0123456789abcdef"
    extent = pyogrio.read_info(path, layer="photos", force_total_bounds=True)["total_bounds"]
    np.testing.assert_allclose(extent, (*geotag_of(0).latlon[::-1], *geotag_of(4).latlon[::-1]))


def test_a_photo_of_512_dimensions_takes_1500_bytes_and_its_name(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 3000, replace(TINY, dim=512))
    names = 3000 * len("0000.jpg")
    fixed = make_map(tmp_path / "empty.gpkg", 0, replace(TINY, dim=512)).stat().st_size
    assert (path.stat().st_size - names - fixed) / 3000 <= 1500


@pytest.mark.parametrize("storage", ["float16", "float32", "int8"])
def test_descriptors_come_back(tmp_path: Path, storage: str) -> None:
    vectors = unit_vectors(50)
    path = make_map(tmp_path / "town.gpkg", 50, replace(TINY, storage=storage))
    with open_map_file(path) as file:
        ids = file.photos()[0]
        ((found_ids, found),) = file.descriptors(ids[10:40])
    assert found_ids.tolist() == ids[10:40].tolist()
    tolerance = {"float16": 2.5e-4, "float32": 0, "int8": np.abs(vectors).max() / 127}[storage]
    np.testing.assert_allclose(found, vectors[10:40], atol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)


@pytest.mark.parametrize("storage", sorted(PACKINGS))
def test_packed_sizes_are_as_documented_and_zeros_survive(storage: str) -> None:
    packing = PACKINGS[storage]
    vectors = np.concatenate([unit_vectors(3), np.zeros((1, DIM), dtype=np.float32)])
    blobs = packing.pack(vectors)
    assert [len(blob) for blob in blobs] == [packing.size(DIM)] * 4
    assert (packing.unpack(blobs, DIM)[3] == 0).all()


def test_more_rows_than_one_read_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reader, "PART", 7)
    with open_map_file(make_map(tmp_path / "town.gpkg", 30)) as file:
        ids = file.photos()[0]
        parts = list(file.descriptors(ids))
        assert [len(part) for part, _ in parts] == [7, 7, 7, 7, 2]
        np.testing.assert_allclose(np.concatenate([rows for _, rows in parts]), unit_vectors(30), atol=1e-3)


def test_the_same_content_is_taken_once_and_ids_never_come_back(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 3)
    with open_map_file(path, write=True) as file:
        again = replace(photo(1), file="copy.jpg")
        assert file.add([again, photo(3)], unit_vectors(2)) == 1
        ids, _, files = file.photos()
        assert files == ("0000.jpg", "0001.jpg", "0002.jpg", "0003.jpg")
        assert file.remove(np.array([ids[3], ids[1], 99])) == 2
        assert file.add([photo(7)], unit_vectors(1)) == 1
        left, _, files = file.photos()
        assert files == ("0000.jpg", "0002.jpg", "0007.jpg")
        assert left[:2].tolist() == [ids[0], ids[2]]
        assert left[2] > ids[3]
        assert [fid for (fid,) in file.query("SELECT fid FROM descriptors")] == left.tolist()


def test_two_maps_that_continue_one_backup_share_no_new_ids(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 3)
    backup = Path(shutil.copy(path, tmp_path / "backup.gpkg"))
    found = []
    for one, numbers in ((path, range(10, 20)), (backup, range(20, 30))):
        with open_map_file(one, write=True) as file:
            for number in numbers:
                file.add([photo(number)], unit_vectors(1, seed=number))
            ids = file.photos()[0]
            assert ids[:3].tolist() == [1, 2, 3]
            assert np.diff(ids[3:]).tolist() == [1] * 9  # one gap for one writer
            found.append(set(ids[3:].tolist()))
    assert not found[0] & found[1]
    assert max(found[0] | found[1]) < 2**33


def test_every_change_draws_a_new_change_id(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg")
    seen = []
    with open_map_file(path, write=True) as file, open_map_file(path) as reader:
        for change in (
            lambda: file.add([photo(0), photo(1)], unit_vectors(2)),
            lambda: file.update([entry_of(replace(photo(0), file="other.jpg"), 1)]),
            lambda: file.write_note("calibration", "{}"),
            lambda: file.remove(np.array([1])),
        ):
            seen.append(reader.change_id())
            change()
            assert reader.change_id() == file.change_id() != seen[-1]
        seen.append(file.change_id())
        with pytest.raises(MapError):
            file.add([photo(5), replace(photo(6), width={})], unit_vectors(2))  # type: ignore[arg-type]
        assert file.change_id() == seen[-1]
    assert len(set(seen)) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", change_id) for change_id in seen)


RTREE = "rtree_photos_geom"
TRIGGERS = ["insert", "update1", "update2", "update3", "update4", "delete"]


TO_FORMAT_5 = (
    "".join(f"DROP TRIGGER {RTREE}_{name};" for name in TRIGGERS) + f"DROP TABLE {RTREE}; DROP TABLE file_geotags;"
    "DROP TABLE gpkg_extensions; DELETE FROM gpkg_contents WHERE table_name = 'file_geotags';"
    "UPDATE manifest SET value = '5' WHERE key = 'format'"
)


def make_format_5(path: Path, count: int) -> Path:
    """A map as earlier versions made them: without the geotags by files and an R-tree."""
    make_map(path, count)
    break_map(path, TO_FORMAT_5)
    return path


def make_format_3(path: Path, count: int) -> Path:
    """A map as still earlier versions made them: its local features are not bound to its photos."""
    make_format_5(path, count)
    break_map(
        path,
        "ALTER TABLE photos DROP COLUMN features_checksum; DELETE FROM manifest WHERE key LIKE 'aggregate%';"
        "UPDATE manifest SET value = '3' WHERE key = 'format'",
    )
    return path


def make_format_2(path: Path, count: int) -> Path:
    """A map as still earlier versions made them: without local features."""
    make_format_3(path, count)
    break_map(
        path,
        "DROP TRIGGER photos_forget_features; DROP TABLE local_features; "
        "DELETE FROM gpkg_contents WHERE table_name = 'local_features'; "
        "UPDATE manifest SET value = '2' WHERE key = 'format'",
    )
    return path


def make_format_1(path: Path, count: int) -> Path:
    """A map as the first versions made them: also without checksums and change id."""
    make_format_2(path, count)
    break_map(
        path,
        "DROP TRIGGER photos_edited; ALTER TABLE photos DROP COLUMN photo_checksum; "
        "ALTER TABLE photos DROP COLUMN descriptor_checksum; DELETE FROM manifest WHERE key = 'change_id';"
        "UPDATE manifest SET value = '1' WHERE key = 'format'",
    )
    return path


def test_a_map_of_format_1_is_read_as_it_is_and_upgraded_when_written_to(tmp_path: Path) -> None:
    path, same = make_format_1(tmp_path / "old.gpkg", 30), make_map(tmp_path / "new.gpkg", 30)
    before = path.read_bytes()
    with open_map_file(path) as old, open_map_file(same) as new:
        assert (old.manifest.format, old.change_id()) == (1, "")
        assert old.checksums(old.photos()[0]).tolist() == new.checksums(new.photos()[0]).tolist()
        ids = old.photos()[0]
        ((_, vectors),) = old.descriptors(ids)
        np.testing.assert_allclose(vectors, unit_vectors(30), atol=1e-3)
    assert path.read_bytes() == before
    with open_map_file(path, write=True) as old, open_map_file(path, write=True) as twice:
        assert old.manifest.format == twice.manifest.format == 6
        assert old.change_id() == twice.change_id() != ""
        assert old.add([photo(77)], unit_vectors(1)) == 1
    with open_map_file(path) as old, open_map_file(same) as new:
        assert old.manifest.format == 6
        assert old.checksums(old.photos()[0][:30]).tolist() == new.checksums(new.photos()[0]).tolist()
        assert len(list(old.descriptors(old.photos()[0]))) == 1


def stamps(file: MapFile) -> dict[str, tuple[int, int, int]]:
    return {name: (entry.photo_id, *entry.stamp) for name, entry in file.entries().items()}


def test_a_photo_replaces_the_one_that_had_its_name(tmp_path: Path) -> None:
    with open_map_file(make_map(tmp_path / "town.gpkg", 3), write=True) as file:
        fresh = replace(photo(9), file="0001.jpg", replaces=2)
        assert file.add([fresh], unit_vectors(1)) == 1
        new = int(file.photos()[0][-1])
        assert stamps(file) == {"0000.jpg": (1, 1000, 0), "0002.jpg": (3, 1002, 2), "0001.jpg": (new, 1009, 9)}
        # the photo of 0002.jpg has moved to 0000.jpg, whose own has gone
        file.update([entry_of(replace(photo(2), file="0000.jpg", replaces=1, modified_ns=77), 3)])
        assert stamps(file) == {"0000.jpg": (3, 1002, 77), "0001.jpg": (new, 1009, 9)}
        # "replaces" is out of date: id 3 has another name than this by now
        file.update([entry_of(replace(photo(9), file="0003.jpg", replaces=3), new)])
        assert [row[0] for row in stamps(file).values()] == [3, new]


def extent(path: Path) -> tuple[float, ...]:
    """As GIS programs read it: west, south, east, north."""
    with open_map_file(path) as file:
        return tuple(file.query("SELECT min_x, min_y, max_x, max_y FROM gpkg_contents WHERE table_name = 'photos'")[0])


def box_of(*numbers: int) -> tuple[float, ...]:
    lonlat = np.array([geotag_of(number).latlon[::-1] for number in numbers])
    return (*lonlat.min(axis=0).tolist(), *lonlat.max(axis=0).tolist())


def test_the_extent_and_a_spatial_index_follow_positions_that_are_corrected(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 5)
    assert extent(path) == box_of(0, 4)
    with open_map_file(path, write=True) as file:
        entry = file.entries()["0004.jpg"]
        file.update([replace(entry, geotag=geotag_of(2))])  # it was on the border
    assert extent(path) == box_of(0, 3)
    with open_map_file(path, write=True) as file:
        file.update([replace(entry, geotag=geotag_of(9))])
        (indexed,) = file.query("SELECT minx, maxx, miny, maxy FROM rtree_photos_geom WHERE id = 5")
    lat, lon = geotag_of(9).latlon
    assert indexed == pytest.approx((lon, lon, lat, lat), abs=1e-5)
    assert extent(path) == box_of(0, 9)
    with open_map_file(path, write=True) as file:
        file.add([replace(photo(3), file="0004.jpg", replaces=5, sha256=photo(77).sha256)], unit_vectors(1, seed=3))
    assert extent(path) == box_of(0, 3)
    with open_map_file(path, write=True) as file:
        file.remove(file.photos()[0])
    assert extent(path) == (None,) * 4


def test_points_deleted_in_qgis_take_their_descriptors_along(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 3)
    with closing(gis(path)) as qgis:
        qgis.execute("DELETE FROM photos WHERE fid = 2")
        qgis.commit()
    with open_map_file(path) as file:
        assert file.query("SELECT fid FROM descriptors") == [(1,), (3,)]


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 1)
    broken = replace(photo(6), width={})  # type: ignore[arg-type]
    with open_map_file(path, write=True) as file:
        with pytest.raises(MapError, match="cannot be used"):
            file.add([photo(5), broken], unit_vectors(2))
        assert file.photos()[0].tolist() == [1]
        assert file.add([photo(5)], unit_vectors(1)) == 1


def test_notes_travel_with_the_map(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg")
    with open_map_file(path, write=True) as file:
        file.write_note("calibration", "first")
        file.write_note("calibration", "second")
        file.write_note("100%_other", "x")
    with open_map_file(path) as file:
        assert file.notes() == {"calibration": "second", "100%_other": "x"}
        assert file.manifest.fingerprint == TINY.fingerprint


def test_reading_while_another_writes(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 3)
    with open_map_file(path) as reader, open_map_file(path, write=True) as writer:
        with reader.snapshot():
            assert len(reader.photos()[0]) == 3
            writer.add([photo(5)], unit_vectors(1))
            assert len(reader.photos()[0]) == 3
        assert len(reader.photos()[0]) == 4
        assert len(list(tmp_path.iterdir())) == 3  # the write-ahead log and its index
    assert [file.name for file in tmp_path.iterdir()] == ["town.gpkg"]
    with closing(gis(path)) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_the_file_alone_copied_after_a_batch_is_a_map_of_all_batches(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg")
    (tmp_path / "copies").mkdir()
    with open_map_file(path, write=True) as writer, open_map_file(path) as reader:
        for batch in range(5):
            numbers = range(100 * batch, 100 * batch + 100)
            writer.add([photo(number) for number in numbers], unit_vectors(100, seed=batch))
            copied = Path(shutil.copy(path, tmp_path / "copies" / f"{batch}.gpkg"))
            assert verify_map(copied) == []
            with open_map_file(copied) as copy:
                assert copy.photos()[2] == tuple(f"{number:04d}.jpg" for number in range(numbers.stop))
            with open_map_file(copied, write=True) as copy:
                assert copy.add([photo(9999)], unit_vectors(1)) == 1
        with reader.snapshot():
            assert reader.count() == 500
            writer.add([photo(1000)], unit_vectors(1))  # a reader in the middle of something is not waited for
            assert reader.count() == 500
        writer.write_note("calibration", "{}")
        with open_map_file(Path(shutil.copy(path, tmp_path / "last.gpkg"))) as copy:
            assert (copy.count(), copy.notes()) == (501, {"calibration": "{}"})


@pytest.mark.parametrize("create", [True, False], ids=["a new map", "a map that grows"])
def test_a_full_disk_is_named_and_what_was_acknowledged_is_kept(small_disk: Path, create: bool) -> None:
    path = small_disk / "town.gpkg"
    if create:
        (small_disk / "filler").write_bytes(bytes(40_000))
        with pytest.raises(MapError, match=r"town\.gpkg .*disk is full"):
            create_map_file(path, TINY)
        assert [file.name for file in small_disk.iterdir()] == ["filler"]
        return
    resize(small_disk, 1000)
    create_map_file(path, TINY)
    added = 0
    with open_map_file(path, write=True) as file:
        with pytest.raises(MapError, match=r"town\.gpkg .*disk is full"):  # noqa: PT012
            while added < 10_000:
                numbers = range(added, added + 100)
                file.add([photo(number) for number in numbers], unit_vectors(100))
                added += 100
        resize(small_disk, 4000)
        file.add([photo(20_000)], unit_vectors(1))
    with open_map_file(path) as file:
        assert (file.count(), file.query("PRAGMA integrity_check")) == (added + 1, [("ok",)])


def resize(disk: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


def test_a_read_only_disk_is_named_and_maps_on_it_can_be_read(small_disk: Path) -> None:
    resize(small_disk, 1000)
    path = make_map(small_disk / "town.gpkg", 3)
    make_read_only(small_disk)
    with open_map_file(path) as file:
        assert file.count() == 3
    with pytest.raises(MapError, match=r"town\.gpkg .*read-only"):
        open_map_file(path, write=True)
    with pytest.raises(MapError, match=r"other\.gpkg .*read-only"):
        create_map_file(small_disk / "other.gpkg", TINY)
    with pytest.raises(MapError, match=r"deeper/other\.gpkg .*read-only"):
        create_map_file(small_disk / "deeper" / "other.gpkg", TINY)


def test_a_map_cannot_be_made_where_a_file_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(MapError, match=r"file/town\.gpkg .*not a directory"):
        create_map_file(tmp_path / "file" / "town.gpkg", TINY)


@pytest.mark.parametrize("last", ["reader", "writer"])
def test_the_last_to_close_leaves_one_file(tmp_path: Path, last: str) -> None:
    path = make_map(tmp_path / "town.gpkg", 1)
    reader, writer = open_map_file(path), open_map_file(path, write=True)
    writer.add([photo(5)], unit_vectors(1))
    assert len(reader.photos()[0]) == 2
    for file in (writer, reader) if last == "reader" else (reader, writer):
        file.close()
    assert [file.name for file in tmp_path.iterdir()] == ["town.gpkg"]
    with open_map_file(path) as again:
        assert len(again.photos()[0]) == 2


def test_two_writers_take_turns(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg")

    def write(numbers: range) -> None:
        with open_map_file(path, write=True) as file:
            for number in numbers:
                file.add([photo(number)], unit_vectors(1, seed=number))

    writers = [threading.Thread(target=write, args=(numbers,)) for numbers in (range(40), range(20, 60))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with open_map_file(path) as file:
        assert sorted(file.photos()[2]) == [f"{number:04d}.jpg" for number in range(60)]
        assert len(file.query("SELECT fid FROM descriptors")) == 60


def test_a_writer_that_waits_too_long_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_map(tmp_path / "town.gpkg")
    monkeypatch.setattr(opening, "WAIT_S", 0.05)
    with open_map_file(path, write=True) as first, open_map_file(path, write=True) as second, first._transaction():  # noqa: SIM117
        with pytest.raises(MapError, match="another process has been writing it"):
            second.add([photo(1)], unit_vectors(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_map_in_a_folder_that_may_not_be_written_to_can_be_read(tmp_path: Path) -> None:
    path = make_map(tmp_path / "folder" / "town.gpkg", 2)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with open_map_file(path) as file:
            assert len(file.photos()[0]) == 2
    finally:
        path.parent.chmod(0o755)


def test_readers_cannot_write(tmp_path: Path) -> None:
    with open_map_file(make_map(tmp_path / "town.gpkg")) as file, pytest.raises(MapError, match="read-only"):
        file.add([photo(1)], unit_vectors(1))


def test_a_new_map_never_replaces_one_that_is_there(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 2)
    before = path.read_bytes()
    create_map_file(path, TINY)  # as if another process had been faster
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["town.gpkg"]


def test_unknown_storage_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="unknown storage 'float8': known are float16, float32, int8"):
        create_map_file(tmp_path / "town.gpkg", replace(TINY, storage="float8"))
    assert os.listdir(tmp_path) == []


def break_map(path: Path, sql: str) -> None:
    with closing(gis(path)) as connection:
        connection.executescript(sql)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "UPDATE manifest SET value = '7' WHERE key = 'format'",
            r"has format 7 \(made by sareloc .*\), this sareloc reads formats up to 6",
        ),
        ("DELETE FROM manifest WHERE key = 'format'", "has format None"),
        ("DELETE FROM manifest WHERE key = 'dim'", "its manifest has nothing as dim"),
        (
            "UPDATE manifest SET value = 'many' WHERE key = 'dim'",
            "its manifest has many as dim, expected a number from 1",
        ),
        (
            "UPDATE manifest SET value = 'float8' WHERE key = 'storage'",
            "has float8 as storage, expected one of float16",
        ),
        ("DELETE FROM gpkg_contents WHERE table_name != 'photos'", "not a map of sareloc: its layers are photos"),
        ("PRAGMA application_id = 7", "SQLite file but not a map"),
    ],
)
def test_what_is_almost_a_map_is_reported(tmp_path: Path, sql: str, said: str) -> None:
    path = make_map(tmp_path / "town.gpkg", 1)
    break_map(path, sql)
    with pytest.raises(MapError, match=said):
        open_map_file(path)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(os.path.relpath(path))  # an absolute path may be too long


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


SPECIAL = {"a pipe": make_fifo, "a socket": make_socket, "a device": link_to_device, "a folder": Path.mkdir}


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_map_that_is_not_a_file_is_a_sentence_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "town.gpkg"
    SPECIAL[kind](path)
    for use in (PlaceMap, verify_map, compact_map, lambda path: open_or_create_store(path, TINY)):
        with pytest.raises(MapError, match=f"town.gpkg is {kind}.*expected a file"):
            use(path)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_what_is_beside_a_map_and_no_file_is_named(tmp_path: Path, kind: str, suffix: str) -> None:
    path = make_map(tmp_path / "town.gpkg", 1)
    SPECIAL[kind](path.with_name(f"town.gpkg{suffix}"))
    for write in (False, True):
        with pytest.raises(MapError, match=f"town.gpkg{suffix} is {kind}.*move it away"):
            open_map_file(path, write=write)


@pytest.fixture
def without_rights() -> Iterator[None]:
    """This process may do what anybody may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_map_without_permission_is_reported(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = Path(tempfile.mkdtemp())  # unlike `tmp_path`, in a folder that anybody may search
    try:
        folder.chmod(0o755)
        path = make_map(folder / "town.gpkg", 1)
        (folder / "closed").mkdir(mode=0)
        path.chmod(0)
        request.getfixturevalue("without_rights")
        for closed in (path, folder / "closed" / "town.gpkg"):
            with pytest.raises(MapError, match="permission denied"):
                open_map_file(closed)
        with pytest.raises(MapError, match="permission denied"):
            open_or_create_store(folder / "closed" / "new.gpkg", TINY)
    finally:
        os.seteuid(os.getuid())
        shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="a file whose bytes cannot be read")
def test_a_map_whose_bytes_cannot_be_read_is_reported() -> None:
    with pytest.raises(MapError, match="cannot be read: input/output error"):
        open_map_file("/proc/self/mem")


def test_a_nul_in_the_name_of_a_map_is_reported(tmp_path: Path) -> None:
    for use in (open_map_file, lambda path: open_or_create_store(path, TINY)):
        with pytest.raises(MapError, match="null"):
            use(f"{tmp_path}/a\0b.gpkg")


@pytest.mark.parametrize("make", [make_map, make_format_3, make_format_2])
def test_a_format_that_was_set_back_is_named(tmp_path: Path, make: Callable[[Path, int], Path]) -> None:
    """Else the checksums would not be checked, and the upgrade would add columns that exist."""
    path = make(tmp_path / "town.gpkg", 3)
    with open_map_file(path) as file:
        made = file.manifest.format
    for earlier in range(1, made):
        break_map(path, f"UPDATE manifest SET value = '{earlier}' WHERE key = 'format'")
        for write in (False, True):
            with pytest.raises(MapError, match=f"says format {earlier}, and its tables are of format {made}.*sqlite3"):
                open_map_file(path, write=write)
    break_map(path, f"UPDATE manifest SET value = '{made}' WHERE key = 'format'")  # as told
    assert verify_map(path) == []


def test_what_is_not_a_map_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        MapError, match=r'town\.gpkg does not exist: build one with "sareloc map build PHOTOS --out town.gpkg"'
    ):
        open_map_file(tmp_path / "town.gpkg")
    with pytest.raises(MapError, match="is a folder"):
        open_map_file(tmp_path)
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at closely" * 20)
    with pytest.raises(MapError, match="not a map"):
        open_map_file(text)
    text.write_text("")
    with pytest.raises(MapError, match="not a map"):
        open_map_file(text)


def test_a_truncated_map_is_reported(tmp_path: Path) -> None:
    path = make_map(tmp_path / "town.gpkg", 500)
    cut = tmp_path / "cut.gpkg"
    shutil.copy(path, cut)
    os.truncate(cut, path.stat().st_size // 3)
    with pytest.raises(MapError, match="damaged"), open_map_file(cut) as file:
        list(file.descriptors(file.photos()[0]))


def test_a_photo_without_descriptor_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make_map(tmp_path / "town.gpkg", 3)
    break_map(path, "DELETE FROM descriptors WHERE fid = 2")
    with open_map_file(path) as file:
        assert file.photos()[0].tolist() == [1, 3]
        assert [ids.tolist() for ids, _ in file.descriptors(file.photos()[0])] == [[1, 3]]
        assert file.unusable() == ("photo 2 (0001.jpg): it has no descriptor: remove it and add it again",)
    assert len(PlaceMap(path)) == 2
    assert "photo 2 (0001.jpg): it has no descriptor" in caplog.text


def test_a_map_is_created_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on exFAT, the file system of memory cards."""

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))

    monkeypatch.setattr(os, "link", refuse)
    path = make_map(tmp_path / "town.gpkg", 3)
    assert len(PlaceMap(path)) == 3
    create_map_file(path, TINY)  # what exists stays as it is
    assert len(PlaceMap(path)) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["town.gpkg"]
