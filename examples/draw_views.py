"""Draw a 360° photo and its views: python examples/draw_views.py PANO VIEWS FIGURE

VIEWS: the folder that `sareloc data views PANO VIEWS` wrote. Prints the heading of each view.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from sareloc.photos import decode, find_photos, read_geotag

COLUMNS = 6


def main() -> None:
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    pano, views, out = map(Path, sys.argv[1:])
    photos = find_photos(views)
    rows = -(-len(photos) // COLUMNS)
    figure = plt.figure(figsize=(9, 4.1 + 1.3 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, COLUMNS, height_ratios=[3.3, *[1] * rows])
    whole = figure.add_subplot(grid[0, :])
    whole.imshow(decode(pano))
    whole.set_axis_off()
    for number, photo in enumerate(photos):
        axes = figure.add_subplot(grid[1 + number // COLUMNS, number % COLUMNS])
        axes.imshow(decode(photo))
        axes.set_axis_off()
        tag = read_geotag(photo)
        heading = "" if tag is None or tag.heading_deg is None else f", heading {tag.heading_deg:.0f}°"
        yaw = int(photo.stem.split("_yaw")[1].split("_")[0])
        axes.set_title(f"yaw {yaw}°{heading}", fontsize=7, pad=2)
        print(f"{photo.name}: yaw {yaw}°{heading}")
    figure.savefig(out, dpi=100)


if __name__ == "__main__":
    main()
