"""Workers' processes: start them behind a shim, find them again after a restart, notice their end at once, signal them.

A shim is watched through a pidfd, which becomes readable when the process ends, whether it is the agent's child or was
started by an earlier agent. Recorded facts are read back from the files that the shim keeps (see `shim`). This module
itself never waits for a file: `task_queues` does, in three queues for each job. Files that may lie on a network
(checkpoints, interpreters) have one queue, the records another, the logs the third, so that a job whose checkpoints hang
still ends. All queues of an account's jobs together have only some of the threads.

A start has four stages, and each can be the one that hangs::

    PREPARING ----> WRITING ----> FORKING ----> watched        a warm process has the worker
                       |             | no
                       +---------> EXECUTING ----> watched     a shim is executed

Before a shim may exist, a signal ends the start at once; afterwards it is sent as soon as the shim is known.

The peers of a dead worker wait for the news, so it must be quick. The shim's own end comes too late: a forked shim has
the memory of torch to give back, which takes some 10 ms. Therefore a worker that has joined its job is watched as well.
Once it is dead, the agent looks every millisecond, for a while, for its exit record, which the shim writes when no
process of the worker is left.
"""

from __future__ import annotations

import enum
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ..protocol.messages import StartWorker
from ..protocol.model import Fault, JobId, WorkerId
from ..runtime.clock import Clock
from ..runtime.logs import about
from ..runtime.loop import Loop
from . import accounts, shim
from .accounts import Account
from .adoption import Ended, Found, Record, adopt, ended
from .disk import SHIM_TIMES, Disk, Failed, Prepared, is_over, owner, runs
from .environment import Surroundings
from .events import ProcessExited, ProcessFailed, ProcessStarted, Started, StopSignal
from .forkserver.client import Channel, WarmProcesses
from .logfiles import JobFiles
from .task_queues import AGENT_ITSELF, TaskQueues
from .usage import Present

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.001
LOOK_FOR_S = 0.1
DOUBT_AFTER_KILLS = 4  # after so many kills, a worker under another account may have named the wrong processes
NO_DESCRIPTOR = -1
CLEAR_AGAIN_S = 5.0  # after processes in a control group could not be killed
SHIM_START_S = 2.0  # how long shims may take to write their records, when an agent was killed just after starting them

R = TypeVar("R")


class Stage(enum.Enum):
    """Stage of a start."""

    PREPARING = "preparing"
    WRITING = "writing"
    FORKING = "forking"
    EXECUTING = "executing"


@dataclass
class _Start:
    """A worker that is being started."""

    order: StartWorker
    stage: Stage = Stage.PREPARING
    record: Record | None = None  # once it is written
    channel: Channel | None = None  # while FORKING
    signal: StopSignal | None = None  # that came while EXECUTING


@dataclass
class _Watched:
    """A running shim."""

    record: Record  # as the agent wrote it
    pid: int
    descriptor: int  # pidfd
    child: subprocess.Popen[bytes] | None  # to be reaped, if it is the agent's child
    group: tuple[int, int] | None = None  # the worker's number and start time, once they are known
    worker: int | None = None  # pidfd of the worker itself, once it has reported a status
    reading: bool = False  # one of its files is being read
    look_at: float | None = None  # the worker is dead: its exit record is due
    look_until: float = 0.0
    told: bool = False  # the worker's end has been reported; the shim is just ending
    kills: int = 0  # number of requests to kill it

    def __post_init__(self) -> None:
        self.account = owner(self.record)


@dataclass
class _Left:
    """A worker whose shim has ended, with processes that the kernel has not ended yet: its GPU is not free."""

    watched: _Watched
    exit_code: int | None  # of the shim
    again_at: float


class Processes:
    """The workers' processes of one server."""

    def __init__(
        self,
        files: JobFiles,
        around: Surroundings,
        loop: Loop,
        clock: Clock,
        warm: WarmProcesses | None,
        tell: Callable[[ProcessStarted | ProcessExited | ProcessFailed], None],
        tasks: TaskQueues,
        disk: Disk,
        listen: Callable[[Account], str] = lambda account: "",
    ) -> None:
        """`warm`: processes from which workers are forked, where that is possible. `listen`: receive messages from the
        workers of an account from now on; returns why not, or "".
        """
        # The newest ordered generation, for the log
        self.generation_of: Callable[[JobId], int | None] = lambda job: None
        self._files = files
        self._around = around
        self._loop = loop
        self._clock = clock
        self._warm = warm
        self._tell = tell
        self._tasks = tasks
        self._disk = disk
        self._listen = listen
        self._own = accounts.own_account().name
        self._ended_of: dict[tuple[JobId, str, WorkerId], str] = {}  # holders of workers that are not forgotten yet
        self._starts: dict[WorkerId, _Start] = {}
        self._watched: dict[WorkerId, _Watched] = {}
        self._dead: dict[WorkerId, _Watched] = {}  # of which exit records are looked for
        self._left: dict[WorkerId, _Left] = {}  # ended workers with processes left in their control groups

    # -- starts

    def start(self, order: StartWorker) -> ProcessFailed | None:
        """Begin to start a worker. Returns why that is impossible, or None: the outcome is reported through `tell`."""
        start = _Start(order)
        watched = self._warm.watched() if self._warm is not None else {}
        offered = self._tasks.try_submit(
            f"checkpoints {order.job}.{order.uid}",
            lambda: self._disk.prepare(order, watched),
            lambda prepared: self._on_prepared(start, prepared),
            self._holder(order.account),
        )
        if not offered:
            return ProcessFailed(order.worker, "cannot be started: too much waits for this server's file systems")
        self._starts[order.worker] = start
        return None

    def knows(self, job: JobId, uid: str) -> bool:
        """Return whether a worker of the job is here, or is being started."""
        starting = any((each.order.job, each.order.uid) == (job, uid) for each in self._starts.values())
        if any((each.watched.record.job, each.watched.record.uid) == (job, uid) for each in self._left.values()):
            return True
        return starting or any(
            (each.record.job, each.record.uid) == (job, uid) and not each.told for each in self._watched.values()
        )

    def holder(self, start: StartWorker) -> str:
        """Return the holder of the threads that a worker's start takes (`task_queues`)."""
        return self._holder(start.account)

    def _goes_on(self, start: _Start) -> bool:
        return self._starts.get(start.order.worker) is start

    def _on_prepared(self, start: _Start, prepared: Prepared | Failed) -> None:
        if not self._goes_on(start):
            if isinstance(prepared, Prepared):
                self._leave_room(start)
            return
        if isinstance(prepared, Failed):
            self._fail(start, prepared)
            return
        if problem := self._listen(prepared.account):
            self._fail(start, Failed(f"cannot be started: {problem}"))
            return
        start.stage = Stage.WRITING
        self._ask_of_start(
            start,
            lambda: self._disk.write_down(start.order, prepared),
            lambda record: self._on_written(start, prepared, record),
        )

    def _on_written(self, start: _Start, prepared: Prepared, record: Record | Failed) -> None:
        if not self._goes_on(start):
            if isinstance(record, Record):
                self._tidy(record)
            else:
                self._leave_room(start)
            return
        if isinstance(record, Failed):
            self._fail(start, record)
            return
        start.record = record
        channel = self._fork(start, prepared, record)
        if channel is None:
            self._execute(start, prepared, record)
        else:
            start.stage, start.channel = Stage.FORKING, channel

    def _fork(self, start: _Start, prepared: Prepared, record: Record) -> Channel | None:
        """Ask a warm process for the worker, if one is suitable."""
        found, order = prepared.forkable, start.order
        if self._warm is None or found is None:
            return None
        request = {
            "directory": str(self._files.output(order.job, order.uid, prepared.account)),
            "record": msgspec.to_builtins(record),
            "times": str(SHIM_TIMES),
            "workdir": order.spec.workdir,
            "command": order.spec.command,
            "environment": prepared.environment,
            "executable": found.interpreter.path,
            "module": found.launch.module,
            "name": found.launch.name,
            "arguments": found.launch.arguments,
            **self._disk.ways(order, prepared.account),
        }
        return self._warm.fork(
            prepared.account,
            found,
            request,
            lambda shim: self._on_forked(start, prepared, record, shim),
            None
            if prepared.account.own and not record.cgroups
            else lambda pid, descriptor: self._disk.admit(record, pid, descriptor),
        )

    def _on_forked(self, start: _Start, prepared: Prepared, record: Record, forked: tuple[int, int] | None) -> None:
        start.channel = None
        if forked is None:
            self._execute(start, prepared, record)
            return
        log.info("is forked", extra=self._about(start.order, gpu=start.order.gpu, shim_pid=forked[0]))
        self._begin(start, record, *forked, None)

    def _execute(self, start: _Start, prepared: Prepared, record: Record) -> None:
        start.stage = Stage.EXECUTING
        self._ask_of_start(
            start,
            lambda: self._disk.execute(start.order, prepared, record),
            lambda child: self._on_executed(start, record, child),
        )

    def _on_executed(
        self, start: _Start, record: Record, executed: tuple[subprocess.Popen[bytes], int] | Failed
    ) -> None:
        if isinstance(executed, Failed):
            self._fail(start, executed)
            return
        child, descriptor = executed
        log.info("is started", extra=self._about(start.order, gpu=start.order.gpu, shim_pid=child.pid))
        self._begin(start, record, child.pid, descriptor, child)

    def _begin(
        self, start: _Start, record: Record, pid: int, descriptor: int, child: subprocess.Popen[bytes] | None
    ) -> None:
        order = start.order
        del self._starts[order.worker]
        self._note_whose(order.job, order.uid, order.worker, order.account)
        record = msgspec.structs.replace(record, shim_pid=pid)
        self._watch(order.worker, _Watched(record, pid, descriptor, child))
        self._tell(ProcessStarted(order.worker))
        if start.signal is not None:
            self.signal(order.worker, start.signal)

    def _fail(self, start: _Start, failed: Failed) -> None:
        order = start.order
        del self._starts[order.worker]
        self._note_whose(order.job, order.uid, order.worker, order.account)
        self._tidy_start(start)
        log.error("%s", failed.reason, extra=self._about(start.order))
        self._tell(ProcessFailed(start.order.worker, failed.reason, failed.fault))

    def _tidy_start(self, start: _Start) -> None:
        """Tidy up after a start that was abandoned."""
        if start.record is not None:
            self._tidy(start.record)
        else:
            self._leave_room(start)

    def _leave_room(self, start: _Start) -> None:
        if holder := self._holder(start.order.account):
            self._tasks.submit("tidying", lambda: self._disk.leave_room(start.order), lambda done: None, holder)

    def _tidy(self, record: Record) -> None:
        self._tasks.submit("tidying", lambda: self._disk.tidy(record), lambda done: None, self._holder(record.account))

    def _about(self, worker: StartWorker | Record, **more: object) -> dict[str, object]:
        """Return the fields for a line of the log about a worker."""
        generation = self.generation_of(worker.job)
        if generation is None and isinstance(worker, StartWorker):
            generation = worker.generation
        return about(job=worker.job, generation=generation, worker=worker.worker, **more)

    # -- an agent's start

    def adopt(self) -> Started:
        """Find the workers that earlier agents have started: running ones, and ended ones that are not forgotten.

        Waits for the disk, since no other work can be done before.
        """
        give_up_at = time.monotonic() + SHIM_START_S
        found: list[Found] = []
        for path in sorted(self._files.root.glob("*/*.json")):
            record = self._disk.read_record(path)
            if record is None:
                continue
            seen = self._disk.settled(record)
            while not seen.settled and time.monotonic() < give_up_at:
                time.sleep(0.02)
                seen = self._disk.settled(record)
            found.append(self._disk.look(seen, self._rewatch(seen)))
            self._note_whose(record.job, record.uid, record.worker, record.account)
        adoption = adopt(found)
        for left in adoption.kill:
            accounts.signal_group(owner(left.record), left.group, signal.SIGKILL)
        for each in found:
            if each.left:
                rest = _Watched(each.record, each.record.shim_pid or 0, NO_DESCRIPTOR, None)
                self._leave_for_later(each.record.worker, rest, None)
        for worker in adoption.running:
            if worker.worker in self._left:
                continue
            watched = self._watched[worker.worker]
            log.info("is adopted", extra=self._about(watched.record, shim_pid=watched.pid))
            if problem := self._listen(watched.account):
                log.error("cannot be heard: %s", problem, extra=self._about(watched.record))
        kept = [*self._watched.values(), *(each.watched for each in self._left.values())]
        sweep = self._disk.left_behind([watched.record for watched in kept])
        self._tasks.submit("sweeping", sweep, lambda done: None)
        return Started(adoption.running, adoption.exited)

    def _rewatch(self, record: Record) -> bool:
        """Watch the shim of a record, if it runs. Return whether it does."""
        if record.shim_pid is None or not self._disk.of_this_boot(record):
            return False
        descriptor = _open(record.shim_pid, record.shim_start_ticks)
        if descriptor is None:
            return False
        watched = _Watched(record, record.shim_pid, descriptor, None)
        if record.pid is not None and record.start_ticks is not None:
            watched.group = (record.pid, record.start_ticks)
        self._watch(record.worker, watched)
        return True

    # -- signals

    def signal(self, worker: WorkerId, how: StopSignal) -> ProcessFailed | None:
        """Signal a worker's process group; do nothing if it has ended. Returns the worker's end, if it has not begun
        yet.
        """
        start = self._starts.get(worker)
        if start is not None:
            return self._stop_start(start, how)
        watched = self._watched.get(worker)
        if watched is None:
            return None
        log.info("is signalled: %s", how.value, extra=self._about(watched.record))
        watched.kills += how is StopSignal.KILL
        if how is StopSignal.TERMINATE:
            _send(watched, signal.SIGTERM)  # the shim passes it on to the group, and keeps the log to the end
        elif watched.kills >= DOUBT_AFTER_KILLS and not watched.account.own:
            _send(watched, signal.SIGKILL)
            holder = self._holder(watched.record.account)
            self._tasks.submit("killing", lambda: self._disk.kill_all(watched.record), lambda done: None, holder)
        elif watched.group is not None:
            _kill(watched)
        else:
            self._read_group(worker, watched, lambda: _kill(watched))
        return None

    def warn(self, worker: WorkerId) -> None:
        """Let the shim of a running worker pass SIGUSR1 on. A shim of an earlier version gets no signal: it would end by it."""
        watched = self._watched.get(worker)
        if watched is not None and shim.handles(watched.pid, signal.SIGUSR1):
            log.info("is warned that its time is nearly up", extra=self._about(watched.record))
            _send(watched, signal.SIGUSR1)

    def _stop_start(self, start: _Start, how: StopSignal) -> ProcessFailed | None:
        if start.stage is Stage.EXECUTING:
            start.signal = how
            return None
        order = start.order
        del self._starts[order.worker]
        self._note_whose(order.job, order.uid, order.worker, order.account)
        if start.channel is not None and self._warm is not None:
            self._warm.cancel(start.channel)
        self._tidy_start(start)
        return ProcessFailed(start.order.worker, "it was stopped before it began", Fault.STOPPED)

    def heard(self, worker: WorkerId) -> None:
        """Watch a worker that has reported its first status: from now on other workers may depend on it."""
        watched = self._watched.get(worker)
        if watched is None or watched.worker is not None or watched.reading:
            return
        if watched.group is not None:
            self._watch_worker(worker, watched)
        else:
            self._read_group(worker, watched, lambda: self._watch_worker(worker, watched))

    def roots(self) -> tuple[int, ...]:
        """Return the processes whose descendants belong to this agent. May be called from other threads."""
        return (os.getpid(), *(watched.pid for watched in list(self._watched.values())))

    def present(self) -> tuple[Present, ...]:
        """Return the workers that run, for samples of their use. May be called from other threads."""
        return tuple(
            Present(worker, record.uid, record.gpus or (record.gpu,), (watched.pid,), record.cgroups)
            for worker, watched in list(self._watched.items())
            if not watched.told
            for record in (watched.record,)
        )

    def account_of(self, worker: WorkerId) -> Account | None:
        """Return the account of a worker that runs here."""
        watched = self._watched.get(worker)
        return watched.account if watched is not None else None

    def started(self, worker: WorkerId) -> Record | None:
        """Return the record of a worker that runs here, as the agent wrote it."""
        watched = self._watched.get(worker)
        return watched.record if watched is not None and not watched.told else None

    def holder_of(self, record: Record) -> str:
        """Return the holder of the threads that work on a worker takes (`task_queues`)."""
        return self._holder(record.account)

    def _read_group(self, worker: WorkerId, watched: _Watched, then: Callable[[], None]) -> None:
        """Find the process of the worker itself, then call `then`, unless its shim has ended meanwhile."""

        def on_record(record: Record) -> None:
            watched.reading = False
            if record.pid is not None and record.start_ticks is not None:
                watched.group = (record.pid, record.start_ticks)
            if self._watched.get(worker) is watched:
                then()

        watched.reading = True
        self._ask_of(watched, lambda: self._disk.settled(watched.record), on_record)

    def _watch_worker(self, worker: WorkerId, watched: _Watched) -> None:
        if watched.group is None or watched.worker is not None:
            return
        try:
            watched.worker = _open(*watched.group)
        except OSError:  # the agent has too many files open: the shim's end will be noticed
            return
        if watched.worker is not None:
            self._loop.add_descriptor(watched.worker, lambda: self._died(worker))

    # -- ends

    def next_deadline(self) -> float | None:
        """Return when `pass_time` is due."""
        looks = [watched.look_at for watched in self._dead.values() if watched.look_at is not None]
        return min([*looks, *(each.again_at for each in self._left.values())], default=None)

    def pass_time(self) -> None:
        """Look for the exit records that are due."""
        now = self._clock.now()
        for worker, watched in list(self._dead.items()):
            if watched.look_at is not None and now >= watched.look_at:
                self._look(worker, watched)
        for worker, left in list(self._left.items()):
            if now >= left.again_at:
                left.again_at = float("inf")  # until the outcome is known
                self._look_after(worker, left.watched, left.exit_code)

    def _died(self, worker: WorkerId) -> None:
        """Handle the death of the worker's own process. Its shim will kill the rest of its group, and record how it
        ended.
        """
        watched = self._watched[worker]
        if watched.worker is None or not is_over(
            watched.worker
        ):  # the descriptor's number may have belonged to another process, whose event came late
            return
        self._release_worker(watched)
        watched.look_until = self._clock.now() + LOOK_FOR_S
        self._dead[worker] = watched
        self._look(worker, watched)

    def _look(self, worker: WorkerId, watched: _Watched) -> None:
        watched.look_at = None
        self._ask_of(
            watched,
            lambda: self._disk.end_of(watched.record),
            lambda end: self._on_looked(worker, watched, None if end is None else Ended(end)),
        )

    def _on_looked(self, worker: WorkerId, watched: _Watched, end: Ended | None) -> None:
        now = self._clock.now()
        if end is not None:
            self._tell_end(worker, watched, end)
        elif now < watched.look_until and worker in self._dead:
            watched.look_at = now + LOOK_INTERVAL_S
        else:
            self._dead.pop(worker, None)  # the shim is slow: its own end will be noticed

    def _ended(self, worker: WorkerId) -> None:
        if not is_over(self._watched[worker].descriptor):
            return
        watched = self._watched.pop(worker)
        self._dead.pop(worker, None)
        self._release(watched)
        exit_code = watched.child.wait() if watched.child is not None else None
        if not watched.told:
            self._look_after(worker, watched, exit_code)
        else:
            self._tidy(watched.record)

    def _look_after(self, worker: WorkerId, watched: _Watched, exit_code: int | None) -> None:
        self._ask_of(
            watched,
            lambda: self._disk.after_shim(watched.record, exit_code),
            lambda found: self._on_over(worker, watched, exit_code, found),
        )

    def _leave_for_later(self, worker: WorkerId, watched: _Watched, exit_code: int | None) -> None:
        self._left[worker] = _Left(watched, exit_code, self._clock.now() + CLEAR_AGAIN_S)

    def _on_over(self, worker: WorkerId, watched: _Watched, exit_code: int | None, found: Found) -> None:
        if found.left:
            self._leave_for_later(worker, watched, exit_code)
            return
        self._left.pop(worker, None)
        self._tell_end(worker, watched, ended(found))
        self._tidy(watched.record)

    def _tell_end(self, worker: WorkerId, watched: _Watched, over: Ended | None) -> None:
        assert over is not None, "its shim has ended"
        self._dead.pop(worker, None)
        if watched.told:
            return
        watched.told = True
        if over.kill is not None:
            accounts.signal_group(watched.account, over.kill.group, signal.SIGKILL)
        record = watched.record
        log.info("has ended: %s", over.end.reason or "exit code 0", extra=self._about(record))
        path = self._files.output_of(record.job, worker, "log", record.uid, watched.account)
        self._tell(ProcessExited(worker, over.end.exit_code, over.end.reason, over.end.fault, str(path)))

    def forget(self, job: JobId, worker: WorkerId, uid: str) -> str:
        """Remove the records of an ended worker. Its log stays. Returns the holder of the threads that this takes
        (`task_queues`).
        """
        holder = self._ended_of.pop((job, uid, worker), AGENT_ITSELF)
        self._ask(job, uid, lambda: self._disk.forget(job, worker, uid), lambda done: None, holder)
        return holder

    def close(self) -> None:
        """Release the processes, which go on."""
        self._starts.clear()  # the owner of the warm processes closes their channels: none of these starts begins
        for watched in self._watched.values():
            self._release(watched)
            if watched.child is not None:
                watched.child.returncode = 0  # keeps subprocess from complaining of a child that runs on, as it should
        self._watched.clear()
        self._dead.clear()
        self._left.clear()

    def _ask(self, job: JobId, uid: str, work: Callable[[], R], then: Callable[[R], None], holder: str) -> None:
        """Queue `work` on the records of a job, after earlier work on them; `then` receives its result."""
        self._tasks.submit(f"records {job}.{uid}", work, then, holder)

    def _ask_of_start(self, start: _Start, work: Callable[[], R], then: Callable[[R], None]) -> None:
        self._ask(start.order.job, start.order.uid, work, then, self._holder(start.order.account))

    def _ask_of(self, watched: _Watched, work: Callable[[], R], then: Callable[[R], None]) -> None:
        record = watched.record
        self._ask(record.job, record.uid, work, then, self._holder(record.account))

    def _holder(self, account: str) -> str:
        """Return the account whose files can block tasks about its workers hang; `AGENT_ITSELF` for the agent's own."""
        return AGENT_ITSELF if account in ("", self._own) else account

    def _note_whose(self, job: JobId, uid: str, worker: WorkerId, account: str) -> None:
        """Remember the holder of a worker's records, for `forget`."""
        if holder := self._holder(account):
            self._ended_of[job, uid, worker] = holder

    def _watch(self, worker: WorkerId, watched: _Watched) -> None:
        self._watched[worker] = watched
        self._loop.add_descriptor(watched.descriptor, lambda: self._ended(worker))

    def _release(self, watched: _Watched) -> None:
        self._release_worker(watched)
        self._loop.remove_descriptor(watched.descriptor)
        os.close(watched.descriptor)

    def _release_worker(self, watched: _Watched) -> None:
        if watched.worker is not None:
            self._loop.remove_descriptor(watched.worker)
            os.close(watched.worker)
            watched.worker = None


def _open(pid: int, ticks: int | None) -> int | None:
    """Return a pidfd of the process with number `pid` that started at `ticks`; None: it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if runs(pid, ticks):
        return descriptor
    os.close(descriptor)  # its number belongs to another process by now
    return None


def _send(watched: _Watched, number: signal.Signals) -> None:
    accounts.signal_process(watched.account, watched.descriptor, number)


def _kill(watched: _Watched) -> None:
    """Kill the worker's process group; or its shim, with which the kernel ends the group, if the group is unknown."""
    if watched.group is not None and runs(*watched.group):
        accounts.signal_group(watched.account, watched.group[0], signal.SIGKILL)
    else:
        _send(watched, signal.SIGKILL)
