"""The connection to Milvus: asked again while the server is away, and errors of ours in place of pymilvus's."""

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

# Addresses of maps that live in Milvus, as they are written where a map's file could stand.
#
# milvus://HOST[:PORT]/COLLECTION a server; port 19530 by default milvus-lite:FOLDER/FILE.db/COLLECTION milvus-lite:
# the same without a server, in this process ...?index=HNSW which index a collection gets when it is made, see
# `milvus_index`

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


T = TypeVar("T")

TOKEN = "MILVUS_TOKEN"
"""The environment variable with user:password, or an API key, for servers that ask who is there."""
CONNECT_S = 10.0
"""A server that does not answer by then is not there."""
PATIENCE_S = 60.0
"""How long a server that was there may be away before its caller gives up."""
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
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what they log, with its traceback, they raise as well
        if address.local:
            _make_room(Path(address.uri))
        try:
            token = os.environ.get(TOKEN, "")
            self._client = self._milvus.MilvusClient(uri=address.uri, token=token, timeout=CONNECT_S)
        except self._errors as error:
            raise MapError(self._not_there(error)) from error

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return self._milvus.MilvusException, need("grpc", "milvus").RpcError

    @property
    def types(self) -> Any:
        """Milvus's types of fields."""
        return self._milvus.DataType

    def make_schema(self) -> Any:
        """An empty schema."""
        return self._client.create_schema(auto_id=False, enable_dynamic_field=False)

    def make_index_parameters(self) -> Any:
        """An empty list of indexes."""
        return self._client.prepare_index_params()

    def close(self) -> None:
        """Let the server go."""
        self._client.close()

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of pymilvus's client, see `patiently`."""
        return self.patiently(getattr(self._client, method), **{"timeout": PATIENCE_S, **arguments})

    def patiently(self, call: Callable[..., T], **arguments: Any) -> T:
        """Call something that asks the server; while that is away, again and again, ever less often.

        What is asked for may so be done twice: it must come to the same. After `PATIENCE_S` of silence, or when the
        server refuses, a MapError says what happened.
        """
        start, wait = monotonic(), FIRST_WAIT_S
        while True:
            try:
                return call(**arguments)
            except self._errors as error:
                if not _passes(error):
                    raise MapError(f"Milvus at {self.address} refused to {call.__name__}: {_said(error)}") from error
                waited = monotonic() - start
                if waited + wait > PATIENCE_S:
                    raise MapError(
                        f"Milvus at {self.address.where} was lost and has not come back within {PATIENCE_S:.0f} s "
                        f"({_said(error)}). What it had acknowledged is kept: when it is there again, give the same "
                        "command, and it goes on where it was"
                    ) from error
            sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    def _not_there(self, error: Exception) -> str:
        if self.address.local:
            return (
                f"{self.address.where} cannot be opened ({_said(error)}): is another process using it? milvus-lite "
                "serves one at a time; a server serves many"
            )
        if "unauthenticated" in repr(error.__cause__).lower() or "auth" in _said(error).lower():
            return f"Milvus at {self.address.where} does not know us ({_said(error)}): set {TOKEN} to user:password"
        return (
            f"no Milvus answers at {self.address.where} ({_said(error)}): start the server, or correct the host and "
            "the port"
        )


def _need_pymilvus() -> Any:
    """pymilvus, without what it does when it is imported: it configures logging anew for the whole process, and from
    then on nothing reaches a log file that the application had opened before."""
    with _IMPORTING:  # else two threads could each put back what the other one had put there
        configure = logging.config.dictConfig
        logging.config.dictConfig = lambda config: None
        try:
            return need("pymilvus", "milvus")
        finally:
            logging.config.dictConfig = configure


def _make_room(file: Path) -> None:
    """Milvus-lite wants to be installed, and a folder for its file."""
    try:
        need("milvus_lite", "milvus")
    except MissingExtraError as missing:
        raise MissingExtraError(f"{missing.__cause__}: pip install milvus-lite") from missing
    file.parent.mkdir(parents=True, exist_ok=True)


def _passes(error: Exception) -> bool:
    """Whether an error is one of a server that is away, starting or overloaded."""
    grpc = need("grpc", "milvus")
    code = error.code() if isinstance(error, grpc.RpcError) else getattr(error, "code", None)
    if isinstance(code, grpc.StatusCode):
        return code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    return code in _AWAY or any(word in str(error).lower() for word in _STARTING)


def _said(error: Exception) -> str:
    text = getattr(error, "message", "") or getattr(error, "details", lambda: "")() or str(error)
    return " ".join(str(text).split())[:300]
