"""Batch norms folded into the convolutions before them: the same feature map with half as many passes over it."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import fx, nn
from torch.nn.utils import fuse_conv_bn_eval

from sareloc.models.backbones import Backbone
from sareloc.models.place_model import PlaceModel

M = TypeVar("M", bound=nn.Module)


class _Layers(fx.Tracer):
    """Looks into blocks, but not into convolutions, whatever they are derived from."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


def trace_layers(backbone: Backbone) -> tuple[nn.Module, fx.Graph]:
    """The layers of a backbone in the order of the computation: a graph, and the module that its names refer to."""
    root = nn.Sequential(*(module for modules in backbone.parts().values() for module in modules))
    return root, _Layers().trace(root)


def fold_norms(model: PlaceModel) -> PlaceModel:
    """The model as it describes fastest, for evaluation only; one without batch norms is given back as it is.

    The parts beside the backbone are shared. The weights, and so the fingerprint, differ; the descriptors do not,
    beyond rounding.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.backbone.modules()):
        return model
    backbone = copy.deepcopy(model.backbone).eval()
    names = {module: name for name, module in backbone.named_modules()}
    for conv, norm in convolutions_before(backbone, nn.BatchNorm2d):
        backbone.set_submodule(names[conv], fuse_conv_bn_eval(conv, norm))
        backbone.set_submodule(names[norm], nn.Identity())
    return PlaceModel(model.preprocess, backbone, model.aggregation, model.whitening, model.name).eval()


def convolutions_before(backbone: Backbone, kind: type[M]) -> list[tuple[nn.Conv2d, M]]:
    """Each convolution that a layer of this kind follows, and that layer; nothing else may use the convolution."""
    root, graph = trace_layers(backbone)
    found = []
    for node in graph.nodes:
        layer, before = _module(root, node), node.args[0] if node.args else None
        conv = _module(root, before)
        if isinstance(layer, kind) and isinstance(conv, nn.Conv2d):
            assert isinstance(before, fx.Node)
            assert len(before.users) == 1, f"what a convolution gives is used beside its {kind.__name__}"
            found.append((conv, layer))
    return found


def _module(root: nn.Module, node: object) -> nn.Module | None:
    if isinstance(node, fx.Node) and node.op == "call_module":
        return root.get_submodule(str(node.target))
    return None
