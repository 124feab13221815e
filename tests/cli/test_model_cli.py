"""`sareloc model`: what a checkpoint says about itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.maps.small_town import tiny_model, write_town
from tests.models.test_backbones import resnet_tensors
from tests.models.test_place_networks import numbered
from tests.models.transformers import random_tensors

from sareloc.cli import app
from sareloc.errors import WeightsError
from sareloc.maps import PlaceMap
from sareloc.models import PACKAGED, load_model, load_published, read_checkpoint_manifest, save_checkpoint
from sareloc.models.checkpoint import STANDARD

CARD = {
    "about": "Finds streets. " * 12,
    "towns": {"here": "all of it"},
    "history": [{"epoch": 1, "loss": 0.25}, {"epoch": 2, "loss": 0.125}],
    "limits": ["not at sea"],
    "rate": 0.001,
    "size": [48, 64],
}


def run(*words: str | Path) -> None:
    app(["model", *map(str, words)], result_action="return_value")


@pytest.mark.parametrize("kind", ["folder", "file.safetensors"])
def test_info_tells_the_spec_and_the_card(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tiny_model(), tmp_path / kind, storage="float16", training=CARD)
    run("info", tmp_path / kind)
    lines = capsys.readouterr().out.splitlines()
    for line in (
        f"fingerprint: {json.loads(told_json(tmp_path / kind, capsys))['fingerprint']}",
        "photos: resized to 64 x 64 pixels, bilinear",
        "backbone: alexnet, up to conv5",
        "aggregation: avg",
        "whitening: none",
        "towns:",
        "  here: all of it",
        "  - epoch 1, loss 0.25",
        "  - not at sea",
        "rate: 0.001",
        "size: 48, 64",
    ):
        assert line in lines
    assert max(map(len, lines)) <= 100 or str(tmp_path) in max(lines, key=len)
    assert " ".join(" ".join(lines).split()).count("Finds streets.") == 12


def told_json(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    run("info", path, "--json")
    return capsys.readouterr().out


def test_json_has_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tiny_model(), tmp_path / "m.safetensors", training=CARD)
    told = json.loads(told_json(tmp_path / "m.safetensors", capsys))
    assert told["training"] == CARD
    assert told["bytes"] == (tmp_path / "m.safetensors").stat().st_size
    assert (told["spec"]["backbone"], told["storage"]) == ("alexnet", "float32")
    assert told["fingerprint"] == tiny_model().fingerprint()


def test_list_names_the_packaged_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PACKAGED:
        save_checkpoint(tiny_model(), tmp_path / f"{name}.safetensors")
        monkeypatch.setitem(PACKAGED, name, tmp_path / f"{name}.safetensors")
    run("list")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PACKAGED)
    assert lines[0].split(maxsplit=1)[1].startswith("alexnet-avg, ")
    run("list", "--json")
    assert [json.loads(line)["model"] for line in capsys.readouterr().out.splitlines()] == list(PACKAGED)
    run("info")
    assert capsys.readouterr().out.startswith(f"model: {STANDARD}\n")
    with pytest.raises(WeightsError, match=r"no model 'quick'.* are: default, fast"):
        run("info", "quick")


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    """As `sareloc model info | head -1`: more is said than a pipe holds, and nobody takes it."""
    long = tmp_path / "long.safetensors"
    save_checkpoint(tiny_model(), long, training={"recipe": "word " * 100_000})
    words = [sys.executable, "-m", "sareloc", "model", "info", str(long)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as said:
        assert said.stdout is not None
        assert said.stderr is not None
        said.stdout.readline()
        said.stdout.close()
        assert said.stderr.read() == b""
    assert said.returncode == 141


# --- published files ------------------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A file of CosPlace's structure, under a name that says nothing."""
    state = random_tensors(
        numbered("backbone.", resnet_tensors([2, 2, 2, 2], bottleneck=False))
        | {"aggregation.1.p": (1,), "aggregation.3.weight": (8, 512), "aggregation.3.bias": (8,)}
    )
    state["aggregation.1.p"].fill_(3)
    torch.save(state, tmp_path / "weights")
    return tmp_path / "weights"


def test_a_published_file_is_converted_to_a_checkpoint(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = published.with_name("cosplace.safetensors")
    run("convert", published, out, "--storage", "float16")
    told = capsys.readouterr().out
    manifest = read_checkpoint_manifest(out)
    assert manifest.storage == "float16"
    for part in ("resnet18-cosplace, 8 dimensions", manifest.fingerprint, f"--model {out}"):
        assert part in told
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    torch.testing.assert_close(
        load_model(out).encode(images), load_published(published).encode(images), atol=1e-2, rtol=0
    )
    run("convert", out, published.with_name("again"))  # a checkpoint can be stored otherwise
    assert read_checkpoint_manifest(published.with_name("again")).fingerprint == manifest.fingerprint


def test_a_published_file_is_a_model_wherever_one_is_named(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_model(published).fingerprint() == load_published(published).fingerprint()
    run("info", published)
    lines = capsys.readouterr().out.splitlines()
    assert "photos: resized to at most 640 pixels, bilinear" in lines
    assert "aggregation: cosplace (out_dim 8)" in lines
    write_town(tmp_path / "photos", 3)
    app(
        ["map", "build", str(tmp_path / "photos"), "--out", str(tmp_path / "city.gpkg"), "--model", str(published),
         "--keypoints", "0", "--device", "cpu"],
        result_action="return_value",
    )  # fmt: skip
    assert PlaceMap(tmp_path / "city.gpkg").manifest.fingerprint == load_published(published).fingerprint()


def test_an_unknown_file_names_the_known_families(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(3, 3)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"not a known .* Known are boq, cosplace"):
        run("convert", tmp_path / "w.pth", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
