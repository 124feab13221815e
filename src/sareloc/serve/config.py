"""What the service grants: hard limits on every request, and the knobs of what it shows and allows."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from sareloc.errors import ArgumentError

MIB = 2**20
HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", re.ASCII)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Limits:
    """Hard limits: whatever is sent, memory and time stay within them."""

    max_bytes: int = 32 * MIB
    """Of the body of a request, all its photos together."""
    max_pixels: int = 64_000_000
    """Of a photo: one that claims more is refused before it is decoded."""
    model_pixels: int = 4_000_000
    """Of a photo at the size that the model looks at, which for a long strip or a model without a size may be large."""
    max_files: int = 16
    """Photos in a request."""
    max_matches: int = 100
    """Matches that a request may ask for."""
    max_features: int = 10_000
    """Photos of the map in one answer; of more, an even sample is shown."""
    request_s: float = 60.0
    """From the first byte of a request to its answer, a slow upload included."""
    queue: int = 64
    """Photos accepted and not answered yet; beyond them requests are sent away with 503 and when to come back."""
    held_bytes: int = 256 * MIB
    """Of the bodies of all requests at one time; beyond them the same."""
    decoders: int = 2
    """Photos decoded at one time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ArgumentError(f"{field.name} must be greater than 0, found {getattr(self, field.name)}")
        if self.max_files > self.queue:
            raise ArgumentError(f"a queue of {self.queue} photos never has room for a request with {self.max_files}")
        if self.max_bytes > self.held_bytes:
            raise ArgumentError(f"held_bytes {self.held_bytes} is less than one request's max_bytes {self.max_bytes}")


@dataclass(frozen=True)
class Serving:
    """What the service shows, and to whom."""

    name: str | None = None
    """Of the map, as the page shows it; by default the file's."""
    tiles: str | None = None
    """Where the page gets base tiles, as https://tiles.example.org/{z}/{x}/{y}.png; none by default."""
    attribution: str | None = None
    """Whose tiles they are, as their owner asks to be named."""
    photos: tuple[Path, ...] = ()
    """A folder whose photos may be shown as thumbnails, beside the map file's own folder; may be given several times.
    Photos that lie elsewhere are matched but not shown."""
    token: str | None = None
    """Who sends it may add and remove photos; without one nobody may."""
    allow_host: tuple[str, ...] = ()
    """A host name or IP address that requests may address the service by, such as places.example.org; may be given
    several times. localhost, 127.0.0.1 and [::1] are always allowed; * allows every name."""
    heatmap: bool = True
    """Whether to draw heat maps, for which some eighty small copies of a photo go through the model."""

    def __post_init__(self) -> None:
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise ArgumentError("a token is one or more printable ASCII characters without spaces")
        for name in self.allow_host:
            if name != "*" and not HOST.fullmatch(bracketed(name)):
                raise ArgumentError(
                    f"--allow-host is a host name or an IP address without a port, or *: found {name!r}"
                )
        if self.tiles is not None and tile_host(self.tiles) is None:
            raise ArgumentError(
                f"tiles are a URL like https://tiles.example.org/{{z}}/{{x}}/{{y}}.png: found {self.tiles!r}"
            )


def allowed_hosts(serving: Serving) -> frozenset[str] | None:
    """The names, in lower case, that a request's Host header may have; None where every name is allowed."""
    if "*" in serving.allow_host:
        return None
    return frozenset((*LOOPBACK, *(bracketed(name).lower() for name in serving.allow_host)))


def bracketed(host: str) -> str:
    """A host as it is written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host


def tile_host(tiles: str) -> str | None:
    """The origin that tiles come from, as a Content-Security-Policy names it; None for what is no URL of tiles."""
    found = re.fullmatch(r"(https?)://(\{s\}\.)?([\w.-]+(?::\d+)?)/[^\s;,'\"]*", tiles)
    if found is None or not all(part in tiles for part in ("{z}", "{x}", "{y}")):
        return None
    scheme, several, host = found.groups()
    return f"{scheme}://{'*.' if several else ''}{host}"
