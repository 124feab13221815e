"""The original NetVLAD release: a MatConvNet network in a .mat file, with its whitening.

The file is read here, element by element, and not by scipy, which trusts the sizes and types that a file declares.
"""

from __future__ import annotations

import io
import math
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.errors import WeightsError
from sareloc.models.checkpoint import existing_file
from sareloc.models.place_model import PlaceModel, Whitening
from sareloc.models.preprocess import Preprocess
from sareloc.models.published.weights_files import (
    assemble_model,
    empty_backbone,
    is_finite,
    netvlad_options,
    whitening_from_linear,
)

Order = Literal["little", "big"]
HEADER = 128  # bytes of a MATLAB 5 file before its elements
MATRIX, COMPRESSED = 14, 15  # types of elements: an array, an element compressed with zlib
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
COMPLEX = 0x0800  # a flag of arrays
CELL, STRUCT, CHAR, SPARSE = 1, 2, 4, 5  # kinds of arrays
FIRST_NUMBERS, LAST_NUMBERS = 6, 15
MAX_COMPRESSION = 1.25  # ratio; weights are nearly random and compress badly
SMALL_FILE = 1 << 24  # bytes
MAX_ARRAYS, MAX_DEPTH, MAX_DIMS = 20_000, 16, 8  # a network has some hundred arrays, in structs and cells to depth 6
MAX_VARIABLES = 1000
CHUNK, BUFFER = 1 << 20, 1 << 16
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
    layers = [w for w in map(_weights, _entries(net["layers"])) if w]
    base = empty_backbone("vgg16")
    names = [name.removesuffix(".bias") for name in base.state_dict() if name.endswith(".bias")]
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
        base, convolutions, "netvlad", netvlad_options(vlad, "smoothed"), vlad, preprocess, path,
        whitening=whitening, family="netvlad-matconvnet",
    )  # fmt: skip


def _read_net(path: Path) -> dict[str, Any]:
    """The struct `net` of a MATLAB 5 file."""
    total = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(HEADER)
        if len(header) < HEADER or 0 in header[:4]:
            raise WeightsError(f"{path} is not a MATLAB file of version 5 or later, or damaged")
        order: Order = "little" if header[126:] == b"IM" else "big"
        version = header[125 if order == "little" else 124]
        if version == 2:
            raise WeightsError(f"{path} is a MATLAB 7.3 file: {CONVERT}")
        try:
            if version != 1:
                raise ValueError(f"version {version}")
            net = _Reader(order, int(MAX_COMPRESSION * total) + SMALL_FILE).find(file, "net")
        except (ValueError, OverflowError, zlib.error) as wrong:
            raise WeightsError(f"{path} is not a MATLAB file, or damaged ({wrong})") from wrong
    if not isinstance(net, dict) or "layers" not in net:
        raise WeightsError(f"{path} has no network: no struct 'net' with 'layers'; {CONVERT}")
    return net


def _entries(value: Any) -> list[Any]:
    """The entries of a cell array or of an array of structs."""
    return value if isinstance(value, list) else [value]


def _weights(layer: Any) -> list[Any]:
    """The weight arrays of a layer; empty for a ReLU, a pooling or a normalisation."""
    return _entries(layer.get("weights", [])) if isinstance(layer, dict) else []


def _whitening(layer: list[Any], depth: int, path: Path) -> Whitening:
    weight, bias = _tensor(layer[0], path), _tensor(layer[1], path).flatten()
    if weight.numel() % (depth * bias.numel()):
        raise WeightsError(
            f"{path}: {weight.numel()} numbers of the whitening do not fit {depth} channels and its bias"
        )
    in_memory = weight.permute(*reversed(range(weight.ndim)))  # (dim, D K, 1, 1)
    by_cluster = in_memory.reshape(len(bias), depth, -1).mT  # (dim, K, D)
    return whitening_from_linear(by_cluster.reshape(len(bias), -1), bias, path)


def _mean_pixel(net: Any, path: Path) -> tuple[float, float, float]:
    try:
        image = net["meta"]["normalization"]["averageImage"]
        red, green, blue = _tensor(image, path).reshape(-1, 3)[0].tolist()
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, WeightsError) as wrong:
        raise WeightsError(f"{path} has no RGB mean image: net.meta.normalization.averageImage") from wrong
    return red, green, blue


def _columns(array: Tensor, depth: int, path: Path) -> Tensor:
    """(1, 1, D, K) or (D, K) -> (K, D)."""
    if array.numel() % depth:
        raise WeightsError(f"{path}: NetVLAD's {array.numel()} numbers do not fit {depth} channels")
    return array.reshape(depth, -1).T


def _tensor(array: Any, path: Path, dims: int | None = None) -> Tensor:
    """An array as float32 tensor, in MATLAB's order in memory: it is not copied before its shape is known to fit.

    Raises WeightsError if it has non-finite numbers, or not `dims` dimensions.
    """
    if not isinstance(array, np.ndarray) or not array.size or dims not in (None, array.ndim):
        expected = "" if dims is None else f" in {dims} dimensions"
        found = f"the shape {array.shape}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise WeightsError(f"{path}: expected weights to be numbers{expected}, found {found}")
    tensor = torch.from_numpy(np.ascontiguousarray(array.T, dtype=np.float32))
    if not is_finite(tensor):
        raise WeightsError(f"{path}: some weights of shape {array.shape} are not finite")
    return tensor.permute(*reversed(range(tensor.ndim)))


class _Reader:
    """Reads arrays of a MATLAB 5 file. Raises ValueError if one declares more than the file contains.

    Such a file is a sequence of elements: type, size, content. An element must not exceed the one that contains it; the
    numbers of all arrays, as float32, must not exceed `limit` bytes, the arrays `MAX_ARRAYS`.
    """

    def __init__(self, order: Order, limit: int) -> None:
        self._order, self._limit, self._arrays = order, limit, 0

    def find(self, file: BinaryIO, wanted: str) -> Any:
        """The variable of this name; None if there is none. The variables before it are not read."""
        for _ in range(MAX_VARIABLES):
            if len(tag := file.read(8)) < 8:
                return None
            kind, size = self._read_tag(tag)
            end = file.tell() + size
            stream: BinaryIO = file
            if kind == COMPRESSED:
                stream = io.BufferedReader(_Decompressed(file, size, self._limit), BUFFER)
                kind, size = self._read_tag(_read(stream, 8))
            if kind == MATRIX:
                name, value = self._read_array(stream, _Remaining(size), wanted=wanted)
                if name == wanted:
                    return value
            file.seek(end)
        raise ValueError(f"more than {MAX_VARIABLES:,} variables")

    def _count(self) -> None:
        self._arrays += 1
        if self._arrays > MAX_ARRAYS:
            raise ValueError(f"more than {MAX_ARRAYS:,} arrays")

    def _read_array(
        self, stream: BinaryIO, end: _Remaining, depth: int = 0, wanted: str | None = None
    ) -> tuple[str, Any]:
        """Name and value of an array; None for text, objects and functions, and for any other name than `wanted`.

        Numbers are an array, a cell array is a list, a struct is a dict, an array of structs a list of dicts.
        """
        if not end.left:
            return "", None
        flags = int.from_bytes(self._read_part(stream, end)[:4], self._order)
        kind = flags & 0xFF
        numeric = FIRST_NUMBERS <= kind <= LAST_NUMBERS
        if not numeric and kind not in (CELL, STRUCT, CHAR):
            if wanted is None:
                _skip(stream, end)
            return "", None
        dims = np.frombuffer(self._read_part(stream, end), self._dtype("i4")).tolist()
        name = self._read_part(stream, end).decode("latin-1")
        if wanted is not None and name != wanted:
            return name, None
        entries = math.prod(dims)
        if not 2 <= len(dims) <= MAX_DIMS or min(dims) < 0 or entries > end.left:
            raise ValueError(f"an array of shape {tuple(dims[:MAX_DIMS])} in {end.left} bytes")
        if kind == CELL:
            return name, [self._read_nested(stream, end, depth) for _ in range(entries)]
        if kind == STRUCT:
            length = int.from_bytes(self._read_part(stream, end)[:4], self._order)
            names = self._read_part(stream, end)
            if not 1 <= length <= CHUNK or max(entries, 1) * len(names) > MAX_ARRAYS * length:
                raise ValueError(f"{entries} structs with {len(names)} bytes of names of {length} characters")
            fields = [names[i : i + length].split(b"\0")[0].decode("latin-1") for i in range(0, len(names), length)]
            if not fields and entries > MAX_ARRAYS:
                raise ValueError(f"{entries} structs without fields")
            structs = [{field: self._read_nested(stream, end, depth) for field in fields} for _ in range(entries)]
            return name, structs[0] if entries == 1 else structs
        if kind == CHAR or flags & COMPLEX:
            _skip(stream, end)
            return name, None
        return name, self._read_numbers(stream, end, dims)

    def _read_nested(self, stream: BinaryIO, end: _Remaining, depth: int) -> Any:
        kind, size = self._read_tag(_read(stream, end.take(8)))
        if kind != MATRIX:
            raise ValueError("an array contains an element that is not an array")
        self._count()
        if depth == MAX_DEPTH:
            raise ValueError(f"arrays in arrays, more than {MAX_DEPTH} deep")
        inner = _Remaining(end.take(size))
        _, value = self._read_array(stream, inner, depth + 1)
        _skip(stream, inner)
        return value

    def _read_numbers(self, stream: BinaryIO, end: _Remaining, dims: list[int]) -> npt.NDArray[Any]:
        tag = _read(stream, end.take(8))
        kind, size = self._read_tag(tag)
        within = kind >> 16  # up to four bytes are in the tag itself
        if kind & 0xFFFF not in NUMBERS:
            raise ValueError(f"numbers of the unknown type {kind & 0xFFFF}")
        dtype = self._dtype(NUMBERS[kind & 0xFFFF])
        size = within or size
        if size != math.prod(dims) * dtype.itemsize or (within and size > 4):
            raise ValueError(f"{size} bytes for an array of shape {tuple(dims)}")
        self._limit -= max(size, 4 * math.prod(dims))
        if self._limit < 0:
            raise ValueError("its arrays are larger than the file: save it with -v6, not compressed")
        content = bytearray(tag[4 : 4 + size] if within else b"")
        while len(content) < size:
            content += _read(stream, end.take(min(CHUNK, size - len(content))))
        _skip(stream, end)
        return np.frombuffer(content, dtype).reshape(dims, order="F")

    def _dtype(self, code: str) -> np.dtype[Any]:
        return np.dtype(code).newbyteorder("<" if self._order == "little" else ">")

    def _read_part(self, stream: BinaryIO, end: _Remaining) -> bytes:
        """The content of a small element, without its padding."""
        tag = _read(stream, end.take(8))
        kind, size = self._read_tag(tag)
        if kind >> 16:  # up to four bytes are in the tag itself
            return tag[4 : 4 + (kind >> 16)]
        return _read(stream, end.take(size + -size % 8))[:size]

    def _read_tag(self, tag: bytes) -> tuple[int, int]:
        return int.from_bytes(tag[:4], self._order), int.from_bytes(tag[4:], self._order)


def _skip(stream: BinaryIO, end: _Remaining) -> None:
    """Read what is left of an element."""
    while end.left:
        _read(stream, end.take(min(CHUNK, end.left)))


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
            raise ValueError("it decompresses to far more than its size")
        buffer[: len(part)] = part
        return len(part)
