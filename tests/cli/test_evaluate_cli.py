"""`sareloc evaluate`, from its arguments to what it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts import App
from PIL import Image

from sareloc.cli import main
from sareloc.cli.evaluate import evaluate_command
from sareloc.datasets import choose_split
from sareloc.errors import ArgumentError, WeightsError
from sareloc.models import make_model, save_checkpoint


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


@pytest.mark.parametrize("form", [[], ["--json"], ["--store", "store"]])
def test_a_name_that_is_not_utf8_stops_nothing(
    form: list[str], town: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(town.parent)
    for path in (town / "images" / "test").rglob("*3@*.png"):
        path.rename(path.with_name(path.name.replace("3@", os.fsdecode(b"3\xe9@"))))
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(town), "--model", "model", "--workers", "0", "--device", "cpu", *form])
    assert ended.value.code in (0, None)
    assert re.search(r"queries3\\udce9@", capsys.readouterr().out)


def test_bad_rows_of_a_table_are_reported(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [path.name for path in sorted((town / "images" / "test" / "database").iterdir())]
    for role in ("database", "queries"):
        (town / "images" / "test" / role / "plain.png").write_bytes(b"")  # so that not all names say a position
    rows = [f"{name},{latitude},-80" for name, latitude in zip(names, ("40", "95", "40", "north"), strict=True)]
    (town / "images" / "test" / "database" / "geotags.csv").write_text("\n".join(["file,lat,lon", *rows]))
    run(town, "--model", town.parent / "model", "--workers", "0")
    told = capsys.readouterr().err
    assert "line 3" in told
    assert "line 5" in told


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


@pytest.mark.parametrize(
    ("splits", "chosen"), [(("test", "val"), "test"), (("train", "val"), "val"), (("b", "a"), "a")]
)
def test_the_split_that_exists_is_evaluated_and_named(
    splits: tuple[str, str], chosen: str, town: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = town / "images"
    shutil.copytree(images / "test", images / splits[1])
    (images / "test").rename(images / splits[0])
    run(town, "--model", town.parent / "model", "--json", "--workers", "0")
    told = capsys.readouterr()
    assert json.loads(told.out)["split"] == chosen
    assert (f"no test split: its {chosen} split" in told.err) == (chosen != "test")
    with pytest.raises(ArgumentError, match=r"'test2'.*known are"):
        run(town, "--model", town.parent / "model", "--split", "test2")


def test_the_splits_of_a_table(tmp_path: Path) -> None:
    table = tmp_path / "meta.csv"
    table.write_text("file,lat,lon,split\na.jpg,1,2,train\nb.jpg,1,2,val\nc.jpg,1,2,\n")
    assert choose_split(table) == choose_split(tmp_path) == "val"
    table.write_text("file,lat,lon\na.jpg,1,2\n")
    assert choose_split(table) == "all"
    assert choose_split("tokyoTM") == "val"
