"""One page that says how well a model does: the table, the curves, the map, the worst failures, how it was made."""

from __future__ import annotations

import csv
import datetime
import html
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from sareloc import __version__
from sareloc.arrays import Image
from sareloc.errors import ArgumentError
from sareloc.evaluation import CurvePoint, Report
from sareloc.figures.curves import SurenessCurve, draw_precision_recall, draw_recall, draw_training
from sareloc.figures.map import Put, draw_map
from sareloc.figures.matches import SHOWN_PX, Answers, heat_picture, jpeg_uri, load_thumbnail, match_words
from sareloc.figures.style import FAINT, INK, svg_bytes, write_beside
from sareloc.models.place_model import PlaceModel
from sareloc.training import EpochRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# How a page was made: the command, the versions and the machine, so that somebody else can make it again.

LIBRARIES = ("torch", "numpy", "scipy", "pillow", "faiss-cpu", "matplotlib")


def provenance(command: str | None = None) -> dict[str, str]:
    """What stands at the foot of a report; `command` is the one that this process was started with by default."""
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


# Reports and training histories, read back from the files that `sareloc evaluate` and `sareloc train` wrote.

HISTORY = "history.csv"


def read_report(path: Path | str) -> Report:
    """The report that `sareloc evaluate --json` printed into this file."""
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as broken:  # bytes that are no text and text that is no JSON are ValueErrors
        raise ArgumentError(
            f"{path} cannot be read as a report ({broken}): make one with sareloc evaluate --json"
        ) from broken
    return report_from_json(given, str(path))


def report_from_json(given: Any, name: str) -> Report:
    """The report of a JSON object as `Report.to_json` makes it; `name` is what errors call it."""
    known = {f.name for f in fields(Report)}
    wanted = {f.name for f in fields(Report) if f.default is MISSING and f.default_factory is MISSING}
    if not isinstance(given, dict) or not wanted <= set(given):
        missing = (
            sorted(wanted - set(given)) if isinstance(given, dict) else [f"an object: found {type(given).__name__}"]
        )
        raise ArgumentError(f"{name} is no report of sareloc evaluate --json: it lacks {', '.join(missing)}")
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
    except (TypeError, ValueError, AttributeError) as broken:
        raise ArgumentError(f"{name} is no report of sareloc evaluate --json: {broken}") from broken
    return Report(**values)


def read_history(run: Path | str) -> tuple[EpochRecord, ...]:
    """The epochs of a training run, from its folder or from its history.csv."""
    path = Path(run)
    path = path / HISTORY if path.is_dir() else path
    kinds: Mapping[str, type] = {f.name: int if f.type == "int" else float for f in fields(EpochRecord)}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        records = tuple(EpochRecord(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows)
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as broken:
        raise ArgumentError(
            f"{path} cannot be read as the history of a training run ({type(broken).__name__}: {broken}): "
            "give the folder that sareloc train --out wrote"
        ) from broken
    if not records:
        raise ArgumentError(f"{path} holds no epoch yet: the run has not finished its first")
    return records


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}, which is no number")


def _by_number(given: Mapping[str, float | None], kind: type) -> dict[Any, float | None]:
    return {kind(key): value for key, value in given.items()}


# The pieces of a self-contained page: its frame and style, tables, figures that follow the reader's light or dark.

READABLE = 0.6
"""Figures shrink with a narrow page down to this part of their size; then they scroll sideways."""
NO_NETWORK = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The browser's own promise that the page loads nothing: no script, no font, no picture from elsewhere."""


def page(title: str, sections: Sequence[str]) -> str:
    """A whole page of sections."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{NO_NETWORK}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *content: str) -> str:
    """A section with its heading."""
    return f"<section>\n<h2>{html.escape(title)}</h2>\n" + "\n".join(content) + "\n</section>"


def paragraph(words: str) -> str:
    """A paragraph of plain words."""
    return f"<p>{html.escape(words)}</p>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways by itself where the page is narrow; the first column heads its rows."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def facts(listed: Mapping[str, str]) -> str:
    """Names and what they are, one below the other."""
    return "<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in listed.items()) + "</dl>"


def drawing(figure: Figure, words: str) -> str:
    """A figure inside the page, in the page's own ink on the page's own background; `words` say what it shows."""
    svg = svg_bytes(figure, transparent=True).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # numbered anew in each figure, so not unique in a page
    width = re.search(r'width="([\d.]+)pt"', svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    px = float(width.group(1)) * 4 / 3 if width else 0.0
    most = f"max-width: {px:.0f}px; min-width: {READABLE * px:.0f}px"
    svg = svg.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(words)}" style="{most}"', 1)
    return f"<figure>{svg}<figcaption>{html.escape(words)}</figcaption></figure>"


STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1f2328; --quiet: #59636e; --faint: #d0d7de; --panel: #f6f8fa;
  --right: #009e73; --wrong: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e6edf3; --quiet: #9aa4ae; --faint: #3a424b;
  --panel: #1d2228; --right: #2fbf94; --wrong: #f0803c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .8rem; padding-top: .6rem; border-top: 1px solid var(--faint); }
p { margin: .4rem 0; max-width: 60rem; }
.numbers { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.numbers div { flex: 1 1 9rem; background: var(--panel); border-radius: .6rem; padding: .8rem 1rem; }
.numbers b { display: block; font-size: 1.8rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.numbers span { color: var(--quiet); font-size: .9rem; }
.wide { overflow-x: auto; margin-bottom: 1.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .4rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th:first-child { text-align: left; } thead th { color: var(--quiet); font-weight: 600; font-size: .9rem;
  white-space: normal; vertical-align: bottom; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
figure { margin: 0; overflow-x: auto; }
figure svg { width: 100%; height: auto; display: block; margin: 0 auto; }
figcaption { color: var(--quiet); font-size: .85rem; text-align: center; padding-top: .3rem; }
.query { background: var(--panel); border-radius: .6rem; padding: .8rem; margin: 0 0 1rem; }
.query h3 { font-size: .85rem; font-weight: 600; margin: 0 0 .6rem; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .8rem; align-items: start; }
.tiles img { width: 100%; height: auto; display: block; border: 4px solid transparent; border-radius: 3px; }
.tiles .right img { border: 4px solid var(--right); } .tiles .wrong img { border: 4px dashed var(--wrong); }
.tiles .none { aspect-ratio: 4 / 3; display: grid; place-items: center; border: 1px solid var(--faint);
  color: var(--quiet); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; margin: 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 34rem) { .numbers div { flex-basis: 40%; } .tiles { grid-template-columns: 1fr 1fr; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
"""


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
