"""A real Milvus server (the PyPI package milvus==2.3.5) that nothing outside this machine can reach.

The server listens on all interfaces, whatever its configuration says. So it gets a network of its own, in which there
is only a loopback interface; a Unix socket leads in, and a relay makes a loopback port of that.

    unshare --map-root-user --net python loopback_milvus.py FOLDER SOCKET

runs the server until standard input ends.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.milvus.relay import pump

PORT = 19530
TOKEN = "root:Milvus"  # as every server has it at first
NEEDED = "pip install --no-deps milvus==2.3.5"


def why_not() -> str | None:
    """What is missing to run the server; None where nothing is."""
    if importlib.util.find_spec("milvus") is None:
        return f"there is no Milvus server here; make test-all installs it on Linux x86-64 ({NEEDED})"
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--map-root-user", "--net", "true"], check=False).returncode:
        return "this system does not let us make a network namespace, and the server would listen to everybody"
    return None


class LoopbackMilvus:
    """The server as a child process; started again, it has what it had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        door = self._door()
        door.unlink(missing_ok=True)
        command = ["unshare", "--map-root-user", "--net", sys.executable, __file__, str(self.folder), str(door)]
        paths = os.pathsep.join(str(path) for path in (Path(__file__).resolve().parents[2], *sys.path) if path)
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        )
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "ready\n", f"the server did not start: see {self.folder / 'logs'}"

    def stop(self) -> None:
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child.wait(60)
            self._close_pipes()

    def _close_pipes(self) -> None:
        assert self._child is not None
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()
        self._child = None

    def _server_pids(self) -> list[str]:
        return Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()

    def kill(self) -> None:
        """Both the server and what runs it, as a machine that loses power."""
        if self._child is not None:
            subprocess.run(["kill", "-9", *self._server_pids(), str(self.pid)], check=True)
            self._child.wait(60)
            self._close_pipes()

    @property
    def pid(self) -> int:
        """Of what runs the server."""
        assert self._child is not None
        return self._child.pid

    def connect(self) -> socket.socket:
        one = socket.socket(socket.AF_UNIX)
        try:
            one.connect(str(self._door()))
        except OSError:
            one.close()
            raise
        return one

    def _door(self) -> Path:
        return self.folder / "door"


def raise_loopback() -> None:
    """A fresh network namespace has its loopback interface down; as `ip link set lo up`."""
    up, request = 0x1, 0x8914  # IFF_UP, SIOCSIFFLAGS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, request, struct.pack("16sh", b"lo", up))


def serve(folder: Path, door: Path) -> None:
    from milvus import MilvusServer, MilvusServerConfig

    raise_loopback()
    config: Any = MilvusServerConfig(data_dir=str(folder))
    for part in ("rootCoord", "proxy", "queryCoord", "queryNode", "indexNode", "dataCoord", "dataNode"):
        config.set(f"{part}.ip", "127.0.0.1")  # where they look for one another
    config.set("common.security.authorizationEnabled", "true")
    server = MilvusServer(config)
    server.start()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(door))
    listener.listen()
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop()


def accept(listener: socket.socket) -> None:
    while True:
        here, _ = listener.accept()
        there = socket.create_connection(("127.0.0.1", PORT))
        for source, target in ((here, there), (there, here)):
            threading.Thread(target=pump, args=(source, target), daemon=True).start()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
