"""A controller that was stopped, or has a jumping clock, counts only the time in which it was listening."""

from __future__ import annotations

import math

import pytest

from elasticd.controller.events import AgentMessage, ControllerTick
from elasticd.protocol.messages import AgentHeartbeat, EventKind, GetEvents, GetLog, Refused, StopWorker
from elasticd.protocol.model import ServerId, WorkerPhase
from elasticd.runtime import clock

from .world import World, job_spec

JUMPS_S = (3.0, 12.0, 8 * 3600.0, 3.2e7, -0.5, -12.0, -3600.0, -1e9)


def training():
    world = World({"s1": 2, "s2": 2})
    job = world.submit(job_spec(low=1, high=4)).id
    world.settle(job)
    assert world.job(job).share_gpus == 4
    return world, job


def away(world, seconds: float, first: str = "time") -> None:
    """The controller has no turn for `seconds`. `first`: its first input afterwards."""
    world.now += seconds
    if first == "heartbeat":
        world.feed(AgentMessage(ServerId("s1"), AgentHeartbeat(server=ServerId("s1"))))
    world.feed(ControllerTick())
    world.turn()


@pytest.mark.parametrize("first", ["time", "heartbeat"])
@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_no_server_is_lost_for_the_time_that_the_controller_was_away(jump_s: float, first: str) -> None:
    world, job = training()
    away(world, jump_s, first)
    assert EventKind.SERVER_LOST not in world.kinds()
    assert world.job(job).share_gpus == 4
    assert world.kinds().count(EventKind.CONTROLLER_AWAY) == 1
    world.pass_time(30.0)
    assert EventKind.SERVER_LOST not in world.kinds()


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_leases_begin_anew_after_an_absence_and_still_run_out(jump_s: float) -> None:
    world, _ = training()
    world.turn(after_s=9.0)
    away(world, jump_s)
    world.turn(after_s=9.0)
    assert EventKind.SERVER_LOST not in world.kinds()
    world.turn(after_s=2.0)
    assert world.kinds().count(EventKind.SERVER_LOST) == 2


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_what_a_job_has_been_given_is_counted_without_the_absence(jump_s: float) -> None:
    world, job = training()
    world.pass_time(10.0)
    before = world.job(job).attained_gpu_s(world.now)
    away(world, jump_s)
    after = world.job(job).attained_gpu_s(world.now)
    assert math.isfinite(after)
    assert after == pytest.approx(before, abs=4 * 2.5)
    world.pass_time(10.0)
    assert world.job(job).attained_gpu_s(world.now) == pytest.approx(after + 40.0, abs=1.0)
    assert world.job(job).executed_s(world.now) == pytest.approx(20.0, abs=3.0)
    world.restart()
    assert world.job(job).attained_gpu_s(world.now) == pytest.approx(after + 40.0, abs=1.0)


@pytest.mark.parametrize("jump_s", [12.0, -3600.0])
def test_timers_of_jobs_wait_for_as_long_as_the_controller_was_away(jump_s: float) -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=2)).id
    world.settle(job)
    first, second = world.running(job)
    world.report(first, WorkerPhase.FINISHED, 1, 20)
    world.exit(first, 0)
    world.pass_time(3.0)
    away(world, jump_s)
    assert second not in [message.worker for message in world.messages(StopWorker)]
    world.pass_time(1.5)
    assert second not in [message.worker for message in world.messages(StopWorker)]
    world.pass_time(1.0)
    assert second in [message.worker for message in world.messages(StopWorker)]


def test_a_log_that_was_asked_for_before_an_absence_is_waited_for_after_it() -> None:
    world, job = training()
    worker = world.running(job)[0]
    assert world.ask(GetLog(job=job, worker=worker), "log") is None
    away(world, 60.0)
    assert "log" not in world.answers
    world.turn(after_s=6.0)
    assert isinstance(world.answers["log"], Refused)


def test_a_starved_controller_does_not_fill_its_history_with_that() -> None:
    world, _ = training()
    for _ in range(200):
        world.now += 3.0
        for name in world.agents:
            world.feed(AgentMessage(name, AgentHeartbeat(server=name)))
        world.turn()
    told = [event.text for event in world.ask(GetEvents()).events if event.kind is EventKind.CONTROLLER_AWAY]
    assert 5 <= len(told) <= 11, "once in a minute"
    either = "was stopped or starved for 3.0 s, or its clock was set forward by as much"
    assert told[0] == f"the controller {either}: leases begin anew"
    assert told[1] == f"the controller {either} (and 19 times more since it last said so): leases begin anew"


def test_a_turn_is_wanted_each_second_only_while_somebody_is_waited_for() -> None:
    world = World({})
    assert world.machine.next_deadline() is None
    world, _ = training()
    assert world.machine.next_deadline() <= world.now + 1.0


def test_a_controller_with_nothing_to_wait_for_was_never_away() -> None:
    world = World({})
    world.now += 3600.0
    world.submit()
    assert EventKind.CONTROLLER_AWAY not in world.kinds()


@pytest.mark.parametrize("lease_s", [0.5, 2.0, 10.0])
def test_a_short_lease_runs_out_all_the_same(lease_s: float) -> None:
    world = World({"s1": 1}, server_lease_s=lease_s)
    waited = 0.0
    while waited < lease_s + 0.3:
        step = world.machine.next_deadline() - world.now
        assert 0 < step <= 1.0
        world.now += step
        waited += step
        world.feed(ControllerTick())
        world.come_to_rest()
        if EventKind.SERVER_LOST in world.kinds():
            break
    assert EventKind.SERVER_LOST in world.kinds()
    assert waited >= lease_s - 1e-6


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_the_controller_tells_the_machines_time_after_a_jump_too(
    jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = clock.WallClock()
    before = wall.now()
    monkeypatch.setattr(clock, "time", _Jumped(before + jump_s))
    assert wall.now() == before + jump_s


class _Jumped:
    """The module `time` of a state machine, with a set clock."""

    def __init__(self, shown: float) -> None:
        self._shown = shown

    def time(self) -> float:
        return self._shown

    def monotonic(self) -> float:
        return 0.0
