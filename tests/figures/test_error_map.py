"""The map shows every query where it was taken and where it was put; GeoJSON says the same."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from sareloc.errors import ArgumentError
from sareloc.figures import (
    PredictedPositions,
    QueryMatches,
    draw_map,
    errors_geojson,
    png_bytes,
    svg_bytes,
    write_geojson,
)
from sareloc.figures.style import RIGHT, WRONG
from sareloc.geo import Positions, distance_m


def local(true: list, found: list, right: list[bool], **values: object) -> PredictedPositions:
    names = tuple(map(str, range(len(true))))
    return PredictedPositions(
        Positions.from_local(true), Positions.from_local(found), np.array(right, bool), names, **values
    )


def one_query(true: Positions, found: Positions) -> PredictedPositions:
    return PredictedPositions(true, found, np.array([True]), ("a",))


def series(figure) -> dict:
    (axes,) = figure.axes
    return {line.get_label(): line for line in axes.lines}


def test_circles_crosses_and_lines_are_where_they_should_be() -> None:
    predicted = local([(0, 0), (100, 40)], [(6, 8), (0, 40)], [True, False])
    figure = draw_map(predicted)
    shown, middle = series(figure), np.array([50, 20])
    assert list(shown) == [
        "correct: true position (1 of 2)",
        "correct: predicted, median error 10.0 m",
        "wrong: true position (1 of 2)",
        "wrong: predicted, median error 100.0 m",
    ]
    points = [line.get_xydata()[0] + middle for line in shown.values()]
    np.testing.assert_allclose(points, [(0, 0), (6, 8), (100, 40), (0, 40)])
    good, bad = figure.axes[0].collections
    np.testing.assert_allclose(good.get_segments()[0] + middle, [(0, 0), (6, 8)])
    np.testing.assert_allclose(bad.get_segments()[0] + middle, [(100, 40), (0, 40)])
    assert good.get_linestyle() != bad.get_linestyle()  # told apart in grey


def test_right_and_wrong_have_their_colours_in_the_picture() -> None:
    figure = draw_map(local([(0, 0), (50, 50)], [(50, 0), (0, 50)], [True, False]))
    with Image.open(io.BytesIO(png_bytes(figure))) as image:
        colours = {colour[:3] for _, colour in image.convert("RGBA").getcolors(1 << 20)}
    assert ImageColor.getrgb(RIGHT) in colours
    assert ImageColor.getrgb(WRONG) in colours


def test_metres_are_metres_on_the_earth_too(matches: QueryMatches) -> None:
    shown = series(draw_map(matches.predicted_positions()))
    assert "database (6 photos)" in shown
    database = shown["database (6 photos)"].get_xydata()
    np.testing.assert_allclose(np.diff(database, axis=0), [[0, 100.1]] * 5, atol=0.1)


def test_one_query_put_exactly_right_still_has_ground_around_it() -> None:
    (axes,) = draw_map(local([(5, 5)], [(5, 5)], [True])).axes
    assert np.diff(axes.get_xlim())[0] >= 20
    assert np.diff(axes.get_ylim())[0] >= 20


def test_thousands_of_queries_are_pixels_inside_an_svg_not_elements() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((5000, 2)) * 1000
    predicted = local(
        points, points + rng.normal(0, 5, (5000, 2)), [True] * 5000, database=Positions.from_local(points)
    )
    assert svg_bytes(draw_map(predicted)).count(b"<use") < 50
    assert svg_bytes(draw_map(local(points[:9], points[9:18], [True] * 9))).count(b"<image") == 0


def test_geojson_has_two_points_and_a_line_for_each_query(matches: QueryMatches, tmp_path: Path) -> None:
    predicted = matches.predicted_positions()
    path = write_geojson(tmp_path / "errors.geojson", errors_geojson(predicted))
    features = json.loads(path.read_text())["features"]
    assert [f["properties"]["what"] for f in features] == ["taken", "found", "error"] * 4
    assert [f["geometry"]["type"] for f in features[:3]] == ["Point", "Point", "LineString"]
    line = features[5]
    assert line["properties"]["query"] == "1_of_1.png"
    assert line["properties"]["right"] is False
    (lon_a, lat_a), (lon_b, lat_b) = line["geometry"]["coordinates"]
    assert (lat_a, lon_a) == pytest.approx((52.2009, 0.1))  # longitude first, as the standard has it
    metres = distance_m([lat_a, lon_a], [lat_b, lon_b])
    assert line["properties"]["error_m"] == pytest.approx(float(metres), abs=0.05)


def test_errors_are_metres_along_the_ground_also_across_the_world() -> None:
    far = PredictedPositions(
        Positions.from_wgs84([(55.7, 13.2)]), Positions.from_wgs84([(-33.9, 151.2)]), np.array([False]), ("a",)
    )
    metres = float(distance_m([55.7, 13.2], [-33.9, 151.2]))
    assert errors_geojson(far)["features"][0]["properties"]["error_m"] == pytest.approx(metres, abs=0.01)
    assert f"wrong: predicted, median error {metres:.1f} m" in series(draw_map(far))
    assert draw_map(far).axes[0].get_ylabel() == "kilometres north"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: local([], [], []), "no query"),
        (lambda: local([(0, 0)], [(0, 0), (1, 1)], [True]), "a row for each query: found 1, 2, 1, 1"),
        (
            lambda: draw_map(one_query(Positions(np.array([[np.nan, 0.0]]), "local"), Positions.from_local([(0, 0)]))),
            "positions has nan",
        ),
        (
            lambda: draw_map(one_query(Positions.from_local([(0, 0)]), Positions.from_wgs84([(1, 1)]))),
            "no common map",
        ),
    ],
)  # fmt: skip
def test_what_has_no_map_is_refused(make, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        make()
