"""Accounting of GPU-seconds: none is lost or counted twice, whatever happens to jobs, clocks and the controller."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.controller import usage
from elasticd.controller.events import ClockSet
from elasticd.controller.jobs import account
from elasticd.controller.jobs.account import DAY_S, Account, OnDay, columns, days_between
from elasticd.controller.recovery import differences, durable
from elasticd.controller.settings import Keeping
from elasticd.controller.store import StoreUnavailable
from elasticd.controller.turn import Turn
from elasticd.protocol.messages import Cancel, EventKind, GetUsage, Profile, Refused, UsageBy, UsageReport
from elasticd.protocol.model import Fault, GpuSeconds, JobPhase, Processes, Resize, WorkerPhase
from elasticd.protocol.principals import Principal, Role

from .world import FaultyStore, World, job_spec

NEAR = 0.2  # GPU-seconds: the test's clock advances by a millisecond per message


def spent(world: Any, job: str) -> GpuSeconds:
    found = world.ask(GetUsage(job=job))
    assert isinstance(found, UsageReport), found
    return found.rows[0].gpu_seconds


def by(world: Any, what: UsageBy, **options: Any) -> dict[str, GpuSeconds]:
    """All pages of a report."""
    request, rows = GetUsage(by=what, limit=2, **options), []
    while True:
        page = world.ask(request)
        assert isinstance(page, UsageReport), page
        rows += page.rows
        if not page.next:
            break
        request = GetUsage(by=what, limit=2, after=page.next, **options)
    names = [row.user if what is UsageBy.USER else row.day if what is UsageBy.DAY else row.job for row in rows]
    assert len(set(names)) == len(names), "a row is told twice"
    return dict(zip(names, (row.gpu_seconds for row in rows), strict=True))


def trains(world: Any, gpus: int, **changes: Any) -> str:
    """A job that begins to train ten seconds after the start of its workers."""
    job = str(world.submit(job_spec(low=1, high=gpus, **changes)).id)
    world.pass_time(10)
    world.settle(job)
    return job


def near(told: GpuSeconds, **wanted: float) -> None:
    expected = {"used": 0.0, "idle": 0.0, "paused": 0.0, "lost": 0.0, **wanted}
    found = {name: getattr(told, f"{name}_gpu_s") for name in expected}
    assert found == pytest.approx(expected, abs=NEAR)


# ---------------------------------------------------------------------------------------------------- counted time


def test_starting_is_idle_and_training_is_used() -> None:
    world = World({"s1": 2})
    job = trains(world, 2)
    world.pass_time(100)
    near(spent(world, job), used=200, idle=20)


def test_a_job_that_waits_holds_nothing() -> None:
    world = World({"s1": 1}, policy="fifo")
    trains(world, 1)
    waiting = str(world.submit(job_spec(name="waits", low=1, high=1)).id)
    world.pass_time(50)
    near(spent(world, waiting))
    assert waiting not in by(world, UsageBy.JOB)


def test_a_plain_command_uses_its_gpus_while_it_runs() -> None:
    world = World({"s1": 2})
    job = str(world.submit(job_spec(low=2, high=2)).id)
    world.pass_time(61)
    near(spent(world, job), used=120, idle=2)
    for worker in world.running(job):
        world.exit(worker, 0)
    near(spent(world, job), used=120, idle=2)


def test_what_ran_before_a_job_joined_was_starting() -> None:
    world = World({"s1": 1})
    job = str(world.submit(job_spec(low=1, high=1)).id)
    world.pass_time(31)
    near(spent(world, job), used=30, idle=1)
    world.arrive(job)
    near(spent(world, job), idle=31)
    world.commit(job)
    world.pass_time(5)
    near(spent(world, job), used=5, idle=31)
    near(by(world, UsageBy.USER)[usage.user_of(world.job(job))], used=5, idle=31)


def test_a_pause_is_taken_from_what_was_used() -> None:
    world = World({"s1": 2})
    job = trains(world, 2)
    world.pass_time(100)
    resize = Resize(generation=1, step=20, workers_before=2, workers_after=4, longest_gap_s=3.5, median_step_s=0.5)
    world.report(world.roster(job)[0], WorkerPhase.TRAINING, 1, 30, resizes=(resize,))
    near(spent(world, job), used=194, idle=20, paused=6)
    world.report(world.roster(job)[0], WorkerPhase.TRAINING, 1, 31, resizes=(resize,))
    near(spent(world, job), used=194, idle=20, paused=6)


def test_a_pause_that_is_longer_than_all_training_leaves_nothing_below_zero() -> None:
    world = World({"s1": 1})
    job = trains(world, 1)
    world.pass_time(5)
    resize = Resize(generation=1, step=2, workers_before=1, workers_after=1, longest_gap_s=1e9, median_step_s=0.0)
    world.report(world.roster(job)[0], WorkerPhase.TRAINING, 1, 30, resizes=(resize,))
    near(spent(world, job), idle=10, paused=5)


def test_a_restart_makes_void_what_was_trained_since_the_last_checkpoint() -> None:
    world = World({"s1": 1})
    job = trains(world, 1)
    world.pass_time(100)
    (worker,) = world.running(job)
    world.report(worker, WorkerPhase.TRAINING, 1, 50, saved=50)
    world.pass_time(30)
    world.exit(worker, -9)
    near(spent(world, job), used=100, idle=10, lost=30)
    world.pass_time(20)
    world.settle(job)
    world.pass_time(10)
    told = spent(world, job)
    assert told.lost_gpu_s == pytest.approx(30, abs=NEAR)
    assert told.used_gpu_s == pytest.approx(110, abs=NEAR)


def test_a_worker_that_ends_before_it_has_trained_was_there_in_vain() -> None:
    world = World({"s1": 2})
    job = str(world.submit(job_spec(low=1, high=2)).id)
    world.pass_time(10)
    first, second = world.running(job)
    world.report(first, WorkerPhase.READY)
    world.exit(second, 1)
    near(spent(world, job), idle=10, lost=10)


def test_preemption_loses_what_could_not_be_saved_and_only_that() -> None:
    for saves in (True, False):
        world = World({"s1": 1}, policy="fifo")
        job = trains(world, 1)
        world.pass_time(40)
        (worker,) = world.running(job)
        target = world.job(job)
        target.update(target=())
        _suspend(world, job)
        world.pass_time(5)
        if saves:
            world.report(worker, WorkerPhase.TRAINING, 1, 60, saved=60)
        world.exit(worker, 0 if saves else -9)
        world.pass_time(5)
        world.settle(job)
        told = spent(world, job)
        assert told.lost_gpu_s == pytest.approx(0 if saves else 40, abs=NEAR), world.story()
        assert told.used_gpu_s == pytest.approx(40 if saves else 0, abs=NEAR)


def _suspend(world: Any, job: str) -> None:
    from elasticd.controller.reconcile.saving import suspend

    suspend(world.machine.cluster, world.now, world.job(job))
    world.machine.cluster.planning.request()
    world.turn()


def test_gpus_that_are_kept_for_a_job_that_is_measured_are_idle() -> None:
    world = World({"s1": 4})
    job = trains(world, 4)
    before = spent(world, job)
    world.ask(Profile(job=job))
    world.settle(job, rounds=1)
    world.reap()
    at = world.now
    left = spent(world, job)
    world.pass_time(10)
    told = spent(world, job)
    assert len(world.job(job).record.target) == 2
    assert world.now - at == pytest.approx(10, abs=0.01)
    assert told.used_gpu_s - left.used_gpu_s == pytest.approx(20, abs=NEAR)
    assert told.idle_gpu_s - left.idle_gpu_s == pytest.approx(20, abs=NEAR)
    assert before.held_gpu_s < left.held_gpu_s


def test_a_job_that_is_over_holds_its_gpus_until_its_workers_have_ended() -> None:
    world = World({"s1": 2})
    job = trains(world, 2)
    world.ask(Cancel(job=job))
    world.pass_time(15)
    near(spent(world, job), idle=50)
    world.reap()
    world.pass_time(15)
    near(spent(world, job), idle=50)


# ------------------------------------------------------------------------------------------------------------- days and clocks


def test_a_job_that_trains_over_midnight_is_split_by_day() -> None:
    world = World({"s1": 1})
    world.now = 10 * DAY_S - 60.0
    world.turn()
    job = trains(world, 1)
    world.pass_time(100)
    days = by(world, UsageBy.DAY)
    near(days["1970-01-10"], used=50, idle=10)
    near(days["1970-01-11"], used=50)
    world.exit(world.running(job)[0], -9)
    days = by(world, UsageBy.DAY)
    near(days["1970-01-10"], lost=50, idle=10)
    near(days["1970-01-11"], lost=50)


def test_many_days_without_a_change_are_counted_when_they_are_asked_for() -> None:
    world = World({"s1": 1})
    trains(world, 1)
    world.now += 3 * DAY_S
    world.hello("s1")
    days = by(world, UsageBy.DAY)
    assert len(days) == 4
    assert sum(spent.held_gpu_s for spent in days.values()) == pytest.approx(3 * DAY_S + 10, abs=NEAR)


@pytest.mark.parametrize("by_s", [1e6, -500.0, 3600.0])
def test_a_clock_that_is_set_changes_nothing(by_s: float) -> None:
    world = World({"s1": 1})
    world.now = 5 * DAY_S
    world.turn()
    job = trains(world, 1)
    world.pass_time(100)
    world.now += by_s
    world.feed(ClockSet(by_s))
    world.hello("s1")
    world.turn()
    world.pass_time(10)
    near(spent(world, job), used=110, idle=10)


def test_a_clock_that_was_set_back_while_no_controller_ran_takes_nothing_away() -> None:
    world = World({"s1": 1})
    job = trains(world, 1)
    world.pass_time(100)
    world.exit(world.running(job)[0], -9)
    world.pass_time(30)
    world.settle(job)
    world.pass_time(50)
    before = spent(world, job)
    world.now -= 1000.0
    world.restart()
    world.pass_time(10)
    told = spent(world, job)
    assert told.held_gpu_s >= before.held_gpu_s - 51
    assert min(columns(told).values()) >= 0


@pytest.mark.parametrize("by_s", [1e5, -900.0])
@pytest.mark.parametrize("takes_place", [None, False, True])
@pytest.mark.parametrize("again_by_s", [0.0, -4000.0])
def test_a_clock_that_is_set_while_nothing_can_be_recorded_changes_nothing(
    by_s: float, takes_place: bool | None, again_by_s: float
) -> None:
    """`takes_place`: whether the failing commit was applied, with unknown outcome; None: it fails with a known outcome."""
    world, store = World({"s1": 1}), FaultyStore()
    job = trains(world, 1)
    world.pass_time(50)
    store.records = dict(world.store)
    before = world.job(job).attained_gpu_s(world.now)
    turn = Turn(store, lambda now, records: _again(world, records, now), world.now)
    store.fail = StoreUnavailable("the disk has failed", outcome_unknown=takes_place is not None)
    store.commits_anyway = takes_place is True
    world.now += by_s
    turn.take(world.now, ClockSet(by_s))
    turn.finish(world.now)
    assert turn.trouble
    assert not turn.clock_recorded
    world.now += 10 + again_by_s
    if again_by_s:
        turn.take(world.now, ClockSet(again_by_s))
    store.fail = None
    world.now += 10
    turn.finish(world.now)
    assert turn.clock_recorded
    found = turn.machine.cluster.jobs[world.job(job).id]
    assert account.advanced(found.record.gpu_account, world.now)[0].spent.held_gpu_s == pytest.approx(80, abs=NEAR)
    assert found.attained_gpu_s(world.now) - before == pytest.approx(20, abs=NEAR)
    assert (
        "for 20 s"
        in [event for event in turn.machine.cluster.history.events if event.kind is EventKind.STORE_BACK][-1].text
    )


def _again(world: Any, records: Any, now: float) -> Any:
    world.store, told, world.now = dict(records), world.now, now
    machine, world.now = world.new_machine(), told
    return machine


# ------------------------------------------------------------------------------------------------------ durability


def test_reports_outlive_controllers_and_jobs() -> None:
    world = World({"s1": 1}, keeping=Keeping(recent=0, ended=1, days=1))
    users = ("alice", "bob")
    for user in users:
        job = trains(world, 1, user=user)
        world.pass_time(100)
        world.restart()
        world.pass_time(20)
        world.ask(Cancel(job=job))
        world.reap()
    world.pass_time(5)
    world.now += 2 * DAY_S
    for _ in range(3):
        world.hello("s1")
        world.pass_time(700)
    world.restart()
    assert len(world.machine.cluster.jobs.archive) == 0
    found = by(world, UsageBy.USER)
    assert sorted(found) == ["alice", "bob"]
    for user in users:
        near(found[user], used=120, idle=10)
    assert by(world, UsageBy.JOB) == {}


def test_a_controller_that_was_away_counts_what_jobs_held_meanwhile() -> None:
    world = World({"s1": 1})
    job = trains(world, 1)
    world.now += 500
    world.restart()
    near(spent(world, job), used=500, idle=10)


def test_a_recovered_controller_reports_the_same() -> None:
    world = World({"s1": 2, "s2": 2})
    jobs = [trains(world, 2, name=name, user=name) for name in ("one", "two")]
    world.pass_time(30)
    world.exit(world.running(jobs[0])[0], -9)
    world.pass_time(5)
    other = world.new_machine()
    assert differences(world.machine.cluster, other.cluster) == ()
    assert durable(world.machine.cluster) == world.store
    before = world.machine.cluster.jobs.usage.by_user(0, 400, world.now)
    assert other.cluster.jobs.usage.by_user(0, 400, world.now) == before


def test_months_that_are_over_for_long_are_not_kept() -> None:
    world = World({"s1": 1}, keeping=Keeping(usage_days=40.0))
    world.now = 15 * DAY_S
    world.turn()
    job = trains(world, 1)
    world.ask(Cancel(job=job))
    world.reap()
    (key,) = [key for key in world.store if key.startswith(usage.PREFIX)]
    assert "1970-01" in key
    world.now += 20 * DAY_S
    for _ in range(2):
        world.hello("s1")
        world.pass_time(1300)
    assert key in world.store
    world.now += 40 * DAY_S
    for _ in range(2):
        world.hello("s1")
        world.pass_time(1300)
    assert key not in world.store


def test_very_many_users_in_a_month_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_USERS", 2)
    world = World({"s1": 1})
    for number in range(4):
        job = trains(world, 1, user=f"u{number}")
        world.ask(Cancel(job=job))
        world.reap()
    assert sorted(by(world, UsageBy.USER)) == [usage.OTHERS, "u0", "u1"]


def test_nothing_is_written_while_nothing_changes() -> None:
    world = World({"s1": 2})
    job = trains(world, 2)
    before = dict(world.store)
    for step in range(11, 40):
        world.report(world.roster(job)[0], WorkerPhase.TRAINING, 1, step)
        world.pass_time(1)
    changed = [key for key in world.store if world.store[key] != before.get(key)]
    assert not any(key.startswith(usage.PREFIX) for key in changed)


# ------------------------------------------------------------------------------------------------------------- reports


def test_a_report_of_a_user_has_only_his() -> None:
    world = World({"s1": 2})
    jobs = {user: trains(world, 1, user=user, name=f"of-{user}") for user in ("alice", "bob")}
    world.pass_time(10)
    assert list(by(world, UsageBy.USER, user="bob")) == ["bob"]
    assert list(by(world, UsageBy.JOB, user="bob")) == [jobs["bob"]]
    all_days, his = by(world, UsageBy.DAY), by(world, UsageBy.DAY, user="bob")
    assert 0 < his["1970-01-01"].held_gpu_s < all_days["1970-01-01"].held_gpu_s


def test_a_report_that_ends_before_it_begins_is_refused() -> None:
    world = World({"s1": 1})
    answer = world.ask(GetUsage(since_s=5 * DAY_S, until_s=4 * DAY_S))
    assert isinstance(answer, Refused)
    assert "before the first one" in answer.reason
    for bad in (float("nan"), -1.0, 1e300):
        assert isinstance(world.ask(GetUsage(since_s=bad)), Refused)
    assert isinstance(world.ask(GetUsage(by=UsageBy.DAY, after="yesterday")), Refused)


def test_any_user_may_see_all_reports() -> None:
    world = World({"s1": 1})
    trains(world, 1, user="alice")
    answer = world.ask(GetUsage(), who=Principal(role=Role.USER, name="bob"))
    assert isinstance(answer, UsageReport)
    assert [row.user for row in answer.rows] == ["alice"]


# ------------------------------------------------------------------------------------------------------------- arithmetic


@given(st.floats(0, 2e9), st.floats(0, 300 * DAY_S))
def test_days_divide_a_time_without_rest(since_s: float, lasts_s: float) -> None:
    parts = list(days_between(since_s, since_s + lasts_s))
    assert sum(seconds for _, seconds in parts) == pytest.approx(lasts_s, abs=1e-3)
    assert all(0 < seconds <= DAY_S for _, seconds in parts)
    assert [day for day, _ in parts] == sorted({day for day, _ in parts})


@given(st.integers(0, 2**32))
def test_columns_sum_up_to_what_was_held_whatever_moves(seed: int) -> None:
    rng = random.Random(seed)
    now, held_s = 1e6, 0.0
    one = Account(since_s=now)
    days: dict[tuple[int, account.Column], float] = {}
    for _ in range(40):
        gap_s = rng.choice((0.0, rng.uniform(0, 100), rng.uniform(0, 2 * DAY_S)))
        held_s += one.holds * gap_s
        now += gap_s
        short = account.spent_by(one, now)
        one, bookings = account.advanced(one, now)
        for column, gpu_s in account.columns(one.spent).items():
            assert account.columns(short)[column] == pytest.approx(gpu_s, abs=NEAR)
        match rng.randrange(6):
            case 0:
                one, more = account.joined(one)
            case 1:
                one, more = account.restarted(one)
            case 2:
                one, more = account.saved(one), []
            case 3:
                one, more = account.stood_still(one, rng.uniform(0, 200))
            case 4:
                one, more = account.died_in_vain(one, now - rng.uniform(0, gap_s or 1), now, 1)
            case _:
                more = []
        for day, column, gpu_s in (*bookings, *more):
            days[day, column] = days.get((day, column), 0.0) + gpu_s
        using, idling = rng.randrange(4), rng.randrange(4)
        one = account.mended(Account(**{**_fields(one), "using": using, "idling": idling}), now)
        assert min(columns(one.spent).values()) >= 0
        assert one.spent.held_gpu_s == pytest.approx(held_s, rel=1e-9, abs=1e-6)
    for column, gpu_s in columns(one.spent).items():
        booked = sum(value for (_, where), value in days.items() if where is column)
        assert booked == pytest.approx(gpu_s, rel=1e-9, abs=1e-5)


def _fields(one: Account) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def test_an_absurd_account_is_mended() -> None:
    nan = float("nan")
    absurd = Account(spent=GpuSeconds(used_gpu_s=nan), since_s=nan, using=-3, unsaved=(OnDay(day=-1, gpu_s=nan),))
    found = account.mended(absurd, 50.0)
    assert (found.spent, found.since_s, found.using, found.unsaved) == (GpuSeconds(), 50.0, 0, ())
    assert account.advanced(Account(since_s=0.0, using=1), 1e12)[0].spent == GpuSeconds()


def test_a_script_that_never_trains_and_fails_has_used_what_it_ran() -> None:
    world = World({"s1": 1})
    job = str(world.submit(job_spec(low=1, high=1)).id)
    world.pass_time(31)
    world.exit(world.running(job)[0], 3)
    assert world.job(job).record.phase is JobPhase.FAILED
    near(spent(world, job), used=30, idle=1)


def test_what_a_lost_server_ran_for_a_plain_command_is_lost() -> None:
    world = World({"s1": 1})
    job = str(world.submit(job_spec(low=1, high=1)).id)
    world.pass_time(31)
    world.exit(world.running(job)[0], None, "no memory", fault=Fault.KILLED)
    near(spent(world, job), lost=30, idle=1)


def test_a_job_that_has_to_join_starts_until_it_does() -> None:
    world = World({"s1": 1})
    job = str(world.submit(job_spec(low=1, high=1, must_join=True)).id)
    world.pass_time(31)
    near(spent(world, job), idle=31)
    world.exit(world.running(job)[0], -9)
    near(spent(world, job), lost=31)


def test_a_process_that_has_several_gpus_holds_each_of_them() -> None:
    world = World({"s1": 4})
    spec = job_spec(low=4, high=4, processes=Processes.PER_SERVER)
    job = str(world.submit(spec).id)
    world.pass_time(61)
    assert len(world.running(job)) == 1
    near(spent(world, job), used=240, idle=4)
