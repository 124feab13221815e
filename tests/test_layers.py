"""Lower layers never import higher ones: the folder list reads as the pipeline."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "sareloc"
# Bottom to top; a module may import from its own package and from the layers before it.
LAYERS = [
    ["errors", "arrays"],
    ["files", "config_files"],
    ["geo"],
    ["photos", "losses"],
    ["loading", "datasets", "models"],
    ["export"],
    ["geometry"],
    ["describe", "index"],
    ["maps"],
    ["localize"],
    ["evaluation"],
    ["training", "city"],
    ["figures"],
    ["milvus", "cluster", "serve"],
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
