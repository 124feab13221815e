"""From matches to a fix."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sareloc.geo import distance_m, wgs84_from_enu
from sareloc.localize import Calibration, Fix, Match, estimate, estimate_walk
from sareloc.localize.walk import own_belief

HERE = (48.8584, 2.2945)
SURE = Calibration()


def matches(*rows: tuple[float, float, float]) -> list[Match]:
    """East, north in metres and the descriptor distance of each."""
    latlon = wgs84_from_enu([row[:2] for row in rows], HERE)
    return [
        Match(i, f"{i}.jpg", (lat, lon), row[2]) for i, ((lat, lon), row) in enumerate(zip(latlon, rows, strict=True))
    ]


GOOD = matches((0, 0, 0.8), (6, 0, 0.85), (-5, 2, 0.9), (900, 0, 1.2), (0, 700, 1.21))
LOST = matches((0, 0, 1.2), (900, 0, 1.2), (0, 800, 1.21), (-3000, 0, 1.21), (0, -9000, 1.22))


def test_agreeing_matches_are_a_fix() -> None:
    fix = estimate(GOOD)
    assert fix.latlon is not None
    assert distance_m(fix.latlon, HERE) < 6
    assert fix.confidence > 0.9
    assert 5 < fix.radius_m < 50
    assert fix.found
    assert fix.reason is None
    assert [match.distance for match in fix.matches] == [0.8, 0.85, 0.9, 1.2, 1.21]


def test_scattered_matches_are_not_in_this_map() -> None:
    fix = estimate(LOST)
    assert (fix.latlon, fix.radius_m, fix.found) == (None, None, False)
    assert 0 < fix.confidence < 0.1
    assert fix.reason.startswith("not in this map: the best position has confidence 0.0")
    assert len(fix.matches) == 5


def test_the_threshold_is_the_callers() -> None:
    fix = estimate(GOOD)
    assert estimate(GOOD, min_confidence=fix.confidence).found
    assert not estimate(GOOD, min_confidence=1.0).found
    assert estimate(LOST, min_confidence=0.0).found


def test_no_matches_are_no_fix() -> None:
    fix = estimate([])
    assert (fix.latlon, fix.confidence, fix.matches) == (None, 0.0, ())
    assert "no photo of the map" in fix.reason
    assert not estimate([], min_confidence=0.0).found


def test_the_order_of_matches_does_not_matter() -> None:
    there, back = estimate(GOOD), estimate(GOOD[::-1])
    assert there.latlon == pytest.approx(back.latlon, abs=1e-12)
    assert there.matches == back.matches


def test_a_calibration_decides_confidence_and_radius() -> None:
    fix = estimate(GOOD)
    wide = replace(SURE, radius_scale=2 * SURE.radius_scale)
    assert estimate(GOOD, wide).radius_m == pytest.approx(2 * fix.radius_m)
    doubtful = replace(SURE, weights=(-9.0, 0.0, 0.0, 0.0))
    assert estimate(GOOD, doubtful).confidence == pytest.approx(1 / (1 + np.exp(9)))


def test_a_calibrations_temperature_weighs_the_matches() -> None:
    """Cold, the most alike match alone counts; hot, the three that stand together."""
    rows = matches((500, 0, 0.9), (0, 0, 0.95), (4, 0, 0.95), (8, 0, 0.95))
    cold, hot = (estimate(rows, replace(SURE, temperature=t), min_confidence=0.0).latlon for t in (0.005, 1.0))
    east = wgs84_from_enu([(500, 0), (4, 0)], HERE)
    assert distance_m([cold, hot], east) == pytest.approx([0, 0], abs=0.1)


def test_json_has_exactly_the_promised_keys() -> None:
    told = json.loads(json.dumps(estimate(GOOD).to_json("walk/a.jpg")))
    assert list(told) == ["photo", "latlon", "radius_m", "confidence", "heading_deg", "place", "matches"]
    assert told["photo"] == "walk/a.jpg"
    assert list(told["matches"][0]) == ["id", "photo", "latlon", "distance", "inliers", "planar_inliers", "heading_deg"]
    lost = estimate(LOST).to_json("b.jpg")
    assert list(lost) == [
        *("photo", "latlon", "radius_m", "confidence", "heading_deg", "place"),
        *("matches", "reason", "guess", "guess_radius_m"),
    ]
    assert lost["latlon"] is None


def test_a_walk_of_one_photo_is_its_fix() -> None:
    for some in (GOOD, LOST, []):
        (fix,) = estimate_walk([some], 10, min_confidence=0.0)
        alone = estimate(some, min_confidence=0.0)
        assert fix.confidence == pytest.approx(alone.confidence)
        assert fix.latlon == (None if alone.latlon is None else pytest.approx(alone.latlon, abs=1e-9))
    assert estimate_walk([], 10) == []


def test_the_answer_of_one_photo_of_a_walk() -> None:
    seen = matches((0, 0, 0.8), (6, 0, 0.85), (-5, 2, 0.9), (60, 0, 1.2), (0, 700, 1.21))
    sure = estimate(seen).confidence
    weights = np.exp(-(np.array([match.distance for match in seen]) ** 2) / SURE.temperature)
    own = own_belief(seen, SURE)
    assert own.chances[:3] == pytest.approx(sure * weights[:3] / weights[:3].sum())
    assert own.chances[3:] == pytest.approx(0.15 * (1 - sure) * weights[3:] / weights[3:].sum())
    assert own.elsewhere == pytest.approx(0.2 * (1 - sure))
    assert own.outside == pytest.approx(0.65 * (1 - sure))
    (lone,) = own_belief(GOOD[:1], SURE).chances  # no other matches to believe in
    assert lone == pytest.approx(estimate(GOOD[:1]).confidence)
    assert len(own_belief([], SURE).points_m) == 0


def test_a_walk_puts_a_mistaken_photo_right_and_makes_it_surer() -> None:
    mistaken = matches((900, 0, 0.95), (3, 8, 1.0), (0, -700, 1.2), (800, 800, 1.21))
    walk = [GOOD, mistaken, GOOD]
    alone = estimate(mistaken, min_confidence=0.0)
    assert distance_m(alone.latlon, HERE) > 800
    fix = estimate_walk(walk, 15)[1]
    assert fix.latlon is not None
    assert distance_m(fix.latlon, HERE) < 12
    assert fix.confidence > 0.7


def test_a_walk_of_lost_photos_finds_nothing() -> None:
    rng = np.random.default_rng(0)
    walk = [
        matches(*((*rng.uniform(-4000, 4000, 2), 1.2 + 0.005 * i) for i in range(8))) for _ in range(6)
    ]  # fmt: skip
    assert not any(fix.found for fix in estimate_walk(walk, 10))


def test_a_fix_is_a_frozen_record() -> None:
    fix = estimate(GOOD)
    assert isinstance(fix, Fix)
    with pytest.raises(AttributeError):
        fix.confidence = 1.0  # type: ignore[misc]


def test_below_the_confidence_the_fix_that_it_would_be_is_a_guess() -> None:
    matches = [Match(1, "a.jpg", (48.0, 2.0), 0.4), Match(2, "b.jpg", (48.0001, 2.0), 0.5)]
    sure, unsure = (estimate(matches, min_confidence=least) for least in (0.0, 1.0))
    assert (unsure.latlon, unsure.radius_m) == (None, None)
    assert (unsure.guess, unsure.guess_radius_m) == (sure.latlon, sure.radius_m)
    assert (sure.guess, sure.guess_radius_m) == (None, None)
    assert unsure.to_json("q.jpg")["guess"] == sure.latlon
    assert not {"guess", "guess_radius_m", "reason"} & sure.to_json("q.jpg").keys()
    assert estimate([]).guess is None
