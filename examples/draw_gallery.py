"""Draw every figure of docs/gallery.md from the drawn city: python examples/draw_gallery.py

Renders a small synthetic city, trains three short runs from one initial model (EfficientNet-lite0 with ImageNet
weights, extra `lite`) on its train split, and evaluates them on its test split. All sizes are small, for minutes on two
cores. Results are cached in the work folder, so that an interrupted run is resumed. Screenshots of pages need chromium.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops

from sareloc import figures
from sareloc.city import draw_places
from sareloc.datasets import Places, load_dataset
from sareloc.encode import describe, occlusion_map
from sareloc.evaluation import rank
from sareloc.figures import png_bytes
from sareloc.files import write_atomically
from sareloc.localize import Localizer, Search
from sareloc.maps import PlaceMap, build_map
from sareloc.models import PlaceModel, off_the_shelf, open_checkpoint, save_checkpoint
from sareloc.photos import decode, longest_side
from sareloc.training import TrainingConfig, train

SEED, WIDEST_PX, MARGIN_PX = 0, 900, 12
SIZE, CLUSTERS, DIM = (120, 160), 8, 32  # small enough for training in half a minute
EPOCHS, VERIFY, MIN_CONFIDENCE, MAP_MIN_CONFIDENCE = 8, 20, 0.5, 0.25
NS = (1, 2, 3, 5, 10, 20)
BEFORE, RUNS = "Before training", {"sare-ind": "SARE-Ind", "triplet": "Triplet", "contrastive": "Contrastive"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/gallery"))
    parser.add_argument("--work", type=Path, default=Path("build/gallery"))
    arguments = parser.parse_args()
    out, work = arguments.out, arguments.work
    began = time.monotonic()

    draw_places(work / "city", SEED, "small", progress=True)
    towns = {split: load_dataset(work / "city", split=split) for split in ("train", "val", "test")}
    models = {name: trained(loss, towns, work) for loss, name in RUNS.items()}
    models[BEFORE] = start(towns["train"], work / "start.safetensors")
    ranked = {
        name: rank(model, towns["test"], store=work / "descriptors" / model.fingerprint())
        for name, model in models.items()
    }
    reports = {name: one.report(ns=NS) for name, one in ranked.items()}
    for name, report in reports.items():
        write_atomically(work / f"{name}.json", json.dumps(report.to_json(), indent=2).encode())
    histories = {name: figures.read_history(work / loss) for loss, name in RUNS.items()}
    best = max(RUNS.values(), key=lambda name: [reports[name].recall[n] for n in NS])
    matches = figures.query_matches(ranked[best])
    curves, predicted = fixes_of(models[best], best, towns["test"], work)
    curves |= fixes_of(models[BEFORE], BEFORE, towns["test"], work, searches=1)[0]

    for name, figure in {
        "gradients": figures.draw_gradients(),
        "gradient-decay": figures.draw_gradient_decay(),
        "recall": figures.draw_recall(reports),
        "precision-recall": figures.draw_precision_recall(curves, at=MIN_CONFIDENCE),
        "training": figures.draw_training(histories),
        "map": figures.draw_map(predicted),
        "dataset": figures.draw_dataset(towns["test"]),
    }.items():
        print(figures.save_figure(figure, out / f"{name}.svg"))
    print(figures.write_geojson(out / "map.geojson", figures.errors_geojson(predicted)))

    photo = towns["test"].queries.path(matches.best(1)[0])
    small = decode(photo, size=longest_side(256))
    heats = {name: occlusion_map(models[name], small) for name in (BEFORE, best)}
    shown = [*matches.best(1), *matches.worst(2)]
    drawn = {row: figures.query_heatmap(models[best], matches, row) for row in shown}
    heatmaps = {row: image for row, image in drawn.items() if image is not None}
    inliers = figures.query_inliers(matches, matches.best(2))
    points, places, images, names = embedded(models[best], towns["test"])
    for name, figure in {
        "heatmap": figures.draw_heatmaps(decode(photo), heats),
        "matches": figures.draw_matches(matches, shown, heatmaps=heatmaps),
        "inliers": figures.draw_inliers(matches, inliers),
        "embedding": figures.draw_embedding(points, places, images, size=0.07),
    }.items():
        print(write_photo(out / f"{name}.jpg", png_bytes(figure)))

    page = figures.write_embedding_page(work / "embedding.html", points, places, images, names)
    photograph(page, out / "embedding-page.jpg", (1100, 800))
    page = figures.write_report(
        work / "report.html",
        reports={best: reports[best]} | reports,
        histories=histories,
        matches=matches,
        inliers={row: inliers[row] for row in matches.best(1)},
        predicted=predicted,
        confidence_curves=curves,
        at=MIN_CONFIDENCE,
        model=models[best],
        failures=1,
        title="A city that was not in the training set",
        command="python examples/draw_gallery.py",
    )
    photograph(page, out / "report-page.jpg", (1100, 6000), widest_px=720)
    print(f"{time.monotonic() - began:.0f} s")


def start(town: Places, file: Path) -> PlaceModel:
    """The initial model of all runs."""
    if not file.exists():
        paths = [town.database.path(row) for row in range(len(town.database))]
        photos = [decode(path) for path in paths]
        made = off_the_shelf(photos, np.random.default_rng(SEED), clusters=CLUSTERS, dim=DIM, size=SIZE)
        save_checkpoint(made, file)
    return open_checkpoint(file)


def trained(loss: str, towns: dict[str, Places], work: Path) -> PlaceModel:
    """A short run with this loss."""
    if not (work / loss / "model.safetensors").exists():
        model = start(towns["train"], work / "start.safetensors")
        model.name = f"lite0-netvlad-{loss}"
        # fifty queries are too few for the paper's recipe: AdamW converges faster; with a whitening fitted after
        # training, two of the three runs keep the start and their curves coincide
        config = TrainingConfig(loss=loss, epochs=EPOCHS, dim=DIM, optimizer="adamw", lr=0.001, schedule="cosine",
                                reduction="tuples", whitening="learned", seed=SEED)  # fmt: skip
        train(model, towns["train"], config, validation=towns["val"], out=work / loss, resume=True)
    return open_checkpoint(work / loss / "model.safetensors")


def fixes_of(
    model: PlaceModel, name: str, town: Places, work: Path, searches: int = 2
) -> tuple[dict[str, figures.PrecisionRecallCurve], figures.PredictedPositions]:
    """Confidence curves of the fixes in the model's map, without and with verification, and the last predictions."""
    path = work / f"{model.fingerprint()}.gpkg"
    build_map(work / "city" / "images" / town.split / "database", path, model)
    queries = [town.queries.path(row) for row in range(len(town.queries))]
    curves = {}
    for called, search in ((name, Search(verify=0)), (f"{name}, verified", Search(verify=VERIFY)))[:searches]:
        fixes = Localizer(model, PlaceMap(path), search, min_confidence=0).localize_many(queries)
        curves[called] = figures.confidence_curve(fixes, town.queries)
    return curves, figures.predicted_by_fixes(
        fixes, town.queries, min_confidence=MAP_MIN_CONFIDENCE, database=town.database.positions
    )


def embedded(model: PlaceModel, town: Places) -> tuple[np.ndarray, np.ndarray, list[np.ndarray | None], list[str]]:
    """The database photos: t-SNE coordinates, place labels, thumbnails and names."""
    photos = town.database
    paths = [photos.path(row) for row in range(len(photos))]
    points = figures.project_tsne(describe(paths, model).vectors, seed=SEED)
    names = [f"photo {row}" for row in range(len(photos))]
    return points, figures.place_labels(photos), [figures.load_thumbnail(path, 96) for path in paths], names


def write_photo(path: Path, png: bytes, widest_px: int = WIDEST_PX) -> Path:
    """Write a PNG as JPEG, cropped to its content and at most `widest_px` wide."""
    content = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        shown = image.convert("RGB")
        drawn = ImageChops.difference(shown, Image.new("RGB", shown.size, shown.getpixel((0, 0)))).getbbox()
        if drawn is not None:
            shown = shown.crop((0, 0, shown.width, min(shown.height, drawn[3] + MARGIN_PX)))
        shown.thumbnail((widest_px, shown.height), Image.Resampling.LANCZOS)
        shown.save(content, "JPEG", quality=82, optimize=True)
    return write_atomically(path, content.getvalue())


def photograph(page: Path, out: Path, size: tuple[int, int], widest_px: int = WIDEST_PX) -> None:
    """Write a screenshot of a page, taken by chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"{out} is unchanged: chromium, which takes screenshots, is not installed ({page})")
        return
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
        window = f"--window-size={size[0]},{size[1]}"
        command = [browser, *quiet, window, f"--screenshot={shot}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        print(write_photo(out, shot.read_bytes(), widest_px))


if __name__ == "__main__":
    main()
