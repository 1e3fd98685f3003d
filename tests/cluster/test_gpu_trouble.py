"""Real daemons over stand-ins for GPUs: a GPU in trouble is left without a lost step, and nothing new is started there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.messages import (
    CordonServer,
    EventKind,
    GetEvents,
    GetServers,
    ServerView,
    UncordonServer,
)
from elasticd.protocol.model import JobPhase, ServerId

from .touched import repeated

pytestmark = pytest.mark.cluster

HEALTH = {"health": {"interval_s": 0.2, "probation_s": 1.0}}


def say(cluster: Any, line: str, server: str = "s1") -> None:
    """Something happens to the GPUs of a server."""
    (described,) = (cluster.directory / "standins").glob(f"{server}*/server.txt")
    with described.open("a") as file:
        file.write(f"{line}\n")


def view(cluster: Any, server: str = "s1") -> ServerView:
    found = {one.server.server: one for one in cluster.client.ask(GetServers()).servers}
    one = found[ServerId(server)]
    assert isinstance(one, ServerView)
    return one


def gpus(cluster: Any, job: str) -> list[int]:
    """Where the job trains, once it trains on all that it wants."""
    job_view = cluster.job(job)
    if job_view.share_gpus != job_view.wanted_gpus:
        return []
    return sorted(worker.gpu for worker in job_view.workers if not worker.reason)


def trained(path: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(path, weights_only=False)["model"])


def test_a_job_leaves_a_gpu_with_an_xid_loses_no_step_and_has_the_same_bits(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(gpu_model="v100", agents_too=HEALTH)
    touched, moved, still = tmp_path / "touched", tmp_path / "moved.pt", tmp_path / "still.pt"
    arguments = ("--epochs", "8", "--size", "384")
    job = cluster.submit(str(moved), *arguments, "--pace", "0.1", "--touched", str(touched), gpus=(2, 2))
    cluster.until_step(job, 10)
    first, second = gpus(cluster, job)
    say(cluster, f"gpu {second} xid 119")
    cluster.until("it is elsewhere", lambda: second not in gpus(cluster, job) and len(gpus(cluster, job)) == 2)
    say(cluster, f"gpu {first} xid 79")  # STOP, and its worker computes on
    cluster.until("it is elsewhere", lambda: first not in gpus(cluster, job) and len(gpus(cluster, job)) == 2)
    assert {first, second} == set(view(cluster).barred)
    over = cluster.until_final(job)
    assert over.restarts == 0
    assert not [worker for worker in over.past_workers if worker.exit_code not in (0, None)], cluster.story()
    assert not repeated(touched, 8 * 384, over), "a step was trained twice"
    other = cluster.submit(str(still), *arguments, gpus=(2, 2), name="still")
    cluster.until_final(other)
    a, b = trained(moved), trained(still)
    assert all(torch.equal(a[key], b[key]) for key in a)
    told = [event.text for event in cluster.client.ask(GetEvents()).events if event.kind is EventKind.TROUBLE]
    xids = [tuple(sorted(re.findall(r"XID (\d+)", text))) for text in told]  # other troubles: a driver that is starved
    assert len(set(xids) - {()}) == 2, told


def test_an_applications_xid_excludes_nothing_and_other_troubles_do_until_they_are_over(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(gpu_model="v100", agents_too=HEALTH)
    say(cluster, "gpu * xid 31")
    cluster.until("it is noted", lambda: len(view(cluster).troubles) == 8)
    assert not view(cluster).barred
    say(cluster, "gpu 0 used 16000000000")
    say(cluster, "gpu 1 ecc 0 1")
    say(cluster, "gpu 2 error 15")
    say(cluster, "gpu 3 retired 1")
    cluster.until("they are excluded", lambda: {1, 2, 3} <= set(view(cluster).barred))
    job = cluster.submit(str(tmp_path / "out.pt"), "--pace", "0.02", gpus=(8, 8), virtual_workers=8)
    reason = cluster.until("it waits with a reason", lambda: cluster.job(job).reason)
    assert "uncorrectable memory errors" in cluster.until("the reason is told", lambda: cluster.job(job).reason), reason
    for line in ("gpu 0 used 0", "gpu 1 ecc 0 0", "gpu 2 error 0", "gpu 3 retired 0"):
        say(cluster, line)
    cluster.until("it runs, after the probation", lambda: cluster.job(job).phase is JobPhase.RUNNING)
    assert not view(cluster).barred


def test_a_gpu_whose_memory_is_held_gets_no_worker_and_its_server_is_not_blamed(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(gpu_model="gtx1080", agents_too={"health": {"interval_s": 3600, "probation_s": 0.0}})
    say(cluster, "gpu 0 used 8000000000")
    job = cluster.submit(str(tmp_path / "out.pt"), "--pace", "0.01", gpus=(1, 1))
    cluster.until_final(job)
    events = cluster.client.ask(GetEvents()).events
    assert EventKind.SERVER_UNFIT not in [event.kind for event in events], cluster.story()
    if any(event.text.startswith(f"{job}.0 on s1:0") for event in events):
        assert "MiB of its memory are free" in view(cluster).barred[0]


def test_what_an_agent_has_found_and_an_operator_has_decided_outlasts_both_daemons(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(gpu_model="gtx1080", agents_too=HEALTH)
    say(cluster, "gpu 2 xid 62")
    cluster.until("the XID is told", lambda: 2 in view(cluster).barred)
    cluster.client.ask(CordonServer(server=ServerId("s1"), gpu=1, reason="loud fan"))
    for name in ("s1", "controller"):
        cluster.kill(name)
        cluster.start(name)
    cluster.until("all is as before", lambda: cluster.all_there() and set(view(cluster).barred) == {1, 2})
    assert view(cluster).barred[1].endswith("loud fan")
    for gpu in (1, 2):
        cluster.client.ask(UncordonServer(server=ServerId("s1"), gpu=gpu))
    assert not view(cluster).barred
    job = cluster.submit(str(tmp_path / "out.pt"), "--pace", "0.01", gpus=(4, 4))
    cluster.until_final(job)
