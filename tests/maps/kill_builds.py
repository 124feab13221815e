"""Build a map in processes that are killed at many moments; a program of its own, run by test_killed_builds.py.

    python kill_builds.py PHOTOS MAP KILLS SEED

Nothing here depends on the clock. A process may write only as many batches as it was given tokens for. Every other
process is killed from outside as soon as it has acknowledged some batches, while it works on the next or waits for a
token; the others kill themselves before a random SQL statement. Each process writes a byte to a pipe after every
transaction: so many photos are acknowledged. Prints for each process how many photos were acknowledged so far and how
many the map then held, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import faiss
import torch
from tests.kills import before_statements, die_at
from tests.maps.small_town import build_map, tiny_model

import sareloc.encode
from sareloc.localize import localizer
from sareloc.maps import MapFile, open_map_file
from sareloc.models import PlaceModel, fused

LOADED = (faiss, fused, localizer, sareloc.encode)
"""Loaded once, before processes are forked."""

BATCH = 4
MOST_BATCHES = 3
"""That a process killed from outside can write."""
MOST_STATEMENTS = 40
"""That a process runs before it kills itself; a photo takes two or more."""


def enough_photos(kills: int) -> int:
    """So many photos that so many killed processes cannot have written all of them."""
    return (kills + 1) // 2 * (MOST_BATCHES * BATCH + MOST_STATEMENTS // 2) + BATCH


def build_and_acknowledge(model: PlaceModel, photos: Path, out: Path, tokens: int, acknowledgements: int) -> None:
    """Build a map; each batch takes a byte from one pipe before it is written and puts one into the other after."""
    add = MapFile.add

    def acknowledged(self: MapFile, *rows: object) -> int:
        os.read(tokens, 1)
        count = add(self, *rows)  # type: ignore[arg-type]
        os.write(acknowledgements, bytes([count]))
        return count

    MapFile.add = acknowledged  # type: ignore[method-assign]
    build_map(photos, out, model, batch=BATCH, progress=False)


def build_and_kill(model: PlaceModel, photos: Path, out: Path, rng: random.Random, from_outside: bool) -> int:
    """How many photos a process acknowledged before it was killed."""
    (token, give), (read, acknowledge) = os.pipe(), os.pipe()
    statement, batches = rng.randrange(1, MOST_STATEMENTS + 1), rng.randrange(MOST_BATCHES)
    child = os.fork()
    if child == 0:
        os.close(give)
        try:
            if not from_outside:
                before_statements(die_at(statement))
            build_and_acknowledge(model, photos, out, token, acknowledge)
        finally:
            os._exit(1)  # it was meant to be killed
    for end in (token, acknowledge):
        os.close(end)
    os.write(give, bytes(batches + 1 if from_outside else MOST_STATEMENTS))
    acknowledged = 0
    if from_outside:
        acknowledged = sum(sum(os.read(read, 1)) for _ in range(batches))
        os.kill(child, signal.SIGKILL)
    while rest := os.read(read, 100):
        acknowledged += sum(rest)
    _, status = os.waitpid(child, 0)
    for end in (give, read):
        os.close(end)
    assert os.WIFSIGNALED(status), "the process ended before it was killed"
    return acknowledged


def kill_builds(photos: Path, out: Path, kills: int, seed: int) -> list[dict[str, int]]:
    """For each killed process how many photos were acknowledged so far, and how many the map then held."""
    torch.set_num_threads(1)  # a process with threads must not be forked
    model, rng = tiny_model(), random.Random(seed)
    total, log = 0, list[dict[str, int]]()
    for number in range(kills):
        total += build_and_kill(model, photos, out, rng, from_outside=number % 2 == 0)
        held = 0
        if out.exists():
            with open_map_file(out) as file:
                ids = file.photos()[0]
                held = sum(len(part) for part, _ in file.descriptors(ids))
                assert file.query("PRAGMA integrity_check") == [("ok",)]
        log.append({"acknowledged": total, "held": held})
    return log


if __name__ == "__main__":
    print(json.dumps(kill_builds(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
