"""The map of a track and the photos on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sareloc.figures import draw_track, png_bytes
from sareloc.geo import wgs84_from_enu
from sareloc.photos import Geotag, PlacedPhoto, Track, TrackReport

HOME = (47.0, 8.0)


def latlon(east: float, north: float) -> tuple[float, float]:
    latitude, longitude = wgs84_from_enu([(east, north)], HOME)[0].tolist()
    return latitude, longitude


def report(placed: list[Geotag], own: list[Geotag]) -> TrackReport:
    track = Track(np.arange(11.0), wgs84_from_enu([(10.0 * i, 0) for i in range(11)], HOME))
    named = [PlacedPhoto(Path(f"{i}.jpg"), tag, 0.0, 0.0) for i, tag in enumerate(placed)]
    return TrackReport(track, tuple(named), {Path(f"own{i}.jpg"): tag for i, tag in enumerate(own)}, (), 0.0, None, ())


def test_track_photos_and_headings_are_drawn_and_far_photos_are_not() -> None:
    placed = [Geotag(latlon(20, 0), 90.0), Geotag(latlon(60, 0))]
    figure = draw_track(report(placed, [Geotag(latlon(50, 5)), Geotag((48.0, 8.0))]))
    axes = figure.axes[0]
    labels = [str(artist.get_label()) for artist in (*axes.lines, *axes.collections)]
    assert [label for label in labels if not label.startswith("_")] == [
        "track (11 points)",
        "photos placed on it (2)",
        "photos with positions (1)",
    ]
    arrows = next(one for one in axes.collections if hasattr(one, "U"))
    assert (arrows.U[0], arrows.V[0]) == pytest.approx((1, 0), abs=1e-6)
    assert len(arrows.U) == 1
    points = np.asarray(axes.collections[0].get_offsets())
    assert points[1] - points[0] == pytest.approx([40, 0], abs=0.01)


def test_a_track_alone() -> None:
    figure = draw_track(report([], []))
    assert png_bytes(figure).startswith(b"\x89PNG")
    assert "00:00:10 UTC" in figure.axes[0].get_title(loc="left")
