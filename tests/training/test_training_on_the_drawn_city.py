"""Training on one drawn town raises recall on another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.training.test_training_loop import recall_1
from tests.training.tiny_town import TinyBackbone

from sareloc.datasets.city import city_places, draw_pixels
from sareloc.models import PlaceModel, Preprocess, fit_start, make_aggregation
from sareloc.training import recipe, train
from sareloc.training.inputs import TensorInputs
from sareloc.training.town import Town

SIZE = (96, 128)


@pytest.fixture(scope="module")
def towns() -> dict[str, Town]:
    """The small train and val towns of the drawn city."""
    cities = {split: city_places(0, "small", split) for split in ("train", "val")}
    return {split: Town(city.places, TensorInputs(draw_pixels(city, *SIZE))) for split, city in cities.items()}


def start(town: Town) -> PlaceModel:
    torch.manual_seed(0)
    model = PlaceModel(Preprocess(resize=SIZE), TinyBackbone(), make_aggregation("netvlad", 16, {"clusters": 8}))
    assert isinstance(town.inputs, TensorInputs)
    fit_start(model, [x.permute(1, 2, 0).numpy() for x in town.inputs.tensor[:60]], np.random.default_rng(0))
    return model


@pytest.mark.parametrize("name", ["netvlad", "sare-ind", "sare-joint"])
def test_recall_on_the_validation_town_exceeds_that_before_training(name: str, towns: dict[str, Town]) -> None:
    model = start(towns["train"])
    before = recall_1(model, towns["val"])
    # from random weights, unlike the paper: all layers are trained, by AdamW, and negatives are less hard
    knobs = recipe(name, epochs=10, optimizer="adamw", train_from="conv1", pool=20, refresh_every=25, seed=1)
    run = train(model, towns["train"], knobs, validation=towns["val"], progress=False)
    assert run.best.recall_1 > before
