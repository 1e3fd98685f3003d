"""Reservations by time: GPUs are withdrawn and returned on schedule, no worker is killed, and promises account for them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import (
    EndLoan,
    EventKind,
    Forecast,
    GetJob,
    GetPolicy,
    GetQuotas,
    PolicySet,
    PromiseState,
    Refused,
    ReservationView,
    SetPolicy,
    Submit,
    Submitted,
)
from elasticd.protocol.model import Deadline
from elasticd.scheduler.quotas.reservations import TimedReservation
from elasticd.scheduler.scheduler import Stages, document, load_scheduler

from .world import World, job_spec

BEGIN_S = 1000.0  # of each test


def iso(after_s: float) -> str:
    return datetime.fromtimestamp(BEGIN_S + after_s, UTC).isoformat()


def reserved(gpus: int, from_s: float, to_s: float, name: str = "class") -> TimedReservation:
    return TimedReservation(name=name, gpus=gpus, starts=iso(from_s), ends=iso(to_s))


def world_with(*reservations: TimedReservation, gpus: int = 4) -> Any:
    return World({"s1": gpus}, stages=Stages(reservations=reservations))


def shown(world: Any) -> tuple[ReservationView, ...]:
    found: tuple[ReservationView, ...] = world.ask(GetQuotas()).reservations
    return found


def test_a_job_shrinks_when_a_reservation_begins_and_grows_when_it_is_over() -> None:
    world = world_with(reserved(3, 30.0, 60.0))
    job = world.submit(job_spec("elastic", 1, 4))
    world.settle(job.id, 5)
    assert len(job.record.target) == 4
    assert shown(world) == (ReservationView(name="class", gpus=3, from_s=1030.0, to_s=1060.0),)
    world.pass_time(31.0)
    world.settle(job.id, 40)
    assert len(job.record.target) == 1
    assert shown(world)[0].taken_gpus == 3
    world.pass_time(30.0)
    world.settle(job.id, 80)
    assert len(job.record.target) == 4
    assert shown(world) == ()
    assert job.record.restarts == 0
    assert [world.kinds().count(kind) for kind in (EventKind.LENT, EventKind.LOAN_ENDED)] == [1, 1]
    assert "3 GPUs taken for reservation-class, for " in world.story()


def test_it_begins_though_nothing_else_happens_and_outlasts_the_controller() -> None:
    world = world_with(reserved(2, 30.0, 60.0))
    world.pass_time(31.0)
    assert shown(world)[0].taken_gpus == 2
    world.restart()
    assert shown(world)[0].taken_gpus == 2
    world.pass_time(30.0)
    assert shown(world) == ()
    assert "s1" not in world.machine.cluster.servers.overruled


def test_one_that_began_while_no_controller_was_there_begins_late() -> None:
    world = world_with(reserved(2, 30.0, 60.0))
    world.now += 40.0
    world.restart()
    world.turn()
    assert shown(world)[0].taken_gpus == 2


def test_fixed_jobs_keep_their_gpus_and_it_takes_them_when_they_end() -> None:
    world = world_with(reserved(3, 30.0, 600.0))
    gang = world.submit(job_spec("gang", 3, 3, restarts=0))
    world.pass_time(31.0)
    assert shown(world)[0].taken_gpus == 1
    assert len(gang.record.target) == 3
    later = world.submit(job_spec("later", 1, 1, restarts=0))
    for worker in world.running(gang.id):
        world.exit(worker, 0)
    world.turn()
    assert shown(world)[0].taken_gpus == 3
    world.pass_time(3.0)
    assert len(later.record.target) == 1


def test_it_follows_the_policy_file_and_nothing_else_ends_it() -> None:
    world = world_with(reserved(3, 10.0, 600.0))
    world.pass_time(11.0)
    refused = world.ask(EndLoan(loan="reservation-class"))
    assert isinstance(refused, Refused)
    assert "is a reservation of the policy file" in refused.reason
    for number, (gpus, to_s) in enumerate(((1, 600.0), (2, 600.0), (2, 50.0))):
        told = {"name": "class", "gpus": gpus, "from": iso(10.0), "to": iso(to_s)}
        answer = world.ask(SetPolicy(document={"policy": "max-min", "reservations": [told]}, source="f"), f"p{number}")
        assert isinstance(answer, PolicySet)
        assert answer.after.reservations == (told,)
        world.turn()
        assert shown(world)[0].taken_gpus == gpus
    world.pass_time(40.0)
    assert shown(world) == ()
    world.ask(SetPolicy(document={"policy": "max-min", "reservations": []}, source="f"), "none")
    assert world.ask(GetPolicy()).reservations == ()
    world.turn()
    assert "s1" not in world.machine.cluster.servers.overruled


LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}  # steps per second


def due(name: str, in_s: float, steps: int) -> Any:
    return job_spec(name, throughput=LINEAR, max_steps=steps, deadline=Deadline(in_s=in_s))


def test_a_deadline_that_a_reservation_would_break_is_refused_before_it_begins() -> None:
    free, taken = world_with(), world_with(reserved(4, 30.0, 100.0))
    assert isinstance(free.ask(Submit(spec=due("late", 80.0, 200))), Submitted)
    refused = taken.ask(Submit(spec=due("late", 80.0, 200)))
    assert isinstance(refused, Refused)
    assert "its deadline in 1m20s does not hold" in refused.reason
    offer = taken.ask(Forecast(spec=due("late", 80.0, 200))).offer
    assert offer.deadline_s > BEGIN_S + 100.0
    assert isinstance(taken.ask(Submit(spec=due("early", 28.0, 60))), Submitted)


def test_a_promise_that_a_new_reservation_breaks_is_told_at_once() -> None:
    world = world_with()
    job = world.submit(due("late", 80.0, 200))
    assert job.record.promise is PromiseState.HOLDS
    told = {"name": "class", "gpus": 4, "from": iso(30.0), "to": iso(100.0)}
    world.ask(SetPolicy(document={"policy": "max-min", "reservations": [told]}, source="f"), "p")
    world.turn()
    assert job.record.promise is PromiseState.BREAKS
    assert "its deadline will be missed" in world.story()


def test_a_promise_is_kept_beside_a_reservation_by_working_before_it() -> None:
    world = world_with(reserved(3, 40.0, 400.0))
    other = world.submit(job_spec("other", 1, 4))
    world.settle(other.id, 1)
    job = world.submit(due("due", 100.0, 150))
    assert len(job.record.target) >= 3, "one GPU is left from 40 s on, and 60 steps at most can be done with it"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"from": "tomorrow"}, "reservations[0].from: 'tomorrow': is not a time, such as 2026-11-30T18:00+01:00"),
        ({"from": "2026-11-30T18:00"}, "reservations[0].from: '2026-11-30T18:00': does not say its time zone"),
        ({"to": "2026-11-30T17:00Z"}, "reservations[0].to: '2026-11-30T17:00Z': is not after 2026-11-30T18:00Z"),
        ({"gpus": 0}, "reservations[0].gpus"),
        ({"name": "a b"}, "reservations[0].name: 'a b': is not a name"),
        ({"when": 1}, "reservations[0].when: is unknown"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    right = {"name": "class", "gpus": 2, "from": "2026-11-30T18:00Z", "to": "2026-11-30T19:00Z"}
    with pytest.raises(OperatorError) as found:
        load_scheduler({"policy": "max-min", "reservations": [{**right, **changes}]}, "file")
    assert words in str(found.value)


def test_times_that_yaml_reads_as_times_are_the_same_and_no_name_stands_twice() -> None:
    at = datetime(2026, 11, 30, 18, tzinfo=UTC)
    one = {"name": "class", "gpus": 2, "from": at, "to": "2026-11-30T20:00+01:00"}
    with pytest.raises(OperatorError, match="is not after"):
        load_scheduler({"policy": "max-min", "reservations": [{**one, "to": at}]}, "file")
    found = load_scheduler({"policy": "max-min", "reservations": [one]}, "file")
    (told,) = found.stages.reservations
    assert (told.to_s - told.from_s, told.from_s) == (3600.0, at.timestamp())
    assert load_scheduler(document(found), "again").stages.reservations == (told,)
    with pytest.raises(OperatorError, match="two of them are called class"):
        load_scheduler({"policy": "max-min", "reservations": [one, one]}, "file")


def test_what_would_help_a_job_that_waits_for_reserved_gpus_is_a_change_of_the_policy_file() -> None:
    """`reclaim` refuses to end a reservation."""
    world = world_with(reserved(3, 0.0, 600.0))
    job = world.submit(job_spec("gang", 4, 4, restarts=0))
    remedies = world.ask(GetJob(job=job.id, explain=True)).explanation.remedies
    (found,) = [one for one in remedies if one.kind == "reclaim"]
    assert (found.text, found.command) == ("the reservation class is not in the policy file", "")
