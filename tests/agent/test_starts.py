"""How an agent's state machine starts workers, and handles starts that hang."""

from __future__ import annotations

from elasticd.agent.events import (
    ForgetWorker,
    ProcessExited,
    ProcessFailed,
    ProcessStarted,
    SignalProcess,
    StartProcess,
    StopSignal,
)
from elasticd.agent.machine import LEAST_KEPT_ENDS
from elasticd.protocol.messages import Acknowledged, AgentHeartbeat, ForgetWorkers, StopWorker, WorkerExit
from elasticd.protocol.model import Fault, WorkerId

from .agent_stories import FIRST, GPUS, JOB, SECOND, Driven, sent, start, status, stuck


def test_a_worker_id_is_started_once_whatever_is_repeated() -> None:
    driven = Driven()
    assert driven.told(start())[-1:] == [StartProcess(start())]
    assert driven.told(start()) == []
    driven.machine.handle(driven.now, ProcessExited(FIRST, 0, "exit code 0"))
    assert driven.told(start()) == []
    assert driven.told(ForgetWorkers(workers=(FIRST,))) == [ForgetWorker(JOB, FIRST)]
    (gone,) = sent(driven.told(start()), WorkerExit)
    assert (gone.worker, gone.exit_code, gone.fault) == (FIRST, None, Fault.LOST), "it would be waited for otherwise"


def test_ends_that_no_controller_takes_in_are_bounded_and_none_of_those_that_are_kept_is_lost() -> None:
    """A controller that starts and stops, and never acknowledges ends. Kept ends are those of workers that ran, and each is
    reported.
    """
    driven = Driven()
    ran = []
    for number in range(3 * LEAST_KEPT_ENDS):
        worker = WorkerId(f"{JOB}.{number}")
        if any(isinstance(action, StartProcess) for action in driven.told(start(worker, gpu=number % 2))):
            ran.append(worker)
        if len(ran) % 2 == 0:
            for each in ran[-2:]:
                driven.hear(ProcessExited(each, 1, "exit code 1"))
        driven.told(StopWorker(job=JOB, worker=WorkerId(f"{JOB}.{number + 100_000}"), grace_s=1.0))
    for each in ran:
        driven.hear(ProcessExited(each, 1, "exit code 1"))
    kept = driven.machine.sizes["ends that nobody has taken in"]
    assert LEAST_KEPT_ENDS <= kept <= LEAST_KEPT_ENDS + len(GPUS)
    driven.told(Acknowledged(incarnation="c1", sent=0))
    another = WorkerId(f"{JOB}.7777")
    (refused,) = sent(driven.told(start(another)), WorkerExit)
    assert refused.fault is Fault.LOST, "it is not the server that is broken"
    assert not refused.begun
    assert "no controller has taken in" in refused.reason
    (gone,) = sent(driven.told(StopWorker(job=JOB, worker=another, grace_s=1.0)), WorkerExit)
    assert (gone.worker, gone.fault) == (another, Fault.STOPPED)
    hello = driven.hello()
    assert set(ran) <= {end.worker for end in hello.exited}
    assert len(hello.exited) == kept
    driven.told(Acknowledged(incarnation="c1", sent=0))
    driven.told(ForgetWorkers(workers=tuple(end.worker for end in hello.exited)))
    assert driven.machine.sizes["ends that nobody has taken in"] == 0
    assert driven.told(start(another))[-1] == StartProcess(start(another))


def test_a_process_that_cannot_be_started_is_an_end_of_its_worker() -> None:
    driven = Driven(FIRST)
    (told,) = sent(
        driven.machine.handle(driven.now, ProcessFailed(FIRST, "cannot be started: no space left")), WorkerExit
    )
    assert (told.exit_code, told.reason) == (None, "cannot be started: no space left")


def test_a_gpu_that_is_not_there_is_a_refusal_before_anything_is_started() -> None:
    driven = Driven()
    (end,) = sent(driven.told(start(gpu=9)), WorkerExit)
    assert end.reason == "this server has no GPU 9"
    assert driven.hello().processes == ()


def test_a_start_whose_answer_does_not_come_counts_as_running_and_is_given_up_with_a_reason() -> None:
    driven = stuck()
    (end,) = sent(driven.told(start(SECOND)), WorkerExit)
    assert end.reason == "an earlier start on GPU 0 has not come to an end: a file system may not answer"


def test_a_worker_of_a_later_job_with_the_name_of_one_whose_start_has_no_end_yet_is_not_started() -> None:
    driven = stuck()
    (end,) = sent(driven.told(start(gpu=1, uid="new")), WorkerExit)
    assert end.reason == f"an earlier start of {FIRST} has not come to an end: a file system may not answer"
    assert (end.uid, end.fault) == ("new", Fault.SERVER)


def test_the_time_in_which_an_agent_was_away_does_not_count_for_a_start() -> None:
    driven = Driven(FIRST)
    deadline = driven.machine.next_deadline()
    assert deadline is not None
    assert deadline <= driven.now + 1.0, "it would not notice its absence"
    assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(100.0)
    for _ in range(59):
        assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(1.0)
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(1.0)


def test_a_start_that_was_given_up_and_comes_to_nothing_frees_its_gpu() -> None:
    driven = stuck()
    assert driven.hear(ProcessFailed(FIRST, "it was stopped before it began")) == []
    assert StartProcess(start(SECOND)) in driven.told(start(SECOND))


def test_a_process_that_begins_after_its_start_was_given_up_is_killed_and_leaves_nothing_behind() -> None:
    driven = stuck()
    driven.told(ForgetWorkers(workers=(FIRST,)))
    assert driven.hear(ProcessStarted(FIRST)) == [SignalProcess(FIRST, StopSignal.KILL)]
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(1.0)
    assert driven.hear(ProcessExited(FIRST, -9, "killed by SIGKILL")) == [ForgetWorker(JOB, FIRST, "")]
    assert StartProcess(start(SECOND)) in driven.told(start(SECOND))


def test_heartbeats_name_the_processes_that_run_and_have_not_spoken() -> None:
    driven = Driven(FIRST, SECOND)
    driven.hear(ProcessStarted(FIRST))
    (heartbeat,) = sent(driven.pass_time(1.0), AgentHeartbeat)
    assert heartbeat.starting == (FIRST,)
    driven.status(status())
    (heartbeat,) = sent(driven.pass_time(1.0), AgentHeartbeat)
    assert heartbeat.starting == ()


def test_a_worker_that_has_been_started_has_all_the_time_it_wants_until_it_speaks() -> None:
    driven = Driven(FIRST)
    driven.hear(ProcessStarted(FIRST))
    for _ in range(100):
        assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(1.0)
