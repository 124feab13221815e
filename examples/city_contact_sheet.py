"""Views of the synthetic city on one sheet: four places, each at six visits.

python examples/city_contact_sheet.py city.png
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from sareloc.city import city_places, draw, make_moment

SEED, HEIGHT, WIDTH, GAP = 0, 180, 240, 4
VISITS = (
    ("clear", "overcast", "rain", "snow", "dusk", "night"),
    ("low sun", "fog", "clear", "rain", "snow", "wet night"),
    ("clear", "overcast", "low sun", "fog", "night", "wet night"),
    ("low sun", "rain", "snow", "overcast", "dusk", "night"),
)
PLACES = (704, 97, 1258, 2011)
"""Rows of the medium test town's database."""


def contact_sheet() -> Image.Image:
    city = city_places(SEED, "medium", "test")
    rng = np.random.default_rng(SEED)
    kinds = [kind for row in VISITS for kind in row]
    moments = [make_moment(rng, kind, city.town.origin[0], city.town.rotation) for kind in kinds]
    poses = city.views.database.take(np.repeat(PLACES, len(VISITS[0])))
    # Every visit has a slightly different camera position.
    poses = replace(
        poses,
        eye=poses.eye + rng.normal(0, [0.6, 0.6, 0.1], poses.eye.shape),
        yaw=poses.yaw + rng.normal(0, 0.04, len(poses)),
        moment=np.arange(len(poses)),
    )
    images = draw(city.town, poses, moments, HEIGHT, WIDTH).permute(0, 2, 3, 1).numpy()
    columns, rows = len(VISITS[0]), len(VISITS)
    sheet = Image.new("RGB", (columns * (WIDTH + GAP) + GAP, rows * (HEIGHT + GAP) + GAP), "white")
    for i, image in enumerate(images):
        at = (GAP + i % columns * (WIDTH + GAP), GAP + i // columns * (HEIGHT + GAP))
        sheet.paste(Image.fromarray(image), at)
    return sheet


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "city.png")
    contact_sheet().save(target, optimize=True)
    print(f"wrote {target}")
