"""`sareloc serve`: a map answers over HTTP, with a page for people."""

from __future__ import annotations

import ipaddress
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sareloc.errors import need
from sareloc.localize import Search
from sareloc.web import Limits, Serving, make_app
from sareloc.web.limits import LOOPBACK


def serve_command(
    city: Path,
    *,
    model: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    serving: Annotated[Serving | None, Parameter(name="*")] = None,
    limits: Annotated[Limits | None, Parameter(name="*")] = None,
    search: Annotated[Search | None, Parameter(name="*")] = None,
    min_confidence: float = 0.5,
    batch: int = 8,
    device: str | None = None,
    access_log: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Answer over HTTP where photos were taken, and show a page where people drop them.

    Stops at Ctrl-C or SIGTERM, after answering what it has accepted. Better than on the command line, a token stands in
    the environment variable SARELOC_TOKEN.

    Parameters
    ----------
    city
        The map.
    model
        The checkpoint that the map was built with; by itself the packaged model that it was built with.
    host
        The address to listen on: by itself this machine alone; 0.0.0.0 for all that can reach it.
    port
        The port to listen on; 0 takes a free one.
    min_confidence
        Below it, a photo is not in this map.
    batch
        Photos described at once.
    device
        Where the model runs: cpu, cuda, cuda:1. By default the GPU where there is one.
    access_log
        Log every request, with the positions that it asks about.
    """
    for module in ("fastapi", "uvicorn", "python_multipart"):
        need(module, "serve")
    from sareloc.web.server import bind, make_server

    shown, granted = serving or Serving(), limits or Limits()
    if shown.token is None:
        shown = replace(shown, token=os.environ.get("SARELOC_TOKEN"))
    if is_loopback(host):
        # else a page elsewhere whose name is made to point to this machine could read the map
        shown = replace(shown, hosts=(*LOOPBACK, *shown.hosts))
    elif shown.token is None:
        print(
            f"sareloc: warning: whoever can reach {host} can ask this map and see its photos; without --token nobody "
            "can add any. Let a reverse proxy decide who may",
            file=sys.stderr,
        )
    app = make_app(
        city, model, search, serving=shown, limits=granted, min_confidence=min_confidence, device=device, batch=batch
    )
    with bind(host, port) as listening:
        where = _address(*listening.getsockname()[:2])
        make_server(
            app,
            granted,
            lambda: print(f"serving {city.name} at {where} (Ctrl-C stops)", flush=True),
            access_log=access_log,
        ).run(sockets=[listening])


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
