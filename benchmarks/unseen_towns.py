"""What models find in towns that they were not trained on, by whitenings that have not seen these towns either.

    python benchmarks/unseen_towns.py --data DATA --out OUT --height 288 --width 384 cam tm-lmk cam/shelf:0.3

A model is OUT/NAME.safetensors, as `train_released.py` leaves it, which also says what it was trained on;
"cam/shelf:0.3" takes 0.3 of its weights from another one that began like it. In a town that the model has not seen
every photo asks all others (but those at most a metre away); in one that it has seen, those of the validation part do.
The descriptors before whitening are projected to 512 dimensions by whitenings of all but the town that is judged:
fitted on the towns the model has seen ("trained"), on those it has not ("others"), or on both, each town counting the
same or each photo. Results are appended to OUT/unseen.jsonl, one line a whitening; the table is printed last.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pixel_sets import PixelSets, unmarked
from benchmarks.train_released import NEAR_M, begin_from

from sareloc.checkpoint import read_manifest
from sareloc.datasets import Places
from sareloc.models import fit_whitening
from sareloc.training.ranks import local_device

TOWNS = ("cambridge", "tmbud", "landmarks", "city")
DIMS = (512, 128)
SAME_PLACE_M = 1.0


@dataclass(frozen=True)
class Asked:
    """Photos of a town that ask each other: `may` (n, n) says which may answer, `right` and `near` which are right."""

    may: Tensor
    right: Tensor
    near: Tensor | None


def relations(parts: list[Places], device: torch.device) -> Asked:
    """Who may answer whom among all photos of these parts of a town, databases and queries alike."""
    photos = [photos for places in parts for photos in (places.database, places.queries)]
    others = ~torch.eye(sum(map(len, photos)), dtype=torch.bool, device=device)
    if parts[0].protocol == "place-id":
        ids = [row[0] for part in photos for row in part.place_ids or ()]
        label = torch.from_numpy(np.unique(ids, return_inverse=True)[1]).to(device)
        return Asked(others, others & (label[:, None] == label), None)
    metres = torch.from_numpy(np.concatenate([part.positions.metres[:, :2] for part in photos if part.positions]))
    apart = torch.cdist(metres.to(device), metres.to(device))
    others &= apart > SAME_PLACE_M
    return Asked(others, others & (apart <= parts[0].hit_radius_m), others & (apart <= NEAR_M))


def recalls(found: Tensor, asked: Asked) -> dict[str, float]:
    """Recall@1/5 in percent of those who can be answered, and @1 within `NEAR_M`."""
    unit = torch.nn.functional.normalize(found, dim=1)
    best = (unit @ unit.T).masked_fill(~asked.may, -2).topk(5, dim=1).indices
    answerable = asked.right.any(dim=1)
    hit = asked.right.gather(1, best)[answerable]
    shares = {"1": hit[:, 0], "5": hit.any(dim=1)}
    if asked.near is not None:
        shares["near"] = asked.near.gather(1, best[:, :1])[asked.near.any(dim=1)]
    return {name: round(100 * float(share.float().mean()), 2) for name, share in shares.items()}


Fitted = tuple[str, float, Tensor, Tensor]
"""What counted the same, the power, the mean, the projection."""


def projections(photos: list[Tensor], counts: list[str], powers: list[float]) -> Iterator[Fitted]:
    """Whitenings of every kind, fitted on the photos of some towns."""
    together = torch.cat(photos)
    alike = torch.cat([torch.full((len(part),), 1 / len(part), device=part.device) for part in photos])
    for counted in counts[:1] if len(photos) == 1 else counts:
        weights = {"towns": alike, "photos": torch.ones_like(alike)}[counted]
        fitted = fit_whitening(together, min(max(DIMS), len(together) // 2), power=0, weights=weights)
        shares = (weights / weights.sum())[:, None]
        strengths = (((together - fitted.mean) @ fitted.projection.T) ** 2 * shares).sum(dim=0)
        for power in powers:
            yield counted, power, fitted.mean, fitted.projection / strengths[:, None] ** (power / 2)


def judge(
    args: argparse.Namespace, sets: PixelSets, towns: list[str], text: str, related: dict[str, Asked]
) -> Iterator[dict]:
    """One record for each whitening of a model. `related` is filled as towns are asked for."""
    name, _, blend = text.partition("/")
    told = read_manifest(args.out / f"{name}.safetensors").training
    afresh = told["epochs"] == 0 and "start" not in told
    seen = [] if afresh else [unmarked(town).removesuffix("-train") for town in told["towns"]]
    model = begin_from(name, blend or None, args.out, (sets.height, sets.width))
    device = local_device()
    described = {
        f"{town}-{part}": model.encode(sets.pixels(f"{town}-{part}"), batch=64).to(device)
        for town, part in product(towns, ("train", "val"))
    }
    rng = np.random.default_rng(0)
    learned = {town: described[f"{town}-train"] for town in towns}
    learned = {town: x[np.sort(rng.permutation(len(x))[: args.photos])] for town, x in learned.items()}
    found: dict[tuple[str, str, float], dict] = {}
    for town in towns:
        parts = ["val"] if town in seen or town == "city" else ["train", "val"]
        key = "-".join([town, *parts])
        if key not in related:
            related[key] = relations([sets.places(f"{town}-{part}") for part in parts], device)
        whole = torch.cat([described[f"{town}-{part}"] for part in parts])
        found.setdefault(("none", "", 0.0), {})[key] = {str(whole.shape[1]): recalls(whole, related[key])}
        others = [other for other in towns if other != town]
        fits = {
            "trained": [other for other in others if other in seen],
            "others": [other for other in others if other not in seen],
            "both": others if seen else [],
        }
        for fit in [fit for fit in args.fits if fits[fit]]:
            if fit == "both" and others in (fits["trained"], fits["others"]):
                continue
            photos = [learned[other] for other in fits[fit]]
            for counted, power, mean, projection in projections(photos, args.count, args.powers):
                projected = (whole - mean) @ projection.T
                at = {str(dim): recalls(projected[:, :dim], related[key]) for dim in DIMS}
                found.setdefault((fit, counted, power), {})[key] = at
    for (fit, counted, power), by_town in found.items():
        yield {"model": text, "seen": seen, "fit": fit, "counted": counted, "power": power, "found": by_town}


def print_table(rows: list[dict]) -> None:
    """A line a whitening: recall@1/5 at 512 dimensions, @1 within 12.5 m, @1 at 128; whole towns are not seen."""
    for row in rows:
        cells = []
        for key, by_dim in row["found"].items():
            largest, smallest = (by_dim[dim] for dim in (max(by_dim, key=int), min(by_dim, key=int)))
            near = f" {largest['near']:.1f}" if "near" in largest else ""
            cells.append(f"{key} {largest['1']:.1f}/{largest['5']:.1f}{near} ({smallest['1']:.1f})")
        whitening = f"{row['fit']}, {row['counted']} alike, {row['power']}" if row["counted"] else "not whitened"
        print(f"| {row['model']} | {whitening} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="NAME, or NAME/OTHER:SHARE")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--height", type=int, default=288)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--city", default="medium")
    parser.add_argument("--city-seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--photos", type=int, default=1500, help="of each town that a whitening is fitted on")
    parser.add_argument("--fits", nargs="+", default=["trained", "others", "both"])
    parser.add_argument("--count", nargs="+", default=["towns", "photos"], help="what counts the same in a whitening")
    parser.add_argument("--powers", type=float, nargs="+", default=[0.5])
    args = parser.parse_args()
    size = (args.height, args.width)
    sets = PixelSets(args.data, args.out / f"{args.height}x{args.width}", *size, args.city, args.city_seed)
    towns = [town for town in TOWNS if f"{town}-train" in sets.loaders]
    sets.prepare([f"{town}-{part}" for town in towns for part in ("train", "val")], args.workers, local_device())
    related: dict[str, Asked] = {}
    rows = []
    for text in args.models:
        rows += list(judge(args, sets, towns, text, related))
        with (args.out / "unseen.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows if row["model"] == text)
    print_table(rows)


if __name__ == "__main__":
    main()
