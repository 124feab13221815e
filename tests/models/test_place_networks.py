"""Published networks since 2022: files of the same structure made here, and what the originals compute from them.

Names and shapes are written down from the authors' code, which `tests.models.families` names for each family; numbers
come from the twins of backbones and heads, written from the same facts.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.models import heads
from tests.models.families import record_difference
from tests.models.test_backbones import resnet_tensors, resnet_twin
from tests.models.transformers import (
    TINY,
    State,
    dinov2_shapes,
    dinov2_twin,
    random_tensors,
    tiny_transformers,  # noqa: F401
    to_hugging_face,
)
from torch import Tensor

from sareloc.errors import ArgumentError, WeightsError
from sareloc.models import PlaceModel, Preprocess, load_published, open_checkpoint, save_checkpoint
from sareloc.models.backbones import VITS
from sareloc.models.published import PUBLISHED, networks

pytestmark = pytest.mark.usefixtures("tiny_transformers")
Shapes = dict[str, tuple[int, ...]]
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
NUMBERED = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}


def under(prefix: str, shapes: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


def numbered(prefix: str, shapes: Shapes) -> Shapes:
    """A ResNet as a torch.nn.Sequential."""
    parts = (name.partition(".") for name in shapes)
    return {f"{prefix}{NUMBERED[first]}.{rest}": shapes[f"{first}.{rest}"] for first, _, rest in parts}


def layer(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def salad_shapes(
    channels: int, clusters: int = 64, cluster_dim: int = 128, token: int = 256, hidden: int = 512
) -> Shapes:
    return {
        "dust_bin": (), **layer("token_features.0", hidden, channels), **layer("token_features.2", token, hidden),
        **layer("cluster_features.0", hidden, channels, 1, 1),
        **layer("cluster_features.3", cluster_dim, hidden, 1, 1),
        **layer("score.0", hidden, channels, 1, 1), **layer("score.3", clusters, hidden, 1, 1),
    }  # fmt: skip


def mixvpr_shapes(channels: int, locations: int, out: int, depth: int, ratio: int, rows: int) -> Shapes:
    shapes = {**layer("channel_proj", out, channels), **layer("row_proj", rows, locations)}
    for i in range(depth):
        shapes |= layer(f"mix.{i}.mix.0", locations) | layer(f"mix.{i}.mix.1", ratio * locations, locations)
        shapes |= layer(f"mix.{i}.mix.3", locations, ratio * locations)
    return shapes


def boq_shapes(channels: int, width: int, queries: int, depth: int, rows: int) -> Shapes:
    shapes = {
        **layer("proj_c", width, channels, 3, 3), **layer("norm_input", width), **layer("fc", rows, depth * queries),
    }  # fmt: skip
    for i in range(depth):
        at = f"boqs.{i}"
        shapes[f"{at}.queries"] = (1, queries, width)
        for name in ("encoder.self_attn", "self_attn", "cross_attn"):
            shapes |= {f"{at}.{name}.in_proj_weight": (3 * width, width), f"{at}.{name}.in_proj_bias": (3 * width,)}
            shapes |= layer(f"{at}.{name}.out_proj", width, width)
        for name in ("encoder.norm1", "encoder.norm2", "norm_q", "norm_out"):
            shapes |= layer(f"{at}.{name}", width)
        shapes |= layer(f"{at}.encoder.linear1", 4 * width, width) | layer(f"{at}.encoder.linear2", width, 4 * width)
    return shapes


def pixels(size: tuple[int, int]) -> Tensor:
    return torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)


def normalised(images: Tensor) -> Tensor:
    return (images.double() / 255 - MEAN[:, None, None]) / STD[:, None, None]


def sharpened(state: State) -> State:
    """The same file with assignments that decide, as trained ones do: nearly uniform ones hide differences."""
    return {name: 4 * tensor if name.endswith("score.3.weight") else tensor for name, tensor in state.items()}


def by_twin(head: Any, state: State, prefix: str, features: Tensor, token: Tensor | None = None) -> Tensor:
    """The descriptor of a slow twin of the head, from the part of a file under a prefix."""
    own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return torch.tensor(head(own, features.flatten(1).T.tolist(), [] if token is None else token.tolist()))


def assert_computes(model: PlaceModel, images: Tensor, expected: list[Tensor], folder: Path, family: str) -> None:
    found = model(images)
    record_difference(family, found, torch.stack(expected))
    torch.testing.assert_close(found, torch.stack(expected).float(), rtol=0, atol=1e-5)
    assert (expected[0] - expected[1]).norm() > 1e-3  # the images differ enough for the comparison to mean something
    save_checkpoint(model, folder / "ours.safetensors")
    opened = open_checkpoint(folder / "ours.safetensors")
    assert opened.fingerprint() == model.fingerprint()
    torch.testing.assert_close(opened(images), found, atol=1e-5, rtol=0)


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


SIZES = [(70, 98), (75, 90)]


# --- on ResNets and VGG16 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(64, 80), (70, 66)])
def test_cosplace_and_eigenplaces_compute_what_theirs_do(size: tuple[int, int], tmp_path: Path) -> None:
    resnet = resnet_tensors([2, 2, 2, 2], bottleneck=False)
    head = {"aggregation.1.p": (1,), **layer("aggregation.3", 8, 512)}
    state = random_tensors(numbered("backbone.", resnet) | head)
    state["aggregation.1.p"].fill_(2.7)
    torch.save(state, tmp_path / "any name")
    model, images = load_published(tmp_path / "any name"), pixels(size)
    assert (model.name, model.backbone.cut, model.preprocess.resize) == ("resnet18-cosplace", "layer4", 640)
    names = dict(zip(numbered("backbone.", resnet), resnet, strict=True))
    base = {names[name]: tensor.double() for name, tensor in state.items() if name in names}
    maps = resnet_twin(base, normalised(images), [2, 2, 2, 2], convs=2)
    own = {"gem.p": state["aggregation.1.p"]}
    own |= {f"linear.{kind}": state[f"aggregation.3.{kind}"] for kind in ("weight", "bias")}
    expected = [torch.tensor(heads.cosplace(own, m.flatten(1).T.tolist(), [])) for m in maps]
    assert_computes(model, images, expected, tmp_path, "CosPlace, EigenPlaces")


@pytest.mark.parametrize(
    ("name", "repeats", "dim"),
    [("resnet50", [3, 4, 6, 3], 2048), ("resnet101", [3, 4, 23, 3], 128), ("resnet152", [3, 8, 36, 3], 32)],
)
def test_cosplace_on_deeper_networks(name: str, repeats: list[int], dim: int) -> None:
    head = {"aggregation.1.p": (1,), **layer("aggregation.3", dim, 2048)}
    shapes = numbered("backbone.", resnet_tensors(repeats, bottleneck=True)) | head
    model = without_values("cosplace", shapes)
    assert (model.backbone.name, model.backbone.cut, model.dim) == (name, "layer4", dim)


def without_values(kind: str, shapes: Shapes) -> PlaceModel:
    """The model of tensors on the device "meta", for tests of names and shapes at full size."""
    counted = {n for n in shapes if n.endswith("num_batches_tracked")}
    state = {
        n: torch.empty(s, dtype=torch.int64 if n in counted else torch.float16, device="meta")
        for n, s in shapes.items()
    }
    return PUBLISHED[kind].load(state, "file")


def test_cosplace_on_vgg16_computes_what_the_authors_does(tmp_path: Path) -> None:
    widths = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512]
    number, depth, convs = 0, 3, {}
    for width in widths:
        if width:
            convs |= layer(f"backbone.{number}", width, depth, 3, 3)
            depth = width
        number += 2 if width else 1
    state = random_tensors(convs | {"aggregation.1.p": (1,), **layer("aggregation.3", 4, 512)})
    state["aggregation.1.p"].fill_(3)
    torch.save(state, tmp_path / "VGG16_4_cosplace.pth")
    model, images = load_published(tmp_path / "VGG16_4_cosplace.pth"), pixels((64, 64))
    assert (model.backbone.name, model.dim) == ("vgg16", 4)
    x = normalised(images)
    for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28):  # neither ReLU nor pooling after the last
        kernel, bias = (state[f"backbone.{i}.{kind}"].double() for kind in ("weight", "bias"))
        x = torch.nn.functional.conv2d(x, kernel, bias, padding=1)
        x = x.clamp(min=0) if i < 28 else x
        x = torch.nn.functional.max_pool2d(x, 2) if i in (2, 7, 14, 21) else x
    own = {"gem.p": state["aggregation.1.p"]}
    own |= {f"linear.{kind}": state[f"aggregation.3.{kind}"] for kind in ("weight", "bias")}
    expected = [torch.tensor(heads.cosplace(own, m.flatten(1).T.tolist(), [])) for m in x]
    assert_computes(model, images, expected, tmp_path, "CosPlace, EigenPlaces")


def test_mixvpr_computes_what_the_authors_does(tmp_path: Path) -> None:
    resnet = resnet_tensors([2, 2, 2], bottleneck=False)
    head = mixvpr_shapes(256, locations=25, out=5, depth=2, ratio=2, rows=3)
    state = random_tensors(under("backbone.model.", resnet) | under("aggregator.", head))
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "resnet50_MixVPR.ckpt")
    model, images = load_published(tmp_path / "resnet50_MixVPR.ckpt"), pixels((80, 80))
    assert (model.name, model.backbone.cut, model.preprocess.resize) == ("resnet18-mixvpr", "layer3", (80, 80))
    base = {n.removeprefix("backbone.model."): t.double() for n, t in state.items() if n.startswith("backbone.")}
    maps = resnet_twin(base, normalised(images), [2, 2, 2], convs=2)
    assert_computes(model, images, [by_twin(heads.mixvpr, state, "aggregator.", m) for m in maps], tmp_path, "MixVPR")
    with pytest.raises(ArgumentError, match="5 x 5 locations, found 5 x 6"):
        model(pixels((80, 96)))


@pytest.mark.parametrize(("dim", "out", "rows"), [(4096, 1024, 4), (512, 256, 2), (128, 64, 2)])
def test_mixvpr_as_published(dim: int, out: int, rows: int) -> None:
    resnet = under("backbone.model.", resnet_tensors([3, 4, 6], bottleneck=True))
    shapes = resnet | under("aggregator.", mixvpr_shapes(1024, 400, out, 4, 1, rows))
    model = without_values("mixvpr", shapes)
    assert (model.backbone.name, model.dim, model.preprocess) == ("resnet50", dim, Preprocess(resize=(320, 320)))
    assert model.aggregation.options()["row_bias"] is True
    del shapes["aggregator.row_proj.bias"]  # as the authors' first code saved it
    assert without_values("mixvpr", shapes).aggregation.options()["row_bias"] is False


@pytest.mark.parametrize("size", [(64, 80), (70, 90)])
def test_boq_on_a_resnet_computes_what_the_authors_does(size: tuple[int, int], tmp_path: Path) -> None:
    resnet = resnet_tensors([2, 2, 2], bottleneck=False)
    state = random_tensors(numbered("backbone.net.", resnet) | under("aggregator.", boq_shapes(256, 6, 3, 2, 4)))
    torch.save(state, tmp_path / "boq.pth")
    model, images = load_published(tmp_path / "boq.pth"), pixels(size)
    assert (model.name, model.preprocess) == ("resnet18-boq", Preprocess(resize=(384, 384), interpolation="bicubic"))
    names = dict(zip(numbered("backbone.net.", resnet), resnet, strict=True))
    base = {names[name]: tensor.double() for name, tensor in state.items() if name in names}
    maps = resnet_twin(base, normalised(images), [2, 2, 2], convs=2)
    twin = partial(heads.boq, width=maps.shape[3], heads=1)
    assert_computes(model, images, [by_twin(twin, state, "aggregator.", m) for m in maps], tmp_path, "BoQ")


def test_boq_as_published() -> None:
    resnet = numbered("backbone.net.", resnet_tensors([3, 4, 6], bottleneck=True))
    model = without_values("boq", resnet | under("aggregator.", boq_shapes(1024, 512, 64, 2, 32)))
    assert (model.backbone.name, model.dim, model.aggregation.options()["heads"]) == ("resnet50", 16384, 8)
    shapes = under("backbone.dino.", dinov2_shapes(VITS["dinov2-b"]))
    model = without_values("boq", shapes | under("aggregator.", boq_shapes(768, 384, 64, 2, 32)))
    assert (model.backbone.name, model.backbone.cut) == ("dinov2-b", "block11")
    assert (model.dim, model.aggregation.options()["heads"]) == (12288, 6)
    assert model.preprocess == Preprocess(resize=(322, 322), interpolation="bicubic")


# --- on DINOv2 ------------------------------------------------------------------------------------------------------


def tokens_of(state: State, prefix: str, images: Tensor, cut: str = "norm", name: str = "dinov2-tiny") -> list[Any]:
    base = {n.removeprefix(prefix): tensor for n, tensor in state.items() if n.startswith(prefix)}
    return [dinov2_twin(base, TINY[name], image, cut) for image in normalised(images)]


@pytest.mark.parametrize("size", SIZES)
def test_boq_on_dinov2_computes_with_tokens_before_the_last_norm(size: tuple[int, int], tmp_path: Path) -> None:
    shapes = under("backbone.dino.", dinov2_shapes(TINY["dinov2-tiny"]))
    state = random_tensors(shapes | under("aggregator.", boq_shapes(48, 6, 3, 2, 4)))
    torch.save(state, tmp_path / "boq.pth")
    model, images = load_published(tmp_path / "boq.pth"), pixels(size)
    seen = tokens_of(state, "backbone.dino.", images, "block1")
    twin = partial(heads.boq, width=seen[0][0].shape[2], heads=1)
    assert_computes(model, images, [by_twin(twin, state, "aggregator.", m, t) for m, t in seen], tmp_path, "BoQ")


@pytest.mark.parametrize("size", SIZES)
def test_salad_computes_what_the_authors_does(size: tuple[int, int], tmp_path: Path) -> None:
    shapes = under("backbone.model.", dinov2_shapes(TINY["dinov2-tiny"]))
    state = sharpened(random_tensors(shapes | under("aggregator.", salad_shapes(48, 4, 3, 2, 6))))
    torch.save(state, tmp_path / "dino_salad.ckpt")
    model, images = load_published(tmp_path / "dino_salad.ckpt"), pixels(size)
    seen = tokens_of(state, "backbone.model.", images)
    assert_computes(
        model, images, [by_twin(heads.salad, state, "aggregator.", m, t) for m, t in seen], tmp_path, "SALAD"
    )


@pytest.mark.parametrize(("size", "prefix"), [(SIZES[0], "backbone.model."), (SIZES[1], "backbone.")])
def test_megaloc_computes_what_the_authors_does_from_both_files(
    size: tuple[int, int], prefix: str, tmp_path: Path
) -> None:
    shapes = under(prefix, dinov2_shapes(TINY["dinov2-tiny"]))
    shapes |= under("aggregator.agg.", salad_shapes(48, 4, 3, 2, 6)) | layer("aggregator.linear", 9, 4 * 3 + 2)
    state = sharpened(random_tensors(shapes))
    if prefix == "backbone.":  # the newer release has no mask token
        del state["backbone.mask_token"]
        save_file(state, tmp_path / "model")
    else:
        torch.save(state, tmp_path / "model")
    model, images = load_published(tmp_path / "model"), pixels(size)
    own = {n.removeprefix("aggregator.agg."): t for n, t in state.items() if n.startswith("aggregator.agg.")}
    own |= {f"linear.{kind}": state[f"aggregator.linear.{kind}"] for kind in ("weight", "bias")}
    expected = [by_twin(heads.megaloc, own, "", m, t) for m, t in tokens_of(state, prefix, images)]
    assert_computes(model, images, expected, tmp_path, "MegaLoc")


def test_salad_and_megaloc_as_published() -> None:
    base = under("backbone.model.", dinov2_shapes(VITS["dinov2-b"]))
    model = without_values("salad", base | under("aggregator.", salad_shapes(768)))
    assert (model.backbone.name, model.dim, model.preprocess.resize) == ("dinov2-b", 8448, (322, 322))
    head = under("aggregator.agg.", salad_shapes(768, cluster_dim=256)) | layer("aggregator.linear", 8448, 16640)
    model = without_values("megaloc", base | head)
    assert (model.name, model.dim) == ("dinov2-b-megaloc", 8448)


@pytest.mark.parametrize("kind", ["authors", "hugging face", "classifier"])
def test_dinov2_alone_gives_its_class_token(kind: str, tmp_path: Path) -> None:
    state = random_tensors(dinov2_shapes(TINY["dinov2-tiny-reg"]))
    images = pixels((98, 70))
    expected = [t / t.norm() for _, t in tokens_of(state, "", images, name="dinov2-tiny-reg")]
    if kind != "authors":
        state = to_hugging_face(state)
    if kind == "classifier":
        state = {f"dinov2_with_registers.{n}": t for n, t in state.items()} | {"classifier.weight": torch.zeros(3, 80)}
    save_file(state, tmp_path / "model.safetensors")
    model = load_published(tmp_path / "model.safetensors")
    assert model.name == "dinov2-tiny-reg-cls"
    assert_computes(model, images, expected, tmp_path, "DINOv2")


def test_anyloc_computes_vlad_over_the_values_of_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks.load_anyloc, "__defaults__", ("block1-value",))  # 31 of 40 in the original
    state = random_tensors(dinov2_shapes(TINY["dinov2-tiny-gated"]))
    centres = torch.randn(3, 24)
    torch.save(state, tmp_path / "dinov2.pth")
    torch.save(centres, tmp_path / "c_centers.pt")
    model, images = load_published(tmp_path / "dinov2.pth", centres=tmp_path / "c_centers.pt"), pixels((70, 84))
    seen = tokens_of(state, "", images, "block1-value", "dinov2-tiny-gated")
    assert model.preprocess == Preprocess(resize=1024, interpolation="bicubic")
    expected = [by_twin(heads.vlad, {"centres": centres}, "", m, t) for m, t in seen]
    assert_computes(model, images, expected, tmp_path, "AnyLoc")
    torch.save(torch.randn(3, 25), tmp_path / "c_centers.pt")
    with pytest.raises(WeightsError, match=r"VLAD centres \(K, 24\) for dinov2-tiny-gated, found \(3, 25\)"):
        load_published(tmp_path / "dinov2.pth", centres=tmp_path / "c_centers.pt")
    torch.save({"centres": centres}, tmp_path / "c_centers.pt")
    with pytest.raises(WeightsError, match="contains a dict: expected one tensor"):
        load_published(tmp_path / "dinov2.pth", centres=tmp_path / "c_centers.pt")


# --- what is wrong with a file --------------------------------------------------------------------------------------


def salad_file(folder: Path, change: Any) -> Path:
    shapes = under("backbone.model.", dinov2_shapes(TINY["dinov2-tiny"]))
    state = random_tensors(shapes | under("aggregator.", salad_shapes(48, 4, 3, 2, 6)))
    change(state)
    torch.save(state, folder / "w.ckpt")
    return folder / "w.ckpt"


def rename(old: str, new: str) -> Any:
    def change(state: State) -> None:
        for name in [n for n in state if n.startswith(old)]:
            state[new + name.removeprefix(old)] = state.pop(name)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("aggregator.dust_bin"), r"missing: dust_bin"),
        (lambda s: s.pop("aggregator.score.3.weight"), r"no tensor 'score\.3\.weight'"),
        (lambda s: s.pop("backbone.model.blocks.1.ls2.gamma"), r"missing: blocks\.1\.ls2\.gamma"),
        (lambda s: s.update({"backbone.model.head.weight": torch.zeros(1)}), r"unexpected: head\.weight"),
        (rename("aggregator.score.", "aggregator.scores."), r"nearest is salad, but no tensor .*'aggregator\.score\.'"),
        (rename("aggregator.", "pooling."), r"not a known .* Known are boq, cosplace, .*megaloc, mixvpr"),
        (
            lambda s: s.update({"backbone.model.patch_embed.proj.weight": torch.zeros(48, 3, 16, 16)}),
            r"patches of 16 px, expected 14",
        ),
        (
            lambda s: s.update({"backbone.model.patch_embed.proj.weight": torch.zeros(50, 3, 14, 14)}),
            r"dimension 50 with 0 registers, known are 384 \(dinov2-s\)",
        ),
        (lambda s: s["backbone.model.pos_embed"].fill_(math.nan), r"not finite: embed\.pos_embed"),
        (
            lambda s: s.update({"backbone.model.pos_embed": torch.zeros(1, 257, 48)}),
            r"embed\.pos_embed \(1, 257, 48\) instead of \(1, 1370, 48\)",
        ),
    ],
)
def test_bad_files_name_the_tensor_or_the_nearest_family(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        load_published(salad_file(tmp_path, change))


def test_unknown_residual_networks_and_maps_are_named(tmp_path: Path) -> None:
    shapes = under("backbone.model.", resnet_tensors([2, 2, 3], bottleneck=False))
    state = random_tensors(shapes | under("aggregator.", mixvpr_shapes(256, 24, 5, 1, 1, 3)))
    torch.save(state, tmp_path / "w.ckpt")
    with pytest.raises(
        WeightsError, match=r"3 basic blocks, known are 2 basic \(resnet18\), 6 bottleneck \(resnet50\)"
    ):
        load_published(tmp_path / "w.ckpt")
    state = {n: t for n, t in state.items() if "layer3.2." not in n}
    torch.save(state, tmp_path / "w.ckpt")
    with pytest.raises(WeightsError, match="found one for 24 locations"):
        load_published(tmp_path / "w.ckpt")


EXTRA: dict[str, tuple[str, ...]] = {
    "cosplace": ("aggregation.3.scale", "aggregation.5.weight", "backbone.9.weight", "classifier.weight"),
    "mixvpr": ("aggregator.gamma", "aggregator.mix.0.mix.5.weight", "backbone.norm.weight", "loss_fn.weight"),
    "boq": ("aggregator.boqs.0.gate", "aggregator.norm.weight", "backbone.net.9.weight", "backbone.neck.weight"),
    "salad": ("aggregator.linear.weight", "backbone.model.neck.weight", "backbone.neck.weight", "pca.weight"),
    "megaloc": ("aggregator.norm.weight", "aggregator.agg.pca.weight", "backbone.neck.weight", "pca.weight"),
    "dinov2": ("blocks.0.adapter.weight", "neck.weight", "norm.scale"),
}


@pytest.mark.parametrize(("kind", "extra"), [(kind, name) for kind, names in EXTRA.items() for name in names])
def test_unknown_tensors_are_never_ignored(kind: str, extra: str) -> None:
    transformer = dinov2_shapes(TINY["dinov2-tiny"])
    resnet = resnet_tensors([2, 2, 2], bottleneck=False)
    pooled = {"aggregation.1.p": (1,), **layer("aggregation.3", 8, 256)}
    shapes = {
        "cosplace": numbered("backbone.", resnet) | pooled,
        "mixvpr": under("backbone.model.", resnet) | under("aggregator.", mixvpr_shapes(256, 25, 5, 2, 2, 3)),
        "boq": numbered("backbone.net.", resnet) | under("aggregator.", boq_shapes(256, 6, 3, 2, 4)),
        "salad": under("backbone.model.", transformer) | under("aggregator.", salad_shapes(48, 4, 3, 2, 6)),
        "megaloc": under("backbone.model.", transformer)
        | under("aggregator.agg.", salad_shapes(48, 4, 3, 2, 6))
        | layer("aggregator.linear", 9, 14),
        "dinov2": transformer,
    }[kind]
    without_values(kind, shapes)
    named = re.escape(".".join(extra.split(".")[-2:]).removeprefix("aggregator."))
    with pytest.raises(WeightsError, match=rf"(unexpected|unknown tensors).* \S*{named}\b"):
        without_values(kind, shapes | {extra: (8,)})


def test_what_is_above_the_cut_is_left_out_by_name(tmp_path: Path) -> None:
    state = random_tensors(dinov2_shapes(TINY["dinov2-tiny-gated"]))
    torch.save(torch.randn(3, 24), tmp_path / "c_centers.pt")
    networks.load_anyloc(state, "file", tmp_path / "c_centers.pt", "block1-value")
    for extra in ("blocks.1.adapter.weight", "blocks.2.adapter.weight", "norm.scale"):
        with pytest.raises(WeightsError, match=rf"unexpected: {re.escape(extra)}"):
            networks.load_anyloc(state | {extra: torch.zeros(24)}, "file", tmp_path / "c_centers.pt", "block1-value")


def test_second_files_are_for_their_families(tmp_path: Path) -> None:
    path = salad_file(tmp_path, lambda state: None)
    with pytest.raises(ArgumentError, match="centres is only for weights of the kind dinov2, these are salad"):
        load_published(path, centres=path)
    with pytest.raises(ArgumentError, match="pca is only for weights of the kind openibl, these are salad"):
        load_published(path, pca=path)
