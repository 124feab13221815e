"""Two processes over gloo end with the weights of one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.training.test_training_loop import QUICK
from tests.training.tiny_town import tiny_model, tiny_town

from sareloc.training import train
from sareloc.training.ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("loss", ["sare-joint", "triplet", "geo-classification"])
def test_two_processes_end_where_one_does(loss: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["-m", "tests.training.two_ranks", str(tmp_path), loss]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    alone = tiny_model()
    train(alone, tiny_town(), replace(QUICK, loss=loss, epochs=2, tuples_per_step=3, tuples_at_once=1), progress=False)
    ranks = [load_file(tmp_path / f"rank{r}.safetensors") for r in (0, 1)]
    for name, tensor in alone.state_dict().items():
        assert torch.equal(ranks[0][name], ranks[1][name])
        torch.testing.assert_close(ranks[0][name], tensor, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 7])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_shares_joined_in_order_are_the_whole(count: int, world: int) -> None:
    things = list(range(count))
    assert [t for rank in range(world) for t in things[Ranks(rank, world).share(count)]] == things
