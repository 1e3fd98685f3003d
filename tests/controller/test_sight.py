"""A job with a checkpoint resumes from it or does not start, wherever it is placed."""

from __future__ import annotations

from msgspec.structs import replace

from elasticd.controller.events import AgentMessage
from elasticd.protocol.exits import NO_CHECKPOINT
from elasticd.protocol.messages import EventKind, GetJob, GetServers, StartWorker, WorkerReport
from elasticd.protocol.model import JobPhase, ServerId, WorkerPhase

from .world import World, job_spec


def saved_job(world, gpus: int = 1, step: int = 50):
    """A job that has trained, has written a checkpoint, and has just lost all its workers."""
    job = world.submit(job_spec(low=gpus, high=gpus))
    world.settle(job.id)
    leader = job.newest.roster.leader
    world.report(leader, WorkerPhase.TRAINING, job.record.committed, step + 3, saved=step)
    world.sent.clear()
    for worker in world.roster(job.id):
        world.exit(worker, -9, turn=False)
    world.turn()
    return job


def server_of(job, worker: str) -> str:
    return next(entry.gpu.server for entry in (*job.workers, *job.record.past) if entry.worker == worker)


def see_nothing(world, job, worker: str) -> None:
    """The first holder `worker` finds no checkpoint."""
    world.exit(worker, NO_CHECKPOINT, f"exit code {NO_CHECKPOINT}: there is none in /checkpoints")


def test_a_worker_is_told_which_checkpoint_there_must_be_by_every_controller():
    world = World()
    job = saved_job(world)
    world.pass_time(2)
    assert [start.checkpoint_step for start in world.messages(StartWorker)] == [50]
    world.sent.clear()
    world.restart()
    job = world.job(job.id)
    world.exit(world.roster(job.id)[0], -9)
    world.pass_time(3)
    assert [start.checkpoint_step for start in world.messages(StartWorker)] == [50]


def test_an_older_checkpoint_of_a_slower_worker_is_not_taken_for_the_newest():
    world = World()
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    first, second = world.roster(job.id)
    world.report(first, WorkerPhase.TRAINING, job.record.committed, 60, saved=50)
    world.report(second, WorkerPhase.TRAINING, job.record.committed, 60, saved=20)
    assert job.record.saved_step == 50


def test_what_a_server_that_was_cut_off_has_written_meanwhile_is_not_asked_of_the_successors():
    world = World({"s1": 1, "s2": 1})
    job = saved_job(world)
    world.pass_time(3)
    world.settle(job.id, 60)
    (successor,) = world.running(job.id)
    generation = job.record.committed
    world.report(successor, WorkerPhase.TRAINING, generation, 70, saved=70)
    status = world.find(successor)[1].status
    late = replace(status, saved=300, saved_generation=generation - 1, sequence=status.sequence + 1)
    server = ServerId(server_of(job, successor))
    world.feed(AgentMessage(server, WorkerReport(status=late), ""))
    assert (job.record.saved_step, job.record.saved_generation) == (70, generation)


def test_a_job_that_has_gone_on_from_an_older_checkpoint_asks_for_no_newer_one():
    world = World({"s1": 1, "s2": 1})
    job = saved_job(world)
    world.pass_time(3)
    world.arrive(job.id)
    (successor,) = world.running(job.id)
    world.report(successor, WorkerPhase.TRAINING, job.record.generation, 20, saved=20)
    assert job.record.saved_step == 20


def test_a_server_that_does_not_see_the_checkpoint_is_left_for_one_that_does():
    world = World({"s1": 1, "s2": 1})
    job = saved_job(world)
    world.pass_time(2)
    (worker,) = world.running(job.id)
    before = server_of(job, worker)
    see_nothing(world, job, worker)
    world.pass_time(3)
    (worker,) = world.running(job.id)
    assert server_of(job, worker) != before
    assert [view.trouble for view in world.ask(GetServers()).servers] == ["", ""], "other jobs may start there"
    world.settle(job.id, 60)
    assert job.record.phase is JobPhase.RUNNING
    assert not job.avoided.all


def test_a_job_is_said_to_train_when_a_worker_has_its_state_and_not_at_each_try():
    world = World({"s1": 1, "s2": 1})
    job = saved_job(world)
    world.pass_time(2)
    (worker,) = world.running(job.id)
    world.report(worker, WorkerPhase.READY)
    world.report(worker, WorkerPhase.TRAINING, job.newest.generation)  # and searches the checkpoint
    assert job.record.phase is JobPhase.RUNNING
    see_nothing(world, job, worker)
    assert world.kinds(job.id)[-3:].count(EventKind.STARTED) == 0
    world.pass_time(3)
    world.settle(job.id, 60)
    assert world.kinds(job.id).count(EventKind.STARTED) == 2
    world.restart()
    world.turn()
    assert world.kinds(job.id).count(EventKind.STARTED) == 2, "what was said before is not said again"


def test_where_no_server_sees_it_the_job_waits_with_the_reason_holds_nothing_and_tries_again():
    world = World({"s1": 1, "s2": 1})
    job = saved_job(world)
    tried = []
    for _ in range(200):
        world.pass_time(1)
        for worker in world.running(job.id):
            tried.append((round(world.now), server_of(job, worker)))
            see_nothing(world, job, worker)
    assert not job.final
    assert {server for _, server in tried} == {"s1", "s2"}
    assert 6 <= len(tried) <= 20, tried
    assert job.record.target == ()
    reason = world.ask(GetJob(job=job.id)).job.reason
    assert "server s1 does not see the checkpoint of step 50 (there is none in /checkpoints)" in reason
    assert "server s2 does not see" in reason
    assert "next try in" in reason
    other = world.submit(job_spec("other", 2, 2))
    world.settle(other.id)
    assert other.record.phase is JobPhase.RUNNING


def test_a_job_on_two_servers_is_led_by_a_worker_whose_server_sees_the_checkpoint():
    world = World({"s1": 2, "s2": 2})
    job = saved_job(world, gpus=4)
    world.pass_time(2)
    leader = job.newest.roster.leader
    dark = server_of(job, leader)
    world.arrive(job.id)
    see_nothing(world, job, leader)
    world.pass_time(2)
    assert len(world.roster(job.id)) == 4
    assert server_of(job, job.newest.roster.leader) != dark
    world.settle(job.id, 60)
    assert job.share_gpus == 4


def test_one_gpu_where_the_checkpoint_is_seen_is_enough():
    world = World({"s1": 2, "s2": 1})
    job = saved_job(world, gpus=2)
    world.pass_time(2)
    assert {server_of(job, worker) for worker in world.running(job.id)} == {"s1"}
    world.arrive(job.id)
    see_nothing(world, job, job.newest.roster.leader)
    for _ in range(5):
        world.pass_time(1)
        world.reap()
    assert server_of(job, job.newest.roster.leader) == ServerId("s2")
    world.settle(job.id, 60)
    assert job.share_gpus == 2


def test_a_script_may_use_the_exit_code_for_itself_while_there_is_no_checkpoint():
    world = World()
    job = world.submit(job_spec(low=1, high=1))
    world.exit(world.running(job.id)[0], NO_CHECKPOINT, f"exit code {NO_CHECKPOINT}: no data")
    assert job.record.phase is JobPhase.FAILED
    assert job.record.exit_code == NO_CHECKPOINT


def test_what_a_worker_tells_is_among_the_jobs_events_once():
    world = World()
    job = world.submit(job_spec(low=1, high=1))
    world.settle(job.id)
    (worker,) = world.running(job.id)
    text = "the checkpoint of step 7 is damaged: back to that of step 5, 2 steps are lost"
    status = world.find(worker)[1].status
    server = ServerId(server_of(job, worker))
    for sequence in (1, 2):
        told = replace(status, news=text, sequence=status.sequence + sequence)
        world.feed(AgentMessage(server, WorkerReport(status=told), ""))
    found = [event for event in world.machine.cluster.history.events if event.kind is EventKind.TOLD]
    assert len(found) == 1
    assert (found[0].job, found[0].text.endswith(text)) == (job.id, True)
    assert found[0].text.startswith(f"{worker} on ")
