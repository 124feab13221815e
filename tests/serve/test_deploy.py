"""The files in deploy/: where there is no Docker engine and no systemd, their steps are checked one by one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.localize.street import street_model
from tests.serve.running import DEADLINE_S

from sareloc import save_checkpoint
from sareloc.config_files import read_options
from sareloc.serve import ServeConfig
from sareloc.serve.config import MIB

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def instructions() -> list[tuple[str, str]]:
    """Name and text of each instruction of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line.strip()]


def texts(name: str) -> list[str]:
    return [text for kind, text in instructions() if kind == name]


def command() -> list[str]:
    """The container's command."""
    return list(json.loads(texts("CMD")[0]))


def health_check() -> list[str]:
    return list(json.loads(texts("HEALTHCHECK")[0].partition("CMD ")[2]))


def unit() -> dict[str, list[str]]:
    """The settings of the systemd unit."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "sareloc.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@contextmanager
def started(words: list[str], folder: Path, map_path: str) -> Iterator[str]:
    """The address of the service that a command of deploy/ starts: with the map of `folder` and a free port."""
    save_checkpoint(street_model(), folder / "model.safetensors")
    here = {map_path: str(folder / "street.gpkg"), "8000": "0"}
    own = [here.get(word, word) for word in words[1:]]
    options = ["--model", str(folder / "model.safetensors"), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sareloc", *own, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=os.environ | {"SARELOC_CACHE": str(folder / "cache")},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stdout.readline()
        port = re.search(r":(\d+)/", said)
        assert port is not None, process.stderr.read()
        yield f"http://127.0.0.1:{port[1]}"
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def health(address: str) -> Any:
    with urllib.request.urlopen(f"{address}/health", timeout=DEADLINE_S) as answer:
        return json.load(answer)


def test_what_the_image_copies_is_here_and_not_ignored() -> None:
    ignored = [
        line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line and line[0] != "#"
    ]
    for copy in texts("COPY"):
        *sources, _ = copy.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            last = [rule for rule in ignored if fnmatch(source, rule.removeprefix("!"))][-1]
            assert last.startswith("!"), source


def test_what_the_image_installs_exists() -> None:
    installs = [text for text in texts("RUN") if "pip install" in text]
    assert len(installs) == 2
    pinned = re.search(r"torch==(\S+)", installs[0])
    assert pinned is not None
    assert f"torch=={pinned[1]}\n" in (ROOT / "constraints.txt").read_text()
    assert f"torch=={pinned[1]}\n" in (ROOT / "Makefile").read_text()
    extras = re.search(r'"\.\[([\w,]+)\]"', installs[1])
    assert extras is not None
    assert {"serve", "heic"} <= set(extras[1].split(",")) <= EXTRAS.keys()
    assert all("--constraint constraints.txt" in text for text in installs)
    assert "constraints.txt" in texts("COPY")[0]


def test_the_image_runs_as_a_user_without_rights() -> None:
    user = texts("USER")[-1]
    assert user.isdigit()
    assert user != "0"
    assert f"--uid {user}" in " ".join(texts("RUN"))
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in {"RUN", "COPY"})


def test_the_containers_command_serves_a_map_and_its_health_check_tells(own_folder: Path) -> None:
    with started(command(), own_folder, "/data/city.gpkg") as address:
        assert health(address)["status"] == "ok"
        check = [word.replace("http://127.0.0.1:8000", address) for word in health_check()]
        assert check[0] == "python"
        assert subprocess.run([sys.executable, *check[1:]]).returncode == 0
    gone = subprocess.run([sys.executable, *check[1:]], capture_output=True, text=True)
    assert gone.returncode != 0


def test_compose_runs_the_image_with_its_volumes() -> None:
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = composed["services"]["sareloc"]
    assert [word for word in service["command"] if "SARELOC_HOST" not in word] == command()[:-1]
    volumes = dict(volume.split(":")[::-1] for volume in service["volumes"])
    assert volumes.keys() == set(json.loads(texts("VOLUME")[0]))
    assert volumes["/cache"] in composed["volumes"]
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert service["ports"] == [f"127.0.0.1:8000:{texts('EXPOSE')[0]}"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert list(service["environment"]) == ["SARELOC_TOKEN"]


def test_the_units_command_serves_a_map(own_folder: Path) -> None:
    (words,) = (shlex.split(value) for value in unit()["ExecStart"])
    config = words.index("--config") + 1
    assert words[config] == "/etc/sareloc/serve.toml"
    words[config] = str(DEPLOY / "serve.toml")
    assert read_options(DEPLOY / "serve.toml", ServeConfig) == {"allow_host": ("places.example.org",)}
    with started([*words, "--port", "0"], own_folder, "/var/lib/sareloc/city.gpkg") as address:
        asked = urllib.request.Request(f"{address}/health", headers={"Host": "places.example.org"})
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
            assert answer.status == 200


def test_the_unit_is_hardened() -> None:
    found = {key: values[-1] for key, values in unit().items()}
    assert found["DynamicUser"] == "yes"
    assert found["ProtectSystem"] == "strict"
    assert found["Environment"] == f"SARELOC_CACHE=/var/cache/{found['CacheDirectory']}"
    assert found["WorkingDirectory"] == f"/var/lib/{found['StateDirectory']}"
    assert int(found["TimeoutStopSec"]) > ServeConfig.stop_s + 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "sareloc.service").read_text().replace("/opt/sareloc/bin/sareloc", sys.executable)
    (tmp_path / "sareloc.service").write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "sareloc.service"], capture_output=True, text=True
    )
    complaints = [line for line in verified.stderr.splitlines() if "sareloc.service" in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr


def test_the_proxies_have_the_limits_of_the_service() -> None:
    nginx, caddy = ((DEPLOY / name).read_text() for name in ("nginx.conf", "Caddyfile"))
    assert f"client_max_body_size {ServeConfig.max_bytes // MIB}m;" in nginx
    assert f"max_size {ServeConfig.max_bytes // MIB}MiB" in caddy
    assert f"proxy_read_timeout {ServeConfig.request_s:.0f}s;" in nginx
    assert f"response_header_timeout {ServeConfig.request_s:.0f}s" in caddy
    assert nginx.count("{") == nginx.count("}")
