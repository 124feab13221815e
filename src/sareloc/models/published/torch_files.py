"""Files that torch.save wrote, read without torch.load and without unpickling: nothing in them is executed.

Such a file is a pickle of containers and tensors, and the numbers of the tensors as plain bytes: entries of a zip
archive or, before torch 1.6, behind the pickle. The pickle is followed step by step, and only dicts, lists, tuples,
numbers, text and descriptions of tensors are made of it. What is checked is what is loaded: there is no second reader.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from sareloc.errors import WeightsError

MAX_PICKLE = 1 << 24  # bytes; that of a large network with its optimizer has 1 MB
MAX_STEPS = 400_000  # of a pickle; such a network needs 80,000
MAX_ENTRIES = 20_000  # of a zip archive: one for each tensor
MAX_DIMS, MAX_NUMBERS = 8, 1 << 40  # of a tensor
MAX_NAME = 300  # characters
MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file from before torch 1.6
END, END64, LOCATOR64, LISTED, LOCAL = "<4s4H2LH", "<4sQ2H2L4Q", "<4sLQL", "<4s6H3L5H2L", "<4s5H3L2H"  # zip records
ALLOWED = (  # callables in pickles of weights: containers, tensors and their storages, numpy numbers; none is called
    r"(collections\.OrderedDict|(__builtin__|builtins)\.set|_codecs\.encode|numpy\..+"
    r"|torch\._utils\._rebuild_(tensor|tensor_v2|parameter|parameter_with_state)|torch\.nn\.parameter\.Parameter"
    r"|torch\.(storage\.|cuda\.)?\w*Storage|torch\.(Size|device|[a-z]+[0-9]+\w*))"
)
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
IGNORED_STEPS = {"PROTO", "FRAME"}
VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINSTRING"}
VALUES |= {"BINSTRING", "BINBYTES", "SHORT_BINBYTES"}


class _ForeignObjectError(Exception):
    """A pickle contains an object that weights do not need; the message is its name."""


@dataclass(frozen=True)
class Unread:
    """Stands for an object beside the weights, such as a numpy number, or for a callable that is not called."""

    name: str = "an object"


@dataclass(frozen=True)
class StoredNumbers:
    """A storage: the numbers of one or several tensors, under a key of the file."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """The description of a tensor in a pickle; it fits its storage."""

    numbers: StoredNumbers
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return self.numbers.dtype

    @property
    def nbytes(self) -> int:
        """The size of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class TorchFile:
    """A file that torch.save wrote: its content, and where the numbers of its tensors are."""

    path: Path
    content: Any
    """Dicts with text as keys, lists, tuples, numbers, text; `StoredTensor`; `Unread` for anything else."""
    places: Mapping[str, tuple[int, int]]
    """Offset and bytes of each storage."""

    def load(self, tensors: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
        """These tensors, in memory. Raises WeightsError if they are larger than the file, or not in it."""
        if sum(tensor.nbytes for tensor in tensors.values()) > self.path.stat().st_size:
            largest = max(tensors, key=lambda name: tensors[name].nbytes)
            raise WeightsError(
                f"{self.path}: its {len(tensors)} tensors are larger than the file; the largest is {largest} of shape "
                f"{tensors[largest].shape}"
            )
        needed = {t.numbers: name for name, t in tensors.items() if t.nbytes}  # tensors can share a storage
        with self.path.open("rb") as file:
            storages = {numbers: self._read(file, numbers, name) for numbers, name in needed.items()}
        return {name: _view(t, storages[t.numbers]) if t.nbytes else _empty(t) for name, t in tensors.items()}

    def _read(self, file: BinaryIO, numbers: StoredNumbers, name: str) -> Tensor:
        offset, size = self.places.get(numbers.key, (0, -1))
        if size != numbers.count * numbers.dtype.itemsize:
            raise WeightsError(f"{self.path} is damaged: it lacks the {numbers.count} numbers of tensor {name}")
        content = bytearray(size)
        file.seek(offset)
        if file.readinto(content) != size:  # type: ignore[attr-defined]
            raise WeightsError(f"{self.path} is truncated: get it again")
        return torch.frombuffer(content, dtype=numbers.dtype)


def _view(tensor: StoredTensor, stored: Tensor) -> Tensor:
    found = stored.as_strided(tensor.shape, tensor.stride, tensor.offset)
    whole = found.is_contiguous() and found.numel() == stored.numel()
    return found if whole else found.clone(memory_format=torch.contiguous_format)


def _empty(tensor: StoredTensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def read_torch_file(path: Path) -> TorchFile:
    """The content of a file that torch.save wrote, without the numbers of its tensors.

    Raises WeightsError if it is damaged, compressed, larger inside than outside, or contains other objects than weights
    need: loading these with torch could execute code or exhaust memory.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        try:
            if file.read(4) == b"PK\x03\x04":
                return _read_zip(path, file, size)
            return _read_legacy(path, file, size)
        except _ForeignObjectError as found:
            raise WeightsError(
                f"{path} is refused: it is a pickle that contains {found} beside tensors, and loading such a pickle "
                f"can execute code or exhaust memory. Where the file was made, save only the tensors, with "
                f"torch.save(model.state_dict(), ...) or safetensors.torch.save_file(model.state_dict(), ...)"
            ) from found
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error, UnicodeError) as wrong:
            raise WeightsError(
                f"{path} is neither a safetensors file nor one that torch.save wrote, or it is damaged ({wrong})"
            ) from wrong


def _read_zip(path: Path, file: BinaryIO, size: int) -> TorchFile:
    places = _zip_entries(path, file, size)
    folders = [name.removesuffix("data.pkl") for name in places if re.fullmatch(r"[^/]+/data\.pkl", name)]
    if len(folders) != 1:
        raise ValueError(f"expected one data.pkl in its archive, found {len(folders)}")
    folder = folders[0]
    offset, length = places[folder + "data.pkl"]
    if length > MAX_PICKLE:
        raise ValueError(f"its data.pkl has {length / 1e6:,.0f} MB")
    order = places.get(folder + "byteorder", (0, 0))
    file.seek(order[0])
    if order[1] and file.read(min(order[1], 8)) != b"little":
        raise ValueError("its numbers are not little-endian")
    file.seek(offset)
    content = _unpickle(io.BytesIO(file.read(length)), {})
    data = folder + "data/"
    return TorchFile(path, content, {n.removeprefix(data): place for n, place in places.items() if n.startswith(data)})


def _zip_entries(path: Path, file: BinaryIO, size: int) -> dict[str, tuple[int, int]]:
    """Offset and bytes of every entry of a zip archive, as torch writes it: not compressed, without a comment."""
    end = size - struct.calcsize(END)
    mark, *_, count, length, start, comment = _unpack(file, end, END)
    if mark != b"PK\x05\x06" or comment:
        raise ValueError("its zip archive has no directory at its end: truncated, or with bytes appended")
    mark, _, end64, _ = _unpack(file, end - struct.calcsize(LOCATOR64), LOCATOR64)
    if mark == b"PK\x06\x07":  # torch always writes a second end, with room for large files
        end = end64
        mark, *_, count, length, start = _unpack(file, end, END64)
        if mark != b"PK\x06\x06":
            raise ValueError("its zip archive has no directory at its end")
    if start + length != end or count > MAX_ENTRIES or length > MAX_PICKLE:
        raise ValueError(
            f"the directory of its zip archive, {count} entries in {length} bytes at {start}, is not valid"
        )
    file.seek(start)
    listing = io.BytesIO(file.read(length))
    places: dict[str, tuple[int, int]] = {}
    for _ in range(count):
        mark, _, _, flags, packing, _, _, _, packed, unpacked, name_length, extra, note, _, _, _, at = struct.unpack(
            LISTED, listing.read(struct.calcsize(LISTED))
        )
        raw = listing.read(name_length)
        unpacked, packed, at = _wide(listing.read(extra), unpacked, packed, at)
        listing.read(note)
        if packing or packed != unpacked:
            raise WeightsError(
                f"{path} is refused: it is a compressed archive, and torch.save does not compress. If it is genuine, "
                f"save it again with torch.save"
            )
        local, *_, local_name, local_extra = _unpack(file, at, LOCAL)
        begin = at + struct.calcsize(LOCAL) + local_name + local_extra
        same = file.read(local_name) == raw
        name = raw.decode()
        if (mark, local) != (b"PK\x01\x02", b"PK\x03\x04") or flags & 1 or not same or name in places:
            raise ValueError("its zip archive has two entries for one name, or two names for one entry")
        if begin + packed > start:
            raise ValueError(f"an entry of its zip archive of {packed} bytes exceeds it")
        places[name] = begin, packed
    if sum(length for _, length in places.values()) > size:
        raise ValueError("the entries of its zip archive overlap")
    return places


def _unpack(file: BinaryIO, offset: int, form: str) -> tuple[Any, ...]:
    if offset < 0:
        raise ValueError("it is too short")
    file.seek(offset)
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _wide(extra: bytes, unpacked: int, packed: int, at: int) -> list[int]:
    """Sizes and offset of an entry; those that do not fit 32 bits are in its extra field 1 (zip64), in this order."""
    wide, start = b"", 0
    while start + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, start)
        if kind == 1:
            wide = extra[start + 4 : start + 4 + length]
        start += 4 + length
    longer = iter(struct.unpack(f"<{len(wide) // 8}Q", wide[: len(wide) // 8 * 8]))
    return [next(longer, value) if value == 0xFFFFFFFF else value for value in (unpacked, packed, at)]


def _read_legacy(path: Path, file: BinaryIO, size: int) -> TorchFile:
    """Five pickles (a mark, a version, the byte order, the content, the keys of storages), then the storages."""
    file.seek(0)
    pickles = io.BytesIO(file.read(MAX_PICKLE))
    seen: dict[str, StoredNumbers] = {}
    first = _unpickle(pickles, seen)
    if first != MAGIC or isinstance(first, bool):
        raise ValueError("it does not begin as one")
    _, system, content, keys = (_unpickle(pickles, seen) for _ in range(4))
    if not isinstance(system, dict) or system.get("little_endian") is not True or not isinstance(keys, list):
        raise ValueError("its numbers are not little-endian")
    at, places = pickles.tell(), {}
    for key in keys:
        if not isinstance(key, str) or key not in seen:
            raise ValueError("its numbers do not fit its tensors")
        kind = seen[key]
        (count,) = _unpack(file, at, "<q")
        length = kind.count * kind.dtype.itemsize
        if count != kind.count or at + 8 + length > size or key in places:
            raise ValueError("truncated, or its numbers do not fit its tensors")
        places[key] = at + 8, length
        at += 8 + length
    return TorchFile(path, content, places)


def _unpickle(stream: BinaryIO, seen: dict[str, StoredNumbers]) -> Any:
    """The content of one pickle. Raises ForeignObject for other objects than weights need, ValueError and others if it
    is damaged. `seen`: receives the storages, by key.

    Dicts keep text as keys only: other keys are not needed, and can be made so that a dict of them takes hours.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    steps = 0
    argument: Any
    for step, argument, _ in pickletools.genops(stream):
        kind = step.name
        steps += 1
        if steps > MAX_STEPS:
            raise ValueError(f"its pickle has more than {MAX_STEPS:,} steps")
        if kind in VALUES:
            stack.append(argument)
        elif kind in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif kind in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif kind in CONSTANTS:
            stack.append(CONSTANTS[kind])
        elif kind == "MARK":
            marks.append(len(stack))
        elif kind == "TUPLE":
            stack.append(tuple(_from_mark(stack, marks)))
        elif kind in TUPLES:
            stack[-TUPLES[kind] :] = [tuple(stack[-TUPLES[kind] :])]
        elif kind == "EMPTY_DICT":
            stack.append({})
        elif kind == "EMPTY_LIST":
            stack.append([])
        elif kind in ("GLOBAL", "STACK_GLOBAL"):
            names = argument.split(" ") if kind == "GLOBAL" else [stack.pop(-2), stack.pop()]
            stack.append(_global(names))
        elif kind == "BINPERSID":
            stack.append(_storage(stack.pop(), seen))
        elif kind in ("REDUCE", "NEWOBJ"):
            arguments = stack.pop()
            stack.append(_call(stack.pop(), arguments))
            steps += len(arguments[0]) if arguments and isinstance(arguments[0], list) else 0
        elif kind in ("SETITEM", "SETITEMS"):
            items = _from_mark(stack, marks) if kind == "SETITEMS" else [stack.pop(-2), stack.pop()]
            _set_items(stack[-1], items)
        elif kind in ("APPEND", "APPENDS", "ADDITEMS"):
            items = [stack.pop()] if kind == "APPEND" else _from_mark(stack, marks)
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
        elif kind == "BUILD":
            stack.pop()  # attributes, such as the versions of a state dict
        elif kind == "EMPTY_SET":
            stack.append(Unread("a set"))
        elif kind == "STOP":
            return stack.pop()
        elif kind not in IGNORED_STEPS:
            raise _ForeignObjectError("Python objects")
    raise ValueError("its pickle has no end")


def _from_mark(stack: list[Any], marks: list[int]) -> list[Any]:
    """Take the values since the last mark from the stack."""
    start = marks.pop()
    items = stack[start:]
    del stack[start:]
    return items


def _set_items(target: Any, items: list[Any]) -> None:
    if isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, str):
                target[key] = value
            else:
                target[f"<{type(key).__name__}>"] = Unread()


def _global(names: list[Any]) -> Unread:
    """A callable by the names of its module and itself."""
    if not all(isinstance(name, str) and len(name) <= MAX_NAME for name in names):
        raise _ForeignObjectError("Python objects")
    name = ".".join(names)
    if not re.fullmatch(ALLOWED, name):
        raise _ForeignObjectError(name)
    return Unread(name)


def _storage(identity: Any, seen: dict[str, StoredNumbers]) -> StoredNumbers:
    """The storage of a persistent identity: ("storage", type, key, device, count), in older files and None."""
    if not isinstance(identity, tuple) or len(identity) not in (5, 6) or identity[0] != "storage":
        raise _ForeignObjectError("Python objects")
    _, kind, key, _, count, *view = identity
    dtype = STORAGES.get(kind.name.rpartition(".")[2]) if isinstance(kind, Unread) else None
    if dtype is None or not isinstance(key, str) or not _is_count(count) or view not in ([], [None]):
        raise ValueError("a tensor has a storage of an unknown type or size")
    storage = StoredNumbers(key, dtype, count)
    if seen.setdefault(key, storage) != storage:
        raise ValueError("two storages have one name")
    return storage


def _call(function: Any, arguments: Any) -> Any:
    """What a callable in a pickle stands for; only dicts and tensors are needed."""
    if not isinstance(function, Unread) or not isinstance(arguments, tuple):
        raise _ForeignObjectError("Python objects")
    name = function.name.rpartition(".")[2]
    if name == "OrderedDict":
        made: dict[str, Any] = {}
        if arguments and isinstance(arguments[0], list):
            _set_items(made, [part for key, value in arguments[0] for part in (key, value)])
        return made
    if name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
        return _tensor(*arguments[:4])
    if name in ("_rebuild_parameter", "_rebuild_parameter_with_state", "Parameter"):
        return arguments[0] if arguments and isinstance(arguments[0], StoredTensor) else Unread("a parameter")
    return Unread()


def _tensor(numbers: Any, offset: Any, shape: Any, stride: Any) -> StoredTensor:
    """A description of a tensor that fits its storage."""
    for sizes in (shape, stride):
        if not isinstance(sizes, tuple) or len(sizes) > MAX_DIMS or not all(map(_is_count, sizes)):
            raise ValueError("a tensor has no valid shape")
    if not isinstance(numbers, StoredNumbers) or not _is_count(offset) or len(shape) != len(stride):
        raise ValueError("a tensor has no valid storage")
    last = offset + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if 0 not in shape and last >= numbers.count:
        raise ValueError(f"a tensor of shape {shape} is larger than its storage of {numbers.count} numbers")
    return StoredTensor(numbers, offset, shape, stride)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBERS
