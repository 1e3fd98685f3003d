"""The control plane of one worker: the shell around `machine.Membership` (CoDDL 4.3's sMPI stack, over ZeroMQ).

One thread owns all sockets: a DEALER to the agent, a ROUTER for followers and for the rendezvous of new communicators, DEALERs
to the leaders of the latest orders. The training thread calls the methods of `ClusterControl` between and within steps; they
drive the same machine under one lock and cost microseconds, since whatever has to be sent is left to the control thread.
Communicators are built in threads of their own, beside the one in use.

Outside a cluster `SoloControl` stands in its place: one worker, one generation, nobody to talk to.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
import zmq

from ..protocol.codec import Codec
from ..protocol.errors import PeerError
from ..protocol.messages import (
    Commit,
    Order,
    Prepare,
    Prepared,
    Ready,
    Status,
    StatusReceived,
    Suspend,
    ToFollower,
    ToLeader,
    ToWorkerFromAgent,
)
from ..protocol.model import (
    GpuAddress,
    GpuKind,
    Member,
    Resize,
    Roster,
    ServerId,
    Steady,
    WorkerId,
    WorkerStatus,
)
from ..runtime import transport
from ..runtime.clock import SteadyClock
from ..runtime.loop import Loop
from .communicator import Communicator, Rendezvous, RendezvousStore
from .ending import freeze_threads_at_exit
from .environment import ClusterEnvironment
from .membership import (
    Abandon,
    Action,
    Arrived,
    BoundaryReached,
    BuildGroup,
    CollectiveFailed,
    DropGroups,
    Event,
    GroupBuilt,
    GroupFailed,
    Leave,
    LoopEnded,
    Membership,
    OrderReceived,
    PeerSaid,
    Proceed,
    Propose,
    Report,
    SendFollower,
    SendLeader,
    Stall,
    StepApplied,
    StepStarted,
    Switch,
    TimePassed,
    WordRead,
)

log = logging.getLogger(__name__)

M = TypeVar("M")

HEARTBEAT_INTERVAL_S = 0.5
LAST_REPORT_S = 5.0
MAX_LEADERS = 16  # connections to the leaders of orders, old and new
SUSPEND_PATIENCE_S = 10.0  # for a step to end, before its communicator is abandoned
BUILD_TIMEOUT_S = 15.0  # for the rendezvous; operations of a communicator wait as long as it is not abandoned


class LeftJob(SystemExit):
    """This worker is no longer needed: the script ends here, with exit code 0, and nothing is lost."""

    def __init__(self) -> None:
        super().__init__(0)


class Suspended(LeftJob):
    """The job has lost all its GPUs for now: one worker saves the state, and the script ends here, with exit code 0."""

    def __init__(self, saver: WorkerId | None) -> None:
        """`saver`: who saves it; None: the leader."""
        super().__init__()
        self.saver = saver


@dataclass(frozen=True)
class Switching:
    """What the training thread needs to go on in another generation."""

    communicator: Communicator
    roster: Roster
    rank: int
    holders: tuple[bool, ...]  # by rank: has the state
    recovery: bool


@dataclass(frozen=True)
class Progress:
    """What the training thread tells of itself for status reports."""

    epoch: int = 0
    total_steps: int | None = None
    samples_per_s: float = 0.0
    median_step_s: float = 0.0
    steady: Steady = field(default_factory=Steady)


class Control(Protocol):
    """What the training thread asks of the control plane."""

    @property
    def worker(self) -> WorkerId:
        """Who this is."""

    def arrive(self) -> Switching:
        """All is prepared. Waits for the first generation."""

    def step_started(self, last: bool) -> int:
        """A step begins. Returns what to contribute to its control word."""

    def word_read(self, generation: int) -> None:
        """The step's control word has come back."""

    def step_applied(self, step: int, progress: Progress) -> None:
        """The optimizer has applied `step`."""

    def boundary(self) -> Switching | Stall | None:
        """Between two steps. None: go on. Raises LeftJob, and Suspended, as everything that waits does."""

    def failed(self, reason: str) -> Switching:
        """The communicator failed. Waits for the next generation."""

    def report(self, metrics: dict[str, float]) -> None:
        """Metrics for people."""

    def finished(self) -> None:
        """The loop is over."""


class SoloControl:
    """One worker outside a cluster."""

    def __init__(self) -> None:
        member = Member(worker=WorkerId("solo.0"), gpu=GpuAddress(server=ServerId("localhost"), index=0))
        self._roster = Roster(generation=1, members=(member,), leader=member.worker)
        self.worker = member.worker

    def arrive(self) -> Switching:
        return Switching(Communicator.alone(), self._roster, 0, (True,), recovery=True)

    def step_started(self, last: bool) -> int:
        return 0

    def word_read(self, generation: int) -> None:
        pass

    def step_applied(self, step: int, progress: Progress) -> None:
        pass

    def boundary(self) -> Switching | Stall | None:
        return None

    def failed(self, reason: str) -> Switching:
        raise RuntimeError(f"a communicator of one worker cannot fail: {reason}")

    def report(self, metrics: dict[str, float]) -> None:
        pass

    def finished(self) -> None:
        pass


@dataclass
class _Building:
    """A communicator being built, or built and not yet in use."""

    attempt: int
    store: RendezvousStore | None
    communicator: Communicator | None = None


def scope_of(generation: int, attempt: int) -> str:
    """The rendezvous scope of one attempt at one generation's communicator."""
    return f"{generation}/{attempt}"


class ClusterControl:
    """The control plane of a worker in a cluster. `start` begins it; the other methods are for the training thread."""

    def __init__(self, environment: ClusterEnvironment, resizes: Callable[[], tuple[Resize, ...]]) -> None:
        """`resizes` gives the measured switches (`progress.StepTimes.resizes`)."""
        self._env = environment
        self.worker = environment.worker
        self._resizes = resizes
        self._clock = SteadyClock()
        self._machine = Membership(environment.job, environment.worker)
        self._lock = threading.RLock()
        self._turned = threading.Condition(self._lock)
        self._switching: Switching | None = None  # for a training thread that stands still
        self._current: tuple[int, Communicator] | None = None
        self._groups: dict[int, _Building] = {}
        self._progress = Progress()
        self._metrics: dict[str, float] = {}
        self._status_sequence = 0
        self._status_received = 0  # by the agent
        self._status_due = True
        self._heartbeat_at = 0.0
        self._outbox: deque[tuple[str, bytes, bytes]] = deque()  # ("leader" | "fellow", address or identity, data)
        self._crash: BaseException | None = None
        self._suspended: Suspend | None = None
        self._patient_until_s: float | None = None  # with a step that is in progress when the job is suspended

        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._rendezvous = Rendezvous()
        self._loop = Loop(self._clock, self._on_turn, self._next_deadline)
        self._from_agent: Codec[ToWorkerFromAgent] = Codec(ToWorkerFromAgent)
        self._to_leader: Codec[ToLeader] = Codec(ToLeader)
        self._to_follower: Codec[ToFollower] = Codec(ToFollower)
        identity = environment.worker.encode()
        self._agent = transport.dealer(self._context, environment.agent_address, identity)
        self._router = transport.router(self._context)
        self._address = transport.bind(self._router, f"tcp://{environment.address}:*")
        self._leaders: dict[str, zmq.Socket[bytes]] = {}  # by address; the one used last is the last
        self._loop.add_socket(self._agent, self._on_agent)
        self._loop.add_socket(self._router, self._on_fellow)
        self._thread = threading.Thread(target=self._run, name="elasticd-control", daemon=True)

    def start(self) -> None:
        """Begin to talk to the agent."""
        freeze_threads_at_exit()
        self._thread.start()

    # -- for the training thread

    def arrive(self) -> Switching:
        with self._lock:
            self._dispatch(Arrived())
            return self._wait_for_switch()

    def step_started(self, last: bool) -> int:
        with self._lock:
            (propose,) = self._dispatch(StepStarted(last))
            assert isinstance(propose, Propose)
            return propose.generation

    def word_read(self, generation: int) -> None:
        with self._lock:
            self._dispatch(WordRead(generation))

    def step_applied(self, step: int, progress: Progress) -> None:
        with self._lock:
            self._progress = progress
            self._dispatch(StepApplied(step))

    def boundary(self) -> Switching | Stall | None:
        with self._lock:
            self._raise_if_suspended()
            actions = self._dispatch(BoundaryReached())
            if any(isinstance(action, Leave) for action in actions):
                self._wait_until_reported()
                raise LeftJob
            if any(isinstance(action, Stall) for action in actions):
                return Stall()
            return self._take_switch()

    def failed(self, reason: str) -> Switching:
        with self._lock:
            self._dispatch(CollectiveFailed(reason))
            return self._wait_for_switch()

    def report(self, metrics: dict[str, float]) -> None:
        with self._lock:
            self._metrics = {**self._metrics, **metrics}
            self._status_due = True
            self._loop.wake()

    def finished(self) -> None:
        with self._lock:
            if not self._machine.over:  # a worker that has left would wait for a report that nobody makes
                self._dispatch(LoopEnded())
                self._wait_until_reported()

    def _take_switch(self) -> Switching | None:
        switching, self._switching = self._switching, None
        return switching

    def _wait_for_switch(self) -> Switching:
        while (switching := self._take_switch()) is None:
            self._raise_if_suspended()
            self._turned.wait(1.0)
            self._raise_crash()
        return switching

    def _raise_if_suspended(self) -> None:
        if self._suspended is not None:
            self._patient_until_s = None
            raise Suspended(self._suspended.saver)

    def _wait_until_reported(self) -> None:
        """Stay until the agent has the last status, but not for ever: without an agent the end shows as a loss."""
        last = self._status_sequence + 1
        self._turned.wait_for(lambda: self._status_received >= last, timeout=LAST_REPORT_S)

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise RuntimeError("the control thread has ended") from self._crash

    # -- the machine

    def _dispatch(self, event: Event) -> list[Action]:
        """Drive the machine (under the lock) and carry its actions out. Returns them."""
        self._raise_crash()
        actions = self._machine.handle(self._clock.now(), event)
        for action in actions:
            self._act(action)
        return actions

    def _act(self, action: Action) -> None:
        match action:
            case SendLeader(address, to_leader):
                self._post("leader", address.encode(), self._to_leader.encode(to_leader))
            case SendFollower(worker, to_follower):
                self._post("fellow", worker.encode(), self._to_follower.encode(to_follower))
            case BuildGroup(roster, attempt, leader_address):
                self._build(roster, attempt, leader_address)
            case DropGroups(generations):
                for generation in generations:
                    self._drop(generation)
            case Abandon(generation):
                if self._current is not None and self._current[0] == generation:
                    self._current[1].abort()
            case Switch(roster, attempt, holders, recovery):
                self._switch(roster, attempt, holders, recovery)
            case Report():
                self._status_due = True
                self._loop.wake()
            case Propose() | Proceed() | Stall() | Leave():
                pass  # answers to the training thread, which called

    def _post(self, kind: str, target: bytes, data: bytes) -> None:
        self._outbox.append((kind, target, data))
        self._loop.wake()

    def _switch(self, roster: Roster, attempt: int, holders: tuple[WorkerId, ...], recovery: bool) -> None:
        building = self._groups.pop(roster.generation)
        assert building.attempt == attempt
        assert building.communicator is not None
        if self._current is not None:
            self._current[1].retire()
        self._forget_rendezvous(roster.generation, attempt)
        self._current = (roster.generation, building.communicator)
        self._switching = Switching(
            communicator=building.communicator,
            roster=roster,
            rank=roster.rank(self._env.worker),
            holders=tuple(worker in holders for worker in roster.workers),
            recovery=recovery,
        )
        self._turned.notify_all()

    # -- building communicators beside the one in use

    def _build(self, roster: Roster, attempt: int, leader_address: str) -> None:
        generation = roster.generation
        self._drop(generation)
        address = self._address if roster.leader == self._env.worker else leader_address
        store = None
        if len(roster.members) > 1:
            identity = f"{self._env.worker}/{scope_of(generation, attempt)}".encode()
            store = RendezvousStore(
                self._context, address, identity, scope_of(generation, attempt), timeout_s=BUILD_TIMEOUT_S
            )
        self._groups[generation] = _Building(attempt, store)
        name = f"elasticd-build-{generation}"
        threading.Thread(
            target=self._build_in_background, args=(roster, attempt, store), name=name, daemon=True
        ).start()

    def _build_in_background(self, roster: Roster, attempt: int, store: RendezvousStore | None) -> None:
        generation = roster.generation
        try:
            if store is None:
                communicator = Communicator.alone()
            else:
                communicator = Communicator.build(
                    self.backend, store, roster.rank(self._env.worker), len(roster.members), self._env.address, 1800.0
                )
        except Exception as error:  # whatever stops a rendezvous: the leader is told, and tries again or gives up
            with self._lock:
                self._dispatch(GroupFailed(generation, attempt, f"{type(error).__name__}: {error}"))
            return
        with self._lock:
            building = self._groups.get(generation)
            if building is None or building.attempt != attempt:
                communicator.retire()
                return
            building.communicator = communicator
            self._dispatch(GroupBuilt(generation, attempt))

    @property
    def backend(self) -> str:
        """The library that carries the data: NCCL between GPUs, Gloo between CPUs."""
        return "nccl" if self._env.gpu_kind is GpuKind.CUDA else "gloo"

    def _drop(self, generation: int) -> None:
        building = self._groups.pop(generation, None)
        if building is None:
            return
        self._forget_rendezvous(generation, building.attempt)
        if building.communicator is not None:
            building.communicator.retire()
        elif building.store is not None:
            building.store.cancel()

    def _forget_rendezvous(self, generation: int, attempt: int) -> None:
        """On the leader: this attempt's meeting is over, and who still waits there is told."""
        for peer, answer in self._rendezvous.drop(scope_of(generation, attempt)):
            self._outbox.append(("fellow", peer, self._to_follower.encode(answer)))

    # -- the control thread

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # the edge of the thread: the training thread must hear of it, not wait for ever
            log.exception("the control thread has ended")
            with self._lock:
                self._crash = error
                if self._current is not None:
                    self._current[1].abort()
                self._turned.notify_all()

    def _next_deadline(self) -> float | None:
        with self._lock:
            deadline = self._machine.next_deadline()
            return self._heartbeat_at if deadline is None else min(deadline, self._heartbeat_at)

    def _on_turn(self) -> None:
        with self._lock:
            now = self._clock.now()
            deadline = self._machine.next_deadline()
            if deadline is not None and now >= deadline:
                self._dispatch(TimePassed())
            if self._patient_until_s is not None and now >= self._patient_until_s and self._current is not None:
                self._patient_until_s = None
                self._current[1].abort()  # a member that has ended does not send its part of the step
            self._flush()
            if self._status_due or now >= self._heartbeat_at:
                self._heartbeat_at = now + HEARTBEAT_INTERVAL_S
                transport.send(self._agent, self._status())
                self._status_due = False

    def _flush(self) -> None:
        while self._outbox:
            kind, target, data = self._outbox.popleft()
            if kind == "fellow":
                transport.send(self._router, target, data)
            else:
                transport.send(self._leader_socket(target.decode()), data)

    def _leader_socket(self, address: str) -> zmq.Socket[bytes]:
        """The connection to a leader. Those of overtaken orders stay: their leaders may still have to tell us of a commit."""
        socket = self._leaders.pop(address, None)
        if socket is None:
            if len(self._leaders) >= MAX_LEADERS:
                oldest = self._leaders.pop(next(iter(self._leaders)))
                self._loop.remove_socket(oldest)
                oldest.close()
            socket = transport.dealer(self._context, address, self._env.worker.encode())
            self._loop.add_socket(socket, self._on_leader)
        self._leaders[address] = socket
        return socket

    def _status(self) -> bytes:
        machine, progress = self._machine, self._progress
        self._status_sequence += 1
        status = WorkerStatus(
            job=self._env.job,
            worker=self._env.worker,
            pid=os.getpid(),
            address=self._address,
            phase=machine.phase,
            generation=machine.generation,
            order=machine.order_generation,
            floor=machine.floor,
            applied=machine.applied,
            sequence=self._status_sequence,
            epoch=progress.epoch,
            total_steps=progress.total_steps,
            samples_per_s=progress.samples_per_s,
            median_step_s=progress.median_step_s,
            steady=progress.steady,
            metrics=self._metrics,
            resizes=self._resizes(),
            note=machine.note,
        )
        return msgspec.msgpack.encode(Status(status=status))

    def _on_agent(self, frames: list[bytes]) -> None:
        message = _decode(self._from_agent, frames[-1], "the agent")
        if isinstance(message, Order):
            with self._lock:
                self._dispatch(OrderReceived(message))
        elif isinstance(message, Suspend):
            with self._lock:
                if self._suspended is None:
                    self._patient_until_s = self._clock.now() + SUSPEND_PATIENCE_S
                self._suspended = message
                self._turned.notify_all()
        elif isinstance(message, StatusReceived):
            with self._lock:
                self._status_received = max(self._status_received, message.sequence)
                self._turned.notify_all()

    def _on_leader(self, frames: list[bytes]) -> None:
        message = _decode(self._to_follower, frames[-1], "the leader")
        if isinstance(message, Prepare | Commit):
            with self._lock:
                self._dispatch(PeerSaid(message))

    def _on_fellow(self, frames: list[bytes]) -> None:
        peer, data = frames[0], frames[-1]
        message = _decode(self._to_leader, data, peer.decode(errors="replace"))
        if message is None:
            return
        if isinstance(message, Ready | Prepared):
            with self._lock:
                self._dispatch(PeerSaid(message))
            return
        with self._lock:
            answers = self._rendezvous.handle(peer, message)
        for target, answer in answers:
            transport.send(self._router, target, self._to_follower.encode(answer))


def _decode(codec: Codec[M], data: bytes, peer: str) -> M | None:
    try:
        return codec.decode(data)
    except PeerError as error:
        log.warning("dropped a message of %s: %s", peer, error)
        return None
