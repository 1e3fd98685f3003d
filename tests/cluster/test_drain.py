"""Real daemons: a server is drained while a job trains there, and whoever says so may lose the controller and his terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.messages import EventKind, GetEvents, GetServers, ServerView
from elasticd.protocol.model import JobPhase, ServerId

from .touched import repeated

pytestmark = pytest.mark.cluster

ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))


def elasticctl(cluster: Any, *words: str, code: int = 0) -> str:
    """What it says."""
    done = subprocess.run(
        [ELASTICCTL, "--controller", cluster.address, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}\n{cluster.story()}"
    return done.stdout + done.stderr


def view(cluster: Any, server: str) -> ServerView:
    (found,) = cluster.client.ask(GetServers(server=ServerId(server))).servers
    assert isinstance(found, ServerView)
    return found


def servers(cluster: Any, job: str) -> list[str]:
    """Where it trains, once it trains on all that it wants."""
    found = cluster.job(job)
    if found.share_gpus != found.wanted_gpus:
        return []
    return sorted({worker.server for worker in found.workers if not worker.reason})


def restart(cluster: Any, *names: str) -> None:
    for name in names:
        cluster.kill(name)
    for name in names:
        cluster.start(name)
    cluster.until("all servers are there", cluster.all_there)


def trained(path: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(path, weights_only=False)["model"])


def test_a_job_on_a_drained_server_loses_no_step_and_the_server_stays_cordoned_until_it_is_uncordoned(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    touched, moved, still = tmp_path / "touched", tmp_path / "moved.pt", tmp_path / "still.pt"
    arguments = ("--epochs", "6", "--size", "256")
    job = cluster.submit(str(moved), *arguments, "--pace", "0.1", "--touched", str(touched), gpus=(1, 1))
    cluster.until_step(job, 5)
    (here,) = servers(cluster, job)
    (there,) = {"s1", "s2"} - {here}
    assert "is empty" in elasticctl(cluster, "drain", here, "--reason", "new disk")
    assert servers(cluster, job) == [there]
    assert not view(cluster, here).used
    restart(cluster, "controller", here)  # as if the drained server had been switched off meanwhile
    (cordon,) = view(cluster, here).cordons
    assert (cordon.reason, cordon.drained_s is not None) == ("new disk", True)
    other = cluster.submit(str(still), *arguments, gpus=(1, 1), name="still")
    cluster.until("it waits", lambda: cluster.job(other).reason)
    assert f"{here}: no new work here: drain ordered by operator:local: new disk" in cluster.job(other).reason
    over = cluster.until_final(job)
    assert over.restarts == 0
    assert not [worker for worker in over.past_workers if worker.exit_code not in (0, None)], cluster.story()
    assert not repeated(touched, 6 * 256, over), "a step was trained twice"
    cluster.until_final(other)
    assert {worker.server for worker in cluster.job(other).past_workers} == {there}
    a, b = trained(moved), trained(still)
    assert all(torch.equal(a[key], b[key]) for key in a)
    elasticctl(cluster, "uncordon", here)
    third = cluster.submit(str(tmp_path / "third.pt"), "--epochs", "1", gpus=(2, 2), name="third")
    over = cluster.until_final(third)
    workers = (*over.workers, *over.past_workers)  # one may not have ended yet
    assert {worker.server for worker in workers} == {"s1", "s2"}
    kinds = [event.kind for event in cluster.client.ask(GetEvents()).events]
    assert [kinds.count(kind) for kind in (EventKind.DRAINING, EventKind.DRAINED, EventKind.UNCORDONED)] == [1, 1, 1]


def test_who_cannot_be_moved_trains_on_and_saves_its_state_if_that_is_wanted(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=1)
    touched, output, still = tmp_path / "touched", tmp_path / "output.pt", tmp_path / "still.pt"
    arguments = ("--epochs", "4", "--size", "256")
    job = cluster.submit(str(output), *arguments, "--pace", "0.1", "--touched", str(touched), gpus=(1, 1))
    cluster.until_step(job, 5)
    said = elasticctl(cluster, "drain", "s1", code=1)
    assert f"{job} (0) stays: it needs at least 1 GPU, and elsewhere 0 can be had" in said
    document = subprocess.run(
        [ELASTICCTL, "--controller", cluster.address, "drain", "s1", "--json"], capture_output=True, check=False
    )
    assert [json.loads(document.stdout)["drained"], document.returncode] == [False, 1]
    step = cluster.job(job).step
    cluster.until_step(job, step + 5)
    assert "s1 is empty" in elasticctl(cluster, "drain", "s1", "--preempt")
    assert cluster.job(job).phase is JobPhase.PENDING
    assert "is removed" in elasticctl(cluster, "servers", "remove", "s1")
    restart_agent(cluster)
    over = cluster.until_final(job)
    assert over.restarts == 0
    other = cluster.submit(str(still), *arguments, gpus=(1, 1), name="still")
    cluster.until_final(other)
    a, b = trained(output), trained(still)
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert len(set(touched.read_text().splitlines())) == 4 * 256


def restart_agent(cluster: Any) -> None:
    """The agent of a server that was removed is refused until it is started again."""
    cluster.until("it is refused", lambda: "has been removed" in (cluster.directory / "s1.log").read_text())
    assert not cluster.client.ask(GetServers()).servers
    restart(cluster, "s1")
    assert not view(cluster, "s1").cordons


def test_ctrl_c_ends_the_waiting_and_not_the_drain(make_cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=1)
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(600)\nimport elasticd\nelasticd.join()\n")
    job = cluster.submit(gpus=(1, 2), script=script, must_join=True)
    cluster.until("it is there", lambda: view(cluster, "s1").used)
    command = [ELASTICCTL, "--controller", cluster.address, "drain", "s1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "waits for s1 to be empty" in first
    assert f"{job} has just started, and cannot be moved before it has called elastic.join()" in first
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate()
    assert "the drain of s1 goes on. End it: elasticctl" in rest
    assert process.returncode == 130
    assert view(cluster, "s1").cordons[0].kind.drains
    said = elasticctl(cluster, "drain", "s1", "--timeout", "1s", code=1)
    assert "waited 1s for s1 to be empty" in said
