"""`--device`: every command that runs a model takes it, names all devices, and explains one that is not there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cyclopts import App
from tests.figures.little_town import make_report
from tests.localize.street import build_street, street_model, write_queries

from sareloc import cli
from sareloc.errors import ArgumentError
from sareloc.models import PACKAGED, RUNTIMES, load_model, save_checkpoint
from sareloc.models.checkpoint import STANDARD
from sareloc.models.preprocess import DEVICES, find_device

NAMES = ("cpu", "cuda", "cuda:N", "mps", "openvino", "openvino-int8")

WITHOUT_DEVICE = (("train",), ("export",), ("model", "info"))  # all GPUs, given by torchrun; no model runs


def leaves(app: App, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command, by its words."""
    for name in app:
        if not name.startswith("-"):
            inner = app[name]
            below = list(leaves(inner, *path, name))
            yield from below or [(*path, name)]


def shown(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """A command's help without the boxes that it is drawn in."""
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main([*command, "--help"])
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_every_command_that_runs_a_model_takes_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    asked = []
    for command in leaves(cli.app):
        text = shown(command, capsys)
        if " --model" in text and command not in WITHOUT_DEVICE:
            asked.append(" ".join(command))
            assert " --device" in text, command
            for name in NAMES:
                assert name in text, (command, name)
    assert {"figure confidence", "figure map", "figure heatmap", "report", "serve", "geotag", "map build"} <= {*asked}


def test_every_name_is_one_that_load_model_takes() -> None:
    assert {*DEVICES} == {*NAMES}
    assert RUNTIMES.keys() == {"openvino", "openvino-int8"}


def test_an_unknown_device_lists_the_known_ones() -> None:
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "", "meta"):
        with pytest.raises(ArgumentError, match="unknown device") as unknown:
            find_device(name)
        for known in NAMES:
            assert known in str(unknown.value)


def test_an_absent_device_says_which_are_there() -> None:
    with pytest.raises(ArgumentError, match=r"no device cuda:99 .*cpu"):
        find_device("cuda:99")
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match=r"no device cuda .*cpu"):
            find_device("cuda")
    if not torch.backends.mps.is_available():
        with pytest.raises(ArgumentError, match=r"no device mps .*cpu"):
            find_device("mps")


def test_the_default_is_the_gpu_if_there_is_one(tmp_path: Path) -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert find_device(None).type == expected
    save_checkpoint(street_model(), tmp_path / "model")
    assert load_model(tmp_path / "model", None).device.type == expected
    assert load_model(tmp_path / "model").device.type == "cpu"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    (query,) = write_queries(folder, [0])
    query.rename(folder / "query.jpg")
    for part in ("few", "set/images/test/queries", "set/images/test/database"):
        write_queries(folder / part, range(8), tagged=True)
    (folder / "report.json").write_text(json.dumps(make_report({1: 60.0}).to_json()))
    return folder


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
@pytest.mark.parametrize(
    "command",
    [
        "map build photos --out new.gpkg",
        "map add street.gpkg query.jpg",
        "map upgrade street.gpkg",
        "localize street.gpkg query.jpg",
        "geotag query.jpg --map street.gpkg",
        "evaluate set",
        "data draw drawn",
        "figure heatmap query.jpg --out h.png",
        "figure map set --map street.gpkg --out m.png",
        "figure confidence set --map street.gpkg --out c.png",
        "report report.json --dataset set --out r.html",
        "serve street.gpkg --port 0",
    ],
)
def test_commands_refuse_such_a_device_in_one_sentence(
    command: str, device: str, town: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.startswith("serve"):
        pytest.importorskip("fastapi")
    monkeypatch.chdir(town)
    before = sorted(town.rglob("*"))
    model = [] if command.startswith(("data", "map upgrade")) else ["--model", "model.safetensors"]
    with pytest.raises(SystemExit) as end:
        cli.main([*command.split(), *model, "--device", device])
    assert end.value.code == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert f"device {device}" in told.replace("'", "")
    assert "cpu" in told
    assert sorted(town.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        "map build few --out chosen.gpkg --device cpu",
        "evaluate set --device cpu --workers 0",
        "figure heatmap query.jpg --size 96 --out chosen.png --device cpu",
        "figure embedding set --out chosen.png --device cpu",
        "model info",
        "export --onnx chosen.onnx",
    ],
)
def test_commands_choose_the_packaged_model_alike(
    command: str, town: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the standard one is a file here."""
    if command.startswith("figure"):
        pytest.importorskip("matplotlib")
        pytest.importorskip("openTSNE")
    if command.startswith("export"):
        pytest.importorskip("onnx")
    shutil.copytree(town, tmp_path / "town")
    monkeypatch.chdir(tmp_path / "town")
    chosen = STANDARD
    for name in PACKAGED:
        monkeypatch.setitem(PACKAGED, name, Path("model.safetensors" if name == chosen else "absent.safetensors"))
    with pytest.raises(SystemExit) as end:
        cli.main(command.split())
    assert end.value.code in (0, None)


@pytest.mark.parametrize(
    "command", ["map build", "evaluate", "figure heatmap", "figure embedding", "model info", "export"]
)
def test_help_names_the_packaged_model_that_is_chosen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(rf"Default: [^.]*\b{STANDARD}\b", shown(tuple(command.split()), capsys))
