"""SIGTERM ends the service, whatever its threads and clients do."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.serve.running import DEADLINE_S

from sareloc.serve import Limits
from sareloc.serve.server import END_S

BLOCKED = """
import sys
from pathlib import Path
from tests.localize.street import street_model
from sareloc.localize import Localizer
from sareloc.maps import PlaceMap
from sareloc.serve import Limits, make_app
from sareloc.serve.server import bind, make_server

class Blocked(Localizer):
    def localize_many(self, photos, **options):
        return open("fifo").read()

app = make_app(Blocked(street_model(), PlaceMap("street.gpkg")))
with bind("127.0.0.1", 0) as listening:
    ready = lambda: print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    make_server(app, Limits(stop_s=0.5), ready).run(sockets=[listening])
"""


@contextmanager
def blocked_service(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service of street.gpkg, as a process, whose queries wait for a FIFO that nobody writes to."""
    os.mkfifo(folder / "fifo")
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        said = process.stdout.readline()
        assert said.startswith("http"), process.stderr.read()
        yield process, said.strip()
    finally:
        process.kill()
        process.communicate()


def wait_for(address: str, pattern: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not re.search(pattern, httpx.get(f"{address}/metrics", timeout=DEADLINE_S).text):
        assert time.monotonic() < deadline, f"the metrics never had {pattern}"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_blocked_threads_and_slow_clients_do_not_keep_the_service(own_folder: Path) -> None:
    photo = (own_folder / "queries" / "q05.jpg").read_bytes()
    shown = own_folder / "photos" / "00_0.jpg"
    shown.unlink()
    os.mkfifo(shown)  # a photo of the map
    with blocked_service(own_folder) as (process, address), ThreadPoolExecutor(3) as clients, ExitStack() as stack:
        stack.callback(process.kill)  # else a failed test would wait for its clients
        asked = [clients.submit(httpx.post, f"{address}/localize", content=photo, timeout=DEADLINE_S) for _ in "12"]
        thumbnail = clients.submit(httpx.get, f"{address}/photos/1/thumbnail", timeout=DEADLINE_S)
        parts = urlsplit(address)
        slow, idle = (
            stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S))
            for _ in range(2)
        )
        slow.sendall(b"POST /localize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\npart")
        idle.sendall(b"GET /settings HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        wait_for(address, r"sareloc_batch_photos_count 1\.0")  # of one query or both
        wait_for(address, r"sareloc_queue_photos 2\.0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert [one.result().status_code for one in asked] == [503, 503]
        assert "stopping" in asked[0].result().json()["detail"]
        thumbnail.exception(DEADLINE_S)
        said = process.stderr.read()
    assert "still working" in said
    assert "Traceback" not in said


def test_the_default_ends_within_ten_seconds() -> None:
    assert Limits().stop_s + END_S < 10
