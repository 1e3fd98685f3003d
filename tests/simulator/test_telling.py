"""Jobs with correct, missing or wrong estimates of their lengths; and the visibility of estimates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.length_statistics import AS_TOLD
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.view import UNKNOWN_S, JobTable
from elasticd.simulator import simulate, traces
from elasticd.simulator.assign import assign
from elasticd.simulator.engine import Simulation
from elasticd.simulator.telling import Telling, telling
from elasticd.simulator.workload import Workload, servers

ALONE = 100.0


def workload(count: int = 6, told_s: list[float] | None = None) -> Workload:
    """Jobs of one GPU and 100 s each that arrive together."""
    ones = np.ones(count, dtype=np.int64)
    return Workload(
        names=tuple(JobId(f"j{number}") for number in range(count)),
        submit_s=np.zeros(count),
        min_gpus=ones,
        max_gpus=ones,
        requested_gpus=ones,
        work_s=np.full(count, ALONE),
        curve=np.zeros(count, dtype=np.int64),
        curves=Curves(np.array([[0.0, 1.0]])),
        models=("m",),
        told_s=None if told_s is None else np.array(told_s),
    )


class Watched:
    """A policy that gives one GPU to each in order, and records its inputs."""

    name, needs_lengths = "watched", True

    def __init__(self) -> None:
        self.seen: list[tuple[list[float], list[float], list[float], int]] = []
        self.table: JobTable | None = None
        self._fifo = load_policy({"policy": "fifo"}, "test")

    def shares(self, jobs, gpus, now, rng):  # type: ignore[no-untyped-def]
        self.table = jobs
        told = jobs.ended.errors.sum()
        self.seen.append((jobs.told_s.tolist(), jobs.left_s.tolist(), jobs.done_s.tolist(), int(told)))
        return self._fifo.shares(jobs, gpus, now, rng)


def watched(load: Workload) -> Watched:
    policy = Watched()
    Simulation(load, servers(1, 1), policy).run()
    return policy


def test_policies_see_what_is_told_and_not_the_truth() -> None:
    nan = float("nan")
    seen = watched(workload(3, [50.0, nan, 400.0])).seen
    told_s, left_s, done_s, _ = seen[0]
    assert np.array_equal(told_s, [50.0, nan, 400.0], equal_nan=True)
    assert (left_s, done_s) == ([50.0, UNKNOWN_S, 400.0], [0.0, 0.0, 0.0])


def test_who_takes_longer_than_he_has_told_has_nothing_left_and_goes_on() -> None:
    load = replace(workload(2, [30.0, 100.0]), submit_s=np.array([0.0, 60.0]))
    seen = watched(load).seen
    told_s, left_s, done_s, _ = seen[1]  # the second one comes
    assert (told_s, left_s, done_s) == ([30.0, 100.0], [0.0, 100.0], [60.0, 0.0])


def test_nothing_is_learned_of_a_job_before_it_is_over() -> None:
    policy = watched(workload(4, [100.0, 50.0, float("nan"), 100.0]))
    assert [told for *_, told in policy.seen] == [0, 1, 2, 2, 3]
    assert policy.table is not None
    assert policy.table.ended.errors[AS_TOLD] == 2
    assert policy.table.ended.lengths.sum() == 4


def test_where_all_tell_the_truth_the_columns_are_those_of_the_truth() -> None:
    for one, other in zip(watched(workload(3)).seen, watched(workload(3, [ALONE] * 3)).seen, strict=True):
        assert one == other


def test_a_part_of_the_jobs_tells_within_the_factors_and_some_end_early() -> None:
    work_s = np.full(20_000, ALONE)
    told = Telling(0.5, 0.5, 2.0, 0.3).told_s(work_s, seed=3)
    assert told is not None
    tells = told[~np.isnan(told)] / ALONE
    assert len(tells) / len(work_s) == pytest.approx(0.5, abs=0.02)
    assert tells.min() >= 0.5
    assert tells.max() <= 100.0
    assert (tells > 2).mean() == pytest.approx(0.3 * (1 - np.log(2) / np.log(100)), abs=0.02)
    again = Telling(0.5, 0.5, 2.0, 0.3).told_s(work_s, seed=3)
    assert again is not None
    assert np.array_equal(told, again, equal_nan=True)
    assert Telling().told_s(work_s, 3) is None


@pytest.mark.parametrize(
    ("told", "errors", "early", "names"),
    [
        (1.5, None, None, "--told"),
        (None, "2", None, "--errors"),
        (None, "2,0.5", None, "--errors"),
        (0.5, None, -1.0, "--early"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(
    told: float | None, errors: str | None, early: float | None, names: str
) -> None:
    with pytest.raises(UserError, match=names):
        telling(told, errors, early)


TRACE = "job,submit_s,duration_s,gpus,told_s\na,0,100,2,150\nb,0,100,1,\n"


def test_a_trace_may_say_what_jobs_have_told(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    load = assign(traces.load(tmp_path / "trace.csv"), 4, None, 0).workload
    assert load.told_s is not None
    assert np.array_equal(load.told_s, [300.0, np.nan], equal_nan=True)


def test_what_is_told_that_is_no_number_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE.replace("150", "soon"))
    with pytest.raises(UserError, match=r"line 2, column told_s"):
        traces.load(tmp_path / "trace.csv")


def test_a_simulation_from_python_takes_who_tells(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "job,submit_s,duration_s,gpus\n" + "".join(f"j{n},0,{9 + n},1\n" for n in range(9))
    )
    wanted = {"servers": 1, "gpus_per_server": 2}
    told = simulate(tmp_path / "trace.csv", ["srtf"], **wanted)["srtf"].metrics.avg_jct_s
    untold = simulate(tmp_path / "trace.csv", ["srtf"], told=0.0, **wanted)["srtf"].metrics.avg_jct_s
    assert told <= untold
