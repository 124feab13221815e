"""End to end: render photos of a synthetic city, build a map, localize queries, and report the results.

    python examples/demo.py [FOLDER]

Writes to FOLDER (default: ./demo): the photos, the map (town.gpkg, which QGIS opens), the fixes (fixes.geojson) and a
report (report.html). A second run reuses the photos.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from textwrap import indent

import numpy as np

from sareloc.city import draw_places
from sareloc.datasets import load_dataset
from sareloc.evaluation import evaluate, evaluate_fixes, rank_by_map
from sareloc.figures import PredictedPositions, query_inliers, query_matches, write_report
from sareloc.geo import Positions, distance_m
from sareloc.localize import Fix, Localizer
from sareloc.localize.formats import Answer, answer_text, geojson
from sareloc.maps import PlaceMap, build_map
from sareloc.models import load_model
from sareloc.photos import find_photos, read_geotag, read_time

HIT_M = 25.0
MATCHED = 3  # queries shown with lines between matched local features


def main(folder: Path) -> None:
    start = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {words}", flush=True)

    drawn = draw_places(folder, seed=0, size="small", splits=("test",), progress=True)
    say(f"rendered {drawn} photos of a synthetic city into {folder / 'images'}")

    model = load_model("fast")  # the small one; "default" takes longer
    say(f"model {model.name}: descriptors of {model.dim} dimensions")

    path = folder / "town.gpkg"
    path.unlink(missing_ok=True)  # a map works only with the model it was built with
    built = build_map(folder / "images" / "test" / "database", path, model)
    say(f"mapped {built.added} photos into {path}")

    photos = find_photos(folder / "images" / "test" / "queries")
    localizer = Localizer(model, PlaceMap(path))
    fixes = [fix for fix in localizer.localize_many(photos) if isinstance(fix, Fix)]
    answers = [Answer(photo.name, read_time(photo), fix) for photo, fix in zip(photos, fixes, strict=True)]
    (folder / "fixes.geojson").write_text(geojson(answers))
    say(f"localized {len(photos)} photos taken at other times, for example")
    for name, _, fix in answers[:2]:
        print(indent(answer_text(name, fix), " " * 10))
    predicted = judge(photos, fixes, localizer.place_map)

    places = load_dataset(str(folder), split="test")
    steps = evaluate_fixes(model, places, place_map=localizer.place_map, progress=False).ladder
    print("          recall@1 after each step: " + ", ".join(f"{step} {found:.0f} %" for step, found in steps.items()))
    report = evaluate(model, places, place_map=localizer.place_map, progress=False)
    matches = query_matches(rank_by_map(model, places, localizer.place_map, progress=False))
    recall = ", ".join(f"{percent:.0f} % @{n}" for n, percent in report.recall.items())
    print(f"          by search vectors: recall {recall}; median error {report.median_error_m:.1f} m")
    page = write_report(
        folder / "report.html",
        reports={model.name: report},
        ladder=steps,
        matches=matches,
        inliers=query_inliers(matches, matches.best(MATCHED)),
        predicted=predicted,
        failures=4,
    )
    say(f"wrote {page}: open it in a browser")


def judge(photos: list[Path], fixes: list[Fix], place_map: PlaceMap) -> PredictedPositions | None:
    """Compare the fixes with the true positions, print the results, and return the predictions for the report's map."""
    tags = [read_geotag(photo) for photo in photos]
    truth = np.array([tag.latlon for tag in tags if tag is not None])
    first = distance_m([fix.matches[0].latlon for fix in fixes], truth) <= HIT_M
    print(f"          recall@1: the first match was taken within {HIT_M:g} m for {first.mean():.0%}")
    found = [row for row, fix in enumerate(fixes) if fix.found]
    print(f"          {len(found)} of {len(photos)} have a fix, the others are reported as not in this map")
    if not found:
        return None
    latlon = np.array([fixes[row].latlon for row in found])
    errors = distance_m(latlon, truth[found])
    right = errors <= HIT_M
    print(f"          {right.mean():.0%} of the fixes are within {HIT_M:g} m, median error {np.median(errors):.1f} m")
    names = tuple(photos[row].name for row in found)
    return PredictedPositions(
        Positions.from_wgs84(truth[found]), Positions.from_wgs84(latlon), right, names, place_map.positions
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
