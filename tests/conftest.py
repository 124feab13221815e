"""What every test may use."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
import torch
from torch import nn

# The networks of tests are small: with more threads than free cores, their convolutions take many times as long.
if "OMP_NUM_THREADS" not in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # also of the processes that tests start
    torch.set_num_threads(1)

# One number format on every processor, also in the processes that tests start; tests of bfloat16 name it, and
# benchmarks/test_matrix.py sets others.
os.environ.setdefault("SARELOC_PRECISION", "float32")

# The default run tries the same examples everywhere, so that it passes or fails for the change at hand alone;
# "make test-all" draws new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("new", deadline=None, print_blob=True)
hypothesis.settings.load_profile("same")

NEEDED_BYTES = 2**31  # of a file system in memory, to write temporary files there


def _in_memory(folder: Path) -> bool:
    """Whether the folder is on a file system with room on which programs can be run; tests run some."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= NEEDED_BYTES and not found.f_flag & os.ST_NOEXEC


# On a disk, every transaction of every small map waits for it.
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and _in_memory(Path("/dev/shm")):
    os.environ["PYTEST_DEBUG_TEMPROOT"] = "/dev/shm"

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector leaves modules and collected tests alone: looking through them again takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Search indexes go to a folder of this run, also from the processes that tests start: never to the user's."""
    before, folder = os.environ.get("SARELOC_CACHE"), tmp_path_factory.mktemp("cache")
    os.environ["SARELOC_CACHE"] = str(folder)
    yield
    shutil.rmtree(folder, ignore_errors=True)
    if before is None:
        del os.environ["SARELOC_CACHE"]
    else:
        os.environ["SARELOC_CACHE"] = before


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real photos and ground-truth files; tests that need them skip where they are absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real data is not here: no folder {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    """Torch draws the same numbers in every run of a test."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _short_polls() -> None:
    """The client of Milvus, once it is loaded, looks again after 20 ms, not half a second, whether an index is made."""
    client = sys.modules.get("pymilvus.client.grpc_handler")
    if client is not None and client.time is time:
        client.time = SimpleNamespace(**vars(time) | {"sleep": lambda seconds: time.sleep(min(seconds, 0.02))})


@pytest.fixture
def openvino() -> Any:
    """OpenVINO; tests that need it skip where it is absent or refused."""
    from sareloc.models.preprocess import isa_limit

    if isa_limit() is not None:
        pytest.skip(f"OpenVINO does not run with instructions limited to {isa_limit()}")
    return pytest.importorskip("openvino")


@pytest.fixture
def in_bfloat16() -> Iterator[set[bool]]:
    """Whether the backbones that run meanwhile compute in bfloat16."""
    from sareloc.models import Backbone

    seen: set[bool] = set()

    def record(module: nn.Module, inputs: object) -> None:
        if isinstance(module, Backbone):
            seen.add(torch.is_autocast_enabled("cpu"))

    hook = nn.modules.module.register_module_forward_pre_hook(record)
    yield seen
    hook.remove()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB; tests that need it skip where mounting is not allowed. `make_read_only` freezes it."""
    folder = tmp_path / "small_disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "sareloc-test", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def peak_bytes() -> int:
    """The most memory that this process has used; it never falls."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def make_read_only(folder: Path) -> None:
    """The `small_disk` takes no more writes; its files stay readable."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
