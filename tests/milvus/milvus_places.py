"""Milvus for tests: milvus-lite in a folder, and fresh collections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.localize.street import street_model, write_queries, write_street

from sareloc.geo import distance_m
from sareloc.localize import Calibration, Fix, Localizer, Search
from sareloc.maps import MapConfig, PlaceMap, build_map, copy_map, map_info
from sareloc.milvus.collection import Column, MilvusCollection, create_collection
from sareloc.milvus.connection import Connection, MilvusAddress, read_milvus_address

COLUMNS = (Column("lat", "DOUBLE", 0.0), Column("file", "VARCHAR", ""))


def make_collection(address: MilvusAddress, dim: int, index: str = "HNSW") -> MilvusCollection:
    connection = Connection(address)
    create_collection(connection, dim, COLUMNS, index, {"sareloc.test": "yes"})
    return MilvusCollection(connection, COLUMNS)


def collection_of(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test."""
    return re.sub(r"\W", "_", request.node.name, flags=re.ASCII)


def lite_address(folder: Path, collection: str) -> MilvusAddress:
    return read_milvus_address(f"milvus-lite:{folder}/lite.db/{collection}")


QUERIES = 4
MAPPED = 10  # places


def check_that_fixes_agree(folder: Path, there: str) -> None:
    """The same photos in a file and at an address, with local features: the fixes of queries agree in every part.

    The photos are deleted before: what a server does not hold is missing.
    """
    photos = write_street(folder / "photos", MAPPED)
    queries = write_queries(folder / "queries")[:QUERIES]
    config = MapConfig(keypoints=256, storage="float32", progress=False)
    for out in (folder / "street.gpkg", there):
        assert build_map(folder / "photos", out, street_model(), config=config).features == len(photos)
    for photo in photos:
        photo.unlink()
    copy_map(there, folder / "back.gpkg", progress=False)
    maps = [PlaceMap(where) for where in (folder / "street.gpkg", there, folder / "back.gpkg")]
    made = [one.manifest for one in maps]
    assert {(one.dim, one.aggregate, one.aggregate_dim, one.format) for one in made} == {
        (made[0].dim, made[0].aggregate, made[0].aggregate_dim, made[0].format)
    }
    stored = map_info(there).local_features
    assert stored is not None
    assert (stored.keypoints, stored.photos) == (256, len(photos))
    for search in (Search(), Search(verify=0)):
        first, *others = (_fixes(one, search, queries) for one in maps)
        for other in others:
            for a, b in zip(first, other, strict=True):
                assert a.latlon is not None
                assert b.latlon is not None
                assert distance_m(a.latlon, b.latlon) < 0.01
                assert b.confidence == pytest.approx(a.confidence, abs=1e-3)
                assert b.radius_m == pytest.approx(a.radius_m, rel=1e-3)
                assert Path(b.matches[0].photo).name == Path(a.matches[0].photo).name
                assert b.matches[0].inliers == a.matches[0].inliers
                np.testing.assert_allclose(b.matches[0].distance, a.matches[0].distance, atol=1e-3)
        verified = [fix.matches[0].inliers is not None for fix in first]
        assert all(verified) if search.verify is None else not any(verified)


def _fixes(place_map: PlaceMap, search: Search, queries: Sequence[Path]) -> list[Fix]:
    # one calibration for all: a map fits its own on its photos in the order of their ids, which differ
    localizer = Localizer(street_model(), place_map, search, calibration=Calibration(), min_confidence=0)
    found = localizer.localize_many(queries)
    return [one for one in found if isinstance(one, Fix)]
