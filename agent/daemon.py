"""The agent's process: sockets, child processes, files and time around `machine.AgentMachine` (cluster 1, 2).

There are two kinds of sockets: DEALERs to the controllers (`controllers`), and ROUTERs for the workers of this server, one per
account (`worker_sockets`). A message to a controller begins with "SERVER#IDENTITY", so that two agents of one name are
distinguished. The machine repeats messages that matter, so a returning controller is not flooded with outdated ones.

The loop waits for messages and ends of processes only; blocking file operations are left to `task_queues`.

SIGTERM ends the agent alone. Its workers continue, and the next agent adopts them.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import zmq

from .. import __version__
from ..protocol.codec import Codec
from ..protocol.errors import ElasticError, OperatorError, PeerError
from ..protocol.limits import MAX_STATUS_BYTES
from ..protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    ReadLog,
    Standby,
    StartWorker,
    ToAgentFromController,
    ToAgentFromWorker,
)
from ..protocol.model import CAPTURED_VARIABLES, GpuKind, Server, ServerId
from ..protocol.rate_limit import SubjectRateLimiter
from ..protocol.terms import unstamped
from ..runtime import locks, mounts, readiness, transport
from ..runtime.clock import SteadyClock
from ..runtime.config import log_refusal, taken
from ..runtime.directories import check_way, private_directory
from ..runtime.loop import Loop
from . import accounts, cgroups, config, health, monitoring, shim, topology
from .accounts import Account
from .checks import Checks
from .commands import Commands
from .config import AgentConfig
from .containers import PROXIES, Containers
from .controllers import Controllers
from .disk import Disk, Rules, load_identity
from .environment import Surroundings, common_environment
from .events import (
    Action,
    AgentTick,
    CommandExchanged,
    ControllerMessage,
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
    StartProcess,
    TakeSnapshotPart,
    UseSampled,
    Warn,
    WarnProcess,
    WorkerStatusReceived,
)
from .forkserver.client import WarmProcesses
from .health import CheckFailed
from .interpreters import located
from .inventory_refresh import InventoryRefresh, fits
from .isolation import Isolation
from .logfiles import JobFiles, not_read
from .machine import AgentMachine
from .metrics import Tally, figures
from .ports import Ports
from .processes import Processes
from .reachability import ControllerReachability
from .scratch import Scratch
from .snapshots import Snapshots
from .task_queues import AGENT_ITSELF, LatestTask, TaskQueues
from .usage import Present, Sampler
from .visible_gpus import VisibleGpus
from .worker_sockets import WorkerSockets, let_pass

if TYPE_CHECKING:
    from ..runtime.metrics import Exporter

log = logging.getLogger(__name__)

STORAGE_TOLD_WITHIN_S = 2.0  # to identify the checkpoints' file system, which may hang

TOO_MUCH_WAITS = "too much waits for this server's file systems"


class AgentDaemon:
    """One agent. `run` returns after SIGTERM or SIGINT."""

    def __init__(self, options: AgentConfig, environment: Mapping[str, str]) -> None:
        """Raises OperatorError where the configuration does not fit the machine."""
        self._options = options
        umask = os.umask(0o077)  # so that the agent's files are closed to others
        state = private_directory(options.state)
        self._lock = locks.hold(state / "agent.lock", f"{state}: another agent runs with this state directory")
        who = load_identity(state, secrets.token_hex(8))
        socket_path = config.socket_directory(options, environment) / "workers"
        self._clock = SteadyClock()
        self._loop = Loop(self._clock, self._on_turn, self._next_deadline)
        self._context = transport.context()
        self._context.setsockopt(zmq.IMMEDIATE, 1)  # for the sockets created below
        self._state = state
        own = accounts.own_account()
        key = options.key
        addresses = config.controllers_of(options, key)
        for address in addresses:
            if address.startswith("ipc://"):
                check_way(Path(address.removeprefix("ipc://")).parent)
        self._name = f"{options.server}#{who.agent}".encode()
        self._controllers = Controllers(
            self._context, self._loop, self._clock, addresses, key, self._on_controller, self._dispatch
        )
        self._reach = ControllerReachability(", ".join(addresses), options.heartbeat_interval_s, self._clock.now())
        self._rate_limiter = SubjectRateLimiter()
        self._from_controller: Codec[ToAgentFromController] = Codec(ToAgentFromController)
        self._from_worker: Codec[ToAgentFromWorker] = Codec(ToAgentFromWorker)

        visible = VisibleGpus.of(options.visible_gpus, environment)

        def discover() -> topology.Inventory:
            library, root = options.nvml_library, Path(options.sysfs)
            return topology.discover(state, time.time(), options.cpu_slots, options.gpu_kind, library, root, visible)

        inventory = discover()
        self._ports = Ports()
        gpus = self._ports.keep(inventory.gpus)
        around = Surroundings(
            agent_address=transport.check_address(f"ipc://{socket_path}", None),
            address=options.address,
            checkpoints=options.checkpoints,
            gpus=gpus,
            variables=options.worker_environment,
            cpus=inventory.cpus if options.cpu_affinity else {},
            interface=topology.interface_of(options.address),
        )
        if not around.interface:
            log.warning("address: %s is none of this server's now: no worker is started until it is", options.address)
        bounds = options.worker_messages.bounds(len(inventory.gpus))
        self._workers = WorkerSockets(self._loop, around.agent_address_for, self._on_worker, bounds)
        if problem := self._workers.listen(own):
            raise OperatorError(problem)
        server = Server(
            server=ServerId(options.server),
            address=options.address,
            gpus=gpus,
            cpu_cores=psutil.cpu_count() or 0,
            memory_bytes=psutil.virtual_memory().total,
            version=__version__,
            rack=options.rack,
            wiring=inventory.wiring,
            checkpoints=mounts.told_within(options.checkpoints, STORAGE_TOLD_WITHIN_S),
        )
        files = JobFiles(state / "jobs")
        self._tasks = TaskQueues(self._loop.wake)
        self._keep_health: LatestTask[health.Kept] = LatestTask(
            self._tasks, "health", lambda kept: monitoring.save(state, kept), self._on_health_kept
        )
        self._isolation = Isolation(options, server.memory_bytes, inventory.nodes, socket_path.parent, self._loop.wake)
        apart = self._isolation
        containers = Containers(
            cgroups.mounted(),
            options.container_mounts,
            {name: value for name, value in options.worker_environment.items() if name in PROXIES},
        )
        apart.note_containers(containers.unavailable(gpus, apart.serves))
        server = msgspec.structs.replace(
            server, allocatable=apart.allocatable(server.cpu_cores), no_containers=apart.no_containers
        )
        self._scratch = Scratch(config.scratch_directory(options))
        rules = Rules(
            scratch=self._scratch,
            cgroups=apart.cgroups,
            devices=apart.devices,
            rooms=apart.rooms,
            root_jobs=options.allow_root_jobs,
            log_bytes=options.worker_log_mib << 20,
            umask=umask,
            containers=containers,
        )
        self._disk = Disk(state, files, around, rules)
        self._warm = None
        if options.warm_start:
            root_only = own.uid == 0 and not options.allow_root_jobs
            # The user of a private agent submits jobs from about the same shell environment.
            carried = {name: os.environ[name] for name in CAPTURED_VARIABLES if name in os.environ}
            usual = common_environment(around, own) | carried
            standard = None if root_only else (own, located(sys.executable), usual)
            self._warm = WarmProcesses(
                *(state, standard, self._loop, self._clock, self._tasks),
                *(apart.cgroups, apart.devices, self._disk.mounts),
            )
        self._commands = Commands(self._loop, self._clock, self._tasks, self._disk)
        self._processes = Processes(
            files,
            around,
            self._loop,
            self._clock,
            self._warm,
            self._on_process,
            self._tasks,
            self._disk,
            self._listen,
        )
        if own.uid == 0:
            for path in config.others_may_change(config.EXECUTED):
                log.warning("%s can be changed by others than root, and this agent, which is root, executes it", path)
        now = self._clock.now()
        self._health = health.Health(options.rules)
        self._boot = shim.boot_id()
        self._health.restore(now, monitoring.load(state), self._boot)
        self._health.begin(now, inventory.troubles, [gpu.index for gpu in gpus])
        self._health.handle(now, apart.tried)
        for trouble in self._health.troubles():
            if trouble.code == health.LIMITS:
                log.error("%s", trouble.text)
        self._machine = AgentMachine(
            server,
            secrets.token_hex(8),
            options.heartbeat_interval_s,
            options.worker_silence_s,
            who,
            self._health.troubles(),
            len(addresses),
        )
        self._watch = monitoring.Watch(
            inventory.gpus,
            inventory.wiring,
            options.nvml_library,
            options.disks,
            options.health.least_disk_mib << 20,
            options.health.interval_s,
            monitoring.Owned(self._processes.roots, self._machine.used_gpus),
            self._loop.wake,
        )
        self._sampler = Sampler(
            self._present,
            lambda: all(gpu.kind is GpuKind.CPU for gpu in self._server.gpus),
            self._watch.driver,
            options.use_interval_s,
            self._loop.wake,
        )
        self._around = around
        self._renewing = None
        if options.cpu_slots is None:
            interval_s = options.health.interval_s
            self._renewing = InventoryRefresh(inventory, discover, options.nvml_library, interval_s, self._loop.wake)
        self._checks = Checks(self._tasks, self._check, self._begin_start, self._on_unfit)
        self._snapshots = Snapshots(
            self._tasks,
            self._disk,
            self._clock.now,
            lambda message: self._send_controller(message, self._machine.endpoint),
            self._begin_in,
            self._dispatch,
            self._processes.holder,
        )
        self._processes.generation_of = self._machine.generation_of
        self._server = server
        self._tally = Tally()
        self._exporter = _exporter(options, self._loop.wake)

    def run(self, again: Callable[[], AgentConfig] | None = None) -> None:
        """Adopt running workers, then serve until a signal. again: reads the configuration again, at SIGHUP."""
        self._loop.stop_on_signals()
        if again is not None:
            self._loop.on_signal(signal.SIGHUP, lambda: self._reload(again))
        try:
            self._dispatch(self._processes.adopt())
            self._watch.start()
            self._sampler.start()
            self._isolation.start()
            if self._renewing is not None:
                self._renewing.start()
            readiness.notify("READY=1")
            log.info("agent runs")
            self._loop.run()
        finally:
            readiness.notify("STOPPING=1")
            self.close()

    def close(self) -> None:
        """Close sockets and helpers; the workers continue."""
        self._watch.close()
        self._sampler.close()
        if self._renewing is not None:
            self._renewing.close()
        self._checks.close()
        if self._exporter is not None:
            self._exporter.close()
        self._commands.close()
        self._processes.close()
        if self._warm is not None:
            self._warm.close()
        self._tasks.close()
        self._controllers.close()
        self._workers.close()
        self._context.term()
        self._isolation.close()
        self._ports.close()
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

    def _on_controller(self, endpoint: int, frames: list[bytes]) -> None:
        try:
            term, data = unstamped(frames)
            message = self._from_controller.decode(data)
        except PeerError as error:
            self._tally.dropped["controller"] += 1
            if self._rate_limiter.admit("a controller", self._clock.now()) is not None:
                log.warning("dropped bytes from the controller: %.500s", error)
            return
        present, refused = endpoint == self._machine.endpoint, self._machine.refused
        self._dispatch(ControllerMessage(message, term, endpoint))
        if not present or self._machine.refused != refused:
            return
        now = self._clock.now()
        if isinstance(message, Standby):
            self._reach.stands_by(self._controllers.addresses[endpoint], message.leader)
            return
        self._tally.heard(message)
        if news := self._reach.heard(now):
            log.info("%s", news)

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
            self._tally.dropped["worker"] += 1
            more = self._rate_limiter.admit(f"a worker of user {user}", self._clock.now())
            if more is not None:
                log.warning("dropped bytes from a worker: %.500s (and %d such since the last one)", error, more)
            return
        self._tally.statuses += 1
        self._dispatch(WorkerStatusReceived(status))
        self._processes.heard(status.worker)

    def _on_process(self, event: ProcessStarted | ProcessExited | ProcessFailed) -> None:
        if isinstance(event, ProcessExited):
            self._commands.end(event.worker, lambda: self._dispatch(event))
        else:
            self._dispatch(event)

    def _listen(self, account: Account) -> str:
        if not account.own:
            try:
                let_pass(self._state)
            except OSError as error:
                return f"{self._state}: {error.strerror}"
        return self._workers.listen(account)

    def _present(self) -> tuple[Present, ...]:
        """Return the workers that run, with the commands beside them. Called from another thread."""
        beside = self._commands.shims()
        return tuple(
            replace(each, shims=(*each.shims, *beside.get(each.worker, ()))) for each in self._processes.present()
        )

    def _check(self, start: StartWorker) -> CheckFailed | None:
        least_free_share = self._options.health.least_free_share
        return self._watch.driver.check(start.gpus or (start.gpu,), start.trusted, least_free_share)

    def _start(self, start: StartWorker) -> ProcessFailed | None:
        """Start a worker on a GPU that has passed its check. Returns the failure, if it is known at once."""
        if start.spec.snapshot is None:
            return self._processes.start(start)
        self._snapshots.ask(start)
        return None

    def _begin_start(self, start: StartWorker) -> None:
        if failed := self._start(start):
            self._dispatch(failed)

    def _begin_in(self, start: StartWorker) -> None:
        """Start a worker after its job's snapshot has arrived."""
        if failed := self._processes.start(start):
            self._dispatch(failed)

    def _on_unfit(self, failed: ProcessFailed, seen: CheckFailed) -> None:
        self._observe(seen)
        self._dispatch(failed)

    def _observe(self, seen: health.Observation) -> None:
        """Update the health of the server and its GPUs from an observation, and log what has changed."""
        before = {(one.gpu, one.code, one.severity): one for one in self._health.troubles()}
        if not self._health.handle(self._clock.now(), seen):
            return
        after = {(one.gpu, one.code, one.severity): one for one in self._health.troubles()}
        for key, trouble in after.items():
            if key not in before:
                where = "" if trouble.gpu is None else f"GPU {trouble.gpu}: "
                log.warning("%s%s (%s, %s)", where, trouble.text, trouble.code, trouble.severity.value)
        for gpu, code, severity in before.keys() - after.keys():
            log.info("%sis over: %s (%s)", "" if gpu is None else f"GPU {gpu}: ", code, severity.value)
        self._keep_health.submit(self._health.kept(self._boot))
        self._dispatch(HealthChanged(self._health.troubles()))

    def _renew(self, renewing: InventoryRefresh, inventory: topology.Inventory) -> None:
        """Offer a changed set of GPUs, unless that would take one from a running worker."""
        now, before = self._clock.now(), self._server.gpus
        if not fits(before, inventory.gpus, self._machine.used_gpus()):
            if self._rate_limiter.admit("inventory", now) is not None:
                log.warning(
                    "other GPUs answer than before; they are not offered while workers run on some that are gone"
                )
            return
        renewing.use(inventory)
        gpus = self._ports.keep(inventory.gpus)
        log.info("the server has other GPUs than before: %d, and there were %d", len(gpus), len(before))
        cpus = inventory.cpus if self._options.cpu_affinity else {}
        self._around = replace(self._around, gpus=gpus, cpus=cpus)
        self._disk.surround(self._around)
        if self._isolation.devices is not None:
            self._isolation.devices.learn(inventory.nodes)
        self._watch.learn(inventory.gpus, inventory.wiring)
        same = {(gpu.index, gpu.uuid) for gpu in before}
        self._health.begin(now, inventory.troubles, [gpu.index for gpu in gpus if (gpu.index, gpu.uuid) in same])
        self._keep_health.submit(self._health.kept(self._boot))
        self._dispatch(HealthChanged(self._health.troubles()))
        self._server = msgspec.structs.replace(self._server, gpus=gpus, wiring=inventory.wiring)
        self._dispatch(ServerChanged(self._server))

    def _on_health_kept(self, error: str) -> None:
        if error and self._rate_limiter.admit("health", self._clock.now()) is not None:
            log.warning("%s", error)

    def _on_turn(self) -> None:
        self._tasks.deliver()
        for seen in (*self._watch.deliver(), *self._isolation.deliver()):
            self._observe(seen)
        if uses := self._sampler.deliver():
            self._dispatch(UseSampled(uses))
        if self._renewing is not None and (inventory := self._renewing.deliver()) is not None:
            self._renew(self._renewing, inventory)
        now, over_at = self._clock.now(), self._health.next_deadline()
        if over_at is not None and now >= over_at:
            self._observe(health.HealthTick())
        self._checks.pass_time(now)
        self._snapshots.pass_time()
        if self._exporter is not None and self._exporter.wanted:
            own = figures(self._machine, self._tally, self._server, self._health.troubles(), self._sampler.gpus)
            self._exporter.publish([*own, *self._workers.floods.figures(self._workers.waiting, "agent_")])
        deadline = self._machine.next_deadline()
        if deadline is not None and self._clock.now() >= deadline:
            self._dispatch(AgentTick())
        self._controllers.pass_time()
        if trouble := self._reach.look(self._clock.now()):
            log.warning("%s", trouble)
        self._processes.pass_time()
        self._commands.pass_time()
        self._workers.pass_time()
        if self._warm is not None:
            self._warm.pass_time()

    def _next_deadline(self) -> float | None:
        deadlines = [
            self._machine.next_deadline(),
            self._processes.next_deadline(),
            self._commands.next_deadline(),
            self._controllers.next_deadline(),
            self._reach.deadline,
        ]
        deadlines += [self._health.next_deadline(), self._checks.deadline(), self._snapshots.deadline()]
        if self._warm is not None:
            deadlines.append(self._warm.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- effects out

    def _dispatch(self, event: Event) -> None:
        """Pass `event` to the machine, perform the actions that it returns, and handle events that follow from these."""
        events = deque([event])
        while events:
            self._tally.ends += isinstance(events[0], ProcessExited | ProcessFailed)
            for action in self._machine.handle(self._clock.now(), events.popleft()):
                follows = self._perform(action)
                if follows is not None:
                    events.append(follows)

    def _perform(self, action: Action) -> Event | None:
        """Perform `action`. Returns the event that it causes at once, if any."""
        match action:
            case SendController(message, endpoint):
                sent = self._send_controller(message, endpoint)
                self._tally.sent(message, sent)
                return HelloNotSent() if isinstance(message, AgentHello) and not sent else None
            case SendWorker(worker, message):
                account = self._processes.account_of(worker)
                if account is not None:
                    self._workers.send(account, worker.encode(), self._from_worker.encode(message))
            case StartProcess(start):
                self._tally.starts += 1
                if not self._watch.driver.numbers:
                    return self._start(start)
                self._checks.ask(self._clock.now(), start)
            case SignalProcess(worker, how):
                waits = self._checks.stop(worker, how) or self._snapshots.stop(worker, how)
                return waits or self._processes.signal(worker, how)
            case WarnProcess(worker):
                self._processes.warn(worker)
            case ForgetWorker(job, worker, uid):
                holder = self._processes.forget(job, worker, uid)
                if not self._processes.knows(job, uid):
                    self._snapshots.remove(job, uid, holder)
            case TakeSnapshotPart(part):
                self._snapshots.take(part)
            case ReadLogPiece(request, growing):
                return self._read_log(request, growing)
            case ExchangeCommand(asked, may_start):
                record = self._processes.started(asked.worker) if may_start else None
                holder = self._processes.holder_of(record) if record is not None else AGENT_ITSELF
                return CommandExchanged(self._commands.exchange(asked, record, holder))
            case KeepIdentity(who):
                self._tasks.submit(
                    "identity",
                    lambda: self._disk.save(who),
                    lambda error: self._dispatch(IdentityWritten(error)),
                )
            case Warn(text):
                log.warning("%s", text)
                readiness.notify(f"STATUS={text}")
        return None

    def _read_log(self, request: ReadLog, growing: bool) -> Event | None:
        """Determine the log's owner first, as reading may hang by that account's doing; then read the log."""
        offered = self._tasks.try_submit(
            "whose logs", lambda: self._disk.writer(request), lambda writer: self._read_log_of(writer, request, growing)
        )
        return None if offered else LogRead(not_read(request, TOO_MUCH_WAITS))

    def _read_log_of(self, writer: Account, request: ReadLog, growing: bool) -> None:
        offered = self._tasks.try_submit(
            f"logs {request.job}.{request.uid}",
            lambda: self._disk.read_log(request, growing, writer),
            lambda piece: self._dispatch(LogRead(piece)),
            AGENT_ITSELF if writer.own else writer.name,
        )
        if not offered:
            self._dispatch(LogRead(not_read(request, TOO_MUCH_WAITS)))

    def _send_controller(self, message: msgspec.Struct, endpoint: int) -> bool:
        if isinstance(message, AgentHello | AgentHeartbeat):
            message = msgspec.structs.replace(message, clock_s=time.time())  # wall-clock time, since people read this
        try:
            data = self._from_controller.encode(message)
        except PeerError as error:
            log.error("nothing is sent to the controller: %s", error)
            return False
        return self._controllers.send(endpoint, self._name, data)


def _exporter(options: AgentConfig, wake: Callable[[], None]) -> Exporter | None:
    """Return the metrics server; without a configured address its module is not even imported."""
    if options.metrics_address is None:
        return None
    from ..runtime.metrics import Exporter, read_token

    return Exporter(options.metrics_address, wake, read_token(options.metrics_token_file))
