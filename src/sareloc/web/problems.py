"""Errors as problem details (RFC 9457): JSON that says what is wrong, and never how the code got there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sareloc.errors import MapError

MEDIA_TYPE = "application/problem+json"
MAP_RETRY_S = 10
log = logging.getLogger("sareloc.web")


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
