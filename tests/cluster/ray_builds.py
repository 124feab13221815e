"""Build a map on a Ray cluster of two workers of which one is lost in the middle; run by test_ray_cluster.py.

    python -m tests.cluster.ray_builds PHOTOS MAP TEMP worker|machine|errors

"worker" kills the process of a worker that is at work as soon as the first photos are in the map, "machine" the node
that it runs on. Prints the report as JSON, with the workers that were lost. "errors" prints, as JSON, what is said of
workers that cannot open the map, and of a packet that nobody can read.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sareloc.cluster.build import build_map_on_cluster, checkpoint_of
from sareloc.cluster.ray import run_packets
from sareloc.cluster.worker import Work, list_records, packets_of
from sareloc.errors import SarelocError
from sareloc.maps import MapConfig, MapFile, MapManifest
from sareloc.models import PlaceModel, make_model
from sareloc.photos import ViewOptions

STORE_BYTES = 100 * 2**20
DEADLINE_S = 60


def busy_model() -> PlaceModel:
    """Takes long enough for a photo that much is left to do when the first packet is written."""
    return make_model("alexnet", "avg", size=(288, 288), rng=torch.Generator().manual_seed(1), name="busy")


def workers(title: bytes = b"ray::MapWorker") -> set[int]:
    """The processes of this machine that hold the model; while they work, Ray adds ".submit" to their title."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().rstrip(b"\0 ").startswith(title):
                found.add(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def wait_for(question: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (answer := question()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
    return answer


def kill_worker() -> set[int]:
    busy = wait_for(lambda: workers(b"ray::MapWorker(Map(_RayEncoder)).submit"))
    os.kill(min(busy), signal.SIGKILL)
    return {min(busy)}


def said(ray: Any, photos: Path, out: str | None) -> str:
    model = busy_model()
    manifest = MapManifest(model.name, model.fingerprint(), model.dim)
    packet = packets_of(list_records(photos, None)[0], 100)[0] if out else "no packet"
    config = MapConfig(keypoints=0, views=ViewOptions(), batch=2)
    try:
        list(run_packets(ray, [packet], checkpoint_of(model), Work(str(out), out is not None, manifest, config)))
    except SarelocError as error:
        return str(error)
    return "nothing"


def main(photos: str, out: str, temp: str, lose: str) -> None:
    import ray
    from ray.cluster_utils import Cluster

    quiet: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    actions: dict[str, Callable[[], set[int]]] = {"worker": kill_worker}
    machines = None
    if lose == "machine":
        machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": temp} | quiet)
        nodes = [machines.add_node(num_cpus=1, object_store_memory=STORE_BYTES) for _ in range(2)]
        machines.wait_for_nodes()
        ray.init(address=machines.address, log_to_driver=False, logging_level="ERROR")

        def lose_machine() -> set[int]:
            before = workers()
            machines.remove_node(nodes[0], allow_graceful=False)
            return wait_for(lambda: before - workers())

        actions["machine"] = lose_machine
    else:
        ray.init(num_cpus=2, _temp_dir=temp, log_to_driver=False, logging_level="ERROR", **quiet)
    if lose == "errors":
        print(json.dumps([said(ray, Path(photos), str(Path(out).parent / "none.gpkg")), said(ray, Path(photos), None)]))
        ray.shutdown()
        return
    lost: set[int] = set()
    add = MapFile.add

    def add_and_lose(self: MapFile, *rows: Any) -> int:
        count = add(self, *rows)
        if not lost:
            lost.update(actions[lose]())
        return count

    MapFile.add = add_and_lose  # type: ignore[method-assign]
    config = MapConfig(packet=3, batch=2, keypoints=0, progress=False)
    report = build_map_on_cluster(photos, out, busy_model(), cluster="ray://local", config=config)
    ray.shutdown()
    if machines is not None:
        machines.shutdown()
    print(json.dumps(asdict(report) | {"unreadable": [str(e) for e in report.unreadable], "lost": sorted(lost)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
