"""Fit the weights of verified matches: of their score (`match_scores`) and of the confidence (`VERIFIED_PRIOR`).

    python -m research.fit_evidence --data DATA --work WORK

A map is built of the database of each training town: drawn towns of other seeds than those that results are reported
on (--seeds); with --towns also Cambridge's train and val parts and TMBuD's west, with --relit these also with queries
in another light. Each query gives two trials, as it
is and as if the map did not show its place; queries of the other towns are out-of-map photos. The score is a softmax
regression of "this match is within 25 m" over the verified matches of a query; the confidence a logistic regression
of "the place is within 25 m", with a penalty on large weights. Every town counts the same, whatever its number of
queries. Printed: the fitted weights, and the mean log loss of each town with weights fitted on the other towns, on
all, and with those of the package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_sets
from benchmarks.measuring import machine
from benchmarks.verify import build, latlon_of
from PIL import Image
from scipy.optimize import minimize

from sareloc.arrays import Bools, Floats
from sareloc.city import draw_places
from sareloc.datasets import Places, load_dataset
from sareloc.geo import ecef_from_wgs84
from sareloc.geometry import match_scores
from sareloc.geometry.two_view import AFFINITY_SCORE, INLIER_SCORE, PLANAR_SCORE
from sareloc.localize import Localizer
from sareloc.localize.calibration import Outcome, Trial, fit_logistic, outcomes_of
from sareloc.localize.estimate import PLACE_M, VERIFIED_PRIOR, features, sigmoid
from sareloc.localize.photo_calibration import _search_trials
from sareloc.models import load_model
from sareloc.training import augment

REAL_TOWNS = ("cambridge-train", "cambridge-val", "tmbud-west")
RELIT = "-relit"
SEEDS = (21, 22, 23, 24, 25)
SHARES = {"query": 0.7, "absent": 0.15, "other town": 0.15}
"""How much each kind of trial counts."""
OTHER_TOWN = 25  # queries of each other town
PENALTY = 0.01  # of the squares of the weights of the score, against a mean loss
CONFIDENCE_PENALTY = 0.001  # the same for the confidence, but for its constant


@dataclass(frozen=True, eq=False)
class Town:
    """The trials of a town and a model, by kind, and the temperature of its scores."""

    name: str
    trials: dict[str, list[Trial]]
    temperature: float


def load_town(name: str, args: argparse.Namespace) -> Places:
    if name.endswith(RELIT):
        return relit(load_town(name.removesuffix(RELIT), args), args.work / f"fit-{name}")
    if name.startswith("cambridge"):
        return real_sets.cambridge(args.data, name.split("-")[1])
    if name == "tmbud-west":
        return real_sets.tmbud_west(args.data)
    folder = args.work / f"fit-{name}-{args.city}"
    draw_places(folder, int(name.removeprefix("city")), args.city, splits=("val",), photo_size=(480, 640))
    return load_dataset(folder, split="val")


def relit(places: Places, folder: Path) -> Places:
    """The same with queries in another light: each is relit twice, as the nights of `sareloc map adapt`."""
    files = tuple(f"{row}.jpg" for row in range(len(places.queries)))
    folder.mkdir(exist_ok=True)
    for row, file in enumerate(files):
        if not (folder / file).exists():
            with Image.open(places.queries.path(row)) as photo:
                pixels = torch.from_numpy(np.array(photo.convert("RGB"))).permute(2, 0, 1)[None]
                rng = torch.Generator().manual_seed(row)
                for _ in range(2):
                    pixels = (255 * augment(pixels, rng, crop=0.0, light=1.0)).round().to(torch.uint8)
                image = Image.fromarray(pixels[0].permute(1, 2, 0).numpy())
                image.save(folder / file, quality=95, exif=photo.getexif())
    return replace(places, queries=replace(places.queries, folder=folder, files=files))


def search_town(name: str, localizer: Localizer, towns: dict[str, Places], limit: int) -> Town:
    queries = towns[name].queries
    rows = np.random.default_rng(0).permutation(len(queries))[:limit]
    asked = [queries.path(int(row)) for row in rows]
    trials, *_ = _search_trials(localizer, asked, ecef_from_wgs84(latlon_of(queries)[rows]))
    other_towns: list[Trial] = []
    for other, places in towns.items():
        if other.split("-")[0] != name.split("-")[0] and not other.endswith(RELIT):
            some = np.random.default_rng(1).permutation(len(places.queries))[:OTHER_TOWN]
            photos = [places.queries.path(int(row)) for row in some]
            found, *_ = _search_trials(localizer, photos, ecef_from_wgs84(latlon_of(places.queries)[some]))
            other_towns += [replace(trial, absent=True) for trial in found if not trial.absent]
    shown = [trial for trial in trials if not trial.absent]
    kinds = {"query": shown, "absent": [trial for trial in trials if trial.absent], "other town": other_towns}
    print(name, {kind: len(found) for kind, found in kinds.items()}, flush=True)
    return Town(name, kinds, localizer.calibration.temperature)


# the score


@dataclass(frozen=True, eq=False)
class Lists:
    """The matches of n queries, of which some but not all are right, padded to 20."""

    x: Floats
    """(n, 20, 3): -d^2 / temperature, and both logarithms of inliers."""
    there: Bools
    """(n, 20): False where there is no match."""
    right: Bools
    """(n, 20)."""
    counts: Floats
    """(n,): how much each query counts."""


def match_lists(towns: Sequence[Town]) -> Lists:
    parts: list[tuple[Floats, Bools, float]] = []
    for town in towns:
        own: list[tuple[Floats, Bools]] = []
        for trial in town.trials["query"]:
            away = np.linalg.norm(ecef_from_wgs84(trial.latlon) - trial.truth_m, axis=1)
            right = away <= PLACE_M
            if right.any() and not right.all() and trial.evidence is not None:
                affinity = -(trial.distances**2 - trial.distances.min() ** 2) / town.temperature
                own.append((np.stack([affinity, *trial.evidence.beyond_chance], axis=1), right))
        parts += [(x, right, 1 / len(own)) for x, right in own]
    x, there, right = np.zeros((len(parts), 20, 3)), np.zeros((len(parts), 20), bool), np.zeros((len(parts), 20), bool)
    for row, (values, is_right, _) in enumerate(parts):
        x[row, : len(values)], there[row, : len(values)], right[row, : len(values)] = values, True, is_right
    return Lists(x, there, right, np.array([count for _, _, count in parts]))


def score_loss(weights: Floats, lists: Lists) -> tuple[float, Floats]:
    """Mean of -log of the probability that the softmax gives to the right matches, and its gradient (3,)."""
    scores = np.where(lists.there, lists.x @ weights, -np.inf)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    good = (p * lists.right).sum(axis=1) + 1e-12
    share = lists.counts / lists.counts.sum()
    slope = share[:, None] * (p - p * lists.right / good[:, None])
    return -float(share @ np.log(good)), np.einsum("nk,nkd->d", slope, lists.x)


def fit_score(lists: Lists) -> Floats:
    def objective(weights: Floats) -> tuple[float, Floats]:
        loss, slope = score_loss(weights, lists)
        return loss + PENALTY * float(weights @ weights), slope + 2 * PENALTY * weights

    return np.asarray(minimize(objective, np.zeros(3), jac=True, method="L-BFGS-B").x)


# the confidence


def confidence_rows(towns: Sequence[Town]) -> tuple[Floats, Bools, Floats]:
    """Features (n, 9), whether the place is right (n,), and how much each trial counts (n,)."""
    x, right, counts = [], [], []
    for town in towns:
        for kind, trials in town.trials.items():
            outcomes: list[Outcome] = outcomes_of(trials, town.temperature)
            x += [features(outcome.place) for outcome in outcomes]
            right += [outcome.right for outcome in outcomes]
            counts += [SHARES[kind] / len(outcomes)] * len(outcomes)
    return np.array(x), np.array(right), np.array(counts)


def fit_confidence(towns: Sequence[Town]) -> Floats:
    x, right, counts = confidence_rows(towns)
    std = (100.0, *[1 / np.sqrt(2 * CONFIDENCE_PENALTY * len(x))] * (x.shape[1] - 1))
    return fit_logistic(x, right, counts * len(x) / counts.sum(), (0.0,) * x.shape[1], std)


def confidence_loss(weights: Floats, towns: Sequence[Town]) -> float:
    x, right, counts = confidence_rows(towns)
    p = np.clip(sigmoid(x @ weights), 1e-9, 1 - 1e-9)
    return -float(counts @ np.where(right, np.log(p), np.log(1 - p)) / counts.sum())


def recall_at_1(towns: Sequence[Town]) -> str:
    """First matches right without and with the package's score, %."""
    firsts = [
        [
            float(np.linalg.norm(ecef_from_wgs84(trial.latlon[row]) - trial.truth_m) <= PLACE_M)
            for row in (0, int(match_scores(trial.distances, town.temperature, trial.evidence).argmax()))
        ]
        for town in towns
        for trial in town.trials["query"]
    ]
    plain, verified = 100 * np.mean(firsts, axis=0)
    return f"{plain:.1f} -> {verified:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="maps and drawn photos are kept here")
    parser.add_argument("--models", nargs="+", default=["fast"])
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS), help="of drawn towns")
    parser.add_argument("--towns", nargs="*", choices=REAL_TOWNS, default=[], help="real towns too")
    parser.add_argument("--relit", action="store_true", help="the real towns also with queries in another light")
    parser.add_argument("--city", choices=("small", "medium"), default="small")
    parser.add_argument("--limit", type=int, default=400, help="queries of each town")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    real = [*args.towns, *(name + RELIT for name in args.towns if args.relit)]
    towns = {name: load_town(name, args) for name in (*(f"city{seed}" for seed in args.seeds), *real)}
    searched: list[Town] = []
    for called in args.models:
        model = load_model(called)
        for name, places in towns.items():
            path = args.work / f"fit-{Path(called).stem}-{name.removesuffix(RELIT)}.gpkg"
            place_map = build(model, places, path, args.workers)
            found = search_town(name, Localizer(model, place_map, workers=args.workers), towns, args.limit)
            print(f"{called}, {name}: {recall_at_1([found])}", flush=True)
            searched.append(found)

    ours = np.array((AFFINITY_SCORE, INLIER_SCORE, PLANAR_SCORE)), np.array(VERIFIED_PRIOR)
    everywhere = fit_score(match_lists(searched)), fit_confidence(searched)
    print(machine())
    print("score, fitted:", np.round(everywhere[0], 2).tolist(), "package:", ours[0].tolist())
    print("confidence, fitted:", np.round(everywhere[1], 2).tolist(), "package:", ours[1].tolist())
    print("\n| town | score: others | all | package | confidence: others | all | package |\n" + "|---" * 7 + "|")
    for name in towns:
        here = [town for town in searched if town.name == name]
        others = [town for town in searched if town.name.split("-")[0] != name.split("-")[0]]
        elsewhere = fit_score(match_lists(others)), fit_confidence(others)
        lists = match_lists(here)
        losses = [score_loss(weights[0], lists)[0] for weights in (elsewhere, everywhere, ours)]
        losses += [confidence_loss(weights[1], here) for weights in (elsewhere, everywhere, ours)]
        print(f"| {name} | " + " | ".join(f"{loss:.3f}" for loss in losses) + " |")


if __name__ == "__main__":
    main()
