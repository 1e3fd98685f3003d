"""What the pipeline makes of shares set by hand, and in which order a plan changes the cluster."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticd.controller.scheduling.pipeline import Decision, decide, regulate
from elasticd.controller.scheduling.plan import Change, ChangeKind, plan
from elasticd.controller.scheduling.policies import POLICIES, load_policy
from elasticd.controller.scheduling.view import ClusterView, JobInView, ReasonCode, ServerInView
from elasticd.protocol.model import GpuAddress, JobId, ServerId


def gpu(server: int, index: int) -> GpuAddress:
    return GpuAddress(server=ServerId(f"s{server}"), index=index)


def job(name: str, low: int, high: int, placement: tuple[GpuAddress, ...] = (), manual: int | None = None) -> JobInView:
    return JobInView(
        job=JobId(name),
        submitted_s=0.0,
        min_gpus=low,
        max_gpus=high,
        requested_gpus=high,
        virtual_workers=high,
        priority=0,
        share=len(placement),
        placement=placement,
        manual_share=manual,
        attained_gpu_s=0.0,
        steps_done=None,
        total_steps=None,
        started=bool(placement),
    )


def view(sizes: tuple[int, ...], *jobs: JobInView) -> ClusterView:
    servers = tuple(ServerInView(ServerId(f"s{i}"), tuple(range(size))) for i, size in enumerate(sizes))
    return ClusterView(now=0.0, jobs=jobs, servers=servers)


def decided(seen: ClusterView, name: str = "max-min") -> Decision:
    return decide(seen, load_policy({"policy": name}, "test"), random.Random(0))


def to(placements: dict[str, tuple[GpuAddress, ...]]) -> Decision:
    by_job = {JobId(name): gpus for name, gpus in placements.items()}
    return Decision({name: len(gpus) for name, gpus in by_job.items()}, by_job, {})


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    """Jobs on a cluster of which some servers may have been lost since, so that jobs hold GPUs that are not there any more."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    free = [gpu(server, index) for server, size in enumerate(sizes) for index in range(size)]
    draw(st.randoms(use_true_random=False)).shuffle(free)
    jobs = []
    for number in range(draw(st.integers(0, 5))):
        low = draw(st.integers(1, 3))
        high = draw(st.integers(low, 6))
        has = draw(st.integers(0, min(high, len(free))))
        held, free = tuple(free[:has]), free[has:]
        jobs.append(job(f"j{number}", low, high, held, draw(st.one_of(st.none(), st.integers(1, high)))))
    seen = view(tuple(sizes), *jobs)
    lost = draw(st.sets(st.sampled_from([server.server for server in seen.servers])))
    return replace(seen, servers=tuple(server for server in seen.servers if server.server not in lost))


NAMES = st.sampled_from([kind.name for kind in POLICIES])


# --------------------------------------------------------------------------------------------------------------- by hand


def test_shares_set_by_hand_that_do_not_all_fit_are_cut_for_the_jobs_submitted_last() -> None:
    decision = decided(view((4,), job("a", 1, 4, manual=3), job("b", 1, 4, manual=3), job("c", 1, 4, manual=1)))
    assert decision.shares == {"a": 3, "b": 1}
    assert {name: reason.code for name, reason in decision.reasons.items()} == dict.fromkeys("bc", ReasonCode.MANUAL)


@given(clusters(), NAMES)
def test_shares_set_by_hand_come_before_those_of_the_policy(seen: ClusterView, name: str) -> None:
    decision = decided(seen, name)
    free = seen.total_gpus
    for one in seen.jobs:
        if one.manual_share is not None:
            assert decision.shares.get(one.job, 0) == min(one.manual_share, free)
            assert (one.job in decision.reasons) == (one.manual_share > free)
            free -= min(one.manual_share, free)
    policed = [decision.shares.get(one.job, 0) for one in seen.jobs if one.manual_share is None]
    assert sum(policed) <= free


def test_without_packing_regulation_only_drops_the_jobs_that_get_nothing() -> None:
    assert regulate({JobId("a"): 3, JobId("b"): 0}) == {"a": 3}


@given(clusters(), NAMES)
def test_only_gpus_that_work_are_given_and_those_of_a_lost_server_are_replaced(seen: ClusterView, name: str) -> None:
    decision = decided(seen, name)
    working = {GpuAddress(server=server.server, index=index) for server in seen.servers for index in server.gpus}
    for one in seen.jobs:
        gpus = decision.placements.get(one.job, ())
        assert set(gpus) <= working
        assert len(gpus) == decision.shares.get(one.job, 0)
        usable = set(one.placement) & working
        assert len(set(gpus) & usable) == min(len(gpus), len(usable)), "a working GPU was given up without need"


# ------------------------------------------------------------------------------------------------------------------ plan


def test_each_kind_of_change_is_named_and_the_kinds_come_in_their_order() -> None:
    before = view(
        (4, 4),
        job("starts", 1, 4),
        job("moves", 1, 4, (gpu(0, 0),)),
        job("grows", 1, 4, (gpu(0, 1),)),
        job("shrinks", 1, 4, (gpu(1, 0), gpu(1, 1))),
        job("stops", 1, 4, (gpu(1, 2),)),
        job("stays", 1, 4, (gpu(1, 3), gpu(0, 3))),
    )
    after = to(
        {
            "starts": (gpu(0, 0),),
            "moves": (gpu(0, 2),),
            "grows": (gpu(0, 1), gpu(1, 1)),
            "shrinks": (gpu(1, 0),),
            "stays": (gpu(0, 3), gpu(1, 3)),
        }
    )
    assert [(change.kind, change.job) for change in plan(before, after)] == [
        (ChangeKind.STOP, "stops"),
        (ChangeKind.RESIZE, "shrinks"),
        (ChangeKind.RESIZE, "grows"),
        (ChangeKind.MIGRATE, "moves"),
        (ChangeKind.START, "starts"),
    ]


def test_a_job_that_only_gives_back_comes_before_one_that_also_takes() -> None:
    half_lost = job("a", 1, 4, (gpu(0, 0), gpu(9, 0), gpu(9, 1), gpu(9, 2)))
    gives = job("b", 1, 4, (gpu(0, 1), gpu(0, 2)))
    changes = plan(view((3,), half_lost, gives), to({"a": (gpu(0, 0), gpu(0, 2)), "b": (gpu(0, 1),)}))
    assert [change.job for change in changes] == ["b", "a"]


def carry_out(seen: ClusterView, changes: tuple[Change, ...]) -> dict[JobId, tuple[GpuAddress, ...]]:
    """The placements after the changes, one at a time. Fails if one takes a GPU that another job still has."""
    held = {one.job: one.placement for one in seen.jobs if one.placement}
    for change in changes:
        held.pop(change.job, None)
        assert not set(change.placement) & {gpu for gpus in held.values() for gpu in gpus}
        if change.placement:
            held[change.job] = change.placement
    return held


@given(clusters(), NAMES)
def test_a_plan_carried_out_in_its_order_leads_to_the_decision_and_never_takes_a_gpu_in_use(
    seen: ClusterView, name: str
) -> None:
    decision = decided(seen, name)
    held = carry_out(seen, plan(seen, decision))
    assert {who: set(gpus) for who, gpus in held.items()} == {
        who: set(gpus) for who, gpus in decision.placements.items()
    }


@given(clusters(), NAMES)
def test_a_plan_has_each_job_once_and_only_those_whose_gpus_change(seen: ClusterView, name: str) -> None:
    decision = decided(seen, name)
    changed = {one.job for one in seen.jobs if set(one.placement) != set(decision.placements.get(one.job, ()))}
    names = [change.job for change in plan(seen, decision)]
    assert len(names) == len(changed)
    assert set(names) == changed


@given(clusters(), NAMES)
def test_a_decision_that_has_been_carried_out_asks_for_nothing_more(seen: ClusterView, name: str) -> None:
    held = carry_out(seen, plan(seen, decided(seen, name)))
    jobs = tuple(
        replace(one, placement=held.get(one.job, ()), share=len(held.get(one.job, ())), started=True)
        for one in seen.jobs
    )
    settled = replace(seen, jobs=jobs)
    assert plan(settled, decided(settled, name)) == ()
