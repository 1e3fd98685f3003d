"""How an agent's state machine stops workers, and reports their ends."""

from __future__ import annotations

import msgspec
import pytest

from elasticd.agent.events import (
    ControllerMessage,
    ProcessExited,
    SendController,
    SendWorker,
    SignalProcess,
    StartProcess,
    StopSignal,
    WarnProcess,
    WorkerStatusReceived,
)
from elasticd.protocol.messages import Acknowledged, ForgetWorkers, StopWorker, Suspend, WarnWorker, WorkerExit
from elasticd.protocol.model import Fault, WorkerId, WorkerPhase

from .agent_stories import FIRST, JOB, SECOND, Driven, Silence, sent, start, status


def test_a_stop_is_sigterm_and_after_the_grace_sigkill() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=0.5)
    assert driven.told(stop) == [SignalProcess(FIRST, StopSignal.TERMINATE)]
    assert driven.told(stop) == []
    assert driven.machine.next_deadline() == driven.now + 0.5
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(0.5)


def test_a_warning_goes_to_the_worker_that_it_is_for_and_stops_nothing() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    assert driven.told(WarnWorker(job=JOB, worker=FIRST)) == [WarnProcess(FIRST)]
    assert driven.told(WarnWorker(job=JOB, worker=FIRST, uid="another")) == []
    assert driven.told(WarnWorker(job=JOB, worker=SECOND)) == []
    assert not [action for action in driven.pass_time(5.0) if isinstance(action, SignalProcess)]


def test_a_worker_that_trains_is_asked_to_save_and_killed_if_it_has_not_ended_in_time() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True, saver=SECOND)
    assert driven.told(stop) == [SendWorker(FIRST, Suspend(job=JOB, saver=SECOND))]
    assert driven.told(stop) == []
    assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(29.0)
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(1.0)


def test_a_worker_that_was_asked_to_save_hears_who_saves_in_its_stead_and_when_that_is_done() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True, saver=FIRST))
    another = StopWorker(job=JOB, worker=FIRST, grace_s=29.0, save=True, saver=SECOND)
    assert driven.told(another) == [SendWorker(FIRST, Suspend(job=JOB, saver=SECOND))]
    assert driven.told(another) == []
    assert driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=29.0, save=True)) == [], (
        "who repeats it knows no better"
    )
    assert SendWorker(FIRST, Suspend(job=JOB, saver=SECOND)) in driven.status(status(sequence=2))
    done = StopWorker(job=JOB, worker=FIRST, grace_s=28.0, save=True, saver=SECOND, saved=7)
    assert driven.told(done) == [SendWorker(FIRST, Suspend(job=JOB, saver=SECOND, saved=7))]
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(28.0)


def test_what_has_been_saved_is_not_taken_back_by_a_controller_that_does_not_know_it() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True, saver=SECOND, saved=7))
    anew = StopWorker(job=JOB, worker=FIRST, grace_s=29.0, save=True, saver=FIRST)
    assert driven.told(anew) == [SendWorker(FIRST, Suspend(job=JOB, saver=FIRST, saved=7))]
    later = msgspec.structs.replace(anew, saved=8)
    assert driven.told(later) == [SendWorker(FIRST, Suspend(job=JOB, saver=FIRST, saved=8))]


def test_who_is_to_be_stopped_at_once_is_not_given_the_time_to_save() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True))
    at_once = StopWorker(job=JOB, worker=FIRST, grace_s=0.5)
    assert driven.told(at_once) == [SignalProcess(FIRST, StopSignal.TERMINATE)]
    assert driven.told(at_once) == []
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(0.5)


@pytest.mark.parametrize("phase", [WorkerPhase.STARTING, WorkerPhase.READY])
def test_a_worker_without_anything_to_save_is_stopped_at_once(phase: WorkerPhase) -> None:
    driven = Driven(FIRST)
    driven.status(status(phase=phase))
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True)
    assert driven.told(stop) == [SignalProcess(FIRST, StopSignal.TERMINATE)]


def test_an_adopted_worker_is_asked_to_save_until_it_hears_and_stopped_if_it_has_nothing_to_save() -> None:
    driven = Driven(adopted=(FIRST,))
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True)
    assert driven.told(stop) == [SendWorker(FIRST, Suspend(job=JOB))]
    assert SendWorker(FIRST, Suspend(job=JOB)) in driven.status(status())
    assert SendWorker(FIRST, Suspend(job=JOB)) in driven.status(status(sequence=2))
    ready = driven.status(status(sequence=3, phase=WorkerPhase.READY))
    assert SignalProcess(FIRST, StopSignal.TERMINATE) in ready
    assert SendWorker(FIRST, Suspend(job=JOB)) not in driven.status(status(sequence=4))


def test_an_end_is_told_with_the_last_phase_and_again_until_it_is_forgotten() -> None:
    driven = Driven(FIRST)
    last = status(phase=WorkerPhase.FINISHED)
    driven.status(last)
    gone = WorkerExit(
        job=JOB,
        worker=FIRST,
        exit_code=0,
        reason="exit code 0",
        phase=WorkerPhase.FINISHED,
        status=last,
        fault=Fault.NONE,
    )
    assert driven.machine.handle(driven.now, ProcessExited(FIRST, 0, "exit code 0")) == [SendController(gone)]
    assert sent(driven.pass_time(1.0), WorkerExit) == [gone]
    assert driven.hello().exited == (gone,)

    again = Driven(FIRST)
    again.machine.handle(again.now, ProcessExited(FIRST, 0, "exit code 0"))
    again.told(ForgetWorkers(workers=(FIRST,)))
    assert sent(again.pass_time(1.0), WorkerExit) == []
    assert again.hello().exited == ()


def test_forgetting_a_worker_that_runs_changes_nothing() -> None:
    driven = Driven(FIRST)
    assert driven.told(ForgetWorkers(workers=(FIRST,))) == []
    assert driven.hello().starting == (FIRST,)


@pytest.mark.parametrize(
    ("phase", "exit_code", "fault"),
    [
        (WorkerPhase.FINISHED, 0, Fault.NONE),
        (WorkerPhase.LEFT, 0, Fault.NONE),
        (WorkerPhase.TRAINING, 0, Fault.SCRIPT),
        (WorkerPhase.TRAINING, 1, Fault.SCRIPT),
        (WorkerPhase.FINISHED, 1, Fault.SCRIPT),
        (WorkerPhase.TRAINING, -9, Fault.KILLED),
        (WorkerPhase.TRAINING, None, Fault.KILLED),
    ],
)
def test_an_end_says_whose_fault_it_is(phase: WorkerPhase, exit_code: int | None, fault: Fault) -> None:
    silence = Silence()
    silence.machine.handle(silence.now, ControllerMessage(Acknowledged(incarnation="c", sent=0)))
    silence.machine.handle(silence.now, WorkerStatusReceived(status(sequence=9, phase=phase)))
    (end,) = sent(silence.machine.handle(silence.now, ProcessExited(FIRST, exit_code, "")), WorkerExit)
    assert (end.fault, end.phase) == (fault, phase)


def test_the_end_of_a_worker_that_was_stopped_or_silent_is_not_the_scripts_fault() -> None:
    stopped, silent = Silence(), Silence()
    for each in (stopped, silent):
        each.machine.handle(each.now, ControllerMessage(Acknowledged(incarnation="c", sent=0)))
    stopped.machine.handle(stopped.now, ControllerMessage(StopWorker(job=JOB, worker=FIRST, grace_s=5.0)))
    silent.turn_for(10.1)
    ends = [sent(each.machine.handle(each.now, ProcessExited(FIRST, 1, "")), WorkerExit) for each in (stopped, silent)]
    assert [end.fault for (end,) in ends] == [Fault.STOPPED, Fault.SILENT]


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_worker_whose_training_is_over_ends_by_itself_when_its_job_is_preempted(asked_first: bool) -> None:
    silence = Silence()
    finished = WorkerStatusReceived(status(sequence=9, phase=WorkerPhase.FINISHED))
    stop = ControllerMessage(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True))
    for event in (stop, finished) if asked_first else (finished, stop):
        actions = silence.machine.handle(silence.now, event)
        assert [action for action in actions if isinstance(action, SignalProcess)] == []
    assert silence.turn_for(30.1)[-1:] == [SignalProcess(FIRST, StopSignal.KILL)]
    cancelled = ControllerMessage(StopWorker(job=JOB, worker=FIRST, grace_s=5.0))
    assert silence.machine.handle(silence.now, cancelled) == [SignalProcess(FIRST, StopSignal.TERMINATE)]


def test_a_stop_that_overtakes_its_start_is_answered_and_the_start_is_refused() -> None:
    driven = Driven()
    (gone,) = sent(driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=5.0)), WorkerExit)
    assert (gone.worker, gone.exit_code, gone.fault) == (FIRST, None, Fault.STOPPED)
    assert driven.told(start()) == []
    assert driven.hello().exited == (gone,)
    driven.told(ForgetWorkers(workers=(FIRST,)))
    assert [action for action in driven.told(start()) if isinstance(action, StartProcess)] == []


def test_ends_that_are_never_forgotten_do_not_keep_others_from_being_repeated() -> None:
    workers = [WorkerId(f"digits-1.{number}") for number in range(100)]
    driven = Driven(*workers)
    for worker in workers:
        driven.hear(ProcessExited(worker, 0, ""))
    told = {end.worker for _ in range(2) for end in sent(driven.pass_time(1.0), WorkerExit)}
    assert told == set(workers)
