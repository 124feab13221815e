"""`map upgrade`: aggregated local features come into the search vectors of a map without a photo being read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.maps.small_town import tiny_model, write_photo, write_town
from tests.maps.test_search_vectors import change, stored

from sareloc.cli import main
from sareloc.errors import MapError
from sareloc.geometry.local_features import constants_fingerprint
from sareloc.localize import Localizer
from sareloc.maps import (
    MapConfig,
    MapFile,
    PlaceMap,
    add_local_features,
    build_map,
    copy_map,
    map_info,
    open_map_file,
    open_store,
    remove_photos,
    verify_map,
)
from sareloc.maps import upgrade as upgrade_module
from sareloc.maps.records import Storage, with_aggregate
from sareloc.models import PlaceModel

KEYPOINTS = 40
PHOTOS = 6


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


def build_plain(photos: Path, out: Path, model: PlaceModel, storage: Storage) -> Path:
    """A map with local features and without aggregated ones, as format 4 was."""
    for keypoints in (0, KEYPOINTS):
        build_map(photos, out, model, config=MapConfig(keypoints=keypoints, storage=storage, progress=False))
    return out


@pytest.fixture(scope="module", params=["float32", "float16", "int8"])
def built(
    request: pytest.FixtureRequest, model: PlaceModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Storage]:
    """A folder with photos, plain.gpkg without aggregated local features and fresh.gpkg with them."""
    storage: Storage = request.param
    folder = tmp_path_factory.mktemp(storage)
    write_town(folder / "photos", PHOTOS)
    build_plain(folder / "photos", folder / "plain.gpkg", model, storage)
    config = MapConfig(keypoints=KEYPOINTS, storage=storage, progress=False)
    build_map(folder / "photos", folder / "fresh.gpkg", model, config=config)
    return folder, storage


@pytest.fixture(scope="module")
def built_plain(model: PlaceModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    write_town(folder / "photos", PHOTOS)
    return build_plain(folder / "photos", folder / "town.gpkg", model, "float32")


@pytest.fixture
def plain(built_plain: Path, tmp_path: Path) -> Path:
    """The map in a copy that a test may change, beside its photos."""
    shutil.copytree(built_plain.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "town.gpkg"


def upgrade(path: Path) -> object:
    return add_local_features(path, device="cpu", progress=False)


def test_an_upgraded_map_equals_a_fresh_one_and_no_photo_is_read(
    built: tuple[Path, Storage], tmp_path: Path, model: PlaceModel
) -> None:
    """float32: to the last bit. The others round the descriptor before and after: by one step of the last digit."""
    folder, storage = built
    path, fresh = Path(shutil.copy(folder / "plain.gpkg", tmp_path)), folder / "fresh.gpkg"
    with open_map_file(path) as file:
        before = file.change_id()
    report = add_local_features(path, device="cpu", progress=False)  # the photos are not beside the copy
    assert (report.added, report.already, report.aggregated, report.notes) == (0, PHOTOS, PHOTOS, ())
    found, wanted = stored(path), stored(fresh)
    assert found.keys() == wanted.keys()
    for name, vector in wanted.items():
        if storage == "float32":
            np.testing.assert_array_equal(found[name], vector)
        else:
            np.testing.assert_allclose(found[name], vector, atol={"float16": 2e-4, "int8": 5e-3}[storage])
    made, same = map_info(path).manifest, map_info(fresh).manifest
    assert (made.aggregate, made.aggregate_dim, made.format) == (same.aggregate, same.aggregate_dim, same.format)
    assert made.map_id != same.map_id
    assert verify_map(path) == []
    with open_map_file(path) as file, open_map_file(fresh) as other:
        assert file.change_id() != before
        assert tables(file) == tables(other)
    again = add_local_features(path, device="cpu", progress=False)
    assert (again.aggregated, again.added) == (0, 0)
    localizer = Localizer(model, PlaceMap(path))
    assert localizer.localize(folder / "photos" / "0003.jpg").matches[0].id == 4


def tables(file: MapFile) -> list[tuple[str, str]]:
    """All tables, and the descriptions of those of the GeoPackage."""
    names = file.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [*names, *file.query("SELECT table_name, description FROM gpkg_contents ORDER BY table_name")]


def test_photos_without_local_features_keep_their_descriptor(plain: Path, model: PlaceModel) -> None:
    before = stored(plain)
    change(plain, "DELETE FROM local_features WHERE fid = 2")
    (plain.parent / "photos" / "0001.jpg").unlink()
    report = add_local_features(plain, device="cpu", progress=False)
    assert (report.aggregated, len(report.unreadable)) == (PHOTOS, 1)
    found = stored(plain)
    np.testing.assert_allclose(found["0001.jpg"], np.append(before["0001.jpg"], np.zeros(model.dim)), atol=1e-6)
    assert all(found[name][model.dim :].any() for name in found if name != "0001.jpg")
    assert verify_map(plain) == []


def test_a_map_without_any_local_features_stays_as_it_is(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    path = tmp_path / "town.gpkg"
    build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=0, progress=False))
    before = stored(path)
    for photo in (tmp_path / "photos").iterdir():
        photo.unlink()
    report = add_local_features(path, device="cpu", progress=False)
    assert (report.aggregated, len(report.unreadable), map_info(path).manifest.aggregate_dim) == (0, 2, 0)
    assert all(np.array_equal(vector, before[name]) for name, vector in stored(path).items())


def test_calibrations_of_the_former_vectors_are_removed_and_the_own_one_is_fitted_again(plain: Path) -> None:
    with open_store(plain, write=True) as store:
        own = store.notes()["own calibration"]
        for name in ("calibration plain", "calibration verify=20", "something else"):
            store.write_note(name, "{}")
    report = add_local_features(plain, device="cpu", progress=False)
    (note,) = report.notes
    assert "calibrations for plain, verify=20" in note
    assert "sareloc map calibrate" in note
    with open_store(plain) as store:
        notes = store.notes()
    assert not [name for name in notes if name.startswith("calibration ")]
    assert (notes["something else"], json.loads(notes["own calibration"])["map_photos"]) == ("{}", PHOTOS)
    assert notes["own calibration"] != own


def test_vectors_of_other_constants_are_computed_again(built: tuple[Path, Storage], tmp_path: Path) -> None:
    folder, storage = built
    path = Path(shutil.copy(folder / "fresh.gpkg", tmp_path))
    change(path, "UPDATE manifest SET value = '0123456789abcdef' WHERE key = 'aggregate'")
    report = add_local_features(path, device="cpu", progress=False)
    assert (report.aggregated, map_info(path).manifest.aggregate) == (PHOTOS, constants_fingerprint())
    for name, vector in stored(folder / "fresh.gpkg").items():
        np.testing.assert_allclose(
            stored(path)[name], vector, atol={"float32": 1e-6, "float16": 4e-4}.get(storage, 1e-2)
        )
    assert verify_map(path) == []


def test_a_copy_of_a_map_of_other_constants_is_upgraded_like_it(plain: Path) -> None:
    upgrade(plain)
    change(plain, "UPDATE manifest SET value = '0123456789abcdef' WHERE key = 'aggregate'")
    copy = plain.with_name("copy.gpkg")
    assert any("sareloc map upgrade" in note for note in copy_map(plain, copy, progress=False).notes)
    upgrade(copy)
    upgrade(plain)
    for name, vector in stored(plain).items():
        np.testing.assert_array_equal(stored(copy)[name], vector)
    assert copy_map(plain, copy, progress=False).copied == 0


def test_photos_that_come_and_go_meanwhile_are_right_too(
    plain: Path, model: PlaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process adds, changes and removes photos while search vectors are computed."""
    photos, stage, replace = plain.parent / "photos", MapFile.stage_vectors, MapFile.replace_vectors
    happened: list[str] = []

    def staging(self: MapFile, *given: object) -> None:
        if not happened:
            happened.append("removed")
            remove_photos(plain, files=["0000.jpg"])  # before it is staged
            (photos / "0000.jpg").unlink()
        stage(self, *given)  # type: ignore[arg-type]

    def replacing(self: MapFile, *given: object) -> Sequence[str] | None:
        if len(happened) == 1:
            happened.append("added")
            remove_photos(plain, files=["0001.jpg"])  # after it was staged
            (photos / "0001.jpg").unlink()
            write_photo(photos / "new.jpg", 50)
            write_photo(photos / "0002.jpg", 51)
            build_map(photos, plain, model, config=MapConfig(keypoints=KEYPOINTS, storage="float32", progress=False))
        return replace(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(MapFile, "stage_vectors", staging)
    monkeypatch.setattr(MapFile, "replace_vectors", replacing)
    monkeypatch.setattr(upgrade_module, "VECTORS_PART", 2)
    report = add_local_features(plain, device="cpu", progress=False)
    assert (happened, report.aggregated) == (["removed", "added"], 5)
    fresh = plain.with_name("fresh.gpkg")
    build_map(photos, fresh, model, config=MapConfig(keypoints=KEYPOINTS, storage="float32", progress=False))
    found, wanted = stored(plain), stored(fresh)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], vector) for name, vector in wanted.items())
    assert verify_map(plain) == []


def test_damaged_local_features_stop_the_upgrade_and_leave_the_map(plain: Path) -> None:
    before = stored(plain)
    change(plain, "UPDATE local_features SET features = zeroblob(length(features)) WHERE fid = 5")
    with pytest.raises(MapError, match=r"photo 5 .*do not match their checksum"):
        upgrade(plain)
    assert all(np.array_equal(vector, before[name]) for name, vector in stored(plain).items())


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("CREATE VIEW staged_vectors AS SELECT 1 fid, x'' vector, 1 checksum, 1 source", "is a view"),
        ("CREATE TABLE staged_vectors (fid INTEGER PRIMARY KEY, vector BLOB)", "lacks checksum, source"),
        ("CREATE TABLE staged_vectors (fid TEXT PRIMARY KEY, vector, checksum, source)", "fid is not the INTEGER"),
    ],
)
def test_the_table_of_an_unfinished_upgrade_must_be_a_table(plain: Path, sql: str, said: str) -> None:
    change(plain, sql)
    for use in (PlaceMap, map_info, upgrade):
        with pytest.raises(MapError, match=said):
            use(plain)


def test_staged_rows_that_do_not_fit_are_computed_again(plain: Path, model: PlaceModel) -> None:
    """Those of another length, of another source, and of photos that the map does not have."""
    change(plain, "CREATE TABLE staged_vectors (fid INTEGER PRIMARY KEY, vector, checksum, source)")
    with open_map_file(plain) as file:
        sources = file.unstaged_photos(with_aggregate(file.manifest))
    rows = [
        (1, b"short", 7, sources[1]),
        (2, "x" * 8 * model.dim, 7, sources[2]),
        (3, bytes(8 * model.dim), 7, sources[3] + 1),
        (77, bytes(8 * model.dim), 7, 7),
    ]
    for row in rows:
        change(plain, "INSERT INTO staged_vectors VALUES (?, ?, ?, ?)", *row)
    upgrade(plain)
    assert verify_map(plain) == []
    assert all(vector[model.dim :].any() for vector in stored(plain).values())


KILLED = """
import os, signal, sqlite3, sys
import faiss
import sareloc.encode, sareloc.localize.localizer, sareloc.models.fused  # once, before processes are forked
from sareloc.maps import add_local_features, upgrade

connect, left = sqlite3.connect, [0]

def count(statement):
    left[0] -= not statement.startswith("SELECT")
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def connect_and_count(*arguments, **options):
    connection = connect(*arguments, **options)
    connection.set_trace_callback(count)
    return connection

sqlite3.connect = connect_and_count
upgrade.VECTORS_PART = 2
upgrade.finish_map = lambda *_, **__: None
for path, step in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    left[0] = step
    child = os.fork()
    if not child:
        add_local_features(path, device="cpu", progress=False)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
LAST_STEP = 81
"""SQL statements, not counting those that only read, before which an upgrade is killed; it has about seventy."""
FEW = 44
"""Statements that are too few to finish an upgrade."""


def run_killed(paths: Sequence[Path], steps: Sequence[int]) -> list[int]:
    """The exit codes of upgrades of these maps, each killed before its SQL statement of this number."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    words = [str(word) for pair in zip(paths, steps, strict=True) for word in pair]
    run = subprocess.run([sys.executable, "-c", KILLED, *words], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [int(line) for line in run.stdout.splitlines()]


def killed_at(plain: Path, folder: Path, apart: int) -> tuple[dict[Path, int], tuple[Path, Path], list[int]]:
    """Maps killed before every so many statements, with their exit codes; two killed early, with theirs; one process.

    Of the two, the first was killed once, the other again and again.
    """
    steps = range(1, LAST_STEP + 1, apart)
    paths = [Path(shutil.copy(plain, folder / f"killed{step}.gpkg")) for step in steps]
    once, often = (Path(shutil.copy(plain, folder / f"{name}.gpkg")) for name in ("once", "often"))
    codes = run_killed([*paths, once, *[often] * 4], [*steps, *[FEW] * 5])
    return dict(zip(paths, codes, strict=False)), (once, often), codes[len(paths) :]


@pytest.fixture(scope="module")
def killed(built_plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return killed_at(built_plain, tmp_path_factory.mktemp("killed"), 6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_kill_9_the_map_is_the_old_or_the_new_one(plain: Path, model: PlaceModel, killed: Any) -> None:
    check_killed(plain, model, killed[0])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_kill_9_at_any_statement_the_map_is_the_old_or_the_new_one(plain: Path, model: PlaceModel) -> None:
    check_killed(plain, model, killed_at(plain, plain.parent, 1)[0])


def check_killed(plain: Path, model: PlaceModel, killed: dict[Path, int]) -> None:
    before, whole = stored(plain), Path(shutil.copy(plain, plain.with_name("whole.gpkg")))
    upgrade(whole)
    after, seen = stored(whole), set[tuple[int, bool]]()
    for path, code in killed.items():
        found = stored(path)
        is_new = found["0000.jpg"].shape == (2 * model.dim,)
        for name, vector in (after if is_new else before).items():
            np.testing.assert_array_equal(found[name], vector)
        assert verify_map(path) == []
        seen.add((code, is_new))
        upgrade(path)
        for name, vector in stored(path).items():
            np.testing.assert_array_equal(after[name], vector)
    assert seen == {(-signal.SIGKILL, False), (-signal.SIGKILL, True), (0, True)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_an_upgrade_that_is_killed_again_and_again_continues(model: PlaceModel, killed: Any) -> None:
    """What was staged is kept: runs that are killed too early to finish alone finish together."""
    _, (once, often), codes = killed
    assert codes[:2] == [-signal.SIGKILL] * 2
    assert stored(once)["0000.jpg"].shape == (model.dim,)
    assert stored(often)["0000.jpg"].shape == (2 * model.dim,)
    with open_map_file(often) as file:
        assert not file.query("SELECT 1 FROM sqlite_master WHERE name = 'staged_vectors'")
    assert verify_map(often) == []


def test_the_command_line_says_what_was_done(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    assert "search vector  256 dimensions: the descriptor; add aggregated local features with" in run(
        "map", "info", plain
    )
    with open_store(plain, write=True) as store:
        store.write_note("calibration plain", "{}")
    said = run("map", "upgrade", plain, "--device", "cpu", "--workers", "0")
    assert f"search vectors of {PHOTOS} photos have aggregated local features now" in said
    assert "calibrations for plain were fitted on the former" in said
    assert "search vector  256 + 256 dimensions" in run("map", "info", plain)
    told = json.loads(run("map", "upgrade", plain, "--device", "cpu", "--workers", "0", "--json"))
    assert (told["aggregated"], told["already"], told["notes"]) == (0, PHOTOS, [])
