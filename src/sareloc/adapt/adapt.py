"""Adapting a map to its city: it learns from its own photos, is tested on parts held out, and written to a new map."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from sareloc.adapt.compare import check_features, compare_photos
from sareloc.adapt.gains import Answers, Fits, HeldOutGains, objection, recall_gains, verified_answers
from sareloc.adapt.geotags import GeotagCheck, find_suspicious
from sareloc.adapt.learn import Pairs, Queries, choose_step, fit_steps
from sareloc.adapt.training_data import (
    CELL_M,
    RELIT,
    Placed,
    Source,
    look_alikes,
    make_queries,
    map_pairs,
    place_photos,
    placed_pairs,
    relit_vectors,
    sources_of,
    verified_pairs,
)
from sareloc.arrays import Bools, Floats, Ints, Vectors
from sareloc.errors import ArgumentError, MapError
from sareloc.files import write_atomically
from sareloc.geo import ecef_from_wgs84
from sareloc.geometry.adaptation import MOST_STEPS, Adaptation, Step
from sareloc.localize import Localizer, open_localizer
from sareloc.localize.condition import spread
from sareloc.localize.verify import Verifier
from sareloc.maps import MapFile, PlaceMap, copy_map
from sareloc.maps.notes import finish_map
from sareloc.maps.records import ADAPTATION, CALIBRATION, read_adaptation, vectors_fingerprint
from sareloc.maps.upgrade import is_of_vectors
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Precision
from sareloc.wording import plural

MIN_PAIRS = 100
"""Verified pairs that an adaptation is fitted on, at least: fewer determine no direction well."""
MIN_CELLS = 8
"""Cells of 50 m with queries, at least, so that some can be held out."""
FOLDS = 3
"""Parts of the area; each is held out once, and the adaptation that is fitted on the others is tested on it."""
ASKED = 300
"""At most so many queries of each kind choose the strength."""
TESTED = 1000
"""At most so many held-out queries of each kind measure the gain of recall@1."""
ANSWERED = 60
"""At most so many queries of each kind are localized with verification, before and after."""
MANY_PAIRS = 20_000
"""With so many, training of the network is proposed."""
RELIT_S, ANSWER_S = 0.1, 0.8  # seconds on two cores, for the estimate of the time
TIMES_OF = 1000  # photos whose times are looked at
NUMBERS = 3_000_000  # of a table of queries by photos
REPORT = "adaptation.json"


@dataclass(frozen=True)
class AdaptReport:
    """What was learnt, whether it is better, and where it was written."""

    photos: int
    """Of the map."""
    verified: int
    """Pairs of photos that show the same thing: of the map, and of the map and placed photos."""
    refuted: int
    """Pairs that look alike and that geometry refutes."""
    given: int
    """Photos without positions."""
    placed: int
    """Those of them that the map places."""
    relit: int
    """Photos of the map of which a relit copy was made."""
    weight: float
    """Of the aggregated local features, beside the descriptor."""
    directions: int
    """Of the search vector that were shortened."""
    held_out: tuple[HeldOutGains, ...]
    """On the parts of the area that were held out."""
    mean_gain: tuple[float, float, float]
    """The mean gain of recall@1 over kinds of queries in points, and its 95 % interval."""
    rejected_because: str | None
    """Why no adapted map was written; None: it was."""
    geotags: GeotagCheck
    seconds: float
    notes: tuple[str, ...]
    map: str | None
    """The adapted map."""

    def to_json(self) -> dict[str, Any]:
        """The fields; until the next version also by two former names, `proved` and `kept_because`."""
        fields = asdict(self)
        return fields | {"proved": fields["held_out"], "kept_because": self.rejected_because}


def adapt_map(
    path: str | Path,
    out: str | Path,
    *,
    photos: Sequence[Path] = (),
    model: PlaceModel | str | Path | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    workers: int = 0,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = True,
) -> AdaptReport:
    """Learn from a map's own photos, and from photos without positions, how its search vectors are best compared.

    Pairs of photos that geometry verifies, and relit copies of the map's photos, say in which directions the search
    vectors of one place differ: these are shortened (see `sareloc.adapt.learn`). Each third of the area, by position,
    is held out once; the adapted map is written only if recall@1 there rises, by the lower end of its 95 % interval,
    and nothing falls. The map itself is not changed. A call that was interrupted continues.

    Args:
        path: a map file with local features.
        out: the folder to write, which must not exist: the adapted map, of the same name, and a report in JSON.
        photos: photos without positions, such as earlier queries or a drive by night; their EXIF positions are not
            used. Those that the map places with confidence are learnt from, the others are left out.
        model: that the map was built with; default: the packaged one.
        seed: of the parts of the area that are held out, and of the relit copies.
        device: default: the GPU if there is one.
        precision: see `load_model`.
        workers: processes that decode photos.
        say: called with lines about what is done and why.
        progress: show progress bars, on a terminal.

    Raises:
        MapError: if the map has no local features, too few verified pairs or too few places.
        ArgumentError: if the folder exists.
    """
    began = time.monotonic()
    target, work = Path(out), Path(f"{out}.work")
    if target.exists():
        _refuse_existing(target, work)
    localizer = open_localizer(path, model, device=device, precision=precision, workers=workers)
    place_map = localizer.place_map
    verifier = _checked_verifier(localizer)

    say(f"comparing {len(place_map):,} photos with those that look alike and those near by")
    compared = compare_photos(place_map, verifier, localizer.calibration.temperature, folder=work, progress=progress)
    geotags = find_suspicious(place_map, compared, localizer.calibration)
    wrong = {one.photo for one in geotags.suspicious}
    left_out = np.array([i for i, file in zip(place_map.ids.tolist(), place_map.files, strict=True) if file in wrong])
    verified = verified_pairs(localizer, compared, left_out)
    placed = place_photos(localizer, photos, work, progress)
    count = len(verified) + len(placed.pairs)
    cells, placed_cells = _cells(place_map.latlon, placed.latlon)
    _check_enough(str(path), count, placed, len(np.unique(cells)))
    say(_plan(count, len(place_map), placed))
    relit, relit_seen = relit_vectors(localizer, seed, work, progress)

    vectors, dim = place_map.descriptors(place_map.ids), place_map.manifest.dim
    pairs = [
        map_pairs(localizer, vectors, verified, cells),
        Pairs(relit_seen, vectors[relit], np.ones(len(relit)), cells[relit]),
        placed_pairs(localizer, vectors, placed, placed_cells),
    ]
    sources = sources_of(localizer, vectors, cells, relit, relit_seen, placed, placed_cells, seed)
    rng = np.random.default_rng(seed)
    folds = rng.permutation(int(max(cells.max(initial=0), placed_cells.max(initial=0))) + 1) % FOLDS
    fits: list[tuple[Step | None, list[tuple[Source, Queries, Ints]]]] = []  # of each fold, and the queries in it
    for fold in range(FOLDS):
        inside = [(one, *_queries(localizer, one, folds == fold, TESTED // FOLDS)) for one in sources]
        step = _fit_best(localizer, pairs, sources, vectors, folds, folds != fold)
        fits.append((step, [(one, queries, rows) for one, queries, rows in inside if len(queries)]))
    gains, mean = recall_gains(fits, vectors, dim, rng)
    rejected_because = objection(gains, mean)
    if rejected_because is None:
        say(f"recall@1 rises by {mean[0]:.1f} points in parts of the area that were held out: localizing photos there")
        gains = _answer_gains(gains, fits, localizer, work / "trial", rng)
        rejected_because = objection(gains, mean)
    step = None if rejected_because else _fit_best(localizer, pairs, sources, vectors, folds, folds >= 0)
    if step is None and rejected_because is None:
        rejected_because = "no change is better on the whole area, although some are on parts of it"
    report = AdaptReport(
        len(place_map), count, look_alikes(localizer, compared), placed.given, len(placed.photos), len(relit),
        1.0 if step is None else step.weight, 0 if step is None else len(step.factors), tuple(gains), mean,
        rejected_because, geotags, time.monotonic() - began, _notes(place_map, relit), None,
    )  # fmt: skip
    if step is not None:
        result = work / "result"
        write_adapted(place_map.path, result / place_map.path.name, step)
        report = replace(report, map=str(target / place_map.path.name), seconds=time.monotonic() - began)
        write_atomically(result / REPORT, json.dumps(report.to_json()).encode())
        os.replace(result, target)
    shutil.rmtree(work, ignore_errors=True)
    return report


def _refuse_existing(target: Path, work: Path) -> NoReturn:
    """Raise ArgumentError; what a call that was killed after its last step left is removed."""
    if not (target / REPORT).exists():
        raise ArgumentError(f"{target} exists: give another folder (--out), or remove it")
    shutil.rmtree(work, ignore_errors=True)
    raise ArgumentError(f"{target} exists and holds an adapted map: use it, or give another folder (--out)")


def _checked_verifier(localizer: Localizer) -> Verifier:
    """The verifier of a map that can be adapted. Raises MapError, which says what to do, for another map."""
    place_map = localizer.place_map
    check_features(place_map)
    if not place_map.manifest.aggregate_dim:
        raise MapError(
            f"the search vectors of map {place_map.path} have no aggregated local features: add them with "
            f'"sareloc map upgrade {place_map.path}"'
        )
    before = place_map.adaptation()
    if before is not None and len(before.steps) >= MOST_STEPS:
        raise MapError(
            f"map {place_map.path} was adapted {len(before.steps)} times: adapt the map that it was made of instead"
        )
    assert localizer.verifier is not None
    return localizer.verifier


def _check_enough(name: str, pairs: int, placed: Placed, cells: int) -> None:
    if cells < MIN_CELLS:
        raise MapError(
            f"the photos of map {name} are of {plural(cells, 'place')} (cells of {CELL_M:g} m), {MIN_CELLS} are "
            "needed, of which some are held out: there is nothing to learn from one place"
        )
    if pairs < MIN_PAIRS:
        tried = f", {len(placed.photos):,} of {placed.given:,} photos without positions were placed" * bool(
            placed.given
        )
        raise MapError(
            f"map {name} has {plural(pairs, 'pair')} of photos that geometry verifies{tried}; {MIN_PAIRS} are needed: "
            "add photos of the same places, or give more photos without positions (--photos)"
        )


def _plan(pairs: int, photos: int, placed: Placed) -> str:
    """What is learnt of so many pairs, why, and how long it takes."""
    minutes = (RELIT_S * min(photos, RELIT) + ANSWER_S * ANSWERED * (2 + bool(placed.given)) + 30) / 60
    lines = [
        f"{pairs:,} pairs are verified"
        + f" ({len(placed.photos):,} of {placed.given:,} photos without positions are placed)" * bool(placed.given)
        + ": enough to learn the whitening of search vectors and the weight of their two parts; about "
        f"{minutes:.0f} min on two cores",
    ]
    if pairs >= MANY_PAIRS:
        lines.append(
            "so many pairs are also enough to train the network: sareloc train PHOTOS --start MODEL --out RUN, on a GPU"
        )
    return "\n".join(lines)


def _cells(latlon: Floats, placed: Floats) -> tuple[Ints, Ints]:
    """The numbers, from 0, of the cells of the photos of the map (N,) and of the placed photos (n,)."""
    points = np.floor(ecef_from_wgs84(np.concatenate([latlon, placed])) / CELL_M)
    _, cells = np.unique(points, axis=0, return_inverse=True)
    return np.asarray(cells.reshape(-1)[: len(latlon)]), np.asarray(cells.reshape(-1)[len(latlon) :])


def _queries(localizer: Localizer, source: Source, chosen: Bools, most: int) -> tuple[Queries, Ints]:
    """Queries of a source in the chosen cells (cells,), at most so many, and their rows."""
    rows = np.flatnonzero(chosen[source.cells])
    rows = rows[spread(len(rows), min(most, max(50, NUMBERS // len(localizer.place_map))))]
    return make_queries(localizer, source, rows)


def _fit_best(
    localizer: Localizer, pairs: Sequence[Pairs], sources: Sequence[Source], vectors: Vectors, folds: Ints,
    chosen: Bools,
) -> Step | None:  # fmt: skip
    """The adaptation by the pairs of the chosen cells (cells,), with the strength and weight that are best there.

    None if no change is better.
    """
    learnt = [kind.take((kind.cells >= 0) & chosen[kind.cells]) for kind in pairs]
    asked = [queries for queries, _ in (_queries(localizer, one, chosen, ASKED) for one in sources) if len(queries)]
    dim = localizer.place_map.manifest.dim
    option = choose_step(learnt, asked, vectors, dim, folds) if asked and any(map(len, learnt)) else None
    return None if option is None else dict(fit_steps(learnt, vectors, dim, option[1]))[option[0]]


def _answer_gains(
    gains: Sequence[HeldOutGains], fits: Fits, localizer: Localizer, folder: Path, rng: np.random.Generator
) -> list[HeldOutGains]:
    """The same with the gains of correct answers and of rejections, by maps that are written to a folder."""
    parts: dict[str, list[tuple[Answers, Answers]]] = {}
    for step, inside in fits:
        with ExitStack() as opened:
            after = None
            if step is not None:
                written = write_adapted(localizer.place_map.path, folder / localizer.place_map.path.name, step)
                trial = opened.enter_context(PlaceMap(written))
                adapted = Localizer(localizer.model, trial, localizer.search, workers=localizer.workers)
                after = (adapted, Adaptation(trial.manifest.dim, (step,)))
            for source, _, rows in inside:
                some = rows[spread(len(rows), ANSWERED // FOLDS)]
                found = verified_answers(localizer, after, source, some)
                if found is not None:
                    parts.setdefault(source.kind, []).append(found)
    completed = []
    for one in gains:
        if judged := parts.get(one.kind):
            answered, rejected = (Answers.join([part[i] for part in judged]).gain(rng)[0] for i in range(2))
            completed.append(replace(one, answered=answered, rejected=rejected))
        else:
            completed.append(one)
    return completed


def write_adapted(source: Path, target: Path, step: Step) -> Path:
    """A copy of a map whose search vectors are changed by one more step."""
    shutil.rmtree(target.parent, ignore_errors=True)
    copy_map(source, target, progress=False)
    with MapFile.open(target, write=True) as file:
        before = read_adaptation(file.notes(), file.manifest, file.name)
        steps = (*(() if before is None else before.steps), step)
        text = Adaptation(file.manifest.dim, steps).to_json()
        made = replace(file.manifest, aggregate=vectors_fingerprint({ADAPTATION: text}))
        change = Adaptation(file.manifest.dim, (step,))
        sources = file.unstaged_photos(made)
        for ids, vectors in file.descriptors(np.array(list(sources), dtype=np.int64)):
            file.stage_vectors({photo_id: sources[photo_id] for photo_id in ids.tolist()}, change(vectors))
        file.replace_vectors(made, is_of_vectors)
        file.write_note(ADAPTATION, text)
    finish_map(target)
    return target


def _notes(place_map: PlaceMap, relit: Ints) -> tuple[str, ...]:
    notes = []
    wanted = min(len(place_map), RELIT)
    if len(relit) < wanted:
        notes.append(f"{wanted - len(relit):,} of {wanted:,} photos of the map could not be read, and were not relit")
    if not any(photo.time for photo in place_map.list_photos(None, TIMES_OF).photos):
        notes.append(
            "the photos have no times: pairs of another day or light cannot be told from those of one drive, and count "
            "the same"
        )
    if any(name.startswith(CALIBRATION) for name in place_map.notes):
        notes.append('the calibration of the map is of its former search vectors: repeat "sareloc map calibrate"')
    return tuple(notes)
