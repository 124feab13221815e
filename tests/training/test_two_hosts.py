"""Two hosts, each with its own torchrun as docs/scale.md has it, end with the weights of one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.training.test_many_processes import assert_both_end_where_one_process_does

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@pytest.mark.slow
def test_two_hosts_end_where_one_process_does(tmp_path: Path) -> None:
    """The hosts are two agents on loopback that know nothing of one another but an address."""
    meet = f"127.0.0.1:{free_port()}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={meet}", "--rdzv-id=dataset", "--local-addr=127.0.0.1")
    agent = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meeting)
    hosts = [
        subprocess.Popen(
            [*agent, f"--node-rank={number}", "-m", "tests.training.two_ranks", str(tmp_path)],
            cwd=ROOT,
            env=environment,
        )
        for number in (1, 0)  # the one that others wait for need not be the first to start
    ]
    try:
        assert [host.wait(300) for host in hosts] == [0, 0]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert_both_end_where_one_process_does(tmp_path)
