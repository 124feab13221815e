"""What a user imports and types is there, and importing it costs nothing."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App
from tests.maps.small_town import build_map, tiny_model, write_town

import sareloc
from sareloc import errors
from sareloc.cli import app

EXTRAS = ["torch", "faiss", "pyproj", "scipy", "matplotlib", "openTSNE", "h5py", "tensorboard", "pillow_heif"]


def test_every_public_name_is_where_the_table_says() -> None:
    for name in sareloc.__all__:
        assert getattr(sareloc, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'localise': it has __version__, ArgumentError"):
        sareloc.localise  # noqa: B018


@pytest.mark.parametrize("package", ["adapt", "encode", "localize", "maps", "models", "photos", "training"])
def test_names_that_are_imported_at_their_first_use_are_found(package: str) -> None:
    module = importlib.import_module(f"sareloc.{package}")
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(
        AttributeError, match=f"'sareloc.{package}' has no attribute 'Fixed': it has {module.__all__[0]}"
    ):
        module.Fixed  # noqa: B018


def test_a_public_name_is_not_hidden_by_a_module() -> None:
    for name in sareloc.__all__:
        assert not (Path(sareloc.__file__).parent / name).exists(), f"{name} is a package and a public name"
        assert not (Path(sareloc.__file__).parent / f"{name}.py").exists()


def test_every_exception_is_at_the_root() -> None:
    mine = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SarelocError)]
    assert len(mine) >= 9
    for kind in mine:
        assert getattr(sareloc, kind.__name__) is kind


def test_importing_and_asking_for_help_loads_neither_torch_nor_any_extra() -> None:
    code = "import sys, sareloc, sareloc.cli; sareloc.cli.app(['--help'], result_action='return_value')"
    code += f"; print([m for m in {EXTRAS} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.endswith("[]\n")


def commands(of: App, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in of:
        if name.startswith("-"):
            continue
        inner = of[name]
        found += commands(inner, (*path, name)) or [(*path, name)]
    return found


@pytest.mark.parametrize("path", commands(app), ids=" ".join)
def test_every_command_of_the_table_loads_and_explains_itself(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    app([*path, "--help"], result_action="return_value")
    printed = capsys.readouterr().out
    assert printed.startswith(f"Usage: sareloc {' '.join(path)}")


def test_an_error_of_ours_is_one_line_and_status_1() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sareloc", "data", "check", "no-such-folder"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert re.fullmatch(r"sareloc: .*no-such-folder[^\n]*(\n[^\n]+)*\n", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_that_of_the_package() -> None:
    assert importlib.metadata.version("sareloc") == sareloc.__version__


def test_a_map_and_a_localizer_show_what_they_are(tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 3)
    build_map(tmp_path / "photos", tmp_path / "town.gpkg", tiny_model(), progress=False)
    place_map = sareloc.PlaceMap(tmp_path / "town.gpkg")
    assert repr(place_map) == f"<PlaceMap {tmp_path / 'town.gpkg'}: 3 photos, model tiny>"
    assert repr(sareloc.Localizer(tiny_model(), place_map)) == f"<Localizer: {place_map!r}, search plain>"
