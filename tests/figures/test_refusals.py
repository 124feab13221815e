"""What holds for every figure: one point is enough, and without the extra the pip line is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.figures.little_town import make_matches, make_report, make_town

from sareloc.errors import MissingExtraError
from sareloc.figures import (
    PrecisionRecallCurve,
    PredictedPositions,
    draw_dataset,
    draw_embedding,
    draw_gradient_decay,
    draw_gradients,
    draw_heatmaps,
    draw_map,
    draw_matches,
    draw_precision_recall,
    draw_recall,
    draw_training,
    png_bytes,
    write_embedding_page,
    write_report,
)
from sareloc.geo import Positions
from sareloc.losses import make_loss
from sareloc.training import EpochRecord

HERE = Positions.from_local([(0, 0)])
PHOTO = np.full((40, 60, 3), 90, np.uint8)
CURVE = PrecisionRecallCurve.of_confidence(np.array([0.9]), [True])

ONE_OF_EACH: dict[str, Callable[[Path], object]] = {
    "gradients": lambda _: draw_gradients({"ratio": make_loss("ratio")}),
    "gradient-decay": lambda _: draw_gradient_decay({"ratio": make_loss("ratio")}),
    "recall": lambda _: draw_recall({"a": make_report({1: 60.0})}),
    "precision-recall": lambda _: draw_precision_recall({"a": CURVE}, at=0.9),
    "training": lambda _: draw_training({"a": [EpochRecord(1, 0.5, 0.1, 1, 1, 1.0, 0.1, 0.2, 0.3)]}),
    "heatmap": lambda _: draw_heatmaps(PHOTO, {"a": np.ones((1, 1), np.float32)}),
    "embedding": lambda _: draw_embedding([[0.5, 0.5]], [0], [PHOTO]),
    "matches": lambda folder: draw_matches(make_matches(make_town(folder)), [0], top=1),
    "map": lambda _: draw_map(PredictedPositions(HERE, HERE, np.array([True]), ("a",))),
    "dataset": lambda folder: draw_dataset(make_town(folder)),
}
PAGES: dict[str, Callable[[Path], object]] = {
    "embedding-page": lambda folder: write_embedding_page(folder / "e.html", [[0.5, 0.5]], [0], [PHOTO], ["a"]),
    "report": lambda folder: write_report(folder / "r.html", reports={"a": make_report({1: 60.0})}),
}


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_one_point_is_drawn(kind: str, tmp_path: Path) -> None:
    picture = png_bytes(ONE_OF_EACH[kind](tmp_path), 60)
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", [*ONE_OF_EACH, *PAGES])
def test_without_the_extra_the_pip_line_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it is now an ImportError
    with pytest.raises(MissingExtraError, match=r'pip install "sareloc\[plot\]"'):
        (ONE_OF_EACH | PAGES)[kind](tmp_path)
    assert not list(tmp_path.glob("*.html"))
