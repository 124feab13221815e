"""The page's files are served from a fixed table."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

from sareloc.serve.app import START, read_assets


def test_the_page_and_the_files_it_names_are_served(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text == (files("sareloc.serve") / "page" / START).read_text()
    named = re.findall(r'(?:src|href)="/?assets/([^"]+)"', page.text)
    assert named
    for name in named:
        answer = client.get(f"/assets/{name}")
        assert answer.status_code == 200, name
        assert answer.content == (files("sareloc.serve") / "page" / name).read_bytes()
        assert answer.headers["cache-control"] == "no-cache"
        again = client.get(f"/assets/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_files_have_the_types_that_browsers_ask_for() -> None:
    types = {name[name.rfind(".") :]: asset.media_type for name, asset in read_assets().items()}
    wanted = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    assert {ending: types[ending] for ending in wanted if ending in types} == {
        ending: kind for ending, kind in wanted.items() if ending in types
    }
    assert "application/octet-stream" not in types.values()


@pytest.mark.parametrize(
    "name",
    ["nothing.js", "../__init__.py", "..%2F__init__.py", "%2e%2e/limits.py", "/etc/passwd", "%00", "a" * 5000, ""],
)
def test_no_other_file_can_be_had(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/assets/{name}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
