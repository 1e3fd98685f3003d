"""Finish-time fairness: bidders, the auction's result, payments, leases, and leftovers."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elasticd.scheduler.arrays import Floats, Ints
from elasticd.scheduler.policies.themis import (
    _after_payments,
    _auction,
    _bids,
    isolated_times_s,
    shared_times_s,
)
from elasticd.scheduler.view import JobTable, ReasonCode

from .tables import (
    Case,
    Described,
    ask,
    by_name,
    cases,
    concave_speedups,
    given_to,
    job,
    linear,
    policy,
    reasons,
    table,
)

ALL_BID = policy("themis", fairness=0.0)
BETWEEN_LEASES_S = 250.0

# ---------------------------------------------------------------------------------------------------------- unfairness


def unfairness(jobs: JobTable, share: Ints, gpus: int) -> Floats:
    return shared_times_s(jobs, share, 0.0) / isolated_times_s(jobs, gpus)


def test_unfairness_is_the_time_in_the_cluster_over_the_time_on_an_equal_share_of_it() -> None:
    """Each of two jobs alone would have had four of eight GPUs."""
    waits = job("waits", 1, 8, left_s=400, submitted_s=-50)
    has_run = job("has run", 1, 8, left_s=400, submitted_s=-50, executed_s=50, attained_gpu_s=100, share=2)
    seen = table(waits, has_run)
    rho = unfairness(seen, np.array([1, 2]), 8)
    assert rho.tolist() == pytest.approx([(50 + 400) / (400 / 4), (50 + 200) / ((400 + 100) / 4)])


def test_without_lengths_a_job_is_expected_to_take_as_long_again_as_it_has_worked_a_new_one_as_long_as_a_lease() -> (
    None
):
    """A job with much past work is expected to be slowed down for long: its rho is smaller than the new one's."""
    unaware = policy("themis", lengths="unknown", fairness=0.5)
    assert not unaware.needs_lengths
    long = job("long", 1, 1, submitted_s=-10_000, executed_s=9_000, attained_gpu_s=9_000)
    new = job("new", 1, 1, submitted_s=-800)
    rho = (10_000 + 9_000) / ((9_000 + 9_000) / 0.5), (800 + 600) / (600 / 0.5)
    assert rho[0] < rho[1]
    assert given_to(unaware, 1, long, new) == {"new": 1}
    older = job("older", 1, 1, submitted_s=-40_000, executed_s=9_000, attained_gpu_s=9_000)
    assert rho[1] < (40_000 + 9_000) / ((9_000 + 9_000) / 0.5)
    assert given_to(unaware, 1, older, new) == {"older": 1}


def test_the_equal_share_may_be_a_part_of_a_gpu_and_is_not_more_than_a_job_can_use() -> None:
    seen = table(job("a", 1, 1, left_s=100), job("b", 1, 8, left_s=100))
    assert unfairness(seen, np.array([1, 1]), 1).tolist() == pytest.approx([0.5, 0.5])
    assert unfairness(seen, np.array([1, 1]), 16).tolist() == pytest.approx([1, 8])


def test_what_a_job_has_done_follows_its_curve() -> None:
    curve = (0, 1, 1.5, 1.75, 1.875)
    seen = table(job("a", 1, 4, speedup=curve, left_s=75, executed_s=50, attained_gpu_s=150, share=3, submitted_s=-50))
    done_s = 50 * 1.75
    assert unfairness(seen, np.array([3]), 4)[0] == pytest.approx((50 + 75 / 1.75) / ((done_s + 75) / 1.875))


# --------------------------------------------------------------------------------------------------------- the auction


def won(jobs: list[Described], gpus: int) -> list[int]:
    """Won shares before payments, if all bid for everything that raises their throughput."""
    seen = table(*jobs)
    shares = np.array([one.min_gpus for one in jobs])
    bids = _bids(seen, shares.copy(), seen.max_gpus, list(range(len(jobs))), 0.0, np.zeros(len(jobs)))
    for _, row in itertools.islice(bids, gpus - int(shares.sum())):
        shares[row] += 1
    return [int(share) for share in shares]


def log_product(jobs: list[Described], shares: tuple[int, ...] | list[int]) -> float:
    """Logarithm of the product of 1 / rho, up to a constant."""
    return -sum(
        math.log(-one.submitted_s + one.left_s / one.speedup[share]) for one, share in zip(jobs, shares, strict=True)
    )


def most_by_trying(jobs: list[Described], gpus: int) -> float:
    ranges = [range(one.min_gpus, one.max_gpus + 1) for one in jobs]
    return max(log_product(jobs, shares) for shares in itertools.product(*ranges) if sum(shares) <= gpus)


@st.composite
def bidders(draw: st.DrawFn, fewest: int = 1) -> tuple[list[Described], int]:
    """Bidders with at least one GPU, and the number of GPUs to win."""
    jobs = [
        job(
            f"j{k}",
            1,
            draw(st.integers(1, 6)),
            speedup=draw(concave_speedups(6)),
            left_s=draw(st.sampled_from([10.0, 100.0, 1000.0])),
            submitted_s=-draw(st.sampled_from([0.0, 5.0, 300.0, 1e5])),
        )
        for k in range(draw(st.integers(fewest, 4)))
    ]
    return jobs, draw(st.integers(len(jobs), 12))


@given(bidders())
def test_the_auction_maximises_the_product_of_one_over_rho(drawn: tuple[list[Described], int]) -> None:
    jobs, gpus = drawn
    assert log_product(jobs, won(jobs, gpus)) == pytest.approx(most_by_trying(jobs, gpus))


@given(bidders(fewest=2))
def test_each_bidder_keeps_the_ratio_of_the_others_product_with_it_to_that_without_it(
    drawn: tuple[list[Described], int],
) -> None:
    jobs, gpus = drawn
    seen, first = table(*jobs), won(jobs, gpus)
    bids = _bids(seen, np.array(first), seen.max_gpus, list(range(len(jobs))), 0.0, np.zeros(len(jobs)))
    kept = _after_payments(dict(enumerate(first)), bids)
    for who, (gpus_won, gpus_kept) in enumerate(zip(first, kept, strict=True)):
        others = [one for row, one in enumerate(jobs) if row != who]
        with_it = log_product(others, [share for row, share in enumerate(first) if row != who])
        ratio = math.exp(with_it - most_by_trying(others, gpus))
        assert gpus_kept == pytest.approx(gpus_won * ratio, abs=1.01)
        assert gpus_kept <= gpus_won * ratio + 0.01


def test_two_alike_bidders_win_half_each_and_pay_half_of_it() -> None:
    """Without the other bidder, each would run twice as fast."""
    alike = [job(name, 1, 8, left_s=100) for name in "ab"]
    assert won(alike, 8) == [4, 4]
    seen = table(*alike)
    shares = np.zeros(2, dtype=np.int64)
    sold = _auction(seen, shares, seen.max_gpus, np.array([0, 1]), 8, 0.0, np.zeros(2))
    assert (sold, shares.tolist()) == (4, [2, 2])


def test_a_bidder_that_is_in_nobodys_way_pays_nothing() -> None:
    seen = table(job("a", 1, 4, left_s=100), job("b", 1, 4, left_s=100))
    shares = np.zeros(2, dtype=np.int64)
    assert _auction(seen, shares, seen.max_gpus, np.array([0, 1]), 8, 0.0, np.zeros(2)) == 8
    assert shares.tolist() == [4, 4]


def test_a_bidder_keeps_its_minimum_whatever_it_would_have_to_pay() -> None:
    assert given_to(ALL_BID, 6, job("a", 3, 8, left_s=100), job("b", 3, 8, left_s=100)) == {"a": 3, "b": 3}


def test_age_makes_a_job_bid_less_for_what_shortens_its_end_little() -> None:
    """Of two equal jobs the one that has waited for long gains relatively less from each further GPU."""
    fresh, aged = job("fresh", 1, 8, left_s=100), job("aged", 1, 8, left_s=100, submitted_s=-80)
    assert won([fresh, aged], 8) == [6, 2]


def test_nobody_bids_for_more_than_makes_its_time_that_on_its_isolated_share() -> None:
    """Alone it would have two of eight GPUs; two are what it needs now, and three if it has waited for 15 s."""
    for waited_s, expected in ((0.0, 2), (15.0, 3)):
        seen = table(job("a", 1, 8, left_s=100, submitted_s=-waited_s), *(job(f"j{k}", left_s=100) for k in range(3)))
        shares = np.zeros(4, dtype=np.int64)
        sold = _auction(seen, shares, seen.max_gpus, np.array([0]), 8, 0.0, isolated_times_s(seen, 8))
        assert (sold, shares.tolist()) == (expected, [expected, 0, 0, 0])


# -------------------------------------------------------------------------------------------------------------- bidders


def test_the_most_unfairly_treated_jobs_bid_and_the_short_ones_among_those_that_waited_equally_long() -> None:
    jobs = [job(f"j{k}", left_s=length, submitted_s=-100) for k, length in enumerate([1000, 10, 100, 1, 500])]
    assert given_to("themis", 1, *jobs) == {"j3": 1}
    assert given_to(policy("themis", fairness=0.6), 2, *jobs) == {"j1": 1, "j3": 1}


def test_one_job_at_least_may_bid() -> None:
    assert given_to(policy("themis", fairness=0.99), 1, job("a", left_s=10), job("b", left_s=1, submitted_s=-5)) == {
        "b": 1
    }


def test_a_job_whose_minimum_does_not_fit_leaves_the_gpus_to_others() -> None:
    wide = job("wide", 4, 4, left_s=10, submitted_s=-100)
    seen = table(wide, job("narrow", 1, 1, left_s=1000))
    shares = ask(ALL_BID, seen, 3)
    assert by_name(seen, shares) == {"narrow": 1}
    assert reasons(seen, shares)["wide"].code is ReasonCode.CLUSTER_TOO_SMALL


# --------------------------------------------------------------------------------------------------------------- leases


def test_until_the_lease_is_over_a_job_keeps_its_gpus_and_a_new_one_waits() -> None:
    long = job("long", 1, 4, share=4, left_s=1e5, executed_s=250, attained_gpu_s=1000)
    unfair = job("unfair", 1, 4, left_s=10, submitted_s=0)
    assert given_to("themis", 4, long, unfair, now=BETWEEN_LEASES_S) == {"long": 4}
    assert given_to("themis", 4, long, unfair, now=600.0)["unfair"] >= 1
    assert given_to("themis", 4, long, unfair, now=BETWEEN_LEASES_S + 600)["long"] == 4


@pytest.mark.parametrize(
    ("now", "review_s"), [(0.0, 600), (250.0, 600), (599.9995, 1200), (600.0, 1200), (600.3, 1200)]
)
def test_all_leases_end_at_the_same_moments(now: float, review_s: float) -> None:
    assert ask("themis", table(job("a", left_s=1e5)), 1, now=now).review_s == review_s


@pytest.mark.parametrize("now", [599.9995, 600.0, 600.3])
def test_leases_are_over_even_if_the_review_comes_a_little_early_or_late(now: float) -> None:
    long = job("long", 1, 1, share=1, left_s=1e5, executed_s=600, attained_gpu_s=600)
    assert given_to("themis", 1, long, job("unfair", 1, 1, left_s=10), now=now) == {"unfair": 1}


def test_nobody_asks_for_a_review_where_nobody_has_gpus() -> None:
    assert ask("themis", table(), 4).review_s == math.inf
    assert ask("themis", table(job("giant", 8)), 4).review_s == math.inf


def test_gpus_that_become_free_in_between_are_sold_and_running_jobs_may_get_more() -> None:
    runs = job("runs", 1, 4, share=2, left_s=1e5, executed_s=250, attained_gpu_s=500)
    assert given_to("themis", 4, runs, now=BETWEEN_LEASES_S) == {"runs": 4}
    new = job("new", 2, 2, left_s=100, submitted_s=10)
    assert given_to("themis", 4, runs, new, now=BETWEEN_LEASES_S) == {"runs": 2, "new": 2}


def test_where_gpus_are_lost_all_leases_are_over() -> None:
    jobs = [job(name, 1, 4, share=4, left_s=1e5, executed_s=250, attained_gpu_s=1000) for name in "ab"]
    assert sum(given_to("themis", 5, *jobs, now=BETWEEN_LEASES_S).values()) == 5


# ------------------------------------------------------------------------------------------------------------ leftovers


def test_leftovers_go_at_random_to_jobs_that_were_not_allowed_to_bid() -> None:
    unfair = job("unfair", 1, 2, left_s=10, submitted_s=-1000)
    others = [job(f"j{k}", 1, 1, left_s=1e5) for k in range(4)]
    seen = table(unfair, *others)
    drawn = [ask("themis", seen, 4, seed=seed).gpus for seed in range(60)]
    assert all(shares[0] == 2 and shares.sum() == 4 for shares in drawn)
    assert len({tuple(shares.tolist()) for shares in drawn}) == math.comb(4, 2)


def test_what_bidders_have_paid_goes_back_to_them_at_random_where_there_is_nobody_else() -> None:
    """Both have waited for so long that they bid for all they can get. Each wins four and keeps three."""
    alike = [job(name, 1, 8, left_s=100, submitted_s=-1000) for name in "ab"]
    drawn = {tuple(ask(ALL_BID, table(*alike), 8, seed=seed).gpus.tolist()) for seed in range(40)}
    assert drawn == {(3, 5), (4, 4), (5, 3)}


def test_jobs_that_get_their_isolated_share_pay_nothing() -> None:
    assert given_to(ALL_BID, 8, *(job(name, 1, 8, left_s=100) for name in "ab")) == {"a": 4, "b": 4}


@given(cases(), st.floats(0, 0.99), st.sampled_from([0.0, 250.0, 600.0]))
def test_a_gpu_is_idle_only_where_nobody_can_use_it(case: Case, fairness: float, now: float) -> None:
    seen = case.table
    shares = ask(policy("themis", fairness=fairness), seen, case.gpus, now=now).gpus
    idle = case.gpus - int(shares.sum())
    for row, share in enumerate(shares.tolist()):
        assert not idle or share == seen.max_gpus[row] or (share == 0 and seen.min_gpus[row] > idle)


@given(cases(), st.sampled_from([250.0, 900.0]))
def test_between_leases_nobody_loses_gpus(case: Case, now: float) -> None:
    assume(sum(one.share for one in case.jobs) <= case.gpus)
    shares = ask("themis", case.table, case.gpus, now=now).gpus
    assert (shares >= case.table.share).all()


def test_the_same_seed_draws_the_same() -> None:
    rng = random.Random(1)
    jobs = [job(f"j{k}", 1, 8, left_s=rng.uniform(10, 1000), speedup=linear(8)) for k in range(20)]
    assert (
        ask("themis", table(*jobs), 64, seed=3).gpus.tolist() == ask("themis", table(*jobs), 64, seed=3).gpus.tolist()
    )
