"""Commands that run beside workers (`elasticctl exec`): their input, their output, and their end.

Theory of operation
-------------------
A client exchanges input and output with its command through the controller, a message at a time (`protocol.streams`). A
command is started by its first exchange, once, and is known by its name: whatever is repeated starts nothing again.

* Output waits here until the client has confirmed it. With `MAX_OUTPUT_BYTES` of it nothing more is read, so the command waits.
  Input is given to the command as far as it takes it; the client repeats the rest.
* A command whose client has been silent for `SILENCE_S` is hung up, and so is each one when the agent ends.
* A command ends with its worker: it is killed before the worker's end is told, for only then is the worker's GPU free. Where the
  worker has a cgroup, its end finds the command there; else the command's own shim ends what is left of it (`execshim`).
* What a command may do is what its worker may: its shim gives up the agent's rights before it starts the command.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..protocol.messages import CommandOutput, RunCommand
from ..protocol.model import WorkerId
from ..protocol.streams import MAX_OUTPUT_BYTES, Chunk, Input, Output, Terminal
from ..runtime.clock import Clock
from ..runtime.logs import about
from ..runtime.loop import Loop
from . import job_exec
from .adoption import Record
from .disk import Disk, Failed, is_over
from .job_exec import Begun
from .task_queues import TaskQueues

log = logging.getLogger(__name__)

SILENCE_S = 30.0  # of a client, which exchanges several times a second
KEPT_S = 30.0  # a command that has ended, for a client that has not heard of it
KILLED_WITHIN_S = 5.0  # one may be stuck in the kernel
MAX_COMMANDS, MAX_OF_ONE_WORKER = 64, 16
MAX_BEGUN = 4096  # names that are remembered, so that none is started again
READ_BYTES = 64 << 10
KILLED = 137  # exit code of a command whose shim was killed
TOO_MUCH_WAITS = "the command cannot be started: too much waits for this server's file systems"


@dataclass
class _Command:
    name: str
    worker: WorkerId
    heard_at: float
    begun: Begun | None = None
    read: set[int] = field(default_factory=set)  # outputs that the loop watches
    chunks: deque[Chunk] = field(default_factory=deque)  # not confirmed yet
    offset: int = 0  # bytes of output before the chunks
    waiting: int = 0  # bytes in the chunks
    taken: int = 0  # bytes of input
    stdin_open: bool = False
    terminal: Terminal | None = None
    exit_code: int | None = None
    failed: str = ""  # why it was not started
    reason: str = ""  # why it was ended
    hung_up: bool = False

    @property
    def over(self) -> bool:
        return self.exit_code is not None or bool(self.failed)

    @property
    def gone(self) -> bool:
        """Whether no process of it is left; some of its output may have to be read yet."""
        return self.over or (self.begun is not None and self.begun.pidfd < 0)


class Commands:
    """The commands of one agent, for the loop's thread."""

    def __init__(self, loop: Loop, clock: Clock, tasks: TaskQueues, disk: Disk) -> None:
        self._loop = loop
        self._clock = clock
        self._tasks = tasks
        self._disk = disk
        self._commands: dict[str, _Command] = {}
        self._begun: dict[str, None] = {}  # the oldest first
        # Ends of workers that wait for commands: until when, and what follows
        self._ends: dict[WorkerId, tuple[float, list[Callable[[], None]]]] = {}

    def exchange(self, request: RunCommand, record: Record | None, holder: str) -> CommandOutput:
        """Take input, and return output. `record`: of the worker, beside which the command may be started; None: it may not.
        `holder`: of its account (`task_queues`).
        """
        one = self._commands.get(request.name)
        if one is None:
            if record is None or request.name in self._begun:
                return CommandOutput(
                    request=request.request,
                    error=f"no such command runs beside {request.worker}: it has ended, or its worker has",
                )
            if problem := self._too_many(request.worker):
                return CommandOutput(request=request.request, error=problem)
            one = self._begin(request, record, holder)
        one.heard_at = self._clock.now()
        self._confirm(one, request.input.received)
        self._give(one, request.input)
        if one.failed:
            return CommandOutput(request=request.request, error=one.failed)
        code = one.exit_code
        return CommandOutput(
            request=request.request,
            output=Output(
                offset=one.offset, taken=one.taken, chunks=tuple(one.chunks), exit_code=code, reason=one.reason
            ),
        )

    def shims(self) -> dict[WorkerId, tuple[int, ...]]:
        """Return the shims of the commands that run, by their workers. May be called from other threads."""
        found: dict[WorkerId, tuple[int, ...]] = {}
        for one in list(self._commands.values()):
            if one.begun is not None and not one.gone:
                found[one.worker] = (*found.get(one.worker, ()), one.begun.process.pid)
        return found

    def end(self, worker: WorkerId, then: Callable[[], None]) -> None:
        """Kill the commands beside a worker that has ended, and call `then` when none is left."""
        beside_it = [one for one in self._commands.values() if one.worker == worker]
        for one in beside_it:
            if not one.gone or one.exit_code == KILLED:  # the end of the worker's cgroup has found it
                one.reason = f"{worker} has ended, and the command with it"
        left = [one for one in beside_it if not one.gone]
        if not left:
            then()
            return
        self._ends.setdefault(worker, (self._clock.now() + KILLED_WITHIN_S, []))[1].append(then)
        for one in left:
            if one.begun is not None:
                job_exec.end(one.begun, at_once=True)

    def next_deadline(self) -> float | None:
        """Return when `pass_time` is due."""
        due = [
            one.heard_at + (KEPT_S if one.gone else SILENCE_S)
            for one in self._commands.values()
            if one.gone or not one.hung_up
        ]
        return min([*due, *(until for until, _ in self._ends.values())], default=None)

    def pass_time(self) -> None:
        now = self._clock.now()
        for one in list(self._commands.values()):
            if one.gone and now >= one.heard_at + KEPT_S:
                self._forget(one)
            elif not one.gone and now >= one.heard_at + SILENCE_S:
                self._hang_up(one)
        for worker, (until, _) in list(self._ends.items()):
            if now >= until:
                self._follow(worker)

    # -- the start

    def _too_many(self, worker: WorkerId) -> str:
        running = [one for one in self._commands.values() if not one.gone]
        if len(running) >= MAX_COMMANDS:
            return f"{MAX_COMMANDS} commands run on this server already"
        if sum(one.worker == worker for one in running) >= MAX_OF_ONE_WORKER:
            return f"{MAX_OF_ONE_WORKER} commands run beside {worker} already"
        if len(self._commands) >= 2 * MAX_COMMANDS:  # others have just ended
            self._forget(next(one for one in self._commands.values() if one.gone))
        return ""

    def _begin(self, request: RunCommand, record: Record, holder: str) -> _Command:
        one = _Command(request.name, request.worker, self._clock.now(), terminal=request.input.terminal)
        self._commands[one.name] = one
        self._begun[one.name] = None
        if len(self._begun) > MAX_BEGUN:
            del self._begun[next(iter(self._begun))]
        offered = self._tasks.try_submit(
            f"commands {request.job}.{request.uid}",
            lambda: job_exec.begin(self._disk, request, record),
            lambda begun: self._on_begun(one, begun),
            holder,
        )
        if not offered:
            one.failed = TOO_MUCH_WAITS
        else:
            log.info("a command begins beside it", extra=about(job=request.job, worker=request.worker))
        return one

    def _on_begun(self, one: _Command, begun: Begun | Failed) -> None:
        if isinstance(begun, Failed):
            one.failed = begun.reason
            self._look_at_ends(one.worker)
            return
        one.begun, one.stdin_open = begun, True
        self._loop.add_descriptor(begun.pidfd, lambda: self._ended(one))
        self._watch(one)
        if one.reason:
            job_exec.end(begun, at_once=True)
        elif one.hung_up:
            job_exec.end(begun, at_once=False)

    # -- input

    def _give(self, one: _Command, given: Input) -> None:
        if given.hang_up:
            self._hang_up(one)
        begun = one.begun
        if begun is None or not one.stdin_open:
            if one.over or begun is not None:
                one.taken = max(one.taken, given.offset + len(given.data))  # the command reads no more input
            return
        if begun.terminal and given.terminal is not None and given.terminal != one.terminal:
            one.terminal = given.terminal
            job_exec.resize(begun.stdin, given.terminal)
        if given.offset <= one.taken < given.offset + len(given.data):
            try:
                one.taken += os.write(begun.stdin, given.data[one.taken - given.offset :])
            except BlockingIOError:
                return
            except OSError:  # the command has closed it
                self._close_input(one)
                one.taken = given.offset + len(given.data)
        if given.ended and one.taken >= given.offset + len(given.data):
            self._close_input(one)

    def _close_input(self, one: _Command) -> None:
        if one.begun is not None and one.stdin_open and not one.begun.terminal:
            os.close(one.begun.stdin)
            one.stdin_open = False

    def _hang_up(self, one: _Command) -> None:
        if not one.hung_up:
            one.hung_up = True
            if one.begun is not None and not one.gone:
                job_exec.end(one.begun, at_once=False)

    # -- output

    def _watch(self, one: _Command) -> None:
        """Let the loop read the outputs, as long as there is room for more."""
        assert one.begun is not None
        wanted = set(one.begun.outputs) if one.waiting < MAX_OUTPUT_BYTES else set()
        for descriptor in one.read - wanted:
            self._loop.remove_descriptor(descriptor)
        for descriptor in sorted(wanted - one.read):
            self._loop.add_descriptor(descriptor, lambda descriptor=descriptor: self._readable(one, descriptor))  # type: ignore[misc]
        one.read = wanted

    def _readable(self, one: _Command, descriptor: int) -> None:
        if descriptor in one.read:
            self._read(one, descriptor)
            self._watch(one)

    def _read(self, one: _Command, descriptor: int) -> bool:
        """Read a piece of an output. Returns whether there may be more of it now."""
        assert one.begun is not None
        room = MAX_OUTPUT_BYTES - one.waiting
        if room <= 0:
            return False
        try:
            data = os.read(descriptor, min(READ_BYTES, room))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # of a terminal: no process has it open any more
                log.warning(
                    "the output of a command cannot be read: %s", error.strerror, extra=about(worker=one.worker)
                )
            data = b""
        if data:
            one.chunks.append(Chunk(data=data, error=one.begun.outputs[descriptor]))
            one.waiting += len(data)
            return True
        self._close_output(one, descriptor)
        return False

    def _close_output(self, one: _Command, descriptor: int) -> None:
        assert one.begun is not None
        if descriptor in one.read:
            self._loop.remove_descriptor(descriptor)
            one.read.discard(descriptor)
        del one.begun.outputs[descriptor]
        os.close(descriptor)
        one.stdin_open = one.stdin_open and not one.begun.terminal  # which is the same descriptor

    def _confirm(self, one: _Command, received: int) -> None:
        """Drop the output that has arrived."""
        while one.chunks and one.offset < received:
            first = one.chunks.popleft()
            arrived = min(len(first.data), received - one.offset)
            one.offset += arrived
            one.waiting -= arrived
            if arrived < len(first.data):
                one.chunks.appendleft(Chunk(data=first.data[arrived:], error=first.error))
        if one.begun is not None and not one.over:
            if one.gone:
                self._read_rest(one)
            else:
                self._watch(one)

    # -- the end

    def _ended(self, one: _Command) -> None:
        begun = one.begun
        if begun is None or begun.pidfd < 0 or not is_over(begun.pidfd):
            return
        self._loop.remove_descriptor(begun.pidfd)
        os.close(begun.pidfd)
        begun.pidfd = -1
        begun.process.wait()
        self._close_input(one)
        self._read_rest(one)
        self._look_at_ends(one.worker)

    def _read_rest(self, one: _Command) -> None:
        """Read the rest of the ended command's streams, without waiting for their end; then the command is over.

        A process that has left the command's group may hold the streams open.
        """
        assert one.begun is not None
        for descriptor in list(one.begun.outputs):
            while self._read(one, descriptor):
                pass
            if one.waiting >= MAX_OUTPUT_BYTES and descriptor in one.begun.outputs:
                self._watch(one)  # the rest follows when the client has confirmed some of this
                return
            if descriptor in one.begun.outputs:
                self._close_output(one, descriptor)
        code = one.begun.process.returncode
        one.exit_code = code if code >= 0 else KILLED

    def _look_at_ends(self, worker: WorkerId) -> None:
        left = (one for one in self._commands.values() if one.worker == worker and not one.gone)
        if worker in self._ends and next(left, None) is None:
            self._follow(worker)

    def _follow(self, worker: WorkerId) -> None:
        _, waiting = self._ends.pop(worker)
        for then in waiting:
            then()

    def _forget(self, one: _Command) -> None:
        for descriptor in list(one.begun.outputs) if one.begun is not None else ():
            self._close_output(one, descriptor)
        del self._commands[one.name]

    def close(self) -> None:
        """Leave the commands to their shims, which end with this agent."""
        for one in self._commands.values():
            if one.begun is not None and one.begun.pidfd >= 0:
                one.begun.process.returncode = 0  # keeps subprocess from complaining
                job_exec.end(one.begun, at_once=False)
        self._commands.clear()
