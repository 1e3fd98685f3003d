"""Cores and memory that jobs ask for, with real processes and this kernel's control groups."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.agent.cgroups import mounted, processes
from elasticd.protocol.errors import RequestRefused
from elasticd.protocol.messages import Cancel, GetServers
from elasticd.protocol.model import JobPhase

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.getuid() != 0 or not mounted().old, reason="needs control groups of version 1, and root"),
]

MakeCluster = Callable[..., Any]
GREEDY = """
import os, sys, time
open("pid", "w").write(str(os.getpid()))
kept = bytearray(int(sys.argv[1]) << 20)
time.sleep(600)
"""


def groups_of(pid: int) -> dict[str, Path]:
    """Return the directory of a process in the hierarchy of each controller."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    paths = dict(line.split(":", 2)[1:] for line in lines)
    return {name: top / paths[name].lstrip("/") for name, top in mounted().old if name in paths}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_worker_is_held_to_what_its_job_asks_for(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=2)
    (there,) = cluster.client.ask(GetServers()).servers
    cores = there.server.allocatable.cpus
    assert there.server.allocatable.unheld == ""
    script = tmp_path / "greedy.py"
    script.write_text(GREEDY)
    job = cluster.submit(
        "16", gpus=(1, 1), virtual_workers=1, script=script, restarts=0, cpus=cores, memory_bytes=1 << 28
    )
    cluster.until("it runs", lambda: cluster.job(job).phase is JobPhase.RUNNING)
    pid = int(cluster.until("it has written its number", lambda: _read(cluster.directory / "pid")))
    groups = groups_of(pid)
    assert (groups["memory"] / "memory.limit_in_bytes").read_text().strip() == str(1 << 28)
    assert (groups["cpu"] / "cpu.cfs_quota_us").read_text().strip() == str(int(100_000 * cores))
    assert pid in processes((str(groups["memory"]),))

    waits = cluster.submit("16", gpus=(1, 1), virtual_workers=1, script=script, restarts=0, cpus=0.5)
    cluster.until("the second waits for cores", lambda: "waits for cores" in cluster.job(waits).reason)
    with pytest.raises(RequestRefused, match=f"the largest server, .*, has {cores:g} core"):
        cluster.submit("16", gpus=(1, 1), script=script, cpus=cores + 1)
    cluster.kill("controller")
    cluster.start("controller")
    cluster.until("the second still waits", lambda: "waits for cores" in cluster.job(waits).reason)
    cluster.client.ask(Cancel(job=job))
    cluster.until("the second runs", lambda: cluster.job(waits).phase is JobPhase.RUNNING)

    greedy = cluster.submit("400", gpus=(1, 1), virtual_workers=1, script=script, restarts=0, memory_bytes=1 << 27)
    assert cluster.until_over(greedy).phase is JobPhase.FAILED
    assert "asked for 128 MiB (--memory)" in cluster.job(greedy).reason
