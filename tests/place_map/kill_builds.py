"""Build a map in processes that are killed at random moments; a program of its own, run by test_killed_builds.py.

    python kill_builds.py PHOTOS MAP KILLS SEED

Every other process is killed from outside after a random time, the others kill themselves before a random SQL
statement, as the time between those is short. Each process writes a byte to a pipe after every transaction: so many
photos are acknowledged. Prints for each process that was killed how many photos were acknowledged and how many the map
then held, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.place_map.small_town import tiny_model

from sareloc.models.place_model import PlaceModel
from sareloc.place_map import open_map_file
from sareloc.place_map.building import build_map
from sareloc.place_map.map_file import MapFile

BATCH = 4


def die_before_statement(number: int) -> None:
    """This process kills itself before its SQL statement of that number, not counting those that only read."""
    connect, left = sqlite3.connect, [number]

    def count(statement: str) -> None:
        left[0] -= not statement.startswith("SELECT")
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect_and_count(*arguments: Any, **knobs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **knobs)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = connect_and_count  # type: ignore[assignment]


def build_and_acknowledge(model: PlaceModel, photos: Path, out: Path, pipe: int) -> None:
    add = MapFile.add

    def acknowledged(self: MapFile, *rows: object) -> int:
        count = add(self, *rows)  # type: ignore[arg-type]
        os.write(pipe, bytes([count]))
        return count

    MapFile.add = acknowledged  # type: ignore[method-assign]
    build_map(model, photos, out, batch=BATCH, progress=False)


def build_and_kill(
    model: PlaceModel, photos: Path, out: Path, rng: random.Random, from_outside: bool
) -> tuple[bool, int]:
    """Whether the process was killed before it ended, and how many photos it had acknowledged."""
    read, write = os.pipe()
    statement, batches, seconds = rng.randrange(1, 60), rng.randrange(3), rng.uniform(0, 0.03)
    child = os.fork()
    if child == 0:
        try:
            if not from_outside:
                die_before_statement(statement)
            build_and_acknowledge(model, photos, out, write)
        finally:
            os._exit(0)
    os.close(write)
    acknowledged = 0
    if from_outside:
        acknowledged = sum(sum(os.read(read, 1)) for _ in range(batches))
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    while rest := os.read(read, 100):
        acknowledged += sum(rest)
    _, status = os.waitpid(child, 0)
    os.close(read)
    return os.WIFSIGNALED(status), acknowledged


def main(photos: Path, out: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)  # a process with threads must not be forked
    model, rng = tiny_model(), random.Random(seed)
    total, log = 0, []
    while len(log) < kills:
        killed, acknowledged = build_and_kill(model, photos, out, rng, from_outside=len(log) % 2 == 0)
        total += acknowledged
        if not killed:
            break
        held = 0
        if out.exists():
            with open_map_file(out) as file:
                held = len(list(file.descriptors(file.photos()[0]))) and len(file.photos()[0])
                assert file.query("PRAGMA integrity_check") == [("ok",)]
        log.append({"acknowledged": total, "held": held})
    print(json.dumps(log))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
