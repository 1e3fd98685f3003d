"""Valid but absurd jobs, and clusters that have shrunk below them: every policy makes a possible decision."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticd.controller.cluster import Cluster
from elasticd.controller.jobs.job import Job
from elasticd.controller.jobs.records import JobRecord, Progress, Submission
from elasticd.controller.reconcile.deciding import decided, decision_of
from elasticd.controller.reconcile.snapshot import snapshot
from elasticd.controller.requests.validation import refusal
from elasticd.controller.sessions import Session
from elasticd.controller.settings import Settings
from elasticd.protocol.messages import ShareChange
from elasticd.protocol.model import Gpu, GpuAddress, GpuKind, GpuRange, JobId, JobPhase, JobSpec, Server, ServerId
from elasticd.scheduler.measuring import Measuring
from elasticd.scheduler.policies import POLICIES
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.scheduler.speedup_curve import Measured

NOW = 1_700_000_000.0
STAGES: list[dict[str, Any]] = [{}, {"packing": "network", "placement": "buddy"}]
GPUS = st.sampled_from((1, 1, 2, 3, 4, 5, 8, 64, 4096))
RATES = st.sampled_from((1e-6, 1e-3, 0.5, 1.0, 7.0, 1e6))
AGES_S = st.sampled_from((-1e6, 0.0, 1.0, 600.0, 1e9))  # below 0: the clock was set back since


@st.composite
def specs(draw: Any) -> JobSpec:
    low, high = sorted((draw(GPUS), draw(GPUS)))
    spec = JobSpec(
        name="j",
        command=("train",),
        gpus=GpuRange(min=low, max=high),
        virtual_workers=4096,
        workdir="/",
        max_steps=draw(st.sampled_from((None, 1, 1000, 2**53))),
        priority=draw(st.sampled_from((0, -1_000_000, 1_000_000))),
        throughput=draw(st.dictionaries(GPUS, RATES, max_size=3)),
    )
    assert not refusal(spec)
    return spec


@st.composite
def clusters(draw: Any, policy: dict[str, Any]) -> Cluster:
    """Servers, some of them lost, and jobs that wait or have some of their GPUs."""
    configured = load_scheduler(policy, "test")
    how = Measuring(way_down=draw(st.booleans()))
    cluster = Cluster(
        Settings(cluster="test", incarnation="c", version="0", pid=1, measuring=how), configured, random.Random(1), NOW
    )
    free: list[GpuAddress] = []
    for number, size in enumerate(draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 8)), max_size=4))):
        name = ServerId(f"s{number}")
        gpus = tuple(Gpu(index=i, kind=GpuKind.CPU, name="slot") for i in range(size))
        alive = draw(st.integers(0, 3)) > 0
        cluster.servers.put_session(Session(Server(server=name, address="", gpus=gpus), alive, last_heard_s=NOW))
        free += [GpuAddress(server=name, index=i) for i in range(size) if alive]
    for number in range(draw(st.integers(0, 6))):
        spec, age_s = draw(specs()), draw(AGES_S)
        target = tuple(free.pop() for _ in range(draw(st.integers(0, min(len(free), spec.gpus.max)))))
        shares = (
            (ShareChange(time_s=NOW - age_s, share=len(target), generation=1),) if target or draw(st.booleans()) else ()
        )
        step = draw(st.sampled_from((None, 0, 500, 10**6)))
        measured = [Measured(share=1, servers=1, recent=(draw(RATES),), times=1, at_s=NOW - age_s)]
        cluster.jobs.add(
            Job(
                Submission(job=JobId(f"j-{number}"), request=str(number), spec=spec, submitted_s=NOW - age_s),
                JobRecord(
                    phase=JobPhase.RUNNING if target else JobPhase.PENDING,
                    target=target,
                    shares=shares,
                    attained_gpu_s=draw(st.sampled_from((0.0, 5.0, 1e5, 1e12))),
                    executed_s=draw(st.sampled_from((0.0, 5.0, 1e5, 1e10))),
                    progress=Progress(step=step, total_steps=spec.max_steps),
                    measured=tuple(measured) if draw(st.booleans()) else (),
                    manual_share=draw(st.sampled_from((None, None, None, 1, 4096))),
                ),
            )
        )
    return cluster


def parameters() -> list[Any]:
    return [
        pytest.param({"policy": kind.name, **stage}, id="-".join((kind.name, *stage.values())))
        for kind in POLICIES
        for stage in STAGES
    ]


def decides_what_is_possible(cluster: Cluster) -> None:
    seen = snapshot(cluster, NOW)
    decision = decision_of(cluster.planning.decider.scheduler, seen, cluster.rng)
    total = seen.view.total_gpus
    assert decision.shares.dtype.kind == "i"
    assert len(decision.shares) == len(seen.jobs)
    assert int(decision.shares.min(initial=0)) >= 0
    assert int(decision.shares.sum()) <= total
    assert not math.isnan(decision.review_s)
    taken = 0
    for row, job in enumerate(seen.jobs):
        share, gpus = int(decision.shares[row]), decision.placements.get(row, 0)
        assert gpus.bit_count() == share, "who has a share has as many GPUs"
        assert not gpus & taken, "no GPU is given twice"
        assert gpus < 1 << total
        taken |= gpus
        if job.record.manual_share is None and share:
            assert job.spec.gpus.min <= share <= job.spec.gpus.max
        reason = decision.why(row)
        if not share:
            assert reason is not None, "who gets nothing is told why"
    decided(cluster.planning.decider.scheduler, seen, cluster.rng)


@pytest.mark.parametrize("policy", parameters())
def test_every_policy_decides_what_is_possible(policy: dict[str, Any]) -> None:
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(clusters(policy))
    def decides(cluster: Cluster) -> None:
        decides_what_is_possible(cluster)

    with np.errstate(all="raise"):
        decides()


@pytest.mark.parametrize("policy", parameters())
def test_a_job_that_is_larger_than_the_cluster_keeps_nothing_from_the_others(policy: dict[str, Any]) -> None:
    cluster = Cluster(
        Settings(cluster="test", incarnation="c", version="0", pid=1),
        load_scheduler(policy, "test"),
        random.Random(1),
        NOW,
    )
    gpus = (Gpu(index=0, kind=GpuKind.CPU, name="slot"),)
    cluster.servers.put_session(Session(Server(server=ServerId("s"), address="", gpus=gpus), True, last_heard_s=NOW))
    for name, least in (("larger", 2), ("small", 1)):
        spec = JobSpec(
            name=name,
            command=("train",),
            gpus=GpuRange(min=least, max=least),
            virtual_workers=2,
            workdir="/",
            max_steps=1000,
            throughput={1: 1.0},
        )
        submission = Submission(job=JobId(name), request=name, spec=spec, submitted_s=NOW)
        cluster.jobs.add(Job(submission, JobRecord(phase=JobPhase.PENDING)))
    with np.errstate(all="raise"):
        decides_what_is_possible(cluster)
        decision = decision_of(cluster.planning.decider.scheduler, snapshot(cluster, NOW), cluster.rng)
    assert decision.shares.tolist() == [0, 1]
