"""An unexpected error about one photo is that photo's: the others of the request, and of the batch, are answered."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.localize.street import position, street_model, view, write_view
from tests.serve.conftest import ALLOWED, TOKEN
from tests.serve.running import DEADLINE_S, running

from sareloc.errors import MapError
from sareloc.localize import Localizer
from sareloc.maps import PlaceMap
from sareloc.serve import ServeConfig, make_app
from sareloc.serve.batching import BatchQueue

XMP = b"""<?xml version="1.0" encoding="nonsense"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" xmlns:GPano="http://ns.google.com/photos/1.0/panorama/"
  GPano:ProjectionType="equirectangular"/>"""


def jpeg(image: np.ndarray, **options: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "JPEG", quality=92, **options)
    return content.getvalue()


BLACK = jpeg(np.zeros((64, 96, 3), dtype=np.uint8))


class FailingLocalizer(Localizer):
    """Fails, as by a bug, on batches with a black photo; while `broken`, cannot read its map."""

    broken = False

    def __init__(self, path: Path) -> None:
        super().__init__(street_model(), PlaceMap(path))

    def localize_many(self, photos: Any, **options: Any) -> list[Any]:
        if self.broken:
            raise MapError(f"{self.place_map.path} cannot be read")
        if any(not photo.pixels[0].any() for photo in photos):
            raise LookupError("a bug")
        return super().localize_many(photos, **options)


def test_a_photo_that_fails_in_the_model_does_not_lose_the_others(
    street_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = (street_folder / "queries" / "q05.jpg").read_bytes()
    names = ("a.jpg", "black.jpg", "b.jpg")
    files = [("photos", (name, BLACK if name == "black.jpg" else good)) for name in names]
    with running(make_app(FailingLocalizer(street_folder / "street.gpkg"))) as address:
        with caplog.at_level(logging.WARNING, "sareloc.serve"):
            answer = httpx.post(f"{address}/localize", files=files, timeout=DEADLINE_S)
            alone = httpx.post(f"{address}/localize", content=BLACK, timeout=DEADLINE_S)
        metrics = httpx.get(f"{address}/metrics", timeout=DEADLINE_S).text
    assert answer.status_code == 200
    first, failed, last = answer.json()["fixes"]
    assert first["latlon"] == last["latlon"] is not None
    assert failed == {"photo": "black.jpg", "error": "internal error: see the log of the service"}
    assert (alone.status_code, alone.headers["content-type"]) == (500, "application/problem+json")
    assert [bool(record.exc_info) for record in caplog.records if record.levelname == "ERROR"] == [True, True]
    assert 'sareloc_photos_total{outcome="failed"} 2.0' in metrics
    assert 'sareloc_photos_total{outcome="found"} 2.0' in metrics


def test_a_photo_that_fails_in_decoding_does_not_lose_the_others(own_folder: Path) -> None:
    """By an encoding of its XMP that Python does not know."""
    bad = jpeg(view(5, 99), xmp=XMP)
    good = (own_folder / "queries" / "q05.jpg").read_bytes()
    new = write_view(own_folder / "new.jpg", view(40, 0, town=9), position(40)).read_bytes()
    with running(make_app(own_folder / "street.gpkg", street_model(), config=ServeConfig(token=TOKEN))) as address:
        files = [("photos", ("bad.jpg", bad)), ("photos", ("good.jpg", good))]
        found = httpx.post(f"{address}/localize", files=files, timeout=DEADLINE_S)
        files = [("photos", ("bad.jpg", bad)), ("photos", ("new.jpg", new))]
        added = httpx.post(f"{address}/photos", files=files, headers=ALLOWED, timeout=DEADLINE_S)
    assert (found.status_code, added.status_code) == (200, 201)
    assert found.json()["fixes"][1]["latlon"]
    assert added.json()["photos"][1]["id"] > 90


def test_a_map_that_cannot_be_read_is_no_error_of_a_photo(street_folder: Path) -> None:
    localizer = FailingLocalizer(street_folder / "street.gpkg")
    good = (street_folder / "queries" / "q05.jpg").read_bytes()
    with running(make_app(localizer)) as address:
        localizer.broken = True
        answer = httpx.post(f"{address}/localize", files=[("photos", good)] * 3, timeout=DEADLINE_S)
        localizer.broken = False
        assert httpx.post(f"{address}/localize", content=good, timeout=DEADLINE_S).status_code == 200
    assert answer.status_code == 503
    assert str(street_folder) not in answer.text


def test_of_a_batch_that_fails_each_item_is_processed_alone() -> None:
    batches: list[list[int]] = []

    def halve(numbers: Sequence[int]) -> list[int]:
        batches.append(list(numbers))
        if any(number % 2 for number in numbers):
            raise ValueError("odd")
        return [number // 2 for number in numbers]

    async def main() -> list[Any]:
        queue = BatchQueue[int, int](halve, batch=4, bound=9, name="test")
        async with queue.running():
            return await asyncio.gather(*map(queue.submit, (2, 3, 4, 6, 8, 10)), return_exceptions=True)

    one, odd, *others = asyncio.run(main())
    assert isinstance(odd, ValueError)
    assert [one, *others] == [1, 2, 3, 4, 5]
    assert batches == [[2, 3, 4, 6], [2], [3], [4], [6], [8, 10]]
