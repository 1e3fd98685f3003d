"""Cgroups as other kernels have them. Those of this one are in `test_isolation`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticd.agent import cgroups
from elasticd.agent.cgroups import Cgroups, Limits, Mounted, mounted


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mounts"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_version_2_is_used_alone_where_it_has_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    found = mounted(table(tmp_path, f"cgroup2 {tmp_path} cgroup2 rw 0 0", "tmpfs /tmp tmpfs rw 0 0"))
    assert found == Mounted(tmp_path, True, ())


def test_a_hybrid_has_its_controllers_in_version_1(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    lines = [f"cgroup2 {tmp_path} cgroup2 rw 0 0"]
    lines += [f"cgroup /c/{name} cgroup rw,{name} 0 0" for name in ("pids", "memory", "cpu,cpuacct", "devices")]
    found = mounted(table(tmp_path, *lines))
    assert found.unified == tmp_path
    assert not found.unified_controllers
    assert dict(found.old) == {"cpu": Path("/c/cpu,cpuacct"), "memory": Path("/c/memory"), "pids": Path("/c/pids")}


def test_limits_of_version_2_are_written_and_controllers_are_handed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with plain files stands for the kernel's."""

    plain_mkdir = os.mkdir

    def make(path: str | Path, mode: int = 0o755) -> None:
        plain_mkdir(path, mode)
        for name in ("memory.max", "pids.max", "cpu.max", "cgroup.subtree_control", "cgroup.procs"):
            Path(path, name).touch()
        Path(path, "cgroup.controllers").write_text("cpu memory pids\n")

    monkeypatch.setattr(os, "mkdir", make)
    tmp_path = tmp_path / "mounted"
    tmp_path.mkdir()
    limits = Limits(memory_bytes=1 << 30, tasks=100, cpus=1.5)
    groups = Cgroups("ab", limits, 8 << 30, Mounted(tmp_path, True, (("pids", Path("/nowhere")),)))
    (path,) = groups.make("w")
    assert path == f"{tmp_path}/elasticctl-ab/w"
    read = {name: Path(path, name).read_text() for name in ("memory.max", "pids.max", "cpu.max")}
    assert read == {"memory.max": str(1 << 30), "pids.max": "100", "cpu.max": "150000 100000"}
    assert (tmp_path / "elasticctl-ab" / "memory.max").read_text() == str(8 << 30)
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+")


def test_without_cgroups_workers_run_without_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    groups = Cgroups("ab", Limits(tasks=10), None, Mounted())
    assert groups.make("a") == groups.make("b") == ()
    assert [record.message for record in caplog.records] == [
        "workers run without cgroups, so without limits: none are mounted"
    ]
    assert cgroups.clear(()) is True
    cgroups.remove(())


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_memory_that_ran_out_is_told_by_either_version(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("low 0\noom 1\noom_kill 0\n")
    assert not cgroups.out_of_memory((str(tmp_path),))
    (tmp_path / name).write_text("low 0\noom 1\noom_kill 2\n")
    assert cgroups.out_of_memory((str(tmp_path),))
