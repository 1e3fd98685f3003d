"""Commands beside running workers: who they are, what they see, how they end."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from elasticd.agent import commands as commands_module
from elasticd.agent.accounts import myself
from elasticd.agent.environment import Surroundings, beside, environment
from elasticd.agent.events import CommandExchanged, ExchangeCommand, ProcessExited, StopSignal
from elasticd.protocol.messages import CommandOutput, Rendezvous, RunCommand, StartWorker
from elasticd.protocol.model import Gpu, GpuKind, WorkerId
from elasticd.protocol.streams import MAX_OUTPUT_BYTES, Chunk, Input, Output, Terminal

from . import agent_stories
from .accounts_stories import ALICE, BOB, PATH, Agent, only_root, public_directory, uid

pytestmark = only_root
SCREEN = Terminal(name="xterm", rows=24, columns=80)


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as path:
        yield path


@pytest.fixture(params=[ALICE, ""], ids=["another account", "the agent's own account"])
def account(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def agent(place: Path) -> Iterator[Agent]:
    agent = Agent(place, root_jobs=True)
    yield agent
    agent.close()


class Client:
    """A client that runs one command beside a worker."""

    names = itertools.count()

    def __init__(self, agent: Agent, order: StartWorker, *command: str, terminal: Terminal | None = None) -> None:
        self.agent, self.order, self.command, self.terminal = agent, order, command, terminal
        self.name = f"command-{next(Client.names)}"
        self.out = self.err = b""
        self.received = self.offset = 0
        self.last = Output()

    def exchange(
        self, data: bytes = b"", ended: bool = False, hang_up: bool = False, first: bool = True
    ) -> CommandOutput:
        given = Input(
            data=data, offset=self.offset, ended=ended, received=self.received, terminal=self.terminal, hang_up=hang_up
        )
        request = RunCommand(
            request="r",
            name=self.name,
            job=self.order.job,
            worker=self.order.worker,
            input=given,
            command=self.command,
            start=self.order,
            uid=self.order.uid,
        )
        record = self.agent.processes.started(self.order.worker) if first else None
        answer = self.agent.commands.exchange(request, record, "")
        if not answer.error:
            self._take(answer.output)
        return answer

    def _take(self, output: Output) -> None:
        assert output.offset <= self.received
        for chunk in output.chunks:
            if chunk.error:
                self.err += chunk.data
            else:
                self.out += chunk.data
            self.received += len(chunk.data)
        self.offset, self.last = max(self.offset, output.taken), output

    def run(self, data: bytes = b"") -> int:
        """Run it to its end, with this input. Returns its exit code."""
        rest = data

        def over() -> bool:
            nonlocal rest
            before = self.offset
            answer = self.exchange(rest[: 32 << 10], ended=len(rest) <= 32 << 10)
            assert not answer.error, answer.error
            rest = rest[self.offset - before :]
            return self.last.exit_code is not None

        self.agent.until(over)
        assert self.last.exit_code is not None
        return self.last.exit_code


def started(agent: Agent, account: str, *command: str, **options: object) -> StartWorker:
    """A worker that runs."""
    order = agent.order(account, *(command or ("sleep", "600")), **options)  # type: ignore[arg-type]
    assert agent.processes.start(order) is None
    name = order.worker

    def runs() -> bool:
        record = agent.processes.started(name)
        return record is not None and agent.disk.settled(record).pid is not None

    agent.until(runs)
    return order


def test_its_output_and_its_exit_code_come_back_whole_and_in_order(agent: Agent, account: str) -> None:
    order = started(agent, account)
    client = Client(agent, order, "sh", "-c", "seq 1 100000; echo wrong >&2; exit 7")
    assert client.run() == 7, client.err
    assert client.out == b"".join(b"%d\n" % number for number in range(1, 100001))
    assert client.err == b"wrong\n"


def test_it_reads_what_it_is_given_to_the_end_whatever_is_repeated(agent: Agent, account: str) -> None:
    order, data = started(agent, account), os.urandom(300_000)
    client = Client(agent, order, "cat")
    assert client.run(data) == 0
    assert client.out == data
    twice = Client(agent, order, "cat")
    agent.until(lambda: not twice.exchange(b"once\n").error and twice.offset == 5)
    twice.offset = 0
    twice.exchange(b"once\n")  # its answer was lost: the client repeats the input
    assert twice.run() == 0
    assert twice.out == b"once\n"


def test_one_that_nobody_reads_waits_and_takes_no_more_memory(agent: Agent, account: str) -> None:
    client = Client(agent, started(agent, account), "cat", "/dev/zero")
    client.exchange()
    one = agent.commands._commands[client.name]
    agent.until(lambda: one.waiting >= MAX_OUTPUT_BYTES)
    agent.turn_for(0.3)
    assert one.waiting == MAX_OUTPUT_BYTES
    client.exchange(hang_up=True)
    agent.until(lambda: client.exchange() and client.last.exit_code is not None)
    assert client.last.exit_code == 128 + 1
    assert set(client.out) == {0}


@pytest.mark.parametrize(
    ("command", "code", "text"), [("nosuch", 127, b"nosuch: No such file"), ("/etc/passwd", 126, b"Permission denied")]
)
def test_a_program_that_cannot_be_executed_is_told_as_a_shell_does(
    agent: Agent, account: str, command: str, code: int, text: bytes
) -> None:
    client = Client(agent, started(agent, account), command)
    assert client.run() == code
    assert text in client.err


def test_with_a_terminal_it_has_one_of_its_own_account_and_size(agent: Agent, account: str) -> None:
    order = started(agent, account)
    client = Client(agent, order, "sh", "-c", "stty size; stat -c %u $(tty); read line; stty size", terminal=SCREEN)
    agent.until(lambda: client.exchange() and client.out.count(b"\n") == 2)
    assert client.out.split() == [b"24", b"80", str(uid(account) if account else 0).encode()]
    client.terminal = Terminal(name="xterm", rows=50, columns=132)
    agent.until(lambda: client.exchange(b"go\r", first=False) and client.last.exit_code is not None)
    assert b"50 132\r\n" in client.out


def test_ctrl_c_on_its_terminal_interrupts_what_it_runs_and_not_the_shell(agent: Agent, account: str) -> None:
    client = Client(agent, started(agent, account), "bash", "--norc", "--noprofile", terminal=SCREEN)
    agent.until(lambda: client.exchange(b"echo $$ ready; sleep 600\r") and client.out.count(b"ready") == 2)
    agent.until(lambda: client.exchange(b"\x03") and client.offset)
    agent.until(lambda: client.exchange(b"exit 5\r") and client.last.exit_code is not None)
    assert client.last.exit_code == 5


# ------------------------------------------------------------------------------------------------------------- its rights


def test_it_is_a_process_of_the_jobs_account_cgroup_and_room() -> None:
    with public_directory("/var/tmp") as place:  # a room hides what is below /tmp
        agent = Agent(place, rooms=True)
        try:
            order = started(agent, ALICE, "sh", "-c", "echo mine > /tmp/mine; sleep 600")
            agent.until(lambda: list((place / "rooms").glob("*/mine")))
            script = (
                "id -u; id -G; cat /tmp/mine; cat /proc/self/cgroup; grep -E 'NoNewPrivs|Cap...:' /proc/self/status"
            )
            client = Client(agent, order, "sh", "-c", script)
            assert client.run() == 0, client.err
            lines = client.out.decode().splitlines()
            assert lines[:3] == [str(uid(ALICE)), str(uid(ALICE)), "mine"]
            record = agent.processes.started(order.worker)
            assert record is not None
            assert record.cgroups
            assert any(line.endswith(Path(record.cgroups[0]).name) for line in lines)
            assert {"NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} <= set(lines)
            refused = Client(agent, order, "cat", str(agent.state / "jobs" / "digits-1.ab" / "digits-1.0.json"))
            assert refused.run() == 1
            assert b"Permission denied" in refused.err
        finally:
            agent.close()


def test_it_has_the_workers_variables_but_none_to_speak_as_the_worker(agent: Agent, account: str) -> None:
    order = started(agent, account, env={"DATA": "/data", "RANK": "mine"})
    client = Client(agent, order, "env")
    assert client.run() == 0
    seen = dict(line.split("=", 1) for line in client.out.decode().splitlines())
    assert (seen["DATA"], seen["RANK"], seen["PATH"]) == ("/data", "mine", PATH)
    assert not [name for name in seen if name.startswith("ELASTICD_")]
    assert "TORCHELASTIC_ERROR_FILE" not in seen


def test_it_does_not_meet_the_processes_of_its_gang(place: Path) -> None:
    meeting = Rendezvous(process=1, processes=2, server=0, servers=1, address="127.0.0.1", port=29500, local=(0, 1))
    gang = replace(Agent.order("", "true"), rendezvous=meeting)
    gpus = tuple(Gpu(index=index, kind=GpuKind.CUDA, name="A100", uuid=f"GPU-{index}") for index in range(2))
    around = Surroundings(agent_address="ipc:///a", address="127.0.0.1", checkpoints=place, gpus=gpus)
    worker, made = (make(gang, gpus[0], around, myself(), "/tmp/x") for make in (environment, beside))
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    assert names <= set(worker)
    assert not names & set(made)
    assert made["CUDA_VISIBLE_DEVICES"] == worker["CUDA_VISIBLE_DEVICES"]


# ---------------------------------------------------------------------------------------------------------------- its end


def left_of(marker: str) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                if marker.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(entry)
            except OSError:
                continue
    return found


LEAVES = "(setsid sh -c 'sleep {0}' &); (trap '' HUP TERM; sleep {0}) & echo there; wait"


def test_it_ends_with_its_worker_and_with_all_that_it_has_started_before_that_end_is_told(
    agent: Agent, account: str
) -> None:
    marker = str(70_000 + os.getpid() % 1000)
    order = started(agent, account)
    client = Client(agent, order, "sh", "-c", LEAVES.format(marker))
    agent.until(lambda: client.exchange() and b"there" in client.out and len(left_of(marker)) >= 2)
    agent.processes.signal(order.worker, StopSignal.KILL)
    agent.until(lambda: any(isinstance(event, ProcessExited) for event in agent.told))
    assert left_of(marker) == []
    assert client.exchange(first=False).error == ""
    assert client.last.exit_code == 137
    assert client.last.reason == "digits-1.0 has ended, and the command with it"


def test_none_is_started_beside_a_worker_that_has_ended(agent: Agent, account: str) -> None:
    order = started(agent, account)
    record = agent.processes.started(order.worker)
    agent.processes.signal(order.worker, StopSignal.KILL)
    agent.end(order.worker)
    client = Client(agent, order, "echo", "hello")
    assert "no such command runs beside digits-1.0" in client.exchange().error
    late = Client(agent, order, "echo", "hello")
    request = RunCommand(
        request="r", name=late.name, job=order.job, worker=order.worker, input=Input(), command=("echo",), start=order
    )
    agent.commands.exchange(request, record, "")  # the start was on its way when the worker ended
    agent.until(lambda: agent.commands.exchange(request, None, "").error)
    assert "digits-1.0 has ended, or has not begun" in agent.commands.exchange(request, None, "").error


def test_what_a_finished_one_has_left_running_is_ended_too(agent: Agent, account: str) -> None:
    marker = str(80_000 + os.getpid() % 1000)
    client = Client(
        agent, started(agent, account), "sh", "-c", f"(setsid sleep {marker} &); (sleep {marker} &); echo there"
    )
    assert client.run() == 0
    assert left_of(marker) == []


def test_one_whose_client_is_gone_is_hung_up(agent: Agent, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "SILENCE_S", 0.3)
    marker = str(90_000 + os.getpid() % 1000)
    client = Client(agent, started(agent, account), "sh", "-c", f"trap '' HUP; sleep {marker}; sleep {marker}")
    client.exchange()
    agent.until(lambda: left_of(marker))
    agent.until(lambda: not left_of(marker))
    agent.until(lambda: client.exchange(first=False) and client.last.exit_code is not None)
    assert client.last.exit_code == 137, "it ignores SIGHUP"


def test_it_ends_with_its_agent(agent: Agent, account: str) -> None:
    marker = str(60_000 + os.getpid() % 1000)
    client = Client(agent, started(agent, account), "sleep", marker)
    client.exchange()
    agent.until(lambda: left_of(marker))
    agent.commands.close()
    give_up_at = time.monotonic() + 60
    while left_of(marker):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def test_no_command_is_started_twice(agent: Agent, account: str, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(commands_module, "KEPT_S", 0.2)
    count = place / "count"
    count.mkdir()
    count.chmod(0o1777)
    client = Client(agent, started(agent, account), "mktemp", "-p", str(count))
    assert client.run() == 0
    agent.until(lambda: not agent.commands._commands)
    assert "it has ended" in client.exchange().error
    agent.turn_for(0.3)
    assert len(list(count.iterdir())) == 1


def test_there_are_only_so_many(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "MAX_OF_ONE_WORKER", 2)
    order = started(agent, ALICE)
    for _ in range(2):
        assert Client(agent, order, "sleep", "600").exchange().error == ""
    assert "2 commands run beside digits-1.0 already" in Client(agent, order, "sleep", "600").exchange().error


def test_one_account_cannot_use_the_worker_of_another(agent: Agent) -> None:
    order = started(agent, ALICE)
    forged = Agent.order(BOB, "sleep", "600")
    client = Client(agent, forged, "id")
    assert forged.worker == order.worker
    agent.until(lambda: client.exchange().error)
    assert f"digits-1.0 does not run as account {BOB}" in client.exchange().error


# ----------------------------------------------------------------------------------------------------------- the machine


def test_the_machine_lets_one_start_only_beside_a_running_worker_and_in_the_incarnation_that_was_meant() -> None:
    driven = agent_stories.Driven(agent_stories.FIRST)
    request = RunCommand(
        request="r",
        name="n",
        job=agent_stories.JOB,
        worker=agent_stories.FIRST,
        input=Input(),
        command=("true",),
        start=agent_stories.start(),
        agent="agent-1",
    )

    def may(**changes: object) -> bool:
        (action,) = driven.told(replace(request, **changes))
        assert isinstance(action, ExchangeCommand)
        return action.may_start

    assert may()
    assert not may(start=None)
    assert not may(agent="agent-0")
    assert not may(uid="another")
    assert not may(worker=WorkerId("digits-1.7"))
    answer = CommandOutput(request="r", output=Output(chunks=(Chunk(data=b"x"),)))
    assert agent_stories.sent(driven.hear(CommandExchanged(answer)), CommandOutput) == [answer]
