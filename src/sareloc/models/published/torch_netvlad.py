"""NetVLAD networks trained in PyTorch: OpenIBL, pytorch-NetVlad and deep-visual-geo-localization-benchmark.

All three normalize locations and clusters with torch's `normalize` (the norm "clamped").
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.errors import WeightsError, need
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.weights_files import (
    assemble_model,
    existing_file,
    float_tensor,
    is_finite,
    whitening_from_linear,
)
from sareloc.models.whitening import Whitening

MATCONVNET_MEAN = (123.68, 116.779, 103.939)  # of RGB 0..255: OpenIBL trains from MatConvNet's VGG16
RESNET_MODULES = {0: "conv1", 1: "bn1", 4: "layer1", 5: "layer2", 6: "layer3", 7: "layer4"}


def load_openibl(tensors: Mapping[str, Tensor], path: str | Path, pca: str | Path | None = None) -> PlaceModel:
    """VGG16-NetVLAD as OpenIBL stores it: its `vgg16_netvlad.pth`, or a checkpoint of its training.

    Tensors: `base_model.base.N.*`, `net_vlad.conv.weight` (K, D, 1, 1), `net_vlad.centroids` (K, D) and, in the
    released file, `pca_layer.weight` (dim, K D, 1, 1) with its bias. A training checkpoint has no whitening; OpenIBL's
    test script writes one to `pca_params_*.h5` (U, lams, mu): give that path as `pca`.
    """
    whitening = None
    if pca is not None:
        whitening = _whitening_of_h5(existing_file(pca))
    elif "pca_layer.weight" in tensors:
        weight = float_tensor(tensors, "pca_layer.weight", path, dims=4).flatten(1)
        whitening = whitening_from_linear(weight, float_tensor(tensors, "pca_layer.bias", path, dims=1), path)
    convolutions = _renamed(tensors, "base_model.base.")
    vlad = _vlad(tensors, "net_vlad.", path)
    preprocess = Preprocess(mean=MATCONVNET_MEAN, std=(1.0, 1.0, 1.0), scale=255.0)
    return assemble_model(
        "vgg16-netvlad-openibl", preprocess, "vgg16", convolutions, vlad, whitening, path, norm="clamped"
    )


def load_pytorch_netvlad(tensors: Mapping[str, Tensor], path: str | Path) -> PlaceModel:
    """VGG16- or AlexNet-NetVLAD as pytorch-NetVlad stores it: `checkpoint.pth.tar`, `model_best.pth.tar`.

    Tensors: `encoder.N.*`, `pool.conv.weight` (K, D, 1, 1), `pool.centroids` (K, D) and, if trained with --vladv2,
    `pool.conv.bias` (K). Pixels have ImageNet's statistics; there is no whitening.
    """
    first = float_tensor(tensors, "encoder.0.weight", path, dims=4)
    backbone = "alexnet" if first.shape[-1] == 11 else "vgg16"
    convolutions, vlad = _renamed(tensors, "encoder."), _vlad(tensors, "pool.", path)
    return assemble_model(
        f"{backbone}-netvlad-pytorch", Preprocess(), backbone, convolutions, vlad, None, path, norm="clamped"
    )


def load_deep_vg_benchmark(tensors: Mapping[str, Tensor], path: str | Path) -> PlaceModel:
    """A NetVLAD network of deep-visual-geo-localization-benchmark: its `best_model.pth` or `last_model.pth`.

    Backbones vgg16, alexnet, resnet18 and resnet50, the latter two up to conv4 (layer3) or conv5 (layer4). Tensors:
    `backbone.N.*`, where the modules of a ResNet are numbered in order, `aggregation.conv.weight` (K, D, 1, 1),
    `aggregation.centroids` (K, D). With --fc_output_dim these are `aggregation.0.*`, and `aggregation.1.weight`
    (dim, K D) with its bias is the whitening. Pixels have ImageNet's statistics. Raises WeightsError for its other
    aggregations: a GeM file does not record where --l2 normalises, and its CRN differs from the one here.
    """
    prefix = "aggregation.0." if "aggregation.0.conv.weight" in tensors else "aggregation."
    for name, kind in (("p", "GeM"), ("acc_w.weight", "CRN")):
        if any(t.startswith("aggregation.") and t.endswith(f".{name}") for t in tensors):
            raise WeightsError(f"{path} is a {kind} network of the benchmark: only its NetVLAD networks can be opened")
    backbone, cut = _benchmark_backbone(tensors, path)
    numbered = numbered_resnet if backbone.startswith("resnet") else _renamed
    convolutions = numbered(tensors, "backbone.")
    whitening = None
    if "aggregation.1.weight" in tensors:
        weight = float_tensor(tensors, "aggregation.1.weight", path, dims=2)
        whitening = whitening_from_linear(weight, float_tensor(tensors, "aggregation.1.bias", path, dims=1), path)
    name = f"{backbone}-netvlad-deep-vg-benchmark"
    vlad = _vlad(tensors, prefix, path)
    return assemble_model(name, Preprocess(), backbone, convolutions, vlad, whitening, path, norm="clamped", cut=cut)


def _benchmark_backbone(tensors: Mapping[str, Tensor], path: str | Path) -> tuple[str, str | None]:
    """Name and cut of the backbone, detected from its tensors."""
    kernel = float_tensor(tensors, "backbone.0.weight", path, dims=4).shape[-1]
    if kernel in (3, 11):
        return "vgg16" if kernel == 3 else "alexnet", None
    deep = any(name.startswith("backbone.7.") for name in tensors)
    return "resnet50" if "backbone.4.0.conv3.weight" in tensors else "resnet18", "layer4" if deep else "layer3"


def numbered_resnet(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of a ResNet whose modules are numbered in order, under torchvision's names."""
    parts = {f"{prefix}{number}.": f"{module}." for number, module in RESNET_MODULES.items()}
    return {
        module + name.removeprefix(number): tensor
        for name, tensor in tensors.items()
        for number, module in parts.items()
        if name.startswith(number)
    }


def _renamed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"features.{k.removeprefix(prefix)}": v for k, v in tensors.items() if k.startswith(prefix)}


def _vlad(tensors: Mapping[str, Tensor], prefix: str, path: str | Path) -> dict[str, Tensor]:
    assign = float_tensor(tensors, f"{prefix}conv.weight", path, dims=4).flatten(1)  # (K, D, 1, 1) -> (K, D)
    vlad = {"assign": assign, "centres": float_tensor(tensors, f"{prefix}centroids", path, dims=2)}
    if f"{prefix}conv.bias" in tensors:
        vlad["bias"] = tensors[f"{prefix}conv.bias"]
    return vlad


def _whitening_of_h5(path: Path) -> Whitening:
    """From U (D, n) with eigenvectors as columns, eigenvalues lams (n,), mean mu (D, 1); largest eigenvalue first."""
    h5py = need("h5py", "hdf5")
    try:
        with h5py.File(path, "r") as file:
            u, variances, mean = (_read_dataset(h5py, file, name, path) for name in ("U", "lams", "mu"))
    except WeightsError:
        raise
    except Exception as wrong:  # damaged files raise several types
        raise WeightsError(f"{path} has no PCA parameters of OpenIBL (U, lams, mu in HDF5): {wrong}") from wrong
    fits = u.ndim == 2 and u.size and variances.shape == u.shape[1:] and mean.size == len(u)
    if not fits or not all(is_finite(torch.from_numpy(a)) for a in (u, variances, mean)) or not (variances > 0).all():
        raise WeightsError(
            f"{path}: U must be (D, n), lams (n,) positive and mu (D, 1), all finite; "
            f"found shapes {u.shape}, {variances.shape} and {mean.shape}"
        )
    strongest = np.argsort(-variances, kind="stable")
    u /= np.sqrt(variances)
    rows = np.ascontiguousarray(u.T[strongest])
    return Whitening(torch.from_numpy(mean.ravel()), torch.from_numpy(rows))


def _read_dataset(h5py: Any, file: Any, name: str, path: Path) -> npt.NDArray[np.float32]:
    """An HDF5 dataset of floats, as OpenIBL writes them.

    Raises WeightsError if it is a link to another file, compressed, in other files, or larger than the file.
    """
    linked = file.get(name, getlink=True)
    dataset = file.get(name) if isinstance(linked, h5py.HardLink) else None
    stored = (
        isinstance(dataset, h5py.Dataset)
        and dataset.dtype.kind == "f"
        and not (dataset.is_virtual or dataset.external)
        and dataset.id.get_create_plist().get_nfilters() == 0
        and 4 * dataset.size <= path.stat().st_size
    )
    if not stored:
        raise WeightsError(f"{path}: {name} is not an array of floats that is stored in the file, not compressed")
    return np.asarray(dataset, dtype=np.float32)
