"""The matrix of settings: its files exist, and a red row is told from a green one."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import test_matrix as matrix

TESTS = Path(__file__).resolve().parent


def test_every_file_of_the_part_exists() -> None:
    named = {*matrix.PART, *matrix.NO_NETWORK, *matrix.INTERRUPTED}
    assert sorted(name for name in named if not (TESTS / name).exists()) == []


def test_a_row_is_green_if_all_of_it_ran_and_nothing_failed() -> None:
    assert matrix.Outcome(passed=3, failed=0, skipped=1, seconds=1.0, ended=0).green
    for passed, failed, ended in ((3, 1, 1), (0, 0, 0), (3, 0, -11), (0, 0, 5)):
        red = matrix.Outcome(passed, failed, 0, 1.0, ended)
        assert not red.green
        assert "red" in matrix.table({"float32": red})


def test_counts_are_those_of_pytests_report(tmp_path: Path) -> None:
    report = tmp_path / "counted.xml"
    assert matrix.read_counts(report) == {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    report.write_text('<testsuites><testsuite tests="7" failures="1" errors="2" skipped="3"/></testsuites>')
    assert matrix.read_counts(report) == {"tests": 7, "failures": 1, "errors": 2, "skipped": 3}


def test_an_unknown_row_lists_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["test_matrix", "--only", "float32,float16"])
    with pytest.raises(SystemExit) as end:
        matrix.main()
    assert end.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"unknown row 'float16': known are {', '.join(matrix.ROWS)}" in told
