"""MkDocs hooks: the reference pages are generated from the code each time the documentation is built.

A page that holds the line `[commands]` gets every command of the command line with its options, one with the line
`[training options]` the TOML file of `sareloc train --write-config`; a line `[public names of sareloc.losses]` becomes
one mkdocstrings entry for each public name of that module, and `[names of sareloc]` a list of links to them.
"""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

COMMANDS, ROOT = "[commands]", "[names of sareloc]"
WORD = re.compile(r"<code>(-?-?[^<\s-][^<\s]{0,23}|--[^<]{1,22})</code>")
"""Short inline code, such as an option with its value."""
PUBLIC = re.compile(r"^\[public names of ([\w.]+)\]$", re.MULTILINE)


documented: set[str] = set()
"""The names that have an entry already."""


def on_pre_build(**_: Any) -> None:
    """Start a build."""
    documented.clear()


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in a reference page; other pages stay as they are."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    for stage, text in option_files().items():
        markdown = markdown.replace(f"[{stage} options]", f"```toml\n{text}```")
    if ROOT in markdown:
        markdown = markdown.replace(ROOT, root_names())
    return PUBLIC.sub(lambda found: entries(importlib.import_module(found[1])), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep short inline code on one line: browsers break an option after its hyphens."""
    return WORD.sub(r'<code class="word">\1</code>', html)


def commands() -> str:
    """Every command with its options, as the command line itself prints them."""
    from sareloc.cli import app

    text: str = app.generate_docs(output_format="markdown", heading_level=1)
    _, first, rest = text.partition("\n## sareloc ")  # before it: a table of contents, which the page has in its margin
    return first + rest


def option_files() -> dict[str, str]:
    """Every option of each stage with its default and meaning, as TOML."""
    from sareloc.config_files import options_text
    from sareloc.maps import MapConfig
    from sareloc.serve import ServeConfig
    from sareloc.training import TrainingConfig, config_text

    return {
        "training": config_text(TrainingConfig()),
        "map": options_text(MapConfig(), "Options of sareloc map build PHOTOS --out MAP --config THIS_FILE"),
        "service": options_text(ServeConfig(), "Options of sareloc serve MAP --config THIS_FILE"),
    }


def root_names() -> str:
    """A table of the names that `sareloc` itself offers, each a link to its entry."""
    import sareloc

    rows = ["| name | meaning |", "|---|---|"]
    for name in sareloc.__all__:
        value = getattr(sareloc, name)
        if callable(value):
            meaning = (value.__doc__ or "").split("\n\n")[0].replace("\n", " ")
            rows.append(f"| [`{name}`][{value.__module__}.{name}] | {meaning} |")
    return "\n".join(rows)


def entries(module: ModuleType) -> str:
    """One mkdocstrings entry for each public function or class that the module or a module below it defines.

    A name that is re-exported from elsewhere has its entry on the page of the package that defines it, and one entry.
    """
    inside = f"{module.__name__}."
    found = []
    for name in getattr(module, "__all__", vars(module)):
        value = getattr(module, name)
        path = f"{getattr(value, '__module__', '')}.{name}"
        if callable(value) and not name.startswith("_") and path.startswith(inside) and path not in documented:
            documented.add(path)
            found.append(f"::: {path}")
    return "\n\n".join(found)
