"""`sareloc serve`: localize photos over HTTP, with a page for people."""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sareloc.cli.options import Device, Precision
from sareloc.config_files import read_options
from sareloc.errors import ArgumentError, need
from sareloc.serve.config import LOOPBACK, ServeConfig, bracketed
from sareloc.wording import plural

EVERYWHERE = ("0.0.0.0", "::")
Shown = Parameter(show=True)


@dataclass(frozen=True, init=False)
class ServeFlags(ServeConfig):
    """The options that the command line gave. All of `ServeConfig` are taken; help shows those declared here, the
    others are keys of the file of --config."""

    tiles: Annotated[str | None, Shown] = ServeConfig.tiles
    """URL of base map tiles, such as https://tiles.example.org/{z}/{x}/{y}.png; default: no base map."""
    photos: Annotated[tuple[Path, ...], Shown, Parameter(show_default=False)] = ServeConfig.photos
    """Folder of photos that may be shown, in addition to the map file's; may be repeated."""
    token: Annotated[str | None, Shown] = ServeConfig.token
    """Clients with it can add and remove photos; better set in the environment: SARELOC_TOKEN."""
    allow_host: Annotated[tuple[str, ...], Shown, Parameter(show_default=False)] = ServeConfig.allow_host
    """Host name accepted in requests besides localhost; may be repeated; *: every name."""
    min_confidence: Annotated[float, Shown] = ServeConfig.min_confidence
    """Minimum confidence of a position; below it the answer is "not in this map"."""

    def __init__(self, **given: Any) -> None:
        object.__setattr__(self, "given", given)


def serve_command(
    maps: Annotated[list[Path], Parameter(name="maps", negative=())],
    *,
    model: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    options: Annotated[ServeFlags, Parameter(name="*", show=False)] = ServeFlags(),  # noqa: B008
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    device: Device = None,
    precision: Annotated[Precision, Parameter(show=False)] = "auto",
) -> None:
    """Localize photos over HTTP: an API for programs, and a page for people.

    Several maps are asked at once, and answers name the map: sareloc serve berlin.gpkg rome.gpkg.

    Ctrl-C or SIGTERM stops the service after the accepted requests are answered, or after stop_s seconds.

    Parameters
    ----------
    maps
        The maps: files, or server addresses such as milvus://host:19530/city.
    model
        Checkpoint that the map was built with; default: the packaged model that the map was built with.
    host
        Address to listen on; 0.0.0.0: all addresses, which requires --allow-host.
    port
        Port to listen on; 0: any free port.
    config_file
        TOML file of other options (limits on requests, batch, verify, ...).
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        need(module, "serve")
    from sareloc.serve import make_app
    from sareloc.serve.server import bind, make_server

    given: dict[str, Any] = options.given  # type: ignore[attr-defined]
    config = ServeConfig(**({} if config_file is None else read_options(config_file, ServeConfig)) | given)
    if config.token is None:
        config = replace(config, token=os.environ.get("SARELOC_TOKEN"))
    if is_loopback(host):
        config = replace(config, allow_host=(*config.allow_host, *({host} - {"::1", *LOOPBACK})))
    elif not config.allow_host:
        name = socket.gethostname() if host in EVERYWHERE else host
        raise ArgumentError(
            f"--host {host} requires the host names that requests may use, so that web pages of other hosts cannot "
            f"read the map (DNS rebinding): add --allow-host {name} (may be repeated), or --allow-host '*' for all"
        )
    elif config.token is None:
        print(
            f"sareloc: warning: everyone who can reach {host} can query this map and see its photos; without --token "
            "no client can add photos. Use a reverse proxy to restrict access",
            file=sys.stderr,
        )
    with bind(host, port) as listening:  # before the map is opened, which takes longer
        app = make_app(maps, model, config=config, device=device, precision=precision)
        for served in app.state.service.maps.values():
            hidden = served.hidden_photos()
            if not hidden.count:
                continue
            folders = " ".join(f"--photos {shlex.quote(folder)}" for folder in hidden.folders)
            print(
                f"sareloc: note: {plural(hidden.count, 'photo')} of the map {served.name} without thumbnails, outside "
                f"of the folders that may be shown: add {folders} to show them",
                file=sys.stderr,
            )
        name = host if host not in EVERYWHERE else config.allow_host[0].replace("*", "localhost")
        where = f"http://{bracketed(name)}:{listening.getsockname()[1]}/"
        make_server(
            app,
            config,
            lambda: print(f"serving {', '.join(path.name for path in maps)} at {where} (Ctrl-C stops)", flush=True),
            access_log=config.access_log,
        ).run(sockets=[listening])


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
