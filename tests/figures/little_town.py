"""What the figure tests draw: flat-coloured photos along a street, and reports made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from sareloc.datasets import PhotoSet, Places
from sareloc.evaluation import CurvePoint, Report
from sareloc.figures import QueryMatches, judge_rankings
from sareloc.geo import Positions


def photos(folder: Path, places: Iterable[int]) -> PhotoSet:
    """One flat-coloured photo for each place (so that a test can find it in a figure), 100 m apart along a street."""
    places = list(places)
    folder.mkdir(parents=True)
    files = tuple(f"{row}_of_{place}.png" for row, place in enumerate(places))
    for file, place in zip(files, places, strict=True):
        Image.new("RGB", (96, 72), colour(place)).save(folder / file)
    latlon = [(52.2 + 0.0009 * place, 0.1) for place in places]
    return PhotoSet(folder, files, Positions.from_wgs84(latlon))


def colour(place: int) -> tuple[int, int, int]:
    return (40 * place % 256, 255 - 40 * place % 256, (60 + 30 * place) % 256)


def make_town(folder: Path) -> Places:
    """Six places in the database; queries of places 0, 1, 2, and of one far away that nothing matches."""
    return Places("town", "test", photos(folder / "database", range(6)), photos(folder / "queries", [0, 1, 2, 15]))


def make_matches(town: Places) -> QueryMatches:
    """Query 0 is right at once, query 1 at its second match and very sure, query 2 never and unsure."""
    rankings = np.array([[0, 1, 2], [3, 1, 0], [5, 4, 3], [2, 1, 0]])
    distances = np.array([[0.3, 0.6, 0.9], [0.1, 0.2, 0.3], [0.8, 0.9, 1.0], [1.1, 1.2, 1.3]])
    return judge_rankings(town, rankings, distances)


def make_report(recall: dict[int, float], **values: object) -> Report:
    """A report with these recalls, and a curve of three points."""
    given = {
        "dataset": "town", "split": "test", "protocol": "radius", "meaning": "within 25 m", "database": 6, "queries": 4,
        "queries_without_positives": 1, "recall": recall, "recall_at_1_interval": (recall[1] - 4, recall[1] + 4),
        "plain_recall": None, "mean_average_precision": None, "median_error_m": 3.5, "error_quantiles_m": {0.5: 3.5},
        "curve": (CurvePoint(0.4, 100.0, 25.0), CurvePoint(0.7, 80.0, 50.0), CurvePoint(1.0, 60.0, 70.0)),
    }  # fmt: skip
    return Report(**(given | values))
