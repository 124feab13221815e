"""Photos that are replaced while a map is built: their descriptors are those of the stored content, or left out."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.maps.small_town import build_map, geotag_of, tiny_model, write_photo, write_town
from tests.photos.panorama_files import draw_panorama, gpano_xmp, save_panorama

from sareloc import maps
from sareloc.maps import MapConfig, PlaceMap, add_local_features, examine, upgrade, verify_map, writer
from sareloc.photos import Panorama, ViewOptions, record_of

Write = Callable[[Path, bytes], object]


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def rename_over(path: Path, content: bytes) -> None:
    beside = path.with_name("beside")
    beside.write_bytes(content)
    os.replace(beside, path)


def replaced_meanwhile(
    work: Callable[..., Iterator[Any]], path: Path, content: bytes, write: Write
) -> Callable[..., Iterator[Any]]:
    """The same function; while it runs the file has other content, with the same size and time stamp as before."""
    own, status = path.read_bytes(), path.stat()

    def put(these: bytes) -> None:
        write(path, these)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def swapped(*given: Any, **options: Any) -> Iterator[Any]:
        put(content)
        try:
            yield from work(*given, **options)
        finally:
            put(own)

    return swapped


def other_photo(like: Path, folder: Path) -> bytes:
    """Another photo, of the same size in bytes."""
    content = write_photo(folder / "other.jpg", 99).read_bytes()
    size = like.stat().st_size
    assert len(content) < size + 200
    return content.ljust(size, b"\0")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("write", [overwrite, rename_over])
def test_a_photo_that_is_another_when_it_is_described_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, write: Write
) -> None:
    model, photos = tiny_model(), tmp_path / "photos"
    path = write_town(photos, 4)[2]
    with path.open("ab") as file:
        file.write(bytes(300))
    build_map(photos, tmp_path / "right.gpkg", model, progress=False)
    wanted = PlaceMap(tmp_path / "right.gpkg")
    with monkeypatch.context() as patch:
        swapped = replaced_meanwhile(writer.read_images, path, other_photo(path, tmp_path), write)
        patch.setattr(writer, "read_images", swapped)
        report = build_map(photos, tmp_path / "town.gpkg", model, workers=workers, progress=False)
    assert report.added == 3
    assert [(Path(error.photo).name, error.reason[:11]) for error in report.unreadable] == [("0002.jpg", "was changed")]
    assert build_map(photos, tmp_path / "town.gpkg", model, progress=False).added == 1
    found = PlaceMap(tmp_path / "town.gpkg")
    rows = {Path(file).name: found.descriptors([i])[0] for i, file in zip(found.ids, found.files, strict=True)}
    for photo_id, file in zip(wanted.ids, wanted.files, strict=True):
        np.testing.assert_allclose(rows[Path(file).name], wanted.descriptors([photo_id])[0], atol=1e-3)


def test_views_of_a_360_photo_that_is_another_when_they_are_described_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, tag, xmp = Panorama(512, 256), geotag_of(0), gpano_xmp(heading=20)
    path = save_panorama(tmp_path / "photos" / "pano.jpg", draw_panorama(full), tag, xmp)
    content = save_panorama(tmp_path / "other.jpg", draw_panorama(full)[::-1], tag, xmp).read_bytes()
    size = max(len(content), path.stat().st_size)
    path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    swapped = replaced_meanwhile(writer.read_images, path, content.ljust(size, b"\0"), overwrite)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "read_images", swapped)
        report = build_map(path.parent, tmp_path / "town.gpkg", tiny_model(), progress=False)
    assert (report.added, len(report.unreadable)) == (0, 1)
    assert build_map(path.parent, tmp_path / "town.gpkg", tiny_model(), progress=False).added == 12


def test_features_of_a_photo_that_is_another_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, town = tmp_path / "photos", tmp_path / "town.gpkg"
    path = write_town(photos, 3)[1]
    with path.open("ab") as file:
        file.write(bytes(300))
    maps.build_map(photos, tmp_path / "right.gpkg", tiny_model(), config=MapConfig(keypoints=30, progress=False))
    build_map(photos, town, tiny_model(), progress=False)
    with monkeypatch.context() as patch:
        swapped = replaced_meanwhile(upgrade.read_images, path, other_photo(path, tmp_path), overwrite)
        patch.setattr(upgrade, "read_images", swapped)
        report = add_local_features(town, keypoints=30, device="cpu", progress=False)
    assert (report.added, [Path(error.photo).name for error in report.unreadable]) == (2, ["0001.jpg"])
    assert add_local_features(town, device="cpu", progress=False).added == 1
    wanted, found = (PlaceMap(file).local_features([2])[2] for file in (tmp_path / "right.gpkg", town))
    np.testing.assert_array_equal(found.xy, wanted.xy)
    assert verify_map(town) == []


def test_what_is_examined_of_a_photo_is_of_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be stored with the position of one photo and the descriptor of another."""
    path = write_photo(tmp_path / "a.jpg", 1)
    content, read = path.read_bytes(), examine.read_image

    def reading(*given: Any, **options: Any) -> Any:
        found = read(*given, **options)
        shutil.copy(write_photo(tmp_path / "b.jpg", 2), path)
        return found

    monkeypatch.setattr(examine, "read_image", reading)
    examined = examine.examine(record_of(path), "a.jpg", ViewOptions())
    assert examined.photos[0].sha256 == hashlib.sha256(content).digest()
    np.testing.assert_allclose(examined.photos[0].geotag.latlon, geotag_of(1).latlon, atol=1e-7)
