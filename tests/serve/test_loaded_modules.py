"""The service loads what it needs: no training, losses, figures or other optional packages."""

from __future__ import annotations

import subprocess
import sys

FOREIGN = (
    "sareloc.training",
    "sareloc.losses",
    "sareloc.figures",
    "sareloc.city",
    "sareloc.cluster",
    "sareloc.milvus",
    "matplotlib",
)
LOADED = """
import importlib, pkgutil, sys
import sareloc.serve
for module in pkgutil.iter_modules(sareloc.serve.__path__, "sareloc.serve."):
    importlib.import_module(module.name)
print(*sys.modules)
"""


def test_the_modules_of_the_service_load_no_training_losses_or_figures() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "sareloc.serve.app" in loaded
    assert [name for name in loaded if name.startswith(FOREIGN)] == []
