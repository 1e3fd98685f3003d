"""Cgroup layouts of other kernels, as plain files. This kernel's cgroups are in `test_isolation`."""

from __future__ import annotations

import os
import subprocess
import sys
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
    """A directory with plain files is the cgroup tree."""

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


def test_what_a_job_asks_for_binds_beside_the_operators_limits_and_fails_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with plain files is the cgroup tree; this kernel has no controller for CPUs."""

    plain_mkdir = os.mkdir

    def make(path: str | Path, mode: int = 0o755) -> None:
        plain_mkdir(path, mode)
        for name in ("memory.max", "pids.max", "cgroup.procs"):
            Path(path, name).touch()

    monkeypatch.setattr(os, "mkdir", make)
    tmp_path = tmp_path / "mounted"
    tmp_path.mkdir()
    limits = Limits(memory_bytes=2 << 30, tasks=100)
    groups = Cgroups("ab", limits, None, Mounted(tmp_path, True))
    for asked, held in ((1 << 30, 1 << 30), (4 << 30, 2 << 30), (None, 2 << 30)):
        (path,) = groups.make(f"w{asked}", Limits(memory_bytes=asked))
        assert Path(path, "memory.max").read_text() == str(held)
    with pytest.raises(OSError, match="its limit of CPUs cannot hold"):
        groups.make("w", Limits(cpus=2.0))
    assert "its limit of CPUs cannot hold" in groups.unheld_of_jobs()
    noted = Cgroups("ab", limits, None, Mounted(tmp_path, True), strict=False)
    assert noted.make("n", Limits(cpus=2.0))
    assert noted.unheld_of_jobs() == "", "the operator has chosen to do without limits"


def test_without_cgroups_no_worker_of_a_job_that_asks_for_memory_is_started() -> None:
    groups = Cgroups("ab", Limits(tasks=10), None, Mounted())
    assert groups.make("a") == ()
    with pytest.raises(OSError, match="it has no control group: none are mounted"):
        groups.make("b", Limits(memory_bytes=1 << 30))


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


def test_an_agent_that_is_a_service_uses_the_part_of_the_tree_that_is_left_to_it(tmp_path: Path) -> None:
    unit = tmp_path / "cg/system.slice" / cgroups.DELEGATED
    unit.mkdir(parents=True)
    own = tmp_path / "own"
    lines = [f"cgroup2 {tmp_path}/cg cgroup2 rw 0 0"]
    for text, below in (
        ("0::/system.slice/elasticctl-agent.service\n", f"system.slice/{cgroups.DELEGATED}"),
        ("3:memory:/x.service\n0::/user.slice/user-0.slice/session-1.scope\n", ""),
        ("0::/other.slice/elasticctl-agent.service\n", ""),
    ):
        own.write_text(text)
        assert mounted(table(tmp_path, *lines), own).below == below


RIGHTS = Path(__file__).parents[2] / "systemd/elasticctl-agent.service"
TRY = """
import sys
from pathlib import Path
from elasticd.agent import cgroups
below, asked = sys.argv[1], frozenset(sys.argv[2:])
found = cgroups.mounted()
found = cgroups.Mounted(found.unified, found.unified_controllers, found.old, below)
groups = cgroups.Cgroups("rights", cgroups.Limits(tasks=50), None, found, needed=True, asked=asked)
print(groups.unheld() or "held")
groups.close()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up some of root's rights")
def test_with_the_rights_of_the_shipped_unit_groups_are_made_in_the_delegated_part_alone(tmp_path: Path) -> None:
    """The capabilities are those of the unit; the test creates the groups that systemd would."""
    found = mounted()
    tops = [*([found.unified] if found.unified else []), *(top for _, top in found.old)]
    if not tops or tops[0].stat().st_mode & 0o222:
        pytest.skip("there is no real tree of control groups here: its top is closed to all without CAP_DAC_OVERRIDE")
    wanted = next(line for line in RIGHTS.read_text().splitlines() if line.startswith("CapabilityBoundingSet="))
    rights = ",".join(f"+{word.removeprefix('CAP_').lower()}" for word in wanted.partition("=")[2].split())
    below = f"test-{tmp_path.name}"

    def tried(*arguments: str) -> str:
        line = ["setpriv", f"--bounding-set=-all,{rights}", "--no-new-privs", sys.executable, "-c", TRY, *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    assert "it has no control group" in tried("")
    for top in tops:
        (top / below).mkdir(mode=0o755)
    try:
        assert tried(below, "tasks") == "held"
    finally:
        for top in tops:
            (top / below).rmdir()


def test_a_limit_that_was_asked_for_and_cannot_hold_keeps_a_worker_from_starting(tmp_path: Path) -> None:
    """A directory without control files acts as a kernel without these controllers."""
    groups = Cgroups("ab", Limits(memory_bytes=1, tasks=10), None, Mounted(tmp_path, True), asked=frozenset({"memory"}))
    with pytest.raises(OSError, match="its limit of memory cannot hold"):
        groups.make("w")
    assert "its limit of memory cannot hold" in groups.unheld()
    assert Cgroups("ab", Limits(), None, Mounted(), needed=True).unheld().startswith("it has no control group")
