"""The controller's turn with a store that cannot be written: no answer promises anything, and the controller continues."""

from __future__ import annotations

import random
from typing import Any

import pytest

from elasticd.controller import turn
from elasticd.controller.events import (
    Action,
    AgentMessage,
    Audit,
    ClientRequest,
    Fetch,
    Record,
    ReplyClient,
    SendAgent,
    Warn,
)
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.records import JOBS
from elasticd.controller.settings import Settings
from elasticd.controller.state import jobs
from elasticd.controller.state.servers import MORE_THAN_ANY_SESSION
from elasticd.controller.store import StoreUnavailable
from elasticd.controller.store.interface import AFTER_ALL
from elasticd.controller.turn import Turn
from elasticd.protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    Answer,
    Cancel,
    Cancelled,
    Envelope,
    EventKind,
    Events,
    GetEvents,
    GetJob,
    GetJobs,
    GetLog,
    GetServers,
    JobFound,
    Jobs,
    Log,
    LogPiece,
    Order,
    Ping,
    Pong,
    ReadLog,
    Refused,
    Request,
    Scale,
    Scaled,
    Servers,
    StartWorker,
    Submit,
    Submitted,
)
from elasticd.protocol.model import Gpu, GpuKind, JobId, JobPhase, Server, ServerId, WorkerId
from elasticd.scheduler.scheduler import load_scheduler

from .world import FaultyStore, job_spec

S1 = ServerId("s1")
FULL = StoreUnavailable("cluster.db: database or disk is full")
UNKNOWN = StoreUnavailable("cluster.db: disk I/O error", outcome_unknown=True)


class Driven:
    """A turn with a store that fails on request, and a server of two GPUs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = FaultyStore()
        self.incarnations: list[str] = []
        self.doubts: dict[str, str] = {}
        self.turn = Turn(self.store, self.build, self.now)
        self.hello()

    def build(self, now: float, records: Any) -> ControllerMachine:
        self.incarnations.append(f"c{len(self.incarnations)}")
        settings = Settings(cluster="test", incarnation=self.incarnations[-1], version="0", pid=1)
        return ControllerMachine(
            settings, load_scheduler({"policy": "max-min"}, "test"), random.Random(0), now, records
        )

    def finish(self, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        actions = self.turn.finish(self.now)
        while (deadline := self.turn.next_deadline()) is not None and deadline <= self.now:
            actions += self.turn.finish(self.now)
        assert not any(isinstance(action, Record) for action in actions)
        return actions

    def hello(self) -> list[Action]:
        gpus = tuple(Gpu(index=i, kind=GpuKind.CPU, name="CPU slot") for i in range(2))
        server = Server(server=S1, address="127.0.0.1", gpus=gpus)
        message = AgentHello(server=server, incarnation="a", workers=(), starting=(), exited=())
        self.turn.take(self.now, AgentMessage(S1, message))
        return self.finish()

    def ask(self, request: Request, name: str) -> Answer | None:
        self.turn.take(self.now, ClientRequest(b"client", Envelope(id=name, request=request)))
        return self.answers(self.finish()).get(name)

    def answers(self, actions: list[Action]) -> dict[str, Answer]:
        """Return the answers. `doubts` keeps the reasons for which there are none yet."""
        found = {action.reply.id: action.reply.answer for action in actions if isinstance(action, ReplyClient)}
        doubted = {name for name, answer in found.items() if isinstance(answer, Refused) and answer.in_doubt}
        self.doubts.update({name: found.pop(name).reason for name in doubted})
        return found

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.turn.machine.cluster.history.events]


def sent(actions: list[Action]) -> list[Any]:
    return [action.message for action in actions if isinstance(action, SendAgent)]


def test_what_a_turn_sends_is_recorded_before() -> None:
    driven = Driven()
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r1", request=Submit(spec=job_spec(high=2)))))
    assert "/jobs/digits-1/spec" not in driven.store.records, "nothing is recorded before the turn ends"
    actions = driven.finish()
    assert "/jobs/digits-1/spec" in driven.store.records
    assert driven.answers(actions) == {"r1": Submitted(job="digits-1")}
    assert [type(message) for message in sent(actions)].count(StartWorker) == 2


def test_a_turn_that_cannot_be_recorded_says_nothing_and_refuses_with_the_reason() -> None:
    driven = Driven()
    driven.store.fail = FULL
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r1", request=Submit(spec=job_spec()))))
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r2", request=Ping())))
    actions = driven.finish()
    assert sent(actions) == []
    assert any(isinstance(action, Warn) and "disk is full" in action.text for action in actions)
    for answer in driven.answers(actions).values():
        assert isinstance(answer, Refused)
        assert not answer.bad_input
        assert "cannot record anything" in answer.reason
        assert "disk is full" in answer.reason
    assert set(driven.answers(actions)) == {"r1", "r2"}
    later = driven.ask(Submit(spec=job_spec("later")), "r3")
    assert isinstance(later, Refused)
    assert "training goes on" in later.reason
    assert driven.turn.trouble == str(FULL)


def test_who_only_looks_is_answered_from_memory_while_nothing_can_be_recorded() -> None:
    driven = Driven()
    driven.ask(Submit(spec=job_spec("first", high=2)), "r1")
    events = len(driven.kinds())
    driven.store.fail = FULL
    assert isinstance(driven.ask(Submit(spec=job_spec("second")), "r2"), Refused)
    assert isinstance(driven.ask(Cancel(job="first-1"), "r3"), Refused)
    found = driven.ask(GetJobs(), "r4")
    assert isinstance(found, Jobs)
    assert [(view.job, view.phase) for view in found.jobs] == [("first-1", JobPhase.STARTING)], "the second is refused"
    told = driven.ask(GetEvents(), "r5")
    assert isinstance(told, Events)
    assert len(told.events) == events, "what is not recorded has not happened"
    servers = driven.ask(GetServers(), "r6")
    assert isinstance(servers, Servers)
    assert [view.server.server for view in servers.servers] == [S1]
    driven.now += 30.0
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r7", request=GetJob(job="first-1"))))
    (reply,) = [action.reply for action in driven.turn.finish(driven.now) if isinstance(action, ReplyClient)]
    assert isinstance(reply.answer, JobFound)
    assert reply.note.startswith(
        "as it was 30s ago: nothing can be recorded since then (cluster.db: database or disk is full)"
    )
    driven.store.fail = None
    driven.finish(after_s=1.0)
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r8", request=GetJobs())))
    (reply,) = [action.reply for action in driven.turn.finish(driven.now) if isinstance(action, ReplyClient)]
    assert reply.note == ""


def test_a_cancellation_that_could_not_be_recorded_is_not_shown() -> None:
    driven = Driven()
    driven.ask(Submit(spec=job_spec("first", high=2)), "r1")
    driven.store.fail = FULL
    assert isinstance(driven.ask(Cancel(job="first-1"), "r2"), Refused)
    found = driven.ask(GetJob(job="first-1"), "r3")
    assert isinstance(found, JobFound)
    assert found.job.phase is JobPhase.STARTING


def test_a_log_is_read_while_nothing_can_be_recorded() -> None:
    driven = Driven()
    driven.ask(Submit(spec=job_spec("first", high=2)), "r1")
    driven.store.fail = FULL
    driven.ask(Submit(spec=job_spec("second")), "r2")
    worker = WorkerId("first-1.0")
    request = GetLog(job="first-1", worker=worker, offset=0, limit=100)
    driven.turn.take(driven.now, ClientRequest(b"client", Envelope(id="r3", request=request)))
    (asked,) = [message for message in sent(driven.finish()) if isinstance(message, ReadLog)]
    piece = LogPiece(request=asked.request, data=b"line", next_offset=4, end=True)
    driven.turn.take(driven.now, AgentMessage(S1, piece))
    assert driven.answers(driven.finish()) == {"r3": Log(data=b"line", next_offset=4, end=True)}


@pytest.mark.parametrize("there", [False, True])
def test_where_the_outcome_is_unknown_what_the_store_has_is_shown(there: bool) -> None:
    driven = Driven()
    driven.store.fail, driven.store.commits_anyway = UNKNOWN, there
    driven.ask(Submit(spec=job_spec("first")), "r1")
    found = driven.ask(GetJobs(), "r2")
    assert isinstance(found, Jobs)
    assert [view.job for view in found.jobs] == ["first-1"] * there


def test_the_controller_goes_on_as_after_a_crash_once_the_store_can_be_written_again() -> None:
    driven = Driven()
    assert driven.ask(Submit(spec=job_spec(high=2)), "r1") == Submitted(job="digits-1")
    driven.store.fail = FULL
    assert isinstance(driven.ask(Cancel(job="digits-1"), "r2"), Refused)
    for _ in range(5):
        driven.finish(after_s=1.0)
    assert driven.store.probes == 5, "tried once a second"
    assert driven.incarnations == ["c0"]
    driven.store.fail = None
    driven.finish(after_s=1.0)
    assert driven.incarnations == ["c0", "c1"]
    assert EventKind.STORE_BACK in driven.kinds()
    driven.turn.take(driven.now, AgentMessage(S1, AgentHeartbeat(server=S1)))
    asked = driven.finish()
    assert [message.sent for message in sent(asked)] == [MORE_THAN_ANY_SESSION], "the agent is asked to say hello"
    assert any(isinstance(message, Order) for message in sent(driven.hello()))
    jobs = driven.ask(GetJobs(), "r3")
    assert isinstance(jobs, Jobs)
    assert [job.job for job in jobs.jobs] == ["digits-1"], "a refused cancellation has not taken place"
    assert isinstance(driven.ask(Cancel(job="digits-1"), "r4"), Cancelled)


@pytest.mark.parametrize("there", [True, False])
def test_a_submission_of_unknown_outcome_is_settled_by_the_store(there: bool) -> None:
    driven = Driven()
    driven.store.fail, driven.store.commits_anyway = UNKNOWN, there
    assert driven.ask(Submit(spec=job_spec()), "r1") is None, "neither granted nor refused"
    told = driven.doubts.pop("r1")
    assert told.startswith("it is not known whether this request is recorded: cluster.db: disk I/O error; ")
    assert driven.ask(Submit(spec=job_spec()), "r1") is None, "nor when it is repeated"
    assert driven.doubts == {"r1": told}
    assert isinstance(driven.ask(Submit(spec=job_spec("other")), "r2"), Refused), "this one is surely not there"
    driven.store.fail = None
    answered = driven.answers(driven.finish(after_s=1.0))
    driven.hello()  # submissions that are not in the store are repeated after a server's message
    assert (answered or {"r1": driven.ask(Submit(spec=job_spec()), "r1")}) == {"r1": Submitted(job="digits-1")}
    assert bool(answered) == there
    assert [key for key in driven.store.records if key.endswith("/spec")] == ["/jobs/digits-1/spec"]


def test_what_may_be_recorded_is_not_refused_when_the_commit_after_that_fails_for_certain() -> None:
    driven = Driven()
    driven.store.fail, driven.store.commits_anyway = UNKNOWN, True
    assert driven.ask(Submit(spec=job_spec()), "r1") is None
    driven.store.commits_anyway = False
    for _ in range(3):
        driven.store.probe = lambda size: setattr(driven.store, "fail", None)
        real, driven.store.commit = driven.store.commit, fails_for_certain
        answers = driven.answers(driven.finish(after_s=1.0))
        assert answers == {}, "it is in the store"
        assert driven.ask(Submit(spec=job_spec()), "r1") is None, "nor when it is repeated"
        assert isinstance(driven.ask(Submit(spec=job_spec("other")), "r2"), Refused), "this one is surely not there"
        driven.store.commit = real
    assert driven.answers(driven.finish(after_s=1.0)) == {"r1": Submitted(job="digits-1")}
    assert [key for key in driven.store.records if key.endswith("/spec")] == ["/jobs/digits-1/spec"]


def test_what_may_be_recorded_is_not_refused_when_it_is_repeated_to_the_next_machine() -> None:
    driven = Driven()
    assert driven.ask(Submit(spec=job_spec(high=2)), "r1") == Submitted(job="digits-1")
    driven.store.fail, driven.store.commits_anyway = UNKNOWN, True
    assert driven.ask(Scale(job="digits-1", share=1), "r2") is None
    driven.store.fail, driven.store.commits_anyway = None, False
    assert driven.answers(driven.finish(after_s=1.0)) == {}, "nothing is decided before the servers are back"
    assert driven.turn.machine.cluster.jobs["digits-1"].record.manual_share == 1
    driven.hello()
    driven.store.fail = FULL
    driven.turn.take(driven.now, ClientRequest(b"client", Envelope(id="r3", request=Submit(spec=job_spec("other")))))
    assert driven.ask(Scale(job="digits-1", share=1), "r2") is None, "what else there is to record fails"
    driven.store.fail = None
    driven.finish(after_s=1.0)
    driven.hello()
    assert isinstance(driven.ask(Scale(job="digits-1", share=1), "r2"), Scaled)
    driven.store.fail = FULL
    assert isinstance(driven.ask(Scale(job="digits-1", share=2), "r2+"), Refused), "there is no doubt any more"


def test_who_repeats_what_was_granted_is_not_refused_while_nothing_can_be_recorded() -> None:
    driven = Driven()
    assert driven.ask(Submit(spec=job_spec()), "r1") == Submitted(job="digits-1")
    driven.store.fail = FULL
    assert isinstance(driven.ask(Submit(spec=job_spec("other")), "r2"), Refused)
    assert driven.ask(Submit(spec=job_spec()), "r1") is None, "it is recorded: its answer got lost"
    assert isinstance(driven.ask(Submit(spec=job_spec("other")), "r2"), Refused)
    driven.store.fail = None
    assert driven.answers(driven.finish(after_s=1.0)) == {"r1": Submitted(job="digits-1")}


def fails_for_certain(conditions: Any, writes: Any) -> None:
    raise FULL


def test_what_only_reads_is_refused_though_the_outcome_of_its_turn_is_unknown() -> None:
    driven = Driven()
    driven.store.fail = UNKNOWN
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r1", request=Submit(spec=job_spec()))))
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r2", request=Ping())))
    assert isinstance(driven.answers(driven.finish())["r2"], Refused)


def test_a_store_that_fails_again_at_once_is_left_again() -> None:
    driven = Driven()
    driven.store.fail = UNKNOWN
    driven.ask(Submit(spec=job_spec()), "r1")
    real = driven.store.probe

    def probe(size: int) -> None:  # succeeds this time
        driven.store.fail = None
        real(size)

    driven.store.probe = probe
    driven.finish(after_s=1.0)
    assert driven.incarnations == ["c0", "c1"]
    driven.hello()
    driven.store.fail = FULL
    assert isinstance(driven.ask(Submit(spec=job_spec("more")), "r2"), Refused)
    driven.finish(after_s=1.0)
    assert driven.incarnations == ["c0", "c1", "c2"]
    assert isinstance(driven.ask(Ping(), "r3"), Pong)


def test_a_store_is_tried_again_though_the_clock_was_set_back() -> None:
    driven = Driven()
    driven.store.fail = FULL
    driven.ask(Submit(spec=job_spec()), "r1")
    driven.store.fail = None
    driven.finish(after_s=-3600.0)
    assert driven.turn.trouble == ""


def test_time_passes_though_the_clock_was_set_back() -> None:
    driven = Driven()
    driven.finish(after_s=-3600.0)
    assert EventKind.CONTROLLER_AWAY in driven.kinds()
    assert EventKind.SERVER_LOST not in driven.kinds()


def test_who_only_looks_is_answered_before_anything_is_committed_and_who_changes_something_after() -> None:
    driven = Driven()
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="look", request=Ping())))
    assert list(driven.answers(driven.turn.told())) == ["look"]
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="change", request=Submit(spec=job_spec(high=2)))))
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="again", request=GetJobs())))
    assert driven.turn.told() == [], "it may tell of the job, which is not recorded yet"
    assert set(driven.answers(driven.finish())) == {"change", "again"}


def test_before_a_decision_that_takes_long_what_has_come_is_recorded_and_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "JOBS_DECIDED_AT_ONCE", 0)
    driven = Driven()
    driven.now += 10.0
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="change", request=Submit(spec=job_spec(high=2)))))
    ahead = driven.turn.finish_ahead(driven.now)
    assert set(driven.answers(ahead)) == {"change"}
    assert not sent(ahead), "nothing is decided yet"
    assert driven.store.between(JOBS, JOBS + AFTER_ALL).records
    assert any(isinstance(message, StartWorker) for message in sent(driven.finish()))


class Timed:
    """A clock that advances by a second at each reading, and the messages that it got."""

    def __init__(self) -> None:
        self.reads = 0.0
        self.decisions: list[float] = []
        self.commits: list[tuple[float, int]] = []

    def now(self) -> float:
        self.reads += 1.0
        return self.reads

    def decided(self, seconds: float) -> None:
        self.decisions.append(seconds)

    def committed(self, seconds: float, records: int) -> None:
        self.commits.append((seconds, records))


def test_a_watch_is_told_how_long_decisions_and_commits_take_and_of_nothing_that_failed() -> None:
    driven, timed = Driven(), Timed()
    driven.turn = Turn(driven.store, driven.build, driven.now, timed)
    driven.hello()
    timed.commits.clear()
    before = len(driven.store.records)
    assert isinstance(driven.ask(Submit(spec=job_spec(high=2)), "r1"), Submitted)
    assert timed.decisions[-1] == 1.0
    assert [seconds for seconds, _ in timed.commits] == [1.0] * len(timed.commits)
    assert sum(records for _, records in timed.commits) >= len(driven.store.records) - before > 0
    told = len(timed.commits)
    driven.store.fail = FULL
    assert isinstance(driven.ask(Submit(spec=job_spec("other")), "r2"), Refused)
    assert len(timed.commits) == told


def test_of_too_many_requests_in_doubt_the_oldest_are_refused_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "MOST_DOUBTED", 2)
    driven = Driven()
    driven.store.fail = UNKNOWN
    for name in ("r1", "r2", "r3"):
        driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id=name, request=Submit(spec=job_spec(name)))))
    assert driven.answers(driven.finish()) == {}
    repeated = {name: driven.ask(Submit(spec=job_spec(name)), name) for name in ("r2", "r3", "r1")}
    assert (repeated["r2"], repeated["r3"]) == (None, None)
    assert set(driven.doubts) == {"r1", "r2", "r3"}
    assert isinstance(repeated["r1"], Refused)


def test_who_repeats_what_was_granted_is_not_refused_in_the_turn_that_cannot_be_recorded() -> None:
    driven = Driven()
    assert driven.ask(Submit(spec=job_spec()), "r1") == Submitted(job="digits-1")
    driven.store.fail = FULL
    for name, spec in (("r1", job_spec()), ("r2", job_spec("other")), ("r2", job_spec("other"))):
        driven.turn.take(driven.now, ClientRequest(b"client", Envelope(id=name, request=Submit(spec=spec))))
    answers = driven.answers(driven.finish())
    assert set(answers) == {"r2"}, "only the first one is recorded, and its answer got lost"
    assert isinstance(answers["r2"], Refused)
    driven.store.fail = None
    assert driven.answers(driven.finish(after_s=1.0)) == {"r1": Submitted(job="digits-1")}


def test_what_a_store_that_cannot_be_read_has_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven()
    key = "/archive/00000000000000000001/digits-1"
    asked = ClientRequest(b"client", Envelope(id="r1", request=GetJob(job=JobId("digits-1"))))
    driven.store.fail = None
    monkeypatch.setattr(driven.turn.machine, "handle", lambda now, event: [Fetch(asked, (key,))])
    monkeypatch.setattr(driven.store, "get", lambda key: fails_for_certain(None, None))
    driven.turn.take(driven.now, asked)
    answer = driven.answers(driven.turn.told())["r1"]
    assert isinstance(answer, Refused)
    assert answer.reason == "the store cannot be read: cluster.db: database or disk is full"


def test_time_passes_though_the_clock_was_set_back_after_a_while() -> None:
    driven = Driven()
    driven.finish(after_s=3600.0)
    said = driven.kinds().count(EventKind.CONTROLLER_AWAY)
    driven.finish(after_s=-1800.0)
    assert driven.kinds().count(EventKind.CONTROLLER_AWAY) == said + 1


@pytest.mark.parametrize("fail", [FULL, UNKNOWN])
def test_what_is_not_recorded_is_not_in_the_audit_log_and_what_may_be_is(fail: StoreUnavailable) -> None:
    driven = Driven()
    driven.store.fail = fail
    driven.turn.take(driven.now, ClientRequest(b"c", Envelope(id="r1", request=Submit(spec=job_spec()))))
    acts = [action.act for action in driven.finish() if isinstance(action, Audit)]
    assert acts == (["submit"] if fail is UNKNOWN else [])


def test_what_has_been_settled_is_not_asked_of_the_next_machine_again() -> None:
    driven = Driven()
    driven.store.fail, driven.store.commits_anyway = UNKNOWN, True
    assert driven.ask(Submit(spec=job_spec()), "r1") is None
    driven.store.fail, driven.store.commits_anyway = None, False
    assert driven.answers(driven.finish(after_s=1.0)) == {"r1": Submitted(job="digits-1")}
    driven.store.fail = FULL
    driven.ask(Submit(spec=job_spec("other")), "r2")
    driven.store.fail = None
    assert driven.answers(driven.finish(after_s=1.0)) == {}


def test_a_watch_is_told_of_no_decision_where_none_is_made() -> None:
    driven, timed = Driven(), Timed()
    driven.turn = Turn(driven.store, driven.build, driven.now, timed)
    driven.hello()
    driven.ask(Submit(spec=job_spec()), "r1")
    told = len(timed.decisions)
    driven.ask(GetServers(), "r2")
    assert len(timed.decisions) == told > 0


def test_the_doubt_about_a_request_ends_with_the_answer_to_the_client_that_asked_last() -> None:
    driven = Driven()
    driven.ask(Submit(spec=job_spec(high=2)), "r1")
    driven.store.fail, driven.store.commits_anyway = UNKNOWN, True
    scale = Envelope(id="r2", request=Scale(job="digits-1", share=1))
    driven.turn.take(driven.now, ClientRequest(b"first", scale))
    driven.finish()
    driven.store.fail, driven.store.commits_anyway = None, False
    driven.finish(after_s=1.0)
    driven.hello()
    driven.turn.take(driven.now, ClientRequest(b"second", scale))
    assert isinstance(driven.answers(driven.finish())["r2"], Scaled)
    assert driven.turn._doubted == {}
