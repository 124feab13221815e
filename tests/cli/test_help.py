"""The help of a command is its docstring, is printed without numpy and torch, and names the options of the library."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields

import pytest
from cyclopts import App

from sareloc.cli import app
from sareloc.cli.options import MIN_CONFIDENCE, LocalizerOptions, TrackFlags, VideoFlags

HEAVY = ("torch", "numpy", "PIL", "scipy")
EVERY_HELP = """
import sys
from sareloc.cli import app
def walk(of, path):
    app([*path, "--help"], result_action="return_value")
    for name in of:
        if not name.startswith("-"):
            walk(of[name], [*path, name])
walk(app, [])
print(*sys.modules)
"""


def leaves(of: App, *path: str) -> Iterator[tuple[str, ...]]:
    for name in of:
        if not name.startswith("-"):
            yield from list(leaves(of[name], *path, name)) or [(*path, name)]


def folded(text: str) -> str:
    """The words of a text, without the boxes that help is drawn in and the marks of code."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).replace("`", "").split())


@pytest.mark.parametrize("path", list(leaves(app)), ids=" ".join)
def test_help_shows_the_whole_docstring(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command = app
    for name in path:
        command = command[name]
    text = inspect.getdoc(command.default_command) or ""
    description, _, parameters = text.partition("\n\nParameters\n----------\n")
    app([*path, "--help"], result_action="return_value")
    printed = folded(capsys.readouterr().out)
    assert description
    for paragraph in description.split("\n\n"):
        assert folded(paragraph) in printed
    for paragraph in re.findall(r"(?:^    .*\n?)+", parameters, re.MULTILINE):
        words = iter(printed.split())  # the column of names may stand between them
        assert all(word in words for word in folded(paragraph).split()), paragraph


def test_help_of_every_command_is_printed_without_numpy_and_torch() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], capture_output=True, text=True, check=True)
    assert sorted({*HEAVY} & {*done.stdout.splitlines()[-1].split()}) == []


def test_the_options_of_commands_are_those_of_the_library() -> None:
    from sareloc import localize, photos

    def defaults(record: type) -> dict[str, object]:
        return {one.name: one.default for one in fields(record)}

    assert defaults(TrackFlags) == defaults(photos.TrackOptions)
    assert defaults(VideoFlags) == defaults(localize.VideoOptions)
    assert defaults(localize.Search).items() <= defaults(LocalizerOptions).items()
    assert MIN_CONFIDENCE == localize.MIN_CONFIDENCE


@pytest.mark.parametrize("group", ["", "map", "data", "model", "figure"])
def test_the_list_of_commands_says_what_each_does(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    within = app[group] if group else app
    app([*group.split(), "--help"], result_action="return_value")
    printed = folded(capsys.readouterr().out)
    for name in within:
        if not name.startswith("-"):
            first = inspect.getdoc(within[name].default_command) if within[name].default_command else within[name].help
            assert f"{name} {folded((first or '').split(chr(10) * 2)[0])[:20]}" in printed


@pytest.mark.parametrize("command", ["map build", "map add", "map sync", "serve"])
def test_help_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app([*command.split(), "--help"], result_action="return_value")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40


def test_options_that_help_does_not_show_are_taken() -> None:
    """Those of `MapConfig` are in the file of --config, and were options before."""
    taken = {name for one in app["map"]["build"].assemble_argument_collection() for name in one.names}
    assert {"--dim", "--storage", "--batch", "--precision", "--view-yaw", "--panorama", "--timezone"} <= taken
