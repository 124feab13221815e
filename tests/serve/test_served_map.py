"""Maps of different models are asked about a photo that is read once."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image, ImageFile
from tests.localize.street import PLACES, position, street_model, view, write_queries, write_view
from tests.serve.running import DEADLINE_S, running

from sareloc.localize import Fix, Localizer, SeveralMaps
from sareloc.maps import MapConfig, PlaceMap, build_map, remove_photos
from sareloc.models import PlaceModel, make_model
from sareloc.serve import ServeConfig, make_app
from sareloc.serve.app import build_app
from sareloc.serve.live_map import LiveMap, LiveMaps

OTHER_TOWN = 5
COUNTED: list[Counter[str]] = []
HOOKED: list[bool] = []


def count_open(event: str, details: tuple[Any, ...]) -> None:
    if event == "open" and COUNTED and str(details[0]).endswith(".jpg"):
        COUNTED[-1][f"open {Path(str(details[0])).name}"] += 1


@contextmanager
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each JPEG is opened inside, and how many images are decoded."""
    if not HOOKED:
        sys.addaudithook(count_open)  # cannot be removed
        HOOKED.append(True)
    counts, load = Counter[str](), ImageFile.ImageFile.load

    def counted(image: ImageFile.ImageFile) -> Any:
        counts["decode"] += bool(image.tile)
        return load(image)

    COUNTED.append(counts)
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", counted)
        yield counts
    COUNTED.pop()


def other_model() -> PlaceModel:
    """Resizes images to another size than that of the street."""
    return make_model("alexnet", "max", size=(96, 128), rng=torch.Generator().manual_seed(2), name="other")


@pytest.fixture(scope="module")
def folder(street_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: other.gpkg of another town by another model, and queries of both towns, larger than either size."""
    folder = tmp_path_factory.mktemp("other")
    for place in range(PLACES):
        write_view(folder / "photos" / f"{place}.jpg", view(place, 0, OTHER_TOWN), position(place))
    config = MapConfig(keypoints=0, progress=False)
    build_map(folder / "photos", folder / "other.gpkg", other_model(), config=config)
    for town, name in ((0, "street"), (OTHER_TOWN, "other")):
        write_queries(folder / name, town=town)
        for photo in (folder / name).iterdir():
            Image.open(photo).resize((480, 320)).save(photo)
    return folder


def both(street_folder: Path, folder: Path) -> SeveralMaps:
    return SeveralMaps(
        {
            "street": Localizer(street_model(), PlaceMap(street_folder / "street.gpkg"), min_confidence=0.0),
            "other": Localizer(other_model(), PlaceMap(folder / "other.gpkg"), min_confidence=0.0),
        },
        0.0,
    )


def test_a_service_of_two_models_decodes_a_query_once(
    street_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each map finds in it what it finds alone."""
    joined = both(street_folder, folder)
    with running(make_app(joined)) as address, httpx.Client(base_url=address, timeout=DEADLINE_S) as client:
        for name, one in joined.localizers.items():
            photo = folder / name / "q03.jpg"
            with reads(monkeypatch) as counts:
                answer = client.post("/localize", content=photo.read_bytes()).raise_for_status().json()
            assert counts["decode"] == 1
            alone = one.localize(photo)
            first = next(match for match in answer["matches"] if match["map"] == name)
            assert (answer["map"], first["id"]) == (name, alone.matches[0].id)
            assert first["distance"] == pytest.approx(alone.matches[0].distance, abs=1e-5)


@pytest.mark.parametrize("walk", [False, True])
def test_several_maps_open_and_decode_a_photo_once(
    street_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, walk: bool
) -> None:
    joined, photos = both(street_folder, folder), [folder / "other" / f"q{place:02d}.jpg" for place in range(3)]
    with reads(monkeypatch) as counts:
        found = joined.localize_walk(photos, 200.0) if walk else joined.localize_many(photos)
    assert counts == {"decode": 3, **{f"open {photo.name}": 1 for photo in photos}}
    alone = joined.localizers["other"]
    wanted = alone.localize_walk(photos, 200.0) if walk else alone.localize_many(photos)
    for fix, own in zip(found, wanted, strict=True):
        assert isinstance(fix, Fix)
        assert isinstance(own, Fix)
        assert (fix.map, fix.matches[0].id, fix.latlon) == ("other", own.matches[0].id, own.latlon)


def test_an_empty_map_of_another_model_does_not_shift_the_sizes(
    street_folder: Path, folder: Path, tmp_path: Path
) -> None:
    """Photos are read for all maps of the service, also for those that hold no photos yet."""
    shutil.copy(street_folder / "street.gpkg", tmp_path)
    remove_photos(tmp_path / "street.gpkg", files=["*"])
    other = Localizer(other_model(), PlaceMap(folder / "other.gpkg"), min_confidence=0.0)
    maps = {
        "street": LiveMap(street_model(), PlaceMap(tmp_path / "street.gpkg"), None),
        "other": LiveMap(other.model, other.place_map, other),
    }
    config, photo = ServeConfig(), folder / "other" / "q03.jpg"
    app = build_app(LiveMaps(maps, 0.0), config)
    with running(app) as address, httpx.Client(base_url=address, timeout=DEADLINE_S) as client:
        answer = client.post("/localize", content=photo.read_bytes()).raise_for_status().json()
    match = other.localize(photo).matches[0]
    assert (answer["matches"][0]["id"], answer["matches"][0]["map"]) == (match.id, "other")
    assert answer["matches"][0]["distance"] == pytest.approx(match.distance, abs=1e-5)
