"""Apathetic future share: the paper's analysis and examples recomputed, Algorithm 1 as printed, processor sharing in units."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.policies import Policy
from elasticd.scheduler.policies.afs import Unbeaten
from elasticd.scheduler.view import UNKNOWN_S, JobTable, ReasonCode
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

from .tables import Case, Described, ask, by_name, given_to, job, linear, policy, reasons, table

HOUR_S = 3600.0

# ------------------------------------------------------------------------------------------ two jobs (AFS 3.2, Fig. 3b)


def average_end(work: Sequence[Fraction], first: Sequence[Fraction], then: Sequence[Fraction]) -> Fraction:
    """Average end of two jobs that run at the rates `first` until one ends, and then the other at its rate of `then`."""
    early, late = sorted((0, 1), key=lambda who: work[who] / first[who])
    slot_1 = work[early] / first[early]
    slot_2 = (work[late] - first[late] * slot_1) / then[late]
    return (slot_1 + slot_1 + slot_2) / 2


@st.composite
def two_jobs(draw: st.DrawFn) -> tuple[Fraction, ...]:
    """w_a, w_b, and for a and b: p, p', and the throughput of slot 2 when it is alone. a is shorter; GPUs add less and less."""

    def some() -> Fraction:
        return Fraction(draw(st.integers(1, 60)), draw(st.integers(1, 60)))

    def share() -> Fraction:
        return Fraction(draw(st.integers(1, 60)), 60)

    p_a, p_b, w_a, w_b = some(), some(), some(), some()
    if w_a / p_a > w_b / p_b:
        w_a, w_b, p_a, p_b = w_b, w_a, p_b, p_a
    q_a, q_b = p_a * (1 + share()), p_b * (1 + share())
    return w_a, w_b, p_a, q_a, q_a * (1 + share()), p_b, q_b, q_b * (1 + share())


@given(two_jobs())
def test_inequalities_1_and_2_are_what_the_average_completion_time_gains_if_the_longer_job_gets_the_gpu(
    drawn: tuple[Fraction, ...],
) -> None:
    w_a, w_b, p_a, q_a, alone_a, p_b, q_b, alone_b = drawn
    case_a = average_end((w_a, w_b), (q_a, p_b), (alone_a, alone_b))
    case_b = average_end((w_a, w_b), (p_a, q_b), (alone_a, alone_b))
    if w_a / p_a < w_b / q_b:
        printed = w_a / q_a - w_a / p_a + w_a / (2 * alone_b) * (q_b / p_a - p_b / q_a)  # (1)
    else:
        printed = (  # (2)
            w_a / q_a
            - w_b / q_b
            + p_b / (2 * alone_b) * (w_b / p_b - w_a / q_a)
            - p_a / (2 * alone_a) * (w_a / p_a - w_b / q_b)
        )
    assert case_a - case_b == printed


@given(two_jobs())
def test_inequality_3_says_who_should_get_the_gpu_if_shares_stay_what_they_are(drawn: tuple[Fraction, ...]) -> None:
    w_a, w_b, p_a, q_a, _, p_b, q_b, _ = drawn
    apathetic = (p_a, q_b)  # p'_a2 = p_a1 and p'_b2 = p'_b1, footnote 10
    case_a = average_end((w_a, w_b), (q_a, p_b), apathetic)
    case_b = average_end((w_a, w_b), (p_a, q_b), apathetic)
    assert (case_a > case_b) == ((q_b - p_b) / q_b > (q_a - p_a) / p_a)


@given(st.data(), st.integers(2, 11))
def test_of_two_jobs_the_next_gpu_shortens_the_average_where_it_goes_if_shares_stay_what_they_are(
    data: st.DataObject, gpus: int
) -> None:
    curves = [data.draw(sublinear(8)) for _ in "ab"]
    work = [data.draw(st.integers(1, 1000)) for _ in "ab"]
    seen = table(*(job(name, 1, 8, speedup=curve, left_s=w) for name, curve, w in zip("ab", curves, work, strict=True)))
    present, after = (ask("afs-l", seen, count).gpus.tolist() for count in (gpus, gpus + 1))
    p = [Fraction(curve[share]) for curve, share in zip(curves, present, strict=True)]
    q = [Fraction(curve[min(share + 1, 8)]) for curve, share in zip(curves, present, strict=True)]
    assume(all(then > now for now, then in zip(p, q, strict=True)))
    a, b = sorted((0, 1), key=lambda who: work[who] / p[who])
    apathetic = [p[0], p[1]]
    apathetic[b] = q[b]
    works = [Fraction(w) for w in work]
    if_a = average_end(works, [q[who] if who == a else p[who] for who in (0, 1)], apathetic)
    if_b = average_end(works, [q[who] if who == b else p[who] for who in (0, 1)], apathetic)
    assume(abs(if_a - if_b) > 1e-6)
    winner = b if if_b < if_a else a
    assert [then - now for now, then in zip(present, after, strict=True)] == [int(who == winner) for who in (0, 1)]


# ------------------------------------------------------------------------------------ future jobs (App. A, Fig. 12)


def fig_12(x_hours: float, future_jobs: int, name: str) -> list[float]:
    """JCTs (h) of A and B on two GPUs, and of jobs that arrive every `x_hours` from 1 h on."""
    n = 2 + future_jobs
    a, b, future = 2 / 1.0, 2 / 1.5, 2 / x_hours
    submit_h = np.array([0.0, 0.0, *(1 + x_hours * k for k in range(future_jobs))])
    load = Workload(
        names=[JobId(f"j{k:03d}") for k in range(n)],
        submit_s=submit_h * HOUR_S,
        min_gpus=np.ones(n, dtype=np.int64),
        max_gpus=np.full(n, 2),
        requested_gpus=np.full(n, 2),
        work_s=np.full(n, 2 * HOUR_S),
        curve=np.array([0, 1] + [2] * future_jobs),
        curves=Curves(np.array([[0.0, 1.0, speedup] for speedup in (a, b, future)])),
        models=("A", "B", "future"),
    )
    outcome = Simulation(load, servers(1, 2), policy(name)).run()
    return [float(taken) for taken in (outcome.end_s - load.submit_s) / HOUR_S]


def test_shortest_first_is_optimal_for_the_two_jobs_of_appendix_a_alone() -> None:
    """The paper's 1.25 h is the mean of the running times; B also waits for an hour."""
    assert fig_12(1.75, 0, "srtf") == pytest.approx([1, 2.5])


def test_shortest_first_lets_every_later_job_of_figure_12b_wait_for_b() -> None:
    assert fig_12(1.75, 20, "srtf") == pytest.approx([1, 2.5] + [1.5 + 1.75] * 20)


def test_shortest_first_starves_b_in_figure_12c() -> None:
    assert fig_12(1.25, 20, "srtf") == pytest.approx([1, 20 * 1.25 + 2.5] + [1.25] * 20)


@pytest.mark.parametrize("x_hours", [1.05, 1.25, 1.45, 1.55, 1.75, 1.95])
def test_splitting_the_gpus_in_figure_12a_beats_shortest_first_once_jobs_keep_coming(x_hours: float) -> None:
    split = [2.0, 2.0] + [1 + x_hours] * 20
    assert sum(split) < sum(fig_12(x_hours, 20, "srtf"))


@pytest.mark.parametrize("x_hours", [1.25, 1.45, 1.55, 1.75, 1.95])
def test_afs_makes_that_split_and_beats_shortest_first_too(x_hours: float) -> None:
    taken = fig_12(x_hours, 20, "afs-l")
    assert taken[:2] == pytest.approx([2, 2])
    assert sum(taken) < sum(fig_12(x_hours, 20, "srtf"))


# ------------------------------------------------------------------------------------------ transitivity (App. C)

increments = st.builds(Fraction, st.integers(1, 60), st.just(60))


def beats(longer: Fraction, shorter: Fraction) -> bool:
    """(3) for two jobs with throughput 1 and these gains from one more GPU."""
    return longer / (1 + longer) > shorter


@given(increments, increments, increments)
def test_a_job_that_beats_one_that_beats_a_third_beats_it_if_they_are_in_ascending_order(
    a: Fraction, b: Fraction, c: Fraction
) -> None:
    assert beats(c, a) or not (beats(b, a) and beats(c, b))


def test_a_chain_of_jobs_each_of_which_beats_the_one_before() -> None:
    a, b, c = Fraction(1, 10), Fraction(1, 5), Fraction(1, 2)
    assert beats(b, a)
    assert beats(c, b)
    assert beats(c, a)


CYCLE = [
    job("a", 1, 2, speedup=(0, 1, 1.3), left_s=100),
    job("b", 1, 2, speedup=(0, 1, 1.4), left_s=200),
    job("c", 1, 2, speedup=(0, 1, 1.5), left_s=300),
]


def test_where_a_longer_job_does_not_win_comparisons_can_go_round_in_a_circle() -> None:
    a, b, c = Fraction(3, 10), Fraction(4, 10), Fraction(5, 10)
    assert not beats(b, a), "a wins against b"
    assert not beats(c, b), "b wins against c"
    assert beats(c, a), "c wins against a"


def test_the_top_job_of_algorithm_1_depends_on_the_order_of_comparing() -> None:
    seen = table(*CYCLE)
    tops = {order: top_priority(seen, [1, 1, 1], list(order)) for order in itertools.permutations(range(3))}
    assert set(tops.values()) == {0, 1, 2}
    assert tops[0, 1, 2] == 2, "in ascending order of length it is c"


@pytest.mark.parametrize("order", list(itertools.permutations(CYCLE)))
def test_the_top_job_does_not_depend_on_the_order_of_submission(order: tuple[Described, ...]) -> None:
    assert given_to("afs-l", 4, *order) == {"a": 1, "b": 1, "c": 2}


# --------------------------------------------------------------------------------------------------- Algorithm 1


@st.composite
def sublinear(draw: st.DrawFn, most: int) -> tuple[float, ...]:
    """Concave curves whose second GPU adds less than the first, in exact binary fractions. They may stop growing."""
    added = [1.0, draw(st.sampled_from([0.9375, 0.75, 0.5, 0.25]))]
    for _ in range(most - 2):
        added.append(added[-1] * draw(st.sampled_from([1.0, 0.9375, 0.75, 0.5, 0.0])))
    return (0.0, *np.cumsum(added[:most]).tolist())


def top_priority(jobs: JobTable, count: list[int], order: Sequence[int]) -> int:
    """TopPriority of Algorithm 1 as printed, for jobs that can all use another GPU; a job's first GPUs are its minimum."""

    def throughput(who: int, gpus: int) -> float:
        return float(jobs.speedup(who, gpus))

    def more(who: int) -> float:
        return throughput(who, count[who] + 1 if count[who] else int(jobs.min_gpus[who]))

    def length(who: int) -> float:
        return float(jobs.left_s[who]) / throughput(who, count[who]) if count[who] else math.inf

    def first_length(who: int) -> float:
        return float(jobs.left_s[who]) / more(who)

    top = order[0]
    for other in order[1:]:
        a, b = sorted((top, other), key=lambda who: (length(who), who))
        if not count[a] and not count[b]:
            top = min(a, b, key=lambda who: (first_length(who), who))
        else:
            p_a, p_b = throughput(a, count[a]), throughput(b, count[b])
            top = b if (more(b) - p_b) / more(b) > (more(a) - p_a) / p_a else a
    return top


def algorithm_1(jobs: JobTable, gpus: int) -> list[int]:
    """Algorithm 1 as printed, with comparisons in ascending order of length; jobs that cannot use the rest do not take part."""
    count, free = [0] * len(jobs), gpus
    while True:
        able = []
        for who in range(len(jobs)):
            grown = count[who] + 1 if count[who] else int(jobs.min_gpus[who])
            fits = grown - count[who] <= free and grown <= jobs.max_gpus[who]
            if fits and jobs.speedup(who, grown) > jobs.speedup(who, count[who]):
                able.append(who)
        if not able:
            return count
        speed = {who: float(jobs.speedup(who, count[who])) for who in able}
        length = {who: float(jobs.left_s[who]) / speed[who] if speed[who] else math.inf for who in able}
        top = top_priority(jobs, count, sorted(able, key=lambda who: (length[who], who)))
        taken = 1 if count[top] else int(jobs.min_gpus[top])
        count[top] += taken
        free -= taken


@st.composite
def sublinear_cases(draw: st.DrawFn, most_jobs: int = 8, most_gpus: int = 24) -> Case:
    jobs = []
    for number in range(draw(st.integers(0, most_jobs))):
        low = draw(st.sampled_from([1, 1, 1, 2, 3]))
        left_s = draw(st.sampled_from([10.0, 10.0, 15.0, 37.0, 400.0, UNKNOWN_S]))
        jobs.append(job(f"j{number}", low, draw(st.integers(low, 8)), speedup=draw(sublinear(8)), left_s=left_s))
    return Case(tuple(jobs), draw(st.integers(0, most_gpus)))


@given(sublinear_cases())
def test_afs_l_is_algorithm_1(case: Case) -> None:
    assert ask("afs-l", case.table, case.gpus).gpus.tolist() == algorithm_1(case.table, case.gpus)


@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_afs_l_is_algorithm_1_with_many_jobs_and_gpus(seed: int) -> None:
    rng = random.Random(seed)
    jobs = []
    for number in range(rng.randrange(1, 40)):
        exponent = rng.uniform(0.3, 0.99)
        curve = [0.0, *(n**exponent for n in range(1, 17))]
        left_s = 10 ** rng.uniform(0, 3)
        jobs.append(job(f"j{number}", 1, rng.randrange(1, 17), speedup=curve, left_s=left_s))
    case = Case(tuple(jobs), rng.randrange(1, 150))
    assert ask("afs-l", case.table, case.gpus).gpus.tolist() == algorithm_1(case.table, case.gpus)


def test_every_job_gets_a_gpu_before_one_that_scales_linearly_gets_a_second_one() -> None:
    """Both sides of (3) are 1 for the second GPU of `short` and the first one of `long`."""
    assert given_to("afs-l", 2, job("long", 1, 4, left_s=200), job("short", 1, 4, left_s=100)) == {
        "long": 1,
        "short": 1,
    }


def test_with_linear_throughput_the_shorter_job_gets_what_is_left() -> None:
    """Where no throughput is lost by it, (3) prefers short jobs, as SRTF does (AFS 2.1)."""
    assert given_to("afs-l", 6, job("long", 1, 8, left_s=200), job("short", 1, 8, left_s=10)) == {"long": 2, "short": 4}


def test_a_long_job_that_scales_gets_more_than_a_short_one_that_does_not() -> None:
    short = job("short", 1, 8, speedup=(0, 1, 1.1, 1.15, 1.2, 1.2, 1.2, 1.2, 1.2), left_s=10)
    assert given_to("afs-l", 8, short, job("long", 1, 8, speedup=linear(8), left_s=1000)) == {"short": 1, "long": 7}


def test_the_shortest_jobs_go_first_where_there_are_more_jobs_than_gpus() -> None:
    jobs = [job(f"j{k}", 1, 8, left_s=length) for k, length in enumerate([50, 40, 30, 20, 10])]
    seen = table(*jobs)
    shares = ask("afs-l", seen, 2)
    assert by_name(seen, shares) == {"j3": 1, "j4": 1}
    assert {name: reason.code for name, reason in reasons(seen, shares).items()} == dict.fromkeys(
        ["j0", "j1", "j2"], ReasonCode.NO_FREE_GPUS
    )


def test_a_job_whose_length_is_not_known_counts_as_very_long() -> None:
    assert given_to("afs-l", 1, job("unknown", left_s=UNKNOWN_S), job("known", left_s=1e6)) == {"known": 1}


def test_a_job_whose_minimum_does_not_fit_is_passed_over_and_what_is_left_is_shared_out() -> None:
    jobs = [job("a", 2, 8, left_s=10), job("b", 3, 8, left_s=100), job("c", 2, 8, left_s=1000)]
    assert given_to("afs-l", 6, *jobs) == {"a": 3, "b": 3}
    assert given_to("afs-l", 4, *jobs) == {"a": 2, "c": 2}


def test_many_short_jobs_that_cannot_fit_at_all_do_not_keep_others_from_running() -> None:
    giants = [job(f"g{k}", 8, 8, left_s=1) for k in range(10)]
    assert given_to("afs-l", 4, *giants, job("small", 1, 4, left_s=100)) == {"small": 4}
    assert given_to("afs-p", 4, *giants, job("small", 1, 4)) == {"small": 4}


def test_a_job_is_ordered_by_the_time_that_it_would_take_with_its_minimum() -> None:
    wide = job("wide", 4, 4, left_s=200)
    assert given_to("afs-l", 4, job("narrow", 1, 1, left_s=100), wide) == {"wide": 4}


# ------------------------------------------------------------------------------------------------- without lengths

elastic = st.sampled_from(["afs-l", "afs-p", "afs-s"])


@given(sublinear_cases(), elastic)
def test_a_gpu_is_idle_only_where_nobody_can_use_it(case: Case, name: str) -> None:
    seen = case.table
    shares = ask(name, seen, case.gpus).gpus
    idle = case.gpus - int(shares.sum())
    for row, share in enumerate(shares.tolist()):
        if share:
            full = share == seen.max_gpus[row] or (
                name != "afs-s" and seen.speedup(row, share + 1) == seen.speedup(row, share)
            )
            assert full or not idle
        else:
            assert seen.min_gpus[row] > idle


@given(sublinear_cases(most_jobs=5), st.integers(0, 3))
def test_without_lengths_a_gpu_goes_to_a_job_that_no_other_beats_whichever_is_shorter(case: Case, seed: int) -> None:
    seen = case.table
    assume(int(seen.min_gpus.sum()) <= case.gpus)
    before = ask("afs-p", seen, case.gpus, seed=seed).gpus
    after = ask("afs-p", seen, case.gpus + 1, seed=seed).gpus
    able = [row for row in range(len(seen)) if before[row] < seen.max_gpus[row]]
    now = {row: float(seen.speedup(row, before[row])) for row in able}
    then = {row: float(seen.speedup(row, before[row] + 1)) for row in able}
    given_rows = np.flatnonzero(after != before).tolist()
    assert len(given_rows) == int(any(then[row] > now[row] for row in able))
    for winner in given_rows:
        assert after[winner] == before[winner] + 1
        assert all((then[row] - now[row]) / then[row] <= (then[winner] - now[winner]) / now[winner] for row in able)


def test_without_lengths_the_undecided_gpu_stays_where_it_is_and_else_goes_at_random() -> None:
    alike = [job(name, 1, 8, speedup=linear(8)) for name in "abcd"]
    shares = [tuple(ask("afs-p", table(*alike), 5, seed=seed).gpus.tolist()) for seed in range(40)]
    assert set(shares) == {(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)}
    has_it = [replace(one, share=2 if one.name == "c" else 1) for one in alike]
    assert {tuple(ask("afs-p", table(*has_it), 5, seed=seed).gpus.tolist()) for seed in range(40)} == {(1, 1, 2, 1)}


@given(sublinear_cases())
def test_knowing_only_the_peak_is_max_min_up_to_it(case: Case) -> None:
    assume(int(case.table.min_gpus.sum()) <= case.gpus)
    assert ask("afs-s", case.table, case.gpus).gpus.tolist() == ask("max-min", case.table, case.gpus).gpus.tolist()


# --------------------------------------------------------------------------------------------- processor sharing


@pytest.mark.parametrize("name", ["afs-p", "afs-s"])
def test_nobody_asks_for_a_review_while_all_jobs_run(name: str) -> None:
    assert ask(name, table(job("a", 1, 4), job("b", 1, 4)), 4).review_s == math.inf


def test_a_job_that_can_never_run_gives_no_reason_for_turns() -> None:
    assert ask("afs-p", table(job("a", 1, 4), job("giant", 8, 8)), 4).review_s == math.inf


def test_the_jobs_that_have_run_fewest_units_go_first_and_of_these_the_first_submitted() -> None:
    jobs = [job("a", executed_s=250), job("b", executed_s=130), job("c", executed_s=199), job("d", executed_s=100)]
    assert given_to(policy("afs-p", unit_s=100), 2, *jobs) == {"b": 1, "c": 1}


def test_a_job_is_not_taken_off_before_its_unit_is_over() -> None:
    jobs = [job("a", share=1, executed_s=250), job("b")]
    assert given_to(policy("afs-p", unit_s=100), 1, *jobs) == {"a": 1}
    shares = ask(policy("afs-p", unit_s=100), table(*jobs), 1, now=1000.0)
    assert shares.review_s == pytest.approx(1050.0)


@pytest.mark.parametrize("executed_s", [299.9999, 300.0, 300.3])
def test_a_job_whose_unit_is_over_is_taken_off_even_if_the_review_came_a_little_early_or_late(
    executed_s: float,
) -> None:
    jobs = [job("a", share=1, executed_s=executed_s), job("b", executed_s=200)]
    assert given_to(policy("afs-p", unit_s=100), 1, *jobs) == {"b": 1}


def turns(who: Policy, jobs: list[Described], gpus: int, until_s: float, late_s: float) -> list[dict[str, float]]:
    """Running time of each job at each review, with reviews that come late."""
    now, history = 0.0, []
    while now < until_s:
        shares = ask(who, table(*jobs), gpus, now=now)
        passed = shares.review_s + late_s - now
        now += passed
        jobs = [
            replace(one, share=gpus_, executed_s=one.executed_s + passed * (gpus_ > 0))
            for one, gpus_ in zip(jobs, shares.gpus.tolist(), strict=True)
        ]
        history.append({one.name: one.executed_s for one in jobs})
    return history


@pytest.mark.parametrize("late_s", [0.0, 0.2])
@pytest.mark.parametrize(("jobs", "gpus"), [(3, 2), (7, 3), (5, 4)])
def test_jobs_take_turns_so_that_none_is_more_than_a_unit_ahead(jobs: int, gpus: int, late_s: float) -> None:
    history = turns(policy("afs-p", unit_s=100), [job(f"j{k}") for k in range(jobs)], gpus, 5000.0, late_s)
    assert all(max(ran.values()) - min(ran.values()) <= 100 + late_s + 1 for ran in history)
    assert min(history[-1].values()) > 5000 * gpus / jobs - 200


pairs = st.tuples(st.integers(-2, 9), st.integers(0, 6), st.booleans())  # gain, how far the bar lies above it, had it


@given(st.lists(pairs, min_size=1, max_size=12), st.lists(st.tuples(st.integers(0, 11), pairs), max_size=40))
def test_the_unbeaten_that_heaps_find_are_those_that_comparing_all_finds(
    jobs: list[tuple[int, int, bool]], changes: list[tuple[int, tuple[int, int, bool]]]
) -> None:
    gain, bar = [float(value) for value, _, _ in jobs], [float(value + above) for value, above, _ in jobs]
    had = [had_it for _, _, had_it in jobs]
    line = Unbeaten(gain.copy(), bar.copy(), had.copy())
    for at, (value, above, had_it) in [(0, jobs[0]), *changes]:
        at %= len(jobs)
        gain[at], bar[at], had[at] = float(value), float(value + above), had_it
        line.change(at, gain[at], bar[at], had[at])
        unbeaten = [job for job in range(len(jobs)) if bar[job] >= max(gain)]
        first = min(unbeaten, key=lambda job: (not had[job], job))
        assert line.first() == (first if max(gain) > 0 else None)
