"""Aggregated local features: one vector of all local features of an image, a second global descriptor (VLAD).

Local features that a map stores for verification are assigned softly to 64 centres; the residuals to each centre are
summed, scaled to unit length, joined, and whitened (Jégou et al., CVPR 2010; Arandjelović and Zisserman, CVPR 2013).
The constants are part of the package; `research/fit_aggregate.py` fits them.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from sareloc.arrays import Vectors
from sareloc.geometry.local_features import LocalFeatures, stored_steps
from sareloc.geometry.matching import product

CONSTANTS = "aggregate.safetensors"
DIM = 512
SHARPNESS = 30.0
"""Of the soft assignment, see `vlad`."""


def constants_path() -> Path:
    """The file of the constants."""
    return Path(str(files("sareloc") / "weights" / CONSTANTS))


@cache
def constants_fingerprint() -> str:
    """16 hex digits that identify the constants: vectors of other constants cannot be compared."""
    return hashlib.sha256(constants_path().read_bytes()).hexdigest()[:16]


def read_card() -> dict[str, Any]:
    """What the constants were fitted on, and by what."""
    with safe_open(constants_path(), "numpy") as file:
        card: dict[str, Any] = json.loads(file.metadata()["card"])
    return card


@cache
def _constants() -> tuple[Vectors, Vectors, Vectors]:
    """Centres (64, 64), mean (4096,) and projection (512, 4096)."""
    held = load_file(constants_path())
    centres, mean, projection = (held[name].astype(np.float32) for name in ("centres", "mean", "projection"))
    return centres, mean, projection


def aggregate(features: LocalFeatures, dim: int | None = None) -> Vectors:
    """The unit vector (dim,) of an image's local features; zeros if it has none.

    It is computed from the local features as they are stored in a map, so that a map can be given the vectors of its
    photos later (`map upgrade`), to the last bit.

    Args:
        features: of the image.
        dim: the first coordinates to keep; default: all 512.
    """
    centres, mean, projection = _constants()
    if not len(features):
        return np.zeros(len(projection[:dim]), dtype=np.float32)
    centred = vlad(stored_steps(features).astype(np.float32), centres) - mean
    return _unit(product(centred[None], projection[:dim])[0])


def search_vector(descriptor: Vectors, features: LocalFeatures | None, dim: int) -> Vectors:
    """The unit vector by which an image is searched: `[d, a]`, scaled to unit length.

    d is the descriptor of the place model, a the aggregated local features, both of unit length: the cosine of two
    such vectors is the mean of both cosines. Other weights, 0.7 to 1.2 for a, find as much on training towns. Without
    local features a is 0.

    Args:
        descriptor: (D,) of the place model.
        features: of the image.
        dim: of the aggregated local features; 0: the search vector is the descriptor.
    """
    if not dim:
        return descriptor
    part = np.zeros(dim, dtype=np.float32) if features is None else aggregate(features, dim)
    return _unit(np.concatenate([descriptor, part]))


def vlad(descriptors: Vectors, centres: Vectors) -> Vectors:
    """The vector of locally aggregated descriptors (K D,), of unit length, of descriptors (N, D) and centres (K, D).

    With unit descriptors x_i, the assignments `a_ik = softmax_k(30 x_i . c_k)` and the residuals
    `v_k = sum_i a_ik (x_i - c_k)`, each v_k is scaled to unit length (intra-normalization), then all together.
    """
    x = _unit(descriptors)  # (N, D)
    scores = SHARPNESS * product(x, centres)  # (N, K)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    residuals = product(shares.T, x.T) - shares.sum(axis=0)[:, None] * centres  # (K, D)
    return _unit(_unit(residuals).ravel())


def _unit(vectors: Vectors) -> Vectors:
    """Vectors (..., D) scaled to unit length; zeros stay."""
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    return unit
