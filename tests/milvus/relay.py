"""A relay on a loopback port that can be cut and mended: a network that fails on command."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Relay:
    """Hands every connection to its port on to what `connect` opens. Use it in a `with`."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.port = 0

    def __enter__(self) -> Relay:
        self.mend()
        return self

    def __exit__(self, *error: object) -> None:
        self.cut()

    def mend(self) -> None:
        """Listen, on the same port as before."""
        if self._listener is not None:
            return
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Drop all connections and refuse new ones."""
        with self._lock:
            sockets, self._open = [*self._open, *([self._listener] if self._listener else [])], []
            self._listener = None
        for one in sockets:
            _close(one)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                here, _ = listener.accept()
            except OSError:
                return
            try:
                there = self._connect()
            except OSError:
                _close(here)
                continue
            with self._lock:
                alive = self._listener is listener
                self._open += [here, there] if alive else []
            if not alive:
                _close(here)
                _close(there)
                return
            for source, target in ((here, there), (there, here)):
                threading.Thread(target=pump, args=(source, target), daemon=True).start()


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    _close(source)
    _close(target)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
