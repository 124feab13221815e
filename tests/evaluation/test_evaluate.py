"""From photo files to a report, through a real (small, untrained) model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sareloc.datasets import PhotoSet, Places, load_dataset
from sareloc.errors import DatasetError
from sareloc.evaluation import evaluate, evaluate_rankings, search
from sareloc.geo import Positions
from sareloc.models import PlaceModel, make_model


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return make_model("alexnet", "avg", size=96, name="little", rng=torch.Generator().manual_seed(1))


@pytest.fixture
def described(model: PlaceModel, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many images the model has described since the test began."""
    sizes: list[int] = []
    encode = PlaceModel.encode

    def counted(self: PlaceModel, images: torch.Tensor, **options: Any) -> torch.Tensor:
        sizes.append(len(images))
        return encode(self, images, **options)

    monkeypatch.setattr(PlaceModel, "encode", counted)
    return lambda: sum(sizes)


def scene(place: int, visit: int = 0) -> Image.Image:
    """A view of its own for each place, a little noise for each visit."""
    blocks = np.kron(np.random.default_rng(place).integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1)))
    noise = np.random.default_rng([place, visit]).normal(0, 8, blocks.shape) if visit else 0
    return Image.fromarray(np.clip(blocks + noise, 0, 255).astype(np.uint8))


def write(folder: Path, views: list[tuple[int, int]]) -> PhotoSet:
    """Photos of (place, visit), the place's number in hundreds of metres along a street."""
    folder.mkdir()
    files = [f"{row:02d}.png" for row in range(len(views))]
    for file, (place, visit) in zip(files, views, strict=True):
        scene(place, visit).save(folder / file)
    return PhotoSet(folder, tuple(files), Positions.from_local([(100.0 * place, 0.0) for place, _ in views]))


@pytest.fixture
def town(tmp_path: Path) -> Places:
    """Twelve places in the database; queries of four of them and of one that is not there."""
    database = write(tmp_path / "database", [(place, 0) for place in range(12)])
    queries = write(tmp_path / "queries", [(3, 1), (7, 1), (0, 1), (11, 1), (50, 1)])
    return Places("town", "test", database, queries)


def test_revisited_places_are_found(model: PlaceModel, town: Places) -> None:
    report = evaluate(model, town, workers=1)
    assert report.recall[1] == 80
    assert report.queries_without_positives == 1
    assert (report.dataset, report.database, report.queries) == ("town", 12, 5)
    assert (report.model, report.fingerprint, report.dim) == ("little", model.fingerprint(), model.dim)
    assert report.error_quantiles_m is not None
    assert report.error_quantiles_m[0.75] == 0
    assert report.curve[-1].precision == 80
    assert report.curve[0].precision == 100  # the query of an unknown place is the farthest from its answer


def test_it_is_describing_searching_and_judging(model: PlaceModel, town: Places) -> None:
    images = [
        [np.asarray(Image.open(photos.path(row))) for row in range(len(photos))]
        for photos in (town.database, town.queries)
    ]
    database, queries = (model.encode(part, batch=1).numpy() for part in images)
    expected = evaluate_rankings(town, *search(database, queries, 12))
    report = evaluate(model, town)
    assert report.recall == expected.recall
    found, wanted = ([p.distance for p in r.curve] for r in (report, expected))
    assert found == pytest.approx(wanted, abs=0.01)


def test_a_bad_database_photo_is_left_out_and_a_bad_query_is_missed(model: PlaceModel, town: Places) -> None:
    town.database.path(7).write_bytes(b"no photo at all")
    town.queries.path(0).write_bytes(town.queries.path(0).read_bytes()[:300])
    report = evaluate(model, town)
    assert report.recall[20] == 40  # of five: the first cannot be decoded, the second's place is gone, the last unknown
    assert [photo for photo, _ in report.failures["database"]] == [str(town.database.path(7))]
    assert [photo for photo, _ in report.failures["queries"]] == [str(town.queries.path(0))]
    assert all(reason for role in report.failures.values() for _, reason in role)
    assert (report.database, report.queries) == (12, 5)
    assert len(report.curve) == 4  # the query without a descriptor gives no answer


def test_a_kept_store_answers_without_describing(
    model: PlaceModel, town: Places, tmp_path: Path, described: Callable[[], int]
) -> None:
    first = evaluate(model, town, store=tmp_path / "store")
    assert described() == 17
    assert evaluate(model, town, store=tmp_path / "store") == first
    assert described() == 17


def test_queries_of_the_database_are_described_once(
    model: PlaceModel, tmp_path: Path, described: Callable[[], int]
) -> None:
    """As in Holidays: the query is one of the photos, junk to itself, and its group is right."""
    photos = write(tmp_path / "jpg", [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)])
    places = Places(
        "groups",
        "test",
        photos,
        photos.take([0, 2]),
        "average-precision",
        relevant=(np.array([1]), np.array([3, 4])),
        junk=(np.array([0]), np.array([2])),
    )
    report = evaluate(model, places)
    assert report.mean_average_precision == 100
    assert report.recall[1] == 100
    assert described() == 6


def test_boxes_are_asked_with_by_default(model: PlaceModel, tmp_path: Path) -> None:
    """A query photo that shows one place in its box and another beside it."""
    database = write(tmp_path / "database", [(0, 0), (1, 0)])
    (tmp_path / "queries").mkdir()
    wide = Image.new("RGB", (1600, 100))
    wide.paste(scene(1).resize((1200, 100)), (400, 0))
    wide.paste(scene(0), (0, 0))
    wide.save(tmp_path / "queries" / "0.png")
    places = Places(
        "boxed",
        "test",
        database,
        PhotoSet(tmp_path / "queries", ("0.png",)),
        "average-precision",
        relevant=(np.array([0]),),
        junk=(np.array([], dtype=np.int64),),
        boxes=np.array([[0.0, 0.0, 100.0, 96.0]]),
    )
    model = make_model("alexnet", "avg", size=None, rng=torch.Generator().manual_seed(1))
    crop, full = evaluate(model, places), evaluate(model, places, boxes="full")
    assert (crop.boxes, full.boxes) == ("crop", "full")
    assert (crop.mean_average_precision, full.mean_average_precision) == (100, 25)


def test_a_panorama_search_goes_deep_enough(model: PlaceModel, tmp_path: Path) -> None:
    """Twelve photos of a wrong panorama come first; the right one is the second panorama."""
    database = write(tmp_path / "database", [*((0, visit) for visit in range(12)), (1, 0)])
    queries = write(tmp_path / "queries", [(0, 30)])
    there = PhotoSet(queries.folder, queries.files, Positions.from_local([(100.0, 0.0)]))
    places = Places("tokyo", "test", database, there, "panorama", panoramas=np.array([0] * 12 + [1]))
    report = evaluate(model, places, ns=(1, 2))
    assert report.recall == {1: 0, 2: 100}
    assert report.plain_recall == {1: 0, 2: 0}


def test_absent_photos_are_an_error_that_says_where_they_were_looked_for(model: PlaceModel, town: Places) -> None:
    for row in range(len(town.queries)):
        town.queries.path(row).unlink()
    with pytest.raises(DatasetError, match="none of the 5 queries"):
        evaluate(model, town)


def test_a_folder_without_queries_cannot_be_evaluated(model: PlaceModel, town: Places) -> None:
    alone = Places("alone", "all", town.database, town.queries.take([]))
    with pytest.raises(DatasetError, match="no queries"):
        evaluate(model, alone)


@pytest.mark.data
def test_a_published_set_without_its_photos_shows_its_layout(model: PlaceModel, shared_data: Path) -> None:
    places = load_dataset("tokyo247", shared_data / "netvlad_dbstruct")
    with pytest.raises(DatasetError, match=r"(?s)tokyo247.*layout"):
        evaluate(model, places)
