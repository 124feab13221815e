"""The map of a dataset shows every photo, and which queries nothing matches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sareloc.datasets import PhotoSet, Places
from sareloc.errors import ArgumentError, DatasetError
from sareloc.figures import draw_dataset
from sareloc.geo import Positions


def places_at(positions: Positions, queries: Positions) -> Places:
    sets = [
        PhotoSet(Path("nowhere"), tuple(f"{role}{row}.jpg" for row in range(len(where))), where)
        for role, where in (("d", positions), ("q", queries))
    ]
    return Places("own", "all", *sets)


def groups(figure) -> dict[str, np.ndarray]:
    (axes,) = figure.axes
    return {dots.get_label(): np.asarray(dots.get_offsets()) for dots in axes.collections}


def span_m(figure) -> np.ndarray:
    return np.ptp(np.concatenate(list(groups(figure).values())), axis=0)


def test_queries_that_nothing_answers_stand_apart() -> None:
    places = places_at(Positions.from_local([[0, 0], [100, 80]]), Positions.from_local([[20, 20], [80, 20]]))
    near = groups(draw_dataset(replace(places, hit_radius_m=30.0)))
    assert list(near) == ["database (2)", "query (1)", "query without a positive (1)"]
    origin = near["database (2)"][0]
    np.testing.assert_allclose(near["query (1)"] - origin, [[20, 20]])
    np.testing.assert_allclose(near["query without a positive (1)"] - origin, [[80, 20]])
    assert list(groups(draw_dataset(replace(places, hit_radius_m=200.0)))) == ["database (2)", "query (2)"]


@pytest.mark.parametrize(
    ("positions", "east_m", "north_m"),
    [
        (Positions.from_local([[0, 0], [300, 100]]), 300, 100),
        (Positions.from_local([[5, 5]]), 0, 0),
        (Positions.from_utm([[448300, 5411900], [448400, 5411950]], 32631), 100, 50),
        (Positions.from_wgs84([[-16.5, 179.99], [-16.5, -179.98]]), 3203, 0),
        (Positions.from_wgs84([[55.7, 13.2], [-33.9, 151.2]]), 15_060_000, 9_963_000),
        (Positions.from_wgs84([[89.9999, 0], [89.9999, 180]]), 0, 22.3),
    ],
    ids=["local", "one-photo", "utm", "antimeridian", "worldwide", "pole"],
)
def test_metres_are_metres_in_every_frame(positions: Positions, east_m: float, north_m: float) -> None:
    figure = draw_dataset(places_at(positions, positions[:1]))
    np.testing.assert_allclose(span_m(figure), [east_m, north_m], rtol=2e-3, atol=0.5)
    unit = "kilometres" if max(east_m, north_m) > 5000 else "metres"
    assert figure.axes[0].get_xlabel() == f"{unit} east"


def test_a_map_alone_has_no_queries() -> None:
    database = Positions.from_local([[0, 0], [100, 80]])
    assert list(groups(draw_dataset(places_at(database, database[:0])))) == ["database (2)"]


def test_what_has_no_map_is_refused(tmp_path: Path) -> None:
    photos = PhotoSet(tmp_path, ("a.jpg",))
    with pytest.raises(DatasetError, match="no positions"):
        draw_dataset(Places("own", "all", photos, photos, "average-precision"))
    broken = Positions(np.array([[np.nan, 0.0]]), "local")
    with pytest.raises(ArgumentError, match="positions has nan"):
        draw_dataset(places_at(Positions.from_local([[0, 0]]), broken))


def test_photos_of_a_folder_are_drawn_by_the_sources_of_their_positions() -> None:
    where = Positions.from_local([[0, 0], [100, 80], [50, 0]])
    places = places_at(where, where[:0])
    tagged = replace(places, database=replace(places.database, sources=("Takeout JSON", "EXIF", "Takeout JSON")))
    found = groups(draw_dataset(tagged))
    assert list(found) == ["EXIF (1)", "Takeout JSON (2)"]  # in order of priority
    np.testing.assert_allclose(found["Takeout JSON (2)"] - found["EXIF (1)"], [[-100, -80], [-50, -80]])
    alone = replace(places, database=replace(places.database, sources=("EXIF",) * 3))
    assert list(groups(draw_dataset(alone))) == ["database (3)"]
