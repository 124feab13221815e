"""Options of the service: limits on requests, what the service shows and to whom, and both in one config."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from sareloc.config_files import check_options
from sareloc.errors import ArgumentError

MIB = 2**20
HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", re.ASCII)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Limits:
    """Limits on requests; they bound the memory and the time that any request can use."""

    max_bytes: int = 32 * MIB
    """Maximum size of a request body in bytes, all its photos together."""
    max_pixels: int = 64_000_000
    """Maximum pixels of a photo; larger ones are rejected before they are decoded."""
    model_pixels: int = 4_000_000
    """Maximum pixels of a photo after the model's resizing, which panoramas and models without a fixed size can
    exceed."""
    max_files: int = 16
    """Maximum photos in a request."""
    max_matches: int = 100
    """Maximum matches in an answer (the parameter top)."""
    max_features: int = 10_000
    """Maximum photos in an answer of GET /map; if there are more, it holds an even sample."""
    request_s: float = 60.0
    """Maximum seconds from the first byte of a request to its answer, including the upload."""
    queue: int = 64
    """Maximum photos that are accepted and not answered yet; further requests get status 503 with Retry-After."""
    held_bytes: int = 256 * MIB
    """Maximum size of all request bodies in memory, in bytes; further requests get status 503 with Retry-After."""
    decoders: int = 2
    """Threads that decode photos."""
    stop_s: float = 6.0
    """Maximum seconds from SIGTERM or Ctrl-C to the answers of accepted requests; those that are left then get status
    503, and the service ends within two further seconds."""

    def __post_init__(self) -> None:
        for field in fields(Limits):
            if not getattr(self, field.name) > 0:
                raise ArgumentError(f"{field.name} must be greater than 0, found {getattr(self, field.name)}")
        if self.max_files > self.queue:
            raise ArgumentError(
                f"queue must be at least max_files, else a full request is never accepted: found queue {self.queue}, "
                f"max_files {self.max_files}"
            )
        if self.max_bytes > self.held_bytes:
            raise ArgumentError(
                f"held_bytes must be at least max_bytes: found held_bytes {self.held_bytes}, max_bytes {self.max_bytes}"
            )


@dataclass(frozen=True)
class Serving:
    """What the service shows, and which clients it answers."""

    name: str | None = None
    """Name of the map on the page; default: the file name without its ending."""
    tiles: str | None = None
    """URL of base map tiles, such as https://tiles.example.org/{z}/{x}/{y}.png; default: no base map."""
    attribution: str | None = None
    """Attribution text of the tiles; default: the host name of their URL."""
    photos: tuple[Path, ...] = ()
    """Folder whose photos may be shown as thumbnails, in addition to the map file's folder; may be repeated. Photos in
    other folders are matched but not shown."""
    token: str | None = None
    """Clients with the token can add and remove photos; default: no client can. `sareloc serve` also reads it from the
    environment variable SARELOC_TOKEN, which other users of the machine cannot see."""
    allow_host: tuple[str, ...] = ()
    """Host name or IP address accepted in the Host header of requests, such as places.example.org; may be repeated.
    localhost, 127.0.0.1 and [::1] are always accepted; * accepts every name."""
    heatmap: bool = True
    """Serve heat maps (POST /heatmap); each one describes about eighty small copies of a photo."""

    def __post_init__(self) -> None:
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise ArgumentError("a token consists of one or more printable ASCII characters without spaces")
        for name in self.allow_host:
            if name != "*" and not HOST.fullmatch(bracketed(name)):
                raise ArgumentError(
                    f"--allow-host must be a host name or an IP address without a port, or *: found {name!r}"
                )
        if self.tiles is not None and tile_host(self.tiles) is None:
            raise ArgumentError(
                f"--tiles must be a URL such as https://tiles.example.org/{{z}}/{{x}}/{{y}}.png: found {self.tiles!r}"
            )


@dataclass(frozen=True)
class ServeConfig(Serving, Limits):
    """Every option of the service: what it shows and to whom, limits on requests, and how it answers.

    Raises ArgumentError if a value has the wrong type, is out of range, or contradicts another option.
    """

    min_confidence: float = 0.5
    """Minimum confidence of a position; below it the answer is "not in this map"."""
    candidates: int | None = None
    """How many photos are retrieved by their search vectors. Default: 100 if matches are verified, else 20."""
    verify: int | None = None
    """Verify about N of them geometrically, by local features, and re-rank them; 0: do not verify. Default: 10 if the
    map holds local features, else 0."""
    batch: int = 8
    """Maximum number of photos encoded at once."""
    access_log: bool = False
    """Log every request, including the positions in its parameters."""

    def __post_init__(self) -> None:
        check_options(self)
        Serving.__post_init__(self)
        Limits.__post_init__(self)
        if self.batch < 1:
            raise ArgumentError(f"batch must be 1 or more, found {self.batch}")


def allowed_hosts(serving: Serving) -> frozenset[str] | None:
    """The host names, in lower case, that are accepted in the Host header; None if every name is accepted."""
    if "*" in serving.allow_host:
        return None
    return frozenset((*LOOPBACK, *(bracketed(name).lower() for name in serving.allow_host)))


def bracketed(host: str) -> str:
    """A host as written in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host


def tile_host(tiles: str) -> str | None:
    """The origin of a tile URL in the syntax of Content-Security-Policy; None if `tiles` is not a tile URL."""
    found = re.fullmatch(r"(https?)://(\{s\}\.)?([\w.-]+(?::\d+)?)/[^\s;,'\"]*", tiles)
    if found is None or not all(part in tiles for part in ("{z}", "{x}", "{y}")):
        return None
    scheme, several, host = found.groups()
    return f"{scheme}://{'*.' if several else ''}{host}"
