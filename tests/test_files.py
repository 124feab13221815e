"""Files are written completely or not at all, and errors name them."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.conftest import make_read_only

from sareloc.errors import ArgumentError, explain
from sareloc.files import replacing, writing


def test_a_file_appears_complete_with_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "new" / f"{'x' * 250}.txt"  # the longest name that file systems take
    with replacing(file) as beside:
        beside.write_text("content")
        assert not file.exists()
    assert file.read_text() == "content"
    assert list(file.parent.iterdir()) == [file]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(TypeError), replacing(file) as beside:
        beside.write_bytes(b"half") + None  # type: ignore[operator]
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_names_the_file_whatever_library_met_it(small_disk: Path) -> None:
    def by_python(beside: Path) -> None:
        beside.write_bytes(bytes(100_000))

    def by_safetensors(beside: Path) -> None:
        save_file({"x": torch.zeros(100_000)}, beside)

    for write in (by_python, by_safetensors):
        with pytest.raises(OSError, match="No space left") as full, replacing(small_disk / "a.bin") as beside:
            write(beside)
        assert full.value.errno == errno.ENOSPC, write
        assert full.value.filename == str(small_disk / "a.bin")
        assert list(small_disk.iterdir()) == []


def test_a_read_only_disk_names_the_file(small_disk: Path) -> None:
    make_read_only(small_disk)
    with pytest.raises(OSError, match="Read-only") as refused, replacing(small_disk / "sub" / "a.bin") as beside:
        beside.write_bytes(b"x")
    assert refused.value.filename == str(small_disk / "sub" / "a.bin")


def test_errors_of_other_kinds_pass() -> None:
    with pytest.raises(ZeroDivisionError), writing("a.txt"):
        _ = 1 / 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/mnt/x/geotags.csv"), ["no space left", "geotags.csv"]),
        (OSError(errno.EROFS, "Read-only file system", "a"), ["read-only", "a"]),
        (PermissionError(errno.EACCES, "Permission denied", "/root/a"), ["permission denied", "/root/a"]),
        (OSError(errno.EMFILE, "Too many open files", "a"), ["too many open files"]),
        (OSError(errno.EIO, "Input/output error"), ["input/output error"]),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.json"), ["no such file", "a.json"]),
        (OSError("encoder error"), ["encoder error"]),
        (sqlite3.OperationalError("database or disk is full"), ["no space left"]),
        (MemoryError(), ["not enough memory", "batch"]),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), ["not enough memory"]),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), ["not enough memory"]),
        (ArgumentError("unknown loss"), ["unknown loss"]),
    ],
)
def test_errors_of_the_machine_are_one_sentence(error: Exception, words: list[str]) -> None:
    said = explain(error)
    assert said is not None
    assert "\n" not in said
    for word in words:
        assert word in said


@pytest.mark.parametrize("bug", [KeyError("x"), RuntimeError("shapes do not match"), TypeError("x"), AssertionError()])
def test_bugs_are_not_explained_away(bug: Exception) -> None:
    assert explain(bug) is None
