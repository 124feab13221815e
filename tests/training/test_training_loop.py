"""The loop learns, keeps the best epoch, resumes to the same numbers, and says what is wrong."""

from __future__ import annotations

import csv
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.training.tiny_dataset import PLACES, tiny_dataset, tiny_features, tiny_model, tiny_places, write_dataset

from sareloc.errors import ArgumentError, DatasetError, SarelocError
from sareloc.figures.report import read_history
from sareloc.models import PlaceModel, open_checkpoint
from sareloc.training import (
    RECIPES,
    EpochRecord,
    TrainingConfig,
    TrainingSet,
    best_epoch,
    recall_of_descriptors,
    recipe,
    train,
)
from sareloc.training.distributed import Network, ProcessGroup, compute_descriptors

QUICK = TrainingConfig(
    epochs=3, lr=0.05, negatives=5, pool=10, remembered=5, refresh_every=20, precision="float32", dim=0
)


def weights(model: PlaceModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def recall_1(model: PlaceModel, dataset: TrainingSet) -> float:
    network = Network(model, dataset.inputs.stage, torch.float32)
    return recall_of_descriptors(dataset.places, compute_descriptors(network, dataset.inputs, 16, ProcessGroup()))[1]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_of_the_paper_learns(name: str) -> None:
    model = tiny_model("crn" if name == "crn" else "netvlad")
    before, frozen = weights(model), model.backbone.conv1.weight.clone()
    lr = 1.0 if name == "geo-classification" else 0.05
    config = recipe(name, epochs=6, lr=lr, negatives=5, pool=10, remembered=0, refresh_every=20, precision="float32")
    run = train(model, tiny_dataset(), replace(config, dim=0), progress=False)
    assert run.history[-1].loss < run.history[1].loss
    assert torch.equal(model.backbone.conv1.weight, frozen)
    assert not torch.equal(model.backbone.conv3.weight, before["backbone.conv3.weight"])


@pytest.mark.parametrize("name", ["netvlad", "sare-joint", pytest.param("sare-ind", marks=pytest.mark.slow)])
def test_what_was_learned_is_found_again(name: str) -> None:
    model, dataset = tiny_model(), tiny_dataset()
    before = recall_1(model, dataset)
    config = recipe(name, epochs=16, lr=0.02, halve_every=99, negatives=5, pool=10, remembered=0, refresh_every=20)
    run = train(model, dataset, replace(config, dim=0, precision="float32"), validation=dataset, progress=False)
    assert recall_1(model, dataset) == pytest.approx(run.best.recall_1)
    assert run.best.recall_1 > before + 0.2


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    def trained(seed: int) -> dict[str, torch.Tensor]:
        model = tiny_model()
        train(model, tiny_dataset(), replace(QUICK, seed=seed, epochs=1), progress=False)
        return weights(model)

    assert same(trained(1), trained(1))
    assert not same(trained(1), trained(2))


@pytest.mark.parametrize("loss", ["sare-ind", "triplet", "geo-classification"])
def test_one_tuple_at_a_time_gives_the_same_step(loss: str) -> None:
    def trained(at_once: int) -> dict[str, torch.Tensor]:
        model = tiny_model()
        config = replace(QUICK, loss=loss, tuples_at_once=at_once, epochs=1)
        train(model, tiny_dataset(), config, progress=False)
        return weights(model)

    together, apart = trained(4), trained(1)
    for name in together:
        torch.testing.assert_close(together[name], apart[name], atol=2e-5, rtol=1e-4)


def test_kept_features_teach_what_pixels_teach() -> None:
    def trained(features: bool) -> dict[str, torch.Tensor]:
        model = tiny_model()
        train(model, tiny_features(model) if features else tiny_dataset(), replace(QUICK, epochs=1), progress=False)
        return weights(model)

    pixels, features = trained(False), trained(True)
    for name in pixels:
        torch.testing.assert_close(pixels[name], features[name], atol=1e-5, rtol=1e-4)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    straight = tiny_model()
    whole = train(
        straight, tiny_dataset(), QUICK, validation=tiny_dataset(9), out=tmp_path / "straight", progress=False
    )
    first = tiny_model()
    train(
        first,
        tiny_dataset(),
        replace(QUICK, epochs=2),
        validation=tiny_dataset(9),
        out=tmp_path / "halved",
        progress=False,
    )
    second = tiny_model(seed=5)  # other weights: everything must come from the folder
    rest = train(
        second, tiny_dataset(), QUICK, validation=tiny_dataset(9), out=tmp_path / "halved", resume=True, progress=False
    )
    assert same(weights(straight), weights(second))
    assert [str(replace(r, seconds=0)) for r in rest.history] == [str(replace(r, seconds=0)) for r in whole.history]
    assert (tmp_path / "straight/history.csv").read_text().count("\n") == 5


def test_adamw_resumes_too(tmp_path: Path) -> None:
    config = replace(QUICK, optimizer="adamw", lr=0.01, schedule="cosine", warmup_steps=15)  # an epoch has 10 steps
    straight = tiny_model()
    train(straight, tiny_dataset(), replace(config, epochs=2), out=tmp_path / "a", progress=False)
    again = tiny_model()
    halved = replace(config, epochs=2)
    train(again, tiny_dataset(), replace(halved, patience=0), out=tmp_path / "b", progress=False)
    train(again, tiny_dataset(), halved, out=tmp_path / "b", resume=True, progress=False)
    assert same(weights(straight), weights(again))


def test_the_first_step_of_a_warm_up_is_that_part_of_the_whole_step() -> None:
    def change(warmup_steps: int) -> torch.Tensor:
        model = tiny_model()
        before = weights(model)
        config = replace(QUICK, epochs=1, refresh_every=40, tuples_per_step=40, warmup_steps=warmup_steps)
        train(model, tiny_dataset(), config, progress=False)
        return torch.cat([(tensor - before[name]).flatten() for name, tensor in weights(model).items()])

    whole = change(0)
    assert whole.abs().max() > 1e-4
    torch.testing.assert_close(change(4), whole / 4, atol=1e-6, rtol=1e-3)


def test_geo_classification_resumes_too(tmp_path: Path) -> None:
    config = replace(QUICK, loss="geo-classification", epochs=2)
    straight = tiny_model()
    train(straight, tiny_dataset(), config, out=tmp_path / "a", progress=False)
    again = tiny_model()
    train(again, tiny_dataset(), replace(config, patience=0), out=tmp_path / "b", progress=False)
    train(again, tiny_dataset(), config, out=tmp_path / "b", resume=True, progress=False)
    assert same(weights(straight), weights(again))


def test_a_run_folder_is_not_written_over_by_accident(tmp_path: Path) -> None:
    train(tiny_model(), tiny_dataset(), replace(QUICK, epochs=1), out=tmp_path, progress=False)
    with pytest.raises(ArgumentError, match="--resume"):
        train(tiny_model(), tiny_dataset(), QUICK, out=tmp_path, progress=False)
    with pytest.raises(ArgumentError, match="lr was"):
        train(tiny_model(), tiny_dataset(), replace(QUICK, lr=0.2), out=tmp_path, resume=True, progress=False)
    with pytest.raises(ArgumentError, match=r"another model .*aggregation\.context.* --model .*start\.safetensors"):
        train(tiny_model("crn"), tiny_dataset(), replace(QUICK, epochs=1), out=tmp_path, resume=True, progress=False)


def test_the_saved_model_opens_and_is_whitened(tmp_path: Path) -> None:
    run = train(tiny_model(), tiny_dataset(), replace(QUICK, epochs=1, dim=16), out=tmp_path, progress=False)
    assert run.model.dim == 16
    with pytest.raises(SarelocError):  # the tiny backbone lives in the tests: a checkpoint names only packaged ones
        open_checkpoint(tmp_path / "model.safetensors")
    descriptors = run.model.encode(tiny_dataset().inputs.tensor[:4])  # type: ignore[attr-defined]
    torch.testing.assert_close(descriptors.norm(dim=1), torch.ones(4))


def test_whitening_takes_what_the_photos_allow(capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tiny_model(), tiny_dataset(), replace(QUICK, epochs=1, dim=4096), progress=False)
    assert run.model.dim == 4 * 16
    assert "64 dimensions" in capsys.readouterr().out


def test_history_says_what_each_epoch_gave(tmp_path: Path) -> None:
    run = train(tiny_model(), tiny_dataset(), QUICK, validation=tiny_dataset(9), out=tmp_path, progress=False)
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(r["epoch"]) for r in rows] == [0, 1, 2, 3]
    assert [float(r["recall_5"]) for r in rows] == [r.recall_5 for r in run.history]
    assert all(r.tuples == PLACES and r.images == PLACES * 7 for r in run.history[1:])


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train(tiny_model(), tiny_dataset(), replace(QUICK, epochs=2, tensorboard=True), out=tmp_path, progress=False)
    written = events.EventAccumulator(str(tmp_path)).Reload()
    losses = {event.step: event.value for event in written.Scalars("loss")}
    assert losses == pytest.approx({record.epoch: record.loss for record in run.history[1:]})
    assert "recall_5" not in written.Tags()["scalars"]  # no validation set


@pytest.mark.slow
def test_a_run_killed_at_any_moment_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.training.killed_run", str(tmp_path / "killed")]
    root = Path(__file__).resolve().parents[2]
    for lines_before_the_kill in (0, 3):  # at the start, and after the first epoch, having resumed
        running = subprocess.Popen(script, cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"})
        history = tmp_path / "killed/history.csv"
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and running.poll() is None:
            written = history.read_text().count("\n") if history.exists() else 0
            if (tmp_path / "killed").exists() and written >= lines_before_the_kill:
                break
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.wait()
    subprocess.run(script, cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=600)
    straight, threads = tiny_model(), torch.get_num_threads()
    torch.set_num_threads(1)  # as the killed one: sums over more threads round otherwise
    train(straight, tiny_dataset(), replace(QUICK, epochs=3), progress=False)
    torch.set_num_threads(threads)
    killed = load_file(tmp_path / "killed/model.safetensors")
    assert all(torch.equal(killed[name], tensor) for name, tensor in straight.state_dict().items())


def test_a_state_that_cannot_be_written_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    """Files may not grow beyond what epoch 0 needed: the momenta of epoch 1 do not fit, as on a full disk."""
    straight, stopped, resumed = tiny_model(), tiny_model(), tiny_model()
    config = replace(QUICK, epochs=2)
    train(straight, tiny_dataset(), config, progress=False)
    train(stopped, tiny_dataset(), replace(config, epochs=0), out=tmp_path, progress=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "state.safetensors").stat().st_size + 1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"state\.safetensors"):
            train(stopped, tiny_dataset(), config, out=tmp_path, resume=True, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    names = {"start", "state", "best", "model"}
    files = {"history.csv", "config.toml", *(f"{name}.safetensors" for name in names)}
    assert {file.name for file in tmp_path.iterdir()} == files
    train(resumed, tiny_dataset(), config, out=tmp_path, resume=True, progress=False)
    assert same(weights(straight), weights(resumed))


def test_the_best_epoch_by_recall_at_5_is_kept() -> None:
    def record(epoch: int, recall: float) -> EpochRecord:
        return EpochRecord(epoch, 0.1, 0.1, 1, 1, 1.0, recall_5=recall)

    assert best_epoch((record(1, 0.5), record(2, 0.7), record(3, 0.7), record(4, 0.6))).epoch == 2
    assert best_epoch((record(1, math.nan), record(2, math.nan))).epoch == 2


def test_patience_stops_a_run_that_no_longer_improves() -> None:
    run = train(
        tiny_model(),
        tiny_dataset(),
        replace(QUICK, epochs=30, lr=1e-7, patience=2),
        validation=tiny_dataset(9),
        progress=False,
    )
    assert len(run.history) == 3


def test_a_loss_that_is_not_a_number_stops_the_run() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.backbone.conv3.bias.fill_(math.nan)
    with pytest.raises(SarelocError, match="nan in epoch 1"):
        train(model, tiny_dataset(), QUICK, progress=False)


def test_a_dataset_where_nothing_can_be_mined_says_so_before_the_first_step() -> None:
    with pytest.raises(DatasetError, match="potential positive"):
        train(tiny_model(), tiny_dataset(), replace(QUICK, positive_radius_m=2.0), progress=False)


@pytest.mark.parametrize("keep", ["auto", "features", "pixels", "nothing"])
def test_from_files_as_from_memory_and_unreadable_photos_are_left_out(
    keep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = write_dataset(tmp_path)
    broken = places.database.path(3)
    broken.write_bytes(broken.read_bytes()[:100])
    run = train(tiny_model(), places, replace(QUICK, epochs=1, keep=keep), progress=False)
    assert "1 photo is left out, not readable" in capsys.readouterr().out
    assert run.history[1].tuples == PLACES


def test_files_and_memory_teach_the_same(tmp_path: Path) -> None:
    places = write_dataset(tmp_path)
    models = tiny_model(), tiny_model()
    train(models[0], places, replace(QUICK, epochs=1, keep="nothing"), progress=False)
    train(models[1], tiny_dataset(), replace(QUICK, epochs=1), progress=False)
    assert same(weights(models[0]), weights(models[1]))


def test_tiny_places_are_what_the_tests_think() -> None:
    assert len(tiny_places().database) == 2 * PLACES


@pytest.mark.parametrize(("margin", "all_skipped"), [(1e-9, True), (4.0, False)])
def test_tuples_without_a_violating_negative_are_counted(
    margin: float, all_skipped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(QUICK, loss="triplet", margin=margin, epochs=1, lr=1e-9)
    record = train(tiny_model(), tiny_dataset(), config, out=tmp_path).history[1]
    queries = record.tuples + record.skipped
    assert queries == train(tiny_model(), tiny_dataset(), replace(QUICK, epochs=1), progress=False).history[1].tuples
    assert (record.skipped > 0) == all_skipped
    told = f"{record.skipped} of {queries} tuples had no violating negative"
    assert (told in record.line()) == all_skipped
    bars = re.findall(r"(\d+)/(\d+) \[", capsys.readouterr().err)
    assert bars[-1][0] == bars[-1][1]  # the bar ends at its end
    assert read_history(tmp_path)[1].skipped == record.skipped
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    with (tmp_path / "history.csv").open("w", newline="") as file:
        csv.writer(file).writerows(row[:-1] for row in rows)  # as earlier versions wrote it
    assert (read_history(tmp_path)[1].skipped, read_history(tmp_path)[1].tuples) == (0, record.tuples)
