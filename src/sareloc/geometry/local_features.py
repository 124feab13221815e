"""Local features of an image: extracted by XFeat, packed for storage, and aggregated into one vector.

XFeat (Potje et al., CVPR 2024): kornia's network with its published weights, which are in the package as safetensors.
`select_keypoints` returns what kornia's `XFeat.detectAndCompute` returns, in half the time on a CPU.

Aggregated local features (VLAD) are a second global descriptor: the local features that a map stores for verification
are assigned softly to 64 centres; the residuals to each centre are summed, scaled to unit length, joined, and whitened
(Jégou et al., CVPR 2010; Arandjelović and Zisserman, CVPR 2013). `research/fit_aggregate.py` fits the constants.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors import numpy as safetensors_numpy
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from sareloc.arrays import Image, Vectors
from sareloc.errors import MapError
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
    descriptors = _pairs_of_bytes()[halves].view(np.int8)
    return LocalFeatures(xy.astype(np.float32), descriptors, (width, height), focal_px or None)


@cache
def _pairs_of_bytes() -> npt.NDArray[np.uint16]:
    """For each byte (256,) the two numbers of a descriptor that it holds, each a signed byte of the result."""
    byte = np.arange(256, dtype=np.uint8)
    steps = np.stack([byte & 15, byte >> 4], axis=1).astype(np.int8) - np.int8(8)
    numbers = np.clip(steps, -7, 7) * np.int8(STEPS_PER_UNIT // STORED_PER_UNIT)
    return np.ascontiguousarray(numbers).view(np.uint16).reshape(256)


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


WEIGHTS = "xfeat.safetensors"
CELL_PX = 8  # pixels of the network's input for one of its maps, each way
STEP_PX = 32  # the sides of the network's input are multiples of it
THRESHOLD = 0.05  # of the heat map

Maps = tuple[Tensor, Tensor, Tensor]
"""Of B images: descriptors (B, 64, h, w), logits of keypoints (B, 65, h, w), reliability (B, 1, h, w), in cells."""
Network = Callable[[Tensor], Maps]
"""Grey images (B, 1, 8 h, 8 w) -> maps. Safe from several threads."""


def weights_path() -> Path:
    """The file of the weights."""
    return Path(str(files("sareloc") / "weights" / WEIGHTS))


@cache
def weights_fingerprint() -> str:
    """16 hex digits that identify the weights: local features of other weights do not match."""
    return hashlib.sha256(weights_path().read_bytes()).hexdigest()[:16]


@cache
def load_network(device: str) -> Network:
    """The network on a torch device or by OpenVINO, with its batch norms folded; one for each name."""
    from kornia.feature import XFeat
    from kornia.feature.xfeat import BasicLayer

    network = XFeat()
    weights = load_file(weights_path())
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=True)
    net = network.eval().net
    for name, layer in list(net.named_modules()):
        if isinstance(layer, BasicLayer):
            conv, norm, relu = layer.layer
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            net.set_submodule(name, nn.Sequential(fuse_conv_bn_eval(conv, norm), relu))
    if device in RUNTIME_DEVICES:
        from sareloc.runtimes.openvino import xfeat_on_openvino

        return xfeat_on_openvino(net)
    net.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def network_input(pixels: Tensor) -> Tensor:
    """uint8 images (B, H, W, 3) -> grey (B, 1, 8 h, 8 w) in [0, 1], sides reduced to multiples of 32 px, at least 32.

    The network averages the colours anyway; doing it first resizes one channel instead of three.
    """
    grey = pixels.sum(dim=-1, dtype=torch.int16).float() / (3 * 255)
    height, width = (max(STEP_PX, side // STEP_PX * STEP_PX) for side in grey.shape[1:])
    return F.interpolate(grey[:, None], (height, width), mode="bilinear", align_corners=False)


def select_keypoints(maps: Maps, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each image the `count` best keypoints, or all if there are fewer, the best first.

    Column and row (N, 2) in pixels of the network's input, and unit descriptors (N, 64). A keypoint is a strict maximum
    of the heat map in its 5 x 5 window; its score is that maximum times the reliability.
    """
    descriptors, logits, reliability = maps
    descriptors = F.normalize(descriptors, dim=1)
    heat = F.pixel_shuffle(logits.softmax(dim=1)[:, :-1], CELL_PX)[:, 0]  # (B, 8 h, 8 w)
    height, width = heat.shape[1:]
    last = torch.tensor([width - 1, height - 1], device=heat.device)
    for row, maxima in enumerate(strict_maxima(heat) & (heat > THRESHOLD)):
        yx = maxima.nonzero()
        xy = yx.flip(-1)
        # `last`, and align_corners=False below: beside the pixel's centre, but as the weights were trained
        grid = (2.0 * (xy / last) - 1.0)[None, None]
        reliable = F.grid_sample(reliability[row, None], grid, mode="bilinear", align_corners=False)[0, 0, 0]
        best = (heat[row, yx[:, 0], yx[:, 1]] * reliable).topk(min(count, len(yx))).indices
        found = F.grid_sample(descriptors[row, None], grid[:, :, best], mode="bicubic", align_corners=False)
        yield xy[best], F.normalize(found[0, :, 0], dim=0).T


def strict_maxima(heat: Tensor) -> Tensor:
    """Where maps (B, H, W) are larger than all 24 others in the 5 x 5 window; nowhere in the border of 2 px.

    By maxima of shifted maps: a seventh of the time of the 24 comparisons on a CPU, a twentieth of that of max_pool2d.
    """
    pairs = torch.maximum(heat[..., :-1], heat[..., 1:])
    beside = torch.maximum(pairs[..., :-3], pairs[..., 3:])  # the two on the left and the two on the right
    rows = torch.maximum(beside, heat[..., 2:-2])
    pairs = torch.maximum(rows[:, :-1], rows[:, 1:])
    around = torch.maximum(torch.maximum(pairs[:, :-3], pairs[:, 3:]), beside[:, 2:-2])
    return F.pad(heat[:, 2:-2, 2:-2] > around, (2, 2, 2, 2))


CONSTANTS = "aggregate.safetensors"
SHARPNESS = 30.0
"""Of the soft assignment, see `vlad`."""


def constants_path() -> Path:
    """The file of the constants."""
    return Path(str(files("sareloc") / "weights" / CONSTANTS))


@cache
def constants_fingerprint() -> str:
    """16 hex digits that identify the constants: vectors of other constants cannot be compared."""
    return hashlib.sha256(constants_path().read_bytes()).hexdigest()[:16]


@cache
def _constants() -> tuple[Vectors, Vectors, Vectors]:
    """Centres (64, 64), mean (4096,) and projection (512, 4096)."""
    held = safetensors_numpy.load_file(constants_path())
    centres, mean, projection = (held[name].astype(np.float32) for name in ("centres", "mean", "projection"))
    return centres, mean, projection


def aggregate(features: LocalFeatures, dim: int | None = None) -> Vectors:
    """The unit vector (dim,) of an image's local features; zeros if it has none.

    It is computed from the local features as they are stored in a map, so that a map can be given the vectors of its
    photos later (`map upgrade`), to the last bit.

    Args:
        features: local features of the image.
        dim: the first coordinates to keep; default: all 512.
    """
    centres, mean, projection = _constants()
    if not len(features):
        return np.zeros(len(projection[:dim]), dtype=np.float32)
    centred = vlad(stored_steps(features).astype(np.float32), centres) - mean
    return unit_vectors(product(centred[None], projection[:dim])[0])


def search_vector(descriptor: Vectors, features: LocalFeatures | None, dim: int) -> Vectors:
    """The unit vector by which an image is searched: `[d, a]`, scaled to unit length.

    d is the descriptor of the place model, a the aggregated local features, both of unit length: the cosine of two
    such vectors is the mean of both cosines. Other weights, 0.7 to 1.2 for a, find as much on training towns. Without
    local features a is 0.

    Args:
        descriptor: (D,) of the place model.
        features: local features of the image.
        dim: of the aggregated local features; 0: the search vector is the descriptor.
    """
    if not dim:
        return descriptor
    part = np.zeros(dim, dtype=np.float32) if features is None else aggregate(features, dim)
    return unit_vectors(np.concatenate([descriptor, part]))


def vlad(descriptors: Vectors, centres: Vectors) -> Vectors:
    """The vector of locally aggregated descriptors (K D,), of unit length, of descriptors (N, D) and centres (K, D).

    With unit descriptors x_i, the assignments `a_ik = softmax_k(30 x_i . c_k)` and the residuals
    `v_k = sum_i a_ik (x_i - c_k)`, each v_k is scaled to unit length (intra-normalization), then all together.
    """
    x = unit_vectors(descriptors)  # (N, D)
    scores = SHARPNESS * product(x, centres)  # (N, K)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    residuals = product(shares.T, x.T) - shares.sum(axis=0)[:, None] * centres  # (K, D)
    return unit_vectors(unit_vectors(residuals).ravel())


def unit_vectors(vectors: Vectors) -> Vectors:
    """Vectors (..., D) scaled to unit length; zeros stay."""
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    return unit


def product(a: Vectors, b: Vectors) -> Vectors:
    """The matrix product `a b^T` by torch, with as many threads as torch uses in this thread.

    numpy's library has threads of its own, which wait for each other by spinning: on a machine with other work, or if
    several queries are verified at once, it takes many times as long.
    """
    found: Vectors = torch.mm(torch.from_numpy(a), torch.from_numpy(b).T).numpy()
    return found
