"""The report page shows what it was given, and loads nothing from anywhere."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.figures.little_town import colour, make_matches, make_report, make_town

from sareloc import __version__
from sareloc.errors import ArgumentError
from sareloc.figures import PrecisionRecallCurve, QueryMatches, write_report
from sareloc.figures.style import SERIES_STYLES
from sareloc.models import PlaceModel
from sareloc.training import EpochRecord

RECALL = {1: 61.25, 5: 80.0, 10: 90.0}
HISTORY = [EpochRecord(e, 1 / e, 0.001, 10, 120, 1.0, 0.1 * e, 0.2 * e, 0.3 * e) for e in (1, 2, 3)]


class Reader(HTMLParser):
    """Words of the page, its headings and pictures; fails on tags that do not match."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.pictures: list[tuple[str, Image.Image]] = []
        self.figures: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "figure":
            self.figures.append(given.get("class") or "")
        if tag == "img":
            content = base64.b64decode(given["src"].removeprefix("data:image/jpeg;base64,"))
            self.pictures.append((given["alt"], Image.open(io.BytesIO(content))))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"h1", "h2", "h3"}:
            self.headings.append(data)
        if "style" not in self.open and data.strip():
            self.words.append(data.strip())


def read(path: Path) -> Reader:
    return Reader(path.read_text())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, little_model: PlaceModel) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(
        folder / "out" / "report.html",
        reports={"sare <ind>": make_report(RECALL, model="little"), "triplet": make_report({1: 50.0, 5: 70.0})},
        histories={"a run": HISTORY},
        matches=make_matches(make_town(folder)),
        model=little_model,
        failures=2,
        command="sareloc report run --out report.html",
        progress=False,
    )


def test_every_part_is_there(page: Path) -> None:
    shown = read(page)
    assert shown.headings == [
        "Place recognition report", "Results", "Training", "Map of errors", "Failures",
        "1_of_1.png", "2_of_2.png", "Provenance",
    ]  # fmt: skip


def test_the_table_has_the_numbers(page: Path) -> None:
    words = read(page).words
    row = words.index("sare <ind>")
    assert words[row : row + 6] == ["sare <ind>", "61.2 %", "80.0 %", "90.0 %", "57.2 to 65.2 %", "3.5 m"]
    other = words.index("triplet")
    assert words[other + 3] == "–"  # it has no recall@10
    assert "mAP" not in words  # nobody has one


def test_what_reports_differ_in_stands_in_the_table(tmp_path: Path) -> None:
    other = make_report({1: 50.0}, dataset="village", queries=9)
    words = read(write_report(tmp_path / "r.html", reports={"a": make_report(RECALL), "b": other})).words
    row = words.index("b", words.index("recall@10"))
    assert words[row : row + 4] == ["b", "village test", "9", "50.0 %"]
    assert "dataset" in words


def test_failures_show_their_photos_borders_and_words(page: Path) -> None:
    shown = read(page)
    first = [(alt, image.getpixel((40, 30))) for alt, image in shown.pictures[:5]]
    assert [alt for alt, _ in first[:2]] == ["query", "heat map"]
    assert ["✓" in alt for alt, _ in first[2:]] == [False, True, False]
    for (_, pixel), place in zip([first[0], *first[2:]], [1, 3, 1, 0], strict=True):
        np.testing.assert_allclose(pixel, colour(place), atol=6)  # JPEG
    kinds = [kind for kind in shown.figures if kind]
    assert kinds == ["wrong", "right", "wrong", "wrong", "wrong", "wrong"]
    assert "wrong for 3 of 4 queries" in " ".join(shown.words)


def test_it_says_how_it_was_made(page: Path) -> None:
    words = read(page).words
    assert words[words.index("command") + 1] == "sareloc report run --out report.html"
    assert words[words.index("sareloc") + 1] == __version__
    assert re.match(r"torch \d", words[words.index("libraries") + 1])
    assert "cores" in words[words.index("machine") + 1]


def test_it_loads_nothing_and_runs_nothing(page: Path) -> None:
    text = page.read_text()
    assert "default-src 'none'" in text
    assert "<script" not in text
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://|@import|url\((?!#)", without_names)
    assert all(source.startswith(("data:", "#")) for source in re.findall(r'(?:src|href)="([^"]*)"', without_names))


def test_figures_take_the_pages_colours_and_share_no_ids(page: Path) -> None:
    text = page.read_text()
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 4  # recall, precision-recall, training, map
    assert all("currentColor" in svg and "#1f2328" not in svg for svg in drawings)
    assert "prefers-color-scheme: dark" in text
    assert not re.findall(r'id="(?:figure|axes|line2d|patch|text|xtick)_\d+"', text)


def test_the_words_of_figures_stay_words(page: Path) -> None:
    assert {"recall@N (% of queries)", "metres north", "epoch"} <= set(read(page).words)


def test_a_ranking_without_failures_says_so(tmp_path: Path, matches: QueryMatches) -> None:
    perfect = replace(matches, right=np.ones_like(matches.right), has_positive=np.ones(4, bool))
    shown = read(write_report(tmp_path / "r.html", matches=perfect, progress=False))
    assert "wrong for 0 of 4 queries" in " ".join(shown.words)
    assert not shown.pictures


def test_only_a_history_is_enough(tmp_path: Path) -> None:
    shown = read(write_report(tmp_path / "r.html", histories={"run": HISTORY}))
    assert shown.headings == ["Place recognition report", "Training", "Provenance"]


def test_the_confidence_and_its_operating_point(tmp_path: Path) -> None:
    curve = PrecisionRecallCurve.of_confidence(np.array([0.9, 0.8, 0.3]), [True, True, False])
    shown = read(write_report(tmp_path / "r.html", confidence_curves={"fixes": curve}, at=0.5))
    assert "Confidence" in shown.headings
    assert all(words in " ".join(shown.words) for words in ("confidence ≥ 0.5", "66.7 %"))


def test_the_steps_of_the_search(tmp_path: Path) -> None:
    ladder = {"descriptor": 71.25, "verified": 93.04}
    shown = read(write_report(tmp_path / "r.html", reports={"x": make_report(RECALL)}, ladder=ladder))
    assert "Steps of the search" in shown.headings
    words = " ".join(shown.words)
    assert words.index("71.2 %") < words.index("93.0 %")


def test_unreadable_photos_are_mentioned(tmp_path: Path) -> None:
    report = make_report(RECALL, failures={"database": (("a.jpg", "empty"),), "queries": ()})
    shown = read(write_report(tmp_path / "r.html", reports={"x": report}))
    assert "1 photo of the database" in " ".join(shown.words)


def test_a_run_has_one_colour_in_all_charts(tmp_path: Path) -> None:
    """Also if others are missing in a chart: the first report has no curve, and only the second has a history."""
    reports = {"a": make_report(RECALL, curve=()), "b": make_report({1: 50.0, 5: 70.0})}
    curve = PrecisionRecallCurve.of_report(reports["b"])
    text = write_report(
        tmp_path / "r.html", reports=reports, histories={"b": HISTORY}, confidence_curves={"c": curve}
    ).read_text()
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    shown = [[look.colour for look in SERIES_STYLES[:3] if f"stroke: {look.colour}" in chart] for chart in charts]
    first, second, third = (look.colour for look in SERIES_STYLES[:3])
    assert shown == [[first, second], [second], [second], [third]]


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="nothing to report"):
        write_report(tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
