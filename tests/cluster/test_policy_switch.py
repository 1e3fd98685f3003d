"""A policy is changed under running jobs: they grow and shrink, and no worker starts anew.

A campaign: `make world` changes policies under its jobs, tests/controller/test_policy.py tests the decisions, and
tests/ctl/test_cli.py the commands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.messages import Cancel, EventKind, Events, GetEvents, GetPolicy, PolicySet, SetPolicy

from .touched import repeated

MakeCluster = Callable[..., Any]
SHORT = 60  # epochs: it is not over before the policy has changed twice, on a machine that does much else
MEASURED_STEPS = 80  # throughput is measured over some tens of steps; lengths are known only then


def choose(cluster: Any, policy: str | None, dry_run: bool = False) -> dict[str, tuple[int, int]]:
    """Switch; the shares before and after of the jobs that it changes."""
    document = {"policy": policy} if policy is not None else None
    answer = cluster.client.ask(SetPolicy(document=document, source="test", dry_run=dry_run), timeout_s=60)
    assert isinstance(answer, PolicySet), answer
    return {one.job: (one.before_gpus, one.after_gpus) for one in answer.shares}


@pytest.mark.campaign
def test_another_policy_changes_the_shares_of_running_jobs_by_resizing_and_stays_in_force(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=2)
    touched = {name: tmp_path / name for name in ("long", "short")}
    jobs = {
        name: cluster.submit(
            str(tmp_path / f"{name}.pt"),
            "--epochs",
            epochs,
            "--pace",
            "0.01",
            "--touched",
            str(touched[name]),
            name=name,
            gpus=(1, 3),
            virtual_workers=3,  # so that a third GPU makes it faster
        )
        for name, epochs in (("long", "4000"), ("short", str(SHORT)))
    }
    for job in jobs.values():
        cluster.until_share(job, 2)
        cluster.until_step(job, MEASURED_STEPS)
    expected = {jobs["long"]: (2, 3), jobs["short"]: (2, 1)}
    cluster.until("the lengths are known", lambda: choose(cluster, "optimus", dry_run=True) == expected)
    workers = {name: cluster.pids(job) for name, job in jobs.items()}

    assert choose(cluster, "optimus") == expected
    for name, share in (("long", 3), ("short", 1)):
        cluster.until_share(jobs[name], share)
    now = {name: cluster.pids(job) for name, job in jobs.items()}
    assert workers["long"].items() <= now["long"].items(), "a worker whose GPU stays was replaced"
    assert now["short"].items() <= workers["short"].items(), "a worker whose GPU stays was replaced"

    cluster.kill("controller")
    cluster.start("controller")
    found = cluster.client.ask(GetPolicy(), timeout_s=60)
    assert (found.policy.name, found.at_run_time) == ("optimus", True)
    cluster.until_step(jobs["long"], cluster.until_step(jobs["long"], 0).step + 10)
    assert (cluster.job(jobs["long"]).share_gpus, cluster.job(jobs["short"]).share_gpus) == (3, 1)

    assert choose(cluster, None) == {jobs["long"]: (3, 2), jobs["short"]: (1, 2)}
    for job in jobs.values():
        cluster.until_share(job, 2)
    assert now["short"].items() <= cluster.pids(jobs["short"]).items(), "a worker whose GPU stays was replaced"

    short = cluster.until_final(jobs["short"])
    long = cluster.job(jobs["long"])
    cluster.client.ask(Cancel(job=jobs["long"]))
    assert (short.restarts, long.restarts) == (0, 0)
    assert not repeated(touched["short"], SHORT * 512, short), "a step was trained twice"
    assert not repeated(touched["long"], None, long), "a step was trained twice"
    events = cluster.client.ask(GetEvents())
    assert isinstance(events, Events)
    kinds = [event.kind for event in events.events]
    assert kinds.count(EventKind.POLICY) == 2
    assert not {EventKind.PREEMPTED, EventKind.RESTARTED, EventKind.LOST} & set(kinds)
