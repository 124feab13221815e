"""Maps of 360° photos: their views are stored as the photo and a direction, and stay in step with the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.maps.small_town import build_map, geotag_of, tiny_model, write_photo, write_town
from tests.photos.panorama_files import draw_panorama, gpano_xmp, save_panorama

from sareloc.datasets import check_places, load_dataset
from sareloc.errors import MapError, PhotoError
from sareloc.localize import Localizer
from sareloc.maps import (
    MapConfig,
    MapPhoto,
    PlaceMap,
    add_photos,
    copy_map,
    map_info,
    open_store,
    sync_map,
    verify_map,
)
from sareloc.maps.notes import PANORAMA_VIEWS, read_view_options
from sareloc.models import PlaceModel
from sareloc.photos import Address, Geotag, Panorama, PhotoSource, ViewOptions, decode, parse_address, read_image

HERE = Geotag((52.0, 13.0), 350.0)
FULL = Panorama(512, 256)
HALF = {"full_width": 512, "full_height": 256, "crop_width": 256, "crop_height": 256, "left": 128, "top": 0}


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An ordinary photo, a 360° photo with a heading of its own, and one of 2:1 without tags."""
    photos = tmp_path / "photos"
    write_photo(photos / "photo.jpg", 1)
    save_panorama(photos / "pano.jpg", draw_panorama(FULL), HERE, gpano_xmp(heading=20))
    save_panorama(photos / "wide.jpg", draw_panorama(FULL)[::-1], HERE, b"")
    return photos


def held(path: str | Path) -> dict[str, MapPhoto]:
    """The photos of a map by the last part of their names."""
    with open_store(path) as store:
        return {Path(photo.file).name: photo for photos, _ in store.records() for photo in photos}


def test_a_360_photo_is_stored_as_twelve_views(folder: Path, model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "town.gpkg"
    report = build_map(folder, path, model, progress=False)
    assert (report.added, report.panoramas) == (14, 1)
    (note,) = report.notes
    assert "wide.jpg is 2:1 as a 360° photo, without GPano tags" in note
    photos = held(path)
    assert {name.partition("#")[0] for name in photos} == {"photo.jpg", "pano.jpg", "wide.jpg"}
    views = {parse_address(name).view: photo for name, photo in photos.items() if "#" in name}
    assert {view.yaw_deg for view in views if view} == set(range(0, 360, 30))
    for view, photo in views.items():
        assert view is not None
        assert (photo.width, photo.height) == (view.width, view.height) == (96, 72)
        assert photo.geotag.heading_deg == pytest.approx((20 + view.yaw_deg) % 360)
        assert photo.geotag.latlon == pytest.approx(HERE.latlon)
    assert len({photo.sha256 for photo in photos.values()}) == 14
    with open_store(path) as store:
        assert read_view_options(store) == ViewOptions()
    info = map_info(path)
    assert (info.photos, info.views, info.panoramas, info.gone) == (14, 12, 1, ())
    assert verify_map(path) == []
    again = build_map(folder, path, model, progress=False)
    assert (again.added, again.already, again.updated, again.panoramas) == (0, 14, 0, 1)


def test_the_descriptors_are_those_of_the_views(folder: Path, model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "town.gpkg"
    build_map(folder / "pano.jpg", path, model, progress=False, workers=2)
    with open_store(path) as store:
        ((photos, vectors),) = store.records()
        for photo, vector in zip(photos, vectors, strict=True):
            image = decode(store.photo_path(photo.file), size=model.preprocess.size)
            assert np.allclose(model.encode([image]).numpy()[0], vector, atol=2e-3)


def test_views_and_ordinary_photos_share_the_maps_own_whitening(
    folder: Path, model: PlaceModel, tmp_path: Path
) -> None:
    path = tmp_path / "town.gpkg"
    options: dict[str, Any] = {"dim": 5, "storage": "float32", "progress": False}
    assert build_map(folder, path, model, **options).added == 14
    late = save_panorama(folder / "late.jpg", np.roll(draw_panorama(FULL), 40, axis=0), HERE, gpano_xmp())
    assert add_photos([late], path, model, config=MapConfig(progress=False)).added == 12
    with open_store(path) as store:
        stored = store.whitening()
        assert stored is not None
        for photos, vectors in store.records():
            images = [decode(store.photo_path(photo.file), size=model.preprocess.size) for photo in photos]
            expected = (model.encode(images).numpy() - stored[0]) @ stored[1].T
            expected /= np.linalg.norm(expected, axis=1, keepdims=True)
            np.testing.assert_allclose(vectors, expected, atol=1e-3)
        assert store.count() == 26
    assert verify_map(path) == []
    late.unlink()
    assert len(sync_map(folder, path, model, config=MapConfig(progress=False)).removed) == 12


def test_options_are_noted_and_used_by_add_and_sync(folder: Path, model: PlaceModel, tmp_path: Path) -> None:
    path, options = tmp_path / "town.gpkg", ViewOptions((0.0, 180.0), (0.0, 20.0), 90.0, untagged=True)
    (folder / "wide.jpg").rename(tmp_path / "wide.jpg")
    assert build_map(folder, path, model, views=options, progress=False).added == 5
    add_photos(tmp_path / "wide.jpg", path, model, config=MapConfig(progress=False))
    assert len(held(path)) == 9
    save_panorama(folder / "third.jpg", draw_panorama(FULL)[:, ::-1], HERE)
    done = sync_map(folder, path, model, config=MapConfig(progress=False))
    assert (done.added, done.already, done.removed, done.panoramas) == (4, 5, (), 2)
    with pytest.raises(MapError, match=r"other views of 360° photos \(yaw 0, 180; pitch 0, 20; field of view 90"):
        build_map(folder, path, model, views=ViewOptions(), progress=False)
    assert copy_map(path, tmp_path / "copy.gpkg").photos == 13
    with open_store(tmp_path / "copy.gpkg") as store:
        assert read_view_options(store) == options


def test_sync_follows_moved_changed_and_deleted_files(folder: Path, model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "town.gpkg"
    build_map(folder, path, model, progress=False)
    before = held(path)
    (folder / "pano.jpg").rename(folder / "moved.jpg")
    moved = sync_map(folder, path, None, config=MapConfig(progress=False))
    assert (moved.added, moved.updated, moved.already, moved.removed) == (0, 12, 2, ())
    assert {photo.sha256 for photo in held(path).values()} == {photo.sha256 for photo in before.values()}

    save_panorama(folder / "moved.jpg", draw_panorama(FULL)[:, 128:384], HERE, gpano_xmp(**HALF))  # now half a sphere
    planned = sync_map(folder, path, model, dry_run=True, config=MapConfig(progress=False))
    cut = sync_map(folder, path, model, config=MapConfig(progress=False))
    for report in (planned, cut):
        assert (report.added, report.updated, len(report.removed)) == (0, 5, 7)
    assert len(held(path)) == 7

    save_panorama(folder / "wide.jpg", draw_panorama(FULL)[::-1], HERE)  # tags are put on a photo that had none
    tagged = sync_map(folder, path, model, config=MapConfig(progress=False))
    assert (tagged.added, [Path(name).name for name in tagged.removed]) == (12, ["wide.jpg"])

    (folder / "moved.jpg").unlink()
    gone = sync_map(folder, path, model, config=MapConfig(progress=False))
    assert (gone.added, len(gone.removed)) == (0, 5)
    assert {name.partition("#")[0] for name in held(path)} == {"photo.jpg", "wide.jpg"}


def test_a_360_photo_that_cannot_be_read_any_more_keeps_its_views(
    folder: Path, model: PlaceModel, tmp_path: Path
) -> None:
    path = tmp_path / "town.gpkg"
    build_map(folder, path, model, progress=False)
    (folder / "pano.jpg").write_bytes(b"damaged")
    report = sync_map(folder, path, model, config=MapConfig(progress=False))
    assert report.removed == ()
    assert [Path(error.photo).name for error in report.unreadable] == ["pano.jpg"]
    assert len(held(path)) == 14


def test_each_file_is_named_once(model: PlaceModel, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    write_photo(photos / "photo.jpg", 1)
    save_panorama(photos / "nowhere.jpg", draw_panorama(FULL))
    cylinder = save_panorama(photos / "cylinder.jpg", draw_panorama(FULL), HERE, gpano_xmp(projection="cylindrical"))
    content = save_panorama(photos / "cut.jpg", draw_panorama(FULL), HERE).read_bytes()
    (photos / "cut.jpg").write_bytes(content[: len(content) // 2])
    report = build_map(photos, tmp_path / "town.gpkg", model, progress=False)
    assert [Path(photo).name for photo in report.untagged] == ["nowhere.jpg"]
    assert [Path(error.photo).name for error in report.unreadable] == ["cut.jpg"]
    assert report.notes == (
        f"{cylinder}: its GPano tags cannot be used: the projection is 'cylindrical', expected 'equirectangular'; "
        "used as an ordinary photo",
    )
    assert set(held(tmp_path / "town.gpkg")) == {"photo.jpg", "cylinder.jpg"}


def test_headings_come_from_a_table_too(folder: Path, model: PlaceModel, tmp_path: Path) -> None:
    (folder / "geotags.csv").write_text("file,lat,lon,heading\npano.jpg,50,10,100\n")
    build_map(folder, tmp_path / "town.gpkg", model, progress=False)
    by_table = {name: photo.geotag for name, photo in held(tmp_path / "town.gpkg").items() if name.startswith("pano")}
    for name, geotag in by_table.items():
        view = parse_address(name).view
        assert view is not None
        assert geotag == Geotag((50.0, 10.0), (100 + view.yaw_deg) % 360)
    (folder / "geotags.csv").write_text("file,lat,lon\npano.jpg,50,10.5\n")
    report = sync_map(folder, tmp_path / "town.gpkg", None, config=MapConfig(progress=False))
    assert report.updated == 12
    now = held(tmp_path / "town.gpkg")["pano.jpg#yaw=30&pitch=0&fov=60&size=96x72"].geotag
    assert now == Geotag((50.0, 10.5), 50.0)  # the heading of the GPano tags


def test_a_malformed_note_is_damage(folder: Path, model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "town.gpkg"
    build_map(folder, path, model, progress=False)
    for text in ("nonsense", "[]", json.dumps({"yaw_deg": [], "pitch_deg": [0], "fov_deg": 60})):
        with open_store(path, write=True) as store:
            store.write_note(PANORAMA_VIEWS, text)
        with pytest.raises(MapError, match="is damaged: its note 'panorama views'"):
            add_photos(folder, path, model, config=MapConfig(progress=False))


def test_many_photos_of_2_to_1_give_one_note(model: PlaceModel, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = [
        save_panorama(tmp_path / f"{n}.jpg", rng.integers(0, 256, (256, 512, 3), np.uint8), xmp=b"") for n in range(3)
    ]
    records = [PhotoSource(str(file), file, HERE.latlon) for file in files]
    report = build_map(records, tmp_path / "ordinary.gpkg", model, progress=False)
    assert (report.added, report.panoramas) == (3, 0)
    (note,) = report.notes
    assert note.startswith(f"3 photos, such as {files[0]}, are 2:1")
    cut = build_map(records, tmp_path / "cut.gpkg", model, views=ViewOptions(untagged=True), progress=False)
    assert (cut.added, cut.panoramas, cut.notes) == (36, 3, ())


@pytest.mark.parametrize("kind", ["file", "bytes", "pixels"])
def test_a_360_photo_of_a_stream_is_stored_as_its_views(kind: str, model: PlaceModel, tmp_path: Path) -> None:
    sphere = draw_panorama(FULL)
    file = save_panorama(tmp_path / "pano.jpg", sphere, xmp=gpano_xmp(heading=20))
    image = {"file": file, "bytes": file.read_bytes(), "pixels": sphere}[kind]
    views = ViewOptions((0, 90), fov_deg=90, untagged=kind == "pixels")
    heading = 20.0 if kind == "pixels" else None  # default: that of the tags
    source = PhotoSource("ladybug/1", image, HERE.latlon, heading, 1.7e9)
    ordinary = PhotoSource("front/1", sphere[:200, :250], HERE.latlon)
    path = tmp_path / "town.gpkg"
    report = build_map(iter([source, ordinary]), path, model, views=views, progress=False)
    assert (report.added, report.panoramas, report.notes) == (3, 1, ())
    again = build_map(iter([source, ordinary]), path, model, progress=False)
    assert (again.added, again.already) == (0, 3)  # the views are those of the map
    photos = held(path)
    start = "pano.jpg" if kind == "file" else "1"
    names = [f"{start}#yaw={yaw}&pitch=0&fov=90&size=160x120" for yaw in (0, 90)]
    assert set(photos) == {*names, "1"}
    assert [photos[name].geotag.heading_deg for name in names] == [20, 110]
    with open_store(path) as store:
        assert read_view_options(store) == views
    assert verify_map(path) == []


def test_a_view_of_a_stream_has_the_pixels_and_focal_length_of_the_view_of_a_file(tmp_path: Path) -> None:
    file = save_panorama(tmp_path / "pano.png", draw_panorama(FULL))
    options = ViewOptions((30,), fov_deg=90, untagged=True)
    by_diagonal = np.hypot(36, 24) * 2 / 5
    (of_file,) = read_image(file, [None], cut=options, digest=True).views
    wanted = read_image(Address(file, of_file.view).path, [None], digest=True)
    assert of_file.sha256 == wanted.sha256
    for image in (file.read_bytes(), draw_panorama(FULL), file):
        (view,) = read_image(image, [None], cut=options).views
        np.testing.assert_array_equal(view.pixels[0], wanted.pixels[0])
        assert view.focal_35mm == wanted.focal_35mm == pytest.approx(by_diagonal)


def test_what_is_not_cut_of_a_stream_is_noted(model: PlaceModel, tmp_path: Path) -> None:
    sphere = draw_panorama(FULL)
    odd = save_panorama(tmp_path / "odd.jpg", sphere, xmp=gpano_xmp(projection="cylindrical")).read_bytes()
    sources = [PhotoSource("plain", sphere, HERE.latlon), PhotoSource("odd", odd, HERE.latlon)]
    report = build_map(sources, tmp_path / "town.gpkg", model, progress=False)
    assert (report.added, report.panoramas) == (2, 0)
    assert "odd: its GPano tags cannot be used: the projection is 'cylindrical'" in report.notes[0]
    assert "plain" in report.notes[1]
    assert "2:1 as a 360° photo, without GPano tags" in report.notes[1]


@pytest.mark.parametrize("xmp", ['<?xml version="1.0" encoding="nonsense"?>{}', "<a>" * 200 + "{}" + "</a>" * 200])
def test_xmp_that_cannot_be_read_is_a_note_on_its_photo_and_the_others_are_added(tmp_path: Path, xmp: str) -> None:
    write_town(tmp_path / "town", 2)
    hostile = xmp.format(gpano_xmp().decode()).encode()
    bad = save_panorama(tmp_path / "town" / "bad.jpg", np.zeros((64, 128, 3), np.uint8), geotag_of(7), hostile)
    (tmp_path / "town" / "0001.xmp").write_bytes(hostile)
    report = build_map(tmp_path / "town", tmp_path / "town.gpkg", tiny_model(), progress=False)
    assert (report.added, report.unreadable) == (3, ())
    assert [
        note.startswith(f"{bad}: its GPano tags cannot be used: the XMP is malformed") for note in report.notes
    ] == [True]
    check = check_places(load_dataset(tmp_path / "town"), decode=True)
    assert (check.database, check.unreadable) == (3, ())
    localizer = Localizer(tiny_model(), PlaceMap(tmp_path / "town.gpkg"))
    queries = [tmp_path / "town" / "0000.jpg", bad]
    assert [isinstance(fix, PhotoError) for fix in localizer.localize_many(queries)] == [False, False]
