"""The agent's shell: sockets, processes, files and time around `machine.AgentMachine` (cluster 1, 2).

Two kinds of sockets: a DEALER to the controller, and ROUTERs on which the workers of this server talk, one for each account
(`lines`). A message to the controller says "SERVER#IDENTITY" first, so that two agents of one name are told apart. Nothing is
queued for a controller that is away (ZMQ_IMMEDIATE): the machine repeats what matters, and a controller that comes back is not
flooded with what was true an hour ago.

The loop waits for messages and ends of processes, and for nothing else: files are the business of `errands`.

SIGTERM ends the agent alone. Its workers go on, and the next agent adopts them.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil
import zmq

from .. import __version__
from ..protocol.codec import Codec
from ..protocol.errors import ElasticError, OperatorError, PeerError
from ..protocol.limits import MAX_STATUS_BYTES
from ..protocol.messages import AgentHello, ReadLog, ToAgentFromController, ToAgentFromWorker
from ..protocol.model import Server, ServerId
from ..protocol.sparing import SparingBySubject
from ..protocol.times import REFUSED_RETRY_S
from ..runtime import locks, readiness, transport
from ..runtime.clock import SteadyClock
from ..runtime.config import log_refusal, taken
from ..runtime.directories import check_way, private_directory
from ..runtime.loop import Loop
from . import accounts, cgroups, config, shim, topology
from .accounts import Account
from .cgroups import Cgroups
from .config import AgentConfig
from .disk import Disk, Rules, load_identity, located
from .environment import Surroundings, common_environment
from .errands import Errands
from .events import (
    Action,
    ControllerMessage,
    Event,
    ForgetWorker,
    HelloNotSent,
    IdentityWritten,
    KeepIdentity,
    LogRead,
    ReadLogPiece,
    SendController,
    SendWorker,
    SignalProcess,
    StartProcess,
    TimePassed,
    Warn,
    WorkerStatusReceived,
)
from .forkserver.client import WarmProcesses
from .lines import WorkerLines, let_pass
from .logfiles import JobFiles, not_read
from .machine import AgentMachine
from .processes import Processes
from .scratch import Scratch

log = logging.getLogger(__name__)


class AgentDaemon:
    """One agent. `run` returns after SIGTERM or SIGINT."""

    def __init__(self, options: AgentConfig, environment: Mapping[str, str]) -> None:
        """Raises OperatorError where the configuration does not fit the machine."""
        self._options = options
        umask = os.umask(0o077)  # what the agent makes is its own
        state = private_directory(options.state)
        self._lock = locks.hold(state / "agent.lock", f"{state}: another agent runs with this state directory")
        who = load_identity(state, secrets.token_hex(8))
        socket_path = config.socket_directory(options, environment) / "workers"
        self._clock = SteadyClock()
        self._loop = Loop(self._clock, self._on_turn, self._next_deadline)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.IMMEDIATE, 1)  # for the sockets that follow
        self._state = state
        own = accounts.own_account()
        key = options.key
        self._controller_address = config.controller_of(options, key)
        if self._controller_address.startswith("ipc://"):
            check_way(Path(self._controller_address.removeprefix("ipc://")).parent)
        self._name = f"{options.server}#{who.agent}".encode()
        self._controller = (
            transport.dealer(self._context, self._controller_address)
            if key is None
            else transport.dealer(self._context, self._controller_address, b"", key.pair, key.controller_public)
        )
        self._refusals = transport.refusals(self._context, self._controller)
        self._connect_again_at: float | None = None
        self._sparing = SparingBySubject()
        self._from_controller: Codec[ToAgentFromController] = Codec(ToAgentFromController)
        self._from_worker: Codec[ToAgentFromWorker] = Codec(ToAgentFromWorker)
        gpus = topology.discover(options.cpu_slots)
        around = Surroundings(
            agent_address=transport.check_address(f"ipc://{socket_path}", None),
            address=options.address,
            checkpoints=options.checkpoints,
            gpus=gpus,
            variables=options.worker_environment,
            cpus=topology.near(gpus) if options.cpu_affinity else {},
            interface=topology.interface_of(options.address),
        )
        if not around.interface:
            log.warning("address: %s is none of this server's: NCCL chooses a network by itself", options.address)
        self._workers = WorkerLines(self._context, self._loop, around.agent_address_for, self._on_worker)
        if problem := self._workers.listen(own):
            raise OperatorError(problem)
        server = Server(
            server=ServerId(options.server),
            address=options.address,
            gpus=gpus,
            cpu_cores=psutil.cpu_count() or 0,
            memory_bytes=psutil.virtual_memory().total,
            version=__version__,
        )
        files = JobFiles(state / "jobs")
        self._errands = Errands(self._loop.wake)
        self._cgroups = Cgroups(
            config.tag(state),
            cgroups.Limits(*options.worker_limits.each()),
            config.all_memory_bytes(options.worker_limits, server.memory_bytes),
            cgroups.mounted(),
            own_too=options.worker_limits.given,
        )
        self._scratch = Scratch(config.scratch_directory(options))
        rules = Rules(
            scratch=self._scratch,
            cgroups=self._cgroups,
            root_jobs=options.allow_root_jobs,
            log_bytes=options.worker_log_mib << 20,
            umask=umask,
        )
        self._disk = Disk(state, files, around, rules)
        self._warm = None
        if options.warm_start:
            root_only = own.uid == 0 and not options.allow_root_jobs
            standard = None if root_only else (own, located(sys.executable), common_environment(around, own))
            self._warm = WarmProcesses(state, standard, self._loop, self._clock, self._errands, self._cgroups)
        self._processes = Processes(
            files, around, self._loop, self._clock, self._warm, self._dispatch, self._errands, self._disk, self._listen
        )
        if own.uid == 0:
            for path in config.others_may_change((Path(sys.executable), Path(shim.__file__))):
                log.warning("%s can be changed by others than root, and this agent, which is root, executes it", path)
        self._machine = AgentMachine(
            server, secrets.token_hex(8), options.heartbeat_interval_s, options.worker_silence_s, who
        )
        self._loop.add_socket(self._controller, self._on_controller)
        self._loop.add_socket(self._refusals, self._on_refusal)

    def run(self, again: Callable[[], AgentConfig] | None = None) -> None:
        """Adopt what runs, then serve until a signal. `again` reads the configuration anew, at SIGHUP."""
        self._loop.stop_on_signals()
        if again is not None:
            self._loop.on_signal(signal.SIGHUP, lambda: self._reload(again))
        try:
            self._dispatch(self._processes.adopt())
            readiness.notify("READY=1")
            log.info("agent runs")
            self._loop.run()
        finally:
            readiness.notify("STOPPING=1")
            self.close()

    def close(self) -> None:
        """Let go of everything; the workers go on."""
        self._processes.close()
        if self._warm is not None:
            self._warm.close()
        self._errands.close()
        self._controller.disable_monitor()
        self._refusals.close()
        self._controller.close()
        self._workers.close()
        self._context.term()
        self._cgroups.close()
        self._scratch.close()
        self._loop.close()
        os.close(self._lock)

    def _reload(self, again: Callable[[], AgentConfig]) -> None:
        readiness.reloading()
        try:
            options = taken(self._options, again(), config.RELOADED)
            options.begin_log()
            self._options = options
        except ElasticError as error:
            log_refusal(error)
        readiness.notify("READY=1")

    # -- facts in

    def _on_controller(self, frames: list[bytes]) -> None:
        try:
            message = self._from_controller.decode(frames[-1])
        except PeerError as error:
            log.warning("dropped bytes from the controller: %s", error)
            return
        self._dispatch(ControllerMessage(message))

    def _on_refusal(self, frames: list[bytes]) -> None:
        """The controller has not let us in. ZeroMQ tries again by itself, unless it was told that the key is not wanted."""
        now = self._clock.now()
        if transport.is_final(frames):
            self._connect_again_at = now + REFUSED_RETRY_S
            text = "does not know this server's key, or has revoked it"
        else:
            text = "ends the connection: its key may be another one than the key file says"
        if self._sparing.worth(text, now) is not None:
            log.warning("the controller at %s %s", self._controller_address, text)

    def _on_worker(self, user: int, frames: list[bytes]) -> None:
        try:
            if len(frames[-1]) > MAX_STATUS_BYTES:
                raise PeerError(f"{len(frames[-1])} bytes, and a status has at most {MAX_STATUS_BYTES}")
            status = self._from_worker.decode(frames[-1]).status
            if status.worker.encode() != frames[0]:
                raise PeerError(f"{frames[0][:200]!r} speaks for worker {status.worker:.200}")
            account = self._processes.account_of(status.worker)
            if account is not None and account.uid != user:
                raise PeerError(f"user {user} speaks for worker {status.worker:.200} of another account")
        except PeerError as error:
            more = self._sparing.worth(f"a worker of user {user}", self._clock.now())
            if more is not None:
                log.warning("dropped bytes from a worker: %.500s (and %d such since the last one)", error, more)
            return
        self._dispatch(WorkerStatusReceived(status))
        self._processes.heard(status.worker)

    def _listen(self, account: Account) -> str:
        if not account.own:
            try:
                let_pass(self._state)
            except OSError as error:
                return f"{self._state}: {error.strerror}"
        return self._workers.listen(account)

    def _on_turn(self) -> None:
        self._errands.deliver()
        deadline = self._machine.next_deadline()
        if deadline is not None and self._clock.now() >= deadline:
            self._dispatch(TimePassed())
        if self._connect_again_at is not None and self._clock.now() >= self._connect_again_at:
            self._connect_again_at = None
            transport.connect_again(self._controller, self._controller_address)
        self._processes.pass_time()
        if self._warm is not None:
            self._warm.pass_time()

    def _next_deadline(self) -> float | None:
        deadlines = [self._machine.next_deadline(), self._processes.next_deadline(), self._connect_again_at]
        if self._warm is not None:
            deadlines.append(self._warm.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- effects out

    def _dispatch(self, event: Event) -> None:
        """Hand `event` to the machine and carry out what it asks for, and what follows from that."""
        events = deque([event])
        while events:
            for action in self._machine.handle(self._clock.now(), events.popleft()):
                follows = self._perform(action)
                if follows is not None:
                    events.append(follows)

    def _perform(self, action: Action) -> Event | None:
        """Carry out `action`. Returns the fact that it has made known at once, if any."""
        match action:
            case SendController(message):
                sent = self._send_controller(message)
                return HelloNotSent() if isinstance(message, AgentHello) and not sent else None
            case SendWorker(worker, message):
                account = self._processes.account_of(worker)
                if account is not None:
                    self._workers.send(account, worker.encode(), self._from_worker.encode(message))
            case StartProcess(start):
                return self._processes.start(start)
            case SignalProcess(worker, how):
                return self._processes.signal(worker, how)
            case ForgetWorker(job, worker, uid):
                self._processes.forget(job, worker, uid)
            case ReadLogPiece(request, growing):
                return self._read_log(request, growing)
            case KeepIdentity(who):
                self._errands.ask(
                    "identity",
                    lambda: self._disk.save(who),
                    lambda error: self._dispatch(IdentityWritten(error)),
                )
            case Warn(text):
                log.warning("%s", text)
                readiness.notify(f"STATUS={text}")
        return None

    def _read_log(self, request: ReadLog, growing: bool) -> Event | None:
        offered = self._errands.offer(
            f"logs {request.job}.{request.uid}",
            lambda: self._disk.read_log(request, growing),
            lambda piece: self._dispatch(LogRead(piece)),
        )
        return None if offered else LogRead(not_read(request, "too much waits for this server's file systems"))

    def _send_controller(self, message: msgspec.Struct) -> bool:
        try:
            data = self._from_controller.encode(message)
        except PeerError as error:
            log.error("nothing is sent to the controller: %s", error)
            return False
        return transport.send(self._controller, self._name, data)
