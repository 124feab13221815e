"""GET /metrics: names, types, labels and buckets as dashboards use them, and one registry for each app."""

from __future__ import annotations

from pathlib import Path

import httpx
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.running import street_client

RECORDED = Path(__file__).with_name("recorded_metrics.txt")
"""Scraped from the version before prometheus_client, after `send_requests`."""

Sample = tuple[str, frozenset[tuple[str, str]]]


def send_requests(client: httpx.Client, folder: Path) -> None:
    photo = (folder / "queries" / "q01.jpg").read_bytes()
    for body in (photo, photo, b"not a photo"):
        client.post("/localize", content=body)
    for path in ("/map", "/photos/999/thumbnail", "/not/a/route"):
        client.get(path)
    client.delete("/photos/7")


def read_metrics(text: str) -> tuple[dict[str, str], dict[Sample, float]]:
    """The type of each metric, and the value of each sample, the bounds of buckets as numbers."""
    families = list(text_string_to_metric_families(text))
    samples = {
        (sample.name, frozenset(_normal(sample.labels).items())): sample.value
        for family in families
        for sample in family.samples
    }
    return {family.name: family.type for family in families}, samples


def _normal(labels: dict[str, str]) -> dict[str, str]:
    return labels | ({"le": str(float(labels["le"]))} if "le" in labels else {})


def test_names_types_labels_buckets_and_counts_are_those_recorded(street_folder: Path) -> None:
    with street_client(street_folder / "street.gpkg") as client:
        send_requests(client, street_folder)
        types, samples = read_metrics(client.get("/metrics").text)
    recorded_types, recorded = read_metrics(RECORDED.read_text())
    assert types == recorded_types
    assert samples.keys() == recorded.keys()
    timed = {"sareloc_request_seconds_bucket", "sareloc_request_seconds_sum"}
    assert {key: value for key, value in samples.items() if key[0] not in timed} == {
        key: value for key, value in recorded.items() if key[0] not in timed
    }


def test_two_apps_of_one_process_count_apart_and_not_in_the_global_registry(street_folder: Path) -> None:
    path = street_folder / "street.gpkg"
    with street_client(path) as one, street_client(path) as other:
        one.get("/settings")
        counted = ['route="/settings"' in client.get("/metrics").text for client in (one, other)]
    assert counted == [True, False]
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("sareloc")]
