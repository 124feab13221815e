"""From places to a checkpoint: the paper's training, its config and recipes, resumable, on one process or many."""

from sareloc.training.config import RECIPES, TrainingConfig, recipe
from sareloc.training.loop import Run, train
from sareloc.training.run_folder import EpochRecord

__all__ = ["RECIPES", "EpochRecord", "Run", "TrainingConfig", "recipe", "train"]
