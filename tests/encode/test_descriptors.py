"""Describing photo files: every photo once, bounded memory, bad ones listed, interrupted work resumed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sareloc
from sareloc.encode import describe, describe_boxes, receptive_field_px
from sareloc.encode.descriptors import DescriptorCache, decode_box
from sareloc.errors import ArgumentError
from sareloc.models import BACKBONES, PlaceModel, load_model, make_backbone, make_model, save_checkpoint
from sareloc.models.checkpoint import STANDARD
from sareloc.photos import ImageRecord, decode, read_image

ROUNDING = 2e-3  # of bfloat16, which depends on the batch; descriptors of two photos differ by 0.03


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return make_model("alexnet", "avg", size=None, rng=torch.Generator().manual_seed(1))


def write_photos(folder: Path, sizes: list[tuple[int, int]]) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = []
    for i, (height, width) in enumerate(sizes):
        paths.append(folder / f"{i:03d}.png")
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(paths[-1])
    return paths


def one_by_one(model: PlaceModel, paths: list[Path]) -> np.ndarray:
    return np.concatenate([model.encode([Image.open(path).convert("RGB")]).numpy() for path in paths])


def counting_encode(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that models describe from now on."""
    sizes: list[int] = []
    encode = PlaceModel.encode

    def counted(self: PlaceModel, images: torch.Tensor, **options: Any) -> torch.Tensor:
        sizes.append(len(images))
        return encode(self, images, **options)

    monkeypatch.setattr(PlaceModel, "encode", counted)
    return sizes


@pytest.mark.parametrize("workers", [0, 1])
def test_every_photo_is_described_whatever_its_size(model: PlaceModel, tmp_path: Path, workers: int) -> None:
    paths = write_photos(tmp_path, [(64, 80), (80, 64), (64, 80), (70, 70), (64, 80), (80, 64), (64, 80)])
    found = describe(paths, model, batch=2, workers=workers)
    assert not found.failures
    assert found.vectors.dtype == np.float32
    np.testing.assert_allclose(found.vectors, one_by_one(model, paths), atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, rtol=1e-5)


def test_bad_photos_are_listed_and_stop_nothing(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_photos(tmp_path, [(64, 64)] * 6)
    paths[0].write_bytes(b"")
    paths[2].write_bytes(paths[2].read_bytes()[:500])
    paths[3].unlink()
    Image.new("RGB", (20, 20)).save(paths[5])
    found = describe(paths, model)
    assert sorted(found.failures) == [0, 2, 3, 5]
    assert found.failures[3].photo == str(paths[3])
    assert "at least 64 px" in found.failures[5].reason
    assert not found.vectors[[0, 2, 3, 5]].any()
    np.testing.assert_allclose(found.vectors[[1, 4]], one_by_one(model, [paths[1], paths[4]]), atol=ROUNDING)


def test_only_bad_photos_and_no_photos(model: PlaceModel, tmp_path: Path) -> None:
    assert list(describe([tmp_path / "absent.jpg"], model).failures) == [0]
    assert describe([], model).vectors.shape == (0, model.dim)
    assert describe([], model, store=tmp_path / "store").vectors.shape == (0, model.dim)


def test_photos_are_given_as_paths_bytes_pixels_or_records(model: PlaceModel, tmp_path: Path) -> None:
    (path,) = write_photos(tmp_path, [(64, 80)])
    with Image.open(path) as picture:
        given = [path, str(path), path.read_bytes(), np.asarray(picture), picture, ImageRecord("a", path)]
        found = describe(given, model)
    assert not found.failures
    assert {vector.tobytes() for vector in found.vectors} == {found.vectors[0].tobytes()}
    for alone in (str(path), io.BytesIO(path.read_bytes()), read_image(path)):
        with pytest.raises(ArgumentError, match=r"a single one .*describe\(\[image\]\)"):
            describe(alone, model)
    with pytest.raises(ArgumentError, match="stored for files"):
        describe([path.read_bytes()], model, store=tmp_path / "store")


def test_without_a_model_the_packaged_one_for_this_machine_is_used(tmp_path: Path) -> None:
    paths = write_photos(tmp_path, [(64, 80)])
    wanted = load_model(STANDARD, None)
    np.testing.assert_array_equal(sareloc.describe(paths).vectors, describe(paths, wanted).vectors)


def test_a_store_is_filled_once(model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_photos(tmp_path, [(64, 64)] * 5)
    straight = describe(paths, model, batch=2).vectors
    batches = counting_encode(monkeypatch)
    first = describe(paths, model, batch=2, store=tmp_path / "store").vectors
    assert sum(batches) == 5
    again = describe(paths, model, batch=2, store=tmp_path / "store").vectors
    assert sum(batches) == 5
    np.testing.assert_allclose(first, straight, atol=ROUNDING)
    np.testing.assert_array_equal(again, first)


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from sareloc.models import PlaceModel
from sareloc.models.checkpoint import load_model
from sareloc.encode import describe, descriptors

descriptors.MARK_EVERY_S = 0.0
folder = Path(sys.argv[1])
model = load_model(folder / "model")
torch.set_num_threads(1)  # as many images are in work as there are threads
encode, calls = PlaceModel.encode, []

def dying(*args, **knobs):
    calls.append(1)
    if len(calls) == 8:  # four descriptors are written, three wait for their turn
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(*args, **knobs)

PlaceModel.encode = dying
describe(sorted(folder.glob("*.png")), model, batch=2, store=folder / "store")
"""


def test_after_kill_9_the_work_goes_on(model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_photos(tmp_path, [(64, 64)] * 9)
    straight = describe(paths, model, batch=2).vectors
    save_checkpoint(model, tmp_path / "model")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    batches = counting_encode(monkeypatch)
    resumed = describe(paths, model, batch=2, store=tmp_path / "store").vectors
    assert sum(batches) == 9 - 4
    np.testing.assert_allclose(resumed, straight, atol=ROUNDING)


def test_a_folder_killed_before_its_manifest_begins_anew(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_photos(tmp_path, [(64, 64)] * 2)
    store = tmp_path / "store"
    describe(paths, model, store=store)
    (store / "manifest.json").unlink()
    np.save(store / "vectors.npy", np.zeros((7, 7)))
    np.testing.assert_array_equal(describe(paths, model, store=store).vectors, describe(paths, model).vectors)


def test_a_photo_that_changed_or_failed_is_described_again(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_photos(tmp_path, [(64, 64)] * 4)
    store = tmp_path / "store"
    good = paths[3].read_bytes()
    paths[3].write_bytes(b"no photo")
    assert list(describe(paths, model, store=store).failures) == [3]
    paths[3].write_bytes(good)
    changed = np.full((64, 64, 3), 200, dtype=np.uint8)
    Image.fromarray(changed).save(paths[1])
    os.utime(paths[1], ns=(0, 1))
    batches = counting_encode(monkeypatch)
    found = describe(paths, model, store=store)
    assert (sum(batches), found.failures) == (2, {})
    np.testing.assert_allclose(found.vectors, one_by_one(model, paths), atol=ROUNDING)


def test_odd_names_and_dates_do_not_stop_a_store(model: PlaceModel, tmp_path: Path) -> None:
    first, second = write_photos(tmp_path, [(64, 64)] * 2)
    odd = first.rename(tmp_path / os.fsdecode(b"caf\xe9.jpg"))
    os.utime(second, (13_569_465_600, 13_569_465_600))  # the year 2400: its nanoseconds need more than 63 bits
    done = describe([odd, second], model, store=tmp_path / "store")
    assert done.failures == {}
    assert DescriptorCache.open(tmp_path / "store", model.fingerprint(), model.dim, [odd, second]).todo().tolist() == []


def test_a_photo_that_goes_away_and_comes_back(model: PlaceModel, tmp_path: Path) -> None:
    """As when a disk is not mounted for once: the file that returns is the same, its descriptor was forgotten."""
    paths = write_photos(tmp_path, [(64, 64)] * 2)
    first = describe(paths, model, store=tmp_path / "store").vectors.copy()
    away = paths[1].rename(tmp_path / "away.png")
    found = describe(paths, model, store=tmp_path / "store")
    assert list(found.failures) == [1]
    assert found.vectors.any(axis=1).tolist() == [True, False]
    away.rename(paths[1])
    np.testing.assert_allclose(describe(paths, model, store=tmp_path / "store").vectors, first, atol=2e-3)


def test_a_store_of_another_model_or_list_is_refused(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_photos(tmp_path, [(64, 64)] * 3)
    store = tmp_path / "store"
    describe(paths, model, store=store)
    other = make_model("alexnet", "avg", size=None, rng=torch.Generator().manual_seed(2))
    with pytest.raises(ArgumentError, match=f"{model.fingerprint()} .*{other.fingerprint()}"):
        describe(paths, other, store=store)
    with pytest.raises(ArgumentError, match=r"photos 3 \(here 2\)"):
        describe(paths[:2], model, store=store)
    with pytest.raises(ArgumentError, match="names"):
        describe(paths[::-1], model, store=store)
    assert json.loads((store / "manifest.json").read_text())["model"] == model.fingerprint()


# boxes


def test_the_receptive_field_of_every_backbone() -> None:
    known = {"vgg16": 196, "alexnet": 163}  # MatConvNet's documentation gives these two
    for name, design in BACKBONES.items():
        for cut in design.cuts[:3]:  # all of a convolutional network; blocks of a transformer have the same field
            with torch.device("meta"):
                backbone = make_backbone(name, cut=cut)
            field = receptive_field_px(backbone)  # asserts that the steps agree with the stride
            assert field == (14 if backbone.has_token else known.get(name, field))


def test_a_box_is_cut_out_with_half_the_receptive_field_around_it(model: PlaceModel, tmp_path: Path) -> None:
    paths = write_photos(tmp_path, [(400, 500), (400, 500)])
    boxes = np.array([[200.0, 150.0, 260.0, 220.0], [10.0, 300.0, 30.0, 390.0]])
    found = describe_boxes(model, paths, boxes)
    # 163 / 2 on every side; the second box is cut off at the photo's left and lower edges
    expected = [(0, slice(68, 302), slice(118, 342)), (1, slice(218, 400), slice(0, 112))]
    for row, down, across in expected:
        part = np.asarray(Image.open(paths[row]))[down, across]
        np.testing.assert_array_equal(decode_box(paths[row], boxes[row], 163 / 2, model), part)
        np.testing.assert_allclose(found.vectors[row], model.encode([part])[0], atol=ROUNDING)


def test_a_box_keeps_the_scale_of_its_resized_photo(tmp_path: Path) -> None:
    model = make_model("alexnet", "avg", size=(150, 400))
    paths = write_photos(tmp_path, [(600, 800)])
    whole = decode(paths[0], size=model.preprocess.size)
    assert whole.shape == (150, 400, 3)
    part = decode_box(paths[0], np.array([300.0, 200.0, 500.0, 400.0]), 10.0, model)
    np.testing.assert_array_equal(part, whole[40:110, 140:260])


def test_a_box_outside_the_photo_is_a_failure(model: PlaceModel, tmp_path: Path) -> None:
    paths = [*write_photos(tmp_path, [(100, 100)]), tmp_path / "absent.png"]
    found = describe_boxes(model, paths, np.array([[900.0, 10.0, 990.0, 90.0]] * 2))
    assert "100 x 0 px" in found.failures[0].reason
    assert "no such file" in found.failures[1].reason
