"""Queries and their matches: the top results of each query, judged, and sheets that show them as photos."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Pillow

from sareloc.arrays import Bools, Floats, Image, Ints
from sareloc.datasets.places import PhotoSet, Places, find_positives
from sareloc.encode import occlusion_map
from sareloc.errors import ArgumentError, PhotoError, need
from sareloc.evaluation import Ranked, apply_protocol
from sareloc.evaluation.metrics import right_results
from sareloc.figures.curves import PrecisionRecallCurve
from sareloc.figures.heatmap import overlay_heatmap
from sareloc.figures.map import PredictedPositions
from sareloc.figures.style import FAINT, INK, RIGHT, WRONG, new_figure, show_image, styled
from sareloc.geo import Positions, distance_m
from sareloc.localize import Fix
from sareloc.models.place_model import PlaceModel
from sareloc.photos import decode, longest_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THUMBNAIL_PX, HEATMAP_PX = 320, 240
TILE_INCHES = 1.9
DASHES = (0, (2.2, 1.1))


@dataclass(frozen=True, eq=False)
class QueryMatches:
    """The top K matches of each of Q queries, judged by the dataset's protocol."""

    places: Places
    rankings: Ints
    """(Q, K) database rows, best first; -1: no match."""
    distances: Floats
    """(Q, K) descriptor distances; inf: no match."""
    right: Bools
    """(Q, K) whether the match is a positive of the query."""
    has_positive: Bools
    """(Q,) whether the database has a positive of the query."""

    @property
    def first_right(self) -> Bools:
        """(Q,) whether the first match is right."""
        return self.right[:, 0] if self.right.shape[1] else np.zeros(len(self.right), dtype=np.bool_)

    @property
    def has_positions(self) -> bool:
        """Whether database and queries have positions."""
        return self.places.database.positions is not None and self.places.queries.positions is not None

    def predicted_positions(self) -> PredictedPositions:
        """The position of the first match of each query that has a match; raises ArgumentError without positions."""
        database, queries = self.places.database.positions, self.places.queries.positions
        if database is None or queries is None:
            raise ArgumentError(f"{self.places.name} has no positions: a map of errors needs positions")
        rows = np.flatnonzero(self.rankings[:, :1].max(axis=1, initial=-1) >= 0)
        names = tuple(self.places.queries.files[row] for row in rows)
        first = database[self.rankings[rows, 0]]
        return PredictedPositions(queries[rows], first, self.first_right[rows], names, database)

    def best(self, count: int) -> list[int]:
        """Queries whose first match is right, smallest descriptor distance first."""
        return self._by_distance(self.first_right)[:count]

    def worst(self, count: int) -> list[int]:
        """Queries with a positive whose first match is wrong, smallest descriptor distance first."""
        return self._by_distance(~self.first_right & self.has_positive)[:count]

    def chosen(self, queries: Sequence[str]) -> list[int]:
        """Rows of queries given by row number, file name, or the last part of a file name."""
        return [self._row_of(query) for query in queries]

    def _by_distance(self, among: Bools) -> list[int]:
        nearest = self.distances[:, :1].min(axis=1, initial=np.inf)
        order = np.argsort(nearest, kind="stable")
        return [int(row) for row in order if among[row] and self.rankings[row, 0] >= 0]

    def _row_of(self, query: str) -> int:
        files = self.places.queries.files
        if query.isdecimal() and int(query) < len(files):
            return int(query)
        rows = [row for row, file in enumerate(files) if file == query or file.endswith(f"/{query}")]
        if len(rows) != 1:
            raise ArgumentError(
                f"{query!r} matches {'no query' if not rows else f'{len(rows)} queries'} of {self.places.name}: "
                f"give a file name or a row from 0 to {len(files) - 1}"
            )
        return rows[0]


def query_matches(ranked: Ranked, depth: int = 5) -> QueryMatches:
    """The top `depth` matches of each query of a ranking (at most its n), judged by the dataset's protocol."""
    rankings, distances = apply_protocol(ranked.places, ranked.rankings, ranked.distances)
    return judge_rankings(ranked.places, rankings[:, :depth], distances[:, :depth])


def judge_rankings(places: Places, rankings: Ints, distances: Floats) -> QueryMatches:
    """Judge rankings (Q, K) to which the protocol's rule (see `apply_protocol`) has been applied."""
    positives = find_positives(places)
    has_positive = np.array([len(rows) > 0 for rows in positives], dtype=np.bool_)
    return QueryMatches(places, rankings, distances, right_results(rankings, positives), has_positive)


def predicted_by_fixes(
    fixes: Sequence[Fix | PhotoError],
    queries: PhotoSet,
    *,
    hit_radius_m: float = 25.0,
    min_confidence: float = 0.0,
    database: Positions | None = None,
) -> PredictedPositions:
    """The positions of fixes; left out are fixes without a position and photos that could not be decoded.

    Localize with `min_confidence=0`: a rejected fix has no position.

    Args:
        fixes: one for each query.
        queries: with their true positions.
        hit_radius_m: a fix within this distance of the true position is right.
        min_confidence: fixes below it are left out.
        database: positions of the database photos, to be drawn too.
    """
    true, found, confidence = _compare(fixes, queries)
    rows = np.flatnonzero(confidence >= min_confidence)  # False for NaN
    return PredictedPositions(
        Positions.from_wgs84(true[rows]),
        Positions.from_wgs84(found[rows]),
        _within(true[rows], found[rows], hit_radius_m),
        tuple(queries.files[row] for row in rows),
        database,
    )


def confidence_curve(
    fixes: Sequence[Fix | PhotoError], queries: PhotoSet, *, hit_radius_m: float = 25.0
) -> PrecisionRecallCurve:
    """Precision and recall over the confidence of fixes, one for each query; a fix without a position is no answer."""
    true, found, confidence = _compare(fixes, queries)
    answered = np.isfinite(confidence)
    right = np.zeros(len(queries), dtype=np.bool_)
    right[answered] = _within(true[answered], found[answered], hit_radius_m)
    return PrecisionRecallCurve.of_confidence(confidence, right.tolist())


def _compare(fixes: Sequence[Fix | PhotoError], queries: PhotoSet) -> tuple[Floats, Floats, Floats]:
    """True and predicted positions (Q, 2) in degrees, and confidences (Q,); NaN for a fix without a position."""
    if queries.positions is None:
        raise ArgumentError("the queries have no positions: the errors of their fixes are unknown")
    if len(fixes) != len(queries):
        raise ArgumentError(f"expected a fix for each query: found {len(fixes)} fixes for {len(queries)} queries")
    found, confidence = np.full((len(fixes), 2), np.nan), np.full(len(fixes), np.nan)
    for row, fix in enumerate(fixes):
        if isinstance(fix, Fix) and fix.latlon is not None:
            found[row], confidence[row] = fix.latlon, fix.confidence
    return queries.positions.latlon(), found, confidence


def _within(true: Floats, found: Floats, radius_m: float) -> Bools:
    return np.asarray(distance_m(true, found) <= radius_m)


@styled
def draw_matches(
    matches: QueryMatches, queries: Sequence[int], *, top: int = 4, heatmaps: Mapping[int, Image] | None = None
) -> Figure:
    """A sheet with one row for each query: the query, its heat map, its first matches.

    Right matches have a solid green border and a tick, wrong ones a dashed red border and a cross, with the distance
    in metres from the query where positions are known.

    Args:
        matches: of a dataset, see `query_matches`.
        queries: row numbers.
        top: number of matches of each query.
        heatmaps: images of `query_heatmap`, by query; default: none.
    """
    if not len(queries):
        raise ArgumentError("nothing to draw: no queries were chosen")
    top = min(top, matches.rankings.shape[1])
    heatmaps = heatmaps or {}
    lead = 2 if heatmaps else 1
    images = [load_thumbnail(matches.places.queries.path(query), THUMBNAIL_PX) for query in queries]
    tallest = max([image.shape[0] / image.shape[1] for image in images if image is not None], default=1.0)
    row_inches = TILE_INCHES * min(max(tallest, 0.5), 1.5) + 0.3
    figure = new_figure(TILE_INCHES * (lead + top) + 0.2, row_inches * len(queries) + 0.1)
    panels = figure.subplots(len(queries), lead + top, squeeze=False)
    for tiles, query, image in zip(panels, queries, images, strict=True):
        _tile(tiles[0], image, f"query {query}")
        if heatmaps:
            _tile(tiles[1], heatmaps.get(query), "heat map")
        for place, axes in enumerate(tiles[lead:]):
            _match_tile(axes, matches, query, place)
    return figure


def match_label(matches: QueryMatches, query: int, place: int) -> str:
    """The label of a match: its rank, ✓ or ✗, and its distance from the query where positions are known."""
    sign = "✓" if matches.right[query, place] else "✗"
    database, queries = matches.places.database.positions, matches.places.queries.positions
    if database is None or queries is None or database.frame != queries.frame:
        return f"{place + 1} {sign}"
    metres = np.linalg.norm(database.metres[matches.rankings[query, place]] - queries.metres[query])
    return f"{place + 1} {sign} {metres:,.0f} m off"


def _match_tile(axes: Axes, matches: QueryMatches, query: int, place: int) -> None:
    row = int(matches.rankings[query, place])
    if row < 0:
        _tile(axes, None, f"{place + 1}: no match")
        return
    _tile(axes, load_thumbnail(matches.places.database.path(row), THUMBNAIL_PX), match_label(matches, query, place))
    right = bool(matches.right[query, place])
    border = need("matplotlib.patches", "plot").Rectangle(
        (0, 0), 1, 1, transform=axes.transAxes, clip_on=False, fill=False, linewidth=4, capstyle="butt",
        edgecolor=RIGHT if right else WRONG, linestyle="-" if right else DASHES,
        gid="right match" if right else "wrong match",
    )  # fmt: skip
    axes.add_patch(border)


def _tile(axes: Axes, image: Image | None, label: str) -> None:
    if image is None:
        image = np.full((3, 4, 3), 255, np.uint8)
        axes.text(0.5, 0.5, "no photo", transform=axes.transAxes, ha="center", va="center", color=FAINT)
    show_image(axes, image)
    axes.set_title(label, fontsize=8.5, fontweight="normal", color=INK, loc="center", pad=6)


def query_heatmap(model: PlaceModel, matches: QueryMatches, query: int, *, batch: int = 16) -> Image | None:
    """The query photo with its occlusion heat map as an overlay; None if the photo cannot be decoded."""
    path = matches.places.queries.path(query)
    shown, small = load_thumbnail(path, THUMBNAIL_PX), load_thumbnail(path, HEATMAP_PX)
    if shown is None or small is None:
        return None
    return overlay_heatmap(shown, occlusion_map(model, small, batch=batch))


def load_thumbnail(path: Path, pixels: int) -> Image | None:
    """The photo with its longer side at most `pixels`; None if it cannot be decoded."""
    try:
        return decode(path, size=longest_side(pixels))
    except PhotoError:
        return None


def jpeg_uri(image: Image, quality: int = 80) -> str:
    """The image as a JPEG data URI, for pages that load no files."""
    content = io.BytesIO()
    Pillow.fromarray(image).save(content, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
