"""Newcomers with differing results: they do not join, and the controller tries no others."""

from __future__ import annotations

import pytest

from elasticd.protocol import exits
from elasticd.protocol.messages import CordonServer, EventKind, GetJob, Scale, StartWorker
from elasticd.protocol.model import CordonKind, Fault, JobPhase, WorkerPhase

from .world import World, job_spec, one_running

TOLD = "exit code 84: global_step is 150 on digits-1.0 and 0 on digits-1.1 (train.py:41); register it: run.state(global_step=0)"
NAMED = "register it: run.state(global_step=0)"


def growing(world, low=1, high=4, step=10, **changes):
    """A job with one worker at step `step`, and newcomers that have just received the state."""
    job = world.submit(job_spec(low=low, high=high, **changes))
    world.arrive(job.id)
    world.commit(job.id, step)
    return job


def newcomers(world, job):
    leader = job.newest.roster.leader
    return [worker for worker in world.roster(job.id) if worker != leader]


def differ(world, job, step=11):
    """All newcomers find that they differ; the others abandon the step."""
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
    world.exit(others[0], -9)  # the others have been compared by then
    assert world.roster(job.id) == others[1:]
    assert job.record.restarts == 0


def test_it_is_said_once_and_shown_as_long_as_it_is_so():
    world = World()
    job = growing(world)
    differ(world, job)
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.HELD]
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
    assert not cluster.servers.health
    assert not cluster.servers.gpu_health
    assert not job.avoided.all
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


# ------------------------------------------------------------------------------------------ newcomers with other code

OTHER = "exit code 85: train.py differs: 1f3a at the job's start, 9c02 on s2"
SAID = "train.py differs: 1f3a at the job's start, 9c02 on s2"


def refuse(world, job, server="s2"):
    """All workers on `server` are refused by the holders of the state."""
    for worker in [worker for worker in world.running(job.id) if job.worker(worker).gpu.server == server]:
        world.exit(worker, exits.OTHER_CODE, OTHER)


def test_a_server_with_other_code_is_avoided_by_that_job_alone_and_training_goes_on():
    world = World({"s1": 1, "s2": 1})
    job = growing(world, high=1)
    world.ask(Scale(job=job.id, share=2))
    refuse(world, job)
    world.commit(job.id, 20)
    assert {job.worker(worker).gpu.server for worker in world.roster(job.id)} == {"s1"}
    assert (job.record.phase, job.record.restarts) == (JobPhase.RUNNING, 0)
    assert not world.machine.cluster.servers.health
    found = world.ask(GetJob(job=job.id))
    assert SAID in found.job.reason
    assert "next try in" in found.job.reason
    other = world.submit(job_spec("other", high=1))
    assert [gpu.server for gpu in other.record.target] == ["s2"]


def test_a_job_that_was_refused_on_one_server_grows_on_another():
    world = World({"s1": 1, "s2": 1, "s3": 1})
    job = growing(world, high=2)
    second = world.roster(job.id)[1]
    there = job.worker(second).gpu.server
    world.exit(second, exits.OTHER_CODE, OTHER)
    world.commit(job.id, 20)
    world.settle(job.id, 30)
    servers = {job.worker(worker).gpu.server for worker in world.roster(job.id)}
    assert len(servers) == 2
    assert there not in servers


def test_joining_elsewhere_does_not_end_the_avoidance():
    world = World({"s1": 2, "s2": 1})
    job = growing(world, high=3)
    before = generations(job)
    for _ in range(600):
        refuse(world, job)
        world.settle(job.id, world.job(job.id).reported.best_applied + 3, rounds=1)
        world.pass_time(1.0)
    assert {job.worker(worker).gpu.server for worker in world.roster(job.id)} == {"s1"}
    assert len(world.roster(job.id)) == 2
    assert generations(job) - before < 40


def test_code_that_is_no_server_s_any_more_ends_the_job_after_the_limit():
    world = World({"s1": 1, "s2": 1}, max_restarts=3)
    job = world.submit(job_spec(high=2))
    world.settle(job.id, 10)
    for worker in world.running(job.id):
        world.exit(worker, -9, turn=False)
    world.turn()
    before = generations(job)
    for _ in range(2000):
        if job.final:
            break
        for worker in world.running(job.id):
            world.exit(worker, exits.OTHER_CODE, OTHER)
        world.pass_time(1.0)
    assert job.record.phase is JobPhase.FAILED
    assert SAID in job.record.reason
    assert generations(job) - before < 20


# ------------------------------------------------------- newcomers that end before they have taken part, on any path

ANOTHER = "exit code 1: UserError: another model: this one has 'b' where the training state has 'a'"
T, READY = WorkerPhase.TRAINING, WorkerPhase.READY


def try_for(world, job, seconds, end, servers=("s2",)):
    """Let `seconds` pass; newcomers on `servers` end by `end`, the others train one step per second."""
    step = max(job.reported.best_applied, 10)
    for _ in range(seconds):
        if job.final:
            return
        world.reap()
        step += 1
        newest = job.newest
        if newest is None:
            world.pass_time(1.0)
            continue
        for worker in list(newest.roster.workers):
            entry = job.worker(worker)
            if entry is None or worker not in world.running(job.id):
                continue
            if entry.gpu.server in servers and not entry.trained:
                end(world, job, worker)
        newest = job.newest
        if newest is not None and all(worker in world.running(job.id) for worker in newest.roster.workers):
            world.arrive(job.id)
            world.commit(job.id, step)
        world.pass_time(1.0)


def ends_before_its_loop(world, job, worker):
    world.exit(worker, 1, "exit code 1: FileNotFoundError: /data")


def ends_in_the_transfer(world, job, worker):
    world.report(worker, READY)
    generation = job.newest.generation
    for other in job.newest.roster.workers:
        applied = job.reported.best_applied if job.worker(other).trained else None
        world.report(other, T, generation, applied)
    world.exit(worker, 1, ANOTHER)


def ends_at_its_first_step(world, job, worker):
    world.report(worker, READY)
    world.commit(job.id, job.reported.best_applied + 1)
    world.exit(worker, 1, "exit code 1: ValueError: label 17 is out of range")


def is_killed_at_its_first_step(world, job, worker):
    world.report(worker, READY)
    world.commit(job.id, job.reported.best_applied + 1)
    world.exit(worker, -9)


def cannot_connect(world, job, worker):
    world.report(worker, READY)
    world.exit(worker, exits.UNREACHABLE, "exit code 80: no connection")


ENDS = (ends_before_its_loop, ends_in_the_transfer, ends_at_its_first_step, is_killed_at_its_first_step, cannot_connect)
each_end = pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)


def half_running(world, low, high):
    """One worker on the first server has the state; joiners on other servers do not have it yet."""
    job = world.submit(job_spec(low=low, high=high))
    world.arrive(job.id)
    return job


@each_end
def test_an_elastic_job_trains_on_and_makes_few_generations(end):
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    world.ask(Scale(job=job.id, share=2))
    before = generations(job)
    try_for(world, job, 3600, end, servers=("s1", "s2"))
    assert job.record.phase is JobPhase.RUNNING
    assert job.reported.best_applied > 3000
    assert generations(job) - before < 40
    assert job.record.restarts == 0


@each_end
def test_a_newcomer_that_joins_elsewhere_changes_nothing(end):
    world = World({"s1": 2, "s2": 2})
    job = one_running(world, 1)
    world.ask(Scale(job=job.id, share=4))
    before = generations(job)
    try_for(world, job, 3600, end)
    assert job.record.phase is JobPhase.RUNNING
    assert generations(job) - before < 40


@pytest.mark.parametrize("end", ENDS[1:], ids=lambda end: end.__name__)
def test_a_job_of_fixed_size_fails_after_the_limit_and_names_both_servers(end):
    world = World({"s1": 1, "s2": 1}, max_restarts=5)
    job = world.submit(job_spec(low=2, high=2))
    world.arrive(job.id)
    world.commit(job.id, 10)
    world.settle(job.id, 20)
    lost = next(worker for worker in world.roster(job.id) if job.worker(worker).gpu.server == "s2")
    world.exit(lost, -9)
    world.commit(job.id, 30)
    before = generations(job)
    try_for(world, job, 3600, end)
    assert job.record.phase is JobPhase.FAILED
    assert "s1:0" in job.record.reason
    assert "s2:0" in job.record.reason
    assert generations(job) - before < 20


def test_a_server_where_the_script_does_not_come_to_its_loop_is_left_alone_longer_each_time():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    world.ask(Scale(job=job.id, share=2))
    here = job.worker(world.roster(job.id)[0]).gpu.server
    there = "s2" if here == "s1" else "s1"
    before = generations(job)
    try_for(world, job, 3600, ends_before_its_loop, servers=(there,))
    assert job.record.phase is JobPhase.RUNNING
    assert generations(job) - before < 60
    assert "FileNotFoundError" in world.machine.cluster.servers.health[there].reason


def test_a_job_that_lost_its_workers_and_gets_no_others_is_not_said_to_be_preempted():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    here = world.roster(job.id)[0]
    world.exit(here, -9)
    for server in ("s1", "s2"):
        world.ask(CordonServer(server=server))
    world.pass_time(20.0)
    assert job.record.phase is JobPhase.PENDING
    assert EventKind.PREEMPTED not in world.kinds(job.id)
    assert EventKind.WAITING in world.kinds(job.id)


def test_a_job_of_fixed_size_whose_state_fits_no_newcomer_fails_from_its_start():
    world = World({"s1": 1, "s2": 1}, max_restarts=5)
    job = world.submit(job_spec(low=2, high=2))
    for worker in world.roster(job.id):
        world.report(worker, READY)
    first, second = world.roster(job.id)
    world.report(first, T, 1, -1)
    world.report(second, T, 1, None)
    world.exit(second, 1, ANOTHER)
    world.commit(job.id, 0)
    try_for(world, job, 3600, ends_in_the_transfer, servers=(job.worker(first).gpu.server, "s2"))
    assert job.record.phase is JobPhase.FAILED
    assert "another model" in job.record.reason
    assert "s1:0" in job.record.reason
    assert "s2:0" in job.record.reason
    assert generations(job) < 20
    assert EventKind.PREEMPTED not in world.kinds(job.id)


@each_end
def test_all_newcomers_at_once_make_few_generations(end):
    world = World({"s1": 1, "s2": 3})
    job = one_running(world, 1)
    world.ask(Scale(job=job.id, share=4))
    before = generations(job)
    try_for(world, job, 1800, end)
    assert job.record.phase is JobPhase.RUNNING
    assert generations(job) - before < 60


def test_a_job_that_cannot_be_moved_stays_where_it_is():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    here = job.worker(world.roster(job.id)[0]).gpu.server
    there = "s2" if here == "s1" else "s1"
    world.ask(CordonServer(server=here, kind=CordonKind.DRAIN))
    before = generations(job)
    try_for(world, job, 3600, ends_in_the_transfer, servers=(there,))
    assert job.record.phase is JobPhase.RUNNING
    assert job.reported.best_applied > 3000
    assert generations(job) - before < 40
