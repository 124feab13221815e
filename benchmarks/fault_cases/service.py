"""Faults of the service's clients and files: requests that are aborted, and stopping while something is blocked.

Each case runs `sareloc serve` as a process and speaks to it over sockets.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.serve import make_town

ABORTED = 60
STOP_S = 10.0
"""Within which SIGTERM must end the service."""
WAIT_S = 60.0
TOKEN = "token"
PHOTOS = 12


def cases(folder: Path) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Kind, name and work of each case; see `benchmarks.faults`."""
    for name, make_request in (("queries", _query), ("forms", _form)):
        yield "aborted requests", name, partial(_abort, folder / f"aborted {name}", make_request)
    for name, occupy in (
        ("queries in progress", _ask_much),
        ("slow and idle clients", _send_slowly),
        ("a photo of the map is a FIFO", _show_fifo),
        ("features of a FIFO are computed", _add_photo),
    ):
        yield "stopping the service", name, partial(_stop, folder / f"stopping {name}", occupy)


class Service:
    """A running service of FOLDER/town.gpkg."""

    def __init__(self, process: subprocess.Popen[str], port: int, photos: list[bytes]) -> None:
        self.process = process
        self.port = port
        self.photos = photos

    def send(self, request: bytes) -> socket.socket:
        """A new connection with this request, whose answer is not read."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        connection.sendall(request)
        return connection

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("GET", "/metrics")
        found = re.search(rf"^{name} (\S+)$", connection.getresponse().read().decode(), re.MULTILINE)
        connection.close()
        return float(found[1]) if found else 0.0

    def wait_until_idle(self) -> bool:
        """Whether no photo is accepted and not answered, at some time within the limit."""
        end = time.monotonic() + WAIT_S
        while self.metric("sareloc_queue_photos"):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True


@contextmanager
def _serving(folder: Path) -> Iterator[Service]:
    folder.mkdir(parents=True)
    photos = make_town(folder, PHOTOS)
    fifo = folder / "photos" / "0000.jpg"
    fifo.unlink()
    os.mkfifo(fifo)
    connection = sqlite3.connect(folder / "town.gpkg")
    with connection:
        connection.execute("DELETE FROM local_features WHERE fid = 1")
    connection.close()
    words = ["serve", "town.gpkg", "--model", "model.safetensors", "--port", "0", "--token", TOKEN, "--device", "cpu"]
    with subprocess.Popen(
        [sys.executable, "-m", "sareloc", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield Service(process, int(re.findall(r":(\d+)/", process.stdout.readline())[0]), photos)
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def _post(path: str, body: bytes, kind: str = "image/jpeg") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _query(photo: bytes) -> bytes:
    return _post("/localize", photo)


def _form(photo: bytes, path: str = "/localize", **fields: bytes) -> bytes:
    parts = [(f'"{name}"'.encode(), value) for name, value in fields.items()]
    parts.append((b'"photos"; filename="a.jpg"', photo))
    body = b"".join(b"--x\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n" % part for part in parts)
    return _post(path, body + b"--x--\r\n", "multipart/form-data; boundary=x")


def _abort(folder: Path, make_request: Callable[[bytes], bytes]) -> str:
    """Clients close their connections while the service is stopped: it finds all of them at once, closed."""
    with _serving(folder) as service:
        service.process.send_signal(signal.SIGSTOP)
        for connection in [service.send(make_request(photo)) for photo in service.photos[:ABORTED]]:
            connection.close()
        service.process.send_signal(signal.SIGCONT)
        if not service.wait_until_idle() or service.metric("sareloc_batch_photos_sum") > ABORTED / 4:
            return "hang"  # the next client waits for answers that nobody reads
        with service.send(_query(service.photos[0])) as connection:
            return "right" if connection.recv(12) == b"HTTP/1.1 200" else "silently wrong"


def _stop(folder: Path, occupy: Callable[[Service], list[socket.socket]]) -> str:
    with _serving(folder) as service, ExitStack() as stack:
        for connection in occupy(service):
            stack.enter_context(connection)
        service.process.terminate()
        try:
            service.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return "hang"
        return "right"


def _ask_much(service: Service) -> list[socket.socket]:
    connections = [service.send(_query(photo)) for photo in service.photos[:ABORTED]]
    while not service.metric("sareloc_queue_photos"):
        time.sleep(0.01)
    return connections


def _send_slowly(service: Service) -> list[socket.socket]:
    query = _query(service.photos[0])
    idle = service.send(b"GET /settings HTTP/1.1\r\nHost: localhost\r\n\r\n")
    idle.recv(1)
    return [idle, *(service.send(query[:length]) for length in (0, 10, len(query) - 1))]


def _show_fifo(service: Service) -> list[socket.socket]:
    request = b"GET /photos/1/thumbnail HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connections = [service.send(request) for _ in range(4)]
    time.sleep(0.5)
    return connections


def _add_photo(service: Service) -> list[socket.socket]:
    """The service then also computes the local features that the map does not have: those of the FIFO."""
    connection = service.send(_form(service.photos[0], "/photos", lat=b"48", lon=b"2"))
    time.sleep(0.5)
    return [connection]
