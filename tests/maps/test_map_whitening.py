"""A map's own whitening: fewer dimensions of a model whose coordinates have no order, fitted on the map's photos."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.maps.small_town import build_map, geotag_of, tiny_model, write_photo, write_town

from sareloc.arrays import Floats, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.localize import Localizer
from sareloc.maps import (
    PlaceMap,
    add_photos,
    compact_map,
    copy_map,
    map_info,
    open_map_file,
    sync_map,
    verify_map,
    writer,
)
from sareloc.maps.file import MapFile
from sareloc.maps.rows import descriptor_checksum
from sareloc.maps.store import map_model
from sareloc.models import PlaceModel, fit_whitening
from sareloc.models.place_model import RuntimeModel, with_whitening
from sareloc.photos import PhotoSource, decode

DIM = 6
PHOTOS = 12


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


@pytest.fixture(scope="module")
def built(model: PlaceModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a map and its photos."""
    folder = tmp_path_factory.mktemp("town")
    write_town(folder / "photos", PHOTOS)
    report = build_map(folder / "photos", folder / "town.gpkg", model, dim=DIM, storage="float32", batch=4)
    assert (report.added, report.notes) == (PHOTOS, ())
    return folder


@pytest.fixture
def photos(built: Path, tmp_path: Path) -> list[Path]:
    return sorted(Path(shutil.copytree(built / "photos", tmp_path / "photos")).iterdir())


@pytest.fixture
def town(built: Path, photos: list[Path], tmp_path: Path) -> Path:
    """The map in a copy that a test may change, beside its photos."""
    return Path(shutil.copy(built / "town.gpkg", tmp_path))


def project(path: Path, vectors: Floats | Vectors) -> Floats:
    """By hand: subtract the stored mean, multiply by the stored projection, scale to unit length."""
    with open_map_file(path) as file:
        stored = file.whitening()
    assert stored is not None
    mean, projection = (part.astype(np.float64) for part in stored)
    found: Floats = (vectors.astype(np.float64) - mean) @ projection.T
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def described(model: PlaceModel, photos: list[Path]) -> Vectors:
    return model.encode([decode(path) for path in photos]).numpy()


def stored_descriptors(path: Path) -> dict[str, Vectors]:
    with open_map_file(path) as file:
        return {Path(p.file).name: v for part, vectors in file.records() for p, v in zip(part, vectors, strict=True)}


def test_the_map_holds_the_projected_descriptors_and_search_equals_projecting_by_hand(
    model: PlaceModel, photos: list[Path], town: Path
) -> None:
    full = described(model, photos)
    assert full.shape[1] == 256 > DIM
    by_hand = project(town, full)
    held = stored_descriptors(town)
    np.testing.assert_allclose([held[path.name] for path in photos], by_hand, atol=2e-4)
    found = PlaceMap(town, exact=True).search(by_hand, PHOTOS)
    expected = np.linalg.norm(by_hand[:, None] - by_hand[None], axis=2)
    np.testing.assert_allclose(found.distances, np.sort(expected, axis=1), atol=2e-3)


def test_the_stored_whitening_is_that_of_all_photos(model: PlaceModel, photos: list[Path], town: Path) -> None:
    fitted = fit_whitening(described(model, photos), DIM, power=writer.WHITENING_POWER)
    with open_map_file(town) as file:
        stored = file.whitening()
    assert stored is not None
    np.testing.assert_allclose(stored[0], fitted.mean.numpy(), atol=1e-5)
    np.testing.assert_allclose(stored[1], fitted.projection.numpy(), atol=2e-2 * float(fitted.projection.abs().max()))


def test_localizing_finds_the_same_photo(model: PlaceModel, photos: list[Path], town: Path) -> None:
    localizer = Localizer(model, PlaceMap(town))
    for number, path in enumerate(photos):
        first = localizer.localize(path).matches[0]
        assert Path(first.photo).name == path.name
        assert first.latlon == pytest.approx(geotag_of(number).latlon)
        assert first.distance < 0.02
    assert localizer.model.fingerprint() == PlaceMap(town).manifest.fingerprint


def test_a_build_that_was_stopped_continues_with_the_stored_whitening(
    model: PlaceModel, photos: list[Path], town: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = MapFile.add, list[int]()

    def stopping(self: MapFile, *given: object) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return add(self, *given)  # type: ignore[arg-type]

    again = tmp_path / "again.gpkg"
    options: dict[str, Any] = {"dim": DIM, "storage": "float32", "batch": 4}
    with monkeypatch.context() as patch:
        patch.setattr(MapFile, "add", stopping)
        with pytest.raises(KeyboardInterrupt):
            build_map(tmp_path / "photos", again, model, **options)
    assert len(stored_descriptors(again)) == 4
    with monkeypatch.context() as patch:
        patch.setattr(writer, "fit_whitening", _never)
        report = build_map(tmp_path / "photos", again, model, **options)
    assert (report.added, report.already) == (8, 4)
    one, other = stored_descriptors(town), stored_descriptors(again)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-5)


def _never(*given: object, **options: object) -> None:
    raise AssertionError("fitted again")


def test_a_build_that_was_stopped_before_the_whitening_was_written_fits_it(
    model: PlaceModel, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MapFile, "write_whitening", stop)
        with pytest.raises(KeyboardInterrupt):
            build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, dim=DIM)
    assert not stored_descriptors(tmp_path / "town.gpkg")
    assert build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, dim=DIM).added == PHOTOS


@pytest.mark.parametrize("way", ["build", "add", "sync"])
def test_photos_that_come_later_are_projected_by_the_same_whitening(
    model: PlaceModel, town: Path, tmp_path: Path, way: str
) -> None:
    before = stored_descriptors(town)
    late = write_photo(tmp_path / "photos" / "late.jpg", 77)
    if way == "build":
        assert build_map(tmp_path / "photos", town, model, dim=DIM, storage="float32").added == 1
    elif way == "add":
        assert add_photos([late], town, model).added == 1
    else:
        assert sync_map(tmp_path / "photos", town, model).added == 1
    after = stored_descriptors(town)
    np.testing.assert_allclose(after["late.jpg"], project(town, described(model, [late]))[0], atol=2e-4)
    assert all((after[name] == vector).all() for name, vector in before.items())


def test_copying_and_compacting_keep_the_whitening(
    model: PlaceModel, photos: list[Path], town: Path, tmp_path: Path
) -> None:
    copy_map(town, tmp_path / "copy.gpkg")
    copy_map(town, tmp_path / "copy.gpkg")
    compact_map(tmp_path / "copy.gpkg")
    assert verify_map(tmp_path / "copy.gpkg") == []
    assert map_info(tmp_path / "copy.gpkg").whitened_from == 256
    with open_map_file(town) as one, open_map_file(tmp_path / "copy.gpkg") as other:
        for x, y in zip(one.whitening() or (), other.whitening() or (), strict=True):
            np.testing.assert_array_equal(x, y)
    found = Localizer(model, PlaceMap(tmp_path / "copy.gpkg")).localize(photos[3])
    assert Path(found.matches[0].photo).name == photos[3].name


def test_a_map_with_another_whitening_is_not_copied_into(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    write_town(tmp_path / "others", 9)
    other = tmp_path / "other.gpkg"
    build_map(tmp_path / "others", other, model, dim=DIM, storage="float32")
    with pytest.raises(MapError, match="another way"):
        copy_map(town, other)


def test_fewer_photos_than_dimensions_are_reported_and_keep_all_distances(
    model: PlaceModel, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WHITENING_POWER", 0.0)
    options: dict[str, Any] = {"dim": 64, "storage": "float32"}
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, **options)
    assert [("12 photos" in note, "span 11 dimensions" in note) for note in report.notes] == [(True, True)]
    held = stored_descriptors(tmp_path / "town.gpkg")
    centred = described(model, photos).astype(np.float64)
    centred -= centred.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    found = np.array([held[path.name] for path in photos])
    assert not found[:, 11:].any()
    np.testing.assert_allclose(found @ found.T, centred @ centred.T, atol=5e-3)
    assert build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, **options).already == PHOTOS


def test_equal_photos_cannot_be_whitened_and_leave_no_map(model: PlaceModel, tmp_path: Path) -> None:
    write_photo(tmp_path / "photos" / "one.jpg", 1)
    with pytest.raises(ArgumentError, match="no whitening"):
        build_map(tmp_path / "photos", tmp_path / "town.gpkg", model, dim=DIM)
    assert not (tmp_path / "town.gpkg").exists()


def test_a_stream_is_not_known_in_advance_but_may_be_added_to_a_whitened_map(
    model: PlaceModel, photos: list[Path], town: Path, tmp_path: Path
) -> None:
    late = write_photo(tmp_path / "late.jpg", 77)
    source = PhotoSource("late", decode(late), geotag_of(77).latlon)
    with pytest.raises(ArgumentError, match="in advance"):
        build_map(iter([source]), tmp_path / "new.gpkg", model, dim=DIM)
    assert build_map(iter([source]), town, model, dim=DIM, storage="float32").added == 1
    with open_map_file(town) as file:
        held = {p.file: v for part, vectors in file.records() for p, v in zip(part, vectors, strict=True)}
    (name,) = [name for name in held if "late" in name]
    np.testing.assert_allclose(held[name], project(town, described(model, [late]))[0], atol=2e-4)


def test_dimensions_of_a_model_with_a_whitening_are_its_first_ones(
    model: PlaceModel, photos: list[Path], tmp_path: Path
) -> None:
    fitted = fit_whitening(described(model, photos), 10)
    own = with_whitening(model, fitted)
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", own, dim=DIM, storage="float32")
    assert (report.added, report.notes) == (PHOTOS, ())
    held, first = stored_descriptors(tmp_path / "town.gpkg"), described(own, photos)[:, :DIM]
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose([held[path.name] for path in photos], first, atol=1e-4)
    assert map_info(tmp_path / "town.gpkg").whitened_from is None
    with open_map_file(tmp_path / "town.gpkg") as file:
        assert file.whitening() is None


def test_a_runtime_is_whitened_too(model: PlaceModel, photos: list[Path], town: Path) -> None:
    runtime = RuntimeModel(model, "openvino", lambda images: model.encode(images))
    pixels = [decode(path) for path in photos]
    whitened = map_model(runtime, PlaceMap(town))
    assert (whitened.runs_on, whitened.dim) == ("openvino", DIM)
    np.testing.assert_allclose(whitened.encode(pixels).numpy(), project(town, described(model, photos)), atol=2e-3)


def test_another_model_is_refused(town: Path) -> None:
    with pytest.raises(MapError, match="was built by model"):
        Localizer(tiny_model(2), PlaceMap(town))


ROWS: dict[str, tuple[int, Callable[[bytes], object] | None]] = {
    "a row is missing": (2, None),
    "not bytes": (3, lambda blob: "text"),
    "shorter": (3, lambda blob: blob[:-2]),
    "not finite": (3, lambda blob: np.full(256, np.nan, "<f2").tobytes()),
    "infinite mean": (1, lambda blob: np.full(256, np.inf, "<f4").tobytes()),
    "shorter mean": (1, lambda blob: blob[:-4]),
    "odd mean": (1, lambda blob: blob[:-1]),
    "too long": (1, lambda blob: bytes(2**21)),
    "an extra row": (DIM + 2, lambda blob: bytes(512)),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_strangers_whitening_is_checked(model: PlaceModel, town: Path, case: str) -> None:
    fid, make = ROWS[case]
    with closing(sqlite3.connect(town)) as sql:
        ((blob,),) = sql.execute("SELECT numbers FROM whitening WHERE fid = ?", (min(fid, DIM + 1),)).fetchall()
        sql.execute("DELETE FROM whitening WHERE fid = ?", (fid,))
        if make is not None:
            new = make(blob)
            checksum = descriptor_checksum(new) if isinstance(new, bytes) else 1
            sql.execute("INSERT INTO whitening VALUES (?, ?, ?)", (fid, new, checksum))
        sql.commit()
    for use in (lambda: Localizer(model, PlaceMap(town)), lambda: map_info(town)):
        with pytest.raises(MapError, match="whitening cannot be used"):
            use()
    assert len(verify_map(town)) == 1


def test_a_changed_number_is_found_by_its_checksum(town: Path) -> None:
    with closing(sqlite3.connect(town)) as sql:
        sql.execute("UPDATE whitening SET numbers = zeroblob(512) WHERE fid = 4")
        sql.commit()
    assert "checksum" in verify_map(town)[0]


def test_a_whitening_of_other_dimensions_is_an_error(model: PlaceModel, town: Path) -> None:
    with closing(sqlite3.connect(town)) as sql:
        for fid in range(1, DIM + 2):
            blob = np.ones(100, "<f4" if fid == 1 else "<f2").tobytes()
            sql.execute(
                "UPDATE whitening SET numbers = ?, checksum = ? WHERE fid = ?", (blob, descriptor_checksum(blob), fid)
            )
        sql.commit()
    with pytest.raises(MapError, match="100 dimensions"):
        Localizer(model, PlaceMap(town))


def test_a_view_in_place_of_the_whitening_is_not_read(town: Path) -> None:
    with closing(sqlite3.connect(town)) as sql:
        sql.executescript("DROP TABLE whitening; CREATE VIEW whitening AS SELECT 1 fid, x'' numbers, 0 checksum")
    with pytest.raises(MapError, match="view"):
        PlaceMap(town)


def test_a_whitening_that_is_lost_is_an_error(model: PlaceModel, town: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(town)) as sql:
        sql.executescript("DROP TABLE whitening")
    with pytest.raises(MapError, match="holds none"):
        Localizer(model, PlaceMap(town))
    write_photo(tmp_path / "photos" / "late.jpg", 77)
    with pytest.raises(MapError, match="holds none"):
        add_photos(tmp_path / "photos", town, model)


def test_a_whitening_is_written_once(town: Path) -> None:
    with open_map_file(town, write=True) as file:
        before = file.whitening()
        file.write_whitening(np.ones(256, np.float32), np.ones((DIM, 256), np.float32))
        after = file.whitening()
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(before[1], after[1])


def test_at_most_keeps_the_directions_that_equal_descriptors_span() -> None:
    rows = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    for count in (2, 5):  # fewer and more descriptors than dimensions
        fitted = fit_whitening(rows.repeat(count, 1), 7, at_most=True)
        assert fitted.dim == 3
    with pytest.raises(ArgumentError, match="span only 3"):
        fit_whitening(rows.repeat(2, 1), 7)
