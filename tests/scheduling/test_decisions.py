"""Decisions of the pipeline: worked examples, and properties for every cluster."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import ServerId
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.plan import ChangeKind, plan
from elasticd.scheduler.policies import POLICIES, load_policy
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.scheduler.view import ClusterView, Gpus, ReasonCode, ServerInView

from .tables import Described, cases, job, policy, table

CONFIGS = Path(__file__).parents[2] / "configs" / "policies"
NAMES = st.sampled_from([kind.name for kind in POLICIES])


def view(
    sizes: tuple[int, ...],
    *jobs: Described,
    placements: Mapping[int, Gpus] | None = None,
    manual: Mapping[int, int] | None = None,
) -> ClusterView:
    """Servers of these sizes; placements and fixed shares by row of `jobs`."""
    servers = tuple(ServerInView(ServerId(f"s{i}"), tuple(range(size))) for i, size in enumerate(sizes))
    return ClusterView(0.0, table(*jobs, most=max(16, sum(sizes))), servers, placements or {}, manual or {})


def run(name: str, seen: ClusterView, packing: bool = False) -> Decision:
    return decide(seen, policy(name), random.Random(0), packing)


def shares(name: str, seen: ClusterView, packing: bool = False) -> dict[str, int]:
    """Nonzero shares by name."""
    found = run(name, seen, packing).shares
    return {seen.jobs.name(row): int(share) for row, share in enumerate(found) if share}


def reason(name: str, seen: ClusterView, row: int) -> ReasonCode | None:
    found = run(name, seen).why(row)
    return found.code if found is not None else None


def test_max_min_gives_every_job_its_minimum_and_levels_the_rest() -> None:
    assert shares("max-min", view((4, 4), job("a", 1, 8), job("b", 1, 2), job("c", 2, 8))) == {"a": 3, "b": 2, "c": 3}


def test_a_job_whose_minimum_does_not_fit_waits_and_is_told_why() -> None:
    seen = view((4,), job("a", 3, 4), job("b", 2, 4))
    assert shares("max-min", seen) == {"a": 4}
    assert reason("max-min", seen, 0) is None
    assert reason("max-min", seen, 1) is ReasonCode.NO_FREE_GPUS
    assert reason("max-min", view((4,), job("a", 9, 9)), 0) is ReasonCode.CLUSTER_TOO_SMALL


def test_fifo_gives_all_or_nothing_and_the_first_that_waits_holds_the_others_back() -> None:
    seen = view((4,), job("a", 1, 3, share=3), job("b", 1, 2), job("c", 1, 1), placements={0: 0b111})
    assert shares("fifo", seen) == {"a": 3}
    assert reason("fifo", seen, 2) is ReasonCode.BEHIND_ANOTHER


def test_a_job_too_large_for_the_cluster_holds_nobody_back() -> None:
    assert shares("fifo", view((4,), job("a", 1, 9), job("b", 1, 2))) == {"b": 2}


def test_shares_set_by_hand_come_first() -> None:
    assert shares("max-min", view((4,), job("a", 1, 4), job("b", 1, 4), manual={1: 3})) == {"a": 1, "b": 3}
    seen = view((4,), job("a", 1, 4), job("b", 1, 4), manual={0: 3, 1: 3})
    assert shares("max-min", seen) == {"a": 3, "b": 1}
    assert reason("max-min", seen, 0) is None
    assert reason("max-min", seen, 1) is ReasonCode.MANUAL


def test_a_share_set_by_hand_that_cannot_be_had_is_not_less_than_the_job_asks_for() -> None:
    seen = view((6,), job("a", 2, 2), job("gang", 4, 4), manual={0: 4, 1: 4})
    assert shares("max-min", seen) == {"a": 4}
    assert reason("max-min", seen, 1) is ReasonCode.MANUAL
    assert shares("max-min", view((6,), job("gang", 4, 4), manual={0: 2})) == {"gang": 2}


def test_packing_regulates_the_shares_of_the_policy_but_not_those_set_by_hand() -> None:
    jobs = [job(name, 1, 8) for name in "abc"]
    assert shares("max-min", view((4, 4), *jobs), packing=True) == {"a": 4, "b": 2, "c": 2}
    assert shares("max-min", view((4, 4), *jobs, manual={1: 3}), packing=True) == {"a": 2, "b": 3, "c": 2}


def test_a_share_that_packing_has_lowered_is_explained_by_packing_and_one_that_it_has_raised_is_not() -> None:
    seen = view((4, 4), *[job(name, 1, 8) for name in "abc"])
    decision = run("max-min", seen, packing=True)
    assert decision.wanted.tolist() == [3, 3, 2]
    assert decision.shares.tolist() == [4, 2, 2]
    why = decision.why(1)
    assert why is not None
    assert why.code is ReasonCode.PACKED
    assert why.text == "2 GPUs in place of 3, so that no two jobs share a server's network"
    assert decision.why(0) is None


def test_the_reasons_of_a_policy_are_those_of_the_jobs_that_are_left_to_it() -> None:
    seen = view((4,), job("a", 1, 2), job("b", 1, 2), job("c", 3, 3), manual={0: 2})
    assert [reason("max-min", seen, row) for row in range(3)] == [None, None, ReasonCode.CLUSTER_TOO_SMALL]


def test_whoever_misses_gpus_that_are_held_by_hand_is_told_who_holds_them() -> None:
    def texts(seen: ClusterView) -> list[str]:
        return [found.text if (found := run("max-min", seen).why(row)) is not None else "" for row in range(4)]

    jobs = [job(name, 1, 4) for name in "abcd"]
    assert "by hand" not in "".join(texts(view((4,), *jobs)))
    told = texts(view((4,), *jobs, manual={0: 3}))
    assert told[0] == ""
    assert told[2].endswith("; a has 3 GPUs by hand")
    told = texts(view((4,), *jobs, manual={0: 3, 1: 1}))
    assert told[3] == "asks for at least 1 GPU, 0 of 4 are left: a has 3 GPUs by hand, b has 1 GPU by hand"
    many = view((8,), *[job(f"j{number}", 1, 1) for number in range(9)], manual=dict.fromkeys(range(8), 1))
    assert "j2 has 1 GPU by hand, 5 more have some" in run("max-min", many).why(8).text  # type: ignore[union-attr]


def test_a_policy_that_has_not_declared_that_it_needs_lengths_does_not_see_them() -> None:
    class Curious:
        name = "curious"
        needs_lengths = False

        def shares(self, jobs: object, *_: object) -> object:
            return jobs.left_s  # type: ignore[attr-defined]

    unseen, seen = view((4,), job("a")), view((4,), job("a"))
    assert len(seen.jobs.left_s) == 1  # another object has read them
    for one in (unseen, seen):
        with pytest.raises(AssertionError, match="declare"):
            decide(one, Curious(), random.Random(0), packing=False)  # type: ignore[arg-type]


def test_a_plan_stops_and_shrinks_before_it_starts() -> None:
    seen = view((4,), job("a", 1, 4, share=4), job("b", 1, 4), placements={0: 0b1111})
    changes = plan(seen, run("max-min", seen))
    assert [(change.kind, change.row) for change in changes] == [(ChangeKind.RESIZE, 0), (ChangeKind.START, 1)]
    assert changes[0].gpus & 0b1111 == changes[0].gpus
    held = {change.row: change.gpus for change in changes}
    settled = view((4,), job("a", 1, 4, share=2), job("b", 1, 4, share=2), placements=held)
    assert plan(settled, run("max-min", settled)) == ()


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_policy_file_loads_and_is_named_after_its_policy(file: Path) -> None:
    assert load_scheduler(yaml.safe_load(file.read_text()), str(file)).policy.name == file.stem


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
def clusters(draw: st.DrawFn, one_server: bool = False) -> ClusterView:
    """Jobs of any kind; some hold arbitrary GPUs, some have a fixed share."""
    sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=1 if one_server else 4)))
    free = [1 << bit for bit in range(sum(sizes))]
    draw(st.randoms(use_true_random=False)).shuffle(free)
    jobs, placements, manual = [], {}, {}
    for row, one in enumerate(draw(cases()).jobs):
        share = one.share if one.share <= len(free) else 0
        if share:
            placements[row] = sum(free[:share])
            free = free[share:]
        if draw(st.booleans()):
            manual[row] = draw(st.integers(1, one.max_gpus))
        jobs.append(
            job(
                one.name,
                one.min_gpus,
                one.max_gpus,
                requested=one.requested_gpus,
                speedup=one.speedup,
                share=share,
                left_s=one.left_s,
                executed_s=one.executed_s,
                attained_gpu_s=one.attained_gpu_s,
            )
        )
    return view(sizes, *jobs, placements=placements, manual=manual)


@given(clusters(), NAMES, st.booleans())
def test_every_decision_can_be_carried_out(seen: ClusterView, name: str, packing: bool) -> None:
    decision = run(name, seen, packing)
    again = run(name, seen, packing)
    assert (again.shares.tolist(), again.placements) == (decision.shares.tolist(), decision.placements)
    used = 0
    for gpus in decision.placements.values():
        assert not gpus & used
        used |= gpus
    assert used < 1 << seen.total_gpus
    counts = {row: gpus.bit_count() for row, gpus in decision.placements.items()}
    assert counts == {row: share for row, share in enumerate(decision.shares.tolist()) if share}


@given(clusters(), NAMES)
def test_packing_takes_nobody_its_last_gpu_and_gives_nobody_more_than_its_maximum(seen: ClusterView, name: str) -> None:
    wanted, packed = run(name, seen), run(name, seen, packing=True)
    assert [share > 0 for share in packed.shares] == [share > 0 for share in wanted.shares]
    assert packed.shares.sum() <= wanted.shares.sum()
    for row, share in enumerate(packed.shares.tolist()):
        assert share <= max(seen.jobs.max_gpus[row], wanted.shares[row])
        assert share >= min(seen.jobs.min_gpus[row], wanted.shares[row])


@given(clusters(one_server=True), NAMES)
def test_nobody_moves_without_need(seen: ClusterView, name: str) -> None:
    placements = run(name, seen).placements
    for row, before in seen.placements.items():
        after = placements.get(row, 0)
        if after.bit_count() <= before.bit_count():
            assert after & before == after
        else:
            assert after & before == before


@given(clusters())
def test_max_min_is_fair_and_wastes_nothing(seen: ClusterView) -> None:
    given_ = run("max-min", seen).shares.tolist()
    low, high = seen.jobs.min_gpus.tolist(), seen.jobs.max_gpus.tolist()
    policed = [row for row in range(len(seen.jobs)) if row not in seen.manual_shares]
    for one, other in itertools.product(policed, policed):
        assert given_[one] == 0 or low[one] <= given_[one] <= high[one]
        could_grow = 0 < given_[one] < high[one]
        has_more_than_it_must = given_[other] > low[other]
        assert not (could_grow and has_more_than_it_must and given_[other] > given_[one] + 1)
    free = seen.total_gpus - sum(given_)
    assert free == 0 or all(given_[row] in (0, high[row]) for row in policed)
    assert all(given_[row] or low[row] > free for row in policed)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 16))
def test_a_new_job_is_put_on_the_fewest_servers(sizes: list[int], share: int) -> None:
    if share > sum(sizes):
        return
    gpus = run("max-min", view(tuple(sizes), job("new", share, share))).placements[0]
    fewest = next(k for k in range(1, 5) if any(sum(some) >= share for some in itertools.combinations(sizes, k)))
    servers = [server for server, size in enumerate(sizes) for _ in range(size)]
    assert len({servers[bit] for bit in range(len(servers)) if gpus >> bit & 1}) == fewest
