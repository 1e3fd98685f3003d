"""Quotas: guaranteed GPUs, borrowing, hard bounds; quotas in policy files."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import ServerId
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.policies import ELASTIC
from elasticd.scheduler.quotas.dividing import Tenancy
from elasticd.scheduler.quotas.terms import Group, Quota, Quotas
from elasticd.scheduler.scheduler import document, load_scheduler
from elasticd.scheduler.view import ClusterView, ReasonCode, ServerInView

from .tables import Described, job, policy, table

TWO = Quotas(users={"alice": Quota(gpus=4), "bob": Quota(gpus=2)})


def decided(
    name: str,
    gpus: int,
    quotas: Quotas,
    owners: list[str],
    *jobs: Described,
    held: dict[str, int] | None = None,
    gangs: Collection[int] = (),
    packing: bool = False,
) -> Decision:
    view = ClusterView(0.0, table(*jobs, most=max(16, gpus)), (ServerInView(ServerId("s"), tuple(range(gpus))),), {})
    tenancy = Tenancy(quotas, owners, held or {}, frozenset(gangs))
    return decide(view, policy(name), random.Random(0), packing, tenancy=tenancy)


def test_idle_quota_is_borrowed_and_given_back_by_shrinking() -> None:
    bobs = job("b1", 1, 8), job("b2", 1, 8)
    alone = decided("max-min", 6, TWO, ["bob", "bob"], *bobs)
    assert alone.shares.tolist() == [3, 3]
    both = decided("max-min", 6, TWO, ["bob", "bob", "alice"], *bobs, job("a", 1, 8))
    assert both.shares.tolist() == [1, 1, 4]
    reason = both.why(0)
    assert reason is not None
    assert reason.code is ReasonCode.QUOTA


def test_nobody_has_more_than_the_hard_bound_even_if_gpus_are_idle() -> None:
    quotas = Quotas(default=Quota(gpus=1, most_gpus=3))
    assert decided("max-min", 8, quotas, ["carol"], job("c", 1, 8)).shares.tolist() == [3]
    assert decided("max-min", 8, quotas, ["carol"], job("c", 1, 8), held={"user carol": 2}).shares.tolist() == [1]


def test_members_of_a_group_share_its_quota() -> None:
    quotas = Quotas(groups={"vision": Group(gpus=4, members=("alice", "bob"))})
    jobs = job("a", 1, 8), job("b", 1, 8), job("c1", 1, 8), job("c2", 1, 8), job("c3", 1, 8)
    shares = decided("max-min", 6, quotas, ["alice", "bob", "carol", "carol", "carol"], *jobs).shares
    assert int(shares[:2].sum()) == 4
    assert int(shares[2:].sum()) == 2


def test_gpus_that_a_gang_holds_count_for_its_tenant() -> None:
    shares = decided("max-min", 4, TWO, ["alice", "bob"], job("a", 1, 8), job("b", 1, 8), held={"user alice": 4}).shares
    assert int(shares[1]) >= 2


def test_a_gang_does_not_begin_on_gpus_that_somebody_else_is_guaranteed() -> None:
    waits = decided("max-min", 6, TWO, ["bob"], job("b", 3, 3), gangs=[0])
    assert waits.shares.tolist() == [0]
    reason = waits.why(0)
    assert reason is not None
    assert reason.code is ReasonCode.QUOTA
    assert "bob has 0 of 2 in such jobs" in reason.text
    assert decided("max-min", 7, TWO, ["bob"], job("b", 3, 3), gangs=[0]).shares.tolist() == [3]
    assert decided("max-min", 6, TWO, ["bob"], job("b", 2, 2), gangs=[0]).shares.tolist() == [2]
    assert decided("max-min", 4, TWO, ["bob"], job("b", 2, 2), held={"user bob": 2}, gangs=[0]).shares.tolist() == [0]


def test_a_gang_with_a_range_begins_with_what_it_may_keep() -> None:
    for others in ([], [job("c", 1, 1)]):
        owners = ["bob", *("carol" for _ in others)]
        shares = decided("max-min", 7, TWO, owners, job("b", 1, 7), *others, gangs=[0]).shares
        assert shares.tolist() == [3, *(1 for _ in others)]


def test_gangs_that_may_begin_each_by_itself_begin_one_after_the_other() -> None:
    jobs = [job(name, 1, 2) for name in ("b1", "b2", "c")]
    shares = decided("max-min", 7, TWO, ["bob", "bob", "carol"], *jobs, gangs=[0, 1, 2]).shares
    assert shares.tolist() == [2, 0, 1]


def test_elastic_jobs_borrow_what_gangs_may_not() -> None:
    decision = decided("max-min", 6, TWO, ["bob", "carol"], job("b", 3, 3), job("c", 1, 6), gangs=[0])
    assert decision.shares.tolist() == [0, 6]


def test_packing_does_not_round_a_share_up_beyond_a_bound() -> None:
    quotas = Quotas(users={"bob": Quota(gpus=0, most_gpus=3)})
    shares = decided("max-min", 8, quotas, ["bob", "carol"], job("b", 1, 8), job("c", 1, 5), packing=True).shares
    assert shares.tolist() == [2, 4]
    without = decided("max-min", 8, Quotas(), ["bob", "carol"], job("b", 1, 3), job("c", 1, 5), packing=True).shares
    assert int(without[0]) <= 3


OWNERS = st.sampled_from(["alice", "bob", "carol"])
COUNTS = st.integers(0, 6)


@st.composite
def tenants(draw: st.DrawFn) -> Quotas:
    def quota() -> Quota:
        gpus = draw(COUNTS)
        return Quota(gpus=gpus, most_gpus=draw(st.none() | st.integers(gpus, 12)))

    return Quotas(users={"alice": quota(), "bob": quota()}, default=quota())


@given(
    st.sampled_from(sorted(ELASTIC)),
    st.integers(1, 12),
    tenants(),
    st.lists(st.tuples(OWNERS, st.integers(1, 6)), min_size=1, max_size=6),
)
def test_every_tenant_has_its_due_and_no_gpu_is_idle_that_somebody_may_use(
    name: str, gpus: int, quotas: Quotas, wanted: list[tuple[str, int]]
) -> None:
    owners = [owner for owner, _ in wanted]
    jobs = [job(f"j{at}", 1, most) for at, (_, most) in enumerate(wanted)]
    shares = decided(name, gpus, quotas, owners, *jobs).shares
    names = sorted(set(owners))
    bounds = {who: quotas.quota(quotas.tenant(who)) for who in names}
    use = {who: sum(int(n) for owner, n in zip(owners, shares, strict=True) if owner == who) for who in names}
    could = {who: sum(most for owner, most in wanted if owner == who) for who in names}
    may = {who: min(could[who], q.most_gpus if q.most_gpus is not None else gpus) for who, q in bounds.items()}
    assert all(use[who] <= may[who] for who in names)
    due = {who: min(may[who], bounds[who].gpus) for who in names}
    if sum(due.values()) <= gpus:
        assert all(use[who] >= due[who] for who in names)
    assert sum(use.values()) == min(gpus, sum(may.values()))


def test_a_policy_file_tells_its_quotas_and_reads_them_again() -> None:
    text = {"users": {"alice": {"gpus": 4, "jobs": 10}}, "groups": {"vision": {"members": ["bob"], "gpus": 8}}}
    first = load_scheduler({"policy": "elastic", "quotas": text}, "file")
    assert first.stages.quotas.users["alice"] == Quota(gpus=4, jobs=10)
    assert load_scheduler(document(first), "again").stages.quotas == first.stages.quotas


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        ({"users": {"alice": {"gpu": 4}}}, "gpu"),
        ({"users": {"alice": {"gpus": 4, "most_gpus": 2}}}, "most_gpus 2 is less than gpus 4, which are guaranteed"),
        ({"users": {"alice": {"gpus": -1}}}, ">= 0"),
        ({"groups": {"vision": {"gpus": 4}}}, "group vision has no members"),
        ({"groups": {"a": {"members": ["x"]}, "b": {"members": ["x"]}}}, "x is a member of a and again of b"),
        (
            {"users": {"x": {"gpus": 1}}, "groups": {"a": {"members": ["x"]}}},
            "only jobs and promised_gpu_hours may stand",
        ),
    ],
)
def test_wrong_quotas_are_refused_with_a_sentence(quotas: object, words: str) -> None:
    with pytest.raises(OperatorError) as found:
        load_scheduler({"policy": "elastic", "quotas": quotas}, "file")
    assert words in str(found.value)


def test_gpus_are_guaranteed_under_elastic_policies_only() -> None:
    with pytest.raises(OperatorError, match="not fifo"):
        load_scheduler({"policy": "fifo", "quotas": {"default": {"gpus": 1}}}, "file")
    load_scheduler({"policy": "fifo", "quotas": {"default": {"jobs": 1}}}, "file")


@given(
    st.sampled_from(sorted(ELASTIC)),
    st.integers(1, 12),
    tenants(),
    st.lists(st.tuples(OWNERS, st.integers(1, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=6),
    st.dictionaries(OWNERS, st.integers(0, 3)),
    st.booleans(),
)
def test_whatever_begins_for_good_everybody_can_still_have_what_is_guaranteed(
    name: str,
    gpus: int,
    quotas: Quotas,
    wanted: list[tuple[str, int, int, bool]],
    gangs: dict[str, int],
    packing: bool,
) -> None:
    owners = [owner for owner, _, _, _ in wanted]
    jobs = [job(f"j{at}", low, low + more) for at, (_, low, more, _) in enumerate(wanted)]
    stays = [at for at, (_, _, _, gang) in enumerate(wanted) if gang]
    held = {f"user {owner}": count for owner, count in gangs.items()}
    shares = decided(name, gpus, quotas, owners, *jobs, held=held, gangs=stays, packing=packing).shares.tolist()
    fixed = dict.fromkeys(sorted({"alice", "bob", *owners, *gangs}), 0) | gangs
    guaranteed = {who: quotas.quota(quotas.tenant(who)).gpus for who in fixed}
    began = {owners[row] for row in stays if shares[row]}
    for row in stays:
        fixed[owners[row]] += shares[row]
    total = gpus + sum(gangs.values())
    if any(fixed[who] > guaranteed[who] for who in began):
        assert sum(max(guaranteed[who], fixed[who]) for who in fixed) <= total
    assert all(low <= share <= low + more for (_, low, more, _), share in zip(wanted, shares, strict=True) if share)
    bounds = {who: quotas.quota(quotas.tenant(who)).most_gpus for who in fixed}
    use = {who: gangs.get(who, 0) + sum(s for o, s in zip(owners, shares, strict=True) if o == who) for who in fixed}
    assert all(bound is None or use[who] <= max(bound, gangs.get(who, 0)) for who, bound in bounds.items())
