"""Counting what a process writes, so that it can kill itself before any of it. Nothing here depends on the clock.

A kill between two of these operations leaves the same files as a kill just before the second one.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

FILE_OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.chmod", "os.rmdir", "shutil.rmtree"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def die_at(number: int) -> Callable[[], None]:
    """A function whose call of that number kills this process."""
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def before_statements(act: Callable[[], None]) -> None:
    """From now on call `act` before each SQL statement of this process that does not only read."""
    connect = sqlite3.connect

    def count(statement: str) -> None:
        if not statement.startswith("SELECT"):
            act()

    def connect_and_count(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = connect_and_count  # type: ignore[assignment]


def before_file_operations(act: Callable[[], None], *, writing: bool = False) -> None:
    """From now on call `act` before each file operation of this process (sys.audit's events).

    Args:
        act: the function.
        writing: not for files that are opened to be read.
    """

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_OPERATIONS and not (writing and event == "open" and not arguments[2] & WRITING):
            act()

    sys.addaudithook(count)
