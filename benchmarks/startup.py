"""Start-up times: imports, --help, the first fix of a new process.

    OMP_NUM_THREADS=2 python -m benchmarks.startup [--photos 10000] [--repeats 5]

Every row is a fresh process, the fastest of the repeats, so that other load on the machine has little effect; the disk
cache is warm. The first fix is `sareloc localize` with VGG16-NetVLAD (random weights, whitened to 512, 480x640) and a
map of synthetic descriptors with its index built, as `map build` leaves it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from benchmarks.drawn_descriptors import Walk, draw
from benchmarks.map import BATCH, CITY, SIZE_DEG, drawn_photo
from benchmarks.measuring import about
from PIL import Image

from sareloc.maps import MapManifest, PlaceMap, create_map_file, open_map_file
from sareloc.models import Whitening, make_model, save_checkpoint

DIM = 512
EVERY_NAME = "import torch, sareloc\nfor name in sareloc.__all__: getattr(sareloc, name)"


def make_town(folder: Path, photos: int) -> list[str]:
    """A model, a map and a photo in the folder; the command that asks where the photo was taken."""
    rng = torch.Generator().manual_seed(0)
    model = make_model(rng=rng)
    model.whitening = Whitening(torch.zeros(model.dim), torch.randn(DIM, model.dim, generator=rng))
    save_checkpoint(model, folder / "model.safetensors")
    drawing = np.random.default_rng(0)
    database, _ = draw(Walk(), photos, 1, drawing)
    latlon = CITY + drawing.uniform(0, SIZE_DEG, (photos, 2))
    create_map_file(folder / "city.gpkg", MapManifest(model.name, model.fingerprint(), database.shape[1]))
    with open_map_file(folder / "city.gpkg", write=True) as file:
        for first in range(0, photos, BATCH):
            rows = range(first, min(first + BATCH, photos))
            file.add([drawn_photo(row, latlon[row]) for row in rows], database[rows.start : rows.stop])
    PlaceMap(folder / "city.gpkg")
    Image.fromarray(drawing.integers(0, 256, (960, 1280, 3), dtype=np.uint8)).save(folder / "photo.jpg")
    files = (folder / "city.gpkg", folder / "photo.jpg", "--model", folder / "model.safetensors")
    return ["-m", "sareloc", "localize", *map(str, files), "--json"]


def seconds(arguments: list[str], repeats: int) -> float:
    """Wall time of a fresh Python with these arguments, the fastest of the repeats."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "python": ["-c", ""],
            "import torch": ["-c", "import torch"],
            "import sareloc": ["-c", "import sareloc"],
            "import torch and every public name": ["-c", EVERY_NAME],
            "sareloc --help": ["-m", "sareloc", "--help"],
            "first fix": make_town(Path(folder), args.photos),
        }
        rows = {name: seconds(command, args.repeats) for name, command in commands.items()}
    rows["every public name beyond torch"] = rows["import torch and every public name"] - rows["import torch"]
    for name, wall_s in rows.items():
        print(f"{name:36s} {wall_s:6.2f} s")
    print(json.dumps({**about(), "photos": args.photos, "seconds": {k: round(v, 3) for k, v in rows.items()}}))


if __name__ == "__main__":
    main()
