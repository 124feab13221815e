"""Inliers: a query beside its first match, with lines between the local features that agree on a two-view geometry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image as Pillow
from PIL import ImageDraw

from sareloc.arrays import Floats, Image
from sareloc.errors import ArgumentError
from sareloc.figures.matches import QueryMatches, load_thumbnail, match_label
from sareloc.figures.style import INK, new_figure, show_image, styled
from sareloc.geometry import LONGEST_PX, InlierPairs, LocalFeatureExtractor, inlier_pairs, verify

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT_PX, GAP_PX, MOST_LINES = 360, 4, 100
COLOURS = ("#56b4e9", "#f0e442", "#ff8c3b", "#34d1a0", "#f2a2cf", "#ffffff")
"""Of the lines, light: photos are darker."""
SMOOTH = 2  # drawn at this multiple of the size, then reduced
DOT_PX, LINE_PX = 2.5, 1.2
WIDTH_INCHES = 7.0


def query_inliers(
    matches: QueryMatches, queries: Sequence[int], *, device: torch.device | str | None = None
) -> dict[int, InlierPairs]:
    """The matched local features of queries (given by row number) and their first matches that agree, by query.

    Left out: queries without a match, and photos that cannot be decoded. device: where local features are extracted;
    default: the GPU if there is one.
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
    """The label of a query beside its first match: `match_label`, and the number of inliers."""
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
