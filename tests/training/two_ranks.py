"""Run by torchrun in a test: train the tiny dataset and save the weights of this rank."""

import sys
from dataclasses import replace

from safetensors.torch import save_file
from tests.training.test_training_loop import QUICK
from tests.training.tiny_dataset import tiny_dataset, tiny_model
from torch import Tensor

from sareloc.training import train
from sareloc.training.distributed import join_process_group, local_device

LOSSES = ("sare-joint", "triplet", "geo-classification")


def trained(loss: str) -> dict[str, Tensor]:
    """The weights after two short epochs.

    3 tuples a step over 2 ranks and 40 tuples in blocks of 20: some steps leave the second rank nothing to do.
    """
    model = tiny_model()
    config = replace(QUICK, loss=loss, epochs=2, tuples_per_step=3, tuples_at_once=1)
    train(model, tiny_dataset(), config, progress=False)
    return {f"{loss} {name}": tensor.contiguous() for name, tensor in model.state_dict().items()}


if __name__ == "__main__":
    weights = {name: tensor for loss in LOSSES for name, tensor in trained(loss).items()}
    save_file(weights, f"{sys.argv[1]}/rank{join_process_group(local_device()).rank}.safetensors")
