"""The search vectors of a map: the descriptors of its photos, and the aggregated local features beside them.

See `sareloc.geometry.local_features.search_vector`. Vectors of other constants cannot be compared: a map names its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sareloc.arrays import Vectors
from sareloc.errors import MapError
from sareloc.maps.records import LARGEST_AGGREGATE_DIM, MapManifest

OTHER_VECTORS = "the search vectors of map {} were changed by another process meanwhile: repeat the command"


def with_aggregate(manifest: MapManifest) -> MapManifest:
    """The manifest of a map whose search vectors have aggregated local features, of this sareloc's constants."""
    from sareloc.geometry.local_features import constants_fingerprint

    dim = min(LARGEST_AGGREGATE_DIM, manifest.dim)
    return replace(manifest, aggregate=constants_fingerprint(), aggregate_dim=dim)


def has_present_aggregate(manifest: MapManifest) -> bool:
    """Whether a map's search vectors have aggregated local features of this sareloc's constants."""
    from sareloc.geometry.local_features import constants_fingerprint

    return manifest.aggregate == constants_fingerprint()


def check_aggregate(manifest: MapManifest, name: str) -> None:
    """Raise MapError if the map `name` has aggregated local features of other constants than this sareloc has."""
    from sareloc.geometry.local_features import constants_fingerprint

    if manifest.aggregate_dim and not has_present_aggregate(manifest):
        raise MapError(
            f"map {name} has search vectors with local features aggregated by the constants {manifest.aggregate}, this "
            f'sareloc has {constants_fingerprint()}: compute them again with "sareloc map upgrade", or use the sareloc '
            f"that made them ({manifest.made_by})"
        )


def complete_vectors(vectors: Vectors, blobs: Sequence[bytes], manifest: MapManifest) -> Vectors:
    """Search vectors (n, vector_dim) of photos whose packed local features are stored now.

    Those of photos that had no local features get the aggregated ones; the others are returned as they are.
    """
    from sareloc.geometry.local_features import search_vector, unpack_features

    completed = vectors.copy()
    for row in np.flatnonzero(~vectors[:, manifest.dim :].any(axis=1)).tolist() if manifest.aggregate_dim else ():
        descriptor = vectors[row, : manifest.dim]
        completed[row] = search_vector(descriptor, unpack_features(blobs[row]), manifest.aggregate_dim)
    return completed
