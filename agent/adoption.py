"""What an agent takes the records on its disk for, purely: workers that run, and ends that nobody has been told of.

A worker is its shim, as far as an agent can see: the shim keeps the log and writes down how the worker ended, so that a worker
whose shim is gone has ended, whatever is left of it. What is left of it is killed before its end is told, for its GPU counts as
free then. A record without a shim is one that an agent was killed over: it had written down what it was about to start.

Whose fault an end is follows from nothing that a worker of another account can write. Its shim's own record is asked for numbers
of processes alone, and for these only if they can be its own.
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
    """A worker's ``.json``. The agent writes it without pids before it starts the shim, the shim adds them.

    Where the worker runs as another account, the shim writes into a file of its own (`Seen`), and this one stays the agent's: it
    adds the shim itself, before that can have begun with anything of the worker's.
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
    boot_id: str = ""  # in which this was written
    account: str = ""  # that it runs as
    user: int = -1  # and its numbers; -1: the agent's own account
    group: int = -1
    groups: tuple[int, ...] = ()
    cgroups: tuple[str, ...] = ()  # its directories
    scratch: str = ""  # name of its directory for temporary files
    made_s: float = 0.0  # when this was written (Unix time)
    gpus: tuple[int, ...] = ()  # where it has several; empty: `gpu` alone
    room: str = ""  # of its job (`rooms`); "": none
    opens: tuple[int, ...] | None = None  # the GPUs whose device files it may open; None: all

    @property
    def settled(self) -> bool:
        """Is a shim named? If not, one may just be starting."""
        return self.shim_pid is not None


Pid = Annotated[int, msgspec.Meta(ge=2, lt=1 << 31)]
Ticks = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Seen(msgspec.Struct, frozen=True):
    """What a shim of another account says of itself. Nothing of it is believed that has not been looked at."""

    shim_pid: Pid | None = None
    shim_start_ticks: Ticks | None = None
    pid: Pid | None = None
    start_ticks: Ticks | None = None
    boot_id: Annotated[str, msgspec.Meta(max_length=64)] = ""


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
    left: bool = False  # processes of it are left in its control group, which the kernel has not ended yet


@dataclass(frozen=True)
class Left:
    """A process group that is left of an ended worker, to be killed before its end is told."""

    record: Record
    group: int


@dataclass(frozen=True)
class Ended:
    """A worker that has ended."""

    end: ExitRecord
    kill: Left | None = None


@dataclass(frozen=True)
class Adoption:
    """What an agent that starts finds."""

    running: tuple[LocalWorker, ...] = ()
    exited: tuple[WorkerExit, ...] = ()
    kill: tuple[Left, ...] = ()


def ended(found: Found) -> Ended | None:
    """How the worker has ended; None: it runs, or something of it does, so that its GPU is not free."""
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
    """Which of the workers in `records` run, and which have ended and are to be told."""
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
    """Whose fault an end is that no agent has seen. With exit code 0 it may have been as it should: not the script's."""
    return fault_of(exit_code) if exit_code else Fault.KILLED
