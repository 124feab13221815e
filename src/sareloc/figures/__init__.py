"""Figures of losses, evaluations, datasets and single photos, and a report page that combines them.

Functions named `draw_...` return a matplotlib Figure (extra `plot`), which `save_figure` writes as PNG, SVG or PDF;
`write_report`, `write_embedding_page` and `write_geotag_page` write self-contained HTML pages that need no network.
"""

from __future__ import annotations

from sareloc.figures.curves import (
    PrecisionRecallCurve,
    draw_gradient_decay,
    draw_gradients,
    draw_precision_recall,
    draw_recall,
    draw_training,
    gradient_magnitudes,
    paper_losses,
)
from sareloc.figures.embedding import draw_embedding, place_labels, project_tsne, write_embedding_page
from sareloc.figures.geotags import write_geotag_page
from sareloc.figures.map import PredictedPositions, draw_dataset, draw_map, draw_track, errors_geojson, write_geojson
from sareloc.figures.matches import (
    QueryMatches,
    confidence_curve,
    draw_heatmaps,
    draw_inliers,
    draw_matches,
    inliers_label,
    judge_rankings,
    load_thumbnail,
    match_label,
    overlay_heatmap,
    overlay_inliers,
    predicted_by_fixes,
    query_heatmap,
    query_inliers,
    query_matches,
)
from sareloc.figures.report import read_history, read_report, write_report
from sareloc.figures.style import png_bytes, save_figure, svg_bytes

__all__ = [
    "PrecisionRecallCurve",
    "PredictedPositions",
    "QueryMatches",
    "confidence_curve",
    "draw_dataset",
    "draw_embedding",
    "draw_gradient_decay",
    "draw_gradients",
    "draw_heatmaps",
    "draw_inliers",
    "draw_map",
    "draw_matches",
    "draw_precision_recall",
    "draw_recall",
    "draw_track",
    "draw_training",
    "errors_geojson",
    "gradient_magnitudes",
    "inliers_label",
    "judge_rankings",
    "load_thumbnail",
    "match_label",
    "overlay_heatmap",
    "overlay_inliers",
    "paper_losses",
    "place_labels",
    "png_bytes",
    "predicted_by_fixes",
    "project_tsne",
    "query_heatmap",
    "query_inliers",
    "query_matches",
    "read_history",
    "read_report",
    "save_figure",
    "svg_bytes",
    "write_embedding_page",
    "write_geojson",
    "write_geotag_page",
    "write_report",
]
