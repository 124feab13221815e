"""One page that says how well a model does: the table, the curves, the map, the worst failures, how it was made."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from sareloc.errors import ArgumentError
from sareloc.evaluation import Report
from sareloc.figures.answers import Answers
from sareloc.figures.curves import SurenessCurve, draw_precision_recall, draw_recall, draw_training
from sareloc.figures.ground import Put, draw_map
from sareloc.figures.matches import SHOWN_PX, Image, heat_picture, match_words
from sareloc.figures.page import drawing, facts, page, paragraph, section, table
from sareloc.figures.provenance import provenance
from sareloc.figures.style import write_beside
from sareloc.figures.thumbnails import jpeg_uri, load_thumbnail
from sareloc.models.place_model import PlaceModel
from sareloc.training import EpochRecord

MATCHES = 4  # shown of each failure


def write_report(
    out: Path | str,
    *,
    reports: Mapping[str, Report] | None = None,
    histories: Mapping[str, Sequence[EpochRecord]] | None = None,
    answers: Answers | None = None,
    put: Put | None = None,
    sureness: Mapping[str, SurenessCurve] | None = None,
    at: float | None = None,
    model: PlaceModel | None = None,
    failures: int = 6,
    title: str = "How well places are found",
    command: str | None = None,
    progress: bool = True,
) -> Path:
    """Write one self-contained page (no network, no script) of whatever is given, and say where it is.

    reports: by the names shown; the first one's numbers stand on top. histories: the epochs of training runs. answers:
    gives the map (unless `put` does, as with fixes) and the `failures` surest wrong answers with their matches, and
    with `model` a heat map of each. sureness: precision and recall over a confidence, with its operating point `at`.
    command: how the page was made, by default the command line of this process.
    """
    reports, histories = reports or {}, histories or {}
    if not (reports or histories or sureness or answers or put):
        raise ArgumentError("there is nothing to report: give reports, training histories, answers or positions")
    sections = []
    if reports:
        sections += [_headline(next(iter(reports.values()))), _results(reports)]
    if histories:
        sections.append(section("Training", drawing(draw_training(histories), "Loss and validation recall by epoch")))
    if sureness:
        words = "Precision and recall when only answers of at least some confidence are given"
        sections.append(section("How sure", drawing(draw_precision_recall(sureness, at), words)))
    if put is None and answers is not None and answers.places.queries.positions and answers.places.database.positions:
        put = answers.put()
    if put is not None:
        sections.append(
            section("On the ground", drawing(draw_map(put), "Where queries were taken and where they were put"))
        )
    if answers is not None:
        sections.append(_failures(answers, failures, model, progress))
    sections.append(section("How this page was made", facts(provenance(command))))
    return write_beside(Path(out), page(title, sections).encode(errors="backslashreplace"))


def _headline(report: Report) -> str:
    usual = [n for n in (1, 5, 10) if n in report.recall] or sorted(report.recall)[:3]
    shown = [(f"{report.recall[n]:.1f} %", f"recall@{n}") for n in usual]
    if report.mean_average_precision is not None:
        shown.append((f"{report.mean_average_precision:.1f} %", "mean average precision"))
    if report.median_error_m is not None:
        shown.append((f"{report.median_error_m:.1f} m", "median error of the first match"))
    tiles = "".join(f"<div><b>{html.escape(number)}</b><span>{html.escape(of)}</span></div>" for number, of in shown)
    asked = (
        f"{report.model or 'A ranking'} on {report.dataset} {report.split}: {report.queries:,} queries against "
        f"{report.database:,} photos. Right: {report.meaning}."
    )
    return paragraph(asked) + f'\n<div class="numbers">{tiles}</div>'


def _results(reports: Mapping[str, Report]) -> str:
    ns = sorted({n for report in reports.values() for n in report.recall})
    columns = [
        "",
        "dataset",
        "queries",
        *(f"recall@{n}" for n in ns),
        "95 % interval of recall@1",
        "median error",
        "mAP",
        "dims",
    ]
    rows = [[name, f"{r.dataset} {r.split}", f"{r.queries:,}", *(_number(r.recall.get(n), " %") for n in ns),
             "–" if r.recall_at_1_interval is None else "{:.1f} to {:.1f} %".format(*r.recall_at_1_interval),
             _number(r.median_error_m, " m"), _number(r.mean_average_precision, " %"), _number(r.dim, "", 0)]
            for name, r in reports.items()]  # fmt: skip
    told_above = {"dataset", "queries"}  # by the headline, unless the reports differ in them
    useful = [
        i
        for i, column in enumerate(columns)
        if not i or any(row[i] != (rows[0][i] if column in told_above else "–") for row in rows)
    ]
    shown = table([columns[i] for i in useful], [[row[i] for i in useful] for row in rows])
    figures = [drawing(draw_recall(reports), "Recall@N: queries with a right photo among their first N")]
    curves = {name: SurenessCurve.of_report(report) for name, report in reports.items() if report.curve}
    if curves:
        words = "Precision and recall when only the surest answers are given"
        figures.append(drawing(draw_precision_recall(curves), words))
    left_out = [
        f"{name}: {len(listed)} photos of the {role} could not be read ({outcome})."
        for name, report in reports.items()
        for role, outcome in (("database", "left out"), ("queries", "counted as missed"))
        if (listed := report.failures.get(role, ()))
    ]
    return section("Results", shown, *map(paragraph, left_out), f'<div class="pair">{"".join(figures)}</div>')


def _failures(answers: Answers, count: int, model: PlaceModel | None, progress: bool) -> str:
    wrong = int((~answers.first_right).sum())
    unanswerable = int((~answers.answerable).sum())
    words = f"The first match is wrong for {wrong:,} of {len(answers.right):,} queries"
    words += f"; for {unanswerable:,} of them the database has no right photo." if unanswerable else "."
    chosen = answers.worst(count)
    if not chosen:
        return section("Failures", paragraph(words))
    words += f" Shown: the {len(chosen)} surest mistakes, which a threshold would be the last to catch."
    blocks = []
    for query in tqdm(chosen, desc="failures", disable=None if progress else True):
        heat = None if model is None else heat_picture(model, answers, query)
        blocks.append(_query(answers, query, heat, with_heat=model is not None))
    return section("The worst failures", paragraph(words), *blocks)


def _query(answers: Answers, query: int, heat: Image | None, *, with_heat: bool) -> str:
    photos = answers.places
    tiles = [_tile(load_thumbnail(photos.queries.path(query), SHOWN_PX), "query")]
    if with_heat:
        tiles.append(_tile(heat, "what mattered in it"))
    for place, row in enumerate(answers.rankings[query, :MATCHES].tolist()):
        if row >= 0:
            kind = "right" if answers.right[query, place] else "wrong"
            words = match_words(answers, query, place)
            tiles.append(_tile(load_thumbnail(photos.database.path(row), SHOWN_PX), words, kind))
    name = html.escape(photos.queries.files[query])
    return f'<div class="query"><h3>{name}</h3><div class="tiles">{"".join(tiles)}</div></div>'


def _tile(image: Image | None, words: str, kind: str = "") -> str:
    shown = html.escape(words)
    inside = '<div class="none">no photo</div>' if image is None else f'<img alt="{shown}" src="{jpeg_uri(image)}">'
    return f'<figure class="{kind}">{inside}<figcaption>{shown}</figcaption></figure>'


def _number(value: float | None, unit: str, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}{unit}"
