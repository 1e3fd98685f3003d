"""Newcomers that do not compute what the other workers do: they do not join, and nobody is tried in their place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from elasticd.protocol import exits
from elasticd.protocol.messages import CordonServer, EventKind, GetJob, Scale, StartWorker
from elasticd.protocol.model import CordonKind, Fault, JobPhase, WorkerPhase

_spec = importlib.util.spec_from_file_location("controller_world", Path(__file__).with_name("world.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["controller_world"] = _module
_spec.loader.exec_module(_module)
World, one_running, job_spec = _module.World, _module.one_running, _module.job_spec

TOLD = "exit code 84: global_step is 150 on digits-1.0 and 0 on digits-1.1 (train.py:41); register it: run.state(global_step=0)"
NAMED = "register it: run.state(global_step=0)"


def growing(world, low=1, high=4, step=10, **changes):
    """A job whose first worker has the state of step `step`, and whose newcomers have just received it."""
    job = world.submit(job_spec(low=low, high=high, **changes))
    world.arrive(job.id)
    world.commit(job.id, step)
    return job


def newcomers(world, job):
    leader = job.newest.roster.leader
    return [worker for worker in world.roster(job.id) if worker != leader]


def differ(world, job, step=11):
    """All newcomers find at once that they differ; the others give the step up."""
    for worker in newcomers(world, job):
        world.exit(worker, exits.UNLIKE, TOLD, turn=False)
    world.turn()
    world.commit(job.id, step)


def generations(job):
    return job.record.generation


def test_a_job_goes_on_with_the_worker_that_has_the_state_and_does_not_grow():
    world = World()
    job = growing(world)
    first = job.newest.roster.leader
    assert len(newcomers(world, job)) == 3
    differ(world, job)
    assert world.roster(job.id) == [first]
    assert (job.record.phase, job.record.restarts, len(job.record.target)) == (JobPhase.RUNNING, 0, 1)
    assert NAMED in job.record.does_not_grow
    before = generations(job)
    world.pass_time(3000.0)
    assert generations(job) == before
    assert world.running(job.id) == [first]


def test_a_majority_of_newcomers_that_end_one_after_the_other_leaves_those_with_the_state():
    world = World()
    job = growing(world)
    first = job.newest.roster.leader
    for _ in range(3):
        world.exit(newcomers(world, job)[0], exits.UNLIKE, TOLD)
        world.commit(job.id, 11)
    assert world.roster(job.id) == [first]
    assert len(world.messages(StartWorker)) == 4


def test_newcomers_that_do_compute_the_same_stay_beside_the_one_that_does_not():
    world = World({"s1": 2, "s2": 1})
    job = growing(world, high=3)
    wrong = next(worker for worker in newcomers(world, job) if job.worker(worker).gpu.server == "s2")
    others = [worker for worker in world.roster(job.id) if worker != wrong]
    world.exit(wrong, exits.UNLIKE, TOLD)
    world.commit(job.id, 13)
    assert world.roster(job.id) == others
    world.commit(job.id, 20)
    world.exit(others[0], -9)  # the rest has been compared by then
    assert world.roster(job.id) == others[1:]
    assert job.record.restarts == 0


def test_it_is_said_once_and_shown_as_long_as_it_is_so():
    world = World()
    job = growing(world)
    differ(world, job)
    told = [event.text for event in world.machine.cluster.events if event.kind is EventKind.HELD]
    assert len(told) == 1
    assert NAMED in told[0]
    world.pass_time(100.0)
    found = world.ask(GetJob(job=job.id, explain=True))
    assert NAMED in found.job.reason
    assert any(NAMED in reason for reason in found.explanation.reasons)
    assert "global_step" in found.job.does_not_grow


def test_no_server_and_no_gpu_is_blamed():
    world = World({"s1": 2, "s2": 2})
    job = growing(world)
    differ(world, job)
    cluster = world.machine.cluster
    assert not cluster.health
    assert not cluster.gpu_health
    assert not job.avoided
    ended = [entry for entry in job.record.past if entry.exit_code == exits.UNLIKE]
    assert {entry.fault for entry in ended} == {Fault.SCRIPT}
    other = world.submit(job_spec("other", high=3))
    assert len(other.record.target) == 3


def test_the_next_controller_does_not_grow_it_either():
    world = World()
    job = growing(world)
    first = job.newest.roster.leader
    differ(world, job)
    world.restart()
    world.pass_time(600.0)
    job = world.job(job.id)
    assert NAMED in job.record.does_not_grow
    assert world.roster(job.id) == [first]
    assert len(world.messages(StartWorker)) == 4


def test_a_share_by_hand_tries_again_and_the_reason_comes_back():
    world = World()
    job = growing(world)
    first = job.newest.roster.leader
    differ(world, job)
    answer = world.ask(Scale(job=job.id, share=2))
    assert answer.share == 2
    assert not job.record.does_not_grow
    world.arrive(job.id)
    world.commit(job.id, 15)
    assert len(world.roster(job.id)) == 2
    differ(world, job, 16)
    assert world.roster(job.id) == [first]
    assert NAMED in job.record.does_not_grow
    before = generations(job)
    world.pass_time(600.0)
    assert generations(job) == before


def test_a_job_that_needs_more_than_have_the_state_fails_with_the_reason():
    world = World()
    job = growing(world, low=2, high=2)
    world.exit(newcomers(world, job)[0], exits.UNLIKE, TOLD)
    assert job.record.phase is JobPhase.FAILED
    assert NAMED in job.record.reason
    assert job.record.exit_code == exits.UNLIKE
    assert "2 GPUs are needed, and 1 GPU can go on" in job.record.reason


def test_if_nobody_with_the_state_is_left_it_starts_again_and_that_counts():
    world = World(max_restarts=2)
    job = growing(world)
    for restarts in range(1, 5):
        first = job.newest.roster.leader
        for worker in newcomers(world, job):
            world.exit(worker, exits.UNLIKE, TOLD, turn=False)
        world.exit(first, -9)
        if job.final:
            break
        assert job.record.restarts == restarts
        assert not job.record.does_not_grow
        world.pass_time(40.0)
        world.arrive(job.id)
        world.commit(job.id, 10)
    assert job.record.phase is JobPhase.FAILED
    assert "got no further" in job.record.reason


def test_newcomers_that_were_not_compared_are_not_the_only_ones_to_go_on():
    world = World()
    job = growing(world, high=3)
    first = job.newest.roster.leader
    one, other = newcomers(world, job)
    world.exit(one, exits.UNLIKE, TOLD)
    world.exit(first, -9)
    assert world.find(other)[1].stopping
    world.reap()
    world.pass_time(3.0)
    assert job.record.restarts == 1
    assert other not in world.roster(job.id)


def test_a_lost_worker_of_a_job_that_does_not_grow_is_not_replaced():
    world = World()
    job = growing(world, high=3)
    wrong = newcomers(world, job)[1]
    world.exit(wrong, exits.UNLIKE, TOLD)
    world.commit(job.id, 20)
    first, second = world.roster(job.id)
    world.exit(second, -9)
    world.commit(job.id, 30)
    before = generations(job)
    world.pass_time(600.0)
    assert world.roster(job.id) == [first]
    assert generations(job) == before
    assert len(world.messages(StartWorker)) == 3


def test_a_start_from_the_checkpoint_tries_newcomers_anew():
    world = World()
    job = growing(world)
    differ(world, job)
    world.exit(world.roster(job.id)[0], -9)
    world.pass_time(3.0)
    assert not job.record.does_not_grow
    assert len(world.roster(job.id)) == 4


def test_what_is_drained_is_left_by_saving_and_starting_again():
    world = World({"s1": 2, "s2": 2})
    job = growing(world, high=2)
    differ(world, job)
    (first,) = world.roster(job.id)
    here = job.worker(first).gpu.server
    world.ask(CordonServer(server=here, kind=CordonKind.DRAIN))
    assert world.find(first)[1].stopping
    assert "cannot be moved while it trains" in world.story()
    world.report(first, WorkerPhase.LEFT, job.record.committed, 11, saved=11)
    world.exit(first, 0)
    world.turn(2.0)
    world.arrive(job.id)
    world.commit(job.id, 12)
    assert {job.worker(worker).gpu.server for worker in world.roster(job.id)} == {"s2" if here == "s1" else "s1"}
    assert job.record.restarts == 0


def test_a_job_that_does_not_grow_is_not_moved_to_make_room():
    world = World({"s1": 2, "s2": 2})
    job = growing(world, high=2)
    differ(world, job)
    (first,) = world.roster(job.id)
    before = generations(job)
    for high in (2, 4, 1):
        world.submit(job_spec("other", high=high))
    world.pass_time(100.0)
    assert world.roster(job.id) == [first]
    assert generations(job) == before
