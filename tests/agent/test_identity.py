"""An agent's identity, and the ownership of its workers."""

from __future__ import annotations

import msgspec

from elasticd.agent.events import Action, ForgetWorker, IdentityWritten, KeepIdentity, ProcessExited, StartProcess, Warn
from elasticd.agent.identity import Identity
from elasticd.protocol.messages import Acknowledged, AgentHello, ForgetWorkers, HelloRefused, StopWorker, WorkerExit

from .agent_stories import FIRST, JOB, SECOND, Driven, order, sent, start, status


def test_each_hello_says_who_the_agent_is_and_which_hello_of_which_start_it_is() -> None:
    driven = Driven(identity=Identity(agent="a1", start=3, cluster="c", highest_job=7))
    assert driven.first[0] == KeepIdentity(Identity(agent="a1", start=3, cluster="c", highest_job=7))
    first = driven.hello()
    assert (first.agent, first.start, first.number, first.cluster, first.highest_job) == ("a1", 3, 2, "c", 7)


def test_the_cluster_that_has_taken_it_in_is_written_down_and_told() -> None:
    driven = Driven(identity=Identity(agent="a1"))
    driven.hello()
    actions = driven.told(Acknowledged(incarnation="c2", sent=0, cluster="mine"))
    assert KeepIdentity(Identity(agent="a1", cluster="mine")) in actions
    assert driven.hello().cluster == "mine"
    assert not [a for a in driven.told(Acknowledged(incarnation="c3", sent=0)) if isinstance(a, KeepIdentity)]
    assert driven.hello().cluster == "mine"


def test_the_greatest_number_of_a_job_is_written_down_before_its_worker_is_started() -> None:
    driven = Driven(identity=Identity(agent="a1"))
    assert driven.told(start()) == [KeepIdentity(Identity(agent="a1", highest_job=1)), StartProcess(start())]
    assert driven.told(start(SECOND)) == [StartProcess(start(SECOND))]
    assert driven.hello().highest_job == 1


def test_how_far_the_history_of_its_cluster_is_it_remembers_and_writes_down_once_in_a_while() -> None:
    driven = Driven(identity=Identity(agent="a1", cluster="mine", newest_event=5))

    def heard(event: int, cluster: str = "mine") -> list[Action]:
        return driven.told(Acknowledged(incarnation="c1", sent=0, cluster=cluster, newest_event=event))

    assert not [a for a in heard(7) if isinstance(a, KeepIdentity)]
    heard(6)
    heard(900, cluster="")  # of a cluster that the agent is not a member of
    kept = [a for _ in range(61) for a in driven.pass_time(1.0) + heard(7) if isinstance(a, KeepIdentity)]
    assert kept == [KeepIdentity(Identity(agent="a1", cluster="mine", newest_event=7))]
    assert driven.hello().newest_event == 7
    joined = driven.told(Acknowledged(incarnation="another", sent=0, cluster="other", newest_event=2))
    assert KeepIdentity(Identity(agent="a1", cluster="other", newest_event=2)) in joined


def test_an_identity_that_could_not_be_written_is_written_later_and_the_operator_is_told_once() -> None:
    driven = Driven()
    assert driven.hear(IdentityWritten("the disk is full")) == [Warn("the disk is full")]
    assert not [a for a in driven.pass_time(9.0) if isinstance(a, KeepIdentity)]
    assert [a for a in driven.pass_time(1.0) if isinstance(a, KeepIdentity)]
    assert driven.hear(IdentityWritten("the disk is full")) == []
    assert [a for a in driven.pass_time(10.0) if isinstance(a, KeepIdentity)]
    driven.hear(IdentityWritten())
    assert not [a for a in driven.pass_time(60.0) if isinstance(a, KeepIdentity)]


def test_a_refusal_is_logged_once_and_the_hello_repeated_slowly() -> None:
    driven = Driven()
    driven.hello()
    refused = HelloRefused(reason="another agent is server s1")
    assert driven.told(refused) == [Warn("the controller refuses this agent: another agent is server s1")]
    assert driven.machine.next_deadline() == driven.now + 5.0
    assert sent(driven.pass_time(5.0), AgentHello)
    assert driven.told(refused) == []
    taken_in = driven.told(Acknowledged(incarnation="c1", sent=0))
    assert Warn("the controller has taken this agent in") in taken_in


def test_a_worker_of_an_earlier_job_with_the_same_number_does_not_keep_a_new_one_from_starting() -> None:
    driven = Driven()
    driven.told(start(uid="old"))
    driven.hear(ProcessExited(FIRST, 0, "exit code 0"))
    new = start(uid="new")
    assert driven.told(new) == [StartProcess(new)]
    assert driven.told(ForgetWorkers(workers=(FIRST,), uids={FIRST: "old"})) == [ForgetWorker(JOB, FIRST, "old")]
    assert [process.uid for process in driven.hello().processes] == ["new"]


def test_a_worker_of_an_earlier_job_that_runs_is_neither_replaced_nor_ordered_nor_stopped_in_the_name_of_the_new_one() -> (
    None
):
    driven = Driven()
    driven.told(start(uid="old"))
    driven.status(status())
    (end,) = sent(driven.told(start(uid="new")), WorkerExit)
    assert (end.uid, "still runs" in end.reason) == ("new", True)
    assert driven.told(msgspec.structs.replace(order(2), uid="new")) == []
    (gone,) = sent(driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=1.0, uid="new")), WorkerExit)
    assert gone.uid == "new"
    assert driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=1.0, uid="old")) != []


def test_what_was_said_in_an_earlier_session_starts_nothing() -> None:
    driven = Driven()
    hello = driven.hello()
    before = f"{hello.incarnation}/{hello.number - 1}"
    assert driven.told(Acknowledged(incarnation="another", sent=0, session=before)) == []
    assert driven.told(msgspec.structs.replace(start(), session=before)) == []
    driven.told(Acknowledged(incarnation="another", sent=0, session=hello.session))
    assert driven.told(msgspec.structs.replace(start(), session=before)) == []
    now = msgspec.structs.replace(start(), session=hello.session)
    assert StartProcess(now) in driven.told(now)
    assert sent(driven.told(Acknowledged(incarnation="another", sent=1, session=hello.session)), AgentHello) == []
