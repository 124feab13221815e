"""Geotags that geometry contradicts: photos that show another place than the one their geotag names.

A photo with a wrong geotag agrees with several photos of the place that it shows, and not with those around its
geotag. Photos whose geotags are wrong together, such as those of a drive with a wrong clock, agree with each other and
are not found.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sareloc.adapt.compare import (
    NEAR_M,
    Comparisons,
    check_features,
    compare_photos,
    metres_apart,
    shown_together,
)
from sareloc.arrays import Bools, Ints
from sareloc.datasets.places import Places
from sareloc.errors import DatasetError
from sareloc.geo import ecef_from_wgs84
from sareloc.geometry import LocalFeatureExtractor
from sareloc.localize import Calibration, Match, Search
from sareloc.localize.candidates import map_calibration
from sareloc.localize.estimate import SURE_INLIERS, LatLon, fuse, weigh
from sareloc.localize.verify import Verifier
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.maps.upgrade import checked_device
from sareloc.models.place_model import PlaceModel
from sareloc.photos import ImageRecord

FAR_M = 100.0
"""A position that is nearer than this to the geotag does not contradict it: GPS errs by some 10 m between houses."""
WITNESSES = 2
"""Photos that must agree with a photo at the place that they suggest: if two photos agree with each other alone,
nothing says which of the geotags is wrong."""
SOLE_WITNESS_INLIERS = 100
"""One photo is enough if it has so many inliers and shows the same thing as another one near its own geotag."""
LOOK_ALIKE_SHARE = 0.8
"""Of the photos of the map, so many have fewer inliers with each photo more than 100 m away than the best witness must
have: in some towns houses look alike."""
NEAR_SHARE = 0.1
"""Of the weight of all compared photos, those within 50 m of the geotag have less."""
LEAST_CONFIDENCE = 0.1
"""Of the place that they suggest. An answer needs more; here witnesses, and few at the geotag, are evidence too."""


@dataclass(frozen=True)
class SuspiciousGeotag:
    """A photo whose geotag geometry contradicts."""

    photo: str
    """Its file, as the map names it."""
    latlon: LatLon
    """Its geotag, in degrees."""
    suggested: LatLon
    """Where the photos that agree with it were taken."""
    away_m: float
    """The distance of the two."""
    confidence: float
    """The probability that the photo was taken within 25 m of the suggested position."""
    witnesses: tuple[Match, ...]
    """The photos at the suggested position that agree with it, most inliers first."""
    near: tuple[Match, ...]
    """The photos within 50 m of its geotag that it was compared with, most inliers first."""


@dataclass(frozen=True)
class GeotagCheck:
    """The photos of a map whose geotags were compared with what they show."""

    photos: int
    """Of the map."""
    compared: int
    """Photos that agree with at least one other photo; the others cannot be checked."""
    suspicious: tuple[SuspiciousGeotag, ...]
    """The surest first."""


def check_geotags(
    place_map: PlaceMap, *, folder: Path | None = None, device: torch.device | str | None = None, progress: bool = True
) -> GeotagCheck:
    """Find the photos of a map whose geotags geometry contradicts.

    Args:
        place_map: a map file with local features.
        folder: where comparisons are kept, so that a call that was interrupted continues; default: nowhere.
        device: that compares local features; default: the GPU if there is one.
        progress: show a progress bar, on a terminal.

    Raises:
        MapError: if the map has no local features, is on a server, or has fewer than two photos.
    """
    check_features(place_map)
    verifier = Verifier(place_map, LocalFeatureExtractor(checked_device(device)))
    calibration = map_calibration(place_map, Search().for_map(place_map))
    found = compare_photos(place_map, verifier, calibration.temperature, folder=folder, progress=progress)
    return find_suspicious(place_map, found, calibration)


def check_geotags_of_dataset(
    places: Places, model: PlaceModel | str | None = None, *, config: MapConfig | None = None
) -> GeotagCheck:
    """As `check_geotags`, of the photos of a dataset, of which a map is built in a temporary folder.

    Args:
        places: the dataset; database and queries are checked together.
        model: by which photos are searched; default: see `build_map`.
        config: of the map.

    Raises:
        DatasetError: if its positions are not on Earth.
    """
    records: list[ImageRecord] = []
    for photos in (places.database, places.queries):
        if len(photos) and (photos.positions is None or photos.positions.frame == "local"):
            raise DatasetError(
                f"the photos of {places.name} have no positions in degrees: there are no geotags to check"
            )
        for path, (latitude, longitude) in zip(
            photos.paths(), [] if photos.positions is None else photos.positions.latlon().tolist(), strict=True
        ):
            records.append(ImageRecord(str(path), path, (latitude, longitude)))
    with tempfile.TemporaryDirectory(prefix="sareloc-") as scratch:
        path = Path(scratch) / "dataset.gpkg"
        build_map(records, path, model, config=config)
        with PlaceMap(path) as place_map:
            return check_geotags(place_map)


def find_suspicious(place_map: PlaceMap, compared: Comparisons, calibration: Calibration) -> GeotagCheck:
    """The photos whose geotags their comparisons contradict.

    The compared photos of a photo are fused into a place, as the matches of a query (see `fuse`). Its geotag is
    suspicious if that place is more than 100 m away, its confidence is 0.1 or more, those within 50 m of the geotag
    have less than a tenth of the weight, and there are witnesses: two or more photos within 50 m of that place with
    15 inliers or more, one of them with at least the `look_alike_inliers` of the map; or one with 100 inliers that
    agrees with another photo near its own geotag. Photos found so are then left out, as witnesses, and what is still
    suspicious remains.

    Args:
        place_map: the map.
        compared: all of its photos, see `compare_photos`.
        calibration: of the map.
    """
    compared = compared.take(~np.isnan(compared.inliers))
    starts = np.flatnonzero(np.diff(compared.query, prepend=-1))
    groups = np.split(np.arange(len(compared)), starts[1:]) if len(compared) else []
    first = {int(compared.query[rows[0]]): rows for rows in groups}
    together = compared.take(shown_together(place_map, compared))
    confirmed, usual = np.union1d(together.query, together.photo), look_alike_inliers(place_map, compared)

    def judge(groups: dict[int, Ints], left_out: Sequence[int]) -> dict[int, SuspiciousGeotag]:
        rows = {photo_id: some[~np.isin(compared.photo[some], left_out)] for photo_id, some in groups.items()}
        judged = {
            photo_id: _judge(place_map, photo_id, compared.take(some), calibration, confirmed, usual)
            for photo_id, some in rows.items()
            if len(some)
        }
        return {photo_id: one for photo_id, one in judged.items() if one is not None}

    found = judge(first, [])
    kept = judge({photo_id: first[photo_id] for photo_id in found}, list(found))
    agreeing = np.unique(compared.query[compared.inliers >= SURE_INLIERS])
    ordered = sorted(kept.values(), key=lambda one: (-one.confidence, one.photo))
    return GeotagCheck(len(place_map), len(agreeing), tuple(ordered))


def look_alike_inliers(place_map: PlaceMap, compared: Comparisons) -> float:
    """The most inliers with a photo more than 100 m away that four of five photos do not exceed."""
    far = metres_apart(place_map, compared) > FAR_M
    photos, number = np.unique(compared.query, return_inverse=True)
    most = np.zeros(len(photos))
    np.maximum.at(most, number[far], compared.inliers[far])
    return float(np.quantile(most, LOOK_ALIKE_SHARE)) if len(most) else 0.0


def _judge(
    place_map: PlaceMap, photo_id: int, compared: Comparisons, calibration: Calibration, confirmed: Ints, usual: float
) -> SuspiciousGeotag | None:
    """Whether the comparisons of one photo make its geotag suspicious, see `find_suspicious`."""
    own = int(np.searchsorted(place_map.ids, photo_id))
    others = np.searchsorted(place_map.ids, compared.photo)
    latlon = place_map.latlon[others]
    weights = weigh(compared.distance, calibration.temperature, compared.evidence)
    place = fuse(latlon, compared.distance, weights, compared.evidence)
    points, here, there = (ecef_from_wgs84(at) for at in (latlon, place_map.latlon[own], place.latlon))
    away_m = float(np.linalg.norm(here - there))
    near = np.linalg.norm(points - here, axis=1) <= NEAR_M
    agreeing = (np.linalg.norm(points - there, axis=1) <= NEAR_M) & (compared.inliers >= SURE_INLIERS)
    several = agreeing.sum() >= WITNESSES and compared.inliers[agreeing].max() >= usual
    one = agreeing & (compared.inliers >= SOLE_WITNESS_INLIERS) & np.isin(compared.photo, confirmed)
    confidence = calibration.confidence(place)
    if (
        away_m <= FAR_M
        or confidence < LEAST_CONFIDENCE
        or weights[near].sum() >= NEAR_SHARE
        or not (several or one.any())
    ):
        return None
    return SuspiciousGeotag(
        place_map.files[own],
        _latlon(place_map.latlon[own]),
        place.latlon,
        away_m,
        confidence,
        _matches(place_map, compared, others, agreeing),
        _matches(place_map, compared, others, near),
    )


def _matches(place_map: PlaceMap, part: Comparisons, others: Ints, chosen: Bools) -> tuple[Match, ...]:
    """Some of the compared photos, which are in these rows of the map, most inliers first."""
    rows = np.flatnonzero(chosen)
    return tuple(
        Match(
            int(part.photo[row]),
            place_map.files[others[row]],
            _latlon(place_map.latlon[others[row]]),
            float(part.distance[row]),
            int(part.inliers[row]),
            int(part.planar[row]),
        )
        for row in rows[np.argsort(-part.inliers[rows], kind="stable")]
    )


def _latlon(degrees: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> LatLon:
    return float(degrees[0]), float(degrees[1])
