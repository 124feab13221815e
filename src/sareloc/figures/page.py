"""The pieces of a self-contained page: its frame and style, tables, figures that follow the reader's light or dark."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sareloc.figures.style import FAINT, INK, svg_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
