"""How the files in this folder were made, by code that is older than the tests that open them.

    git worktree add --detach /tmp/old COMMIT
    PYTHONPATH=/tmp/old/src python -m tests.artefacts.make first     # COMMIT 3cb6217: the photos, checkpoints, format 1
    PYTHONPATH=/tmp/old/src python -m tests.artefacts.make second    # COMMIT 7f6d24f: format 2, int8, descriptor store
    PYTHONPATH=/tmp/old/src python -m tests.artefacts.make third     # COMMIT a9b47bb: format 3, with local features
    PYTHONPATH=/tmp/old/src python -m tests.artefacts.make fourth    # COMMIT 7f814fb: format 4, bound to photos
    PYTHONPATH=/tmp/old/src python -m tests.artefacts.make fifth     # COMMIT e0b50e6: format 5, aggregated, one edited

Nothing here may be made again: users have files of these formats. A new format gets files of its own. They are gzipped
because most weights of the model are 0, and pages of a small map are empty.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.geometry.scenes import texture

import sareloc
from sareloc.models import Whitening

HERE = Path(__file__).resolve().parent
PLACES, SIDE, DIM = 12, 64, 8
LIVE, CLUSTERS = 8, 4
MODEL = ("--model", "model.safetensors", "--workers", "0", "--device", "cpu")


def small_model() -> sareloc.PlaceModel:
    """AlexNet and NetVLAD; weights beyond the first 8 channels are 0, the others have few digits."""
    rng = torch.Generator().manual_seed(7)
    model = sareloc.make_model("alexnet", "netvlad", size=(SIDE, SIDE), name="old", rng=rng, clusters=CLUSTERS)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            kept = torch.zeros_like(weight)
            part = (slice(LIVE),) * min(weight.ndim, 2)
            kept[part] = torch.round(weight[part] * 64 * (4 if weight.ndim == 4 else 1)) / 64
            weight.copy_(kept)
            assert kept.any() or name.endswith("bias"), name
        live = torch.zeros(CLUSTERS, model.dim // CLUSTERS)
        live[:, :LIVE] = 1
        projection = torch.round(8 * torch.randn(DIM, model.dim, generator=rng)) / 8
        model.whitening = Whitening(torch.zeros(model.dim), projection * live.flatten())
    return model.eval()


def draw_photos(folder: Path) -> None:
    """Walls of coloured squares along a street, for the map and, darker, as queries."""
    for part, light in (("photos", 1.0), ("queries", 0.8)):
        rows = []
        (folder / part).mkdir()
        for place in range(PLACES):
            wall = np.random.default_rng(place).integers(0, 256, (8, 8, 3)) * light
            name = f"{place:02d}.png"
            Image.fromarray(wall.astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.NEAREST).save(
                folder / part / name, optimize=True
            )
            shift_m = 0.0 if part == "photos" else 4.0
            rows.append(
                f"{name},{48.85 + (80 * place + shift_m) / 111_320:.7f},2.29,{place * 30},2026-05-31T12:00:{place:02d}Z"
            )
        (folder / part / "geotags.csv").write_text("\n".join(["file,lat,lon,heading,time", *rows]) + "\n")


def run(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "sareloc", *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def keep(names: Sequence[str]) -> None:
    """Pack files of the working folder into this one."""
    for name in names:
        packed = HERE / f"{name}.gz"
        packed.parent.mkdir(exist_ok=True)
        packed.write_bytes(gzip.compress(Path(name).read_bytes(), 9, mtime=0))


def told(map_name: str, *options: str) -> dict[str, Any]:
    """What the code that made a map says of it: its manifest, and a fix for each query with its first match."""
    words = ("localize", map_name, "queries", "--min-confidence", "0", "--top", "1", *options, *MODEL, "--json")
    lines = run(*words).splitlines()
    info = json.loads(run("map", "info", map_name, "--json"))
    return {"manifest": info["manifest"], "photos": info["photos"], "fixes": [json.loads(line) for line in lines]}


def descriptors(path: str) -> list[list[float]]:
    """Of the first three queries."""
    model = sareloc.load_model(path)
    images = [np.asarray(Image.open(photo)) for photo in sorted(Path("queries").glob("*.png"))[:3]]
    return [[round(float(value), 7) for value in row] for row in model.encode(images)]


def make_first() -> dict[str, Any]:
    draw_photos(Path())
    model = small_model()
    sareloc.save_checkpoint(model, "model.safetensors")
    sareloc.save_checkpoint(model, "model", storage="float16", training={"loss": "none", "knobs": {"epochs": 0}})
    run("map", "build", "photos", "--out", "format1.gpkg", *MODEL)
    for part in ("photos", "queries"):
        shutil.copytree(part, HERE / part, dirs_exist_ok=True)
    keep(["model.safetensors", "model/spec.json", "model/training.json", "model/weights.safetensors", "format1.gpkg"])
    return {
        "fingerprint": model.fingerprint(),
        "model.safetensors": descriptors("model.safetensors"),
        "model": descriptors("model"),
        "format1.gpkg": told("format1.gpkg"),
    }


def make_second() -> dict[str, Any]:
    for part in ("photos", "queries"):
        shutil.copytree(HERE / part, part)
    Path("model.safetensors").write_bytes(gzip.decompress((HERE / "model.safetensors.gz").read_bytes()))
    model = sareloc.load_model("model.safetensors")
    sareloc.save_checkpoint(model, "int8.safetensors", storage="int8")
    run("map", "build", "photos", "--out", "format2.gpkg", *MODEL)
    run("map", "calibrate", "format2.gpkg", "queries", *MODEL)
    rows = [f"{part}/{line}" for part in ("photos", "queries") for line in _rows(part)]
    Path("meta.csv").write_text("\n".join(["file,lat,lon,role", *rows]) + "\n")
    for number, photo in enumerate(sorted(Path().glob("*/*.png"))):
        os.utime(photo, (1_780_000_000 + number,) * 2)
    report = json.loads(run("evaluate", "meta.csv", "--store", "store", *MODEL, "--json"))
    stored = sorted(str(path) for path in Path("store").rglob("*") if path.is_file())
    keep(["int8.safetensors", "format2.gpkg", "meta.csv", *stored])
    return {
        "int8.safetensors": descriptors("int8.safetensors"),
        "format2.gpkg": told("format2.gpkg"),
        "store": {"recall": report["recall"], "files": stored},
    }


def build_with_features(name: str, record: str, *options: str) -> dict[str, Any]:
    """A map of photos in which XFeat finds something: it finds nothing in the squares."""
    for part in ("photos", "queries"):
        shutil.copytree(HERE / part, part)
    for place, photo in enumerate(sorted(Path("photos").glob("*.png"))):
        Image.fromarray(texture(120, 160, seed=place)).save(photo)
    Path("model.safetensors").write_bytes(gzip.decompress((HERE / "model.safetensors.gz").read_bytes()))
    run("map", "build", "photos", "--out", name, "--keypoints", "64", *MODEL)
    keep([name])
    place_map = sareloc.PlaceMap(name)
    features = place_map.local_features(place_map.ids)[1]
    kept = {"size": features.size, "xy": features.xy[:5].tolist(), "keypoints": len(features)}
    return {name: told(name, *options), record: kept}


def make_third() -> dict[str, Any]:
    return build_with_features("format3.gpkg", "local features")


def make_fourth() -> dict[str, Any]:
    return build_with_features("format4.gpkg", "local features of format 4", "--verify", "0")


def make_fifth() -> dict[str, Any]:
    made = build_with_features("format5.gpkg", "local features of format 5", "--verify", "0")
    moved = np.array([2.31, 48.86]).tobytes()
    with sqlite3.connect("format5.gpkg") as connection:  # as QGIS does
        connection.execute("UPDATE photos SET geom = substr(geom, 1, 13) || ? WHERE fid = 3", (moved,))
        connection.execute("UPDATE photos SET geom = CAST(geom AS BLOB) WHERE fid = 3")
    connection.close()
    keep(["format5.gpkg"])
    return made | {"format5.gpkg": told("format5.gpkg", "--verify", "0")}


def _rows(part: str) -> list[str]:
    role = "database" if part == "photos" else "query"
    lines = (HERE / part / "geotags.csv").read_text().splitlines()[1:]
    return [",".join(line.split(",")[:3]) + f",{role}" for line in lines]


def main() -> None:
    recorded = HERE / "recorded.json"
    before = json.loads(recorded.read_text()) if recorded.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["SARELOC_CACHE"] = str(Path(folder, "cache"))
        makers = {
            "first": make_first,
            "second": make_second,
            "third": make_third,
            "fourth": make_fourth,
            "fifth": make_fifth,
        }
        made = makers[sys.argv[1]]()
        lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in (before | made).items())
        recorded.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
