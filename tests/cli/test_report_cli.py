"""`sareloc report`, from a run, a report and a dataset to a page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts import App
from PIL import Image
from tests.figures.little_town import make_report

from sareloc.cli.report import report_command
from sareloc.errors import ArgumentError
from sareloc.maps import MapConfig, build_map
from sareloc.models import load_model, make_model, save_checkpoint
from sareloc.training import EpochRecord, RunFolder, RunState

pytest.importorskip("matplotlib")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished training run."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.save(RunState({}, (EpochRecord(1, 0.5, 0.001, 4, 48, 1.0, 0.1, 0.2, 0.3),)), {})
    model = make_model("alexnet", "avg", size=96, name="little", rng=torch.Generator().manual_seed(1))
    save_checkpoint(model, folder.model)
    return folder.path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three places that look alike or not, in the CSV format; the last query's place is drawn as another's."""
    lines = ["file,role,x_m,y_m"]
    for role, looks in (("database", [0, 1, 2]), ("query", [0, 1, 1])):
        for place, look in enumerate(looks):
            blocks = np.kron(np.random.default_rng(look).integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1)))
            Image.fromarray(blocks.astype(np.uint8)).save(tmp_path / f"{role}{place}.png")
            lines.append(f"{role}{place}.png,{role},{100 * place},0")
    path = tmp_path / "places.csv"
    path.write_text("\n".join(lines))
    return path


def run(*words: str | Path) -> None:
    app = App(name="sareloc")
    app.command(report_command, name="report")
    app(["report", *map(str, words)], result_action="return_value", exit_on_error=False)


def test_a_run_its_evaluation_and_its_failures(run_folder: Path, table: Path, tmp_path: Path) -> None:
    (tmp_path / "older.json").write_text(json.dumps(make_report({1: 12.3, 5: 45.6}).to_json()))
    out = tmp_path / "report.html"
    run(run_folder, tmp_path / "older.json", "--dataset", table, "--out", out, "--workers", "0", "--title", "Look here")
    page = out.read_text()
    assert "<h1>Look here</h1>" in page
    assert "66.7 %" in page  # two of three are right
    assert "12.3 %" in page  # of the report that was given
    assert "Loss and validation recall by epoch" in page
    assert "<h3>query2.png</h3>" in page
    assert "1 ✗ 100 m off" in page
    assert "heat map" in page
    assert "sareloc-" not in "".join(p.name for p in tmp_path.iterdir())  # the scratch folder is gone


@pytest.fixture
def mapped(run_folder: Path, tmp_path: Path) -> list[str | Path]:
    """A town of three places in the field's format, and a map of it: what to ask a report about."""
    photos = tmp_path / "town" / "images" / "test"
    for role in ("database", "queries"):
        (photos / role).mkdir(parents=True)
        for place in range(3):
            blocks = np.kron(np.random.default_rng(place).integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1)))
            name = f"@{500000 + 100 * place:.2f}@4477000.00@17@T@40.44@-80.0@{role}{place}@@0@@@@20150101@@.png"
            Image.fromarray(blocks.astype(np.uint8)).save(photos / role / name)
    build_map(
        photos / "database",
        tmp_path / "city.gpkg",
        load_model(run_folder / "model.safetensors"),
        config=MapConfig(keypoints=0, progress=False),
    )
    return [run_folder, "--dataset", tmp_path / "town", "--workers", "0", "--map", tmp_path / "city.gpkg"]


def test_with_a_map_the_page_says_how_sure_its_fixes_are(mapped: list[str | Path], tmp_path: Path) -> None:
    run(*mapped, "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "<h2>Confidence</h2>" in page
    assert ">circled: confidence ≥ 0.5<" in page
    assert ">city: precision 100.0 %, recall 100.0 %<" in page


def test_a_map_that_is_never_sure_still_has_its_page(
    mapped: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sareloc.cli.report.MIN_CONFIDENCE", 1.01)
    run(*mapped, "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert ">city<" in page
    assert "circled: confidence" not in page
    assert "correct: true position (3 of 3)" in page  # by first matches


def test_a_map_needs_photos_to_be_asked_with(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--dataset"):
        run(run_folder, "--map", tmp_path / "city.gpkg", "--out", tmp_path / "r.html")


def test_a_report_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text(json.dumps(make_report({1: 12.3, 5: 45.6}).to_json()))
    run(tmp_path / "r.json", "--out", tmp_path / "r.html")
    assert "45.6 %" in (tmp_path / "r.html").read_text()
    assert capsys.readouterr().out.strip() == str(tmp_path / "r.html")


def test_a_dataset_without_a_model_says_what_to_do(tmp_path: Path, table: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(make_report({1: 12.3}).to_json()))
    with pytest.raises(ArgumentError, match="no run was given: give one with --model"):
        run(tmp_path / "r.json", "--dataset", table, "--out", tmp_path / "r.html")


def test_a_run_that_has_not_finished_says_so(run_folder: Path, table: Path, tmp_path: Path) -> None:
    (run_folder / "model.safetensors").unlink()
    with pytest.raises(ArgumentError, match=r"no model\.safetensors in .*run: give one with --model"):
        run(run_folder, "--dataset", table, "--out", tmp_path / "r.html")


def test_what_is_neither_run_nor_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"nothing\.json cannot be read as a report"):
        run(tmp_path / "nothing.json", "--out", tmp_path / "r.html")
    with pytest.raises(ArgumentError, match="cannot be read as the history"):
        run(tmp_path, "--out", tmp_path / "r.html")
