"""Maps from strangers: whatever a GeoPackage holds, opening it is an error that says what was found, or is safe."""

from __future__ import annotations

import shutil
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyogrio
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import gis
from tests.maps.test_map_file import TINY, TRIGGERS, make_format_1, make_map, photo

from sareloc import cli
from sareloc.errors import MapError
from sareloc.maps import PlaceMap, copy_map, gpkg, map_info, open_map_file, remove_photos, verify_map
from sareloc.maps.records import same_geotag
from sareloc.maps.rows import descriptor_checksum

ENDLESS = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT"
NOT_UTF8 = "CAST(x'ee707a' AS TEXT)"
COLUMNS = "geom, '' file, NULL time, NULL heading_deg, 1 width, 1 height, x'' sha256, 1 size_bytes, 1 modified_ns"


def change(path: Path, sql: str, *values: object) -> Path:
    """As a stranger's program would."""
    with closing(gis(path)) as connection:
        if values:
            connection.execute(sql, values)
            connection.commit()
        else:
            connection.executescript(sql)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_map(tmp_path_factory.mktemp("maps") / "town.gpkg", 5)


@pytest.fixture
def town(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path))


def refused(path: Path, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The map cannot be opened, by Python or by the command line, and all say the same."""
    for use in (PlaceMap, map_info, verify_map):
        with pytest.raises(MapError, match=said):
            use(path)
    with pytest.raises(MapError, match=said):
        open_map_file(path, write=True)
    for command in ("info", "verify"):
        with pytest.raises(SystemExit) as end:
            cli.main(["map", command, str(path)])
        told = capsys.readouterr().err
        assert end.value.code == 1
        assert len(told.splitlines()) == 1, told


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (f"DROP TABLE photos; CREATE VIEW photos AS {ENDLESS} i fid, x'' {COLUMNS} FROM n", "photos is a view"),
        (f"DROP TABLE photos; CREATE VIEW PHOTOS AS {ENDLESS} i fid, x'' {COLUMNS} FROM n", "photos is a view"),
        (f"DROP TABLE descriptors; CREATE VIEW descriptors AS {ENDLESS} i fid, x'' descriptor FROM n", "is a view"),
        (f"DROP TABLE manifest; CREATE VIEW manifest AS {ENDLESS} i key, i value FROM n", "manifest is a view"),
        (f"DROP TABLE gpkg_contents; CREATE VIEW gpkg_contents AS {ENDLESS} i table_name FROM n", "is a view"),
        ("DROP TABLE manifest; CREATE VIRTUAL TABLE manifest USING fts5(key, value)", "is a virtual table"),
        ("DROP TABLE descriptors", "lacks the table descriptors"),
        ("ALTER TABLE photos RENAME COLUMN file TO name", "photos lacks file"),
        (f"PRAGMA writable_schema = ON; UPDATE sqlite_master SET name = {NOT_UTF8} WHERE name = 'photos'", "damaged"),
        ("ALTER TABLE photos DROP COLUMN descriptor_checksum", "photos lacks descriptor_checksum"),
        ("CREATE TABLE x AS SELECT * FROM photos; DROP TABLE photos; ALTER TABLE x RENAME TO photos", "PRIMARY KEY"),
        (
            "DROP TRIGGER photos_forget; CREATE TABLE x (fid TEXT PRIMARY KEY, descriptor); DROP TABLE descriptors;"
            "ALTER TABLE x RENAME TO descriptors",
            "PRIMARY KEY",
        ),
        (
            "DROP TRIGGER photos_edited; ALTER TABLE photos DROP COLUMN file; "
            "ALTER TABLE photos ADD COLUMN file AS (hex(zeroblob(900000000)))",
            "photos lacks file",
        ),
    ],
)
def test_what_is_read_must_be_tables(town: Path, sql: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(change(town, sql), said, capsys)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("format", value) for value in ("²", "2" * 6000, "-1", "0", "1e0", " 2", "٢", "", 2.5, b"2", b"\xff" * 9)),
        *(("dim", value) for value in ("0", "-3", "1000000000000", "1e12", "nan", "9" * 5000, "", b"32")),
        *(("map_id", value) for value in ("../../../elsewhere", "", "a" * 31, "A" * 32, "a" * 32 + "\n", b"a" * 32)),
        *(("storage", value) for value in ("float8", "", "__class__", b"float16")),
        *(("model", value) for value in (b"\xff\xfe", "x" * 100_000, "")),
        *(("fingerprint", value) for value in (b"", "x" * 100_000)),
        *(("aggregate", value) for value in (b"", "0" * 15, "G" * 16, "0" * 16, "../" * 5 + "x", "x" * 100_000, 7)),
        *(("aggregate_dim", value) for value in ("-1", "513", "1", "1e2", "", "9" * 5000, b"0", 0.5)),
    ],
)
def test_the_manifest_is_checked(town: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]) -> None:
    change(town, "UPDATE manifest SET value = ? WHERE key = ?", value, key)
    refused(town, key, capsys)


def point(longitude: float, latitude: float) -> bytes:
    return gpkg.point_blob((latitude, longitude))


INFINITE = float("inf")
BAD_VALUES = {
    "file": [b"0001.jpg", "a\0b.jpg", ""],
    "geom": [
        *("POINT (2 48)", 7, b"", b"GP", b"GP\0\1", point(2, 48)[:-1], b"\0" * 29, b"GP" + b"\xff" * 27),
        *(point(float("nan"), 48), point(2, INFINITE), point(181, 0), point(0, -91)),
        struct.pack("<2sBBiBI", b"GP", 0, 1, 4326, 1, 2) + bytes(16),  # a line
    ],
    "heading_deg": [INFINITE, -INFINITE, -1.0, 361.0, b"\0\1", "north"],
    "time": ["yesterday", "", 7, b"2024", "2024-13-01T00:00:00Z", "99999-01-01T00:00:00Z"],
    "width": ["wide", b"\0", 1.5],
    "sha256": ["text", b"", b"\0" * 31, b"\0" * 33, 7],
    "size_bytes": ["large", b"", 0.5],
    "modified_ns": ["late", b""],
}
SEARCHED = {"file", "geom"}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param(column, value, id=f"{column}-{number}")
        for column, values in BAD_VALUES.items()
        for number, value in enumerate(values)
    ],
)
def test_values_of_photos_are_checked_and_named(
    town: Path, column: str, value: object, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    change(town, f"UPDATE photos SET {column} = ? WHERE fid = 3", value)
    problems = verify_map(town)
    assert len(problems) == 1
    assert problems[0].startswith("photo 3: ")
    with pytest.raises(SystemExit) as end:
        cli.main(["map", "verify", str(town)])
    assert end.value.code == 1
    assert "Traceback" not in capsys.readouterr().err
    left_out = column in SEARCHED
    caplog.clear()
    opened = PlaceMap(town)
    assert opened.ids.tolist() == ([1, 2, 4, 5] if left_out else [1, 2, 3, 4, 5])
    assert opened.search(unit_vectors(1), 5).ids.shape == (1, 4 if left_out else 5)
    opened.refresh()
    assert [said.getMessage().count("photo 3 (") for said in caplog.records] == ([1] if left_out else [])
    assert len(map_info(town).unusable) == left_out
    with open_map_file(town) as file:
        entries = file.entries()
        assert len(entries) == (4 if column == "file" else 5)
        if column in ("geom", "heading_deg", "time"):
            assert entries["0002.jpg"] == file.known([photo(2).sha256])[photo(2).sha256]
            assert entries["0002.jpg"].problem is not None
            assert same_geotag(entries["0002.jpg"].geotag, photo(2).geotag)
    report = copy_map(town, town.with_name("copy.gpkg"), progress=False)
    assert (report.photos, len(report.notes)) == (4, 1)


def test_all_bad_values_are_listed_at_once_and_can_be_deleted_as_advised(town: Path) -> None:
    change(
        town, "UPDATE photos SET heading_deg = 9e999 WHERE fid IN (2, 4); UPDATE photos SET geom = 'x' WHERE fid = 5"
    )
    assert [problem.split(":")[0] for problem in verify_map(town)] == ["photo 2", "photo 4", "photo 5"]
    assert PlaceMap(town).ids.tolist() == [1, 2, 3, 4]
    change(town, "DELETE FROM photos WHERE fid IN (2, 4, 5)")
    assert verify_map(town) == []
    assert len(remove_photos(town, files=["0000.jpg"])) == 1
    assert PlaceMap(town).files == ("0002.jpg",)


def test_ids_are_checked(town: Path) -> None:
    change(town, "UPDATE photos SET fid = -7 WHERE fid = 3; UPDATE descriptors SET fid = -7 WHERE fid = 3")
    assert len(PlaceMap(town)) == 4
    assert "photo -7: its id" in verify_map(town)[0]
    change(town, "DELETE FROM photos WHERE fid < 0")
    change(town, "UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'photos'")
    assert len(PlaceMap(town)) == 4
    with open_map_file(town, write=True) as file, pytest.raises(MapError, match="its last photo id is 92233720"):
        file.add([photo(9)], unit_vectors(1))


def test_values_of_megabytes_are_not_read(town: Path) -> None:
    change(town, "UPDATE photos SET file = hex(zeroblob(9000000)) WHERE fid = 3")
    with pytest.raises(MapError, match="larger than 16 MiB"):
        PlaceMap(town)
    (problem,) = verify_map(town)
    assert "larger than 16 MiB" in problem


def test_text_that_is_not_utf8_is_an_error(town: Path) -> None:
    change(town, "UPDATE photos SET file = CAST(x'fffe' AS TEXT) WHERE fid = 3")
    with pytest.raises(MapError, match="UTF-8"):
        PlaceMap(town)


@pytest.mark.parametrize(
    "trigger",
    [
        f"AFTER INSERT ON photos BEGIN INSERT INTO junk {ENDLESS} i FROM n; END",
        "AFTER INSERT ON photos BEGIN INSERT INTO junk VALUES (NEW.file); END",
        "AFTER INSERT ON descriptors BEGIN DELETE FROM photos WHERE fid < 3; END",
        "AFTER UPDATE ON gpkg_contents BEGIN UPDATE photos SET file = '/etc/passwd'; END",
        "AFTER INSERT ON photos WHEN randomblob(1000000) != '' BEGIN DELETE FROM descriptors WHERE fid = 1; END",
        "AFTER UPDATE ON manifest BEGIN UPDATE descriptors SET descriptor = zeroblob(64) WHERE fid IN "
        "(SELECT fid FROM photos); END",
    ],
)
def test_foreign_triggers_do_not_run(town: Path, trigger: str) -> None:
    change(
        town,
        "DROP TRIGGER rtree_photos_geom_insert; CREATE TABLE junk (x);"
        f"CREATE TRIGGER rtree_photos_geom_insert {trigger};",
    )
    with open_map_file(town, write=True) as file, pytest.raises(MapError, match="trigger"):
        file.add([photo(9)], unit_vectors(1))
    with open_map_file(town) as file:
        assert (file.count(), file.query("SELECT count(*) FROM junk")) == (5, [(0,)])
    assert verify_map(town) == []


def test_foreign_triggers_do_not_run_while_an_old_map_is_upgraded(tmp_path: Path) -> None:
    path = make_format_1(tmp_path / "old.gpkg", 5)
    change(path, "CREATE TRIGGER x AFTER UPDATE ON photos BEGIN UPDATE photos SET file = '/etc/passwd'; END")
    with pytest.raises(MapError, match="trigger"):
        open_map_file(path, write=True)
    assert PlaceMap(path).files[0] == "0000.jpg"
    assert map_info(path).manifest.format == 1


def test_triggers_of_gdal_run(town: Path, tmp_path: Path) -> None:
    """QGIS keeps a spatial index and a count of features by triggers; a map with them can be written to."""
    made = tmp_path / "gdal.gpkg"
    _, _, geometry, (names, *_) = pyogrio.raw.read(town, layer="photos", columns=["file"])
    options = {"geometry_type": "Point", "crs": "EPSG:4326", "geometry_name": "geom", "fid": "fid"}
    pyogrio.raw.write(made, geometry, [names], ["file"], layer="photos", driver="GPKG", SPATIAL_INDEX="YES", **options)
    with closing(gis(made)) as connection:
        triggers = [
            sql
            for (sql,) in connection.execute(
                "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'photos'"
            )
        ]
    assert len(triggers) >= 7
    change(
        town,
        "".join(f"DROP TRIGGER rtree_photos_geom_{name};" for name in TRIGGERS)
        + "CREATE TABLE gpkg_ogr_contents (table_name TEXT NOT NULL PRIMARY KEY, feature_count INTEGER);"
        "INSERT INTO gpkg_ogr_contents VALUES ('photos', 5);" + ";".join(triggers),
    )
    with open_map_file(town, write=True) as file:
        assert file.add([photo(7), photo(8)], unit_vectors(2)) == 2
        assert file.remove(file.photos()[0][-1:]) == 1
        new = int(file.photos()[0][-1])
        file.update([next(entry for entry in file.entries().values() if entry.photo_id == new)])
    with closing(gis(town)) as connection:
        assert connection.execute("SELECT feature_count FROM gpkg_ogr_contents").fetchall() == [(6,)]
        indexed = connection.execute("SELECT id FROM rtree_photos_geom ORDER BY id").fetchall()
        assert indexed == [(1,), (2,), (3,), (4,), (5,), (new,)]
    assert verify_map(town) == []


def test_descriptors_that_are_not_bytes_are_an_error(town: Path) -> None:
    for value in ("text", 7, b"", b"\0" * 63):
        change(town, "UPDATE descriptors SET descriptor = ? WHERE fid = 2", value)
        with pytest.raises(MapError, match=r"photo 2 \(0001.jpg\) is"):
            PlaceMap(town)


@pytest.mark.parametrize("number", [float("nan"), INFINITE, -INFINITE, 1e38])
@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_descriptors_that_cannot_be_compared_are_an_error(
    tmp_path: Path, number: float, storage: Literal["float32", "int8"]
) -> None:
    path = make_map(tmp_path / "town.gpkg", 5, replace(TINY, storage=storage))
    if storage == "float32":
        blob = struct.pack("<32f", *[0.1] * 31, number)
    else:
        number = INFINITE if number == 1e38 else number  # a large scale is no scale: vectors have length 1
        blob = struct.pack("<f32b", number, *[1] * 32)
    change(path, "UPDATE descriptors SET descriptor = ? WHERE fid = 2", blob)
    change(path, "UPDATE photos SET descriptor_checksum = ? WHERE fid = 2", descriptor_checksum(blob))
    with pytest.raises(MapError, match=r"photo 2 \(0001.jpg\) .*not finite"):
        PlaceMap(path)
    assert len(verify_map(path)) == 1


def test_a_position_that_was_damaged_on_disk_is_found(town: Path) -> None:
    """A flipped bit moves a photo by a few metres or kilometres: only a checksum tells."""
    with open_map_file(town) as file:
        geom = file.query("SELECT geom FROM photos WHERE fid = 3")[0][0]
    content = bytearray(town.read_bytes())
    row = geom + b"0002.jpg"
    assert content.count(row) == 1
    content[content.index(row) + 18] ^= 1 << 4
    town.write_bytes(content)
    assert PlaceMap(town).ids.tolist() == [1, 2, 4, 5]
    assert "photo 3 (0002.jpg): its position or file name does not match its checksum" in map_info(town).unusable[0]
    assert ["photo 3" in problem for problem in verify_map(town)] == [True]
    with open_map_file(town, write=True) as file:  # as a build does: the photo is not known, and added again
        assert "0002.jpg" not in file.entries()
        assert file.add([photo(2)], unit_vectors(3)[2:]) == 1
    assert len(PlaceMap(town)) == 5
    assert verify_map(town) == []


def test_positions_and_names_that_a_gis_program_changes_are_kept(town: Path) -> None:
    """QGIS moves points by plain SQL: that is no damage, and neither is what sareloc itself does afterwards."""
    change(town, "UPDATE photos SET geom = ? WHERE fid = 3", gpkg.point_blob((48.0, 11.0)))
    change(town, "UPDATE photos SET file = ? WHERE fid = 4", "renamed.jpg")
    assert verify_map(town) == []
    opened = PlaceMap(town)
    assert opened.latlon[2].tolist() == [48.0, 11.0]
    assert opened.files[3] == "renamed.jpg"
    with open_map_file(town, write=True) as file:
        (entry,) = (one for one in file.entries().values() if one.photo_id == 3)
        file.update([replace(entry, geotag=replace(entry.geotag, latlon=(48.5, 11.5)))])
        assert file.query("SELECT photo_checksum != 0 FROM photos ORDER BY fid") == [(1,), (1,), (1,), (0,), (1,)]
    assert verify_map(town) == []
