"""Corrupted frames, sent to the sockets of a running controller and a running agent."""

from __future__ import annotations

import errno
import random
import shutil
import socket as socketlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import (
    AgentHello,
    Envelope,
    GetJobs,
    Jobs,
    Ping,
    SetPolicy,
    StartWorker,
    Submit,
    Submitted,
    ToAgentFromController,
    ToAgentFromWorker,
    ToControllerFromAgent,
)
from elasticd.protocol.model import Gpu, GpuKind, GpuRange, JobId, JobSpec, Server, ServerId, WorkerId
from elasticd.runtime import transport
from elasticd.runtime.keys import KeyFile
from elasticd.scheduler.policies import POLICIES

from .grammar import Grammar, Plain, Words, encode
from .mutate import Mutator
from .subjects import Agent, Controller, Fault, Socket, Subject, Vitals

ROUND = 4000  # frames between two checks of the process
BASES = 250  # new messages generated per round
LINES = 4  # concurrent connections
MOST_GROWTH_BYTES = 30_000_000  # of memory since the end of the warm-up
GIVEN_BACK_S = 10.0  # in which an idle process returns free memory: `runtime.memory` does every two seconds
MOST_DESCRIPTORS = 40  # more than before, after all connections are closed
MOST_LOG_BYTES = 3 << 20  # of all logs, whatever is sent
SLOWEST_S = 20.0  # time limit of an answer, on a busy machine
KNOWN_SERVER = 0.3  # fraction of an agent's messages that come from a server with a session and workers
MOST_STARTED = 50  # workers with remembered names
WARM_UP = 0.15  # fraction of a campaign in which tables fill up to their bounds

SERVERS = ("s1", "s2", "s3")
AGENTS = (
    b"s1#a",
    b"s2#b",
    b"s2#b",
    b"s2",
    b"s3",
    b"",
    b"#",
    b"s2#" + b"n" * 240,
    b"\xff\xfe",
    b"s1#s1",
    b"../x#../y",
    b"s3#c#d",
)
WORKERS = (
    b"digits-1.0",
    b"digits-1.1",
    b"",
    b"\xff",
    b"x" * 255,
    b"digits-2.0",
    b"../../x",
    b"digits-1.-1",
    b"digits-9.7",
)
NAMES: dict[str, list[Plain]] = {
    "server": [*SERVERS, "ghost"],
    "job": ["digits-1", "digits-2", "digits-9", "digits"],
    "worker": ["digits-1.0", "digits-1.1", "digits-2.0", "digits-9.7", "digits-1.-1"],
    "uid": ["", "0" * 16],
    "after": ["", "1", "ended", "~", "s1"],
    "name": ["digits"],
    "workdir": ["/", "/tmp"],
    "policy": [kind.name for kind in POLICIES],
    "document": [{"policy": kind.name} for kind in POLICIES],
}


@dataclass
class Tally:
    """Counts of a campaign, and the state of the process."""

    what: str
    frames: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    first: Vitals | None = None
    last: Vitals | None = None
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.frames / self.seconds if self.seconds else 0.0
        text = f"{self.what}: {self.frames} frames, {rate:.0f} frames/s, slowest answer {self.slowest_s:.2f} s"
        return f"{text}\n    at first {self.first}\n    at last  {self.last}" + "".join(
            f"\n    {n}" for n in self.notes
        )


@dataclass(frozen=True)
class Way:
    """Connection of a hostile peer: address, key, and `name`, an optional routing id."""

    address: str
    key: KeyFile | None = None
    name: bytes = b""


class Lines:
    """Connections of hostile peers, each with its own queue; some are replaced now and then."""

    def __init__(self, rng: random.Random, context: zmq.Context[Socket], ways: Sequence[Way]) -> None:
        """ways: used in rotation."""
        self._rng, self._context, self._ways = rng, context, ways
        self._used = 0
        self._lines = [self._open() for _ in range(LINES)]

    def _open(self) -> Socket:
        way = self._ways[self._used % len(self._ways)]
        self._used += 1
        key = (way.key.pair, way.key.controller_public) if way.key is not None else (None, b"")
        line = transport.dealer(self._context, way.address, way.name, *key)
        line.sndhwm = 1000
        return line

    def send(self, frames: list[bytes]) -> None:
        """Send, waiting until the process reads. Raises Fault if it does not within SLOWEST_S."""
        line = self._rng.choice(self._lines)
        try:
            line.send_multipart(frames, zmq.DONTWAIT, copy=True)
        except zmq.Again:
            self._flush()
            if not line.poll(int(SLOWEST_S * 1000), zmq.POLLOUT):
                raise Fault("nothing is read") from None
            line.send_multipart(frames, zmq.DONTWAIT)

    def renew(self) -> None:
        """Read all answers, and replace the oldest connection."""
        self._flush()
        at = self._used % len(self._lines)  # the oldest
        self._lines[at].close()
        self._lines[at] = self._open()

    def _flush(self) -> None:
        for line in self._lines:
            try:
                while True:
                    line.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                pass

    def close(self) -> None:
        for line in self._lines:
            line.close()


class Watch:
    """Checks a process between rounds. Raises Fault."""

    def __init__(self, subject: Subject, tally: Tally, frames: int) -> None:
        self._subject, self._tally = subject, tally
        self._warm_at = int(WARM_UP * frames)
        self._began = time.monotonic()
        self._frames, self._note_at = frames, frames // 10

    def look(self, sent: int, answered_s: float) -> None:
        tally, vitals = self._tally, self._subject.vitals()
        tally.frames += sent
        tally.seconds = time.monotonic() - self._began
        tally.slowest_s = max(tally.slowest_s, answered_s)
        tally.last = vitals
        if tally.frames >= self._note_at:
            self._note_at += self._frames // 10
            tally.notes.append(f"after {tally.frames} frames {vitals}")
        if tally.first is None and tally.frames >= self._warm_at:
            tally.first = vitals
        if answered_s > SLOWEST_S:
            raise Fault(f"{tally.what}: an answer took {answered_s:.1f} s")
        if tally.first is not None and (grown := self._grown(tally.first)) > MOST_GROWTH_BYTES:
            raise Fault(f"memory has grown by {grown / 1e6:.0f} MB; {tally}")
        if vitals.log_bytes > MOST_LOG_BYTES:
            raise Fault(f"{tally.what}: {vitals.log_bytes} bytes of logs after {tally.frames} frames")
        if tally.first is not None and vitals.descriptors > tally.first.descriptors + MOST_DESCRIPTORS:
            raise Fault(f"{tally.what}: {vitals.descriptors} descriptors, {tally.first.descriptors} at first")

    def _grown(self, first: Vitals) -> int:
        """Return how much memory the process has taken since `first` (bytes), without what it gives back when it is idle.

        A process returns free memory every few seconds, and a quick campaign is over before the first time.
        """
        give_up_at = time.monotonic() + GIVEN_BACK_S
        while (grown := self._subject.vitals().memory_bytes - first.memory_bytes) > MOST_GROWTH_BYTES:
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.2)
        return grown


def batches(rng: random.Random, mutator: Mutator, make: Callable[[], Plain], count: int) -> Iterator[list[bytes]]:
    """Yield the frames of `count` messages."""
    payloads: list[bytes] = []
    for number in range(count):
        if number % ROUND == 0:
            payloads = [mutator.payload(make()) for _ in range(BASES)]
        payload = rng.choice(payloads)
        if rng.random() < 0.5:
            payload = mutator.data(payload)
        yield mutator.frames(payload)


def at_clients(seed: str, context: zmq.Context[Socket], directory: Path, frames: int) -> Tally:
    """Fuzz the controller as its clients do: requests, under each policy in turn."""
    rng, tally = random.Random(seed), Tally("requests to the controller")
    controller = Controller(directory / "c", context)
    servers = [HonestServer(context, controller.agents, name) for name in SERVERS[:2]]
    grammar = Grammar(rng, Words(_jobs(controller)))
    mutator = Mutator(rng, grammar)
    ways = (Way(controller.clients), Way(controller.clients_tcp, controller.alice)) * 8
    lines = Lines(rng, context, (*ways, Way(controller.clients, name=b"operator"), Way(controller.agents)))
    watch = Watch(controller, tally, frames)
    policies = [kind.name for kind in POLICIES]
    for sent, message in enumerate(batches(rng, mutator, lambda: grammar.message(Envelope), frames), start=1):
        lines.send(message)
        if sent % ROUND == 0 or sent == frames:
            lines.renew()
            for server in servers:
                server.go_on()
            _, took_s = controller.ask(Ping())
            controller.wait_until_idle()
            watch.look(sent - tally.frames, took_s)
            submit(controller)  # since some jobs are cancelled meanwhile
            controller.ask(SetPolicy(document={"policy": policies[sent // ROUND % len(policies)]}))
    found, _ = controller.ask(GetJobs())
    if isinstance(found, Jobs):
        tally.notes.append(f"{len(found.jobs)} unfinished jobs, {found.next or 'no'} more")
    _leave(controller, lines, tally)
    for server in servers:
        server.close()
    return tally


def at_agents_door(seed: str, context: zmq.Context[Socket], directory: Path, frames: int) -> Tally:
    """Fuzz the controller as agents do: unknown servers, and known ones that send nonsense."""
    rng, tally = random.Random(seed), Tally("agents' messages to the controller")
    controller = Controller(directory / "d", context)
    server = HonestServer(context, controller.agents, "s1")
    words = _jobs(controller)
    server.go_on(until=lambda: server.started)
    for each in server.started:  # workers that the server was asked for, and may report on
        words["job"].append(each.job)
        words["worker"].append(each.worker)
        words["uid"].append(each.uid)
    grammar = Grammar(rng, Words({**words, "agent": ["s1"], "incarnation": ["i"]}))
    mutator = Mutator(rng, grammar)
    ways = (Way(controller.agents), Way(controller.agents_tcp, controller.s2)) * 8
    lines = Lines(rng, context, (*ways, Way(controller.agents, name=b"s1#s1"), Way(controller.clients)))
    watch = Watch(controller, tally, frames)
    for sent, message in enumerate(
        batches(rng, mutator, lambda: grammar.message(ToControllerFromAgent), frames), start=1
    ):
        if rng.random() < KNOWN_SERVER:
            server.say(message)
        else:
            lines.send([rng.choice(AGENTS), *message] if rng.random() < 0.97 else message)
        if sent % ROUND == 0 or sent == frames:
            lines.renew()
            server.go_on()
            _, took_s = controller.ask(Ping())
            controller.wait_until_idle()
            watch.look(sent - tally.frames, took_s)
    _leave(controller, lines, tally)
    server.close()
    return tally


def at_agent(seed: str, context: zmq.Context[Socket], directory: Path, frames: int) -> Tally:
    """Fuzz an agent as its controller does. Requests to start workers carry another session, so none is started."""
    rng, tally = random.Random(seed), Tally("the controller's messages to an agent")
    agent = Agent(directory / "a", context)
    run_workers(agent)
    grammar = Grammar(rng, Words({**NAMES, "session": ["nobody/1", "x"], "command": [["true"]], "request": ["r"]}, 0.8))
    mutator = Mutator(rng, grammar)
    watch = Watch(agent, tally, frames)
    for sent, message in enumerate(
        batches(rng, mutator, lambda: _harmless(grammar.message(ToAgentFromController)), frames), start=1
    ):
        while not agent.say(*message):
            agent.check_answers()
        if sent % 200 == 0:
            agent.listen(0.0)
        if sent % ROUND == 0 or sent == frames:
            took_s = agent.check_answers()
            agent.wait_until_idle()
            watch.look(sent - tally.frames, took_s)
    tally.last = agent.vitals()
    agent.close_with_workers()
    return tally


def at_workers_door(seed: str, context: zmq.Context[Socket], directory: Path, frames: int) -> Tally:
    """Fuzz an agent as processes of a job do."""
    rng, tally = random.Random(seed), Tally("workers' messages to an agent")
    agent = Agent(directory / "w", context)
    run_workers(agent)
    grammar = Grammar(rng, Words(NAMES))
    mutator = Mutator(rng, grammar)
    lines = Lines(rng, context, [Way(agent.workers, name=name) for name in WORKERS])
    watch = Watch(agent, tally, frames)
    for sent, message in enumerate(batches(rng, mutator, lambda: grammar.message(ToAgentFromWorker), frames), start=1):
        lines.send(message)
        if sent % 1000 == 0:
            agent.listen(0.0)
        if sent % ROUND == 0 or sent == frames:
            lines.renew()
            took_s = agent.check_answers()
            agent.wait_until_idle()
            watch.look(sent - tally.frames, took_s)
    lines.close()
    tally.last = agent.vitals()
    agent.close_with_workers()
    return tally


Campaign = Callable[[str, zmq.Context[Socket], Path, int], Tally]
CAMPAIGNS: dict[str, tuple[Campaign, float]] = {
    "clients": (at_clients, 0.4),
    "agents": (at_agents_door, 0.3),
    "agent": (at_agent, 0.15),
    "workers": (at_workers_door, 0.15),
}  # with the share of all frames that each sends


@contextmanager
def place() -> Iterator[tuple[zmq.Context[Socket], Path]]:
    """Yield a ZeroMQ context and a directory with a short path, for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
    context: zmq.Context[Socket] = zmq.Context()
    try:
        yield context, directory
    finally:
        context.destroy(linger=0)
        shutil.rmtree(directory, ignore_errors=True)


def noise(address: str, rng: random.Random, connections: int) -> None:
    """Open connections that do not speak ZeroMQ: they send some bytes or none, and are closed or left open."""
    kept = []
    for _ in range(connections):
        line = socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_STREAM)
        line.settimeout(5.0)
        while line.connect_ex(address.removeprefix("ipc://")) == errno.EAGAIN:
            time.sleep(0.01)  # the accept queue is full
        try:
            line.sendall(rng.choice((b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10, rng.randbytes(200))))
        except OSError:
            pass  # cut already
        kept.append(line)
    for line in kept:
        line.close()


class HonestServer:
    """A correct agent without workers: a server on which jobs could run."""

    def __init__(self, context: zmq.Context[Socket], address: str, name: str, key: KeyFile | None = None) -> None:
        keys = (key.pair, key.controller_public) if key is not None else (None, b"")
        self._line = transport.dealer(context, address, b"", *keys)
        self._name = f"{name}#{name}".encode()
        gpus = tuple(Gpu(index=index, kind=GpuKind.CPU, name="CPU slot") for index in range(4))
        self._server = Server(server=ServerId(name), address="127.0.0.1", gpus=gpus)
        self._hellos = 0
        self._codec: Codec[ToAgentFromController] = Codec(ToAgentFromController)
        self.started: list[StartWorker] = []
        self.go_on()

    def say(self, frames: list[bytes]) -> None:
        """Send frames as this server's agent."""
        transport.send(self._line, self._name, *frames)

    def go_on(self, until: Callable[[], object] | None = None) -> None:
        """Send another hello, which renews the lease. Requested workers are noted in `started`, but not started."""
        self._hello()
        give_up_at = time.monotonic() + SLOWEST_S
        while self._line.poll(100 if until is not None and not until() else 0):
            message = self._codec.decode(self._line.recv_multipart()[-1])
            if isinstance(message, StartWorker) and len(self.started) < MOST_STARTED:
                self.started.append(message)
        if until is not None and not until() and time.monotonic() < give_up_at:
            self.go_on(until)

    def _hello(self) -> None:
        self._hellos += 1
        hello = AgentHello(
            server=self._server,
            incarnation="i",
            workers=(),
            starting=(),
            exited=(),
            number=self._hellos,
            agent=self._server.server,
        )
        transport.send(self._line, self._name, encode(hello))

    def close(self) -> None:
        self._line.close()


def submit(controller: Controller) -> str:
    """Submit a job. Returns its id."""
    spec = JobSpec(name="digits", command=("true",), gpus=GpuRange(min=1, max=4), virtual_workers=4, workdir="/")
    answer, _ = controller.ask(Submit(spec=spec))
    if not isinstance(answer, Submitted):
        raise Fault(f"a job is refused: {answer}")
    return answer.job


def _jobs(controller: Controller) -> dict[str, list[Plain]]:
    """Return words that include some existing jobs."""
    names: list[Plain] = [submit(controller) for _ in range(3)]
    known: dict[str, list[Plain]] = {key: list(values) for key, values in NAMES.items()}
    return {**known, "job": [*names, "digits-9", "digits"], "worker": [f"{job}.{n}" for job in names for n in range(2)]}


def run_workers(agent: Agent, count: int = 2) -> None:
    """Start idle processes of a job, as workers under the names of which peers can send."""
    agent.check_answers()
    spec = JobSpec(
        name="digits", command=("sleep", "1000"), gpus=GpuRange(min=1, max=2), virtual_workers=2, workdir="/"
    )
    for number in range(2):
        worker = WorkerId(f"digits-1.{number}")
        agent.tell(StartWorker(job=JobId("digits-1"), worker=worker, gpu=number, spec=spec, generation=1))
    agent.listen(1.0 + count / 10)


def _harmless(message: Plain) -> Plain:
    """Give requests to start workers the session of an earlier controller, so that none is started."""
    if message.get("type") == "StartWorker":
        message["session"] = "nobody/1"
    return message


def _leave(subject: Subject, lines: Lines, tally: Tally) -> None:
    lines.close()
    time.sleep(0.5)
    tally.last = subject.vitals()
    subject.close()
