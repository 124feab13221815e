"""Lower layers never import higher ones: the file list reads as the pipeline."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "sareloc"
# Bottom to top; a module may import from its own layer and from those before it.
LAYERS = [
    ["errors"],
    ["files", "devices"],
    ["geo", "metrics"],
    ["photos", "losses"],
    ["loading", "datasets", "models"],
    ["checkpoint", "mining", "export", "runtimes"],
    ["descriptors", "engines"],
    ["place_map", "evaluation"],
    ["localize", "training"],
    ["figures"],
    ["cli", "web"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sareloc."):
            found.add((node.module or "").split(".")[1])
        if isinstance(node, ast.Import):
            found |= {n.name.split(".")[1] for n in node.names if n.name.startswith("sareloc.")}
    return found


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if room(p) not in {"__init__", "__main__"}]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_its_own_layer_and_lower_ones(path: Path) -> None:
    assert room(path) in RANK, f"{room(path)} has no layer yet: add it to LAYERS"
    higher = {r for r in imported_rooms(path) if RANK[r] > RANK[room(path)]}
    assert not higher, f"{path.name} (layer {room(path)}) imports from above: {sorted(higher)}"
