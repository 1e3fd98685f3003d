"""Authorization: users act on their own jobs, operators on all jobs and on the cluster, servers on nothing."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.controller import answer_cache
from elasticd.controller.requests.answers import CHANGES
from elasticd.controller.settings import Settings
from elasticd.protocol.messages import (
    AdoptServer,
    Cancel,
    Cancelled,
    Checkpoint,
    CordonServer,
    EndLoan,
    EventKind,
    Exec,
    GetEnded,
    GetEvents,
    GetJob,
    GetJobs,
    GetLog,
    GetOutlook,
    GetPolicy,
    GetQuotas,
    GetServers,
    LendGpus,
    LogPiece,
    Pause,
    Ping,
    PolicySet,
    Profile,
    PutSnapshot,
    QuotasFound,
    ReadLog,
    Refused,
    RemoveServer,
    Request,
    Requeue,
    Resume,
    Scale,
    Scaled,
    SetPolicy,
    StartWorker,
    Submit,
    Submitted,
    UncordonServer,
)
from elasticd.protocol.model import JobPhase, ServerId, WorkerId
from elasticd.protocol.principals import LOCAL, LOCAL_OPERATOR, Principal, Role

from .world import AgentMessage, World, job_spec

ALICE = Principal(role=Role.USER, name="alice", account="alice")
BOB = Principal(role=Role.USER, name="bob", account="bob")
OLGA = Principal(role=Role.OPERATOR, name="olga", account="olga")
SERVER = Principal(role=Role.SERVER, name="s1")
CONTROLLER = Principal(role=Role.CONTROLLER, name="c")
READER = Principal(role=Role.READER, name="alice")
NOBODY = Principal(role=Role.USER, name="")
FALSE_LOCAL = Principal(role=Role.USER, name=LOCAL)
POLICY = SetPolicy(document={"policy": "fifo"}, source="fifo")


def running(world: Any, who: Principal) -> Any:
    job = world.submit(job_spec(env={"TOKEN": "secret"}), who)
    world.settle(job.id)
    return job


def acts_on(job: Any) -> list[Request]:
    worker = next(iter(job.workers)).worker
    return [
        Scale(job=job.id, share=2), Profile(job=job.id), GetLog(job=job.id, worker=worker, offset=0),
        Exec(job=job.id, command=("true",)),
        Checkpoint(job=job.id), Requeue(job=job.id), Pause(job=job.id), Resume(job=job.id), Cancel(job=job.id),
    ]  # fmt: skip


def not_allowed(answer: Any) -> bool:
    return isinstance(answer, Refused) and answer.not_allowed and not answer.bad_input


def test_a_job_belongs_to_who_has_submitted_it_whatever_the_client_says():
    world = World()
    job = world.submit(job_spec(user="bob"), ALICE)
    assert (job.submission.owner, job.submission.account, job.spec.user) == ("alice", "alice", "alice")
    view = world.ask(GetJob(job=job.id), who=BOB).job
    assert (view.owner, view.account, view.spec.user) == ("alice", "alice", "alice")
    (start, *_) = world.messages(StartWorker)
    assert (start.owner, start.account) == ("alice", "alice")
    local = world.submit(job_spec(user="carol"))
    assert (local.submission.owner, local.submission.account, local.spec.user) == (LOCAL, "", "carol")


def test_another_user_may_do_nothing_with_a_job_and_changes_nothing():
    world = World()
    job = running(world, ALICE)
    before = job.record
    for request in acts_on(job):
        answer = world.ask(request, who=BOB)
        assert not_allowed(answer), request
        assert answer.reason.endswith("only alice and operators may")
    assert job.record is before
    assert not world.messages(ReadLog)


@pytest.mark.parametrize("who", [ALICE, OLGA, LOCAL_OPERATOR])
def test_the_owner_and_operators_may_do_everything_with_a_job(who: Principal):
    world = World()
    job = running(world, ALICE)
    for request in acts_on(job):
        assert not not_allowed(world.ask(request, who=who)), request
    assert job.record.phase is JobPhase.CANCELLED


def test_a_name_is_that_of_a_user_only_if_it_is_the_whole_of_it():
    world = World()
    job = running(world, ALICE)
    for name in ("alic", "alicea", "Alice", "alice ", "user:alice"):
        assert not_allowed(world.ask(Cancel(job=job.id), who=Principal(role=Role.USER, name=name)))


@pytest.mark.parametrize("who", [SERVER, CONTROLLER, NOBODY, FALSE_LOCAL])
def test_servers_and_who_has_no_name_of_his_own_may_ask_for_nothing(who: Principal):
    world = World()
    job = running(world, Principal(role=Role.USER, name="s1"))
    reads = [
        GetJobs(),
        GetEnded(),
        GetJob(job=job.id),
        GetServers(),
        GetEvents(),
        GetPolicy(),
        GetQuotas(),
        GetOutlook(),
        Ping(),
    ]
    for request in [*reads, *acts_on(job), POLICY, Submit(spec=job_spec())]:
        assert not_allowed(world.ask(request, who=who)), request
    assert len(world.machine.cluster.jobs) == 1


def test_only_operators_act_on_the_cluster_and_users_may_ask_what_a_policy_would_change():
    world = World()
    requests = [
        POLICY,
        AdoptServer(server=ServerId("s1")),
        RemoveServer(server=ServerId("s1")),
        LendGpus(gpus=1, for_s=60.0),
        EndLoan(loan="loan-1"),
    ]
    assert all(not_allowed(world.ask(request, who=ALICE)) for request in requests)
    assert world.machine.cluster.planning.policy.name == "max-min"
    dry_run = SetPolicy(document={"policy": "fifo"}, source="fifo", dry_run=True)
    assert isinstance(world.ask(dry_run, who=ALICE), PolicySet)
    assert isinstance(world.ask(GetQuotas(), who=ALICE), QuotasFound)
    assert not any(not_allowed(world.ask(request, who=OLGA)) for request in requests)
    assert world.machine.cluster.planning.decider.record.user == "olga"


def test_the_operators_alone_act_on_jobs_of_nobody():
    world = World()
    job = running(world, LOCAL_OPERATOR)
    for who in (ALICE, FALSE_LOCAL, NOBODY):
        assert not_allowed(world.ask(Cancel(job=job.id), who=who))
    assert world.ask(Cancel(job=job.id), who=ALICE).reason.endswith("only operators may")
    assert isinstance(world.ask(Cancel(job=job.id), who=OLGA), Cancelled)


def test_the_environment_of_a_job_is_shown_to_those_who_may_act_on_it():
    world = World()
    job = running(world, ALICE)
    over = world.submit(job_spec("short", env={"TOKEN": "secret"}), ALICE)
    world.ask(Cancel(job=over.id), who=ALICE)
    seen = {}
    for who in (ALICE, BOB, OLGA, LOCAL_OPERATOR):
        pages = [world.ask(request, who=who).jobs for request in (GetJobs(), GetJobs(final_too=True), GetEnded())]
        views = [world.ask(GetJob(job=job.id), who=who).job, *(view for page in pages for view in page)]
        seen[who.name] = {tuple(view.spec.env) for view in views}
        assert len(views) == 5
    assert seen == {"alice": {("TOKEN",)}, "bob": {()}, "olga": {("TOKEN",)}, LOCAL: {("TOKEN",)}}
    assert job.spec.env == {"TOKEN": "secret"}


def test_what_is_over_and_archived_still_has_its_owner(monkeypatch: pytest.MonkeyPatch):
    world = World(keeping=Settings.__dataclass_fields__["keeping"].default.__class__(recent=0))
    job = running(world, ALICE)
    worker = next(iter(job.workers)).worker
    world.ask(Cancel(job=job.id), who=ALICE)
    world.reap()
    world.turn()
    assert job.id not in world.machine.cluster.jobs
    assert not_allowed(world.ask(GetLog(job=job.id, worker=worker, offset=0), who=BOB))
    assert world.ask(GetJob(job=job.id), who=BOB).job.spec.env == {}
    assert world.ask(GetJob(job=job.id), who=ALICE).job.spec.env == {"TOKEN": "secret"}


def test_history_and_audit_log_say_who_has_done_what():
    world = World()
    job = running(world, ALICE)
    world.ask(Scale(job=job.id, share=2), who=ALICE)
    world.ask(Scale(job=job.id, share=None), who=OLGA)
    world.ask(POLICY, "p", who=OLGA)
    world.ask(Cancel(job=job.id), who=OLGA)
    texts = [event.text for event in world.machine.cluster.history.events]
    assert "submitted by alice: 1 to 4 GPUs" in texts
    assert "share fixed at 2 by hand by alice" in texts
    assert "share given back to the policy by operator olga" in texts
    assert "max-min gives way to fifo, from fifo by operator olga" in texts
    assert texts[-1] == "cancelled by operator olga"
    assert world.ask(GetJob(job=job.id), who=ALICE).job.reason == "cancelled by operator olga"
    assert world.ask(GetJob(job=job.id), who=ALICE).job.ended_by == "olga"
    assert [(line.who, line.act, line.of, line.done) for line in world.audits] == [
        ("user:alice", "submit", job.id, True),
        ("user:alice", "scale", job.id, True),
        ("operator:olga", "scale", job.id, True),
        ("operator:olga", "set policy", "fifo", True),
        ("operator:olga", "cancel", job.id, True),
    ]
    assert world.audits[3].request == "p"


def test_refused_attempts_stand_in_the_audit_log_and_do_not_fill_it():
    world = World()
    job = running(world, ALICE)
    world.audits.clear()
    for _ in range(500):
        world.ask(Cancel(job=job.id), who=BOB, turn=False)
    lines = [(line.who, line.act, line.of, line.done) for line in world.audits]
    assert set(lines) == {("user:bob", "cancel", job.id, False)}
    assert len(lines) == 20
    world.now += 10.0
    world.ask(Cancel(job=job.id), who=BOB)
    assert len(world.audits) == 21
    assert world.audits[-1].text.endswith("(480 more attempts since the last line)")
    assert len(world.machine.cluster.clients.answers) == 1, "refusals of this kind are not remembered"
    many = world.machine.cluster
    for number in range(1500):
        world.ask(Cancel(job=job.id), who=Principal(role=Role.USER, name=f"u{number}"), turn=False)
    assert len(many.clients.attempts) == 1000


def test_the_id_of_anothers_request_is_of_no_use():
    world = World()
    mine = world.ask(Submit(spec=job_spec()), "same", who=ALICE)
    theirs = world.ask(Submit(spec=job_spec()), "same", who=BOB)
    local = world.ask(Submit(spec=job_spec()), "same")
    assert len({mine.job, theirs.job, local.job}) == 3
    for _ in range(2):
        assert world.ask(Submit(spec=job_spec()), "same", who=ALICE) == mine
        assert world.ask(Submit(spec=job_spec()), "same", who=BOB) == theirs
        assert world.ask(Submit(spec=job_spec()), "same") == local
        world.restart()


@pytest.mark.parametrize("pushed_by", ["refusals", "submissions"])
def test_no_user_pushes_out_the_answers_that_others_may_ask_for_again(
    monkeypatch: pytest.MonkeyPatch, pushed_by: str
) -> None:
    monkeypatch.setattr(answer_cache, "KEPT_ANSWERS", 20)
    world = World()
    mine = [world.ask(Submit(spec=job_spec()), f"mine-{number}", who=ALICE) for number in range(5)]
    local = world.ask(Submit(spec=job_spec()), "local")
    for number in range(100):
        request = Cancel(job="none") if pushed_by == "refusals" else Submit(spec=job_spec())
        world.ask(request, f"push-{number}", who=BOB, turn=False)
    assert len(world.machine.cluster.clients.answers) == 20
    for _ in range(2):
        assert [world.ask(Submit(spec=job_spec()), f"mine-{n}", who=ALICE) for n in range(5)] == mine
        assert world.ask(Submit(spec=job_spec()), "local") == local
        world.restart()
    for number in range(100):  # a user's own answers are forgotten first, oldest first
        world.ask(Cancel(job="none"), f"mine-too-{number}", who=ALICE, turn=False)
    assert world.ask(Submit(spec=job_spec()), "mine-0", who=ALICE) not in mine
    assert sum(key.startswith("/requests/") for key in world.store) <= 20


def test_of_several_jobs_with_one_name_ones_own_is_meant():
    world = World({"s1": 8})
    mine, theirs, also_theirs = (world.submit(job_spec("digits"), who) for who in (ALICE, BOB, BOB))
    assert world.ask(GetJob(job="digits"), who=ALICE).job.job == mine.id
    assert world.ask(Scale(job="digits", share=1), who=ALICE).job == mine.id
    answer = world.ask(Cancel(job="digits"), who=BOB)
    assert answer.reason == f"2 jobs of yours are called 'digits': name one of {theirs.id}, {also_theirs.id}"
    assert "3 jobs are called 'digits'" in world.ask(Cancel(job="digits"), who=OLGA).reason
    assert "3 jobs are called 'digits'" in world.ask(Cancel(job="digits")).reason
    assert world.ask(Cancel(job="digits"), who=ALICE) == Cancelled(job=mine.id)
    assert {event.job for event in world.ask(GetEvents(job=also_theirs.id), who=ALICE).events} == {also_theirs.id}
    world.ask(Cancel(job=theirs.id), who=BOB)
    assert not_allowed(world.ask(Cancel(job="digits"), who=ALICE)), "it is the only one that is not over"
    assert world.ask(Cancel(job="digits"), who=BOB) == Cancelled(job=also_theirs.id)


def test_a_log_goes_to_who_has_asked_for_it_whatever_others_ask_under_the_same_id():
    world = World({"s1": 4, "s2": 4})
    mine, theirs = running(world, ALICE), running(world, BOB)
    world.sent.clear()
    for job, who in ((mine, ALICE), (theirs, BOB)):
        worker = next(iter(job.workers)).worker
        assert world.ask(GetLog(job=job.id, worker=worker, offset=0), "same", who=who) is None
    (first, second) = world.messages(ReadLog)
    assert (first.job, second.job) == (mine.id, theirs.id)
    assert first.request != second.request
    waiting = {pending.asked.who.name for pending in world.machine.cluster.clients.pending_logs.values()}
    assert waiting == {"alice", "bob"}
    server = next(name for name, message in world.sent if message is first)
    piece = LogPiece(request=first.request, data=b"of alice\n", next_offset=9, end=True)
    (reply,) = world.feed(AgentMessage(server, piece))
    assert (reply.reply.id, reply.reply.answer.data) == ("same", b"of alice\n")
    assert [pending.asked.who for pending in world.machine.cluster.clients.pending_logs.values()] == [BOB]


def test_a_user_may_have_so_many_unfinished_jobs_and_no_more():
    world = World(open_jobs_per_user=2)
    first = world.submit(who=ALICE)
    world.submit(who=ALICE)
    refused = world.ask(Submit(spec=job_spec()), who=ALICE)
    assert isinstance(refused, Refused)
    assert not refused.not_allowed
    assert "alice has 2 unfinished jobs already, and may have 2" in refused.reason
    world.submit(who=BOB)
    for _ in range(5):
        world.submit(job_spec(user="alice"))  # a job of the administrator
    world.ask(Cancel(job=first.id), who=ALICE)
    assert isinstance(world.ask(Submit(spec=job_spec()), who=ALICE), Submitted)
    world.restart()
    assert isinstance(world.ask(Submit(spec=job_spec()), who=ALICE), Refused)


def test_a_priority_has_a_ceiling_by_role():
    world = World(user_priority=10, operator_priority=100)
    urgent = job_spec("urgent", priority=11)
    refused = world.ask(Submit(spec=urgent), who=ALICE)
    assert isinstance(refused, Refused)
    assert "its priority is 11, and alice may give one of up to 10 (user_priority)" in refused.reason
    assert not world.machine.cluster.jobs
    world.submit(job_spec("high", priority=10), who=ALICE)
    world.submit(job_spec("low", priority=-1_000_000), who=ALICE)
    world.submit(urgent, who=OLGA)
    refused = world.ask(Submit(spec=job_spec("more", priority=101)), who=OLGA)
    assert isinstance(refused, Refused)
    assert "operator_priority" in refused.reason


def test_with_very_many_jobs_a_share_is_answered_to_who_has_set_it(monkeypatch: pytest.MonkeyPatch):
    from elasticd.controller.state import jobs

    monkeypatch.setattr(jobs, "JOBS_DECIDED_AT_ONCE", 0)
    monkeypatch.setattr(jobs, "DECISION_INTERVAL_PER_JOB_S", 1.0)
    world = World()
    mine, theirs = running(world, ALICE), running(world, BOB)
    world.now += 5.0
    world.turn()
    for job, who in ((mine, ALICE), (theirs, BOB)):
        world.ask(Scale(job=job.id, share=1), "same", turn=False, who=who)
    assert len(world.machine.cluster.clients.undecided) in (0, 1, 2)
    world.turn(5.0)
    assert not world.machine.cluster.clients.undecided
    answers = {
        name: answer for name, answer in world.machine.cluster.clients.answers.items() if isinstance(answer, Scaled)
    }
    assert {name: answer.job for name, answer in answers.items()} == {
        "user:alice|same": mine.id,
        "user:bob|same": theirs.id,
    }


def test_each_request_that_changes_something_is_looked_at():
    """A new kind of request without restriction must be listed here."""
    restricted = {
        Scale,
        Profile,
        Cancel,
        Pause,
        Resume,
        Requeue,
        Checkpoint,
        SetPolicy,
        AdoptServer,
        RemoveServer,
        CordonServer,
        UncordonServer,
        LendGpus,
        EndLoan,
        Exec,
    }
    assert set(CHANGES) == {Submit, PutSnapshot, *restricted}, "a snapshot is its sender's own"


def test_the_local_operator_has_no_name_in_the_history():
    world = World()
    job = world.submit()
    world.ask(Cancel(job=job.id))
    assert world.machine.cluster.history.events[-1].text == "cancelled"
    assert world.kinds(job.id) == [EventKind.SUBMITTED, EventKind.ORDERED, EventKind.CANCELLED]
    assert WorkerId(f"{job.id}.0") in [entry.worker for entry in job.workers]


def test_a_refused_request_that_is_repeated_is_one_attempt():
    world = World({"s1": 1})
    job = world.submit(job_spec(), who=ALICE)
    for _ in range(5):
        assert world.ask(Cancel(job=job.id), "again", who=BOB).not_allowed
    assert len([line for line in world.audits if not line.done]) == 1


def test_a_reader_with_a_users_name_sees_the_users_jobs_without_their_environments_and_changes_nothing() -> None:
    world = World()
    job = world.submit(job_spec(env={"TOKEN": "secret"}), ALICE)
    world.settle(job.id)
    assert world.ask(GetJob(job=job.id), who=ALICE).job.spec.env == {"TOKEN": "secret"}
    assert world.ask(GetJob(job=job.id), who=READER).job.spec.env == {}
    log = GetLog(job=job.id, worker=next(iter(job.workers)).worker)
    for request in (Cancel(job=job.id), Submit(spec=job_spec("other")), log, SetPolicy(document=None, dry_run=True)):
        refused = world.ask(request, who=READER)
        assert isinstance(refused, Refused)
        assert refused.not_allowed
        assert refused.reason == "reader:alice may look at jobs and servers, and change nothing: a user's key can"
    assert not job.final
