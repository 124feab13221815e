"""Draw the answers for a drive beside its true way: python examples/draw_drive_answers.py DRIVE MAP ANSWERS FIGURE

DRIVE: a folder of `sareloc data draw-drive`; MAP: a map of frames of another drive; ANSWERS: what `sareloc localize MAP
DRIVE/drive.mp4 --csv` printed. Prints how far the answers are from the truth.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from sareloc.geo import distance_m, enu_from_wgs84
from sareloc.photos import decode, parse_address

TRUTH, FOUND, PAIRS = "#bbbbbb", "#b4530a", 2


def main() -> None:
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    drive, place_map, answers, out = map(Path, sys.argv[1:])
    with (drive / "truth.csv").open() as truth_file, answers.open() as answers_file:
        truth = {float(row["time_s"]): (float(row["lat"]), float(row["lon"])) for row in csv.DictReader(truth_file)}
        rows = list(csv.DictReader(answers_file))
    found = [row for row in rows if row["lat"]]
    latlon = np.array([(float(row["lat"]), float(row["lon"])) for row in found])
    times = np.array([parse_address(row["photo"]).time_s for row in found], dtype=np.float64)
    moments = np.array(list(truth))
    way = np.array(list(truth.values()))
    errors = distance_m(latlon, way[[int(np.abs(moments - time).argmin()) for time in times]])
    print(
        f"{len(found)} of {len(rows)} frames have a position: {np.median(errors):.1f} m from the truth (median), "
        f"{np.quantile(errors, 0.9):.1f} m (nine of ten), {errors.max():.1f} m (largest)"
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), width_ratios=(1.15, 1))
    origin = way.mean(axis=0)
    left.plot(*enu_from_wgs84(way, origin).T, color=TRUTH, linewidth=5, label="true way")
    points = enu_from_wgs84(latlon, origin)
    left.plot(*points.T, "o-", color=FOUND, linewidth=0.8, markersize=4, label="answers, one a second")
    left.set(aspect="equal", xlabel="east, m", ylabel="north, m")
    left.legend(frameon=False, fontsize=8)
    left.spines[["top", "right"]].set_visible(False)
    right.axis("off")
    for line in range(PAIRS):
        row = found[(1 + 5 * line) * len(found) // 12]
        shown = {"query": Path(row["photo"]), "match": place_map.parent / row["match"]}
        for column, (what, path) in enumerate(shown.items()):
            picture = right.inset_axes((0.52 * column, 0.52 * (1 - line), 0.48, 0.42))
            picture.imshow(decode(path))
            picture.set_title(f"{what} {path.name}", fontsize=7)
            picture.axis("off")
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
