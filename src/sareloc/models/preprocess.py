"""What a model wants its images to be: which size, which pixel statistics. Part of the model, never of the dataset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sareloc.errors import ArgumentError

MIN_SIDE_PX = 64
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """Size rule and pixel statistics: a pixel v in [0, 1] becomes `(scale * v - mean) / std`, per RGB channel.

    `scale` is 1 for torchvision's weights (ImageNet mean and std of [0, 1]) and 255 for MatConvNet's (RGB 0..255 minus
    the mean, std 1).

    `resize` says which size a photo is brought to:
    - (height, width): exactly this; a portrait photo gets it transposed, so that it is not squeezed into landscape;
    - one number: the longer side is at most this, the aspect kept; smaller photos keep their size, and the shorter
      side never falls below 64 px;
    - None: photos keep their size.
    """

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    scale: float = 1.0
    resize: tuple[int, int] | int | None = (480, 640)

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0 or not self.scale > 0:
            raise ArgumentError(
                f"pixel statistics want three means, three positive deviations and a positive scale, "
                f"got mean={self.mean}, std={self.std}, scale={self.scale}"
            )
        sides = self.resize if isinstance(self.resize, tuple) else (self.resize or MIN_SIDE_PX,)
        if len(sides) > 2 or min(sides) < MIN_SIDE_PX:
            raise ArgumentError(
                f"resize wants (height, width), a longest side or None, no side below {MIN_SIDE_PX} px, "
                f"got {self.resize}"
            )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) that a photo of this height and width, in pixels, is brought to."""
        check_size(height, width)
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            portrait = (height > width) != (self.resize[0] > self.resize[1]) and height != width
            return (self.resize[1], self.resize[0]) if portrait else self.resize
        shrink = min(1.0, max(self.resize / max(height, width), MIN_SIDE_PX / min(height, width)))
        return max(MIN_SIDE_PX, round(height * shrink)), max(MIN_SIDE_PX, round(width * shrink))

    def normalise(self, images: Tensor) -> Tensor:
        """RGB images (B, 3, H, W), uint8 or floats in [0, 1], as the backbone wants them; sizes stay as they are."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ArgumentError(f"images want the shape (B, 3, H, W), got {tuple(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ArgumentError(f"images want uint8, or floats in [0, 1], got {images.dtype}")
        check_size(images.shape[2], images.shape[3])
        bright = self.scale / 255 if images.dtype == torch.uint8 else self.scale
        floats = images.to(torch.promote_types(images.dtype, torch.float32))
        std = floats.new_tensor(self.std).view(3, 1, 1)
        return torch.addcmul(floats.new_tensor(self.mean).view(3, 1, 1) / -std, floats, bright / std)


def check_size(height: int, width: int) -> None:
    """Refuse images too small for a feature map to mean anything."""
    if min(height, width) < MIN_SIDE_PX:
        raise ArgumentError(
            f"the image is {height} x {width} px (height x width): at least {MIN_SIDE_PX} px are needed each way"
        )
