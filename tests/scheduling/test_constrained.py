"""Decisions where jobs may use only some GPUs: worked examples, and properties for every cluster and every policy."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import ServerId
from elasticd.scheduler.kinds import ANY, Demand, GpuSort
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.placement.registry import PLACEMENTS
from elasticd.scheduler.plan import at_once, plan
from elasticd.scheduler.policies import POLICIES
from elasticd.scheduler.scheduler import load_stages
from elasticd.scheduler.view import ClusterView, Gpus, ServerInView, gpus_by_sort, limit_for

from .tables import Described, described, job, policy, table

A, V, T = (
    GpuSort("NVIDIA A100-SXM4-40GB", 40 << 30),
    GpuSort("Tesla V100-SXM2-16GB", 16 << 30),
    GpuSort("Tesla T4", 15 << 30),
)
LARGE_A = GpuSort("NVIDIA A100-SXM4-80GB", 80 << 30)
NAMES = st.sampled_from([kind.name for kind in POLICIES])


@dataclass(frozen=True)
class Asked:
    """A job with its demands on GPUs."""

    job: Described
    demand: Demand = ANY
    has: Gpus = 0
    by_hand: int = 0


@dataclass(frozen=True)
class Mixed:
    """A cluster: the sort of each GPU of each server, racks, and jobs."""

    servers: Sequence[Sequence[GpuSort]]
    jobs: Sequence[Asked]
    racks: Sequence[str] = field(default_factory=tuple)
    absent: Sequence[Sequence[GpuSort]] = field(default_factory=tuple)

    @property
    def view(self) -> ClusterView:
        def in_view(name: str, sorts: Sequence[GpuSort], rack: str = "") -> ServerInView:
            return ServerInView(ServerId(name), tuple(range(len(sorts))), tuple(sorts), rack=rack)

        racks = self.racks or [""] * len(self.servers)
        servers = tuple(in_view(f"s{i}", *one) for i, one in enumerate(zip(self.servers, racks, strict=True)))
        sorts = gpus_by_sort(servers)
        limits = tuple(limit_for(one.demand, sorts) for one in self.jobs)
        total = sum(map(len, self.servers))
        return ClusterView(
            0.0,
            table(*(one.job for one in self.jobs), most=max(16, total)),
            servers,
            {row: one.has for row, one in enumerate(self.jobs) if one.has},
            {row: one.by_hand for row, one in enumerate(self.jobs) if one.by_hand},
            limits,
            np.arange(len(limits)),
            tuple(in_view(f"gone{i}", sorts) for i, sorts in enumerate(self.absent)),
        )


def run(name: str, seen: ClusterView, packing: bool = False, placement: str = "fewest-servers") -> Decision:
    stages = load_stages("test", None, None, placement)
    return decide(seen, policy(name), random.Random(0), packing, placement=stages.placement)


def shares(name: str, cluster: Mixed) -> dict[str, int]:
    """Nonzero shares by name; asserts that they are possible."""
    seen = cluster.view
    decision = run(name, seen)
    check(seen, decision)
    return {seen.jobs.name(row): int(share) for row, share in enumerate(decision.shares) if share}


def where(cluster: Mixed, name: str = "max-min") -> dict[str, list[str]]:
    """The GPUs of each job, by name: "s0:3"."""
    seen = cluster.view
    known = [f"{server.server}:{index}" for server in seen.servers for index in server.gpus]
    placed = run(name, seen).placements
    return {seen.jobs.name(r): [gpu for bit, gpu in enumerate(known) if own >> bit & 1] for r, own in placed.items()}


def reason(cluster: Mixed, row: int, name: str = "max-min") -> str:
    found = run(name, cluster.view).why(row)
    return found.text if found is not None else ""


def servers_of(seen: ClusterView) -> list[Gpus]:
    found, begin = [], 0
    for server in seen.servers:
        found.append(((1 << len(server.gpus)) - 1) << begin)
        begin += len(server.gpus)
    return found


def allowed(seen: ClusterView, row: int, gpus: Gpus) -> bool:
    limit = seen.limit(row)
    assert limit is not None
    each = limit.demand.per_server
    counts = [(gpus & server).bit_count() for server in servers_of(seen)]
    return any(not gpus & ~option for option in limit.options) and (not each or set(counts) <= {0, each})


def check(seen: ClusterView, decision: Decision) -> None:
    """Each job has its share, on GPUs of its own that it may use."""
    taken = 0
    for row, gpus in decision.placements.items():
        assert gpus
        assert not gpus & taken
        assert gpus < 1 << seen.total_gpus
        taken |= gpus
        assert gpus.bit_count() == decision.shares[row]
        assert allowed(seen, row, gpus), f"row {row} may not use {gpus:b}"
        if row not in seen.manual_shares:
            assert (
                seen.jobs.min_gpus[row]
                <= decision.shares[row]
                <= max(seen.jobs.max_gpus[row], seen.jobs.requested_gpus[row])
            )
    assert taken.bit_count() == decision.shares.sum()
    assert (decision.shares >= 0).all()


# ---------------------------------------------------------------------------------------------- shares and placements


def test_a_cluster_without_jobs_has_no_limits_and_no_shares() -> None:
    for kind in POLICIES:
        assert shares(kind.name, Mixed([[A, A], [V]], [])) == {}


def test_jobs_that_compete_for_a_scarce_type_share_it_by_the_rule_of_the_policy() -> None:
    a100 = Demand(types=("A100",))
    jobs = [Asked(job(f"a{i}", 1, 8), a100) for i in range(8)] + [Asked(job("v", 1, 16))]
    assert shares("max-min", Mixed([[A] * 8, [V] * 8], jobs)) == {**{f"a{i}": 1 for i in range(8)}, "v": 8}


def test_a_job_that_may_go_elsewhere_leaves_the_scarce_type_to_the_one_that_may_not() -> None:
    mixes = Demand(mixes=True)
    jobs = [Asked(job("u", 1, 8, share=8), mixes, has=0xFF), Asked(job("a", 1, 8), Demand(types=("A100",)))]
    assert where(Mixed([[A] * 8, [V] * 8], jobs)) == {
        "u": [f"s1:{i}" for i in range(8)],
        "a": [f"s0:{i}" for i in range(8)],
    }


def test_a_job_stays_on_the_type_that_it_began_on() -> None:
    began = Demand(began_on=A.name)
    jobs = [Asked(job("u", 1, 8, share=8), began, has=0xFF), Asked(job("a", 1, 8), Demand(types=("A100",)))]
    assert shares("max-min", Mixed([[A] * 8, [V] * 8], jobs)) == {"u": 4, "a": 4}


def test_a_job_without_a_type_has_gpus_of_one_type_only() -> None:
    assert shares("max-min", Mixed([[A] * 4, [V] * 6], [Asked(job("u", 1, 10))])) == {"u": 6}
    assert shares("max-min", Mixed([[A] * 4, [V] * 6], [Asked(job("u", 1, 10), Demand(mixes=True))])) == {"u": 10}
    assert shares("max-min", Mixed([[A, V], [V, A]], [Asked(job("u", 1, 4))])) == {"u": 2}


def test_several_types_are_a_choice_and_one_word_may_stand_for_several_names() -> None:
    assert shares("max-min", Mixed([[A] * 4, [V] * 6], [Asked(job("u", 1, 10), Demand(types=("A100", "V100")))])) == {
        "u": 6
    }
    assert shares("max-min", Mixed([[A] * 4, [LARGE_A] * 6], [Asked(job("u", 1, 10), Demand(types=("A100",)))])) == {
        "u": 10
    }


def test_memory_alone_is_a_limit_too() -> None:
    jobs = [Asked(job("u", 1, 8)), Asked(job("m", 2, 8), Demand(memory_bytes=20 << 30))]
    assert shares("max-min", Mixed([[A] * 2, [V] * 4], jobs)) == {"u": 4, "m": 2}


def test_the_first_in_a_queue_holds_only_those_back_that_could_use_what_it_waits_for() -> None:
    jobs = [
        Asked(job("runs", 6, 6, share=6), Demand(began_on=A.name), has=0b111111),
        Asked(job("head", 8, 8), Demand(types=("A100",))),
        Asked(job("v", 2, 2), Demand(types=("V100",))),
        Asked(job("behind", 1, 1), Demand(types=("A100",))),
    ]
    assert shares("fifo", Mixed([[A] * 8, [V] * 4], jobs)) == {"runs": 6, "v": 2}


def test_so_many_on_each_server_and_the_others_take_what_that_leaves() -> None:
    jobs = [Asked(job("g", 8, 8), Demand(per_server=4)), Asked(job("u", 1, 16))]
    cluster = Mixed([[A] * 6, [A] * 6, [A] * 2], jobs)
    assert shares("max-min", cluster) == {"g": 8, "u": 6}
    assert {gpu.split(":")[0] for gpu in where(cluster)["g"]} == {"s0", "s1"}


def test_what_cannot_be_had_on_each_server_is_given_to_others() -> None:
    jobs = [Asked(job("g", 3, 6), Demand(per_server=3)), Asked(job("u", 1, 16))]
    assert shares("max-min", Mixed([[A] * 4, [A] * 2, [A] * 2], jobs)) == {"g": 3, "u": 5}


def test_a_job_with_so_many_on_each_server_stays_where_it_is() -> None:
    jobs = [Asked(job("u", 1, 2)), Asked(job("g", 4, 4, share=4), Demand(per_server=2), has=0b00110000110000)]
    assert where(Mixed([[A] * 4, [A] * 4, [A] * 6], jobs))["g"] == ["s1:0", "s1:1", "s2:2", "s2:3"]


def test_a_job_of_several_servers_takes_those_of_one_rack() -> None:
    gang = Mixed([[A] * 4] * 4, [Asked(job("g", 8, 8), Demand(per_server=4))], racks=("a", "b", "c", "b"))
    assert {gpu.split(":")[0] for gpu in where(gang)["g"]} == {"s1", "s3"}
    plain = Mixed([[A] * 4] * 4, [Asked(job("g", 8, 8))], racks=("a", "b", "c", "b"))
    assert {gpu.split(":")[0] for gpu in where(plain)["g"]} == {"s1", "s3"}


def test_a_share_by_hand_comes_first_among_the_gpus_that_the_job_may_use() -> None:
    jobs = [Asked(job("u", 1, 8)), Asked(job("a", 1, 8), Demand(types=("A100",)), by_hand=6)]
    assert shares("max-min", Mixed([[A] * 4, [V] * 4], jobs)) == {"u": 4, "a": 4}


def test_a_share_by_hand_of_less_than_one_server_is_none_and_not_all_servers() -> None:
    jobs = [Asked(job("g", 4, 8), Demand(per_server=4), by_hand=2), Asked(job("u", 1, 16))]
    assert shares("max-min", Mixed([[A] * 4] * 4, jobs)) == {"u": 16}


# ----------------------------------------------------------------------------------------------------------------- reasons


def test_a_reason_names_what_is_asked_for_and_what_is_free() -> None:
    busy = [Asked(job("r", 8, 8, share=8), Demand(began_on=A.name), has=0xFF)]
    waits = [*busy, Asked(job("w", 4, 4), Demand(types=("A100",)))]
    text = "waits for 4 A100: all 8 are in use; 12 Tesla V100-SXM2-16GB are free"
    assert reason(Mixed([[A] * 8, [V] * 12], waits), 1, "fifo") == text
    bound = [*busy, Asked(job("w", 4, 4), Demand(began_on=A.name))]
    assert "it began on NVIDIA A100-SXM4-40GB, and stays on that type" in reason(
        Mixed([[A] * 8, [V] * 12], bound), 1, "fifo"
    )


def test_a_reason_names_servers_that_are_lost() -> None:
    waits = [Asked(job("w", 4, 4), Demand(types=("A100",)))]
    lost = Mixed([[V] * 4, [A] * 2], waits, absent=[[A] * 4])
    assert reason(lost, 0) == "waits for 4 A100: 2 of 6 are there, gone0 is lost"
    assert reason(Mixed([[V] * 4, [A] * 2], waits), 0) == "asks for at least 4 A100, the cluster has 2"


def test_a_reason_counts_servers_where_so_many_are_free() -> None:
    jobs = [
        Asked(job("r", 4, 4, share=4), Demand(per_server=4), has=0b001111),
        Asked(job("w", 8, 8), Demand(per_server=4)),
    ]
    text = "waits for 8 GPUs, 4 on each server: 1 server has 4 free, and it needs 2"
    assert reason(Mixed([[A] * 6, [A] * 6], jobs), 1, "fifo") == text


# -------------------------------------------------------------------------------------------------------------- properties


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    types = draw(st.sampled_from([(), (), (), ("A100",), ("V100",), ("A100", "V100"), ("Tesla",), ("H100",)]))
    mixes = draw(st.booleans())
    return Demand(
        types=types,
        memory_bytes=draw(st.sampled_from([0, 0, 0, 16 << 30, 40 << 30])),
        mixes=mixes,
        began_on=draw(st.sampled_from(["", "", A.name, V.name])) if not mixes else "",
        per_server=draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3])),
    )


@st.composite
def mixed(draw: st.DrawFn) -> Mixed:
    """Servers of several types, and jobs that request them; half of the jobs have GPUs from an earlier decision."""
    sorts = st.sampled_from([A, A, V, V, T, LARGE_A])
    uniform = st.tuples(sorts, st.integers(1, 5)).map(lambda one: [one[0]] * one[1])
    servers = draw(
        st.lists(st.one_of(uniform, uniform, st.lists(sorts, min_size=1, max_size=4)), min_size=1, max_size=5)
    )
    jobs = []
    for number in range(draw(st.integers(1, 7))):
        demand, one = draw(demands()), draw(described(f"j{number}"))
        if each := demand.per_server:
            low, high = -(-one.min_gpus // each) * each, -(-one.max_gpus // each) * each
            one = job(one.name, low, high, requested=high, left_s=one.left_s)
        jobs.append(
            Asked(job(one.name, one.min_gpus, one.max_gpus, requested=one.requested_gpus, left_s=one.left_s), demand)
        )
    racks = draw(st.lists(st.sampled_from(["", "r", "q"]), min_size=len(servers), max_size=len(servers)))
    cluster = Mixed(servers, jobs, racks)
    earlier = run("max-min", cluster.view).placements
    held = {row: gpus for row, gpus in earlier.items() if draw(st.booleans())}
    return Mixed(servers, [_with(one, held.get(row, 0), draw) for row, one in enumerate(jobs)], racks)


def _with(asked: Asked, has: Gpus, draw: st.DrawFn) -> Asked:
    one, share = asked.job, has.bit_count()
    again = job(one.name, one.min_gpus, one.max_gpus, requested=one.requested_gpus, left_s=one.left_s, share=share)
    return Asked(again, asked.demand, has, draw(st.sampled_from([0, 0, 0, 0, 0, 2, 5])))


@given(mixed(), NAMES, st.booleans(), st.sampled_from([kind.name for kind in PLACEMENTS]))
def test_whatever_a_policy_decides_everybody_gets_what_it_may_use(
    cluster: Mixed, name: str, packing: bool, placement: str
) -> None:
    seen = cluster.view
    decision = run(name, seen, packing, placement)
    check(seen, decision)
    for row in range(len(seen.jobs)):
        decision.why(row)
    again = run(name, seen, packing, placement)
    assert again.placements == decision.placements


@given(mixed())
def test_nothing_is_idle_that_a_waiting_job_could_run_on(cluster: Mixed) -> None:
    """Under a policy that leaves nothing idle, if no job requests a number of GPUs per server."""
    seen = cluster.view
    decision = run("max-min", seen)
    idle = (1 << seen.total_gpus) - 1
    for gpus in decision.placements.values():
        idle &= ~gpus
    by_sort = gpus_by_sort(seen.servers).values()
    for row in range(len(seen.jobs)):
        if decision.shares[row] or row in seen.manual_shares or seen.per_server(row):
            continue
        limit = seen.limit(row)
        assert limit is not None
        for option in limit.options:
            assert all((idle & option & mask).bit_count() < seen.jobs.min_gpus[row] for mask in by_sort)


@given(mixed(), NAMES)
def test_a_plan_leads_from_one_possible_placement_to_another_through_possible_ones(cluster: Mixed, name: str) -> None:
    seen = cluster.view
    decision = run(name, seen)
    held: dict[int, Gpus] = dict(seen.placements)
    for change in plan(seen, decision):
        others = [gpus for row, gpus in held.items() if row != change.row]
        assert not any(change.gpus & gpus for gpus in others)
        if change.gpus:
            assert not change.gpus & ~held.get(change.row, 0) or allowed(seen, change.row, change.gpus)
        held[change.row] = change.gpus
    ordered, _ = at_once(seen.placements, plan(seen, decision), seen.placements)
    final: dict[int, Gpus] = {**seen.placements, **{change.row: change.gpus for change in ordered}}
    _apart(final)


def _apart(placements: Mapping[int, Gpus]) -> None:
    taken = 0
    for gpus in placements.values():
        assert not gpus & taken
        taken |= gpus


@given(mixed())
def test_a_decision_that_has_been_carried_out_moves_nobody(cluster: Mixed) -> None:
    """With the decided shares, and no other change."""
    first = run("max-min", cluster.view)
    jobs = []
    for row, asked in enumerate(cluster.jobs):
        one, gpus = asked.job, first.placements.get(row, 0)
        again = job(
            one.name,
            one.min_gpus,
            one.max_gpus,
            requested=one.requested_gpus,
            left_s=one.left_s,
            share=gpus.bit_count(),
        )
        jobs.append(Asked(again, asked.demand, gpus, asked.by_hand))
    second = run("max-min", Mixed(cluster.servers, jobs, cluster.racks).view)
    if (second.shares == first.shares).all():
        kept = sum((first.placements[row] & gpus).bit_count() for row, gpus in second.placements.items())
        assert kept == first.shares.sum()
