"""Running the service: uvicorn on a socket, with time limits from the first byte to the last."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sareloc.errors import ArgumentError
from sareloc.serve.config import Limits

BACKLOG = 2048  # uvicorn's
GRACE_S = 5.0
"""Beyond the time that a request may take, before a shutdown gives up on it."""


class PromptProtocol(H11Protocol):
    """HTTP/1.1 that also ends connections whose request line and headers do not come within the time of a request."""

    within_s: float = Limits.request_s
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time begins to run."""
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing left to wait for."""
        super().connection_lost(exc)
        if self._patience is not None:
            self._patience.cancel()

    def on_response_complete(self) -> None:
        """The next request may come over the same connection, and has as much time."""
        super().on_response_complete()
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(self.within_s, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else `Guard` looks at the clock
            self.timeout_keep_alive_handler()


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises ArgumentError if the port cannot be had.

    Connections wait in the socket's queue until a server accepts them.
    """
    if not 0 <= port <= 65_535:
        raise ArgumentError(f"a port is a number from 0 to 65535, found {port}: choose another --port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # only of a socket that says it is TCP does asyncio send small packets at once; else each answer waits 40 ms
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would take a port that is in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)  # only from here on is the port this socket's alone
    except OSError as refused:
        listening.close()
        raise ArgumentError(_why_not(host, port, refused)) from refused
    return listening


def _why_not(host: str, port: int, refused: OSError) -> str:
    if refused.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another program: choose another --port, or 0 for a free one"
    if refused.errno == errno.EACCES:
        return (
            f"port {port} of {host} may only be used by the administrator: choose another --port, from 1024 on, and "
            "let a reverse proxy forward to it"
        )
    return f"{host} port {port} cannot be listened on ({refused.strerror}): choose another --host or --port"


def make_server(app: FastAPI, limits: Limits, ready: Callable[[], None], *, access_log: bool = False) -> uvicorn.Server:
    """A server whose `run(sockets=[...])` answers until SIGTERM or SIGINT, then finishes what it has accepted.

    `ready` is called when it answers.
    """
    config = uvicorn.Config(
        app,
        http=type("Protocol", (PromptProtocol,), {"within_s": limits.request_s}),
        ws="none",
        lifespan="on",
        log_level="info" if access_log else "warning",
        access_log=access_log,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(limits.request_s + GRACE_S),
    )
    return _Server(config, ready)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
