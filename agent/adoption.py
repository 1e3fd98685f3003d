"""What an agent takes the records on its disk for, purely: workers that run, and ends that nobody has been told of.

A worker is its shim, as far as an agent can see: the shim keeps the log and writes down how the worker ended, so that a worker
whose shim is gone has ended, whatever is left of it. What is left of it is killed before its end is told, for its GPU counts as
free then. A record without a shim is one that an agent was killed over: it had written down what it was about to start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ..protocol.exits import fault_of
from ..protocol.messages import LocalWorker, WorkerExit
from ..protocol.model import Fault, JobId, WorkerId


class Record(msgspec.Struct, frozen=True):
    """A worker's ``.json``. The agent writes it without pids before it starts the shim, the shim adds them."""

    job: JobId
    worker: WorkerId
    gpu: int
    argv: tuple[str, ...]
    uid: str = ""  # of the job
    shim_pid: int | None = None
    shim_start_ticks: int | None = None
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str = ""

    @property
    def settled(self) -> bool:
        """Is a shim named? If not, one may just be starting."""
        return self.shim_pid is not None


class ExitRecord(msgspec.Struct, frozen=True):
    """A worker's ``.exit``."""

    exit_code: int | None
    reason: str
    fault: Fault | None = None  # where the exit code does not tell


@dataclass(frozen=True)
class Found:
    """A record, and what is true of it now."""

    record: Record
    same_boot: bool  # has the machine been up ever since it was written?
    shim_runs: bool
    worker_runs: bool
    end: ExitRecord | None


@dataclass(frozen=True)
class Ended:
    """A worker that has ended. `kill`: the process group that is left of it, to be killed first."""

    end: ExitRecord
    kill: int | None = None


@dataclass(frozen=True)
class Adoption:
    """What an agent that starts finds. `kill`: process groups that are left of ended workers."""

    running: tuple[LocalWorker, ...] = ()
    exited: tuple[WorkerExit, ...] = ()
    kill: tuple[int, ...] = ()


def ended(found: Found) -> Ended | None:
    """How the worker has ended; None: it runs."""
    record = found.record
    if found.shim_runs:
        return None
    kill = record.pid if found.worker_runs else None
    if found.end is not None:
        return Ended(found.end, kill)
    if not found.same_boot and record.settled:
        return Ended(ExitRecord(None, "the server was started anew", Fault.LOST))
    if record.pid is None:
        return Ended(ExitRecord(None, "it never started", Fault.SERVER))
    return Ended(ExitRecord(None, "the process that kept it was killed", Fault.KILLED), kill)


def adopt(records: Iterable[Found]) -> Adoption:
    """Which of the workers in `records` run, and which have ended and are to be told."""
    running: list[LocalWorker] = []
    exited: list[WorkerExit] = []
    kill: list[int] = []
    for found in records:
        record, over = found.record, ended(found)
        if over is None:
            running.append(LocalWorker(worker=record.worker, job=record.job, uid=record.uid, gpu=record.gpu))
            continue
        if over.kill is not None:
            kill.append(over.kill)
        exited.append(
            WorkerExit(
                job=record.job,
                worker=record.worker,
                exit_code=over.end.exit_code,
                reason=over.end.reason,
                fault=over.end.fault or _fault_unseen(over.end.exit_code),
                uid=record.uid,
            )
        )
    return Adoption(tuple(running), tuple(exited), tuple(kill))


def _fault_unseen(exit_code: int | None) -> Fault:
    """Whose fault an end is that no agent has seen. With exit code 0 it may have been as it should: not the script's."""
    return fault_of(exit_code) if exit_code else Fault.KILLED
