"""Writing files: complete or not at all, and errors that name the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sareloc.errors import errno_of

LONGEST_NAME = 255
"""Bytes of a file's name that file systems allow."""


@contextmanager
def writing(file: str | Path) -> Iterator[None]:
    """Inside, `file` is written; whatever says that the disk or the system refused it becomes an OSError that names it.

    The system names a file when it is opened but not when it is written, and libraries (safetensors, torch, SQLite)
    raise errors of their own types. Errors of other kinds pass unchanged.
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
    """A path beside `file` to write to: renamed to `file` at the end, deleted after an error.

    The folder is made. The path is always the same, so that what a killed process has left is overwritten by the next
    one; two processes must not write one file at once. Raises OSError, with `file` as its filename, if the disk or the
    system refuses.
    """
    file = Path(file)
    too_long = len(os.fsencode(file.name)) + len("..part") > LONGEST_NAME
    beside = file.with_name(f".{file.name[:50] if too_long else file.name}.part")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            os.replace(beside, file)
        finally:
            beside.unlink(missing_ok=True)
