"""Use beside allocation with real processes: a job that sleeps is warned and paused, one that computes is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.messages import EventKind, Events, GetEvents, GetServers, Resume, Resumed
from elasticd.protocol.model import JobPhase

pytestmark = pytest.mark.cluster

MakeCluster = Callable[..., Any]
SCRIPT = """
import sys, time
import torch
import elasticd as elastic

run = elastic.join()
model = torch.nn.Linear(8, 8)
data = torch.utils.data.TensorDataset(torch.randn(4096, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = run.prepare(model, optimizer, data, batch_size=8)
for epoch in run.epochs(10**6):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if sys.argv[1] == "sleeps":
            time.sleep(4.0)
"""
RULES = "warn 12s, suspend 30s"


def told(cluster: Any, job: str) -> list[str]:
    answer = cluster.client.ask(GetEvents(job=job))
    assert isinstance(answer, Events)
    return [each.text for each in answer.events if each.kind is EventKind.IDLE]


def test_a_job_that_sleeps_is_warned_and_paused_and_one_that_computes_is_not(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = tmp_path / "shell.py"
    command.write_text("import time\ntime.sleep(3600)\n")
    cluster = make_cluster(servers=1, slots=3, idle=RULES, agents_too={"use_interval_s": 1.0})
    computes = cluster.submit("computes", gpus=(1, 1), virtual_workers=1, script=script, name="computes")
    sleeps = cluster.submit("sleeps", gpus=(1, 1), virtual_workers=1, script=script, name="sleeps")
    shell = cluster.submit(gpus=(1, 1), virtual_workers=1, script=command, name="shell", restarts=0)
    cluster.until("it is warned", lambda: told(cluster, sleeps))
    assert "its 1 GPU has done nothing for" in told(cluster, sleeps)[0]
    view = cluster.until("it is paused", lambda: _at_rest(cluster, sleeps))
    assert view.withheld is not None
    assert view.saved_step is not None
    assert view.saved_step == view.step, "no step is lost"
    assert view.use is not None
    assert view.use.busy is not None
    assert view.use.busy < 0.5
    assert view.use.memory_bytes > 10 << 20

    other = cluster.job(computes)
    assert told(cluster, computes) == []
    assert other.phase is JobPhase.RUNNING
    assert other.busy is not None
    assert other.use is not None
    assert other.use.cpu_s > 1.0
    assert cluster.client.ask(GetServers()).servers[0].busy
    cluster.until("the shell is told", lambda: told(cluster, shell))
    assert cluster.job(shell).phase is JobPhase.RUNNING, "nobody can save its state, so it is not ended"

    answer = cluster.client.ask(Resume(job=sleeps))
    assert isinstance(answer, Resumed), answer
    cluster.until_step(sleeps, view.saved_step + 1)
    for name in ("s1", "controller"):  # each counts anew, and nothing is lost
        before = cluster.job(computes).use
        cluster.kill(name)
        cluster.start(name)
        cluster.until(
            f"the use is known after {name} was killed", lambda before=before: _more(cluster, computes, before)
        )


def _at_rest(cluster: Any, job: str) -> Any:
    view = cluster.job(job)
    return view if view.phase is JobPhase.PENDING and not view.workers else None


def _more(cluster: Any, job: str, before: Any) -> bool:
    use = cluster.job(job).use
    return use is not None and use.wall_s > before.wall_s and use.cpu_s >= before.cpu_s
