"""Training on one drawn dataset raises recall on another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.training.tiny_dataset import TinyBackbone

from sareloc.city import city_places, draw_pixels
from sareloc.models import PlaceModel, Preprocess, init_netvlad, make_aggregation
from sareloc.training import TensorInputs, TrainingSet, recall_of_descriptors, recipe, train
from sareloc.training.distributed import Network, ProcessGroup, compute_descriptors

SIZE = (96, 128)
pytestmark = pytest.mark.city


@pytest.fixture(scope="module")
def datasets() -> dict[str, TrainingSet]:
    """The small train and val datasets of the drawn city."""
    cities = {split: city_places(0, "small", split) for split in ("train", "val")}
    return {split: TrainingSet(city.places, TensorInputs(draw_pixels(city, *SIZE))) for split, city in cities.items()}


def start(dataset: TrainingSet) -> PlaceModel:
    torch.manual_seed(0)
    model = PlaceModel(Preprocess(resize=SIZE), TinyBackbone(), make_aggregation("netvlad", 16, {"clusters": 8}))
    assert isinstance(dataset.inputs, TensorInputs)
    init_netvlad(model, [x.permute(1, 2, 0).numpy() for x in dataset.inputs.tensor[:60]], np.random.default_rng(0))
    return model


def recall(model: PlaceModel, dataset: TrainingSet) -> dict[int, float]:
    described = compute_descriptors(Network(model, "pixels", torch.float32), dataset.inputs, 16, ProcessGroup())
    return recall_of_descriptors(dataset.places, described)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["netvlad", "sare-ind", "sare-joint"])
def test_recall_exceeds_that_before_training_on_both_datasets(name: str, datasets: dict[str, TrainingSet]) -> None:
    model = start(datasets["train"])
    before = {split: recall(model, dataset) for split, dataset in datasets.items()}
    # from random weights, unlike the paper: all layers are trained, by AdamW, and negatives are less hard
    config = recipe(
        name,
        epochs=10,
        optimizer="adamw",
        lr=0.001,
        train_from="conv1",
        pool=20,
        refresh_every=25,
        seed=1,
        dim=0,
        precision="float32",
    )
    run = train(model, datasets["train"], config, validation=datasets["val"], progress=False)
    after = {split: recall(model, dataset) for split, dataset in datasets.items()}
    assert after["val"][5] == pytest.approx(run.best.recall_5)
    assert after["val"][5] > before["val"][5]
    # one query of fifty is 0.02, and recall@1 varies with the seed by several of them: recall@5 has a margin
    assert after["train"][5] > before["train"][5] + 0.1
    assert after["train"][1] > before["train"][1]
