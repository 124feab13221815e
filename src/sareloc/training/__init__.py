"""From datasets to a checkpoint: the paper's training loop, config and recipes; resumable, on one process or many."""

from sareloc.training.config import RECIPES, TrainingConfig, config_text, read_config, recipe
from sareloc.training.loop import Run, train
from sareloc.training.run_folder import EpochRecord

__all__ = ["RECIPES", "EpochRecord", "Run", "TrainingConfig", "config_text", "read_config", "recipe", "train"]
