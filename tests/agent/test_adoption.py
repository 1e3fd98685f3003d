"""How a restarted agent interprets the workers' records on its disk."""

from __future__ import annotations

import pytest

from elasticd.agent.adoption import Ended, ExitRecord, Found, Left, Record, adopt, ended
from elasticd.protocol.messages import LocalWorker
from elasticd.protocol.model import Fault, JobId, WorkerId

JOB, WORKER = JobId("digits-1"), WorkerId("digits-1.0")
WRITTEN = Record(JOB, WORKER, 1, ("true",), "ab")
ORDERED = Record(JOB, WORKER, 1, ("true",), "ab", boot_id="b")
KEPT = Record(JOB, WORKER, 1, ("true",), "ab", shim_pid=10, shim_start_ticks=5, boot_id="b")
WHOLE = Record(JOB, WORKER, 1, ("true",), "ab", 10, 5, 11, 6, "b")


def found(
    record: Record = WHOLE,
    shim_runs: bool = False,
    worker_runs: bool = False,
    end: ExitRecord | None = None,
    same_boot: bool = True,
) -> Found:
    return Found(record, same_boot, shim_runs, worker_runs, end)


def test_a_worker_runs_as_long_as_its_shim_does() -> None:
    assert ended(found(shim_runs=True, worker_runs=True)) is None
    assert ended(found(KEPT, shim_runs=True)) is None
    assert ended(found(shim_runs=True, end=ExitRecord(0, "exit code 0"))) is None  # the shim is about to end


@pytest.mark.parametrize(
    ("what", "reason", "fault"),
    [
        (found(end=ExitRecord(3, "exit code 3")), "exit code 3", None),
        (found(end=ExitRecord(0, "exit code 0"), same_boot=False), "exit code 0", None),
        (found(same_boot=False), "the server was started anew", Fault.LOST),
        (found(KEPT, same_boot=False), "the server was started anew", Fault.LOST),
        (found(WRITTEN), "it never started", Fault.SERVER),
        (found(WRITTEN, same_boot=False), "it never started", Fault.SERVER),
        (found(KEPT), "the process that kept it was killed", Fault.KILLED),
        (found(ORDERED), "it never started", Fault.SERVER),
        (found(ORDERED, same_boot=False), "the server was started anew", Fault.LOST),
        (found(), "the process that kept it was killed", Fault.KILLED),
    ],
)
def test_an_end_has_a_reason_and_somebodys_fault(what: Found, reason: str, fault: Fault | None) -> None:
    over = ended(what)
    assert isinstance(over, Ended)
    assert (over.end.reason, over.end.fault, over.kill) == (reason, fault, None)


def test_what_is_left_of_a_worker_without_a_shim_is_killed_before_its_end_is_told() -> None:
    over = ended(found(worker_runs=True))
    assert over is not None
    assert over.kill == Left(WHOLE, 11)
    assert adopt([found(worker_runs=True)]).kill == (Left(WHOLE, 11),)


def test_an_agent_adopts_what_runs_and_tells_what_has_ended() -> None:
    other = Record(JOB, WorkerId("digits-1.1"), 0, ("true",), "ab", 20, 5, 21, 6, "b")
    adoption = adopt([found(shim_runs=True), found(other, end=ExitRecord(3, "exit code 3"))])
    assert adoption.running == (LocalWorker(worker=WORKER, job=JOB, uid="ab", gpu=1),)
    (gone,) = adoption.exited
    assert (gone.worker, gone.uid, gone.exit_code, gone.fault) == (other.worker, "ab", 3, Fault.SCRIPT)


def test_an_end_that_nobody_has_seen_with_exit_code_0_is_not_laid_at_the_scripts_door() -> None:
    (gone,) = adopt([found(end=ExitRecord(0, "exit code 0"))]).exited
    assert gone.fault is Fault.KILLED


def test_a_process_with_several_gpus_is_found_with_all_of_them() -> None:
    (running,) = adopt([found(Record(JOB, WORKER, 1, ("true",), "ab", 10, 5, 11, 6, "b", gpus=(1, 2)), True)]).running
    assert running.all_gpus == (1, 2)
