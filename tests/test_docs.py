"""README and documentation name files, options, Python names and default models as they are."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.maps.small_town import write_photo, write_town

from sareloc.cli import app
from sareloc.encode import Descriptors
from sareloc.models.checkpoint import STANDARD

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "GLOSSARY.md", "benchmarks/README.md", "research/README.md")
    ),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "changelog.md"),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
CODE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)")
NOT_OURS = r"(?!` of [A-Z])"
"""A file of another project is followed by its name: `eval.py` of SALAD."""
FOLDERS = (".ci", ".github", "benchmarks", "docs", "examples", "research", "sareloc", "src", "tests")
PATH = re.compile(
    rf"(?<![\w/.:-])((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*[\w*/])(?![\w./*-]*[\w*/]){NOT_OURS}"
)
SCRIPT = re.compile(rf"(?<![\w/.*-])([a-z_]\w*\.py)\b{NOT_OURS}")
MODULE = re.compile(r"-m ((?:benchmarks|examples|research|tests)(?:\.[a-z_]\w*)+)")
NAME = re.compile(r"`(sareloc(?:\.[A-Za-z]\w*)+)`")
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


def own_text(page: Path) -> str:
    """The lines of a page, without those that name files of another project at a commit (owner/name@0a1b2c3)."""
    return "\n".join(line for line in page.read_text().splitlines() if not re.search(r"/\S+@[0-9a-f]{7}", line))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_paths_exist(page: Path) -> None:
    """Also patterns, as `tests/*/test_x.py`; names in capitals stand for others, as `benchmarks/SCRIPT.py`."""
    paths = [path for path in PATH.findall(own_text(page)) if not re.search(r"\b[A-Z]{3,}\.", path)]
    files = [f"src/{path}" if path.startswith("sareloc/") else path for path in paths]
    assert [path for path in files if not any(ROOT.glob(path))] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_scripts_and_modules_exist(page: Path) -> None:
    text = own_text(page)
    names = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")} | {"hubconf.py"}
    assert set(SCRIPT.findall(text)) - names == set()
    assert [name for name in MODULE.findall(text) if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    words = name.split(".")
    for depth in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:depth]))
        except ModuleNotFoundError:
            continue
        for word in words[depth:]:
            found = getattr(found, word, None)
        return found is not None
    return False


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_names_exist(page: Path) -> None:
    assert [name for name in NAME.findall(page.read_text()) if not resolves(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_default_model_is_the_one_that_commands_take(page: Path) -> None:
    """Each sentence about a command without `--model`, and each comment behind such a command."""
    text = page.read_text()
    sentences = re.findall(r"[^.;:]*without `--model`[^.;:]*", " ".join(text.split()))
    named = [sentence for sentence in sentences if re.search(r"`(?:default|fast)`", sentence)]
    assert [s for s in named if f"`{STANDARD}`" not in s] == []
    comments = re.findall(
        r"^ *sareloc (?:map build|evaluate|figure)(?!.*--model)[^#\n]*# *(.*\b(?:default|fast)\b.*)$",
        text,
        re.MULTILINE,
    )
    assert [comment for comment in comments if comment != STANDARD] == []


def test_ratios_of_the_faq_are_those_of_the_benchmarks() -> None:
    measured = re.findall(r"\| \**([\d.]+)\** (?=\|)", (ROOT / "docs" / "performance.md").read_text())
    ratios = re.findall(r"([\d.]+) times", (ROOT / "docs" / "how-to" / "faq.md").read_text())
    assert ratios
    assert set(ratios) <= set(measured)


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


def test_python_in_five_minutes_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_town(tmp_path / "photos", 4)
    write_photo(tmp_path / "query.jpg", 2, tagged=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = [code for language, code in CODE.findall((ROOT / "docs/tutorials/python.md").read_text())]
    assert len(blocks) > 8
    for code in blocks:
        exec(code, names)
    (described,) = [value for value in names.values() if isinstance(value, Descriptors)]
    assert np.linalg.norm(described.vectors[1:] - described.vectors[0], axis=1).argmin() == 2


def test_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
    assert {
        name for name in named if not ((ROOT / "src" / "sareloc" / name).exists() or (ROOT / name).exists())
    } == set()
    assert len(named) > 20


def test_every_entry_of_the_reference_is_defined_in_its_module() -> None:
    """mkdocstrings reads the source: a name that is only assigned in a package is not found, and ends the build."""
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    modules = hooks["PUBLIC"].findall(pages)
    assert "sareloc.photos" in modules
    paths = [path for module in modules for path in hooks["entries"](importlib.import_module(module)).split()[1::2]]
    assert [path for path in paths if path.rpartition(".")[2] not in defined_in(path.rpartition(".")[0])] == []


@cache
def defined_in(module: str) -> set[str | None]:
    """The names that a module's source defines or uses."""
    tree = ast.parse(Path(importlib.import_module(module).__file__ or "").read_text())
    names = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    return {getattr(node, "name", None) for node in tree.body} | names
