"""A walk's photos support one another: the chain against all paths, and walks whose truth is known."""

from __future__ import annotations

import csv
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from sareloc.errors import ArgumentError
from sareloc.geo import distance_m, wgs84_from_enu
from sareloc.localize import Calibration, Fix, Localizer, Match, estimate, estimate_walk
from sareloc.localize.calibration import Outcome, expected_calibration_error, fit_calibration
from sareloc.localize.estimate import fuse
from sareloc.localize.walk import JUMP, SWITCH, TRUST, UNSEEN, Belief, support
from sareloc.maps import MapConfig, PlaceMap, build_map
from sareloc.models import PACKAGED, open_checkpoint

CHANCE = 0.03


def belief(points: list[float], chances: list[float], elsewhere: float = 0.1) -> Belief:
    """Places on a line."""
    return Belief(np.array([[x, 0.0, 0.0] for x in points]).reshape(-1, 3), np.array(chances, float), elsewhere)


def prior_of(one: Belief) -> np.ndarray:
    x = one.points_m[:, 0]
    each = [CHANCE / sum(np.exp(-((a - b) ** 2) / (2 * 12.5**2)) for b in x) for a in x]
    prior = np.array([*each, max(1 - sum(each), CHANCE)])
    return prior / prior.sum()


def likelihood_of(one: Belief) -> list[float]:
    x = one.points_m[:, 0]
    if not len(x):
        return [1.0]
    heard = [sum(c * np.exp(-((a - b) ** 2) / (2 * 12.5**2)) for b, c in zip(x, one.chances, strict=True)) for a in x]
    return [*(one.elsewhere + h / CHANCE for h in heard), one.elsewhere]


def step_from(a: Belief, i: int, b: Belief, reach: float) -> np.ndarray:
    if i == len(a.chances):
        return prior_of(b)
    beyond = [max(0.0, abs(a.points_m[i, 0] - x) - reach) for x in b.points_m[:, 0]]
    near = [p * np.exp(-(r**2) / (2 * 25.0**2)) for p, r in zip(prior_of(b)[:-1], beyond, strict=True)]
    steps = np.array([*near, UNSEEN * CHANCE])
    return (1 - JUMP) * steps / steps.sum() + JUMP * prior_of(b)


def all_paths(walk: list[Belief], reach: list[float]) -> list[np.ndarray]:
    """Every way of choosing a state for each photo, weighed and summed: the slow twin.

    A chain has one direction, but a walk may be read from either end: what a photo hears from behind is a chain of its
    own, so that it is cut at the photo in question.
    """
    found = []
    for t in range(len(walk)):
        states = np.zeros(len(walk[t].chances) + 1)
        for path in product(*(range(len(b.chances) + 1) for b in walk)):
            weight = likelihood_of(walk[t])[path[t]] * 1.0
            for order in (range(t + 1), range(len(walk) - 1, t - 1, -1)):
                rows = list(order)
                weight *= prior_of(walk[rows[0]])[path[rows[0]]]
                for a, b in pairwise(rows):
                    weight *= likelihood_of(walk[a])[path[a]]
                    weight *= step_from(walk[a], path[a], walk[b], reach[min(a, b)])[path[b]]
            states[path[t]] += weight / prior_of(walk[t])[path[t]]
        found.append(states / states.sum())
    return found


def all_ways_in_and_out(walk: list[Belief], where: list[np.ndarray], reach: list[float]) -> list[float]:
    """Every way of being inside or outside of the map, weighed and summed."""
    outside = [b.outside if len(b.chances) else 0.5 for b in walk]
    inside = np.zeros((len(walk), 2))
    for t in range(len(walk)):
        for path in product((0, 1), repeat=len(walk)):  # 1: outside
            weight = 1.0
            for s, out in enumerate(path):
                said = outside[s] if out else 1 - outside[s]
                weight *= said if s == t else said**TRUST
            for s, (now, then) in enumerate(pairwise(path)):
                far = sum(
                    where[s][i]
                    * where[s + 1][j]
                    * (1 - np.exp(-(max(0.0, abs(a[0] - b[0]) - reach[s]) ** 2) / (2 * 25.0**2)))
                    for i, a in enumerate(walk[s].points_m)
                    for j, b in enumerate(walk[s + 1].points_m)
                )
                stay = (1 - SWITCH) * ((1 - far) + far * JUMP)
                weight *= SWITCH if now != then else (1 - SWITCH) if now else stay
            inside[t, path[t]] += weight
    return [float(row[0] / row.sum()) for row in inside]


def contradicted(walk: list[Belief], where: list[np.ndarray], inside: list[float], reach: list[float]) -> list[float]:
    """For each photo, how probable the most probable place is that it cannot have come from."""
    best = [int(np.argmax(q[:-1])) if len(b.chances) else None for b, q in zip(walk, where, strict=True)]
    found = []
    for t, b in enumerate(walk):
        most = 0.0
        for s, c in enumerate(walk):
            i, j = best[t], best[s]
            if i is None or j is None:
                continue
            there = c.points_m[j, 0]
            mass = sum(q for x, q in zip(c.points_m[:, 0], where[s], strict=False) if abs(x - there) <= 25)
            beyond = max(0.0, abs(b.points_m[i, 0] - there) - sum(reach[min(s, t) : max(s, t)]))
            most = max(most, inside[s] * mass * (1 - np.exp(-(beyond**2) / (2 * 25.0**2))))
        found.append(most)
    return found


def test_agrees_with_summing_over_all_paths() -> None:
    rng = np.random.default_rng(0)
    walk = []
    for count in (3, 2, 1, 0, 3):
        shares = rng.dirichlet(np.ones(count + 2)).tolist()
        walk.append(belief(rng.uniform(0, 120, count).tolist(), shares[:count], shares[count]))
    reach = [10.0, 80.0, 0.0, 40.0]
    where = all_paths(walk, reach)
    inside = all_ways_in_and_out(walk, where, reach)
    against = contradicted(walk, where, inside, reach)
    assert max(against) > 0.1
    for t, ours in enumerate(support(walk, reach, chance=CHANCE)):
        odds = inside[t] / (1 - inside[t]) * (1 - (1 - JUMP) * against[t])
        assert ours == pytest.approx(odds / (1 + odds) * where[t][:-1], rel=1e-9)


def test_what_neighbours_say_of_being_in_the_map_is_bounded() -> None:
    """Of a walk in one place, so that it does not matter where: no number of sure photos makes the next one sure."""
    sure, lost = belief([0], [0.999], 0.0), belief([0], [0.1], 0.0)
    for turn in (1, -1):  # a walk may be read from either end
        few, many = (support(([sure] * count + [lost])[::turn], 1e6)[::turn][-1].sum() for count in (2, 12))
        assert 0.1 < few < many < few + 0.01
        odds = 0.1 / 0.9 * (1 - SWITCH) / SWITCH
        assert many == pytest.approx(odds / (1 + odds), abs=0.02)


def drive_off_the_map(tail: float) -> list[Belief]:
    """Ten photos of a mapped street, 10 m apart; then six beyond it, which look like one place 1.1 km away."""
    street = [belief([10.0 * t, 10.0 * t + 400], [0.9, 0.01], 0.02) for t in range(10)]
    beyond = [belief([1100.0 + 3 * t, 100.0 + 90 * t, 2500.0], [tail, 0.04, 0.04], 0.1) for t in range(6)]
    return street + beyond


@pytest.mark.parametrize("tail", [0.3, 0.4, 0.5])
def test_a_walk_that_leaves_the_map_is_doubted(tail: float) -> None:
    """That photos beyond the map agree on a place out of reach does not make them sure of it."""
    walk = drive_off_the_map(tail)
    for way in (walk, walk[::-1]):
        found = support(way, 20, chance=0.003)
        street, beyond = (found[:10], found[10:]) if way is walk else (found[6:], found[:6])
        assert min(chances.max() for chances in street[1:-1]) > 0.9
        assert max(chances.max() for chances in beyond) < 0.5


def test_a_walk_that_comes_back_is_found_again() -> None:
    walk = [*drive_off_the_map(0.4), *(belief([90.0 - 10 * t], [0.9], 0.02) for t in range(8))]
    found = support(walk, 20, chance=0.003)
    assert max(chances.max() for chances in found[10:16]) < 0.5
    assert min(chances.max() for chances in found[17:]) > 0.85


def test_one_photo_keeps_its_chances() -> None:
    (alone,) = support([belief([0, 5000], [0.5, 0.2], 0.1)], 10, chance=1e-6)
    assert alone == pytest.approx([0.5, 0.2], abs=1e-4)
    assert support([], 10) == []


def test_neighbours_put_a_mistaken_photo_right() -> None:
    """The middle photo prefers a place 5 km off; those before and after are sure of the street."""
    walk = [belief([0, 5000], [0.8, 0.1]), belief([5000, 12], [0.6, 0.2]), belief([25, 9000], [0.8, 0.1])]
    middle = support(walk, 20)[1]
    assert middle[1] > 0.9
    assert support(walk, 1e6)[1][0] > 0.5  # where anything is in reach, it keeps its mistake


def test_a_walk_outside_of_the_map_stays_outside() -> None:
    """Weak candidates that do not go together do not talk each other into a position."""
    walk = [belief([1000.0 * t, 1000.0 * t + 500], [0.1, 0.05], 0.2) for t in range(6)]
    assert all(chances.sum() < 0.15 for chances in support(walk, 10))


def test_a_photo_that_shows_nothing_does_not_stop_the_others() -> None:
    walk = [belief([0], [0.8]), belief([], [], 0.0), belief([20], [0.8])]
    first, nothing, last = support(walk, 20)
    assert len(nothing) == 0
    assert first[0] == pytest.approx(last[0])
    assert first[0] > 0.8


def test_photos_that_are_sure_of_far_places_do_not_break_it() -> None:
    (a,), (b,) = support([belief([0], [1.0], 0.0), belief([1e6], [1.0], 0.0)], 5)
    assert min(a, b) > 0.9
    assert np.isfinite(support([belief([0], [0.0], 0.0)] * 2, 5)[0]).all()


def test_standing_together_means_more_where_it_is_rare() -> None:
    walk = [belief([0, 900], [0.2, 0.2]), belief([10, 4000], [0.2, 0.2])]
    rare, common = (support(walk, 20, chance=chance)[0][0] for chance in (0.001, 0.3))
    assert rare > common + 0.1


def test_steps_must_be_metres() -> None:
    with pytest.raises(ArgumentError, match="0 m or more"):
        support([belief([0], [1.0])] * 2, -1)
    with pytest.raises(ArgumentError, match="3 photos has 2 steps"):
        support([belief([0], [1.0])] * 3, [1.0, 2.0, 3.0])
    with pytest.raises(ArgumentError, match="0 < chance <= 1: found 0"):
        support([belief([0], [1.0])], 5, chance=0)


class Street:
    """A map of places 15 m apart in a long street, and photos whose matches are drawn: right, or of a mistaken place.

    Photos of a walk make the same mistakes: half of the time a photo takes over what the one before it thought of.
    """

    places, spacing, start = 400, 15.0, (48.0, 2.0)
    chance = 3 / 400

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def position(self, place: float) -> tuple[float, float]:
        lat, lon = wgs84_from_enu([(place * self.spacing, 0.0)], self.start)[0]
        return float(lat), float(lon)

    def walk(self, photos: int, *, shown: bool) -> tuple[list[list[Match]], np.ndarray]:
        at = self.rng.uniform(20, self.places - 20) + 0.5 * np.arange(photos)
        mistakes = self.rng.integers(self.places, size=10)
        walk = []
        for place in at:
            if self.rng.random() > 0.5:
                mistakes = self.rng.integers(self.places, size=10)
            squared = 1.2 + self.rng.exponential(0.05, size=10)
            candidates = list(zip(mistakes + self.rng.integers(-1, 2, size=10), squared, strict=True))
            if shown:
                strength = self.rng.exponential(0.05)
                candidates += [(round(place) + i, 1.25 - strength + 0.02 * abs(i)) for i in (-1, 0, 1)]
            walk.append(
                [Match(n, f"{n}.jpg", self.position(p), float(np.sqrt(d))) for n, (p, d) in enumerate(candidates)]
            )
        return walk, np.array([self.position(place) for place in at])


def calibrated(seeds: range) -> Calibration:
    """By single photos of simulated walks."""
    outcomes = []
    for seed in seeds:
        for shown in (True, False):
            walk, truth = Street(seed).walk(12, shown=shown)
            for matches, latlon in zip(walk, truth, strict=True):
                place = fuse([match.latlon for match in matches], [match.distance for match in matches])
                error_m = float(distance_m([place.latlon], [latlon])[0])
                outcomes.append(Outcome(place, error_m if shown else np.inf))
    return fit_calibration(outcomes, "photos", absent_share=0.5)


def judged(known: Calibration, alone: bool, shown: bool, seeds: range) -> tuple[np.ndarray, np.ndarray]:
    """Of simulated walks: which fixes are right, and how sure each is."""
    fixes: list[Fix] = []
    truth = []
    for seed in seeds:
        walk, latlon = Street(seed).walk(12, shown=shown)
        truth.append(latlon)
        fixes += (
            [estimate(matches, known, min_confidence=0) for matches in walk]
            if alone
            else estimate_walk(walk, 10.0, known, chance=Street.chance, min_confidence=0)
        )
    right = distance_m([fix.latlon for fix in fixes], np.concatenate(truth)) <= 25
    return right & shown, np.array([fix.confidence for fix in fixes])


def test_simulated_walks_are_found_more_often_and_known_to_be() -> None:
    """Half of the walks lie in the map, half elsewhere; the truth is known."""
    known = calibrated(range(100, 110))
    rows = []
    for alone in (True, False):
        (right, sure), (wrong, doubtful) = (judged(known, alone, shown, range(16)) for shown in (True, False))
        error = expected_calibration_error([*sure, *doubtful], [*right, *wrong])
        rows.append((right.mean(), (sure >= 0.5)[right].mean(), (doubtful < 0.5).mean(), error))
    single, walk = rows
    assert walk[0] > single[0] + 0.15
    assert walk[1] > single[1] + 0.1
    assert walk[2] > 0.9
    assert single[3] < 0.12  # otherwise the walk would have nothing to build on
    assert walk[3] < 0.12


DRIVE = [
    *("0831_1", "0833_1", "0872_1", "0874_1", "0875_1", "0759_1", "0876_1", "0837_1", "0878_2", "1018_1", "1019_1"),
    *("0920_1", "0921_0", "0879_0", "0760_0", "0673_1", "0699_1", "0676_1", "0639_1", "0606_1", "0678_2", "0805_2"),
]
"""Street views of Cambridge along a street, looking ahead; its last four are to be beyond the map."""


@pytest.mark.data
@pytest.mark.slow
def test_a_real_drive_that_leaves_the_map_is_doubted(shared_data: Path, tmp_path: Path) -> None:
    """The map ends 85 m before the last photos, which were once placed 330 to 360 m away, with up to 0.73."""
    table = (shared_data / "cambridge" / "meta.csv").read_text().splitlines()
    rows = {row["file"][7:-4]: row for row in csv.DictReader(table) if row["geo_split"] == "test"}
    metres = {name: np.array([float(row["x_east_m"]), float(row["y_north_m"])]) for name, row in rows.items()}
    driven = {rows[name]["location_id"] for name in DRIVE}
    mapped = [
        name
        for name, row in rows.items()
        if row["location_id"] not in driven
        and min(float(np.linalg.norm(metres[name] - metres[last])) for last in DRIVE[-4:]) >= 85
    ]
    images = shared_data / "cambridge" / "images"
    (tmp_path / "photos").mkdir()
    for name in mapped:
        (tmp_path / "photos" / f"{name}.jpg").symlink_to(images / f"{name}.jpg")
    lines = [f"{name}.jpg,{rows[name]['lat']},{rows[name]['lon']}" for name in mapped]
    (tmp_path / "photos" / "geotags.csv").write_text("\n".join(["file,lat,lon", *lines]))
    model = open_checkpoint(PACKAGED["fast"])
    build_map(tmp_path / "photos", tmp_path / "city.gpkg", model, config=MapConfig(keypoints=0, progress=False))
    localizer = Localizer(model, PlaceMap(tmp_path / "city.gpkg"))
    fixes = localizer.localize_walk([images / f"{name}.jpg" for name in DRIVE], 25.4)
    truth = [(float(rows[name]["lat"]), float(rows[name]["lon"])) for name in DRIVE]
    right = [
        isinstance(fix, Fix) and fix.latlon is not None and distance_m(fix.latlon, at) <= 25
        for fix, at in zip(fixes, truth, strict=True)
    ]
    assert sum(right[:13]) >= 12
    assert all(isinstance(fix, Fix) and fix.confidence < 0.4 for fix in fixes[-4:])
