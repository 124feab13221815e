"""Preprocessing, a part of the model: image size, interpolation, pixel statistics; the device, its number format."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.photos import Image, ImageRecord, decode
from sareloc.photos.decoding import RESAMPLINGS, Interpolation, Resizing

TORCH_DEVICES = ("cpu", "cuda", "cuda:N", "mps")
RUNTIME_DEVICES = ("openvino", "openvino-int8")
DEVICES = (*TORCH_DEVICES, *RUNTIME_DEVICES)
"""All names: torch devices, and runtimes that are faster on a CPU (see `sareloc.models.run_on`)."""
FAST_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # x86 servers of 2020 and later; ARM
Precision = Literal["auto", "float32", "bfloat16"]
"""Number format of the convolutions and linear layers of a backbone; auto: see `number_format`."""
PRECISION_VARIABLE = "SARELOC_PRECISION"


def find_device(name: str | torch.device | None, known: tuple[str, ...] = DEVICES) -> torch.device:
    """The torch device of this name; default: the GPU if there is one, else the CPU.

    Raises ArgumentError if the name is unknown (the error lists `known`) or if this machine has no such device (the
    error lists its devices). A torch.device of another type than `TORCH_DEVICES` is returned unchecked.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if isinstance(name, torch.device) and name.type not in ("cpu", "cuda", "mps"):
        return name
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", str(name)):
        raise ArgumentError(f"unknown device {str(name)!r}: known are {', '.join(known)}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    device = torch.device(name)
    if (device.type == "cuda" and (device.index or 0) >= gpus) or (device.type == "mps" and not mps):
        here = ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(gpus)), *(["mps"] if mps else [])]
        without = " (this torch is built without CUDA)" if device.type == "cuda" and not torch.version.cuda else ""
        raise ArgumentError(f"there is no device {name} on this machine{without}, only {', '.join(here)}")
    return device


def choose_precision(precision: str = "auto") -> Precision:
    """The precision of this name; auto: that of the environment variable SARELOC_PRECISION, auto if it is not set.

    Raises ArgumentError, which lists the known ones, if either name is unknown.
    """
    default = os.environ.get(PRECISION_VARIABLE) or "auto"
    for where, name in (("precision", precision), (PRECISION_VARIABLE, default)):
        if name not in get_args(Precision):
            raise ArgumentError(f"unknown {where} {name!r}: known are {', '.join(get_args(Precision))}")
    return cast("Precision", default if precision == "auto" else precision)


def number_format(device: torch.device | str, precision: Precision = "auto") -> torch.dtype:
    """The number format in which backbones compute on this device: the one place that decides it.

    "float32": torch's float32 (TF32 on CUDA, unless disabled). "bfloat16": also where it is emulated, and slow. "auto":
    see `choose_precision`; if that is auto too, bfloat16 if the hardware multiplies it, else float32.
    """
    chosen = choose_precision(precision)
    if chosen != "auto":
        return torch.float32 if chosen == "float32" else torch.bfloat16
    kind = torch.device(device).type
    if kind == "cuda":
        # compute capability 8.0, Ampere, brought bfloat16 to the hardware
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    if kind == "cpu":
        return torch.bfloat16 if cpu_has_any(FAST_BFLOAT16) else torch.float32
    return torch.float32


def isa_limit() -> str | None:
    """The instruction set that the environment limits oneDNN to, inside torch and OpenVINO; None: no limit."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "DEFAULT"
    return None if limit.upper() in ("ALL", "DEFAULT") else limit


def cpu_has_any(instructions: Sequence[str]) -> bool:
    """Whether this processor has one of these instruction sets, by torch's names."""
    # older releases of torch have no such function
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in instructions)


def autocast(device: torch.device | str, dtype: torch.dtype) -> torch.autocast:
    """Convolve in `dtype` inside this context; float32: no change."""
    mixed = dtype != torch.float32
    return torch.autocast(torch.device(device).type, dtype=dtype if mixed else None, enabled=mixed)


Resize = tuple[int, int] | int | None
MIN_SIDE_PX = 64
MAX_SIDE_PX = 16_384
LARGEST_FLOAT32 = 3.4e38
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """Size rule and pixel statistics: a pixel v in [0, 1] becomes `(scale * v - mean) / std`, per RGB channel.

    `scale` is 1 for torchvision's weights (ImageNet mean and std of [0, 1]) and 255 for MatConvNet's (RGB 0..255 minus
    the mean, std 1).

    `resize` is the size rule:
    - (height, width): exactly this size; portrait photos are resized to the transposed size;
    - one number: the longer side is at most this, the aspect ratio is kept; smaller photos keep their size, and the
      shorter side is never below 64 px;
    - None: photos keep their size.

    `interpolation`: how photos are resized to it, antialiased in both cases; that of the images that the model was
    trained on.
    """

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    scale: float = 1.0
    resize: Resize = (480, 640)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        for field, positive in (("mean", False), ("std", True), ("scale", True)):
            value = getattr(self, field)
            numbers = (value,) * 3 if field == "scale" else value
            usable = isinstance(numbers, tuple) and len(numbers) == 3 and all(map(_is_number, numbers))
            if not usable or (positive and not min(numbers) > 0):
                raise ArgumentError(
                    f"{field} of the pixels must be {'a' if field == 'scale' else 'three'} finite"
                    f"{', positive' if positive else ''} number{'' if field == 'scale' else 's'}, found {value!r}"
                )
        sides = self.resize if isinstance(self.resize, tuple) else (self.resize,) * 2
        if self.resize is not None and not (len(sides) == 2 and all(map(_is_side, sides))):
            raise ArgumentError(
                f"resize must be (height, width), a longest side or None, each side an integer from {MIN_SIDE_PX} "
                f"to {MAX_SIDE_PX} px, found {self.resize!r}"
            )
        if self.interpolation not in list(RESAMPLINGS):
            raise ArgumentError(f"interpolation must be {' or '.join(RESAMPLINGS)}, found {self.interpolation!r}")

    @property
    def resizing(self) -> Resizing:
        """The size rule with its interpolation, for `sareloc.photos.decode`."""
        return Resizing(self.size, self.interpolation)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) to which a photo of this height and width, in pixels, is resized."""
        check_size(height, width)
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            portrait = (height > width) != (self.resize[0] > self.resize[1]) and height != width
            return (self.resize[1], self.resize[0]) if portrait else self.resize
        shrink = min(1.0, max(self.resize / max(height, width), MIN_SIDE_PX / min(height, width)))
        return max(MIN_SIDE_PX, round(height * shrink)), max(MIN_SIDE_PX, round(width * shrink))

    def normalise(self, images: Tensor) -> Tensor:
        """RGB images (B, 3, H, W), uint8 or floats in [0, 1], normalised for the backbone; sizes are unchanged."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ArgumentError(f"images: expected the shape (B, 3, H, W), found {tuple(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ArgumentError(f"images: expected uint8, or floats in [0, 1], found {images.dtype}")
        bright = self.scale / 255 if images.dtype == torch.uint8 else self.scale
        floats = images.to(torch.promote_types(images.dtype, torch.float32))
        std = floats.new_tensor(self.std).view(3, 1, 1)
        return torch.addcmul(floats.new_tensor(self.mean).view(3, 1, 1) / -std, floats, bright / std)

    def batches(self, images: Tensor | Sequence[Image | ImageRecord], batch: int) -> Iterator[tuple[list[int], Tensor]]:
        """Images as uint8 tensors (at most `batch`, 3, H, W) of one size each, with their rows in the input.

        Images are read and resized by the size rule (see `sareloc.photos.read_image`); a tensor (N, 3, H, W) is not.
        """
        if batch < 1:
            raise ArgumentError(f"batch must be 1 or more, found {batch}")
        if isinstance(images, Tensor):
            if images.dtype != torch.uint8:
                raise ArgumentError(f"images: expected uint8, found {images.dtype}")
            for start in range(0, len(images), batch):
                part = images[start : start + batch]
                yield list(range(start, start + len(part))), part
            return
        groups: dict[tuple[int, ...], list[tuple[int, npt.NDArray[np.uint8]]]] = {}
        for row, image in enumerate(images):
            pixels = decode(image, size=self.resizing)
            group = groups.setdefault(pixels.shape, [])
            group.append((row, pixels))
            if len(group) == batch:
                yield _stacked(groups.pop(pixels.shape))
        yield from map(_stacked, groups.values())


def _stacked(group: Sequence[tuple[int, npt.NDArray[np.uint8]]]) -> tuple[list[int], Tensor]:
    """The rows of images of one size, and the images as a tensor (B, 3, H, W)."""
    rows, images = zip(*group, strict=True)
    return list(rows), torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def _is_number(number: object) -> bool:
    """Whether it is a number in the range of float32."""
    return isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < LARGEST_FLOAT32


def _is_side(side: object) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and MIN_SIDE_PX <= side <= MAX_SIDE_PX


def check_size(height: int, width: int) -> None:
    """Raises ArgumentError if an image is too small for a useful feature map."""
    if min(height, width) < MIN_SIDE_PX:
        raise ArgumentError(
            f"the image is {height} x {width} px (height x width): at least {MIN_SIDE_PX} px are needed each way"
        )
