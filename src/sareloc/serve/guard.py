"""What comes in and goes out: photos and forms of requests; ASGI middleware around the app, which sets limits on size
and time, checks the Host header, adds security headers and counts; problem details.

Every error is answered as problem details (RFC 9457): JSON that says what is wrong, without a stack trace.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security.utils import get_authorization_scheme_param
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sareloc.errors import MapError, PositionError
from sareloc.photos import Geotag, ImageRecord
from sareloc.serve.config import ServeConfig, allowed_hosts, tile_host

FIELD = "photos"
LONGEST_NAME = 255
MAX_FIELDS = 8
LONGEST_FIELD = 1024
MEDIA_TYPE = "application/problem+json"
INTERNAL = "internal error: see the log of the service"
MAP_RETRY_S = 10
LINGER_S = 2.0
"""Seconds to read and discard what a client still sends after its answer: a connection closed earlier is reset, and the
client never reads the answer."""
END: Message = {"type": "http.response.body", "body": b"", "more_body": False}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = {"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"}
log = logging.getLogger("sareloc.serve")


class Problem(Exception):  # noqa: N818  # the term of RFC 9457
    """An error response: its status, the sentence that explains it, and further headers."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> JSONResponse:
    """The response with type, title, status, detail and further members."""
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **members}
    return JSONResponse(content, status, dict(headers or {}), MEDIA_TYPE)


def busy(detail: str, retry_s: int = 1) -> Problem:
    """Status 503: the service is at its limits; Retry-After says in how many seconds to try again."""
    return Problem(503, detail, {"Retry-After": str(retry_s)})


def has_token(request: Request, token: str | None) -> bool:
    """Whether a request has the token of the service; False for a service without one."""
    scheme, given = get_authorization_scheme_param(request.headers.get("Authorization"))
    return token is not None and scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), token.encode())


def is_form(request: Request) -> bool:
    """Whether the body is a form rather than a photo."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def read_photo(request: Request) -> ImageRecord:
    """The photo that is the body of a request. Raises Problem (400) if the body is empty."""
    content = await request.body()
    if not content:
        raise Problem(400, "the body is empty: send a photo as the body, or several photos as a form")
    return ImageRecord("photo", content)


async def read_form(request: Request, max_files: int) -> tuple[list[ImageRecord], FormData]:
    """The photos of a form, in order, and its other fields. Raises Problem (400, 415) if there are none."""
    if not is_form(request):
        raise Problem(415, f"send the photos as multipart/form-data, in fields named {FIELD}")
    try:
        form = await request.form(max_files=max_files, max_fields=MAX_FIELDS, max_part_size=LONGEST_FIELD)
    except ValueError as malformed:  # an unknown character set
        raise Problem(400, "the form is malformed: its field names cannot be decoded") from malformed
    try:
        files = form.getlist(FIELD)
        if not files:
            raise Problem(400, f"the form has no photos: send them in fields named {FIELD}")
        return [await _upload(file) for file in files], form
    finally:
        await form.close()


def read_position(form: FormData) -> Geotag | None:
    """The geotag in the fields lat and lon of a form; None without them. Raises Problem (422) if invalid."""
    given = [form.get(name) for name in ("lat", "lon")]
    if given == [None, None]:
        return None
    try:
        latitude, longitude = (float(value) for value in given if isinstance(value, str))
        if not math.isfinite(latitude + longitude):
            raise ValueError
        return Geotag((latitude, longitude))
    except PositionError as invalid:
        raise Problem(422, str(invalid)) from invalid
    except ValueError as malformed:
        raise Problem(422, "the fields lat and lon must be two numbers, in degrees") from malformed


async def _upload(file: UploadFile | str) -> ImageRecord:
    if isinstance(file, str):
        raise Problem(400, f"the field {FIELD} must be a file, found text")
    return ImageRecord(printable_name(file.filename), await file.read())


def printable_name(given: str | None) -> str:
    """The last part of a file name, without unprintable characters."""
    last = (given or "").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:LONGEST_NAME] or "photo"


def public_name(file: str) -> str:
    """The name of a photo in the map, for every client: of an absolute path, which shows the folders of this machine,
    the last part."""
    absolute = PurePosixPath(file).is_absolute() or PureWindowsPath(file).is_absolute()
    return printable_name(file) if absolute else file


def add_problem_handlers(app: FastAPI) -> None:
    """Answer these exceptions as problem details; `Guard` answers all others."""

    @app.exception_handler(Problem)
    async def problem_raised(_: Request, problem: Problem) -> JSONResponse:
        return problem_response(problem.status, problem.detail, problem.headers)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        return problem_response(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        messages = [f"{' '.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return problem_response(422, "; ".join(messages))

    @app.exception_handler(MapError)
    async def map_error(_: Request, error: MapError) -> JSONResponse:
        log.error("%s", error)  # not in the answer: it names files of this machine
        detail = "the map cannot be read at the moment: see the log of the service"
        return problem_response(503, detail, {"Retry-After": str(MAP_RETRY_S)})


def security_headers(tiles: str | None) -> dict[str, str]:
    """Headers of every answer: browsers load content from this service and the tile server only."""
    images = " ".join(filter(None, ("'self' data: blob:", tiles and tile_host(tiles))))
    return {
        "Content-Security-Policy": f"default-src 'self'; img-src {images}; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "strict-origin-when-cross-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(self), geolocation=(self), microphone=()",
    }


class Guard:
    """The middleware. `registry` receives the metrics of requests."""

    def __init__(self, app: ASGIApp, config: ServeConfig, registry: CollectorRegistry) -> None:
        self.app = app
        self.config = config
        self.hosts = allowed_hosts(config)
        headers = security_headers(config.tiles)
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self.held_bytes = 0
        """Size of the bodies of all requests that are not answered yet."""
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
        """Pass a request to the app within its limits, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        exchange = _Exchange(self, scope, receive, send)
        try:
            await exchange.run()
        finally:
            exchange.release()
            # unknown paths and methods share one label: clients could invent any number of them
            route = getattr(scope.get("route"), "path", None) or "other"
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
        """Whether the body was received to its end."""
        self._delivered = False
        """Whether the app has received the end of the body."""
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.gone = False
        """Whether the client closed the connection before the answer began."""

    async def run(self) -> None:
        self._task = asyncio.current_task()
        try:
            async with asyncio.timeout(self.guard.config.request_s):
                self._check_head()
                if self.complete:
                    self._watch_connection()
                await self.guard.app(self.scope, self.receive, self.send)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            if not self.gone:  # the server stops
                await self._answer(busy("the service is stopping: try again later"))
        except TimeoutError:
            await self._answer(self._too_late())
        except Problem as problem:
            await self._answer(problem)
        except Exception:
            log.exception("%s %s failed", self.scope["method"], self.scope["path"])
            await self._answer(Problem(500, INTERNAL))
        finally:
            if self._watch is not None:
                self._watch.cancel()

    def _watch_connection(self) -> None:
        """From the end of the body on: cancel the request if its client goes, so that it is not computed."""

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if self.status is None and self._task is not None:
                self.gone = True
                self._task.cancel()

        self._watch = asyncio.create_task(watch())

    def _check_head(self) -> None:
        name = self.host if self.host.endswith("]") else self.host.rpartition(":")[0] or self.host
        if self.guard.hosts is not None and name not in self.guard.hosts:
            # DNS rebinding: a web page whose host name resolves to this machine must not read the map
            raise Problem(
                421, f"the host name {name!r} is not allowed: the operator of this service can add it by --allow-host"
            )
        if self.declared.isdigit() and int(self.declared) > self.guard.config.max_bytes:
            raise self._too_large()

    def _too_large(self) -> Problem:
        return Problem(413, f"the request exceeds {self.guard.config.max_bytes:,} bytes: send fewer or smaller photos")

    def _too_late(self) -> Problem:
        limit = f"{self.guard.config.request_s:g} s"
        if not self.complete:
            return Problem(408, f"the request did not arrive within {limit}")
        return busy(f"there was no answer within {limit}: try again later", 10)

    async def _answer(self, problem: Problem) -> None:
        if self.status is None:
            response = problem_response(problem.status, problem.detail, problem.headers)
            await response(self.scope, self.receive, self.send)
        elif self.lingering:
            await self._send(END)
        # else an answer was begun, and only closing the connection tells the client that it is incomplete

    def release(self) -> None:
        """Subtract the body of this request from the bytes in memory."""
        self.guard.held_bytes -= self.held
        self.held = 0

    async def receive(self) -> Message:
        """The server's `receive`, within the limits; what follows the body is received by `_watch_connection`."""
        if self._watch is not None:
            if self._delivered:
                await asyncio.shield(self._watch)
                return {"type": "http.disconnect"}
            self._delivered = True
            return {"type": "http.request", "body": b"", "more_body": False}
        message = await self._receive()
        if message["type"] == "http.request":
            self.complete = self._delivered = not message.get("more_body", False)
            size = len(message.get("body", b""))
            self.received += size
            self.held += size
            self.guard.held_bytes += size
            if self.received > self.guard.config.max_bytes:
                raise self._too_large()
            if self.guard.held_bytes > self.guard.config.held_bytes:
                raise busy("the service is receiving as many photos as it can hold in memory: try again later")
            if self.complete:
                self._watch_connection()
        return message

    async def send(self, message: Message) -> None:
        """The server's `send`, with the security headers; if the body is incomplete, the answer ends after it."""
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
