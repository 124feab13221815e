"""The service under load: requests a second, latencies, behaviour beyond the queue, memory.

    python -m benchmarks.serve [--requests 1000] [--soak 10000] [--photos 200]
    python -m benchmarks.serve --town --requests 200    # verified answers about a drawn town, by the packaged model

Draws small photos, maps them with a small model of random weights (what is measured is the service, not the model), and
starts `sareloc serve` as a process of its own on loopback. Prints for 1, 8 and 32 clients, each sending its next
request as soon as it has its answer: requests a second and the 50th, 95th and 99th percentile of milliseconds; then
what as many clients as the queue holds get, what four times as many get (200, or 503 with Retry-After; anything else is
an error), and the memory of the process over the soak. Last comes one line of JSON. Exits with 1 where there was an
error. With --town: photos of 640x480 and the model `fast`; 16 and 64 clients, nothing else.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sareloc.maps import MapConfig, build_map
from sareloc.models import make_model, save_checkpoint
from sareloc.photos import Geotag, exif_bytes, find_photos

CLIENTS = (1, 8, 32)
QUEUE = 64
SAMPLES = 10
Answer = tuple[int, float, bool]
"""Status, seconds, and whether a Retry-After came with it."""


def photo(number: int, moment: int) -> Image.Image:
    rng = np.random.default_rng(number)
    wall = np.kron(rng.integers(0, 256, (12, 16, 3)), np.ones((20, 20, 1)))
    noise = np.random.default_rng([number, moment]).normal(0, 12, wall.shape)
    return Image.fromarray(np.clip(wall + noise, 0, 255).astype(np.uint8))


def make_town(folder: Path, photos: int) -> list[bytes]:
    """folder/town.gpkg and folder/model.safetensors; returns photos to ask with."""
    torch.manual_seed(0)
    model = make_model("alexnet", "max", size=(64, 96), name="small")
    (folder / "photos").mkdir()
    for number in range(photos):
        tag = exif_bytes(Geotag((48.0 + number * 1e-3, 2.0)))
        photo(number, 0).save(folder / "photos" / f"{number:04d}.jpg", quality=90, exif=tag)
    build_map(folder / "photos", folder / "town.gpkg", model, config=MapConfig(progress=False))
    save_checkpoint(model, folder / "model.safetensors")
    asked = []
    for number in range(64):
        content = io.BytesIO()
        photo(number % photos, 1).save(content, "JPEG", quality=90)
        asked.append(content.getvalue())
    return asked


def make_drawn_town(folder: Path) -> list[bytes]:
    """folder/town.gpkg of a small drawn town, by the packaged model; returns photos to ask with."""
    from sareloc.city import draw_places

    draw_places(folder, 0, "small", splits=("test",), photo_size=(480, 640))
    build_map(folder / "images/test/database", folder / "town.gpkg", "fast", config=MapConfig(progress=False))
    return [path.read_bytes() for path in find_photos(folder / "images/test/queries")]


class Service:
    """`sareloc serve` as a process."""

    def __init__(self, folder: Path, *, model: bool = True) -> None:
        words = ["serve", "town.gpkg", "--port", "0", "--queue", str(QUEUE)]
        words += ["--model", "model.safetensors"] if model else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sareloc", *words, "--device", "cpu"], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        self.port = int(re.findall(r":(\d+)/", self.process.stdout.readline())[0])

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def ask(connection: http.client.HTTPConnection, content: bytes) -> Answer:
    start = time.perf_counter()
    connection.request("POST", "/localize", content)
    response = connection.getresponse()
    response.read()
    return response.status, time.perf_counter() - start, response.headers["Retry-After"] is not None


def load(service: Service, photos: list[bytes], clients: int, requests: int) -> tuple[list[Answer], float]:
    """So many requests by so many clients at once; the answers, and the seconds that all took."""
    answers: list[Answer] = []
    numbers = iter(range(requests))
    lock, start = threading.Lock(), threading.Barrier(clients + 1)

    def client() -> None:
        connection = service.connect()
        start.wait()
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            answers.append(ask(connection, photos[number % len(photos)]))
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return answers, time.perf_counter() - began


def summarize(answers: list[Answer], seconds: float) -> dict[str, Any]:
    good_ms = [1000 * took for status, took, _ in answers if status == 200]
    p50, p95, p99 = np.percentile(good_ms, [50, 95, 99]).round(1).tolist()
    statuses = Counter(str(status) for status, _, _ in answers)
    return {"requests_per_s": round(len(answers) / seconds, 1), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99, **statuses}


def soak(service: Service, photos: list[bytes], requests: int) -> dict[str, Any]:
    """Memory of the process, measured ten times while so many requests are answered by 8 clients."""
    memory, errors = [service.memory_mib()], 0
    for _ in range(SAMPLES):
        answers, _ = load(service, photos, 8, requests // SAMPLES)
        errors += sum(status != 200 for status, _, _ in answers)
        memory.append(service.memory_mib())
    # allocators settle in the first tenths; after them it has to stay
    settled = memory[3]
    return {
        "requests": requests,
        "errors": errors,
        "memory_mib": [round(mib, 1) for mib in memory],
        "growth_after_three_tenths_percent": round(100 * (memory[-1] - settled) / settled, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="at each number of clients")
    parser.add_argument("--soak", type=int, default=10_000)
    parser.add_argument("--photos", type=int, default=200, help="in the map")
    parser.add_argument("--town", action="store_true", help="verified answers about a drawn town")
    args = parser.parse_args()
    found: dict[str, Any] = {
        "command": " ".join(sys.argv), "cpus": os.cpu_count(), "machine": platform.machine(),
        "threads": os.environ.get("OMP_NUM_THREADS"), "torch": torch.__version__,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if args.town:
            photos = make_drawn_town(Path(folder))
            service = Service(Path(folder), model=False)
            try:
                load(service, photos, 8, 50)  # warm
                for clients in (16, 64):
                    answers, seconds = load(service, photos, clients, args.requests)
                    found[f"{clients} clients"] = summarize(answers, seconds)
            finally:
                service.stop()
            print(json.dumps(found))
            return 0
        photos = make_town(Path(folder), args.photos)
        found["photo_bytes"] = int(np.mean([len(content) for content in photos]))
        service = Service(Path(folder))
        try:
            load(service, photos, 8, 100)  # warm
            wrong = 0
            for clients in CLIENTS:
                answers, seconds = load(service, photos, clients, args.requests)
                wrong += sum(status != 200 for status, _, _ in answers)
                found[f"{clients} clients"] = summarize(answers, seconds)
                print(f"{clients} clients: {found[f'{clients} clients']}", flush=True)
            full, seconds = load(service, photos, QUEUE, args.requests)
            wrong += sum(status != 200 for status, _, _ in full)
            found["as many clients as the queue holds"] = summarize(full, seconds)
            beyond, seconds = load(service, photos, 4 * QUEUE, args.requests)
            wrong += sum(status != 200 and not (status == 503 and retry) for status, _, retry in beyond)
            found["four times as many clients"] = summarize(beyond, seconds)
            for name in ("as many clients as the queue holds", "four times as many clients"):
                print(f"{name}: {found[name]}", flush=True)
            found["soak"] = soak(service, photos, args.soak)
            wrong += found["soak"]["errors"]
            print(f"soak: {found['soak']}", flush=True)
        finally:
            service.stop()
    print(json.dumps({**found, "errors": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
