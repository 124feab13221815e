"""What programs read of sareloc keeps its keys and types; and the way from photos to an answer, by real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.recording import (
    COMMANDS,
    MODEL,
    NEEDS,
    PLACES,
    QUICK,
    SERVED,
    draw_street,
    get,
    metric_names,
    read,
    record_command,
    record_http,
    run_process,
    serving,
    shape,
)

from sareloc.cli import main

AGAIN = "if the change is meant: python -m tests.contracts.recording"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def street(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    draw_street(tmp_path, many=3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process: its exit status and what it prints."""

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert isinstance(ended.value.code, int | None)
        return ended.value.code or 0, capsys.readouterr().out

    return run


def test_commands_print_the_recorded_keys_types_and_columns(
    street: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sareloc.adapt.adapt.MIN_PAIRS", 10)  # three photos of each place have few
    monkeypatch.setattr("sareloc.adapt.training_data.RELIT", 8)
    recorded = read("cli.json")
    absent = {name for name, module in NEEDS.items() if find_spec(module) is None}
    recorded = {name: one for name, one in recorded.items() if name not in absent}
    found: dict[str, Any] = {name: record_command(name, street, run_here) for name in COMMANDS if name not in absent}
    differing = [name for name in recorded if found.get(name) != recorded[name]]
    assert {name: found.get(name) for name in differing} == {name: recorded[name] for name in differing}, AGAIN
    assert sorted(found) == sorted(recorded), AGAIN


@pytest.mark.parametrize("map_by", ["this process", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_model_is_trained_a_map_built_a_photo_localized_and_served(map_by: str, street: Path, run_here: Run) -> None:
    """From photos to an answer over HTTP, as a user gets there; the service is also compared with its record."""
    pytest.importorskip("fastapi")
    run = run_here if map_by == "this process" else run_process
    status, _ = run("train", "train.csv", "--out", "run", *MODEL, "--epochs", "1")
    assert status == 0
    model = ("--model", "run/model.safetensors")
    _, built = run("map", "build", "photos", "--out", "map.gpkg", *model, *QUICK, "--json")
    assert json.loads(built)["added"] == PLACES
    photo = Path("queries", "03.jpg")
    _, told = run("localize", "map.gpkg", str(photo), "--min-confidence", "0", *model, *QUICK, "--json")
    fix = json.loads(told)
    assert Path(fix["matches"][0]["photo"]).name == photo.name
    with serving("map.gpkg", *model, *SERVED) as address:
        served = json.loads(get(f"{address}/localize", photo.read_bytes()))
        found = record_http(address, photo.read_bytes())
    assert served["latlon"] == pytest.approx(fix["latlon"])
    recorded = read("http.json")
    metrics, kept = found.pop("metrics"), recorded.pop("metrics")
    assert found == recorded, AGAIN
    assert {name: metrics.get(name) for name in kept} == kept, AGAIN  # others may be added


def test_a_shape_holds_all_types_of_a_list_and_tells_a_key_that_is_gone() -> None:
    assert shape({"b": [1, None, 2], "a": {"c": 1.0}}) == {"a": {"c": "float"}, "b": ["int", "null"]}
    assert shape([{"a": 1}, {"a": 1, "b": True}]) == [{"a": "int", "b": "bool"}, {"a": "int"}]
    text = '# TYPE asked_total counter\nasked_total{route="/map"} 1\n# TYPE now gauge\nnow 3\n'
    assert metric_names(text) == {"asked_total": ["counter", "route"], "now": ["gauge"]}
