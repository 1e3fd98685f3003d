"""Rigid policies in the order of submission: `fifo`, `backfill`, `yarn-cs` (head of the queue only)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elasticd.scheduler.view import UNKNOWN_S, ReasonCode

from .tables import Case, Described, ask, by_name, cases, given_to, job, policy, reasons, table

IN_ORDER = st.sampled_from(["fifo", "backfill", "yarn-cs"])


def running_fit(case: Case) -> bool:
    """No job has lost GPUs."""
    return sum(one.share for one in case.jobs) <= case.gpus


def queue(case: Case) -> list[Described]:
    """Waiting jobs that could run."""
    return [one for one in case.jobs if not one.share and one.requested_gpus <= case.gpus]


# ------------------------------------------------------------------------------------------------------------- all of them


@given(cases(), IN_ORDER)
def test_running_jobs_are_left_alone_as_long_as_their_gpus_exist(case: Case, name: str) -> None:
    if running_fit(case):
        given_ = by_name(case.table, ask(name, case.table, case.gpus))
        assert {one.name: given_[one.name] for one in case.jobs if one.share} == {
            one.name: one.share for one in case.jobs if one.share
        }


@given(cases(), IN_ORDER)
def test_who_starts_gets_what_it_requested(case: Case, name: str) -> None:
    given_ = by_name(case.table, ask(name, case.table, case.gpus))
    assert all(given_.get(one.name) in (None, one.requested_gpus) for one in case.jobs if not one.share)


def test_where_gpus_are_lost_a_job_goes_on_with_what_is_left_but_not_below_its_minimum() -> None:
    running = [job("a", 1, 3, share=3), job("b", 1, 2, share=2), job("c", 1, 1, share=1)]
    assert given_to("fifo", 4, *running) == {"a": 3, "b": 1}
    running[1] = job("b", 2, 2, share=2)
    assert given_to("fifo", 4, *running) == {"a": 3, "c": 1}


def test_a_job_too_large_for_the_cluster_holds_nobody_back() -> None:
    for name in ("fifo", "backfill", "yarn-cs"):
        jobs = table(job("a", 1, 9), job("b", 1, 2))
        given_ = ask(name, jobs, 4)
        assert by_name(jobs, given_) == {"b": 2}
        assert reasons(jobs, given_)["a"].code is ReasonCode.CLUSTER_TOO_SMALL


# ------------------------------------------------------------------------------------------------------------------- fifo


def test_fifo_gives_the_requested_gpus_in_the_order_of_submission() -> None:
    assert given_to("fifo", 6, job("a", 1, 2), job("b", 1, 3), job("c", 1, 1)) == {"a": 2, "b": 3, "c": 1}


def test_fifo_lets_nobody_overtake_the_first_job_that_waits() -> None:
    jobs = table(job("a", 1, 2), job("b", 1, 3), job("c", 1, 1), job("d", 1, 2))
    given_ = ask("fifo", jobs, 4)
    assert by_name(jobs, given_) == {"a": 2}
    why = reasons(jobs, given_)
    assert why["b"].code is ReasonCode.NO_FREE_GPUS
    assert why["b"].text == "waits for 3 GPUs: 2 of 4 free"
    assert [why[name].text for name in "cd"] == ["waits behind b"] * 2


@given(cases())
def test_fifo_starts_whoever_is_first_and_fits_and_nobody_behind_one_who_does_not(case: Case) -> None:
    given_ = by_name(case.table, ask("fifo", case.table, case.gpus))
    waiting = queue(case)
    started = [one for one in waiting if one.name in given_]
    assert started == waiting[: len(started)]
    if len(started) < len(waiting) and running_fit(case):
        assert waiting[len(started)].requested_gpus > case.gpus - sum(given_.values())


# --------------------------------------------------------------------------------------------------------------- backfill


def left_s(one: Described, gpus: int) -> float:
    speedup = one.speedup[min(gpus, len(one.speedup) - 1)]
    return one.left_s / speedup if one.left_s < UNKNOWN_S else math.inf


def start_s(wanted: int, gpus: int, running: list[tuple[float, int]]) -> float:
    """The first time at which so many GPUs are free, given the ends and shares of `running` jobs."""
    moments = [0.0, *sorted(end for end, _ in running)]
    return next(at for at in moments if gpus - sum(held for end, held in running if end > at) >= wanted)


def first_that_waits(case: Case) -> tuple[dict[str, int], Described, list[tuple[float, int]], list[tuple[float, int]]]:
    """Shares by backfill, the first waiting job, and the ends and shares of running jobs without and with overtaking."""
    given_ = by_name(case.table, ask("backfill", case.table, case.gpus))
    plain = by_name(case.table, ask("fifo", case.table, case.gpus))
    head = next((one for one in case.jobs if one.name not in plain and one.requested_gpus <= case.gpus), None)
    assume(head is not None)
    assert head is not None
    held = [
        [(left_s(one, shares[one.name]), shares[one.name]) for one in case.jobs if one.name in shares]
        for shares in (plain, given_)
    ]
    return given_, head, held[0], held[1]


@given(cases())
def test_backfill_starts_whom_fifo_starts_and_perhaps_more(case: Case) -> None:
    plain = by_name(case.table, ask("fifo", case.table, case.gpus))
    assert plain.items() <= by_name(case.table, ask("backfill", case.table, case.gpus)).items()


@settings(max_examples=50)
@given(cases(most_jobs=8))
def test_backfill_never_delays_the_first_job_that_waits(case: Case) -> None:
    given_, head, without, with_ = first_that_waits(case)
    assert head.name not in given_
    assert start_s(head.requested_gpus, case.gpus, with_) <= start_s(head.requested_gpus, case.gpus, without)


@settings(max_examples=50)
@given(cases(most_jobs=8))
def test_backfill_leaves_nobody_waiting_who_fits_and_would_not_delay_the_first(case: Case) -> None:
    given_, head, _, running = first_that_waits(case)
    reserved_s = start_s(head.requested_gpus, case.gpus, running)
    assume(reserved_s < math.inf)
    free = case.gpus - sum(given_.values())
    for one in case.jobs[case.jobs.index(head) + 1 :]:
        wanted = one.requested_gpus
        if one.name not in given_ and wanted <= free:
            assert start_s(head.requested_gpus, case.gpus, [*running, (left_s(one, wanted), wanted)]) > reserved_s


def fixed(name: str, gpus: int, seconds: float, share: int = 0) -> Described:
    """A job that takes so long on exactly these GPUs."""
    return job(name, gpus, gpus, left_s=seconds * gpus, share=share)


def test_a_later_job_overtakes_if_it_is_over_in_time() -> None:
    a, b = fixed("a", 2, 100, share=2), fixed("b", 4, 100)
    assert given_to("backfill", 4, a, b, fixed("c", 2, 100)) == {"a": 2, "c": 2}
    assert given_to("backfill", 4, a, b, fixed("c", 2, 101)) == {"a": 2}


def test_a_later_job_overtakes_for_as_long_as_it_likes_if_the_first_does_not_need_its_gpus() -> None:
    a, b = fixed("a", 2, 100, share=2), fixed("b", 3, 100)
    assert given_to("backfill", 4, a, b, fixed("c", 1, 9999), fixed("d", 1, 9999)) == {"a": 2, "c": 1}
    assert given_to("backfill", 4, a, b, fixed("c", 1, 9999), fixed("d", 1, 99)) == {"a": 2, "c": 1, "d": 1}


def test_a_job_of_unknown_length_overtakes_only_where_the_first_never_needs_its_gpus() -> None:
    a, b = fixed("a", 2, 100, share=2), fixed("b", 3, 100)
    unknown = [replace(fixed(name, 1, 1), left_s=UNKNOWN_S) for name in "cd"]
    assert given_to("backfill", 4, a, b, *unknown) == {"a": 2, "c": 1}
    endless = replace(a, left_s=UNKNOWN_S)
    assert given_to("backfill", 4, endless, b, *unknown) == {"a": 2, "c": 1}
    assert given_to("backfill", 4, endless, b, fixed("c", 2, 9999)) == {"a": 2, "c": 2}


def test_who_may_not_overtake_is_told_behind_whom_it_waits() -> None:
    jobs = table(fixed("a", 2, 100, share=2), fixed("b", 4, 100), fixed("c", 2, 101))
    why = reasons(jobs, ask("backfill", jobs, 4))
    assert (why["b"].text, why["c"].text) == ("waits for 4 GPUs: 2 of 4 free", "waits behind b")


def test_a_long_queue_is_searched_to_its_end() -> None:
    jobs = [fixed("a", 2, 100, share=2), fixed("b", 4, 100), *(fixed(f"c{i}", 2, 101) for i in range(1000))]
    assert given_to("backfill", 4, *jobs, fixed("d", 1, 100), fixed("e", 1, 100)) == {"a": 2, "d": 1, "e": 1}


# ---------------------------------------------------------------------------------------------------------------- yarn-cs


def test_yarn_cs_runs_one_job_after_the_other() -> None:
    jobs = table(job("a", 1, 2), job("b", 1, 1))
    given_ = ask("yarn-cs", jobs, 4)
    assert by_name(jobs, given_) == {"a": 2}
    assert reasons(jobs, given_)["b"].text == "waits until a is over: one job at a time"


@given(cases())
def test_yarn_cs_starts_a_job_only_on_an_idle_cluster(case: Case) -> None:
    given_ = ask("yarn-cs", case.table, case.gpus).gpus
    started = [one for one, share in zip(case.jobs, given_.tolist(), strict=True) if share and not one.share]
    assert len(started) <= 1
    assert not started or np.count_nonzero(given_) == 1


@given(cases())
def test_yarn_cs_that_packs_is_fifo(case: Case) -> None:
    packs = ask(policy("yarn-cs", one_at_a_time=False), case.table, case.gpus)
    assert packs.gpus.tolist() == ask("fifo", case.table, case.gpus).gpus.tolist()
