"""The API as its own document describes it: schemathesis asks what the schema allows and what it forbids."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.localize.street import street_model, view
from tests.serve.conftest import ALLOWED, TOKEN
from tests.serve.running import running

from sareloc.serve import ServeConfig, make_app

EXAMPLES = 10
FEW = {"/heatmap": 3}
"""Examples for routes that take long: a heat map needs a descriptor for each part of a photo that is covered."""
PATIENCE_S = 300
ROUTES = {
    ("post", "/localize"), ("post", "/inliers"), ("post", "/heatmap"), ("post", "/preview"),
    ("post", "/geotag"), ("get", "/map"),
    ("get", "/photos/{photo_id}/thumbnail"), ("post", "/photos"), ("delete", "/photos/{photo_id}"),
    ("get", "/settings"), ("get", "/health"), ("get", "/metrics"),
}  # fmt: skip
NOTHING_TO_GET_WRONG = {"/settings", "/health", "/metrics", "/heatmap"}
ASKED = [(*route, GenerationMode.POSITIVE) for route in sorted(ROUTES)]
ASKED += [(*route, GenerationMode.NEGATIVE) for route in sorted(ROUTES) if route[1] not in NOTHING_TO_GET_WRONG]


def test_the_document_lists_every_route_with_examples(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {(method, path) for path, methods in document["paths"].items() for method in methods} == ROUTES
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            bad = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
            assert all(set(answer["content"]) == {"application/problem+json"} for answer in bad.values())
    assert document["components"]["schemas"]["FixAnswer"]["examples"][0]["confidence"] == 0.93
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_the_docs_page_shows_it_and_loads_nothing(client: httpx.Client) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for method, path in ROUTES:
        assert f"{method.upper()} {path}" in answer.text
    assert f"curl --data-binary @photo.jpg &#x27;{client.base_url}/localize?top=3&#x27;" in answer.text.replace(
        f"{client.base_url}//", f"{client.base_url}/"
    )
    assert "<script" not in answer.text
    assert "src=" not in answer.text
    assert "default-src 'none'; style-src 'sha256-" in answer.headers["content-security-policy"]


@pytest.fixture(scope="module")
def schema(street_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """The document of a service that anything may be done to."""
    folder = Path(shutil.copytree(street_folder, tmp_path_factory.mktemp("asked") / "folder"))
    for kind, form in (("image/jpeg", "JPEG"), ("image/png", "PNG"), ("image/webp", "WEBP")):
        content = io.BytesIO()
        Image.fromarray(view(3, 99)).save(content, form)
        schemathesis.openapi.media_type(kind, st.just(content.getvalue()) | st.binary())
    app = make_app(folder / "street.gpkg", street_model(), config=ServeConfig(token=TOKEN))
    with running(app) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.parametrize(("method", "path", "mode"), ASKED)
def test_the_service_keeps_to_its_document(schema: BaseSchema, method: str, path: str, mode: GenerationMode) -> None:
    """Statuses, content types, shapes and headers are those of the document, and nothing is a 5xx."""

    @given(case=schema[path][method].as_strategy(mode))
    @settings(max_examples=FEW.get(path, EXAMPLES), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def keeps_to_it(case: schemathesis.Case) -> None:
        # any bytes are a valid body to the document, and seldom a photo; by default it waits 10 s, too few if busy
        case.call_and_validate(headers=ALLOWED, excluded_checks=[positive_data_acceptance], timeout=PATIENCE_S)

    keeps_to_it()
