"""NetVLAD's own release: the MatConvNet network in a .mat file, whitening included."""

from __future__ import annotations

import zlib
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

HEADER = 128  # bytes, before the elements of a MATLAB 5 file: type, size, content
COMPRESSED = 15  # the type of an element that is packed with zlib
MAX_PACKING = 4  # weights are nearly random and pack badly
SMALL_FILE = 1 << 24
PIECE = 1 << 20
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
        convolutions[f"{name}.weight"] = _tensor(kernel, path, dims=4).permute(3, 2, 0, 1)
        convolutions[f"{name}.bias"] = _tensor(bias, path).flatten()
    depth = convolutions[f"{names[-1]}.bias"].numel()
    assign, *offset, negated = (_tensor(array, path) for array in layers[len(names)])
    vlad = {"assign": _columns(assign, depth, path), "centres": -_columns(negated, depth, path)}
    if offset:
        vlad["bias"] = offset[0].flatten()
    whitening = _whitening(layers[-1], depth, path) if len(layers) == len(names) + 2 else None
    preprocess = Preprocess(mean=_mean_pixel(net, path), std=(1.0, 1.0, 1.0), scale=255.0)
    return assemble(
        "vgg16-netvlad-matconvnet", preprocess, "vgg16", convolutions, vlad, whitening, path, norm="smoothed"
    )


def _read_net(path: Path) -> Any:
    from scipy.io import loadmat

    _check_packing(path)
    try:
        stored = loadmat(path, struct_as_record=False, squeeze_me=True, variable_names=["net"])
    except NotImplementedError as newer:  # scipy's answer to HDF5
        raise WeightsError(f"{path} is a MATLAB 7.3 file: {READABLE}") from newer
    except Exception as wrong:  # of a dozen types, wherever the damage is
        raise WeightsError(f"{path} is not a MATLAB file, or damaged ({wrong})") from wrong
    net = stored.get("net")
    if not hasattr(net, "layers"):
        raise WeightsError(f"{path} has no network: no struct 'net' with 'layers'. {READABLE}")
    return net


def _weights(layer: Any) -> list[Any]:
    """A layer's arrays; none for a ReLU, a pooling or a normalisation."""
    return list(np.atleast_1d(getattr(layer, "weights", [])))


def _whitening(layer: list[Any], depth: int, path: Path) -> Whitening:
    weight, bias = _tensor(layer[0], path).flatten(), _tensor(layer[1], path).flatten()
    if weight.numel() % (depth * bias.numel()):
        raise WeightsError(
            f"{path}: {weight.numel()} numbers of the whitening do not fit {depth} channels and its bias"
        )
    by_cluster = weight.reshape(depth, -1, len(bias)).permute(2, 1, 0)  # (dim, K, D)
    return whitening_of_layer(by_cluster.reshape(len(bias), -1), bias, path)


def _mean_pixel(net: Any, path: Path) -> tuple[float, float, float]:
    try:
        image = np.asarray(net.meta.normalization.averageImage)
        red, green, blue = _tensor(image, path).reshape(-1, 3)[0].tolist()
    except (AttributeError, ValueError, RuntimeError, IndexError, WeightsError) as wrong:
        raise WeightsError(f"{path} has no mean image of RGB: net.meta.normalization.averageImage") from wrong
    return red, green, blue


def _columns(array: Tensor, depth: int, path: Path) -> Tensor:
    """(1, 1, D, K) or (D, K) -> (K, D)."""
    if array.numel() % depth:
        raise WeightsError(f"{path}: NetVLAD's {array.numel()} numbers do not fit {depth} channels")
    return array.reshape(depth, -1).T


def _tensor(array: Any, path: Path, dims: int | None = None) -> Tensor:
    """An array of the file, float32. Raises WeightsError if it holds no finite numbers, or not in `dims` dimensions."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiu" or not array.size or dims not in (None, array.ndim):
        expected = "" if dims is None else f" in {dims} dimensions"
        raise WeightsError(f"{path}: numbers{expected} are expected as weights, found {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        raise WeightsError(f"{path}: some weights of shape {array.shape} are not finite")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _check_packing(path: Path) -> None:
    """Refuse a file whose compressed parts unpack to far more than its size, before they are unpacked all at once."""
    left = MAX_PACKING * path.stat().st_size + SMALL_FILE
    with path.open("rb") as file:
        file.seek(HEADER)
        while len(tag := file.read(8)) == 8:
            kind, size = np.frombuffer(tag, dtype="<u4").tolist()
            end = file.tell() + size
            unpacker = zlib.decompressobj() if kind == COMPRESSED else None
            while unpacker is not None and not unpacker.eof and (part := file.read(min(PIECE, end - file.tell()))):
                while part and left >= 0 and not unpacker.eof:
                    try:
                        left -= len(unpacker.decompress(part, PIECE))
                    except zlib.error as wrong:
                        raise WeightsError(f"{path} is not a MATLAB file, or damaged ({wrong})") from wrong
                    part = unpacker.unconsumed_tail
                if left < 0:
                    raise WeightsError(f"{path} is refused: it unpacks to more than {MAX_PACKING} times its size")
            file.seek(end)
