"""The OpenAPI document as a page to read: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sareloc.serve import guard as problems

# The shapes of requests and answers, for the OpenAPI document.

FOUND: dict[str, Any] = {
    "latlon": [48.85841, 2.29453],
    "radius_m": 12.4,
    "confidence": 0.93,
    "matches": [{"id": 7, "photo": "photos/07.jpg", "latlon": [48.8584, 2.2945], "distance": 0.41}],
}


def example(answer: dict[str, Any]) -> ConfigDict:
    """A model whose documentation shows this answer."""
    return ConfigDict(json_schema_extra={"examples": [answer]})


class MatchAnswer(BaseModel):
    """A photo of the map that looks like the query."""

    id: int
    photo: str
    latlon: tuple[float, float]
    distance: float = Field(description="Between the descriptors, 0 to 2.")


class FixAnswer(BaseModel):
    """Where a photo was taken, or that the map does not show it."""

    model_config = example({"photo": "photo", **FOUND})

    photo: str
    latlon: tuple[float, float] | None = Field(
        description="Latitude, longitude in degrees, WGS84; null: not in this map."
    )
    radius_m: float | None = Field(
        description="Of 10 answers about places in the map, 9 are at most so far from the truth."
    )
    confidence: float = Field(description="The probability that the position is within 25 m of the truth.")
    matches: list[MatchAnswer]
    reason: str = Field(default="", description="Why there is no position; absent where there is one.")
    guess: tuple[float, float] | None = Field(
        default=None, description="The best guess below the least confidence; absent where there is a position."
    )
    guess_radius_m: float | None = Field(default=None, description="The radius of the guess; absent without one.")


class UnreadableAnswer(BaseModel):
    """A photo that cannot be read."""

    photo: str
    error: str


class FixesAnswer(BaseModel):
    """One answer for each photo of a form, in order."""

    model_config = example({"fixes": [{"photo": "a.jpg", **FOUND}, {"photo": "b.svg", "error": "not a JPEG, PNG ..."}]})

    fixes: list[FixAnswer | UnreadableAnswer]


class AddedAnswer(BaseModel):
    """A photo that the map holds from now on."""

    photo: str
    id: int


class PhotosAnswer(BaseModel):
    """What became of each photo of a form, in order."""

    model_config = example({"photos": [{"photo": "new.jpg", "id": 91}]})

    photos: list[AddedAnswer | UnreadableAnswer]


class PointAnswer(BaseModel):
    """A GeoJSON Point: longitude, latitude."""

    type: Literal["Point"]
    coordinates: tuple[float, float]


class PhotoProperties(BaseModel):
    """What the map knows of a photo."""

    photo: str
    heading_deg: float | None
    time: str | None


class FeatureAnswer(BaseModel):
    """A photo of the map."""

    type: Literal["Feature"]
    id: int
    geometry: PointAnswer
    properties: PhotoProperties


class MapAnswer(BaseModel):
    """Photos of the map, as a GeoJSON FeatureCollection."""

    model_config = example(
        {
            "type": "FeatureCollection",
            "bbox": [2.2944, 48.8583, 2.3262, 48.8585],
            "total": 90,
            "inside": 1,
            "features": [
                {
                    "type": "Feature",
                    "id": 7,
                    "geometry": {"type": "Point", "coordinates": [2.2945, 48.8584]},
                    "properties": {"photo": "photos/07.jpg", "heading_deg": 90.0, "time": "2024-05-31T12:00:00.000Z"},
                }
            ],
        }
    )

    type: Literal["FeatureCollection"]
    bbox: tuple[float, float, float, float] = Field(
        default=(0, 0, 0, 0), description="Of the whole map: west, south, east, north; absent where it is empty."
    )
    total: int = Field(description="Photos in the whole map.")
    inside: int = Field(description="Photos in the box; where they are more than the limit, an even sample is shown.")
    features: list[FeatureAnswer]


class SettingsAnswer(BaseModel):
    """What a page needs to know."""

    name: str
    tiles: str | None
    attribution: str | None
    max_bytes: int
    max_files: int
    max_features: int = Field(description="How many photos of the map may be asked for at once.")
    adding: bool = Field(description="Whether photos can be added and removed, with a token.")
    heatmap: bool


class HealthAnswer(BaseModel):
    """That the service is well, and what it serves."""

    status: Literal["ok"]
    photos: int
    model: str
    fingerprint: str
    version: str


class ProblemAnswer(BaseModel):
    """What is wrong with a request (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


PROBLEMS = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "Photos cannot be added or removed: the service was started without a token.",
    404: "There is no such photo, or its file is gone.",
    408: "The photo arrived too slowly.",
    413: "The request is too large.",
    415: "The body is not of a kind that is understood here.",
    421: "The service does not answer to this name.",
    422: "A photo or a parameter is not one that can be used.",
    503: "The service is busy or the map cannot be read: try again after the time in Retry-After.",
}


def said(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may answer with."""
    example = {"type": "about:blank", "title": "Unprocessable Content", "status": 422, "detail": "photo: ..."}
    schema = ProblemAnswer.model_json_schema()
    return {
        status: {
            "description": PROBLEMS[status],
            "content": {problems.MEDIA_TYPE: {"schema": schema, "example": example | {"status": status}}},
        }
        for status in sorted(statuses)
    }


def curl(*samples: str) -> dict[str, Any]:
    """How to call a route from a shell; paths begin with a slash, the service's address goes before it."""
    return {"x-codeSamples": [{"lang": "Shell", "source": f"curl {sample}"} for sample in samples]}


PHOTO_TYPES = ("image/jpeg", "image/png", "image/webp", "image/avif", "image/tiff", "image/heic")
_BYTES = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"photos": {"type": "array", "items": _BYTES, "minItems": 1}}}


def photo_body() -> dict[str, Any]:
    """A request whose body is a photo."""
    return {"required": True, "content": {kind: {"schema": _BYTES} for kind in PHOTO_TYPES}}


def form_body(**fields: dict[str, Any]) -> dict[str, Any]:
    """A request that is a form of photos, and these fields."""
    schema = {**_FORM, "properties": {**_FORM["properties"], **fields}, "required": ["photos"]}  # type: ignore[dict-item]
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


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
