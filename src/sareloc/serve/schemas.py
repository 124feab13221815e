"""The API's documentation: the schemas of requests and answers for OpenAPI, and the page /docs made from it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sareloc.serve import guard

FIX: dict[str, Any] = {
    "latlon": [48.85841, 2.29453],
    "radius_m": 12.4,
    "confidence": 0.93,
    "heading_deg": 214.5,
    "place": "Paris, FR",
    "matches": [
        {
            "id": 7,
            "photo": "photos/07.jpg",
            "latlon": [48.8584, 2.2945],
            "distance": 0.41,
            "inliers": 87,
            "planar_inliers": 52,
            "heading_deg": 214.5,
        }
    ],
}


def example(answer: dict[str, Any]) -> ConfigDict:
    """The configuration of a model whose documentation shows this answer."""
    return ConfigDict(json_schema_extra={"examples": [answer]})


class MatchAnswer(BaseModel):
    """A retrieved photo of the map."""

    id: int
    photo: str = Field(
        description="Its name in the map; of a photo outside the map's folder the last part, with the token its path."
    )
    latlon: tuple[float, float]
    distance: float = Field(description="Distance between the search vectors, 0 to 2.")
    inliers: int | None = Field(
        default=None, description="Matched local features that agree on one epipolar geometry; null: not verified."
    )
    planar_inliers: int | None = Field(
        default=None, description="Matched local features that agree on one homography; null: not verified."
    )
    heading_deg: float | None = Field(
        default=None, description="Heading of the query by this photo's own heading; null if it was not estimated."
    )
    map: str | None = Field(default=None, description="Map of the photo; absent if the service has one map.")


class FixAnswer(BaseModel):
    """The position of a photo, or null if the place is not in the map."""

    model_config = example({"photo": "photo", **FIX})

    photo: str
    latlon: tuple[float, float] | None = Field(
        description="Latitude, longitude in degrees, WGS84; null if the place is not in the map."
    )
    radius_m: float | None = Field(
        description="90 % error radius in metres: of 10 positions for places in the map, 9 are within it of the truth."
    )
    confidence: float = Field(description="Probability that the position is within 25 m of the truth.")
    heading_deg: float | None = Field(
        default=None,
        description="Direction of the optical axis, degrees clockwise from north; null if unknown or uncertain.",
    )
    place: str | None = Field(
        default=None,
        description="Town of the position, or of the low-confidence position: Cambridge, GB or 2 km north of "
        "Cambridge, GB (GeoNames, CC BY 4.0); null if there is neither.",
    )
    map: str | None = Field(
        default=None, description="Map that the position came from; absent if the service has one map."
    )
    matches: list[MatchAnswer]
    reason: str = Field(default="", description="Why there is no position; absent if there is one.")
    guess: tuple[float, float] | None = Field(
        default=None,
        description="Low-confidence position: the one below the minimum confidence; absent if there is a position.",
    )
    guess_radius_m: float | None = Field(
        default=None, description="90 % error radius of the low-confidence position in metres."
    )


class UnreadableAnswer(BaseModel):
    """A photo that cannot be decoded, or on which the service failed."""

    photo: str
    error: str


class FixesAnswer(BaseModel):
    """One answer for each photo of a form, in order."""

    model_config = example({"fixes": [{"photo": "a.jpg", **FIX}, {"photo": "b.svg", "error": "not a JPEG, PNG ..."}]})

    fixes: list[FixAnswer | UnreadableAnswer]


class InliersAnswer(BaseModel):
    """Matched local features of a photo and a photo of the map that agree on one two-view geometry."""

    model_config = example(
        {
            "id": 7,
            "inliers": 2,
            "geometry": "epipolar",
            "query_size": [480, 360],
            "photo_size": [360, 480],
            "query_xy": [[0.2135, 0.4021], [0.6403, 0.3518]],
            "photo_xy": [[0.1042, 0.3877], [0.5581, 0.3312]],
        }
    )

    id: int
    inliers: int = Field(description="Number of pairs.")
    geometry: Literal["epipolar", "homography"] = Field(
        description="What the pairs agree on: a fundamental matrix, or a homography if more agree on that."
    )
    query_size: tuple[int, int] = Field(
        description="Width and height in pixels of the image that the photo's local features were extracted from."
    )
    photo_size: tuple[int, int] = Field(description="Those of the photo of the map.")
    query_xy: list[tuple[float, float]] = Field(
        description="Of each pair, the point in the photo: fractions of its width and height from the top left corner."
    )
    photo_xy: list[tuple[float, float]] = Field(description="Of each pair, the point in the photo of the map.")


class AddedAnswer(BaseModel):
    """A photo that was added, or that the map already had."""

    photo: str
    id: int
    ids: list[int] | None = Field(None, description="Of a 360° photo: the ids of its views; `id` is the first.")


class PhotosAnswer(BaseModel):
    """The id or the error of each photo of a form, in order."""

    model_config = example({"photos": [{"photo": "new.jpg", "id": 91}]})

    photos: list[AddedAnswer | UnreadableAnswer]


class PointAnswer(BaseModel):
    """A GeoJSON Point: longitude, latitude."""

    type: Literal["Point"]
    coordinates: tuple[float, float]


class PhotoProperties(BaseModel):
    """Properties of a photo in the map."""

    photo: str = Field(description="Its name, as in matches.")
    heading_deg: float | None
    time: str | None
    map: str | None = Field(default=None, description="Its map; absent if the service has one map.")


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
        default=(0, 0, 0, 0), description="Extent of the map: west, south, east, north; absent if the map is empty."
    )
    total: int = Field(description="Photos in the map.")
    inside: int = Field(description="Photos in the box; if they exceed the limit, features is an even sample of them.")
    features: list[FeatureAnswer]


class SettingsAnswer(BaseModel):
    """Settings for clients."""

    name: str
    maps: list[str] = Field(description="Names of the maps, as in answers and in the parameter map.")
    tiles: str | None
    attribution: str | None
    max_bytes: int
    max_files: int
    max_features: int = Field(description="Maximum of the parameter limit of GET /map.")
    adding: bool = Field(description="Whether clients with the token can add and remove photos.")
    heatmap: bool


class MapHealth(BaseModel):
    """One of the maps."""

    name: str
    photos: int
    model: str
    fingerprint: str


class HealthAnswer(BaseModel):
    """The state of the service, and the maps and models that it serves."""

    status: Literal["ok"]
    photos: int
    model: str
    fingerprint: str
    maps: list[MapHealth]
    version: str


class ProblemAnswer(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


PROBLEMS = {
    400: "The request is malformed.",
    401: "Authentication failed: the token is missing or wrong.",
    403: "Photos cannot be added or removed: the service was started without a token.",
    404: "There is no such photo, its file is missing, or the route is switched off.",
    408: "The request was not received in time.",
    413: "The request is too large.",
    415: "The content type of the body is not supported.",
    421: "The host name of the request is not allowed.",
    422: "A photo cannot be decoded, or a parameter is invalid.",
    503: "The service is busy, or the map cannot be read: try again after the seconds in Retry-After.",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for FastAPI's `responses`."""
    example = {"type": "about:blank", "title": "Unprocessable Content", "status": 422, "detail": "photo: ..."}
    schema = ProblemAnswer.model_json_schema()
    return {
        status: {
            "description": PROBLEMS[status],
            "content": {guard.MEDIA_TYPE: {"schema": schema, "example": example | {"status": status}}},
        }
        for status in sorted(statuses)
    }


def curl(*samples: str) -> dict[str, Any]:
    """Sample calls of a route; `docs_page` puts the service's address before paths, which begin with a slash."""
    return {"x-codeSamples": [{"lang": "Shell", "source": f"curl {sample}"} for sample in samples]}


PHOTO_TYPES = ("image/jpeg", "image/png", "image/webp", "image/avif", "image/tiff", "image/heic")
_BYTES = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"photos": {"type": "array", "items": _BYTES, "minItems": 1}}}


def photo_body() -> dict[str, Any]:
    """The request body that is a photo."""
    return {"required": True, "content": {kind: {"schema": _BYTES} for kind in PHOTO_TYPES}}


def form_body(**fields: dict[str, Any]) -> dict[str, Any]:
    """The request body that is a form with photos and these fields."""
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
    """The Content-Security-Policy of the page: its own style and nothing else, no scripts."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'"


def docs_page(openapi: dict[str, Any], address: str) -> str:
    """The OpenAPI document as HTML; `address` (https://places.example.org) is used in its examples."""
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
