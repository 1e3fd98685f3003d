"""Workers with differing states: the minority is replaced elsewhere; without a majority the job fails."""

from __future__ import annotations

from elasticd.protocol import exits
from elasticd.protocol.messages import EventKind
from elasticd.protocol.model import Fault, JobPhase

from .world import World, one_running

TOLD = "exit code 82: step 9: it differs from 2 workers that agree in parameter 0.weight"


def test_a_worker_that_differs_is_replaced_on_another_gpu():
    world = World()
    job = one_running(world, 3)
    first, second, third = world.roster(job.id)
    gpu = job.worker(second).gpu
    world.exit(second, exits.DIVERGED, TOLD)
    assert world.roster(job.id) == [first, third]
    world.commit(job.id, 11)
    roster = world.roster(job.id)
    assert roster[:2] == [first, third]
    assert len(roster) == 3
    assert gpu not in {job.worker(worker).gpu for worker in roster}
    ended = next(entry for entry in job.record.past if entry.worker == second)
    assert (ended.fault, ended.exit_code) == (Fault.SERVER, exits.DIVERGED)
    assert "came to differ" in world.machine.cluster.servers.taint(gpu).text
    assert TOLD in world.story()


def test_its_gpu_is_used_again_after_a_while():
    world = World()
    job = one_running(world, 3)
    second = world.roster(job.id)[1]
    gpu = job.worker(second).gpu
    world.exit(second, exits.DIVERGED, TOLD)
    assert world.machine.cluster.servers.taint(gpu) is not None
    world.pass_time(61.0)
    assert world.machine.cluster.servers.taint(gpu) is None


def test_where_nobody_can_tell_who_is_right_the_job_fails_at_once():
    world = World()
    job = one_running(world, 2)
    told = "exit code 83: step 9: both differ, and no majority agrees in registered value 'best'"
    world.exit(world.roster(job.id)[1], exits.DISAGREED, told)
    assert (job.record.phase, job.record.reason) == (JobPhase.FAILED, told)
    assert EventKind.RESTARTED not in world.kinds(job.id)


def test_a_job_whose_workers_differ_on_one_gpu_after_the_other_fails():
    world = World()
    job = one_running(world, 3)
    gpus = set()
    for step in (11, 22, 33):
        assert not job.final
        world.settle(job.id, step)
        newest = next(w for w in reversed(world.roster(job.id)) if job.worker(w).gpu not in gpus)
        gpus.add(job.worker(newest).gpu)
        world.exit(newest, exits.DIVERGED, TOLD)
    assert len(gpus) == 3
    assert (job.record.phase, job.record.reason) == (JobPhase.FAILED, TOLD)


def test_a_script_that_exits_so_before_it_has_trained_bars_no_gpu():
    world = World()
    job = world.submit()
    worker = world.running(job.id)[0]
    gpu = job.worker(worker).gpu
    world.exit(worker, exits.DIVERGED)
    assert world.machine.cluster.servers.taint(gpu) is None
