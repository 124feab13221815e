"""The page and its files, read once from the package: a request names one of a fixed table, never a path."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

START = "index.html"
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".webmanifest": "application/manifest+json"}
"""Where the machine's own table may say otherwise."""


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    media_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """The files of the page by their names, those of folders as leaflet/leaflet.js."""
    folder = files("sareloc.web") / "page"
    return {name: _asset(name, file.read_bytes()) for name, file in _files(folder, "")} if folder.is_dir() else {}


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        if item.name.startswith((".", "__")):
            continue
        if item.is_dir():
            yield from _files(item, f"{prefix}{item.name}/")
        else:
            yield prefix + item.name, item


def _asset(name: str, content: bytes) -> Asset:
    ending = name[name.rfind(".") :]
    kind = TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    text = kind.startswith("text/")
    digest = hashlib.sha256(content).hexdigest()[:24]
    return Asset(content, f"{kind}; charset=utf-8" if text else kind, f'"{digest}"')
