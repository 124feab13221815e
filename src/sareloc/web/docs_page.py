"""The OpenAPI document as a page to read: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid; overflow-wrap: anywhere; }
code, pre { font: 0.9rem/1.4 ui-monospace, monospace; }
pre { padding: 0.75rem; overflow: auto; border: 1px solid; border-radius: 0.5rem; }
table { border-collapse: collapse; }
td { padding: 0.2rem 1rem 0.2rem 0; vertical-align: top; }
"""


def style_policy() -> str:
    """A Content-Security-Policy that allows this page its own style and nothing else."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'"


def docs_page(openapi: dict[str, Any], address: str) -> str:
    """The page about an API; `address` (https://places.example.org) stands in its examples."""
    about = openapi["info"]
    operations = [
        part
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
        for part in _operation(path, method, operation, openapi, address)
    ]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(about['title'])}: the API</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(about['title'])} {escape(about['version'])}</h1>",
            f"<p>{escape(about['summary'])} {escape(about['description'])}</p>",
            '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
            *operations,
            "</body></html>",
        ]
    )


def _operation(
    path: str, method: str, operation: dict[str, Any], openapi: dict[str, Any], address: str
) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p><b>{escape(operation['summary'])}</b></p>"
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    for sample in operation.get("x-codeSamples", ()):
        yield f"<pre>{escape(_addressed(sample['source'], address))}</pre>"
    rows = [
        (f"{given['name']} ({given['in']})", given.get("description", "")) for given in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        rows.append(("body", ", ".join(operation["requestBody"]["content"])))
    yield from _table(rows)
    answers = operation["responses"]
    yield from _table([(status, answer.get("description", "")) for status, answer in answers.items()])
    for example in _examples(answers.get("200", {}), openapi):
        yield f"<pre>{escape(json.dumps(example, indent=2))}</pre>"


def _addressed(sample: str, address: str) -> str:
    return " ".join(
        f"{word[:1]}{address}{word[1:]}" if word.startswith("'/") else f"{address}{word}" if word[:1] == "/" else word
        for word in sample.split(" ")
    )


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        cells = (f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>" for name, text in rows)
        yield f"<table>{''.join(cells)}</table>"


def _examples(answer: dict[str, Any], openapi: dict[str, Any]) -> Iterator[Any]:
    for content in answer.get("content", {}).values():
        schema = content.get("schema", {})
        for one in schema.get("anyOf", [schema]):
            named = openapi["components"]["schemas"].get(one.get("$ref", "").rpartition("/")[2], {})
            yield from named.get("examples", ())
