"""Interpretation of the records on an agent's disk, pure: which workers run, and which ends are unreported.

To an agent a worker is its shim: the shim keeps the log and records how the worker ended, so a worker without its shim
has ended, even if some of its processes are left. These are killed before the end is reported, since the GPU then
counts as free. A record without a shim means that an agent was killed after it had recorded a worker and before it
started it.

The fault behind an end never follows from data that a worker of another account can write. The shim's own record is
used for process numbers alone, and only if they can be the shim's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ..protocol.exits import fault_of
from ..protocol.messages import LocalWorker, WorkerExit
from ..protocol.model import Fault, JobId, WorkerId

SHIM_KILLED = "the process that kept it was killed"


class Record(msgspec.Struct, frozen=True):
    """A worker's ``.json``. The agent writes it without process numbers before it starts the shim, and the shim adds
    them.

    Where the worker runs as another account, the shim writes into a file of its own (`ShimReport`), and this record stays the
    agent's: the agent adds the shim's numbers, before the shim can have started any process of the worker.
    """

    job: JobId
    worker: WorkerId
    gpu: int
    argv: tuple[str, ...]
    uid: str = ""  # of the job
    shim_pid: int | None = None
    shim_start_ticks: int | None = None
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str = ""  # boot of the machine in which this was written
    account: str = ""  # under which the worker runs
    user: int = -1  # the account's numbers; -1: the agent's own account
    group: int = -1
    groups: tuple[int, ...] = ()
    cgroups: tuple[str, ...] = ()  # its directories
    scratch: str = ""  # name of its directory for temporary files
    made_s: float = 0.0  # when this was written (Unix time)
    gpus: tuple[int, ...] = ()  # indices where the worker has several GPUs; empty: `gpu` alone
    room: str = ""  # of its job (`rooms`); "": none
    opens: tuple[int, ...] | None = None  # the GPUs whose device files it may open; None: all
    memory_bytes: int = 0  # that its job has asked for; 0: none

    @property
    def settled(self) -> bool:
        """Return whether a shim is named. If not, one may just be starting."""
        return self.shim_pid is not None


Pid = Annotated[int, msgspec.Meta(ge=2, lt=1 << 31)]
Ticks = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class ShimReport(msgspec.Struct, frozen=True):
    """A shim's own statement, in a file of another account. Every value is verified before use."""

    shim_pid: Pid | None = None
    shim_start_ticks: Ticks | None = None
    pid: Pid | None = None
    start_ticks: Ticks | None = None
    boot_id: Annotated[str, msgspec.Meta(max_length=64)] = ""


class ExitRecord(msgspec.Struct, frozen=True):
    """A worker's ``.exit``."""

    exit_code: int | None
    reason: str
    fault: Fault | None = None  # where the exit code does not determine it


@dataclass(frozen=True)
class Found:
    """A record, with the present state of its processes."""

    record: Record
    same_boot: bool  # whether the machine has been up ever since the record was written
    shim_runs: bool
    worker_runs: bool
    end: ExitRecord | None
    left: bool = False  # processes in its control group that the kernel has not ended yet


@dataclass(frozen=True)
class Left:
    """A process group that is left of an ended worker, to be killed before the end is reported."""

    record: Record
    group: int


@dataclass(frozen=True)
class Ended:
    """A worker that has ended."""

    end: ExitRecord
    kill: Left | None = None


@dataclass(frozen=True)
class Adoption:
    """The workers that a starting agent finds."""

    running: tuple[LocalWorker, ...] = ()
    exited: tuple[WorkerExit, ...] = ()
    kill: tuple[Left, ...] = ()


def ended(found: Found) -> Ended | None:
    """Return how the worker has ended; None: it, or one of its processes, still runs, so that its GPU is not free."""
    record = found.record
    if found.shim_runs or found.left:
        return None
    kill = Left(record, record.pid) if found.worker_runs and record.pid is not None else None
    if found.end is not None:
        return Ended(found.end, kill)
    if not found.same_boot and record.boot_id:
        return Ended(ExitRecord(None, "the server was started anew", Fault.LOST))
    if not record.settled:
        return Ended(ExitRecord(None, "it never started", Fault.SERVER))
    return Ended(ExitRecord(None, SHIM_KILLED, Fault.KILLED), kill)


def adopt(records: Iterable[Found]) -> Adoption:
    """Return which of the workers in `records` run, and which have ended and are to be reported."""
    running: list[LocalWorker] = []
    exited: list[WorkerExit] = []
    kill: list[Left] = []
    for found in records:
        record, over = found.record, ended(found)
        if over is None:
            running.append(
                LocalWorker(worker=record.worker, job=record.job, uid=record.uid, gpu=record.gpu, gpus=record.gpus)
            )
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
    """Return the fault behind an end that no agent has seen. An exit with code 0 may have been intended: not the
    script's fault.
    """
    return fault_of(exit_code) if exit_code else Fault.KILLED
