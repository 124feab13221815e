"""Calibrating a map on photos whose positions are known."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import ecef_from_wgs84
from sareloc.localize.calibration import Calibration
from sareloc.localize.localizer import AT_ONCE, Localizer
from sareloc.localize.self_calibration import deep_enough
from sareloc.localize.trials import Trial, calibration_error, fit_trials, judge, make_trials
from sareloc.place_map import open_store

Floats = npt.NDArray[np.float64]

FEWEST = 10


@dataclass(frozen=True)
class CalibrationReport:
    """What a calibration was made of, and how well it does."""

    calibration: Calibration
    right: float
    """The share of the photos whose place was found within 25 m, whatever the confidence."""
    error_before: float
    """Expected calibration error of the map's calibration until now, over the photos as they are and the photos as if
    the map did not show them."""
    error_after: float
    """The same of the new one: each half of the photos is judged by a calibration of the other half."""
    in_map: tuple[str, ...]
    """Photos that are in the map themselves and were left out."""
    unreadable: tuple[PhotoError, ...]


def calibrate(localizer: Localizer, photos: Sequence[Path], latlon: npt.ArrayLike) -> CalibrationReport:
    """Fit confidence and radius on photos taken at `latlon` (N, 2) degrees, and store them in the map.

    The photos must not be in the map (those that are, are left out) and should be like those that will be asked about,
    from all over the map: at least ten, some hundred are better. It does not matter how many are found: that is what
    is measured. The calibration belongs to the localizer's way of searching; one for it that is there is replaced.
    """
    truth_m = ecef_from_wgs84(latlon)
    if len(photos) != len(truth_m):
        raise ArgumentError(f"{len(photos)} photos need as many positions, found {len(truth_m)}")
    digests = [_digest(photo) for photo in photos]
    with open_store(localizer.place_map.path) as store:
        there = store.known([digest for digest in digests if digest is not None])
    known = [digest in there for digest in digests]
    asked = [row for row, held in enumerate(known) if not held]
    trials, unreadable = _ask(localizer, [photos[row] for row in asked], truth_m[asked])
    shown = [trial for trial in trials if not trial.absent]
    if len(shown) < FEWEST:
        raise ArgumentError(
            f"a calibration needs {FEWEST} photos or more that are not in the map and can be read: found {len(shown)} "
            f"({sum(known)} of {len(photos)} are in the map, {len(unreadable)} cannot be read)"
        )
    fitted = fit_trials(trials, "photos")
    report = CalibrationReport(
        fitted,
        float(np.mean([outcome.right for outcome in judge(shown, fitted.temperature)])),
        calibration_error([(trials, localizer.calibration)]),
        calibration_error(judged_by_the_other_half(trials)),
        tuple(str(photo) for photo, held in zip(photos, known, strict=True) if held),
        tuple(unreadable),
    )
    with open_store(localizer.place_map.path, write=True) as store:
        store.write_note(localizer.note, fitted.to_json())
    return report


def _digest(photo: Path) -> bytes | None:
    try:
        with photo.open("rb") as content:
            return hashlib.file_digest(content, "sha256").digest()
    except OSError:
        return None  # decoding it will say what is wrong


def _ask(localizer: Localizer, photos: Sequence[Path], truth_m: Floats) -> tuple[list[Trial], list[PhotoError]]:
    trials: list[Trial] = []
    unreadable: list[PhotoError] = []
    k = deep_enough(localizer.place_map, truth_m, localizer.search.candidates)
    waiting = zip(truth_m, localizer.load(photos), strict=True)
    with tqdm(total=len(photos), desc="calibrate", unit="photo", disable=None) as bar:
        while loaded := list(islice(waiting, AT_ONCE)):
            unreadable += [image for _, image in loaded if isinstance(image, PhotoError)]
            read = [(truth, image) for truth, image in loaded if not isinstance(image, PhotoError)]
            if read:
                matches = localizer.find_matches([image for _, image in read], k)
                trials += make_trials(matches, np.stack([truth for truth, _ in read]), localizer.search.candidates)
            bar.update(len(loaded))
    return trials, unreadable


def judged_by_the_other_half(trials: Sequence[Trial]) -> list[tuple[Sequence[Trial], Calibration]]:
    """Each half of the photos with the calibration that the other half teaches; photos of one spot stay together."""
    spots = dict.fromkeys(trial.truth_m.tobytes() for trial in trials)
    half_of = {spot: number % 2 for number, spot in enumerate(spots)}
    halves = [[trial for trial in trials if half_of[trial.truth_m.tobytes()] == half] for half in (0, 1)]
    return [(judged, fit_trials(taught, "photos")) for judged, taught in (halves, halves[::-1])]
