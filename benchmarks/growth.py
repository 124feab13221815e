"""Growth of mining, search and map building with the number of photos and of negatives: times and exponents.

    python -m benchmarks.growth                       # 1,000 to 1,000,000 photos: 1 GB of disk, 2 GB of memory
    python -m benchmarks.growth --photos 1000 10000

Descriptors have 256 dimensions, at half precision: for mining random ones, for maps those of drawn_descriptors.py. The
city has a constant density (20 photos within 25 m), with a query for every ten photos of the database, as the field's
training sets have them. Mining is timed for 256 of the queries, with the paper's pool of 1,000, or 10 for each negative
where that is more. Maps are built, opened for the first time and searched as `benchmarks.map` does, each in a process
of its own. Every time is the shortest of three, or the median of many queries.

Exponents e of time ~ photos^e are fitted over all sizes, and over the last two, where constant costs matter least.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.drawn_descriptors import draw
from benchmarks.map import HITS, WALKS, in_a_process, timed
from benchmarks.measuring import about, memory_mb
from torch import Tensor

from sareloc.datasets import PhotoSet, Places
from sareloc.evaluation.ranking import search
from sareloc.geo import Positions
from sareloc.index import ExactIndex
from sareloc.losses import make_loss
from sareloc.training import find_neighbourhoods, mine, no_memory

WALK = "streets-256"
DIM = WALKS[WALK].dim
MINED, REMEMBERED, POOL = 256, 10, 1000
NEAR_25_M = 20
ASKED = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--photos", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--negatives", type=int, nargs="+", default=[10, 100, 1000])
    args = parser.parse_args()
    rows = []
    for photos in args.photos:
        row = {"photos": photos, **mining(photos, args.negatives), **exact_search(photos), **of_a_map(photos)}
        rows.append(row | {"peak_mb": memory_mb("VmHWM")})
        print(json.dumps(rows[-1]), flush=True)
    measures = [name for name in rows[0] if name.endswith(("_ms", "_s"))]
    print(f"{'':28s}" + "".join(f"{photos:>12,d}" for photos in args.photos) + "   exponent  at the end")
    exponents = {}
    for name in measures:
        values = [row[name] for row in rows]
        exponents[name] = [exponent(args.photos, values), exponent(args.photos[-2:], values[-2:])]
        print(f"{name:28s}" + "".join(f"{v:12.3f}" for v in values) + "".join(f"{e:11.2f}" for e in exponents[name]))
    losses = {n: of_a_loss(n) for n in args.negatives}
    in_negatives = exponent(args.negatives, list(losses.values()))
    shown = ", ".join(f"{n}: {ms:.3f} ms" for n, ms in losses.items())
    print(f"sare-ind of 4 tuples, forward and backward, by negatives: {shown}; exponent {in_negatives:.2f}")
    found = {"rows": rows, "exponents": exponents, "loss_ms": losses, "loss_exponent": in_negatives}
    print(json.dumps({**about(), "dim": DIM, **found}))


def exponent(sizes: list[int], values: list[float]) -> float:
    """The exponent e of value ~ size^e."""
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 3)


def best_ms(call: Callable[[], object]) -> float:
    """Milliseconds of the fastest of three calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return round(min(times), 4)


def draw_town(photos: int) -> Places:
    """A square town of this density, with a tenth as many queries."""
    rng = np.random.default_rng(0)
    side_m = (photos * np.pi * 25**2 / NEAR_25_M) ** 0.5
    database, queries = (
        PhotoSet(Path(), tuple(map(str, range(count))), Positions.from_local(rng.uniform(0, side_m, (count, 2))))
        for count in (photos, photos // 10)
    )
    return Places("square", "train", database, queries)


def half_unit(count: int, rng: torch.Generator) -> Tensor:
    out = torch.empty(count, DIM, dtype=torch.float16)
    for part in torch.split(out, 1 << 16):
        part.copy_(F.normalize(torch.randn(part.shape, generator=rng), dim=1))
    return out


def mining(photos: int, negatives: list[int]) -> dict[str, float]:
    town = draw_town(photos)
    queries = len(town.queries)
    found: dict[str, float] = {"neighbourhoods_s": best_ms(lambda: find_neighbourhoods(town)) / 1e3}
    near = find_neighbourhoods(town)
    rng = torch.Generator().manual_seed(0)
    database = half_unit(photos, rng)
    asked = near.trainable[:MINED]
    descriptors = half_unit(len(asked), rng)
    memory = no_memory(queries, REMEMBERED)
    for n in negatives:
        pool = max(POOL, 10 * n)

        def work(n: int = n, pool: int = pool) -> object:
            return mine(asked, descriptors, database, near, memory, pool=pool, negatives=n, seed=0)

        found[f"mine_{n}_negatives_ms"] = round(best_ms(work) / len(asked), 4)
    return found


def exact_search(photos: int) -> dict[str, float]:
    """Milliseconds to compare a query with all: alone, by the map's exact index; in a lot, as evaluation does."""
    database, queries = draw(WALKS[WALK], photos, ASKED, np.random.default_rng(0))
    index = ExactIndex(DIM)
    index.upsert(np.arange(photos), database)
    return {
        "exact_one_query_ms": timed(lambda i: index.search(queries[i : i + 1], HITS), ASKED)["p50"],
        "evaluation_query_ms": round(best_ms(lambda: search(database, queries, HITS)) / ASKED, 4),
    }


def of_a_map(photos: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = in_a_process("make", folder, photos, WALK)
        found = made | in_a_process("first_open", folder) | in_a_process("search", folder)
    return {
        "write_map_s": round(photos / found["rows_written_per_s"], 4),
        "first_open_s": found["first_open_s"],
        "open_s": found["open_s"],
        "map_one_query_ms": found["one_query_ms"]["p50"],
        "map_query_of_32_ms": round(found["batch_of_32_ms"]["p50"] / 32, 4),
        "engine": found["kind"],
        "recall_at_10": found["recall_at_10"],
    }


def of_a_loss(negatives: int) -> float:
    rng = torch.Generator().manual_seed(0)
    loss = make_loss("sare-ind")
    query, positive, others = (
        F.normalize(torch.randn(4, *shape, DIM, generator=rng), dim=-1).requires_grad_()
        for shape in ((), (), (negatives,))
    )
    return best_ms(lambda: loss(query, positive, others).sum().backward())


if __name__ == "__main__":
    main()
