"""A map kept in step with folders of photos: nothing is lost that was not asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.maps.small_town import build_map, tiny_model, write_photo, write_town

from sareloc.errors import MapError, PhotoError
from sareloc.maps import MapConfig, add_photos, open_store, sync_map
from sareloc.models import PlaceModel, save_checkpoint


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture(params=["file", "milvus"])
def town(request: pytest.FixtureRequest, model: PlaceModel, tmp_path: Path) -> str | Path:
    """A map of six photos in photos/, one of which lies in photos/sub/, and of one in other/."""
    out: str | Path = tmp_path / "town.gpkg"
    if request.param == "milvus":
        pytest.importorskip("milvus_lite")
        out = f"milvus-lite:{tmp_path}/lite.db/town"
    write_town(tmp_path / "photos", 5)
    write_photo(tmp_path / "photos" / "sub" / "5.jpg", 5)
    build_map(tmp_path / "photos", out, model, progress=False)
    add_photos(write_photo(tmp_path / "other" / "6.jpg", 6), out, model, config=MapConfig(progress=False))
    return out


def held(town: str | Path) -> dict[str, bytes]:
    """The content of each photo by its path below the folder of the map."""
    with open_store(town) as store:
        return {
            os.path.join(*store.photo_path(photo.file).parts[-2:]): photo.sha256
            for photos, _ in store.records()
            for photo in photos
        }


def change(folder: Path) -> None:
    """Add one, move one, change one, correct one, and delete two, one of them elsewhere."""
    write_photo(folder / "photos" / "new.jpg", 77)
    (folder / "photos" / "0000.jpg").rename(folder / "photos" / "moved.jpg")
    write_photo(folder / "photos" / "0001.jpg", 1234)
    (folder / "photos" / "geotags.csv").write_text("file,lat,lon\n0002.jpg,10,20\n")
    (folder / "photos" / "0003.jpg").unlink()
    (folder / "other" / "6.jpg").unlink()


def test_adds_updates_and_removes_below_the_folders_alone(town: str | Path, model: PlaceModel, tmp_path: Path) -> None:
    before = held(town)
    change(tmp_path)
    planned = sync_map(tmp_path / "photos", town, None, dry_run=True, config=MapConfig(progress=False))
    assert held(town) == before
    done = sync_map(tmp_path / "photos", town, model, config=MapConfig(progress=False))
    for report in (planned, done):
        assert (report.added, report.updated, report.already, report.duplicates) == (1, 3, 2, 0)
        assert [Path(name).name for name in report.removed] == ["0003.jpg"]
        assert [Path(name).name for name in report.gone] == ["6.jpg"]
    assert (planned.dry_run, done.dry_run) == (True, False)
    after = held(town)
    assert after.keys() == {
        *(f"photos/{name}.jpg" for name in ("new", "moved", "0001", "0002", "0004")),
        "sub/5.jpg",
        "other/6.jpg",
    }
    assert after["photos/moved.jpg"] == before["photos/0000.jpg"]
    again = sync_map(
        tmp_path / "photos", town, None, config=MapConfig(progress=False)
    )  # needs no model: there is nothing to describe
    assert (again.added, again.updated, again.already, again.removed) == (0, 0, 6, ())


def test_a_dry_run_changes_not_a_byte(model: PlaceModel, tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 5)
    write_photo(tmp_path / "other" / "6.jpg", 6)
    path = tmp_path / "town.gpkg"
    build_map([tmp_path / "photos", tmp_path / "other"], path, model, progress=False)
    content, listed = path.read_bytes(), sorted(os.listdir(tmp_path))
    change(tmp_path)
    report = sync_map(tmp_path / "photos", path, "no such checkpoint", dry_run=True, config=MapConfig(progress=False))
    assert (report.added, report.updated, len(report.removed)) == (1, 3, 1)
    assert path.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == listed


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_disk_that_is_not_mounted_does_not_empty_the_map(
    how: str, town: str | Path, model: PlaceModel, tmp_path: Path
) -> None:
    before = held(town)
    shutil.rmtree(tmp_path / "photos")
    if how == "empty":
        (tmp_path / "photos").mkdir()
    for given in (tmp_path / "photos", [tmp_path / "other", tmp_path / "photos"]):
        with pytest.raises(PhotoError, match=r"photos: .*--allow-empty"):
            sync_map(given, town, model, config=MapConfig(progress=False))
    assert held(town) == before
    planned = sync_map(
        tmp_path / "photos", town, model, allow_empty=True, dry_run=True, config=MapConfig(progress=False)
    )
    assert (len(planned.removed), held(town)) == (6, before)
    assert (
        len(sync_map(tmp_path / "photos", town, model, allow_empty=True, config=MapConfig(progress=False)).removed) == 6
    )
    assert held(town).keys() == {"other/6.jpg"}


def test_folders_whose_names_only_begin_alike_are_others(model: PlaceModel, tmp_path: Path) -> None:
    gone = write_photo(tmp_path / "photos2" / "a.jpg", 1)
    write_photo(tmp_path / "photos" / "b.jpg", 2)
    build_map([tmp_path / "photos", tmp_path / "photos2"], tmp_path / "town.gpkg", model, progress=False)
    gone.unlink()
    report = sync_map(tmp_path / "photos", tmp_path / "town.gpkg", model, config=MapConfig(progress=False))
    assert (report.removed, report.gone) == ((), ("photos2/a.jpg",))


def test_another_model_changes_nothing(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_town(tmp_path / "photos", 2)
    path = tmp_path / "town.gpkg"
    build_map(tmp_path / "photos", path, model, progress=False)
    before = held(path)
    paths[0].unlink()
    write_photo(tmp_path / "photos" / "new.jpg", 9)
    another = tiny_model(seed=2)
    save_checkpoint(another, tmp_path / "other.safetensors")
    for other in (another, tmp_path / "other.safetensors"):
        with pytest.raises(MapError, match="built by model"):
            sync_map(tmp_path / "photos", path, other, config=MapConfig(progress=False))
    assert held(path) == before
    with pytest.raises(MapError, match="does not exist"):
        sync_map(tmp_path / "photos", tmp_path / "absent.gpkg", model, config=MapConfig(progress=False))


def test_two_new_files_of_one_content_are_planned_as_they_are_done(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sareloc.maps.writer.AT_ONCE", 1)
    paths = write_town(tmp_path / "photos", 2)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, progress=False)
    for name in ("a.jpg", "b.jpg"):
        write_photo(tmp_path / "photos" / name, 9)
    shutil.copy(paths[0], tmp_path / "photos" / "twin.jpg")
    for dry_run in (True, False):
        report = sync_map(
            tmp_path / "photos", tmp_path / "town.gpkg", model, dry_run=dry_run, config=MapConfig(progress=False)
        )
        assert (report.added, report.already, report.duplicates) == (1, 2, 2)


def test_the_model_is_loaded_once(model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.maps.writer.AT_ONCE", 1)
    loaded: list[object] = []
    monkeypatch.setattr("sareloc.maps.build.load_map_model", lambda *given: (loaded.append(given), model)[1])
    write_town(tmp_path / "photos", 1)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, progress=False)
    write_town(tmp_path / "photos", 3)
    assert sync_map(tmp_path / "photos", tmp_path / "town.gpkg", None, config=MapConfig(progress=False)).added == 2
    assert len(loaded) == 1
