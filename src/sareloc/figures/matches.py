"""Queries and their matches: the top results of each query, judged; sheets that show them as photos, with occlusion
heat maps (`sareloc.encode.occlusion_map`) and with lines between the local features that agree on a two-view geometry.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image as Pillow
from PIL import ImageDraw

from sareloc.arrays import Bools, Floats, Image, Ints
from sareloc.datasets.places import PhotoSet, Places, find_positives
from sareloc.encode.occlusion import occlusion_map, smooth_heat
from sareloc.errors import ArgumentError, PhotoError, need
from sareloc.evaluation import Ranked, apply_protocol
from sareloc.evaluation.metrics import right_results
from sareloc.figures.curves import PrecisionRecallCurve
from sareloc.figures.map import PredictedPositions
from sareloc.figures.style import FAINT, INK, RIGHT, WRONG, new_figure, show_image, styled
from sareloc.geo import Positions, distance_m
from sareloc.geometry import LONGEST_PX, InlierPairs, LocalFeatureExtractor, inlier_pairs, verify
from sareloc.localize import Fix
from sareloc.models.place_model import PlaceModel
from sareloc.photos import decode, longest_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Heat = npt.NDArray[np.float32]


def overlay_heatmap(image: Image, heat: Heat) -> Image:
    """The photo in grey with the heat map as colour (H, W, 3); hotter pixels are also brighter.

    The heat map is resized to the image, smoothed, and stretched to its minimum and maximum. Raises ArgumentError if it
    is empty or has values that are not finite.
    """
    if not heat.size or not np.isfinite(heat).all():
        raise ArgumentError(f"a heat map must be finite and not empty: found an array of shape {heat.shape}")
    stretched = smooth_heat(heat.astype(np.float32), *image.shape[:2])[..., None]
    grey = (image @ np.array([0.299, 0.587, 0.114]))[..., None] / 255
    return np.asarray((255 * _blend(grey, stretched)).clip(0, 255).round(), dtype=np.uint8)


def _blend(grey: npt.NDArray[np.floating[Any]], heat: npt.NDArray[np.floating[Any]]) -> Floats:
    """RGB colours (..., 3) of grey (..., 1) and heat (..., 1), all in 0..1."""
    colours = need("matplotlib", "plot").colormaps["inferno"](0.25 + 0.7 * heat[..., 0])[..., :3]
    share = 0.65 * heat
    mixed: Floats = (1 - share) * grey * (0.7 + 0.3 * heat) + share * colours
    return mixed


@styled
def draw_heatmaps(image: Image, heats: Mapping[str, Heat]) -> Figure:
    """A photo and its heat maps, one for each model, keyed by the title."""
    if not heats:
        raise ArgumentError("nothing to draw: no heat maps were given")
    height, width = image.shape[:2]
    each = 3.2 * min(1.0, width / height)
    figure = new_figure((each + 0.15) * (1 + len(heats)) + 0.7, each * height / width + 0.45)
    panels = figure.subplots(1, 1 + len(heats))
    show_image(panels[0], image)
    panels[0].set_title("photo")
    for axes, (name, heat) in zip(panels[1:], heats.items(), strict=True):
        show_image(axes, overlay_heatmap(image, heat))
        axes.set_title(name)
    shades = np.linspace(0, 1, 256)[:, None]
    colormap = need("matplotlib.colors", "plot").ListedColormap(_blend(np.full_like(shades, 0.5), shades))
    scale = need("matplotlib.cm", "plot").ScalarMappable(cmap=colormap)
    scale.set_clim(0, 1)
    bar = figure.colorbar(scale, ax=panels[-1], shrink=0.85, aspect=16, pad=0.03, ticks=[0, 1])
    bar.ax.set_yticklabels(["min", "max"])
    bar.outline.set_visible(False)
    return figure


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
    """Judge rankings to which the protocol's rule (see `apply_protocol`) has been applied.

    Args:
        places: the dataset.
        rankings: (Q, K) database rows, best first; -1: no match.
        distances: (Q, K) between descriptors.
    """
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
    """Precision and recall over the confidence of fixes; a fix without a position is no answer.

    Args:
        fixes: one for each query.
        queries: with their true positions.
        hit_radius_m: a fix within this distance of the true position is right.
    """
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
    first_columns = 2 if heatmaps else 1
    images = [load_thumbnail(matches.places.queries.path(query), THUMBNAIL_PX) for query in queries]
    tallest = max([image.shape[0] / image.shape[1] for image in images if image is not None], default=1.0)
    row_inches = TILE_INCHES * min(max(tallest, 0.5), 1.5) + 0.3
    figure = new_figure(TILE_INCHES * (first_columns + top) + 0.2, row_inches * len(queries) + 0.1)
    panels = figure.subplots(len(queries), first_columns + top, squeeze=False)
    for tiles, query, image in zip(panels, queries, images, strict=True):
        _tile(tiles[0], image, f"query {query}")
        if heatmaps:
            _tile(tiles[1], heatmaps.get(query), "heat map")
        for place, axes in enumerate(tiles[first_columns:]):
            _match_tile(axes, matches, query, place)
    return figure


def match_label(matches: QueryMatches, query: int, place: int) -> str:
    """The label of a match: its rank, ✓ or ✗, and its distance from the query where positions are known.

    Args:
        matches: of a dataset.
        query: row number.
        place: rank of the match, from 0.
    """
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
    """The query photo with its occlusion heat map as an overlay; None if the photo cannot be decoded.

    Args:
        model: whose descriptor is explained.
        matches: of a dataset.
        query: row number.
        batch: occluded images at a time.
    """
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


HEIGHT_PX, GAP_PX, MOST_LINES = 360, 4, 100
COLOURS = ("#56b4e9", "#f0e442", "#ff8c3b", "#34d1a0", "#f2a2cf", "#ffffff")
"""Of the lines, light: photos are darker."""
SMOOTH = 2  # drawn at this multiple of the size, then reduced
DOT_PX, LINE_PX = 2.5, 1.2
WIDTH_INCHES = 7.0


def query_inliers(
    matches: QueryMatches, queries: Sequence[int], *, device: torch.device | str | None = None
) -> dict[int, InlierPairs]:
    """The matched local features of queries and their first matches that agree, by query.

    Left out: queries without a match, and photos that cannot be decoded.

    Args:
        matches: of a dataset.
        queries: row numbers.
        device: where local features are extracted; default: the GPU if there is one.
    """
    extractor = LocalFeatureExtractor(device)
    found = {}
    for query in queries:
        images = _photos(matches, query, LONGEST_PX)
        if images is not None:
            mine, theirs = extractor.extract(images)
            (view,) = verify(mine, [theirs])
            assert view is not None
            found[query] = inlier_pairs(mine, theirs, view)
    return found


def _photos(matches: QueryMatches, query: int, pixels: int) -> tuple[Image, Image] | None:
    """A query and its first match with their longer sides at most `pixels`; None without a match or if unreadable."""
    row = int(matches.rankings[query, :1].max(initial=-1))
    mine = load_thumbnail(matches.places.queries.path(query), pixels)
    theirs = None if row < 0 else load_thumbnail(matches.places.database.path(row), pixels)
    return None if mine is None or theirs is None else (mine, theirs)


def overlay_inliers(query: Image, photo: Image, pairs: InlierPairs) -> Image:
    """The query with the photo to its right (360, W, 3), and lines between the keypoints of at most 100 pairs.

    Lines whose ends in the query are neighbours from top to bottom have different colours.

    Args:
        query: (H, W, 3) uint8.
        photo: (H, W, 3) uint8.
        pairs: keypoints that agree.
    """
    height = HEIGHT_PX * SMOOTH
    left, right = (
        Pillow.fromarray(one).resize((round(one.shape[1] * height / one.shape[0]), height), Pillow.Resampling.BILINEAR)
        for one in (query, photo)
    )
    start = left.width + GAP_PX * SMOOTH
    canvas = Pillow.new("RGB", (start + right.width, height), "white")
    canvas.paste(left, (0, 0))
    canvas.paste(right, (start, 0))
    draw = ImageDraw.Draw(canvas)
    for number, (x0, y0, x1, y1) in enumerate(_lines(pairs)):
        ends = ((x0 * left.width, y0 * height), (start + x1 * right.width, y1 * height))
        colour = COLOURS[number % len(COLOURS)]
        draw.line(ends, colour, round(LINE_PX * SMOOTH))
        for end in ends:
            draw.circle(end, DOT_PX * SMOOTH, colour)
    return np.asarray(canvas.resize((canvas.width // SMOOTH, HEIGHT_PX), Pillow.Resampling.LANCZOS))


def _lines(pairs: InlierPairs) -> Floats:
    """At most 100 pairs (n, 4): x and y in the query, then in the photo; from top to bottom of the query."""
    shown = pairs.sample(MOST_LINES)
    lines = np.concatenate([shown.query_xy, shown.photo_xy], axis=1)
    return np.asarray(lines[np.argsort(lines[:, 1], kind="stable")])


def inliers_label(matches: QueryMatches, query: int, pairs: InlierPairs) -> str:
    """The label of a query beside its first match: `match_label`, and the number of inliers.

    Args:
        matches: of a dataset.
        query: row number.
        pairs: keypoints that agree.
    """
    kind = "planar inliers" if pairs.planar else "inliers"
    return f"query {query} and match {match_label(matches, query, 0)}: {len(pairs)} {kind}"


def paint_inliers(matches: QueryMatches, query: int, pairs: InlierPairs) -> Image:
    """A query beside its first match with the lines of `overlay_inliers`; raises ArgumentError if one is unreadable."""
    images = _photos(matches, query, 2 * LONGEST_PX)
    if images is None:
        raise ArgumentError(f"query {query} or its first match cannot be decoded: its inliers cannot be drawn")
    return overlay_inliers(*images, pairs)


@styled
def draw_inliers(matches: QueryMatches, inliers: Mapping[int, InlierPairs]) -> Figure:
    """Queries beside their first matches, with lines between the local features that agree; see `query_inliers`."""
    if not inliers:
        raise ArgumentError("nothing to draw: no query has a first match whose photo can be decoded")
    painted = [paint_inliers(matches, query, pairs) for query, pairs in inliers.items()]
    heights = [WIDTH_INCHES * image.shape[0] / image.shape[1] for image in painted]
    figure = new_figure(WIDTH_INCHES, sum(heights) + 0.35 * len(painted))
    panels = figure.subplots(len(painted), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, image, (query, pairs) in zip(panels, painted, inliers.items(), strict=True):
        show_image(axes, image)
        label = inliers_label(matches, query, pairs)
        axes.set_title(label, fontsize=8.5, fontweight="normal", color=INK, loc="center", pad=6)
    return figure
