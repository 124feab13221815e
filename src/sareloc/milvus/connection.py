"""Addresses of maps on Milvus, and the connection to a server, which retries while the server is unavailable.

milvus://HOST[:PORT]/COLLECTION            a server; default port: 19530
milvus-lite:FOLDER/FILE.db/COLLECTION      milvus-lite: a file, without a server
...?index=HNSW                             the index that a new collection gets; see `INDEXES`
"""

from __future__ import annotations

import logging
import logging.config
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

from sareloc.errors import ArgumentError, MapError, MissingExtraError, need

PORT = 19530

# one slash or two: pathlib replaces two by one
_SERVER = re.compile(r"milvus:/{1,2}(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?/(?P<collection>[^/]*)")
_LITE = re.compile(r"milvus-lite:(?P<file>.*\.db)/(?P<collection>[^/]*)")
_COLLECTION = re.compile(r"[A-Za-z_]\w{0,254}", re.ASCII)


@dataclass(frozen=True)
class MilvusAddress:
    """The address of a collection."""

    where: str
    """For messages: milvus://host:port, or milvus-lite:file.db."""
    uri: str
    """For pymilvus: http://host:port, or a file that ends in .db."""
    collection: str
    index: str | None = None
    """The index that the address names; None if it names none."""

    @property
    def local(self) -> bool:
        """Whether this is a file of milvus-lite."""
        return self.uri.endswith(".db")

    def __str__(self) -> str:
        return f"{self.where}/{self.collection}"


def read_milvus_address(given: str | Path) -> MilvusAddress:
    """The parts of an address. Raises ArgumentError if it is malformed."""
    address, _, query = str(given).partition("?")
    found = (_SERVER if address.startswith("milvus:") else _LITE).fullmatch(address)
    if found is None:
        raise ArgumentError(
            f"{given} is not an address of a map on Milvus: write milvus://host:{PORT}/collection, or "
            "milvus-lite:file.db/collection"
        )
    if not _COLLECTION.fullmatch(found["collection"]):
        raise ArgumentError(
            f"{given} names no collection: {found['collection']!r} is not one word of letters, digits and underscores"
        )
    index = re.fullmatch(r"(?:index=(\w+))?", query)
    if index is None:
        raise ArgumentError(f"{given} has the query {query!r}: only index=NAME may follow the question mark")
    index_name = index[1] and index[1].upper()
    if address.startswith("milvus:"):
        server = f"{found['host']}:{found['port'] or PORT}"
        return MilvusAddress(f"milvus://{server}", f"http://{server}", found["collection"], index_name)
    return MilvusAddress(f"milvus-lite:{found['file']}", found["file"], found["collection"], index_name)


T = TypeVar("T")

TOKEN = "MILVUS_TOKEN"
"""The environment variable with user:password, or an API key, for servers with authentication."""
CONNECT_S = 10.0
"""Time limit for connecting to a server."""
PATIENCE_S = 60.0
"""How long a call is retried while the server is unavailable."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0

_IMPORTING = Lock()
_AWAY = {2, 503, 901, 902}  # connecting failed or service unavailable; channel not available; node gone
_STARTING = ("not ready", "not available", "not loaded", "no available", "initializing")


class Connection:
    """pymilvus's client for one address. Safe from several threads."""

    def __init__(self, address: MilvusAddress) -> None:
        self.address = address
        self._milvus = _need_pymilvus()
        for name in ("pymilvus", *(("milvus_lite", "grpc._server") if address.local else ())):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # they log errors with tracebacks, and raise them too
        if address.local:
            _make_room(Path(address.uri))
        try:
            token = os.environ.get(TOKEN, "")
            self._client = self._milvus.MilvusClient(uri=address.uri, token=token, timeout=CONNECT_S)
        except self._errors as error:
            raise MapError(self._connection_error(error)) from error

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return self._milvus.MilvusException, need("grpc", "milvus").RpcError

    @property
    def types(self) -> Any:
        """The types of fields of pymilvus."""
        return self._milvus.DataType

    def make_schema(self) -> Any:
        """An empty schema."""
        return self._client.create_schema(auto_id=False, enable_dynamic_field=False)

    def make_index_parameters(self) -> Any:
        """An empty list of indexes."""
        return self._client.prepare_index_params()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of pymilvus's client; see `retry`."""
        return self.retry(getattr(self._client, method), **{"timeout": PATIENCE_S, **arguments})

    def retry(self, call: Callable[..., T], **arguments: Any) -> T:
        """Call a function that asks the server, with growing pauses while the server is unavailable.

        The server may execute it twice, so it must be idempotent. Raises MapError if the server refuses, or is
        unavailable for `PATIENCE_S`.
        """
        start, wait = monotonic(), FIRST_WAIT_S
        while True:
            try:
                return call(**arguments)
            except self._errors as error:
                if not _is_temporary(error):
                    raise MapError(f"Milvus at {self.address} refused to {call.__name__}: {_said(error)}") from error
                waited = monotonic() - start
                if waited + wait > PATIENCE_S:
                    raise MapError(
                        f"Milvus at {self.address.where} has been unavailable for {PATIENCE_S:.0f} s "
                        f"({_said(error)}). All acknowledged photos are kept: repeat the command when the server runs "
                        "again, and it continues"
                    ) from error
            sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    def _connection_error(self, error: Exception) -> str:
        if self.address.local:
            return (
                f"{self.address.where} cannot be opened ({_said(error)}): is another process using it? milvus-lite "
                "supports one process at a time; a server supports many"
            )
        if "unauthenticated" in repr(error.__cause__).lower() or "auth" in _said(error).lower():
            return (
                f"Milvus at {self.address.where} refused authentication ({_said(error)}): set {TOKEN} to user:password"
            )
        return (
            f"no Milvus server answers at {self.address.where} ({_said(error)}): start it, or correct the host and the "
            "port"
        )


def _need_pymilvus() -> Any:
    """pymilvus, imported without its side effect: it configures logging for the whole process, which disconnects the
    log files of the application."""
    with _IMPORTING:  # two threads must not restore each other's replacement
        configure = logging.config.dictConfig
        logging.config.dictConfig = lambda config: None
        try:
            return need("pymilvus", "milvus")
        finally:
            logging.config.dictConfig = configure


def _make_room(file: Path) -> None:
    """Check that milvus-lite is installed, and create the folder of its file."""
    try:
        need("milvus_lite", "milvus")
    except MissingExtraError as missing:
        raise MissingExtraError(f"{missing.__cause__}: pip install milvus-lite") from missing
    file.parent.mkdir(parents=True, exist_ok=True)


def _is_temporary(error: Exception) -> bool:
    """Whether an error means that the server is unavailable, starting or overloaded."""
    grpc = need("grpc", "milvus")
    code = error.code() if isinstance(error, grpc.RpcError) else getattr(error, "code", None)
    if isinstance(code, grpc.StatusCode):
        return code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    return code in _AWAY or any(word in str(error).lower() for word in _STARTING)


def _said(error: Exception) -> str:
    text = getattr(error, "message", "") or getattr(error, "details", lambda: "")() or str(error)
    return " ".join(str(text).split())[:300]
