"""Small videos whose frames show their number, so that a test can tell which frame it got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

HEIGHT, WIDTH, BITS = 64, 96, 8
MS = Fraction(1, 1000)


def numbered(number: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """An image with the bits of `number` as bright and dark fields of its upper quarter; blue grows downwards."""
    image = np.full((height, width, 3), 40, np.uint8)
    image[..., 2] = np.linspace(40, 200, height)[:, None]
    field = width // BITS
    for bit in range(BITS):
        if number >> bit & 1:
            image[: height // 4, bit * field : (bit + 1) * field, :2] = 220
    return image


def number_in(image: np.ndarray) -> int:
    """The number that an upright image of any size shows."""
    height, width = image.shape[:2]
    field = width / BITS
    row = image[height // 16 : height * 3 // 16, :, :2].mean(axis=(0, 2))
    return sum(
        1 << bit for bit in range(BITS) if row[round((bit + 0.3) * field) : round((bit + 0.7) * field)].mean() > 130
    )


def write_video(
    path: Path,
    times_ms: Sequence[int],
    *,
    codec: str = "libx264",
    gop: int = 12,
    codec_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    display_matrix: Sequence[int] | None = None,
    images: Sequence[np.ndarray] | None = None,
    aspect: Fraction | None = None,
) -> Path:
    """Write a video with one frame for each time; default: of `images` the numbered ones from 0 on."""
    import av

    images = images or [numbered(number) for number in range(len(times_ms))]
    with av.open(str(path), "w", options=dict(options or {})) as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream(codec, rate=25, options=dict(codec_options or {}))
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.time_base = MS
        stream.codec_context.gop_size = gop
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if display_matrix is not None:
            stream.set_display_matrix(display_matrix)
        for time, image in zip(times_ms, images, strict=True):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = time, MS
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
