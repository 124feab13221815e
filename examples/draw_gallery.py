"""Draw every figure of docs/gallery.md from the drawn city: python examples/draw_gallery.py

Draws the small towns, trains two short runs from one start (EfficientNet-lite0 with its ImageNet weights, extra
`lite`), evaluates them on a town that neither has seen, and draws. What takes long is kept in the work folder: a
second run only draws. Chromium, where it is installed, takes the pictures of the pages.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from sareloc import figures
from sareloc.checkpoint import open_checkpoint, save_checkpoint
from sareloc.datasets import Places, load_dataset
from sareloc.datasets.city import draw_places
from sareloc.descriptors import describe_all
from sareloc.evaluation import Report, evaluate
from sareloc.figures.style import png_bytes, write_beside
from sareloc.figures.thumbnails import longest_side
from sareloc.loading import load_images
from sareloc.models import PlaceModel
from sareloc.models.off_the_shelf import off_the_shelf
from sareloc.photos import decode
from sareloc.training import Training, train

SEED, DIM, WIDEST_PX = 0, 128, 880
RUNS = {"sare-ind": "SARE-Ind", "triplet": "Triplet"}
BEFORE = "Before training"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/gallery"))
    parser.add_argument("--work", type=Path, default=Path("build/gallery"))
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    out, work = arguments.out, arguments.work

    draw_places(work / "city", SEED, "small", progress=True)
    towns = {split: load_dataset(work / "city", split=split) for split in ("train", "val", "test")}
    models = {BEFORE: start(towns["train"], work / "start.safetensors")}
    models |= {name: trained(loss, towns, work, arguments.epochs) for loss, name in RUNS.items()}
    reports = {name: judged(name, model, towns["test"], work) for name, model in models.items()}
    histories = {name: figures.read_history(work / loss) for loss, name in RUNS.items()}
    best = max(RUNS.values(), key=lambda name: reports[name].recall[1])
    answers = figures.find_answers(models[best], towns["test"], store=work / f"described-{best}")

    lines = {
        "gradients": figures.draw_gradients(),
        "gradient-decay": figures.draw_gradient_decay(),
        "recall": figures.draw_recall(reports),
        "precision-recall": figures.draw_precision_recall(
            {name: figures.SurenessCurve.of_report(report) for name, report in reports.items()},
            at=middle(reports[best]),
        ),
        "training": figures.draw_training(histories),
        "map": figures.draw_map(answers.put()),
    }
    for name, figure in lines.items():
        print(figures.save_figure(figure, out / f"{name}.svg"))
    figures.write_geojson(work / "map.geojson", figures.errors_geojson(answers.put()))

    query = answers.best(1)[0]
    photo = towns["test"].queries.path(query)
    small = decode(photo, size=longest_side(256))
    heats = {name: figures.occlusion_map(models[name], small) for name in (BEFORE, best)}
    shown = [*answers.worst(2), *answers.best(1)]
    pictures = {row: figures.heat_picture(models[best], answers, row) for row in shown}
    points, places, images, names = embedded(models[best], towns["test"])
    for name, figure in {
        "heatmap": figures.draw_heatmaps(decode(photo), heats),
        "matches": figures.draw_matches(answers, shown, heats=pictures),
        "embedding": figures.draw_embedding(points, places, images, size=0.085),
    }.items():
        print(write_photo(out / f"{name}.jpg", png_bytes(figure, 110)))

    pages = {
        "embedding-page": figures.write_embedding_page(work / "embedding.html", points, places, images, names),
        "report-page": figures.write_report(
            work / "report.html",
            reports={best: reports[best], **reports},
            histories=histories,
            answers=answers,
            model=models[best],
            failures=2,
            title="A town that was never seen",
            command="python examples/draw_gallery.py",
        ),
    }
    for name, page in pages.items():
        photograph(page, out / f"{name}.jpg", (1100, 800) if name == "embedding-page" else (1100, 2500))


def start(town: Places, file: Path) -> PlaceModel:
    """The model that both runs start from."""
    if not file.exists():
        paths = [town.database.path(row) for row in range(len(town.database))]
        photos = [image for _, image in load_images(paths, None) if isinstance(image, np.ndarray)]
        save_checkpoint(off_the_shelf(photos, np.random.default_rng(SEED), dim=DIM), file)
    return open_checkpoint(file)


def trained(loss: str, towns: dict[str, Places], work: Path, epochs: int) -> PlaceModel:
    """A short run with this loss."""
    if not (work / loss / "model.safetensors").exists():
        model = start(towns["train"], work / "start.safetensors")
        # fifty queries are few for the paper's recipe: AdamW gets somewhere with them
        knobs = Training(loss=loss, epochs=epochs, dim=DIM, optimizer="adamw", lr=0.001, schedule="cosine",
                         reduction="tuples", seed=SEED)  # fmt: skip
        model.name = f"lite0-netvlad-{loss}"
        train(model, towns["train"], knobs, validation=towns["val"], out=work / loss, resume=True)
    return open_checkpoint(work / loss / "model.safetensors")


def judged(name: str, model: PlaceModel, town: Places, work: Path) -> Report:
    """How well a model does on a town that nobody has trained on."""
    report = evaluate(model, town, store=work / f"described-{name}")
    write_beside(work / f"{name}.json", json.dumps(report.to_json(), indent=2).encode())
    print(f"{name}: recall@1 {report.recall[1]:.1f} %, recall@5 {report.recall[5]:.1f} %")
    return report


def middle(report: Report) -> float:
    """The distance that half of the curve lies before."""
    return report.curve[len(report.curve) // 2].distance


def embedded(model: PlaceModel, town: Places) -> tuple[np.ndarray, np.ndarray, list[np.ndarray | None], list[str]]:
    """The database photos: where t-SNE puts them, their places, thumbnails and names."""
    photos = town.database
    paths = [photos.path(row) for row in range(len(photos))]
    points = figures.embed(describe_all(model, paths).vectors, seed=SEED)
    names = [f"photo {row}" for row in range(len(photos))]
    return points, figures.places_of(photos), [figures.load_thumbnail(path, 96) for path in paths], names


def write_photo(path: Path, png: bytes) -> Path:
    """Write a picture that is mostly photos as JPEG: a quarter of the bytes."""
    content = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        shown = image.convert("RGB")
        shown.thumbnail((WIDEST_PX, 3 * WIDEST_PX), Image.Resampling.LANCZOS)
        shown.save(content, "JPEG", quality=80, optimize=True)
    return write_beside(path, content.getvalue())


def photograph(page: Path, out: Path, size: tuple[int, int]) -> None:
    """A picture of a page, taken by chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"{out} is left as it was: there is no chromium to photograph {page} with")
        return
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
        window = f"--window-size={size[0]},{size[1]}"
        command = [browser, *quiet, window, f"--screenshot={shot}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        print(write_photo(out, shot.read_bytes()))


if __name__ == "__main__":
    main()
