"""Calibrating a map on photos with known positions: fit, cross-validate, and store if better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.arrays import Bools, Floats, Ints
from sareloc.encode import Encoded
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import ecef_from_wgs84
from sareloc.geometry import Evidence
from sareloc.localize.calibration import (
    ABSENT_SHARE,
    Trial,
    expected_calibration_error,
    fit_trials,
    make_trials,
    outcomes_of,
    sample_weights,
    search_depth,
)
from sareloc.localize.estimate import CANDIDATES, MIN_CONFIDENCE, PLACE_M, Calibration
from sareloc.localize.localizer import Localizer
from sareloc.localize.queries import AT_ONCE
from sareloc.maps import Matches, open_store
from sareloc.photos import ReadImage

Cell = tuple[int, int, int]
"""A cube of 25 m, see `place_of`."""

FEWEST = 10
FOLDS = 5
LEAST = 1e-9
FAR_M = 8 * PLACE_M
"""Without its photos within this distance, a map counts as not showing a place. Nearer photos show the same street: as
examples of absent places they are so hard that confidences fitted on them are too low for all other queries."""


@dataclass(frozen=True)
class HeldOut:
    """Measures of a calibration on photos that it was not fitted on; None if there is nothing to count.

    "In the map": the photos as they are. "Absent": the same photos, without the map's photos within 200 m. An answer is
    a fix with a confidence of 0.5 or more.
    """

    right_kept: float | None
    """Of photos in the map whose place is found within 25 m, the share that is answered."""
    answers_right: float | None
    """Of the answers about photos in the map, the share that is within 25 m of the truth."""
    answers_in_radius: float | None
    """Of the answers about photos in the map, the share whose radius contains the truth; meant to be 0.9."""
    absent_rejected: float | None
    """Of absent photos, the share that is not answered."""
    calibration_error: float
    """Expected calibration error over both kinds of photos; absent ones count as a quarter of all."""
    log_loss: float
    """Mean of -log of the probability given to what was true; absent photos count as a quarter of all."""
    net_right: float
    """Right answers minus wrong ones, as a share of all photos; absent photos count as a quarter of all."""


@dataclass(frozen=True)
class CalibrationReport:
    """What a calibration was fitted on, its measures, and whether it was stored in the map."""

    calibration: Calibration
    """The one that the map has now: the new one, or the one before."""
    rejected_because: str | None
    """Why the new one was not stored in the map, see `objection`; None: it was."""
    before_origin: str
    """What the calibration before was fitted on, see `Calibration.origin`."""
    photos: int
    """Photos that were used."""
    places: int
    """Different places among them, see `place_of`."""
    right: float
    """The share of the photos whose place was found within 25 m, whatever the confidence."""
    before: HeldOut
    """Of the calibration before."""
    after: HeldOut
    """Of the new one, by cross-validation: each photo by a calibration fitted on photos of other places."""
    in_map: tuple[str, ...]
    """Photos that are in the map themselves and were left out."""
    unreadable: tuple[PhotoError, ...]
    panoramas: tuple[str, ...] = ()
    """360° photos, which were left out: confidence and radius are fitted to what one perspective photo finds, and the
    views of a 360° photo, which answer together by them (see `combine_views`), are not independent photos."""


def calibrate(localizer: Localizer, photos: Sequence[Path], latlon: npt.ArrayLike) -> CalibrationReport:
    """Fit confidence and radius on photos with known positions; store them in the map if they are better.

    How many of the photos are found does not matter: that is what is measured. The new calibration is compared with the
    map's current one, on photos that it was not fitted on, and is stored unless there is an `objection`; else the map
    is not changed.

    Args:
        localizer: of the map; a calibration belongs to its `search`.
        photos: N files like the expected queries, from all over the map: at least ten, of two places or more; some
            hundred are better. Those that are in the map are left out.
        latlon: (N, 2) degrees, where they were taken.

    Raises:
        ArgumentError: if there are too few photos.
    """
    truth_m = ecef_from_wgs84(latlon)
    if len(photos) != len(truth_m):
        raise ArgumentError(f"{len(photos)} photos need as many positions, found {len(truth_m)}")
    trials, in_map, unreadable, panoramas = _search_trials(localizer, photos, truth_m)
    shown = [trial for trial in trials if not trial.absent]
    places = {place_of(trial) for trial in shown}
    if len(shown) < FEWEST or len(places) < 2:
        raise ArgumentError(
            f"a calibration needs {FEWEST} photos or more that are not in the map and can be read, of two places or "
            f"more: found {len(shown)} of {len(places)} "
            f"({len(in_map)} of {len(photos)} are in the map, {len(unreadable)} cannot be read, {len(panoramas)} are "
            "360° photos)"
        )
    old, fitted = localizer.calibration, fit_trials(trials, "photos")
    before, after = judge_all(trials, [old] * len(trials)), judge_all(trials, cross_validate(trials))
    rejected_because = objection(before, after, [place_of(trial) for trial in trials])
    if rejected_because is None:
        with open_store(localizer.place_map.path, write=True) as store:
            store.write_note(localizer.search.note, fitted.to_json())
    return CalibrationReport(
        fitted if rejected_because is None else old,
        rejected_because,
        old.origin,
        len(shown),
        len(places),
        float(np.mean([outcome.right for outcome in outcomes_of(shown, fitted.temperature)])),
        held_out(before),
        held_out(after),
        tuple(in_map),
        tuple(unreadable),
        tuple(panoramas),
    )


def _search_trials(
    localizer: Localizer, photos: Sequence[Path], truth_m: Floats
) -> tuple[list[Trial], list[str], list[PhotoError], list[str]]:
    """The trials of these photos; those that are in the map; the errors of those that cannot be read; 360° photos."""
    trials: list[Trial] = []
    in_map: list[str] = []
    panoramas: list[str] = []
    unreadable: list[PhotoError] = []
    candidates = localizer.search.candidates or CANDIDATES
    k = search_depth(localizer.place_map, truth_m, candidates, FAR_M)
    waiting = zip(truth_m, localizer.load(photos, digest=True), strict=True)
    with (
        open_store(localizer.place_map.path) as store,
        tqdm(total=len(photos), desc="calibrate", unit="photo", disable=None) as bar,
    ):
        while loaded := list(islice(waiting, AT_ONCE)):
            there = store.known([image.sha256 for _, image in loaded if isinstance(image, ReadImage) and image.sha256])
            read: list[tuple[Floats, ReadImage]] = []
            for truth, image in loaded:
                if isinstance(image, PhotoError):
                    unreadable.append(image)
                elif image.sha256 in there:
                    in_map.append(image.name)
                elif image.views:
                    panoramas.append(image.name)
                else:
                    read.append((truth, image))
            if read:
                truths = np.stack([truth for truth, _ in read])
                queries = [encoded for (encoded,) in localizer.encode([image for _, image in read])]
                matches = localizer.retrieve(queries, k)
                verify = verifying(localizer, queries, matches)
                trials += make_trials(matches, truths, candidates, absent_m=FAR_M, verify=verify)
            bar.update(len(loaded))
    return trials, in_map, unreadable, panoramas


def verifying(
    localizer: Localizer, queries: Sequence[Encoded], matches: Matches
) -> Callable[[int, Ints], tuple[Ints, Evidence]] | None:
    """What chooses and verifies matches of a query, by its row and theirs; None if matches are not verified."""
    verifier, search = localizer.verifier, localizer.search
    if verifier is None:
        return None

    def verify(row: int, rows: Ints) -> tuple[Ints, Evidence]:
        features = queries[row].features
        assert features is not None
        temperature = localizer.calibration.temperature
        order, found = verifier.verify_best(features, matches.take(row, rows), search.verify or 0, temperature)
        return rows[order[: len(found.views)]], found.evidence

    return verify


def place_of(trial: Trial) -> Cell:
    """The cell of 25 m that a photo was taken in; photos of one cell are never on both sides of a cross-validation."""
    x, y, z = np.floor(trial.truth_m / PLACE_M).astype(int).tolist()
    return x, y, z


def cross_validate(trials: Sequence[Trial]) -> list[Calibration]:
    """For each trial a calibration fitted on trials of other places, which are split into up to five folds."""
    fold_of = {place: number % FOLDS for number, place in enumerate(dict.fromkeys(map(place_of, trials)))}
    folds = [fold_of[place_of(trial)] for trial in trials]
    fitted = {
        fold: fit_trials([trial for trial, other in zip(trials, folds, strict=True) if other != fold], "photos")
        for fold in set(folds)
    }
    return [fitted[fold] for fold in folds]


@dataclass(frozen=True, eq=False)
class Judged:
    """The confidences of n trials, and the truth."""

    confidence: Floats
    right: Bools
    absent: Bools
    in_radius: Bools

    @property
    def answered(self) -> Bools:
        """Which have an answer: a confidence of 0.5 or more."""
        return self.confidence >= MIN_CONFIDENCE

    @property
    def counts(self) -> Floats:
        """How much each counts, on average 1: absent ones as a quarter of all."""
        return sample_weights(self.absent, ABSENT_SHARE)

    @property
    def losses(self) -> Floats:
        """-log of the probability given to the truth."""
        return np.asarray(-np.log(np.maximum(np.where(self.right, self.confidence, 1 - self.confidence), LEAST)))

    @property
    def gains(self) -> Floats:
        """1 for a right answer, -1 for a wrong one, 0 for none."""
        return np.where(self.right, 1.0, -1.0) * self.answered


def judge_all(trials: Sequence[Trial], calibrations: Sequence[Calibration]) -> Judged:
    """Each trial by its own calibration."""
    outcomes = [outcomes_of([trial], known.temperature)[0] for trial, known in zip(trials, calibrations, strict=True)]
    said = list(zip(outcomes, calibrations, strict=True))
    return Judged(
        np.array([calibration.confidence(outcome.place) for outcome, calibration in said]),
        np.array([outcome.right for outcome in outcomes]),
        np.array([outcome.absent for outcome in outcomes]),
        np.array([outcome.error_m <= calibration.radius_m(outcome.place) for outcome, calibration in said]),
    )


def held_out(judged: Judged) -> HeldOut:
    """The measures of a report."""
    answers = judged.answered & ~judged.absent
    return HeldOut(
        _share(judged.answered[judged.right]),
        _share(judged.right[answers]),
        _share(judged.in_radius[answers]),
        _share(~judged.answered[judged.absent]),
        expected_calibration_error(judged.confidence, judged.right, counts=judged.counts),
        float(np.average(judged.losses, weights=judged.counts)),
        float(np.average(judged.gains, weights=judged.counts)),
    )


def objection(before: Judged, after: Judged, places: Sequence[Cell]) -> str | None:
    """Why a new calibration must not replace the old one, by held-out trials of these places (n,); None: it may.

    It replaces the old one if the mean log loss falls by more than one standard error and right answers minus wrong
    ones do not fall by more than one. Standard errors are of the differences, over places: photos of one place are
    not independent.
    """
    number = {place: row for row, place in enumerate(dict.fromkeys(places))}
    rows = [number[place] for place in places]
    loss, gain = (
        np.asarray(np.bincount(rows, weights=after.counts * (new - old)), dtype=np.float64)
        for new, old in ((after.losses, before.losses), (after.gains, before.gains))
    )
    if loss.sum() >= -_error_of_sum(loss):
        return "the log loss does not fall by more than its standard error"
    if gain.sum() < -_error_of_sum(gain):
        return "there are fewer right answers minus wrong ones"
    return None


def _error_of_sum(values: Floats) -> float:
    return float(values.std(ddof=1)) * math.sqrt(len(values))


def _share(chosen: Bools) -> float | None:
    return float(chosen.mean()) if len(chosen) else None
