"""DINOv2 (Oquab et al.): vision transformers with patches of 14 px, S, B, L and g, with and without registers.

A transformer computes tokens: a class token, registers, and one patch token for each location. Between its parts they
are a tensor (B, N, C); at the borders of `lower` and `upper` they are a grid (B, C, h + 1, w), whose first row has the
class token, the registers and zeros, and whose other rows are the feature map (see `Backbone.split`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.models.backbones import INIT_STD, Backbone, ViT

PATCH_PX = 14
POSITIONS = 37  # a side of the grid of trained position embeddings: 518 px
NORM_EPS = 1e-6
OFFSET = 0.1  # added to the number of positions when they are interpolated, as the authors do without registers
OF_A_BLOCK = r"((norm[12]|attn\.(qkv|proj)|mlp\.(fc[12]|w12|w3))\.(weight|bias)|ls[12]\.gamma)"  # names of tensors


class DINOv2(Backbone):
    """A vision transformer.

    Images whose sides are not multiples of 14 px are resized to the nearest ones (bilinear, antialiased). Parts: embed,
    block0, ..., norm.

    Args:
        name: its key in `BACKBONES`.
        cut: "norm" is the normalized output, as its authors use it; "blockN" the output of that block, not normalized;
            "blockN-value" the values of its attention, all heads joined.
        vit: width, depth and heads.
    """

    has_token = True
    is_sequence = False

    def __init__(self, name: str, cut: str, vit: ViT) -> None:
        super().__init__(name, cut=cut, channels=vit.dim, stride=PATCH_PX)
        self.vit = vit
        last = vit.depth - 1 if cut == "norm" else int(re.sub(r"\D", "", cut))
        blocks: list[nn.Module] = [_Block(vit) for _ in range(last + 1)]
        if cut.endswith("-value"):
            blocks[-1] = _Values(vit)
        self.embed = _Embedding(vit)
        self.blocks = nn.ModuleList(blocks)
        if cut == "norm":
            self.norm = nn.LayerNorm(vit.dim, eps=NORM_EPS)

    def init_tokens(self, rng: torch.Generator | None) -> None:
        """Those of the embedding."""
        self.embed.init_tokens(rng)

    def parts(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """embed, block0, ... up to the cut, norm."""
        parts: dict[str, tuple[nn.Module, ...]] = {"embed": (self.embed,)}
        parts |= {f"block{i}": (block,) for i, block in enumerate(self.blocks)}
        if self.cut == "norm":
            parts["norm"] = (self.norm,)
        return parts

    def lower(self, images: Tensor) -> Tensor:
        """The grid of tokens after the parts below `train_from`; the images themselves if there are none."""
        return self._run(self.lower_layers(), images)

    def upper(self, features: Tensor) -> Tensor:
        """The grid of tokens at the cut, from the output of `lower`."""
        return self._run(self.upper_layers(), features)

    def _run(self, layers: list[nn.Module], x: Tensor) -> Tensor:
        """Apply layers to a grid of tokens or, if the first layer is the embedding, to images."""
        if not layers:
            return x
        special = 1 + self.vit.registers
        if layers[0] is self.embed:
            height, width = patches(x.shape[2]), patches(x.shape[3])
            tokens: Tensor = self.embed(x)
            layers = layers[1:]
        else:
            height, width = x.shape[2] - 1, x.shape[3]
            tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
            tokens = torch.cat([tokens[:, :special], tokens[:, width:]], dim=1)
        for layer in layers:
            tokens = layer(tokens)
        padding = tokens.new_zeros(len(tokens), width - special, self.channels)
        grid = torch.cat([tokens[:, :special], padding, tokens[:, special:]], dim=1)
        return grid.reshape(-1, height + 1, width, self.channels).permute(0, 3, 1, 2)

    def split(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The feature map (B, C, h, w) and the class token (B, C) of a grid."""
        return output[:, :, 1:], output[:, :, 0, 0]

    def published_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the authors' or Hugging Face's file, under the names used here; those above the cut are left out.

        The mask token, an input of the authors' training, is left out as well.
        """
        ours = {_our_name(name): tensor for name, tensor in _authors_names(tensors).items()}
        names = self.state_dict().keys()
        if self.cut != "norm":
            first = len(self.blocks) - self.cut.endswith("-value")  # of a last block only some tensors are used
            numbers = "|".join(map(str, range(first, self.vit.depth)))
            above = re.compile(rf"blocks\.({numbers})\.{OF_A_BLOCK}|norm\.(weight|bias)")
            ours = {name: tensor for name, tensor in ours.items() if name in names or not above.fullmatch(name)}
        ours.pop("mask_token", None)
        return ours


def patches(side_px: int) -> int:
    """The number of patches along a side: of the nearest multiple of 14 px, at least one."""
    return max(1, round(side_px / PATCH_PX))


class _Embedding(nn.Module):
    """Images -> tokens (B, N, C): class token, registers, patches with their position embeddings."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, vit.dim, PATCH_PX, stride=PATCH_PX)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, vit.dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + POSITIONS**2, vit.dim))
        self.register_tokens = nn.Parameter(torch.zeros(1, vit.registers, vit.dim)) if vit.registers else None

    def init_tokens(self, rng: torch.Generator | None) -> None:
        """Small random tokens and positions; the projection has the backbone's initialization."""
        for tokens in (self.cls_token, self.pos_embed, self.register_tokens):
            if tokens is not None and not tokens.is_meta:
                nn.init.trunc_normal_(tokens, std=INIT_STD, generator=rng)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 1 + registers + h w, C)."""
        height, width = patches(images.shape[2]), patches(images.shape[3])
        size = (height * PATCH_PX, width * PATCH_PX)
        if images.shape[2:] != size:
            images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        tokens = self.proj(images).flatten(2).mT + self.positions(height, width)
        special = [self.cls_token + self.pos_embed[:, :1]]
        if self.register_tokens is not None:
            special.append(self.register_tokens)
        return torch.cat([*(t.expand(len(tokens), -1, -1) for t in special), tokens], dim=1)

    def positions(self, height: int, width: int) -> Tensor:
        """The position embeddings of a grid of patches, (1, h w, C), interpolated as the authors do.

        Bicubic; with registers antialiased and by the size, without them by the scale `(n + 0.1) / 37`.
        """
        trained = self.pos_embed[:, 1:]
        if (height, width) == (POSITIONS, POSITIONS):
            return trained
        grid = trained.reshape(1, POSITIONS, POSITIONS, -1).permute(0, 3, 1, 2)
        if self.register_tokens is not None:
            grid = F.interpolate(grid, size=(height, width), mode="bicubic", antialias=True)
        else:
            scale = (height + OFFSET) / POSITIONS, (width + OFFSET) / POSITIONS
            grid = F.interpolate(grid, scale_factor=scale, mode="bicubic")
        return grid.flatten(2).mT


class _Block(nn.Module):
    """x + gamma1 * attention(norm(x)), then x + gamma2 * mlp(norm(x))."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(vit.dim, eps=NORM_EPS) for _ in range(2))
        self.attn = _Attention(vit)
        self.mlp = _GatedMLP(vit.dim) if vit.gated else _MLP(vit.dim)
        self.ls1, self.ls2 = _Scale(vit.dim), _Scale(vit.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        out: Tensor = tokens + self.ls2(self.mlp(self.norm2(tokens)))
        return out


class _Attention(nn.Module):
    """Self-attention of several heads."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.heads = vit.heads
        self.qkv = nn.Linear(vit.dim, 3 * vit.dim)
        self.proj = nn.Linear(vit.dim, vit.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        qkv = self.qkv(tokens).reshape(*tokens.shape[:2], 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, heads, N, C / heads)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class _Values(nn.Module):
    """The values of a block's attention; it has the parameters of a block that they depend on."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(vit.dim, eps=NORM_EPS)
        self.attn = nn.Module()
        self.attn.qkv = nn.Linear(vit.dim, 3 * vit.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        qkv = self.attn.qkv
        assert isinstance(qkv, nn.Linear)
        values = slice(2 * qkv.in_features, None)
        return F.linear(self.norm1(tokens), qkv.weight[values], qkv.bias[values])


class _MLP(nn.Module):
    """Two linear layers with a GELU between them; four times as wide inside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(tokens)))
        return out


class _GatedMLP(nn.Module):
    """w3(silu(a) * b) with (a, b) = w12(x); inside two thirds of four times as wide, rounded up to a multiple of 8."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        inner = -(-(4 * dim * 2 // 3) // 8) * 8
        self.w12, self.w3 = nn.Linear(dim, 2 * inner), nn.Linear(inner, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        gate, value = self.w12(tokens).chunk(2, dim=2)
        out: Tensor = self.w3(F.silu(gate) * value)
        return out


class _Scale(nn.Module):
    """A trained factor for each channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.gamma


HUGGING_FACE = (  # parts of names in Hugging Face's files, and of the same tensors in the authors'
    (r"^(dinov2|dinov2_with_registers)\.", ""),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.", ""),
    (r"^encoder\.layer\.", "blocks."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
    (r"\.mlp\.weights_in\.", ".mlp.w12."),
    (r"\.mlp\.weights_out\.", ".mlp.w3."),
    (r"^layernorm\.", "norm."),
)


def _authors_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of Hugging Face's file under the authors' names; queries, keys and values are joined."""
    named = {_substituted(name): tensor for name, tensor in tensors.items() if not name.startswith("classifier.")}
    separate = r"(blocks\.\d+)\.attention\.attention\.(query|key|value)\.(weight|bias)"
    found = {name: tensor for name, tensor in named.items() if not re.fullmatch(separate, name)}
    for block, kind in dict.fromkeys(match.group(1, 3) for match in _matches(separate, named)):
        keys = [f"{block}.attention.attention.{part}.{kind}" for part in ("query", "key", "value")]
        # of other shapes, they are unexpected tensors
        if all(key in named and named[key].ndim and named[key].shape == named[keys[0]].shape for key in keys):
            found[f"{block}.attn.qkv.{kind}"] = torch.cat([named[key] for key in keys])
    return found


def _matches(pattern: str, names: Iterable[str]) -> list[re.Match[str]]:
    return [match for name in names if (match := re.fullmatch(pattern, name))]


def _substituted(name: str) -> str:
    for theirs, authors in HUGGING_FACE:
        name = re.sub(theirs, authors, name)
    return name


def _our_name(name: str) -> str:
    """The name of a tensor of the authors' file in `DINOv2`: what belongs to the embedding is in one module."""
    if name in ("cls_token", "pos_embed", "register_tokens"):
        return f"embed.{name}"
    return re.sub(r"^patch_embed\.", "embed.", name)
