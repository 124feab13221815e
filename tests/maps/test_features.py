"""Local features in maps: computed once, stored whole, resumed after a kill, gone with their photo, never trusted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import geotag_of, gis, tiny_model, write_photo, write_town
from tests.maps.test_map_file import TO_FORMAT_5, make_format_1, make_format_2, make_map, photo

from sareloc.arrays import Ints
from sareloc.errors import ArgumentError, MapError
from sareloc.geometry import LocalFeatureExtractor, LocalFeatures, feature_size, pack_features
from sareloc.geometry.local_features import KEYPOINT_BYTES, weights_fingerprint
from sareloc.localize import Localizer, Search
from sareloc.maps import (
    MapConfig,
    MapFile,
    PlaceMap,
    add_local_features,
    add_photos,
    build_map,
    compact_map,
    copy_map,
    map_info,
    open_map_file,
    open_store,
    remove_photos,
    sync_map,
    verify_map,
)
from sareloc.maps import file as file_module
from sareloc.maps.records import LARGEST_FEATURES
from sareloc.maps.rows import descriptor_checksum, features_checksum
from sareloc.models import PlaceModel
from sareloc.photos import decode, exif_bytes

KEYPOINTS = 40  # fewer than the photos have
BYTES = 8 + KEYPOINT_BYTES * KEYPOINTS


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture(scope="module")
def built(model: PlaceModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six photos and their map, with local features."""
    folder = tmp_path_factory.mktemp("built")
    write_town(folder / "photos", 6)
    report = build_map(
        folder / "photos", folder / "town.gpkg", model, config=MapConfig(keypoints=KEYPOINTS, progress=False)
    )
    assert (report.added, report.features, report.notes) == (6, 6, ())
    return folder


@pytest.fixture
def town(built: Path, tmp_path: Path) -> Path:
    """A copy of the map, beside a copy of its photos, that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "own")) / "town.gpkg"


def change(path: Path, sql: str, *values: object) -> None:
    """As another program would."""
    with closing(gis(path)) as connection:
        connection.execute(sql, values)
        connection.commit()


def blobs(path: Path) -> dict[str, bytes]:
    """The packed local features by the last part of the file name."""
    with open_map_file(path) as file:
        rows = file.query("SELECT file, features FROM photos JOIN local_features USING (fid)")
    return {Path(name).name: blob for name, blob in rows}


def random_features(count: int, seed: int = 0) -> LocalFeatures:
    rng = np.random.default_rng(seed)
    xy = (rng.random((count, 2)) * 60).astype(np.float32)
    return LocalFeatures(xy, rng.integers(-127, 128, (count, 64), dtype=np.int8), (72, 64), 50.0)


def test_a_map_holds_what_the_extractor_finds_in_its_photos(built: Path) -> None:
    place_map = PlaceMap(built / "town.gpkg")
    found, stored = place_map.local_features(place_map.ids), blobs(built / "town.gpkg")
    assert list(found) == place_map.ids.tolist()
    extractor = LocalFeatureExtractor("cpu")
    for photo_id, file in zip(place_map.ids.tolist(), place_map.files, strict=True):
        (wanted,) = extractor.extract([decode(place_map.photo_path(file), size=feature_size)], KEYPOINTS)
        assert found[photo_id].size == (144, 128)
        assert stored[Path(file).name] == pack_features(wanted)
        np.testing.assert_allclose(found[photo_id].xy, wanted.xy, atol=0.1)
    assert verify_map(built / "town.gpkg") == []


def test_only_known_photos_with_features_are_returned(town: Path) -> None:
    change(town, "DELETE FROM local_features WHERE fid = 2")
    place_map = PlaceMap(town)
    assert sorted(place_map.local_features([3, 2, 3, 12345, 1])) == [1, 3]
    assert place_map.local_features([]) == {}


def test_headings_are_in_the_order_of_the_ids(town: Path) -> None:
    change(town, "UPDATE photos SET heading_deg = NULL WHERE fid = 2")
    headings = PlaceMap(town).headings_deg([4, 2, 1, 12345, 4])
    np.testing.assert_array_equal(headings, [geotag_of(3).heading_deg, np.nan, 0.0, np.nan, 3.0])
    assert PlaceMap(town).headings_deg([]).shape == (0,)
    change(town, "UPDATE photos SET heading_deg = 'north' WHERE fid = 3")
    assert np.isnan(PlaceMap(town).headings_deg([3])).all()


def test_the_focal_length_in_exif_is_kept(model: PlaceModel, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    exif = exif_bytes(geotag_of(0), focal_35mm=50)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif)
    build_map(tmp_path / "a.jpg", tmp_path / "town.gpkg", model, config=MapConfig(keypoints=5, progress=False))
    place_map = PlaceMap(tmp_path / "town.gpkg")
    (features,) = place_map.local_features(place_map.ids).values()
    assert features.focal_px == pytest.approx(50 * 400 / np.hypot(36, 24), rel=1e-3)  # a diagonal of 400 px
    assert len(features) == 5


def test_without_keypoints_a_map_has_none_and_gets_none(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    path = tmp_path / "town.gpkg"
    report = build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=0, progress=False))
    assert (report.added, report.features) == (2, 0)
    extra = write_photo(tmp_path / "photos" / "extra.jpg", 7)
    assert add_photos(extra, path, model, config=MapConfig(progress=False)).features == 0
    assert sync_map(tmp_path / "photos", path, model, config=MapConfig(progress=False)).features == 0
    assert map_info(path).local_features is None
    assert PlaceMap(path).local_features([1, 2, 3]) == {}
    with open_store(path) as store:
        assert "local features" not in store.notes()
    for keypoints in (-1, 4097):
        with pytest.raises(ArgumentError, match=f"keypoints must be 0 to 4096, found {keypoints}"):
            build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=keypoints, progress=False))
    with pytest.raises(ArgumentError, match="keypoints must be 1 to 4096"):
        add_local_features(path, keypoints=0, progress=False)


def test_adding_and_syncing_follow_the_map(model: PlaceModel, town: Path) -> None:
    photos, before = town.parent / "photos", blobs(town)
    write_photo(photos / "new.jpg", 50)
    assert add_photos(photos, town, model, config=MapConfig(progress=False)).features == 1
    assert len(blobs(town)["new.jpg"]) == BYTES
    write_photo(photos / "0001.jpg", 51)  # other content: a new row
    (photos / "0002.jpg").rename(photos / "moved.jpg")
    (photos / "0003.jpg").unlink()
    planned = sync_map(photos, town, model, dry_run=True, config=MapConfig(progress=False))
    report = sync_map(photos, town, model, config=MapConfig(progress=False))
    assert (planned.features, report.features, report.updated, len(report.removed)) == (0, 1, 2, 1)
    after = blobs(town)
    assert after.keys() == {"0000.jpg", "0001.jpg", "moved.jpg", "0004.jpg", "0005.jpg", "new.jpg"}
    assert after["0001.jpg"] != before["0001.jpg"]
    assert after["moved.jpg"] == before["0002.jpg"]
    with open_store(town) as store:
        assert len(store.ids_without_features()) == 0
    assert verify_map(town) == []


def test_a_map_continues_with_its_own_keypoints(model: PlaceModel, town: Path) -> None:
    photos = town.parent / "photos"
    write_photo(photos / "new.jpg", 50)
    with pytest.raises(MapError, match=r"of 40 keypoints a photo, requested: 512.*--keypoints 40"):
        build_map(photos, town, model, config=MapConfig(keypoints=512, progress=False))
    assert len(PlaceMap(town)) == 6  # told before anything was described
    assert build_map(photos, town, model, config=MapConfig(progress=False)).features == 1
    assert len(blobs(town)["new.jpg"]) == BYTES
    with pytest.raises(MapError, match="requested: 50"):
        add_local_features(town, keypoints=50, progress=False)
    change(town, "DELETE FROM local_features")
    assert add_local_features(town, keypoints=50, progress=False).added == 7
    assert map_info(town).local_features is not None
    assert len(blobs(town)["new.jpg"]) == 8 + KEYPOINT_BYTES * 50


def test_a_photo_is_written_with_its_features_or_not_at_all(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_town(tmp_path / "photos", 3)
    path = tmp_path / "town.gpkg"
    insert = file_module._insert_features

    def stop_at_the_second(sql: sqlite3.Connection, photo_id: int, blob: bytes) -> int:
        if photo_id == 2:
            raise KeyboardInterrupt
        return insert(sql, photo_id, blob)

    with monkeypatch.context() as patched:
        patched.setattr(file_module, "_insert_features", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=KEYPOINTS, batch=1, progress=False))
    assert (len(PlaceMap(path)), len(blobs(path))) == (1, 1)
    report = build_map(tmp_path / "photos", path, model, config=MapConfig(keypoints=KEYPOINTS, batch=1, progress=False))
    assert (report.added, report.already, report.features) == (2, 1, 2)


KILLED = """
import os, signal, sys
from sareloc.maps import MapFile, add_local_features

write, batches = MapFile.write_features, []

def die_before_commit(statement):
    if statement == "COMMIT":
        os.kill(os.getpid(), signal.SIGKILL)

def dying(self, ids, blobs):
    batches.append(len(ids))
    if len(batches) == 3:
        self._connection.set_trace_callback(die_before_commit)
    return write(self, ids, blobs)

MapFile.write_features = dying
add_local_features(sys.argv[1], batch=2, device="cpu", progress=False)
"""


def test_after_kill_9_the_committed_batches_are_kept_and_the_rest_is_added(town: Path) -> None:
    before = blobs(town)
    change(town, "DELETE FROM local_features")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", KILLED, str(town)], env=environment, capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert sorted(blobs(town)) == [f"000{number}.jpg" for number in range(4)]
    report = add_local_features(town, batch=2, device="cpu", progress=False)
    assert (report.added, report.already) == (2, 4)
    assert blobs(town) == before
    assert add_local_features(town, progress=False).added == 0


def test_a_batch_is_one_transaction(town: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(town, "DELETE FROM local_features")
    calls: list[int] = []

    def failing(blob: bytes) -> int:
        calls.append(len(blob))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return descriptor_checksum(blob)

    with open_map_file(town, write=True) as file:
        monkeypatch.setattr("sareloc.maps.file.descriptor_checksum", failing)
        with pytest.raises(KeyboardInterrupt):
            file.write_features(np.array([1, 2, 3]), [b"a", b"b", b"c"])
    assert blobs(town) == {}


def test_photos_that_cannot_be_read_are_listed_and_the_others_done(model: PlaceModel, town: Path) -> None:
    photos = town.parent / "photos"
    change(town, "DELETE FROM local_features WHERE fid <= 5")
    (photos / "0000.jpg").unlink()
    write_photo(photos / "0001.jpg", 99)  # another photo than the one that was described
    os.utime(photos / "0002.jpg", ns=(1, 1))  # the same content under another time
    change(town, "UPDATE photos SET file = 's3://bucket/0003.jpg' WHERE fid = 4")
    report = add_local_features(town, workers=1, device="cpu", progress=False)
    assert (report.added, report.already, report.keypoints) == (2, 1, KEYPOINTS)
    reasons = {Path(error.photo).name: error.reason for error in report.unreadable}
    assert sorted(reasons) == ["0000.jpg", "0001.jpg", "0003.jpg"]
    for name, reason in (("0000.jpg", "no such file"), ("0001.jpg", "has changed since"), ("0003.jpg", "is a URL")):
        assert reason in reasons[name]
    built = add_photos(photos / "0005.jpg", town, model, config=MapConfig(progress=False))
    assert built.features == 0
    assert any("3 photos of the map without local features, such as" in note for note in built.notes)


@pytest.mark.timeout(60)  # it would wait for a writer of the pipe, or read the device for ever
@pytest.mark.parametrize("fragment", ["", "#yaw=0&pitch=0&fov=60&size=64x48"])
@pytest.mark.parametrize("name", ["pipe.jpg", "/dev/zero"])
def test_a_row_that_is_no_regular_file_is_listed_and_the_others_done(town: Path, name: str, fragment: str) -> None:
    os.mkfifo(town.with_name("pipe.jpg"))
    change(town, "DELETE FROM local_features WHERE fid <= 2")
    change(town, "UPDATE photos SET file = ? WHERE fid = 1", name + fragment)
    report = add_local_features(town, keypoints=KEYPOINTS, device="cpu", progress=False)
    assert report.added == 1
    assert ["not a regular file" in error.reason for error in report.unreadable] == [True]


def test_a_photo_that_no_longer_decodes_is_listed(town: Path) -> None:
    """Its size and time are unchanged, as after an error of the disk."""
    path = town.parent / "photos" / "0001.jpg"
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    change(town, "DELETE FROM local_features WHERE fid < 4")
    report = add_local_features(town, batch=1, device="cpu", progress=False)
    assert (report.added, [Path(error.photo).name for error in report.unreadable]) == (2, ["0001.jpg"])


def test_photos_that_are_removed_meanwhile_are_left_out(town: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(town, "DELETE FROM local_features WHERE fid < 4")
    write = MapFile.write_features

    def removing(self: MapFile, ids: Ints, packed: Sequence[bytes]) -> int:
        self.remove(np.array([2]))
        return write(self, ids, packed)

    monkeypatch.setattr(MapFile, "write_features", removing)
    assert add_local_features(town, device="cpu", progress=False).added == 2
    assert verify_map(town) == []


def test_features_go_with_their_photo_also_in_other_programs(town: Path) -> None:
    change(town, "DELETE FROM photos WHERE fid = 1")
    assert len(remove_photos(town, files=["0001.jpg"])) == 1
    assert sorted(blobs(town)) == ["0002.jpg", "0003.jpg", "0004.jpg", "0005.jpg"]
    kept = blobs(town)
    assert verify_map(town) == []
    compact_map(town)
    assert blobs(town) == kept


@pytest.mark.parametrize("make", [make_format_1, make_format_2])
def test_older_formats_have_none_until_they_are_written_to(make: object, tmp_path: Path) -> None:
    path = make(tmp_path / "old.gpkg", 3)  # type: ignore[operator]
    before = path.read_bytes()
    assert PlaceMap(path).local_features([1, 2]) == {}
    assert (map_info(path).local_features, verify_map(path)) == (None, [])
    with open_map_file(path) as file:
        assert file.ids_without_features().tolist() == [1, 2, 3]
    assert path.read_bytes() == before
    with open_map_file(path, write=True) as file, open_map_file(path, write=True) as twice:
        assert file.manifest.format == twice.manifest.format == 6
        assert file.write_features(np.array([2]), [pack_features(random_features(3))]) == 1
        assert file.remove(np.array([1, 2])) == 2
        assert file.query("SELECT count(*) FROM local_features") == [(0,)]
    assert verify_map(path) == []


def test_an_upgrade_that_fails_leaves_the_old_map(tmp_path: Path) -> None:
    path = make_format_2(tmp_path / "old.gpkg", 3)
    change(path, "CREATE TRIGGER x AFTER INSERT ON gpkg_contents BEGIN UPDATE photos SET file = '/etc/passwd'; END")
    with pytest.raises(MapError, match="trigger"):
        open_map_file(path, write=True)
    assert map_info(path).manifest.format == 2
    change(path, "DROP TRIGGER x")
    change(path, "CREATE TABLE local_features (x)")
    with pytest.raises(MapError, match="local_features already exists"):
        open_map_file(path, write=True)
    assert PlaceMap(path).files == ("0000.jpg", "0001.jpg", "0002.jpg")


def test_a_copy_has_the_same_features_under_other_ids(model: PlaceModel, town: Path) -> None:
    other = town.with_name("copy.gpkg")
    build_map(
        town.parent / "photos" / "0003.jpg", other, model, config=MapConfig(keypoints=KEYPOINTS, progress=False)
    )  # it has id 1 there
    report = copy_map(town, other, progress=False)
    assert (report.copied, report.features, report.notes) == (5, 5, ())
    assert blobs(other) == blobs(town)
    assert PlaceMap(other).ids.tolist() != PlaceMap(town).ids.tolist()
    assert map_info(other).local_features == map_info(town).local_features
    again = copy_map(town, other, progress=False)
    assert (again.copied, again.features, again.checksum) == (0, 0, report.checksum)
    change(other, "DELETE FROM local_features WHERE fid > 2")
    assert 0 < copy_map(town, other, progress=False).features < 6
    assert (blobs(other), verify_map(other)) == (blobs(town), [])
    with open_store(other, write=True) as store:
        store.write_note("local features", json.dumps({"extractor": "xfeat", "keypoints": 99}))
    with pytest.raises(MapError, match=r"99 keypoints a photo .*; those of map .* have 40"):
        copy_map(town, other, progress=False)


def test_milvus_holds_the_same_features(town: Path, model: PlaceModel) -> None:
    pytest.importorskip("milvus_lite")
    there, file = f"milvus-lite:{town.parent}/lite.db/town", PlaceMap(town)
    report = copy_map(town, there, progress=False)
    assert (report.features, report.notes) == (6, ())
    server = PlaceMap(there)
    assert server.notes["local features"] == file.notes["local features"]
    ids = server.search(file.descriptors([1]), 6).ids[0]
    found, headings = server.features_and_headings(ids)
    assert sorted(headings) == [float(number) for number in range(6)]
    assert np.isnan(server.headings_deg([12345])).all()
    names = {photo_id: Path(str(server.current_file(photo_id))).name for photo_id in ids.tolist()}
    assert {names[photo_id]: pack_features(features) for photo_id, features in found.items()} == blobs(town)
    best = server.features_and_headings(ids, 7)[0]
    assert all(pack_features(best[i]) == pack_features(found[i].best(7)) for i in found)
    back = copy_map(there, town.with_name("back.gpkg"), progress=False)
    assert (back.features, back.checksum) == (6, report.checksum)
    assert blobs(town.with_name("back.gpkg")) == blobs(town)
    info = map_info(there)
    assert info.local_features is not None
    assert (info.local_features.keypoints, info.local_features.photos) == (KEYPOINTS, 6)
    assert verify_map(there) == []


def test_one_flipped_bit_is_found_and_named(town: Path) -> None:
    blob = blobs(town)["0002.jpg"]
    content = bytearray(town.read_bytes())
    assert content.count(blob) == 1
    content[content.index(blob) + BYTES // 2] ^= 8
    town.write_bytes(content)
    assert verify_map(town) == ["the local features of photo 3 (photos/0002.jpg) do not match their checksum"]
    place_map = PlaceMap(town)
    assert sorted(place_map.local_features([1, 2])) == [1, 2]
    with pytest.raises(MapError, match=r"photo 3 \(photos/0002.jpg\) do not match their checksum.*map upgrade"):
        place_map.local_features([1, 3])
    with pytest.raises(MapError, match="photo 3"):
        copy_map(town, town.with_name("copy.gpkg"), progress=False)
    change(town, "DELETE FROM local_features WHERE fid = 3")  # as told
    assert add_local_features(town, device="cpu", progress=False).added == 1
    assert (verify_map(town), blobs(town)["0002.jpg"]) == ([], blob)


MALFORMED = [b"", b"\0" * 8, b"\0" * 9, pack_features(random_features(3))[:-1], bytes(8 + KEYPOINT_BYTES * 4097)]
NOT_BYTES = ["text", 7, 1.5, bytes(LARGEST_FEATURES + 1), bytes(2**24 + 1)]


@pytest.mark.parametrize("value", [*MALFORMED, *NOT_BYTES], ids=lambda value: f"{value!r:.10}")
def test_hostile_features_are_an_error_that_names_the_photo(town: Path, value: object) -> None:
    checksum = descriptor_checksum(value) if isinstance(value, bytes) else 1
    change(town, "UPDATE local_features SET features = ?, checksum = ? WHERE fid = 3", value, checksum)
    with open_map_file(town) as file:
        bound = features_checksum(3, file.photos_of(np.array([3]))[3].sha256, checksum)
    change(town, "UPDATE photos SET features_checksum = ? WHERE fid = 3", bound)
    said = "cannot be unpacked" if value in MALFORMED else "are not bytes, or more than 1,048,576"
    (problem,) = verify_map(town)
    assert problem.startswith(f"the local features of photo 3 (photos/0002.jpg) {said}")
    place_map = PlaceMap(town)
    with pytest.raises(MapError, match=rf"photo 3 \(photos/0002.jpg\) {said}"):
        place_map.local_features([2, 3])
    assert sorted(place_map.local_features([2, 4])) == [2, 4]


def rotate(path: Path) -> None:
    """Give the local features of each of six photos to the next one."""
    change(path, "UPDATE local_features SET fid = -1 - fid % 6")
    change(path, "UPDATE local_features SET fid = -fid")


def test_rotated_features_are_found_never_used_and_computed_again(town: Path) -> None:
    wanted = blobs(town)
    rotate(town)
    assert verify_map(town) == [
        f"the local features of photo {number + 1} (photos/{number:04d}.jpg) are those of another photo"
        for number in range(6)
    ]
    place_map = PlaceMap(town)
    for use in (
        lambda: place_map.local_features([3]),
        lambda: copy_map(town, town.with_name("b.gpkg"), progress=False),
    ):
        with pytest.raises(MapError, match=r"photo \d \(photos/000\d.jpg\) are those of another photo.*map upgrade"):
            use()
    assert add_local_features(town, device="cpu", progress=False).added == 6
    assert (verify_map(town), blobs(town)) == ([], wanted)


def test_features_of_another_map_are_found(town: Path, model: PlaceModel, tmp_path: Path) -> None:
    """Of a photo with the same id and the same file name."""
    write_photo(tmp_path / "photos" / "0000.jpg", 77)
    build_map(
        tmp_path / "photos", tmp_path / "other.gpkg", model, config=MapConfig(keypoints=KEYPOINTS, progress=False)
    )
    change(town, "DELETE FROM local_features WHERE fid = 1")
    with closing(gis(town)) as connection:
        connection.execute("ATTACH ? AS other", (str(tmp_path / "other.gpkg"),))
        connection.execute("INSERT INTO main.local_features SELECT * FROM other.local_features")
        connection.commit()
    assert verify_map(town) == ["the local features of photo 1 (photos/0000.jpg) are those of another photo"]


def test_features_of_format_3_are_read_and_bound_when_the_map_is_written_to(town: Path, model: PlaceModel) -> None:
    wanted = blobs(town)
    town.unlink()
    for keypoints in (0, KEYPOINTS):  # earlier formats have no aggregated local features
        build_map(town.parent / "photos", town, model, config=MapConfig(keypoints=keypoints, progress=False))
    with closing(gis(town)) as connection:
        connection.executescript(TO_FORMAT_5)
    change(town, "ALTER TABLE photos DROP COLUMN features_checksum")
    change(town, "DELETE FROM manifest WHERE key LIKE 'aggregate%'")
    change(town, "UPDATE manifest SET value = '3' WHERE key = 'format'")
    change(town, "UPDATE manifest SET value = ? WHERE key = 'note local features'", EARLIER_NOTE)
    assert sorted(PlaceMap(town).local_features([1, 2, 3, 4, 5, 6])) == [1, 2, 3, 4, 5, 6]
    assert verify_map(town) == []
    report = add_local_features(town, device="cpu", progress=False)
    assert (report.already, report.added, map_info(town).manifest.format) == (6, 0, 6)
    assert (verify_map(town), blobs(town)) == ([], wanted)
    rotate(town)
    assert len(verify_map(town)) == 6


EARLIER_NOTE = f'{{"extractor": "xfeat", "keypoints": {KEYPOINTS}}}'


@pytest.mark.parametrize("other", [{"extractor": "superpoint"}, {"weights": "0123456789abcdef"}])
def test_features_of_another_extractor_are_refused(town: Path, model: PlaceModel, other: dict[str, str]) -> None:
    with open_store(town, write=True) as store:
        note = json.loads(store.notes()["local features"])
        assert note == {"extractor": "xfeat", "weights": weights_fingerprint(), "keypoints": KEYPOINTS}
        store.write_note("local features", json.dumps(note | other))
    said = f"of the extractor .*{next(iter(other.values()))}.*this sareloc has xfeat.*--verify 0"
    place_map, photos = PlaceMap(town), town.parent / "photos"
    for use in (
        lambda: place_map.local_features([1]),
        lambda: Localizer(model, place_map),
        lambda: add_local_features(town, progress=False),
        lambda: add_photos(photos, town, model, config=MapConfig(progress=False)),
        lambda: sync_map(photos, town, model, config=MapConfig(progress=False)),
    ):
        with pytest.raises(MapError, match=said):
            use()
    (problem,) = verify_map(town)
    assert re.search(said, problem)
    assert map_info(town).local_features is not None
    assert Localizer(model, place_map, Search(verify=0)).localize(photos / "0003.jpg").matches[0].id == 4
    copy_map(town, town.with_name("copy.gpkg"), progress=False)
    with pytest.raises(MapError, match=said):
        PlaceMap(town.with_name("copy.gpkg")).local_features([1])
    change(town, "DELETE FROM local_features")
    assert add_local_features(town, device="cpu", progress=False).added == 6


def test_features_of_no_photo_are_found(town: Path) -> None:
    change(town, "INSERT INTO local_features SELECT 5000, features, checksum FROM local_features WHERE fid = 3")
    assert verify_map(town) == ["the local features of photo 5000 have no photo"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("CREATE VIEW local_features AS SELECT 1 fid, x'' features, 1 checksum", "local_features is a view"),
        ("CREATE VIRTUAL TABLE local_features USING fts5(features, checksum)", "is a virtual table"),
        ("CREATE TABLE local_features (fid INTEGER PRIMARY KEY, features BLOB)", "local_features lacks checksum"),
        ("CREATE TABLE local_features (fid TEXT PRIMARY KEY, features BLOB, checksum)", "fid is not the INTEGER"),
        (
            "CREATE TABLE local_features (fid INTEGER PRIMARY KEY, checksum, features AS (zeroblob(900000000)))",
            "lacks features",
        ),
        ("SELECT 1", "local_features lacks"),
    ],
)
def test_the_table_must_be_a_table(town: Path, sql: str, said: str) -> None:
    change(town, "DROP TABLE local_features")
    change(town, sql)
    for use in (PlaceMap, map_info, verify_map, add_local_features):
        with pytest.raises(MapError, match=said):
            use(town)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "7", "[" * 100_000, '{"keypoints": 7}', '{"extractor": 7, "keypoints": 7}'),
        *(f'{{"extractor": "xfeat", "keypoints": {value}}}' for value in ('"7"', "0", "true")),
        '{"extractor": "xfeat", "weights": 7, "keypoints": 7}',
    ],
)
def test_a_malformed_note_is_an_error(model: PlaceModel, town: Path, text: str) -> None:
    with open_store(town, write=True) as store:
        store.write_note("local features", text)
    for use in (
        map_info,
        add_local_features,
        lambda path: add_photos(path.parent / "photos", path, model, config=MapConfig(progress=False)),
        lambda path: sync_map(path.parent / "photos", path, model, config=MapConfig(progress=False)),
    ):
        with pytest.raises(MapError, match="its note 'local features'"):
            use(town)
    with pytest.raises(MapError, match="its note 'local features'"):  # what extracted them is unknown
        PlaceMap(town).local_features([1])


def test_triggers_in_a_map_may_delete_features_and_not_change_them(town: Path) -> None:
    change(town, "CREATE TRIGGER x AFTER INSERT ON photos BEGIN UPDATE local_features SET features = x'00'; END")
    with open_map_file(town, write=True) as file, pytest.raises(MapError, match="trigger"):
        file.add([replace(photo(50), geotag=geotag_of(50))], unit_vectors(1, dim=256))
    assert verify_map(town) == []


def test_many_threads_read_while_another_writes(town: Path) -> None:
    wanted, place_map = blobs(town), PlaceMap(town)
    names = dict(zip(place_map.ids.tolist(), (Path(file).name for file in place_map.files), strict=True))

    def read(number: int) -> bool:
        ids = [1 + number % 6, 1 + (number + 1) % 6]
        found = place_map.local_features(ids)
        headings = place_map.headings_deg(ids)
        assert headings.tolist() == [float(i - 1) for i in ids]
        return sorted(found) == sorted(ids) and all(
            pack_features(features) == wanted[names[photo_id]] for photo_id, features in found.items()
        )

    with ThreadPoolExecutor(4) as threads, open_map_file(town, write=True) as file:
        answers = threads.map(read, range(60))
        for _ in range(10):
            file.write_features(np.array([1, 2]), [wanted["0000.jpg"], wanted["0001.jpg"]])
        assert all(answers)


def test_photos_with_features_are_listed_without_reading_them(tmp_path: Path) -> None:
    """A million photos have some 35 GB of features: which of them have any is read from an index of some bytes each."""
    with open_map_file(make_map(tmp_path / "town.gpkg", 3)) as file:
        ((*_, plan),) = file.query("EXPLAIN QUERY PLAN SELECT fid FROM local_features")
    assert "COVERING INDEX" in plan
