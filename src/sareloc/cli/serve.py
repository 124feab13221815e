"""`sareloc serve`: localize photos over HTTP, with a page for people."""

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

from sareloc.cli.options import DEFAULT_SEARCH, Device, Precision, SearchFlags
from sareloc.errors import ArgumentError, need
from sareloc.serve.config import Limits, Serving

EVERYWHERE = ("0.0.0.0", "::")


def serve_command(
    place_map: Annotated[Path, Parameter(name="map")],
    *,
    model: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    serving: Annotated[Serving | None, Parameter(name="*")] = None,
    limits: Annotated[Limits | None, Parameter(name="*")] = None,
    search: SearchFlags = DEFAULT_SEARCH,
    min_confidence: float = 0.5,
    batch: int = 8,
    device: Device = None,
    precision: Precision = "auto",
    access_log: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Localize photos over HTTP: an API for programs, and a page for people.

    Ctrl-C or SIGTERM stops the service after the accepted requests are answered, or after --stop-s seconds.

    Parameters
    ----------
    place_map
        The map: a file, or an address such as milvus://HOST:PORT/NAME.
    model
        Checkpoint that the map was built with; default: the packaged model that the map was built with.
    host
        Address to listen on; default: localhost only. 0.0.0.0 listens on all addresses, and requires --allow-host.
    port
        Port to listen on; 0: any free port.
    min_confidence
        Minimum confidence of a position; below it the answer is "not in this map".
    batch
        Maximum photos described at once.
    access_log
        Log every request, including the positions in its parameters.
    """
    from sareloc.serve import Limits, Serving, make_app
    from sareloc.serve.config import LOOPBACK, bracketed

    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        need(module, "serve")
    from sareloc.serve.server import bind, make_server

    serving, limits = serving or Serving(), limits or Limits()
    if serving.token is None:
        serving = replace(serving, token=os.environ.get("SARELOC_TOKEN"))
    if is_loopback(host):
        serving = replace(serving, allow_host=(*serving.allow_host, *({host} - {"::1", *LOOPBACK})))
    elif not serving.allow_host:
        name = socket.gethostname() if host in EVERYWHERE else host
        raise ArgumentError(
            f"--host {host} requires the host names that requests may use, so that web pages of other hosts cannot "
            f"read the map (DNS rebinding): add --allow-host {name} (may be repeated), or --allow-host '*' for all"
        )
    elif serving.token is None:
        print(
            f"sareloc: warning: everyone who can reach {host} can query this map and see its photos; without --token "
            "no client can add photos. Use a reverse proxy to restrict access",
            file=sys.stderr,
        )
    with bind(host, port) as listening:  # before the map is opened, which takes longer
        app = make_app(
            place_map,
            model,
            search.search(),
            serving=serving,
            limits=limits,
            min_confidence=min_confidence,
            device=device,
            precision=precision,
            batch=batch,
        )
        hidden = app.state.service.hidden_photos()
        if hidden.count:
            options = " ".join(f"--photos {shlex.quote(folder)}" for folder in hidden.folders)
            print(
                f"sareloc: note: {hidden.count:,} photos of the map have no thumbnails, as they are not in the "
                f"folders that may be serving: add {options} to show them",
                file=sys.stderr,
            )
        name = host if host not in EVERYWHERE else serving.allow_host[0].replace("*", "localhost")
        where = f"http://{bracketed(name)}:{listening.getsockname()[1]}/"
        make_server(
            app,
            limits,
            lambda: print(f"serving {place_map.name} at {where} (Ctrl-C stops)", flush=True),
            access_log=access_log,
        ).run(sockets=[listening])


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
