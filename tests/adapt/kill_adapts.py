"""Adapt a map in processes that are killed at random moments; a program of its own, run by test_killed_adapts.py.

    python kill_adapts.py FOLDER KILLS SEED

FOLDER holds walls.gpkg and model.safetensors, by which it was built. A first process adapts the map and counts what it
writes: files that it opens to write, renames and removes, and SQL statements that do not only read. Each further one
kills itself before one of them, drawn from all, and a last one before one of the last ten, when the adapted map has its
name; then another one does the same work to its end. Prints for each kill what it left as JSON: the fields of `Found`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import faiss
import kornia
import numpy as np
import poselib
import pyproj
import scipy.optimize
import sympy
import torch
from tests.kills import before_file_operations, before_statements, die_at

import sareloc.adapt.adapt as adapting
from sareloc.adapt import training_data
from sareloc.errors import ArgumentError
from sareloc.maps import PlaceMap, verify_map
from sareloc.models import fused

LOADED = (faiss, fused, kornia.feature, poselib, pyproj, scipy.optimize, sympy)
"""Loaded once, before processes are forked; torch uses sympy."""


@dataclass(frozen=True)
class Found:
    """What a kill left, and what the next process made of it."""

    operation: int
    """Before which the process was killed; operations are numbered from 1."""
    of: int
    """Operations of the whole work."""
    killed: bool
    same: bool
    """The map and the model have the bytes that they had."""
    whole: bool
    """The map, and the adapted one if there is one, open, and `verify_map` finds nothing wrong."""
    written: bool
    """The adapted map exists after the kill already."""
    completed: bool
    """The next process wrote the same adapted map as the first one, or said that it exists, and left nothing else."""


def in_a_process(work: Callable[[], int | None]) -> tuple[int | None, int]:
    """The number that `work` gives in a process of its own, None if it gave none; and the signal that killed it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            os.write(write, str(work() or 0).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    return int(said) if said else None, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def adapt(folder: Path, out: Path, act: Callable[[], None]) -> None:
    """Adapt the map, whatever the gain is, and call `act` before everything that is written."""
    adapting.MIN_PAIRS, adapting.ANSWERED, adapting.FOLDS = 4, 2, 2
    training_data.RELIT = 8
    adapting.choose_step = lambda *given: (0.3, 1.25)
    adapting.objection = lambda gains, mean: None
    before_file_operations(act, writing=True)
    before_statements(act)
    adapting.adapt_map(folder / "walls.gpkg", out, model=folder / "model.safetensors", progress=False)


def count_operations(folder: Path, out: Path) -> int:
    counted = [0]

    def count() -> None:
        counted[0] += 1

    adapt(folder, out, count)
    return counted[0]


def is_whole(folder: Path, out: Path) -> bool:
    maps = [folder / "walls.gpkg", *([out / "walls.gpkg"] if out.exists() else [])]
    if out.exists():
        json.loads((out / adapting.REPORT).read_text())
    return not any(verify_map(path) for path in maps)


def complete(folder: Path, out: Path, expected: Path) -> bool:
    written = out.exists()
    try:
        adapt(folder, out, lambda: None)
    except ArgumentError:  # it exists
        return written and [path.name for path in out.parent.iterdir()] == [out.name]
    with PlaceMap(out / "walls.gpkg") as found, PlaceMap(expected / "walls.gpkg") as straight:
        same = np.allclose(found.descriptors(found.ids), straight.descriptors(straight.ids), atol=1e-3)
    left = [path.name for path in out.parent.iterdir()] == [out.name]
    return not written and same and left and not verify_map(out / "walls.gpkg")


def kill_adapts(folder: Path, kills: int, seed: int) -> list[Found]:
    """What each of so many kills left, and one more at the end."""
    torch.set_num_threads(1)  # a process with threads must not be forked
    rng = random.Random(seed)
    straight, out, found = folder / "straight", folder / "killed" / "out", list[Found]()
    of, _ = in_a_process(lambda: count_operations(folder, straight))
    assert of is not None
    files = [folder / "walls.gpkg", folder / "model.safetensors"]
    content = [file.read_bytes() for file in files]
    drawn = [rng.randrange(1, of + 1) for _ in range(kills)]
    for operation in (*drawn, rng.randrange(of - 9, of + 1)):
        out.parent.mkdir()
        _, signal_number = in_a_process(partial(adapt, folder, out, die_at(operation)))
        written = out.exists()
        same = content == [file.read_bytes() for file in files]
        whole, _ = in_a_process(lambda: int(is_whole(folder, out)))
        completed, _ = in_a_process(lambda: int(complete(folder, out, straight)))
        same = same and content == [file.read_bytes() for file in files]
        found.append(Found(operation, of, signal_number == 9, same, bool(whole), written, bool(completed)))
        shutil.rmtree(out.parent)
    return found


if __name__ == "__main__":
    print(json.dumps([asdict(one) for one in kill_adapts(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))]))
