"""Images that are not files, such as a robot's frames: added from a stream, found again, never lost."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.maps.small_town import build_map, geotag_of, tiny_model, write_photo

from sareloc import maps
from sareloc.datasets import PhotoSet, Places
from sareloc.errors import PhotoError
from sareloc.localize import Localizer, Search
from sareloc.maps import PlaceMap, map_info, open_store, verify_map
from sareloc.models import PlaceModel
from sareloc.photos import PhotoSource, ReadImage, exif_bytes, read_image
from sareloc.training import TrainingConfig
from sareloc.training.data import open_datasets


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


def pixels(number: int) -> np.ndarray:
    small = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((160, 120), Image.Resampling.BICUBIC))


def frame(number: int) -> PhotoSource:
    tag = geotag_of(number)
    return PhotoSource(f"front/{number:06d}", pixels(number), tag.latlon, tag.heading_deg, tag.time)


def stream(count: int) -> Iterator[PhotoSource]:
    return (frame(number) for number in range(count))


def test_a_stream_becomes_a_map_and_its_frames_are_found(model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "robot.gpkg"
    report = build_map(stream(70), path, model)
    assert (report.added, report.gone, report.unreadable) == (70, (), ())
    place_map = PlaceMap(path)
    assert place_map.files[3] == "frame://front/000003"
    np.testing.assert_allclose(place_map.latlon[3], geotag_of(3).latlon, atol=1e-7)
    fix = Localizer(model, place_map, Search(verify=0), min_confidence=0).localize(PhotoSource("query", pixels(3)))
    assert fix.matches[0].photo == "frame://front/000003"
    assert fix.matches[0].distance < 0.02  # the map stores float16, and a batch is rounded in another order
    assert verify_map(path) == []


def test_files_frames_queries_and_training_images_are_resized_by_the_models_interpolation(
    model: PlaceModel, tmp_path: Path
) -> None:
    bicubic = PlaceModel(replace(model.preprocess, interpolation="bicubic"), model.backbone, model.aggregation).eval()
    bicubic.precision = "float32"
    rough = [np.random.default_rng(n).integers(0, 256, (120, 160, 3), dtype=np.uint8) for n in range(2)]
    small = [np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BICUBIC)) for image in rough]
    Image.fromarray(rough[0]).save(tmp_path / "file.png", exif=exif_bytes(geotag_of(0)))
    path = tmp_path / "town.gpkg"
    build_map([tmp_path / "file.png"], path, bicubic, storage="float32")
    build_map([PhotoSource("frame", rough[1], geotag_of(1).latlon)], path, bicubic, storage="float32")
    with open_store(path) as store:
        ((_, vectors),) = store.records()
    np.testing.assert_allclose(vectors, bicubic.encode(small).numpy(), atol=1e-5)
    assert np.abs(vectors - model.encode(rough, precision="float32").numpy()).max() > 1e-3
    queries = Localizer(bicubic, PlaceMap(path), Search(verify=0)).load(
        [tmp_path / "file.png", PhotoSource("q", rough[1])]
    )
    for query, expected in zip(queries, small, strict=True):
        assert isinstance(query, ReadImage)
        np.testing.assert_array_equal(query.pixels[0], expected)
    places = Places("file", "all", PhotoSet(tmp_path, ("file.png",)), PhotoSet(tmp_path, ()))
    for keep in ("pixels", "nothing"):
        config = TrainingConfig(keep=keep, height=64, width=64)  # type: ignore[arg-type]
        (opened,) = open_datasets(bicubic, [places], config, torch.float32, torch.device("cpu"), progress=False)
        (images,) = opened.inputs.batches([np.array([0])], torch.device("cpu"))
        np.testing.assert_array_equal(images[0].permute(1, 2, 0).numpy(), small[0])


def test_a_stream_again_changes_nothing_and_a_moved_frame_is_updated(model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "robot.gpkg"
    build_map(stream(5), path, model)
    assert build_map(stream(5), path, model).already == 5
    moved = [replace(one, position=geotag_of(9).latlon) if i == 2 else one for i, one in enumerate(stream(5))]
    report = build_map(moved, path, model)
    assert (report.updated, report.already, report.added) == (1, 4, 0)
    np.testing.assert_allclose(PlaceMap(path).latlon[2], geotag_of(9).latlon, atol=1e-7)


def test_an_image_that_repeats_under_another_name_is_a_duplicate(model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "robot.gpkg"
    build_map(stream(3), path, model)
    standing = [replace(one, name=f"later/{i}") for i, one in enumerate(stream(3))]
    report = build_map(standing, path, model)
    assert (report.duplicates, report.added, report.updated) == (3, 0, 0)
    assert PlaceMap(path).files[0] == "frame://front/000000"


def test_an_interrupted_stream_leaves_whole_photos_and_goes_on(model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "robot.gpkg"
    with pytest.raises(RuntimeError, match="power"):
        maps.build_map(_breaking(40), path, model)
    with open_store(path) as store:
        assert store.count() == 32
        assert len(store.ids_without_features()) == 0
    report = maps.build_map(stream(40), path, model)
    assert (report.added, report.already, report.features) == (8, 32, 8)
    with open_store(path) as store:
        assert len(store.ids_without_features()) == 0
    assert map_info(path).photos == 40


def _breaking(count: int) -> Iterator[PhotoSource]:
    yield from stream(count)
    raise RuntimeError("no power")


def test_files_bytes_and_pixels_may_be_mixed(model: PlaceModel, tmp_path: Path) -> None:
    file = write_photo(tmp_path / "a.jpg", 1, tagged=False)
    content = io.BytesIO()
    Image.fromarray(pixels(2)).save(content, "PNG", exif=exif_bytes(geotag_of(2), focal_35mm=28.0))
    tag = geotag_of(7)
    report = build_map(
        [
            PhotoSource("one", file, tag.latlon),
            PhotoSource("two", content.getvalue(), tag.latlon),
            frame(3),
            PhotoSource("nowhere", pixels(4)),
        ],
        tmp_path / "city.gpkg",
        model,
    )
    assert (report.added, report.untagged) == (3, ("nowhere",))
    assert set(PlaceMap(tmp_path / "city.gpkg").files) == {"a.jpg", "frame://two", "frame://front/000003"}


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"image": np.zeros((4, 4), np.uint8)}, "RGB"),
        ({"image": np.zeros((4, 4, 3), np.float32)}, "float32"),
        ({"image": np.zeros((0, 4, 3), np.uint8)}, "RGB"),
        ({"image": b"no photo"}, "not a JPEG"),
        ({"image": np.zeros((1, 400, 3), np.uint8)}, "px"),
        ({"position": (91.0, 0.0)}, "invalid coordinates"),
        ({"heading_deg": 360.0}, "heading"),
    ],
)
def test_a_bad_frame_is_listed_and_the_others_are_used(
    model: PlaceModel, tmp_path: Path, wrong: dict[str, object], word: str
) -> None:
    report = build_map([frame(0), replace(frame(1), **wrong)], tmp_path / "city.gpkg", model)  # type: ignore[arg-type]
    assert report.added == 1
    (error,) = report.unreadable
    assert error.photo == "front/000001"
    assert word in error.reason


def test_a_localizer_refuses_a_bad_frame(model: PlaceModel, tmp_path: Path) -> None:
    build_map(stream(3), tmp_path / "city.gpkg", model)
    localizer = Localizer(model, PlaceMap(tmp_path / "city.gpkg"), Search(verify=0))
    with pytest.raises(PhotoError, match="RGB"):
        localizer.localize(PhotoSource("grey", np.zeros((4, 4), np.uint8)))


def test_pixels_are_resized_as_photos_are() -> None:
    content = io.BytesIO()
    Image.fromarray(pixels(5)).save(content, "PNG")
    one, other = (
        read_image(PhotoSource("same", image), [lambda height, width: (60, 80)]).pixels[0]
        for image in (pixels(5), content.getvalue())
    )
    np.testing.assert_array_equal(one, other)
