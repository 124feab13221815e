"""Two processes over gloo end with the weights of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.training.two_ranks import LOSSES, trained

from sareloc.training.distributed import ProcessGroup

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_two_processes_end_where_one_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(
        [*command, "-m", "tests.training.two_ranks", str(tmp_path)], cwd=ROOT, env=environment, check=True, timeout=300
    )
    assert_both_end_where_one_process_does(tmp_path)


def assert_both_end_where_one_process_does(folder: Path) -> None:
    ranks = [load_file(folder / f"rank{r}.safetensors") for r in (0, 1)]
    for loss in LOSSES:
        for name, tensor in trained(loss).items():
            assert torch.equal(ranks[0][name], ranks[1][name]), name
            torch.testing.assert_close(ranks[0][name], tensor, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 7])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_shares_joined_in_order_are_the_whole(count: int, world: int) -> None:
    things = list(range(count))
    assert [t for rank in range(world) for t in things[ProcessGroup(rank, world).share(count)]] == things
