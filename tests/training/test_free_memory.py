"""How much memory a training may take: what is free, within the limits of the process's control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from sareloc.training.data import cgroup_free_bytes, free_bytes

MB = 1 << 20


def write(folder: Path, **numbers: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in numbers.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def machine(root: Path, groups: str) -> Path:
    write(root / "proc/self", cgroup=groups)
    return root


def test_a_limit_of_version_2_leaves_what_is_not_used(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/user.slice/job"
    write(group, memory__max=512 * MB, memory__current=200 * MB, memory__stat=f"anon 1\ninactive_file {50 * MB}")
    assert cgroup_free_bytes(machine(tmp_path, "0::/user.slice/job")) == 362 * MB


def test_the_limit_of_an_ancestor_counts(tmp_path: Path) -> None:
    slices = tmp_path / "sys/fs/cgroup/user.slice"
    write(slices, memory__max=300 * MB, memory__current=250 * MB, memory__stat="inactive_file 0")
    write(slices / "job", memory__max="max", memory__current=10 * MB, memory__stat="inactive_file 0")
    assert cgroup_free_bytes(machine(tmp_path, "0::/user.slice/job")) == 50 * MB


def test_a_container_that_sees_the_path_of_its_host(tmp_path: Path) -> None:
    """Version 1 as in Docker: the path is the host's, the limit is at the root of what is mounted."""
    write(
        tmp_path / "sys/fs/cgroup/memory",
        memory__limit_in_bytes=100 * MB,
        memory__usage_in_bytes=90 * MB,
        memory__stat=f"cache 5\ntotal_inactive_file {30 * MB}",
    )
    assert cgroup_free_bytes(machine(tmp_path, "9:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n0::/x")) == 40 * MB


@pytest.mark.parametrize(("used", "left"), [(80, 20), (120, 0)])
def test_a_group_above_its_limit_has_nothing_left(tmp_path: Path, used: int, left: int) -> None:
    group = tmp_path / "sys/fs/cgroup/job"
    write(group, memory__max=100 * MB, memory__current=used * MB, memory__stat="inactive_file 0")
    assert cgroup_free_bytes(machine(tmp_path, "0::/job")) == left * MB


def test_no_control_groups_no_limit(tmp_path: Path) -> None:
    assert cgroup_free_bytes(tmp_path) is None
    assert cgroup_free_bytes(machine(tmp_path, "0::/")) is None


def test_this_process_may_take_no_more_than_is_there() -> None:
    assert 0 <= free_bytes(torch.device("cpu")) <= psutil.virtual_memory().total
