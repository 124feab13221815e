"""Writing files atomically, with errors that name the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sareloc.errors import errno_of

LONGEST_NAME = 255
"""The longest file name in bytes that file systems allow."""


def write_atomically(file: Path, content: bytes) -> Path:
    """Write a file by `replacing`; returns its path."""
    with replacing(file) as temporary:
        temporary.write_bytes(content)
    return file


@contextmanager
def writing(file: str | Path) -> Iterator[None]:
    """A context in which `file` is written: errors of the disk or the system are raised as OSError with its name.

    The system names the file in errors of opening but not of writing it, and libraries (safetensors, torch, SQLite)
    raise errors of their own types. Other errors are raised unchanged.
    """
    try:
        yield
    except Exception as error:
        number = errno_of(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(file)) from error


@contextmanager
def replacing(file: str | Path) -> Iterator[Path]:
    """A temporary path in the folder of `file`, renamed to `file` at the end and deleted after an error.

    The folder is created. The path is always the same, so that the rest of a killed process is overwritten; two
    processes must not write one file at the same time. Raises OSError with `file` as its filename if writing fails.
    """
    file = Path(file)
    too_long = len(os.fsencode(file.name)) + len("..part") > LONGEST_NAME
    temporary = file.with_name(f".{file.name[:50] if too_long else file.name}.part")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
