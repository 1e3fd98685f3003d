"""Shares and placements: worked examples, and what must hold for every cluster."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elasticd.controller.scheduling.pipeline import Decision, decide
from elasticd.controller.scheduling.placement import place
from elasticd.controller.scheduling.plan import ChangeKind, plan
from elasticd.controller.scheduling.policies import Policy, load_policy
from elasticd.controller.scheduling.view import ClusterView, JobInView, ReasonCode, ServerInView
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import GpuAddress, JobId, ServerId

CONFIGS = Path(__file__).parents[2] / "configs" / "policies"


def policy(name: str) -> Policy:
    return load_policy({"policy": name}, "test")


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


def servers(*sizes: int) -> tuple[ServerInView, ...]:
    return tuple(ServerInView(ServerId(f"s{i}"), tuple(range(size))) for i, size in enumerate(sizes))


def view(jobs: list[JobInView], *sizes: int) -> ClusterView:
    return ClusterView(now=0.0, jobs=tuple(jobs), servers=servers(*sizes))


def run(name: str, seen: ClusterView) -> Decision:
    return decide(seen, policy(name), random.Random(0))


def gpu(server: int, index: int) -> GpuAddress:
    return GpuAddress(server=ServerId(f"s{server}"), index=index)


def test_max_min_gives_every_job_its_minimum_and_levels_the_rest() -> None:
    decision = run("max-min", view([job("a", 1, 8), job("b", 1, 2), job("c", 2, 8)], 4, 4))
    assert decision.shares == {"a": 3, "b": 2, "c": 3}


def test_a_job_whose_minimum_does_not_fit_waits_and_is_told_why() -> None:
    decision = run("max-min", view([job("a", 3, 4), job("b", 2, 4)], 4))
    assert decision.shares == {"a": 4}
    assert decision.reasons[JobId("b")].code is ReasonCode.NO_FREE_GPUS
    decision = run("max-min", view([job("a", 9, 9)], 4))
    assert decision.reasons[JobId("a")].code is ReasonCode.CLUSTER_TOO_SMALL


def test_fifo_gives_all_or_nothing_and_the_first_that_waits_holds_the_others_back() -> None:
    running = job("a", 1, 3, (gpu(0, 0), gpu(0, 1), gpu(0, 2)))
    decision = run("fifo", view([running, job("b", 1, 2), job("c", 1, 1)], 4))
    assert decision.shares == {"a": 3}
    assert decision.reasons[JobId("c")].code is ReasonCode.BEHIND_ANOTHER


def test_a_job_too_large_for_the_cluster_holds_nobody_back() -> None:
    decision = run("fifo", view([job("a", 1, 9), job("b", 1, 2)], 4))
    assert decision.shares == {"b": 2}


def test_shares_set_by_hand_come_first() -> None:
    decision = run("max-min", view([job("a", 1, 4), job("b", 1, 4, manual=3)], 4))
    assert decision.shares == {"a": 1, "b": 3}
    decision = run("max-min", view([job("a", 1, 4, manual=3), job("b", 1, 4, manual=3)], 4))
    assert decision.shares == {"a": 3, "b": 1}
    assert decision.reasons[JobId("b")].code is ReasonCode.MANUAL


def test_a_plan_stops_and_shrinks_before_it_starts() -> None:
    before = job("a", 1, 4, tuple(gpu(0, i) for i in range(4)))
    seen = view([before, job("b", 1, 4)], 4)
    changes = plan(seen, run("max-min", seen))
    assert [(change.kind, change.job) for change in changes] == [(ChangeKind.RESIZE, "a"), (ChangeKind.START, "b")]
    assert set(changes[0].placement) < set(before.placement)
    settled = [job(c.job, 1, 4, c.placement) for c in changes]
    assert plan(view(settled, 4), run("max-min", view(settled, 4))) == ()


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_policy_file_loads_and_is_named_after_its_policy(file: Path) -> None:
    assert load_policy(yaml.safe_load(file.read_text()), str(file)).name == file.stem


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"policy": "best"}, "best"),
        ({"policy": "fifo", "parameters": {"x": 1}}, "x"),
        ({"polcy": "fifo"}, "polcy"),
        ({"policy": 3}, "policy"),
        ([], "object"),
    ],
)
def test_a_wrong_policy_file_is_refused_with_file_and_field(document: object, words: str) -> None:
    with pytest.raises(OperatorError, match=r"^there\.yaml: ") as refused:
        load_policy(document, "there.yaml")
    assert words in str(refused.value)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    free = [gpu(s, i) for s, size in enumerate(sizes) for i in range(size)]
    draw(st.randoms(use_true_random=False)).shuffle(free)
    jobs = []
    for number in range(draw(st.integers(0, 6))):
        low = draw(st.integers(1, 4))
        high = draw(st.integers(low, 8))
        has = draw(st.integers(0, min(high, len(free))))
        held, free = tuple(free[:has]), free[has:]
        manual = draw(st.one_of(st.none(), st.integers(1, high)))
        jobs.append(job(f"j{number}", low, high, held, manual))
    return view(jobs, *sizes)


@given(clusters(), st.sampled_from(["fifo", "max-min"]))
def test_every_decision_can_be_carried_out(seen: ClusterView, name: str) -> None:
    decision = run(name, seen)
    assert decision == run(name, seen), "the same view gives another decision"
    exist = {GpuAddress(server=s.server, index=i) for s in seen.servers for i in s.gpus}
    used = list(itertools.chain.from_iterable(decision.placements.values()))
    assert len(used) == len(set(used))
    assert set(used) <= exist
    assert {name: len(gpus) for name, gpus in decision.placements.items()} == decision.shares


@given(clusters())
def test_nobody_moves_without_need(seen: ClusterView) -> None:
    decision = run("max-min", seen)
    for before in seen.jobs:
        after = set(decision.placements.get(before.job, ()))
        if len(after) <= before.share:
            assert after <= set(before.placement)
        else:
            assert after >= set(before.placement)


@given(clusters())
def test_max_min_is_fair_and_wastes_nothing(seen: ClusterView) -> None:
    decision = run("max-min", seen)
    policed = [j for j in seen.jobs if j.manual_share is None]
    given_ = {j.job: decision.shares.get(j.job, 0) for j in policed}
    for one in policed:
        assert given_[one.job] == 0 or one.min_gpus <= given_[one.job] <= one.max_gpus
        for other in policed:
            could_grow = 0 < given_[one.job] < one.max_gpus
            has_more_than_it_must = given_[other.job] > other.min_gpus
            assert not (could_grow and has_more_than_it_must and given_[other.job] > given_[one.job] + 1)
    free = seen.total_gpus - sum(decision.shares.values())
    assert free == 0 or all(given_[j.job] in (0, j.max_gpus) for j in policed)
    assert all(given_[j.job] or j.min_gpus > free for j in policed)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 16))
def test_a_new_job_is_put_on_the_fewest_servers(free: list[int], share: int) -> None:
    if share > sum(free):
        return
    seen = ClusterView(
        now=0.0,
        jobs=(job("new", share, share),),
        servers=tuple(ServerInView(ServerId(f"s{i}"), tuple(range(size))) for i, size in enumerate(free)),
    )
    placed = run("max-min", seen).placements[JobId("new")]
    fewest = next(
        k for k in range(1, 5) if any(sum(c) >= share for c in itertools.combinations(free, min(k, len(free))))
    )
    assert len({g.server for g in placed}) == fewest


def placements(name: str, seen: ClusterView) -> dict[str, list[str]]:
    return {job: [str(gpu) for gpu in gpus] for job, gpus in run(name, seen).placements.items()}


def test_a_job_that_shrinks_stays_on_the_fewest_servers_and_with_its_first_worker_if_that_costs_none() -> None:
    held = (gpu(0, 0), gpu(1, 0), gpu(1, 1), gpu(1, 2))
    assert placements("max-min", view([job("a", 1, 4, held, manual=3)], 4, 4)) == {"a": ["s1:0", "s1:1", "s1:2"]}
    assert placements("max-min", view([job("a", 1, 4, held, manual=1)], 4, 4)) == {"a": ["s0:0"]}


def test_a_job_that_grows_takes_the_free_gpus_of_its_own_server_before_a_new_job_does() -> None:
    seen = view([job("new", 2, 2), job("old", 1, 2, (gpu(0, 0),))], 2, 2)
    assert placements("max-min", seen) == {"new": ["s1:0", "s1:1"], "old": ["s0:0", "s0:1"]}


def test_two_jobs_that_talk_across_servers_do_not_share_one_where_that_can_be_avoided() -> None:
    decision = run("fifo", view([job("a", 3, 3), job("b", 3, 3)], 2, 2, 2, 2))
    assert not {g.server for g in decision.placements[JobId("a")]} & {g.server for g in decision.placements[JobId("b")]}


def test_a_whole_job_is_not_split_to_keep_spread_jobs_apart() -> None:
    decision = run("fifo", view([job("a", 3, 3), job("b", 3, 3), job("c", 2, 2)], 2, 2, 2, 2))
    assert [len({g.server for g in gpus}) for gpus in decision.placements.values()] == [2, 2, 1]


@given(st.data())
def test_packed_shares_meet_no_other_job_on_the_network(data: st.DataObject) -> None:
    """AFS App. E, Proposition 1: shares of 1, 2, 4 ... or k whole servers of 2^n GPUs can always be placed so."""
    size, count = 2 ** data.draw(st.integers(0, 3)), data.draw(st.integers(1, 5))
    allowed = sorted({2**k for k in range(4) if 2**k < size} | {size * k for k in range(1, count + 1)})
    free, jobs = size * count, []
    while free and len(jobs) < 12:
        share = data.draw(st.sampled_from([share for share in allowed if share <= free]))
        jobs.append(job(f"j{len(jobs)}", share, share))
        free -= share
    decision = run("fifo", view(jobs, *[size] * count))
    spread_on: list[ServerId] = []
    for one in jobs:
        used = {g.server for g in decision.placements[one.job]}
        assert len(used) == -(-one.max_gpus // size)
        spread_on += used if len(used) > 1 else []
    assert len(spread_on) == len(set(spread_on)), "two jobs with remote traffic on one server"


@given(clusters())
def test_a_job_that_shrinks_uses_as_few_servers_as_its_gpus_allow(seen: ClusterView) -> None:
    decision = run("max-min", seen)
    for before in seen.jobs:
        share = decision.shares.get(before.job, 0)
        if not 0 < share < before.share:
            continue
        held = sorted(Counter(g.server for g in before.placement).values(), reverse=True)
        fewest = next(n for n in range(1, len(held) + 1) if sum(held[:n]) >= share)
        assert len({g.server for g in decision.placements[before.job]}) == fewest


def test_shares_that_do_not_fit_are_a_bug_of_the_caller_and_are_called_one() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        place(view([job("a", 1, 9)], 4), {JobId("a"): 5})
