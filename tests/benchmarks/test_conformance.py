"""Arithmetic of the conformance test: traces, courses, output. `make conformance` runs the clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.conformance import report, trace
from benchmarks.conformance.courses import Comparison, Course, average_jct_s, makespan_s
from benchmarks.conformance.kinds import KINDS, Case, Kind
from benchmarks.conformance.simulated import Files, simulate

GPUS = 8


def reckoned(kind: Kind) -> dict[int, float]:
    """Steps per second if the runtime took no time."""
    shares = range(1, kind.virtual_workers + 1)
    return {n: 1.0 / (-(-kind.virtual_workers // n) * kind.delivery_s + kind.update_s) for n in shares}


PROFILE = {kind.name: reckoned(kind) for kind in KINDS}
A = Course("a", "linear", 0.0, 10.0, ((1.0, 8), (5.0, 4)))
B = Course("b", "linear", 4.0, 8.0, ((5.0, 4),))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A small trace, with round costs."""
    found = Files(tmp_path / "trace.csv", tmp_path / "profile.csv", tmp_path / "costs.yaml")
    trace.write_profile(found.profile, PROFILE)
    trace.write_costs(found.costs, {"start_s": 1.0, "release_s": 0.5, "ready_s": 0.4, "pause_s": 0.01, "end_s": 0.2})
    trace.write_trace(found.trace, trace.plan(trace.QUICK, seed=3), trace.read_profile(found.profile))
    return found


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    assert trace.plan(trace.FULL, 1) == trace.plan(trace.FULL, 1) != trace.plan(trace.FULL, 2)


def test_no_job_requests_more_gpus_than_it_can_use() -> None:
    jobs = [job for seed in range(20) for job in trace.plan(trace.FULL, seed)]
    assert all(job.gpus <= job.kind.virtual_workers for job in jobs)
    assert {job.kind for job in jobs} == set(KINDS)
    assert all(trace.FULL.shortest_s <= job.duration_s <= trace.FULL.longest_s for job in jobs)


def test_a_profile_survives_its_file(files: Files) -> None:
    found = trace.read_profile(files.profile)
    assert {name: pytest.approx(rates, rel=1e-5) for name, rates in PROFILE.items()} == found


def test_a_share_holds_until_the_next_change_and_none_after_the_end() -> None:
    assert [A.share_at(time_s) for time_s in (0.0, 1.0, 4.9, 5.0, 9.9, 10.0)] == [0, 8, 8, 4, 4, 0]
    assert A.jct_s == 10.0
    assert B.jct_s == 4.0


def test_what_is_the_same_does_not_differ() -> None:
    same = Comparison("max-min", (A, B), (A, B))
    assert same.error == same.makespan_error == same.job_error == same.differing_share == 0.0
    assert same.conforms


def test_differences_are_parts_of_what_was_real() -> None:
    longer = Comparison("max-min", (A, B), (replace(A, end_s=12.0), B))
    assert average_jct_s(longer.simulated) == 8.0
    assert makespan_s(longer.simulated) == 12.0
    assert longer.error == pytest.approx(1 / 7)
    assert longer.makespan_error == pytest.approx(0.2)
    assert longer.job_error == pytest.approx(0.1)
    assert not longer.conforms
    late = Comparison("max-min", (A, B), (A, replace(B, shares=((6.0, 4),))))
    assert late.differing_share == pytest.approx(4 / (8 * 4 + 4 * 5 + 4 * 3))


@pytest.mark.parametrize(
    "case", [Case("max-min"), Case("afs-l"), Case("afs-l", known=False)], ids=lambda case: case.label
)
def test_the_simulator_reads_the_files_and_ends_every_job(files: Files, case: Case) -> None:
    courses = simulate(files, case)
    planned = trace.plan(trace.QUICK, seed=3)
    assert [course.name for course in courses] == [job.name for job in planned]
    assert [course.submit_s for course in courses] == [job.submit_s for job in planned]
    alone = courses[0]
    assert alone.jct_s >= planned[0].duration_s + 1.0 + 0.2 - 0.2  # its steps are whole ones
    assert all(course.shares[-1][1] > 0 for course in courses)


def test_results_take_the_place_of_those_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    machine = dict.fromkeys(("date", "processor", "memory", "system", "torch", "load"), "-")
    section = report.section(machine, PROFILE, {"start_s": 1.0}, [Comparison("max-min", (A, B), (A, B))])
    for _ in range(2):
        report.publish(page, section)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert text.count("| `max-min` | 7.0 s | 7.0 s | +0.0 % | yes |") == 1


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    from benchmarks.conformance.picture import draw  # imports matplotlib

    draw(tmp_path / "new" / "picture.png", [Comparison(name, (A, B), (B, A)) for name in ("fifo", "afs-l")], GPUS)
    assert (tmp_path / "new" / "picture.png").stat().st_size > 10_000
