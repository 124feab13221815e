"""Questions of one batch are answered together, each as if it had been asked alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.localize.street import position, street_model

from sareloc.localize import Localizer
from sareloc.maps import Circle, PlaceMap
from sareloc.photos import read_image
from sareloc.serve.live_map import LiveMap, LiveMaps, Query


def test_different_numbers_of_matches_go_to_the_model_together_and_areas_apart(street_folder: Path) -> None:
    model, place_map = street_model(), PlaceMap(street_folder / "street.gpkg")
    localizer = Localizer(model, place_map)
    images = [read_image(street_folder / "queries" / f"q{i:02d}.jpg", (model.preprocess.size,)) for i in (2, 5, 9)]
    area = Circle(position(9, 0.0), 60.0)
    asked = [Query(image, near, top) for image, near, top in zip(images, (None, None, area), (1, 4, 2), strict=True)]
    alone = [Localizer(model, place_map).localize(q.photo, near=q.near, top=q.top) for q in asked]
    calls: list[int] = []
    answer = localizer.localize_many

    def counted(photos, **options):
        calls.append(len(photos))
        return answer(photos, **options)

    localizer.localize_many = counted
    live = LiveMaps({"street.gpkg": LiveMap(model, place_map, localizer)}, 0.5)
    try:
        found = live.localize(asked)
    finally:
        live.close()
    assert calls == [2, 1]
    assert [len(fix.matches) for fix in found] == [1, 4, 2]
    for fix, single in zip(found, alone, strict=True):  # sums of a batch are rounded in another order
        assert [m.distance for m in fix.matches] == pytest.approx([m.distance for m in single.matches], abs=0.02)
        assert fix.latlon == pytest.approx(single.latlon, abs=1e-4)  # 11 m, places are 80 m apart


def test_photos_of_many_clients_are_not_centred_on_a_common_condition(street_folder: Path) -> None:
    model, place_map = street_model(), PlaceMap(street_folder / "street.gpkg")
    localizer = Localizer(model, place_map)
    images = [read_image(path, (model.preprocess.size,)) for path in sorted((street_folder / "queries").iterdir())]
    assert localizer.estimate_condition(images).weight > 0
    live = LiveMaps({"street.gpkg": LiveMap(model, place_map, localizer)}, 0.5)
    try:
        found = live.localize([Query(image, None, 5) for image in images])
    finally:
        live.close()
    assert found == localizer.localize_many(images, condition=None)
