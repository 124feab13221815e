"""The rankings of a dataset's queries: by exact search over its described database, or by a map of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from sareloc.arrays import Floats, Ints, Vectors
from sareloc.datasets import DATASETS
from sareloc.datasets.places import Places, Protocol, photo_paths
from sareloc.encode import Descriptors, describe, describe_boxes
from sareloc.errors import DatasetError, PhotoError, look_up
from sareloc.evaluation.judging import NS, PROTOCOLS, Report, evaluate_rankings
from sareloc.geometry import (
    KEYPOINTS,
    LocalFeatureExtractor,
    count_inliers,
    feature_size,
    match_scores,
    pack_features,
    unpack_features,
    verify,
)
from sareloc.loading import read_images
from sareloc.localize.queries import query_encoder
from sareloc.maps import Matches, PlaceMap
from sareloc.models.place_model import PlaceModel
from sareloc.models.preprocess import RUNTIME_DEVICES

ROWS_AT_ONCE, QUERIES_AT_ONCE = 16384, 512  # 32 MB of products at a time
LAST_ROW = 2**32 - 1


def search(
    database: Vectors,
    queries: Vectors,
    k: int,
    *,
    absent: Collection[int] = (),
    device: torch.device | str = "cpu",
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The k nearest database rows of each query, exactly, and their distances.

    The database is read once, in parts, so that it may be a memory map larger than the memory.

    Args:
        database: (N, dim) unit descriptors.
        queries: (Q, dim) unit descriptors.
        k: number of results of each query.
        absent: database rows that are never found.
        device: where products are computed.

    Returns:
        Rows (Q, k) and distances (Q, k), nearest first; equal products in order of row. Past the last row: -1, inf.
    """
    asked = torch.split(torch.from_numpy(queries).to(device), QUERIES_AT_ONCE)
    missing = torch.as_tensor(sorted(absent), dtype=torch.int64, device=device)
    best = [_keys(some.new_full((len(some), k), -torch.inf), LAST_ROW) for some in asked]
    for start in range(0, len(database), ROWS_AT_ONCE):
        part = torch.from_numpy(np.array(database[start : start + ROWS_AT_ONCE])).to(device)
        rows = torch.arange(start, start + len(part), device=device)
        for i, some in enumerate(asked):
            products = (some @ part.T).masked_fill_(torch.isin(rows, missing), -torch.inf)
            best[i] = torch.cat([best[i], _highest(products, rows, k)], dim=1).topk(k).values
    keys = torch.cat(best).cpu()
    cosines = _in_order((keys >> 32).int()).view(torch.float32).double()
    found = cosines > -torch.inf
    rankings = torch.where(found, LAST_ROW - (keys & LAST_ROW), -1)
    return rankings.numpy(), torch.where(found, (2 - 2 * cosines).clamp(min=0).sqrt(), torch.inf).numpy()


def _highest(products: Tensor, rows: Tensor, k: int) -> Tensor:
    """Keys (Q, k) of the k highest products of each query."""
    k = min(k, len(rows))
    values, columns = products.topk(k)
    keys = _keys(values, rows[columns])
    # if more than k reach the last value, the choice of topk among equals is undefined
    unsure = (products >= values[:, -1:]).sum(dim=1) > k
    if unsure.any():
        keys[unsure] = _keys(products[unsure], rows).topk(k).values
    return keys


def _keys(products: Tensor, rows: Tensor | int) -> Tensor:
    """One int64 for each product and its row, in the order of results: by product, equal ones by the lower row."""
    return (_in_order(products.view(torch.int32)).long() << 32) | (LAST_ROW - rows)


def _in_order(bits: Tensor) -> Tensor:
    """The bits of floats as integers of the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


Boxes = Literal["crop", "full"]


@dataclass(frozen=True, eq=False)
class Ranked:
    """The nearest database photos of each of Q queries, and the model of their descriptors."""

    places: Places
    """The dataset, with the protocol to judge by."""
    rankings: Ints
    """(Q, K) database rows, nearest first, before `apply_protocol`; -1: no result."""
    distances: Floats
    """(Q, K) between descriptors; inf: no result."""
    model: str
    fingerprint: str
    dim: int
    boxes: Boxes | None
    """Whether queries were cropped to their boxes; None if the dataset has no boxes."""
    failures: Mapping[str, tuple[tuple[str, str], ...]]
    """Photos of the database and of the queries that could not be decoded, with reasons."""

    def report(self, *, ns: Sequence[int] = NS, seed: int = 0) -> Report:
        """Judge the rankings by the protocol; no N may be larger than the n they were searched for."""
        judged = evaluate_rankings(self.places, self.rankings, self.distances, ns=ns, seed=seed)
        about = {name: getattr(self, name) for name in ("model", "fingerprint", "dim", "boxes", "failures")}
        return replace(judged, **about)


def rank(
    model: PlaceModel,
    places: Places,
    *,
    protocol: Protocol | None = None,
    n: int = max(NS),
    dim: int | None = None,
    boxes: Boxes = "crop",
    batch: int = 8,
    workers: int = 0,
    store: Path | None = None,
    progress: bool = True,
) -> Ranked:
    """Search the database exactly for each query, as deep as the protocol needs to judge the first n results.

    Args:
        model: the model.
        places: the dataset.
        protocol: default: that of the dataset.
        n: the largest N of recall@N.
        dim: keep the first `dim` coordinates of the descriptors; default: all.
        boxes: crop queries to their boxes, or use full photos; see `evaluate`.
        batch: images at a time.
        workers: processes that decode photos.
        store: folder of a descriptor cache; default: none.
        progress: show a progress bar.

    Raises:
        DatasetError: if photos are missing.
    """
    places = places if protocol is None else replace(places, protocol=protocol)
    depth = look_up(PROTOCOLS, places.protocol, "protocol").depth(places, n)
    areas = places.boxes if boxes == "crop" else None
    asked = places.queries.paths()

    check_photos(places)
    paths = photo_paths(places if areas is None else replace(places, queries=places.queries.take([])))
    described = describe(paths, model, store=store, batch=batch, workers=workers, dim=dim, progress=progress)
    row_of = {path: row for row, path in enumerate(paths)}
    database = _take(described, [row_of[path] for path in places.database.paths()])
    if areas is None:
        queries = _take(described, [row_of[path] for path in asked])
    else:
        queries = describe_boxes(model, asked, areas, dim=dim, progress=progress)

    k = min(depth, len(places.database))
    found = search(database.vectors, queries.vectors, k, absent=database.failures, device=model.device)
    return _ranked(model, places, *found, queries, boxes=boxes, left_out=database.failures)


def _ranked(
    model: PlaceModel,
    places: Places,
    rankings: Ints,
    distances: Floats,
    queries: Descriptors,
    *,
    boxes: Boxes,
    left_out: Mapping[int, PhotoError],
) -> Ranked:
    """The rankings, without those of queries that could not be decoded; `left_out`: failures of the database."""
    rankings[list(queries.failures)], distances[list(queries.failures)] = -1, np.inf
    return Ranked(
        places,
        rankings,
        distances,
        model=model.name,
        fingerprint=model.fingerprint(),
        dim=queries.vectors.shape[1],
        boxes=None if places.boxes is None else boxes,
        failures={
            role: reasons(failed[row] for row in sorted(failed))
            for role, failed in (("database", left_out), ("queries", queries.failures))
        },
    )


def check_photos(places: Places) -> None:
    """Raise DatasetError if the dataset has no database photos or queries, or if none of their files exists."""
    for photos, role in ((places.database, "database photos"), (places.queries, "queries")):
        if not len(photos):
            raise DatasetError(f"{places.name} has no {role} in split {places.split!r}: nothing can be evaluated")
        if not any(photos.path(row).is_file() for row in range(len(photos))):
            layout = f". Its layout is:\n{DATASETS[places.name].layout}" if places.name in DATASETS else ""
            raise DatasetError(f"none of the {len(photos)} {role} of {places.name} is in {photos.folder}{layout}")


def _take(described: Descriptors, rows: Sequence[int]) -> Descriptors:
    # a slice of a memory map reads nothing; a list of rows would copy them
    leading = list(rows) == list(range(len(rows)))
    vectors = described.vectors[: len(rows)] if leading else described.vectors[np.asarray(rows, dtype=np.int64)]
    failures = {new: described.failures[old] for new, old in enumerate(rows) if old in described.failures}
    return Descriptors(vectors, failures)


def reasons(results: Iterable[object]) -> tuple[tuple[str, str], ...]:
    """The photos that failed and why, of results that are errors for these."""
    return tuple((result.photo, result.reason) for result in results if isinstance(result, PhotoError))


def rank_by_map(
    model: PlaceModel,
    places: Places,
    place_map: PlaceMap,
    *,
    protocol: Protocol | None = None,
    n: int = max(NS),
    batch: int = 8,
    workers: int = 0,
    progress: bool = True,
) -> Ranked:
    """As `rank`, with the database of a map: its search vectors, precision and index.

    Database photos that the map lacks are never found. Queries are full photos, also if the dataset has boxes.

    Args:
        model: the model that the map was built with.
        places: the dataset.
        place_map: built from the dataset's database photos, in a file or on a server.
        protocol: default: that of the dataset.
        n: the largest N of recall@N.
        batch: images at a time.
        workers: processes that decode photos.
        progress: show a progress bar.

    Raises:
        DatasetError: if the map has a photo that is not in the database: nothing says whether it is right.
    """
    places = places if protocol is None else replace(places, protocol=protocol)
    check_photos(places)
    depth = look_up(PROTOCOLS, places.protocol, "protocol").depth(places, n)
    queries = _search_vectors(model, place_map, places.queries.paths(), batch, workers, progress)
    matches = place_map.search(queries.vectors, min(depth, len(places.database)))
    distances = np.array(matches.distances, dtype=np.float64)
    return _ranked(model, places, _rows(matches, places, place_map), distances, queries, boxes="full", left_out={})


def _search_vectors(
    model: PlaceModel, place_map: PlaceMap, paths: Sequence[Path], batch: int, workers: int, progress: bool
) -> Descriptors:
    """The vectors by which photos are searched in a map; zeros for those that cannot be decoded."""
    encoder = query_encoder(model, place_map, batch=batch)
    vectors = np.zeros((len(paths), place_map.manifest.vector_dim), dtype=np.float32)
    failures: dict[int, PhotoError] = {}
    loaded = encoder.encode_each(read_images(paths, encoder.sizes, workers=workers))
    for row, found in tqdm(loaded, "describe", len(paths), unit="photo", disable=None if progress else True):
        if isinstance(found, PhotoError):
            failures[row] = found
        else:
            vectors[row] = found.vector
    return Descriptors(vectors, failures)


def _rows(matches: Matches, places: Places, place_map: PlaceMap) -> np.typing.NDArray[np.int64]:
    """(Q, K) database rows of matches."""
    row_of = {os.path.abspath(path): row for row, path in enumerate(places.database.paths())}
    found = np.empty(matches.ids.shape, dtype=np.int64)
    for query, files in enumerate(matches.files):
        for place, file in enumerate(files):
            row = row_of.get(os.path.abspath(place_map.photo_path(file)))
            if row is None:
                raise DatasetError(
                    f"map {place_map.path.name} holds {file}, which is not a database photo of {places.name} "
                    f"{places.split}: build the map from {places.database.folder}"
                )
            found[query, place] = row
    return found


TEMPERATURE_SHARE = 0.15
"""The temperature of the scores, as a share of the median spread of a query's squared distances; as for fixes."""


def verify_rankings(
    places: Places,
    rankings: Ints,
    distances: Floats,
    first: int,
    *,
    keypoints: int = KEYPOINTS,
    device: torch.device | str | None = None,
    workers: int = 0,
    progress: bool = True,
) -> tuple[Ints, Floats]:
    """Rankings and distances with the first results of each query ordered by `match_scores`.

    Local features are computed from the photos of the queries and of the results, packed as in a map. A photo that
    cannot be decoded has no evidence; a query that cannot be keeps its order. Equal scores keep their order.

    Args:
        places: the dataset.
        rankings: (Q, K) database rows, best first; -1: no result.
        distances: (Q, K) between descriptors.
        first: number of results of each query that are ordered.
        keypoints: of a photo of the database, at most.
        device: where local features are computed; default: the CPU.
        workers: processes that decode photos.
        progress: show progress bars.
    """
    on_it = str(device).startswith("cuda") or device in RUNTIME_DEVICES
    extractor = LocalFeatureExtractor(device if on_it else "cpu")
    top = rankings[:, :first]
    shown = np.unique(top[top >= 0])
    stored = extract_packed(
        extractor, [places.database.path(int(row)) for row in shown], keypoints, workers, "features", progress
    )
    features_of = dict(zip(shown.tolist(), stored, strict=True))
    known = np.isfinite(distances[:, :first]).all(axis=1)
    spread = (distances[known, min(first, top.shape[1]) - 1] ** 2 - distances[known, 0] ** 2) if known.any() else [0.0]
    temperature = max(TEMPERATURE_SHARE * float(np.median(spread)), 1e-9)
    rankings, distances = rankings.copy(), distances.copy()
    queries = extract_packed(extractor, places.queries.paths(), KEYPOINTS, workers, "verify", progress)
    for row, packed in enumerate(queries):
        results = [int(one) for one in top[row] if one >= 0]
        if packed is None or not results:
            continue
        others = [features_of[one] for one in results]
        unpacked = [None if other is None else unpack_features(other) for other in others]
        scores = match_scores(
            distances[row, : len(results)], temperature, count_inliers(verify(unpack_features(packed), unpacked))
        )
        order = np.argsort(-scores, kind="stable")
        rankings[row, : len(results)] = rankings[row, order]
        distances[row, : len(results)] = distances[row, order]
    return rankings, distances


def extract_packed(
    extractor: LocalFeatureExtractor, paths: Sequence[Path], keypoints: int, workers: int, title: str, progress: bool
) -> list[bytes | None]:
    """The packed local features of photos, in order; None for a photo that cannot be decoded."""
    packed: list[bytes | None] = [None] * len(paths)
    loaded = read_images(paths, (feature_size,), workers=workers)
    for row, image in tqdm(loaded, title, len(paths), unit="photo", disable=None if progress else True):
        if not isinstance(image, PhotoError):
            (found,) = extractor.extract(image.pixels, keypoints, focal_35mm=[image.focal_35mm])
            packed[row] = pack_features(found)
    return packed
