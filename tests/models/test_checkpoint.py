"""Checkpoints: what goes in comes out, as a folder and as a file; whatever is wrong with one is said."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.conftest import peak_bytes

from sareloc.errors import ArgumentError, WeightsError
from sareloc.models import (
    PlaceModel,
    Whitening,
    checkpoint,
    find_packaged,
    fit_whitening,
    load_model,
    make_model,
    open_checkpoint,
    read_checkpoint_manifest,
    save_checkpoint,
)

KINDS = ["model", "model.safetensors"]


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    made = make_model("alexnet", size=(64, 96), clusters=4, rng=torch.Generator().manual_seed(0), name="small")
    descriptors = F.normalize(torch.randn(90, 1024, generator=torch.Generator().manual_seed(1)), dim=1)
    made.whitening = fit_whitening(descriptors, 80)
    return made


@pytest.fixture(scope="module")
def small() -> PlaceModel:
    """As `model`, with a whitening of 3 dimensions."""
    made = make_model("alexnet", size=(64, 96), clusters=4, rng=torch.Generator().manual_seed(0), name="small")
    made.whitening = Whitening(torch.zeros(1024), torch.randn(3, 1024, generator=torch.Generator().manual_seed(1)))
    return made


@pytest.fixture(scope="module")
def small_saved(small: PlaceModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("specs") / "small"
    save_checkpoint(small, path)
    return path


def photos() -> list[np.ndarray]:
    return [np.random.default_rng(i).integers(0, 256, (64, 96, 3), dtype=np.uint8) for i in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_float32_round_trip_is_exact(model: PlaceModel, tmp_path: Path, kind: str) -> None:
    training = {"epochs": 3, "loss": "sare-joint", "recall": [0.5, None]}
    save_checkpoint(model, tmp_path / kind, training=training)
    opened = open_checkpoint(tmp_path / kind)
    assert opened.fingerprint() == model.fingerprint()
    assert opened.spec() == model.spec()
    assert not opened.training
    exact, found = (m.encode(photos(), precision="float32") for m in (model, opened))
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=0)
    manifest = read_checkpoint_manifest(tmp_path / kind)
    assert manifest.training == training
    assert manifest.fingerprint == model.fingerprint()
    assert manifest.storage == "float32"


def test_the_frozen_part_is_frozen_again(model: PlaceModel, tmp_path: Path) -> None:
    save_checkpoint(model, tmp_path / "model")
    opened = open_checkpoint(tmp_path / "model")
    assert [p.requires_grad for p in opened.parameters()] == [p.requires_grad for p in model.parameters()]
    assert any(p.requires_grad for p in opened.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("storage", "closeness"), [("float16", 0.99999), ("int8", 0.995)])
def test_smaller_storage_gives_nearly_the_same_descriptors(
    model: PlaceModel, tmp_path: Path, kind: str, storage: Any, closeness: float
) -> None:
    save_checkpoint(model, tmp_path / kind, storage=storage)
    opened = open_checkpoint(tmp_path / kind)
    exact, near = (m.encode(photos(), precision="float32") for m in (model, opened))
    assert not near.equal(exact)
    assert F.cosine_similarity(exact, near).min() > closeness
    assert opened.fingerprint() != model.fingerprint()
    assert (
        opened.fingerprint()
        == read_checkpoint_manifest(tmp_path / kind).fingerprint
        == open_checkpoint(tmp_path / kind).fingerprint()
    )


def test_sizes_on_disk(model: PlaceModel, tmp_path: Path) -> None:
    sizes = {}
    for storage in ("float32", "float16", "int8"):
        save_checkpoint(model, tmp_path / "m.safetensors", storage=storage)
        sizes[storage] = (tmp_path / "m.safetensors").stat().st_size
    assert sizes["float32"] / sizes["float16"] > 1.9
    assert sizes["float32"] / sizes["int8"] > 3.6


def test_batch_statistics_and_counters_are_kept(tmp_path: Path) -> None:
    model = make_model("resnet18", "gem", size=None).train()
    model(torch.rand(2, 3, 64, 64))
    save_checkpoint(model, tmp_path / "model")
    assert open_checkpoint(tmp_path / "model").fingerprint() == model.fingerprint()


def test_the_folder_is_readable_by_people(model: PlaceModel, tmp_path: Path) -> None:
    save_checkpoint(model, tmp_path / "deep" / "model", training={"epochs": 1})
    folder = tmp_path / "deep" / "model"
    assert sorted(p.name for p in folder.iterdir()) == ["spec.json", "training.json", "weights.safetensors"]
    assert json.loads((folder / "spec.json").read_text())["spec"]["backbone"] == "alexnet"
    assert json.loads((folder / "training.json").read_text()) == {"epochs": 1}
    assert sorted(p.name for p in folder.parent.iterdir()) == ["model"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_replaced_as_a_whole(model: PlaceModel, tmp_path: Path, kind: str) -> None:
    save_checkpoint(model, tmp_path / kind, training={"epoch": 1})
    other = make_model("alexnet", "gem")
    save_checkpoint(other, tmp_path / kind)
    assert open_checkpoint(tmp_path / kind).fingerprint() == other.fingerprint()
    assert read_checkpoint_manifest(tmp_path / kind).training is None
    assert [p.name for p in tmp_path.iterdir()] == [kind]


KILLED_SAVES = """
import os, signal, sys
import torch
from sareloc.models import make_model, save_checkpoint

left = [0]
def count(event, arguments):
    if event == "os.rename":
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

other = make_model("alexnet", "gem", rng=torch.Generator().manual_seed(7))
print(other.fingerprint(), flush=True)
sys.addaudithook(count)
for path, renames in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    left[0] = renames
    child = os.fork()
    if not child:
        save_checkpoint(other, path)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_save_that_is_killed_leaves_the_old_one(model: PlaceModel, tmp_path: Path) -> None:
    """The other process also tells the fingerprint of its model, which is the same here."""
    cases = [("model", 1), ("model", 2), ("model.safetensors", 1)]  # killed before this rename
    paths = [tmp_path / str(number) / kind for number, (kind, _) in enumerate(cases)]
    for path in paths:
        path.parent.mkdir()
        save_checkpoint(model, path)
    words = [str(word) for path, (_, renames) in zip(paths, cases, strict=True) for word in (path, renames)]
    run = subprocess.run([sys.executable, "-c", KILLED_SAVES, *words], capture_output=True, text=True, check=True)
    told, *codes = run.stdout.split()
    other = make_model("alexnet", "gem", rng=torch.Generator().manual_seed(7))
    assert told == other.fingerprint()
    assert len(told) == 16
    int(told, 16)
    assert codes == [str(-signal.SIGKILL)] * len(cases)
    for path in paths:
        assert load_model(path).fingerprint() == model.fingerprint()
        save_checkpoint(other, path)
        assert load_model(path).fingerprint() == other.fingerprint()
        assert not list(path.parent.glob(".*.old"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_save_leaves_the_old_one_and_nothing_else(
    model: PlaceModel, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(model, tmp_path / kind)

    def disk_full(tensors: object, path: Path, metadata: object = None) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", disk_full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(make_model("alexnet", "gem"), tmp_path / kind)
    assert [p.name for p in tmp_path.iterdir()] == [kind]
    assert open_checkpoint(tmp_path / kind).fingerprint() == model.fingerprint()


def test_training_that_json_cannot_hold_leaves_nothing(model: PlaceModel, tmp_path: Path) -> None:
    for kind in KINDS:
        with pytest.raises(TypeError, match="not JSON serializable"):
            save_checkpoint(model, tmp_path / kind, training={"rng": object()})
    assert not list(tmp_path.iterdir())


def test_what_is_no_checkpoint_is_not_replaced(model: PlaceModel, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("precious")
    (tmp_path / "notes").write_text("precious")
    (tmp_path / "dir.safetensors").mkdir()
    for name in ("photos", "notes", "dir.safetensors"):
        with pytest.raises(WeightsError, match=f"{name} exists"):
            save_checkpoint(model, tmp_path / name)
    assert (tmp_path / "photos" / "a.jpg").read_text() == (tmp_path / "notes").read_text() == "precious"


def test_load_model_by_path_and_by_name(model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(model, tmp_path / "m.safetensors")
    assert load_model(tmp_path / "m.safetensors").fingerprint() == model.fingerprint()
    assert load_model(str(tmp_path / "m.safetensors"), device="cpu").fingerprint() == model.fingerprint()
    monkeypatch.setattr(checkpoint, "PACKAGED", {"city": tmp_path / "m.safetensors"})
    assert load_model("city").fingerprint() == model.fingerprint()
    with pytest.raises(WeightsError, match=r"no model 'town'.* city"):
        load_model("town")


def test_a_name_is_a_packaged_model_whatever_files_are_about(
    model: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PACKAGED", {"city": tmp_path / "m.safetensors", "gone": tmp_path / "gone"})
    save_checkpoint(model, tmp_path / "m.safetensors")
    save_checkpoint(make_model("alexnet", "gem", size=(64, 64)), tmp_path / "city")
    monkeypatch.chdir(tmp_path)
    assert load_model("city").fingerprint() == model.fingerprint()
    assert load_model("./city").fingerprint() == load_model(Path("city")).fingerprint() != model.fingerprint()
    assert find_packaged(model.fingerprint()) == "city"
    assert find_packaged("0" * 16) is None
    with pytest.raises(WeightsError, match="'gone' is missing"):
        load_model("gone")


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_may_read_new_files_may_read_a_checkpoint(model: PlaceModel, tmp_path: Path, kind: str) -> None:
    (tmp_path / "plain").touch()
    save_checkpoint(model, tmp_path / kind)
    files = list((tmp_path / kind).iterdir()) if (tmp_path / kind).is_dir() else [tmp_path / kind]
    assert {file.stat().st_mode for file in files} == {(tmp_path / "plain").stat().st_mode}


# what is wrong with it is said


def rewrite(path: Path, change: Any) -> None:
    """Change a checkpoint's tensors, keeping its description."""
    file = path / "weights.safetensors" if path.is_dir() else path
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata)


def redescribe(path: Path, change: Any) -> None:
    """Change a checkpoint's description, keeping its tensors."""
    if path.is_dir():
        about = json.loads((path / "spec.json").read_text())
        change(about)
        (path / "spec.json").write_text(json.dumps(about))
        return
    with safe_open(path, framework="pt") as opened:
        about = json.loads(opened.metadata()["sareloc"])
    change(about)
    save_file(load_file(path), path, {"sareloc": json.dumps(about)})


def nudge(tensors: dict[str, torch.Tensor]) -> None:
    tensors["aggregation.centres"][0, 0] += 1e-3


TENSORS = [
    (lambda t: t.pop("aggregation.centres"), "lacks tensors: aggregation.centres"),
    (lambda t: t.update(extra=torch.zeros(2)), "unexpected tensors: extra"),
    (
        lambda t: t.update({"aggregation.assign": torch.zeros(3, 256)}),
        r"aggregation.assign .*expected \(4, 256\)",
    ),
    (nudge, "damaged: .*fingerprint"),
]
DESCRIPTIONS = [
    (lambda a: a.update(version=2), "reads up to 1"),
    (lambda a: a.update(format="other"), "format is 'other'"),
    (lambda a: a.pop("spec"), "description is damaged .*spec"),
    (lambda a: a["spec"].pop("cut"), r"description is damaged .*\['cut'\]"),
    (lambda a: a["spec"].update(backbone="vgg99"), "unknown backbone 'vgg99'"),
    (lambda a: a["spec"].update(knobs={"leaves": 3}), "no option 'leaves'"),
    (lambda a: a["spec"]["preprocess"].update(mean=[0, 0]), "description is damaged .*mean"),
]


NAN, INF = float("nan"), float("inf")
SPECS = {
    "clusters": [10**6, 10**9, 10**30, 1e30, "x", 2.5, 4.0, True, NAN, None, -1, 0, [4]],
    "bias": [3, "x", None, 0.0],
    "norm": ["l3", 3, None, ["clamped"]],
    "whitening": [10**6, 10**9, 10**30, 80.0, -1, 0, "x", 2.5, True, NAN, [80]],
    "backbone": [[], ["alexnet"], {}, 3, None, True, "vgg99"],
    "cut": [3, None, ["conv5"], "conv9"],
    "train_from": [3, None, ["conv5"]],
    "aggregation": [[], 3, None, "vlad"],
    "name": [[], 3, None],
    "knobs": [[], 3, None, "clusters"],
    "preprocess": [[], 3, None],
    "mean": [[NAN, 0, 0], [0, 0], "abc", None, [0, 0, "x"], [0, 0, INF], [0, 0, None], [0, 0, [1]], 3],
    "std": [[0, 1, 1], [1, 1, -1], [1, NAN, 1], [1, 1], "abc", None, [1, 1, INF]],
    "scale": [0, -1, 10**400, NAN, INF, "x", None, [1], True],
    "interpolation": ["nearest", 3, None, ["bicubic"], {}],
    "resize": [[10**9, 10**9], 10**9, 10**30, [64], [64, 64, 64], "x", 2.5, True, [64.5, 64], [64, None], NAN, 3, -64],
}
HOMES = {"clusters": "knobs", "bias": "knobs", "norm": "knobs", "mean": "preprocess", "std": "preprocess"}
HOMES |= {"scale": "preprocess", "resize": "preprocess", "interpolation": "preprocess"}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in SPECS.items() for value in values])
def test_a_spec_is_checked_before_anything_is_allocated(small_saved: Path, field: str, value: Any) -> None:
    path = small_saved.with_name(f"{field}{uuid.uuid4().hex}")
    path.mkdir()
    (path / "weights.safetensors").hardlink_to(small_saved / "weights.safetensors")
    about = json.loads((small_saved / "spec.json").read_text())
    (about["spec"][HOMES[field]] if field in HOMES else about["spec"])[field] = value
    (path / "spec.json").write_text(json.dumps(about))
    before = peak_bytes()
    # the field, or the tensor whose shape does not follow from it
    tensor = {"clusters": "aggregation", "bias": "aggregation", "whitening": "whitening", "aggregation": "aggregation"}
    with pytest.raises(WeightsError, match=f"{field}|tensors?:? {tensor.get(field, field)}"):
        open_checkpoint(path)
    assert peak_bytes() - before < 200e6


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t.update({"aggregation.assign": torch.zeros(4, 256, dtype=torch.int64)}), "I64"),
        (lambda t: t.update({"aggregation.assign": torch.zeros(4, 256, dtype=torch.bool)}), "BOOL"),
        (lambda t: t.update({"aggregation.assign": torch.zeros(4, 256, dtype=torch.int8)}), "row-scale"),
        (lambda t: t.update({"aggregation.assign#row-scale": torch.zeros(4)}), "unexpected"),
        (lambda t: t.update({"none#row-scale": torch.zeros(4)}), "unexpected"),
        (
            lambda t: t.update(
                {
                    "aggregation.assign": torch.zeros(4, 256, dtype=torch.int8),
                    "aggregation.assign#row-scale": torch.zeros(4, 1024, 1024),
                }
            ),
            "row-scale",
        ),
    ],
)
def test_tensors_of_another_type_are_named(small: PlaceModel, tmp_path: Path, change: Any, word: str) -> None:
    save_checkpoint(small, tmp_path / "m.safetensors")
    rewrite(tmp_path / "m.safetensors", change)
    with pytest.raises(WeightsError, match=word):
        open_checkpoint(tmp_path / "m.safetensors")


def test_json_nested_too_deeply_is_damage(small: PlaceModel, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "model")
    (tmp_path / "model" / "spec.json").write_text("[" * 200_000)
    with pytest.raises(WeightsError, match="damaged"):
        open_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "message"), TENSORS)
def test_wrong_tensors_are_named(model: PlaceModel, tmp_path: Path, kind: str, change: Any, message: str) -> None:
    save_checkpoint(model, tmp_path / kind)
    rewrite(tmp_path / kind, change)
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(tmp_path / kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "message"), DESCRIPTIONS)
def test_wrong_descriptions_are_named(model: PlaceModel, tmp_path: Path, kind: str, change: Any, message: str) -> None:
    save_checkpoint(model, tmp_path / kind)
    redescribe(tmp_path / kind, change)
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(tmp_path / kind)


def test_a_missing_or_lost_scale_of_int8_is_noticed(model: PlaceModel, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_checkpoint(model, path, storage="int8")
    rewrite(path, lambda t: t.pop("whitening.projection#row-scale"))
    with pytest.raises(WeightsError, match="row-scale"):
        open_checkpoint(path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_files_cut_short(model: PlaceModel, tmp_path: Path, kind: str, keep: int) -> None:
    path = tmp_path / kind
    save_checkpoint(model, path)
    file = path / "weights.safetensors" if path.is_dir() else path
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(WeightsError, match="damaged"):
        open_checkpoint(path)


@pytest.mark.parametrize("text", ["", "{", '"text"', "[]", "\ud800".encode("utf-8", "surrogatepass")])
def test_a_folder_whose_json_is_damaged(model: PlaceModel, tmp_path: Path, text: str | bytes) -> None:
    save_checkpoint(model, tmp_path / "model")
    (tmp_path / "model" / "spec.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(WeightsError, match="description is damaged"):
        open_checkpoint(tmp_path / "model")


def test_pickles_are_refused_by_content_and_by_name(model: PlaceModel, tmp_path: Path) -> None:
    torch.save(model.state_dict(), tmp_path / "a.pth")
    torch.save(model.state_dict(), tmp_path / "b.safetensors")
    torch.save({"a": torch.zeros(3)}, tmp_path / "c.tar", _use_new_zipfile_serialization=False)
    (tmp_path / "d.safetensors").write_bytes(pickle.dumps({"weights": [1.0, 2.0, 3.0]}))
    save_checkpoint(model, tmp_path / "folder")
    torch.save(model.state_dict(), tmp_path / "folder" / "weights.safetensors")
    for name in ("a.pth", "b.safetensors", "c.tar", "d.safetensors", "folder"):
        with pytest.raises(WeightsError, match="is a pickle"):
            open_checkpoint(tmp_path / name)


def test_a_safetensors_header_that_begins_like_a_pickle_is_not_one(tmp_path: Path) -> None:
    """Its first eight bytes are a length: 0x0280 has the first two bytes of a pickle."""
    for padding in range(1000):
        save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors", {"p": "x" * padding})
        if (tmp_path / "w.safetensors").read_bytes()[:1] == b"\x80":
            break
    else:
        pytest.fail("no padding gave such a header")
    with pytest.raises(WeightsError, match="without sareloc's description"):
        open_checkpoint(tmp_path / "w.safetensors")


def test_what_is_no_checkpoint_at_all(model: PlaceModel, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello, this is just a text file")
    (tmp_path / "empty").mkdir()
    save_file({"w": torch.zeros(3)}, tmp_path / "bare.safetensors")
    save_checkpoint(model, tmp_path / "half")
    (tmp_path / "half" / "weights.safetensors").unlink()
    for name, message in {
        "notes.txt": "notes.txt is not a checkpoint",
        "empty": "no spec.json",
        "bare.safetensors": "without sareloc's description",
        "half": "no weights file .*half/weights.safetensors",
        "absent": "no weights file .*absent",
    }.items():
        with pytest.raises(WeightsError, match=message):
            open_checkpoint(tmp_path / name)
    with pytest.raises(WeightsError, match="no model 'absent'"):
        load_model("absent")
    with pytest.raises(ArgumentError, match="'int4'"):
        save_checkpoint(model, tmp_path / "m", storage="int4")  # type: ignore[arg-type]


# --- options that came later ----------------------------------------------------------------------------------------


def test_a_mixvpr_from_before_rows_had_a_bias_keeps_its_spec_and_fingerprint(tmp_path: Path) -> None:
    made = make_model("resnet18", "mixvpr", size=(64, 64), out_channels=3, depth=1, rows=2, row_bias=False)
    with torch.no_grad():
        for tensor in made.state_dict().values():
            tensor.copy_((torch.arange(tensor.numel()) % 13).reshape(tensor.shape) / 64)
    weights = made.state_dict()
    assert "aggregation.row_proj.bias" not in weights
    knobs = {"depth": 1, "height": 4, "mlp_ratio": 1, "out_channels": 3, "rows": 2, "width": 4}
    preprocess = {"mean": [0.485, 0.456, 0.406], "resize": [64, 64], "scale": 1.0, "std": [0.229, 0.224, 0.225]}
    spec = {
        "aggregation": "mixvpr", "backbone": "resnet18", "cut": "layer3", "knobs": knobs, "name": "old",
        "preprocess": preprocess, "train_from": "layer3", "whitening": None,
    }  # fmt: skip
    about = {"format": "sareloc-checkpoint", "version": 1, "storage": "float32", "spec": spec}
    about["fingerprint"] = "963a1ae023fcd46a"  # as version 92e9420 computed it
    save_file(weights, tmp_path / "old.safetensors", {"sareloc": json.dumps(about)})
    model = open_checkpoint(tmp_path / "old.safetensors")
    assert (model.aggregation.options()["row_bias"], model.dim) == (False, 6)
    save_checkpoint(model, tmp_path / "again")
    again = json.loads((tmp_path / "again" / "spec.json").read_text())
    assert (again["fingerprint"], again["spec"]) == (about["fingerprint"], spec)


def test_a_new_mixvpr_has_a_bias_of_rows_which_is_stored(tmp_path: Path) -> None:
    model = make_model("resnet18", "mixvpr", size=(64, 64), out_channels=3, depth=1, rows=2)
    assert model.aggregation.state_dict()["row_proj.bias"].any()
    save_checkpoint(model, tmp_path / "new")
    opened = open_checkpoint(tmp_path / "new")
    assert opened.aggregation.options() == model.aggregation.options()
    assert opened.spec().to_dict()["knobs"]["row_bias"] is True
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    assert opened(images).equal(model(images))
