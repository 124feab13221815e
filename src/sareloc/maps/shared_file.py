"""SharedFile: the one connection by which an open map reads its file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from sareloc.errors import MapError
from sareloc.maps.file import MapFile

_OF_PARENT: list[MapFile | None] = []
"""Connections of the process that this one was forked from: SQLite forbids to use and to close them."""


class SharedFile:
    """One connection to a map file for reading, which threads share: one uses it at a time.

    It is opened when it is needed, and again after each change of the file by anyone: SQLite counts exactly what other
    connections commit (`data_version`), and size, time stamp and inode tell that a file was overwritten or replaced.
    Opening checks the tables, so that they are checked after each change. A forked process opens its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        """Differs from an earlier value if the file may have changed in between."""
        self._lock = Lock()
        self._pid = os.getpid()
        self._file: MapFile | None = None
        self._seen: tuple[int, ...] = ()

    @contextmanager
    def use(self) -> Iterator[MapFile]:
        """The map as it is now, for this thread alone. Raises MapError if the file cannot be read."""
        self._leave_to_parent()
        with self._lock:
            if self._file is not None and self._state(self._file) != self._seen:
                self._file.abandon()
                self._file = None
            if self._file is None:
                self.version += 1
                self._file = MapFile.open(self.path)
                self._seen = self._state(self._file)
            yield self._file

    def close(self) -> None:
        """Close the connection, until the next use; a single file is left if no other process has it open."""
        self._leave_to_parent()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _leave_to_parent(self) -> None:
        """In a forked process: forget the connection, and the lock, which a thread of the parent may have held."""
        if self._pid != os.getpid():
            _OF_PARENT.append(self._file)
            self._file, self._lock, self._pid = None, Lock(), os.getpid()

    def _state(self, file: MapFile) -> tuple[int, ...]:
        return (*self._stamp(), *file.query("PRAGMA data_version")[0])

    def _stamp(self) -> tuple[int, ...]:
        try:
            status = os.stat(self.path)
        except (OSError, ValueError) as gone:
            reason = gone.strerror if isinstance(gone, OSError) else gone
            raise MapError(f"map {self.path} cannot be read: {reason}") from gone
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
