"""MkDocs hooks: the reference pages are generated from the code each time the documentation is built.

A page that holds the line `[commands]` gets every command of the command line with its options; a line
`[public names of sareloc.losses]` becomes one mkdocstrings entry for each name in that module's `__all__`.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

COMMANDS = "[commands]"
PUBLIC = re.compile(r"^\[public names of ([\w.]+)\]$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in a reference page; other pages stay as they are."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    return PUBLIC.sub(lambda found: public_names(found[1]), markdown)


def commands() -> str:
    """Every command with its options, as the command line itself prints them."""
    from sareloc.cli import app

    text: str = app.generate_docs(output_format="markdown", heading_level=1)
    _, first, rest = text.partition("\n## sareloc ")  # before it: a table of contents, which the page has in its margin
    return first + rest


def public_names(module: str) -> str:
    """One entry for each public name of a module, read where it is defined."""
    names: list[str] = importlib.import_module(module).__all__
    return "\n\n".join(f"::: {module}.{name}" for name in names)
