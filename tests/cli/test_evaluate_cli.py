"""`sareloc evaluate`, from its arguments to what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts import App
from PIL import Image

from sareloc.checkpoint import save_checkpoint
from sareloc.cli.evaluate import evaluate_command
from sareloc.errors import WeightsError
from sareloc.models.place_model import make_model


@pytest.fixture
def town(tmp_path: Path) -> Path:
    """A folder in the field's format: four places in the database, three of them asked for, one photo damaged."""
    rng = np.random.default_rng(0)
    views = [np.kron(rng.integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1))).astype(np.uint8) for _ in range(4)]
    for role, places in (("database", [0, 1, 2, 3]), ("queries", [0, 2, 3])):
        folder = tmp_path / "town" / "images" / "test" / role
        folder.mkdir(parents=True)
        for place in places:
            name = f"@{500000 + 100 * place:.2f}@4477000.00@17@T@40.44@-80.0@{role}{place}@@0@@@@20150101@@.png"
            Image.fromarray(views[place]).save(folder / name)
    damaged = next((tmp_path / "town" / "images" / "test" / "queries").glob("*queries3*"))
    damaged.write_bytes(damaged.read_bytes()[:200])
    model = make_model("alexnet", "avg", size=96, name="little", rng=torch.Generator().manual_seed(1))
    save_checkpoint(model, tmp_path / "model")
    return tmp_path / "town"


def run(*words: str | Path) -> None:
    app = App(name="sareloc")
    app.command(evaluate_command, name="evaluate")
    app(["evaluate", *map(str, words)], result_action="return_value", exit_on_error=False)


def test_json_is_one_object(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(town, "--model", town.parent / "model", "--json", "--workers", "0")
    report = json.loads(capsys.readouterr().out)
    assert list(report["recall"]) == ["1", "5", "10", "20"]
    assert report["recall"]["1"] == pytest.approx(200 / 3)
    assert (report["model"], report["database"], report["queries"], report["median_error_m"]) == ("little", 4, 3, 0)
    assert (report["split"], report["protocol"]) == ("test", "radius")
    ((photo, reason),) = report["failures"]["queries"]
    assert "queries3" in photo
    assert reason


def test_the_table_says_the_same_to_people(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(town, "--model", town.parent / "model", "--workers", "0", "--store", town.parent / "store")
    lines = capsys.readouterr().out.splitlines()
    assert any("4 database photos, 3 queries" in line for line in lines)
    assert any(line.split() == ["recall@1", "66.67", "%"] for line in lines)
    assert any("within 25 m" in line and "protocol radius" in line for line in lines)
    assert any(line.startswith("queries: missed") and "queries3" in line for line in lines)
    assert (town.parent / "store" / "manifest.json").is_file()


def test_an_unknown_model_is_named(town: Path) -> None:
    with pytest.raises(WeightsError, match="no model 'nobody'"):
        run(town, "--model", "nobody")


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    shown = capsys.readouterr().out
    for option in ("--model", "--root", "--split", "--dim", "--protocol", "--json", "--store", "--boxes"):
        assert option in shown
    assert "place-id" in shown
    assert "--no-json" not in shown
