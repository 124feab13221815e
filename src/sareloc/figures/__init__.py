"""Seeing: the paper's figures, and a report people would rather look at than read.

Functions called `draw_` return a matplotlib Figure (extra `plot`), which `save_figure` writes as PNG, SVG or PDF;
`write_report` and `write_embedding_page` write whole pages that need no network.
"""

from __future__ import annotations

from sareloc.figures.curves import SurenessCurve, draw_precision_recall, draw_recall, draw_training
from sareloc.figures.embedding import draw_embedding, embed, places_of, write_embedding_page
from sareloc.figures.gradients import draw_gradient_decay, draw_gradients, gradient_magnitudes, paper_losses
from sareloc.figures.heatmap import draw_heatmaps, overlay
from sareloc.figures.map import Put, draw_dataset, draw_map, errors_geojson, write_geojson
from sareloc.figures.matches import (
    Answers,
    answers_of,
    draw_matches,
    find_answers,
    heat_picture,
    load_thumbnail,
    put_by_fixes,
    sureness_of_fixes,
)
from sareloc.figures.report import read_history, read_report, write_report
from sareloc.figures.style import save_figure

__all__ = [
    "Answers",
    "Put",
    "SurenessCurve",
    "answers_of",
    "draw_dataset",
    "draw_embedding",
    "draw_gradient_decay",
    "draw_gradients",
    "draw_heatmaps",
    "draw_map",
    "draw_matches",
    "draw_precision_recall",
    "draw_recall",
    "draw_training",
    "embed",
    "errors_geojson",
    "find_answers",
    "gradient_magnitudes",
    "heat_picture",
    "load_thumbnail",
    "overlay",
    "paper_losses",
    "places_of",
    "put_by_fixes",
    "read_history",
    "read_report",
    "save_figure",
    "sureness_of_fixes",
    "write_embedding_page",
    "write_geojson",
    "write_report",
]
