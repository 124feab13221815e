"""The wheel contains what a user needs, and works in an environment that has only its dependencies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sareloc import __version__
from sareloc.photos import Geotag, exif_bytes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sareloc"
HERE = (52.2025, 0.1175)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    # a copy: setuptools builds in the folder it is given
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    subprocess.run([*build, source], check=True)
    return next(out.glob("sareloc-*.whl"))


def test_the_wheel_contains_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {info.filename: info.file_size for info in archive.infolist() if ".dist-info/" not in info.filename}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert packed == {path.relative_to(ROOT / "src").as_posix(): path.stat().st_size for path in files}
    names = {path.name for path in files}  # were the package empty of them, the comparison above would not notice
    assert {"py.typed", "index.html", "leaflet.js", "default.safetensors", "fast.safetensors", "NOTICE.txt"} <= names


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Iterator[Path]:
    """The folder of programs of a fresh environment with the wheel and its dependencies, without extras."""
    with tempfile.TemporaryDirectory() as folder:  # 1.3 GB: pytest would keep the last three
        venv.create(folder, with_pip=True)
        programs = Path(folder) / "bin"
        install = [programs / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*install, "torch==2.13.0"], check=True, env=clean_environment())
        subprocess.run([*install, wheel], check=True, env=clean_environment())
        yield programs


def clean_environment() -> dict[str, str]:
    """Without PYTHONPATH and the like, by which pip and Python would find the package's source."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(program: Path, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean_environment())


def draw(path: Path, seed: int, latlon: tuple[float, float]) -> None:
    blocks = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    photo = Image.fromarray(blocks).resize((320, 240), Image.Resampling.NEAREST)
    photo.save(path, exif=exif_bytes(Geotag(latlon)))


@pytest.mark.slow
def test_a_fresh_environment_maps_and_localizes(installed: Path, tmp_path: Path) -> None:
    sareloc = installed / "sareloc"
    assert run(sareloc, "--version", cwd=tmp_path).stdout.strip() == __version__
    listed = run(sareloc, "model", "list", cwd=tmp_path).stdout
    assert "default" in listed
    assert "fast" in listed

    (tmp_path / "photos").mkdir()
    draw(tmp_path / "photos" / "here.jpg", 1, HERE)
    draw(tmp_path / "photos" / "elsewhere.jpg", 2, (52.3, 0.2))
    built = run(sareloc, "map", "build", "photos", "--out", "map.gpkg", "--model", "fast", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    draw(tmp_path / "query.jpg", 1, (0, 0))
    answered = run(sareloc, "localize", "map.gpkg", "query.jpg", "--json", "--min-confidence", "0", cwd=tmp_path)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["latlon"] == pytest.approx(HERE, abs=1e-4)


@pytest.mark.slow
def test_every_public_name_and_command_loads_without_extras(installed: Path, tmp_path: Path) -> None:
    code = """
import sareloc
from sareloc.cli import app

for name in sareloc.__all__:
    getattr(sareloc, name)

def explain(commands, *path):
    for name in commands:
        if not name.startswith("-"):
            app([*path, name, "--help"], result_action="return_value")
            explain(commands[name], *path, name)

explain(app)
print(sareloc.__file__)
"""
    done = run(installed / "python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(installed.parent) in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["serve", "map.gpkg"], "serve"),
        (["figure", "gradients", "--out", "gradients.png"], "plot"),
        (["export", "fast", "--onnx", "fast.onnx"], "onnx"),
        (["map", "info", "milvus://localhost:19530/city"], "milvus"),
        (["map", "build", "photos", "--out", "map.gpkg", "--cluster", "ray://local"], "ray"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_whose_extra_is_absent_names_the_pip_line(
    installed: Path, tmp_path: Path, words: list[str], extra: str
) -> None:
    (tmp_path / "photos").mkdir()
    draw(tmp_path / "photos" / "here.jpg", 1, HERE)
    refused = run(installed / "sareloc", *words, cwd=tmp_path)
    assert refused.returncode == 1
    assert f'pip install "sareloc[{extra}]"' in refused.stderr
    assert "Traceback" not in refused.stderr
