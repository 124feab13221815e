"""`sareloc train`, from its arguments to the run folder."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from tests.training.tiny_dataset import SIDE, tiny_pixels, write_dataset

from sareloc.cli import app, main
from sareloc.errors import ArgumentError, DatasetError
from sareloc.models import fit_whitening, make_model
from sareloc.models.checkpoint import load_model, read_manifest, save_checkpoint

QUICK = ("--negatives", "5", "--pool", "10", "--remembered", "0", "--precision", "float32")


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


def test_options_change_a_recipe(
    dataset: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--recipe", "netvlad", "--margin", "0.2", "--epochs", "1")
    run(dataset, "--model", start, "--out", tmp_path / "run", *QUICK, *options)
    trained = read_manifest(tmp_path / "run/model.safetensors").training
    assert (trained["loss"], trained["margin"]) == ("triplet", 0.2)
    assert "loss triplet, margin 0.2" in capsys.readouterr().out
    with (tmp_path / "run/history.csv").open() as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == [0, 1]
    load_model(tmp_path / "run/model.safetensors")


@pytest.mark.parametrize(
    ("row", "options", "loss", "kernel"),
    [
        ("netvlad", ("--loss", "sare-ind"), "sare-ind", None),  # sare-ind is also the default: given, it still counts
        ("sare-ind-cauchy", ("--loss", "sare-joint"), "sare-joint", "cauchy"),
        ("sare-ind-cauchy", ("--loss", "triplet"), "triplet", None),
        ("sare-ind-cauchy", ("--kernel", "gaussian"), "sare-ind", "gaussian"),
    ],
)
def test_what_is_given_wins_over_the_recipe(
    row: str, options: tuple[str, ...], loss: str, kernel: str | None, dataset: Path, start: Path, tmp_path: Path
) -> None:
    run(dataset, "--model", start, "--out", tmp_path, *QUICK, "--epochs", "0", "--recipe", row, *options)
    trained = read_manifest(tmp_path / "model.safetensors").training
    assert (trained["loss"], trained["kernel"]) == (loss, kernel)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--margin", "0.2"), ("sare-ind", "margin", "triplet, contrastive, lifted")),
        (("--recipe", "netvlad", "--kernel", "cauchy"), ("triplet", "kernel", "sare-ind, sare-joint")),
        (("--loss", "triplet", "--kernel-width", "2"), ("triplet", "kernel_width", "sare-ind, sare-joint")),
        (("--loss", "geo-classification", "--margin", "1"), ("geo-classification", "margin", "triplet")),
        (("--recipe", "sare"), ("recipe", "netvlad")),
        (("--epochs", "-1"), ("epochs", "negative")),
        (("--batch", "0"), ("batch", "at least 1")),
        (("--negatives", "0"), ("negatives", "at least 1")),
        (("--lr", "0"), ("lr", "above 0")),
        (("--lr", "nan"), ("lr", "nan")),
        (("--weight-decay", "inf"), ("weight_decay", "inf")),
        (("--cell-m", "0"), ("cell_m", "above 0")),
        (("--height", "0", "--width", "0"), ("height", "at least 64")),
        (("--workers", "-1"), ("workers", "negative")),
        (("--whitening-photos", "1"), ("whitening_photos", "at least 2")),
        (("--seed", str(2**70)), ("seed", "2^63")),
        (("--weights", "vgg16.pth"), ("--model", "--weights")),
        (("--backbone", "vgg16"), ("--model", "--backbone")),
        (("--train-from", "conv77"), ("conv77", "conv5")),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    options: tuple[str, ...], words: tuple[str, ...], dataset: Path, start: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError) as refused:
        run(dataset, "--model", start, "--out", tmp_path / "run", *options)
    for word in words:
        assert word in str(refused.value)
    assert not (tmp_path / "run/model.safetensors").exists()


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
    unsplit: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(unsplit, "--model", start, "--out", tmp_path / "run", *QUICK, "--epochs", "1")
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


def test_a_dataset_with_parts_keeps_them(dataset: Path, start: Path, tmp_path: Path) -> None:
    run(dataset, "--model", start, "--out", tmp_path, *QUICK, "--epochs", "0")
    assert not (tmp_path / "split.csv").exists()


def test_photos_without_queries_say_what_is_missing(unsplit: Path, start: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="queries/"):
        run(unsplit / "database", "--model", start, "--out", tmp_path, *QUICK, "--epochs", "1")


def test_a_run_of_other_photos_is_left_as_it_is(unsplit: Path, dataset: Path, start: Path, tmp_path: Path) -> None:
    run(dataset, "--model", start, "--out", tmp_path, *QUICK, "--epochs", "0")
    with pytest.raises(ArgumentError, match="resume"):
        run(unsplit, "--model", start, "--out", tmp_path, *QUICK, "--epochs", "0")
    assert not (tmp_path / "split.csv").exists()


def test_a_mistake_is_one_line_and_exit_status_1(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", str(dataset), "--out", str(tmp_path / "run"), "--epochs", "-1"])
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "epochs" in line
    assert not (tmp_path / "run").exists()
