"""Deadlines: admitted, refused with alternatives that would hold, provisional, endangered, and announced before they are
missed.
"""

from __future__ import annotations

import pytest

from elasticd.controller.jobs.throughput import fingerprint
from elasticd.protocol.messages import (
    Cancel,
    EventKind,
    Forecast,
    Forecasted,
    GetJob,
    PromiseState,
    Refused,
    Submit,
    Submitted,
)
from elasticd.protocol.model import (
    Deadline,
    Gpu,
    GpuKind,
    JobPhase,
    Server,
    ServerId,
    Steady,
    Until,
    WorkerPhase,
)
from elasticd.scheduler.speedup_curve import Measured

from .world import Agent, World, job_spec

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}  # steps per second


def spec(name: str = "digits", in_s: float = 100.0, steps: int = 100, soft: bool = False, **changes):
    """100 steps take 100 s on one GPU."""
    deadline = Deadline(in_s=in_s, soft=soft)
    return job_spec(name, **{"throughput": LINEAR, "max_steps": steps, "deadline": deadline, **changes})


def promise(world, job):
    return world.ask(GetJob(job=job.id)).job.promise


def train(world, job, step: int, step_s: float | None = None) -> None:
    """The job reports this step, with its present GPUs. step_s: its reported step time."""
    world.settle(job.id, max(0, step))
    generation = job.record.committed
    steady = Steady(generation=generation, step_s=step_s, steps=32) if step_s is not None else None
    for worker in world.roster(job.id):
        world.report(worker, WorkerPhase.TRAINING, generation, step, steady=steady)


def test_a_deadline_that_there_is_room_for_is_promised_with_its_plan() -> None:
    world = World({"s1": 4})
    answer = world.ask(Submit(spec=spec(in_s=60.0)))
    assert isinstance(answer, Submitted)
    told = answer.promise
    assert (told.state, told.deadline_s, told.soft) == (PromiseState.HOLDS, world.now + 60.0, False)
    assert told.planned_s <= told.deadline_s
    assert told.least_gpus == 2
    assert "deadline in 1m00s, promised" in world.story()


def test_one_that_there_is_no_room_for_is_refused_with_what_would_hold() -> None:
    world = World({"s1": 4})
    first = world.submit(spec("first", in_s=50.0, steps=110))
    refused = world.ask(Submit(spec=spec("second", in_s=50.0)))
    assert isinstance(refused, Refused)
    assert "second is not admitted: its deadline in 50s does not hold" in refused.reason
    for part in ("a deadline in 1m", "at most ", " steps", " GPUs more in the cluster"):
        assert part in refused.reason
    assert promise(world, first).state is PromiseState.HOLDS
    assert len(world.machine.cluster.jobs) == 1


def test_what_a_refusal_offers_would_be_admitted() -> None:
    world = World({"s1": 4})
    world.submit(spec("first", in_s=50.0, steps=110))
    told = world.ask(Forecast(spec=spec("second", in_s=50.0)))
    assert isinstance(told, Forecasted)
    assert told.reason
    offer = told.offer
    later = Deadline(at_s=offer.deadline_s)
    assert not world.ask(Forecast(spec=spec("second", deadline=later))).reason
    assert not world.ask(Forecast(spec=spec("second", in_s=50.0, steps=offer.steps))).reason
    assert offer.more_gpus is not None
    more = World({"s1": 4 + offer.more_gpus})
    more.submit(spec("first", in_s=50.0, steps=110))
    assert not more.ask(Forecast(spec=spec("second", in_s=50.0))).reason


def test_submissions_of_one_turn_are_decided_about_together() -> None:
    world = World({"s1": 4})
    world.ask(Submit(spec=spec("large", in_s=50.0, steps=150)), "r-large", turn=False)
    world.ask(Submit(spec=spec("small", in_s=50.0, steps=60)), "r-small", turn=False)
    assert world.machine.cluster.jobs == {}
    world.turn()
    assert isinstance(world.answers["r-large"], Refused)
    assert world.answers["r-small"].promise.state is PromiseState.HOLDS
    assert isinstance(world.ask(Submit(spec=spec("small", in_s=50.0, steps=60)), "r-small"), Submitted)
    assert len(world.machine.cluster.jobs) == 1


def test_a_forecast_changes_nothing() -> None:
    world = World({"s1": 4})
    before = dict(world.store)
    told = world.ask(Forecast(spec=spec()))
    assert (told.reason, told.promise.state) == ("", PromiseState.HOLDS)
    assert world.machine.cluster.jobs == {}
    assert dict(world.store) == before


def test_consent_is_asked_of_jobs_of_lower_priority_alone() -> None:
    world = World({"s1": 4})
    low = world.submit(spec("low", in_s=50.0, steps=140, priority=-10))
    told = world.ask(Forecast(spec=spec("high", in_s=50.0, priority=10)))
    assert told.offer.consent == (low.id,)
    assert world.ask(Forecast(spec=spec("lower", in_s=50.0, priority=-20))).offer.consent == ()


def test_a_promised_job_gets_its_share_from_those_without_deadlines() -> None:
    world = World({"s1": 4})
    other = world.submit(job_spec("other", 1, 4, throughput=LINEAR))
    train(world, other, 5)
    assert len(other.record.target) == 4
    job = world.submit(spec("due", in_s=40.0, steps=90))
    world.turn()
    assert len(job.record.target) >= 3
    assert len(other.record.target) >= 1
    assert "gives GPUs to jobs with deadlines: due" in world.ask(GetJob(job=other.id)).job.reason


def test_a_promised_job_that_has_time_waits_and_says_until_when() -> None:
    world = World({"s1": 1})
    other = world.submit(job_spec("other", 1, 1, max_steps=200, throughput={1: 1.0}))
    train(world, other, 5, 1.0)
    job = world.submit(spec("due", in_s=1000.0, steps=100, low=1, high=1, throughput={1: 1.0}))
    world.turn()
    assert (len(other.record.target), len(job.record.target)) == (1, 0)
    assert promise(world, job).state is PromiseState.HOLDS
    reason = world.ask(GetJob(job=job.id)).job.reason
    assert reason == "starts in 15 min at the latest, which is early enough for its deadline"
    submitted_s = world.now
    while other.record.target and world.now < submitted_s + 1000.0:
        world.pass_time(5.0)
    assert submitted_s + 800.0 < world.now < submitted_s + 885.0, (
        "it has waited long; of the rest it keeps a tenth in reserve"
    )
    assert promise(world, job).state is PromiseState.HOLDS


def test_a_soft_deadline_is_never_refused() -> None:
    world = World({"s1": 2})
    job = world.submit(spec(in_s=10.0, soft=True))
    assert promise(world, job).state is PromiseState.NONE
    other = world.submit(spec("other", in_s=1000.0, soft=True))
    world.turn()
    assert promise(world, other).state is PromiseState.HOLDS


def test_a_job_that_nothing_is_known_of_is_promised_provisionally_and_then_for_good() -> None:
    world = World({"s1": 4})
    job = world.submit(spec(in_s=1000.0, throughput={}))
    told = promise(world, job)
    assert told.state is PromiseState.PROVISIONAL
    assert told.waits_for == "its throughput"
    assert world.now < told.final_by_s < told.deadline_s
    train(world, job, 1)
    assert promise(world, job).state is PromiseState.PROVISIONAL
    for step in (40, 60, 80):  # with four GPUs, then two, then one
        train(world, job, step, 1.0 / len(job.record.target))
    world.pass_time(1.0)
    assert promise(world, job).state is PromiseState.HOLDS
    assert world.kinds(job.id).count(EventKind.PROMISED) == 1


def test_a_provisional_promise_that_proves_wrong_is_told_and_the_job_goes_on() -> None:
    world = World({"s1": 1})
    job = world.submit(spec(in_s=100.0, steps=10_000, low=1, high=1, throughput={}))
    train(world, job, 40, 1.0)
    world.pass_time(1.0)
    told = promise(world, job)
    assert told.state is PromiseState.NONE
    assert "its deadline cannot be promised: the GPUs that may be promised do not end it in time" in world.story()
    assert told.saved_by in world.story(), "no promises to other jobs are in its way"
    assert (told.offer.deadline_s > told.deadline_s, told.offer.more_gpus) == (True, None)
    assert job.record.phase is JobPhase.RUNNING


def test_a_job_whose_deadline_proves_wrong_is_told_what_would_save_it() -> None:
    world = World({"s1": 4})
    first = world.submit(spec("first", in_s=1000.0, steps=900, low=1, high=1))
    train(world, first, 5)
    job = world.submit(spec("second", in_s=1000.0, steps=3500, throughput={}, command=("python", "new.py")))
    train(world, job, 40, 1.0 / len(job.record.target))
    told = promise(world, job)
    assert told.state is PromiseState.NONE
    (text,) = [event.text for event in world.machine.cluster.history.events if "cannot be promised" in event.text]
    left = job.steps_left
    assert told.offer.deadline_s > told.deadline_s
    assert 0 < told.offer.steps < left
    assert told.offer.more_gpus >= 1
    assert told.offered_s <= world.now
    for part in ("a deadline in ", f"at most {told.offer.steps:,} steps of the 3,459 left", "more in the cluster"):
        assert part in text
    later = Deadline(at_s=told.offer.deadline_s)
    rest = job_spec("rest", throughput=LINEAR, max_steps=int(left), deadline=later)
    assert not world.ask(Forecast(spec=rest)).reason, "the admission promises the rest of it by then"
    rest = spec("rest", steps=told.offer.steps, in_s=job.deadline_s - world.now)
    assert not world.ask(Forecast(spec=rest)).reason, "and so much of it in time"
    world.restart()
    world.settle(job.id, 41)
    again = promise(world, world.job(job.id))
    assert (again.state, again.offer.more_gpus) == (PromiseState.NONE, told.offer.more_gpus)


def test_more_gpus_than_were_told_to_save_a_deadline_save_it() -> None:
    world = World({"s1": 4})
    first = world.submit(spec("first", in_s=1000.0, steps=900, low=1, high=1))
    train(world, first, 5)
    job = world.submit(spec("second", in_s=1000.0, steps=3500, throughput={}, command=("python", "new.py")))
    train(world, job, 40, 1.0 / len(job.record.target))
    more = promise(world, job).offer.more_gpus
    gpus = tuple(Gpu(index=index, kind=GpuKind.CPU, name="CPU slot") for index in range(more))
    world.agents[ServerId("s2")] = Agent(Server(server=ServerId("s2"), address="127.0.0.1", gpus=gpus))
    world.hello("s2")
    world.turn()
    assert promise(world, job).state is PromiseState.HOLDS


def test_a_provisional_deadline_takes_nothing_from_others_while_it_is_not_known_to_hold() -> None:
    """It needs all GPUs, and may be hopeless: the running jobs keep training."""
    world = World({"s1": 4})
    other = world.submit(job_spec("other", 4, 4, throughput=LINEAR, max_steps=1000))
    train(world, other, 5, 0.25)
    job = world.submit(spec(in_s=500.0, low=4, high=4, throughput={}, command=("python", "new.py")))
    world.pass_time(1.0)
    assert promise(world, job).state is PromiseState.PROVISIONAL
    assert (len(other.record.target), len(job.record.target)) == (4, 0)
    assert other.record.phase is JobPhase.RUNNING


def test_a_deadline_that_proves_hopeless_takes_nothing_from_others() -> None:
    world = World({"s1": 4})
    job = world.submit(spec(in_s=100.0, steps=100_000, throughput={}))
    for step in (20, 40, 60, 80):
        train(world, job, step, 1.0 / len(job.record.target))
    world.pass_time(1.0)
    assert promise(world, job).state is PromiseState.NONE
    other = world.submit(job_spec("other", 1, 4, throughput=LINEAR, max_steps=1000))
    world.turn()
    assert len(other.record.target) >= 2, "as if neither had a deadline"


def test_a_job_that_does_not_tell_its_length_is_provisional() -> None:
    world = World({"s1": 4})
    job = world.submit(spec(in_s=1000.0, max_steps=None))
    told = promise(world, job)
    assert (told.state, told.final_by_s) == (PromiseState.PROVISIONAL, None)
    assert told.waits_for.startswith("its length")


CONCAVE = {1: 4.9, 2: 9.6, 4: 18.0}


def beside_another(world, in_s: float, **changes):
    """900 steps beside 900 that are promised in 120 s; feasible in 57 s at the least."""
    return spec("second", in_s=in_s, steps=900, throughput=CONCAVE, **changes)


def test_what_an_earlier_deadline_would_be_promised_a_later_one_is_promised_too() -> None:
    world = World({"s1": 4})
    world.submit(spec("first", in_s=120.0, steps=900, throughput=CONCAVE))
    held = []
    for in_s in range(50, 125, 5):
        answer = world.ask(Forecast(spec=beside_another(world, float(in_s))))
        held.append(not answer.reason)
        if answer.reason:
            assert answer.offer.deadline_s > world.now + in_s
        else:
            assert answer.promise.planned_s <= world.now + in_s
    assert held == sorted(held), held
    assert not held[0]
    assert held[-1]


@pytest.mark.parametrize("in_s", [57.0, 75.0, 110.0, 130.0])
def test_a_promise_given_while_another_job_starts_holds_at_the_next_decision(in_s: float) -> None:
    world = World({"s1": 4})
    first = world.submit(spec("first", in_s=120.0, steps=900, throughput=CONCAVE))
    second = world.submit(beside_another(world, in_s))
    assert (promise(world, first).state, promise(world, second).state) == (PromiseState.HOLDS, PromiseState.HOLDS)
    world.pass_time(1.0)
    assert promise(world, second).state is PromiseState.HOLDS
    assert EventKind.ENDANGERED not in world.kinds(second.id)


def test_a_job_that_is_planned_to_end_before_its_deadline_is_judged_by_its_deadline() -> None:
    world = World({"s1": 4})
    first = world.submit(spec("first", in_s=120.0, steps=900, throughput=CONCAVE))
    second = world.submit(beside_another(world, 65.0))
    assert second.planned_by_s < second.deadline_s
    assert promise(world, second).state is PromiseState.HOLDS
    world.restart()
    second = world.job(second.id)
    assert second.planned_by_s < second.deadline_s, "it is recorded"
    world.ask(Cancel(job=first.id))
    world.pass_time(6.0)  # the earlier deadline has passed, and no job is in the way any more
    assert promise(world, second).state is PromiseState.HOLDS
    assert EventKind.ENDANGERED not in world.kinds(second.id)


def reported(step: int) -> float:
    """An accuracy that is 0.9 after 180 steps."""
    return 1.0 - 1.0 / (0.05 * step + 1.0)


def train_and_report(world, job, steps) -> None:
    for step in steps:
        train(world, job, step - 1)
        leader = world.roster(job.id)[0]
        world.report(leader, WorkerPhase.TRAINING, job.record.committed, step - 1, metrics={"accuracy": reported(step)})


def test_a_job_that_trains_until_an_accuracy_is_as_long_as_its_reports_suggest() -> None:
    world = World({"s1": 4})
    until = Until(metric="accuracy", bound=0.9)
    job = world.submit(spec(in_s=1000.0, max_steps=None, until=until))
    assert promise(world, job).waits_for == "its length (some reports of accuracy, or max_steps)"
    train_and_report(world, job, range(10, 50, 10))
    assert promise(world, job).state is PromiseState.PROVISIONAL
    train_and_report(world, job, range(50, 90, 10))
    told = promise(world, job)
    assert told.state is PromiseState.HOLDS
    length = world.ask(GetJob(job=job.id)).job.length
    assert length.steps == pytest.approx(180, rel=0.05)
    assert length.by_reports == "accuracy >= 0.9"
    world.restart()
    assert world.job(job.id).expected_steps == length.steps, "it is recorded"


def test_what_its_reports_suggest_is_no_more_than_its_loop_or_its_file_says() -> None:
    world = World({"s1": 4})
    until = Until(metric="accuracy", bound=0.9)
    short = world.submit(spec("short", in_s=1000.0, steps=100, until=until))
    long = world.submit(spec("long", in_s=1000.0, steps=900, until=until))
    assert {promise(world, job).state for job in (short, long)} == {PromiseState.HOLDS}, "by the most that it can take"
    for job in (short, long):
        train_and_report(world, job, range(10, 90, 10))
    assert short.told_steps == 100
    assert long.told_steps == pytest.approx(180, rel=0.05)


def test_a_job_that_goes_on_beyond_what_its_reports_suggest_is_as_long_as_it_was_told() -> None:
    world = World({"s1": 4})
    job = world.submit(spec(in_s=1000.0, steps=900, until=Until(metric="accuracy", bound=0.5)))
    train_and_report(world, job, range(5, 45, 5))
    assert job.expected_steps is None, "0.5 came after 20 steps"
    assert job.told_steps == 900


def test_a_promise_that_becomes_impossible_is_told_before_it_is_broken() -> None:
    world = World({"s1": 2, "s2": 2})
    job = world.submit(spec(in_s=50.0, steps=160))
    train(world, job, 5)
    assert promise(world, job).state is PromiseState.HOLDS
    world.agents["s2"].connected = False
    world.pass_time(20.0)
    told = promise(world, job)
    assert told.state is PromiseState.BREAKS
    assert world.now < told.deadline_s < told.planned_s
    assert "of the 154 steps left" in told.saved_by
    assert EventKind.ENDANGERED in world.kinds(job.id)
    assert "its deadline will be missed, as things are" in world.story()


def test_a_job_that_falls_behind_unnoticed_is_told_before_its_deadline() -> None:
    world = World({"s1": 1})
    job = world.submit(spec(in_s=120.0, low=1, high=1))
    train(world, job, 2)
    for _ in range(11):
        world.pass_time(10.0)
    assert world.now < job.deadline_s
    world.pass_time(job.deadline_s - world.now - 0.2)
    assert world.now < job.deadline_s
    assert promise(world, job).state is PromiseState.BREAKS


def test_another_controller_knows_what_was_promised_and_tells_nothing_twice() -> None:
    world = World({"s1": 4})
    job = world.submit(spec(in_s=60.0))
    train(world, job, 5)
    before = world.kinds(job.id).count(EventKind.PROMISED)
    world.restart()
    world.settle(job.id, 6)
    again = world.job(job.id)
    assert again.record.promise is PromiseState.HOLDS
    assert promise(world, again).planned_s is not None
    assert world.kinds(job.id).count(EventKind.PROMISED) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"in_s": 60.0, "low": 4, "high": 4, "restarts": 0}, "does not call elastic.join"),
        ({"deadline": Deadline(at_s=1.0)}, "its deadline has passed"),
    ],
)
def test_what_cannot_be_promised_is_refused_with_the_reason(changes, words) -> None:
    world = World({"s1": 4})
    refused = world.ask(Submit(spec=spec(**changes)))
    assert isinstance(refused, Refused)
    assert words in refused.reason


TYPES = {"s1": ("NVIDIA A100", 80 << 30), "s2": ("Tesla V100", 32 << 30)}


def test_a_promise_takes_gpus_of_one_type_that_the_job_may_use() -> None:
    world = World({"s1": 4, "s2": 4}, kinds=TYPES)
    fills = {"in_s": 50.0, "steps": 150}
    first = world.submit(spec("first", **fills, gpu_types=("A100",)))
    refused = world.ask(Submit(spec=spec("second", **fills, gpu_memory_bytes=80 << 30)))
    assert isinstance(refused, Refused), "V100s do not help"
    assert "does not hold" in refused.reason
    other = world.submit(spec("other", **fills))
    for job, servers in ((first, {"s1"}), (other, {"s2"})):
        train(world, job, 5)
        assert promise(world, job).state is PromiseState.HOLDS
        assert {worker.gpu.server for worker in job.workers} == servers


@pytest.mark.parametrize(("v100", "state"), [(None, None), (0.5, None), (1.0, PromiseState.HOLDS)])
def test_a_type_is_promised_with_the_throughput_that_was_measured_there(v100, state) -> None:
    """The A100s are promised already. v100: steps per second of a V100, as earlier jobs were measured; None: unknown."""
    world = World({"s1": 4, "s2": 4}, kinds=TYPES)
    asks = spec("asks", in_s=50.0, steps=150, throughput={})
    for name, rate in (("NVIDIA A100", 1.0), ("Tesla V100", v100)):
        measured = [
            Measured(share=share, servers=1, gpu=name, recent=(share * rate,), times=1, at_s=world.now)
            for share in (1, 2, 4)
            if rate is not None
        ]
        world.machine.cluster.experience.throughput.note(fingerprint(asks), measured, world.now)
    world.submit(spec("first", in_s=50.0, steps=150, gpu_types=("A100",)))
    answer = world.ask(Submit(spec=asks))
    assert isinstance(answer, Submitted if state is not None else Refused)
    if state is not None:
        assert answer.promise.state is state
        world.settle(answer.job, 1)
        assert {worker.gpu.server for worker in world.job(answer.job).workers} == {"s2"}


def test_a_job_with_gpus_per_server_keeps_its_servers_and_its_promise() -> None:
    world = World({"s1": 2, "s2": 2, "s3": 2})
    job = world.submit(spec(in_s=60.0, low=2, high=4, gpus_per_server=1))
    train(world, job, 5)
    assert (promise(world, job).state, promise(world, job).least_gpus) == (PromiseState.HOLDS, 2)
    assert len({worker.gpu.server for worker in job.workers}) == 2
    shares = {len(job.workers)}
    others = [world.submit(spec(name, in_s=400.0)) for name in ("a", "b")]
    for step in (10, 15, 20):
        train(world, job, step)
        shares.add(len(job.workers))
    assert shares == {2}
    assert all(promise(world, one).state is PromiseState.HOLDS for one in (job, *others))


def test_a_job_that_may_use_a_part_of_a_types_gpus_is_refused_with_the_reason() -> None:
    world = World({"s1": 4, "s2": 4}, kinds={"s1": ("A100", 80 << 30), "s2": ("A100", 40 << 30)})
    refused = world.ask(Submit(spec=spec(in_s=60.0, gpu_memory_bytes=80 << 30)))
    assert isinstance(refused, Refused)
    assert "GPUs of one type, of which the job may use all" in refused.reason


def test_under_a_policy_that_interrupts_nobody_nothing_is_promised() -> None:
    world = World({"s1": 4}, policy="fifo")
    refused = world.ask(Submit(spec=spec()))
    assert isinstance(refused, Refused)
    assert "the policy fifo keeps no deadlines" in refused.reason


def test_a_job_that_is_over_has_no_promise_any_more() -> None:
    world = World({"s1": 1})
    job = world.submit(spec(low=1, high=1, in_s=1000.0))
    train(world, job, 99)
    for worker in world.roster(job.id):
        world.report(worker, WorkerPhase.FINISHED, job.record.committed, 99)
        world.exit(worker, 0)
    assert job.record.phase is JobPhase.FINISHED
    assert promise(world, job) is None
