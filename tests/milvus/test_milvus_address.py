"""Addresses of maps in Milvus, written in every way, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sareloc.errors import ArgumentError
from sareloc.maps import store_class
from sareloc.milvus.connection import MilvusAddress, read_milvus_address


@pytest.mark.parametrize(
    ("given", "where", "uri", "collection", "index"),
    [
        (
            "milvus://db.example.org:19531/city",
            "milvus://db.example.org:19531",
            "http://db.example.org:19531",
            "city",
            None,
        ),
        ("milvus://10.0.0.7/_City_2", "milvus://10.0.0.7:19530", "http://10.0.0.7:19530", "_City_2", None),
        ("milvus://[::1]:5/city", "milvus://[::1]:5", "http://[::1]:5", "city", None),
        ("milvus://h/city?index=flat", "milvus://h:19530", "http://h:19530", "city", "FLAT"),
        ("milvus-lite:maps/all.db/city", "milvus-lite:maps/all.db", "maps/all.db", "city", None),
        ("milvus-lite:/a.db/b.db/city", "milvus-lite:/a.db/b.db", "/a.db/b.db", "city", None),
    ],
)
def test_parts(given: str, where: str, uri: str, collection: str, index: str | None) -> None:
    assert not store_class(given).is_file
    assert read_milvus_address(given) == MilvusAddress(where, uri, collection, index)
    assert read_milvus_address(Path(given)) == read_milvus_address(given)  # though pathlib joins slashes
    assert str(read_milvus_address(given)) == f"{where}/{collection}"


@pytest.mark.parametrize("given", ["city.gpkg", "milvus.gpkg", "/data/milvus:x", "http://milvus/x", "x/milvus-lite:/y"])
def test_files_are_no_addresses(given: str) -> None:
    assert store_class(given).is_file
    assert store_class(Path(given)).is_file


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("milvus://host", "write milvus://host:19530/collection"),
        ("milvus:///city", "not an address"),
        ("milvus://host:x/city", "not an address"),
        ("milvus://host/a/b", "not an address"),
        ("milvus://user:secret@host/a", "not an address"),
        ("milvus-lite:folder/city", r"write .*milvus-lite:file\.db/collection"),
        ("milvus://host/", "no collection"),
        ("milvus://host/my-city", "'my-city' is not one word of letters, digits and underscores"),
        ("milvus://host/2city", "'2city' is not one word"),
        ("milvus://host/größe", "is not one word"),
        ("milvus://host/city?shards=2", r"only index=NAME"),
    ],
)
def test_invalid_values_are_reported(given: str, said: str) -> None:
    assert not store_class(given).is_file
    with pytest.raises(ArgumentError, match=said):
        read_milvus_address(given)
