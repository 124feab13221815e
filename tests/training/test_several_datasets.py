"""Training on several datasets together, and learning the whitening with the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.training.tiny_dataset import tiny_dataset, tiny_features, tiny_model, tiny_pixels, tiny_places, write_dataset

from sareloc.errors import ArgumentError, DatasetError
from sareloc.geo import Positions
from sareloc.training import (
    TensorInputs,
    TrainingConfig,
    TrainingSet,
    find_neighbourhoods,
    recall_of_descriptors,
    recipe,
    train,
)
from sareloc.training.data import FileInputs, JoinedInputs, join_inputs
from sareloc.training.distributed import Network, ProcessGroup
from sareloc.training.mining import join_neighbourhoods
from sareloc.training.tasks import TupleTask

CONFIG = TrainingConfig(epochs=2, pool=30, refresh_every=20, train_from="conv2", dim=0, precision="float32")


def as_one(datasets: list[TrainingSet]) -> TrainingSet:
    """The twin: the same datasets a thousand kilometres apart, as one set of places with one tensor."""
    apart = [1e6 * i for i in range(len(datasets))]

    def together(role: str):
        parts = [getattr(dataset.places, role) for dataset in datasets]
        metres = np.concatenate([part.positions.metres[:, :2] + [x, 0] for part, x in zip(parts, apart, strict=True)])
        return replace(parts[0], files=tuple(f for p in parts for f in p.files), positions=Positions.from_local(metres))

    count = len(datasets[0].places.database)
    pixels = [dataset.inputs.tensor for dataset in datasets]
    tensor = torch.cat([*(p[:count] for p in pixels), *(p[count:] for p in pixels)])
    return TrainingSet(
        replace(datasets[0].places, database=together("database"), queries=together("queries")), TensorInputs(tensor)
    )


def test_two_datasets_teach_what_one_dataset_of_both_teaches() -> None:
    datasets = [tiny_dataset(0), tiny_dataset(1)]
    several, one, config = tiny_model(), tiny_model(), replace(CONFIG, epochs=1)
    first = train(several, datasets, config, progress=False)
    second = train(one, as_one(datasets), config, progress=False)
    assert [r.loss for r in first.history[1:]] == [r.loss for r in second.history[1:]]
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, several.state_dict()[name]), name


def test_joined_neighbourhoods_count_on_through_the_databases() -> None:
    near = find_neighbourhoods(tiny_places())
    both = join_neighbourhoods([(near, 80), (near, 80)])
    assert len(both.positives) == 80
    assert both.positives[40 + 7].tolist() == [80 + row for row in near.positives[7]]
    assert both.near[40 + 7].tolist() == [80 + row for row in near.near[7]]


def test_joined_inputs_give_each_row_from_its_part(tmp_path: Path) -> None:
    places = write_dataset(tmp_path)
    photos = [places.database.path(i) for i in range(10)]
    files, memory = FileInputs(photos, 64, 64), TensorInputs(tiny_pixels(1))
    joined = JoinedInputs([files, memory], np.array([0, 1, 0, 1, 1]), np.array([3, 5, 0, 2, 99]))
    cpu = torch.device("cpu")
    found = list(joined.batches([np.array([4, 0, 1]), np.array([2]), np.array([3, 1])], cpu))
    (three,) = files.batches([np.array([3])], cpu)
    assert torch.equal(found[0], torch.stack([memory.tensor[99], three[0], memory.tensor[5]]))
    assert torch.equal(found[1], next(files.batches([np.array([0])], cpu)))
    assert torch.equal(found[2], memory.tensor[[2, 5]])
    assert len(joined) == 5


def test_a_dataset_without_queries_gives_negatives_alone() -> None:
    silent = tiny_dataset(1)
    count = len(silent.places.database)
    silent = TrainingSet(
        replace(silent.places, queries=silent.places.queries.take([])), TensorInputs(silent.inputs.tensor[:count])
    )
    task = TupleTask(
        Network(tiny_model(), "pixels", torch.float32),
        [tiny_dataset(0), silent],
        replace(CONFIG, pool=1000),
        ProcessGroup(),
    )
    tuples = task.mine(task.rows, seed=0)
    own = len(tiny_dataset(0).places.database)
    assert (tuples.positives < own).all()
    assert (tuples.negatives >= own).any()
    assert len(task.near.positives) == len(tiny_dataset(0).places.queries)
    with pytest.raises(DatasetError, match="no queries"):
        train(tiny_model(), silent, CONFIG, progress=False)
    with pytest.raises(DatasetError, match="validation set has no queries"):
        train(tiny_model(), tiny_dataset(0), CONFIG, validation=silent, progress=False)


def test_databases_come_first() -> None:
    inputs, database = join_inputs([tiny_dataset(0), tiny_dataset(1)])
    (rows,) = inputs.batches([np.array([0, 80, 160, 200])], torch.device("cpu"))
    a, b = tiny_pixels(0), tiny_pixels(1)
    assert database == 160
    assert torch.equal(rows, torch.stack([a[0], b[0], a[80], b[80]]))


def test_the_best_epoch_is_that_of_the_mean_over_the_validation_sets() -> None:
    model = tiny_model()
    validation_sets = [tiny_dataset(1), tiny_dataset(2)]
    run = train(model, tiny_dataset(0), replace(CONFIG, epochs=1), validation=validation_sets, progress=False)
    found = [
        recall_of_descriptors(e.places, model.encode(e.inputs.tensor, precision="float32")) for e in validation_sets
    ]
    assert run.best.recall_1 == pytest.approx(sum(recall[1] for recall in found) / 2)
    assert found[0][1] != found[1][1]


def test_datasets_of_different_stages_and_cells_of_two_datasets_are_refused() -> None:
    model = tiny_model()
    features = tiny_features(model)
    with pytest.raises(ArgumentError, match="either pixels or features"):
        train(model, [tiny_dataset(), features], CONFIG, progress=False)
    with pytest.raises(ArgumentError, match="one dataset"):
        train(model, [tiny_dataset(0), tiny_dataset(1)], recipe("geo-classification", dim=0), progress=False)
    with pytest.raises(ArgumentError, match="no places to train on"):
        train(model, [], CONFIG, progress=False)


def test_a_learned_whitening_starts_as_the_fitted_one_and_then_moves(tmp_path: Path) -> None:
    dataset, config = tiny_dataset(), replace(CONFIG, dim=8, whitening="learned", lr=0.002, negatives=5, pool=10)
    fitted, learned = tiny_model(), tiny_model()
    train(fitted, dataset, replace(config, epochs=0, whitening="after"), progress=False)
    run = train(learned, dataset, replace(config, epochs=12), out=tmp_path / "run", progress=False)
    assert learned.dim == 8
    assert run.history[-1].loss < run.history[1].loss
    start, end = (m.encode(dataset.inputs.tensor, precision="float32") for m in (fitted, learned))
    assert recall_of_descriptors(dataset.places, end)[5] > recall_of_descriptors(dataset.places, start)[5] + 0.1
    assert not learned.whitening.projection.requires_grad
    variance = end[:80].var(dim=0)
    assert (variance[:-1] >= variance[1:] - 1e-6).all()  # turned, so that a smaller dimension is its first coordinates
    stored = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(stored["whitening.projection"], learned.whitening.projection)


def test_a_refitted_whitening_is_the_fitted_one_of_what_was_learned() -> None:
    dataset, config = tiny_dataset(), replace(CONFIG, dim=8, whitening="learned", whitening_power=0.5)
    learned, refitted, again = tiny_model(), tiny_model(), tiny_model()
    train(learned, dataset, config, progress=False)
    train(refitted, dataset, replace(config, whitening="refitted"), progress=False)
    for name, tensor in learned.state_dict().items():  # the training is the same, what ends it is not
        assert torch.equal(tensor, refitted.state_dict()[name]) != name.startswith("whitening"), name
    again.load_state_dict({k: v for k, v in learned.state_dict().items() if not k.startswith("whitening")})
    train(again, dataset, replace(config, whitening="after", epochs=0), progress=False)
    torch.testing.assert_close(refitted.whitening.projection, again.whitening.projection)


def test_a_dataset_counts_no_more_in_the_whitening_for_having_more_photos() -> None:
    """Every database photo of one dataset five times over, and what is fitted to both datasets stays."""
    one, other = tiny_dataset(), TrainingSet(tiny_places(), TensorInputs(tiny_pixels(7)))
    rows = [*np.repeat(np.arange(80), 5), *range(80, 120)]
    crowd = replace(other.places, database=other.places.database.take(rows[:400]))
    crowded = TrainingSet(crowd, TensorInputs(tiny_pixels(7)[rows]))
    config = replace(CONFIG, dim=8, epochs=0)
    fitted = []
    for datasets in ([one, other], [one, crowded], [crowded, one]):
        model = tiny_model()
        train(model, datasets, config, progress=False)
        fitted.append(model.encode(one.inputs.tensor, precision="float32"))
    for found in fitted[1:]:
        torch.testing.assert_close(found, fitted[0], atol=1e-2, rtol=0)
    alone = tiny_model()
    train(alone, crowded, config, progress=False)
    assert (alone.encode(one.inputs.tensor, precision="float32") - fitted[0]).abs().max() > 0.1


def test_a_learned_whitening_resumes_to_the_same_bits(tmp_path: Path) -> None:
    config = replace(CONFIG, dim=8, whitening="learned", epochs=2)
    straight = tiny_model()
    train(straight, tiny_dataset(), config, progress=False)
    train(tiny_model(), tiny_dataset(), replace(config, epochs=1), out=tmp_path, progress=False)
    resumed = tiny_model()
    train(resumed, tiny_dataset(), config, out=tmp_path, resume=True, progress=False)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_compiled_network_learns_and_describes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but only captured: this machine may have no compiler."""
    in_place, compiled = torch.nn.Module.compile, []

    def capture(module: torch.nn.Module) -> None:
        compiled.append(module)
        in_place(module, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", capture)
    weights = []
    for compile_ in (False, True):
        model = tiny_model()
        train(model, tiny_dataset(0), replace(CONFIG, compile=compile_, epochs=1), progress=False)
        weights.append(model.state_dict())
    assert len(compiled) == 1
    for name, plain in weights[0].items():
        torch.testing.assert_close(weights[1][name], plain, atol=1e-6, rtol=1e-5)
