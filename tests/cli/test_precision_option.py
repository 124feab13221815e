"""`--precision`: every command that computes descriptors takes it, and the model computes in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest
from tests.cli.test_devices import WITHOUT_DEVICE, leaves, shown
from tests.figures.little_town import make_report
from tests.localize.street import build_street, street_model, write_queries

from sareloc import cli
from sareloc.maps import remove_photos
from sareloc.models import Precision, save_checkpoint

NAMES = get_args(Precision)
QUICK = ("--model", "model.safetensors", "--device", "cpu")


def test_every_command_that_runs_a_model_takes_every_precision(capsys: pytest.CaptureFixture[str]) -> None:
    for command in leaves(cli.app):
        text = shown(command, capsys)
        if " --model" in text and command not in WITHOUT_DEVICE:
            found = cli.app
            for word in command:
                found = found[word]
            assert "--precision" in {name for one in found.assemble_argument_collection() for name in one.names}, (
                command
            )
            if " --config" in text:  # a key of its file, which help does not list
                continue
            assert " --precision" in text, command
            assert "SARELOC_PRECISION" in text, command
            for name in NAMES:
                assert name in text, (command, name)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("precise")
    build_street(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    for part in ("new", "set/images/test/queries", "set/images/test/database"):
        write_queries(folder / part, range(12), tagged=True)
    (folder / "report.json").write_text(json.dumps(make_report({1: 60.0}).to_json()))
    return folder


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "command",
    [
        "map build new --out built_{0}.gpkg --keypoints 0 --workers 0",
        "map add added_{0}.gpkg new --workers 0",
        "map sync synced_{0}.gpkg new --workers 0",
        "map calibrate calibrated_{0}.gpkg new --workers 0",
        "localize street.gpkg new --workers 0",
        "geotag new --map street.gpkg --retag --out {0} --workers 0",
        "evaluate set --workers 0",
        "figure heatmap new/q00.jpg --size 96 --out h.png",
        "figure map set --map street.gpkg --at 0 --workers 0 --out m.png",
        "report report.json --dataset set --inliers 0 --workers 0 --out r.html",
    ],
)
def test_the_model_computes_in_it(
    command: str, precision: str, town: Path, in_bfloat16: set[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.startswith(("figure", "report")):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(town)
    monkeypatch.setenv("SARELOC_PRECISION", {"float32": "bfloat16", "bfloat16": "float32"}[precision])  # is overridden
    words = command.format(precision).split()
    if words[0] == "map" and words[1] != "build":
        shutil.copy("street.gpkg", words[2])
    with pytest.raises(SystemExit) as end:
        cli.main([*words, *QUICK, "--precision", precision])
    assert not end.value.code
    assert in_bfloat16 == {precision == "bfloat16"}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("empty", [False, True])
def test_the_service_computes_in_it(precision: Precision, empty: bool, town: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from sareloc.serve import make_app

    path = Path(shutil.copy(town / "street.gpkg", tmp_path))
    if empty:
        remove_photos(path, files=["*"])
    app = make_app(path, town / "model.safetensors", device="cpu", precision=precision)
    assert app.state.service.model.precision == precision
    app.state.service.live.close()
