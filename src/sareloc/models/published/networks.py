"""Networks published for PyTorch: their tensors, by name, as models.

NetVLAD networks: OpenIBL, pytorch-NetVlad, Patch-NetVLAD, deep-visual-geo-localization-benchmark. All of them normalize
locations and clusters with torch's `normalize` (the norm "clamped").

Since 2022: CosPlace, EigenPlaces, MixVPR, BoQ, SALAD, MegaLoc, and DINOv2 alone or with VLAD. The definitions are
public: gmberton/CosPlace, gmberton/EigenPlaces, amaralibey/MixVPR, amaralibey/Bag-of-Queries, serizba/salad,
gmberton/MegaLoc, facebookresearch/dinov2, AnyLoc/AnyLoc. Pixels have ImageNet's statistics in all of them. The authors
of BoQ and AnyLoc resize images bicubically, the others bilinearly (MixVPR in its training and validation; its
demonstration script is bicubic).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.errors import WeightsError, need
from sareloc.models.aggregation import Option
from sareloc.models.backbones import VITS, Backbone
from sareloc.models.checkpoint import existing_file, listed
from sareloc.models.dinov2 import PATCH_PX
from sareloc.models.place_model import PlaceModel, Whitening
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.weights_files import (
    assemble_model,
    empty_backbone,
    float_tensor,
    is_finite,
    netvlad_options,
    read_tensor,
    whitening_from_linear,
)

Tensors = Mapping[str, Tensor]
MATCONVNET_MEAN = (123.68, 116.779, 103.939)  # of RGB 0..255: OpenIBL trains from MatConvNet's VGG16
BLOCKS_IN_LAYER3 = {
    (2, "basic"): "resnet18",
    (6, "bottleneck"): "resnet50",
    (23, "bottleneck"): "resnet101",
    (36, "bottleneck"): "resnet152",
}
RESNET_MODULES = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


def load_openibl(tensors: Tensors, path: str | Path, pca: str | Path | None = None) -> PlaceModel:
    """VGG16-NetVLAD as OpenIBL stores it: its `vgg16_netvlad.pth`, or a checkpoint of its training.

    Tensors: `base_model.base.N.*`, `net_vlad.conv.weight` (K, D, 1, 1), `net_vlad.centroids` (K, D) and, in the
    released file, `pca_layer.weight` (dim, K D, 1, 1) with its bias. A training checkpoint has no whitening; OpenIBL's
    test script writes one to `pca_params_*.h5` (U, lams, mu): give that path as `pca`.
    """
    known = (*_vlad_names("net_vlad."), "pca_layer.weight", "pca_layer.bias")
    refuse_unknown(tensors, ("base_model.base.",), known, path)
    whitening = _whitening_of_layer(tensors, "pca_layer.", path, dims=4)
    if pca is not None:
        if whitening is not None:
            raise WeightsError(f"{path} has a whitening of its own (pca_layer): leave the file of PCA parameters out")
        whitening = _whitening_of_h5(existing_file(pca))
    convolutions = numbered_features(tensors, "base_model.base.")
    vlad = _vlad(tensors, "net_vlad.", path)
    preprocess = Preprocess(mean=MATCONVNET_MEAN, std=(1.0, 1.0, 1.0), scale=255.0)
    return assemble_model(
        empty_backbone("vgg16"), convolutions, "netvlad", netvlad_options(vlad, "clamped"), vlad, preprocess, path,
        whitening=whitening, family="netvlad-openibl",
    )  # fmt: skip


def load_pytorch_netvlad(tensors: Tensors, path: str | Path) -> PlaceModel:
    """VGG16- or AlexNet-NetVLAD of pytorch-NetVlad (`checkpoint.pth.tar`) and Patch-NetVLAD (`*_WPCA512.pth.tar`).

    Tensors: `encoder.N.*`, `pool.conv.weight` (K, D, 1, 1), `pool.centroids` (K, D) and, if trained with --vladv2,
    `pool.conv.bias` (K). Patch-NetVLAD appends a whitening, `WPCA.0.weight` (dim, K D, 1, 1) with its bias; the model
    gives its global descriptor. Pixels have ImageNet's statistics.
    """
    refuse_unknown(tensors, ("encoder.",), (*_vlad_names("pool."), "WPCA.0.weight", "WPCA.0.bias"), path)
    first = float_tensor(tensors, "encoder.0.weight", path, dims=4)
    base = empty_backbone("alexnet" if first.shape[-1] == 11 else "vgg16")
    whitening = _whitening_of_layer(tensors, "WPCA.0.", path, dims=4)
    project = "pytorch" if whitening is None else "patch-netvlad"
    convolutions, vlad = numbered_features(tensors, "encoder."), _vlad(tensors, "pool.", path)
    return assemble_model(
        base, convolutions, "netvlad", netvlad_options(vlad, "clamped"), vlad, Preprocess(), path,
        whitening=whitening, family=f"netvlad-{project}",
    )  # fmt: skip


def load_deep_vg_benchmark(tensors: Tensors, path: str | Path) -> PlaceModel:
    """A NetVLAD network of deep-visual-geo-localization-benchmark: its `best_model.pth` or `last_model.pth`.

    Backbones vgg16, alexnet, resnet18, 50 and 101, the ResNets up to conv4 (layer3) or conv5 (layer4). Tensors:
    `backbone.N.*`, where the modules of a ResNet are numbered in order, `aggregation.conv.weight` (K, D, 1, 1),
    `aggregation.centroids` (K, D). With --fc_output_dim these are `aggregation.0.*`, and `aggregation.1.weight`
    (dim, K D) with its bias is the whitening. Pixels have ImageNet's statistics. Raises WeightsError for its other
    aggregations: a GeM file does not record where --l2 normalises, and its CRN differs from the one here.
    """
    prefix = "aggregation.0." if "aggregation.0.conv.weight" in tensors else "aggregation."
    for name, kind in (("p", "GeM"), ("acc_w.weight", "CRN")):
        if any(t.startswith("aggregation.") and t.endswith(f".{name}") for t in tensors):
            raise WeightsError(f"{path} is a {kind} network of the benchmark: only its NetVLAD networks can be opened")
    whitened = ("aggregation.1.weight", "aggregation.1.bias") if prefix == "aggregation.0." else ()
    refuse_unknown(tensors, ("backbone.",), (*_vlad_names(prefix), *whitened), path)
    base, convolutions = _numbered_backbone(tensors, "backbone.", path, {3: "vgg16", 11: "alexnet"})
    whitening = _whitening_of_layer(tensors, "aggregation.1.", path, dims=2)
    vlad = _vlad(tensors, prefix, path)
    return assemble_model(
        base, convolutions, "netvlad", netvlad_options(vlad, "clamped"), vlad, Preprocess(), path,
        whitening=whitening, family="netvlad-deep-vg-benchmark",
    )  # fmt: skip


def refuse_unknown(tensors: Tensors, prefixes: tuple[str, ...], names: tuple[str, ...], path: str | Path) -> None:
    """Raises WeightsError, which names them, if there are tensors without these prefixes and with other names.

    A network that has tensors of an unknown part computes something else than the family.
    """
    unknown = [name for name in tensors if not name.startswith(prefixes) and name not in names]
    if unknown:
        raise WeightsError(
            f"{path} has unknown tensors beside {', '.join(f'{prefix}*' for prefix in prefixes)}: "
            f"{listed(unknown)}. It is a different network, or one with further layers"
        )


def _numbered_backbone(
    tensors: Tensors, prefix: str, path: str | Path, features: Mapping[int, str]
) -> tuple[Backbone, dict[str, Tensor]]:
    """The backbone whose modules are numbered in order under this prefix, and its tensors under torchvision's names.

    features: the names of VGG16 and AlexNet, by the sides of their first kernels; with another kernel it is a ResNet.
    """
    side = float_tensor(tensors, f"{prefix}0.weight", path, dims=4).shape[-1]
    if side in features:
        return empty_backbone(features[side]), numbered_features(tensors, prefix)
    layers = numbered_resnet(tensors, prefix)
    return _resnet_of(layers, path), layers


def _resnet_of(layers: Tensors, path: str | Path) -> Backbone:
    """The ResNet with these tensors under torchvision's names, by the blocks of its third layer."""
    blocks = len({name.split(".")[1] for name in layers if name.startswith("layer3.")})
    kind = "bottleneck" if "layer3.0.conv3.weight" in layers else "basic"
    if (blocks, kind) not in BLOCKS_IN_LAYER3:
        known = ", ".join(f"{count} {of} ({name})" for (count, of), name in BLOCKS_IN_LAYER3.items())
        raise WeightsError(f"{path}: layer3 of the ResNet has {blocks} {kind} blocks, known are {known}")
    deep = any(name.startswith("layer4.") for name in layers)
    return empty_backbone(BLOCKS_IN_LAYER3[blocks, kind], "layer4" if deep else "layer3")


def numbered_resnet(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors of a ResNet whose modules are numbered in order, under torchvision's names; others keep theirs."""
    renamed = {}
    for name, tensor in under(tensors, prefix).items():
        number, _, rest = name.partition(".")
        renamed[f"{RESNET_MODULES[number]}.{rest}" if number in RESNET_MODULES else f"{prefix}{name}"] = tensor
    return renamed


def numbered_features(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors of a VGG16 or AlexNet whose modules are numbered in order, under torchvision's names."""
    return {f"features.{name}": tensor for name, tensor in under(tensors, prefix).items()}


def under(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors with this prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _vlad_names(prefix: str) -> tuple[str, ...]:
    return f"{prefix}conv.weight", f"{prefix}conv.bias", f"{prefix}centroids"


def _vlad(tensors: Tensors, prefix: str, path: str | Path) -> dict[str, Tensor]:
    assign = float_tensor(tensors, f"{prefix}conv.weight", path, dims=4).flatten(1)  # (K, D, 1, 1) -> (K, D)
    vlad = {"assign": assign, "centres": float_tensor(tensors, f"{prefix}centroids", path, dims=2)}
    if f"{prefix}conv.bias" in tensors:
        vlad["bias"] = tensors[f"{prefix}conv.bias"]
    return vlad


def _whitening_of_layer(tensors: Tensors, prefix: str, path: str | Path, *, dims: int) -> Whitening | None:
    """From a linear layer (dims=2) or a 1x1 convolution (dims=4) with this prefix; None: there is no such layer."""
    if not any(name.startswith(prefix) for name in tensors):
        return None
    weight = float_tensor(tensors, f"{prefix}weight", path, dims=dims).flatten(1)
    return whitening_from_linear(weight, float_tensor(tensors, f"{prefix}bias", path, dims=1), path)


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


LONGEST_PX = 640  # CosPlace and EigenPlaces describe photos in their own size; those of the field have at most this
MIXVPR_PX_PER_LOCATION = 16
BOQ_RESNET_PX, TRANSFORMER_PX = 384, 322
TRANSFORMER_PIXELS = Preprocess(resize=(TRANSFORMER_PX, TRANSFORMER_PX))
ANYLOC_PX = 1024
ANYLOC_CUT = "block31-value"
COSPLACE_HEAD = {"1.p": "gem.p", "3.weight": "linear.weight", "3.bias": "linear.bias"}


def load_cosplace(tensors: Tensors, path: str | Path) -> PlaceModel:
    """CosPlace or EigenPlaces: their files have the same structure, for every backbone and dimension.

    Tensors: `backbone.N.*`, the modules of a ResNet or VGG16 numbered in order, `aggregation.1.p` (1,),
    `aggregation.3.weight` (dim, C) with its bias.
    """
    refuse_unknown(tensors, ("backbone.", "aggregation."), (), path)
    base, layers = _numbered_backbone(tensors, "backbone.", path, {3: "vgg16"})
    head = {COSPLACE_HEAD.get(name, name): tensor for name, tensor in under(tensors, "aggregation.").items()}
    rows = len(float_tensor(tensors, "aggregation.3.weight", path, dims=2))
    return assemble_model(base, layers, "cosplace", {"out_dim": rows}, head, Preprocess(resize=LONGEST_PX), path)


def load_mixvpr(tensors: Tensors, path: str | Path) -> PlaceModel:
    """MixVPR: `backbone.model.*` with torchvision's names, `aggregator.mix.N.mix.*`, `channel_proj`, `row_proj`.

    The published files have a bias in `row_proj`; in the first version of the authors' code it had none.
    A file has the number of locations of the feature map, but not its sides: the map is square.
    """
    refuse_unknown(tensors, ("backbone.model.", "aggregator."), (), path)
    layers, head = under(tensors, "backbone.model."), under(tensors, "aggregator.")
    base = _resnet_of(layers, path)
    rows, locations = float_tensor(head, "row_proj.weight", path, dims=2).shape
    side = math.isqrt(locations)
    if side**2 != locations:
        raise WeightsError(f"{path}: a MixVPR for square feature maps is expected, found one for {locations} locations")
    inner = len(float_tensor(head, "mix.0.mix.1.weight", path, dims=2))
    options: dict[str, Option] = {
        "height": side,
        "width": side,
        "out_channels": len(float_tensor(head, "channel_proj.weight", path, dims=2)),
        "depth": _count(head, r"mix\.(\d+)\.mix\.0\.weight"),
        "mlp_ratio": max(1, inner // locations),
        "rows": rows,
        "row_bias": "row_proj.bias" in head,
    }
    size = side * MIXVPR_PX_PER_LOCATION * (2 if base.cut == "layer4" else 1)
    return assemble_model(base, layers, "mixvpr", options, head, Preprocess(resize=(size, size)), path)


def load_boq(tensors: Tensors, path: str | Path) -> PlaceModel:
    """BoQ on a ResNet, `backbone.net.N.*`, or on DINOv2 before its last normalization, `backbone.dino.*`.

    Head: `aggregator.proj_c`, `norm_input`, `boqs.N.*` with the names of torch's attention modules, `fc`. Attention has
    one head for 64 channels.
    """
    head = under(tensors, "aggregator.")
    layers = under(tensors, "backbone.dino.")
    refuse_unknown(tensors, ("backbone.dino." if layers else "backbone.net.", "aggregator."), (), path)
    if layers:
        base = _transformer_of(layers, path, cut="last block")
        size = TRANSFORMER_PX
    else:
        layers = numbered_resnet(tensors, "backbone.net.")
        base, size = _resnet_of(layers, path), BOQ_RESNET_PX
    options: dict[str, Option] = {
        "width": len(float_tensor(head, "proj_c.weight", path, dims=4)),
        "queries": float_tensor(head, "boqs.0.queries", path, dims=3).shape[1],
        "depth": _count(head, r"boqs\.(\d+)\.queries"),
        "rows": len(float_tensor(head, "fc.weight", path, dims=2)),
    }
    pixels = Preprocess(resize=(size, size), interpolation="bicubic")
    return assemble_model(base, layers, "boq", options, head, pixels, path)


def load_salad(tensors: Tensors, path: str | Path) -> PlaceModel:
    """SALAD on DINOv2: `backbone.model.*` with the authors' names of DINOv2, `aggregator.*`."""
    refuse_unknown(tensors, ("backbone.model.", "aggregator."), (), path)
    layers, head = under(tensors, "backbone.model."), under(tensors, "aggregator.")
    base = _transformer_of(layers, path)
    return assemble_model(base, layers, "salad", _salad_options(head, path), head, TRANSFORMER_PIXELS, path)


def load_megaloc(tensors: Tensors, path: str | Path) -> PlaceModel:
    """MegaLoc: `backbone.model.*` (megaloc.torch) or `backbone.*` (safetensors), `aggregator.agg.*`, `.linear.*`."""
    backbone = "backbone.model." if under(tensors, "backbone.model.") else "backbone."
    refuse_unknown(tensors, (backbone, "aggregator.agg.", "aggregator.linear."), (), path)
    layers = under(tensors, backbone)
    salad, linear = under(tensors, "aggregator.agg."), under(tensors, "aggregator.linear.")
    rows = len(float_tensor(tensors, "aggregator.linear.weight", path, dims=2))
    options = {**_salad_options(salad, path), "out_dim": rows}
    head = salad | {f"linear.{name}": tensor for name, tensor in linear.items()}
    base = _transformer_of(layers, path)
    return assemble_model(base, layers, "megaloc", options, head, TRANSFORMER_PIXELS, path)


def load_dinov2(tensors: Tensors, path: str | Path) -> PlaceModel:
    """DINOv2 and its class token: the authors' file, or Hugging Face's."""
    return assemble_model(_transformer_of(tensors, path), tensors, "cls", {}, {}, TRANSFORMER_PIXELS, path)


def load_anyloc(tensors: Tensors, path: str | Path, centres: str | Path, cut: str = ANYLOC_CUT) -> PlaceModel:
    """AnyLoc: DINOv2's file, and its VLAD centres `c_centers.pt`, (K, C), of the values of attention at the cut."""
    base = _transformer_of(tensors, path, cut=cut)
    vocabulary = read_tensor(centres)
    if vocabulary.ndim != 2 or vocabulary.shape[1] != base.channels or not len(vocabulary):
        raise WeightsError(
            f"{centres}: expected VLAD centres (K, {base.channels}) for {base.name}, found {tuple(vocabulary.shape)}"
        )
    options: dict[str, Option] = {"clusters": len(vocabulary)}
    head, pixels = {"centres": vocabulary.float()}, Preprocess(resize=ANYLOC_PX, interpolation="bicubic")
    return assemble_model(base, tensors, "vlad", options, head, pixels, path, family="anyloc")


def _count(tensors: Tensors, pattern: str) -> int:
    """How many numbers there are at the group of this pattern; at least 1."""
    return max(1, len({match[1] for name in tensors if (match := re.fullmatch(pattern, name))}))


def _transformer_of(tensors: Tensors, path: str | Path, cut: str = "norm") -> Backbone:
    """The DINOv2 with these tensors of the authors' or Hugging Face's file, recognized by dimension and registers.

    cut: as in `make_backbone`, or "last block". Raises WeightsError if the patches or the dimension are others.
    """
    names = ("patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight")
    found = [name for name in tensors if name.endswith(names)]
    patch = float_tensor(tensors, found[0] if found else names[0], path, dims=4)
    dim, side = len(patch), patch.shape[-1]
    if side != PATCH_PX:
        raise WeightsError(f"{path}: patches of {side} px, expected {PATCH_PX}, as in DINOv2")
    registered = [name for name in tensors if name.endswith("register_tokens")]
    registers = float_tensor(tensors, registered[0], path, dims=3).shape[1] if registered else 0
    fitting = [name for name, vit in VITS.items() if (vit.dim, vit.registers) == (dim, registers)]
    if not fitting:
        known = ", ".join(f"{vit.dim} ({name})" for name, vit in VITS.items())
        raise WeightsError(f"{path}: a transformer of dimension {dim} with {registers} registers, known are {known}")
    if cut == "last block":
        cut = f"block{VITS[fitting[0]].depth - 1}"
    return empty_backbone(fitting[0], cut=cut)


def _salad_options(head: Tensors, path: str | Path) -> dict[str, Option]:
    return {
        "clusters": len(float_tensor(head, "score.3.weight", path, dims=4)),
        "cluster_dim": len(float_tensor(head, "cluster_features.3.weight", path, dims=4)),
        "token_dim": len(float_tensor(head, "token_features.2.weight", path, dims=2)),
        "hidden": len(float_tensor(head, "token_features.0.weight", path, dims=2)),
    }
