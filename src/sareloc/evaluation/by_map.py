"""What a map answers to every query of a dataset: the search of its file or server is judged with the model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sareloc.datasets.places import Places
from sareloc.descriptors import describe_all
from sareloc.errors import DatasetError, MapError, look_up
from sareloc.evaluation.judging import NS, PROTOCOLS
from sareloc.evaluation.ranking import Ranked, check_photos, reasons
from sareloc.models.place_model import PlaceModel
from sareloc.place_map import Matches, PlaceMap


def rank_by_map(
    model: PlaceModel,
    places: Places,
    place_map: PlaceMap,
    *,
    n: int = max(NS),
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> Ranked:
    """As `rank`, with the database as a map holds it: its descriptors, its precision, its index.

    The map is one of the dataset's database photos, in a file or on a server; a photo of the map that is none of them
    is an error, since nothing says whether it is right. Database photos that the map lacks are never found. Queries are
    asked with whole photos.
    """
    if not len(place_map):
        raise MapError(f'map {place_map.path} holds no photos: add some with "sareloc map add"')
    place_map.check_model(model)
    check_photos(places)
    depth = look_up(PROTOCOLS, places.protocol, "protocol").depth(places, n)
    asked = [places.queries.path(row) for row in range(len(places.queries))]
    dim = place_map.manifest.dim
    queries = describe_all(model, asked, batch=batch, workers=workers, dim=dim, progress=progress)
    matches = place_map.search(queries.vectors, min(depth, len(places.database)))
    rankings, distances = _rows(matches, places, place_map), np.asarray(matches.distances, dtype=np.float64)
    rankings[list(queries.failures)], distances[list(queries.failures)] = -1, np.inf
    return Ranked(
        places,
        rankings,
        distances,
        model=model.name,
        fingerprint=model.fingerprint(),
        dim=dim,
        boxes=None if places.boxes is None else "full",
        failures={"database": (), "queries": reasons(queries.failures)},
    )


def _rows(matches: Matches, places: Places, place_map: PlaceMap) -> np.typing.NDArray[np.int64]:
    """(Q, K) database rows of the photos found."""
    row_of = {_absolute(places.database.path(row)): row for row in range(len(places.database))}
    found = np.empty(matches.ids.shape, dtype=np.int64)
    for query, files in enumerate(matches.files):
        for place, file in enumerate(files):
            row = row_of.get(_absolute(place_map.photo_path(file)))
            if row is None:
                raise DatasetError(
                    f"map {place_map.path.name} holds {file}, which is no database photo of {places.name} "
                    f"{places.split}: build the map from {places.database.folder}"
                )
            found[query, place] = row
    return found


def _absolute(path: Path) -> str:
    return os.path.abspath(path)
