"""A public function of more than two parameters lists them in its docstring, below `Args:`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
MODULES = [
    path
    for pattern in ("*.py", "*/__init__.py", "cluster/*.py")
    for path in sorted((SOURCE / "sareloc").glob(pattern))
    if path.parent.name != "cli"
]
"""Packages have the names of their `__all__`; where there is none, every public name of a module counts. The command
line is left out: its docstrings are the help."""
MOST = 2
"""Parameters that need no list."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Public = tuple[str, Function, str]
"""Where it is, the function, and the docstring that lists its parameters."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
    names = [node.name for node in tree.body if isinstance(node, Function | ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def definition(path: Path, name: str) -> tuple[Path, Function | ast.ClassDef] | None:
    """The file and the node that define a name, which may be imported; None for a constant."""
    tree = parsed(path)
    found = [node for node in tree.body if isinstance(node, Function | ast.ClassDef) and node.name == name]
    if found:
        return path, found[-1]  # after its overloads
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sareloc"):
            sources = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
            if sources:
                return definition(file_of(node.module or ""), sources[0])
    return None


def functions(node: Function | ast.ClassDef, place: str) -> Iterator[tuple[str, Public]]:
    """A function, or the constructor (in the class or in itself documented) and the public methods of a class."""
    if isinstance(node, Function):
        yield node.name, (f"{place}:{node.lineno}", node, ast.get_docstring(node) or "")
        return
    for one in node.body:
        if isinstance(one, Function) and (one.name == "__init__" or not one.name.startswith("_")):
            text = ast.get_docstring(one) or ""
            if one.name == "__init__":
                text = f"{text}\n\n{ast.get_docstring(node) or ''}"
            name = node.name if one.name == "__init__" else f"{node.name}.{one.name}"
            yield name, (f"{place}:{one.lineno}", one, text)


@cache
def public_functions() -> dict[str, Public]:
    found = [definition(module, name) for module in MODULES for name in exported(parsed(module))]
    return dict(pair for one in found if one for pair in functions(one[1], one[0].relative_to(SOURCE).as_posix()))


def parameters(function: Function) -> list[str]:
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [one.arg for one in given if one.arg not in {"self", "cls"}]


def listed(docstring: str) -> list[str]:
    """The names in the list below the line `Args:`."""
    block = re.search(r"^Args:\n((?:    .*\n?|\n(?=    ))+)", docstring, re.MULTILINE)
    return re.findall(r"^    \*{0,2}(\w+): \S", block[1], re.MULTILINE) if block else []


def documented(name: str) -> list[str]:
    """The parameters that a docstring lists; if it starts with "See `X`" or "As `X`", also those listed there."""
    _, _, text = public_functions()[name]
    of, _, method = name.rpartition(".")
    other = re.match(r"(?:See|As) `(\w+)`", text)
    elsewhere = [f"{other[1]}.{method}", f"{of}.{other[1]}", other[1]] if other else []
    return [*listed(text), *(one for found in elsewhere if found in public_functions() for one in documented(found))]


def test_parameters_of_public_functions_are_listed() -> None:
    missing = {}
    for name, (place, function, _) in public_functions().items():
        names = parameters(function)
        lost = [one for one in names if one not in documented(name)]
        if len(names) > MOST and lost:
            missing[f"{place} {name}"] = lost
    assert missing == {}


def test_listed_parameters_exist() -> None:
    wrong = {}
    for name, (place, function, text) in public_functions().items():
        rest = [one.arg for one in (function.args.vararg, function.args.kwarg) if one]
        if unknown := set(listed(text)) - {*parameters(function), *rest}:
            wrong[f"{place} {name}"] = unknown
    assert wrong == {}


def test_many_functions_are_read() -> None:
    names = public_functions()
    assert {"Localizer", "Localizes.localize_many", "build_map", "look_up", "sare_ind", "run_packets"} <= set(names)
    assert sum(bool(documented(name)) for name in names) > 150


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("Meaning.", []),
        ("Meaning: Args: none.", []),
        (
            "Meaning.\n\nArgs:\n    a: (N,) first;\n        b: not a parameter.\n    c: last.\n\nReturns:\n    d: no.",
            ["a", "c"],
        ),
        ("Meaning.\n\nArgs:\n    a: first.\n\n    **rest: others.", ["a", "rest"]),
    ],
)
def test_lists_are_read(docstring: str, names: list[str]) -> None:
    assert listed(docstring) == names
