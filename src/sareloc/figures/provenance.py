"""How a page was made: the command, the versions and the machine, so that somebody else can make it again."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path

import torch

from sareloc import __version__

LIBRARIES = ("torch", "numpy", "scipy", "pillow", "faiss-cpu", "matplotlib")


def provenance(command: str | None = None) -> dict[str, str]:
    """What stands at the foot of a report; `command` is the one that this process was started with by default."""
    started = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {
        "command": started if command is None else command,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "sareloc": __version__,
        "Python": platform.python_version(),
        "libraries": ", ".join(f"{name} {_version(name)}" for name in LIBRARIES),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        for line in listed.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
