"""The original NetVLAD release: a MatConvNet network in a .mat file, with its whitening.

scipy trusts the sizes that a .mat file declares; they are checked first (`_check_sizes`).
"""

from __future__ import annotations

import io
import math
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

from sareloc.errors import WeightsError
from sareloc.models.backbones import make_backbone
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.weights_files import assemble_model, existing_file, whitening_from_linear
from sareloc.models.whitening import Whitening

Order = Literal["little", "big"]
HEADER = 128  # bytes of a MATLAB 5 file before its elements
MATRIX, COMPRESSED = 14, 15  # types of elements: an array, an element compressed with zlib
NUMBERS, LETTERS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}, {16, 17, 18}  # for other types scipy reads out of bounds
COMPLEX = 0x0800  # a flag of arrays
CELL, STRUCT, OBJECT, CHAR, SPARSE, FUNCTION, OPAQUE = 1, 2, 3, 4, 5, 16, 17  # kinds of arrays; others: numbers
MAX_COMPRESSION = 4  # ratio; weights are nearly random and compress badly
SMALL_FILE = 1 << 24
CHUNK = 1 << 20
CONVERT = "convert its layers to plain structs, net.layers{i} = struct(net.layers{i}), and save with -v7"


def load_matconvnet(path: str | Path) -> PlaceModel:
    """VGG16-NetVLAD from a MatConvNet .mat with plain structs, such as VGG16-NetVLAD-Pitts30K in the form hloc reads.

    The layers with weights are, in order: the thirteen convolutions (height, width, in, out), NetVLAD (assignment
    (D, K), in its second version a bias (K), and the centres *negated*), and, if the network has one, the whitening
    (1, 1, D K, dim) with its bias. Pixels are RGB 0..255 minus the first pixel of the stored mean image, not divided.
    MATLAB orders the K x D vector with the cluster index fastest; the columns of the whitening are reordered.
    """
    path = existing_file(path)
    net = _read_net(path)
    layers = [w for w in map(_weights, np.atleast_1d(net.layers)) if len(w)]
    with torch.device("meta"):  # only the names are needed
        names = [n.removesuffix(".bias") for n in make_backbone("vgg16").state_dict() if n.endswith(".bias")]
    arrays = [len(w) for w in layers]
    if arrays[: len(names)] != [2] * len(names) or arrays[len(names) :] not in ([2], [3], [2, 2], [3, 2]):
        raise WeightsError(
            f"{path} is not VGG16-NetVLAD: {len(names)} convolutions of 2 arrays each, NetVLAD's 2 or 3, and a "
            f"whitening's 2 or none are expected, its layers have {arrays}: {CONVERT}"
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
    return assemble_model(
        "vgg16-netvlad-matconvnet", preprocess, "vgg16", convolutions, vlad, whitening, path, norm="smoothed"
    )


def _read_net(path: Path) -> Any:
    from scipy.io import loadmat

    _check_sizes(path)
    try:
        stored = loadmat(path, struct_as_record=False, squeeze_me=True, variable_names=["net"])
    except NotImplementedError as newer:  # scipy does not read HDF5
        raise WeightsError(f"{path} is a MATLAB 7.3 file: {CONVERT}") from newer
    except Exception as wrong:  # damaged files raise a dozen types
        raise WeightsError(f"{path} is not a MATLAB file, or damaged ({wrong})") from wrong
    net = stored.get("net")
    if not hasattr(net, "layers"):
        raise WeightsError(f"{path} has no network: no struct 'net' with 'layers'; {CONVERT}")
    return net


def _weights(layer: Any) -> list[Any]:
    """The weight arrays of a layer; empty for a ReLU, a pooling or a normalisation."""
    return list(np.atleast_1d(getattr(layer, "weights", [])))


def _whitening(layer: list[Any], depth: int, path: Path) -> Whitening:
    weight, bias = _tensor(layer[0], path).flatten(), _tensor(layer[1], path).flatten()
    if weight.numel() % (depth * bias.numel()):
        raise WeightsError(
            f"{path}: {weight.numel()} numbers of the whitening do not fit {depth} channels and its bias"
        )
    by_cluster = weight.reshape(depth, -1, len(bias)).permute(2, 1, 0)  # (dim, K, D)
    return whitening_from_linear(by_cluster.reshape(len(bias), -1), bias, path)


def _mean_pixel(net: Any, path: Path) -> tuple[float, float, float]:
    try:
        image = np.asarray(net.meta.normalization.averageImage)
        red, green, blue = _tensor(image, path).reshape(-1, 3)[0].tolist()
    except (AttributeError, ValueError, RuntimeError, IndexError, WeightsError) as wrong:
        raise WeightsError(f"{path} has no RGB mean image: net.meta.normalization.averageImage") from wrong
    return red, green, blue


def _columns(array: Tensor, depth: int, path: Path) -> Tensor:
    """(1, 1, D, K) or (D, K) -> (K, D)."""
    if array.numel() % depth:
        raise WeightsError(f"{path}: NetVLAD's {array.numel()} numbers do not fit {depth} channels")
    return array.reshape(depth, -1).T


def _tensor(array: Any, path: Path, dims: int | None = None) -> Tensor:
    """An array as float32 tensor. Raises WeightsError if it has non-finite numbers, or not `dims` dimensions."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiu" or not array.size or dims not in (None, array.ndim):
        expected = "" if dims is None else f" in {dims} dimensions"
        raise WeightsError(f"{path}: expected weights to be numbers{expected}, found {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        raise WeightsError(f"{path}: some weights of shape {array.shape} are not finite")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _check_sizes(path: Path) -> None:
    """Raises WeightsError if a MATLAB 5 file declares more data than it contains, or unknown types.

    Such a file is a sequence of elements: type, size, content. An element must not exceed the one that contains it, an
    array must not have more entries than its element has bytes, and the compression ratio is limited.
    """
    total = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(HEADER)
        if len(header) < HEADER or 0 in header[:4]:
            raise WeightsError(f"{path} is not a MATLAB file of version 5 or later, or damaged")
        order: Order = "little" if header[126:] == b"IM" else "big"
        if header[125 if order == "little" else 124] != 1:
            return  # another version: scipy raises the error
        try:
            while len(tag := file.read(8)) == 8:
                kind, size = _read_tag(tag, order)
                end = file.tell() + size
                if kind == MATRIX:
                    _check_matrix(file, min(size, total - file.tell()), order)
                elif kind == COMPRESSED:
                    stream = io.BufferedReader(_Decompressed(file, size, MAX_COMPRESSION * total + SMALL_FILE), CHUNK)
                    kind, inner = _read_tag(_read(stream, 8), order)
                    _check_matrix(stream, inner if kind == MATRIX else 0, order)
                file.seek(end)
        except (ValueError, RecursionError, zlib.error) as wrong:
            raise WeightsError(f"{path} is not a MATLAB file, or damaged ({wrong})") from wrong


def _check_matrix(stream: BinaryIO, size: int, order: Order) -> None:
    """Read through the `size` bytes of an array and of all arrays in it. Raises ValueError if they do not fit."""
    if size == 0:
        return
    end = _Remaining(size)
    flags = int.from_bytes(_read_part(stream, end, order)[:4], order)
    kind = flags & 0xFF
    if not CELL <= kind <= OPAQUE or kind == SPARSE or flags & COMPLEX:
        raise ValueError(f"an array of kind {kind}, flags {flags >> 8}: expected cells, structs, text or real numbers")
    entries = nested = 1
    if kind == OPAQUE:
        for _ in range(3):  # names
            _read_part(stream, end, order)
    else:
        dims = np.frombuffer(_read_part(stream, end, order), "<i4" if order == "little" else ">i4").tolist()
        entries = math.prod(dims)
        if min(dims, default=0) < 0 or entries > size:
            raise ValueError(f"an array of shape {tuple(dims)} in {size} bytes")
        _read_part(stream, end, order)  # its name
        nested = {CELL: entries, FUNCTION: 1}.get(kind, 0)
        if kind in (STRUCT, OBJECT):
            if kind == OBJECT:
                _read_part(stream, end, order)  # its class
            longest = int.from_bytes(_read_part(stream, end, order)[:4], order)
            nested = entries * (len(_read_part(stream, end, order)) // max(1, longest))
    for _ in range(nested):
        inner_kind, inner = _read_tag(_read(stream, end.take(8)), order)
        if inner_kind != MATRIX:
            raise ValueError("an array contains an element that is not an array")
        _check_matrix(stream, end.take(inner), order)
    if kind in (CELL, STRUCT, OBJECT, FUNCTION, OPAQUE):
        return
    data_type, data = _read_tag(_read(stream, end.take(8)), order)
    if data_type & 0xFFFF not in (NUMBERS | LETTERS if kind == CHAR else NUMBERS):
        raise ValueError(f"numbers of the unknown type {data_type & 0xFFFF}")
    data = 0 if data_type >> 16 else end.take(data + -data % 8)
    while data:
        data -= len(_read(stream, min(data, CHUNK)))
    if end.left:
        raise ValueError(f"{end.left} bytes after the numbers of an array")


class _Remaining:
    """The number of bytes of an element that have not been read yet."""

    def __init__(self, size: int) -> None:
        self.left = size

    def take(self, size: int) -> int:
        """Count `size` bytes as read. Raises ValueError if fewer are left."""
        if size > self.left:
            raise ValueError(f"{size} bytes where {self.left} are left")
        self.left -= size
        return size


def _read_part(stream: BinaryIO, end: _Remaining, order: Order) -> bytes:
    """The content of a small element, without its padding."""
    tag = _read(stream, end.take(8))
    kind, size = _read_tag(tag, order)
    if kind >> 16:  # up to four bytes are in the tag itself
        return tag[4 : 4 + (kind >> 16)]
    return _read(stream, end.take(size + -size % 8))[:size]


def _read_tag(tag: bytes, order: Order) -> tuple[int, int]:
    return int.from_bytes(tag[:4], order), int.from_bytes(tag[4:], order)


def _read(stream: BinaryIO, size: int) -> bytes:
    found = stream.read(min(size, CHUNK))
    if len(found) < size:
        raise ValueError("truncated" if size <= CHUNK else f"{size} bytes where a few are expected")
    return found


class _Decompressed(io.RawIOBase):
    """The next `size` bytes of a file, decompressed in chunks. Raises ValueError if they exceed `limit` bytes."""

    def __init__(self, file: BinaryIO, size: int, limit: int) -> None:
        self._file, self._size, self._limit = file, size, limit
        self._decompressor = zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = b""
        while not part and not self._decompressor.eof:
            packed = self._decompressor.unconsumed_tail
            if not packed:
                packed = self._file.read(min(CHUNK, self._size))
                self._size -= len(packed)
            if not packed:
                break
            part = self._decompressor.decompress(packed, len(buffer))
        self._limit -= len(part)
        if self._limit < 0:
            raise ValueError(f"it decompresses to more than {MAX_COMPRESSION} times its size")
        buffer[: len(part)] = part
        return len(part)
