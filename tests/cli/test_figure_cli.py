"""`sareloc figure NAME`, from its arguments to the files it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts import App
from PIL import Image
from tests.figures.little_town import make_report

from sareloc.cli import figure
from sareloc.cli import figure as figure_dataset
from sareloc.errors import ArgumentError
from sareloc.maps import MapConfig, build_map
from sareloc.models import load_model, make_model, save_checkpoint
from sareloc.training import EpochRecord, RunFolder, RunState

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the field's format: six places in the database, each asked for once, and a model beside it.

    Query 0 is the photo of the database, query 1 differs a little, query 5 most.
    """
    folder = tmp_path_factory.mktemp("figures")
    for role in ("database", "queries"):
        photos = folder / "town" / "images" / "test" / role
        photos.mkdir(parents=True)
        for place in range(6):
            here, other = (np.random.default_rng(seed).integers(0, 256, (6, 8, 3)) for seed in (place, place + 6))
            change = 0.06 * place if role == "queries" else 0.0
            blocks = np.kron((1 - change) * here + change * other, np.ones((16, 16, 1)))
            name = f"@{500000 + 100 * place:.2f}@4477000.00@17@T@40.44@-80.0@{role}{place}@@0@@@@20150101@@.png"
            Image.fromarray(blocks.astype(np.uint8)).save(photos / name)
    model = make_model("alexnet", "avg", size=96, name="little", rng=torch.Generator().manual_seed(1))
    save_checkpoint(model, folder / "little")
    return folder / "town"


def run(command: str, *words: str | Path) -> None:
    app = App(name="figure")
    home = figure if hasattr(figure, command) else figure_dataset
    app.command(getattr(home, command), name=command)
    app([command, *map(str, words)], result_action="return_value", exit_on_error=False)


def asked(town: Path) -> list[str | Path]:
    return [town, "--model", town.parent / "little", "--workers", "0", "--store", town.parent / "store"]


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_gradients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("gradients", "--out", tmp_path / "g.svg")
    assert "Cauchy SARE" in (tmp_path / "g.svg").read_text()
    assert capsys.readouterr().out.strip() == str(tmp_path / "g.svg")


def test_gradient_decay(tmp_path: Path) -> None:
    run("gradient_decay", "--out", tmp_path / "g.svg", "--d-p", "1")
    assert "<!-- $d_p$ = 1 -->" in (tmp_path / "g.svg").read_text()


def test_reports_are_called_by_their_files(tmp_path: Path) -> None:
    for name in ("sare", "triplet"):
        (tmp_path / f"{name}.json").write_text(json.dumps(make_report({1: 60.0, 5: 80.0}).to_json()))
    files = [tmp_path / "sare.json", tmp_path / "triplet.json"]
    run("recall", *files, "--out", tmp_path / "r.svg")
    run("precision_recall", *files, "--out", tmp_path / "p.svg", "--at", "0.7")
    recall, precision = (tmp_path / "r.svg").read_text(), (tmp_path / "p.svg").read_text()
    assert ">sare<" in recall
    assert ">triplet<" in recall
    assert "sare: precision 80.0 %, recall 50.0 %" in precision
    with pytest.raises(ArgumentError, match=r"sare\.json is given twice"):
        run("recall", files[0], files[0], "--out", tmp_path / "r.svg")


def test_training_runs_are_called_by_their_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        RunFolder(tmp_path / name).save(RunState({}, (EpochRecord(1, 0.5, 0.001, 4, 48, 1.0, 0.1, 0.2, 0.3),)), {})
    run("training", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "t.svg")
    drawn = (tmp_path / "t.svg").read_text()
    assert ">one<" in drawn
    assert ">two<" in drawn


def test_heatmap_of_one_and_of_two_models(town: Path, tmp_path: Path) -> None:
    photo = next((town / "images" / "test" / "queries").glob("*queries3*"))
    words = [photo, "--size", "96", "--model", town.parent / "little"]
    run("heatmap", *words, "--out", tmp_path / "h.png")
    second = tmp_path / "other"
    save_checkpoint(make_model("alexnet", "max", size=96, rng=torch.Generator().manual_seed(2)), second)
    run("heatmap", *words, "--model", second, "--box", "32", "--out", tmp_path / "h2.svg")
    assert ">little<" in (tmp_path / "h2.svg").read_text()
    assert ">other<" in (tmp_path / "h2.svg").read_text()
    assert size_of(tmp_path / "h.png")[0] > 800


def test_embedding_as_page_and_as_picture(town: Path, tmp_path: Path) -> None:
    words = [town, "--model", town.parent / "little", "--workers", "0"]
    run("embedding", *words, "--out", tmp_path / "e.html", "--role", "database")
    assert "6 photos, 6 places" in (tmp_path / "e.html").read_text()
    run("embedding", *words, "--out", tmp_path / "e.png", "--most", "5")
    assert max(size_of(tmp_path / "e.png")) == 1350


def test_matches(town: Path, tmp_path: Path) -> None:
    run("matches", *asked(town), "--query", "2", "--best", "2", "--no-heat", "--out", tmp_path / "m.svg")
    drawn = (tmp_path / "m.svg").read_text()
    assert drawn.count(">query ") == 3
    assert drawn.count("1 ✓ 0 m off") == 3
    assert "heat map" not in drawn
    with pytest.raises(ArgumentError, match="no queries were chosen"):  # every first match is right
        run("matches", *asked(town), "--worst", "1", "--out", tmp_path / "m.svg")


def test_matches_with_lines_between_local_features(town: Path, tmp_path: Path) -> None:
    run("matches", *asked(town), "--query", "2", "--best", "1", "--inliers", "--out", tmp_path / "m.svg")
    drawn = (tmp_path / "m.svg").read_text()
    labels = re.findall(r">query (\d) and match 1 ✓ 0 m off: \d+ (?:planar )?inliers<", drawn)
    assert labels == ["2", "0"]


def test_map_with_geojson_beside_it(town: Path, tmp_path: Path) -> None:
    run("map_figure", *asked(town), "--out", tmp_path / "map.svg")
    assert "correct: true position (6 of 6)" in (tmp_path / "map.svg").read_text()
    features = json.loads((tmp_path / "map.geojson").read_text())["features"]
    assert len(features) == 18
    assert features[0]["geometry"]["coordinates"] == pytest.approx([-81, 40.44], abs=0.01)


@pytest.fixture(scope="module")
def city(town: Path) -> Path:
    """A map of the town."""
    model = load_model(town.parent / "little")
    build_map(
        town / "images" / "test" / "database",
        town.parent / "city.gpkg",
        model,
        config=MapConfig(keypoints=0, progress=False),
    )
    return town.parent / "city.gpkg"


def test_map_of_fixes_leaves_out_the_unsure(town: Path, city: Path, tmp_path: Path) -> None:
    words = [*asked(town), "--map", city, "--out", tmp_path / "map.svg"]
    run("map_figure", *words, "--at", "0")
    assert "correct: true position (6 of 6)" in (tmp_path / "map.svg").read_text()
    with pytest.raises(ArgumentError, match="no query"):
        run("map_figure", *words, "--at", "1")


def test_confidence_with_its_operating_point(town: Path, city: Path, tmp_path: Path) -> None:
    run("confidence", *asked(town), "--map", city, "--at", "0.01", "--out", tmp_path / "c.svg")
    drawn = (tmp_path / "c.svg").read_text()
    assert "circled: confidence ≥ 0.01" in drawn
    assert "city: precision 100.0 %, recall 100.0 %" in drawn


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    run("matches", "--help")
    shown = capsys.readouterr().out
    for option in ("model", "root", "split", "store", "worst", "best", "query", "heat", "inliers", "out"):
        assert f"--{option}" in shown
    assert "DATASET" in shown
