"""A policy that raises: one report, jobs keep their GPUs, and the controller continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticd.controller import config
from elasticd.controller.events import Reconfigured
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import EventKind, GetJob, GetPolicy, Refused, SetPolicy
from elasticd.protocol.model import JobPhase
from elasticd.scheduler.policies import POLICIES
from elasticd.scheduler.policies.base import Shares
from elasticd.scheduler.policies.max_min import MaxMin

from .world import World, job_spec


def raising(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """From now on max-min raises `what`, or returns those shares."""

    def shares(self: MaxMin, jobs: Any, gpus: int, now: float, rng: Any) -> Shares:
        if isinstance(what, Exception):
            raise what
        return Shares(np.array([what] * len(jobs), dtype=np.int64), lambda row: None)

    monkeypatch.setattr(MaxMin, "shares", shares)


def test_jobs_keep_their_gpus_and_the_failure_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"s1": 2, "s2": 2})
    first = world.submit(job_spec(low=1, high=2)).id
    world.settle(first)
    target = world.job(first).record.target
    raising(monkeypatch, IndexError("index 5 is out of bounds"))
    second = world.submit(job_spec("late")).id
    world.pass_time(100.0)
    assert world.job(first).record.target == target
    assert world.job(first).record.phase is JobPhase.RUNNING
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.POLICY_FAILED]
    assert len(told) == 1
    assert "policy max-min raised IndexError" in told[0]
    assert "index 5 is out of bounds; the last plan is kept" in told[0]
    assert world.ask(GetJob(job=second)).job.reason == told[0]
    assert world.ask(GetPolicy()).trouble == told[0]


OWN = """\
from elasticd.scheduler.plugin import PolicyPlugin


class Mine(PolicyPlugin):
    def shares(self, jobs, gpus, now, rng):
        assert len(jobs) < 2, "more than one"
        return [min(2, gpus)] * len(jobs)
"""


def test_a_policy_of_the_operators_own_that_fails_is_told_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "controller.yaml").write_text(f"cluster: x\nstate_directory: {tmp_path}\npolicy: mine.py\n")
    (tmp_path / "mine.py").chmod(0o644)
    world = World({"s1": 2, "s2": 2})
    configured = config.scheduler_of(config.load(tmp_path / "controller.yaml"), tmp_path / "controller.yaml")
    world.carry_out(world.feed(Reconfigured(world.machine.cluster.settings, configured)))
    first = world.submit(job_spec(low=1, high=2)).id
    world.settle(first)
    target = world.job(first).record.target
    assert len(target) == 2
    second = world.submit(job_spec("late")).id
    world.pass_time(100.0)
    assert world.job(first).record.target == target
    assert world.job(first).record.phase is JobPhase.RUNNING
    (told,) = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.POLICY_FAILED]
    assert f"{tmp_path}/mine.py: line 6: AssertionError: more than one; the last plan is kept" in told
    assert world.ask(GetJob(job=second)).job.reason == told
    assert world.ask(GetPolicy()).policy.name == "mine.py"
    assert isinstance(world.ask(SetPolicy(document={"policy": str(tmp_path / "mine.py")})), Refused)


def test_a_python_file_that_others_may_write_to_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (tmp_path / "mine.py").chmod(0o666)
    (tmp_path / "mine.yaml").write_text("policy: mine.py\n")
    for policy in ("mine.py", "mine.yaml"):
        (tmp_path / "controller.yaml").write_text(f"cluster: x\nstate_directory: {tmp_path}\npolicy: ./{policy}\n")
        with pytest.raises(OperatorError, match="others may write to it"):
            config.scheduler_of(config.load(tmp_path / "controller.yaml"), tmp_path / "controller.yaml")
    assert not (tmp_path / "executed").exists()


def test_the_policy_is_asked_again_after_a_while_and_then_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"s1": 2})
    with monkeypatch.context() as patched:
        raising(patched, ZeroDivisionError("division by zero"))
        job = world.submit(job_spec(low=1, high=2)).id
        assert world.running(job) == []
    world.pass_time(31.0)
    assert len(world.running(job)) == 2
    assert world.ask(GetPolicy()).trouble == ""


@pytest.mark.parametrize("share", [-1, 5])
def test_shares_that_nobody_can_have_are_a_failure_too(monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    world = World({"s1": 2})
    raising(monkeypatch, share)
    job = world.submit(job_spec(low=1, high=2)).id
    assert world.running(job) == []
    assert EventKind.POLICY_FAILED in world.kinds()


def test_a_policy_that_cannot_decide_about_the_present_jobs_is_not_switched_to(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"s1": 2}, policy="fifo")
    job = world.submit(job_spec(low=1, high=2)).id
    world.settle(job)
    raising(monkeypatch, KeyError("x"))
    for dry_run in (True, False):
        answer = world.ask(SetPolicy(document={"policy": "max-min"}, dry_run=dry_run))
        assert isinstance(answer, Refused)
        assert "policy max-min raised KeyError" in answer.reason
    assert world.ask(GetPolicy()).policy.name == "fifo"


@pytest.mark.parametrize("policy", [kind.name for kind in POLICIES])
def test_a_job_larger_than_the_cluster_waits_with_the_reason_and_the_others_run(policy: str) -> None:
    world = World({"s1": 2, "s2": 1, "s3": 5}, policy=policy)
    world.agents["s3"].connected = False
    world.pass_time(15.0)
    large = world.submit(job_spec("large", low=8, high=4096, virtual_workers=4096, throughput={4096: 1e6}))
    small = world.submit(job_spec("small", low=1, high=1, max_steps=100, throughput={1: 1e-6}))
    world.pass_time(5.0)
    assert len(world.running(small.id)) == 1
    assert world.running(large.id) == []
    reason = world.ask(GetJob(job=large.id)).job.reason
    assert reason in {  # before and after the start of the small job, which has not joined here
        "waits for 8 GPUs: 3 of 8 are there, s3 is lost",
        "waits for 8 GPUs: 1 of 8 belongs to jobs that are still starting, and s3 is lost",
    }
    assert EventKind.POLICY_FAILED not in world.kinds()


@pytest.mark.parametrize("policy", [kind.name for kind in POLICIES])
def test_a_job_that_has_lost_more_than_its_minimum_waits_until_the_servers_are_back(policy: str) -> None:
    world = World({"s1": 2, "s2": 2}, policy=policy)
    job = world.submit(job_spec(low=4, high=4)).id
    world.settle(job)
    assert world.job(job).share_gpus == 4
    world.agents["s2"].connected = False
    world.pass_time(15.0)
    world.reap()
    assert world.job(job).record.target == ()
    assert world.ask(GetJob(job=job)).job.reason == "waits for 4 GPUs: 2 of 4 are there, s2 is lost"
    assert EventKind.POLICY_FAILED not in world.kinds()
    world.agents["s1"].connected = False
    world.pass_time(15.0)
    assert world.ask(GetJob(job=job)).job.reason == "waits for 4 GPUs: 0 of 4 are there, s1, s2 are lost"


@pytest.mark.parametrize("policy", [kind.name for kind in POLICIES])
def test_a_job_that_can_use_more_than_there_is_runs_with_what_there_is(policy: str) -> None:
    world = World({"s1": 2, "s2": 2}, policy=policy)
    job = world.submit(job_spec(low=2, high=4096, virtual_workers=4096)).id
    world.pass_time(5.0)
    assert len(world.running(job)) == 4, "now, not only when there are 4096 GPUs"
