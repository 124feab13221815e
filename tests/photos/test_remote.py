"""Photos behind a URL: in fsspec's memory, and in a ZIP file behind another URL."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from sareloc.errors import PhotoError
from sareloc.photos import fetch_file, find_remote_photos, is_url, remote_stamp
from sareloc.photos.finding import _stamp


@pytest.fixture
def storage() -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    for name in ("b.JPG", "a.jpg", "sub/c.png", ".hidden.jpg", ".thumbs/d.jpg", "notes.txt"):
        memory.pipe_file(f"/town/{name}", name.encode())
    yield "memory://town"
    memory.rm("/town", recursive=True)


def test_the_photos_of_a_folder_are_found_sorted_without_hidden_ones(storage: str) -> None:
    found = find_remote_photos(storage)
    assert list(found) == ["memory:///town/a.jpg", "memory:///town/b.JPG", "memory:///town/sub/c.png"]
    assert [size for size, _ in found.values()] == [5, 5, 9]
    assert found == {url: remote_stamp(url) for url in found}
    assert list(find_remote_photos(f"{storage}/a.jpg")) == ["memory:///town/a.jpg"]
    assert find_remote_photos(f"{storage}/nothing") == {}


def test_a_stamp_changes_with_the_photo(storage: str) -> None:
    before = remote_stamp(f"{storage}/a.jpg")
    fsspec.filesystem("memory").pipe_file("/town/a.jpg", b"later")  # as many bytes
    assert remote_stamp(f"{storage}/a.jpg") != before
    assert remote_stamp(f"{storage}/gone.jpg") is None


def test_what_storages_call_the_time_of_change() -> None:
    moment = datetime(2024, 5, 31, 12, tzinfo=UTC)
    wanted = (3, int(moment.timestamp() * 1e9))
    assert _stamp({"size": 3, "LastModified": moment}) == wanted
    assert _stamp({"size": 3, "updated": "2024-05-31T12:00:00.000Z"}) == wanted
    assert _stamp({"size": 3, "mtime": moment.timestamp()}) == wanted
    assert _stamp({"size": 3, "last_modified": moment.replace(tzinfo=None)}) == wanted
    assert _stamp({"size": None, "name": "who knows"}) == (0, 0)


def test_files_of_one_name_are_fetched_side_by_side(storage: str, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/town/sub/a.jpg", b"other")
    first, second = (fetch_file(f"{storage}/{name}", tmp_path) for name in ("a.jpg", "sub/a.jpg"))
    assert (first.name, first.read_bytes()) == ("a.jpg", b"a.jpg")
    assert (second.name, second.read_bytes()) == ("a.jpg", b"other")


def test_photos_in_an_archive_behind_another_url(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "town.zip", "w") as archive:
        archive.writestr("photos/a.jpg", b"one")
        archive.writestr("photos/b.jpg", b"three")
    behind = f"::file://{tmp_path}/town.zip"
    found = find_remote_photos(f"zip://photos{behind}")
    assert list(found) == [f"zip://photos/{name}.jpg{behind}" for name in "ab"]
    assert [fetch_file(url, tmp_path).read_bytes() for url in found] == [b"one", b"three"]


def test_what_cannot_be_reached_says_so(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match=r"memory://nowhere/a\.jpg: no such file"):
        fetch_file("memory://nowhere/a.jpg", tmp_path)
    with pytest.raises(PhotoError, match=r"s4://bucket/photos: cannot be read: .*s4"):
        find_remote_photos("s4://bucket/photos")
    with pytest.raises(PhotoError, match=r"gs://bucket: this storage needs another package: .*gcsfs"):
        find_remote_photos("gs://bucket")


def test_an_address_is_distinguished_from_a_path() -> None:
    assert is_url("s3://bucket/photos")
    assert is_url("zip://a::file:///b.zip")
    assert not is_url(Path("photos"))
    assert not is_url("C:/photos")
