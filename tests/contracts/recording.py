"""What programs rely on: the keys and types that commands print as JSON, the columns of CSV, the paths of HTTP.

    python -m tests.contracts.recording

runs every command of `COMMANDS` as a process and writes cli.json and http.json beside this file. `test_contracts.py`
compares the present code with them. Record again only for a change that is meant, and read the difference: a key that
is gone or has another type breaks the programs of users.

A shape is the JSON with a type for each value: {"recall": {"1": "float"}, "matches": [{"id": "int"}]}. A list has the
shape of its items, all of them together: ["float", "null"] holds both. An empty list is [].
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.photos.telemetry_files import add_track, gps5
from tests.photos.test_track_geotags import take
from tests.photos.test_tracks import gpx, north
from tests.photos.video_files import write_video

import sareloc
from sareloc.photos import Geotag, write_geotag

HERE = Path(__file__).resolve().parent
PLACES, SPACING_M, SIDE = 12, 80.0, 96
MANY = 6
"""Photos of each place in many/: enough pairs for "map adapt"."""
ASKED = 4
"""Places whose queries are in asked/."""
QUICK = ("--workers", "0", "--device", "cpu")
MODEL = ("--model", "little.safetensors")
FREE = ("training",)  # keys of free content: what the maker of a model recorded
Rows = list[tuple[object, ...]]
DEADLINE_S = 300.0  # ends a run that hangs; nothing waits for it to pass

COMMANDS: dict[str, tuple[str, ...]] = {  # in this order: each finds the map as the one before left it
    "map build": ("map", "build", "photos", "--out", "map.gpkg", *MODEL, *QUICK, "--json"),
    "evaluate, map": ("evaluate", "meta.csv", "--map", "map.gpkg", *MODEL, *QUICK, "--json"),
    "map add": ("map", "add", "map.gpkg", "more", *MODEL, *QUICK, "--json"),
    "map sync, dry run": ("map", "sync", "map.gpkg", "more", "--dry-run", *MODEL, *QUICK, "--json"),
    "map sync": ("map", "sync", "map.gpkg", "more", *MODEL, *QUICK, "--json"),
    "map upgrade": ("map", "upgrade", "map.gpkg", *QUICK, "--json"),
    "map info": ("map", "info", "map.gpkg", "--json"),
    "map list": ("map", "list", ".", "--json"),
    "map copy": ("map", "copy", "map.gpkg", "copy.gpkg", "--json"),
    "map calibrate": ("map", "calibrate", "copy.gpkg", "queries", *MODEL, *QUICK, "--json"),
    "map info, calibrated": ("map", "info", "copy.gpkg", "--json"),
    "localize": ("localize", "map.gpkg", "asked", "--min-confidence", "0", *MODEL, *QUICK, "--json"),
    "localize, no position": ("localize", "map.gpkg", "asked", "--min-confidence", "1", *MODEL, *QUICK, "--json"),
    "localize, walk": (
        "localize",
        "map.gpkg",
        "asked",
        "--min-confidence",
        "0",
        "--walk-step-m",
        "90",
        *MODEL,
        *QUICK,
        "--json",
    ),
    "localize, two maps": (
        "localize",
        "map.gpkg",
        "copy.gpkg",
        "asked",
        "--min-confidence",
        "0",
        *MODEL,
        *QUICK,
        "--json",
    ),
    "geotag": ("geotag", "asked", "--map", "map.gpkg", "--min-confidence", "0", *MODEL, *QUICK, "--json"),
    "localize, csv": ("localize", "map.gpkg", "asked", *MODEL, *QUICK, "--csv"),
    "localize, geojson": ("localize", "map.gpkg", "asked", "--min-confidence", "0", *MODEL, *QUICK, "--geojson"),
    "evaluate": ("evaluate", "meta.csv", *MODEL, *QUICK, "--json"),
    "evaluate, fixes": (
        "evaluate",
        "meta.csv",
        "--fixes",
        "--out-of-map",
        "more",
        "--min-confidence",
        "0",
        *MODEL,
        *QUICK,
        "--json",
    ),
    "data check": ("data", "check", "meta.csv", "--json"),
    "map build, many": ("map", "build", "many", "--out", "many.gpkg", *MODEL, *QUICK, "--json"),
    "data check, geometry": ("data", "check", "many.gpkg", "--geometry", "--device", "cpu", "--json"),
    "map adapt": ("map", "adapt", "many.gpkg", "--out", "adapted", *MODEL, *QUICK, "--json"),
    "data track": ("data", "track", "walk", "--track", "walk.gpx", "--out", "walk.csv", "--json"),
    "data track, video": ("data", "track", "drive.mp4", "--out", "drive.gpx", "--json"),
    "model list": ("model", "list", "--json"),
    "model info": ("model", "info", "little.safetensors", "--json"),
}
NEEDS = {"data track, video": "av"}
"""Modules that commands need, beyond the core."""
LOST = {"map sync, dry run": "more/01.jpg"}
"""Photos that are deleted before a command."""
SERVED = ("--min-confidence", "0", "--token", "t")


def draw_street(folder: Path, many: int = MANY) -> None:
    """Photos of a street, a table of each part and of all together, and a small model, all in the folder.

    many: photos of each place in many/.
    """
    parts = (("photos", 1.0, 0.0), ("more", 0.9, 2.0), ("queries", 0.8, 4.0), ("evening", 0.7, 4.0))
    parts += (("asked", 0.8, 4.0),)
    tables: dict[str, Rows] = {part: [] for part, *_ in parts}
    for place in range(PLACES):
        for part, light, shift_m in parts[: None if place < ASKED else -1]:
            path = _draw_wall(folder / part / f"{place:02d}.jpg", place, light)
            tables[part].append(
                (path.name, _latitude(place, shift_m), 2.29, 45.0 * place, f"2026-05-31T12:00:{place:02d}Z")
            )
    roles = {"photos": "database", "queries": "query", "more": "database", "evening": "query"}
    rows: dict[str, Rows] = {
        part: [(f"{part}/{name}", lat, lon, role) for name, lat, lon, *_ in tables[part]]
        for part, role in roles.items()
    }
    absent = ("photos/absent.jpg", 48.85, 2.3, "database")
    _write_table(folder / "meta.csv", ("file", "lat", "lon", "role"), [*rows["photos"], *rows["queries"], absent])
    split = [(*row, "train") for part in ("photos", "queries") for row in rows[part]]
    split += [(*row, "val") for part in ("more", "evening") for row in rows[part]]
    _write_table(folder / "train.csv", ("file", "lat", "lon", "role", "split"), split)
    for part, name, latitude in (("photos", "other_position.jpg", 48.9), ("queries", "in_map.jpg", 48.85)):
        shutil.copy(folder / "photos" / "00.jpg", folder / part / name)
        tables[part].append((name, latitude, 2.29, 0.0, "2026-05-31T12:01:00Z"))
    tables["photos"].append(("bad_row.jpg", "north", 2.29, 0.0, ""))
    tables["many"] = []
    for place in range(PLACES):
        for i in range(many):
            path = _draw_wall(folder / "many" / f"{place:02d}_{i}.jpg", place, 1.0 - 0.08 * i)
            wrong = 6 if (place, i) == (2, 1) else 0  # places off
            tables["many"].append((path.name, _latitude(place + wrong, i), 2.29, 0.0, ""))
    for part, tags in tables.items():
        _write_table(folder / part / "geotags.csv", ("file", "lat", "lon", "heading", "time"), tags)
    (folder / "more" / "unreadable.jpg").write_bytes(b"not a photo")
    Image.new("RGB", (SIDE, SIDE)).save(folder / "more" / "untagged.jpg")
    _draw_walk(folder)
    rng = torch.Generator().manual_seed(1)
    model = sareloc.make_model("alexnet", "max", size=(SIDE, SIDE), name="little", rng=rng)
    sareloc.save_checkpoint(model, folder / "little.safetensors")


def _draw_wall(path: Path, place: int, light: float) -> Path:
    """A photo of the wall of a place."""
    path.parent.mkdir(exist_ok=True)
    wall = np.random.default_rng(place).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    seen = Image.fromarray((wall * light).astype(np.uint8))
    seen.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
    return path


def _latitude(place: int, shift_m: float) -> float:
    return 48.85 + (place * SPACING_M + shift_m) / 111_320


def _draw_walk(folder: Path) -> None:
    """walk/ and walk.gpx: photos on the track, after its end, and with a position; drive.mp4 with GPS inside."""
    (folder / "walk.gpx").write_text(gpx(north(60)))
    for name, shown in (("on.jpg", "12:00:05"), ("late.jpg", "15:00:00"), ("own.jpg", "12:00:06")):
        take(folder / "walk" / name, shown)
    write_geotag(folder / "walk" / "own.jpg", folder / "walk" / "own.jpg", Geotag((48.85, 2.29)))
    if find_spec("av") is not None:
        video = write_video(folder / "drive.mp4", range(0, 2000, 200), codec="mpeg4")
        add_track(video, [(second, gps5([(_latitude(0, second), 2.29)] * 5, 1.7e9 + second)) for second in range(2)])


def _write_table(path: Path, columns: tuple[str, ...], rows: Rows) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


OPTIONAL = {("heading_deg", kind): "float or null" for kind in ("float", "null")}
"""Values that depend on the matches: whether the headings of the photos agree."""


def shape(value: Any) -> Any:
    """The JSON value with a type for each value."""
    if isinstance(value, dict):
        return {
            key: OPTIONAL.get((key, _type(value[key]))) or (_type(value[key]) if key in FREE else shape(value[key]))
            for key in sorted(value)
        }
    if isinstance(value, list):
        return _together([shape(item) for item in value])
    return _type(value)


def _type(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _together(shapes: list[Any]) -> list[Any]:
    """The distinct shapes of a list's items, in an order that does not depend on theirs."""
    return [json.loads(text) for text in sorted({json.dumps(one) for one in shapes})]


def shape_of_output(command: str, text: str) -> Any:
    """The shape of what a command printed: one JSON object or several lines of them, or the columns of a CSV."""
    if command.endswith("csv"):
        return next(csv.reader(io.StringIO(text)))
    return _together([shape(json.loads(line)) for line in text.splitlines()])


def record_command(name: str, folder: Path, run: Callable[..., tuple[int, str]]) -> dict[str, Any]:
    """The exit status and the shape of the output of a command; run: gives the status and what was printed."""
    if name in LOST:
        (folder / LOST[name]).unlink()
    status, text = run(*COMMANDS[name])
    return {"exit": status, "output": shape_of_output(name, text)}


def run_process(*words: str) -> tuple[int, str]:
    """The exit status of the process `sareloc WORDS`, and what it printed."""
    done = subprocess.run([sys.executable, "-m", "sareloc", *words], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout, f"sareloc {' '.join(words)}: {done.stderr}"
    return done.returncode, done.stdout


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The address of `sareloc serve WORDS`, a process with a free port."""
    command = [sys.executable, "-m", "sareloc", "serve", *words, "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stdout.readline()
        address = re.search(r"http://[\w.]+:\d+", said)
        assert address is not None, said or process.stderr.read()
        yield address[0]
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def get(address: str, body: bytes | None = None) -> str:
    with urllib.request.urlopen(address, body, timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())


def record_http(address: str, photo: bytes) -> dict[str, Any]:
    """The paths and schemas of a service, the shapes of its answers, and its metrics."""
    answers = {path: shape(json.loads(get(address + path))) for path in ("/map", "/settings", "/health")}
    fix = json.loads(get(address + "/localize", photo))
    answers["/localize"] = shape(fix)
    answers["/inliers"] = shape(json.loads(get(f"{address}/inliers?id={fix['matches'][0]['id']}", photo)))
    described = json.loads(get(address + "/openapi.json"))
    return {
        "answers": answers,
        "metrics": metric_names(get(address + "/metrics")),
        "openapi": _without_prose({key: described[key] for key in ("paths", "components")}),
    }


def metric_names(text: str) -> dict[str, list[str]]:
    """By name: the kind, then the labels that its samples have."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = {}
    for name, kind in sorted(kinds.items()):
        samples = re.findall(rf"^{re.escape(name)}(?:_bucket)?{{(.*)}} ", text, re.MULTILINE)
        found[name] = [kind, *sorted({label for sample in samples for label in re.findall(r'(\w+)="', sample)})]
    return found


def _without_prose(value: Any, *, names: bool = False) -> Any:
    """The description of an API without its sentences and the names of our functions; names: of the user's making."""
    prose = () if names else ("description", "summary", "title", "operationId", "examples", "example", "tags")
    if isinstance(value, dict):
        return {
            key: _without_prose(value[key], names=key in ("properties", "schemas", "paths"))
            for key in sorted(value)
            if key not in prose
        }
    return [_without_prose(item) for item in value] if isinstance(value, list) else value


def write(name: str, recorded: dict[str, Any]) -> None:
    (HERE / name).write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def read(name: str) -> dict[str, Any]:
    return dict(json.loads((HERE / name).read_text()))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SARELOC_CACHE"] = str(folder / "cache")
        draw_street(folder)
        os.chdir(folder)
        write("cli.json", {command: record_command(command, folder, run_process) for command in COMMANDS})
        with serving("map.gpkg", *MODEL, *SERVED) as address:
            write("http.json", record_http(address, (folder / "queries" / "00.jpg").read_bytes()))


if __name__ == "__main__":
    main()
