"""A restarted controller equals its predecessor: the same state, and the same timers."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticd.controller.machine import QUIET_S
from elasticd.controller.reconcile import snapshot as snapshots
from elasticd.controller.records import submission_key
from elasticd.controller.recovery import differences, durable
from elasticd.protocol.messages import GetJob, StopWorker
from elasticd.protocol.model import Fault, GpuAddress, JobPhase, ServerId, WorkerPhase

from .test_recovery import HostileWorld, disturb
from .world import World, job_spec


def assert_equal(world: Any) -> None:
    """A state machine recovered from the store equals the present one."""
    present = world.machine.cluster
    assert durable(present) == world.store, "the store holds what the machine has to keep"
    assert differences(present, world.new_machine().cluster) == (), world.story()


def test_leftover_workers_of_a_finished_job_are_stopped_though_the_controller_was_restarted() -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=2)).id
    world.settle(job)
    first, second = world.running(job)
    world.report(first, WorkerPhase.FINISHED, 1, 20)
    world.exit(first, 0)
    assert world.job(job).record.phase is JobPhase.FINISHED
    world.pass_time(2.0)
    assert_equal(world)
    world.restart()
    world.pass_time(6.0)
    assert [message.worker for message in world.messages(StopWorker)] == [second]
    world.reap()
    assert world.machine.cluster.gpu_free(GpuAddress(server=ServerId("s1"), index=1))


def test_a_worker_of_a_finished_job_whose_start_is_on_the_way_is_not_started_again_by_a_hello() -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=2)).id
    world.settle(job)
    first, second = world.running(job)
    world.report(first, WorkerPhase.FINISHED, 1, 20)
    world.exit(first, 0)
    world.agents["s1"].running.pop(second)
    world.agents["s1"].seen.clear()
    world.hello("s1")
    world.turn()
    assert world.running(job) == []


def lose_all(world: Any, job: str) -> None:
    for worker in world.running(job):
        world.exit(worker, -9)


def test_a_restart_that_waits_for_its_time_is_counted_once_though_the_controller_was_restarted() -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=2)).id
    world.settle(job)
    for turn in range(1, 4):
        lose_all(world, job)
        assert world.job(job).restart_at is not None
        assert_equal(world)
        for _ in range(3):
            world.restart()
            assert world.job(job).record.restarts == turn
            assert world.running(job) == [], "it waits for its time"
        world.pass_time(6.0)
        assert len(world.running(job)) == 2
        world.settle(job, step=10 * turn)
    assert world.job(job).record.restarts == 3


def test_a_timer_that_runs_out_while_servers_are_waited_for_waits_for_them_too() -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=2)).id
    world.settle(job)
    lose_all(world, job)
    world.restart(hello=False)
    world.turn(after_s=5.0)  # until it is idle
    assert world.running(job) == []
    assert world.machine.next_deadline() > world.now
    world.hello("s1")
    world.turn()
    assert len(world.running(job)) == 2


def test_growth_is_held_back_though_the_controller_was_restarted() -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=1)).id
    world.settle(job)
    world.job(job).submission = msgspec.structs.replace(world.job(job).submission, spec=job_spec(low=1, high=2))
    world.store[submission_key(job)] = msgspec.msgpack.encode(world.job(job).submission)
    world.machine.cluster.jobs.mark_all_dirty()
    world.pass_time(1.0)
    for _ in range(5):
        for worker in [worker for worker in world.running(job) if world.find(worker)[1].status is None]:
            world.exit(worker, 1)
        world.commit(job)
    assert world.job(job).hold_until is not None, world.story()
    assert_equal(world)
    world.restart()
    assert "does not grow for" in world.ask(GetJob(job=job)).job.reason
    world.pass_time(5.0)
    assert len(world.running(job)) == 1
    world.pass_time(40.0)
    assert len(world.running(job)) == 2


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_at_any_moment_a_recovered_machine_equals_the_one_before_it(seed: int) -> None:
    rng = random.Random(seed)
    world = HostileWorld({"s1": 2, "s2": 2})
    for _ in range(60):
        disturb(world, rng)
        assert_equal(world)
        if rng.random() < 0.1:
            for worker in [w for agent in world.agents.values() for w in agent.running]:
                if rng.random() < 0.7:
                    world.exit(worker, rng.choice([-9, 1, 0]))
                assert_equal(world)
        if rng.random() < 0.1:
            world.go_on(2)
            assert_equal(world)


def test_what_a_recovery_has_mended_is_recorded() -> None:
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1)).id
    world.settle(job)
    world.now -= 3600.0
    world.restart()
    assert world.job(job).record.counted_s <= world.now
    assert durable(world.machine.cluster) == world.store


def test_a_job_that_ended_while_the_controller_was_down_is_shown_with_its_last_step() -> None:
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, max_steps=189)).id
    world.settle(job, step=10)
    (worker,) = world.running(job)
    world.agents["s1"].connected = False
    world.report(worker, WorkerPhase.FINISHED, 1, 188)
    world.exit(worker, 0)
    world.restart(hello=False)
    world.hello("s1")
    world.turn()
    found = world.ask(GetJob(job=job)).job
    assert found.phase is JobPhase.FINISHED
    assert (found.step, found.total_steps) == (188, 189)


@pytest.mark.parametrize("fault", list(Fault))
def test_the_last_status_of_a_worker_counts_for_a_job_whose_other_workers_go_on(fault: Fault) -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=2)).id
    world.settle(job, step=10)
    worker = world.running(job)[1]
    world.agents["s1"].connected = False
    world.report(worker, WorkerPhase.TRAINING, 1, 55)
    world.exit(worker, -9, fault=fault)
    world.hello("s1")
    world.turn()
    assert world.job(job).reported.best_applied == 55


def test_what_a_new_controller_reckons_while_it_waits_for_its_servers_is_what_it_would_reckon_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With thousands of jobs the work for the first decision is done in pieces before the servers' hellos."""
    views = []
    for many_behind in (2, 10_000):
        monkeypatch.setattr(snapshots, "MANY_BEHIND", many_behind)
        world = World({"a": 4, "b": 4, "c": 4})
        for each in range(6):
            world.submit(job_spec(f"job{each}", high=1 + each % 3, throughput={1: 1.0 + each, 2: 1.5 + each}))
        world.turn(1.0)
        world.restart(hello=False)
        behind = [world.machine.cluster.jobs.rows.behind]
        for server in "abc":
            for _ in range(3):
                world.turn(2 * QUIET_S)
            world.hello(server)
            behind.append(world.machine.cluster.jobs.rows.behind)
        view = snapshots.snapshot(world.machine.cluster, world.now).view
        views.append(
            (view.servers, view.placements, view.jobs.max_gpus.tolist(), view.jobs.speedup(slice(None), 2).tolist())
        )
        assert (behind[-1] < 2) == (many_behind == 2), behind
    assert views[0] == views[1]
