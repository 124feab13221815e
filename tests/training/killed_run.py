"""Run by a test that kills it: train the tiny dataset into a folder, going on with what is there."""

import sys
from dataclasses import replace

import torch
from tests.training.test_training_loop import QUICK
from tests.training.tiny_dataset import tiny_dataset, tiny_model

from sareloc.training import train

if __name__ == "__main__":
    torch.set_num_threads(1)
    train(tiny_model(), tiny_dataset(), replace(QUICK, epochs=3), out=sys.argv[1], resume=True, progress=False)
