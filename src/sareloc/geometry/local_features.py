"""Local features: keypoints of an image with a descriptor each, extracted by XFeat, and packed for storage.

XFeat (Potje et al., CVPR 2024) is kornia's; its published weights are in the package as safetensors (see `xfeat`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sareloc.arrays import Image, Vectors
from sareloc.errors import MapError
from sareloc.geometry.xfeat import load_network, network_input, select_keypoints
from sareloc.models.preprocess import RUNTIME_DEVICES, find_device
from sareloc.photos import DIAGONAL_35MM

KEYPOINTS = 1024
"""Default: keypoints of a photo, in a map or of a query."""
MOST_KEYPOINTS = 4096
LONGEST_PX, LARGEST_SCALE = 480, 2.0
"""The longer side of the images that local features are extracted from, and how much photos are enlarged at most."""
DIM = 64
STEPS_PER_UNIT = 254  # of descriptors in memory, 8-bit integers: components of unit vectors beyond 0.5 are rare
STORED_PER_UNIT = 20  # of stored descriptors, 4-bit integers from -7 to 7: the cosine to the original is 0.993
STORED_PER_PX = 8  # of stored keypoints, 12-bit integers: the steps are an eighth of a pixel
KEYPOINT_BYTES = 3 + DIM // 2
EXTRACTOR = "xfeat"
_HEADER = struct.Struct("<HHf")  # width, height, focal length; 0: unknown


def feature_size(height: int, width: int) -> tuple[int, int]:
    """The size rule of the images that local features are extracted from: the longer side has 480 px.

    Smaller photos are enlarged, at most twice: XFeat finds few keypoints in them otherwise.
    """
    scale = min(LONGEST_PX / max(height, width), LARGEST_SCALE)
    return max(1, round(height * scale)), max(1, round(width * scale))


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """N keypoints of an image, the best first."""

    xy: Vectors
    """(N, 2) column and row in pixels."""
    descriptors: npt.NDArray[np.int8]
    """(N, 64) unit vectors times 254, rounded."""
    size: tuple[int, int]
    """Width and height of the image in pixels."""
    focal_px: float | None = None
    """Focal length in pixels of this image; None: unknown."""

    def __len__(self) -> int:
        return len(self.xy)

    def best(self, count: int) -> LocalFeatures:
        """The `count` best keypoints, or all if there are fewer."""
        return LocalFeatures(self.xy[:count], self.descriptors[:count], self.size, self.focal_px)


def focal_px_of(focal_35mm: float | None, size: tuple[int, int]) -> float | None:
    """The focal length in pixels of an image of this width and height, from the 35 mm equivalent in mm."""
    return None if focal_35mm is None else focal_35mm * float(np.hypot(*size)) / DIAGONAL_35MM


def pack_features(features: LocalFeatures) -> bytes:
    """35 bytes a keypoint and 8 more: width, height, focal length; keypoints of 3 bytes; descriptors of 32 bytes.

    A descriptor becomes 64 integers from -7 to 7, two in a byte, a keypoint two integers of 12 bits: twice as many
    keypoints in the same space find more than the precision does.
    """
    width, height = features.size
    x, y = np.clip(np.rint(features.xy * STORED_PER_PX), 0, 2**12 - 1).astype(np.uint16).T
    places = np.stack([x & 255, x >> 8 | (y & 15) << 4, y >> 4], axis=1).astype(np.uint8)
    steps = stored_steps(features) + 8
    halves = (steps[:, ::2] | steps[:, 1::2] << 4).astype(np.uint8)
    packed: bytes = _HEADER.pack(width, height, features.focal_px or 0.0) + places.tobytes() + halves.tobytes()
    return packed


def packed_prefix(keypoints: int, count: int) -> int:
    """How many first bytes of packed local features of so many keypoints hold the best `count` of them."""
    return _HEADER.size + 3 * keypoints + DIM // 2 * min(count, keypoints)


def unpack_features(blob: bytes, *, size: int | None = None) -> LocalFeatures:
    """What `pack_features` packed. Raises MapError if the bytes cannot be that: maps come from anywhere.

    Args:
        blob: the packed local features, or their first bytes: the keypoints whose descriptors they hold are returned.
        size: bytes of the whole; default: the blob is the whole.
    """
    whole = len(blob) if size is None else size
    count, rest = divmod(whole - _HEADER.size, KEYPOINT_BYTES)
    if rest or not 0 <= count <= MOST_KEYPOINTS or len(blob) > whole or len(blob) < packed_prefix(count, 0):
        raise MapError(
            f"local features of {whole} bytes are malformed: expected {_HEADER.size} and {KEYPOINT_BYTES} for each of "
            f"at most {MOST_KEYPOINTS} keypoints"
        )
    width, height, focal_px = _HEADER.unpack_from(blob)
    if not (width and height and 0 <= focal_px < 1e6):
        raise MapError(f"local features are malformed: image of {width} x {height} px, focal length {focal_px} px")
    held = (len(blob) - packed_prefix(count, 0)) // (DIM // 2)
    low, middle, high = np.frombuffer(blob, np.uint8, 3 * held, _HEADER.size).reshape(held, 3).T.astype(np.uint16)
    xy = np.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], axis=1) / STORED_PER_PX
    halves = np.frombuffer(blob, np.uint8, DIM // 2 * held, packed_prefix(count, 0)).reshape(held, DIM // 2)
    steps = np.stack([halves & 15, halves >> 4], axis=2).reshape(held, DIM).astype(np.int8) - 8
    descriptors = np.clip(steps, -7, 7) * np.int8(STEPS_PER_UNIT // STORED_PER_UNIT)
    return LocalFeatures(xy.astype(np.float32), descriptors, (width, height), focal_px or None)


def stored_steps(features: LocalFeatures) -> npt.NDArray[np.int8]:
    """The descriptors (N, 64) as a map stores them: integers from -7 to 7."""
    steps = np.clip(np.rint(features.descriptors * (STORED_PER_UNIT / STEPS_PER_UNIT)), -7, 7)
    return np.asarray(steps, dtype=np.int8)


class LocalFeatureExtractor:
    """Extracts local features from images. Safe from several threads.

    device: a torch device, or one of the runtimes of place models, "openvino" or "openvino-int8": the network is then
    computed by OpenVINO (extra `openvino`), by either name in float32. Default: the GPU if there is one.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        runtime = str(device) if str(device) in RUNTIME_DEVICES else None
        self.device = find_device("cpu" if runtime else device)
        self._network = load_network(runtime or str(self.device))

    @torch.inference_mode()
    def extract(
        self, images: Sequence[Image], keypoints: int = KEYPOINTS, *, focal_35mm: Sequence[float | None] = ()
    ) -> list[LocalFeatures]:
        """The `keypoints` best local features of each image (height, width, 3), in order; fewer where it has fewer.

        Images must be of `feature_size`. Those of one size are computed together on a GPU.

        Args:
            images: RGB, uint8.
            keypoints: of each image.
            focal_35mm: 35 mm equivalent focal length in mm of each image; default: unknown.
        """
        focal = focal_35mm or [None] * len(images)
        found: list[LocalFeatures | None] = [None] * len(images)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for row, image in enumerate(images):
            by_shape.setdefault(image.shape, []).append(row)
        at_once = 1 if self.device.type == "cpu" else max(len(images), 1)  # on a CPU batches are not faster
        for (height, width, _), rows in by_shape.items():
            for first in range(0, len(rows), at_once):
                part = rows[first : first + at_once]
                grey = network_input(torch.from_numpy(np.stack([images[row] for row in part])).to(self.device))
                scale = np.array([width / grey.shape[3], height / grey.shape[2]], dtype=np.float32)
                for row, (xy, unit) in zip(part, select_keypoints(self._network(grey), keypoints), strict=True):
                    steps = torch.round(unit * STEPS_PER_UNIT).clamp(-127, 127).to(torch.int8).contiguous()
                    found[row] = LocalFeatures(
                        xy.float().cpu().numpy() * scale,
                        steps.cpu().numpy(),
                        (width, height),
                        focal_px_of(focal[row], (width, height)),
                    )
        return [one for one in found if one is not None]
