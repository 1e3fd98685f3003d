"""The state machines of a controller and an agent with a slow connection between them: two processes never share a GPU."""

from __future__ import annotations

import random
from collections import deque

import msgspec
import pytest

from elasticd.agent import events as agent_events
from elasticd.agent.machine import AgentMachine
from elasticd.controller import events
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.settings import Settings
from elasticd.protocol.messages import AgentHello, Cancel, Envelope, EventKind, Request, StartWorker, Submit, WorkerExit
from elasticd.protocol.model import Gpu, GpuKind, GpuRange, JobId, JobSpec, Server, ServerId, WorkerId
from elasticd.scheduler.scheduler import load_scheduler

S1 = ServerId("s1")
SERVER = Server(server=S1, address="127.0.0.1", gpus=(Gpu(index=0, kind=GpuKind.CPU, name="CPU slot"),))


def spec(name: str) -> JobSpec:
    return JobSpec(name=name, command=("x",), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/")


class Line:
    """Both state machines. Messages stay in flight until the test delivers them."""

    def __init__(self, server_lease_s: float = 10.0, heartbeat_interval_s: float = 1.0) -> None:
        self.now = 100.0
        settings = Settings(cluster="test", incarnation="c1", version="0", pid=1, server_lease_s=server_lease_s)
        self.controller = ControllerMachine(
            settings, load_scheduler({"policy": "max-min"}, "test"), random.Random(0), self.now
        )
        self.agent = AgentMachine(SERVER, "a1", heartbeat_interval_s)
        self.warnings: list[str] = []  # in the agent's log
        self.down: deque = deque()  # to the agent
        self.up: deque = deque()
        self.processes: dict[WorkerId, int] = {}
        self.tell_agent(agent_events.Started())

    def tell_controller(self, event: events.Event) -> None:
        actions = self.controller.handle(self.now, event)
        while (deadline := self.controller.next_deadline()) is not None and deadline <= self.now:
            actions += self.controller.handle(self.now, events.ControllerTick())
        self.down += [action.message for action in actions if isinstance(action, events.SendAgent)]

    def tell_agent(self, event: agent_events.Event) -> None:
        for action in self.agent.handle(self.now, event):
            match action:
                case agent_events.SendController(message):
                    self.up.append(message)
                case agent_events.Warn(text):
                    self.warnings.append(text)
                case agent_events.StartProcess(start):
                    assert not self.processes, f"{start.worker} is started beside {list(self.processes)}"
                    self.processes[start.worker] = start.gpu
                case agent_events.SignalProcess(worker, _):
                    del self.processes[worker]
                    self.tell_agent(agent_events.ProcessExited(worker, -15, "killed by SIGTERM"))

    def ask(self, request: Request) -> None:
        self.now += 0.01
        self.tell_controller(events.ClientRequest(b"u", Envelope(id=repr(self.now), request=request)))

    def arrive_up(self) -> None:
        while self.up:
            self.tell_controller(events.AgentMessage(S1, self.up.popleft()))

    def arrive_down(self) -> None:
        while self.down:
            self.tell_agent(agent_events.ControllerMessage(self.down.popleft(), self.controller.term))

    def settle(self) -> None:
        for _ in range(20):
            self.arrive_down()
            self.arrive_up()

    def second_hello(self) -> AgentHello:
        """The agent sends a second hello before the answer to the first has come."""
        self.now += 1.3
        self.tell_agent(agent_events.AgentTick())
        hello = self.up.pop()
        assert isinstance(hello, AgentHello)
        return hello


def test_a_hello_that_crosses_a_start_and_a_stop_does_not_free_the_gpu() -> None:
    line = Line()
    hello = line.second_hello()
    line.arrive_up()  # the first hello
    line.ask(Submit(spec=spec("a")))
    line.ask(Cancel(job="a-1"))
    line.ask(Submit(spec=spec("b")))
    line.up.append(hello)
    line.arrive_up()
    assert [message.job for message in line.down if isinstance(message, StartWorker)] == ["a-1"]
    line.settle()
    assert list(line.processes) == ["b-2.0"]


def test_a_late_or_doubled_hello_is_dropped() -> None:
    line = Line()
    (first,) = line.up
    line.arrive_up()
    line.ask(Submit(spec=spec("a")))
    line.arrive_down()
    line.up.append(first)
    before = len(line.down)
    line.arrive_up()
    assert len(line.down) == before
    assert list(line.processes) == ["a-1.0"]


def test_a_start_that_the_agent_has_forgotten_is_answered() -> None:
    line = Line()
    line.settle()
    line.ask(Submit(spec=spec("a")))
    line.settle()
    line.tell_agent(agent_events.ProcessExited(WorkerId("a-1.0"), -9, "killed by SIGKILL"))
    line.processes.clear()
    line.settle()
    start = StartWorker(job=JobId("a-1"), worker=WorkerId("a-1.0"), gpu=0, spec=spec("a"), generation=1)
    start = msgspec.structs.replace(start, uid=line.controller.cluster.jobs[JobId("a-1")].uid)
    line.tell_agent(agent_events.ControllerMessage(start))
    assert any(isinstance(message, WorkerExit) and message.worker == "a-1.0" for message in line.up)


@pytest.mark.parametrize(("lease_s", "interval_s"), [(10.0, 60.0), (10.0, 5.0), (0.5, 1.0)])
def test_an_agent_whose_heartbeats_do_not_fit_the_lease_is_refused_and_both_sides_say_why(
    lease_s: float, interval_s: float
) -> None:
    line = Line(lease_s, interval_s)
    line.settle()
    told = [event.text for event in line.controller.cluster.history.events if event.kind is EventKind.SERVER_REFUSED]
    assert len(told) == len(line.warnings) == 1
    for said in (told[0], line.warnings[0]):
        assert f"a heartbeat every {interval_s:g} s, and server_lease_s of the controller is {lease_s:g} s" in said
        assert "lower heartbeat_interval_s in the agent's file, or raise server_lease_s in the controller's" in said
    assert S1 not in line.controller.cluster.servers.sessions
    line.ask(Submit(spec=spec("a")))
    line.settle()
    assert line.processes == {}


@pytest.mark.parametrize(("lease_s", "interval_s"), [(10.0, 4.9), (121.0, 60.0), (0.2, 0.05)])
def test_an_agent_that_may_lose_a_heartbeat_within_the_lease_is_taken_in(lease_s: float, interval_s: float) -> None:
    line = Line(lease_s, interval_s)
    line.settle()
    assert line.controller.cluster.servers.sessions[S1].alive
    assert line.warnings == []


def test_a_hello_that_does_not_tell_its_heartbeats_is_taken_in() -> None:
    line = Line()
    (hello,) = line.up
    line.up = deque([msgspec.structs.replace(hello, heartbeat_interval_s=0.0)])
    line.settle()
    assert line.controller.cluster.servers.sessions[S1].alive
