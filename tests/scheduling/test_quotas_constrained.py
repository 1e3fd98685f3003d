"""Quotas where jobs may use only some GPUs: GPU types, GPUs per server, GPUs reserved for a large job."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import ServerId
from elasticd.scheduler.kinds import ANY, Demand, GpuSort
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.policies import ELASTIC
from elasticd.scheduler.quotas.dividing import Tenancy
from elasticd.scheduler.quotas.terms import Quota, Quotas
from elasticd.scheduler.view import (
    ClusterView,
    Gpus,
    Limit,
    ReasonCode,
    Reservation,
    ServerInView,
    gpus_by_sort,
    limit_for,
)

from .tables import Described, job, policy, servers, table

A, V = GpuSort("NVIDIA A100-SXM4-40GB", 40 << 30), GpuSort("Tesla V100-SXM2-16GB", 16 << 30)
OF = {"A": Demand(types=("A100",)), "V": Demand(types=("V100",)), "": ANY, "both": Demand(mixes=True)}
NAMES = ("alice", "bob", "carol")


def mixed(gpus: dict[GpuSort, int], jobs: Sequence[tuple[Described, Demand]]) -> ClusterView:
    """One server for each sort of GPUs."""
    there = tuple(
        ServerInView(ServerId(f"s{at}"), tuple(range(count)), (sort,) * count)
        for at, (sort, count) in enumerate(gpus.items())
    )
    sorts = gpus_by_sort(there)
    limits = tuple(limit_for(demand, sorts) for _, demand in jobs)
    most = max(16, sum(gpus.values()))
    return ClusterView(
        0.0, table(*(one for one, _ in jobs), most=most), there, {}, limits=limits, limit_of=np.arange(len(limits))
    )


def decided(view: ClusterView, quotas: Quotas, owners: Sequence[str], name: str = "max-min", **more: int) -> Decision:
    tenancy = Tenancy(quotas, owners, {f"user {who}": count for who, count in more.items()})
    return decide(view, policy(name), random.Random(0), packing=False, tenancy=tenancy)


def by_user(decision: Decision, owners: Sequence[str]) -> dict[str, int]:
    found = dict.fromkeys(owners, 0)
    for owner, share in zip(owners, decision.shares.tolist(), strict=True):
        found[owner] += share
    return found


def test_a_guarantee_holds_among_types_where_its_owner_has_others_to_go_to() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=4), "bob": Quota(gpus=4)})
    owners = ["alice", "alice", "bob"]
    jobs = [(job("a1", 1, 4), OF["A"]), (job("a2", 1, 4), OF["V"]), (job("b", 1, 4), OF["A"])]
    decision = decided(mixed({A: 4, V: 4}, jobs), quotas, owners)
    assert decision.shares.tolist() == [0, 4, 4]
    reason = decision.why(0)
    assert reason is not None
    assert reason.code is ReasonCode.QUOTA


def test_what_was_borrowed_of_a_type_is_given_back_when_its_owner_comes() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=3), "bob": Quota(gpus=1)})
    bobs = (job("b", 1, 4), OF["A"])
    assert decided(mixed({A: 4, V: 2}, [bobs]), quotas, ["bob"]).shares.tolist() == [4]
    both = decided(mixed({A: 4, V: 2}, [bobs, (job("a", 1, 4), OF["A"])]), quotas, ["bob", "alice"])
    assert both.shares.tolist() == [1, 3]


def test_a_bound_holds_among_types_and_counts_what_gangs_have() -> None:
    quotas = Quotas(users={"bob": Quota(gpus=1, most_gpus=3)})
    jobs = [(job("b1", 1, 4), OF["A"]), (job("b2", 1, 4), OF["V"])]
    assert sum(decided(mixed({A: 4, V: 4}, jobs), quotas, ["bob", "bob"]).shares.tolist()) == 3
    assert sum(decided(mixed({A: 4, V: 4}, jobs), quotas, ["bob", "bob"], bob=2).shares.tolist()) == 1
    assert sum(decided(mixed({A: 4, V: 4}, jobs), quotas, ["bob", "bob"], bob=3).shares.tolist()) == 0


def test_jobs_with_so_many_gpus_on_each_server_have_their_due() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=4), "bob": Quota(gpus=4)})
    jobs = [(job("b", 2, 8), ANY), (job("a", 4, 4), Demand(per_server=2))]
    view = msgspec.structs.replace(mixed({A: 4}, jobs), servers=servers(4, 4))
    sorts = gpus_by_sort(view.servers)
    view = msgspec.structs.replace(view, limits=tuple(limit_for(demand, sorts) for _, demand in jobs))
    decision = decided(view, quotas, ["bob", "alice"])
    assert decision.shares.tolist() == [4, 4]


def held_for_the_head(gpus: int, held: Gpus, jobs: Sequence[Described], head: Described) -> ClusterView:
    """GPUs are reserved for a gang that cannot start yet; elastic jobs may use all of them."""
    everything = (1 << gpus) - 1
    limits = (Limit(ANY, (everything,)), Limit(ANY, ()), Limit(ANY, (everything & ~held,)))
    limit_of = np.array([0] * len(jobs) + [1])
    reservation = Reservation(len(jobs), gpus, held.bit_count(), False, held, frozenset())
    return ClusterView(
        0.0, table(*jobs, head, most=16), servers(gpus), {}, limits=limits, limit_of=limit_of, reservation=reservation
    )


@pytest.mark.parametrize("name", sorted(ELASTIC))
def test_quotas_hold_while_gpus_are_held_for_a_large_job_that_waits(name: str) -> None:
    quotas = Quotas(users={"alice": Quota(gpus=4), "bob": Quota(gpus=1, most_gpus=2)})
    jobs = [job("b", 1, 8), job("c", 1, 8), job("a", 1, 8)]
    view = held_for_the_head(6, 0b11, jobs, job("head", 8, 8))
    use = by_user(decided(view, quotas, ["bob", "carol", "alice", "dave"], name), ["bob", "carol", "alice", "dave"])
    assert use["alice"] >= 4
    assert 1 <= use["bob"] <= 2
    assert sum(use.values()) == 6


COUNTS = st.integers(0, 6)


@st.composite
def tenants(draw: st.DrawFn) -> Quotas:
    def quota() -> Quota:
        gpus = draw(COUNTS)
        return Quota(gpus=gpus, most_gpus=draw(st.none() | st.integers(gpus, 12)))

    return Quotas(users={"alice": quota(), "bob": quota()}, default=quota())


WANTED = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 6), st.sampled_from(["A", "V", "both"])), min_size=1, max_size=6
)


def most_together(wanted: Sequence[tuple[str, int, str]], sizes: dict[str, int], due: dict[str, int]) -> int:
    """Most GPUs that all users can have together, each at most `due`: by augmenting paths, GPU by GPU (Ford and Fulkerson)."""
    slots = [(who, kind, at) for at, (who, most, kind) in enumerate(wanted) for _ in range(most)]
    gpus = [kind for kind, count in sizes.items() for _ in range(count)]
    right = [(f"of {kind}", n) for n, kind in enumerate(gpus)]
    edges: dict[object, dict[object, int]] = {}

    def edge(a: object, b: object, capacity: int) -> None:
        edges.setdefault(a, {})[b] = capacity
        edges.setdefault(b, {}).setdefault(a, 0)

    for who, most in due.items():
        edge("source", who, most)
    for number, (who, kind, _) in enumerate(slots):
        edge(who, number, 1)
        for gpu, sort in zip(right, gpus, strict=True):
            if kind in ("both", sort):
                edge(number, gpu, 1)
    for gpu in right:
        edge(gpu, "sink", 1)

    def push(node: object, seen: set[object]) -> bool:
        if node == "sink":
            return True
        seen.add(node)
        for other, capacity in edges.get(node, {}).items():
            if capacity and other not in seen and push(other, seen):
                edges[node][other] -= 1
                edges[other][node] += 1
                return True
        return False

    return sum(iter(lambda: int(push("source", set())), 0))


@given(st.sampled_from(sorted(ELASTIC)), st.integers(0, 6), st.integers(0, 6), tenants(), WANTED)
def test_among_types_nobody_passes_a_bound_and_all_have_their_due_where_that_can_be(
    name: str, of_a: int, of_v: int, quotas: Quotas, wanted: list[tuple[str, int, str]]
) -> None:
    sizes = {"A": of_a, "V": of_v}
    owners = [who for who, _, _ in wanted]
    jobs = [(job(f"j{at}", 1, most), OF[kind]) for at, (_, most, kind) in enumerate(wanted)]
    view = mixed({sort: count for sort, count in ((A, of_a), (V, of_v)) if count}, jobs)
    decision = decided(view, quotas, owners, name)
    use, total = by_user(decision, owners), of_a + of_v
    bounds = {who: quotas.quota(quotas.tenant(who)) for who in use}
    may = {who: total if quota.most_gpus is None else quota.most_gpus for who, quota in bounds.items()}
    assert all(use[who] <= may[who] for who in use)
    due = {
        who: most_together([one for one in wanted if one[0] == who], sizes, {who: min(may[who], bounds[who].gpus)})
        for who in use
    }
    if most_together(wanted, sizes, due) == sum(due.values()):
        assert all(use[who] >= due[who] for who in use)
    assert sum(use.values()) == most_together(wanted, sizes, may)


@given(
    st.sampled_from(sorted(ELASTIC)),
    st.integers(1, 8),
    st.integers(0, 255),
    tenants(),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=6),
)
def test_whatever_is_held_for_a_large_job_no_bound_is_passed(
    name: str, gpus: int, held: int, quotas: Quotas, wanted: list[tuple[str, int, int]]
) -> None:
    jobs = [job(f"j{at}", low, low + more) for at, (_, low, more) in enumerate(wanted)]
    view = held_for_the_head(gpus, held & ((1 << gpus) - 1), jobs, job("head", 9, 9))
    owners = [*(who for who, _, _ in wanted), "dave"]
    use = by_user(decided(view, quotas, owners, name), owners)
    bounds = {who: quotas.quota(quotas.tenant(who)) for who in use}
    assert all(quota.most_gpus is None or use[who] <= quota.most_gpus for who, quota in bounds.items())
    if all(low == 1 for _, low, _ in wanted):
        could = {who: sum(low + more for owner, low, more in wanted if owner == who) for who in use}
        may = {who: min(could[who], gpus, gpus if q.most_gpus is None else q.most_gpus) for who, q in bounds.items()}
        due = {who: min(may[who], bounds[who].gpus) for who in use}
        if sum(due.values()) <= gpus:
            assert all(use[who] >= due[who] for who in use)
        assert sum(use.values()) == min(gpus, sum(may.values()))
