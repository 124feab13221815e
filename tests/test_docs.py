"""README and documentation name files, options and Python names that exist."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from sareloc.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "GLOSSARY.md", "benchmarks/README.md", "research/README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "changelog.md"),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
CODE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)")
COMMAND = re.compile(r"(?:^|`|\$ |-m |^ {4})sareloc ([a-z][^`#|>\n]*)", re.MULTILINE)


@cache
def options(*command: str) -> set[str]:
    """The options of a command, such as ("map", "build")."""
    found = app
    for word in command:
        found = found[word]
    return {name for argument in found.assemble_argument_collection() for name in argument.names}


def words_of(text: str) -> list[tuple[tuple[str, ...], list[str]]]:
    """Every command line in a text: its command, and the options that follow."""
    lines = []
    for match in COMMAND.finditer(text.replace("\\\n", " ")):
        words = match[1].split()
        depth = 2 if words[0] in {"map", "data", "model", "figure"} and len(words) > 1 else 1
        lines.append((tuple(words[:depth]), [w.partition("=")[0] for w in words[depth:] if w.startswith("--")]))
    return lines


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_files(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if not link.startswith(("http:", "https:"))]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_options_exist(page: Path) -> None:
    known = {"--help", "--version"}
    wrong = []
    for command, given in words_of(page.read_text()):
        if "|" in command[-1] or command[-1].isupper() or command[-1] in {"COMMAND", "COMMANDS"}:
            continue
        wrong += [(*command, option) for option in given if option not in options(*command) | known]
    assert wrong == []


def test_python_imports_resolve() -> None:
    wrong = []
    for page in PAGES:
        for language, code in CODE.findall(page.read_text()):
            if language != "python":
                continue
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sareloc"):
                    module = importlib.import_module(node.module or "")
                    wrong += [f"{page.name}: {node.module}.{n.name}" for n in node.names if not hasattr(module, n.name)]
    assert wrong == []


def test_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
    assert {
        name for name in named if not ((ROOT / "src" / "sareloc" / name).exists() or (ROOT / name).exists())
    } == set()
    assert len(named) > 20
