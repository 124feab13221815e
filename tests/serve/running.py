"""A real server around an app, and a localizer whose answers a test can hold back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from tests.localize.street import street_model

from sareloc.localize import Fix, Localizer
from sareloc.maps import PlaceMap
from sareloc.serve import Limits, ServeConfig, make_app
from sareloc.serve.server import bind, make_server

DEADLINE_S = 300.0  # ends a test that hangs; no test waits for it to pass


@contextmanager
def running(app: FastAPI, limits: Limits | None = None) -> Iterator[str]:
    """The address of the app, served by uvicorn on a free port."""
    ready = threading.Event()
    listening = bind("127.0.0.1", 0)
    server = make_server(app, limits or Limits(), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        assert ready.wait(DEADLINE_S), "the service did not start"
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the service did not stop"


@contextmanager
def street_client(path: Path, *, config: ServeConfig | None = None, **options: Any) -> Iterator[httpx.Client]:
    """A client of the service of a street's map."""
    app = make_app(path, street_model(), config=config, **options)
    with running(app, config) as address, httpx.Client(base_url=address, timeout=DEADLINE_S) as client:
        yield client


class HeldLocalizer(Localizer):
    """Answers only while `gate` is set, and remembers how many photos came at once."""

    def __init__(self, path: Path, batch: int = 8) -> None:
        super().__init__(street_model(), PlaceMap(path), batch=batch)
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.batches: list[int] = []

    def localize_many(self, photos: Any, **options: Any) -> list[Any]:
        self.batches.append(len(photos))
        self.begun.set()
        assert self.gate.wait(DEADLINE_S)
        return super().localize_many(photos, **options)


def same_place(told: dict[str, Any], fix: Fix) -> bool:
    """Whether an answer lists the matches of a fix."""
    return [match["id"] for match in told["matches"]] == [match.id for match in fix.matches]
