"""Max-min fairness, against exhaustive search."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.policies.max_min import level
from elasticd.scheduler.view import ReasonCode

from .tables import Case, Described, ask, by_name, cases, given_to, job, reasons, table


def fairest(admitted: list[Described], total: int) -> list[int]:
    """Exhaustive search: of the feasible shares, those with the lexicographically largest sorted list."""
    ranges = [range(one.min_gpus, one.max_gpus + 1) for one in admitted]
    return max(sorted(found) for found in itertools.product(*ranges) if sum(found) <= total)


@given(cases(most_jobs=4, most_gpus=10))
def test_max_min_finds_the_fairest_shares_there_are(case: Case) -> None:
    given_ = by_name(case.table, ask("max-min", case.table, case.gpus))
    admitted = [one for one in case.jobs if one.name in given_]
    assert sorted(given_.values()) == fairest(admitted, case.gpus)


@given(cases())
def test_max_min_admits_each_job_whose_minimum_fits_beside_those_of_earlier_jobs(case: Case) -> None:
    given_ = by_name(case.table, ask("max-min", case.table, case.gpus))
    free = case.gpus
    for one in case.jobs:
        assert (one.name in given_) == (one.min_gpus <= free)
        free -= one.min_gpus if one.name in given_ else 0


@given(cases())
def test_max_min_leaves_a_gpu_idle_only_when_nobody_can_use_it(case: Case) -> None:
    given_ = by_name(case.table, ask("max-min", case.table, case.gpus))
    idle = case.gpus - sum(given_.values())
    for one in case.jobs:
        assert idle == 0 or given_.get(one.name) == one.max_gpus or (one.name not in given_ and one.min_gpus > idle)


@given(cases())
def test_max_min_does_not_depend_on_what_jobs_have_now(case: Case) -> None:
    afresh = Case(tuple(replace(one, share=0, waiting_since_s=0.0) for one in case.jobs), case.gpus)
    assert ask("max-min", case.table, case.gpus).gpus.tolist() == ask("max-min", afresh.table, case.gpus).gpus.tolist()


def test_max_min_gives_the_odd_gpu_to_the_job_submitted_first() -> None:
    assert given_to("max-min", 5, job("a", 1, 8), job("b", 1, 8)) == {"a": 3, "b": 2}


def test_a_job_whose_minimum_does_not_fit_waits_and_smaller_ones_go_first() -> None:
    jobs = table(job("a", 3, 3), job("b", 2, 4), job("c", 1, 1), job("d", 9, 9))
    given_ = ask("max-min", jobs, 4)
    assert by_name(jobs, given_) == {"a": 3, "c": 1}
    why = reasons(jobs, given_)
    assert why["b"].text == "waits for 2 GPUs: 0 of 4 left by the minimums of earlier jobs"
    assert why["d"].code is ReasonCode.CLUSTER_TOO_SMALL


def one_by_one(given_: list[int], most: list[int], free: int) -> list[int]:
    """GPU by GPU, as the rule is stated."""
    shares = list(given_)
    for _ in range(free):
        below = [(share, row) for row, share in enumerate(shares) if 0 < share < most[row]]
        if not below:
            break
        shares[min(below)[1]] += 1
    return shares


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8), st.integers(0, 60))
def test_raising_all_at_the_lowest_level_together_is_the_same_as_one_gpu_at_a_time(
    jobs: list[tuple[int, int]], free: int
) -> None:
    shares, most = [share for share, _ in jobs], [share + more for share, more in jobs]
    levelled = np.array(shares, dtype=np.int64)
    level(levelled, np.array(most, dtype=np.int64), free)
    assert levelled.tolist() == one_by_one(shares, most, free)
