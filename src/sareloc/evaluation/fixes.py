"""Judging fixes of photos whose positions are known, and of out-of-map photos, for which every fix is wrong.

An answer is a fix whose confidence reaches the threshold. A fix is correct if its position, of high or low confidence,
is within 25 m of the truth: that is the event whose probability the confidence states.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.arrays import Bools, Floats
from sareloc.datasets.places import PhotoSet, Places
from sareloc.encode import Encoded
from sareloc.errors import ArgumentError, DatasetError, PhotoError
from sareloc.evaluation.judging import plain_json
from sareloc.evaluation.metrics import finite_or_none, percent_interval, quantiles
from sareloc.evaluation.ranking import check_photos, reasons
from sareloc.geo import Positions, distance_m, wgs84_from_enu
from sareloc.localize import MIN_CONFIDENCE, Fix, Localizer, Search
from sareloc.localize.calibration import ABSENT_SHARE, expected_calibration_error, sample_weights
from sareloc.localize.estimate import PLACE_M, Candidates, LatLon, check_confidence
from sareloc.localize.queries import readable, split_into_chunks
from sareloc.maps import MapConfig, Matches, PlaceMap, build_map
from sareloc.models.place_model import PlaceModel
from sareloc.photos import Geotag, read_geotag

T = TypeVar("T")
LADDER = ("descriptor", "search vector", "pre-filter", "verified")
"""The steps of a search, see `FixReport.ladder`."""
First = tuple[str, LatLon]
"""The file of a match, as the map names it, and where it was taken."""
Failures = Mapping[str, tuple[tuple[str, str], ...]]
Located = Fix | PhotoError
"""The result of localizing a photo; PhotoError: it cannot be decoded."""


@dataclass(frozen=True, kw_only=True)
class FixReport:
    """How good the fixes of photos with known positions are. Shares are percentages; None if there is nothing to count.

    Out-of-map photos show places that the map does not show; in fields and JSON keys they are called "strangers".
    """

    dataset: str = ""
    split: str = ""
    model: str = ""
    fingerprint: str = ""
    """Of the model; these are empty, and the next two None, for fixes that `evaluate_fixes` did not make."""
    database: int | None = None
    """Number of photos in the map."""
    verify: int | None = None
    """How many matches of a photo were verified."""
    queries: int
    """Number of photos with a known position; one that cannot be decoded counts as missed and not answered."""
    correct: float | None
    """Of the queries: position within 25 m of the truth, whatever the confidence."""
    correct_interval: tuple[float, float] | None
    """95 % bootstrap interval over the queries."""
    min_confidence: float
    """The least confidence of an answer."""
    answered: float | None
    """Of the queries."""
    answers_correct: float | None
    """Of the answers about queries: within 25 m of the truth."""
    correct_and_answered: float | None
    """Of the queries."""
    correct_and_answered_interval: tuple[float, float] | None
    """95 % bootstrap interval over the queries."""
    answers_in_radius: float | None
    """Of the answers about queries: the truth is within the radius of the fix; meant to be 90."""
    median_error_m: float | None
    """Of the answers about queries, in metres."""
    error_90_m: float | None
    """The error that 90 % of the answers about queries do not exceed, in metres."""
    headings: int
    """Number of answers about queries that have a heading, of queries whose heading is known."""
    median_heading_error_deg: float | None
    """Of these headings, in degrees, 0 to 180."""
    strangers: int
    """Number of out-of-map photos; those that cannot be decoded are left out."""
    strangers_rejected: float | None
    """Of the out-of-map photos: not answered."""
    calibration_error: float | None
    """Expected calibration error, 0 to 1, over all fixes, answered or not; every fix of an out-of-map photo is
    wrong. If there are any, they weigh 25 % together and the queries 75 %, as in fitting a calibration."""
    ladder: Mapping[str, float] = field(default_factory=dict)
    """Recall@1 at each step of the search, of the queries: the first match was taken within 25 m of the truth, by the
    descriptor of the model, by the search vector, after the pre-filter, and after verification. Empty for fixes that
    `evaluate_fixes` did not make; without the steps that the map or the search has not."""
    failures: Failures = field(default_factory=dict)
    """By "database", "queries" and "strangers": photos that were left out or missed, with reasons."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object, as `sareloc evaluate --fixes --json` prints it."""
        return dict(plain_json(asdict(self)))


def judge_fixes(
    fixes: Sequence[Located],
    latlon: npt.ArrayLike,
    headings: npt.ArrayLike | None = None,
    out_of_map: Sequence[Located] = (),
    *,
    min_confidence: float = MIN_CONFIDENCE,
    seed: int = 0,
    strangers: Sequence[Located] | None = None,
) -> FixReport:
    """Judge the fixes of Q queries, and those of out-of-map photos.

    The fixes are to come from a `Localizer` with `min_confidence=0`: then each has its position, radius and heading,
    whatever its confidence. A fix below its confidence threshold is judged by its low-confidence position, but has no
    heading; one without matches is missed and never answered.

    Args:
        fixes: one for each query.
        latlon: (Q, 2) the true positions in degrees.
        headings: (Q,) the true headings in degrees clockwise from north, NaN for unknown; default: all unknown.
        out_of_map: fixes of out-of-map photos.
        min_confidence: the least confidence of an answer.
        seed: of the bootstrap.
        strangers: deprecated name of `out_of_map`.

    Raises:
        ArgumentError: if the numbers of fixes, positions and headings differ.
    """
    truth = np.asarray(latlon, dtype=np.float64).reshape(-1, 2)
    directions = np.full(len(fixes), np.nan) if headings is None else np.asarray(headings, dtype=np.float64)
    if not len(fixes) == len(truth) == len(directions):
        raise ArgumentError(
            f"{len(fixes)} fixes need as many positions and headings: found {len(truth)} and {len(directions)}"
        )
    check_confidence(min_confidence)
    out_of_map = _renamed(out_of_map, strangers)
    others = [fix for fix in out_of_map if isinstance(fix, Fix)]
    errors_m = fix_errors_m(fixes, truth)
    correct = np.asarray(errors_m <= PLACE_M)
    answered = np.array([_is_answer(fix, min_confidence) for fix in fixes], dtype=bool)
    turned = _heading_errors(fixes, directions)[answered]
    median_m, most_m = quantiles(errors_m[answered], (0.5, 0.9))
    return FixReport(
        queries=len(fixes),
        correct=_percent(correct),
        correct_interval=percent_interval(correct, seed),
        min_confidence=min_confidence,
        answered=_percent(answered),
        answers_correct=_percent(correct[answered]),
        correct_and_answered=_percent(correct & answered),
        correct_and_answered_interval=percent_interval(correct & answered, seed),
        answers_in_radius=_percent((errors_m <= [_radius_m(fix) for fix in fixes])[answered]),
        median_error_m=finite_or_none(median_m),
        error_90_m=finite_or_none(most_m),
        headings=int(np.isfinite(turned).sum()),
        median_heading_error_deg=finite_or_none(quantiles(turned[np.isfinite(turned)], (0.5,))[0]),
        strangers=len(others),
        strangers_rejected=_percent(np.array([not _is_answer(fix, min_confidence) for fix in others], dtype=bool)),
        calibration_error=_calibration_error(fixes, correct, others),
        failures={"queries": reasons(fixes), "strangers": reasons(out_of_map)},
    )


def fix_errors_m(fixes: Sequence[Located], latlon: npt.ArrayLike) -> Floats:
    """Metres (Q,) from the position of each fix, of any confidence, to the truth (Q, 2) in degrees; inf without one."""
    positions = [None if isinstance(fix, PhotoError) else fix.latlon or fix.guess for fix in fixes]
    known = {row: position for row, position in enumerate(positions) if position is not None}
    errors_m = np.full(len(fixes), np.inf)
    if known:
        errors_m[list(known)] = distance_m(list(known.values()), np.asarray(latlon, dtype=np.float64)[list(known)])
    return errors_m


def _is_answer(fix: Located, min_confidence: float) -> bool:
    """Whether there is a position of this confidence or more."""
    return isinstance(fix, Fix) and (fix.latlon or fix.guess) is not None and fix.confidence >= min_confidence


def _radius_m(fix: Located) -> float:
    """The radius of the position, of high or low confidence; NaN, which contains nothing, without one."""
    radius_m = None if isinstance(fix, PhotoError) else fix.guess_radius_m if fix.latlon is None else fix.radius_m
    return math.nan if radius_m is None else radius_m


def _heading_errors(fixes: Sequence[Located], headings_deg: Floats) -> Floats:
    """Degrees (Q,) between the headings of fixes and the true ones, 0 to 180; NaN if either is unknown."""
    found = [math.nan if isinstance(fix, PhotoError) or fix.heading_deg is None else fix.heading_deg for fix in fixes]
    return np.asarray(np.abs((np.array(found, dtype=np.float64) - headings_deg + 180) % 360 - 180))


def _calibration_error(fixes: Sequence[Located], correct: Bools, out_of_map: Sequence[Fix]) -> float | None:
    """See `FixReport.calibration_error`; a query that cannot be decoded has no confidence and is left out."""
    rows = [(fix.confidence, right) for fix, right in zip(fixes, correct, strict=True) if isinstance(fix, Fix)]
    rows += [(fix.confidence, False) for fix in out_of_map]
    if not rows:
        return None
    absent = np.arange(len(rows)) >= len(rows) - len(out_of_map)
    confidence, right = zip(*rows, strict=True)
    return expected_calibration_error(confidence, right, counts=sample_weights(absent, ABSENT_SHARE))


def _percent(chosen: Bools) -> float | None:
    return 100 * float(chosen.mean()) if len(chosen) else None


ORIGIN = (0.0, 0.0)
"""Latitude, longitude in degrees that the mean position of a database in local metres gets."""
Reasons = tuple[tuple[str, str], ...]


def evaluate_fixes(
    model: PlaceModel,
    places: Places,
    *,
    place_map: PlaceMap | None = None,
    out_of_map: Sequence[str | Path] = (),
    min_confidence: float = MIN_CONFIDENCE,
    verify: int | None = None,
    dim: int | None = None,
    batch: int = 8,
    workers: int = 0,
    store: Path | None = None,
    seed: int = 0,
    progress: bool = True,
    strangers: Sequence[str | Path] | None = None,
) -> FixReport:
    """Build a map of the database, localize the queries and out-of-map photos, and judge the fixes.

    True headings are those of the dataset, else of the photos' geotags. Queries are full photos, also if the dataset
    has boxes, and each is asked alone, without the condition of the others.

    Args:
        model: the model.
        places: the dataset.
        place_map: localize in this map instead, which may show more than the database.
        out_of_map: photos of places that the map does not show.
        min_confidence: of an answer; the fixes are made without a threshold, which is applied in judging (see
            `judge_fixes`).
        verify: about so many matches; default: 10 if the map holds local features, as one that is built here does.
        dim: keep the first `dim` dimensions of the descriptors; default: all.
        batch: images at a time.
        workers: processes that decode photos.
        store: folder to keep the map in, so that an interrupted run resumes; default: none.
        seed: of the bootstrap.
        progress: show a progress bar.
        strangers: deprecated name of `out_of_map`.

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
        fixes, firsts = _localize(localizer, places.queries.paths(), "queries", progress)
        others, _ = _localize(localizer, _renamed(out_of_map, strangers), "out-of-map photos", progress)
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
        ladder=_ladder(firsts, truth),
        failures={"database": left_out, **judged.failures},
    )


def _renamed(out_of_map: Sequence[T], strangers: Sequence[T] | None) -> Sequence[T]:
    """The out-of-map photos, also if they are given under the name until version 0.1."""
    if strangers is None:
        return out_of_map
    warnings.warn("strangers= will end with the next version: use out_of_map=", DeprecationWarning, stacklevel=3)
    return strangers


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
    unreadable = reasons(built.unreadable)
    conflicts = [(one.photo, f"has the content of {one.kept}, which is elsewhere") for one in built.conflicts]
    if not out.is_file():
        raise DatasetError(
            f"none of the {len(there)} database photos can be used, such as {unreadable[0][0]}: {unreadable[0][1]}"
        )
    return PlaceMap(out), (*missing, *unreadable, *conflicts)


def _localize(
    localizer: Localizer, photos: Sequence[str | Path], title: str, progress: bool
) -> tuple[list[Located], list[dict[str, First]]]:
    """The fixes of photos, and the first match of each at each step of the search."""
    fixes: list[Located] = []
    firsts: list[dict[str, First]] = []
    with tqdm(total=len(photos), desc=title, unit="photo", disable=None if progress else True) as bar:
        for loaded in split_into_chunks(localizer.load(photos)):
            queries = readable(loaded)
            encoded = localizer.encode(queries)
            found = localizer.find_matches(queries, encoded, localizer.search.fused) if queries else []
            steps = first_matches(localizer, encoded, found)
            answers = zip(found, steps, strict=True)
            for query in loaded:
                if isinstance(query, PhotoError):
                    fixes.append(query)
                    firsts.append({})
                else:
                    one, first = next(answers)
                    fixes.append(localizer.fix(one))
                    firsts.append(first)
            bar.update(len(loaded))
    return fixes, firsts


def first_matches(
    localizer: Localizer, encoded: Sequence[Sequence[Encoded]], found: Sequence[Candidates]
) -> list[dict[str, First]]:
    """The first match of each query at each step of the search (see `LADDER`); of a 360° query after the last alone.

    Args:
        localizer: searches the map.
        encoded: the queries, see `Localizer.encode`.
        found: what `Localizer.find_matches` found for them.
    """
    place_map, verifier, temperature = localizer.place_map, localizer.verifier, localizer.calibration.temperature
    steps: list[dict[str, First]] = []
    for views, one in zip(encoded, found, strict=True):
        first: dict[str, First] = {}
        if len(views) == 1:
            (query,) = views
            alone = localizer.encoder.search_vector(query.descriptor, None)
            first["descriptor"] = _first(place_map.search(alone[None], 1))
            retrieved = localizer.retrieve(views, localizer.search.candidates or 1)
            if place_map.manifest.aggregate_dim:
                first["search vector"] = _first(retrieved)
            if verifier is not None and query.features is not None:
                order = verifier.prefilter(query.features, retrieved.ids[0], retrieved.distances[0], temperature)
                first["pre-filter"] = _first(retrieved.take(0, order[:1]))
        if verifier is not None and one.matches:
            first["verified"] = one.matches[0].photo, one.matches[0].latlon
        steps.append(first)
    return steps


def _first(matches: Matches) -> First:
    latitude, longitude = matches.latlon[0, 0].tolist()
    return matches.files[0][0], (latitude, longitude)


def _ladder(firsts: Sequence[Mapping[str, First]], truth: Floats) -> dict[str, float]:
    """See `FixReport.ladder`; `truth` (Q, 2) in degrees."""
    found: dict[str, float] = {}
    for step in LADDER:
        rows = [row for row, first in enumerate(firsts) if step in first]
        if rows:
            away_m = distance_m([firsts[row][step][1] for row in rows], truth[rows])
            found[step] = 100 * float((away_m <= PLACE_M).sum()) / len(firsts)
    return found


def _headings_deg(photos: PhotoSet) -> Floats:
    """Headings (N,) in degrees: those of the dataset, else of the photos' own geotags; NaN: unknown."""
    headings = np.full(len(photos), np.nan) if photos.headings_deg is None else photos.headings_deg % 360
    for row in np.flatnonzero(np.isnan(headings)):
        tag = read_geotag(photos.path(int(row)))
        if tag is not None and tag.heading_deg is not None:
            headings[row] = tag.heading_deg
    return headings
