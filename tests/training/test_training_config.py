"""TrainingConfig checks itself; its defaults and recipes are the paper's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sareloc.config_files import option_docs
from sareloc.errors import ArgumentError
from sareloc.losses import LOSSES
from sareloc.models.preprocess import MIN_SIDE_PX
from sareloc.training import RECIPES, TrainingConfig, recipe
from sareloc.training.loop import learning_rate, warmup


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"margin": 0.2}, ("sare-ind", "margin", "triplet, contrastive, lifted")),
        ({"loss": "triplet", "kernel": "cauchy"}, ("triplet", "kernel", "sare-ind, sare-joint")),
        ({"loss": "triplet", "kernel_width": 2}, ("triplet", "kernel_width", "sare-ind, sare-joint")),
        ({"loss": "geo-classification", "margin": 1}, ("geo-classification", "margin", "triplet")),
        ({"kernel_width": 0}, ("kernel_width", "above 0")),
        ({"batch": 0}, ("batch", "at least 1")),
        ({"negatives": 0}, ("negatives", "at least 1")),
        ({"lr": 0}, ("lr", "above 0")),
        ({"lr": math.nan}, ("lr", "nan")),
        ({"weight_decay": math.inf}, ("weight_decay", "inf")),
        ({"cell_m": 0}, ("cell_m", "above 0")),
        ({"height": 0, "width": 0}, ("height", "at least 64")),
        ({"whitening_photos": 1}, ("whitening_photos", "at least 2")),
        ({"seed": 2**70}, ("seed", "2^63")),
        ({"lr": -1}, ("lr", "negative")),
        ({"positive_radius_m": 30}, ("positive_radius_m", "30")),
        ({"loss": "sare"}, ("loss 'sare'", "sare-ind")),
        ({"crop": 1.5}, ("crop", "0 to 1")),
        ({"light": 1.5}, ("light", "0 to 1")),
        ({"whitening": "learned", "dim": 0}, ("whitening", "dim")),
        ({"light": 0.5, "keep": "features"}, ("keep", "light")),
        ({"height": 96}, ("height", "width")),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError) as refused:
        TrainingConfig(**options)
    for word in words:
        assert word in str(refused.value)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="netvlad"):
        recipe("sare")


def test_a_config_is_checked_without_running_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(query: object, positive: object, negatives: object, *, margin: float = 0.1) -> None:
        raise AssertionError

    monkeypatch.setitem(LOSSES, "triplet", never)
    assert TrainingConfig(loss="triplet", margin=0.3).loss_options() == {"margin": 0.3}


def test_every_option_is_documented() -> None:
    docs = option_docs(TrainingConfig)
    assert all(docs[name].endswith(".") for name in TrainingConfig.__dataclass_fields__)


def test_the_papers_values_are_the_defaults() -> None:
    config = TrainingConfig()
    assert (config.tuples_per_step, config.negatives, config.pool, config.remembered) == (4, 10, 1000, 10)
    assert (config.positive_min_m, config.positive_radius_m, config.negative_radius_m) == (1, 10, 25)
    assert (config.optimizer, config.lr, config.momentum, config.weight_decay) == ("sgd", 0.001, 0.9, 0.001)
    assert (config.refresh_every, config.halve_every, config.epochs, config.reduction) == (1000, 5, 30, "pairs")


def test_geo_classification_has_the_papers_learning_rate_for_pitts250k() -> None:
    """The paper trains it, and no other loss, on Pitts250k-train, with a learning rate of 0.0001."""
    assert recipe("geo-classification").lr == 0.0001
    assert recipe("geo-classification", lr=0.01).lr == 0.01
    assert all(recipe(name).lr == 0.001 for name in RECIPES if name != "geo-classification")


def test_an_unknown_loss_lists_all_that_can_be_trained() -> None:
    with pytest.raises(ArgumentError, match=r"unknown loss 'sare': known are .*geo-classification.*sare-ind"):
        TrainingConfig(loss="sare")


def test_only_the_triplet_prunes_by_its_margin() -> None:
    assert recipe("netvlad").mining_margin == 0.1
    assert recipe("netvlad", margin=0.3).mining_margin == 0.3
    assert all(recipe(n).mining_margin is None for n in RECIPES if n not in {"netvlad", "crn"})


def test_the_learning_rate_rises_linearly_in_the_warm_up() -> None:
    config = TrainingConfig(warmup_steps=4)
    assert [warmup(config, step) for step in (0, 1, 3, 4, 400)] == [0.25, 0.5, 1, 1, 1]
    assert warmup(TrainingConfig(), 0) == 1


def test_learning_rate_halves_and_the_refresh_interval_doubles() -> None:
    config = TrainingConfig()
    assert [learning_rate(config, e) for e in (0, 4, 5, 10)] == [0.001, 0.001, 0.0005, 0.00025]
    assert [config.refresh_every << config.halvings(e) for e in (0, 5, 10)] == [1000, 2000, 4000]
    cosine = TrainingConfig(schedule="cosine", epochs=10)
    assert learning_rate(cosine, 5) == pytest.approx(0.0005)


def test_the_least_size_is_that_of_the_models() -> None:
    TrainingConfig(height=MIN_SIDE_PX, width=MIN_SIDE_PX)
    with pytest.raises(ArgumentError, match="height"):
        TrainingConfig(height=MIN_SIDE_PX - 1, width=MIN_SIDE_PX)
