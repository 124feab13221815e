"""Several maps asked at once: one fix, of the right map."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.localize.street import PLACES, position, street_model, view, write_queries, write_view

from sareloc.cli import main
from sareloc.encode import Encoder
from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import distance_m
from sareloc.localize import Calibration, Fix, Localizer, Match, SeveralMaps, open_localizer
from sareloc.localize.several import choose_fix, map_names
from sareloc.maps import MapConfig, PlaceMap, build_map, list_maps
from sareloc.models import save_checkpoint

OTHER_TOWN = 5
FAR = 2.0  # degrees of longitude


@pytest.fixture(scope="module")
def maps(street_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Maps of two towns, and one of the second town by another model."""
    folder = tmp_path_factory.mktemp("maps")
    for place in range(PLACES):
        for i in range(2):
            latitude, longitude = position(place, 3.0 * i)
            write_view(folder / "photos" / f"{place}_{i}.jpg", view(place, i, OTHER_TOWN), (latitude, longitude + FAR))
    config = MapConfig(keypoints=0, progress=False)
    build_map(folder / "photos", folder / "other.gpkg", street_model(), config=config)
    build_map(folder / "photos", folder / "otherwise.gpkg", street_model(2), config=config)
    shutil.copy(street_folder / "street.gpkg", folder)
    return [folder / "street.gpkg", folder / "other.gpkg", folder / "otherwise.gpkg"]


def ask(localizer: Localizer | SeveralMaps, photos: list[Path]) -> list[Fix]:
    return [fix for fix in localizer.localize_many(photos, condition=None) if isinstance(fix, Fix)]


def near(one: Fix, other: Fix) -> bool:
    return float(distance_m(one.latlon or one.guess, other.latlon or other.guess)) <= 25


def test_each_town_is_found_in_its_map(maps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the right map alone; photos are encoded once."""
    towns = [write_queries(tmp_path / "a"), write_queries(tmp_path / "b", town=OTHER_TOWN)]
    alone = [open_localizer(path, street_model()) for path in maps[:2]]
    wanted = [ask(localizer, photos) for localizer, photos in zip(alone, towns, strict=True)]
    both = open_localizer(maps[:2], street_model())
    encoded, encode = list[int](), Encoder.encode
    monkeypatch.setattr(Encoder, "encode", lambda self, images: encoded.append(len(images)) or encode(self, images))
    for town, right, name in zip(towns, wanted, ("street.gpkg", "other.gpkg"), strict=True):
        found = ask(both, town)
        pairs = [(one, fix) for one, fix in zip(right, found, strict=True) if one.found]
        agree = [fix.map == name and fix.found and near(one, fix) for one, fix in pairs]
        assert np.mean(agree) >= 0.95
        assert all(fix.confidence <= 1 and {m.map for m in fix.matches} == {m.name for m in maps[:2]} for fix in found)
    assert sum(encoded) == 2 * PLACES


def test_maps_of_two_models_are_each_asked_with_their_own(maps: list[Path], tmp_path: Path) -> None:
    photos = write_queries(tmp_path, town=OTHER_TOWN)
    two = SeveralMaps(
        {"a": open_localizer(maps[0], street_model()), "otherwise.gpkg": open_localizer(maps[2], street_model(2))}, 0.0
    )
    alone = ask(Localizer(street_model(2), PlaceMap(maps[2]), min_confidence=0.0), photos)
    found = ask(two, photos)
    right = [fix.map == "otherwise.gpkg" and near(fix, one) for fix, one in zip(found, alone, strict=True)]
    assert np.mean(right) >= 0.8


def test_maps_of_one_town_answer_together_as_one_map_of_it(street_folder: Path, tmp_path: Path) -> None:
    """One has the first photo of each place, the other one the second and third."""
    config, photos = MapConfig(keypoints=0, progress=False), street_folder / "photos"
    halves = {"a": sorted(photos.glob("*_0.jpg")), "b": sorted(photos.glob("*_[12].jpg"))}
    parts = {}
    for name, given in halves.items():
        build_map(given, tmp_path / f"{name}.gpkg", street_model(), config=config)
        parts[name] = PlaceMap(tmp_path / f"{name}.gpkg")
    whole, *each = (
        Localizer(street_model(), place_map, calibration=Calibration(), min_confidence=0.0)
        for place_map in (PlaceMap(street_folder / "street.gpkg"), *parts.values())
    )
    queries = write_queries(tmp_path / "q", range(0, PLACES, 2))
    together = ask(SeveralMaps(dict(zip(parts, each, strict=True)), 0.0), queries)
    away_m, part_m = (
        np.array([distance_m(fix.latlon, one.latlon) for fix, one in zip(ask(whole, queries), found, strict=True)])
        for found in (together, ask(each[1], queries))
    )
    assert np.median(away_m) < 0.1 * np.median(part_m)


def test_the_map_with_the_best_match_says_how_near(maps: list[Path], tmp_path: Path) -> None:
    both = open_localizer(maps[:2], street_model())
    assert isinstance(both, SeveralMaps)
    for name, scale in (("street.gpkg", 4.0), ("other.gpkg", 4000.0)):
        one = both.localizers[name]
        one.calibration = replace(one.calibration, radius_scale=scale)
    for town, right in ((0, "street.gpkg"), (OTHER_TOWN, "other.gpkg")):
        found = [fix for fix in ask(both, write_queries(tmp_path / right, town=town)) if fix.found]
        wide = [fix.radius_m > 10_000 for fix in found if fix.map == right]
        assert len(wide) >= 0.8 * PLACES
        assert np.mean(wide) == (right == "other.gpkg")


def fix_of(confidence: float, longitude: float) -> Fix:
    return Fix((48.0, longitude), 10.0, confidence, (Match(1, f"{longitude}.jpg", (48.0, longitude), 0.5),))


@pytest.mark.parametrize(
    ("confidences", "longitudes", "name", "confidence"),
    [
        ((0.9, 0.05), (2.0, 12.0), "a", 9 / (10 + 0.05 / 0.95)),
        ((0.9, 0.9), (2.0, 12.0), "a", 9 / 19),
        ((0.5, 0.9), (2.0, 12.0), "b", 9 / 11),
        ((0.9, 0.9), (2.0, 2.0001), "a", 0.9),
        ((1.0, 1.0), (2.0, 12.0), "a", 0.5),
        ((0.0, 0.0), (2.0, 12.0), "a", 0.0),
    ],
)
def test_another_place_takes_from_the_confidence(
    confidences: tuple[float, float], longitudes: tuple[float, float], name: str, confidence: float
) -> None:
    fixes = {key: fix_of(*given) for key, given in zip("ab", zip(confidences, longitudes, strict=True), strict=True)}
    chosen = choose_fix(fixes, 0.5)
    assert (chosen.map, chosen.found) == (name, chosen.confidence >= 0.5)
    assert chosen.confidence == pytest.approx(confidence, abs=1e-6)
    assert [match.map for match in chosen.matches] == sorted("ab", key=lambda key: key != name)
    assert (chosen.latlon or chosen.guess) == fixes[name].latlon


def test_a_map_without_matches_is_passed_over() -> None:
    nothing = Fix(None, None, 0.0, (), "nothing there")
    assert choose_fix({"a": nothing, "b": nothing}, 0.5) == nothing
    assert choose_fix({"a": nothing, "b": fix_of(0.8, 2.0)}, 0.5).map == "b"


def test_errors_are_sentences(maps: list[Path], tmp_path: Path) -> None:
    both = open_localizer(maps[:2], street_model())
    (tmp_path / "bad.jpg").write_bytes(b"not a photo")
    good = write_queries(tmp_path)[0]
    assert [type(found) for found in both.localize_many([tmp_path / "bad.jpg", good])] == [PhotoError, Fix]
    with pytest.raises(ArgumentError, match="one map"):
        both.estimate_condition([good])
    with pytest.raises(ArgumentError, match="twice"):
        open_localizer([maps[0], maps[0]], street_model())
    with pytest.raises(ArgumentError, match="no maps"):
        open_localizer([], street_model())


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_command_line(maps: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(street_model(), tmp_path / "model.safetensors")
    options = ("--model", tmp_path / "model.safetensors", "--workers", "0", "--device", "cpu")
    photo = write_queries(tmp_path / "q", town=OTHER_TOWN)[3]
    _, out, _ = run(capsys, "localize", *maps[:2], photo, *options, "--json", "--min-confidence", "0")
    answer = json.loads(out)
    assert (answer["map"], answer["matches"][-1]["map"]) == ("other.gpkg", "street.gpkg")
    _, out, _ = run(capsys, "localize", *maps[:2], photo, *options, "--csv", "--min-confidence", "0")
    assert [line.rpartition(",")[2] for line in out.split()][0::1][-1] == "other.gpkg"
    _, out, _ = run(capsys, "localize", *maps[:2], photo, *options, "--min-confidence", "0")
    assert "other.gpkg" in out
    _, out, _ = run(capsys, "localize", maps[1], photo, *options, "--json", "--min-confidence", "0")
    assert "map" not in json.loads(out)
    code, _, err = run(capsys, "localize", *maps[:2], *options)
    assert code != 0
    assert "only maps" in err
    code, out, _ = run(capsys, "localize", *maps[:2], photo, *options, "--walk-step-m", "9", "--min-confidence", "0")
    assert code == 0
    assert "other.gpkg" in out
    code, out, _ = run(
        capsys, "geotag", photo, "--map", maps[0], "--map", maps[1], *options, "--min-confidence", "0", "--json",
        "--out", tmp_path / "tagged",
    )  # fmt: skip
    assert (code, json.loads(out)["map"]) == (0, "other.gpkg")
    assert (tmp_path / "tagged" / photo.name).is_file()


def test_a_walk_leads_from_one_map_into_another(maps: list[Path], tmp_path: Path) -> None:
    photos = [*write_queries(tmp_path / "a")[:8], *write_queries(tmp_path / "b", town=OTHER_TOWN)[:8]]
    (tmp_path / "bad.jpg").write_bytes(b"not a photo")
    found = open_localizer(maps[:2], street_model()).localize_walk([*photos, tmp_path / "bad.jpg"], 90.0)
    assert isinstance(found[-1], PhotoError)
    fixes = [fix for fix in found if isinstance(fix, Fix)]
    assert [fix.map for fix in fixes[:7]] == ["street.gpkg"] * 7
    assert [fix.map for fix in fixes[-7:]] == ["other.gpkg"] * 7
    assert np.mean([fix.found for fix in fixes]) >= 0.8


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/maps/a.gpkg", "b.gpkg"], ["a.gpkg", "b.gpkg"]),
        (["/maps/rome/a.gpkg", "/maps/oslo/a.gpkg", "/x/b.gpkg"], ["rome/a.gpkg", "oslo/a.gpkg", "x/b.gpkg"]),
        (["a.gpkg", "old/a.gpkg"], ["a.gpkg", "old/a.gpkg"]),
    ],
)
def test_names_tell_maps_apart(paths: list[str], names: list[str]) -> None:
    assert map_names([Path(path) for path in paths]) == names


def test_the_maps_of_a_folder_are_listed(maps: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "maps"
    folder.mkdir()
    for path in maps[:2]:
        shutil.copy(path, folder)
    (folder / "notes.txt").write_text("no map")
    (folder / "broken.gpkg").write_bytes(b"no database")
    assert [path.name for path in list_maps(folder)] == ["broken.gpkg", "other.gpkg", "street.gpkg"]
    code, out, _ = run(capsys, "map", "list", folder, "--json")
    listed = {row["name"]: row for row in map(json.loads, out.splitlines())}
    assert (code, listed["other.gpkg"]["photos"], listed["street.gpkg"]["model"]) == (0, 2 * PLACES, "street")
    assert "not a map" in listed["broken.gpkg"]["problem"]
    assert listed["street.gpkg"]["extent"]["south"] == pytest.approx(48.8584, abs=1e-3)
    _, out, _ = run(capsys, "map", "list", folder)
    assert "no local features" in out
    (tmp_path / "empty").mkdir()
    assert run(capsys, "map", "list", tmp_path / "empty")[0] == 1
    code, _, err = run(capsys, "map", "list", tmp_path / "absent")
    assert code != 0
    assert "not a folder" in err


def test_fixes_of_one_map_name_none() -> None:
    assert "map" not in fix_of(0.8, 2.0).to_json("q.jpg")
    assert replace(fix_of(0.8, 2.0), map="a").to_json("q.jpg")["map"] == "a"
