"""Match sheets: a query, what mattered in it, and its first matches with borders that say which are right."""

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
from sareloc.describe import occlusion_map
from sareloc.errors import ArgumentError, PhotoError, need
from sareloc.evaluation import Ranked, counted, rank
from sareloc.evaluation.metrics import right_results
from sareloc.figures.curves import SurenessCurve
from sareloc.figures.heatmap import overlay
from sareloc.figures.map import Put
from sareloc.figures.style import FAINT, INK, RIGHT, WRONG, drawn, new_figure, plain_image
from sareloc.geo import Positions, distance_m
from sareloc.localize import Fix
from sareloc.models.place_model import PlaceModel
from sareloc.photos import decode, longest_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Photos small enough to stand in a figure or inside a page.


def load_thumbnail(path: Path, pixels: int) -> Image | None:
    """The photo with its longer side at most so many pixels; None where it cannot be decoded."""
    try:
        return decode(path, size=longest_side(pixels))
    except PhotoError:
        return None


def jpeg_uri(image: Image, quality: int = 80) -> str:
    """The image inside a page: a data URI that needs no file and no network."""
    content = io.BytesIO()
    Pillow.fromarray(image).save(content, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()


# What a model answers to each query of a dataset: the matches that sheets, maps and the report page show.


@dataclass(frozen=True, eq=False)
class Answers:
    """The first K matches of each of Q queries, as the dataset's protocol counts them."""

    places: Places
    rankings: Ints
    """(Q, K) database rows, best first; -1 where there is none."""
    distances: Floats
    """(Q, K) between descriptors; inf where there is none."""
    right: Bools
    """(Q, K) whether the match counts as right."""
    answerable: Bools
    """(Q,) whether the database holds any right photo."""

    @property
    def first_right(self) -> Bools:
        """(Q,) whether the first match is right."""
        return self.right[:, 0] if self.right.shape[1] else np.zeros(len(self.right), dtype=np.bool_)

    def put(self) -> Put:
        """Every query that has a match, where it was taken and where its first match was, for the map."""
        there, asked = self.places.database.positions, self.places.queries.positions
        if there is None or asked is None:
            raise ArgumentError(f"{self.places.name} has no positions: there is no map to draw")
        rows = np.flatnonzero(self.rankings[:, :1].max(axis=1, initial=-1) >= 0)
        names = tuple(self.places.queries.files[row] for row in rows)
        return Put(asked[rows], there[self.rankings[rows, 0]], self.first_right[rows], names, there)

    def best(self, count: int) -> list[int]:
        """Queries whose first match is right, the surest (nearest descriptors) first."""
        return self._surest(self.first_right)[:count]

    def worst(self, count: int) -> list[int]:
        """Queries whose first match is wrong though a right one exists, the surest first: no threshold catches them."""
        return self._surest(~self.first_right & self.answerable)[:count]

    def chosen(self, queries: Sequence[str]) -> list[int]:
        """Queries by row number, file name, or the end of one."""
        return [self._row_of(query) for query in queries]

    def _surest(self, among: Bools) -> list[int]:
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
                f"{query!r} is {'no query' if not rows else f'{len(rows)} queries'} of {self.places.name}: "
                f"give a file name or a row from 0 to {len(files) - 1}"
            )
        return rows[0]


def find_answers(
    model: PlaceModel,
    places: Places,
    *,
    depth: int = 5,
    store: Path | None = None,
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> Answers:
    """Describe a dataset, search exactly (see `rank`), and keep the first `depth` matches of each query.

    `store` keeps the descriptors: it is the folder that `evaluate` takes.
    """
    ranked = rank(model, places, n=depth, store=store, batch=batch, workers=workers, progress=progress)
    return answers_of(ranked, depth)


def answers_of(ranked: Ranked, depth: int = 5) -> Answers:
    """The first `depth` matches of each query, as the protocol counts them; at most the n that was ranked for."""
    rankings, distances = counted(ranked.places, ranked.rankings, ranked.distances)
    return judge(ranked.places, rankings[:, :depth], distances[:, :depth])


def judge(places: Places, rankings: Ints, distances: Floats) -> Answers:
    """The answers of rankings (Q, K) that the protocol's rule has been applied to already."""
    positives = find_positives(places)
    answerable = np.array([len(rows) > 0 for rows in positives], dtype=np.bool_)
    return Answers(places, rankings, distances, right_results(rankings, positives), answerable)


# Fixes held against the truth: where they put the queries, and how often they are right when they are sure.
#
# Ask for the fixes with `min_confidence=0`: a fix that was withheld says neither where it would have been nor whether
# that was right.


def put_by_fixes(
    fixes: Sequence[Fix | PhotoError],
    queries: PhotoSet,
    *,
    hit_radius_m: float = 25.0,
    min_confidence: float = 0.0,
    database: Positions | None = None,
) -> Put:
    """Where fixes put queries, a fix for each query; those without a position, less sure or not decoded are left out.

    Right: within `hit_radius_m` of where the query was taken.
    """
    true, found, confidence = _against_truth(fixes, queries)
    rows = np.flatnonzero(confidence >= min_confidence)  # never where there is none
    return Put(
        Positions.from_wgs84(true[rows]),
        Positions.from_wgs84(found[rows]),
        _right(true[rows], found[rows], hit_radius_m),
        tuple(queries.files[row] for row in rows),
        database,
    )


def sureness_of_fixes(
    fixes: Sequence[Fix | PhotoError], queries: PhotoSet, *, hit_radius_m: float = 25.0
) -> SurenessCurve:
    """Precision and recall over the confidence of fixes, a fix for each query; one without a position is no answer."""
    true, found, confidence = _against_truth(fixes, queries)
    answered = np.isfinite(confidence)
    right = np.zeros(len(queries), dtype=np.bool_)
    right[answered] = _right(true[answered], found[answered], hit_radius_m)
    return SurenessCurve.of_confidence(confidence, right.tolist())


def _against_truth(fixes: Sequence[Fix | PhotoError], queries: PhotoSet) -> tuple[Floats, Floats, Floats]:
    """Degrees (Q, 2) where queries were taken and where fixes put them, confidence (Q,); NaN without a position."""
    if queries.positions is None:
        raise ArgumentError("the queries have no positions: nothing says how far off their fixes are")
    if len(fixes) != len(queries):
        raise ArgumentError(f"there must be a fix for each query: found {len(fixes)} for {len(queries)}")
    found, confidence = np.full((len(fixes), 2), np.nan), np.full(len(fixes), np.nan)
    for row, fix in enumerate(fixes):
        if isinstance(fix, Fix) and fix.latlon is not None:
            found[row], confidence[row] = fix.latlon, fix.confidence
    return queries.positions.latlon(), found, confidence


def _right(true: Floats, found: Floats, hit_radius_m: float) -> Bools:
    return np.asarray(distance_m(true, found) <= hit_radius_m)


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
