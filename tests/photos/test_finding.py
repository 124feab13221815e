from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from sareloc.errors import DatasetError, PhotoError
from sareloc.photos import Geotag, exif_bytes, find_geotagged, find_photos


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in find_photos(folder)]


def test_photos_of_a_tree_sorted(tmp_path: Path) -> None:
    photos = [f"{kind}.{kind}" for kind in ["jpg", "jpeg", "png", "webp", "avif", "tif", "tiff", "heic", "heif"]]
    touch(tmp_path, *photos, "z/deep/er/B.JPG", "z/A.HeIc", "b.txt", "c.mp4", "jpg", "d.jpg.part", "e.gif")
    assert found(tmp_path) == sorted([*photos, "z/deep/er/B.JPG", "z/A.HeIc"], key=lambda name: Path(name).parts)
    assert find_photos(str(tmp_path)) == find_photos(tmp_path)


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "._a.jpg", ".hidden.jpg", ".thumbnails/b.jpg", "sub/.trash/c.jpg")
    assert found(tmp_path) == ["a.jpg"]
    touch(tmp_path, ".mine/d.jpg")
    assert found(tmp_path / ".mine") == ["d.jpg"]  # asked for by name, it is not hidden


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.jpg", "elsewhere/b.jpg", "target.bin")
    folder = tmp_path / "real"
    (folder / "loop").symlink_to(folder)
    (folder / "up").symlink_to(tmp_path)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(tmp_path / "elsewhere")
    (folder / "file.jpg").symlink_to(tmp_path / "target.bin")
    (folder / "broken.jpg").symlink_to(tmp_path / "nothing")
    (folder / "self.jpg").symlink_to(folder / "self.jpg")
    names = found(folder)
    assert "a.jpg" in names
    assert "file.jpg" in names
    assert "broken.jpg" not in names
    assert sum(name.endswith("b.jpg") for name in names) == 1  # one folder under three names is one folder
    assert sum(name.endswith("a.jpg") for name in names) == 1


def test_a_folder_named_like_a_photo(tmp_path: Path) -> None:
    touch(tmp_path, "album.jpg/a.jpg")
    assert found(tmp_path) == ["album.jpg/a.jpg"]


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    touch(tmp_path, name)
    assert [path.name for path in find_photos(tmp_path)] == [name]


def test_no_photos_and_no_folder(tmp_path: Path) -> None:
    assert find_photos(tmp_path) == []
    touch(tmp_path, "a.jpg")
    with pytest.raises(PhotoError, match="none: no such folder"):
        find_photos(tmp_path / "none")
    with pytest.raises(PhotoError, match=r"a\.jpg: is a file, not a folder"):
        find_photos(tmp_path / "a.jpg")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0)
    with pytest.raises(PhotoError, match="private: the folder cannot be read: Permission denied"):
        find_photos(tmp_path)


def save(path: Path, geotag: Geotag | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path, **({} if geotag is None else {"exif": exif_bytes(geotag)}))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    save(tmp_path / "exif.jpg", Geotag((10.0, 20.0), 45.0))
    save(tmp_path / "none.jpg")
    save(tmp_path / "sub" / "@0386248.27@6174175.70@33@U@055.70000@0013.19000@@@@@@@@@.png")
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    return tmp_path


def test_tagged_and_untagged_photos(mixed: Path) -> None:
    result = find_geotagged(mixed)
    assert [photo.name[:8] for photo in result.photos] == ["exif.jpg", "@0386248"]
    assert result.geotags[0].latlon == pytest.approx((10, 20), abs=1e-9)
    assert result.geotags[0].heading_deg == 45
    assert result.positions().latlon()[1] == pytest.approx((55.7, 13.19), abs=1e-6)
    assert [photo.name for photo in result.untagged] == ["broken.jpg", "none.jpg"]
    assert [error.photo for error in result.unreadable] == [str(mixed / "broken.jpg")]
    assert result.missing == ()


def test_a_table_beside_goes_first(mixed: Path) -> None:
    (mixed / "geotags.csv").write_text("file,lat,lon\nnone.jpg,1,2\nexif.jpg,3,4\ngone/away.jpg,5,6\n")
    result = find_geotagged(mixed)
    assert [photo.name for photo in result.untagged] == ["broken.jpg"]
    tags = {photo.name: tag.latlon for photo, tag in zip(result.photos, result.geotags, strict=True)}
    assert tags["none.jpg"] == (1, 2)
    assert tags["exif.jpg"] == (3, 4)
    assert result.missing == ("gone/away.jpg",)


def test_a_table_elsewhere_names_files_from_its_own_folder(mixed: Path) -> None:
    table = mixed.parent / "list.csv"
    table.write_text(f"file,lat,lon\n{mixed.name}/none.jpg,1,2\n")
    result = find_geotagged(mixed, table)
    assert mixed / "none.jpg" in result.photos
    with pytest.raises(DatasetError, match=r"nope\.csv cannot be read"):
        find_geotagged(mixed, mixed / "nope.csv")


def test_a_table_written_elsewhere_is_matched_by_file_name(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg", "1/same.jpg", "2/same.jpg", "cafe\u0301.jpg"):
        save(tmp_path / "photos" / name)
    (tmp_path / "list.csv").write_text(
        "file,lat,lon\nC:\\trip\\a.jpg,52.1,0\n/home/me/caf\u00e9.jpg,52.2,0\nsame.jpg,52.3,0\nnone.jpg,52.4,0\n"
    )
    result = find_geotagged(tmp_path / "photos", tmp_path / "list.csv")
    assert [photo.name for photo in result.photos] == ["a.jpg", "cafe\u0301.jpg"]
    assert [tag.latlon[0] for tag in result.geotags] == [52.1, 52.2]
    assert result.missing == ("same.jpg", "none.jpg")
    by_name, missing = result.notes
    assert "2 match by file name" in by_name
    assert "2 rows (same.jpg, none.jpg)" in missing


def test_a_table_in_which_some_paths_are_right_is_not_matched_by_file_name(tmp_path: Path) -> None:
    save(tmp_path / "a.jpg")
    save(tmp_path / "sub" / "b.jpg")
    (tmp_path / "geotags.csv").write_text("file,lat,lon\na.jpg,52.1,0\nb.jpg,52.2,0\n")
    result = find_geotagged(tmp_path)
    assert [photo.name for photo in result.photos] == ["a.jpg"]
    assert result.missing == ("b.jpg",)
    assert "1 row (b.jpg)" in result.notes[0]


def test_a_table_that_names_none_of_the_photos_is_reported_with_an_example(tmp_path: Path) -> None:
    save(tmp_path / "photo.jpg")
    (tmp_path / "geotags.csv").write_text("file,lat,lon\nIMG_1.jpg,52.1,0\nIMG_2.jpg,52.2,0\n")
    (note,) = find_geotagged(tmp_path).notes
    assert "none of the 1 photos" in note
    assert "IMG_1.jpg" in note
    assert str(tmp_path / "photo.jpg") in note


def test_bad_rows_beside_do_not_stop_the_others(mixed: Path) -> None:
    (mixed / "geotags.csv").write_text("file,lat,lon\nnone.jpg,1,2\nexif.jpg,95,4\n")
    result = find_geotagged(mixed)
    tags = {photo.name: tag.latlon for photo, tag in zip(result.photos, result.geotags, strict=True)}
    assert tags["none.jpg"] == (1, 2)
    assert tags["exif.jpg"] == pytest.approx((10, 20), abs=1e-9)  # its own position
    assert "line 3 (exif.jpg)" in result.notes[0]


def test_geojson_beside(tmp_path: Path) -> None:
    save(tmp_path / "a.jpg")
    (tmp_path / "geotags.geojson").write_text(
        '{"features": [{"geometry": {"type": "Point", "coordinates": [2, 1]}, "properties": {"file": "a.jpg"}}]}'
    )
    assert find_geotagged(tmp_path).geotags == (Geotag((1.0, 2.0)),)


def test_tables_of_other_programs_beside(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        save(tmp_path / name)
    described = [{"filename": f"/else/{name}", "MAPLatitude": 1, "MAPLongitude": 2} for name in ("a.jpg", "b.jpg")]
    (tmp_path / "mapillary_image_description.json").write_text(json.dumps(described))
    (tmp_path / "_panoramax.csv").write_text("file;lat;lon\nb.jpg;3;4\nc.jpg;3;4\n")
    (tmp_path / "_geovisio.csv").write_text("file;capture_time\nb.jpg;2024-05-31T12:00:00Z\n")
    result = find_geotagged(tmp_path)
    assert [tag.latlon for tag in result.geotags] == [(1, 2), (1, 2), (3, 4)]
    assert result.sources == ("table",) * 3
    assert "not used: " in result.notes[0]
    assert "_geovisio.csv has no column 'lat'" in result.notes[0]
    (tmp_path / "geotags.csv").write_text("file,lat,lon\na.jpg,5,6\n")
    assert [tag.latlon for tag in find_geotagged(tmp_path).geotags] == [(5, 6), (1, 2), (3, 4)]
    (tmp_path / "geotags.csv").write_text("file,where\na.jpg,5\n")
    with pytest.raises(DatasetError, match="lat"):  # a table of sareloc's own is meant to be used
        find_geotagged(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    result = find_geotagged(tmp_path)
    assert result.photos == result.geotags == result.untagged == result.missing == ()
    assert len(result.positions()) == 0


@pytest.mark.data
def test_camera_originals_are_all_tagged(shared_data: Path) -> None:
    result = find_geotagged(shared_data / "exif")
    assert len(result.photos) == 9
    assert result.untagged == ()
    assert [photo.name for photo in result.photos][:2] == ["berlin_01.jpg", "lund_01.jpg"]
