"""What the projection of a trained model costs, and whether another one would find more: no projection, powers, photos.

    python benchmarks/projections.py CHECKPOINT --data DATA --out projections

The model's descriptors before its whitening, of the real validation sets and of photos it was trained on (--photos of
each set, --city-photos of the drawn town), are kept in OUT. Whitenings to 512 dimensions are fitted on the latter with
several powers, with and without the drawn town, and after signed powers of the numbers (sign(x) |x|^a, a = 1: none).
Prints recall@1/5 on each validation set and their means at 512, 256 and 128 dimensions. Then the same for towns not
seen: each validation set by a whitening that was fitted on the other towns, in several ways.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pixel_sets import PixelSets, read_pixels

from sareloc.checkpoint import load_model
from sareloc.datasets import Places
from sareloc.datasets.city import city_places, draw_pixels
from sareloc.evaluation import evaluate_rankings, search
from sareloc.localize.centring import centred
from sareloc.models import PlaceModel, fit_whitening
from sareloc.models.whitening import Whitening
from sareloc.training.ranks import local_device

VALIDATION = ("cambridge-val", "tmbud-val", "landmarks-val")
REAL = ("tmbud-train", "landmarks-train", "cambridge-train")
TOWN = "city-train"
DIMS = (512, 256, 128)


def describe(model: PlaceModel, sets: PixelSets, name: str, count: int | None, rng: np.random.Generator) -> Tensor:
    """Descriptors of a set's photos, or of so many of them; drawn at random before anything is read, and kept."""
    kept = sets.out / f"raw-{name}.npy"
    town = city_places(1, "medium", "train") if name == TOWN else None
    places = town.places if town else sets.places(name)
    total = len(places.database) + (0 if town else len(places.queries))
    rows = np.arange(total) if count is None or count >= total else np.sort(rng.choice(total, count, replace=False))
    if not kept.exists():
        if town:
            pixels = draw_pixels(town, sets.height, sets.width, rows=rows.tolist())
        else:
            pixels = torch.from_numpy(read_pixels(places, sets.height, sets.width, workers=0)[rows])
        np.save(kept, model.encode(pixels, batch=4).half().numpy())
    return torch.from_numpy(np.load(kept)).float()


def signed_power(x: Tensor, exponent: float) -> Tensor:
    return torch.nn.functional.normalize(x.sign() * x.abs() ** exponent, dim=1)


def judge(described: dict[str, Tensor], places: dict[str, Places]) -> str:
    """One line: each set's recall@1/5 and the means, at every dimension."""
    whole = next(iter(described.values())).shape[1]
    cells = []
    for dim in [whole] if whole > max(DIMS) else DIMS:
        found = []
        for name, vectors in described.items():
            unit, count = torch.nn.functional.normalize(vectors[:, :dim], dim=1).numpy(), len(places[name].database)
            rankings, _ = search(unit[:count], unit[count:], min(count, 100), device=local_device())
            recall = evaluate_rankings(places[name], rankings, ns=(1, 5)).recall
            found.append((recall[1], recall[5]))
        means = np.mean(found, axis=0)
        sets = " ".join(f"{one:.1f}/{five:.1f}" for one, five in found)
        cells.append(f"{dim}: {sets}, {means[0]:.1f}/{means[1]:.1f}")
    return "  ".join(cells)


Way = Callable[[list[Tensor], Tensor, int], Tensor]
"""Descriptors of each town to fit on, those of a set and how many of them are its database -> the set's, projected."""


def whitened(power: float, *, share: float = 1.0, signed: float = 1.0) -> Way:
    """By a whitening of this power, fitted on a share of the photos, after signed powers of the numbers."""

    def project(learned: list[Tensor], asked: Tensor, database: int) -> Tensor:
        photos = torch.cat(learned)
        order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(1))
        some = photos[order[: int(share * len(photos))]]
        fitted = fit_whitening(signed_power(some, signed), max(DIMS), power=power)
        return fitted(signed_power(asked, signed))

    return project


def centred_before(learned: list[Tensor], asked: Tensor, database: int) -> Tensor:
    """Power 0.5, but the mean is that of the set's own database."""
    fitted = fit_whitening(torch.cat(learned), max(DIMS), power=0.5)
    return Whitening(asked[:database].mean(dim=0), fitted.projection)(asked)


def centred_after(learned: list[Tensor], asked: Tensor, database: int) -> Tensor:
    """Power 0.5, and what comes out centred by the set's own database."""
    found = whitened(0.5)(learned, asked, database).numpy()
    return torch.from_numpy(centred(found, found[:database].mean(axis=0, dtype=np.float64)))


UNSEEN: dict[str, Way] = {
    **{f"power {power}": whitened(power) for power in (0.3, 0.5, 0.75, 1.0)},
    **{f"power 0.5, {share:.0%} of the photos": whitened(0.5, share=share) for share in (0.35, 0.6)},
    "signed square roots, power 0.5": whitened(0.5, signed=0.5),
    "power 0.5, centred by the set's own database": centred_before,
    "power 0.5, the 512 numbers centred by it": centred_after,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="or the name of a packaged model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=900)
    parser.add_argument("--city-photos", type=int, default=500)
    parser.add_argument("--powers", type=float, nargs="+", default=[0.3, 0.5, 0.75, 1.0])
    parser.add_argument("--signed", type=float, nargs="+", default=[1.0, 0.7, 0.5])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = load_model(args.checkpoint, local_device())
    model.whitening = None
    sets = PixelSets(args.data, args.out, *model.preprocess.size(480, 640), city="none")
    rng = np.random.default_rng(0)
    asked = {name: describe(model, sets, name, None, rng) for name in VALIDATION}
    learned = {name: describe(model, sets, name, args.photos, rng) for name in REAL}
    learned[TOWN] = describe(model, sets, TOWN, args.city_photos, rng)
    places = {name: sets.places(name) for name in VALIDATION}
    for exponent in args.signed:
        here = {name: signed_power(x, exponent) for name, x in asked.items()}
        print(f"signed power {exponent}, not whitened  {judge(here, places)}", flush=True)
        for towns in ([*REAL, TOWN], list(REAL)):
            photos = torch.cat([signed_power(learned[town], exponent) for town in towns])
            for power in args.powers if TOWN in towns else (0.5,):
                whitening = fit_whitening(photos, min(max(DIMS), len(photos) - 1), power=power)
                found = {name: whitening(x) for name, x in here.items()}
                fitted = f"{'with' if TOWN in towns else 'without'} the drawn town, power {power}"
                print(f"signed power {exponent}, {fitted}  {judge(found, places)}", flush=True)
    for towns in ([*REAL, TOWN], list(REAL)):
        for way, project in UNSEEN.items() if TOWN in towns else [("power 0.5, without the drawn town", whitened(0.5))]:
            found = {}
            for name, x in asked.items():
                others = [learned[town] for town in towns if town.split("-")[0] != name.split("-")[0]]
                found[name] = project(others, x, len(places[name].database))
            print(f"not seen: {way}  {judge(found, places)}", flush=True)


if __name__ == "__main__":
    main()
