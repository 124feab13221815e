"""Networks published since 2022: CosPlace, EigenPlaces, MixVPR, BoQ, SALAD, MegaLoc, and DINOv2 alone or with VLAD.

The definitions are public: gmberton/CosPlace, gmberton/EigenPlaces, amaralibey/MixVPR, amaralibey/Bag-of-Queries,
serizba/salad, gmberton/MegaLoc, facebookresearch/dinov2, AnyLoc/AnyLoc. Pixels have ImageNet's statistics in all of
them. The authors of BoQ and AnyLoc resize images bicubically, the others bilinearly (MixVPR in its training and
validation; its demonstration script is bicubic).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sareloc.errors import ArgumentError, WeightsError
from sareloc.models.aggregation import Option, make_aggregation
from sareloc.models.backbones import VITS, Backbone, make_backbone
from sareloc.models.backbones.dinov2 import PATCH_PX
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.torch_netvlad import (
    find_resnet,
    numbered_features,
    numbered_resnet,
    refuse_unknown,
    under,
)
from sareloc.models.published.weights_files import check_fit, float_tensor, load_strictly, read_tensor

Tensors = Mapping[str, Tensor]
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
    if float_tensor(tensors, "backbone.0.weight", path, dims=4).shape[-1] == 3:
        base = _empty_backbone("vgg16")
        layers = numbered_features(tensors, "backbone.")
    else:
        layers = numbered_resnet(tensors, "backbone.")
        base = _resnet_of(layers, path)
    head = {COSPLACE_HEAD.get(name, name): tensor for name, tensor in under(tensors, "aggregation.").items()}
    rows = len(float_tensor(tensors, "aggregation.3.weight", path, dims=2))
    return _assemble("cosplace", base, layers, "cosplace", {"out_dim": rows}, head, Preprocess(resize=LONGEST_PX), path)


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
    return _assemble("mixvpr", base, layers, "mixvpr", options, head, Preprocess(resize=(size, size)), path)


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
    return _assemble("boq", base, layers, "boq", options, head, pixels, path)


def load_salad(tensors: Tensors, path: str | Path) -> PlaceModel:
    """SALAD on DINOv2: `backbone.model.*` with the authors' names of DINOv2, `aggregator.*`."""
    refuse_unknown(tensors, ("backbone.model.", "aggregator."), (), path)
    layers, head = under(tensors, "backbone.model."), under(tensors, "aggregator.")
    base = _transformer_of(layers, path)
    return _assemble("salad", base, layers, "salad", _salad_options(head, path), head, TRANSFORMER_PIXELS, path)


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
    return _assemble("megaloc", base, layers, "megaloc", options, head, TRANSFORMER_PIXELS, path)


def load_dinov2(tensors: Tensors, path: str | Path) -> PlaceModel:
    """DINOv2 and its class token: the authors' file, or Hugging Face's."""
    return _assemble("cls", _transformer_of(tensors, path), tensors, "cls", {}, {}, TRANSFORMER_PIXELS, path)


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
    return _assemble("anyloc", base, tensors, "vlad", options, head, pixels, path)


def _assemble(
    family: str,
    base: Backbone,
    layers: Tensors,
    aggregation: str,
    options: Mapping[str, Option],
    head: Tensors,
    preprocess: Preprocess,
    path: str | Path,
) -> PlaceModel:
    """A model in evaluation mode of a backbone, its published tensors, and those of the aggregation."""
    layers = base.published_tensors(layers)
    check_fit(base, layers, path)
    try:
        with torch.device("meta"):
            aggregated = make_aggregation(aggregation, base.channels, options)
    except ArgumentError as wrong:
        raise WeightsError(f"{path}: its tensors are those of no {aggregation} that can be made: {wrong}") from wrong
    load_strictly(aggregated, head, path, assign=True)
    load_strictly(base, layers, path, assign=True)
    return PlaceModel(preprocess, base, aggregated, name=f"{base.name}-{family}").eval()


def _empty_backbone(name: str, cut: str | None = None) -> Backbone:
    """A backbone on the device "meta", to which tensors are assigned: random weights of a transformer take seconds."""
    with torch.device("meta"):
        return make_backbone(name, cut=cut)


def _count(tensors: Tensors, pattern: str) -> int:
    """How many numbers there are at the group of this pattern; at least 1."""
    return max(1, len({match[1] for name in tensors if (match := re.fullmatch(pattern, name))}))


def _resnet_of(layers: Tensors, path: str | Path) -> Backbone:
    """The ResNet with these tensors under torchvision's names."""
    return _empty_backbone(*find_resnet(layers, path))


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
    return _empty_backbone(fitting[0], cut=cut)


def _salad_options(head: Tensors, path: str | Path) -> dict[str, Option]:
    return {
        "clusters": len(float_tensor(head, "score.3.weight", path, dims=4)),
        "cluster_dim": len(float_tensor(head, "cluster_features.3.weight", path, dims=4)),
        "token_dim": len(float_tensor(head, "token_features.2.weight", path, dims=2)),
        "hidden": len(float_tensor(head, "token_features.0.weight", path, dims=2)),
    }
