"""Size, time and names: what stands before every request, tried over real connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest
from tests.serve.running import DEADLINE_S, HeldLocalizer, running, street_client

from sareloc.errors import ArgumentError
from sareloc.maps import PlaceMap
from sareloc.models import make_model
from sareloc.serve import Limits, ServeConfig, Serving, guard, make_app
from sareloc.serve.live_map import LiveMap, LiveMaps
from sareloc.serve.service import Service

SMALL = ServeConfig(max_bytes=200_000, held_bytes=300_000)
HASTY = ServeConfig(request_s=0.5)


@pytest.fixture(scope="module")
def strict(street_folder: Path) -> Iterator[httpx.Client]:
    """Of a service that takes little."""
    with street_client(street_folder / "street.gpkg", config=SMALL) as client:
        yield client


@pytest.fixture(scope="module")
def hasty(street_folder: Path) -> Iterator[httpx.Client]:
    """Of a service that does not wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "LINGER_S", 0.1)
        with street_client(street_folder / "street.gpkg", config=HASTY) as client:
            yield client


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=DEADLINE_S)


def repeat_until(happens: Callable[[], bool], what: str) -> None:
    """Try again what a busy machine may be too slow for once: a service that waits half a second may then give up."""
    deadline = time.monotonic() + DEADLINE_S
    while not happens():
        assert time.monotonic() < deadline, f"it never happened that {what}"


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    """The status and everything until the server closes the connection."""
    told = b""
    while part := connection.recv(65536):
        told += part
    return int(told.split(b" ", 2)[1]) if told else 0, told


def post(length: int, body: bytes = b"") -> bytes:
    return f"POST /localize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode() + body


def test_a_body_that_is_declared_too_large_is_refused_unread(strict: httpx.Client) -> None:
    with connect(strict) as connection:
        connection.sendall(post(200_001))
        answer = HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert b"200,000 bytes" in answer.read()


def test_who_sends_too_much_still_reads_the_answer(strict: httpx.Client) -> None:
    """A server that closes at once resets the connection under the sender, who then never sees why."""
    with connect(strict) as connection:
        connection.sendall(post(5_000_000, bytes(5_000_000)))
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413
    assert strict.get("/health").status_code == 200


def test_a_body_that_does_not_say_its_size_is_counted(strict: httpx.Client) -> None:
    parts = (bytes(10_000) for _ in range(100))
    assert strict.post("/localize", content=parts).status_code == 413


def test_what_was_refused_is_not_held_while_the_rest_of_it_comes(strict: httpx.Client) -> None:
    chunk = b"186A0\r\n" + bytes(100_000) + b"\r\n"
    with connect(strict) as connection:
        connection.sendall(b"POST /localize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(3 * chunk)  # and no end
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413
        assert strict.post("/localize", content=bytes(150_000)).status_code == 422


def test_a_slow_upload_is_given_up(hasty: httpx.Client) -> None:
    with connect(hasty) as connection:
        connection.sendall(post(1000, b"\xff\xd8\xff"))
        status, told = answer_of(connection)
    assert status == 408
    assert b"within 0.5 s" in told
    assert b"connection: close" in told.lower()
    repeat_until(lambda: hasty.get("/health").status_code == 200, "the service answered others")


def test_an_upload_by_single_bytes_is_given_up(hasty: httpx.Client) -> None:
    stop = threading.Event()

    def trickle(connection: socket.socket) -> None:
        while not stop.wait(0.02):
            try:
                connection.sendall(b"x")
            except OSError:
                return

    with connect(hasty) as connection:
        connection.sendall(post(1000))
        sender = threading.Thread(target=trickle, args=(connection,))
        sender.start()
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408
        stop.set()
        sender.join()


def test_headers_that_do_not_come_are_given_up(hasty: httpx.Client) -> None:
    with connect(hasty) as silent, connect(hasty) as halfway:
        halfway.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert [answer_of(connection)[1] for connection in (silent, halfway)] == [b"", b""]

    def first_is_answered_and_second_given_up() -> bool:
        with connect(hasty) as second:
            second.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
            return answer_of(second)[0] == 200

    repeat_until(first_is_answered_and_second_given_up, "the first of two requests was answered")


def test_an_answer_is_whole_also_when_time_runs_out_behind_it(
    hasty: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "LINGER_S", 60.0)

    def answered_whole() -> bool:
        with connect(hasty) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
            status, told = answer_of(connection)
        assert told.endswith(b"}")
        return status == 200

    repeat_until(answered_whole, "the answer was 200")
    assert caplog.records == []


def test_a_client_that_disconnects_does_not_affect_others(strict: httpx.Client) -> None:
    for _ in range(5):
        with connect(strict) as connection:
            connection.sendall(post(1000, b"\xff\xd8\xff"))
    assert strict.get("/health").status_code == 200


def refused_beside_two_uploads(client: httpx.Client) -> httpx.Response | None:
    """What a third upload is told while two hold 300,000 bytes; None where one of the two was refused itself.

    That happens where the third one's bytes come before the second's have all come.
    """
    with connect(client) as first, connect(client) as second:
        for connection in (first, second):
            connection.sendall(post(150_001, bytes(150_000)))
        for _ in range(50):
            answer = client.post("/localize", content=bytes(1000))
            if answer.status_code == 503:
                return answer
    return None


def test_all_uploads_together_are_bounded(strict: httpx.Client) -> None:
    refusals: list[httpx.Response | None] = []
    repeat_until(
        lambda: refusals.append(refused_beside_two_uploads(strict)) or refusals[-1] is not None, "one was refused"
    )
    assert refusals[-1] is not None
    assert refusals[-1].headers["retry-after"]
    repeat_until(lambda: strict.post("/localize", content=bytes(1000)).status_code == 422, "there was room again")


def test_an_answer_that_takes_too_long_is_a_503(street_folder: Path) -> None:
    held = HeldLocalizer(street_folder / "street.gpkg")
    with running(make_app(held, config=HASTY), HASTY) as address:
        photo = (street_folder / "queries" / "q05.jpg").read_bytes()
        late = httpx.post(f"{address}/localize", content=photo, timeout=DEADLINE_S)
        assert late.status_code == 503
        assert late.headers["retry-after"] == "10"
        assert "within 0.5 s" in late.json()["detail"]
        held.gate.set()

        def answers() -> bool:
            return httpx.post(f"{address}/localize", content=photo, timeout=DEADLINE_S).status_code == 200

        repeat_until(answers, "it recovered")


def test_a_mistake_of_ours_is_a_500_without_its_trace(street_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(HeldLocalizer):
        def localize_many(self, photos: object, **options: object) -> list[object]:
            raise ZeroDivisionError("a secret of the code")

    with running(make_app(Broken(street_folder / "street.gpkg"))) as address:
        answer = httpx.post(
            f"{address}/localize", content=(street_folder / "queries" / "q05.jpg").read_bytes(), timeout=DEADLINE_S
        )
        assert httpx.get(f"{address}/health", timeout=DEADLINE_S).status_code == 200
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "secret" not in answer.text
    assert "a secret of the code" in caplog.text


@pytest.mark.parametrize("path", ["/health", "/", "/nowhere", "/photos/1/thumbnail", "/localize", "/map?box=x"])
def test_every_answer_keeps_browsers_safe(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


@pytest.mark.parametrize(
    ("tiles", "origin"),
    [
        ("https://tiles.example.org/{z}/{x}/{y}.png", "https://tiles.example.org"),
        ("https://{s}.tiles.example.org/{z}/{x}/{y}.png?key=1", "https://*.tiles.example.org"),
        ("http://localhost:8080/{z}/{x}/{y}", "http://localhost:8080"),
    ],
)
def test_the_tiles_that_were_asked_for_are_allowed(street_folder: Path, tiles: str, origin: str) -> None:
    with street_client(street_folder / "street.gpkg", config=ServeConfig(tiles=tiles, attribution="Example")) as client:
        answer = client.get("/settings")
        assert (answer.json()["tiles"], answer.json()["attribution"]) == (tiles, "Example")
        assert f"img-src 'self' data: blob: {origin};" in answer.headers["content-security-policy"]


def test_a_service_answers_only_to_its_host_names(street_folder: Path) -> None:
    """Else a web page whose name is made to point to this machine could read the map."""
    serving = ServeConfig(allow_host=("Places.example.org", "192.0.2.7", "2001:db8::1"))
    with street_client(street_folder / "street.gpkg", config=serving) as client:
        good = ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000"]
        good += ["places.example.org", "PLACES.example.org:443", "192.0.2.7:8000", "[2001:db8::1]:8000"]
        bad = ["evil.example.org", "localhost.evil.org:80", "places.example.org.evil.org", "192.0.2.8", "::1", ""]
        assert [client.get("/health", headers={"Host": host}).status_code for host in good] == [200] * len(good)
        answers = [client.get("/health", headers={"Host": host}) for host in bad]
        assert [answer.status_code for answer in answers] == [421] * len(bad)
        assert answers[0].headers["content-type"] == "application/problem+json"
        assert "evil.example.org" in answers[0].json()["detail"]


def test_the_default_host_names_are_loopback(client: httpx.Client, street_folder: Path) -> None:
    hosts = ("localhost", "127.0.0.1", "[::1]", "192.0.2.7", "evil.example.org")
    assert [client.get("/health", headers={"Host": host}).status_code for host in hosts] == [200] * 3 + [421] * 2
    with street_client(street_folder / "street.gpkg", config=ServeConfig(allow_host=("*",))) as unchecked:
        assert [unchecked.get("/health", headers={"Host": host}).status_code for host in hosts] == [200] * 5


@pytest.mark.parametrize("name", ["", "https://a.org", "a.org:8000", "*.a.org", "a b", "[::1]:80"])
def test_a_name_is_a_name(name: str) -> None:
    with pytest.raises(ArgumentError, match="allow-host"):
        Serving(allow_host=(name,))


def test_other_methods_and_routes_are_problems_too(client: httpx.Client) -> None:
    answers = [client.put("/localize"), client.get("/localize"), client.get("/nowhere"), client.post("/")]
    assert [answer.status_code for answer in answers] == [405, 405, 404, 405]
    assert all(answer.headers["content-type"] == "application/problem+json" for answer in answers)
    assert answers[0].headers["allow"] == "POST"


def test_limits_check_themselves() -> None:
    with pytest.raises(ArgumentError, match="max_bytes"):
        Limits(max_bytes=0)
    with pytest.raises(ArgumentError, match="queue 8"):
        Limits(queue=8)
    with pytest.raises(ArgumentError, match="held_bytes 10"):
        Limits(max_bytes=20, held_bytes=10)
    for tiles in ("javascript:alert(1)//{z}{x}{y}", "https://a.org/{z}/{x}.png", "https://a.org; script-src *", "x"):
        with pytest.raises(ArgumentError, match="--tiles"):
            Serving(tiles=tiles)
    for token in ("", "two words", "g\u00fcltig"):
        with pytest.raises(ArgumentError, match="printable ASCII"):
            Serving(token=token)


def test_a_long_strip_is_not_given_to_the_model_at_full_length(street_folder: Path) -> None:
    """A model that keeps the aspect would look at every pixel of it."""
    model = make_model("alexnet", "max", size=640)
    live = LiveMaps({"street.gpkg": LiveMap(model, PlaceMap(street_folder / "street.gpkg"), None)}, 0.5)
    service = Service(live, ServeConfig(model_pixels=1_000_000))
    assert service.model_size(model.preprocess, 480, 640) == (480, 640)
    with pytest.raises(ArgumentError, match="64 x 60000 px"):
        service.model_size(model.preprocess, 64, 60_000)


def test_problems_are_json_with_the_standards_members(client: httpx.Client) -> None:
    told = json.loads(client.get("/nowhere").text)
    assert told == {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "Not Found"}
