"""Seeing: the paper's figures, and a report people would rather look at than read.

Functions called `draw_` return a matplotlib Figure (extra `plot`), which `save_figure` writes as PNG, SVG or PDF;
`write_report` and `write_embedding_page` write whole pages that need no network.
"""

from __future__ import annotations

from sareloc.figures.answers import Answers, answers_of, find_answers
from sareloc.figures.curves import SurenessCurve, draw_precision_recall, draw_recall, draw_training
from sareloc.figures.dataset_map import draw_dataset
from sareloc.figures.embedding import draw_embedding, embed, places_of
from sareloc.figures.embedding_page import write_embedding_page
from sareloc.figures.fixes import put_by_fixes, sureness_of_fixes
from sareloc.figures.gradients import draw_gradient_decay, draw_gradients, gradient_magnitudes, paper_losses
from sareloc.figures.ground import Put, draw_map, errors_geojson, write_geojson
from sareloc.figures.heatmap import draw_heatmaps, occlusion_map, overlay
from sareloc.figures.matches import draw_matches, heat_picture
from sareloc.figures.reading import read_history, read_report
from sareloc.figures.report_page import write_report
from sareloc.figures.style import save_figure
from sareloc.figures.thumbnails import load_thumbnail

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
    "occlusion_map",
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
