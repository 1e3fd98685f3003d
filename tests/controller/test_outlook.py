"""The facts from which clients simulate when a waiting job starts, and starts that they predict."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from elasticd.protocol.messages import CordonServer, GetOutlook, GpusLent, LendGpus, Outlook, Pause, Scale
from elasticd.protocol.model import Deadline, JobPhase, ServerId
from elasticd.protocol.principals import Principal, Role
from elasticd.scheduler.quotas.reservations import TimedReservation
from elasticd.scheduler.quotas.terms import Quota, Quotas
from elasticd.scheduler.scheduler import Stages
from elasticd.simulator.forecast import starts

from .world import World, job_spec

ALICE = Principal(role=Role.USER, name="alice")


def outlook(world: Any, who: Principal = ALICE) -> Outlook:
    found: Outlook = world.ask(GetOutlook(), who=who)
    return found


def test_the_outlook_has_running_waiting_and_fixed_jobs_with_their_gpus() -> None:
    world = World({"s1": 4, "s2": 4})
    elastic = world.submit(job_spec("elastic", 1, 2))
    world.settle(elastic.id, 3)
    gang = world.submit(job_spec("gang", 4, 4))
    world.settle(gang.id, 3)
    waiting = world.submit(job_spec("waiting", 8, 8), who=ALICE)
    world.settle(waiting.id, 3)
    found = outlook(world)
    assert found.obstacle == ""
    assert found.servers == (("s1", 4), ("s2", 4))
    by_name = {each.job: each for each in found.jobs}
    assert list(by_name) == [elastic.id, gang.id, waiting.id]
    assert (by_name[elastic.id].share, by_name[gang.id].share, by_name[waiting.id].share) == (
        len(elastic.own_gpus),
        len(gang.own_gpus),
        0,
    )
    assert by_name[waiting.id].waiting_since_s is not None
    assert by_name[elastic.id].waiting_since_s is None
    assert sorted(len(each) for each in found.speedups) == [5, 9]  # up to the largest share of each kind of jobs
    assert [each.requested_gpus for each in found.jobs] == [2, 4, 8]
    assert all(0 <= each.curve < len(found.speedups) for each in found.jobs)
    assert found.arrivals == ((1, 2), (4, 4), (8, 8))
    told = starts(found, waiting.id)
    assert 0.0 < told.interval_s[0] <= told.interval_s[1]


def test_a_job_that_may_have_no_gpus_is_left_out_and_a_share_by_hand_is_there() -> None:
    world = World({"s1": 4})
    first = world.submit(job_spec("first", 1, 4))
    world.settle(first.id, 3)
    world.ask(Scale(job=first.id, share=4), "scale")
    held = world.submit(job_spec("held", 1, 1))
    world.ask(Pause(job=held.id, hold=True), "hold")
    world.ask(Scale(job=first.id, share=2), "again")
    (found,) = outlook(world).jobs
    assert (found.job, found.by_hand) == (first.id, 2)


def test_a_job_with_a_time_limit_has_the_time_that_is_left() -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec("limited", 1, 2, time_limit_s=600.0))
    world.settle(job.id, 3)
    began_s = outlook(world).jobs[0].time_left_s
    world.settle(job.id, 20)
    left_s = outlook(world).jobs[0].time_left_s
    assert began_s is not None
    assert left_s is not None
    assert left_s < began_s <= 600.0


def test_a_command_with_gpus_is_fixed_and_its_length_counts_when_it_has_ended() -> None:
    world = World()
    gang = world.submit(job_spec("gang", 2, 2, restarts=0))
    world.pass_time(300)
    (runs,) = outlook(world).jobs
    assert (runs.fixed, runs.share, runs.left_s) == (True, 2, None)
    before = sum(map(sum, outlook(world).lengths))
    for worker in ("gang-1.0", "gang-1.1"):
        world.exit(worker, 0)
    assert gang.record.phase is JobPhase.FINISHED
    assert sum(map(sum, outlook(world).lengths)) == before + 1


def test_under_quotas_a_job_starts_where_its_user_has_gpus() -> None:
    world = World({"s1": 4}, stages=Stages(quotas=Quotas(users={"alice": Quota(gpus=2, most_gpus=2)})))
    first = world.submit(job_spec("first", 2, 2), who=ALICE)
    world.settle(first.id, 3)
    waits = world.submit(job_spec("waits", 1, 1), who=ALICE)
    others = world.submit(job_spec("others", 4, 4))
    world.settle(others.id, 3)
    found = outlook(world)
    assert (found.obstacle, found.user) == ("", "alice")
    assert [each.user for each in found.jobs] == [waits.user, waits.user, others.user]
    assert len(found.arrival_users) == len(found.arrivals)
    assert starts(found, waits.id).interval_s[0] > 0.0, "two GPUs are idle, and alice may have no third one"


def test_jobs_that_may_not_use_all_gpus_wait_for_theirs() -> None:
    world = World({"s1": 4, "s2": 4})
    whole = world.submit(job_spec("whole", 4, 4, gpus_per_server=4))
    world.settle(whole.id, 3)
    for name in ("first", "second"):
        world.settle(world.submit(job_spec(name, 2, 2)).id, 3)
    waits = world.submit(job_spec("waits", 4, 4, gpus_per_server=4))
    world.settle(waits.id, 3)
    found = outlook(world)
    assert found.obstacle == ""
    (held,) = (each.held for each in found.jobs if each.job == whole.id)
    assert held in ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [found.demands[each.demand]["per_server"] for each in found.jobs] == [4, 0, 0, 4]
    assert [found.demands[each]["per_server"] for each in found.arrival_demands] == [4, 0, 0, 4]
    assert starts(found, waits.id).interval_s[0] > 0.0


def test_deadlines_are_facts() -> None:
    world = World({"s1": 4})
    due = world.submit(job_spec("due", 1, 4, deadline=Deadline(in_s=3600.0, soft=True)))
    world.settle(due.id, 3)
    (found,) = outlook(world).jobs
    assert (found.deadline_s, found.promised) == (due.deadline_s, False)


def test_reserved_and_lent_gpus_come_back_in_a_forecast_when_they_do_in_the_cluster() -> None:
    begins, ends = (datetime.fromtimestamp(1000.0 + at, UTC).isoformat() for at in (30.0, 300.0))
    world = World({"s1": 2, "s2": 2}, stages=Stages(reservations=(TimedReservation("class", 2, begins, ends),)))
    before = world.submit(job_spec("before", 1, 1, time_limit_s=60.0, restarts=0))
    world.pass_time(31.0)
    assert isinstance(world.ask(LendGpus(gpus=1, for_s=100.0)), GpusLent)
    waits = world.submit(job_spec("waits", 4, 4, restarts=0), who=ALICE)
    world.turn()
    found = outlook(world)
    assert found.obstacle == ""
    assert found.servers == (("s1", 2), ("s2", 2))
    assert {(one.reservation, len(one.gpus)) for one in found.away} == {("class", 2), ("", 1)}
    assert [one.until_s for one in found.away if one.reservation] == [1300.0]
    low_s, high_s = starts(found, waits.id).interval_s
    assert found.time_s + low_s == found.time_s + high_s == pytest.approx(1300.0)
    for worker in world.running(before.id):
        world.exit(worker, 0)
    while not waits.record.target:
        assert world.now < 1320.0
        world.pass_time(1.0)
    assert world.now >= 1300.0


def test_faulty_gpus_do_not_come_back_when_their_loan_ends() -> None:
    world = World({"s1": 4})
    lent = world.ask(LendGpus(gpus=2, for_s=100.0))
    assert isinstance(lent, GpusLent)
    world.ask(CordonServer(server=ServerId("s1"), gpu=lent.gpus[0].index))
    (away,) = outlook(world).away
    assert len(away.gpus) == 1
    assert outlook(world).servers == (("s1", 3),)


def test_where_the_simulator_would_decide_otherwise_the_outlook_has_an_obstacle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowded = World({"s1": 4})
    crowded.submit(job_spec("one", 1, 4))
    monkeypatch.setattr("elasticd.controller.requests.outlook.MOST_JOBS", 0)
    assert outlook(crowded).obstacle == "there are more than 0 jobs"
