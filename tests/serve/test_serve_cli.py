"""`sareloc serve`, as a process: from its arguments to its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cyclopts import App
from tests.localize.street import street_model
from tests.serve.running import DEADLINE_S

import sareloc.serve.server
from sareloc.cli.serve import is_loopback, serve_command
from sareloc.errors import ArgumentError, MapError
from sareloc.localize import Search
from sareloc.maps import copy_map
from sareloc.models import save_checkpoint
from sareloc.serve import Limits, ServeConfig, Serving, make_app


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_checkpoint(street_model(), path)
    return path


@contextmanager
def serving(*words: str | Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sareloc", "serve", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        said = process.stdout.readline()
        found = re.fullmatch(r"serving street\.gpkg at (http://[\w.]+:\d+)/ \(Ctrl-C stops\)\n", said)
        assert found, said or process.stderr.read()
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_a_process_serves_and_ends_at_a_signal(own_folder: Path, checkpoint: Path) -> None:
    words = (own_folder / "street.gpkg", "--model", checkpoint, "--port", "0", "--max-files", "2", "--name", "Here")
    with serving(*words, SARELOC_TOKEN="from-the-environment") as (process, address):
        told = httpx.get(f"{address}/settings", timeout=DEADLINE_S).json()
        assert (told["name"], told["max_files"], told["adding"]) == ("Here", 2, True)
        photo = (own_folder / "queries" / "q05.jpg").read_bytes()
        assert httpx.post(f"{address}/localize", content=photo, timeout=DEADLINE_S).json()["latlon"]
        allowed = {"Authorization": "Bearer from-the-environment"}
        assert httpx.delete(f"{address}/photos/1", headers=allowed, timeout=DEADLINE_S).status_code == 204
        port = address.rpartition(":")[2]
        assert httpx.get(f"http://localhost:{port}/health", timeout=DEADLINE_S).status_code == 200
        assert (
            httpx.get(f"{address}/health", headers={"Host": "evil.example.org"}, timeout=DEADLINE_S).status_code == 421
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) in (0, -signal.SIGTERM)
        assert process.stderr.read() == ""
    assert [file.name for file in own_folder.glob("street.gpkg*")] == ["street.gpkg"]


class StartedError(Exception):
    """Instead of serving."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the command would have served with."""
    given: dict[str, object] = {}

    def make_server(app: object, config: ServeConfig, ready: object, *, access_log: bool) -> None:
        given.update(app=app, config=config, access_log=access_log)
        raise StartedError

    monkeypatch.setattr(sareloc.serve.server, "make_server", make_server)
    return given


def run(*words: str | Path) -> None:
    app = App(name="sareloc")
    app.command(serve_command, name="serve")
    app(["serve", *map(str, words), "--port", "0"], result_action="return_value", exit_on_error=False)


def test_options_reach_the_service(street_folder: Path, checkpoint: Path, started: dict[str, object]) -> None:
    words = [
        "--token",
        "t",
        "--allow-host",
        "a.org",
        "--allow-host",
        "b.org",
        "--no-heatmap",
        "--queue",
        "99",
        "--access-log",
    ]
    with pytest.raises(StartedError):
        run(street_folder / "street.gpkg", "--model", checkpoint, *words)
    config = ServeConfig(token="t", allow_host=("a.org", "b.org"), heatmap=False, queue=99, access_log=True)
    assert started["config"] == started["app"].state.service.config == config
    assert started["access_log"] is True


def test_options_come_from_the_command_line_then_the_file_then_the_defaults(
    street_folder: Path, checkpoint: Path, started: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f'queue = 99\nmax_files = 3\nverify = 0\nphotos = ["{tmp_path}"]\nallow_host = ["a.org"]')
    with pytest.raises(StartedError):
        run(street_folder / "street.gpkg", "--model", checkpoint, "--config", file, "--max-files", "4")
    assert started["config"] == ServeConfig(
        queue=99, max_files=4, verify=0, photos=(tmp_path,), allow_host=("a.org",), token=None
    )
    for text, reason in (
        ("quue = 1", "did you mean 'queue'"),
        ('queue = "1"', "whole number"),
        ("queue = 0", "than 0"),
    ):
        file.write_text(text)
        with pytest.raises(ArgumentError, match=reason):
            run(street_folder / "street.gpkg", "--model", checkpoint, "--config", file)


def test_arguments_of_version_0_1_are_merged_into_the_config_with_a_warning(street_folder: Path) -> None:
    with pytest.warns(DeprecationWarning, match="ServeConfig"):
        app = make_app(
            street_folder / "street.gpkg",
            street_model(),
            serving=Serving(token="t"),
            limits=Limits(queue=99),
            search=Search(verify=0),
            batch=2,
        )
    assert app.state.service.config == ServeConfig(token="t", queue=99, verify=0, batch=2)
    with pytest.raises(TypeError, match="limit"):
        make_app(street_folder / "street.gpkg", street_model(), limit=Limits())


def test_binding_wider_without_a_token_warns(
    street_folder: Path, checkpoint: Path, started: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    map_path = (street_folder / "street.gpkg", "--model", checkpoint)
    wider = ["--host", "0.0.0.0", "--allow-host", "places.example.org"]
    with pytest.raises(StartedError):
        run(*map_path, *wider)
    assert "warning: everyone who can reach 0.0.0.0 can" in capsys.readouterr().err
    for words in ([*wider, "--token", "t"], ["--host", "127.0.0.1"], []):
        with pytest.raises(StartedError):
            run(*map_path, *words)
        assert capsys.readouterr().err == ""


def test_photos_that_are_not_shown_are_reported_with_the_option_that_shows_them(
    street_folder: Path,
    checkpoint: Path,
    started: dict[str, object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy_map(street_folder / "street.gpkg", tmp_path / "street.gpkg", progress=False)
    map_path = (tmp_path / "street.gpkg", "--model", checkpoint)
    with pytest.raises(StartedError):
        run(*map_path)
    said = capsys.readouterr().err
    assert "90 photos" in said
    option = re.search(r"--photos (\S+)", said)
    assert option is not None
    with pytest.raises(StartedError):
        run(*map_path, *option[0].split())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_binding_wider_needs_a_name(host: str, street_folder: Path) -> None:
    """Before the map is opened; the error shows the option to add."""
    with pytest.raises(ArgumentError, match=r"--allow-host \S+"):
        run(street_folder / "absent.gpkg", "--host", host)


@pytest.mark.slow
def test_a_service_on_all_interfaces_answers_to_its_host_names(street_folder: Path, checkpoint: Path) -> None:
    words = (street_folder / "street.gpkg", "--model", checkpoint, "--port", "0", "--host", "0.0.0.0", "--token", "t")
    with serving(*words, "--allow-host", "places.example.org") as (_, shown):
        assert shown.startswith("http://places.example.org:")  # 0.0.0.0 is nobody's name
        address = shown.replace("places.example.org", "127.0.0.1")
        names = ("places.example.org", "localhost:80", "127.0.0.1", "evil.example.org")
        answers = [httpx.get(f"{address}/health", headers={"Host": name}).status_code for name in names]
        assert answers == [200, 200, 200, 421]


def test_another_loopback_address_is_answered_under_its_own_name(
    street_folder: Path, checkpoint: Path, started: dict[str, object]
) -> None:
    with pytest.raises(StartedError):
        run(street_folder / "street.gpkg", "--model", checkpoint, "--host", "127.1.2.3")
    assert started["app"].state.service.config.allow_host == ("127.1.2.3",)


def test_what_only_this_machine_can_reach() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "example.org")] == [False] * 4


def test_answers_do_not_wait_for_packets_to_fill() -> None:
    """asyncio turns Nagle's algorithm off only where the socket names its protocol."""
    with sareloc.serve.server.bind("127.0.0.1", 0) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_wrong_calls_say_so(street_folder: Path, checkpoint: Path) -> None:
    with pytest.raises(MapError, match=r"absent\.gpkg does not exist"):
        run(street_folder / "absent.gpkg")
    with pytest.raises(MapError, match="street"):
        run(street_folder / "street.gpkg")


def test_the_port_is_taken_before_anything_is_opened(street_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "sareloc", "serve", street_folder / "absent.gpkg", "--port", str(port)]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert (len(ended.stderr.splitlines()), "Traceback" in ended.stderr) == (1, False)
    assert f"port {port} " in ended.stderr
    assert "another --port" in ended.stderr


def test_two_services_do_not_share_a_port() -> None:
    """Already before the first one listens to requests: two sockets that only bind would both succeed."""
    with sareloc.serve.server.bind("127.0.0.1", 0) as first, pytest.raises(ArgumentError, match="in use"):
        sareloc.serve.server.bind("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [("192.0.2.7", 0, "--host"), ("127.0.0.1", 65_536, "65535"), ("127.0.0.1", -1, "65535")],
)
def test_addresses_that_cannot_be_listened_on(host: str, port: int, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        sareloc.serve.server.bind(host, port)


def test_a_privileged_port() -> None:
    first_free = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if not first_free.exists() or int(first_free.read_text()) <= 81:
        pytest.skip("anyone may listen on port 81 here")
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        with pytest.raises(ArgumentError, match="1024"):
            sareloc.serve.server.bind("127.0.0.1", 81)
    finally:
        os.seteuid(user)
