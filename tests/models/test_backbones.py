"""Backbones against independent twins computed from the state dict alone, and their freezing, cuts and errors."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError
from sareloc.models import BACKBONES, Backbone, make_backbone

State = dict[str, Tensor]
SMALL = ("vgg16", "alexnet", "resnet18", "resnet50", "efficientnet-lite0")  # transformers are in test_dinov2
CASES = [(name, cut) for name in SMALL for cut in BACKBONES[name].cuts]


@cache
def untouched(name: str, cut: str) -> Backbone:
    """A backbone for tests that only look at it."""
    return make_backbone(name, cut=cut)


def shuffled(name: str, cut: str | None = None) -> Backbone:
    """A backbone in double precision whose batch norms are not the identity."""
    backbone = make_backbone(name, cut=cut).double()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                tensor.uniform_(0.5, 1.5)
    return backbone


# --- the names and shapes of torchvision's tensors, written down from its published files --------------------------

VGG16_TENSORS = {
    0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128), 12: (256, 256), 14: (256, 256),
    17: (512, 256), 19: (512, 512), 21: (512, 512), 24: (512, 512), 26: (512, 512), 28: (512, 512),
}  # fmt: skip
ALEXNET_TENSORS = {
    0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3),
}  # fmt: skip


def norm_names(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    shapes = {f"{prefix}.{k}": (width,) for k in ("weight", "bias", "running_mean", "running_var")}
    return {**shapes, f"{prefix}.num_batches_tracked": ()}


def conv_norm(conv: str, norm: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{conv}.weight": shape, **norm_names(norm, shape[0])}


def resnet_tensors(repeats: list[int], bottleneck: bool) -> dict[str, tuple[int, ...]]:
    names = conv_norm("conv1", "bn1", (64, 3, 7, 7))
    depth = 64
    for i, count in enumerate(repeats):
        width = (64, 128, 256, 512)[i]
        out = 4 * width if bottleneck else width
        for j in range(count):
            at = f"layer{i + 1}.{j}"
            shapes = [(width, depth, 3, 3), (width, width, 3, 3)]
            if bottleneck:
                shapes = [(width, depth, 1, 1), (width, width, 3, 3), (out, width, 1, 1)]
            for c, shape in enumerate(shapes, 1):
                names |= conv_norm(f"{at}.conv{c}", f"{at}.bn{c}", shape)
            if j == 0 and (i > 0 or bottleneck):
                names |= conv_norm(f"{at}.downsample.0", f"{at}.downsample.1", (out, depth, 1, 1))
            depth = out
    return names


def lite0_tensors(blocks: int, head: bool) -> dict[str, tuple[int, ...]]:
    """The published efficientnet-lite0 .pth: (input, output, kernel) of the sixteen blocks."""
    rows = [(32, 16, 3), (16, 24, 3), (24, 24, 3), (24, 40, 5), (40, 40, 5), (40, 80, 3), (80, 80, 3), (80, 80, 3),
            (80, 112, 5), (112, 112, 5), (112, 112, 5), (112, 192, 5), (192, 192, 5), (192, 192, 5), (192, 192, 5),
            (192, 320, 3)]  # fmt: skip
    names = conv_norm("_conv_stem", "_bn0", (32, 3, 3, 3))
    for i, (depth, width, kernel) in enumerate(rows[:blocks]):
        at, inner = f"_blocks.{i}", depth if i == 0 else 6 * depth
        if i > 0:
            names |= conv_norm(f"{at}._expand_conv", f"{at}._bn0", (inner, depth, 1, 1))
        names |= conv_norm(f"{at}._depthwise_conv", f"{at}._bn1", (inner, 1, kernel, kernel))
        names |= conv_norm(f"{at}._project_conv", f"{at}._bn2", (width, inner, 1, 1))
    return names | (conv_norm("_conv_head", "_bn1", (1280, 320, 1, 1)) if head else {})


def plain_tensors(layers: dict[int, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    weights = {f"features.{i}.weight": s if len(s) == 4 else (*s, 3, 3) for i, s in layers.items()}
    return weights | {f"features.{i}.bias": s[:1] for i, s in layers.items()}


TENSORS = {
    ("vgg16", "conv5_3"): plain_tensors(VGG16_TENSORS),
    ("alexnet", "conv5"): plain_tensors(ALEXNET_TENSORS),
    ("resnet18", "layer3"): resnet_tensors([2, 2, 2], bottleneck=False),
    ("resnet18", "layer4"): resnet_tensors([2, 2, 2, 2], bottleneck=False),
    ("resnet50", "layer3"): resnet_tensors([3, 4, 6], bottleneck=True),
    ("resnet50", "layer4"): resnet_tensors([3, 4, 6, 3], bottleneck=True),
    ("efficientnet-lite0", "block10"): lite0_tensors(11, head=False),
    ("efficientnet-lite0", "block15"): lite0_tensors(16, head=False),
    ("efficientnet-lite0", "head"): lite0_tensors(16, head=True),
}


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_tensors_carry_the_published_names_and_shapes(name: str, cut: str) -> None:
    state = untouched(name, cut).state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == TENSORS[name, cut]


@pytest.mark.parametrize(("name", "repeats"), [("resnet101", [3, 4, 23, 3]), ("resnet152", [3, 8, 36, 3])])
def test_deep_residual_networks_have_the_published_names_and_shapes(name: str, repeats: list[int]) -> None:
    """They have the blocks of resnet50, which is compared with its twin."""
    for cut, kept in (("layer3", 3), ("layer4", 4)):
        with torch.device("meta"):
            state = make_backbone(name, cut=cut).state_dict()
        assert {k: tuple(v.shape) for k, v in state.items()} == resnet_tensors(repeats[:kept], bottleneck=True)


# --- slow twins: the network again, from its state dict alone, batch norm folded by hand ---------------------------


def folded(state: State, conv: str, norm: str, eps: float) -> tuple[Tensor, Tensor]:
    scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + eps).sqrt()
    bias = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale
    return state[f"{conv}.weight"] * scale[:, None, None, None], bias


def plain_twin(state: State, x: Tensor, pools: dict[int, int], stride: int, padding: dict[int, int]) -> Tensor:
    numbers = sorted(int(k.split(".")[1]) for k in state if k.endswith("weight"))
    for i in numbers:
        x = F.conv2d(
            x,
            state[f"features.{i}.weight"],
            state[f"features.{i}.bias"],
            padding=padding.get(i, 1),
            stride=stride if i == 0 else 1,
        )
        if i != numbers[-1]:
            x = x.clamp(min=0)
        if i in pools:
            x = F.max_pool2d(x, pools[i], stride=2)
    return x


def resnet_twin(state: State, x: Tensor, repeats: list[int], convs: int) -> Tensor:
    w, b = folded(state, "conv1", "bn1", 1e-5)
    x = F.max_pool2d(F.conv2d(x, w, b, stride=2, padding=3).clamp(min=0), 3, stride=2, padding=1)
    for i, count in enumerate(repeats, 1):
        for j in range(count):
            at, stride, y = f"layer{i}.{j}", 2 if i > 1 and j == 0 else 1, x
            for c in range(1, convs + 1):
                w, b = folded(state, f"{at}.conv{c}", f"{at}.bn{c}", 1e-5)
                strided = c == (2 if convs == 3 else 1)
                y = F.conv2d(y, w, b, stride=stride if strided else 1, padding=w.shape[-1] // 2)
                y = y.clamp(min=0) if c < convs else y
            if f"{at}.downsample.0.weight" in state:
                w, b = folded(state, f"{at}.downsample.0", f"{at}.downsample.1", 1e-5)
                x = F.conv2d(x, w, b, stride=stride)
            x = (x + y).clamp(min=0)
    return x


def same_conv(x: Tensor, w: Tensor, b: Tensor, stride: int, groups: int = 1) -> Tensor:
    """TensorFlow's "same" as its documentation words it, by the remainder of size / stride."""
    margins = []
    for size in (x.shape[3], x.shape[2]):
        total = max(w.shape[-1] - (size % stride or stride), 0)
        margins += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, margins), w, b, stride=stride, groups=groups)


def lite0_twin(state: State, x: Tensor) -> Tensor:
    x = same_conv(x, *folded(state, "_conv_stem", "_bn0", 1e-3), stride=2).clamp(0, 6)
    count = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("_blocks"))
    for i in range(count):
        at, y = f"_blocks.{i}", x
        if i > 0:
            y = F.conv2d(y, *folded(state, f"{at}._expand_conv", f"{at}._bn0", 1e-3)).clamp(0, 6)
        w, b = folded(state, f"{at}._depthwise_conv", f"{at}._bn1", 1e-3)
        y = same_conv(y, w, b, stride=2 if i in (1, 3, 5, 11) else 1, groups=len(w)).clamp(0, 6)
        y = F.conv2d(y, *folded(state, f"{at}._project_conv", f"{at}._bn2", 1e-3))
        x = x + y if i in (2, 4, 6, 7, 9, 10, 12, 13, 14) else y
    if "_conv_head.weight" in state:
        x = F.conv2d(x, *folded(state, "_conv_head", "_bn1", 1e-3)).clamp(0, 6)
    return x


VGG_POOLS = {2: 2, 7: 2, 14: 2, 21: 2}
TWINS = {
    ("vgg16", "conv5_3"): lambda s, x: plain_twin(s, x, VGG_POOLS, stride=1, padding={}),
    ("alexnet", "conv5"): lambda s, x: plain_twin(s, x, {0: 3, 3: 3}, stride=4, padding={0: 2, 3: 2}),
    ("resnet18", "layer3"): lambda s, x: resnet_twin(s, x, [2, 2, 2], convs=2),
    ("resnet18", "layer4"): lambda s, x: resnet_twin(s, x, [2, 2, 2, 2], convs=2),
    ("resnet50", "layer3"): lambda s, x: resnet_twin(s, x, [3, 4, 6], convs=3),
    ("resnet50", "layer4"): lambda s, x: resnet_twin(s, x, [3, 4, 6, 3], convs=3),
    ("efficientnet-lite0", "block10"): lite0_twin,
    ("efficientnet-lite0", "block15"): lite0_twin,
    ("efficientnet-lite0", "head"): lite0_twin,
}


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_feature_map_equals_its_twin(name: str, cut: str) -> None:
    backbone = shuffled(name, cut)
    images = torch.randn(2, 3, 67, 74, dtype=torch.float64)
    with torch.no_grad():
        found, expected = backbone(images), TWINS[name, cut](backbone.state_dict(), images)
    assert expected.std() > 0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


@pytest.mark.parametrize("name", ["vgg16", "alexnet"])
def test_plain_backbones_stop_before_the_relu(name: str) -> None:
    assert make_backbone(name)(torch.randn(1, 3, 64, 64)).min() < 0


@pytest.mark.parametrize(
    ("name", "cut", "size"),
    [
        pytest.param(name, cut, size, marks=[pytest.mark.slow] if (i + j) % 2 else [])
        for i, (name, cut) in enumerate(CASES)
        for j, size in enumerate([(64, 64), (64, 131), (65, 65), (127, 66)])
    ],
)
def test_any_size_from_64_px_works_and_one_stride_more_is_one_location_more(
    name: str, cut: str, size: tuple[int, int]
) -> None:
    backbone = untouched(name, cut)
    height, width = size
    with torch.no_grad():
        features = backbone(torch.randn(1, 3, height, width))
        taller = backbone(torch.randn(1, 3, height + backbone.stride, width))
    assert features.shape[1] == backbone.channels
    assert features.isfinite().all()
    assert taller.shape == (1, backbone.channels, features.shape[2] + 1, features.shape[3])


# --- freezing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_parts_hold_every_parameter_once(name: str, cut: str) -> None:
    backbone = untouched(name, cut)
    held = [p for modules in backbone.parts().values() for m in modules for p in m.parameters()]
    assert len(held) == len({id(p) for p in held})
    assert {id(p) for p in held} == {id(p) for p in backbone.parameters()}


def trained(backbone: Backbone) -> set[str]:
    return {k.rsplit(".", 1)[0] for k, p in backbone.named_parameters() if p.requires_grad}


def test_vgg16_trains_conv5_by_default_as_the_paper_does() -> None:
    with torch.device("meta"):
        backbone = make_backbone("vgg16")
    assert backbone.train_from == "conv5_1"
    assert trained(backbone) == {"features.24", "features.26", "features.28"}


@pytest.mark.parametrize(
    ("train_from", "expected"),
    [("conv1_1", 13), ("conv4_3", 4), ("conv5_3", 1), ("nothing", 0)],
)
def test_train_from_freezes_what_lies_below(train_from: str, expected: int) -> None:
    with torch.device("meta"):
        backbone = make_backbone("vgg16", train_from=train_from)
    assert len(trained(backbone)) == expected
    numbers = sorted(int(k.split(".")[1]) for k in trained(backbone))
    assert numbers == sorted(VGG16_TENSORS)[13 - expected :]


def test_gradients_reach_the_trained_part_and_the_image_but_not_the_frozen_part() -> None:
    backbone = make_backbone("resnet18", train_from="layer3").train()
    image = torch.randn(2, 3, 64, 64, requires_grad=True)
    backbone(image).square().sum().backward()
    assert image.grad is not None
    assert image.grad.abs().sum() > 0
    for name, parameter in backbone.named_parameters():
        assert (parameter.grad is not None) == name.startswith("layer3"), name


@pytest.mark.parametrize(
    ("name", "train_from", "trained_prefixes"),
    [("resnet18", "layer3", ("layer3.",)), ("efficientnet-lite0", "block9", ("_blocks.9.", "_blocks.10."))],
)
def test_frozen_batch_norms_keep_their_statistics_in_training(
    name: str, train_from: str, trained_prefixes: tuple[str, ...]
) -> None:
    backbone = make_backbone(name, train_from=train_from)
    before = copy.deepcopy(backbone.state_dict())
    backbone.train()
    backbone(torch.randn(2, 3, 64, 64))
    after = backbone.state_dict()
    statistics = [k for k in before if k.endswith("running_mean")]
    changed = {k for k in statistics if not torch.equal(before[k], after[k])}
    assert changed == {k for k in statistics if k.startswith(trained_prefixes)}
    assert changed


def test_freezing_can_be_changed_later_and_follows_the_mode() -> None:
    backbone = make_backbone("resnet18", train_from="nothing").train()
    assert not any(m.training for m in backbone.modules() if isinstance(m, nn.BatchNorm2d))
    backbone.freeze_below("stem")
    assert all(m.training for m in backbone.modules() if isinstance(m, nn.BatchNorm2d))
    assert all(p.requires_grad for p in backbone.parameters())
    assert not any(m.training for m in backbone.eval().modules())


# --- names, randomness, errors -------------------------------------------------------------------------------------


def test_the_same_generator_draws_the_same_weights() -> None:
    first, again, other = (
        make_backbone("alexnet", rng=torch.Generator().manual_seed(seed)).features[3].weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_random_weights_keep_the_signal_alive() -> None:
    for name in (*SMALL, "dinov2-s", "dinov2-s-reg"):
        with torch.no_grad():
            size = make_backbone(name)(torch.randn(1, 3, 64, 64)).std().item()
        assert 1e-2 < size < 1e3, (name, size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "vgg19"},
            "'vgg19': known are alexnet, dinov2-b, .*efficientnet-lite0, resnet101, resnet152, resnet18, resnet50",
        ),
        ({"name": "resnet18", "cut": "layer2"}, "'layer2': known are layer3, layer4"),
        ({"name": "alexnet", "train_from": "conv6"}, "'conv6': known are conv1, conv2"),
        ({"name": "resnet50", "cut": "layer3", "train_from": "layer4"}, "unknown part of resnet50 'layer4'"),
    ],
)
def test_unknown_names_list_the_known_ones(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_backbone(**arguments)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 64, 64), r"expected .*\(B, 3, H, W\), found \(3, 64, 64\)"),
        ((1, 1, 64, 64), r"found \(1, 1, 64, 64\)"),
        ((1, 3, 63, 200), "at least 64 px"),
    ],
)
def test_images_of_the_wrong_shape_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_backbone("alexnet")(torch.zeros(shape))


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_lower_and_upper_parts_together_are_the_whole(name: str, cut: str) -> None:
    backbone = copy.deepcopy(untouched(name, cut))
    images = torch.randn(1, 3, 64, 80)
    with torch.no_grad():
        whole = backbone(images)
        for part in backbone.part_names():
            backbone.freeze_below(part)
            features = backbone.lower(images)
            assert (features is images) == (part == backbone.part_names()[0])
            found = backbone.upper(features)
            assert (found is features) == (part == "nothing")
            torch.testing.assert_close(found, whole)


def test_what_is_frozen_in_vgg16_by_default_ends_with_the_fourth_pooling() -> None:
    assert untouched("vgg16", "conv5_3").lower(torch.zeros(1, 3, 64, 96)).shape == (1, 512, 4, 6)
