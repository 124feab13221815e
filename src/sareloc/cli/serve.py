"""`sareloc serve`: a map answers over HTTP, with a page for people."""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sareloc.cli import Device
from sareloc.errors import ArgumentError, need
from sareloc.localize import Search
from sareloc.serve import Limits, Serving, make_app
from sareloc.serve.config import LOOPBACK, bracketed

EVERYWHERE = ("0.0.0.0", "::")


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
    device: Device = None,
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
        The address to listen on; default: localhost only. 0.0.0.0 listens on all addresses, and needs --allow-host.
    port
        The port to listen on; 0 takes a free one.
    min_confidence
        Below it, a photo is not in this map.
    batch
        Photos described at once.
    access_log
        Log every request, with the positions that it asks about.
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        need(module, "serve")
    from sareloc.serve.server import bind, make_server

    shown, granted = serving or Serving(), limits or Limits()
    if shown.token is None:
        shown = replace(shown, token=os.environ.get("SARELOC_TOKEN"))
    if is_loopback(host):
        shown = replace(shown, allow_host=(*shown.allow_host, *({host} - {"::1", *LOOPBACK})))
    elif not shown.allow_host:
        name = socket.gethostname() if host in EVERYWHERE else host
        raise ArgumentError(
            f"--host {host} also needs the host names that the service may be addressed by, so that no web page can "
            f"read the map under another name: add --allow-host {name} (may be repeated), or --allow-host '*' for all"
        )
    elif shown.token is None:
        print(
            f"sareloc: warning: everyone who can reach {host} can query this map and see its photos; without --token "
            "nobody can add photos. Use a reverse proxy to restrict access",
            file=sys.stderr,
        )
    with bind(host, port) as listening:  # first: opening the map takes longest
        app = make_app(
            city,
            model,
            search,
            serving=shown,
            limits=granted,
            min_confidence=min_confidence,
            device=device,
            batch=batch,
        )
        hidden = app.state.service.hidden_photos()
        if hidden.count:
            options = " ".join(f"--photos {shlex.quote(folder)}" for folder in hidden.folders)
            print(
                f"sareloc: note: {hidden.count:,} photos of the map have no thumbnails, as they lie outside the "
                f"folders that may be shown: add {options} to show them",
                file=sys.stderr,
            )
        name = host if host not in EVERYWHERE else shown.allow_host[0].replace("*", "localhost")
        where = f"http://{bracketed(name)}:{listening.getsockname()[1]}/"
        make_server(
            app,
            granted,
            lambda: print(f"serving {city.name} at {where} (Ctrl-C stops)", flush=True),
            access_log=access_log,
        ).run(sockets=[listening])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
