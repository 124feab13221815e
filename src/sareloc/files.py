"""Reading regular files only, and writing files atomically, with errors that name the file."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sareloc.errors import errno_of

LONGEST_NAME = 255
"""The longest file name in bytes that file systems allow."""
NUL = "its path contains a NUL character"
READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file to read its bytes; never waits.

    Raises OSError with a sentence in `strerror` if the path is anything else: a pipe, of which opening would wait for a
    writer, a device or a socket, which may have no end, a folder, or a path with a NUL character.
    """
    name = str(path)
    if "\0" in name:
        raise OSError(errno.EINVAL, NUL, name)
    _check_regular(os.stat(path), name)  # opening a device may change it
    file = os.open(path, READING)  # the path may name something else by now: does not wait
    try:
        _check_regular(os.fstat(file), name)
        return open(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_regular(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file; raises OSError as `open_regular`, or if it has more than `most`."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def _check_regular(status: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", name)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", name)


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
