"""Published weights: files of the same structure made here, and what the originals compute, computed from them.

Names, shapes and formulas are facts of the authors' code, which `tests.models.families` names for each family.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.conftest import peak_bytes
from tests.models.families import record_difference
from tests.models.test_backbones import resnet_tensors, resnet_twin
from tests.models.transformers import random_tensors
from torch import Tensor

from sareloc.errors import ArgumentError, WeightsError
from sareloc.models import PlaceModel, load_published, open_checkpoint, published, save_checkpoint
from sareloc.models.published.weights_files import whitening_from_linear

VGG16 = {0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128), 12: (256, 256), 14: (256, 256),
         17: (512, 256), 19: (512, 512), 21: (512, 512), 24: (512, 512), 26: (512, 512), 28: (512, 512)}  # fmt: skip
ALEXNET = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}
CLUSTERS, DIM = 3, 8
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def vgg() -> State:
    """VGG16's convolutions as `N.weight`, `N.bias`, of a size that keeps the signal alive."""
    state, rng = {}, torch.Generator().manual_seed(0)  # set up before the seed of a test is set
    for i, (width, depth) in VGG16.items():
        state[f"{i}.weight"] = torch.randn(width, depth, 3, 3, generator=rng) * (2 / (9 * depth)) ** 0.5
        state[f"{i}.bias"] = 0.1 * torch.randn(width, generator=rng)
    return state


@pytest.fixture(scope="module")
def vgg_shapes() -> State:
    """The same on the device "meta", for files that are refused by names, shapes or the tensors beside."""
    return {
        name: tensor
        for i, (width, depth) in VGG16.items()
        for name, tensor in (
            (f"{i}.weight", torch.empty(width, depth, 3, 3, device="meta")),
            (f"{i}.bias", torch.empty(width, device="meta")),
        )
    }


@pytest.fixture
def load_tensors(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlaceModel]:
    """`load_published` of a file with these tensors, without writing its 59 MB."""

    def load(tensors: State, **options: Any) -> PlaceModel:
        monkeypatch.setattr(published, "read_tensors", lambda path: dict(tensors))
        return load_published(__file__, **options)

    return load


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randint(0, 256, (2, 3, 70, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


def alexnet_convolutions() -> State:
    """AlexNet's, as `N.weight` and `N.bias`."""
    convs = {}
    for i, (width, depth, size) in ALEXNET.items():
        convs[f"{i}.weight"] = torch.randn(width, depth, size, size) * (2 / (size * size * depth)) ** 0.5
        convs[f"{i}.bias"] = 0.1 * torch.randn(width)
    return convs


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: v for name, v in state.items()}


def netvlad_arrays(depth: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    """Assignment weights (K, D), a bias (K,) and centres (K, D), unrelated, so that a mix-up shows."""
    return 20 * F.normalize(torch.randn(CLUSTERS, depth)), torch.randn(CLUSTERS), 0.05 * torch.randn(CLUSTERS, depth)


# --- what the originals compute, by plain loops ---------------------------------------------------------------------


def conv_map(state: State, pixels: Tensor, pools: tuple[int, ...] = (2, 7, 14, 21)) -> Tensor:
    x = pixels
    numbers = sorted({int(name.split(".")[0]) for name in state})
    alexnet = state["0.weight"].shape[-1] == 11
    for i in numbers:
        kernel = state[f"{i}.weight"]
        margin = 2 if alexnet and i in (0, 3) else 1
        x = F.conv2d(x, kernel, state[f"{i}.bias"], stride=4 if alexnet and i == 0 else 1, padding=margin)
        x = x if i == numbers[-1] else F.relu(x)
        x = F.max_pool2d(x, 3 if alexnet else 2, stride=2) if i in pools else x
    return x


def residual_netvlad(features: Tensor, assign: Tensor, bias: Tensor, centres: Tensor) -> Tensor:
    """(B, D, h, w) -> (B, K, D), every cluster of unit length: one residual at a time."""
    found = []
    for image in features:
        local = [v / v.norm() for v in image.flatten(1).T]
        sums = torch.zeros_like(centres)
        for v in local:
            soft = torch.softmax(assign @ v + bias, dim=0)
            for k in range(len(centres)):
                sums[k] += soft[k] * (v - centres[k])
        found.append(torch.stack([s / s.norm() for s in sums]))
    return torch.stack(found)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def assert_computes(model: PlaceModel, images: Tensor, expected: Tensor, family: str) -> None:
    with torch.no_grad():
        found = model(images)
    assert found.shape == expected.shape
    record_difference(family, found, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # The two images differ enough for the comparison to mean something.
    assert (expected[0] - expected[1]).norm() > 1e-3


# --- NetVLAD's own MatConvNet release -------------------------------------------------------------------------------


def matconvnet_file(
    path: Path,
    vgg: State,
    vlad: list[np.ndarray],
    white: list[np.ndarray],
    mean: np.ndarray,
    first: list[Any] | None = None,
) -> Path:
    """The published structure: a cell array of layer structs, some without weights, and the mean image.

    With `first`, the arrays of the first convolution, all others are zeros.
    """
    savemat = pytest.importorskip("scipy.io").savemat
    layers: list[dict[str, Any]] = []
    for i, (width, depth) in VGG16.items():
        if first is None:
            kernel = vgg[f"{i}.weight"].numpy().transpose(2, 3, 1, 0)  # height, width, in, out
            arrays: list[Any] = [kernel, vgg[f"{i}.bias"].numpy()[None]]
        else:
            arrays = [np.zeros((3, 3, depth, width), dtype=np.float32), np.zeros(width, dtype=np.float32)]
            arrays = first if i == 0 else arrays
        layers.append({"type": "conv", "name": f"conv{i}", "weights": cell(*arrays)})
        layers.append({"type": "relu", "name": f"relu{i}", "leak": 0.0})
        if i in (2, 7, 14, 21):
            layers.append({"type": "pool", "name": f"pool{i}", "weights": cell()})
    layers[-1] = {"type": "normalize", "name": "preL2"}
    layers.append({"type": "custom", "name": "vlad:core", "weights": cell(*vlad)})
    layers.append({"type": "normalize", "name": "vlad:intranorm"})
    layers.append({"type": "custom", "name": "postL2"})
    if white:
        layers.append({"type": "conv", "name": "WPCA", "weights": cell(*white)})
        layers.append({"type": "custom", "name": "finalL2"})
    meta = {"normalization": {"averageImage": mean}, "netID": "vd16"}
    savemat(path, {"net": {"layers": cell(*layers), "meta": meta}})
    return path


def cell(*entries: Any) -> np.ndarray:
    """A MATLAB cell array of one row."""
    array = np.empty((1, len(entries)), dtype=object)
    for i, entry in enumerate(entries):
        array[0, i] = entry
    return array


def as_matlab(weights: Tensor) -> np.ndarray:
    """(K, D) as MatConvNet's 1 x 1 x D x K."""
    return weights.T.numpy()[None, None]


@pytest.mark.parametrize(
    ("version", "whitened"),
    [
        (1, True),
        (2, False),
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(2, True, marks=pytest.mark.slow),
    ],
)
def test_matconvnet_computes_what_the_matlab_release_computes(
    version: int, whitened: bool, vgg: State, images: Tensor, tmp_path: Path
) -> None:
    assign, bias, centres = netvlad_arrays()
    mean = np.array([123.7, 116.8, 103.9], dtype=np.float32)
    mean_image = np.tile(mean, (224, 224, 1))
    mean_image[1:] += 9  # only the first pixel counts
    weight = torch.randn(512 * CLUSTERS, DIM)
    shift = torch.randn(DIM)
    vlad = [as_matlab(assign), as_matlab(-centres)]
    if version == 2:
        vlad.insert(1, bias.numpy()[None])
    white = [weight.numpy()[None, None], shift.numpy()[:, None]] if whitened else []
    path = matconvnet_file(tmp_path / "Pitts30K_struct.mat", vgg, vlad, white, mean_image)

    pixels = images.float() - torch.from_numpy(mean)[:, None, None]
    clusters = residual_netvlad(conv_map(vgg, pixels), assign, bias if version == 2 else 0 * bias, centres)
    if whitened:
        matlab_order = unit(clusters.transpose(1, 2).flatten(1))  # a K x D array in column order: clusters fastest
        expected = unit(matlab_order @ weight + shift)
    else:
        expected = unit(clusters.flatten(1))
    model = load_published(path)
    assert not model.training
    assert model.dim == (DIM if whitened else 512 * CLUSTERS)
    assert_computes(model, images, expected, "NetVLAD (MatConvNet)")


def test_a_mat_file_of_another_structure_is_explained(vgg: State, tmp_path: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    savemat(tmp_path / "a.mat", {"layers": 3})
    with pytest.raises(WeightsError, match="no struct 'net'"):
        load_published(tmp_path / "a.mat")
    short = {i: v for i, v in vgg.items() if not i.startswith("28.")}
    layers = [{"weights": cell(short[f"{i}.weight"].numpy(), short[f"{i}.bias"].numpy())} for i in (0, 2)]
    savemat(tmp_path / "b.mat", {"net": {"layers": cell(*layers)}})
    with pytest.raises(WeightsError, match=r"not VGG16-NetVLAD: .*\[2, 2\]"):
        load_published(tmp_path / "b.mat")
    (tmp_path / "c.mat").write_bytes(b"not MATLAB at all, not even long enough" * 10)
    with pytest.raises(WeightsError, match="not a MATLAB file"):
        load_published(tmp_path / "c.mat")


def test_a_matlab_73_file_is_distinguished_from_a_damaged_one(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "new.mat", "w", userblock_size=512) as file:
        file["net"] = 1
    with (tmp_path / "new.mat").open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    with pytest.raises(WeightsError, match=r"MATLAB 7\.3"):
        load_published(tmp_path / "new.mat")


# --- OpenIBL --------------------------------------------------------------------------------------------------------

OPENIBL_MEAN = torch.tensor([0.48501960784313836, 0.4579568627450961, 0.4076039215686255])
OPENIBL_STD = 0.00392156862745098


def openibl_pixels(images: Tensor) -> Tensor:
    return (images.float() / 255 - OPENIBL_MEAN[:, None, None]) / OPENIBL_STD


def openibl_state(vgg: State, assign: Tensor, centres: Tensor) -> State:
    return prefixed(vgg, "base_model.base.") | {
        "net_vlad.conv.weight": assign[:, :, None, None],
        "net_vlad.centroids": centres,
    }


@pytest.mark.parametrize("wrapped", [True, False])
def test_openibl_computes_what_openibl_computes(wrapped: bool, vgg: State, images: Tensor, tmp_path: Path) -> None:
    assign, bias, centres = netvlad_arrays()
    weight, shift = torch.randn(DIM, 512 * CLUSTERS), torch.randn(DIM)
    state = openibl_state(vgg, assign, centres)
    state |= {"pca_layer.weight": weight[:, :, None, None], "pca_layer.bias": shift}
    record = {"state_dict": prefixed(state, "module."), "epoch": 4, "best_recall5": 0.9} if wrapped else state
    torch.save(record, tmp_path / "vgg16_netvlad.pth")
    clusters = residual_netvlad(conv_map(vgg, openibl_pixels(images)), assign, 0 * bias, centres)
    expected = unit(unit(clusters.flatten(1)) @ weight.T + shift)
    assert_computes(load_published(tmp_path / "vgg16_netvlad.pth"), images, expected, "OpenIBL")


def test_openibl_takes_its_pca_from_a_separate_file(vgg: State, images: Tensor, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    assign, bias, centres = netvlad_arrays()
    torch.save(openibl_state(vgg, assign, centres), tmp_path / "model_best.pth.tar")
    directions = torch.linalg.qr(torch.randn(512 * CLUSTERS, DIM)).Q
    variances, mean = torch.rand(DIM) + 0.1, 0.02 * torch.randn(512 * CLUSTERS, 1)
    with h5py.File(tmp_path / "pca_params_model_best.h5", "w") as file:
        file["U"], file["lams"], file["mu"] = directions.numpy(), variances.numpy(), mean.numpy()
        file["Utmu"] = (directions.T @ mean).numpy()
    clusters = residual_netvlad(conv_map(vgg, openibl_pixels(images)), assign, 0 * bias, centres)
    centred = unit(clusters.flatten(1)) - mean.T
    whitened = torch.stack([centred @ directions[:, i] / variances[i].sqrt() for i in range(DIM)], dim=1)
    strongest_first = unit(whitened)[:, variances.argsort(descending=True)]

    plain = load_published(tmp_path / "model_best.pth.tar")
    assert plain.whitening is None
    assert_computes(plain, images, unit(clusters.flatten(1)), "OpenIBL")
    model = load_published(tmp_path / "model_best.pth.tar", pca=tmp_path / "pca_params_model_best.h5")
    assert_computes(model, images, strongest_first, "OpenIBL")
    (tmp_path / "x.mat").touch()
    with pytest.raises(ArgumentError, match=r"openibl.*matconvnet"):
        load_published(tmp_path / "x.mat", pca=tmp_path / "pca_params_model_best.h5")
    with pytest.raises(WeightsError, match="PCA parameters"):
        load_published(tmp_path / "model_best.pth.tar", pca=tmp_path / "model_best.pth.tar")


# --- pytorch-NetVlad ------------------------------------------------------------------------------------------------


def imagenet_pixels(images: Tensor) -> Tensor:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (images.float() / 255 - mean[:, None, None]) / std[:, None, None]


def training_record(state: State) -> dict[str, Any]:
    """All that pytorch-NetVlad stores: recalls as numpy numbers, the optimizer's state, flags."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    recalls = {n: np.float64(0.5 + n / 100) for n in (1, 5, 10, 20)}
    return {
        "epoch": 7,
        "state_dict": state,
        "recalls": recalls,
        "best_score": recalls[5],
        "optimizer": optimizer.state_dict(),
        "parallel": False,
    }


@pytest.mark.parametrize(
    ("vladv2", "zipped"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_pytorch_netvlad_computes_what_pytorch_netvlad_computes(
    vladv2: bool, zipped: bool, vgg: State, images: Tensor, tmp_path: Path
) -> None:
    assign, bias, centres = netvlad_arrays()
    state = prefixed(vgg, "encoder.module." if vladv2 else "encoder.")
    pool = "pool.module." if vladv2 else "pool."
    state |= {f"{pool}conv.weight": assign[:, :, None, None], f"{pool}centroids": centres}
    if vladv2:
        state[f"{pool}conv.bias"] = bias
    path = tmp_path / "checkpoint.pth.tar"
    torch.save(training_record(state), path, _use_new_zipfile_serialization=zipped)
    features = conv_map(vgg, imagenet_pixels(images))
    expected = unit(residual_netvlad(features, assign, bias if vladv2 else 0 * bias, centres).flatten(1))
    assert_computes(load_published(path), images, expected, "pytorch-NetVlad")


def test_pytorch_netvlad_with_alexnet_also_as_our_own_checkpoint(images: Tensor, tmp_path: Path) -> None:
    convs = alexnet_convolutions()
    assign, bias, centres = netvlad_arrays(256)
    state = prefixed(convs, "encoder.") | {"pool.conv.weight": assign[:, :, None, None], "pool.centroids": centres}
    torch.save({"state_dict": state}, tmp_path / "checkpoint.pth.tar")
    features = conv_map(convs, imagenet_pixels(images), pools=(0, 3))
    expected = unit(residual_netvlad(features, assign, 0 * bias, centres).flatten(1))
    model = load_published(tmp_path / "checkpoint.pth.tar", "pytorch-netvlad")
    assert_computes(model, images, expected, "pytorch-NetVlad")
    save_checkpoint(model, tmp_path / "ours")
    assert_computes(open_checkpoint(tmp_path / "ours"), images, expected, "pytorch-NetVlad")


@pytest.mark.parametrize("dim", [pytest.param(4, marks=pytest.mark.slow), 40])
def test_patch_netvlad_computes_with_its_whitening(dim: int, vgg: State, images: Tensor, tmp_path: Path) -> None:
    """`add_pca.py` stores numpy's double precision, and the number of components beside the state."""
    assign, bias, centres = netvlad_arrays()
    state = prefixed(vgg, "encoder.") | {"pool.conv.weight": assign[:, :, None, None], "pool.centroids": centres}
    directions = torch.linalg.qr(torch.randn(512 * CLUSTERS, dim)).Q.double() / (torch.rand(dim) + 0.01)
    mean = 0.02 * torch.randn(512 * CLUSTERS).double()
    state |= {"WPCA.0.weight": directions.T[:, :, None, None], "WPCA.0.bias": -directions.T @ mean}
    torch.save({"num_pcs": dim, "state_dict": state}, tmp_path / f"mapillary_WPCA{dim}.pth.tar")
    clusters = residual_netvlad(conv_map(vgg, imagenet_pixels(images)), assign, 0 * bias, centres)
    expected = unit((unit(clusters.flatten(1)).double() - mean) @ directions).float()
    model = load_published(tmp_path / f"mapillary_WPCA{dim}.pth.tar")
    assert (model.name, model.dim) == ("vgg16-netvlad-patch-netvlad", dim)
    assert_computes(model, images, expected, "Patch-NetVLAD")


@pytest.mark.parametrize(
    ("prefix", "pool", "extra"),
    [
        ("encoder.", "pool.", "pool.alpha"),
        ("encoder.", "pool.", "WPCA.1.weight"),
        ("encoder.", "pool.", "attention.weight"),
        ("encoder.", "pool.", "encoder.30.weight"),
        ("base_model.base.", "net_vlad.", "net_vlad.alpha"),
        ("base_model.base.", "net_vlad.", "base_model.head.weight"),
        ("base_model.base.", "net_vlad.", "pca_layer.scale"),
        ("backbone.", "aggregation.", "aggregation.1.weight"),  # a whitening needs NetVLAD under aggregation.0
        ("backbone.", "aggregation.0.", "aggregation.2.weight"),
        ("backbone.", "aggregation.", "backbone.30.weight"),
        ("backbone.", "aggregation.", "fc.weight"),
    ],
)
def test_unknown_tensors_are_never_ignored(
    prefix: str, pool: str, extra: str, vgg_shapes: State, load_tensors: Callable[..., PlaceModel]
) -> None:
    assign, _, centres = netvlad_arrays()
    state = prefixed(vgg_shapes, prefix) | {f"{pool}conv.weight": assign[:, :, None, None], f"{pool}centroids": centres}
    load_tensors(state)
    with pytest.raises(WeightsError, match=re.escape(extra.removeprefix(prefix))):
        load_tensors(state | {extra: torch.zeros(3)})


def test_a_second_whitening_for_openibl_is_refused(
    vgg_shapes: State, load_tensors: Callable[..., PlaceModel], tmp_path: Path
) -> None:
    assign, _, centres = netvlad_arrays()
    state = openibl_state(vgg_shapes, assign, centres)
    state |= {"pca_layer.weight": torch.randn(DIM, 512 * CLUSTERS, 1, 1), "pca_layer.bias": torch.randn(DIM)}
    (tmp_path / "pca.h5").touch()
    with pytest.raises(WeightsError, match=r"whitening of its own .* leave"):
        load_tensors(state, pca=tmp_path / "pca.h5")


@pytest.mark.parametrize("lost", ["pool.centroids", "pool.conv.weight", "encoder.0.weight", "encoder.26.bias"])
def test_a_missing_tensor_is_named(lost: str, vgg_shapes: State, load_tensors: Callable[..., PlaceModel]) -> None:
    assign, _, centres = netvlad_arrays()
    state = prefixed(vgg_shapes, "encoder.") | {"pool.conv.weight": assign[:, :, None, None], "pool.centroids": centres}
    del state[lost]
    with pytest.raises(WeightsError, match=re.escape(lost.replace("encoder.26", "features.26"))):
        load_tensors(state, kind="pytorch-netvlad")


def test_half_a_whitening_of_patch_netvlad_is_refused(
    vgg_shapes: State, load_tensors: Callable[..., PlaceModel]
) -> None:
    assign, _, centres = netvlad_arrays()
    state = prefixed(vgg_shapes, "encoder.") | {"pool.conv.weight": assign[:, :, None, None], "pool.centroids": centres}
    with pytest.raises(WeightsError, match=r"no tensor 'WPCA\.0\.bias'"):
        load_tensors(state | {"WPCA.0.weight": torch.randn(DIM, 512 * CLUSTERS, 1, 1)})


# --- sharp assignments: how tiny clusters are scaled ------------------------------------------------------------------

SHARP_CLUSTERS = 16
ALPHA = 180.0  # the initialisation below gives 144 to 216 on the features of real VGG16 weights


def smooth_images(count: int, seed: int) -> Tensor:
    """Images that differ in colour and have large shapes, so that not every cluster occurs in every one."""
    rng = torch.Generator().manual_seed(seed)
    shapes, colour = torch.rand(count, 3, 6, 7, generator=rng), torch.rand(count, 3, 1, 1, generator=rng)
    smooth = F.interpolate(0.2 * shapes + 0.8 * colour, (80, 96), mode="bicubic")
    return (smooth.clamp(0, 1) * 255).to(torch.uint8)


def sharp_weights(features: Tensor) -> tuple[Tensor, Tensor]:
    """The PyTorch ports' initial assignment (K, D) = alpha c / |c| and centroids c (K, D) for features (B, D, h, w)."""
    local = F.normalize(features, dim=1).transpose(0, 1).flatten(1).T  # (n, D)
    centroids = local[torch.randperm(len(local), generator=torch.Generator().manual_seed(2))[:SHARP_CLUSTERS]]
    for _ in range(10):
        nearest = torch.cdist(local, centroids).argmin(dim=1)
        members = [local[nearest == k] for k in range(SHARP_CLUSTERS)]
        centroids = torch.stack([m.mean(0) if len(m) else c for m, c in zip(members, centroids, strict=True)])
    return ALPHA * centroids / centroids.norm(dim=1, keepdim=True), centroids


def torch_netvlad(features: Tensor, assign: Tensor, centroids: Tensor) -> Tensor:
    """The NetVLAD layer of the PyTorch ports: every normalisation divides by max(|v|, 1e-12)."""
    x = F.normalize(features, p=2, dim=1)
    soft = F.conv2d(x, assign[:, :, None, None]).flatten(2).softmax(dim=1)  # (B, K, S)
    residuals = x.flatten(2)[:, None] - centroids[None, :, :, None]  # (B, K, D, S)
    vlad = F.normalize((residuals * soft[:, :, None]).sum(dim=-1), p=2, dim=2)
    return F.normalize(vlad.flatten(1), p=2, dim=1)


def matconvnet_netvlad(features: Tensor, assign: Tensor, centroids: Tensor) -> Tensor:
    """The same layer in MatConvNet: every normalisation divides by sqrt(|v|^2 + 1e-12)."""

    def scaled(v: Tensor, dim: int) -> Tensor:
        return v / (v.square().sum(dim=dim, keepdim=True) + 1e-12).sqrt()

    x = scaled(features, 1)
    soft = F.conv2d(x, assign[:, :, None, None]).flatten(2).softmax(dim=1)
    residuals = x.flatten(2)[:, None] - centroids[None, :, :, None]
    return scaled(scaled((residuals * soft[:, :, None]).sum(dim=-1), 2).flatten(1), 1)


def matconvnet_pixels(images: Tensor) -> Tensor:
    return images.float() - torch.tensor([123.68, 116.779, 103.939])[:, None, None]


def save_matconvnet(vgg: State, assign: Tensor, centroids: Tensor, folder: Path) -> Path:
    mean = np.tile(np.array([123.68, 116.779, 103.939], dtype=np.float32), (4, 4, 1))
    return matconvnet_file(folder / "net.mat", vgg, [as_matlab(assign), as_matlab(-centroids)], [], mean)


def save_openibl(vgg: State, assign: Tensor, centroids: Tensor, folder: Path) -> Path:
    torch.save(openibl_state(vgg, assign, centroids), folder / "net.pth")
    return folder / "net.pth"


def save_pytorch_netvlad(vgg: State, assign: Tensor, centroids: Tensor, folder: Path) -> Path:
    pool = {"pool.conv.weight": assign[:, :, None, None], "pool.centroids": centroids}
    torch.save(training_record(prefixed(vgg, "encoder.") | pool), folder / "checkpoint.pth.tar")
    return folder / "checkpoint.pth.tar"


def save_benchmark(vgg: State, assign: Tensor, centroids: Tensor, folder: Path) -> Path:
    aggregation = {"aggregation.conv.weight": assign[:, :, None, None], "aggregation.centroids": centroids}
    return benchmark_file(folder / "best_model.pth", prefixed(vgg, "backbone.") | aggregation)


@pytest.mark.parametrize(
    ("save", "pixels", "netvlad", "family"),
    [
        (save_matconvnet, matconvnet_pixels, matconvnet_netvlad, "NetVLAD (MatConvNet)"),
        pytest.param(save_openibl, openibl_pixels, torch_netvlad, "OpenIBL", marks=pytest.mark.slow),
        (save_pytorch_netvlad, imagenet_pixels, torch_netvlad, "pytorch-NetVlad"),
        pytest.param(
            save_benchmark,
            imagenet_pixels,
            torch_netvlad,
            "deep-visual-geo-localization-benchmark",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["matconvnet", "openibl", "pytorch-netvlad", "deep-vg-benchmark"],
)
def test_sharp_weights_scale_tiny_clusters_as_the_original_does(
    save: Any, pixels: Any, netvlad: Any, family: str, vgg: State, tmp_path: Path
) -> None:
    others = pixels(smooth_images(6, seed=9))
    common = conv_map(vgg, others).mean(dim=(0, 2, 3))
    vgg = vgg | {"28.bias": vgg["28.bias"] - common}  # features in all directions, as trained networks have them
    assign, centroids = sharp_weights(conv_map(vgg, others))
    images = smooth_images(4, seed=8)
    features = conv_map(vgg, pixels(images))
    expected = netvlad(features.double(), assign.double(), centroids.double()).float()
    other = {matconvnet_netvlad: torch_netvlad, torch_netvlad: matconvnet_netvlad}[netvlad]
    # the two formulas differ by far more than the tolerance: some clusters are assigned almost nothing
    assert (other(features, assign, centroids) - expected).abs().max() > 0.01
    path = save(vgg, assign, centroids, tmp_path)
    for model in (load_published(path), saved_and_opened(load_published(path), tmp_path / "ours.safetensors")):
        with torch.no_grad():
            found = model(images)
        record_difference(family, found, expected)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def saved_and_opened(model: PlaceModel, path: Path) -> PlaceModel:
    save_checkpoint(model, path)
    return open_checkpoint(path)


# --- deep-visual-geo-localization-benchmark ---------------------------------------------------------------------------


def benchmark_file(path: Path, state: State) -> Path:
    """What its training stores: data-parallel names, recalls as a numpy array, the optimizer's state, counters."""
    weight = torch.nn.Parameter(torch.zeros(2))
    record = {
        "epoch_num": 3,
        "model_state_dict": prefixed(state, "module."),
        "optimizer_state_dict": torch.optim.Adam([weight]).state_dict(),
        "recalls": np.array([60.5, 80.25, 85.0, 90.0]),
        "best_r5": np.float64(80.25),
        "not_improved_num": 0,
    }
    torch.save(record, path)
    return path


@pytest.mark.parametrize(
    ("backbone", "projected"),
    [
        ("vgg16", True),
        ("alexnet", True),
        ("alexnet", False),
        pytest.param("vgg16", False, marks=pytest.mark.slow),
    ],
)
def test_the_benchmark_computes_what_it_computes(
    backbone: str, projected: bool, vgg: State, images: Tensor, tmp_path: Path
) -> None:
    convs, depth = (vgg, 512) if backbone == "vgg16" else (alexnet_convolutions(), 256)
    assign, _, centroids = netvlad_arrays(depth)
    prefix = "aggregation.0." if projected else "aggregation."
    state = prefixed(convs, "backbone.")
    state |= {f"{prefix}conv.weight": assign[:, :, None, None], f"{prefix}centroids": centroids}
    weight, bias = torch.randn(DIM, depth * CLUSTERS), torch.randn(DIM)
    if projected:
        state |= {"aggregation.1.weight": weight, "aggregation.1.bias": bias}
    path = benchmark_file(tmp_path / "best_model.pth", state)
    pools = (2, 7, 14, 21) if backbone == "vgg16" else (0, 3)
    expected = torch_netvlad(conv_map(convs, imagenet_pixels(images), pools), assign, centroids)
    expected = F.normalize(expected @ weight.T + bias, dim=1) if projected else expected
    model = load_published(path)
    assert model.name == f"{backbone}-netvlad-deep-vg-benchmark"
    assert_computes(model, images, expected, "deep-visual-geo-localization-benchmark")


REPEATS = {"resnet18": [2, 2, 2, 2], "resnet50": [3, 4, 6, 3], "resnet101": [3, 4, 23, 3]}


@pytest.mark.parametrize(
    "name",
    ["resnet18conv4", "resnet18conv5", "resnet50conv4", "resnet101conv4"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("resnet50conv5", "resnet101conv5")],
)
def test_the_benchmarks_resnets_compute_what_its_do(name: str, images: Tensor, tmp_path: Path) -> None:
    """Their modules are numbered: conv1 0, bn1 1, relu 2, maxpool 3, layer1 4, layer2 5, layer3 6, layer4 7."""
    kind, _, depth = name.partition("conv")
    repeats = REPEATS[kind][: int(depth) - 1]  # conv4_x is layer3
    base = random_tensors(resnet_tensors(repeats, bottleneck=kind != "resnet18"))
    numbers = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    state = {}
    for tensor_name, v in base.items():
        module, _, rest = tensor_name.partition(".")
        state[f"backbone.{numbers[module]}.{rest}"] = v
    exact = {n: v.double() for n, v in base.items()}
    features = resnet_twin(exact, imagenet_pixels(images).double(), repeats, convs=2 if kind == "resnet18" else 3)
    assign, _, centroids = netvlad_arrays(features.shape[1])
    state |= {"aggregation.conv.weight": assign[:, :, None, None], "aggregation.centroids": centroids}
    expected = torch_netvlad(features, assign.double(), centroids.double()).float()
    model = load_published(benchmark_file(tmp_path / "best_model.pth", state))
    assert (model.backbone.name, model.backbone.cut) == (kind, f"layer{int(depth) - 1}")
    assert model.name == f"{kind}-netvlad-deep-vg-benchmark"
    assert_computes(model, images, expected, "deep-visual-geo-localization-benchmark")


def test_an_unknown_resnet_of_the_benchmark_is_refused_by_its_blocks(tmp_path: Path) -> None:
    state = {"backbone.0.weight": torch.zeros(64, 3, 7, 7)}
    state |= {f"backbone.6.{i}.conv1.weight": torch.zeros(1) for i in range(6)}  # ResNet34: no third convolution
    state |= {"aggregation.conv.weight": torch.zeros(2, 256, 1, 1), "aggregation.centroids": torch.zeros(2, 256)}
    with pytest.raises(WeightsError, match="6 basic blocks, known are 2 basic"):
        load_published(benchmark_file(tmp_path / "w.pth", state))


@pytest.mark.parametrize(
    ("odd", "word"),
    [
        ({"aggregation.1.p": torch.ones(1)}, "GeM"),
        ({"aggregation.crn.acc_w.weight": torch.ones(1, 84, 1, 1)}, "CRN"),
        ({}, "aggregation.conv.weight"),
    ],
)
def test_what_the_benchmark_has_and_we_do_not_is_named(
    odd: State, word: str, vgg_shapes: State, load_tensors: Callable[..., PlaceModel]
) -> None:
    with pytest.raises(WeightsError, match=word):
        load_tensors(prefixed(vgg_shapes, "backbone.") | odd, kind="deep-vg-benchmark")


# --- odd tensors ------------------------------------------------------------------------------------------------------


def odd_versions(tensor: Tensor) -> dict[str, Tensor]:
    """What a file may hold instead of a tensor."""
    tensor = tensor.clone()
    nan = tensor.clone()
    nan.view(-1)[0] = float("nan")
    return {
        "scalar": torch.tensor(1.0),
        "flat": tensor.flatten(),
        "matrix": tensor.flatten(1) if tensor.ndim > 2 else tensor[None],
        "more dimensions": tensor[..., None],
        "empty": tensor[:0],
        "empty rows": tensor.new_zeros(len(tensor), 0, *tensor.shape[2:]),
        "many empty rows": tensor.new_zeros(10**9, 0, *tensor.shape[2:]),
        "fewer rows": tensor[:-1].clone(),
        "integers": tensor.long(),
        "truth": tensor > 0,
        "complex": tensor.to(torch.complex64),
        "sparse": tensor.to_sparse(),
        "no memory": tensor.to("meta"),
        "repeated": tensor.new_zeros(1).expand(10**5, *tensor.shape[1:-1], 10**6),
        "not finite": nan,
    }


ODD = list(odd_versions(torch.ones(2, 2)))
NAMES = [
    "encoder.0.weight",
    "encoder.10.bias",
    "pool.conv.weight",
    "pool.conv.bias",
    "pool.centroids",
    "backbone.0.weight",
    "aggregation.0.conv.weight",
    "aggregation.0.centroids",
    "aggregation.1.weight",
    "aggregation.1.bias",
]


@pytest.fixture(scope="module")
def alexnet_files() -> dict[str, State]:
    """Complete states, by the prefix of their backbone."""
    convs = alexnet_convolutions()
    assign, bias, centres = netvlad_arrays(256)
    pool = {"conv.weight": assign[:, :, None, None], "centroids": centres}
    fc = {"aggregation.1.weight": torch.randn(DIM, 256 * CLUSTERS), "aggregation.1.bias": torch.randn(DIM)}
    return {
        "encoder": prefixed(convs, "encoder.") | prefixed(pool | {"conv.bias": bias}, "pool."),
        "backbone": prefixed(convs, "backbone.") | prefixed(pool, "aggregation.0.") | fc,
    }


@pytest.mark.filterwarnings("ignore")  # torch's, about sparse tensors
@pytest.mark.parametrize(
    ("name", "odd"),
    [
        pytest.param(name, odd, marks=[pytest.mark.slow] if (i + j) % 5 else [])
        for i, name in enumerate(NAMES)
        for j, odd in enumerate(ODD)
    ],
)
def test_an_odd_tensor_is_named(name: str, odd: str, alexnet_files: dict[str, State], tmp_path: Path) -> None:
    state = dict(alexnet_files["encoder" if name.startswith(("encoder", "pool")) else "backbone"])
    if odd == "flat" and state[name].ndim == 1:
        pytest.skip("it is flat")
    state[name] = odd_versions(state[name])[odd]
    torch.save({"state_dict": state}, tmp_path / "w.pth")
    before = peak_bytes()
    with pytest.raises(WeightsError, match=r"weight|bias|centroids|assign|centres|_rebuild_"):
        load_published(tmp_path / "w.pth")
    assert peak_bytes() - before < 300_000_000


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("pca_layer.weight", torch.zeros(DIM)),
        ("pca_layer.weight", torch.zeros(0, 512 * CLUSTERS, 1, 1)),
        ("pca_layer.weight", torch.zeros(DIM, 7, 1, 1)),
        ("pca_layer.weight", torch.zeros(DIM, 512 * CLUSTERS, 1, 1, dtype=torch.int64)),
        ("pca_layer.bias", torch.zeros(())),
        ("pca_layer.bias", torch.zeros(DIM, 1)),
        ("pca_layer.bias", torch.full((DIM,), float("nan"))),
    ],
)
def test_an_odd_whitening_of_openibl_is_named(
    name: str, odd: Tensor, vgg_shapes: State, load_tensors: Callable[..., PlaceModel]
) -> None:
    assign, _, centres = netvlad_arrays()
    state = openibl_state(vgg_shapes, assign, centres)
    state |= {"pca_layer.weight": torch.randn(DIM, 512 * CLUSTERS, 1, 1), "pca_layer.bias": torch.randn(DIM), name: odd}
    with pytest.raises(WeightsError, match=r"whitening|pca_layer"):
        load_tensors(state)


@pytest.mark.parametrize(
    "odd",
    [
        {"U": np.zeros((1536, 8)), "lams": np.ones(7), "mu": np.zeros((1536, 1))},
        {"U": np.zeros((1536, 8)), "lams": np.zeros(8), "mu": np.zeros((1536, 1))},
        {"U": np.zeros((1536, 8)), "lams": -np.ones(8), "mu": np.zeros((1536, 1))},
        {"U": np.zeros(1536), "lams": np.ones(8), "mu": np.zeros((1536, 1))},
        {"U": np.zeros((1536, 0)), "lams": np.ones(0), "mu": np.zeros((1536, 1))},
        {"U": np.zeros((1536, 8)), "lams": np.ones(8), "mu": np.zeros((9, 1))},
        {"U": b"text", "lams": np.ones(8), "mu": np.zeros((1536, 1))},
        {"U": np.zeros((1536, 8), dtype=complex), "lams": np.ones(8), "mu": np.zeros((1536, 1))},
        {"U": np.full((1536, 8), np.nan), "lams": np.ones(8), "mu": np.zeros((1536, 1))},
        {"U": (1536, 10**9), "lams": np.ones(8), "mu": np.zeros((1536, 1))},  # declared, not stored
    ],
)
def test_odd_pca_parameters_are_explained(
    odd: dict[str, Any], vgg_shapes: State, load_tensors: Callable[..., PlaceModel], tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "pca.h5", "w") as file:
        for name, value in odd.items():
            if isinstance(value, tuple):
                file.create_dataset(name, value, dtype="f4", chunks=(16, 16))
            else:
                file[name] = value
    with pytest.raises(WeightsError, match=r"pca\.h5"):
        load_tensors(openibl_state(vgg_shapes, *netvlad_arrays()[::2]), pca=tmp_path / "pca.h5")


ODD_ARRAYS = {
    "matrix": np.zeros((3, 3)),
    "complex": np.zeros((3, 3, 3, 64), dtype=complex),
    "empty": np.zeros((0, 3, 3, 64)),
    "not finite": np.full((3, 3, 3, 64), np.nan),
    "text": "text",
    "cell": cell(np.zeros(3), "text"),
    "struct": {"a": 3},
    "number": np.float64(3),
    "empty cell": cell(),
}
PLACES = ["kernel", "bias", "assignment", "centres", "whitening", "offset", "mean"]


@pytest.mark.parametrize(
    ("where", "odd"),
    [
        pytest.param(where, odd, marks=[pytest.mark.slow] if (i + j) % 9 else [])  # each file has 59 MB
        for i, where in enumerate(PLACES)
        for j, odd in enumerate(ODD_ARRAYS)
        if (where, odd) != ("mean", "matrix")  # of three columns: a mean image
    ],
)
def test_an_odd_array_of_matconvnet_is_explained(where: str, odd: str, vgg: State, tmp_path: Path) -> None:
    array = ODD_ARRAYS[odd]
    assign, _, centres = netvlad_arrays()
    vlad: list[Any] = [as_matlab(assign), as_matlab(-centres)]
    white: list[Any] = [np.zeros((1, 1, 512 * CLUSTERS, DIM), dtype=np.float32), np.zeros((DIM, 1), dtype=np.float32)]
    mean: Any = np.array([123.7, 116.8, 103.9], dtype=np.float32)[None, None]
    first = [vgg["0.weight"].numpy().transpose(2, 3, 1, 0), vgg["0.bias"].numpy()]
    lists = {"kernel": (first, 0), "bias": (first, 1), "assignment": (vlad, 0), "centres": (vlad, 1)}
    lists |= {"whitening": (white, 0), "offset": (white, 1)}
    if where in lists:
        arrays, i = lists[where]
        arrays[i] = array
    path = matconvnet_file(tmp_path / "w.mat", {}, vlad, white, array if where == "mean" else mean, first=first)
    with pytest.raises(WeightsError, match=r"w\.mat"):
        load_published(path)


def test_damaged_files_give_no_other_error(tmp_path: Path) -> None:
    """Single bytes changed anywhere in the small parts of weights files."""
    rng = np.random.default_rng(3)
    torch.save({"state_dict": {"encoder.0.weight": torch.zeros(3)}, "recalls": np.zeros(3)}, tmp_path / "zip.pth")
    torch.save({"a": torch.zeros(3)}, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    layers = cell({"weights": cell(np.zeros(3), np.ones((2, 2)))}, {"name": "relu"})
    for name, packed in (("plain.mat", False), ("packed.mat", True)):
        pytest.importorskip("scipy.io").savemat(tmp_path / name, {"net": {"layers": layers}}, do_compression=packed)
    for path in sorted(tmp_path.iterdir()):
        good = path.read_bytes()
        for _ in range(30):
            bad = bytearray(good)
            for at in rng.integers(len(bad), size=rng.integers(1, 4)):
                bad[at] = rng.integers(256)
            path.write_bytes(bad)
            before = peak_bytes()
            with pytest.raises(WeightsError):
                load_published(path)
            assert peak_bytes() - before < 300_000_000


# --- files that unpack to far more than they are ----------------------------------------------------------------------

LOAD = """
import re, sys
from sareloc.errors import WeightsError
from sareloc.models import load_published
# not ru_maxrss, which a child process inherits from its parent
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
before = peak()
for path in sys.argv[1:]:
    try:
        load_published(path)
    except WeightsError as refused:
        print("error:", refused)
print("MB:", (peak() - before) // 1000)
"""


def test_files_that_unpack_to_far_more_are_refused_with_little_memory(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc to read the memory from")
    torch.save({"state_dict": {"encoder.0.weight": torch.zeros(1)}}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain:
        entries = {name: plain.read(name) for name in plain.namelist()}
    # the storage of 4 bytes becomes one of 200 MB of zeros, deflated to 0.9 MB
    zeros = 50_000_000
    pickled = entries["plain/data.pkl"].replace(b"K\x01t", b"J" + zeros.to_bytes(4, "little") + b"t", 1)
    bomb = tmp_path / "bomb.pth.tar"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            if not name.endswith("data/0"):
                packed.writestr(name, pickled if name.endswith("data.pkl") else content, zipfile.ZIP_STORED)
        with packed.open("plain/data/0", "w") as entry:
            for _ in range(100):
                entry.write(bytes(4 * zeros // 100))
    mat = tmp_path / "bomb.mat"
    packer = zlib.compressobj(1)
    head = (14).to_bytes(4, "little") + (200_000_000).to_bytes(4, "little")
    flags = bytes.fromhex("06000000 08000000 06000000 00000000 05000000 08000000 01000000 0046c323 01000300 6e657400")
    body = packer.compress(head + flags + (9).to_bytes(4, "little") + (199_999_000).to_bytes(4, "little"))
    body += b"".join(packer.compress(bytes(2_000_000)) for _ in range(100)) + packer.flush()
    start = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    mat.write_bytes(start + (15).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body)
    assert bomb.stat().st_size + mat.stat().st_size < 10e6
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(bomb), str(mat)], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.count("error:") == 2, done.stdout
    assert int(done.stdout.rpartition("MB:")[2]) < 100, done.stdout


# --- a stored whitening layer ---------------------------------------------------------------------------------------


def test_a_whitening_layer_becomes_mean_and_projection() -> None:
    directions = torch.linalg.qr(torch.randn(60, 9)).Q.T / (torch.rand(9, 1) + 0.01)
    for weight in (directions, torch.randn(9, 60), torch.randn(300, 400)):
        bias = torch.randn(len(weight))
        whitening = whitening_from_linear(weight, bias, "layer")
        x = torch.randn(5, weight.shape[1])
        torch.testing.assert_close(whitening(x), unit(x @ weight.T + bias), rtol=0, atol=1e-5)
    assert whitening_from_linear(weight, 0 * bias, "layer").mean.abs().max() == 0


def test_a_whitening_layer_that_no_mean_can_give_is_refused() -> None:
    weight = torch.randn(1, 6).repeat(2, 1)
    with pytest.raises(WeightsError, match="linearly dependent"):
        whitening_from_linear(weight, torch.tensor([1.0, -1.0]), "layer")
    with pytest.raises(WeightsError, match=r"2 rows .*\(3,\)"):
        whitening_from_linear(weight, torch.ones(3), "layer")
