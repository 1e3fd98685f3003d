"""Costs of changing a job's GPUs in virtual time, computed by hand: two jobs under max-min on a server of four GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.policies import load_policy
from elasticd.simulator.costs import Costs
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

GPUS = 4


def simulation(
    costs: Costs, submit_s: tuple[float, ...], work_s: tuple[float, ...], policy: str = "max-min"
) -> Simulation:
    """Simulation of jobs that scale linearly."""
    count = len(work_s)
    load = Workload(
        names=tuple(JobId(f"job-{number}") for number in range(count)),
        submit_s=np.array(submit_s),
        min_gpus=np.ones(count, dtype=np.int64),
        max_gpus=np.full(count, GPUS),
        requested_gpus=np.full(count, GPUS),
        work_s=np.array(work_s),
        curve=np.zeros(count, dtype=np.int64),
        curves=Curves(np.arange(GPUS + 1, dtype=float)[None, :]),
        models=("linear",),
    )
    rule = load_policy({"policy": policy}, "test")
    return Simulation(load, servers(1, GPUS), rule, costs)


def ends_s(
    costs: Costs, submit_s: tuple[float, ...], work_s: tuple[float, ...], policy: str = "max-min"
) -> list[float]:
    """Ends of the jobs."""
    found: list[float] = simulation(costs, submit_s, work_s, policy).run().end_s.tolist()
    return found


def test_a_job_alone_starts_trains_and_ends() -> None:
    costs = Costs("test", start_s=3.0, ready_s=0.0, pause_s=0.0, end_s=0.5)
    assert ends_s(costs, (0.0,), (40.0,)) == [pytest.approx(3.0 + 10.0 + 0.5)]


@pytest.mark.parametrize("end_s", [0.0, 0.5])
def test_efficiency_counts_a_job_from_when_it_has_begun_to_when_its_last_step_is_done(end_s: float) -> None:
    """Done work, over the possible work of all GPUs up to each time."""
    costs = Costs("test", start_s=3.0, ready_s=1.0, pause_s=0.5, release_s=0.25, end_s=end_s)
    line = simulation(costs, (0.0, 5.0, 9.0), (40.0, 10.0, 20.0)).run().timeline
    lasts_s = np.diff(line.time_s)
    assert float(np.array(line.efficiency)[:-1] @ lasts_s) * GPUS == pytest.approx(40.0 + 10.0 + 20.0)
    assert simulation(costs, (0.0,), (40.0,)).run().timeline.efficiency[0] == pytest.approx(10.0 / (13.0 + end_s))


def test_gpus_that_another_job_gives_up_come_later() -> None:
    """The first has 4 GPUs, then 2 from 10 s on, and all again after the second."""
    costs = Costs("test", start_s=1.0, ready_s=0.0, pause_s=0.0, release_s=2.0)
    second_s = 10.0 + 2.0 + 1.0 + 10.0 / 2
    left = 100.0 - 4 * (10.0 - 1.0) - 2 * (second_s - 10.0)
    assert ends_s(costs, (0.0, 10.0), (100.0, 10.0)) == [pytest.approx(second_s + left / 4), pytest.approx(second_s)]


def test_gpus_of_a_job_that_moves_come_when_it_works_elsewhere() -> None:
    """The first keeps one of its two GPUs, then none; the second gets the released ones."""
    costs = Costs("test", start_s=0.0, ready_s=1.0, pause_s=0.0, release_s=2.0)
    run, jobs = simulation(costs, (0.0, 0.0), (1.0, 1.0)), np.arange(2)
    assert run._progress.free_s(jobs, [(0b0011, 0b0001), (0, 0b0010)]).tolist() == [0.0, 2.0]
    assert run._progress.free_s(jobs, [(0b0011, 0b0100), (0, 0b0011)]).tolist() == [0.0, 3.0]


def test_gpus_of_a_job_that_is_over_come_at_once() -> None:
    """The second takes the GPUs of the ended first: that costs `ready_s` alone."""
    costs = Costs("test", start_s=0.0, ready_s=1.0, pause_s=0.0, release_s=5.0)
    both = ends_s(costs, (0.0, 0.0), (20.0, 100.0))
    left = 100.0 - 2 * (10.0 + 1.0)
    assert both == [pytest.approx(10.0), pytest.approx(11.0 + left / 4)]


def test_a_job_that_is_as_good_as_over_keeps_to_its_end() -> None:
    """The second arrives while the first writes its checkpoint, and does not prolong that."""
    costs = Costs("test", start_s=0.0, ready_s=0.0, pause_s=1.0, end_s=2.0)
    first, _ = ends_s(costs, (0.0, 11.0), (40.0, 40.0))
    assert first == pytest.approx(12.0)


@pytest.mark.parametrize(("every_s", "lost_s"), [(0.0, 0.0), (4.0, 1.0), (100.0, 9.0)])
def test_a_preempted_job_goes_on_from_its_last_checkpoint(every_s: float, lost_s: float) -> None:
    """The second is shorter, and arrives when the first has trained for 9 s."""
    costs = Costs("test", start_s=1.0, ready_s=0.0, pause_s=0.0, checkpoint_every_s=every_s)
    second_s = 10.0 + 1.0 + 5.0
    first_s = second_s + 1.0 + 25.0 - 9.0 + lost_s
    both = [pytest.approx(first_s), pytest.approx(second_s)]
    assert ends_s(costs, (0.0, 10.0), (100.0, 20.0), "srtf") == both


def test_a_policy_whose_turns_end_before_the_next_checkpoint_is_refused_instead_of_simulated_for_ever() -> None:
    """Two jobs take turns of a minute, and lose all of it each time."""
    costs = Costs("test", start_s=0.0, ready_s=0.0, pause_s=0.0, checkpoint_every_s=100.0)
    with pytest.raises(UserError, match=r"no job comes any further.*checkpoint_every_s"):
        simulation(costs, (0.0, 0.0), (1000.0, 1000.0), "gandiva").run()


def test_turns_that_last_longer_than_the_time_between_checkpoints_bring_all_jobs_to_their_ends() -> None:
    costs = Costs("test", start_s=0.0, ready_s=0.0, pause_s=0.0, checkpoint_every_s=50.0)
    first_s, second_s = ends_s(costs, (0.0, 0.0), (1000.0, 1000.0), "gandiva")
    assert 2 * 250.0 < max(first_s, second_s) < 2 * 250.0 * 60.0 / 50.0
