"""Questions that come together go to the model together, within a bound, and none that was accepted is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.running import DEADLINE_S, HeldLocalizer, running, same_place

import sareloc.serve.service
from sareloc.localize import Localizer
from sareloc.serve import Limits, ServeConfig, make_app
from sareloc.serve.batching import BatchQueue
from sareloc.serve.guard import Problem
from sareloc.serve.server import bind, make_server


class Worker:
    """Doubles numbers while its gate is open, and remembers the batches and the threads."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()

    def answer(self, questions: Sequence[int]) -> list[int]:
        self.batches.append(list(questions))
        self.threads.add(threading.get_ident())
        assert self.gate.wait(DEADLINE_S)
        if 13 in questions:
            raise ValueError("unlucky")
        return [2 * question for question in questions]


async def begun(worker: Worker, count: int = 1) -> None:
    while len(worker.batches) < count:
        await asyncio.sleep(0.001)


def test_what_comes_while_a_batch_is_worked_on_is_the_next() -> None:
    async def main() -> list[int]:
        worker = Worker()
        queue = BatchQueue[int, int](worker.answer, batch=4, bound=100, name="test")
        async with queue.running():
            tasks = [asyncio.ensure_future(queue.submit(0))]
            await begun(worker)
            tasks += [asyncio.ensure_future(queue.submit(number)) for number in range(1, 7)]
            await asyncio.sleep(0)
            worker.gate.set()
            answers = await asyncio.gather(*tasks)
        assert worker.batches == [[0], [1, 2, 3, 4], [5, 6]]
        assert len(worker.threads) == 1
        return answers

    assert asyncio.run(main()) == [0, 2, 4, 6, 8, 10, 12]


def test_who_stops_waiting_withdraws_the_question() -> None:
    async def main() -> None:
        worker = Worker()
        queue = BatchQueue[int, int](worker.answer, batch=4, bound=100, name="test")
        async with queue.running():
            first = asyncio.ensure_future(queue.submit(0))
            await begun(worker)
            gone, stays = asyncio.ensure_future(queue.submit(1)), asyncio.ensure_future(queue.submit(2))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.sleep(0)
            worker.gate.set()
            assert await asyncio.gather(first, stays) == [0, 4]
        assert worker.batches == [[0], [2]]

    asyncio.run(main())


def test_an_error_reaches_its_batch_and_not_the_next() -> None:
    async def main() -> None:
        worker = Worker()
        worker.gate.set()
        queue = BatchQueue[int, int](worker.answer, batch=4, bound=100, name="test")
        async with queue.running():
            with pytest.raises(ValueError, match="unlucky"):
                await queue.submit(13)
            assert await queue.submit(4) == 8

    asyncio.run(main())


def test_places_are_bounded_and_come_free_again() -> None:
    queue = BatchQueue[int, int](lambda questions: list(questions), batch=4, bound=3, name="test")
    with queue.reserve(2):
        with pytest.raises(Problem, match="busy") as refused, queue.reserve(2):
            pass
        assert refused.value.status == 503
        assert int(refused.value.headers["Retry-After"]) >= 1
        with queue.reserve(1):
            assert queue.accepted == 3
    assert queue.accepted == 0


def wait_until_waiting(address: str, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while f"sareloc_waiting_photos {count:.1f}\n" not in httpx.get(f"{address}/metrics", timeout=DEADLINE_S).text:
        assert time.monotonic() < deadline, f"there were never {count} photos waiting"


def test_concurrent_requests_share_batches_and_each_gets_its_own_answer(street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg", batch=8)
    photos = [(street_folder / "queries" / f"q{place:02d}.jpg").read_bytes() for place in range(12)]
    with running(make_app(held)) as address, ThreadPoolExecutor(12) as clients:

        def ask(photo: bytes) -> dict[str, Any]:
            return dict(httpx.post(f"{address}/localize", content=photo, timeout=DEADLINE_S).json())

        first = clients.submit(ask, photos[0])
        assert held.begun.wait(DEADLINE_S)
        rest = [clients.submit(ask, photo) for photo in photos[1:]]
        wait_until_waiting(address, len(rest))
        held.gate.set()
        told = [first.result(), *(one.result() for one in rest)]
    assert held.batches == [1, 8, 3]
    for photo, answer in zip(photos, told, strict=True):
        assert same_place(answer, Localizer.localize(held, photo))


def test_questions_about_several_areas_get_their_own(street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg")
    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    with running(make_app(held)) as address, ThreadPoolExecutor(4) as clients:

        def ask(params: dict[str, Any]) -> dict[str, Any]:
            return dict(httpx.post(f"{address}/localize", params=params, content=photo, timeout=DEADLINE_S).json())

        first = clients.submit(ask, {})
        assert held.begun.wait(DEADLINE_S)
        rest = [clients.submit(ask, params) for params in ({"top": 2}, {"box": "0,0,1,1"}, {"top": 90})]
        wait_until_waiting(address, 3)
        held.gate.set()
        counts = [len(one.result()["matches"]) for one in (first, *rest)]
    assert counts == [5, 2, 0, 90]


def test_beyond_the_bound_is_a_clean_503(street_folder: Path) -> None:
    held, limits = HeldLocalizer(street_folder / "street.gpkg"), ServeConfig(queue=4, max_files=3)
    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    with running(make_app(held, config=limits)) as address, ThreadPoolExecutor(4) as clients:

        def ask(count: int) -> httpx.Response:
            files = [("photos", photo)] * count
            return httpx.post(f"{address}/localize", files=files, timeout=DEADLINE_S)

        accepted = [clients.submit(ask, 1)]
        assert held.begun.wait(DEADLINE_S)
        accepted.append(clients.submit(ask, 2))
        wait_until_waiting(address, 2)
        refused = ask(2)  # one place is free: half of a request is not taken
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["content-type"] == "application/problem+json"
        held.gate.set()
        assert [len(one.result().json()["fixes"]) for one in accepted] == [1, 2]
        assert ask(3).status_code == 200


def test_a_shutdown_finishes_what_was_accepted(street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg", batch=2)
    listening, ready = bind("127.0.0.1", 0), threading.Event()
    server = make_server(make_app(held), Limits(stop_s=DEADLINE_S), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert ready.wait(DEADLINE_S)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with ThreadPoolExecutor(5) as clients:
        photo = (street_folder / "queries" / "q05.jpg").read_bytes()
        asked = [clients.submit(httpx.post, f"{address}/localize", content=photo, timeout=DEADLINE_S) for _ in range(5)]
        assert held.begun.wait(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while server.config.app.state.service.queries.accepted < 5:
            assert time.monotonic() < deadline
        server.should_exit = True
        while server.servers and server.servers[0].is_serving():
            assert time.monotonic() < deadline
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health", timeout=DEADLINE_S)
        held.gate.set()
        assert [one.result().status_code for one in asked] == [200] * 5
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_health_and_map_answer_while_all_threads_are_busy(street_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding and the model have threads of their own, and leave the event loop free."""
    held, decoding, reading = HeldLocalizer(street_folder / "street.gpkg"), threading.Semaphore(0), threading.Event()
    read = sareloc.serve.service.read_image

    def read_later(*arguments: Any, **options: Any) -> Any:
        decoding.release()
        assert reading.wait(DEADLINE_S)
        return read(*arguments, **options)

    photo = (street_folder / "queries" / "q05.jpg").read_bytes()
    with running(make_app(held, config=ServeConfig(decoders=2))) as address, ThreadPoolExecutor(5) as clients:

        def ask() -> int:
            return httpx.post(f"{address}/localize", content=photo, timeout=DEADLINE_S).status_code

        asked = [clients.submit(ask)]
        assert held.begun.wait(DEADLINE_S)
        monkeypatch.setattr(sareloc.serve.service, "read_image", read_later)
        asked += [clients.submit(ask) for _ in range(4)]
        for _ in range(2):
            assert decoding.acquire(timeout=DEADLINE_S)
        for path in ("/health", "/map", "/settings", "/metrics"):
            assert httpx.get(f"{address}{path}", timeout=DEADLINE_S).status_code == 200, path
        reading.set()
        held.gate.set()
        assert [one.result() for one in asked] == [200] * 5
