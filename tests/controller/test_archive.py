"""Finished jobs leave the memory and can still be found; lists are paged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticd.controller import answer_cache, usage
from elasticd.controller.events import AgentMessage, ClockSet
from elasticd.controller.jobs.archive import DAY_S, PREFIX, Archive, first_key_of, job_of, key_of
from elasticd.controller.jobs.records import ArchivedJob, Submission
from elasticd.controller.records import state_key, submission_key
from elasticd.controller.recovery import differences, durable, trusted_since
from elasticd.controller.requests import pages
from elasticd.controller.settings import Keeping
from elasticd.controller.state import jobs
from elasticd.protocol.messages import (
    Cancel,
    EventKind,
    Events,
    EventView,
    GetEnded,
    GetEvents,
    GetJob,
    GetJobs,
    GetLog,
    GetServers,
    JobFound,
    Log,
    LogPiece,
    ReadLog,
    Refused,
    RemoveServer,
    Scale,
    ServerRemoved,
    StopWorker,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuAddress, JobId, ServerId, WorkerId

from .world import Process, World, job_spec

S1 = ServerId("s1")


def with_ended(count: int, recent: int = 2, **keeping: Any) -> Any:
    """A cluster in which so many jobs have been submitted, have trained, and have been cancelled."""
    world = World({"s1": 1}, keeping=Keeping(recent=recent, **keeping))
    for _ in range(count):
        end_one(world)
    return world


def end_one(world: Any, name: str = "digits") -> str:
    job = world.submit(job_spec(name, low=1, high=1)).id
    world.settle(job)
    world.ask(Cancel(job=job))
    world.reap()
    world.now += 1.0
    return str(job)


def archived(world: Any) -> list[str]:
    return [job_of(key).job for key in sorted(world.store) if key.startswith(PREFIX)]


def without_values(store: dict[str, bytes]) -> dict[str, bytes]:
    return {key: b"" if key.startswith(PREFIX) else value for key, value in store.items()}


def all_pages(world: Any, request: Any) -> list[str]:
    found: list[str] = []
    while True:
        answer = world.ask(request)
        found += [view.job for view in answer.jobs]
        if not answer.next:
            return found
        request = msgspec.structs.replace(request, after=answer.next)


# ------------------------------------------------------------------------------------------------------------- the archive


def test_jobs_that_are_over_leave_the_memory_the_first_first_and_are_in_the_archive() -> None:
    world = with_ended(6)
    assert list(world.machine.cluster.jobs) == ["digits-5", "digits-6"]
    assert archived(world) == ["digits-1", "digits-2", "digits-3", "digits-4"]
    for key in (submission_key(JobId("digits-1")), state_key(JobId("digits-1"))):
        assert key not in world.store
    assert durable(world.machine.cluster) == without_values(world.store)


def test_a_controller_that_starts_reads_of_the_archive_only_the_keys() -> None:
    world = with_ended(6)
    for key in world.store:
        if key.startswith(PREFIX):
            world.store[key] = b"no record"
    again = world.new_machine()
    assert differences(world.machine.cluster, again.cluster) == ()
    assert len(again.cluster.jobs.archive) == 4


def test_no_number_is_used_twice_though_all_jobs_are_in_the_archive_or_have_left_that_too() -> None:
    world = with_ended(4, recent=0)
    world.restart()
    assert end_one(world) == "digits-5"
    world = with_ended(4, recent=0, ended=0)
    assert archived(world) == []
    world.restart()
    assert end_one(world) == "digits-5"
    assert durable(world.machine.cluster) == without_values(world.store)


def test_what_was_submitted_is_written_once() -> None:
    world = World({"s1": 2})
    puts: list[str] = []
    carry_out = world.carry_out

    def watch(actions: Any) -> None:
        puts.extend(key for action in actions for key, _ in getattr(action, "puts", ()))
        carry_out(actions)

    world.carry_out = watch
    job = world.submit().id
    world.settle(job)
    assert puts.count(submission_key(job)) == 1
    assert puts.count(state_key(job)) > 3


def test_the_archive_keeps_so_many_jobs_and_those_that_ended_last() -> None:
    world = with_ended(8, recent=0, ended=3)
    assert archived(world) == ["digits-6", "digits-7", "digits-8"]
    assert durable(world.machine.cluster) == without_values(world.store)


def test_jobs_that_ended_long_ago_leave_the_archive() -> None:
    world = with_ended(3, recent=0, days=2.0)
    world.turn()
    world.now += 4 * DAY_S
    world.hello("s1")
    world.pass_time(jobs.LOOK_AT_AGES_S + 1)
    assert archived(world) == []
    assert end_one(world) == "digits-4"
    assert archived(world) == ["digits-4"]


def test_a_controller_that_is_restarted_often_comes_to_trust_its_clock() -> None:
    world = with_ended(3, recent=0, days=2.0)
    world.turn()
    world.now += 4 * DAY_S
    for _ in range(5):
        world.restart()
        end_one(world)
        world.pass_time(jobs.TRUSTED_AFTER_S / 3)
    assert not {"digits-1", "digits-2", "digits-3"} & set(archived(world))


def test_a_leap_of_the_clock_between_two_controllers_is_not_trusted() -> None:
    def event(number: int, time_s: float) -> EventView:
        return EventView(number=number, time_s=time_s, kind=EventKind.SUBMITTED, job=None, text="")

    steady = [event(number, 1000.0 * number) for number in range(1, 9)]
    assert trusted_since(steady, 8500.0) == 1000.0
    assert trusted_since(steady, 8000.0 + jobs.TRUSTED_AFTER_S) == 8000.0 + jobs.TRUSTED_AFTER_S
    assert trusted_since(steady, 7999.0) == 7999.0
    assert trusted_since([*steady[:4], event(5, 9e8)], 9e8 + 1) == 9e8
    assert trusted_since([], 5.0) == 5.0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_wrong_clock_makes_nothing_too_old_before_it_has_gone_on_for_an_hour(restarted: bool) -> None:
    world = with_ended(3, recent=0, days=2.0)
    world.pass_time(jobs.TRUSTED_AFTER_S)
    months = [key for key in world.store if key.startswith(usage.PREFIX)]
    for by_s in (9000 * DAY_S, -9000 * DAY_S):
        world.now += by_s
        if restarted:
            world.restart()
        else:
            world.feed(ClockSet(by_s))
        world.hello("s1")
        world.pass_time(jobs.TRUSTED_AFTER_S / 2)
        assert len(archived(world)) == 3
        assert set(months) <= set(world.store)
    world.now += 4 * DAY_S
    world.hello("s1")
    world.turn()
    assert archived(world) == []


def test_the_archive_is_filled_and_emptied_in_small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_ended(9, recent=9)
    monkeypatch.setattr(jobs, "ARCHIVED_AT_ONCE", 2)
    world.settings["keeping"] = Keeping(recent=0, ended=0)
    world.restart(hello=False)
    moved: list[int] = []
    for _ in range(12):
        before = set(world.store)
        world.say_hello(world.agents[S1])
        moved.append(len([key for key in before - set(world.store) if key.endswith("/spec")]))
    assert moved[:5] == [2, 2, 2, 2, 1], "a restart with a smaller number moves them a few at a time"
    assert len(world.machine.cluster.jobs.archive) == 0


# ------------------------------------------------------------------------------------------- queries for archived jobs


def test_a_job_in_the_archive_is_shown_in_full_by_its_id_and_by_its_name() -> None:
    world = World({"s1": 1}, keeping=Keeping(recent=0))
    name = end_one(world, "lonely")
    assert name not in world.machine.cluster.jobs
    shown = [world.ask(GetJob(job=what)) for what in (name, "lonely")]
    assert all(isinstance(answer, JobFound) and answer.job.job == name for answer in shown)
    assert shown[0].job.phase.value == "cancelled"
    assert [worker.exit_code for worker in shown[0].job.past_workers] == [-15]


def test_a_job_whose_record_in_the_archive_does_not_count_is_not_said_to_be_unknown() -> None:
    world = World({"s1": 1}, keeping=Keeping(recent=0))
    name = end_one(world, "lonely")
    (key,) = world.machine.cluster.jobs.archive.keys
    del world.store[key]  # as a record without a valid seal: the store returns none
    answer = world.ask(GetJob(job=name))
    assert isinstance(answer, Refused)
    assert not answer.bad_input
    assert answer.reason == (
        f"{name} is over; its record in the archive is gone, or was written by another process than a controller and does not "
        "count (`elasticctl events`)"
    )


def test_a_name_that_several_jobs_have_had_is_refused_with_how_many_there_are() -> None:
    world = with_ended(3, recent=1)
    answer = world.ask(GetJob(job="digits"))
    assert isinstance(answer, Refused)
    assert "3 jobs are called 'digits'" in answer.reason
    live = world.submit(job_spec(low=1, high=1)).id
    assert world.ask(GetJob(job="digits")).job.job == live, "the only unfinished one is meant"
    assert "there is no job" in world.ask(GetJob(job="digits-77")).reason
    for number in range(1, 5):
        assert world.ask(GetJob(job=str(number))).job.job == f"digits-{number}", "unfinished, over, or archived"
    assert "there is no job '77'" in world.ask(GetJob(job="77")).reason
    assert "there is no job" in world.ask(GetJob(job="7" * 30)).reason


def test_what_would_change_a_job_in_the_archive_is_refused_with_how_it_has_ended() -> None:
    world = with_ended(1, recent=0)
    assert "is over already: it was cancelled" in world.ask(Cancel(job="digits-1")).reason
    assert "is over: it was cancelled" in world.ask(Scale(job="digits-1", share=1)).reason


def test_logs_of_a_job_in_the_archive_are_read_from_its_server() -> None:
    world = with_ended(1, recent=0)
    world.ask(GetLog(job="digits-1", worker=WorkerId("digits-1.0")), "log", turn=False)
    (asked,) = world.messages(ReadLog)
    world.feed(AgentMessage(S1, LogPiece(request=asked.request, data=b"x", next_offset=1, end=True)))
    assert world.answers["log"] == Log(data=b"x", next_offset=1, end=True)


def test_events_of_a_job_in_the_archive_are_told() -> None:
    world = with_ended(2, recent=0)
    answer = world.ask(GetEvents(job="digits-1"))
    assert isinstance(answer, Events)
    assert [event.kind for event in answer.events][-1] == EventKind.CANCELLED
    assert {event.job for event in answer.events} == {"digits-1"}


def test_a_submission_that_comes_twice_makes_one_job_though_that_is_in_the_archive_and_the_controller_is_another() -> (
    None
):
    world = World({"s1": 1}, keeping=Keeping(recent=0))
    spec = job_spec(low=1, high=1)
    assert world.ask(Submit(spec=spec), "once") == Submitted(job=JobId("digits-1"))
    world.settle("digits-1")
    world.ask(Cancel(job="digits-1"))
    world.reap()
    assert archived(world) == ["digits-1"]
    world.restart()
    world.answers.clear()
    assert world.ask(Submit(spec=spec), "once") == Submitted(job=JobId("digits-1"))
    assert archived(world) == ["digits-1"]


def test_answers_to_submissions_are_forgotten_by_the_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_cache, "KEPT_ANSWERS", 3)
    world = with_ended(6)
    assert len([key for key in world.store if key.startswith("/requests/")]) <= 3
    assert durable(world.machine.cluster) == without_values(world.store)


@pytest.mark.parametrize("uid_told", [True, False])
def test_a_worker_of_a_job_in_the_archive_is_stopped_and_one_of_a_stranger_is_not(uid_told: bool) -> None:
    world = with_ended(1, recent=0)
    uid = job_of(next(key for key in world.store if key.startswith(PREFIX))).uid
    gpu, agent = GpuAddress(server=S1, index=0), world.agents[S1]
    agent.running[WorkerId("digits-1.7")] = Process(JobId("digits-1"), gpu, uid if uid_told else "another")
    world.sent.clear()
    world.hello("s1")
    world.turn()
    stopped = [message.worker for message in world.messages(StopWorker)]
    assert stopped == (["digits-1.7"] if uid_told else [])
    assert bool(world.machine.cluster.servers.sessions[S1].unknown) is not uid_told
    assert not world.machine.cluster.gpu_free(gpu), "its process is there"


def test_a_store_of_an_earlier_version_is_taken_over_whole() -> None:
    """An earlier version had one record for each job, which included the submission."""
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1))
    world.settle(job.id)
    submission, state = (msgspec.msgpack.decode(world.store.pop(key(job.id))) for key in (submission_key, state_key))
    world.store = {key: value for key, value in world.store.items() if not key.startswith("/requests/")}
    world.store[f"/jobs/{job.id}"] = msgspec.msgpack.encode({**submission, **state})
    world.restart()
    assert f"/jobs/{job.id}" not in world.store
    assert world.job(job.id).record.phase is job.record.phase
    assert world.ask(Submit(spec=job_spec()), job.submission.request) == Submitted(job=job.id)
    assert durable(world.machine.cluster) == world.store


# ------------------------------------------------------------------------------------------------------------------- pages


def test_pages_tell_each_job_once_the_live_ones_first_and_then_what_ended_last() -> None:
    world = with_ended(5)
    live = [world.submit(job_spec(low=1, high=1)).id for _ in range(3)]
    for limit in (1, 2, 3, 100):
        assert all_pages(world, GetJobs(limit=limit)) == live
        ended = [f"digits-{number}" for number in (5, 4, 3, 2, 1)]
        assert all_pages(world, GetEnded(limit=limit)) == ended
        assert all_pages(world, GetJobs(final_too=True, limit=limit)) == [*live, *ended]
    assert all_pages(world, GetEnded(before_job="digits-4", limit=2)) == ["digits-3", "digits-2", "digits-1"]
    assert all_pages(world, GetEnded(before_job="digits-2")) == ["digits-1"]


def test_what_is_there_all_the_time_is_told_once_whatever_ends_and_comes_between_two_pages() -> None:
    world = World({"s1": 1}, keeping=Keeping(recent=2))
    live = [world.submit(job_spec(low=1, high=1)).id for _ in range(6)]
    first = world.ask(GetJobs(limit=3))
    world.ask(Cancel(job=live[1]))
    world.ask(Cancel(job=live[2]))
    later = world.submit(job_spec(low=1, high=1)).id
    rest = all_pages(world, GetJobs(limit=3, after=first.next))
    assert rest == [*live[3:], later]


def test_a_page_has_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_BYTES", 20_000)
    world = World({"s1": 1}, keeping=Keeping(recent=1))
    for number in range(12):
        job = world.submit(job_spec(low=1, high=1, env={"DATA": "x" * 6000})).id
        if number % 2:
            world.ask(Cancel(job=job))
            world.reap()
    for request in (GetJobs(), GetEnded()):
        answer = world.ask(request)
        assert 1 < len(answer.jobs) < 6
        assert len(msgspec.msgpack.encode(answer)) < 30_000
        assert len(set(all_pages(world, request))) == 6


def test_a_page_that_starts_nowhere_is_refused() -> None:
    world = with_ended(2)
    for request in (GetJobs(after="/etc"), GetEnded(after="x"), GetEnded(before_job="digits-9")):
        answer = world.ask(request)
        assert isinstance(answer, Refused)
        assert answer.bad_input


def test_servers_come_in_pages_by_name() -> None:
    world = World({f"s{number}": 1 for number in range(7)})
    found: list[str] = []
    after = ""
    while True:
        answer = world.ask(GetServers(after=after, limit=3))
        found += [view.server.server for view in answer.servers]
        after = answer.next
        if not after:
            break
    assert found == [f"s{number}" for number in range(7)]


# -------------------------------------------------------------------------------------------------- removed servers


def test_a_lost_server_is_removed_when_an_operator_says_so_and_not_before() -> None:
    world = World({"s1": 1, "s2": 1})
    assert "there is no server" in world.ask(RemoveServer(server=ServerId("s9"))).reason
    world.agents[ServerId("s2")].connected = False
    world.pass_time(12.0)
    assert EventKind.SERVER_LOST in world.kinds()
    world.restart()
    world.pass_time(1.0)
    assert world.ask(RemoveServer(server=ServerId("s2")), "early") is None, "it may still be heard of"
    world.pass_time(12.0)
    assert world.ask(RemoveServer(server=ServerId("s2"))) == ServerRemoved(server=ServerId("s2"))
    assert [view.server.server for view in world.ask(GetServers()).servers] == ["s1"]
    assert world.machine.cluster.servers.known_gpus == 1
    assert durable(world.machine.cluster) == world.store
    world.restart()
    assert list(world.machine.cluster.servers.sessions) == ["s1"]


def test_a_server_that_was_removed_joins_as_a_new_one() -> None:
    world = World({"s1": 1, "s2": 1})
    world.agents[ServerId("s2")].connected = False
    world.pass_time(12.0)
    world.ask(RemoveServer(server=ServerId("s2")))
    world.hello("s2")
    world.turn()
    assert world.kinds().count(EventKind.SERVER_JOINED) == 3
    assert world.machine.cluster.servers.known_gpus == 2
    assert durable(world.machine.cluster) == world.store


# -------------------------------------------------------------------------------------------------------------------- keys


def test_keys_tell_of_a_job_what_a_controller_has_to_know_of_it() -> None:
    submission = Submission(job=JobId("a-b-12"), request="r", uid="77", spec=job_spec(), submitted_s=0.0)
    key = key_of(submission, 20 * DAY_S)
    assert key == "/archive/1970-01-21/000000000000000012/a-b-12.77"
    assert (job_of(key).job, job_of(key).uid) == ("a-b-12", "77")
    assert first_key_of(21 * DAY_S, 1.0) <= key < first_key_of(22 * DAY_S, 1.0)
    for odd_s in (-1e9, 1e300):
        assert job_of(key_of(submission, odd_s)).job == "a-b-12"


def test_an_archive_counts_names_and_pages_backwards() -> None:
    def key(name: str, number: int, day: int) -> str:
        submission = Submission(job=JobId(f"{name}-{number}"), request="", uid="u", spec=job_spec(), submitted_s=0.0)
        return key_of(submission, day * DAY_S)

    archive = Archive([key("a", 3, 2), key("b", 2, 1)])
    archive.add(key("a", 1, 2))
    assert archive.named("a") == (2, "a-3")
    assert [job_of(found).job for found in archive.before("", 10)] == ["a-3", "a-1", "b-2"]
    assert archive.highest_number == 3
    assert [job_of(gone).job for gone in archive.forget(0, "", 2)] == ["b-2", "a-1"]
    assert archive.named("b") == (0, None)
    assert archive.named("a") == (1, "a-3")
    assert archive.find(JobId("a-3")) is not None
    assert archive.find(JobId("b-3")) is None, "the number alone is not the job"


def test_the_newest_of_a_name_may_leave_the_archive_before_older_ones_that_have_ended_later() -> None:
    def key(number: int, day: int) -> str:
        submission = Submission(job=JobId(f"a-{number}"), request="", uid="u", spec=job_spec(), submitted_s=0.0)
        return key_of(submission, day * DAY_S)

    archive = Archive([key(9, 1), key(3, 2), key(4, 3), key(2, 4)])
    assert archive.named("a") == (4, "a-9")
    assert [job_of(gone).job for gone in archive.forget(0, "", 1)] == ["a-9"]
    assert archive.named("a") == (3, "a-4")


def test_an_archived_record_is_the_job_with_all_that_was_known_of_it() -> None:
    world = with_ended(1, recent=0)
    (value,) = (value for key, value in world.store.items() if key.startswith(PREFIX))
    kept = msgspec.msgpack.decode(value, type=ArchivedJob)
    assert kept.submission.job == "digits-1"
    assert [entry.worker for entry in kept.record.past] == ["digits-1.0"]
    assert kept.record.progress is not None
