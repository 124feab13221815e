"""NetVLAD's own release: the MatConvNet network in a .mat file, whitening included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sareloc.errors import WeightsError
from sareloc.models.backbones import make_backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.assembling import assemble, whitening_of_layer
from sareloc.models.published.reading import need_file
from sareloc.models.whitening import Whitening

READABLE = "the readable form has plain structs, saved with -v7: for each layer, net.layers{i} = struct(net.layers{i})"


def load_matconvnet(path: str | Path) -> PlaceModel:
    """VGG16-NetVLAD from a MatConvNet .mat with plain structs, such as VGG16-NetVLAD-Pitts30K in the form hloc reads.

    The layers with weights are, in order: the thirteen convolutions (height, width, in, out), NetVLAD (assignment
    (D, K), in its second version a bias (K), and the centres *negated*), and, where the network has one, the whitening
    (1, 1, D K, dim) with its bias. Pixels are RGB 0..255 minus the first pixel of the stored mean image, not divided.
    MATLAB joins the K x D vector cluster-fastest; the whitening's columns are reordered to cluster by cluster.
    """
    path = need_file(path)
    net = _read_net(path)
    layers = [w for w in map(_weights, np.atleast_1d(net.layers)) if len(w)]
    with torch.device("meta"):  # the names alone
        names = [n.removesuffix(".bias") for n in make_backbone("vgg16").state_dict() if n.endswith(".bias")]
    arrays = [len(w) for w in layers]
    if arrays[: len(names)] != [2] * len(names) or arrays[len(names) :] not in ([2], [3], [2, 2], [3, 2]):
        raise WeightsError(
            f"{path} is not VGG16-NetVLAD: {len(names)} convolutions of 2 arrays each, NetVLAD's 2 or 3, and a "
            f"whitening's 2 or none are expected, its layers have {arrays}. {READABLE}"
        )
    convolutions = {}
    for name, (kernel, bias) in zip(names, layers, strict=False):
        convolutions[f"{name}.weight"] = _tensor(kernel.transpose(3, 2, 0, 1))
        convolutions[f"{name}.bias"] = _tensor(bias.ravel())
    depth = convolutions[f"{names[-1]}.bias"].numel()
    assign, *offset, negated = layers[len(names)]
    vlad = {"assign": _tensor(assign.reshape(depth, -1).T), "centres": _tensor(-negated.reshape(depth, -1).T)}
    if offset:
        vlad["bias"] = _tensor(offset[0].ravel())
    whitening = _whitening(layers[-1], depth, path) if len(layers) == len(names) + 2 else None
    preprocess = Preprocess(mean=_mean_pixel(net, path), std=(1.0, 1.0, 1.0), scale=255.0)
    return assemble(
        "vgg16-netvlad-matconvnet", preprocess, "vgg16", convolutions, vlad, whitening, path, norm="smoothed"
    )


def _read_net(path: Path) -> Any:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        stored = loadmat(path, struct_as_record=False, squeeze_me=True, variable_names=["net"])
    except NotImplementedError as newer:  # scipy's answer to HDF5
        raise WeightsError(f"{path} is a MATLAB 7.3 file: {READABLE}") from newer
    except (MatReadError, ValueError, TypeError, OSError) as wrong:
        raise WeightsError(f"{path} is not a MATLAB file, or damaged ({wrong})") from wrong
    net = stored.get("net")
    if not hasattr(net, "layers"):
        raise WeightsError(f"{path} has no network: no struct 'net' with 'layers'. {READABLE}")
    return net


def _weights(layer: Any) -> list[Any]:
    """A layer's arrays; none for a ReLU, a pooling or a normalisation."""
    return list(np.atleast_1d(getattr(layer, "weights", [])))


def _whitening(layer: list[Any], depth: int, path: Path) -> Whitening:
    weight, bias = layer
    by_cluster = weight.reshape(depth, -1, bias.size).transpose(2, 1, 0)  # (dim, K, D)
    return whitening_of_layer(_tensor(by_cluster.reshape(bias.size, -1)), _tensor(bias.ravel()), path)


def _mean_pixel(net: Any, path: Path) -> tuple[float, float, float]:
    try:
        red, green, blue = np.reshape(net.meta.normalization.averageImage, (-1, 3))[0]
    except (AttributeError, ValueError) as wrong:
        raise WeightsError(f"{path} has no mean image of RGB: net.meta.normalization.averageImage") from wrong
    return float(red), float(green), float(blue)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
