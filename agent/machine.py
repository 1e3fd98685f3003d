"""State machine of an agent. Pure: messages and process ends come in, messages and signals go out.

Theory of operation
-------------------
The agent decides nothing about jobs. It starts and stops workers as the controller says, passes orders to the workers of their
job, and reports every change to the controller. The connections to the controller and to the workers may lose messages, and the
agent itself may be killed at any moment (cluster 1), so:

* *Reports are repeated.* A worker's newest status goes with the agent's heartbeats, and so does a worker's end, until the
  controller has recorded it. A status that reports only progress waits for the next heartbeat.
* *Messages that the agent has missed* come again after a hello (`session`).
* *Orders.* A worker gets the newest order of its job when it first reports, whenever its status names an older order, and
  repeatedly as long as it has not committed that order. Every local worker of the job gets the order, also a worker that is no
  longer in the roster, since the order tells it so.
* *A worker is started once*, however often the request is repeated: the agent knows the running workers, the ended ones, and
  those that were forgotten lately. A worker's name is its id with the `uid` of its job, since a lost store may give the same
  number to another job. A worker that is to be stopped and does not run counts as ended from then on: its start may still be on
  its way, and must have no effect after the stop.
* *Ends are kept* until the controller has recorded them. If the controller records none, the agent starts no more workers beyond
  a limit, and an end that is only the answer to a request is reported and not kept. So the table of ends grows only by the
  workers that run already.
* *A start without a result* counts as a running worker, and is given up after a while: a file system that it uses may hang.
* *Troubles* of the server and its GPUs (`health`) are reported at once when they change, and with each heartbeat. The newest list
  replaces earlier ones. No worker is started on a GPU that takes no new work, unless an operator trusts that GPU.
* *A silent worker* is killed: it has reported, and then sends nothing for long (it was stopped, or its control thread hangs). The
  other workers of its job wait for it in every step. Only time in which this agent could have received a report counts. A worker
  that is still starting has more time: loading data may block the interpreter.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

import msgspec

from ..protocol.errors import InvalidTransition
from ..protocol.exits import fault_of
from ..protocol.messages import (
    PROTOCOL_VERSION,
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    ForgetWorkers,
    HelloRefused,
    LocalWorker,
    Order,
    ReadLog,
    RunCommand,
    SnapshotPart,
    Standby,
    StartWorker,
    StatusReceived,
    StopWorker,
    Suspend,
    ToAgentFromController,
    ToControllerFromAgent,
    WarnWorker,
    WorkerExit,
    WorkerReport,
    WorkerUse,
    WriteCheckpoint,
    session_name,
)
from ..protocol.model import Fault, JobId, Server, Steady, Trouble, WorkerId, WorkerPhase, WorkerStatus, job_number
from ..protocol.times import (
    AWAY_S,
    EVENT_KEPT_S,
    LEAST_SAVE_S,
    ORDER_REPEAT_S,
    SAMPLES_OF_A_REPORT,
    START_PATIENCE_S,
    STARTING_PATIENCE,
    STATE_RETRY_S,
    WATCH_INTERVAL_S,
)
from .events import (
    Action,
    AgentTick,
    CommandExchanged,
    Connected,
    ControllerMessage,
    Disconnected,
    Event,
    ExchangeCommand,
    ForgetWorker,
    HealthChanged,
    HelloNotSent,
    IdentityWritten,
    KeepIdentity,
    LogRead,
    ProcessExited,
    ProcessFailed,
    ProcessStarted,
    ReadLogPiece,
    SendController,
    SendWorker,
    ServerChanged,
    SignalProcess,
    Started,
    StartProcess,
    StopSignal,
    TakeSnapshotPart,
    UseSampled,
    Warn,
    WarnProcess,
    WorkerStatusReceived,
)
from .fence import Fence, TermCheck
from .identity import Identity
from .session import Due, Phase, Session

MAX_ORDERS = 4096
MAX_FORGOTTEN = 4096
LEAST_KEPT_ENDS, KEPT_ENDS_PER_GPU = (
    128,
    4,
)  # ends that no controller has recorded: with so many, no worker is started any more
MAX_EXITS_PER_HEARTBEAT = 64
MAX_REPORTS_PER_HEARTBEAT = 128


_Name = tuple[str, WorkerId]  # unique name of a worker: its job's uid, and its id


class Origin(enum.Enum):
    """Origin of a worker's process."""

    ASKED = "asked"  # this agent is starting the process; the result has not come yet
    STARTED = "started"  # this agent has started the process
    ADOPTED = "adopted"  # an earlier agent has started the process


@dataclass
class _Process:
    """A worker's process that runs, or is being started. Times are Unix times in seconds."""

    job: JobId
    uid: str  # of the job
    gpu: int
    origin: Origin
    give_up_at: float = float("inf")  # when to give up the start if it has no result by then
    status: WorkerStatus | None = None
    unreported: bool = False  # whether its status waits for the next heartbeat
    ordered_at: float = 0.0
    kill_at: float | None = None
    gpus: tuple[int, ...] = ()  # of a process with several GPUs; empty: `gpu` alone
    suspend: Suspend | None = None  # the request to end by itself, if that was sent in place of a signal
    heard_at: float = 0.0  # time of its last status, shifted by the agent's own absences since
    hung: str = ""  # reason why it was killed for its silence; "": it was not
    use: WorkerUse | None = None  # at its last sample
    samples: int = 0  # number of samples since its use was last reported


class AgentMachine:
    """The state machine of one agent."""

    def __init__(
        self,
        server: Server,
        incarnation: str,
        heartbeat_interval_s: float,
        worker_silence_s: float = float("inf"),
        identity: Identity | None = None,
        troubles: tuple[Trouble, ...] = (),
        endpoints: int = 1,
    ) -> None:
        """`incarnation`: unique for each start of the agent. `worker_silence_s`: time after which a silent worker is killed.
        `identity`: the agent's identity from now on, which is written to disk first. `troubles`: known troubles of the server and
        its GPUs. `endpoints`: number of the controllers' addresses."""
        self._server = server
        self._incarnation = incarnation
        self._identity = identity or Identity()
        self._write_again_at = float("inf")  # when to write the identity again
        self._write_failed = False
        self._heartbeat_interval_s = heartbeat_interval_s
        self._fence = Fence(self._identity.term)
        self._session = Session(heartbeat_interval_s, random.Random(incarnation), endpoints)
        self._worker_silence_s = worker_silence_s
        self._troubles = troubles
        self._started = False
        self._hellos = 0
        self._turned_at = 0.0
        self._running: dict[WorkerId, _Process] = {}
        self._stuck: dict[WorkerId, _Process] = {}  # starts that were given up, and have no result yet
        self._exited: dict[_Name, WorkerExit] = {}
        self._forgotten: dict[_Name, None] = {}  # newest last, bounded
        self._orders: dict[JobId, Order] = {}  # newest of each job; bounded

    def generation_of(self, job: JobId) -> int | None:
        """Return the newest generation that the controller has ordered for `job`, as far as this agent knows; None: none."""
        order = self._orders.get(job)
        return order.roster.generation if order is not None else None

    @property
    def endpoint(self) -> int:
        """Number of the controller's endpoint in use."""
        return self._session.endpoint

    @property
    def phases(self) -> dict[str, int]:
        """Numbers of workers' processes by their reported phase. A worker without a report counts as starting."""
        found = dict.fromkeys((phase.value for phase in WorkerPhase), 0)
        for process in self._running.values():
            phase = process.status.phase if process.status is not None else WorkerPhase.STARTING
            found[phase.value] += 1
        return found

    @property
    def term(self) -> int:
        """Highest term of a controller that this agent has heard of."""
        return self._fence.term

    @property
    def refused(self) -> int:
        """Number of messages refused since the start, because the terms of their controllers were over."""
        return self._fence.refused

    @property
    def sizes(self) -> dict[str, int]:
        """Number of entries in each table, for a monitor to check that none grows without limit."""
        return {
            "processes": len(self._running),
            "starts that hang": len(self._stuck),
            "ends that nobody has taken in": len(self._exited),
            "ends that are forgotten": len(self._forgotten),
            "orders": len(self._orders),
        }

    def used_gpus(self) -> tuple[int, ...]:
        """Return the indices of GPUs on which workers run, or are being started. For any thread."""
        return tuple(index for process in list(self._running.values()) for index in (process.gpu, *process.gpus))

    def next_deadline(self) -> float | None:
        """Return when `handle` has to be called with AgentTick (Unix time, s); None before `Started`."""
        if not self._started:
            return None
        soonest, silence = min(self._session.deadline(), self._write_again_at), float("inf")
        for process in self._running.values():
            silence = min(silence, process.heard_at + self._silence_allowed_s(process), process.give_up_at)
            if process.kill_at is not None:
                soonest = min(soonest, process.kill_at)
        for process in self._stuck.values():
            if process.kill_at is not None:
                soonest = min(soonest, process.kill_at)
        watch = self._turned_at + WATCH_INTERVAL_S if silence < float("inf") else silence  # to notice own absences
        return min(soonest, silence, watch)

    def handle(self, now: float, event: Event) -> list[Action]:
        """Handle one fact. Raises InvalidTransition, with nothing changed, unless `Started` comes first and once."""
        if isinstance(event, Started) == self._started:
            raise InvalidTransition(
                f"{type(event).__name__} to an agent that has {'' if self._started else 'not '}started"
            )
        self._leave_out_absence(now)
        match event:
            case Started(running, exited):
                self._started = True
                self._running = {
                    found.worker: _Process(found.job, found.uid, found.gpu, Origin.ADOPTED, gpus=found.gpus)
                    for found in running
                }
                self._exited = {(record.uid, record.worker): record for record in exited}
                return [KeepIdentity(self._identity), *self._pass_time(now)]
            case ControllerMessage(message, term, endpoint):
                return self._check_term(now, message, term) if endpoint == self._session.endpoint else []
            case Connected(endpoint):
                self._session.connected(now, endpoint)
                return self._pass_time(now)
            case Disconnected(endpoint):
                self._session.disconnected(now, endpoint)
                return self._pass_time(now)
            case HelloNotSent():
                self._session.hello_not_sent()
                return []
            case WorkerStatusReceived(status):
                return self._on_status(now, status)
            case ProcessStarted(worker):
                return self._on_started(now, worker)
            case LogRead(piece):
                return [self._say(piece)]
            case CommandExchanged(answer):
                return [self._say(answer)]
            case IdentityWritten(error):
                return self._on_identity(now, error)
            case HealthChanged(troubles):
                self._troubles = troubles
                beat = AgentHeartbeat(server=self._server.server, troubles=troubles)
                return [self._say(beat)] if self._session.phase is Phase.STANDS else []
            case UseSampled(uses):
                self._on_use(uses)
                return []
            case ServerChanged(server):
                self._server = server
                self._session.say_again(now)
                return self._pass_time(now)
            case ProcessFailed(worker, reason, fault):
                return self._end(worker, None, reason, fault)
            case ProcessExited(worker, exit_code, reason, known, path):
                return self._end(worker, exit_code, reason, known or fault_of(exit_code), path)
            case AgentTick():
                return self._pass_time(now)

    # -- the controller

    def _check_term(self, now: float, message: ToAgentFromController, term: int) -> list[Action]:
        """Handle a message of a controller, unless its term is over. A higher term is written to disk before any other action."""
        if isinstance(message, Standby):  # it requests nothing, and its controller may know less than this agent
            term = max(term, self._fence.term)
        verdict, news = self._fence.check(term), self._fence.news(now, term)
        told: list[Action] = [Warn(news)] if news else []
        if verdict is TermCheck.REFUSED:
            return told
        kept = self._keep(term=term) if verdict is TermCheck.HIGHER else []
        return [*told, *kept, *self._on_controller(now, message)]

    def _on_controller(self, now: float, message: ToAgentFromController) -> list[Action]:
        if isinstance(message, Standby):
            self._session.stands_by(now)
            return self._pass_time(now)
        if isinstance(message, Acknowledged):
            return self._on_acknowledged(now, message)
        if isinstance(message, HelloRefused):
            news = self._session.refused(now)
            return [Warn(f"the controller refuses this agent: {message.reason}")] if news else []
        if isinstance(message, StartWorker) and not self._of_this_session(message.session):
            return []
        self._session.message_received()
        match message:
            case Order():
                return self._on_order(now, message)
            case StartWorker():
                return self._on_start(now, message)
            case StopWorker():
                return self._on_stop(now, message)
            case WriteCheckpoint(worker=worker, uid=uid):
                there = self._running.get(worker)
                return [SendWorker(worker, message)] if there is not None and there.uid == uid else []
            case WarnWorker(worker=worker, uid=uid):
                there = self._running.get(worker)
                return [WarnProcess(worker)] if there is not None and there.uid == uid else []
            case ForgetWorkers(workers=workers, uids=uids):
                return [action for worker in workers for action in self._on_forget((uids.get(worker, ""), worker))]
            case ReadLog(worker=worker):
                return [ReadLogPiece(message, growing=worker in self._running)]
            case RunCommand(worker=worker, uid=uid, start=start, agent=agent):
                there = self._running.get(worker)
                runs = there is not None and there.uid == uid and there.kill_at is None
                return [ExchangeCommand(message, runs and start is not None and agent == self._incarnation)]
            case SnapshotPart():
                return [TakeSnapshotPart(message)]

    def _on_acknowledged(self, now: float, message: Acknowledged) -> list[Action]:
        """Handle an acknowledgement. At the beginning of a session it names the cluster to which the agent belongs."""
        if not self._of_this_session(message.session):
            incarnation, _, number = message.session.rpartition("/")
            if incarnation == self._incarnation and number.isdecimal():
                self._session.heard(now, self._hellos - int(number))
            return self._pass_time(now)
        refused = self._session.phase is Phase.REFUSED
        begins = self._session.acknowledged(now, message)
        news: list[Action] = [Warn("the controller has taken this agent in")] if begins and refused else []
        if begins and message.cluster not in ("", self._identity.cluster):
            kept = self._keep(cluster=message.cluster, newest_event=message.newest_event)
        else:
            kept = []
            self._note_event(now, message)
        return [*news, *kept, *self._pass_time(now)]

    def _of_this_session(self, session: str) -> bool:
        return session in ("", session_name(self._incarnation, self._hellos))

    def _note_event(self, now: float, message: Acknowledged) -> None:
        """Note the number of the cluster's newest event, which is written to disk at intervals."""
        if message.cluster == self._identity.cluster and message.newest_event > self._identity.newest_event:
            self._identity = msgspec.structs.replace(self._identity, newest_event=message.newest_event)
            self._write_again_at = min(self._write_again_at, now + EVENT_KEPT_S)

    def _keep(self, **changes: str | int) -> list[Action]:
        self._identity = msgspec.structs.replace(self._identity, **changes)
        self._write_again_at = float("inf")
        return [KeepIdentity(self._identity)]

    def _on_identity(self, now: float, error: str) -> list[Action]:
        """Write the identity again later if that failed; the agent goes on with the one in memory."""
        failed_before, self._write_failed = self._write_failed, bool(error)
        if error:
            self._write_again_at = now + STATE_RETRY_S
        return [Warn(error)] if error and not failed_before else []

    def _on_order(self, now: float, order: Order) -> list[Action]:
        kept = self._orders.get(order.job)
        if kept is not None and not _newer(order, kept):
            return []
        self._orders.pop(order.job, None)
        if len(self._orders) >= MAX_ORDERS:
            del self._orders[next(iter(self._orders))]
        self._orders[order.job] = order
        return [
            action
            for worker, process in self._running.items()
            if process.job == order.job and process.status is not None  # others get the order with their first report
            if process.uid == order.uid
            for action in self._pass_order(now, worker, process)
        ]

    def _on_start(self, now: float, start: StartWorker) -> list[Action]:
        name = (start.uid, start.worker)
        running = self._running.get(start.worker)
        if name in self._exited or (running is not None and running.uid == start.uid):
            return []
        if name in self._forgotten:
            return self._tell_that_it_is_gone(start.job, name, Fault.LOST)
        if self._keeps_too_much:
            reason = f"{len(self._exited)} ends of workers are kept here that no controller has taken in"
            return self._tell(_refused(start, reason, Fault.LOST))
        if reason := self._refusal(start):
            return self._tell_end(name, _refused(start, reason, Fault.SERVER))
        self._running[start.worker] = _Process(
            start.job, start.uid, start.gpu, Origin.ASKED, give_up_at=now + START_PATIENCE_S, gpus=start.gpus
        )
        number = job_number(start.job)
        kept = self._keep(highest_job=number) if number > self._identity.highest_job else []
        return [*kept, StartProcess(start)]

    @property
    def _keeps_too_much(self) -> bool:
        """Whether so many ends are not recorded by a controller that no more workers may be started."""
        return len(self._exited) >= max(LEAST_KEPT_ENDS, KEPT_ENDS_PER_GPU * len(self._server.gpus))

    def _refusal(self, start: StartWorker) -> str:
        """Return why this worker cannot be started here; "": it can."""
        wanted = {start.gpu, *start.gpus}
        if missing := wanted - {gpu.index for gpu in self._server.gpus}:
            return f"this server has no GPU {min(missing)}"
        if start.worker in self._stuck:
            return f"an earlier start of {start.worker} has not come to an end: a file system may not answer"
        for trouble in self._troubles:
            if (
                (trouble.gpu is None or trouble.gpu in wanted)
                and trouble.severity.blocks_new_work
                and trouble.code not in start.trusted
            ):
                where = "this server" if trouble.gpu is None else f"GPU {trouble.gpu}"
                return f"{where} takes no new work: {trouble.text}"
        stuck = {index for process in self._stuck.values() for index in (process.gpu, *process.gpus)}
        if wanted & stuck:
            return f"an earlier start on GPU {min(wanted & stuck)} has not come to an end: a file system may not answer"
        if start.worker in self._running:
            return f"a worker of an earlier job with the same name, {start.worker}, still runs on this server"
        return ""

    def _on_started(self, now: float, worker: WorkerId) -> list[Action]:
        process = self._running.get(worker)
        if process is not None:
            process.origin, process.give_up_at = Origin.STARTED, float("inf")
        stuck = self._stuck.get(worker)
        if stuck is not None:
            stuck.kill_at = now
        return self._kill(now, worker, stuck) if stuck is not None else []

    def _kill(self, now: float, worker: WorkerId, process: _Process) -> list[Action]:
        """Kill a process if its time has come. It is killed again later, as it may be stuck in the kernel."""
        if process.kill_at is None or now < process.kill_at:
            return []
        process.kill_at = now + 1.0
        return [SignalProcess(worker, StopSignal.KILL)]

    def _give_up(self, worker: WorkerId) -> list[Action]:
        """Give up a start that takes too long. Its end is reported, so that the job can start elsewhere.

        The GPU takes no other worker until the start has a result."""
        process = self._stuck[worker] = self._running.pop(worker)
        record = WorkerExit(
            job=process.job,
            worker=worker,
            exit_code=None,
            reason=f"could not be started within {START_PATIENCE_S:.0f} s: a file system may not answer",
            fault=Fault.SERVER,
            uid=process.uid,
        )
        return [*self._tell_end((process.uid, worker), record), SignalProcess(worker, StopSignal.KILL)]

    def _end_stuck(self, worker: WorkerId, process: _Process) -> list[Action]:
        name = (process.uid, worker)
        return [ForgetWorker(process.job, worker, process.uid)] if name in self._forgotten else []

    def _on_stop(self, now: float, stop: StopWorker) -> list[Action]:
        process = self._running.get(stop.worker)
        if process is None or process.uid != stop.uid:
            return self._tell_that_it_is_gone(stop.job, (stop.uid, stop.worker), Fault.STOPPED)
        kill_at = now + max(0.0, stop.grace_s)
        asked_before = process.kill_at is not None
        process.kill_at = kill_at if process.kill_at is None else min(process.kill_at, kill_at)
        phase = process.status.phase if process.status is not None else None
        # A worker that is about to end is not interrupted: its script may run code after the training.
        over = phase is not None and phase.over
        may_train = process.origin is Origin.ADOPTED if phase is None else phase.may_have_state
        if stop.save and not asked_before and (may_train or over):
            process.suspend = _suspend(stop)
            return [] if over else [SendWorker(stop.worker, process.suspend)]
        if asked_before and stop.save and process.suspend is not None:
            return self._ask_anew(process, stop)
        if asked_before and (stop.save or process.suspend is None):
            return []
        process.suspend = None
        return [SignalProcess(stop.worker, StopSignal.TERMINATE)]

    def _ask_anew(self, process: _Process, stop: StopWorker) -> list[Action]:
        """Update the request to a worker that was asked to end by itself: another worker saves, or has saved.

        The number of a saved step never decreases: a controller that has just started may not know about that save.
        """
        before = process.suspend.saved if process.suspend is not None else None
        suspend = _suspend(stop)
        if before is not None and (stop.saved is None or stop.saved < before):
            suspend = msgspec.structs.replace(suspend, saved=before)
        if suspend == process.suspend or (stop.saver is None and stop.saved is None):
            return []
        process.suspend = suspend
        return [SendWorker(stop.worker, suspend)]

    def _tell_that_it_is_gone(self, job: JobId, name: _Name, fault: Fault) -> list[Action]:
        """Report the end of a worker that does not run, although the controller takes it for alive.

        Its start may still be on its way. It will be refused, since the controller gives the GPU to another worker as soon as it
        receives this report."""
        record = self._exited.get(name)
        if record is None:
            reason = f"it does not run on server {self._server.server}"
            record = WorkerExit(job=job, worker=name[1], exit_code=None, reason=reason, fault=fault, uid=name[0])
            if not self._keeps_too_much:  # otherwise no worker is started, so no late start needs to be refused
                self._forgotten.pop(name, None)
                self._exited[name] = record
        return self._tell(record)

    def _on_forget(self, name: _Name) -> list[Action]:
        record = self._exited.pop(name, None)
        if record is None:
            return []
        if len(self._forgotten) >= MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[name] = None
        return [ForgetWorker(record.job, record.worker, record.uid)]

    # -- the workers

    def _on_status(self, now: float, status: WorkerStatus) -> list[Action]:
        process = self._running.get(status.worker)
        if process is None or process.job != status.job:
            return []
        before = process.status
        if before is not None and status.sequence < before.sequence:
            return []
        actions: list[Action] = [SendWorker(status.worker, StatusReceived(sequence=status.sequence))]
        if before is not None and status.sequence == before.sequence:
            return actions  # the first status of a number counts, here as at the controller
        process.status, process.heard_at = status, now
        if process.suspend is not None:  # repeated, since an adopted worker may not have received it
            if status.phase.may_have_state:
                actions.append(SendWorker(status.worker, process.suspend))
            elif not status.phase.over:
                process.suspend = None
                actions.append(SignalProcess(status.worker, StopSignal.TERMINATE))
        # A longer longest step gives a preempted job more time to save, so the controller gets it at once.
        process.unreported = (
            before is not None
            and _without_progress(status) == _without_progress(before)
            and status.longest_step_s <= before.longest_step_s + LEAST_SAVE_S
        )
        if not process.unreported:
            actions += self._tell(WorkerReport(status=status, uid=process.uid))
        order = self._orders.get(status.job)
        if order is not None and order.uid == process.uid:
            missed = before is None or status.order < order.generation
            uncommitted = status.generation < order.generation and now - process.ordered_at >= ORDER_REPEAT_S
            if missed or uncommitted:
                actions += self._pass_order(now, status.worker, process)
        return actions

    def _on_use(self, uses: tuple[WorkerUse, ...]) -> None:
        """Keep the workers' newest use for a heartbeat, once in a few samples. Use is cumulative: earlier samples can be lost."""
        for use in uses:
            process = self._running.get(use.worker)
            if process is not None and process.uid == use.uid:
                process.use = use
                process.samples += 1

    def _pass_order(self, now: float, worker: WorkerId, process: _Process) -> list[Action]:
        process.ordered_at = now
        return [SendWorker(worker, self._orders[process.job])]

    def _end(self, worker: WorkerId, exit_code: int | None, reason: str, fault: Fault, path: str = "") -> list[Action]:
        stuck = self._stuck.pop(worker, None)
        if stuck is not None:
            return self._end_stuck(worker, stuck)
        process = self._running.pop(worker, None)
        if process is None:
            return []
        phase = process.status.phase if process.status else None
        if exit_code == 0 and phase is not None and phase.over:
            fault = Fault.NONE
        elif process.hung:
            fault, reason = Fault.SILENT, process.hung
        elif process.kill_at is not None:
            fault = Fault.STOPPED
        record = WorkerExit(
            job=process.job,
            worker=worker,
            exit_code=exit_code,
            reason=reason,
            phase=phase,
            status=process.status,
            fault=fault,
            uid=process.uid,
            log=path,
            use=process.use.use if process.use is not None else None,
        )
        return self._tell_end((process.uid, worker), record)

    def _tell_end(self, name: _Name, record: WorkerExit) -> list[Action]:
        self._exited[name] = record
        return self._tell(record)

    # -- time

    def _pass_time(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for worker in [worker for worker, process in self._running.items() if now >= process.give_up_at]:
            actions += self._give_up(worker)
        for process in self._running.values():
            self._judge_silence(now, process)
        for worker, process in (*self._running.items(), *self._stuck.items()):
            actions += self._kill(now, worker, process)
        if now >= self._write_again_at:
            actions += self._keep()
        match self._session.due(now):
            case Due.HELLO:
                actions.append(self._say(self._hello()))
            case Due.HEARTBEAT:
                actions.append(self._say(self._heartbeat()))
                actions += [self._say(record) for record in self._ends_to_repeat()]
        return actions

    def _heartbeat(self) -> AgentHeartbeat:
        silent = [
            worker
            for worker, process in self._running.items()
            if process.status is None and process.origin is not Origin.ASKED
        ]
        return AgentHeartbeat(
            server=self._server.server,
            starting=tuple(silent),
            reports=self._progress(),
            troubles=self._troubles,
            use=self._used(),
        )

    def _progress(self) -> tuple[WorkerReport, ...]:
        """Return the statuses that have waited for this heartbeat, up to a limit; the others wait for the next one."""
        found: list[WorkerReport] = []
        for process in self._running.values():
            if process.unreported and process.status is not None and len(found) < MAX_REPORTS_PER_HEARTBEAT:
                process.unreported = False
                found.append(WorkerReport(status=process.status, uid=process.uid))
        return tuple(found)

    def _used(self) -> tuple[WorkerUse, ...]:
        """Return the use of workers that have had enough samples since their last report, up to a limit."""
        found: list[WorkerUse] = []
        for process in self._running.values():
            if (
                process.use is not None
                and process.samples >= SAMPLES_OF_A_REPORT
                and len(found) < MAX_REPORTS_PER_HEARTBEAT
            ):
                process.samples = 0
                found.append(process.use)
        return tuple(found)

    def _ends_to_repeat(self) -> list[WorkerExit]:
        """Return some of the kept ends, each in its turn, since the controller may never record some of them."""
        names = list(self._exited)[:MAX_EXITS_PER_HEARTBEAT]
        for name in names:
            self._exited[name] = self._exited.pop(name)
        return [self._exited[name] for name in names]

    def _silence_allowed_s(self, process: _Process) -> float:
        """Return how long a worker may be silent. No limit before its first report, and at its end, when it sends no more."""
        phase = process.status.phase if process.status is not None else None
        if phase is None or phase.over or process.hung:
            return float("inf")
        return self._worker_silence_s * (STARTING_PATIENCE if phase is WorkerPhase.STARTING else 1.0)

    def _judge_silence(self, now: float, process: _Process) -> None:
        silent_s = now - process.heard_at
        if silent_s >= self._silence_allowed_s(process):
            process.hung = f"said nothing for {silent_s:.0f} s"
            process.kill_at = now

    def _leave_out_absence(self, now: float) -> None:
        """Do not count time in which this agent was stopped as a worker's silence: it handles their reports only afterwards."""
        away_s = now - self._turned_at
        self._turned_at = now
        if away_s >= AWAY_S:
            for process in self._running.values():
                process.heard_at += away_s
                process.give_up_at += away_s

    def _hello(self) -> AgentHello:
        statuses = [process.status for process in self._running.values() if process.status is not None]
        silent = [worker for worker, process in self._running.items() if process.status is None]
        self._hellos += 1
        return AgentHello(
            server=self._server,
            incarnation=self._incarnation,
            workers=tuple(statuses),
            starting=tuple(silent),
            exited=tuple(self._exited.values()),
            number=self._hellos,
            agent=self._identity.agent,
            start=self._identity.start,
            cluster=self._identity.cluster,
            highest_job=self._identity.highest_job,
            newest_event=self._identity.newest_event,
            heartbeat_interval_s=self._heartbeat_interval_s,
            processes=tuple(
                LocalWorker(worker=worker, job=process.job, uid=process.uid, gpu=process.gpu, gpus=process.gpus)
                for worker, process in self._running.items()
            ),
            troubles=self._troubles,
            term=self._fence.term,
            speaks=PROTOCOL_VERSION,
        )

    def _say(self, message: ToControllerFromAgent) -> SendController:
        return SendController(message, self._session.endpoint)

    def _tell(self, message: WorkerReport | WorkerExit) -> list[Action]:
        """Report to the controller. Before a session has begun nothing is sent, since the hello will contain it."""
        return [self._say(message)] if self._session.incarnation is not None else []


def _refused(start: StartWorker, reason: str, fault: Fault) -> WorkerExit:
    """Return the end of a worker that was not started."""
    return WorkerExit(
        job=start.job, worker=start.worker, exit_code=None, reason=reason, fault=fault, uid=start.uid, begun=False
    )


def _newer(order: Order, kept: Order) -> bool:
    """Return whether `order` supersedes `kept`, an order of the same job.

    Orders of one generation arrive in the order in which they were sent."""
    if order.generation != kept.generation:
        return order.generation > kept.generation or order.uid != kept.uid
    return order != kept and (bool(order.leader_address) or not kept.leader_address)


def _without_progress(status: WorkerStatus) -> WorkerStatus:
    """Return `status` with fixed values for all fields that change in normal progress, to compare the others."""
    return msgspec.structs.replace(
        status,
        sequence=0,
        applied=None if status.applied is None else 0,
        epoch=0,
        samples_per_s=0.0,
        median_step_s=0.0,
        steady=Steady(),
        metrics={},
        saving_s=0.0,
        longest_step_s=0.0,
        exchange_s=0.0,
    )


def _suspend(stop: StopWorker) -> Suspend:
    return Suspend(job=stop.job, saver=stop.saver, stand_by=stop.stand_by, saved=stop.saved)
