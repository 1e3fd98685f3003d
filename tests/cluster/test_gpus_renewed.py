"""An agent notices other GPUs, other instances and a mended driver while it runs, and its workers go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.messages import Cancel, GetServers, ServerView
from elasticd.protocol.model import JobPhase

pytestmark = pytest.mark.cluster

HEALTH = {"health": {"interval_s": 0.3, "probation_s": 0.5}}
PART = "mig 1 3g.20gb 20937965568"
OTHER = "GPU-5eedf00d-0000-0000-0000-000000000001"


def say(cluster: Any, *lines: str) -> None:
    (described,) = (cluster.directory / "standins").glob("s1*/server.txt")
    with described.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def view(cluster: Any) -> ServerView:
    (found,) = cluster.client.ask(GetServers()).servers
    assert isinstance(found, ServerView)
    return found


def uuids(cluster: Any) -> dict[int, str]:
    return {gpu.index: gpu.uuid for gpu in view(cluster).server.gpus}


def test_gpus_are_divided_and_replaced_while_a_worker_runs_on_another(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(gpu_model="a100", agents_too=HEALTH)
    before = uuids(cluster)
    job = cluster.submit(str(tmp_path / "out.pt"), "--pace", "0.1", gpus=(1, 1))
    cluster.until_step(job, 5)
    (worker,) = cluster.job(job).workers
    divided, replaced = [index for index in before if index != worker.gpu][:2]
    say(cluster, f"gpu {divided} {PART}", f"gpu {replaced} uuid {OTHER}")
    cluster.until("the new GPUs are offered", lambda: OTHER in uuids(cluster).values() and divided in uuids(cluster))
    now = uuids(cluster)
    assert before[divided] not in now.values()
    assert before[replaced] not in now.values()
    assert now[worker.gpu] == before[worker.gpu]
    assert len(now) == 8
    parts = {each.index: each.parent for each in view(cluster).server.wiring.gpus if each.parent}
    assert list(parts.values()) == [before[divided]]
    cluster.until_step(job, 50)
    (still,) = cluster.job(job).workers
    assert (still.worker, still.gpu, cluster.job(job).restarts) == (worker.worker, worker.gpu, 0)
    cluster.client.ask(Cancel(job=job))
    every = cluster.submit(str(tmp_path / "all.pt"), "--pace", "0.01", gpus=(2, 2))
    assert cluster.until_final(every).phase is JobPhase.FINISHED
    say(cluster, f"gpu {replaced} xid 62")
    (number,) = (index for index, uuid in now.items() if uuid == OTHER)
    cluster.until("the new GPU is watched", lambda: number in view(cluster).barred)


def test_a_driver_that_is_mended_needs_no_new_start_of_the_agent(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(gpu_model="gtx1080", agents_too=HEALTH)
    cluster.kill("s1")
    say(cluster, "init 18")
    cluster.start("s1")
    cluster.until("it is told", lambda: any(one.code == "nvml-failed" for one in view(cluster).troubles))
    say(cluster, "init 0")
    cluster.until("it is over", lambda: not view(cluster).troubles and not view(cluster).barred)
    assert view(cluster).server.wiring.gpus, "the wiring is known now"
    job = cluster.submit(str(tmp_path / "out.pt"), "--pace", "0.01", gpus=(2, 2))
    assert cluster.until_final(job).phase is JobPhase.FINISHED
    say(cluster, "gpu 1 xid 62")
    cluster.until("its GPUs are watched", lambda: 1 in view(cluster).barred)
