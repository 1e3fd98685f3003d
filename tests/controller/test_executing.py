"""Commands beside running workers: who is allowed one, what is written down, what an agent is told."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.controller.requests import pending
from elasticd.protocol.messages import (
    Cancel,
    CommandOutput,
    Exec,
    ExecAllowed,
    ExecIO,
    ExecOutput,
    Refused,
    RunCommand,
    StartWorker,
)
from elasticd.protocol.principals import LOCAL_OPERATOR, Principal, Role
from elasticd.protocol.streams import MAX_COMMAND_BYTES, MAX_INPUT_BYTES, Chunk, Input, Output, Terminal

from .world import AgentMessage, World, job_spec

ALICE = Principal(role=Role.USER, name="alice", account="alice")
BOB = Principal(role=Role.USER, name="bob", account="bob")
OLGA = Principal(role=Role.OPERATOR, name="olga", account="olga")
LS = ("ls", "-l")


def running(world: Any, who: Principal = ALICE) -> Any:
    job = world.submit(job_spec(env={"DATA": "/data"}), who)
    world.settle(job.id)
    world.sent.clear()
    return job


def io(allowed: ExecAllowed, command: tuple[str, ...] = LS, **given: Any) -> ExecIO:
    return ExecIO(exec=allowed.exec, command=command, input=Input(**given))


def refused(answer: Any) -> str:
    assert isinstance(answer, Refused), answer
    return answer.reason


@pytest.mark.parametrize("who", [ALICE, OLGA, LOCAL_OPERATOR])
def test_the_agent_of_the_workers_server_is_told_how_the_worker_was_started_and_its_output_is_the_answer(
    who: Principal,
):
    world = World({"s1": 4, "s2": 4})
    job = running(world)
    roster = world.roster(job.id)
    allowed = world.ask(Exec(job=job.id, command=LS, rank=1), "e", who=who)
    assert isinstance(allowed, ExecAllowed)
    assert allowed.worker == roster[1]
    assert not world.sent, "nothing has been started yet"
    assert world.ask(io(allowed, data=b"x"), "x1", who=who) is None
    ((server, message),) = world.sent
    assert server == allowed.server
    assert isinstance(message, RunCommand)
    assert (message.worker, message.command, message.input.data) == (allowed.worker, LS, b"x")
    assert isinstance(message.start, StartWorker)
    assert (message.start.account, message.start.spec.env) == ("alice", {"DATA": "/data"})
    assert message.agent == world.machine.cluster.servers.sessions[server].incarnation
    output = Output(taken=1, chunks=(Chunk(data=b"total 0\n"),), exit_code=3)
    (reply,) = world.feed(AgentMessage(server, CommandOutput(request=message.request, output=output)))
    assert reply.reply.answer == ExecOutput(output=output)
    world.ask(io(allowed, command=()), "x2", who=who)
    assert world.messages(RunCommand)[-1].start is None, "it has been started"


def test_a_command_is_written_into_the_audit_log_once_and_refused_attempts_too():
    world = World()
    job = running(world)
    for _ in range(3):
        allowed = world.ask(Exec(job=job.id, command=("cat", "a b")), "e", who=OLGA)
        world.ask(io(allowed, ("cat", "a b")), who=OLGA)
    world.ask(Exec(job=job.id, command=LS), who=BOB)
    (done, attempt) = [line for line in world.audits if line.act == "exec"]
    assert (done.who, done.of, done.done) == ("operator:olga", job.id, True)
    assert done.text == f"beside {allowed.worker} on {allowed.server}: cat 'a b'"
    assert (attempt.who, attempt.of, attempt.done) == ("user:bob", job.id, False)


def test_another_user_may_run_nothing_in_a_job_nor_speak_to_the_command_of_its_owner():
    world = World()
    job = running(world)
    answer = world.ask(Exec(job=job.id, command=LS), who=BOB)
    assert answer.not_allowed
    assert answer.reason == f"bob may not run commands in {job.id}: only alice and operators may"
    allowed = world.ask(Exec(job=job.id, command=LS), "e", who=ALICE)
    for who in (BOB, OLGA, LOCAL_OPERATOR):
        for name in ("e", "user:alice|e"):
            if who is LOCAL_OPERATOR and name == "user:alice|e":
                continue  # who may act as each user on this machine
            assert "does not know the command" in refused(world.ask(io(replace(allowed, exec=name)), who=who))
    assert not world.messages(RunCommand)


def test_no_other_command_is_run_than_the_one_that_was_allowed():
    world = World()
    job = running(world)
    allowed = world.ask(Exec(job=job.id, command=LS), who=ALICE)
    for changed in (("ls", "-l", "/"), ("ls -l",), ("ls", "-l\0")):
        assert "another command" in refused(world.ask(io(allowed, changed), who=ALICE))
    screen = Terminal(name="xterm", rows=24, columns=80)
    assert "another command" in refused(world.ask(io(allowed, terminal=screen), who=ALICE))
    assert not world.messages(RunCommand)


def test_a_job_that_does_not_run_is_refused_in_one_sentence():
    world = World({"s1": 1})
    first = world.submit(job_spec(), ALICE)
    waiting = world.submit(job_spec(), ALICE)
    world.settle(first.id)
    text = "is pending: no worker of it runs, beside which a command could"
    assert refused(world.ask(Exec(job=waiting.id, command=LS), who=ALICE)) == f"{waiting.id} {text}"
    allowed = world.ask(Exec(job=first.id, command=LS), who=ALICE)
    world.ask(Cancel(job=first.id), who=ALICE)
    assert "is cancelled: no worker" in refused(world.ask(Exec(job=first.id, command=LS), who=ALICE))
    assert "no command can start beside it" in refused(world.ask(io(allowed), who=ALICE))


def test_a_rank_that_no_worker_has_is_refused_with_those_that_run():
    world = World()
    job = running(world)
    ranks = ", ".join(map(str, range(len(world.roster(job.id)))))
    answer = world.ask(Exec(job=job.id, command=LS, rank=77), who=ALICE)
    assert answer.bad_input
    assert answer.reason.endswith(f"of rank {ranks}")


def test_after_a_restart_of_the_controller_or_the_agent_a_command_is_not_started_again():
    world = World({"s1": 4})
    job = running(world)
    allowed = world.ask(Exec(job=job.id, command=LS), "e", who=ALICE)
    cluster = world.machine.cluster
    session = cluster.servers.sessions[allowed.server]
    session.incarnation, before = "another", session.incarnation
    assert "it ends the command" in refused(world.ask(io(allowed), who=ALICE))
    session.incarnation = before
    world.restart()
    assert "does not know the command" in refused(world.ask(io(allowed), who=ALICE))
    assert not world.messages(RunCommand)


def test_what_no_honest_client_sends_is_refused(monkeypatch: pytest.MonkeyPatch):
    world = World()
    job = running(world)
    for command in ((), ("",), ("a\0b",), ("a", "x" * MAX_COMMAND_BYTES)):
        assert world.ask(Exec(job=job.id, command=command), who=ALICE).bad_input
    allowed = world.ask(Exec(job=job.id, command=LS), who=ALICE)
    bad = Terminal(name="x" * 65, rows=24, columns=80), Terminal(name="a\nb", rows=24, columns=80)
    for given in (
        {"data": bytes(MAX_INPUT_BYTES + 1)},
        {"offset": -1},
        {"received": 2**62},
        *({"terminal": each} for each in bad),
    ):
        assert world.ask(io(allowed, (), **given), who=ALICE).bad_input
    monkeypatch.setattr(pending, "MAX_PENDING_LOGS", 2)
    assert [world.ask(io(allowed), f"x{number}", who=ALICE) for number in range(2)] == [None, None]
    assert "try again" in refused(world.ask(io(allowed), "x3", who=ALICE))
    world.pass_time(6.0)
    assert "has not sent the command's output in time" in refused(world.answers["x0"])


def test_another_server_cannot_answer_for_the_one_that_was_asked():
    world = World({"s1": 1, "s2": 1})
    job = running(world)
    allowed = world.ask(Exec(job=job.id, command=LS), who=ALICE)
    world.ask(io(allowed), "x", who=ALICE)
    (message,) = world.messages(RunCommand)
    other = "s2" if allowed.server == "s1" else "s1"
    world.feed(AgentMessage(other, CommandOutput(request=message.request, output=Output(exit_code=0))))
    assert "x" not in world.answers
