"""Memory of describing: over thousands of photos, and for one large batch. Linux only.

    OMP_NUM_THREADS=2 python -m benchmarks.memory [--photos 20000]

"stream": many photos (links to a few files) described one batch after the other by EfficientNet-lite0-NetVLAD at 96x128
(random weights, 128 dimensions), their descriptors dropped. The resident set is read after each tenth
of the photos: growth would be multiplied by a million photos.
"batch": the peak of a process that describes 32 images of 480x640 at once with VGG16-NetVLAD, whitened to 4096.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.measuring import about, memory_mb
from PIL import Image

from sareloc.encode import Encoder
from sareloc.loading import read_images
from sareloc.models import Whitening, make_model

FILES = 16


def stream(photos: int, workers: int) -> dict[str, Any]:
    model = make_model("efficientnet-lite0", clusters=8, size=(96, 128))
    model.whitening = Whitening(torch.zeros(model.dim), torch.randn(128, model.dim))
    rng = np.random.default_rng(0)
    held: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(photos):
            path = Path(folder) / f"{number:07d}.jpg"
            if number < FILES:
                Image.fromarray(rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)).save(path)
            else:
                os.symlink(f"{number % FILES:07d}.jpg", path)
        paths = sorted(Path(folder).iterdir())
        done = 0
        encoder = Encoder(model, keypoints=0, batch=32)
        for _ in encoder.encode_each(read_images(paths, encoder.sizes, workers=workers)):
            done += 1
            if len(held) < 10 * done // photos:
                held.append(memory_mb())
    assert done == photos
    return {"photos": photos, "mb_at_each_tenth": held, "grown_mb": held[-1] - held[0], "peak_mb": memory_mb("VmHWM")}


def one_batch(images: int) -> dict[str, Any]:
    model = make_model(rng=torch.Generator().manual_seed(0))
    model.whitening = Whitening(torch.zeros(model.dim), torch.ones(4096, model.dim))
    loaded = memory_mb()
    pixels = np.random.default_rng(0).integers(0, 256, (images, 480, 640, 3), dtype=np.uint8)
    found = model.encode(list(pixels), batch=images)
    assert len(found) == images
    return {"images": images, "loaded_mb": loaded, "peak_mb": memory_mb("VmHWM")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--stage", choices=["stream", "batch"], help="one part alone, in this process")
    args = parser.parse_args()
    if args.stage:
        print(json.dumps(stream(args.photos, args.workers) if args.stage == "stream" else one_batch(args.images)))
        return
    rows = {}
    for stage in ("stream", "batch"):  # each in a process of its own: a peak is never taken back
        command = [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:], "--stage", stage]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows[stage] = json.loads(done.stdout)
        print(stage, rows[stage])
    print(json.dumps({**about(), **rows}))


if __name__ == "__main__":
    main()
