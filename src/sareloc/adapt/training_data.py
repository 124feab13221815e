"""What a map learns from: pairs of its photos that geometry verifies, relit copies of them, and photos without
positions that it can place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from sareloc.adapt.compare import Comparisons, compare_queries, metres_apart, shown_together
from sareloc.adapt.learn import Pairs, Queries
from sareloc.adapt.result_files import Arrays, in_chunks
from sareloc.arrays import Floats, Image, Ints, Vectors
from sareloc.encode import Encoded
from sareloc.errors import PhotoError
from sareloc.geo import ecef_from_wgs84
from sareloc.localize import Localizer
from sareloc.localize.calibration import SAME_SPOT_M
from sareloc.localize.condition import spread
from sareloc.localize.estimate import MIN_CONFIDENCE, PLACE_M, SURE_INLIERS, fuse, weigh
from sareloc.photos import ReadImage
from sareloc.training import augment

FAR_M = 4 * PLACE_M
"""A photo of the map farther than this from a query is wrong; between 25 m and this it is neither right nor wrong."""
CELL_M = 50.0
"""Side of the cells of the area that are held out together."""
RELIT = 1000
"""At most so many photos of the map are relit."""
RELIT_TIMES = 2
"""Once is a dull or a bright day, twice a night."""


@dataclass(frozen=True, eq=False)
class Placed:
    """n photos without positions that the map places: the query of its self-training."""

    photos: tuple[Path, ...]
    vectors: Vectors
    """(n, D)"""
    latlon: Floats
    """(n, 2) where their verified matches agree."""
    confidence: Floats
    """(n,)"""
    pairs: Comparisons
    """Their verified matches at that place; `query` is their row."""
    given: int
    """How many photos were given; the others were doubtful, or could not be read."""


def verified_pairs(localizer: Localizer, compared: Comparisons, left_out: Ints) -> Comparisons:
    """The pairs of photos of the map that show the same thing: within 50 m of each other, with 30 inliers or more.

    Args:
        localizer: of the map.
        compared: its photos.
        left_out: ids of photos whose geotags are suspicious.
    """
    sound = ~np.isin(compared.query, left_out) & ~np.isin(compared.photo, left_out)
    found = compared.take(sound & shown_together(localizer.place_map, compared))
    both = np.sort(np.stack([found.query, found.photo], axis=1), axis=1)
    _, first = np.unique(both, axis=0, return_index=True)
    return found.take(np.sort(first))


def look_alikes(localizer: Localizer, compared: Comparisons) -> int:
    """How many compared pairs look alike, are more than 100 m apart, and are refuted: fewer than 15 inliers."""
    away = metres_apart(localizer.place_map, compared)
    return int(((away > FAR_M) & (compared.inliers < SURE_INLIERS)).sum())


def relight_photos(localizer: Localizer, rows: Ints, seed: int) -> Iterator[ReadImage | PhotoError]:
    """Photos of the map, by their rows, in another light: gamma, colour, patches of lamps, noise (see `augment`)."""
    place_map = localizer.place_map
    paths = [place_map.photo_path(place_map.files[row]) for row in rows]
    for row, image in zip(rows.tolist(), localizer.load(paths), strict=True):
        if isinstance(image, PhotoError) or image.views:
            yield image if isinstance(image, PhotoError) else PhotoError(image.name, "is a 360° photo")
        else:
            yield replace(image, pixels=tuple(_relit(pixels, (seed, row)) for pixels in image.pixels))


def _relit(pixels: Image, seed: tuple[int, int]) -> Image:
    rng = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
    images = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None]
    for _ in range(RELIT_TIMES):
        images = (255 * augment(images, rng, crop=0.0, light=1.0)).round().clamp(0, 255).byte()
    return np.asarray(images[0].permute(1, 2, 0).numpy())


def relit_vectors(localizer: Localizer, seed: int, folder: Path | None, progress: bool) -> tuple[Ints, Vectors]:
    """Rows (n,) of photos of the map that can be read, and the search vectors (n, D) of their relit copies."""
    rows = spread(len(localizer.place_map), RELIT)

    def compute(some: range) -> Arrays:
        read = list(zip(rows[some].tolist(), relight_photos(localizer, rows[some], seed), strict=True))
        good = [(row, image) for row, image in read if isinstance(image, ReadImage)]
        vectors = [one.vector for (one,) in localizer.encode([image for _, image in good])]
        dim = localizer.place_map.manifest.vector_dim
        return {
            "rows": np.array([row for row, _ in good], dtype=np.int64),
            "vectors": np.array(vectors, dtype=np.float32).reshape(-1, dim),
        }

    name = f"relit{RELIT_TIMES}-{localizer.vector_space}-{seed}-{len(localizer.place_map)}"
    found = in_chunks(compute, len(rows), name, folder, "relight", progress)
    return found["rows"], found["vectors"]


def place_photos(localizer: Localizer, photos: Sequence[Path], folder: Path | None, progress: bool) -> Placed:
    """The photos without positions that the map places with confidence, and the verified matches by which it does.

    A photo is placed if its fix has a confidence of 0.5 or more and two matches there have 15 inliers or more.

    Args:
        localizer: of the map.
        photos: files; 360° photos and those that cannot be read are left out.
        folder: where results are kept.
        progress: show a progress bar, on a terminal.
    """
    assert localizer.verifier is not None
    verifier, calibration, dim = localizer.verifier, localizer.calibration, localizer.place_map.manifest.vector_dim

    def compute(some: range) -> Arrays:
        read = [
            (row, image)
            for row, image in zip(some, localizer.load([photos[row] for row in some]), strict=True)
            if isinstance(image, ReadImage) and not image.views
        ]
        encoded: list[Encoded] = [one for (one,) in localizer.encode([image for _, image in read])]
        found = compare_queries(localizer.place_map, verifier, encoded, calibration.temperature)
        rows = np.array([row for row, _ in read], dtype=np.int64)
        vectors = np.array([one.vector for one in encoded], dtype=np.float32).reshape(-1, dim)
        return {"rows": rows, "vectors": vectors, **replace(found, query=rows[found.query]).arrays()}

    name = hashlib.sha256("\n".join(f"{os.path.abspath(photo)} {_size(photo)}" for photo in photos).encode())
    title = f"placed-{localizer.vector_space}-{len(localizer.place_map)}-{name.hexdigest()[:12]}"
    found = in_chunks(compute, len(photos), title, folder, "place", progress)
    rows, vectors = found.pop("rows"), found.pop("vectors")
    return _placed(localizer, photos, rows, vectors, Comparisons(**found))


def _size(photo: Path) -> int:
    try:
        return os.stat(photo).st_size
    except OSError:
        return -1


def _placed(
    localizer: Localizer, photos: Sequence[Path], rows: Ints, vectors: Vectors, compared: Comparisons
) -> Placed:
    place_map, calibration = localizer.place_map, localizer.calibration
    kept, latlon, confidence, pairs = list[int](), list[tuple[float, float]](), list[float](), list[Comparisons]()
    for at, row in enumerate(rows.tolist()):
        part = compared.take((compared.query == row) & ~np.isnan(compared.inliers))
        if not len(part):
            continue
        where = place_map.latlon[np.searchsorted(place_map.ids, part.photo)]
        place = fuse(where, part.distance, weigh(part.distance, calibration.temperature, part.evidence), part.evidence)
        there = np.linalg.norm(ecef_from_wgs84(where) - ecef_from_wgs84(place.latlon)[0], axis=1) <= PLACE_M
        agreeing = there & (part.inliers >= SURE_INLIERS)
        sure = calibration.confidence(place)
        if sure >= MIN_CONFIDENCE and agreeing.sum() >= 2:
            pairs.append(replace(part.take(agreeing), query=np.full(int(agreeing.sum()), len(kept))))
            kept.append(at)
            latlon.append(place.latlon)
            confidence.append(sure)
    return Placed(
        tuple(photos[rows[at]] for at in kept),
        vectors[kept],
        np.array(latlon, dtype=np.float64).reshape(-1, 2),
        np.array(confidence, dtype=np.float64),
        Comparisons.join(pairs),
        len(photos),
    )


@dataclass(frozen=True, eq=False)
class Source:
    """Photos of one kind whose positions are known, by which an adaptation is chosen and tested."""

    kind: str
    """Such as "photos of the map"."""
    vectors: Vectors
    """(n, D) search vectors."""
    latlon: Floats
    """(n, 2) degrees."""
    cells: Ints
    """(n,) of the area."""
    same_spot_m: float
    """Photos of the map within this distance of a query are ignored: they are of its own spot; -1: none."""
    encode: Callable[[Ints], list[tuple[int, Encoded]]]
    """Rows (k,) -> those that can be read, each with its search vector and local features."""


def sources_of(
    localizer: Localizer, vectors: Vectors, cells: Ints, relit: Ints, relit_seen: Vectors, placed: Placed,
    placed_cells: Ints, seed: int,
) -> list[Source]:  # fmt: skip
    """The photos of the map, their relit copies, and the placed photos; without kinds that have no photo.

    Args:
        localizer: of the map.
        vectors: of its photos (N, D).
        cells: (N,) of its photos.
        relit: rows of its photos that were relit.
        relit_seen: the search vectors of these copies.
        placed: photos without positions.
        placed_cells: their cells.
        seed: of the relit copies.
    """
    place_map = localizer.place_map
    dim = place_map.manifest.dim

    def of_map(rows: Ints) -> list[tuple[int, Encoded]]:
        held = place_map.local_features(place_map.ids[rows])
        known = [(row, held.get(int(place_map.ids[row]))) for row in rows.tolist()]
        return [(row, Encoded(vectors[row, :dim], one, vectors[row])) for row, one in known if one is not None]

    def read(rows: Ints, images: Iterable[ReadImage | PhotoError]) -> list[tuple[int, Encoded]]:
        good = [(row, one) for row, one in zip(rows.tolist(), images, strict=True) if isinstance(one, ReadImage)]
        return [
            (row, one) for (row, _), (one,) in zip(good, localizer.encode([image for _, image in good]), strict=True)
        ]

    listed = [
        Source("photos of the map", vectors, place_map.latlon, cells, SAME_SPOT_M, of_map),
        Source(
            "relit photos of the map", relit_seen, place_map.latlon[relit], cells[relit], SAME_SPOT_M,
            lambda rows: read(rows, relight_photos(localizer, relit[rows], seed)),
        ),
        Source(
            "photos without positions", placed.vectors, placed.latlon, placed_cells, -1.0,
            lambda rows: read(rows, localizer.load([placed.photos[row] for row in rows])),
        ),
    ]  # fmt: skip
    return [source for source in listed if len(source.vectors)]


def make_queries(localizer: Localizer, source: Source, rows: Ints) -> tuple[Queries, Ints]:
    """Queries of these rows of a source; those without a positive in the map are left out. Returns the rows used too.

    Args:
        localizer: of the map.
        source: the photos.
        rows: (n,).
    """
    photos = ecef_from_wgs84(localizer.place_map.latlon)
    away = np.zeros((len(rows), len(photos)))
    for row, point in enumerate(ecef_from_wgs84(source.latlon[rows])):
        away[row] = np.linalg.norm(photos - point, axis=1)
    same = away <= source.same_spot_m
    positives = (away <= PLACE_M) & ~same
    ignored = same | ((away > PLACE_M) & (away <= FAR_M))
    used = np.asarray(positives.any(axis=1))
    return Queries(source.vectors[rows], positives, ignored, source.cells[rows]).take(used), rows[used]


def map_pairs(localizer: Localizer, vectors: Vectors, verified: Comparisons, cells: Ints) -> Pairs:
    """The search vectors of verified pairs of photos of the map, of all vectors (N, D) and cells (N,) of the map."""
    ids = localizer.place_map.ids
    rows, others = np.searchsorted(ids, verified.query), np.searchsorted(ids, verified.photo)
    cell = np.where(cells[rows] == cells[others], cells[rows], -1)
    return Pairs(vectors[rows], vectors[others], np.ones(len(verified)), cell)


def placed_pairs(localizer: Localizer, vectors: Vectors, placed: Placed, cells: Ints) -> Pairs:
    """The search vectors of placed photos, which are in these cells (n,), and of their verified matches (N, D)."""
    rows, others = placed.pairs.query, np.searchsorted(localizer.place_map.ids, placed.pairs.photo)
    return Pairs(placed.vectors[rows], vectors[others], placed.confidence[rows], cells[rows])
