"""Addresses of maps that live in Milvus, as they are written where a map's file could stand.

milvus://HOST[:PORT]/COLLECTION              a server; port 19530 by default
milvus-lite:FOLDER/FILE.db/COLLECTION        milvus-lite: the same without a server, in this process
...?index=HNSW                               which index a collection gets when it is made, see `milvus_index`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sareloc.errors import ArgumentError

SCHEMES = ("milvus:", "milvus-lite:")
PORT = 19530

# one slash or two: pathlib makes one of them
_SERVER = re.compile(r"milvus:/{1,2}(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?/(?P<collection>[^/]*)")
_LITE = re.compile(r"milvus-lite:(?P<file>.*\.db)/(?P<collection>[^/]*)")
_COLLECTION = re.compile(r"[A-Za-z_]\w{0,254}", re.ASCII)


@dataclass(frozen=True)
class MilvusAddress:
    """Where a collection is."""

    where: str
    """For people: milvus://host:port, or milvus-lite:file.db."""
    uri: str
    """For pymilvus: http://host:port, or a file that ends in .db."""
    collection: str
    index: str | None = None
    """The index that was asked for; None where the address does not say."""

    @property
    def local(self) -> bool:
        """Whether this is milvus-lite's."""
        return self.uri.endswith(".db")

    def __str__(self) -> str:
        return f"{self.where}/{self.collection}"


def is_milvus_address(given: str | Path) -> bool:
    """Whether this names a collection rather than a file."""
    return str(given).startswith(SCHEMES)


def read_milvus_address(given: str | Path) -> MilvusAddress:
    """The parts of an address; what is none is an ArgumentError that shows how one is written."""
    address, _, query = str(given).partition("?")
    found = (_SERVER if address.startswith("milvus:") else _LITE).fullmatch(address)
    if found is None:
        raise ArgumentError(
            f"{given} is no address of a map in Milvus: write milvus://host:{PORT}/collection, or "
            "milvus-lite:file.db/collection"
        )
    if not _COLLECTION.fullmatch(found["collection"]):
        raise ArgumentError(
            f"{given} names no collection: {found['collection']!r} is not one word of letters, digits and underscores"
        )
    index = re.fullmatch(r"(?:index=(\w+))?", query)
    if index is None:
        raise ArgumentError(f"{given} asks for {query!r}: only index=NAME may stand behind the question mark")
    index_name = index[1] and index[1].upper()
    if address.startswith("milvus:"):
        server = f"{found['host']}:{found['port'] or PORT}"
        return MilvusAddress(f"milvus://{server}", f"http://{server}", found["collection"], index_name)
    return MilvusAddress(f"milvus-lite:{found['file']}", found["file"], found["collection"], index_name)
