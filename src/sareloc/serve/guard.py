"""What stands before every request: size and time limits, headers that keep browsers safe, counting, errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sareloc.errors import MapError
from sareloc.serve.config import Limits

# Errors as problem details (RFC 9457): JSON that says what is wrong, and never how the code got there.

MEDIA_TYPE = "application/problem+json"
MAP_RETRY_S = 10
log = logging.getLogger("sareloc.serve")


class Problem(Exception):  # noqa: N818  # the standard's word
    """A request that cannot be answered as it is, with the status and the sentence that say so."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> JSONResponse:
    """The answer: type, title, status, detail, and further members."""
    told = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **members}
    return JSONResponse(told, status, dict(headers or {}), MEDIA_TYPE)


def busy(detail: str, retry_s: int = 1) -> Problem:
    """The service has as much to do as it takes on: come back in so many seconds."""
    return Problem(503, detail, {"Retry-After": str(retry_s)})


def answer_problems(app: FastAPI) -> None:
    """Let the app answer these errors as problem details; whatever else is raised, `Guard` answers."""

    @app.exception_handler(Problem)
    async def ours(_: Request, problem: Problem) -> JSONResponse:
        return problem_response(problem.status, problem.detail, problem.headers)

    @app.exception_handler(HTTPException)
    async def plain(_: Request, error: HTTPException) -> JSONResponse:
        return problem_response(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        said = [f"{' '.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return problem_response(422, "; ".join(said))

    @app.exception_handler(MapError)
    async def no_map(_: Request, error: MapError) -> JSONResponse:
        log.error("%s", error)  # it names files of this machine, which are nobody else's business
        said = "the map cannot be read at the moment: the log of the service says why"
        return problem_response(503, said, {"Retry-After": str(MAP_RETRY_S)})


LINGER_S = 2.0
"""How long to go on reading, and dropping, what a client sends after its answer is out: who is cut off while sending
never sees the answer."""
END: Message = {"type": "http.response.body", "body": b"", "more_body": False}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = {"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"}


class Guard:
    """ASGI middleware around the whole app. `hosts`: the Host headers that are answered; None for all."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        registry: CollectorRegistry,
        headers: Mapping[str, str],
        hosts: frozenset[str] | None,
    ) -> None:
        self.app = app
        self.limits = limits
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self.hosts = hosts
        self.held_bytes = 0
        """Of all requests in work."""
        self._requests = Counter(
            "sareloc_requests_total", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "sareloc_request_seconds",
            "Seconds from a request to its answer.",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, within its limits."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        exchange = _Exchange(self, scope, receive, send)
        try:
            await exchange.run()
        finally:
            exchange.release()
            route = getattr(scope.get("route"), "path", None) or "other"  # names that clients make up are not counted
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._requests.labels(method, route, str(exchange.status or "none")).inc()
            self._seconds.labels(route).observe(time.monotonic() - start)


class _Exchange:
    """One request and its answer."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard = guard
        self.scope = scope
        self._receive = receive
        self._send = send
        self.received = 0
        self.held = 0
        self.status: int | None = None
        self.lingering = False
        headers = dict(scope["headers"])
        self.host = headers.get(b"host", b"").decode("latin-1").lower()
        self.declared = headers.get(b"content-length", b"0")
        self.complete = b"transfer-encoding" not in headers and self.declared == b"0"
        """Whether the whole body has come."""

    async def run(self) -> None:
        try:
            async with asyncio.timeout(self.guard.limits.request_s):
                self._check_head()
                await self.guard.app(self.scope, self.receive, self.send)
        except ClientDisconnect:
            return
        except TimeoutError:
            await self._answer(self._too_late())
        except Problem as problem:
            await self._answer(problem)
        except Exception:
            log.exception("%s %s failed", self.scope["method"], self.scope["path"])
            await self._answer(Problem(500, "the service made a mistake: its log says which"))

    def _check_head(self) -> None:
        name = self.host if self.host.endswith("]") else self.host.rpartition(":")[0] or self.host
        if self.guard.hosts is not None and name not in self.guard.hosts:
            # a page elsewhere whose name was made to point here must not read this map
            raise Problem(
                421, f"this service does not answer to the host name {name!r}: its operator allows it by --allow-host"
            )
        if self.declared.isdigit() and int(self.declared) > self.guard.limits.max_bytes:
            raise self._too_large()

    def _too_large(self) -> Problem:
        return Problem(413, f"a request may have {self.guard.limits.max_bytes:,} bytes at most: send fewer photos")

    def _too_late(self) -> Problem:
        limit = f"{self.guard.limits.request_s:g} s"
        if not self.complete:
            return Problem(408, f"the photo did not arrive within {limit}")
        return busy(f"there was no answer within {limit}: try again later", 10)

    async def _answer(self, problem: Problem) -> None:
        if self.status is None:
            response = problem_response(problem.status, problem.detail, problem.headers)
            await response(self.scope, self.receive, self.send)
        elif self.lingering:
            await self._send(END)
        # else an answer is on its way, and only cutting it short tells the client

    def release(self) -> None:
        """What was held of the body has been dealt with."""
        self.guard.held_bytes -= self.held
        self.held = 0

    async def receive(self) -> Message:
        """As the server's, within the limits."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            self.received += size
            self.held += size
            self.guard.held_bytes += size
            if self.received > self.guard.limits.max_bytes:
                raise self._too_large()
            if self.guard.held_bytes > self.guard.limits.held_bytes:
                raise busy("the service is receiving as many photos as it can hold")
        return message

    async def send(self, message: Message) -> None:
        """As the server's, with our headers; before the end, what the client is still sending is let run out."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.release()
            given = {name for name, _ in message.get("headers", ())}
            ours = [(name, value) for name, value in self.guard.headers if name not in given]
            closing = [] if self.complete else [(b"connection", b"close")]
            message = {**message, "headers": [*message.get("headers", ()), *ours, *closing]}
        elif not self.complete and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            self.lingering = True
            await self._linger()
            message = END
        await self._send(message)

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(LINGER_S):
                while not self.complete:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        return
                    self.complete = not message.get("more_body", False)
        except TimeoutError:
            return
