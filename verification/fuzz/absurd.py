"""Valid but absurd messages from known users and servers, under every policy.

The controller's machine, its turn and an in-memory store run in this process, without sockets: some thousand messages per second.
No message may raise, keep the controller from answering, put a record of excessive size or an unusable number into the store, or
make the store unreadable for the next controller. Whether a peer exceeds its authority is tested by the simulated cluster
(`verification/world`).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from elasticd.controller.events import AgentMessage, ClientRequest, ReplyClient, SendAgent
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.settings import Settings
from elasticd.controller.turn import Turn
from elasticd.protocol.codec import MAX_MESSAGE_BYTES, Codec
from elasticd.protocol.errors import PeerError
from elasticd.protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    Envelope,
    LocalWorker,
    Order,
    Ping,
    Pong,
    StartWorker,
    StopWorker,
    Submit,
    ToControllerFromAgent,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import (
    Determinism,
    Gpu,
    GpuKind,
    GpuRange,
    JobSpec,
    Server,
    ServerId,
    Steady,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)
from elasticd.protocol.principals import LOCAL_OPERATOR, Principal, Role
from elasticd.scheduler.scheduler import load_scheduler

from ..world.disk import Disk
from ..world.timeline import Timeline
from .grammar import Grammar, Plain, Words, encode
from .sockets import NAMES

ALICE = Principal(role=Role.USER, name="alice", account="alice")
BOB = Principal(role=Role.USER, name="bob", account="bob")
CAROL = Principal(role=Role.OPERATOR, name="carol")
PEOPLE = (ALICE, BOB, CAROL, LOCAL_OPERATOR)
SERVERS = (("s1", "a1"), ("s2", "a2"), ("s3", "a3"))
MOST_RECORD_BYTES = 2 << 20  # of one key in the store
KEPT_WORKERS = 40  # started workers that a simulated server remembers
STEPS_S = (0.0, 0.0, 0.001, 0.01, 0.1, 0.5)  # usual advances of the clock
LEAPS_S = (2.0, 10.0, 100.0, 1e4, -5.0, -1e6, 1e7)  # rare jumps of the clock
LEAPS = 0.01
START_OVER = 0.0005  # fraction of messages followed by a restart of the controller


class Broken(Exception):
    """The controller has violated a requirement."""


@dataclass
class _Told:
    """State of a worker that a server was asked to run."""

    worker: WorkerId
    start: StartWorker
    order: Order | None = None
    sequence: int = 0
    applied: int = -1


@dataclass
class Scene:
    """A controller under one policy, with its peers."""

    policy: str
    seed: str
    messages: int = 0
    refused_forms: int = 0  # generated values that do not decode: they would be refused at the socket
    restarts: int = 0
    told: dict[str, dict[WorkerId, _Told]] = field(default_factory=lambda: {name: {} for name, _ in SERVERS})

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.policy}/{self.seed}")
        self.timeline = Timeline()
        self.now = self.timeline.now
        self.disk = Disk(self.timeline)
        self.words: dict[str, list[Plain]] = {key: list(values) for key, values in NAMES.items()}
        self.grammar = Grammar(self.rng, Words(self.words, 0.8))
        self.requests: Codec[Envelope] = Codec(Envelope)
        self.agents: Codec[ToControllerFromAgent] = Codec(ToControllerFromAgent)
        self.hellos = 0
        self.stopped: deque[tuple[str, StopWorker]] = deque(maxlen=KEPT_WORKERS)
        self.answered = 0
        self.turn = Turn(self.disk, self._build, self.now)
        self.disk.on_commit = self._check_records
        for name, agent in SERVERS:
            self._hello(name, agent)

    def _build(self, now: float, records: Sequence[tuple[str, bytes]]) -> ControllerMachine:
        self.restarts += 1
        settings = Settings(cluster="fuzz", incarnation=f"c{self.restarts}", version="0", pid=1)
        scheduler = load_scheduler({"policy": self.policy}, "fuzz")
        return ControllerMachine(settings, scheduler, random.Random(self.restarts), now, records)

    # -- one message

    def step(self) -> None:
        """Handle one message of a random peer, advance the clock, and finish the turn. Raises Broken, or any error of the
        controller."""
        self.messages += 1
        self.now += self.rng.choice(LEAPS_S if self.rng.random() < LEAPS else STEPS_S)
        makes: tuple[Callable[[], None], ...] = (
            self._request,
            self._submission,
            self._report,
            self._message,
            self._life,
        )
        self.rng.choice(makes)()
        for _ in range(3):
            self._finish()
        if self.messages % 100 == 0:
            self._check_answers()
        if self.rng.random() < START_OVER:
            self.turn = Turn(self.disk, self._build, self.now)

    def _request(self) -> None:
        self._ask(self.rng.choice(PEOPLE), self.grammar.message(Envelope))

    def _submission(self) -> None:
        """Submit a job with extreme but permitted numbers."""
        rng = self.rng
        low, high = sorted(rng.choice((1, 1, 2, 3, 8, 64, 4096)) for _ in range(2))
        waits = (1e-9, 0.1, 60.0, 1e9)
        spec = JobSpec(
            name=rng.choice(("digits", "a", "a" * 40, "0", "x-1")),
            command=("true", *("x" * rng.choice((0, 1, 1000)) for _ in range(rng.randrange(3)))),
            gpus=GpuRange(min=low, max=high),
            virtual_workers=rng.choice((high, 4096)),
            workdir="/",
            max_steps=rng.choice((None, 1, 2**53)),
            determinism=rng.choice(list(Determinism)),
            priority=rng.choice((0, 1_000_000, -1_000_000)),
            model=rng.choice(("", "m", "\u20ac" * 200)),
            throughput={n: rng.choice((1e-6, 1.0, 1e9)) for n in rng.sample((1, 2, 3, 64, 4096), rng.randrange(4))},
            start_timeout_s=rng.choice(waits),
            load_timeout_s=rng.choice(waits),
            step_timeout_s=rng.choice((None, *waits)),
            pause_timeout_s=rng.choice(waits),
        )
        self._ask(rng.choice(PEOPLE), msgspec.to_builtins(Envelope(id=self._id(), request=Submit(spec=spec))))

    def _report(self) -> None:
        """Report the status of a started worker, with absurd figures."""
        name, agent = self.rng.choice(SERVERS)
        if not self.told[name]:
            return
        one = self.rng.choice(list(self.told[name].values()))
        rng, one.sequence = self.rng, one.sequence + 1
        one.applied = min(2**53, max(-1, one.applied + rng.choice((0, 1, 1, 10, 10**6, -5, 2**53))))
        generation = rng.choice((one.order.generation if one.order is not None else 1, 0, 1, 2**40, 2**53))
        figures = (0.0, 1e-9, 0.1, 1e9, math.nan, math.inf, -1.0)
        status = WorkerStatus(
            job=one.start.job,
            worker=one.worker,
            pid=rng.choice((0, 1, 2**31)),
            address=rng.choice(("", "tcp://127.0.0.1:1", "x" * 300)),
            phase=rng.choice(list(WorkerPhase)),
            generation=generation,
            order=max(generation, 1),
            floor=rng.choice((0, 1, generation)),
            applied=rng.choice((None, one.applied)),
            sequence=rng.choice((one.sequence, one.sequence, one.sequence + 10**6, 2**53, 0)),
            total_steps=rng.choice((None, 0, 1, 2**53, -1)),
            samples_per_s=rng.choice(figures),
            median_step_s=rng.choice(figures),
            steady=Steady(generation=generation, step_s=rng.choice(figures), steps=rng.choice((0, 3, 20, 2**53))),
            metrics={rng.choice(("loss", "x" * 300)): rng.choice(figures)},
            saving_s=rng.choice(figures),
            longest_step_s=rng.choice(figures),
            waits_s=rng.choice(figures),
            unheard=(WorkerId("x.0"), one.worker) if rng.random() < 0.1 else (),
            saved=rng.choice((None, 0, one.applied)),
            saved_generation=rng.choice((0, generation)),
        )
        if rng.random() < 0.2:
            code = rng.choice((None, 0, 1, -9, 2**62))
            ended = WorkerExit(
                job=one.start.job, worker=one.worker, exit_code=code, reason="r" * rng.choice((1, 10**5)), status=status,
                uid=one.start.uid, phase=rng.choice((None, *WorkerPhase)),
            )  # fmt: skip
            self._say(name, agent, ended)
        else:
            self._say(name, agent, WorkerReport(status=status, uid=one.start.uid))

    def _message(self) -> None:
        """Send a random message from a server."""
        name, agent = self.rng.choice(SERVERS)
        try:
            message = self.agents.decode(encode(self.grammar.message(ToControllerFromAgent)))
        except PeerError:
            self.refused_forms += 1
            return
        self._say(name, agent, message)

    def _life(self) -> None:
        """Behave as a correct server."""
        name, agent = self.rng.choice(SERVERS)
        if self.stopped and self.rng.random() < 0.7:
            server, stop = self.stopped.popleft()
            ended = WorkerExit(job=stop.job, worker=stop.worker, exit_code=None, reason="stopped", uid=stop.uid)
            self._say(server, dict(SERVERS).get(server, ""), ended)
        elif self.rng.random() < 0.2:
            self._hello(name, agent)
        else:
            starting = tuple(self.told[name])[: self.rng.randrange(4)]
            self._say(name, agent, AgentHeartbeat(server=ServerId(name), starting=starting))

    def _hello(self, name: str, agent: str) -> None:
        self.hellos += 1
        gpus = tuple(Gpu(index=index, kind=GpuKind.CPU, name="slot") for index in range(4))
        runs = tuple(
            LocalWorker(worker=each.worker, job=each.start.job, uid=each.start.uid, gpu=each.start.gpu)
            for each in self.told[name].values()
        )
        hello = AgentHello(
            server=Server(server=ServerId(name), address="127.0.0.1", gpus=gpus),
            incarnation=f"i{self.hellos}",
            workers=(),
            starting=tuple(each.worker for each in runs),
            exited=(),
            number=1,
            agent=agent,
            start=self.hellos,
            processes=runs,
        )
        self._say(name, agent, hello)

    # -- in and out

    def _ask(self, who: Principal, message: Plain) -> None:
        try:
            envelope = self.requests.decode(encode(message))
        except PeerError:
            self.refused_forms += 1
            return
        self.turn.take(self.now, ClientRequest(b"c", envelope, who))

    def _say(self, server: str, agent: str, message: ToControllerFromAgent) -> None:
        try:
            heard = self.agents.decode(encode(message))
        except PeerError:
            self.refused_forms += 1
            return
        self.turn.take(self.now, AgentMessage(ServerId(server), heard, agent))

    def _finish(self) -> None:
        for action in self.turn.finish(self.now):
            match action:
                case SendAgent(server, message, _):
                    if len(encode(message)) > MAX_MESSAGE_BYTES:
                        raise Broken(f"a {type(message).__name__} for {server} is too large for anybody")
                    self._note(str(server), message)
                case ReplyClient(_, reply):
                    encode(reply)
                    self.answered += isinstance(reply.answer, Pong)
        deadline = self.turn.next_deadline()
        if deadline is not None and math.isnan(deadline):
            raise Broken("the next deadline is not a number")

    def _note(self, server: str, message: object) -> None:
        told = self.told.get(server, {})
        match message:
            case StartWorker(worker=worker) if len(told) < KEPT_WORKERS:
                told[worker] = _Told(worker, message)
                self.words["worker"] = [*self.words["worker"][-30:], worker]
                self.words["job"] = [*self.words["job"][-30:], message.job]
                self.words["uid"] = [*self.words["uid"][-30:], message.uid]
            case Order():
                for each in told.values():
                    if each.start.job == message.job:
                        each.order = message
            case StopWorker(worker=worker):
                told.pop(worker, None)
                self.stopped.append((server, message))

    def _check_answers(self) -> None:
        before = self.answered
        self.turn.take(self.now, ClientRequest(b"c", Envelope(id=self._id(), request=Ping()), ALICE))
        self._finish()
        if self.answered == before:
            raise Broken("a Ping has no answer")
        failures = self.turn.machine.cluster.planning.policy_failures
        if failures:
            raise Broken(f"the policy has raised: {'; '.join(sorted(failures))}")

    def _check_records(self, writes: Sequence[object]) -> None:
        for write in writes:
            value = getattr(write, "value", b"")
            if len(value) > MOST_RECORD_BYTES:
                raise Broken(f"a record of {len(value)} bytes: {getattr(write, 'key', '')[:80]}")
            msgspec.msgpack.decode(value) if value else None

    def _id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"


def play(policy: str, seed: str, messages: int) -> Scene:
    """Play so many messages under one policy. Raises Broken, and any error of the controller."""
    scene = Scene(policy, seed)
    for _ in range(messages):
        scene.step()
    return scene
