"""Training from a finished model: the result is never worse than the initial model, validated as it is saved."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.training.test_training_loop import QUICK, recall_1, same, weights
from tests.training.tiny_dataset import tiny_dataset, tiny_model, tiny_pixels

from sareloc.errors import ArgumentError
from sareloc.models import PlaceModel, fit_whitening, read_checkpoint_manifest
from sareloc.training import TrainingSet, recall_of_descriptors, train

CONFIG = replace(QUICK, dim=None, lr=0.01)
DATABASE = 80  # photos of the tiny dataset: enough for a whitening of 24 dimensions, too few for one of 60
FORMS = pytest.mark.parametrize(("whitening", "dim"), [("after", 24), ("after", 60), ("learned", 60), ("refitted", 24)])


def whitened_model(dim: int) -> PlaceModel:
    """A model with a whitening that was fitted to other datasets."""
    model = tiny_model()
    others = torch.cat([tiny_pixels(seed)[:DATABASE] for seed in (11, 12, 13)])
    model.whitening = fit_whitening(model.encode(others, precision="float32"), dim)
    return model


def recall_5(model: PlaceModel, dataset: TrainingSet) -> float:
    return recall_of_descriptors(dataset.places, model.encode(dataset.inputs.tensor, precision="float32"))[5]


def test_too_few_photos_leave_the_start_its_whitening() -> None:
    model, validation_set = whitened_model(60), tiny_dataset()
    before, start = weights(model), recall_1(model, validation_set)
    run = train(model, tiny_dataset(), CONFIG, validation=validation_set, progress=False)
    assert model.dim == 60
    assert torch.equal(model.whitening.projection, before["whitening.projection"])
    assert run.start.recall_1 == pytest.approx(start)
    assert run.best.epoch > 0
    assert run.best.recall_1 == pytest.approx(recall_1(model, validation_set))
    assert run.best.recall_5 > run.start.recall_5
    assert f"{start:.1%}" in run.line()
    assert f"best epoch {run.best.epoch}" in run.line()


def test_enough_photos_fit_a_whitening_of_the_same_dimensions() -> None:
    model, validation_set = whitened_model(24), tiny_dataset()
    before, start = weights(model), recall_1(model, validation_set)
    run = train(model, tiny_dataset(), CONFIG, validation=validation_set, progress=False)
    assert model.dim == 24
    assert not torch.equal(model.whitening.projection, before["whitening.projection"])
    assert run.start.recall_1 == pytest.approx(start)  # with its own whitening
    assert run.best.recall_1 == pytest.approx(recall_1(model, validation_set))  # with the one that is saved
    assert run.best.recall_5 > run.start.recall_5


@FORMS
def test_the_start_is_kept_where_nothing_beats_it(whitening: str, dim: int, tmp_path: Path) -> None:
    model = whitened_model(dim)
    before, fingerprint = weights(model), model.fingerprint()
    config = replace(CONFIG, lr=3.0, whitening=whitening, epochs=1)
    run = train(model, tiny_dataset(), config, validation=tiny_dataset(9), out=tmp_path, progress=False)
    assert run.best.epoch == 0
    assert "initial model is kept" in run.line()
    assert f"recall@5 {run.best.recall_5:.1%}" in run.line()
    assert same(weights(model), before)
    assert read_checkpoint_manifest(tmp_path / "model.safetensors").fingerprint == fingerprint


def test_what_is_saved_is_compared_not_what_was_trained() -> None:
    """The start's whitening was learned: a fitted one is worse, however well the network before it does."""
    model, dataset = tiny_model(), tiny_dataset()
    learned = replace(CONFIG, dim=8, whitening="learned", lr=0.002, epochs=12)
    train(model, dataset, learned, progress=False)
    before, start = weights(model), recall_5(model, dataset)
    run = train(model, dataset, replace(CONFIG, lr=0.002, epochs=2), validation=dataset, progress=False)
    assert max(record.recall_5 for record in run.history[1:]) > run.history[0].recall_5
    assert (run.best.epoch, run.best.recall_5) == (0, pytest.approx(start))
    assert same(weights(model), before)
    assert "no epoch has a higher recall" not in run.line()  # one has, in the history
    assert "with the whitening that would be saved has no higher recall@5: the initial model is kept" in run.line()


@pytest.mark.parametrize(("whitening", "dim"), [("after", 24), ("learned", 60)])
def test_a_resumed_fine_tuning_ends_with_the_same_bits(whitening: str, dim: int, tmp_path: Path) -> None:
    validation_set, config = tiny_dataset(9), replace(CONFIG, whitening=whitening, epochs=2)
    straight = whitened_model(dim)
    whole = train(straight, tiny_dataset(), config, validation=validation_set, progress=False)
    train(
        whitened_model(dim),
        tiny_dataset(),
        replace(config, epochs=1),
        validation=validation_set,
        out=tmp_path,
        progress=False,
    )
    other = tiny_model(seed=5)  # everything must come from the folder, the initial whitening too
    resumed = train(other, tiny_dataset(), config, validation=validation_set, out=tmp_path, resume=True, progress=False)
    assert same(weights(straight), weights(other))
    assert replace(resumed.start, loss=0) == replace(whole.start, loss=0)
    assert replace(resumed.best, loss=0, seconds=0) == replace(whole.best, loss=0, seconds=0)


def test_no_epochs_evaluate_and_save_the_start(tmp_path: Path) -> None:
    model, validation_set = whitened_model(60), tiny_dataset(9)
    before, start = weights(model), recall_1(model, validation_set)
    run = train(
        model, tiny_dataset(), replace(CONFIG, epochs=0), validation=validation_set, out=tmp_path, progress=False
    )
    assert (run.best.epoch, run.best.recall_1, len(run.history)) == (0, pytest.approx(start), 1)
    saved = load_file(tmp_path / "model.safetensors")
    assert same({k: v.contiguous() for k, v in before.items()}, saved)
    about = read_checkpoint_manifest(tmp_path / "model.safetensors").training
    assert about["start"]["recall_1"] == about["kept"]["recall_1"] == pytest.approx(start)
    with (tmp_path / "history.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["epoch"], float(row["recall_1"])) == ("0", pytest.approx(start))


def test_a_smaller_dimension_is_cut_from_the_starts_whitening() -> None:
    model = whitened_model(60)
    pixels = tiny_pixels(9)[:5]
    wanted = model.encode(pixels, dim=48, precision="float32")
    train(model, tiny_dataset(), replace(CONFIG, dim=48, epochs=0), validation=tiny_dataset(9), progress=False)
    np.testing.assert_allclose(model.encode(pixels, precision="float32"), wanted, atol=1e-5)


def test_more_dimensions_than_the_photos_allow_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    model = whitened_model(50)
    train(model, tiny_dataset(), replace(CONFIG, dim=60, epochs=1), validation=tiny_dataset(9), progress=False)
    assert model.dim == 50
    assert "too few" in capsys.readouterr().out


def test_without_validation_the_last_epoch_is_kept_and_nothing_is_claimed() -> None:
    model = whitened_model(60)
    run = train(model, tiny_dataset(), replace(CONFIG, epochs=2), progress=False)
    assert run.best.epoch == 2
    assert model.dim == 60
    assert "no validation" in run.line()


def test_a_new_model_is_whitened_as_before() -> None:
    model = tiny_model()
    run = train(model, tiny_dataset(), replace(CONFIG, dim=16, epochs=2), validation=tiny_dataset(9), progress=False)
    assert model.dim == 16
    assert run.best.recall_1 == pytest.approx(recall_1(model, tiny_dataset(9)))  # as it is saved


def test_a_run_needs_the_start_that_it_wrote(tmp_path: Path) -> None:
    train(whitened_model(60), tiny_dataset(), replace(CONFIG, epochs=1), out=tmp_path, progress=False)
    (tmp_path / "start.safetensors").write_bytes(b"not weights")
    with pytest.raises(Exception, match=r"start\.safetensors") as refused:
        train(whitened_model(60), tiny_dataset(), CONFIG, out=tmp_path, resume=True, progress=False)
    assert not isinstance(refused.value, ArgumentError)
