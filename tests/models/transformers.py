"""DINOv2 again, from the authors' tensors alone: loops over heads, interpolation as matrices; and small files of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sareloc.models.backbones import BACKBONES, VITS, ViT, vit_architecture

State = dict[str, Tensor]
TINY = {
    "dinov2-tiny": ViT(48, 2, 3),
    "dinov2-tiny-reg": ViT(40, 2, 4, registers=4),
    "dinov2-tiny-gated": ViT(24, 3, 2, gated=True),
}


HUGGING_FACE = {  # parts of the authors' names, and what Hugging Face's converter replaces them by
    "patch_embed.proj": "embeddings.patch_embeddings.projection", "pos_embed": "embeddings.position_embeddings",
    "cls_token": "embeddings.cls_token", "mask_token": "embeddings.mask_token",
    "register_tokens": "embeddings.register_tokens", "blocks.": "encoder.layer.",
    "attn.proj": "attention.output.dense", "ls1.gamma": "layer_scale1.lambda1", "ls2.gamma": "layer_scale2.lambda1",
    "mlp.w12": "mlp.weights_in", "mlp.w3": "mlp.weights_out",
}  # fmt: skip


@pytest.fixture
def tiny_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small transformers among the known ones."""
    for name, vit in TINY.items():
        monkeypatch.setitem(VITS, name, vit)
        monkeypatch.setitem(BACKBONES, name, vit_architecture(name, vit))


def dinov2_shapes(vit: ViT) -> dict[str, tuple[int, ...]]:
    """The tensors of the authors' file, written down from their code."""
    dim = vit.dim
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, dim), "pos_embed": (1, 1370, dim), "mask_token": (1, dim),
        "patch_embed.proj.weight": (dim, 3, 14, 14), "patch_embed.proj.bias": (dim,),
        "norm.weight": (dim,), "norm.bias": (dim,),
    }  # fmt: skip
    if vit.registers:
        shapes["register_tokens"] = (1, vit.registers, dim)
    wide = {"fc1": (4 * dim, dim), "fc2": (dim, 4 * dim)}
    if vit.gated:
        inner = (int(4 * dim * 2 / 3) + 7) // 8 * 8
        wide = {"w12": (2 * inner, dim), "w3": (dim, inner)}
    for i in range(vit.depth):
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.weight": (dim,), f"blocks.{i}.{name}.bias": (dim,)}
        shapes |= {f"blocks.{i}.ls1.gamma": (dim,), f"blocks.{i}.ls2.gamma": (dim,)}
        layers = {"attn.qkv": (3 * dim, dim), "attn.proj": (dim, dim)} | {f"mlp.{k}": s for k, s in wide.items()}
        for name, shape in layers.items():
            shapes |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
    return shapes


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> State:
    """Of a size that keeps the signal alive, nothing at a special value."""
    made = {}
    for name, shape in shapes.items():
        fan = math.prod(shape[1:]) if name.endswith("weight") and len(shape) > 1 else 1
        made[name] = torch.randn(shape) / math.sqrt(fan)
        if name.endswith("bias"):
            made[name] = 0.1 * made[name]
        if "norm" in name or "gamma" in name:
            made[name] = 1 + 0.3 * made[name] if name.endswith(("weight", "gamma")) else 0.3 * made[name]
        if name.endswith("running_var"):
            made[name] = 0.5 + torch.rand(shape)
        if name.endswith("num_batches_tracked"):
            made[name] = torch.tensor(7)
    return made


def to_hugging_face(state: State) -> State:
    """The same tensors as Hugging Face's converter names them."""
    renamed = {}
    for name, tensor in state.items():
        for ours, theirs in HUGGING_FACE.items():
            name = name.replace(ours, theirs)
        name = "layernorm" + name.removeprefix("norm") if name.startswith("norm.") else name
        if "attn.qkv" in name:
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[name.replace("attn.qkv", f"attention.attention.{part}")] = third.clone()
        else:
            renamed[name] = tensor
    return renamed


# --- interpolation, one weight at a time ----------------------------------------------------------------------------


def cubic(x: float, a: float) -> float:
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def by_scale(old: int, new: int, scale: float) -> Tensor:
    """(new, old): bicubic with a = -0.75, samples `1 / scale` apart, the border repeated."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    for i in range(new):
        at = (i + 0.5) / scale - 0.5
        for j in range(math.floor(at) - 1, math.floor(at) + 3):
            matrix[i, min(max(j, 0), old - 1)] += cubic(at - j, -0.75)
    return matrix


def antialiased(old: int, new: int, kind: str) -> Tensor:
    """(new, old): a triangle, or a cubic with a = -0.5, widened by the reduction, within the image, of sum 1."""
    step = old / new
    wide = max(step, 1.0)
    matrix = torch.zeros(new, old, dtype=torch.float64)
    for i in range(new):
        centre = (i + 0.5) * step
        for j in range(old):
            x = (j + 0.5 - centre) / wide
            matrix[i, j] = cubic(x, -0.5) if kind == "cubic" else max(0.0, 1 - abs(x))
    return matrix / matrix.sum(dim=1, keepdim=True)


def both_ways(rows: Tensor, columns: Tensor, x: Tensor) -> Tensor:
    """(..., H, W) -> (..., h, w)."""
    return rows @ x @ columns.T


# --- the network ----------------------------------------------------------------------------------------------------


def norm(x: Tensor, state: State, name: str, eps: float = 1e-6) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return (
        centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt() * state[f"{name}.weight"]
        + state[f"{name}.bias"]
    )


def linear(x: Tensor, state: State, name: str) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """(n, C), (m, C), (m, C) -> (n, C), head by head."""
    size = q.shape[1] // heads
    found = []
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        scores = (q[:, part] @ k[:, part].T / math.sqrt(size)).exp()
        found.append(scores / scores.sum(dim=1, keepdim=True) @ v[:, part])
    return torch.cat(found, dim=1)


def dinov2_twin(state: State, vit: ViT, image: Tensor, cut: str = "norm") -> tuple[Tensor, Tensor]:
    """The feature map (C, h, w) and the class token (C,) of one normalised image (3, H, W), in double precision."""
    state = {name: tensor.double() for name, tensor in state.items()}
    image = image.double()
    h, w = (max(1, round(side / 14)) for side in image.shape[1:])
    if image.shape[1:] != (14 * h, 14 * w):
        kinds = (antialiased(image.shape[1], 14 * h, "triangle"), antialiased(image.shape[2], 14 * w, "triangle"))
        image = both_ways(*kinds, image)
    kernel = state["patch_embed.proj.weight"].flatten(1)
    tokens = []
    for y in range(h):
        for x in range(w):
            pixels = image[:, 14 * y : 14 * y + 14, 14 * x : 14 * x + 14].flatten()
            tokens.append(kernel @ pixels + state["patch_embed.proj.bias"])
    grid = state["pos_embed"][0, 1:].reshape(37, 37, -1).permute(2, 0, 1)
    if (h, w) != (37, 37):
        if vit.registers:
            grid = both_ways(antialiased(37, h, "cubic"), antialiased(37, w, "cubic"), grid)
        else:
            grid = both_ways(by_scale(37, h, (h + 0.1) / 37), by_scale(37, w, (w + 0.1) / 37), grid)
    patch = torch.stack(tokens) + grid.flatten(1).T
    first = state["cls_token"][0] + state["pos_embed"][0, :1]
    special = [first, *([state["register_tokens"][0]] if vit.registers else [])]
    x = torch.cat([*special, patch])
    found = None
    for i in range(vit.depth):
        at = f"blocks.{i}"
        qkv = linear(norm(x, state, f"{at}.norm1"), state, f"{at}.attn.qkv")
        if cut == f"block{i}-value":
            found = qkv[:, 2 * vit.dim :]
        mixed = attention(*qkv.split(vit.dim, dim=1), vit.heads)
        x = x + state[f"{at}.ls1.gamma"] * linear(mixed, state, f"{at}.attn.proj")
        y = norm(x, state, f"{at}.norm2")
        if vit.gated:
            a, b = linear(y, state, f"{at}.mlp.w12").chunk(2, dim=1)
            y = linear(a / (1 + (-a).exp()) * b, state, f"{at}.mlp.w3")
        else:
            y = linear(y, state, f"{at}.mlp.fc1")
            y = linear(y * 0.5 * (1 + torch.erf(y / math.sqrt(2))), state, f"{at}.mlp.fc2")
        x = x + state[f"{at}.ls2.gamma"] * y
        if cut == f"block{i}":
            found = x
    if cut == "norm":
        found = norm(x, state, "norm")
    assert found is not None
    return found[1 + vit.registers :].T.reshape(-1, h, w), found[0]
