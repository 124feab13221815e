"""`torch.hub.load` on the repository gives a model, also where sareloc is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sareloc.errors import WeightsError
from sareloc.models import make_model, save_checkpoint

ROOT = Path(__file__).resolve().parents[1]


def test_torch_hub_gives_a_model_by_its_checkpoint(tmp_path: Path) -> None:
    model = make_model("alexnet", "gem", size=(64, 64))
    save_checkpoint(model, tmp_path / "model.safetensors")
    # the installed package is hidden: only the repository's own source is left to be found
    code = f"""
import importlib.util, sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in getattr(f, "__name__", "")]
sys.path = [p for p in sys.path if not p.endswith("src")]
assert importlib.util.find_spec("sareloc") is None
import torch
model = torch.hub.load({str(ROOT)!r}, "sareloc", source="local", name_or_path={str(tmp_path / "model.safetensors")!r})
print(model.fingerprint(), model.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{model.fingerprint()} torch.Size([1, 256])"], done.stderr


def test_a_name_that_no_model_has_is_an_error_of_ours() -> None:
    with pytest.raises(WeightsError, match="no model 'no-such-model'"):
        torch.hub.load(str(ROOT), "sareloc", "no-such-model", source="local")
