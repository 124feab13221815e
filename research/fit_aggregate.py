"""Fit the constants of aggregated local features: centres, and the whitening of the VLAD vectors.

    python -m research.fit_aggregate --data DATA --work WORK --out src/sareloc/weights/aggregate.safetensors

The photos are freely licensed: landmarks of Wikimedia Commons (the train part of `landmarks`), and drawn towns of seeds
that no result is reported on. The centres are those of spherical k-means over 100 local features of each photo; the
whitening is `fit_whitening`'s of the VLAD vectors of the same photos, with singular values raised by 1e-3.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_sets
from benchmarks.measuring import about

from sareloc.city import draw_places
from sareloc.datasets import load_dataset, photo_paths
from sareloc.errors import PhotoError
from sareloc.geometry import LocalFeatureExtractor, feature_size
from sareloc.geometry.local_features import LocalFeatures, stored_steps, vlad
from sareloc.loading import read_images

CENTRES, DIM = 64, 512
SEEDS = (3, 4, 5, 6, 7, 8)  # of drawn towns: 0, 1 and 2 are reported on, or choose weights
SAMPLED = 100  # local features of a photo, for the centres
RAISED = 1e-3
FEWEST_PX = 128


def extract(paths: list[Path], workers: int) -> list[LocalFeatures]:
    """The local features of the photos that have some."""
    extractor = LocalFeatureExtractor("cpu")
    read = (image for _, image in read_images(paths, (feature_size,), workers=workers))
    wide = (image for image in read if not isinstance(image, PhotoError) and min(image.pixels[0].shape[:2]) > FEWEST_PX)
    found = [extractor.extract(image.pixels)[0] for image in wide]
    return [one for one in found if len(one) >= SAMPLED]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="drawn photos are kept here")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--landmarks", type=int, default=2000, help="photos of landmarks, drawn at random")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    import faiss

    rng = np.random.default_rng(0)
    landmarks = list(photo_paths(real_sets.landmarks(args.data, "train")))
    chosen = [landmarks[row] for row in np.sort(rng.permutation(len(landmarks))[: args.landmarks])]
    drawn: list[Path] = []
    for seed in SEEDS:
        folder = args.work / f"city-small-{seed}"
        draw_places(folder, seed, "small", splits=("val",), photo_size=(480, 640))
        drawn += photo_paths(load_dataset(folder, split="val"))
    counts = {}
    found: list[LocalFeatures] = []
    for name, paths in (("landmarks", chosen), ("drawn towns", drawn)):
        some = extract(paths, args.workers)
        counts[name] = len(some)
        found += some
    stored = [stored_steps(one).astype(np.float32) for one in found]
    sample = np.concatenate([one[rng.permutation(len(one))[:SAMPLED]] for one in stored])
    sample /= np.maximum(np.linalg.norm(sample, axis=1, keepdims=True), 1e-9)
    clusters = faiss.Kmeans(sample.shape[1], CENTRES, niter=25, seed=0, spherical=True, max_points_per_centroid=10**6)
    clusters.train(sample)
    centres = np.asarray(clusters.centroids, dtype=np.float16)
    vectors = np.stack([vlad(one, centres.astype(np.float32)) for one in stored]).astype(np.float64)
    mean = vectors.mean(axis=0)
    _, values, axes = np.linalg.svd(vectors - mean, full_matrices=False)
    projection = axes[:DIM] / (values[:DIM, None] / np.sqrt(len(vectors)) + RAISED)
    card = {
        "about": "aggregated local features (VLAD) of XFeat: 64 centres, whitened to 512 dimensions",
        "photos": counts,
        "licences": "landmarks: Wikimedia Commons, each photo with its own free licence; drawn towns: ours",
        "made by": {key: value for key, value in about().items() if key != "command"},
    }
    save_file(
        {
            "centres": centres,
            "mean": mean.astype(np.float16),
            "projection": (projection / np.abs(projection).max()).astype(np.float16),
        },
        args.out,
        {"card": json.dumps(card)},
    )
    print(json.dumps(card, indent=1), f"{args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
