"""A full or read-only disk, and other trouble of the machine: one sentence that names the cause, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import make_read_only
from tests.figures.little_town import make_report
from tests.localize.street import build_street, street_model, write_queries, write_street

from sareloc import cli
from sareloc.models import save_checkpoint
from sareloc.photos import decode, read_geotag

QUERIES, PLACES = 10, 10
"""The photos to ask about; the places of the datasets. The files that are made of them do not fit on the disk."""
FULL = "no space left on the device"
OPTIONAL = {"export": "onnx", "report": "matplotlib"}
"""Modules of extras that commands need."""
full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map, its model, photos to ask about, and a dataset to train on."""
    folder = tmp_path_factory.mktemp("town")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    write_queries(folder / "queries", range(QUERIES))
    for split in ("train", "val"):
        write_street(folder / "set" / "images" / split / "database", PLACES)
        write_queries(folder / "set" / "images" / split / "queries", range(PLACES), tagged=True)
    write_street(folder / "few", PLACES)
    (folder / "train.toml").write_text("height = 64\nwidth = 96\n")
    (folder / "report.json").write_text(json.dumps(make_report({1: 60.0, 5: 80.0}).to_json()))
    return folder


def commands(town: Path, out: Path) -> dict[str, list[str | Path]]:
    """A call of each command that writes, so that it writes to `out`."""
    model = ["--model", town / "model.safetensors"]
    loading = ["--workers", "0", "--device", "cpu"]
    asking = ["--map", town / "street.gpkg", "--min-confidence", "0", *model, *loading]
    tiny = ["--config", town / "train.toml", "--epochs", "1", "--workers", "0"]
    return {
        "map build": ["map", "build", town / "few", "--out", out / "city.gpkg", *model, *loading],
        "geotag": ["geotag", town / "queries", "--out", out / "copies", *asking],
        "geotag csv": ["geotag", town / "queries", "--out", out / "table", "--sidecar", "csv", *asking],
        "train": ["train", town / "set", "--out", out / "run", *model, *tiny],
        "export": ["export", town / "model.safetensors", "--onnx", out / "model.onnx"],
        "data draw": ["data", "draw", out / "drawn", "--split", "test", "--photo", "64x96", "--device", "cpu"],
        "evaluate": [
            "evaluate", town / "set", "--split", "val", "--store", out / "descriptors", *model, *loading,
        ],
        "report": ["report", town / "report.json", "--out", out / "report.html"],
    }  # fmt: skip


def fail(words: list[str | Path], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a command that must end with exit status 1; the lines of its standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main([*map(str, words)])
    told = capsys.readouterr()
    assert end.value.code == 1, told
    return [line for line in told.err.splitlines() if line.startswith("sareloc: ")]


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.city if name == "data draw" else ()) for name in commands(Path(), Path())],
)
def test_a_full_disk_is_one_sentence_and_leaves_no_half_file(
    command: str, town: Path, small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(OPTIONAL.get(command, "sareloc"))
    words = commands(town, small_disk)[command]
    free_kb = 0 if command in ("geotag csv", "data draw", "report") else 32
    (small_disk / "filler").write_bytes(bytes(1024 * (64 - free_kb)))
    (told,) = fail(words, capsys)
    assert FULL in told or "disk is full" in told
    assert str(small_disk) in told
    halves = [path for path in small_disk.rglob("*") if "part" in path.name or path.name.startswith(".")]
    assert halves == []


@pytest.mark.parametrize("command", [name for name in commands(Path(), Path()) if name != "report"])
def test_a_read_only_folder_is_one_sentence(
    command: str, town: Path, small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(OPTIONAL.get(command, "sareloc"))
    make_read_only(small_disk)
    (told,) = fail(commands(town, small_disk)[command], capsys)
    assert "read-only" in told
    assert str(small_disk) in told


@full_device
@pytest.mark.parametrize(
    "words",
    [("map", "info", "street.gpkg", "--json"), ("map", "info", "street.gpkg"), ("--help",)],
)
def test_standard_output_on_a_full_disk(words: tuple[str, ...], town: Path) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "sareloc", *words],
            cwd=town, stdout=full, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert "Exception ignored" not in run.stderr
    (told,) = run.stderr.splitlines()
    assert FULL in told
    assert "standard output" in told


@pytest.mark.parametrize("stderr", [pytest.param("/dev/full", marks=full_device), "closed"])
def test_an_error_that_cannot_be_printed_is_still_an_exit_status(stderr: str, tmp_path: Path) -> None:
    redirection = "2>&-" if stderr == "closed" else f"2>{stderr}"
    run = subprocess.run(
        ["sh", "-c", f'exec "$0" -m sareloc map info absent.gpkg {redirection}', sys.executable],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (1, "")


def test_geotag_counts_what_it_could_not_write(
    town: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*map(str, commands(town, small_disk)["geotag"])])
    written = sorted((small_disk / "copies").iterdir())
    assert 0 < len(written) < QUERIES
    assert f"{QUERIES - len(written)} could not be written" in capsys.readouterr().out
    assert end.value.code == 1
    for copy in written:
        assert read_geotag(copy) is not None
        decode(copy)
