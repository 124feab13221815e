"""Is the drawn city a fair test? Recall of VGG16-NetVLAD that has never been trained on places.

    python benchmarks/city_difficulty.py --weights vgg16.safetensors --size medium

ImageNet weights up to conv5_3, NetVLAD's k-means start on photos of the train town's database, no training, no
whitening. A query is right where one of its first N database photos of the test town stands within 25 m; all queries
count. Prints recall by weather, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from sareloc.datasets.city import CityPlaces, city_places, draw_pixels
from sareloc.datasets.city.views import DRIVES, VISITS, VISITS_OF_EACH
from sareloc.models import fit_start, make_model
from sareloc.models.place_model import PlaceModel
from sareloc.models.published import load_backbone_weights

HIT_RADIUS_M = 25.0
NS = (1, 5, 10, 20)


def start_model(args: argparse.Namespace) -> PlaceModel:
    model = make_model("vgg16", "netvlad", clusters=64)
    load_backbone_weights(model.backbone, args.weights)
    train = city_places(args.seed, args.size, "train")
    rng = np.random.default_rng(args.seed)
    rows = rng.choice(len(train.views.database), min(args.start_photos, len(train.views.database)), replace=False)
    pixels = draw_pixels(train, *args.photo, args.device, np.sort(rows)).permute(0, 2, 3, 1).cpu().numpy()
    model.to(args.device)
    fit_start(model, tqdm(pixels, desc="start"), rng)
    return model


def describe(model: PlaceModel, city: CityPlaces, rows: np.ndarray, args: argparse.Namespace) -> torch.Tensor:
    parts = tqdm(np.array_split(rows, max(1, len(rows) // 64)), desc="describe")
    drawn = (draw_pixels(city, *args.photo, args.device, part) for part in parts)
    return torch.cat([model.encode(pixels, batch=args.batch).half() for pixels in drawn])


def area(city: CityPlaces, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Database and query rows in the first part of the town's plan: a quicker, easier town."""
    eye = city.poses.eye
    inside = eye[:, 1] <= city.town.streets.extent[1] * share
    count = len(city.views.database)
    rows = np.flatnonzero(inside)
    return rows[rows < count], rows[rows >= count]


def right_at(model: PlaceModel, city: CityPlaces, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, int]:
    """(queries, len(NS)) right within the first N, the queries' rows, and the number of database photos."""
    database, queries = area(city, args.share)
    base, asked = describe(model, city, database, args), describe(model, city, queries, args)
    metres = city.town.enu(city.poses.eye)
    right = []
    for block, rows in zip(asked.split(64), np.array_split(queries, range(64, len(queries), 64)), strict=True):
        ranking = (block.float() @ base.float().T).topk(min(max(NS), len(base)), dim=1).indices.numpy()
        away = np.linalg.norm(metres[database[ranking]] - metres[rows][:, None], axis=-1)
        hits = away <= HIT_RADIUS_M
        right.append(np.stack([hits[:, :n].any(1) for n in NS], axis=1))
    return np.concatenate(right), queries, len(database)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--size", default="medium")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--photo", type=lambda text: tuple(map(int, text.split("x"))), default=(240, 320))
    parser.add_argument("--share", type=float, default=1.0, help="only so much of the test town's plan")
    parser.add_argument("--start-photos", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    city = city_places(args.seed, args.size, "test")
    right, queries, database = right_at(start_model(args), city, args)
    kinds = np.array([*DRIVES, *(VISITS * VISITS_OF_EACH)])[city.poses.moment[queries]]
    for kind in VISITS:
        these = right[kinds == kind]
        if len(these):
            print(f"{kind:10s} {len(these):5d} queries  " + "  ".join(f"{100 * r:5.1f}" for r in these.mean(0)))
    recall = {str(n): round(100 * float(r), 2) for n, r in zip(NS, right.mean(0), strict=True)}
    print(
        json.dumps(
            {
                "size": args.size, "seed": args.seed, "photo": args.photo, "share": args.share,
                "database": database, "queries": len(queries), "recall": recall, "machine": platform.processor(),
                "torch": torch.__version__, "command": " ".join(sys.argv),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
