"""Localizing a dataset's queries, and out-of-map photos, in a map of its database, and judging the fixes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from tqdm import tqdm

from sareloc.arrays import Floats
from sareloc.datasets.places import PhotoSet, Places
from sareloc.errors import ArgumentError, DatasetError
from sareloc.evaluation.fixes import FixReport, Located, judge_fixes
from sareloc.evaluation.ranking import check_photos
from sareloc.geo import Positions, wgs84_from_enu
from sareloc.localize import MIN_CONFIDENCE, Localizer, Search
from sareloc.localize.estimate import check_confidence
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.models.place_model import PlaceModel
from sareloc.photos import Geotag, read_geotag

ORIGIN = (0.0, 0.0)
"""Latitude, longitude in degrees that the mean position of a database in local metres gets."""
Reasons = tuple[tuple[str, str], ...]


def evaluate_fixes(
    model: PlaceModel,
    places: Places,
    *,
    place_map: PlaceMap | None = None,
    strangers: Sequence[str | Path] = (),
    min_confidence: float = MIN_CONFIDENCE,
    verify: int | None = None,
    dim: int | None = None,
    batch: int = 8,
    workers: int = 0,
    store: Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> FixReport:
    """Build a map of the database, localize the queries and out-of-map photos, and judge the fixes.

    True headings are those of the dataset, else of the photos' geotags. Queries are full photos, also if the dataset
    has boxes.

    Args:
        model: the model.
        places: the dataset.
        place_map: localize in this map instead, which may show more than the database.
        strangers: photos of places that the map does not show.
        min_confidence: of an answer; the fixes are made without a threshold, which is applied in judging (see
            `judge_fixes`).
        verify: the top N matches; default: 20 if the map holds local features, as one that is built here does.
        dim: keep the first `dim` dimensions of the descriptors; default: all.
        batch: images at a time.
        workers: processes that decode photos.
        store: folder to keep the map in, so that an interrupted run resumes; default: none.
        seed: of the bootstrap.
        progress: show a progress bar.

    Raises:
        DatasetError: if positions are unknown.
    """
    if place_map is not None and (dim is not None or store is not None):
        raise ArgumentError("a map has its own dimensions and descriptors: leave dim and store out")
    check_confidence(min_confidence)
    check_photos(places)
    left_out: Reasons = ()
    with TemporaryDirectory() if store is None else nullcontext(store) as folder:
        if place_map is None:
            database, truth = _degrees(places)
            place_map, left_out = _map_of_database(
                model, places.database, database, Path(folder), dim=dim, keypoints=0 if verify == 0 else None,
                batch=batch, workers=workers, progress=progress,
            )  # fmt: skip
        else:
            truth = _degrees_in_map(places)
        localizer = Localizer(model, place_map, Search(verify=verify), min_confidence=0, batch=batch, workers=workers)
        fixes = _localize(localizer, places.queries.paths(), "queries", progress)
        others = _localize(localizer, strangers, "strangers", progress)
    headings = _headings_deg(places.queries)
    judged = judge_fixes(fixes, truth, headings, others, min_confidence=min_confidence, seed=seed)
    return replace(
        judged,
        dataset=places.name,
        split=places.split,
        model=model.name,
        fingerprint=model.fingerprint(),
        database=len(place_map),
        verify=localizer.search.verify,
        failures={"database": left_out, **judged.failures},
    )


def _degrees(places: Places) -> tuple[Floats, Floats]:
    """Latitude, longitude of the database (N, 2) and of the queries (Q, 2); of local metres around `ORIGIN`."""
    there, asked = _positions(places, "database"), _positions(places, "queries")
    if "local" not in (there.frame, asked.frame):
        return there.latlon(), asked.latlon()
    if there.frame != asked.frame:
        raise DatasetError(f"{places.name}: the positions of database and queries are in different frames")
    centre = there.metres.mean(axis=0)
    return wgs84_from_enu(there.metres - centre, ORIGIN), wgs84_from_enu(asked.metres - centre, ORIGIN)


def _degrees_in_map(places: Places) -> Floats:
    """Latitude, longitude of the queries (Q, 2), to be compared with those of a map."""
    asked = _positions(places, "queries")
    if asked.frame == "local":
        raise DatasetError(
            f"the positions of {places.name} are local metres, which cannot be compared with those of a map: leave the "
            "map out, so that one is built of the database, or give lat and lon"
        )
    return asked.latlon()


def _positions(places: Places, role: Literal["database", "queries"]) -> Positions:
    photos = places.database if role == "database" else places.queries
    if photos.positions is None:
        raise DatasetError(
            f"{places.name} has no positions of its {role} (protocol {places.protocol}), and fixes are judged by "
            "position: give lat and lon, or x_m and y_m, or evaluate recall alone"
        )
    return photos.positions


def _map_of_database(
    model: PlaceModel,
    photos: PhotoSet,
    latlon: Floats,
    folder: Path,
    *,
    dim: int | None,
    keypoints: int | None,
    batch: int,
    workers: int,
    progress: bool,
) -> tuple[PlaceMap, Reasons]:
    """A map in the folder of photos taken at `latlon` (N, 2), and the photos that it lacks; one begun is continued.

    Its name depends on the model, the dimension and the photos: a folder may hold the maps of several datasets.
    """
    headings = [None if np.isnan(heading) else float(heading) for heading in _headings_deg(photos)]
    tags = {
        path: Geotag((float(latitude), float(longitude)), heading)
        for path, (latitude, longitude), heading in zip(photos.paths(), latlon, headings, strict=True)
    }
    there = [path for path in tags if path.is_file()]
    names = hashlib.sha256(os.fsencode("\n".join(map(os.path.abspath, there)))).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{model.fingerprint()}-{dim or model.dim}-{names}.gpkg"
    config = MapConfig(dim=dim, keypoints=keypoints, batch=batch, workers=workers, progress=progress)
    built = build_map(there, out, model, geotags=tags, config=config)
    missing = [(str(path), "no such file") for path in tags if not path.is_file()]
    unreadable = [(error.photo, error.reason) for error in built.unreadable]
    conflicts = [(one.photo, f"has the content of {one.kept}, which is elsewhere") for one in built.conflicts]
    if not out.is_file():
        raise DatasetError(
            f"none of the {len(there)} database photos can be used, such as {unreadable[0][0]}: {unreadable[0][1]}"
        )
    return PlaceMap(out), (*missing, *unreadable, *conflicts)


def _localize(localizer: Localizer, photos: Sequence[str | Path], title: str, progress: bool) -> list[Located]:
    if not len(photos):
        return []
    fixes = localizer.localize_each(photos)
    return list(tqdm(fixes, total=len(photos), desc=title, unit="photo", disable=None if progress else True))


def _headings_deg(photos: PhotoSet) -> Floats:
    """Headings (N,) in degrees: those of the dataset, else of the photos' own geotags; NaN: unknown."""
    headings = np.full(len(photos), np.nan) if photos.headings_deg is None else photos.headings_deg % 360
    for row in np.flatnonzero(np.isnan(headings)):
        tag = read_geotag(photos.path(int(row)))
        if tag is not None and tag.heading_deg is not None:
            headings[row] = tag.heading_deg
    return headings
