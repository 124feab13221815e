"""A Ray cluster: connecting to one, or starting one on this machine, and running packets of photos through it."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any
from urllib.parse import urlsplit

from sareloc import __version__
from sareloc.cluster.worker import Done, PacketEncoder, Work, read_done, write_done
from sareloc.errors import ArgumentError, SarelocError, need
from sareloc.maps.examine import Tally

SCHEME = "ray://"
HERE, RUNNING = "ray://local", "ray://auto"
STORE_BYTES = 256 * 2**20  # Ray's own default is a third of the memory; packets are small
TRIES = 10  # of a packet whose worker is lost
HEAD = "node:__internal_head__"  # Ray's name of the machine that runs the cluster
BLOCKS = 10_000
ANSWER_S = 10.0
FAILED = "failed"
GO_ON = "The photos in the map are kept: repeat the command to continue"


def check_address(address: str) -> None:
    """Raise ArgumentError unless this is the address of a cluster."""
    try:
        server = urlsplit(address)
        complete = address in (HERE, RUNNING) or bool(server.hostname and server.port)
    except ValueError:  # an invalid port
        complete = False
    if not address.startswith(SCHEME) or not complete:
        raise ArgumentError(
            f"{address!r} is not an address of a Ray cluster: write ray://host:10001, {RUNNING} on a machine of the "
            f"cluster, or {HERE} to start Ray here"
        )


@contextmanager
def joined(address: str, model_bytes: int) -> Iterator[Any]:
    """The module ray, connected; a process that has called `ray.init` uses the cluster that it is connected to.

    Ray prints about its workers: here to standard error, as a program may read standard output.
    """
    check_address(address)
    ray = need("ray", "ray")
    if ray.is_initialized():
        with redirect_stdout(sys.stderr):
            yield ray
        return
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address == HERE:
            store = STORE_BYTES + 2 * model_bytes
            ray.init(address="local", include_dashboard=False, object_store_memory=store, **quiet)
        else:
            if address != RUNNING:  # Ray itself would wait for half a minute
                parts = urlsplit(address)
                socket.create_connection((str(parts.hostname), int(parts.port or 0)), ANSWER_S).close()
            ray.init(address="auto" if address == RUNNING else address, **quiet)
    except (OSError, RuntimeError, ValueError) as silent:
        raise SarelocError(
            f"no Ray cluster answers at {address} ({silent}): is it running, and its port open to this machine? "
            f"{HERE} starts one here"
        ) from silent
    with redirect_stdout(sys.stderr):
        try:
            yield ray
        finally:
            ray.shutdown()


def run_packets(ray: Any, packets: Sequence[str], checkpoint: bytes, work: Work) -> Iterator[Done]:
    """The result of each packet, in order, as the workers finish them.

    The packet of a lost worker is processed again.

    Args:
        ray: the module, connected to a cluster.
        packets: the records of the images to encode, as text.
        checkpoint: the content of the model's checkpoint file.
        work: the settings of the workers.
    """
    # on the head node, without which there is no cluster: other machines may be lost
    on_head = ray.remote(num_cpus=0, resources={HEAD: 0.001})
    workers = on_head(WorkerPool).remote(list(packets), checkpoint, work)
    try:
        found = ray.get(workers.version.remote())
        if found != __version__:
            raise SarelocError(f"the cluster has sareloc {found}, this is {__version__}: install the same on both")
        while (row := ray.get(workers.next.remote())) is not None:
            if row[FAILED]:
                raise SarelocError(f"a worker stopped: {row[FAILED]}. {GO_ON}")
            yield read_done(row)
    except ray.exceptions.RayError as lost:
        raise SarelocError(f"the cluster failed: {_reason(lost)}. {GO_ON}") from lost
    finally:
        ray.kill(workers)


class WorkerPool:
    """Runs the workers, as an actor inside the cluster: Ray Data does not work from a client outside of it.

    Args:
        packets: as for `run_packets`.
        checkpoint: as for `run_packets`.
        work: as for `run_packets`.
    """

    def __init__(self, packets: list[str], checkpoint: bytes, work: Work) -> None:
        ray, data = need("ray", "ray"), need("ray.data", "ray")
        context = data.DataContext.get_current()
        context.execution_options.preserve_order = True  # of two photos with the same content the first is added
        context.enable_progress_bars = False
        rows = data.from_items(
            [{"packet": packet} for packet in packets], override_num_blocks=min(len(packets), BLOCKS)
        )
        self._rows = iter(
            rows.map(
                _RayEncoder,
                fn_constructor_args=(ray.put(checkpoint), work),
                **_workers(ray.nodes(), work.config.workers),
                max_task_retries=TRIES,
            ).iter_rows()
        )

    def version(self) -> str:
        """The version of sareloc on the cluster."""
        return __version__

    def next(self) -> dict[str, Any] | None:
        """The result of the next packet; None after the last."""
        return next(self._rows, None)


class _RayEncoder:
    """A worker that returns errors as rows: Ray would retry after an exception, and print its traceback."""

    def __init__(self, checkpoint: Any, work: Work) -> None:
        self._checkpoint, self._work = checkpoint, work
        self._encoder: PacketEncoder | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            if self._encoder is None:
                self._encoder = PacketEncoder(need("ray", "ray").get(self._checkpoint), self._work)
            return {**self._encoder(row), FAILED: ""}
        except SarelocError as error:
            return {**write_done(Done("", Tally())), FAILED: str(error)}


def _workers(nodes: Sequence[dict[str, Any]], decoders: int) -> dict[str, Any]:
    """The number of workers and their resources: one for each GPU, else one for each `decoders` cores."""
    pool = need("ray.data", "ray").ActorPoolStrategy
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = sum(int(node.get("GPU", 0)) for node in alive)
    if gpus:
        return {"compute": pool(size=gpus), "num_cpus": 1, "num_gpus": 1}
    cores = min(max(1, decoders), max(int(node.get("CPU", 0)) for node in alive))
    count = sum(int(node.get("CPU", 0)) // cores for node in alive) if cores else 0
    if not count:
        raise SarelocError("no machine of the cluster has a core or a GPU for a worker")
    return {"compute": pool(size=count), "num_cpus": cores}


def _reason(lost: BaseException) -> str:
    """The last line that names an error other than Ray's: the cause, without the traceback."""
    lines = str(lost).strip().splitlines() or [type(lost).__name__]
    return next((line for line in reversed(lines) if re.match(r"(?!ray\.)[\w.]+(Error|Exception)\b", line)), lines[-1])
