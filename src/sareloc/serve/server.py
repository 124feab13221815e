"""Run the service: a listening socket, and uvicorn with a time limit on requests that do not arrive."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sareloc.errors import ArgumentError
from sareloc.serve.config import Limits

BACKLOG = 2048  # uvicorn's
END_S = 2.0
"""Seconds for threads to end after `Limits.stop_s`; then the process ends without them."""
log = logging.getLogger("sareloc.serve")


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1; closes connections whose request line and headers do not arrive within the time limit of a request."""

    request_s: float = Limits.request_s
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        self._stop_timer()

    def on_response_complete(self) -> None:
        """Restart the timer for the next request of the connection."""
        super().on_response_complete()
        self._start_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.request_s, self._close_idle)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else `Guard` applies the time limit
            self.timeout_keep_alive_handler()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any free port. Raises ArgumentError if the address cannot be used.

    Connections wait in the socket's queue until a server accepts them.
    """
    if not 0 <= port <= 65_535:
        raise ArgumentError(f"--port must be from 0 to 65535, found {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only if the socket names its protocol; else each answer waits 40 ms
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on Windows it would allow a port that is in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)  # two sockets can bind the same port, only one can listen
    except OSError as refused:
        listening.close()
        raise ArgumentError(_reason(host, port, refused)) from refused
    return listening


def _reason(host: str, port: int, refused: OSError) -> str:
    if refused.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another program: choose another --port, or 0 for any free port"
    if refused.errno == errno.EACCES:
        return (
            f"no permission to listen on port {port} of {host}: choose another --port from 1024 on, and put a reverse "
            "proxy in front"
        )
    return f"cannot listen on {host} port {port} ({refused.strerror}): choose another --host or --port"


def make_server(app: FastAPI, limits: Limits, ready: Callable[[], None], *, access_log: bool = False) -> uvicorn.Server:
    """A server whose `run(sockets=[...])` answers until SIGTERM or SIGINT, then completes the accepted requests.

    Requests that are not answered `Limits.stop_s` seconds after the signal get status 503, and `END_S` later the
    process ends, also if a thread of it is blocked. `ready` is called when the server accepts requests.
    """
    config = uvicorn.Config(
        app,
        http=type("Protocol", (HeaderTimeoutProtocol,), {"request_s": limits.request_s}),
        ws="none",
        lifespan="on",
        log_level="info" if access_log else "warning",
        access_log=access_log,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(limits.stop_s),
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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            assert self.config.timeout_graceful_shutdown is not None, "see make_server"
            end = threading.Timer(self.config.timeout_graceful_shutdown + END_S, _end_process, (sig,))
            end.daemon = True
            end.start()
        super().handle_exit(sig, frame)


def _end_process(sig: int) -> None:
    """End the process with the status of this signal, without waiting for its threads, which Python would do.

    A thread can be blocked for ever, such as in reading a file of a server that is gone.
    """
    log.error("the service ends although threads of it are still working")
    os._exit(128 + sig)
