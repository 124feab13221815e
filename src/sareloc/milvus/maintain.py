"""Looking after a map on Milvus: what is in it, and whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from sareloc.geo import Box
from sareloc.maps import gpkg
from sareloc.maps.maintain import UNIT, MapInfo, read_calibrations
from sareloc.milvus.connection import MilvusAddress
from sareloc.milvus.engine import MilvusEngine, Row
from sareloc.milvus.store import open_milvus_store, photo_id
from sareloc.photos.geotags import FIRST_S, LAST_S

DEGREES, SECONDS = 1e-9, 1e-3  # how exactly extremes are found


def milvus_info(address: MilvusAddress) -> MapInfo:
    """What a map holds, without reading all of it: a country's photos are too many."""
    with open_milvus_store(address, consistency="Bounded") as store:
        photos = store.count()
        latitudes = _extremes(store.engine, "lat", -90.0, 90.0, DEGREES)
        longitudes = _extremes(store.engine, "lon", -180.0, 180.0, DEGREES)
        times = _extremes(store.engine, "time", FIRST_S, LAST_S, SECONDS)
        extent = None
        if latitudes is not None and longitudes is not None:
            extent = Box(latitudes[0], longitudes[0], latitudes[1], longitudes[1])
        first, last = (None, None) if times is None else map(gpkg.time_text, times)
        index, calibrations = f"{store.engine.index}, kept by Milvus", read_calibrations(store.notes())
        return MapInfo(store.manifest, photos, extent, first, last, None, index, calibrations)


def _extremes(
    engine: MilvusEngine, column: str, low: float, high: float, tolerance: float
) -> tuple[float, float] | None:
    """The smallest and the largest value of a column in this range; None where there is none."""
    one = engine.any_value(column, f"{column} >= {low!r} and {column} <= {high!r}")
    return (
        None
        if one is None
        else (_nearest(engine, column, low, one, tolerance), _nearest(engine, column, high, one, tolerance))
    )


def _nearest(engine: MilvusEngine, column: str, limit: float, best: float, tolerance: float) -> float:
    """The value nearest to a limit that none lies beyond: half of what could be nearer is asked for at a time."""
    while abs(best - limit) > tolerance:
        middle = (best + limit) / 2
        low, high = sorted((middle, limit))
        found = engine.any_value(column, f"{column} >= {low!r} and {column} <= {high!r}")
        if found is None:
            limit = middle
        else:
            best = found
    return best


def verify_milvus(address: MilvusAddress) -> list[str]:
    """What is wrong with a map, one sentence each; nothing where it is whole. Reads all of it."""
    problems: list[str] = []
    with open_milvus_store(address) as store, tqdm(total=store.count(), unit="photo", disable=None, leave=False) as bar:
        found = 0
        for page in store.engine.select(fields=["lat", "lon", "file", "sha256", "vector"]):
            problems += _problems(page)
            found += len(page)
            bar.update(len(page))
        if found != store.count():
            problems.append(f"Milvus counts {store.count():,} photos and gives {found:,}: is somebody writing?")
    return problems


def _problems(page: list[Row]) -> Iterator[str]:
    lengths = np.linalg.norm(np.array([row["vector"] for row in page], dtype=np.float64), axis=1)
    for row, length in zip(page, lengths, strict=True):
        named = f"photo {row['id']} ({row['file']})"
        if not (abs(row["lat"]) <= 90 and abs(row["lon"]) <= 180):
            yield f"{named} stands nowhere on Earth: {row['lat']}, {row['lon']}"
        if not abs(length - 1) <= UNIT:
            yield f"the descriptor of {named} has length {length:.3f}, not 1"
        if photo_id(bytes.fromhex(row["sha256"])) != row["id"]:
            yield f"{named} has the content hash of another photo"
