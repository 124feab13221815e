"""The adaptation of a map: a linear map of search vectors that makes verified pairs of its photos nearer to each other.

Photos of one place taken by day and by night differ most in a few directions of the search vector, whatever they show.
An adaptation shortens these directions, and weighs the two parts of the vector: `v' = unit(A v)`. It stays near the
identity, is invertible, and is stored in the map as a note.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from sareloc.arrays import Floats, Vectors
from sareloc.geometry.local_features import unit_vectors

FORMAT = 1
MOST_STEPS, MOST_DIRECTIONS = 4, 512
"""Each step of 512 directions is 2.8 MB of a note, which has at most 16 MiB."""
SMALLEST_FACTOR = 0.01


@dataclass(frozen=True, eq=False)
class Step:
    """One linear map: `A = (I + U^T diag(f - 1) U) W`."""

    weight: float
    """W is 1 for the descriptor and this for the aggregated local features."""
    directions: Vectors
    """U (r, D), orthonormal rows."""
    factors: Floats
    """f (r,), each direction is multiplied by; 0.01 or more."""

    def __call__(self, vectors: Vectors, dim: int) -> Vectors:
        """Vectors (..., D), of which the first `dim` numbers are the descriptor, not scaled to unit length."""
        weighted = vectors * np.concatenate([np.ones(dim), np.full(vectors.shape[-1] - dim, self.weight)]).astype(
            np.float32
        )
        along = weighted @ self.directions.T  # (..., r)
        return np.asarray(weighted + (along * (self.factors - 1).astype(np.float32)) @ self.directions)

    def inverse(self, vectors: Vectors, dim: int) -> Vectors:
        """What `__call__` was given for these vectors (..., D)."""
        along = vectors @ self.directions.T
        weighted = vectors + (along * (1 / self.factors - 1).astype(np.float32)) @ self.directions
        scale = np.concatenate([np.ones(dim), np.full(vectors.shape[-1] - dim, 1 / self.weight)])
        return np.asarray(weighted * scale.astype(np.float32))


@dataclass(frozen=True, eq=False)
class Adaptation:
    """Steps that are applied to a search vector one after the other: each adaptation of a map adds one."""

    dim: int
    """Of the descriptor, the first part of the vectors."""
    steps: tuple[Step, ...]

    def __call__(self, vectors: Vectors) -> Vectors:
        """Search vectors (..., D) as the map holds them, of unit length; zeros stay zeros."""
        for step in self.steps:
            vectors = step(vectors, self.dim)
        return unit_vectors(vectors).astype(np.float32)

    def inverse(self, vectors: Vectors) -> Vectors:
        """The search vectors (..., D), of unit length, whose adapted ones these are."""
        for step in reversed(self.steps):
            vectors = step.inverse(vectors, self.dim)
        return unit_vectors(vectors).astype(np.float32)

    def fingerprint(self) -> str:
        """16 hex digits that identify it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        steps = [
            {
                "weight": step.weight,
                "factors": step.factors.tolist(),
                "directions": base64.b64encode(step.directions.astype("<f4").tobytes()).decode(),
            }
            for step in self.steps
        ]
        return json.dumps({"format": FORMAT, "dim": self.dim, "steps": steps})

    @staticmethod
    def from_json(given: Any, dim: int, vector_dim: int) -> Adaptation:
        """The adaptation of decoded JSON, of vectors with these dimensions.

        Raises ValueError, KeyError or TypeError if it is malformed: a map may come from anywhere.
        """
        if given["format"] != FORMAT:
            raise ValueError("its format is a newer one")
        if given["dim"] != dim or not 1 <= len(given["steps"]) <= MOST_STEPS:
            raise ValueError("it is of vectors with other dimensions, or has too many steps")
        steps = []
        for one in given["steps"]:
            factors = np.array(one["factors"], dtype=np.float64)
            if factors.ndim != 1 or len(factors) > MOST_DIRECTIONS:
                raise ValueError(f"it has more than {MOST_DIRECTIONS} directions")
            directions = np.frombuffer(base64.b64decode(one["directions"], validate=True), dtype="<f4")
            directions = directions.reshape(len(factors), vector_dim).astype(np.float32)
            weight = float(one["weight"])
            if not np.allclose(directions @ directions.T, np.eye(len(factors)), atol=1e-3):  # also if not finite
                raise ValueError("its directions are not orthonormal")
            if not ((factors >= SMALLEST_FACTOR) & (factors <= 1 / SMALLEST_FACTOR)).all():
                raise ValueError("a factor is out of range")
            if not SMALLEST_FACTOR <= weight <= 1 / SMALLEST_FACTOR:
                raise ValueError("its weight is out of range")
            steps.append(Step(weight, directions, factors))
        return Adaptation(dim, tuple(steps))
