"""Lower layers never import higher ones: the folder list reads as the pipeline."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "sareloc"
# Bottom to top; a module may import from its own package and from the layers before it.
LAYERS = [
    ["errors", "arrays", "wording"],
    ["files"],
    ["config_files"],
    ["geo"],
    ["photos", "losses"],
    ["loading", "datasets", "models"],
    ["export"],
    ["runtimes"],
    ["geometry"],
    ["encode", "index"],
    ["maps"],
    ["localize"],
    ["evaluation"],
    ["training"],
    ["adapt"],
    ["figures"],
    ["milvus", "cluster", "serve", "city"],
    ["cli"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
SIBLINGS = {"city", "serve", "milvus", "cluster"}
"""Optional packages: they import the core, and only the command line imports them."""


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sareloc."):
            found.add((node.module or "").split(".")[1])
        if isinstance(node, ast.Import):
            found |= {n.name.split(".")[1] for n in node.names if n.name.startswith("sareloc.")}
    return found


def test_tests_that_import_the_drawn_city_are_in_its_group() -> None:
    """So that `make test-core`, which leaves the group out, does not need the city."""
    tests = Path(__file__).parent
    outside = [path for path in tests.rglob("*.py") if tests / "city" not in path.parents]
    importing = [path for path in outside if any(_imports_city(node) for node in ast.parse(path.read_text()).body)]
    assert importing
    assert not [str(path) for path in importing if "pytest.mark.city" not in path.read_text()]


def _imports_city(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[:2] == ["sareloc", "city"]


def test_every_module_imports_only_its_own_package_and_lower_layers() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = package_of(path)
        if own in {"__init__", "__main__"}:
            continue
        for other in sorted(imported_packages(path) - {own}):
            if RANK[other] >= RANK[own]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {other}, which is not below {own}")
            elif other in SIBLINGS and own != "cli":
                wrong.append(f"{path.relative_to(PACKAGE)} imports the optional package {other}")
    assert not wrong, "\n".join(wrong)
