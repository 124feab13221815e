"""What every benchmark says beside its numbers, and how much memory this process has taken."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def machine() -> str:
    """The processor, its cores, and the GPU if there is one."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    cpu = f"{names[0]}, {len(names)} cores" if names else platform.platform()
    return f"{torch.cuda.get_device_name()}; {cpu}" if torch.cuda.is_available() else cpu


def about() -> dict[str, Any]:
    """Machine, commit, command and versions."""
    here = Path(__file__).resolve().parent
    found = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "machine": machine(),
        "commit": found.stdout.strip() or None,
        "command": " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def only(kind: type[T], found: Iterable[object]) -> list[T]:
    """What was found, all of one kind, such as fixes; raises an error that is among it."""
    kept = []
    for one in found:
        if isinstance(one, Exception):
            raise one
        assert isinstance(one, kind), f"a {kind.__name__} was expected: found a {type(one).__name__}"
        kept.append(one)
    return kept


def memory_mb(which: str = "VmRSS") -> int:
    """Of this process, in MB (10^6 bytes): VmRSS, what it holds now; VmHWM, the most it ever held. Linux only."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{which}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 // 10**6
