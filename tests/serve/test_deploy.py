"""The files in deploy/: their steps are run here one by one, without a Docker engine and without systemd.

Root starts the service as the container's user, who may read all files, such as Python's in the home of root, and write
those of his own; any other user starts it as himself.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
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


USER = int(texts("USER")[-1])
READS = "caps=-all,+dac_read_search"
SETPRIV = f"setpriv --reuid={USER} --regid={USER} --clear-groups --no-new-privs --inh-{READS} --ambient-{READS}"
AS_USER = SETPRIV.split() if os.geteuid() == 0 else []
needs_setpriv = pytest.mark.skipif(
    bool(AS_USER) and shutil.which("setpriv") is None, reason="root starts no service: setpriv is not installed"
)


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


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder into which the package is installed from what the Dockerfile copies alone."""
    build = tmp_path_factory.mktemp("build")
    for copy in texts("COPY"):
        *sources, target = copy.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, build / target, ignore=shutil.ignore_patterns(*left_out()))
            else:
                shutil.copy(ROOT / source, build / target)
    with tempfile.TemporaryDirectory() as site:
        Path(site).chmod(0o755)
        install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--target", site]
        subprocess.run([sys.executable, "-m", *install, build], check=True)
        yield Path(site)


def left_out() -> list[str]:
    """The patterns of what is not copied from any folder."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    return [line.removeprefix("**/") for line in lines if line.startswith("**/")]


@pytest.fixture
def served(street_folder: Path) -> Iterator[Path]:
    """The folders that the Dockerfile makes for its user: data/, with a map and its model, and cache/."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(street_folder, folder / "data")
        save_checkpoint(street_model(), folder / "data" / "model.safetensors")
        (folder / "cache").mkdir()
        for path in folder.rglob("*") if AS_USER else ():
            os.chown(path, USER, USER)
        yield folder


@contextmanager
def started(words: list[str], served: Path, map_path: str, package: Path) -> Iterator[tuple[str, int]]:
    """The address and the process of the service that a command of deploy/ starts; SIGTERM ends it without error.

    Args:
        words: of the command; the port becomes a free one.
        served: the folder of data/ and cache/.
        map_path: that of the command, which becomes the map in data/.
        package: the folder with the package.
    """
    data = served / "data"
    here = {map_path: str(data / "street.gpkg"), "8000": "0"}
    own = [here.get(word, word) for word in words[1:]]
    options = ["--model", str(data / "model.safetensors"), "--device", "cpu"]
    with subprocess.Popen(
        [*AS_USER, sys.executable, "-m", "sareloc", *own, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=data, env=environment(served, package),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = process.stdout.readline()
            port = re.search(r":(\d+)/", said)
            assert port is not None, process.stderr.read()
            yield f"http://127.0.0.1:{port[1]}", process.pid
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGTERM, errors  # 128 + SIGTERM: a thread of it was still working
    assert "Traceback" not in errors


def environment(served: Path, package: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(package), "HOME": "/nonexistent", "SARELOC_CACHE": str(served / "cache")}


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
    made = re.search(r"install --directory --owner=sareloc --group=sareloc (.*)", texts("RUN")[-1])
    assert made is not None
    assert made[1].split() == json.loads(texts("VOLUME")[0])


READ_WEIGHTS = """
from pathlib import Path
import sareloc
folder = Path(sareloc.__file__).parent
assert all(file.read_bytes() for name in ("default", "fast") for file in [folder / "weights" / f"{name}.safetensors"])
print(folder)
"""


@needs_setpriv
def test_the_containers_steps_make_a_service_whose_health_check_answers(served: Path, package: Path) -> None:
    shown = subprocess.run(
        [*AS_USER, sys.executable, "-c", READ_WEIGHTS],
        capture_output=True, text=True, check=True, cwd=served, env=environment(served, package),
    )  # fmt: skip
    assert Path(shown.stdout.strip()).is_relative_to(package)
    with started(command(), served, "/data/city.gpkg", package) as (address, process):
        assert 0 not in psutil.Process(process).uids()
        assert health(address)["status"] == "ok"
        photo = next((served / "data" / "queries").iterdir()).read_bytes()
        with urllib.request.urlopen(f"{address}/localize", photo, timeout=DEADLINE_S) as answer:
            assert json.load(answer)["matches"]
        check = [word.replace("http://127.0.0.1:8000", address) for word in health_check()]
        assert check[0] == "python"
        assert subprocess.run([*AS_USER, sys.executable, *check[1:]]).returncode == 0
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


@needs_setpriv
def test_the_units_command_serves_a_map(served: Path, package: Path) -> None:
    (words,) = (shlex.split(value) for value in unit()["ExecStart"])
    config = words.index("--config") + 1
    assert words[config] == "/etc/sareloc/serve.toml"
    words[config] = shutil.copy(DEPLOY / "serve.toml", served)
    assert read_options(DEPLOY / "serve.toml", ServeConfig) == {"allow_host": ("places.example.org",)}
    with started([*words, "--port", "0"], served, "/var/lib/sareloc/city.gpkg", package) as (address, process):
        assert 0 not in psutil.Process(process).uids()
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
