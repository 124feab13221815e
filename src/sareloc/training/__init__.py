"""From datasets to a checkpoint: the paper's training loop, config and recipes; resumable, on one process or many.

    run = train(load_model("fast"), load_dataset("my-dataset/", split="train"), recipe("sare-joint", epochs=5))

`loop` has the training loop, its step and its optimizer, `tasks` what a step is made of, `mining` the tuples, `data`
the inputs, `start` a new model to start from.
"""

from typing import TYPE_CHECKING

from sareloc import lazy_names

if TYPE_CHECKING:
    from sareloc.training.config import RECIPES, TrainingConfig, config_text, read_config, recipe
    from sareloc.training.data import TensorInputs, TrainingSet, augment
    from sareloc.training.loop import Run, recall_of_descriptors, train
    from sareloc.training.mining import Neighbourhoods, Tuples, find_neighbourhoods, mine, no_memory
    from sareloc.training.run_folder import EpochRecord, RunFolder, RunState, best_epoch
    from sareloc.training.start import start_model

__all__ = [
    "RECIPES",
    "EpochRecord",
    "Neighbourhoods",
    "Run",
    "RunFolder",
    "RunState",
    "TensorInputs",
    "TrainingConfig",
    "TrainingSet",
    "Tuples",
    "augment",
    "best_epoch",
    "config_text",
    "find_neighbourhoods",
    "mine",
    "no_memory",
    "read_config",
    "recall_of_descriptors",
    "recipe",
    "start_model",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "config": "RECIPES TrainingConfig config_text read_config recipe",  # which are read without torch
        "data": "TensorInputs TrainingSet augment",
        "loop": "Run recall_of_descriptors train",
        "mining": "Neighbourhoods Tuples find_neighbourhoods mine no_memory",
        "run_folder": "EpochRecord RunFolder RunState best_epoch",
        "start": "start_model",
    },
)
