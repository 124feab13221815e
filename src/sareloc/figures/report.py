"""The report page: results of evaluations and training runs in one self-contained HTML file.

`write_report` makes the page; `read_report` and `read_history` read what `sareloc evaluate` and `sareloc train` wrote.
"""

from __future__ import annotations

import csv
import datetime
import html
import importlib.metadata
import io
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from sareloc import __version__
from sareloc.arrays import Image
from sareloc.errors import ArgumentError
from sareloc.evaluation import CurvePoint, Report
from sareloc.figures.curves import PrecisionRecallCurve, draw_precision_recall, draw_recall, draw_training
from sareloc.figures.map import PredictedPositions, draw_map
from sareloc.figures.matches import (
    MOST_LINES,
    THUMBNAIL_PX,
    QueryMatches,
    inliers_label,
    jpeg_uri,
    load_thumbnail,
    match_label,
    paint_inliers,
    query_heatmap,
)
from sareloc.figures.style import FAINT, INK, Styles, series_styles, svg_bytes
from sareloc.files import read_regular, write_atomically
from sareloc.geometry import InlierPairs
from sareloc.models.place_model import PlaceModel
from sareloc.training import EpochRecord
from sareloc.wording import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LIBRARIES = ("torch", "numpy", "scipy", "pillow", "faiss-cpu", "matplotlib")
HISTORY = "history.csv"
MIN_SCALE = 0.6
"""On a narrow page figures shrink to this fraction of their size; below it they scroll horizontally."""
NO_NETWORK = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The Content-Security-Policy: the page loads no script, font or image from elsewhere."""
TOP_MATCHES = 4  # shown of each failure
LARGEST_BYTES = 200_000_000


def write_report(
    out: Path | str,
    *,
    reports: Mapping[str, Report] | None = None,
    histories: Mapping[str, Sequence[EpochRecord]] | None = None,
    ladder: Mapping[str, float] | None = None,
    matches: QueryMatches | None = None,
    inliers: Mapping[int, InlierPairs] | None = None,
    predicted: PredictedPositions | None = None,
    confidence_curves: Mapping[str, PrecisionRecallCurve] | None = None,
    at: float | None = None,
    model: PlaceModel | None = None,
    failures: int = 6,
    title: str = "Place recognition report",
    command: str | None = None,
    progress: bool = True,
) -> Path:
    """Write one self-contained HTML page (no network, no script) with a section for each argument.

    Args:
        out: path of the page.
        reports: by name; the headline shows the first.
        histories: epochs of training runs, by name.
        ladder: recall@1 in percent after each step of the search, see `FixReport.ladder`.
        matches: for the failures (queries whose first match is wrong, smallest descriptor distance first) and, unless
            `predicted` is given, the map of errors.
        inliers: of queries and their first matches among `matches`, see `query_inliers`.
        predicted: predicted positions for the map of errors, such as of fixes.
        confidence_curves: precision and recall over confidence, by name.
        at: the operating point of these curves.
        model: for a heat map of each failure; default: none.
        failures: number of failures shown.
        title: of the page.
        command: for the provenance section; default: the command line of this process.
        progress: show a progress bar.

    Returns:
        The path of the page.

    Raises:
        ArgumentError: if there is nothing to report.
    """
    reports, histories = reports or {}, histories or {}
    if not (reports or histories or confidence_curves or matches or predicted):
        raise ArgumentError("nothing to report: give reports, training histories, matches or predicted positions")
    styles = series_styles(reports, histories, confidence_curves or {})  # one for each name in all figures of the page
    sections = []
    if reports:
        sections += [_headline(next(iter(reports.values()))), _results(reports, styles)]
    if histories:
        training = drawing(draw_training(histories, styles=styles), "Loss and validation recall by epoch")
        sections.append(section("Training", training))
    if ladder:
        rows = [[step, f"{percent:.1f} %"] for step, percent in ladder.items()]
        words = paragraph("Queries whose first match was taken within 25 m, after each step of the search.")
        sections.append(section("Steps of the search", words, html_table(["step", "recall@1"], rows)))
    if confidence_curves:
        words, curves = "Precision and recall over the confidence of fixes", confidence_curves
        sections.append(section("Confidence", drawing(draw_precision_recall(curves, at, styles=styles), words)))
    if predicted is None and matches is not None and matches.has_positions:
        predicted = matches.predicted_positions()
    if predicted is not None:
        sections.append(section("Map of errors", drawing(draw_map(predicted), "True and predicted query positions")))
    if matches is not None and inliers:
        sections.append(_matched_features(matches, inliers))
    if matches is not None:
        sections.append(_failures(matches, failures, model, progress))
    sections.append(section("Provenance", facts(provenance(command))))
    return write_atomically(Path(out), page(title, sections).encode(errors="backslashreplace"))


def _headline(report: Report) -> str:
    usual = [n for n in (1, 5, 10) if n in report.recall] or sorted(report.recall)[:3]
    shown = [(f"{report.recall[n]:.1f} %", f"recall@{n}") for n in usual]
    if report.mean_average_precision is not None:
        shown.append((f"{report.mean_average_precision:.1f} %", "mean average precision"))
    if report.median_error_m is not None:
        shown.append((f"{report.median_error_m:.1f} m", "median error of the first match"))
    tiles = "".join(f"<div><b>{html.escape(number)}</b><span>{html.escape(of)}</span></div>" for number, of in shown)
    summary = (
        f"{report.model or 'A ranking'} on {report.dataset} {report.split}: {plural(report.queries, 'query')} against "
        f"{plural(report.database, 'database photo')}. Right: {report.meaning}."
    )
    return paragraph(summary) + f'\n<div class="numbers">{tiles}</div>'


def _results(reports: Mapping[str, Report], styles: Styles) -> str:
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
    rows = [[name, f"{r.dataset} {r.split}", f"{r.queries:,}", *(_format(r.recall.get(n), " %") for n in ns),
             "–" if r.recall_at_1_interval is None else "{:.1f} to {:.1f} %".format(*r.recall_at_1_interval),
             _format(r.median_error_m, " m"), _format(r.mean_average_precision, " %"), _format(r.dim, "", 0)]
            for name, r in reports.items()]  # fmt: skip
    in_headline = {"dataset", "queries"}  # shown only if the reports differ in them
    useful = [
        i
        for i, column in enumerate(columns)
        if not i or any(row[i] != (rows[0][i] if column in in_headline else "–") for row in rows)
    ]
    shown = html_table([columns[i] for i in useful], [[row[i] for i in useful] for row in rows])
    figures = [
        drawing(draw_recall(reports, styles=styles), "Recall@N: queries with a positive among the top N results")
    ]
    curves = {name: PrecisionRecallCurve.of_report(report) for name, report in reports.items() if report.curve}
    if curves:
        words = "Precision and recall over the distance of the first match"
        figures.append(drawing(draw_precision_recall(curves, styles=styles), words))
    left_out = [
        f"{name}: {plural(len(listed), 'photo')} of the {role} could not be read ({outcome})."
        for name, report in reports.items()
        for role, outcome in (("database", "left out"), ("queries", "counted as failures"))
        if (listed := report.failures.get(role, ()))
    ]
    return section("Results", shown, *map(paragraph, left_out), f'<div class="pair">{"".join(figures)}</div>')


def _matched_features(matches: QueryMatches, inliers: Mapping[int, InlierPairs]) -> str:
    words = (
        "Queries (left) and their first matches (right). Lines connect matched local features that agree on one "
        f"two-view geometry; at most {MOST_LINES} of them are drawn."
    )
    blocks = []
    for query, pairs in inliers.items():
        name = html.escape(matches.places.queries.files[query])
        lines = tile(paint_inliers(matches, query, pairs), inliers_label(matches, query, pairs), "lines")
        blocks.append(f'<div class="query"><h3>{name}</h3>{lines}</div>')
    return section("Matched local features", paragraph(words), *blocks)


def _failures(matches: QueryMatches, count: int, model: PlaceModel | None, progress: bool) -> str:
    wrong = int((~matches.first_right).sum())
    without_positive = int((~matches.has_positive).sum())
    words = f"The first match is wrong for {wrong:,} of {plural(len(matches.right), 'query')}"
    words += f"; {without_positive:,} of them have no positive in the database." if without_positive else "."
    chosen = matches.worst(count)
    if not chosen:
        return section("Failures", paragraph(words))
    words += f" Shown: the {len(chosen)} with the smallest descriptor distance."
    blocks = []
    for query in tqdm(chosen, desc="failures", disable=None if progress else True):
        heatmap = None if model is None else query_heatmap(model, matches, query)
        blocks.append(_query(matches, query, heatmap, with_heatmap=model is not None))
    return section("Failures", paragraph(words), *blocks)


def _query(matches: QueryMatches, query: int, heatmap: Image | None, *, with_heatmap: bool) -> str:
    photos = matches.places
    tiles = [tile(load_thumbnail(photos.queries.path(query), THUMBNAIL_PX), "query")]
    if with_heatmap:
        tiles.append(tile(heatmap, "heat map"))
    for place, row in enumerate(matches.rankings[query, :TOP_MATCHES].tolist()):
        if row >= 0:
            kind = "right" if matches.right[query, place] else "wrong"
            words = match_label(matches, query, place)
            tiles.append(tile(load_thumbnail(photos.database.path(row), THUMBNAIL_PX), words, kind))
    return photo_tiles(photos.queries.files[query], tiles)


def photo_tiles(name: str, tiles: Sequence[str]) -> str:
    """Tiles beside each other, below the name of a photo."""
    return f'<div class="query"><h3>{html.escape(name)}</h3><div class="tiles">{"".join(tiles)}</div></div>'


def tile(image: Image | None, words: str, kind: str = "") -> str:
    """An image with its caption; None: that there is no photo. kind: the CSS class, such as "right" or "wrong"."""
    shown = html.escape(words)
    inside = '<div class="none">no photo</div>' if image is None else f'<img alt="{shown}" src="{jpeg_uri(image)}">'
    return f'<figure class="{kind}">{inside}<figcaption>{shown}</figcaption></figure>'


def _format(value: float | None, unit: str, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def page(title: str, sections: Sequence[str]) -> str:
    """A complete HTML page of sections."""
    style = (files("sareloc.figures") / "report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{NO_NETWORK}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *content: str) -> str:
    """A section with its heading."""
    return f"<section>\n<h2>{html.escape(title)}</h2>\n" + "\n".join(content) + "\n</section>"


def paragraph(words: str) -> str:
    """A paragraph of text."""
    return f"<p>{html.escape(words)}</p>"


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls horizontally on a narrow page; the first column holds row headers."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def facts(listed: Mapping[str, str]) -> str:
    """A description list of names and values."""
    return "<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in listed.items()) + "</dl>"


def drawing(figure: Figure, words: str) -> str:
    """A figure as inline SVG in the page's text and background colours; `words`: caption and alternative text."""
    svg = svg_bytes(figure, transparent=True).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # each figure starts at 1: not unique in a page
    width = re.search(r'width="([\d.]+)pt"', svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    px = float(width.group(1)) * 4 / 3 if width else 0.0
    limits = f"max-width: {px:.0f}px; min-width: {MIN_SCALE * px:.0f}px"
    svg = svg.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(words)}" style="{limits}"', 1)
    return f"<figure>{svg}<figcaption>{html.escape(words)}</figcaption></figure>"


def provenance(command: str | None = None) -> dict[str, str]:
    """What is needed to reproduce a report: command, versions and machine. `command`: default: that of this process."""
    started = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {
        "command": started if command is None else command,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "sareloc": __version__,
        "Python": platform.python_version(),
        "libraries": ", ".join(f"{name} {_version(name)}" for name in LIBRARIES),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        for line in listed.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_report(path: Path | str) -> Report:
    """Read the output of `sareloc evaluate --json` from a file; raises ArgumentError if it is not a report."""
    try:
        given = json.loads(read_regular(path, LARGEST_BYTES), parse_constant=_reject_constant)
    except (OSError, ValueError, RecursionError) as error:  # invalid UTF-8 and invalid JSON are ValueErrors
        raise ArgumentError(
            f"{path} cannot be read as a report ({error}): create one with sareloc evaluate --json"
        ) from error
    return report_from_json(given, str(path))


def report_from_json(given: Any, name: str) -> Report:
    """The report of a JSON object made by `Report.to_json`; `name`: how errors call it; unknown keys are ignored."""
    known = {f.name for f in fields(Report)}
    required = {f.name for f in fields(Report) if f.default is MISSING and f.default_factory is MISSING}
    if not isinstance(given, dict):
        raise ArgumentError(f"{name} is not a report of sareloc evaluate --json: found {type(given).__name__}")
    if missing := sorted(required - set(given)):
        raise ArgumentError(f"{name} is not a report of sareloc evaluate --json: missing {', '.join(missing)}")
    values = {key: value for key, value in given.items() if key in known}
    try:
        values["recall"] = _by_number(given["recall"], int)
        for key, kind in (("plain_recall", int), ("error_quantiles_m", float)):
            values[key] = None if given[key] is None else _by_number(given[key], kind)
        values["failures"] = {role: tuple((photo, why) for photo, why in listed)
                              for role, listed in given.get("failures", {}).items()}  # fmt: skip
        values["curve"] = tuple(CurvePoint(**point) for point in given.get("curve", ()))
        if given["recall_at_1_interval"] is not None:
            low, high = given["recall_at_1_interval"]
            values["recall_at_1_interval"] = (float(low), float(high))
    except (TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"{name} is not a report of sareloc evaluate --json: {error}") from error
    return Report(**values)


NEWER = ("skipped",)
"""Columns that histories of earlier versions do not have."""


def read_history(run: Path | str) -> tuple[EpochRecord, ...]:
    """The epochs of a training run, from its folder or its history.csv; raises ArgumentError if there are none."""
    path = Path(run)
    path = path / HISTORY if path.is_dir() else path
    kinds: Mapping[str, type] = {f.name: int if f.type == "int" else float for f in fields(EpochRecord)}
    try:
        rows = list(csv.DictReader(io.StringIO(read_regular(path, LARGEST_BYTES).decode(), newline="")))
        known = {name: kind for name, kind in kinds.items() if name not in NEWER or (rows and name in rows[0])}
        records = tuple(EpochRecord(**{name: kind(row[name]) for name, kind in known.items()}) for row in rows)
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{path} cannot be read as the history of a training run ({type(error).__name__}: {error}): "
            "give the folder that sareloc train --out wrote"
        ) from error
    if not records:
        raise ArgumentError(f"{path} has no epoch yet: wait for the first epoch of the run")
    return records


def _reject_constant(constant: str) -> float:
    raise ValueError(f"it contains {constant}, which is not a JSON number")


def _by_number(given: Mapping[str, float | None], kind: type) -> dict[Any, float | None]:
    return {kind(key): value for key, value in given.items()}
