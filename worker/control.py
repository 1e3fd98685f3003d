"""Sockets, threads and communicators around a worker's machine (CoDDL 4.3's sMPI stack, over ZeroMQ).

It makes no decisions: facts go into the machine, and actions come out (`driver`). Reporting a fact costs the training thread
microseconds, because sending is left to the control thread. That thread owns all sockets: a DEALER to the agent, a ROUTER for
followers and for the rendezvous of new communicators, and DEALERs to the leaders of the latest orders. Communicators are built in
threads of their own, while another one is in use.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import zmq

from ..protocol import exits, times
from ..protocol.codec import Codec
from ..protocol.errors import OperatorError, PeerError
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
    WriteCheckpoint,
)
from ..protocol.model import GpuKind
from ..runtime import transport
from ..runtime.clock import SteadyClock
from ..runtime.keys import Pair
from ..runtime.listener import JobKeyAuthenticator
from ..runtime.loop import Loop
from .communication.communicator import Communicator, Rendezvous, RendezvousStore
from .driver import MachineControl
from .ending import end_process, freeze_threads_at_exit
from .environment import ClusterEnvironment
from .events import (
    BuildGroup,
    CheckpointWanted,
    GroupBuilt,
    GroupFailed,
    Instruction,
    OrderReceived,
    PeerSaid,
    SendFollower,
    SendLeader,
    SendStatus,
    StatusAcknowledged,
    SuspendReceived,
    WorkerTick,
)
from .machine import WorkerMachine

log = logging.getLogger(__name__)

M = TypeVar("M")

MAX_LEADERS = 16  # connections to leaders of present and past orders
MAX_OUTBOX = 1 << 14  # messages that wait for the control thread; lost ones are repeated
OUT_OF_ROOM = (
    OSError,
    RuntimeError,
    zmq.ZMQError,
    OperatorError,
)  # no descriptors, no threads, or an invalid address
LIBRARY_TIMEOUT_S = 86400.0  # least timeout of one operation of a communicator


@dataclass
class _Building:
    """A communicator that is being built, or is built and not yet in use."""

    store: RendezvousStore | None
    communicator: Communicator | None = None


def scope_of(generation: int, attempt: int) -> str:
    """Return the rendezvous scope of one attempt at one generation's communicator."""
    return f"{generation}/{attempt}"


class ClusterControl(MachineControl):
    """Control plane of a worker in a cluster. `start` begins it; `tell` and `next` are for the training thread."""

    def __init__(self, environment: ClusterEnvironment) -> None:
        self._env = environment
        self._groups: dict[tuple[int, int], _Building] = {}  # by generation and attempt
        self._outbox: deque[Callable[[], object]] = deque(maxlen=MAX_OUTBOX)
        self._wanted_at = 0.0  # when the control thread next wakes without input

        self._context = transport.context()
        self._rendezvous = Rendezvous()
        self._from_agent: Codec[ToWorkerFromAgent] = Codec(ToWorkerFromAgent)
        self._to_leader: Codec[ToLeader] = Codec(ToLeader)
        self._to_follower: Codec[ToFollower] = Codec(ToFollower)
        self._agent = transport.dealer(self._context, environment.agent_address, environment.worker.encode())
        self._pair = (
            Pair.of(environment.key.encode()) if environment.key else None
        )  # the job's key pair, shared by all its workers
        self._router = transport.router(self._context, self._pair)
        self._address = transport.bind(self._router, f"tcp://{environment.address}:*", self._pair)
        self._leaders: dict[str, zmq.Socket[bytes]] = {}  # by address; the most recently used one is last
        super().__init__(WorkerMachine(environment.place(os.getpid(), self._address), SteadyClock().now()))
        self._loop = Loop(self._clock, self._on_turn, self._next_deadline)
        self._loop.add_socket(self._agent, self._on_agent)
        if self._pair is not None:
            JobKeyAuthenticator(self._context, self._loop, self._pair)
        self._loop.add_socket(self._router, self._on_fellow)
        self._thread = threading.Thread(target=self._run, name="elasticd-control", daemon=True)

    def start(self) -> None:
        """Start the control thread, which connects to the agent."""
        freeze_threads_at_exit()
        self._thread.start()

    # -- for the training thread

    def _handled(self) -> None:
        if self._outbox or self.machine.next_deadline() < self._wanted_at:
            self._loop.wake()

    def next(self) -> Instruction:
        with self._lock:
            while not self._instructions:
                self._wait(None)
            return self._instructions.popleft()

    # -- building communicators while another one is in use

    def _build(self, build: BuildGroup) -> None:
        roster, scope = build.roster, scope_of(build.roster.generation, build.attempt)
        address = self._address if roster.leader == self._env.worker else build.leader_address
        store = None
        try:
            if len(roster.members) > 1:
                identity = f"{self._env.worker}/{scope}".encode()
                store = RendezvousStore(self._context, address, identity, scope, times.RENDEZVOUS_TIMEOUT_S, self._pair)
            self._groups[roster.generation, build.attempt] = _Building(store)
            name = f"elasticd-build-{scope}"
            threading.Thread(target=self._build_in_background, args=(build, store), name=name, daemon=True).start()
        except OUT_OF_ROOM as error:  # caught, as this may run in the training thread, under the user's script
            if store is not None:
                store.close()
            self.tell(GroupFailed(roster.generation, build.attempt, f"{type(error).__name__}: {error}"))

    def _build_in_background(self, build: BuildGroup, store: RendezvousStore | None) -> None:
        roster, attempt = build.roster, build.attempt
        try:
            if store is None:
                communicator = Communicator.alone()
            else:
                rank, size = roster.rank(self._env.worker), len(roster.members)
                limits = self._env.limits
                others_s = times.others_timeout_s(
                    limits.step_timeout_s or times.FIRST_STEP_TIMEOUT_S, limits.pause_timeout_s
                )
                # The machine abandons a step that takes too long; the library's own timeout must not come first.
                communicator = Communicator.build(
                    self.backend, store, rank, size, self._env.address, max(2 * others_s, LIBRARY_TIMEOUT_S)
                )
        except Exception as error:  # any failure of a rendezvous: the leader is notified, and tries again or gives up
            self.tell(GroupFailed(roster.generation, attempt, f"{type(error).__name__}: {error}"))
            return
        with self._lock:
            building = self._groups.get((roster.generation, attempt))
            if building is None:
                communicator.retire()
                return
            building.communicator = communicator
            self.tell(GroupBuilt(roster.generation, attempt))

    @property
    def backend(self) -> str:
        """Return the communication library: NCCL between GPUs, Gloo between CPUs."""
        return "nccl" if self._env.gpu_kind is GpuKind.CUDA else "gloo"

    def _take(self, generation: int, attempt: int) -> Communicator:
        communicator = self._groups.pop((generation, attempt)).communicator
        assert communicator is not None
        return communicator

    def _drop(self, generation: int, attempt: int) -> None:
        building = self._groups.pop((generation, attempt), None)
        if building is None:
            return
        if building.communicator is not None:
            building.communicator.retire()
        elif building.store is not None:
            building.store.cancel()

    def _close_rendezvous(self, generation: int, attempt: int) -> None:
        for peer, answer in self._rendezvous.drop(scope_of(generation, attempt)):
            self._to_fellow(peer, self._to_follower.encode(answer))

    # -- sending

    def _send(self, action: SendLeader | SendFollower | SendStatus) -> None:
        match action:
            case SendLeader(address, to_leader):
                self._outbox.append(partial(self._to_the_leader, address, self._to_leader.encode(to_leader)))
            case SendFollower(worker, to_follower):
                self._to_fellow(worker.encode(), self._to_follower.encode(to_follower))
            case SendStatus(status):
                data = msgspec.msgpack.encode(Status(status=status))
                self._outbox.append(partial(transport.send, self._agent, data))

    def _to_fellow(self, peer: bytes, data: bytes) -> None:
        self._outbox.append(partial(transport.send, self._router, peer, data))

    def _to_the_leader(self, address: str, data: bytes) -> None:
        try:
            socket = self._leader_socket(address)
        except OUT_OF_ROOM as error:  # the lost message will be repeated
            log.warning("cannot connect to the leader at %s: %s", address, error)
            return
        transport.send(socket, data)

    def _flush(self) -> None:
        while self._outbox:
            self._outbox.popleft()()

    def _leader_socket(self, address: str) -> zmq.Socket[bytes]:
        """Return the connection to a leader. Those of superseded orders stay open: their leaders may still announce a commit."""
        socket = self._leaders.pop(address, None)
        if socket is None:
            if len(self._leaders) >= MAX_LEADERS:
                oldest = self._leaders.pop(next(iter(self._leaders)))
                self._loop.remove_socket(oldest)
                oldest.close()
            socket = transport.fellow(self._context, address, self._env.worker.encode(), self._pair)
            self._loop.add_socket(socket, self._on_leader)
        self._leaders[address] = socket
        return socket

    # -- the control thread

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # outermost frame of the thread, without which the process cannot go on
            log.exception("the control thread has ended")
            end_process(exits.SPEECHLESS, f"the control thread has ended: {type(error).__name__}: {error}")

    def _next_deadline(self) -> float:
        with self._lock:
            self.catch_up()
            self._wanted_at = self.machine.next_deadline()
            return self._wanted_at

    def _on_turn(self) -> None:
        with self._lock:
            self.catch_up()
            if self._clock.now() >= self.machine.next_deadline():
                self.tell(WorkerTick())
            self._flush()

    def _on_agent(self, frames: list[bytes]) -> None:
        match _decode(self._from_agent, frames[-1], "the agent"):
            case Order() as order:
                self.tell(OrderReceived(order))
            case Suspend() as suspend:
                self.tell(SuspendReceived(suspend))
            case WriteCheckpoint(step=step):
                self.tell(CheckpointWanted(step))
            case StatusReceived(sequence=sequence):
                self.tell(StatusAcknowledged(sequence))

    def _on_leader(self, frames: list[bytes]) -> None:
        message = _decode(self._to_follower, frames[-1], "the leader")
        if isinstance(message, Prepare | Commit):
            self.tell(PeerSaid(message))

    def _on_fellow(self, frames: list[bytes]) -> None:
        peer, data = frames[0], frames[-1]
        message = _decode(self._to_leader, data, peer.decode(errors="replace"))
        if message is None:
            return
        if isinstance(message, Ready | Prepared):
            self.tell(PeerSaid(message))
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
