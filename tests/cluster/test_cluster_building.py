"""A map described by workers equals that of one process. Here the workers are called one after another in this
process, over the same packets; test_ray_cluster.py has a cluster.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image
from tests.maps.small_town import geotag_of, tiny_model, write_photo, write_town
from tests.photos.panorama_files import gpano_xmp, save_panorama

from sareloc.cluster import build as cluster_building
from sareloc.cluster.build import build_map_on_cluster
from sareloc.cluster.worker import Done, PacketEncoder, Work, list_records, packets_of, read_done, read_packet
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.maps import MapConfig, MapFile, MapPhoto, build_map, open_store
from sareloc.maps.writer import MapWriter
from sareloc.models import PlaceModel, Precision
from sareloc.photos import Address, Estimate, View, ViewOptions, exif_bytes, make_utm_name, write_geotag
from sareloc.photos.record import METHOD


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No Ray: packets are done in this process. Gives those that were."""
    done: list[str] = []

    @contextmanager
    def joined(address: str, model_bytes: int) -> Iterator[None]:
        yield None

    def run_packets(ray: None, packets: Sequence[str], checkpoint: bytes, work: Work) -> Iterator[Done]:
        worker = PacketEncoder(checkpoint, work)
        for packet in packets:
            done.append(packet)
            worker({"packet": packet})  # as if it had been lost before it could answer
            yield read_done(worker({"packet": packet}))

    monkeypatch.setattr(cluster_building, "joined", joined)
    monkeypatch.setattr(cluster_building, "run_packets", run_packets)
    return done


def records(where: str | Path) -> dict[str, tuple[MapPhoto, np.ndarray]]:
    """Everything a map knows, by file."""
    with open_store(where) as store:
        return {
            photo.file: (photo, vector)
            for photos, vectors in store.records()
            for photo, vector in zip(photos, vectors, strict=True)
        }


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert {file: photo for file, (photo, _) in one.items()} == {file: photo for file, (photo, _) in other.items()}
    for file, (_, vector) in one.items():
        np.testing.assert_allclose(vector, other[file][1], atol=2e-3)  # half precision


def build(model: PlaceModel, photos: Any, out: str | Path, geotags: Any = None, track: Any = None, **knobs: Any) -> Any:
    return build_map_on_cluster(
        photos,
        out,
        model,
        cluster="ray://local",
        geotags=geotags,
        track=track,
        config=MapConfig(**{"packet": 3, "batch": 2, "keypoints": 0, "progress": False} | knobs),
    )


def write_trouble(folder: Path) -> None:
    """Photos of all kinds: twins, without position, broken, cut short, with a table's and with a name's position, with
    a name that is not UTF-8."""
    paths = write_town(folder, 8)
    shutil.copy(paths[1], folder / "0000_twin.jpg")
    shutil.copy(paths[1], folder / "zz_twin.jpg")
    write_photo(folder / "nowhere.jpg", 50, tagged=False)
    (folder / "broken.jpg").write_bytes(b"no photo")
    cut = write_photo(folder / "cut.jpg", 51)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    write_photo(folder / "sub" / make_utm_name(geotag_of(52)), 52, tagged=False)
    write_photo(folder / "listed.jpg", 53, tagged=False)
    write_photo(folder / os.fsdecode(b"caf\xe9.jpg"), 54)
    (folder / "geotags.csv").write_text("file,lat,lon,heading\nlisted.jpg,10,20,90\n")


def test_the_map_of_many_workers_is_that_of_one_process(model: PlaceModel, tmp_path: Path, packets: list[str]) -> None:
    write_trouble(tmp_path / "photos")
    one = build_map(tmp_path / "photos", tmp_path / "one.gpkg", model, config=MapConfig(keypoints=20, progress=False))
    many = build(model, tmp_path / "photos", tmp_path / "many.gpkg", keypoints=20)
    assert len(packets) == 5
    assert many.features == one.features == 10
    assert (many.added, many.duplicates, many.untagged) == (one.added, one.duplicates, one.untagged)
    assert (one.added, one.duplicates) == (10, 2)
    assert sorted(map(str, many.unreadable)) == sorted(map(str, one.unreadable))
    assert_equal(records(tmp_path / "one.gpkg"), records(tmp_path / "many.gpkg"))
    assert sum(many.workers.values()) == 5


def test_a_truncated_photo_is_noted_as_by_one_process(model: PlaceModel, tmp_path: Path, packets: list[str]) -> None:
    """Also if a view of it is given, which is noted by the name of its file."""
    sphere = save_panorama(tmp_path / "sphere.jpg", noise(128, 256), geotag_of(3))
    photo = tmp_path / "photo.jpg"
    Image.fromarray(noise(96, 96)).save(photo, exif=exif_bytes(geotag_of(7)))
    for file in (sphere, photo):
        file.write_bytes(file.read_bytes()[: int(file.stat().st_size * 0.97)])
    given = [Address(sphere, View(30.0)).path, photo]
    one = build_map(given, tmp_path / "one.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    many = build(model, given, tmp_path / "many.gpkg")
    assert (one.added, sum("truncated" in note for note in one.notes)) == (2, 2)
    assert many.notes == one.notes


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_again_only_what_is_new_or_changed_goes_to_workers(
    model: PlaceModel, tmp_path: Path, packets: list[str]
) -> None:
    paths = write_town(tmp_path / "photos", 6)
    out = tmp_path / "town.gpkg"
    build(model, tmp_path / "photos", out)
    before = records(out)
    packets.clear()
    assert build(model, tmp_path / "photos", out).already == 6
    assert packets == []
    write_photo(paths[1], 1234)
    paths[5].rename(tmp_path / "photos" / "moved.jpg")
    write_photo(tmp_path / "photos" / "new.jpg", 77)
    report = build(model, tmp_path / "photos", out)
    assert (report.added, report.updated, report.already, len(packets)) == (1, 2, 4, 1)
    after = records(out)
    build_map(tmp_path / "photos", tmp_path / "fresh.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    assert_equal(after, records(tmp_path / "fresh.gpkg"))
    assert before["photos/0001.jpg"][0].sha256 not in {photo.sha256 for photo, _ in after.values()}
    assert after["photos/moved.jpg"][0].sha256 == before["photos/0005.jpg"][0].sha256


def test_workers_write_to_a_server_themselves(
    model: PlaceModel, tmp_path: Path, packets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the place of a server. Files with other content than before come last, for one writer."""
    monkeypatch.setattr(MapFile, "has_remote_writers", lambda _: True)
    returned: list[int] = []
    take = cluster_building._take

    def counted(writer: MapWriter, done: Done, *rest: Any) -> None:
        returned.append(len(done.images))
        take(writer, done, *rest)

    monkeypatch.setattr(cluster_building, "_take", counted)
    address = tmp_path / "served.gpkg"
    write_trouble(tmp_path / "photos")
    one = build_map(tmp_path / "photos", tmp_path / "one.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    many = build(model, tmp_path / "photos", address)
    assert set(returned) == {0}
    assert many.untagged == one.untagged
    assert sorted(map(str, many.unreadable)) == sorted(map(str, one.unreadable))
    assert (many.added + many.already, many.duplicates) == (one.added, one.duplicates)
    twin = {photo.sha256: vector for photo, vector in records(tmp_path / "one.gpkg").values()}
    found = {photo.sha256: vector for photo, vector in records(address).values()}
    assert found.keys() == twin.keys()
    for digest, vector in found.items():
        np.testing.assert_allclose(vector, twin[digest], atol=2e-3)

    paths = [tmp_path / "photos" / f"{number:04d}.jpg" for number in range(8)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    packets.clear()
    build(model, tmp_path / "photos", address)
    order = [Path(one.name).name for packet in packets for one in read_packet(packet)]
    assert order[-7:] == ["0000.jpg", *(f"{number:04d}.jpg" for number in range(2, 8))]
    assert sorted(order[:-7]) == ["0001.jpg", "broken.jpg", "cut.jpg", "nowhere.jpg", "zz_twin.jpg"]
    assert {photo.sha256 for photo, _ in records(address).values()} == twin.keys()


def test_photos_come_from_object_storage(model: PlaceModel, tmp_path: Path, packets: list[str]) -> None:
    write_trouble(tmp_path / "photos")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "photos"), "/bucket/photos", recursive=True)
    try:
        one = build_map(
            tmp_path / "photos", tmp_path / "one.gpkg", model, config=MapConfig(keypoints=0, progress=False)
        )
        many = build(model, "memory://bucket/photos", tmp_path / "many.gpkg")
        again = build(model, "memory://bucket/photos", tmp_path / "many.gpkg")
        assert list_records("memory://bucket/photos", None)[0][0].stamp is not None
    finally:
        memory.rm("/bucket", recursive=True)
    assert (many.added, many.duplicates) == (one.added, one.duplicates) == (10, 2)
    assert many.untagged == ("memory:///bucket/photos/nowhere.jpg",)
    assert sorted(error.photo for error in many.unreadable) == [
        f"memory:///bucket/photos/{name}.jpg" for name in ("broken", "caf\udce9", "cut")
    ]
    assert sorted(error.reason for error in many.unreadable) == sorted(error.reason for error in one.unreadable)
    assert (again.added, again.already, again.duplicates) == (0, 10, 2)
    found = {file.removeprefix("memory:///bucket/"): known for file, known in records(tmp_path / "many.gpkg").items()}
    twin = records(tmp_path / "one.gpkg")
    assert found.keys() == twin.keys()
    for file, (photo, vector) in found.items():
        assert (photo.sha256, photo.geotag, photo.size_bytes) == (
            twin[file][0].sha256,
            twin[file][0].geotag,
            twin[file][0].size_bytes,
        )
        np.testing.assert_allclose(vector, twin[file][1], atol=2e-3)


def test_360_photos_are_cut_in_folders_and_in_object_storage(
    model: PlaceModel, tmp_path: Path, packets: list[str]
) -> None:
    write_photo(tmp_path / "photos" / "photo.jpg", 1)
    sphere = np.random.default_rng(0).integers(0, 256, (256, 512, 3), dtype=np.uint8)
    save_panorama(tmp_path / "photos" / "pano.jpg", sphere, geotag_of(3), gpano_xmp(heading=20))
    views = ViewOptions((0.0, 90.0, 180.0), fov_deg=90.0)
    build_map(
        tmp_path / "photos", tmp_path / "one.gpkg", model, config=MapConfig(keypoints=0, views=views, progress=False)
    )
    one = records(tmp_path / "one.gpkg")
    assert len(one) == 4
    assert build(model, tmp_path / "photos", tmp_path / "many.gpkg", views=views).added == 4
    assert_equal(one, records(tmp_path / "many.gpkg"))
    packets.clear()
    assert build(model, tmp_path / "photos", tmp_path / "many.gpkg").already == 4  # cut as before
    assert packets == []
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "photos"), "/spheres/photos", recursive=True)
    try:
        build(model, "memory://spheres/photos", tmp_path / "urls.gpkg", views=views)
        assert build(model, "memory://spheres/photos", tmp_path / "urls.gpkg").already == 4
    finally:
        memory.rm("/spheres", recursive=True)
    found = records(tmp_path / "urls.gpkg")
    assert {file.removeprefix("memory:///spheres/") for file in found} == one.keys()
    assert {photo.sha256: photo.geotag for photo, _ in found.values()} == {
        photo.sha256: photo.geotag for photo, _ in one.values()
    }


def test_file_urls_are_paths_and_packets_travel_unchanged(tmp_path: Path) -> None:
    write_trouble(tmp_path / "photos")
    wanted, _ = list_records(f"file://{tmp_path}/photos", None)
    there = [{**vars(one), "image": str(one.image)} for one in wanted]
    assert [{**vars(one), "image": str(one.image)} for one in list_records([tmp_path / "photos"], None)[0]] == there
    assert {one.geotag for one in wanted if one.geotag} == {geotag_of(0).__class__((10.0, 20.0), 90.0)}
    assert [vars(one) for packet in packets_of(wanted, 4) for one in read_packet(packet)] == there


def test_what_cannot_be_built_says_why(model: PlaceModel, tmp_path: Path, packets: list[str]) -> None:
    write_town(tmp_path / "photos", 2)
    with pytest.raises(PhotoError, match="memory://empty: holds no photos"):
        build(model, "memory://empty", tmp_path / "town.gpkg")
    with pytest.raises(ArgumentError, match="packet must be 1"):
        build(model, tmp_path / "photos", tmp_path / "town.gpkg", packet=0)
    build(model, tmp_path / "photos", tmp_path / "town.gpkg")
    with pytest.raises(MapError, match=f"was built by model {model.fingerprint()}"):
        build(tiny_model(seed=2), tmp_path / "photos", tmp_path / "town.gpkg")


def test_estimates_are_left_out_as_by_one_process(model: PlaceModel, tmp_path: Path, packets: list[str]) -> None:
    write_town(tmp_path / "photos", 3)
    lost = write_photo(tmp_path / "photos" / "lost.jpg", 7, tagged=False)
    write_geotag(lost, lost, geotag_of(90), Estimate(12.0, METHOD))
    many = build(model, tmp_path / "photos", tmp_path / "many.gpkg")
    assert (many.added, many.estimated) == (3, (str(lost),))
    assert build(model, tmp_path / "photos", tmp_path / "many.gpkg", trust_estimates=True).added == 1


def test_corrected_positions_and_conflicts_are_those_of_one_process(
    model: PlaceModel, tmp_path: Path, packets: list[str]
) -> None:
    folder, out = tmp_path / "photos", tmp_path / "town.gpkg"
    first = write_photo(folder / "a.jpg", 1, tagged=False)
    write_photo(folder / "b.jpg", 2, tagged=False)
    shutil.copy(first, folder / "copy.jpg")
    for latitude in (10, 11):
        (folder / "geotags.csv").write_text(f"file,lat,lon\na.jpg,{latitude},20\nb.jpg,5,5\ncopy.jpg,40,20\n")
        report = build(model, folder, out)
        (conflict,) = report.conflicts
        assert (Path(conflict.photo).name, Path(conflict.kept).name) == ("copy.jpg", "a.jpg")
    assert (report.added, report.updated, report.already, report.duplicates) == (0, 1, 1, 1)
    assert [[Path(one.name).name for one in read_packet(packet)] for packet in packets][-1] == ["copy.jpg"]
    build_map(folder, tmp_path / "fresh.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    assert_equal(records(out), records(tmp_path / "fresh.gpkg"))
    (folder / "b.jpg").unlink()
    assert build(model, folder, out).gone == ("photos/b.jpg",)


def test_a_first_build_that_fails_leaves_no_map(model: PlaceModel, tmp_path: Path, packets: list[str]) -> None:
    write_photo(tmp_path / "photos" / "nowhere.jpg", 1, tagged=False)
    assert len(build(model, tmp_path / "photos", tmp_path / "town.gpkg").untagged) == 1
    with pytest.raises(ArgumentError, match=r"\.gpkg"):
        build(model, tmp_path / "photos", tmp_path / "town.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_workers_project_by_the_maps_own_whitening(model: PlaceModel, tmp_path: Path, packets: list[str]) -> None:
    write_town(tmp_path / "photos", 9)
    options: dict[str, Any] = {"dim": 5, "storage": "float32", "keypoints": 0, "progress": False}
    alone, joint = tmp_path / "alone.gpkg", tmp_path / "joint.gpkg"
    build_map(tmp_path / "photos", alone, model, config=MapConfig(**options))
    report = build_map_on_cluster(
        tmp_path / "photos", joint, model, cluster="ray://local", config=MapConfig(packet=4, **options)
    )
    assert (report.added, report.notes) == (9, ())
    one, other = records(alone), records(joint)
    for name, (_, vector) in one.items():
        np.testing.assert_allclose(other[name][1], vector, atol=1e-4)
    write_photo(tmp_path / "photos" / "late.jpg", 77)
    build_map(tmp_path / "photos", alone, model, config=MapConfig(**options))
    build_map_on_cluster(tmp_path / "photos", joint, model, cluster="ray://local", config=MapConfig(**options))
    np.testing.assert_allclose(records(joint)["photos/late.jpg"][1], records(alone)["photos/late.jpg"][1], atol=1e-4)


@pytest.mark.usefixtures("packets")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_workers_compute_in_the_number_format_of_the_model(
    precision: Precision, in_bfloat16: set[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_town(tmp_path / "photos", 2)
    model = tiny_model()
    model.precision = precision
    build(model, tmp_path / "photos", tmp_path / "one.gpkg")
    model.precision = "auto"  # that of the environment of this process, whatever that of the workers is
    monkeypatch.setenv("SARELOC_PRECISION", precision)
    build(model, tmp_path / "photos", tmp_path / "two.gpkg")
    assert in_bfloat16 == {precision == "bfloat16"}
