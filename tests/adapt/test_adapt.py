"""Adapting a map: what is written, what the map can do afterwards, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.adapt.walls import PHOTOS, PLACES, build_walls
from tests.localize.street import position, street_model
from tests.localize.town import wall

import sareloc.adapt.adapt as adapting
from sareloc.adapt import adapt_map, training_data
from sareloc.adapt.gains import Answers, Gain, HeldOutGains, objection, recall_gains
from sareloc.adapt.learn import Queries
from sareloc.adapt.training_data import Source
from sareloc.errors import ArgumentError, MapError
from sareloc.geometry.adaptation import Adaptation, Step
from sareloc.geometry.local_features import pack_features, search_vector
from sareloc.localize import open_localizer
from sareloc.maps import (
    MapConfig,
    PlaceMap,
    add_local_features,
    add_photos,
    build_map,
    copy_map,
    open_store,
    verify_map,
)
from sareloc.maps.records import ADAPTATION
from sareloc.photos import Geotag, exif_bytes

RELIT = 8  # photos


@pytest.fixture(scope="module")
def town(walls_map: Path) -> Path:
    return walls_map


@pytest.fixture(scope="module")
def compared(town: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparisons of the town's photos, which take longer than all else, as a call that was stopped leaves them."""
    out = tmp_path_factory.mktemp("compared") / "out"
    with pytest.raises(MapError, match="pairs"):  # it has compared them before it says that they are too few
        adapt_map(town, out, model=street_model(), progress=False)
    return Path(f"{out}.work")


@pytest.fixture
def out(compared: Path, tmp_path: Path) -> Path:
    """The folder for an adapted map; the town's photos were compared for it already."""
    shutil.copytree(compared, tmp_path / "out.work")
    return tmp_path / "out"


@pytest.fixture(scope="module")
def step(town: Path) -> Step:
    with PlaceMap(town) as place_map:
        size = place_map.manifest.vector_dim
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(size, 9)))[0].T.astype(np.float32)
    return Step(1.25, directions, np.linspace(0.2, 0.9, 9))


@pytest.fixture
def adapted(town: Path, step: Step, tmp_path: Path) -> Path:
    return adapting.write_adapted(town, tmp_path / "adapted" / "walls.gpkg", step)


def test_an_adapted_map_holds_the_changed_vectors_and_answers(town: Path, adapted: Path, step: Step) -> None:
    with PlaceMap(town) as before, PlaceMap(adapted) as after:
        change = Adaptation(before.manifest.dim, (step,))
        expected = change(before.descriptors(before.ids))
        np.testing.assert_allclose(after.descriptors(after.ids), expected, atol=2e-3)
        assert before.manifest.aggregate != after.manifest.aggregate
    assert not verify_map(adapted)
    fix = open_localizer(adapted, street_model()).localize(wall(3, 20))
    assert fix.matches[0].photo.endswith(("03_2.jpg", "03_3.jpg"))


def test_photos_that_are_added_later_are_adapted_too(adapted: Path, step: Step, tmp_path: Path) -> None:
    path = tmp_path / "new" / "later.jpg"
    path.parent.mkdir()
    Image.fromarray(wall(4, 12)).save(path, quality=95, exif=exif_bytes(Geotag(position(4, 5.0))))
    add_photos(path.parent, adapted, street_model(), config=MapConfig(progress=False))
    localizer = open_localizer(adapted, street_model())
    (row,) = [row for row, file in enumerate(localizer.place_map.files) if file.endswith("later.jpg")]
    (query,) = localizer.load([path])
    ((encoded,),) = localizer.encode([query])
    photo_id, manifest = int(localizer.place_map.ids[row]), localizer.place_map.manifest
    stored = localizer.place_map.local_features([photo_id])[photo_id]
    plain = search_vector(encoded.descriptor, stored, manifest.aggregate_dim)
    held = localizer.place_map.descriptors([photo_id])[0]
    np.testing.assert_allclose(held, Adaptation(manifest.dim, (step,))(plain), atol=2e-3)
    assert np.abs(held - plain).max() > 0.01


def test_a_copy_is_adapted_in_the_same_way(adapted: Path, tmp_path: Path) -> None:
    copy_map(adapted, tmp_path / "copy.gpkg", progress=False)
    with PlaceMap(adapted) as one, PlaceMap(tmp_path / "copy.gpkg") as other:
        assert one.notes[ADAPTATION] == other.notes[ADAPTATION]
        np.testing.assert_array_equal(one.descriptors(one.ids), other.descriptors(other.ids))


def test_an_upgrade_changes_nothing(adapted: Path) -> None:
    with PlaceMap(adapted) as place_map:
        before = place_map.descriptors(place_map.ids)
    report = add_local_features(adapted, progress=False)
    assert report.aggregated == 0
    with PlaceMap(adapted) as place_map:
        np.testing.assert_array_equal(place_map.descriptors(place_map.ids), before)


def test_a_photo_that_gets_local_features_later_gets_the_adapted_vector(adapted: Path, step: Step) -> None:
    with PlaceMap(adapted) as place_map:
        photo_id, dim = int(place_map.ids[5]), place_map.manifest.dim
        change = Adaptation(dim, (step,))
        whole = place_map.descriptors([photo_id])[0]
        features = pack_features(place_map.local_features([photo_id])[photo_id])
        without = change.inverse(whole)
    without[dim:] = 0
    with open_store(adapted, write=True) as store:
        (photo,) = store.photos_of(np.array([photo_id])).values()
        store.remove(np.array([photo_id]))
        store.add([photo], change(without)[None])
        (again,) = store.ids_without_features().tolist()
        store.write_features(np.array([again]), [features])
    with PlaceMap(adapted) as place_map:
        np.testing.assert_allclose(place_map.descriptors([again])[0], whole, atol=5e-3)


def test_a_map_without_its_adaptation_is_refused(adapted: Path) -> None:
    with open_store(adapted, write=True) as store:
        store.write_note(ADAPTATION, json.dumps({"format": 1}))
    with pytest.raises(MapError, match="constants"):
        PlaceMap(adapted)


def test_a_map_that_is_too_small_says_how_many_pairs_it_has(town: Path, out: Path) -> None:
    with pytest.raises(MapError, match=r"\d+ pairs .* 100 are needed"):
        adapt_map(town, out, model=street_model(), progress=False)
    assert not out.exists()


def test_photos_of_one_place_are_refused(tmp_path: Path) -> None:
    one = build_walls(tmp_path, {(place, i): 0 for place in range(PLACES) for i in range(2)}, photos=2)
    with pytest.raises(MapError, match="are of 1 place "):
        adapt_map(one, tmp_path / "out", model=street_model(), progress=False)


def test_a_map_without_local_features_is_refused(tmp_path: Path) -> None:
    plain = build_walls(tmp_path, {}, keypoints=0, photos=1)
    with pytest.raises(MapError, match="map upgrade"):
        adapt_map(plain, tmp_path / "out", model=street_model(), progress=False)


def test_a_folder_that_exists_is_not_overwritten(town: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="exists"):
        adapt_map(town, tmp_path)


def test_what_a_killed_call_left_beside_an_adapted_map_is_removed(town: Path, adapted: Path) -> None:
    (adapted.parent / "adaptation.json").write_text("{}")
    rest = Path(f"{adapted.parent}.work")
    rest.mkdir()
    with pytest.raises(ArgumentError, match="holds an adapted map"):
        adapt_map(town, adapted.parent)
    assert not rest.exists()
    assert adapted.exists()


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A town of walls is enough, few photos are relit and few queries are asked."""
    monkeypatch.setattr(adapting, "MIN_PAIRS", 10)
    monkeypatch.setattr(adapting, "ANSWERED", 3)
    monkeypatch.setattr(training_data, "RELIT", RELIT)


def test_what_is_better_is_written_and_the_map_stays_as_it_is(
    town: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    monkeypatch.setattr(adapting, "choose_step", lambda *given: (0.3, 1.25))  # walls are found without any change
    monkeypatch.setattr(adapting, "objection", lambda gains, mean: None)
    content, lines = town.read_bytes(), list[str]()
    queries = [tmp_path / f"{place}.jpg" for place in range(PLACES)]
    for place, path in enumerate(queries):
        Image.fromarray(wall(place, 20)).save(path, quality=95)
    report = adapt_map(town, out, photos=queries, model=street_model(), say=lines.append, progress=False)
    assert town.read_bytes() == content
    assert not list(tmp_path.glob("*.work"))
    assert report.placed > PLACES // 2
    assert {one.kind for one in report.held_out} >= {"photos of the map", "relit photos of the map"}
    assert any("pairs are verified" in line for line in lines)
    assert any("no times" in note for note in report.notes)
    written = json.loads((tmp_path / "out" / "adaptation.json").read_text())
    assert written["verified"] == report.verified
    assert (written["proved"], written["kept_because"]) == (written["held_out"], written["rejected_because"])
    with PlaceMap(tmp_path / "out" / "walls.gpkg") as place_map:
        adaptation = place_map.adaptation()
        assert adaptation is not None
        assert [len(one.factors) for one in adaptation.steps] == [report.directions]
        assert len(place_map) == PLACES * PHOTOS


def test_an_interrupted_call_continues_and_the_start_is_kept_unless_the_gain_is_sure(
    town: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(adapting, "relit_vectors", interrupt)
        with pytest.raises(KeyboardInterrupt):
            adapt_map(town, tmp_path / "out", model=street_model(), progress=False)
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "out.work").glob("*.npz"))
    with monkeypatch.context() as patched:
        patched.setattr("sareloc.adapt.compare._compare", interrupt)
        report = adapt_map(town, tmp_path / "out", model=street_model(), progress=False)
    assert report.rejected_because  # every wall is found already
    assert report.map is None
    assert not list(tmp_path.iterdir())


def test_a_fold_in_which_no_change_is_better_counts_as_no_gain() -> None:
    """Two queries in each of two folds, all wrong before; a change by the one fold mends its two."""
    database, queries = np.eye(3, dtype=np.float32)[:2], np.array([[0.8, 0.0, 0.6]] * 2, dtype=np.float32)
    queries[:, 1] = 0.5
    asked = Queries(queries, np.array([[False, True]] * 2), np.zeros((2, 2), dtype=bool), np.arange(2))
    mends = Step(1.0, np.eye(3, dtype=np.float32)[:1], np.array([0.1]))
    inside = [(Source("photos", queries, np.zeros((2, 2)), np.arange(2), -1.0, lambda rows: []), asked, np.arange(2))]
    rng = np.random.default_rng(0)
    for fits, gain in (([(mends, inside)], 100.0), ([(mends, inside), (None, inside)], 50.0), ([(None, inside)], 0.0)):
        (one,), mean = recall_gains(fits, database, 3, rng)
        assert (one.recall_1.before, one.recall_1.after, mean[0]) == (0.0, gain, gain)
    assert objection([one], mean)


def test_all_photos_are_asked_whether_a_change_is_better_in_their_fold_or_not(
    town: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    options = iter([None, (0.3, 1.25), None, (0.3, 1.25)])
    monkeypatch.setattr(adapting, "choose_step", lambda *given: next(options))
    monkeypatch.setattr(adapting, "objection", lambda gains, mean: None)
    report = adapt_map(town, out, model=street_model(), progress=False)
    asked = {one.kind: one.recall_1.queries for one in report.held_out}
    assert asked == {"photos of the map": PLACES * PHOTOS, "relit photos of the map": RELIT}
    for one in report.held_out:
        assert one.answered is not None
        assert one.answered.queries == adapting.FOLDS * (adapting.ANSWERED // adapting.FOLDS)


def test_nothing_is_written_if_no_change_is_better_on_the_whole_area(
    town: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    options = iter([None, (0.3, 1.25), None, None])
    monkeypatch.setattr(adapting, "choose_step", lambda *given: next(options))
    monkeypatch.setattr(adapting, "objection", lambda gains, mean: None)
    report = adapt_map(town, out, model=street_model(), progress=False)
    assert report.map is None
    assert "whole area" in (report.rejected_because or "")
    assert not list(tmp_path.iterdir())


def test_a_map_that_cannot_be_written_is_adapted_into_another_folder(
    walls_map: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Path(shutil.copytree(walls_map.parent, tmp_path / "read-only")) / walls_map.name
    for path, mode in ((town, 0o444), (town.parent, 0o555)):
        path.chmod(mode)
    small(monkeypatch)
    monkeypatch.setattr(adapting, "choose_step", lambda *given: (0.3, 1.25))
    monkeypatch.setattr(adapting, "objection", lambda gains, mean: None)
    try:
        files = sorted(path.name for path in town.parent.iterdir())
        report = adapt_map(town, out, model=street_model(), progress=False)
        assert sorted(path.name for path in town.parent.iterdir()) == files
    finally:
        town.parent.chmod(0o755)
    assert report.map is not None
    assert not verify_map(report.map)
    with open_store(report.map, write=True) as store:
        store.write_note("tested", "the copy can be written")


def test_a_map_without_any_verified_pair_says_so(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for place in range(9):
        Image.fromarray(wall(place, 0)).save(
            photos / f"{place}.jpg", quality=95, exif=exif_bytes(Geotag(position(place, 0.0)))
        )
    build_map(photos, tmp_path / "one.gpkg", street_model(), config=MapConfig(keypoints=200, progress=False))
    with pytest.raises(MapError, match=r"has 0 pairs .* 100 are needed"):
        adapt_map(tmp_path / "one.gpkg", tmp_path / "out", model=street_model(), progress=False)


GAIN = Gain(50, 80.0, 84.0, 1.0, 7.0)


@pytest.mark.parametrize(
    ("gains", "mean", "words"),
    [
        ((), (0.0, 0.0, 0.0), "not above zero"),
        ((HeldOutGains("photos", GAIN, None, None),), (4.0, -0.5, 8.0), "not above zero"),
        ((HeldOutGains("photos", GAIN, GAIN, replace(GAIN, low=-5.0, high=-1.0)),), (4.0, 1.0, 7.0), "rejections"),
        ((HeldOutGains("photos", GAIN, replace(GAIN, low=-5.0, high=-1.0), GAIN),), (4.0, 1.0, 7.0), "correct answers"),
        ((HeldOutGains("photos", replace(GAIN, high=-1.0), GAIN, GAIN),), (4.0, 1.0, 7.0), "recall@1"),
        ((HeldOutGains("photos", GAIN, replace(GAIN, low=-5.0), None),), (4.0, 1.0, 7.0), None),
    ],
)
def test_the_start_is_kept_if_anything_falls_for_sure(gains, mean, words: str | None) -> None:
    found = objection(gains, mean)
    assert found is None if words is None else words in (found or "")


def test_gains_are_of_pairs() -> None:
    before = np.array([True, False, False, True])
    gain, _ = Answers(np.arange(4), before, np.array([True, True, False, True])).gain(np.random.default_rng(0))
    assert (gain.before, gain.after) == (50.0, 75.0)
    assert gain.low >= 0
