"""A Ray cluster: joining one, or starting one on this machine, and running packets of photos through its workers."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from sareloc import __version__
from sareloc.errors import ArgumentError, SarelocError, need
from sareloc.place_map.cluster_packets import Done, read_done
from sareloc.place_map.cluster_worker import Describer, Work

SCHEME = "ray://"
HERE, RUNNING = "ray://local", "ray://auto"
STORE_BYTES = 256 * 2**20  # Ray's own default is a third of the memory; packets are small
TRIES = 10  # for a packet whose worker is lost again and again
BLOCKS = 10_000
ANSWER_S = 10.0


def check_address(address: str) -> None:
    """What is no address of a cluster is an ArgumentError that shows how one is written."""
    parts = urlsplit(address)
    if not address.startswith(SCHEME) or (address not in (HERE, RUNNING) and not (parts.hostname and parts.port)):
        raise ArgumentError(
            f"{address!r} is no address of a Ray cluster: write ray://host:10001, {RUNNING} on a machine of the "
            f"cluster, or {HERE} to start Ray here"
        )


@contextmanager
def joined(address: str, model_bytes: int) -> Iterator[Any]:
    """The module ray, connected; a process that has called `ray.init` stays with the cluster that it has."""
    check_address(address)
    ray = need("ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address == HERE:
            store = STORE_BYTES + 2 * model_bytes
            ray.init(address="local", include_dashboard=False, object_store_memory=store, **quiet)
        else:
            if address != RUNNING:  # Ray would wait for half a minute
                parts = urlsplit(address)
                socket.create_connection((str(parts.hostname), int(parts.port or 0)), ANSWER_S).close()
            ray.init(address="auto" if address == RUNNING else address, **quiet)
    except (OSError, RuntimeError, ValueError) as silent:
        raise SarelocError(
            f"no Ray cluster answers at {address} ({silent}): is it running, and its port open to this machine? "
            f"{HERE} starts one here"
        ) from silent
    try:
        yield ray
    finally:
        ray.shutdown()


def run_packets(ray: Any, packets: Sequence[str], checkpoint: bytes, work: Work) -> Iterator[Done]:
    """What became of each packet, in order, as the cluster's workers get them done.

    A worker that is lost loses nothing: its packet is done again, by itself when it is back or by another.
    """
    foreman = ray.remote(num_cpus=0)(Foreman).remote(list(packets), checkpoint, work)
    try:
        found = ray.get(foreman.version.remote())
        if found != __version__:
            raise SarelocError(f"the cluster has sareloc {found}, this is {__version__}: install the same on both")
        while (row := ray.get(foreman.next.remote())) is not None:
            yield read_done(row)
    except ray.exceptions.RayError as lost:
        raise SarelocError(
            f"the cluster gave up: {_reason(lost)}. What is in the map stays in it, and the same command goes on"
        ) from lost
    finally:
        ray.kill(foreman)


class Foreman:
    """Runs the workers, from inside the cluster: Ray Data does not work from a client outside of it."""

    def __init__(self, packets: list[str], checkpoint: bytes, work: Work) -> None:
        ray, data = need("ray", "ray"), need("ray.data", "ray")
        context = data.DataContext.get_current()
        context.execution_options.preserve_order = True  # of two photos with one content the first goes in
        context.enable_progress_bars = False
        rows = data.from_items(
            [{"packet": packet} for packet in packets], override_num_blocks=min(len(packets), BLOCKS)
        )
        self._rows = iter(
            rows.map(
                _RayDescriber,
                fn_constructor_args=(ray.put(checkpoint), work),
                **_workers(ray.nodes(), work.decoders),
                max_task_retries=TRIES,
            ).iter_rows()
        )

    def version(self) -> str:
        """Of the sareloc that is installed on the cluster."""
        return __version__

    def next(self) -> dict[str, Any] | None:
        """What became of the next packet; None after the last."""
        return next(self._rows, None)


class _RayDescriber(Describer):
    def __init__(self, checkpoint: Any, work: Work) -> None:
        super().__init__(need("ray", "ray").get(checkpoint), work)


def _workers(nodes: Sequence[dict[str, Any]], decoders: int) -> dict[str, Any]:
    """How many workers there are and what each takes: one for each GPU, else for so many cores as it has decoders."""
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
    """The last line of the innermost error: what went wrong, without the way that it came."""
    while (inner := getattr(lost, "cause", None) or lost.__cause__) is not None:
        lost = inner
    return (str(lost).strip() or type(lost).__name__).splitlines()[-1]
