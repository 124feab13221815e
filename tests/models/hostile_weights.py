"""Weights files that attack: each is to be refused by one of our errors, within seconds and with little memory.

`hostile_files` writes them one after the other, kind by kind; those of many megabytes only if they are asked for, and
deletes these after their case.
"""

from __future__ import annotations

import _codecs
import io
import json
import os
import pickle
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from sareloc.models import load_backbone_weights, load_model, load_published, make_backbone, make_model, save_checkpoint
from sareloc.models.published.torch_files import MAX_ENTRIES, MAX_STEPS
from sareloc.models.published.weights_files import MAX_TENSORS

Open = Callable[[], object]
Case = tuple[str, Open]
Large = Callable[[], bytes]
"""Makes a file of many megabytes."""
BACKBONE = {"encoder.0.weight": torch.zeros(4, 3, 3, 3)}


def hostile_files(folder: Path, kinds: Iterable[str] = (), large: bool = True) -> Iterator[Case]:
    """The name of each file and the call that opens it; default: files of all `KINDS`, also large ones."""
    for kind in kinds or KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, work in KINDS[kind](folder / kind, large):
            yield f"{kind}: {name}", work


def published(path: Path, content: bytes | None = None) -> Open:
    if content is not None:
        path.write_bytes(content)
    return lambda: load_published(path)


def written(folder: Path, suffix: str, contents: Mapping[str, bytes | Large], large: bool) -> Iterator[Case]:
    """Cases of published weights with these contents."""
    for number, (name, content) in enumerate(contents.items()):
        if isinstance(content, bytes) or large:
            path = folder / f"{suffix[1:]} {number}{suffix}"
            yield name, published(path, content if isinstance(content, bytes) else content())
            yield f"{name}, as a model", lambda path=path: load_model(path)
            path.unlink()


def saved(record: Any, legacy: bool = False) -> bytes:
    """What torch.save writes."""
    stream = io.BytesIO()
    torch.save(record, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


# -- zip archives ------------------------------------------------------------------------------------------------------


def archive(entries: Mapping[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as made:
        for name, content in entries.items():
            made.writestr(name, content)
    return stream.getvalue()


def parts(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


class Calls:
    """An object that is unpickled by calling a function with arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def two_directories(shown: bytes, hidden: bytes) -> bytes:
    """An archive with two directories, of entries of the same names.

    Its end gives the offset of the hidden one, which torch reads; Python takes what lies directly before the end, and
    shifts its offsets. The content of `hidden` must be as long as that of `shown`, or longer.
    """
    ends = [content.rindex(b"PK\x05\x06") for content in (shown, hidden)]
    starts = [content.index(b"PK\x01\x02") for content in (shown, hidden)]
    directory = bytearray(shown[starts[0] : ends[0]])
    assert len(directory) == ends[1] - starts[1]
    at = 0
    while at < len(directory):
        (offset,) = struct.unpack_from("<L", directory, at + 42)
        struct.pack_into("<L", directory, at + 42, offset + starts[1] - starts[0])
        at += 46 + sum(struct.unpack_from("<3H", directory, at + 28))
    return hidden[: ends[1]] + shown[: starts[0]] + bytes(directory) + hidden[ends[1] :]


def _zips(folder: Path, large: bool) -> Iterator[Case]:
    good, evil = saved(BACKBONE), saved({"a": Calls(bytearray, 6 * 10**9), "b": torch.zeros(200)})
    shown, hidden = archive(parts(good)), archive(parts(evil))
    yield "two directories", published(folder / "a.pth", two_directories(shown, hidden))
    yield "two archives", published(folder / "c.pth", good + evil)
    yield "bytes appended", published(folder / "d.pth", good + bytes(100))
    yield "only a directory", published(folder / "e.pth", b"PK\x03\x04" + good[good.rindex(b"PK\x05\x06") :])
    entries = parts(good)
    prefix = next(iter(entries)).partition("/")[0]
    yield (
        "two pickles",
        published(folder / "f.pth", archive({**entries, "other/data.pkl": parts(evil)["archive/data.pkl"]})),
    )
    yield "no pickle", published(folder / "g.pth", archive({"a/b": b""}))
    bomb = archive({**entries, f"{prefix}/data/0": bytes(10**7)}, zipfile.ZIP_DEFLATED)
    yield "deflated 10 MB", published(folder / "h.pth", bomb)
    listed_entries = 30_000 if large else MAX_ENTRIES
    stored = archive({"a/data.pkl": b"", **{f"a/{n:07d}": b"" for n in range(listed_entries)}})
    yield "too many entries", published(folder / "i.pth", stored)
    start = stored.index(b"PK\x01\x02")
    listed = stored[start : start + 46 + 10]
    many = 2_000_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, many * len(listed), 4, 0)
    if large:
        yield "2,000,000 entries", published(folder / "j.pth", b"PK\x03\x04" + listed * many + end)
        (folder / "j.pth").unlink()
    data = bytearray(good)
    at = data.rindex(b"PK\x05\x06")
    data[at + 12 : at + 20] = b"\xff" * 8
    yield "directory beyond the file", published(folder / "k.pth", bytes(data))
    data = bytearray(archive(entries))
    at = data.index(b"PK\x01\x02")
    data[at + 20 : at + 28] = b"\xff\xff\xff\x7f" * 2
    yield "entry beyond the file", published(folder / "l.pth", bytes(data))
    data = bytearray(archive(entries))
    at = data.index(b"PK\x01\x02")
    data[at + 42 : at + 46] = b"\xfe\xff\xff\xff"
    yield "entry at 4 GB", published(folder / "m.pth", bytes(data))
    data = bytearray(archive(entries))
    data[data.index(b"PK\x01\x02") + 46] = ord("?")
    yield "two names for one entry", published(folder / "n.pth", bytes(data))
    yield "big-endian", published(folder / "o.pth", archive({**entries, f"{prefix}/byteorder": b"big"}))
    short = archive({**entries, f"{prefix}/data/0": b"1234"})
    yield "fewer numbers than its tensors", published(folder / "p.pth", short)
    lacking = {name: content for name, content in entries.items() if not name.endswith("data/0")}
    yield "no numbers", published(folder / "q.pth", archive(lacking))
    for size in (3, 4, 21, 22, 100, len(good) // 2, len(good) - 1):
        yield f"cut at {size}", published(folder / f"cut{size}.pth", good[:size])


# -- pickles -----------------------------------------------------------------------------------------------------------


def pickled(body: bytes) -> bytes:
    """An archive whose pickle has these steps."""
    return archive({"a/data.pkl": b"\x80\x02" + body + b".", "a/version": b"3\n"})


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def nested(depth: int, record: Any, key: str = "state_dict") -> Any:
    for _ in range(depth):
        record = {key: record}
    return record


def _pickles(folder: Path, large: bool) -> Iterator[Case]:
    cycle: dict[str, Any] = {}
    cycle["state_dict"] = cycle
    pair: dict[str, Any] = {"model_state_dict": {"state_dict": {}}}
    pair["model_state_dict"]["state_dict"]["state_dict"] = pair
    for legacy in (False, True):
        end = "legacy" if legacy else "zip"
        yield f"cycle, {end}", published(folder / f"cycle.{end}", saved(cycle, legacy))
        yield f"long cycle, {end}", published(folder / f"pair.{end}", saved(pair, legacy))
        yield f"deep, {end}", published(folder / f"deep.{end}", saved(nested(100, BACKBONE), legacy))
        hexadecimal: Any = b"0123456789abcdef"
        for _ in range(26):
            hexadecimal = Calls(_codecs.encode, hexadecimal, "hex")
        record = {"state_dict": BACKBONE, "extra": hexadecimal}
        yield f"codec, {end}", published(folder / f"codec.{end}", saved(record, legacy))
        huge = torch.zeros(1).expand(10**5, 10**5)
        yield f"repeated tensor, {end}", published(folder / f"expand.{end}", saved({"encoder.0.weight": huge}, legacy))
        yield f"object, {end}", published(folder / f"object.{end}", saved({"a": Calls(os.getcwd)}, legacy))
        yield f"numpy, {end}", published(folder / f"numpy.{end}", saved({"a": Calls(np.zeros, 10**9)}, legacy))
    bomb = b")" + b"".join(b"q\x01h\x01h\x01\x87" for _ in range(60))
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    depth = 150_000 if large else 50_000
    legacy = b"".join(pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, system))
    contents: dict[str, bytes | Large] = {
        "a million lists": pickled(b"(" + b"]" * (900_000 if large else MAX_STEPS) + b"t"),
        "a million marks": pickled(b"(" * 900_000),
        "15 MB of lists": lambda: pickled(b"(" + b"]" * 15_000_000 + b"t"),
        "90 MB of lists": lambda: pickled(b"(" + b"]" * 90_000_000 + b"t"),
        "90 MB of text": lambda: pickled(text("\U0001f600" * 22_000_000)),
        "15 MB of text": lambda: pickled(text("\U0001f600" * 3_700_000)),
        "lists in lists": pickled(b"]" * depth + b"a" * (depth - 1)),
        "hash bomb": pickled(b"}" + bomb + b"K\x01s"),
        "names of nested tuples": pickled(bomb + b"q\x02h\x02\x93"),
        "names of 1 MB": pickled(text("a" * 10**6) + b"q\x02" + b"h\x02h\x02\x93" * 20_000),
        "key of 1 MB": pickled(b"}" + text("a" * 10**6) + b"K\x01s"),
        "legacy keys of nested tuples": legacy + pickle.dumps({}, 2) + b"\x80\x02]" + bomb + b"a.",
        "legacy keys of 1 MB": legacy + pickle.dumps({}, 2) + pickle.dumps(["a" * 10**6], 2),
    }
    yield from written(folder, ".pth", contents, large)
    prime = (1 << 61) - 1
    keys = b"".join(
        b"\x8a"
        + bytes([(n * prime).bit_length() // 8 + 1])
        + (n * prime).to_bytes((n * prime).bit_length() // 8 + 1, "little")
        + b"N"
        for n in range(1, 50_000)
    )
    yield "colliding keys", published(folder / "keys.pth", pickled(b"}(" + keys + b"u"))
    pairs = b"](" + (text("a") + b"N\x86q\x02" + b"h\x02" * 100_000) + b"eq\x03"
    again = b"".join(b"h\x04h\x03\x85R0" for _ in range(50_000))
    dicts = b"ccollections\nOrderedDict\nq\x04" + pairs + again.replace(b"0", b"a")
    yield "dicts of one list", published(folder / "dicts.pth", pickled(b"]" + dicts))
    for name, body in {
        "memo of 4 billion": b"]r\xff\xff\xff\xff",
        "memo that is absent": b"h\x07",
        "text of 4 GB": b"X\xff\xff\xff\xff" + b"a" * 10,
        "bytes of 8 EB": b"\x8e" + b"\xff" * 7 + b"\x7f",
        "number of 2 GB": b"\x8b\xff\xff\xff\x7f",
        "number of 5,000 digits": b"I" + b"9" * 5000 + b"\n",
        "empty": b"",
        "no stack": b"t",
        "not UTF-8": b"X\x02\x00\x00\x00\xff\xff",
        "unknown step": b"\xf0",
        "extension": b"\x82\x01",
        "instance": b"(ios\nsystem\n",
        "os.system": b"cos\nsystem\n" + text("true") + b"\x85R",
        "builtins.eval": b"c__builtin__\neval\n" + text("1") + b"\x85R",
        "two names": b"\x93",
        "name with dots": b"ctorch\n_utils._rebuild_tensor_v2.__globals__\n",
        "persistent text": b"P1\n",
        "persistent number": b"K\x01Q",
        "persistent other": text("module") + b"\x85Q",
        "no arguments": b"ctorch._utils\n_rebuild_tensor_v2\n)R",
        "arguments that are none": b"ctorch._utils\n_rebuild_tensor_v2\nNR",
        "call of a list": b"])R",
        "parameter of nothing": b"ctorch._utils\n_rebuild_parameter\n)R",
        "dict of numbers": b"}(K\x01K\x02u",
        "odd dict": b"}(K\x01u",
        "set of a list": b"]N" + b"s",
    }.items():
        yield name, published(folder / f"step {name}.pth".replace(",", "").replace("/", ""), pickled(body))
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x04tQ"
    wide = b"\x8a\x0b" + b"\xff" * 10 + b"\x00"
    shapes = {
        "negative side": (b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
        "side of 80 bits": (wide + b"\x85", b"K\x01\x85"),
        "stride of 80 bits": (b"K\x02\x85", wide + b"\x85"),
        "shape that is text": (text("ab"), text("cd")),
        "no stride": (b"K\x02\x85", b")"),
        "more than its storage": (b"K\x05\x85", b"K\x01\x85"),
        "sides that are true": (b"\x88\x85", b"\x88\x85"),
        "100,000 sides": (b"(" + b"K\x01" * 100_000 + b"t", b"(" + b"K\x01" * 100_000 + b"t"),
        "empty and huge": (b"(K\x00" + b"\x8a\x06\x00\x00\x00\x00\x00\x01" * 2 + b"t", b"(K\x01K\x01K\x01t"),
        "zero strides": (b"(M\xff\xffM\xff\xffM\xff\xfft", b"(K\x00K\x00K\x00t"),
    }
    for name, (shape, stride) in shapes.items():
        made = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + stride + b"\x89NtR"
        body = b"}(" + text("encoder.0.weight") + made + b"u"
        content = archive({"a/data.pkl": b"\x80\x02" + body + b".", "a/data/0": bytes(16)})
        yield name, published(folder / f"shape {name}.pth".replace(",", ""), content)
    old = saved(BACKBONE, legacy=True)
    for name, content in {
        "not ours": pickle.dumps([1, 2, 3]),
        "mark only": pickle.dumps(0x1950A86A20F9469CFC6C, 2),
        "numbers cut": old[:-40],
        "count of numbers": old[:-440] + b"\xff" * 7 + b"\x7f" + old[-432:],
        "big-endian": old.replace(b"little_endian", b"little_endiaN"),
        "cut": old[: len(old) // 2],
    }.items():
        yield f"{name}, legacy", published(folder / f"legacy {name}.pth", content)


# -- names and shapes of tensors ---------------------------------------------------------------------------------------


def shared(names: Mapping[str, tuple[int, ...]]) -> bytes:
    """A file in which all tensors are views of one storage, of the size of the largest."""
    base = torch.zeros(max(int(np.prod(shape)) for shape in names.values()))
    return saved({name: base[: int(np.prod(shape))].view(shape) for name, shape in names.items()})


def resnet_boq(**more: Tensor) -> dict[str, Tensor]:
    base = make_backbone("resnet18", cut="layer3").state_dict()
    numbers = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6"}
    found = {f"backbone.net.{numbers[name.partition('.')[0]]}.{name.partition('.')[2]}": v for name, v in base.items()}
    found |= {"aggregator.proj_c.weight": torch.zeros(64, 256, 3, 3), "aggregator.fc.weight": torch.zeros(2, 2)}
    found |= {"aggregator.boqs.0.queries": torch.zeros(1, 2, 64)}
    return found | {name.replace("__", "."): value for name, value in more.items()}


def resnet_mixvpr(mixers: list[str]) -> dict[str, Tensor]:
    found = {f"backbone.model.{name}": v for name, v in make_backbone("resnet18", cut="layer3").state_dict().items()}
    found |= {"aggregator.row_proj.weight": torch.zeros(2, 4), "aggregator.channel_proj.weight": torch.zeros(8, 256)}
    found |= {"aggregator.mix.0.mix.1.weight": torch.zeros(4, 4)}
    return found | {f"aggregator.mix.{number}.mix.0.weight": torch.zeros(4) for number in mixers}


def hugging_face(**odd: Tensor) -> dict[str, Tensor]:
    found = {"embeddings.patch_embeddings.projection.weight": torch.zeros(384, 3, 14, 14)}
    found["encoder.layer.0.norm1.weight"] = torch.zeros(384)
    for part in ("query", "key", "value"):
        found[f"encoder.layer.0.attention.attention.{part}.weight"] = torch.zeros(384, 384)
    return found | {name.replace("__", "."): tensor for name, tensor in odd.items()}


def _names(folder: Path, large: bool) -> Iterator[Case]:
    digits = "9" * 5000
    many = 9000 if large else 900
    attention = "encoder__layer__0__attention__attention__{}__weight"
    states: dict[str, dict[str, Tensor] | Callable[[], dict[str, Tensor]]] = {
        "boq of 1,000,000": resnet_boq(aggregator__boqs__999999__queries=torch.zeros(1, 2, 64)),
        "boq of 5,000 digits": resnet_boq(**{f"aggregator.boqs.{digits}.queries": torch.zeros(1, 2, 64)}),
        "boq of thousands": resnet_boq(**{f"aggregator.boqs.{n}.queries": torch.zeros(1) for n in range(many)}),
        "boq of width 1": resnet_boq(aggregator__proj_c__weight=torch.zeros(1, 256, 3, 3)),
        "boq of 10,000,000 queries": lambda: resnet_boq(aggregator__boqs__0__queries=torch.zeros(1, 10**7, 1)),
        "mixvpr of 1,000,000": resnet_mixvpr(["999999"]),
        "mixvpr of 5,000 digits": resnet_mixvpr([digits]),
        "mixvpr of thousands": resnet_mixvpr([str(n) for n in range(many)]),
        "mixvpr of 4,000,000 locations": lambda: (
            resnet_mixvpr(["0"]) | {"aggregator.row_proj.weight": torch.zeros(2, 4 * 10**6)}
        ),
        "resnet of 1,000,000 blocks": {"encoder.0.weight": torch.zeros(1)}
        | resnet_mixvpr(["0"])
        | {"backbone.model.layer3.999999.conv1.weight": torch.zeros(1)},
        "registers of one dimension": hugging_face(embeddings__register_tokens=torch.zeros(4)),
        "registers of no dimension": hugging_face(embeddings__register_tokens=torch.zeros(())),
        "1,000,000 registers": hugging_face(embeddings__register_tokens=torch.zeros(1, 10**6, 1)),
        "query of no dimension": hugging_face(**{attention.format("query"): torch.zeros(())}),
        "attention of no dimension": hugging_face(
            **{attention.format(part): torch.zeros(()) for part in ("query", "key", "value")}
        ),
        "keys of another shape": hugging_face(**{attention.format("key"): torch.zeros(384, 7)}),
        "keys of another type": hugging_face(**{attention.format("key"): torch.zeros(384, 384, dtype=torch.int64)}),
        "attention of 60 MB": lambda: hugging_face(
            **{attention.format(part): torch.zeros(10**7, dtype=torch.float16) for part in ("query", "key", "value")}
        ),
        "block of 5,000 digits": hugging_face(**{f"encoder.layer.{digits}.norm1.weight": torch.zeros(1)}),
        "name of 1,000,000 characters": {"encoder.0.weight": torch.zeros(4, 3, 3, 3), "a" * 10**6: torch.zeros(1)},
        "one name twice": {"encoder.0.weight": torch.zeros(1), "module.encoder.0.weight": torch.zeros(1)},
        "empty name": {"": torch.zeros(1)},
        "too many tensors": {
            f"encoder.{n}.weight": torch.zeros(1) for n in range(20_100 if large else MAX_TENSORS + 1)
        },
        "patches of no dimension": {"patch_embed.proj.weight": torch.zeros(()), "blocks.0.a": torch.zeros(1)},
        "salad of no dimension": {
            "aggregator.score.3.weight": torch.zeros(()),
            "aggregator.cluster_features.3.weight": torch.zeros(()),
            "backbone.model.patch_embed.proj.weight": torch.zeros(384, 3, 14, 14),
        },
        "cosplace of no dimension": {"aggregation.1.p": torch.zeros(()), "aggregation.3.weight": torch.zeros(())},
        "clusters of 90 MB": lambda: {
            **{f"base_model.base.{n}": v for n, v in _vgg().items()},
            "net_vlad.conv.weight": torch.zeros(8_000, 512, 1, 1),
            "net_vlad.centroids": torch.zeros(7_000, 512),
        },
        "whitening with equal rows, 90 MB": lambda: {
            "net_vlad.conv.weight": torch.zeros(1, 512, 1, 1),
            "pca_layer.weight": torch.ones(700, 32768, 1, 1),
            "pca_layer.bias": torch.arange(700.0),
        },
        "whitening with equal rows, 90 MB of float16": lambda: {
            "net_vlad.conv.weight": torch.zeros(1, 512, 1, 1),
            "pca_layer.weight": torch.ones(1400, 32768, 1, 1, dtype=torch.float16),
            "pca_layer.bias": torch.arange(1400.0),
        },
        "whitening that converges slowly, 90 MB": lambda: {
            "net_vlad.conv.weight": torch.zeros(1, 512, 1, 1),
            "pca_layer.weight": torch.eye(4700, 4720).add_(0.01)[:, :, None, None],
            "pca_layer.bias": torch.arange(4700.0),
        },
    }
    for number, (name, given) in enumerate(states.items()):
        if isinstance(given, dict) or large:
            state = given if isinstance(given, dict) else given()
            yield name, published(folder / f"{number}.pth", saved(state))
            path = folder / f"{number}.safetensors"
            save_file(state, path)
            yield f"{name}, safetensors", published(path)
            for written_file in folder.glob(f"{number}.*"):
                written_file.unlink()
    empty = folder / "backbone.safetensors"
    save_file({"encoder.layer.0.attention.attention.query.weight": torch.zeros(())}, empty)
    yield "backbone of nothing", lambda: load_backbone_weights(make_backbone("dinov2-s"), empty)
    if large:
        vit = shapes_of("dinov2-g")
        slices = dict(zip((f"encoder.{n}.weight" for n in range(9000)), torch.zeros(9000, 1100), strict=True))
        yield "9,000 slices of 40 MB", published(folder / "slices.pth", saved(slices))
        yield "4 GB of tensors that share 50 MB", published(folder / "shared.pth", shared(vit))
        transposed = torch.zeros(4096, 1536).T
        state = {name: transposed for name in vit if name.endswith("qkv.weight")}
        state |= {"patch_embed.proj.weight": torch.zeros(1536, 3, 14, 14), "blocks.0.a": torch.zeros(1)}
        yield "1 GB of tensors that share 25 MB, transposed", published(folder / "transposed.pth", saved(state))
        half = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in shapes_of("dinov2-s").items()}
        half["norm.bias"][-1] = float("nan")
        yield "not a number at the end", published(folder / "nan.pth", saved(half))
        odd = folder / "float8.safetensors"
        save_file({"encoder.0.weight": torch.zeros(90_000_000, dtype=torch.float8_e5m2)}, odd)
        yield "90 MB of float8", published(odd)


def _vgg() -> dict[str, Tensor]:
    with torch.device("meta"):
        names = make_backbone("vgg16").state_dict()
    return {name.removeprefix("features."): torch.zeros(v.shape) for name, v in names.items()}


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of DINOv2's tensors, under the authors' names."""
    with torch.device("meta"):
        state = make_backbone(name).state_dict()
    theirs = {name: name.replace("embed.proj", "patch_embed.proj").removeprefix("embed.") for name in state}
    return {theirs[name]: tuple(tensor.shape) for name, tensor in state.items()}


# -- safetensors -------------------------------------------------------------------------------------------------------


def safetensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(shape: list[int], size: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}


def _safetensors(folder: Path, large: bool) -> Iterator[Case]:
    small = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    many = {
        f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        for n in range(60_000 if large else MAX_TENSORS + 1)
    }
    cases: dict[str, bytes | Large] = {
        "no header": b"",
        "header of 8 EB": safetensors(b"{}", length=(1 << 63) - 1),
        "header of 16 EB": safetensors(b"{}", length=(1 << 64) - 1),
        "header beyond the file": safetensors(b"{}", length=1000),
        "header that is no JSON": safetensors(b"{" + b"[" * 100),
        "90 MB of nesting": lambda: safetensors(b'{"a":' + b"[" * 90_000_000),
        "3 MB of nesting": safetensors(b'{"a":' + b"[" * 3_000_000),
        "empty": safetensors(b"{}"),
        "too many tensors": safetensors(json.dumps(many).encode()),
        "1,500,000 tensors": lambda: safetensors(b"{" + b",".join(small % n for n in range(1_500_000)) + b"}"),
        "1,000,000 dimensions": safetensors(
            json.dumps({"encoder.0.weight": entry([1] * 1_000_000, 4)}).encode(), bytes(4)
        ),
        "empty and huge": safetensors(json.dumps({"encoder.0.weight": entry([0, 1 << 62, 1 << 62], 0)}).encode()),
        "huge": safetensors(json.dumps({"encoder.0.weight": entry([1 << 40], 1 << 42)}).encode(), bytes(4)),
        "overflowing": safetensors(json.dumps({"encoder.0.weight": entry([1 << 63, 2], 0)}).encode()),
        "negative": safetensors(json.dumps({"encoder.0.weight": entry([-1], 4)}).encode(), bytes(4)),
        "side of 5,000 digits": safetensors(
            b'{"encoder.0.weight":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', bytes(4)
        ),
        "unknown type": safetensors(json.dumps({"encoder.0.weight": entry([1], 4, "F4")}).encode(), bytes(4)),
        "truth": safetensors(json.dumps({"encoder.0.weight": entry([4], 4, "BOOL")}).encode(), bytes(4)),
        "overlapping": safetensors(
            json.dumps({"encoder.0.weight": entry([1], 4), "encoder.1.weight": entry([1], 4)}).encode(), bytes(4)
        ),
    }
    yield from written(folder, ".safetensors", cases, large)


# -- our own checkpoints -----------------------------------------------------------------------------------------------


def _checkpoints(folder: Path, large: bool) -> Iterator[Case]:
    model = make_model("alexnet", "gem", size=(64, 64), rng=torch.Generator().manual_seed(1))
    small = {"a": torch.zeros(1)}
    about = {
        "format": "sareloc-checkpoint",
        "version": 1,
        "storage": "float32",
        "fingerprint": model.fingerprint(),
        "spec": json.loads(model.spec().to_json()),
    }
    nested_list: Any = []
    for _ in range(500):
        nested_list = [nested_list]
    specs: dict[str, dict[str, Any]] = {}
    for name, knobs in {
        "boq depth": {"depth": 1 << 20},
        "boq depth of 5,000 digits": {"depth": 10**4000},
        "boq width": {"width": 1 << 20, "queries": 1 << 20, "rows": 1 << 20},
        "boq width is text": {"width": "wide"},
        "boq width is a list": {"width": [384]},
        "boq heads": {"heads": -1},
        "boq unknown": {"colour": 3},
        "boq number": {"depth": 2.5},
        "boq infinite": {"depth": float("inf")},
    }.items():
        specs[name] = {"aggregation": "boq", "knobs": knobs}
    specs |= {
        "mixvpr depth": {"aggregation": "mixvpr", "knobs": {"depth": 1 << 20}},
        "mixvpr size": {"aggregation": "mixvpr", "knobs": {"height": 1 << 20, "width": 1 << 20, "mlp_ratio": 1 << 20}},
        "mixvpr mixers": {"aggregation": "mixvpr", "knobs": {"height": 1024, "width": 1024, "mlp_ratio": 1 << 20}},
        "mixvpr rows": {
            "aggregation": "mixvpr",
            "knobs": {"rows": 1 << 20, "out_channels": 1 << 20},
            "whitening": 1 << 24,
        },
        "netvlad clusters": {"aggregation": "netvlad", "knobs": {"clusters": 1 << 20}, "whitening": 1 << 24},
        "crn clusters": {"aggregation": "crn", "knobs": {"clusters": 1 << 20}},
        "vlad clusters": {"aggregation": "vlad", "knobs": {"clusters": 1 << 60}},
        "megaloc": {
            "backbone": "dinov2-g",
            "cut": "norm",
            "train_from": "block39",
            "aggregation": "megaloc",
            "knobs": {"clusters": 1 << 20, "cluster_dim": 1 << 20, "out_dim": 1 << 20},
            "whitening": 1 << 24,
        },
        "gem power": {"knobs": {"p": 1e308}},
        "gem power is text": {"knobs": {"p": "three"}},
        "whitening": {"whitening": 1 << 24},
        "whitening of 5,000 digits": {"whitening": 10**4000},
        "dinov2-g": {"backbone": "dinov2-g", "cut": "block39-value", "train_from": "nothing"},
        "backbone": {"backbone": "vgg" * 1000},
        "backbone is a list": {"backbone": nested_list},
        "cut": {"cut": "block999999"},
        "name of 3 MB": {"name": "n" * 3_000_000, "aggregation": "none"},
        "knobs are a list": {"knobs": nested_list},
        "size": {"preprocess": {**about["spec"]["preprocess"], "resize": [1 << 40, 1 << 40]}},
        "size of many sides": {
            "preprocess": {**about["spec"]["preprocess"], "resize": [64] * (1_000_000 if large else 100_000)}
        },
        "mean": {"preprocess": {**about["spec"]["preprocess"], "mean": [10**400] * 3}},
    }
    descriptions: dict[str, Any] = {name: {**about, "spec": {**about["spec"], **spec}} for name, spec in specs.items()}
    descriptions |= {
        "no spec": {**about, "spec": None},
        "a list": [about],
        "version is text": {**about, "version": "x"},
        "version of 4,000 digits": {**about, "version": 10**4000},
        "fingerprint is a list": {**about, "fingerprint": nested_list},
        "fingerprint of 1 MB": {**about, "fingerprint": "f" * 1_000_000},
        "storage is a list": {**about, "storage": [1]},
    }
    state = model.state_dict()
    for number, (name, description) in enumerate(descriptions.items()):
        path = folder / f"{number}.safetensors"
        said = json.dumps(description)
        save_file(state if "fingerprint" in name else small, path, {"sareloc": said})
        yield name, lambda path=path: load_model(path)
        inside = folder / str(number)
        inside.mkdir(exist_ok=True)
        (inside / "spec.json").write_text(said)
        save_file(small, inside / "weights.safetensors")
        yield f"{name}, folder", lambda path=inside: load_model(path)
    records: dict[str, bytes | Large] = {
        "90 MB of JSON": lambda: b"[" + b"{}," * 30_000_000 + b"{}]",
        "3.9 MB of JSON": b"[" + b"{}," * 1_300_000 + b"{}]",
        "nested JSON": b"[" * 1_000_000,
        "not JSON": b"\xff\xfe",
        "number of 1,000,000 digits": b"9" * 1_000_000,
    }
    for name, content in records.items():
        if callable(content) and not large:
            continue
        for file in ("spec.json", "training.json"):
            inside = folder / f"{name} {file}"
            inside.mkdir(exist_ok=True)
            (inside / "spec.json").write_text(json.dumps({**about, "fingerprint": "0" * 16}))
            (inside / file).write_bytes(content if isinstance(content, bytes) else content())
            save_file(state, inside / "weights.safetensors")
            yield f"{name} as {file}", lambda path=inside: load_model(path)
    netvlad = make_model("alexnet", "netvlad", size=(64, 64), clusters=24, rng=torch.Generator().manual_seed(1))
    rows = 14_000 if large else 10
    spec = {**json.loads(netvlad.spec().to_json()), "whitening": rows}
    tensors = {**netvlad.state_dict(), "whitening.mean": torch.zeros(24 * 256)}
    tensors["whitening.projection"] = torch.ones(rows, 24 * 256, dtype=torch.int8)
    tensors["whitening.projection#row-scale"] = torch.ones(rows)
    path = folder / "int8.safetensors"
    save_file(tensors, path, {"sareloc": json.dumps({**about, "spec": spec, "storage": "int8"})})
    yield "another fingerprint, int8", lambda: load_model(path)
    del tensors["whitening.projection#row-scale"]
    tensors["whitening.projection"] = tensors["whitening.projection"].to(torch.float8_e5m2)
    other = folder / "float8.safetensors"
    save_file(tensors, other, {"sareloc": json.dumps({**about, "spec": spec})})
    yield "float8", lambda: load_model(other)
    whole = folder / "good"
    save_checkpoint(model, whole)
    (whole / "weights.safetensors").unlink()
    os.mkfifo(whole / "weights.safetensors")
    yield "weights are a pipe", lambda: load_model(whole)


# -- MATLAB ------------------------------------------------------------------------------------------------------------


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<2I", kind, len(content)) + content + bytes(-len(content) % 8)


def array(kind: int, dims: tuple[int, ...], content: bytes, name: str = "") -> bytes:
    flags = element(6, struct.pack("<2I", kind, 0))
    sizes = element(5, struct.pack(f"<{len(dims)}i", *dims))
    return element(14, flags + sizes + element(1, name.encode()) + content)


def struct_of(fields: Mapping[str, bytes], name: str = "") -> bytes:
    names = b"".join(field.encode().ljust(32, b"\0") for field in fields)
    length = struct.pack("<2HI", 5, 4, 32)
    return array(2, (1, 1), length + element(1, names) + b"".join(fields.values()), name)


def numbers(shape: tuple[int, ...], kind: int = 7, size: int = 4) -> bytes:
    return array(7, shape, element(kind, bytes(size * int(np.prod(shape)))))


def cells(entries: list[bytes], dims: tuple[int, ...] | None = None) -> bytes:
    return array(1, dims or (1, len(entries)), b"".join(entries))


def packed(content: bytes) -> bytes:
    squeezed = zlib.compress(content, 1)
    return struct.pack("<2I", 15, len(squeezed)) + squeezed


def _matlab(folder: Path, large: bool) -> Iterator[Case]:
    start = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    deep = numbers((1, 1))
    for _ in range(3000):
        deep = cells([deep])
    empty = struct.pack("<2I", 14, 0)
    layers: dict[str, bytes | Large] = {
        "deep cells": deep,
        "10,000,000 empty cells": lambda: array(1, (1, 10_000_000), empty * 10_000_000),
        "10,000,000 structs without fields": lambda: array(
            2, (1, 10_000_000), struct.pack("<2HI", 5, 4, 32) + element(1, b"") + bytes(10_000_000)
        ),
        "1,000,000 fields": array(2, (1, 1), struct.pack("<2HI", 5, 4, 1) + element(1, b"a" * 1_000_000)),
        "fields of no length": array(2, (1, 1), struct.pack("<2HI", 5, 4, 0) + element(1, b"a" * 100)),
        "fields of 4 GB": array(2, (1, 1), struct.pack("<2HI", 5, 4, 0xFFFFFFFF) + element(1, b"a" * 100)),
        "90 MB of text": lambda: array(4, (1, 45_000_000), element(4, bytes(90_000_000))),
        "90 MB of bytes": lambda: cells([struct_of({"weights": cells([numbers((90_000_000, 1), 2, 1)])})]),
        "90 MB kernel": lambda: cells([struct_of({"weights": cells([numbers((3, 3, 50, 50_000)), numbers((1, 1))])})]),
        "many dimensions": array(7, (1,) * 100_000, element(7, bytes(4))),
        "no dimensions": array(7, (), element(7, bytes(4))),
        "negative dimensions": array(7, (-1, -4), element(7, bytes(16))),
        "dimensions of 2 billion": array(7, (2**31 - 1, 2**31 - 1), element(7, bytes(16))),
        "unknown numbers": array(7, (1, 1), element(99, bytes(4))),
        "kind 0": array(0, (1, 1), element(7, bytes(4))),
        "sparse": array(5, (1, 1), element(7, bytes(4))),
        "object": array(3, (1, 1), element(7, bytes(4))),
        "opaque": array(17, (1, 1), element(7, bytes(4))),
        "not an array": element(7, bytes(4)),
        "number": numbers((1, 1)),
        "13 layers of nothing": cells([struct_of({"weights": cells([numbers((0, 0))] * 2)})] * 14),
        "13 layers of numbers": cells([struct_of({"weights": cells([numbers((1, 1))] * 2)})] * 14),
        "12 cells in cells": cells([cells([numbers((1, 1))] * 2)] * 14),
    }
    for number, (name, given) in enumerate(layers.items()):
        if isinstance(given, bytes) or large:
            net = struct_of({"layers": given if isinstance(given, bytes) else given()}, "net")
            yield name, published(folder / f"{number}.mat", start + net)
            yield f"{name}, compressed", published(folder / f"{number} packed.mat", start + packed(net))
            (folder / f"{number}.mat").unlink()
    other = array(7, (1, 1), element(7, bytes(4)), "other")
    many: dict[str, bytes | Large] = {
        "10,000,000 variables": lambda: start + struct.pack("<2I", 1, 0) * 10_000_000,
        "2,000 variables": start + other * 2000,
        "900 compressed variables of 8 MB": lambda: (
            start + packed(array(7, (1, 2_000_000), element(7, bytes(8_000_000)), "other")) * 900
        ),
    }
    yield from written(folder, ".mat", many, large)
    yield "element of 4 GB", published(folder / "a.mat", start + struct.pack("<2I", 14, 0xFFFFFFFF) + bytes(100))
    yield "compressed garbage", published(folder / "b.mat", start + struct.pack("<2I", 15, 100) + bytes(100))
    yield "big-endian", published(folder / "c.mat", start[:124] + b"\x01\x00MI" + bytes(1000))
    yield "version 9", published(folder / "d.mat", start[:124] + b"\x00\x09IM" + bytes(1000))
    yield "header only", published(folder / "e.mat", start)
    yield "half a header", published(folder / "f.mat", start[:60])


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def _hdf5(folder: Path, large: bool) -> Iterator[Case]:
    try:
        import h5py
    except ImportError:
        return
    weights = folder / "w.pth"
    state = {f"base_model.base.{name}": tensor for name, tensor in _vgg().items()}
    state |= {"net_vlad.conv.weight": torch.zeros(3, 512, 1, 1), "net_vlad.centroids": torch.zeros(3, 512)}
    torch.save(state, weights)
    (folder / "numbers").write_bytes(bytes(1_000_000))
    os.mkfifo(folder / "pipe")

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((1536, 8), "f4")
        layout[:] = h5py.VirtualSource(str(folder / "pipe"), "U", (1536, 8))
        file.create_virtual_dataset("U", layout)

    def external(file: Any) -> None:
        file.create_dataset("U", (1536, 8), "f4", external=[(str(folder / "numbers"), 0, 49152)])

    def linked(file: Any) -> None:
        file["U"] = h5py.ExternalLink(str(folder / "pipe"), "U")

    def looped(file: Any) -> None:
        file["U"] = h5py.SoftLink("U")

    def squeezed(file: Any) -> None:
        file.create_dataset(
            "U", (1536, squeezed_columns), "f4", data=np.zeros((1536, squeezed_columns), np.float32), compression="gzip"
        )

    def declared(file: Any) -> None:
        file.create_dataset("U", (1536, 10**9), "f4", chunks=(16, 16))

    def tiny(file: Any) -> None:
        file.create_dataset("U", data=np.zeros((1536, 50_000), np.uint8))

    def group(file: Any) -> None:
        file.create_group("U")

    def null(file: Any) -> None:
        file.create_dataset("U", data=h5py.Empty("f4"))

    columns, squeezed_columns = (15_000, 20_000) if large else (8, 2_000)

    def not_finite(file: Any) -> None:
        file.create_dataset("U", data=np.full((1536, columns), np.nan, np.float32))

    def nothing(file: Any) -> None:
        pass

    makers = (virtual, external, linked, looped, squeezed, declared, tiny, group, null, not_finite, nothing)
    for make in makers:
        path = folder / f"{make.__name__}.h5"
        with h5py.File(path, "w") as file:
            make(file)
            size = columns if make is not_finite else 8
            file["lams"], file["mu"] = np.ones(size), np.zeros((1536, 1))
        yield make.__name__, lambda path=path: load_published(weights, pca=path)
    yield "a pipe", lambda: load_published(weights, pca=folder / "pipe")


# -- what is not a file ------------------------------------------------------------------------------------------------


def _special(folder: Path, large: bool) -> Iterator[Case]:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    here = socket.socket(socket.AF_UNIX)
    address = folder / "socket"
    before = Path.cwd()
    os.chdir(folder)  # an address has at most 107 characters
    try:
        here.bind(address.name)
    finally:
        os.chdir(before)
        here.close()
    loop = folder / "loop"
    loop.symlink_to(loop)
    for path in (pipe, address, Path("/dev/zero"), folder, loop, folder / "absent", Path("a\0b")):
        name = repr(path.name)
        yield f"{name} as published weights", lambda path=path: load_published(path)
        yield f"{name} as a model", lambda path=path: load_model(path)
        yield f"{name} as matconvnet", lambda path=path: load_published(path, "matconvnet")
        yield f"{name} as a backbone", lambda path=path: load_backbone_weights(make_backbone("alexnet"), path)


KINDS: dict[str, Callable[[Path, bool], Iterator[Case]]] = {
    "zip": _zips,
    "pickle": _pickles,
    "names": _names,
    "safetensors": _safetensors,
    "checkpoint": _checkpoints,
    "matlab": _matlab,
    "hdf5": _hdf5,
    "special": _special,
}
