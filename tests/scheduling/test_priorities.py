"""Jobs of a higher priority come first, under every policy that does not declare that it ignores priorities."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import ServerId
from elasticd.scheduler.kinds import ANY
from elasticd.scheduler.pipeline import decide
from elasticd.scheduler.policies import NAMES
from elasticd.scheduler.priorities import IGNORING, IN_ORDER, by_priority, ignored
from elasticd.scheduler.view import ClusterView, Gpus, Limit, ServerInView
from elasticd.simulator import traces
from elasticd.simulator.assign import assign
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import servers

from .tables import Case, Described, ask, cases, job, policy, table

HEEDING = [name for name in NAMES if name not in IGNORING]
every_heeding_policy = pytest.mark.parametrize("name", HEEDING)


def decided(name: str, gpus: int, *jobs: Described, placements: dict[int, Gpus] | None = None) -> dict[str, int]:
    """Nonzero shares on one server, by name."""
    server = ServerInView(ServerId("s"), tuple(range(gpus)))
    view = ClusterView(0.0, table(*jobs, most=max(16, gpus)), (server,), placements or {})
    found = decide(view, policy(name), random.Random(0), packing=False).shares
    return {view.jobs.name(row): int(share) for row, share in enumerate(found) if share}


@every_heeding_policy
def test_of_two_jobs_that_wait_for_the_whole_cluster_that_of_higher_priority_starts(name: str) -> None:
    low, high = job("low", 4, 4, left_s=10.0, priority=-10), job("high", 4, 4, left_s=99.0, priority=10)
    assert decided(name, 4, low, high) == {"high": 4}
    assert decided(name, 4, replace(low, priority=0), replace(high, priority=0)) != {}


@every_heeding_policy
def test_priorities_hold_where_not_every_job_may_use_every_gpu(name: str) -> None:
    low, high = job("low", 2, 2, left_s=10.0, priority=0), job("high", 2, 2, left_s=99.0, priority=1)
    server = ServerInView(ServerId("s"), (0, 1, 2, 3))
    limits = (Limit(ANY, (0b0011,)),)
    seen = ClusterView(
        0.0, table(low, high, most=16), (server,), {}, limits=limits, limit_of=np.zeros(2, dtype=np.int64)
    )
    assert decide(seen, policy(name), random.Random(0), packing=False).shares.tolist() == [0, 2]


@pytest.mark.parametrize("name", sorted(IN_ORDER - {"max-min", "optimus", "edf", "edf-admission"}))
def test_who_interrupts_nobody_does_not_do_so_for_a_priority(name: str) -> None:
    running = job("running", 4, 4, share=4, left_s=50.0)
    high = job("high", 4, 4, left_s=5.0, priority=10)
    assert decided(name, 4, running, high, placements={0: 0b1111}) == {"running": 4}


def test_under_max_min_a_job_of_high_priority_has_its_minimum_first_and_the_rest_is_shared() -> None:
    jobs = [job("a", 2, 4), job("b", 2, 4), job("high", 2, 4, priority=10)]
    assert decided("max-min", 4, *jobs) == {"a": 2, "high": 2}
    assert decided("max-min", 8, *jobs) == {"a": 3, "b": 2, "high": 3}


@settings(max_examples=60)
@given(cases(), st.lists(st.sampled_from([-10, 0, 10]), min_size=8, max_size=8))
def test_nobody_has_gpus_with_which_a_waiting_job_of_higher_priority_could_start(
    case: Case, priorities: list[int]
) -> None:
    jobs = [replace(one, priority=each) for one, each in zip(case.jobs, priorities, strict=False)]
    for name in HEEDING:
        if name in IN_ORDER and name not in ("max-min", "optimus"):
            continue  # these interrupt no job, or the first waiting job blocks others
        seen = table(*jobs)
        whole = policy(name)
        shares = ask(by_priority(whole, seen), seen, case.gpus).gpus.tolist()
        assert sum(shares) <= case.gpus, name
        for one, share in zip(jobs, shares, strict=True):
            assert share == 0 or one.min_gpus <= share <= max(one.max_gpus, one.requested_gpus), name
            need = max(one.requested_gpus, one.max_gpus)
            left = case.gpus - sum(
                given_ for other, given_ in zip(jobs, shares, strict=True) if other.priority >= one.priority
            )
            lower = any(given_ and other.priority < one.priority for other, given_ in zip(jobs, shares, strict=True))
            assert share or not lower or left < need, f"{name}: {one.name} waits"


def test_where_all_jobs_have_the_same_priority_the_policy_is_asked_as_ever() -> None:
    whole = policy("afs-l")
    assert by_priority(whole, table(job("a", priority=10), job("b", priority=10))) is whole
    assert by_priority(whole, table()) is whole


def test_a_job_of_lower_priority_is_told_that_others_go_first_and_how_many_gpus_they_leave() -> None:
    seen = table(job("low", 2, 2, left_s=5.0), job("high", 3, 3, left_s=9.0, priority=10))
    found = ask(by_priority(policy("srtf"), seen), seen, 4)
    reason = found.why(0)
    assert reason is not None
    assert reason.text == "waits for 2 GPUs: 1 of 4 left by jobs of higher priorities"


@pytest.mark.parametrize("name", NAMES)
def test_who_submits_with_a_priority_is_told_where_it_does_nothing(name: str) -> None:
    note = ignored(policy(name), 10)
    assert (name in note) == (name in IGNORING)
    assert not ignored(policy(name), 0)


# ------------------------------------------------------------------------------------------------------------ simulations


def simulated(tmp_path: Path, name: str, header: str, *rows: str) -> dict[str, float]:
    """End of each job of a trace on a server of four GPUs."""
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([f"job_id,submission_time,duration,num_gpu{header}", *rows]) + "\n")
    load = assign(traces.load(path), 4, None, seed=0).workload
    ends_s = Simulation(load, servers(1, 4), policy(name)).run().end_s
    return dict(zip(load.names, ends_s.tolist(), strict=True))


@pytest.mark.parametrize("name", ["fifo", "srtf", "gandiva", "backfill"])
def test_a_simulation_heeds_the_priorities_of_its_trace(tmp_path: Path, name: str) -> None:
    ended = simulated(tmp_path, name, ",priority", "blocker,0,30,4,", "low,1,5,4,low", "high,2,20,4,high")
    assert ended["high"] < ended["low"]
    without = simulated(tmp_path, name, "", "blocker,0,30,4", "low,1,5,4", "high,2,20,4")
    assert without["low"] < without["high"]


def test_a_priority_in_a_trace_that_is_none_is_told_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"line 2, column priority: 'urgent' is not low, normal, high or a whole number"
    ):
        simulated(tmp_path, "fifo", ",priority", "a,0,30,4,urgent")
