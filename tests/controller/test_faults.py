"""Attribution of a worker's failure: only the script's fault fails a job, and servers that cannot start workers are avoided."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elasticd.controller.events import AgentMessage
from elasticd.controller.reconcile.saving import suspend
from elasticd.protocol.messages import AgentHeartbeat, Cancel, EventKind, GetJob, GetServers, Scale, StopWorker
from elasticd.protocol.model import CheckpointSpec, Fault, JobPhase, ServerId, WorkerPhase

from .world import World, job_spec

FULL = "cannot be started: No space left on device"


def lose(world, server: str) -> None:
    """Let the lease of `server` expire. Its processes continue."""
    world.agents[ServerId(server)].connected = False
    world.pass_time(11)


def on(world, server: str, job) -> list[str]:
    return [entry.worker for entry in job.workers if entry.gpu.server == server]


def trouble(world, server: str) -> str:
    views = world.ask(GetServers()).servers
    return next(view.trouble for view in views if view.server.server == server)


def fail_to_start(world, worker: str) -> None:
    world.exit(worker, None, FULL, fault=Fault.SERVER)


# -------------------------------------------------------------------------------------------------- attribution of failures


def test_a_server_that_is_lost_while_a_large_job_loads_does_not_fail_the_job():
    world = World({"s1": 4, "s2": 4})
    job = world.submit(job_spec(low=4, high=4))
    (server,) = {entry.gpu.server for entry in job.workers}
    lose(world, server)
    assert not job.final
    assert {entry.gpu.server for entry in job.workers} == {"s1", "s2"} - {server}
    world.settle(job.id)
    assert job.share_gpus == 4


def test_a_job_whose_servers_are_lost_again_and_again_is_never_given_up():
    world = World({"s1": 1, "s2": 1}, max_restarts=2)
    job = world.submit(job_spec(low=1, high=1))
    for _ in range(8):
        world.settle(job.id)
        (server,) = {entry.gpu.server for entry in job.workers}
        lose(world, server)
        world.hello(server)
        world.turn()
        world.reap()
        world.pass_time(40)
    assert not job.final
    assert job.record.restarts >= 8


def test_deaths_by_a_signal_without_progress_come_to_an_end_in_words():
    world = World({"s1": 1}, max_restarts=3)
    job = world.submit(job_spec(low=1, high=1))
    for _ in range(4):
        assert not job.final
        world.settle(job.id)
        world.exit(world.roster(job.id)[0], -9, "killed by SIGKILL")
        world.pass_time(40)
    assert job.record.phase is JobPhase.FAILED
    assert job.record.reason.startswith(
        "given up: its workers were killed 4 times in a row and it got no further; last: "
    )
    assert job.record.reason.endswith("killed by SIGKILL")


def test_a_lost_server_in_between_makes_the_count_of_deaths_begin_anew():
    world = World({"s1": 1, "s2": 1}, max_restarts=3)
    job = world.submit(job_spec(low=1, high=1))
    for turn in range(8):
        world.settle(job.id)
        if turn % 3 == 2:
            (server,) = {entry.gpu.server for entry in job.workers}
            lose(world, server)
            world.hello(server)
            world.turn()
            world.reap()
        else:
            world.exit(world.roster(job.id)[0], -9)
        world.pass_time(40)
    assert not job.final


def test_a_step_that_is_new_makes_the_count_of_deaths_begin_anew():
    world = World({"s1": 1}, max_restarts=2)
    job = world.submit(job_spec(low=1, high=1))
    for turn in range(8):
        world.settle(job.id, step=10 * (turn + 1))
        world.exit(world.roster(job.id)[0], -9)
        world.pass_time(40)
    assert not job.final


def test_a_worker_that_has_trained_on_a_server_before_says_nothing_of_starts_there():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=1))
    world.settle(job.id)
    (first,) = world.roster(job.id)
    world.ask(Scale(job=job.id, share=2))
    (newcomer,) = [worker for worker in world.running(job.id) if worker != first]
    server = str(job.worker(newcomer).gpu.server)
    assert server == str(job.worker(first).gpu.server)
    fail_to_start(world, newcomer)
    assert trouble(world, server)
    world.report(first, WorkerPhase.TRAINING, job.record.committed, 60)
    assert trouble(world, server)


def test_newcomers_that_are_killed_at_their_start_hold_growth_back_but_fail_nothing():
    world = World()
    job = world.submit(job_spec(low=1, high=1))
    world.settle(job.id)
    (first,) = world.roster(job.id)
    world.ask(Scale(job=job.id, share=2))
    for _ in range(3):
        (newcomer,) = [worker for worker in world.running(job.id) if worker != first]
        world.exit(newcomer, -9)
        world.commit(job.id)
    assert not job.final
    assert EventKind.HELD in world.kinds(job.id)


def test_a_worker_that_is_killed_while_it_loads_does_not_fail_its_job():
    world = World()
    job = world.submit(job_spec(low=3, high=3))
    for worker in list(world.running(job.id)):
        world.exit(worker, -9, turn=False)
    world.pass_time(40)
    assert not job.final
    world.settle(job.id)
    assert job.share_gpus == 3


# ---------------------------------------------------------------------------------------------- servers that cannot start


def test_a_server_with_a_full_disk_is_left_alone_and_its_job_starts_elsewhere():
    world = World({"s1": 2, "s2": 2})
    job = world.submit(job_spec(low=2, high=2))
    (bad,) = {entry.gpu.server for entry in job.workers}
    (good,) = {"s1", "s2"} - {bad}
    for worker in world.running(job.id):
        fail_to_start(world, worker)
    assert trouble(world, bad) == "cannot start workers: No space left on device; next try in 5 s"
    world.pass_time(2)
    assert {entry.gpu.server for entry in job.workers} == {good}
    world.settle(job.id)
    assert job.record.phase is JobPhase.RUNNING
    other = world.submit(job_spec("other", 2, 2))
    assert f"{bad}: cannot start workers" in world.ask(GetJob(job=other.id)).job.reason


def test_the_back_off_of_a_server_grows_and_one_worker_that_gets_to_its_loop_clears_it():
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1))
    waited = []
    for _ in range(9):
        fail_to_start(world, world.running(job.id)[0])
        began = world.now
        while not world.running(job.id):
            world.pass_time(1)
        waited.append(round(world.now - began))
    assert not job.final
    assert waited == sorted(waited)
    assert 5 <= waited[0] <= 7
    assert 300 <= waited[-1] <= 302
    world.settle(job.id)
    assert trouble(world, "s1") == ""
    assert job.record.phase is JobPhase.RUNNING


def test_a_running_job_keeps_its_workers_on_a_server_that_cannot_start_more():
    world = World({"s1": 3})
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    before = world.roster(job.id)
    other = world.submit(job_spec("other", 1, 1))
    fail_to_start(world, world.running(other.id)[0])
    world.turn()
    assert trouble(world, "s1")
    assert world.roster(job.id) == before
    assert other.record.phase is JobPhase.PENDING
    assert "next try in" in world.ask(GetJob(job=other.id)).job.reason
    world.pass_time(6)
    world.settle(other.id)
    assert other.record.phase is JobPhase.RUNNING


def test_several_starts_that_fail_together_count_once():
    world = World({"s1": 4})
    job = world.submit(job_spec(low=4, high=4))
    for worker in world.running(job.id):
        fail_to_start(world, worker)
    assert "next try in 5 s" in trouble(world, "s1")


def test_where_a_script_fails_while_its_fellows_run_elsewhere_the_server_is_suspected():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=1, high=2))
    assert len(world.running(job.id)) == 2
    first, second = world.roster(job.id)
    bad = next(entry.gpu.server for entry in job.workers if entry.worker == second)
    world.report(first, WorkerPhase.READY)
    world.exit(second, 1, "exit code 1: no driver")
    assert not job.final
    assert trouble(world, bad).startswith(
        "workers of jobs that run elsewhere fail at their start: exit code 1: no driver"
    )
    world.settle(job.id)
    assert job.share_gpus == 1


def fail_on(world, server: str, job, seconds: int) -> int:
    """For `seconds`, let each of the job's workers on `server` fail, and all others train. Returns the number of failures."""
    failed = 0
    for _ in range(seconds):
        for worker in on(world, server, job):
            if worker in world.running(job.id):
                world.exit(worker, 1, "exit code 1: no driver")
                failed += 1
        if not job.final and world.running(job.id) and not on(world, server, job):
            world.settle(job.id)
        world.pass_time(1)
    return failed


def test_a_job_that_fails_before_its_first_step_is_tried_on_another_server_before_it_has_failed():
    world = World({"s1": 2, "s2": 2})
    job = world.submit(job_spec(low=2, high=2))
    (bad,) = {entry.gpu.server for entry in job.workers}
    assert fail_on(world, bad, job, 5) == 2
    assert job.record.phase is JobPhase.RUNNING
    assert trouble(world, bad) == "", "nobody knows yet that it is the server: others may start there"


def test_a_job_that_gets_no_other_server_is_tried_a_few_times_and_fails():
    world = World({"s1": 1, "s2": 1})
    long = world.submit(job_spec("long", 1, 1))
    world.settle(long.id)
    job = world.submit(job_spec(low=1, high=1))
    (server,) = {entry.gpu.server for entry in job.workers}
    assert fail_on(world, server, job, 20) == 3
    assert reason(world, job).startswith(
        f"its script fails at its start on server {server}: exit code 1: no driver; next try"
    )
    assert fail_on(world, server, job, 80) == 2
    assert job.record.phase is JobPhase.FAILED
    assert job.record.exit_code == 1


def test_a_server_where_several_jobs_fail_in_a_row_is_suspected_and_all_of_them_run_elsewhere():
    world = World({"s1": 4, "s2": 8}, policy="fifo")
    jobs = []
    for number in range(6):
        jobs.append(world.submit(job_spec(f"job{number}", 1, 1)))
        fail_on(world, "s1", jobs[-1], 4)
    assert [job.record.phase for job in jobs] == [JobPhase.RUNNING] * 6
    assert EventKind.SERVER_UNFIT in world.kinds()


def test_a_script_that_fails_on_every_server_has_failed():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=1, high=1))
    for _ in range(6):
        if job.final:
            break
        world.exit(world.running(job.id)[0], 1, "exit code 1: ValueError")
        world.pass_time(3)
    assert job.record.phase is JobPhase.FAILED
    assert trouble(world, "s1") == trouble(world, "s2") == ""


def jobs_of_two_kinds(world) -> list:
    return [world.submit(job_spec(name, 1, 1, command=("python", f"{name}.py"))) for name in ("first", "second")]


def test_two_servers_that_fail_every_script_do_not_fail_a_job():
    world = World({"s1": 2, "s2": 2, "s3": 2})
    good = world.submit(job_spec("good", 2, 2))
    world.settle(good.id)
    jobs = jobs_of_two_kinds(world)
    bad = {entry.gpu.server for job in jobs for entry in job.workers}
    for _ in range(60):
        for job in jobs:
            for worker in world.running(job.id):
                bad.add(next(entry.gpu.server for entry in job.workers if entry.worker == worker))
                world.exit(worker, 1, "exit code 1: no driver")
        world.pass_time(1)
    assert len(bad) == 2
    assert not any(job.final for job in jobs)
    world.ask(Cancel(job=good.id))
    world.reap()
    for job in jobs:
        world.pass_time(2)
        world.settle(job.id)
    assert [job.record.phase for job in jobs] == [JobPhase.RUNNING] * 2


def test_two_jobs_of_different_kinds_that_fail_everywhere_have_failed_in_the_end():
    world = World({"s1": 2, "s2": 2})
    jobs = jobs_of_two_kinds(world)
    began = world.now
    while not all(job.final for job in jobs):
        for job in jobs:
            for worker in world.running(job.id):
                world.exit(worker, 1, "exit code 1: ValueError")
        world.pass_time(5)
        assert world.now < began + 1200
    assert [job.record.exit_code for job in jobs] == [1, 1]


def test_a_second_job_with_the_same_mistake_fails_as_soon_as_the_first():
    world = World({"s1": 1, "s2": 1})
    for _ in range(3):
        job = world.submit(job_spec(low=1, high=1))
        for _ in range(2):
            world.exit(world.running(job.id)[0], 1, "exit code 1: ValueError")
            world.pass_time(3)
        assert job.record.phase is JobPhase.FAILED


# ------------------------------------------------------------------------------------------------------ slow starts


def test_a_script_that_hangs_while_it_loads_is_tried_once_on_another_server():
    world = World({"s1": 2, "s2": 2})
    job = world.submit(job_spec(low=2, high=2, load_timeout_s=60.0))
    (bad,) = {entry.gpu.server for entry in job.workers}
    for worker in world.running(job.id):
        world.report(worker, WorkerPhase.STARTING)
    world.pass_time(61)
    assert not job.final
    assert all(process.stopping for process in world.agents[ServerId(bad)].running.values())
    world.pass_time(3)
    assert {entry.gpu.server for entry in job.workers if not entry.stopping} == {"s1", "s2"} - {bad}
    for worker in world.running(job.id):
        if not world.find(worker)[1].stopping:
            world.report(worker, WorkerPhase.STARTING)
    world.pass_time(61)
    assert job.record.phase is JobPhase.FAILED
    assert "has not come to its training loop" in job.record.reason


def test_a_job_does_not_wait_for_the_end_of_workers_that_hang_at_their_start():
    """They may read from a file system that hangs; then no signal ends them."""
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=1, high=1, load_timeout_s=60.0))
    (worker,) = world.running(job.id)
    world.report(worker, WorkerPhase.STARTING)
    world.pass_time(65)
    assert worker in world.running(job.id)
    assert len(world.running(job.id)) == 2


def test_a_start_that_takes_its_agent_long_does_not_count_as_the_script_s():
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, start_timeout_s=60.0, must_join=True))
    for _ in range(100):
        world.now += 1.0
        world.feed(AgentMessage(ServerId("s1"), AgentHeartbeat(server=ServerId("s1"))))
        world.turn()
    assert job.record.phase is JobPhase.STARTING
    world.pass_time(62)
    assert job.record.phase is JobPhase.FAILED


def reason(world, job) -> str:
    return world.ask(GetJob(job=job.id)).job.reason


def test_a_command_that_never_joins_is_stopped_and_fails_in_words():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=2, high=2, start_timeout_s=60.0, must_join=True))
    world.pass_time(20)
    assert reason(world, job) == "digits-1.0 has not called elastic.join() yet; at most 41 s more"
    world.pass_time(41)
    assert job.record.phase is JobPhase.FAILED
    assert job.record.reason == "digits-1.0 has not called elastic.join() within 60 s"
    assert {stop.worker for stop in world.messages(StopWorker)} == {"digits-1.0", "digits-1.1"}
    world.reap()
    assert not job.workers


def test_a_worker_that_never_comes_to_its_loop_has_a_limit_of_its_own():
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, start_timeout_s=60.0, load_timeout_s=300.0))
    world.pass_time(30)
    world.report("digits-1.0", WorkerPhase.STARTING)
    world.pass_time(200)
    assert "come to its training loop" in reason(world, job)
    world.pass_time(101)
    assert job.record.phase is JobPhase.FAILED
    assert "within 300 s" in job.record.reason


def test_a_newcomer_that_never_joins_is_stopped_and_the_job_trains_on():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=1, start_timeout_s=60.0))
    world.settle(job.id)
    world.ask(Scale(job=job.id, share=2))
    world.pass_time(1)
    assert reason(world, job) == "digits-1.1 has not called elastic.join() yet; at most 60 s more"
    world.pass_time(60)
    assert [stop.worker for stop in world.messages(StopWorker)] == ["digits-1.1"]
    world.reap()
    assert job.record.phase is JobPhase.RUNNING
    assert job.share_gpus == 1


def test_a_newcomer_that_never_joins_is_the_scripts_fault_where_others_train():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=1, high=1, start_timeout_s=60.0))
    world.settle(job.id)
    world.ask(Scale(job=job.id, share=2))
    world.pass_time(61)
    late = job.worker("digits-1.1")
    assert (late.stopping, late.fault) == (True, Fault.SCRIPT)


def test_the_limit_for_starting_survives_the_controller_and_does_not_count_an_absent_server():
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, start_timeout_s=60.0, must_join=True))
    world.pass_time(50)
    world.now += 30.0
    world.restart(hello=False)
    world.pass_time(2)
    assert not world.job(job.id).final, "nobody knows yet whether it has joined"
    world.hello("s1")
    world.report("digits-1.0", WorkerPhase.READY)
    world.pass_time(60)
    assert not world.job(job.id).final


def test_a_worker_that_trains_is_never_late():
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, start_timeout_s=10.0, load_timeout_s=10.0))
    world.settle(job.id)
    world.pass_time(100)
    assert job.record.phase is JobPhase.RUNNING


# ------------------------------------------------------------------------------------------------------------ time to save


def preempt(world, job) -> StopWorker:
    job.update(target=())
    suspend(world.machine.cluster, world.now, job)
    world.turn()
    return world.messages(StopWorker)[-1]


@pytest.mark.parametrize(
    ("saving_s", "longest_step_s", "told_s", "grace_s"),
    [
        (0.0, 0.0, None, 30.0),
        (2.0, 3.0, None, 30.0),
        (20.0, 10.0, None, 90.0),
        (0.0, 600.0, None, 1800.0),
        (3000.0, 3000.0, None, 3600.0),
        (20.0, 10.0, 7200.0, 7200.0),
        (20.0, 10.0, 5.0, 5.0),
    ],
)
def test_the_time_to_save_follows_from_what_saving_and_a_step_took(saving_s, longest_step_s, told_s, grace_s):
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, checkpoint=CheckpointSpec(save_timeout_s=told_s)))
    world.settle(job.id)
    worker = world.roster(job.id)[0]
    status = job.statuses[worker]
    job.put_status(replace(status, saving_s=saving_s, longest_step_s=longest_step_s))
    assert preempt(world, job).grace_s == grace_s


def test_a_job_that_saves_its_state_says_so_and_how_long_that_may_take():
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1))
    world.settle(job.id)
    job.update(target=())
    suspend(world.machine.cluster, world.now, job)
    assert reason(world, job) == "saves its state; at most 30 s more"
    world.now += 10.0
    assert world.ask(GetJob(job=job.id), turn=False).job.reason == "saves its state; at most 20 s more"
