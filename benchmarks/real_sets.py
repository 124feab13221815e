"""Real sets of places for experiments, each from the folder that holds it; nothing is written there.

One data folder holds cambridge/meta.csv, tmbud/meta.csv, gardens_point/<walk>/Image000.jpg, landmarks/train.csv and
exif/*.jpg.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from sareloc.datasets import PhotoSet, Places, load_dataset, load_table
from sareloc.datasets.published import read_columns
from sareloc.geo import Positions

Walk = Literal["day_left", "day_right", "night_right"]
GARDENS_POINT_PAIRS: tuple[tuple[Walk, Walk], ...] = (
    ("day_right", "day_left"),  # another viewpoint
    ("night_right", "day_right"),  # another light
    ("night_right", "day_left"),  # both
)
FRAMES_OF_A_WALK = 200
FRAME_STEP_M = 10.0  # with a radius of 25 m, the frames i - 2 to i + 2 are right

Rule = Callable[[str, str, str], bool]
"""Whether a photo with this light (DAY or NIGHT), authors' split and area belongs."""


def _day_train(light: str, role: str, area: str) -> bool:
    return light == "DAY" and role == "train"


def cambridge(data: Path, split: str = "test") -> Places:
    """Street views of Cambridge: the splits train, val and test are different areas; a hit lies within 25 m."""
    return load_dataset(data / "cambridge", split=split)


def tmbud_night_to_day(data: Path) -> Places:
    """TMBuD, P1: all night photos against the day photos of the authors' training split; a hit is the building."""
    return _tmbud(data, "tmbud-p1", "test", _day_train, lambda light, role, area: light == "NIGHT")


def tmbud_east(data: Path, condition: Literal["DAY", "NIGHT"]) -> Places:
    """TMBuD, P3: the buildings of the east, day or night photos against day photos of the authors' training split."""
    return _tmbud(
        data,
        f"tmbud-p3-{condition.lower()}",
        "test",
        lambda light, role, area: area == "test" and _day_train(light, role, area),
        lambda light, role, area: area == "test" and light == condition and (role == "test" or light == "NIGHT"),
    )


def tmbud_west(data: Path) -> Places:
    """What P3 is trained on: the buildings of the west, by day the authors' training split as the database."""
    return _tmbud(
        data,
        "tmbud-p3",
        "train",
        lambda light, role, area: area == "train" and _day_train(light, role, area),
        lambda light, role, area: area == "train" and not _day_train(light, role, area),
    )


def gardens_point(data: Path, queries: Walk, database: Walk) -> Places:
    """Gardens Point: one walk against another; frame i shows the place of the other walk's frames i - 2 to i + 2."""
    frames = np.arange(FRAMES_OF_A_WALK)
    positions = Positions.from_local(np.stack([FRAME_STEP_M * frames, 0 * frames], axis=1))
    files = tuple(f"Image{frame:03d}.jpg" for frame in frames)
    sets = [PhotoSet(data / "gardens_point" / walk, files, positions) for walk in (database, queries)]
    return Places(f"gardens-point-{queries}-{database}", "test", sets[0], sets[1])


def landmarks(data: Path, split: str = "test") -> Places:
    """World landmarks in Google Landmarks' form: train by landmark, test by mean average precision at 100."""
    return load_dataset("landmarks", data / "landmarks", split)


def exif(data: Path) -> Places:
    """Camera originals with GPS in their EXIF; no queries."""
    return load_dataset(data / "exif")


def hold_out(places: Places, share: float, seed: int = 0) -> tuple[Places, Places]:
    """Places judged by id in two: without, and with only, this share of the ids, chosen at random."""
    assert places.database.place_ids is not None
    assert places.queries.place_ids is not None
    ids = sorted({i for photos in (places.database, places.queries) for row in photos.place_ids or () for i in row})
    held = set(np.random.default_rng(seed).permutation(ids)[: round(share * len(ids))].tolist())

    def only(photos: PhotoSet, inside: bool) -> PhotoSet:
        return photos.take([r for r, row in enumerate(photos.place_ids or ()) if (not held.isdisjoint(row)) == inside])

    kept, left = (
        replace(places, database=only(places.database, inside), queries=only(places.queries, inside))
        for inside in (False, True)
    )
    return kept, replace(left, split="val")


def ask_with_all(places: Places) -> Places:
    """The same photos, each both in the database and a query: more tuples from a small set."""
    database, queries = places.database, places.queries
    assert database.folder == queries.folder
    positions = None
    if database.positions is not None and queries.positions is not None:
        metres = np.concatenate([database.positions.metres, queries.positions.metres])
        positions = replace(database.positions, metres=metres)
    ids = None
    if database.place_ids is not None and queries.place_ids is not None:
        ids = (*database.place_ids, *queries.place_ids)
    everybody = PhotoSet(database.folder, database.files + queries.files, positions, place_ids=ids)
    return replace(places, database=everybody, queries=everybody)


def _tmbud(data: Path, name: str, split: str, in_database: Rule, is_query: Rule) -> Places:
    table = data / "tmbud" / "meta.csv"
    photos = load_table(table, columns={"split": None, "place_id": "building_id"}).database
    described = [values for _, values in read_columns(table, ("condition", "split_3_N", "geo_split"))]
    rows = [np.flatnonzero([rule(*values) for values in described]) for rule in (in_database, is_query)]
    return Places(name, split, photos.take(rows[0]), photos.take(rows[1]), "place-id")
