"""Run by torchrun in a test: train the tiny town and save the weights of this rank."""

import sys
from dataclasses import replace

from safetensors.torch import save_file
from tests.training.test_training_loop import QUICK
from tests.training.tiny_town import tiny_model, tiny_town

from sareloc.training import train
from sareloc.training.ranks import local_device, start_ranks

if __name__ == "__main__":
    out, loss = sys.argv[1:]
    model = tiny_model()
    # 3 tuples a step over 2 ranks, 40 tuples in blocks of 20: some steps leave the second rank nothing to do
    train(model, tiny_town(), replace(QUICK, loss=loss, epochs=2, tuples_per_step=3, tuples_at_once=1), progress=False)
    rank = start_ranks(local_device()).rank
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, f"{out}/rank{rank}.safetensors")
