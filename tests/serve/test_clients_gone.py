"""Work for clients that have gone is dropped before it is computed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.localize.street import street_model
from tests.serve.running import DEADLINE_S, HeldLocalizer, running

from sareloc.serve import ServeConfig, make_app
from sareloc.serve.guard import Guard
from sareloc.serve.service import Registry


def metric(address: str, name: str) -> float:
    """The value of a sample; 0 if nothing was counted."""
    lines = httpx.get(f"{address}/metrics", timeout=DEADLINE_S).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)


def wait_for(address: str, name: str, value: float) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while metric(address, name) != value:
        assert time.monotonic() < deadline, f"{name} was never {value}"


def send(address: str, body: bytes, kind: str = "image/jpeg") -> socket.socket:
    """A connection that has sent a query and does not read its answer."""
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S)
    head = f"POST /localize HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def form(photos: list[bytes]) -> bytes:
    part = b'--x\r\nContent-Disposition: form-data; name="photos"; filename="a.jpg"\r\n\r\n%s\r\n'
    return b"".join(part % photo for photo in photos) + b"--x--\r\n"


def test_requests_of_clients_that_went_are_not_computed(street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg", batch=8)
    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    with running(make_app(held)) as address, ThreadPoolExecutor(1) as client, ExitStack() as connections:
        connections.callback(held.gate.set)
        first = client.submit(httpx.post, f"{address}/localize", content=photo, timeout=DEADLINE_S)
        assert held.begun.wait(DEADLINE_S)
        gone = [connections.enter_context(send(address, photo)) for _ in range(20)]
        gone.append(connections.enter_context(send(address, form([photo] * 4), "multipart/form-data; boundary=x")))
        wait_for(address, "sareloc_waiting_photos", 24)
        stays = connections.enter_context(send(address, photo))
        wait_for(address, "sareloc_waiting_photos", 25)
        for connection in gone:
            connection.close()
        wait_for(address, "sareloc_waiting_photos", 1)
        assert metric(address, 'sareloc_photos_total{outcome="dropped"}') == 24
        held.gate.set()
        assert first.result().status_code == 200
        assert stays.recv(12) == b"HTTP/1.1 200"
        assert metric(address, "sareloc_queue_photos") == 0
        assert metric(address, "sareloc_batch_photos_sum") == 2
    assert held.batches == [1, 1]


def test_photos_of_clients_that_went_are_not_decoded(street_folder: Path) -> None:
    app = make_app(street_folder / "street.gpkg", street_model(), config=ServeConfig(decoders=1))
    service, gate, decoded = app.state.service, threading.Event(), list[str]()

    async def main() -> None:
        async with service.running():
            try:
                busy = asyncio.create_task(service.in_decoder(lambda: gate.wait(DEADLINE_S)))
                tasks = [asyncio.create_task(service.in_decoder(lambda: decoded.append("gone"))) for _ in range(3)]
                stays = asyncio.create_task(service.in_decoder(lambda: decoded.append("stays")))
                await asyncio.sleep(0)
                for task in (busy, *tasks):
                    task.cancel()
                await asyncio.gather(busy, *tasks, return_exceptions=True)
                assert service._decoders._work_queue.qsize() == 0  # the thread is busy, although its caller has gone
            finally:
                gate.set()
            await stays

    asyncio.run(main())
    assert decoded == ["stays"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_request_is_cancelled_unless_its_answer_has_begun(method: str, begun: bool) -> None:
    """Also a request without a body, such as for a thumbnail."""
    ended: list[str] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        try:
            if method == "POST":
                assert (await receive())["body"] == b"photo"
            if begun:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            gone.set()
            await asyncio.wait_for(finish.wait(), None if not begun else 0.05)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        except TimeoutError:
            ended.append("finished")

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def main() -> None:
        await asyncio.wait_for(Guard(app, ServeConfig(), Registry())(scope, receive, ignore), DEADLINE_S)

    async def ignore(_: Message) -> None:
        pass

    gone, finish = asyncio.Event(), asyncio.Event()
    body = b"photo" if method == "POST" else b""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
    scope: Scope = {"type": "http", "method": method, "path": "/", "headers": headers}
    asyncio.run(main())
    assert ended == ["finished" if begun else "cancelled"]
