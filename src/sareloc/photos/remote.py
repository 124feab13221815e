"""Photos that lie in object storage or anywhere else that fsspec reaches: found by their URL, brought here as files.

s3://bucket/folder, gs://bucket/folder, zip://photos::s3://bucket/photos.zip, ... Each kind of storage needs its own
package (s3fs, gcsfs); fsspec names it where it is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from sareloc.errors import PhotoError, SarelocError, need
from sareloc.photos.finding import EXTENSIONS, fitting_ns

Stamp = tuple[int, int]
"""Size in bytes and time of change in ns since 1970."""

TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")  # what storages call it


def is_url(text: str | Path) -> bool:
    """Whether this is an address rather than a path on this machine."""
    return "://" in str(text)


def find_remote_photos(url: str) -> dict[str, Stamp]:
    """The URLs and stamps of the photos in a folder and its subfolders, or of one photo, sorted; as `find_photos`."""
    with _storage_errors(url):
        storage, root = need("fsspec", "ray").core.url_to_fs(url)
        found: Mapping[str, Any] = storage.find(root, detail=True)
        photos = {
            _url_of(storage, path, url): _stamp(info)
            for path, info in found.items()
            if _is_photo(path.removeprefix(root) or PurePosixPath(path).name)
        }
    return dict(sorted(photos.items()))


def usual_url(url: str) -> str:
    """The URL as `find_remote_photos` writes it: memory://town/ is memory:///town."""
    with _storage_errors(url):
        storage, path = need("fsspec", "ray").core.url_to_fs(url)
        return _url_of(storage, path, url)


def remote_stamp(url: str) -> Stamp | None:
    """The stamp of a photo; None where there is none."""
    try:
        with _storage_errors(url):
            storage, path = need("fsspec", "ray").core.url_to_fs(url)
            return _stamp(storage.info(path))
    except PhotoError:
        return None


def fetch_file(url: str, folder: Path) -> Path:
    """Copy a file from its URL into a folder, under its own name; files of one name do not get in each other's way."""
    own = folder / hashlib.sha256(url.encode()).hexdigest()[:16]
    own.mkdir(exist_ok=True)
    with _storage_errors(url):
        storage, path = need("fsspec", "ray").core.url_to_fs(url)
        target = own / PurePosixPath(path).name
        storage.get_file(path, str(target))
    return target


def _url_of(storage: Any, path: str, like: str) -> str:
    """The URL of a path in the storage that another URL leads to, through the same archives."""
    _, colons, behind = like.partition("::")
    return f"{storage.unstrip_protocol(path)}{colons}{behind}"


def _is_photo(path: str) -> bool:
    parts = PurePosixPath(path.strip("/")).parts
    return path.lower().endswith(EXTENSIONS) and not any(part.startswith(".") for part in parts)


def _stamp(info: Mapping[str, Any]) -> Stamp:
    changed = next((info[name] for name in TIMES if info.get(name) is not None), 0)
    if isinstance(changed, str):
        changed = datetime.fromisoformat(changed)
    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    return int(info.get("size") or 0), fitting_ns(int(changed * 1e9))


@contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    """What a storage raises (each kind its own) as a PhotoError that names the URL."""
    try:
        yield
    except SarelocError:
        raise
    except FileNotFoundError:
        raise PhotoError(url, "nothing is there") from None
    except ImportError as missing:
        raise PhotoError(url, f"this storage needs another package: {missing}") from missing
    except Exception as refused:
        raise PhotoError(url, f"cannot be read: {refused}") from refused
