"""Match sheets: a query, what mattered in it, and its first matches with borders that say which are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError, PhotoError, need
from sareloc.figures.answers import Answers
from sareloc.figures.heatmap import occlusion_map, overlay
from sareloc.figures.style import FAINT, INK, RIGHT, WRONG, drawn, new_figure, plain_image
from sareloc.figures.thumbnails import load_thumbnail, longest_side
from sareloc.models.place_model import PlaceModel
from sareloc.photos import decode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image = npt.NDArray[np.uint8]

SHOWN_PX, HEAT_PX = 320, 240
TILE_INCHES = 1.9
DASHES = (0, (2.2, 1.1))


@drawn
def draw_matches(
    answers: Answers, queries: Sequence[int], *, matches: int = 4, heats: Mapping[int, Image] | None = None
) -> Figure:
    """One row for each query (row numbers): the query, its heat map where `heats` has one, its first matches.

    Right matches have a solid green border and a tick, wrong ones a dashed red border and a cross; below each stands
    how far it was taken from the query, where that is known. `heats` holds pictures as `heat_picture` makes them.
    """
    if not len(queries):
        raise ArgumentError("there is nothing to draw: no queries were chosen")
    matches = min(matches, answers.rankings.shape[1])
    heats = heats or {}
    lead = 2 if heats else 1
    asked = [load_thumbnail(answers.places.queries.path(query), SHOWN_PX) for query in queries]
    tallest = max([image.shape[0] / image.shape[1] for image in asked if image is not None], default=1.0)
    row_inches = TILE_INCHES * min(max(tallest, 0.5), 1.5) + 0.3
    figure = new_figure(TILE_INCHES * (lead + matches) + 0.2, row_inches * len(queries) + 0.1)
    panels = figure.subplots(len(queries), lead + matches, squeeze=False)
    for tiles, query, image in zip(panels, queries, asked, strict=True):
        _tile(tiles[0], image, f"query {query}")
        if heats:
            _tile(tiles[1], heats.get(query), "what mattered")
        for place, axes in enumerate(tiles[lead:]):
            _match_tile(axes, answers, query, place)
    return figure


def heat_picture(model: PlaceModel, answers: Answers, query: int, *, batch: int = 16) -> Image | None:
    """The query photo with what mattered in it glowing; None where it cannot be decoded."""
    path = answers.places.queries.path(query)
    shown = load_thumbnail(path, SHOWN_PX)
    try:
        small = decode(path, size=longest_side(HEAT_PX))
    except PhotoError:
        return None
    return None if shown is None else overlay(shown, occlusion_map(model, small, batch=batch))


def match_words(answers: Answers, query: int, place: int) -> str:
    """What stands below a match: its place in the ranking, whether it is right, how far off it was taken."""
    sign = "✓" if answers.right[query, place] else "✗"
    there, asked = answers.places.database.positions, answers.places.queries.positions
    if there is None or asked is None or there.frame != asked.frame:
        return f"{place + 1} {sign}"
    metres = np.linalg.norm(there.metres[answers.rankings[query, place]] - asked.metres[query])
    return f"{place + 1} {sign} {metres:,.0f} m off"


def _match_tile(axes: Axes, answers: Answers, query: int, place: int) -> None:
    row = int(answers.rankings[query, place])
    if row < 0:
        _tile(axes, None, f"{place + 1}: no match")
        return
    _tile(axes, load_thumbnail(answers.places.database.path(row), SHOWN_PX), match_words(answers, query, place))
    good = bool(answers.right[query, place])
    border = need("matplotlib.patches", "plot").Rectangle(
        (0, 0), 1, 1, transform=axes.transAxes, clip_on=False, fill=False, linewidth=4, capstyle="butt",
        edgecolor=RIGHT if good else WRONG, linestyle="-" if good else DASHES,
        gid="right match" if good else "wrong match",
    )  # fmt: skip
    axes.add_patch(border)


def _tile(axes: Axes, image: Image | None, words: str) -> None:
    if image is None:
        image = np.full((3, 4, 3), 255, np.uint8)
        axes.text(0.5, 0.5, "no photo", transform=axes.transAxes, ha="center", va="center", color=FAINT)
    plain_image(axes, image)
    axes.set_title(words, fontsize=8.5, fontweight="normal", color=INK, loc="center", pad=6)
