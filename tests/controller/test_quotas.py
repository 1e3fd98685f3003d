"""Quotas in a controller: owners get their GPUs back when other jobs shrink, and submissions beyond a bound are refused."""

from __future__ import annotations

from typing import Any

from elasticd.protocol.messages import (
    Cancel,
    EventKind,
    Forecast,
    GetJob,
    GetQuotas,
    PromiseState,
    QuotasFound,
    QuotaView,
    Refused,
    Scale,
    Scaled,
    Submit,
    Submitted,
)
from elasticd.protocol.model import Deadline, WorkerPhase
from elasticd.protocol.principals import Principal, Role
from elasticd.scheduler.quotas.terms import Group, Quota, Quotas
from elasticd.scheduler.scheduler import Stages

from .world import World, job_spec

ALICE, BOB = (Principal(role=Role.USER, name=name) for name in ("alice", "bob"))


def test_a_borrower_shrinks_without_a_restart_when_the_owner_comes() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=3), "bob": Quota(gpus=1)})
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    bobs = world.submit(job_spec("bobs", 1, 4), who=BOB)
    world.settle(bobs.id, 5)
    assert len(bobs.record.target) == 4
    hers = world.submit(job_spec("hers", 1, 4), who=ALICE)
    world.settle(bobs.id, 20)
    world.settle(hers.id, 5)
    assert (len(bobs.record.target), len(hers.record.target)) == (1, 3)
    assert bobs.record.restarts == 0


def test_one_job_more_than_a_quota_allows_is_refused_and_says_whose_it_is() -> None:
    quotas = Quotas(
        users={"alice": Quota(jobs=1)},
        groups={"vision": Group(members=("bob", "carol"), jobs=1)},
        default=Quota(jobs=2),
    )
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    world.submit(job_spec("one", 1, 1), who=ALICE)
    refused = world.ask(Submit(spec=job_spec("two", 1, 1)), "r-a", who=ALICE)
    assert isinstance(refused, Refused)
    assert "alice has 1 unfinished jobs already, and may have 1 (quotas)" in refused.reason
    world.submit(job_spec("one", 1, 1), who=BOB)
    refused = world.ask(Submit(spec=job_spec("two", 1, 1)), "r-c", who=Principal(role=Role.USER, name="carol"))
    assert isinstance(refused, Refused)
    assert "group vision has 1 unfinished jobs already, and may have 1 (quotas)" in refused.reason


def test_in_a_cluster_of_one_machine_jobs_count_for_the_user_whom_they_name() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=3, jobs=1), "bob": Quota(gpus=1)})
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    bobs = world.submit(job_spec("bobs", 1, 4, user="bob"))
    hers = world.submit(job_spec("hers", 1, 4, user="alice"))
    world.settle(bobs.id, 20)
    world.settle(hers.id, 5)
    assert (len(bobs.record.target), len(hers.record.target)) == (1, 3)
    refused = world.ask(Submit(spec=job_spec("two", 1, 1, user="alice")), "r-a")
    assert isinstance(refused, Refused)
    assert "alice has 1 unfinished jobs already" in refused.reason
    found = world.ask(GetQuotas(), "q")
    assert isinstance(found, QuotasFound)
    assert {each.name: each.used_gpus for each in found.quotas} == {"alice": 3, "bob": 1}


def test_jobs_with_deadlines_that_come_together_do_not_pass_the_bound() -> None:
    quota = Stages(quotas=Quotas(users={"alice": Quota(jobs=1)}))
    for world in (World({"s1": 4}, stages=quota), World({"s1": 4}, open_jobs_per_user=1)):
        _submit_two_at_once(world)


def _submit_two_at_once(world: Any) -> None:
    for name in ("r-1", "r-2"):
        spec = job_spec("due", 1, 4, max_steps=10, throughput={1: 1.0}, deadline=Deadline(in_s=600.0))
        world.ask(Submit(spec=spec), name, turn=False, who=ALICE)
    world.turn()
    first, second = world.answers["r-1"], world.answers["r-2"]
    assert not isinstance(first, Refused)
    assert isinstance(second, Refused)
    assert "alice has 1 unfinished jobs already" in second.reason


def _shown(world: Any, who: Principal = ALICE) -> dict[str, QuotaView]:
    found = world.ask(GetQuotas(), who=who)
    assert isinstance(found, QuotasFound)
    return {view.name: view for view in found.quotas}


def test_everybody_sees_who_has_borrowed_whose_gpus() -> None:
    quotas = Quotas(
        users={"alice": Quota(gpus=3, jobs=5), "dora": Quota(jobs=2)},
        groups={"vision": Group(members=("carol", "dora"), gpus=2, most_gpus=4)},
    )
    world = World({"s1": 8}, stages=Stages(quotas=quotas))
    assert _shown(world)["alice"] == QuotaView(name="alice", gpus=3, most_jobs=5)
    bobs = world.submit(job_spec("bobs", 1, 8), who=BOB)
    doras = world.submit(job_spec("doras", 1, 1), who=Principal(role=Role.USER, name="dora"))
    for job in (bobs, doras):
        world.settle(job.id, 5)
    shown = _shown(world, who=BOB)
    assert list(shown) == ["vision", "alice", "dora", "bob"]
    assert shown["bob"] == QuotaView(name="bob", used_gpus=7, borrowed_gpus=7, jobs=1)
    assert shown["dora"] == QuotaView(name="dora", group="vision", used_gpus=1, jobs=1, most_jobs=2)
    group = QuotaView(name="vision", members=("carol", "dora"), gpus=2, most_gpus=4, used_gpus=1, lent_gpus=1, jobs=1)
    assert shown["vision"] == group
    assert shown["alice"] == QuotaView(name="alice", gpus=3, lent_gpus=3, most_jobs=5)


def test_where_there_are_no_quotas_none_are_shown() -> None:
    world = World({"s1": 4})
    world.submit(job_spec("bobs", 1, 4), who=BOB)
    found = world.ask(GetQuotas(), who=BOB)
    assert (found.quotas, found.total_gpus) == ((), 4)


def _settled(world: Any, *jobs: Any) -> list[int]:
    for job in jobs:
        world.settle(job.id, 5)
    return [len(job.record.target) for job in jobs]


def test_a_fixed_job_does_not_borrow_and_its_owner_is_told_why() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=3), "bob": Quota(gpus=1)})
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    gang = world.submit(job_spec("gang", 2, 2, restarts=0), who=BOB)
    small = world.submit(job_spec("small", 1, 1, restarts=0), who=BOB)
    world.pass_time(3)
    assert (len(gang.record.target), len(small.record.target)) == (0, 1)
    assert "waits for GPUs that nobody else is guaranteed" in world.ask(GetJob(job=gang.id), who=BOB).job.reason
    hers = world.submit(job_spec("hers", 1, 4), who=ALICE)
    assert _settled(world, hers) == [3]
    world.pass_time(700)
    assert not gang.record.target, "nothing is held for it either"
    assert len(hers.record.target) == 3


def test_a_user_who_has_given_back_to_quotas_gets_it_again_beside_a_gang() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=2), "bob": Quota(gpus=1)})
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    gang = world.submit(job_spec("gang", 1, 1, restarts=0), who=BOB)
    large = world.submit(job_spec("large", 3, 3, restarts=0), who=Principal(role=Role.USER, name="carol"))
    carols = world.submit(job_spec("carols", 1, 4), who=Principal(role=Role.USER, name="carol"))
    world.pass_time(3)
    assert len(gang.record.target) == 1
    assert _settled(world, carols) == [3]
    world.pass_time(700)
    hers = world.submit(job_spec("hers", 1, 4), who=ALICE)
    world.settle(carols.id, 20)
    assert _settled(world, hers, carols) == [2, 1]
    assert not large.record.target


SUBLINEAR = {1: 1.0, 2: 1.8, 4: 3.0}


def _due(name: str, in_s: float, steps: int = 100, soft: bool = False, **changes: Any) -> Any:
    """100 steps take 100 s on one GPU, and more GPU-seconds on more GPUs."""
    deadline = Deadline(in_s=in_s, soft=soft)
    return job_spec(name, **{"throughput": SUBLINEAR, "max_steps": steps, "deadline": deadline, **changes})


def test_a_deadline_beyond_what_may_be_promised_is_refused_with_what_would_fit() -> None:
    hours = 240 / 3600
    world = World({"s1": 4}, stages=Stages(quotas=Quotas(users={"alice": Quota(promised_gpu_hours=hours)})))
    first = world.submit(_due("first", in_s=600.0), who=ALICE)
    held = _shown(world)["alice"]
    assert 100 / 3600 <= held.promised_gpu_hours <= 110 / 3600
    assert held.most_promised_gpu_hours == hours
    refused = world.ask(Submit(spec=_due("second", in_s=60.0)), "r-2", who=ALICE)
    assert isinstance(refused, Refused)
    assert "GPU-hours, and alice is promised 0.0" in refused.reason
    assert "(promised_gpu_hours); any of these would fit: a deadline in " in refused.reason
    assert " steps; --soft runs it as it can" in refused.reason
    told = world.ask(Forecast(spec=_due("second", in_s=60.0)), "f", who=ALICE)
    assert told.reason.endswith(refused.reason.partition(": ")[2])
    fewer = world.ask(Forecast(spec=_due("second", in_s=60.0, steps=told.offer.steps)), "g", who=ALICE)
    assert not fewer.reason
    assert isinstance(world.ask(Submit(spec=_due("bobs", in_s=60.0)), "r-3", who=BOB), Submitted)
    assert isinstance(world.ask(Submit(spec=_due("soft", in_s=60.0, soft=True)), "r-4", who=ALICE), Submitted)
    world.ask(Cancel(job=first.id), who=ALICE)
    assert isinstance(world.ask(Submit(spec=_due("again", in_s=300.0)), "r-5", who=ALICE), Submitted)


def test_deadlines_that_come_together_and_those_of_other_members_count_for_the_group() -> None:
    group = Group(members=("alice", "bob"), promised_gpu_hours=150 / 3600)
    world = World({"s1": 4}, stages=Stages(quotas=Quotas(groups={"vision": group})))
    for name, who in (("r-1", ALICE), ("r-2", BOB)):
        world.ask(Submit(spec=_due(name, in_s=900.0)), name, turn=False, who=who)
    world.turn()
    assert isinstance(world.answers["r-1"], Submitted)
    assert isinstance(world.answers["r-2"], Refused)
    assert "group vision is promised 0.0" in world.answers["r-2"].reason
    world.restart()
    refused = world.ask(Submit(spec=_due("later", in_s=900.0)), "r-3", who=BOB)
    assert isinstance(refused, Refused)


def test_a_deadline_that_proves_beyond_the_bound_is_not_promised_and_the_job_goes_on() -> None:
    world = World({"s1": 4}, stages=Stages(quotas=Quotas(default=Quota(promised_gpu_hours=50 / 3600))))
    job = world.submit(_due("unknown", in_s=900.0, max_steps=None), who=ALICE)
    assert job.record.promise is PromiseState.PROVISIONAL
    world.settle(job.id, 1)
    generation = job.record.committed
    for worker in world.roster(job.id):
        world.report(worker, WorkerPhase.TRAINING, generation, 1, total_steps=100)
    world.pass_time(40)
    assert job.record.promise is PromiseState.NONE
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.ENDANGERED]
    assert len(told) == 1
    assert "its deadline cannot be promised: its deadline takes 0.0" in told[0]
    offer = job.planned.offer
    assert 0 < offer.steps < job.steps_left
    assert f"; what would save it: at most {offer.steps} steps of the " in told[0]
    fits = _due("fits", in_s=job.deadline_s - world.now, max_steps=offer.steps)
    assert not world.ask(Forecast(spec=fits), "f", who=ALICE).reason
    world.pass_time(100)
    assert job.record.promise is PromiseState.NONE
    assert job.record.target


def test_a_share_by_hand_takes_nothing_that_others_are_guaranteed_but_for_operators() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=2), "bob": Quota(gpus=1, most_gpus=2)})
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    bobs = world.submit(job_spec("bobs", 1, 4), who=BOB)
    world.settle(bobs.id, 5)
    refused = world.ask(Scale(job=bobs.id, share=3), "s-3", who=BOB)
    assert isinstance(refused, Refused)
    assert "cannot keep 3 GPUs by hand: 2 at most, beside what others are guaranteed (quotas)" in refused.reason
    assert isinstance(world.ask(Scale(job=bobs.id, share=2), "s-2", who=BOB), Scaled)
    gang = world.submit(job_spec("gang", 1, 1, restarts=0), who=Principal(role=Role.USER, name="carol"))
    world.pass_time(3)
    assert not gang.record.target, "what is kept by hand counts"
    hers = world.submit(job_spec("hers", 1, 4), who=ALICE)
    for job in (bobs, hers):
        world.settle(job.id, 10)
    assert (len(hers.record.target), len(bobs.record.target)) == (2, 2)
    operator = Principal(role=Role.OPERATOR, name="olga")
    assert isinstance(world.ask(Scale(job=bobs.id, share=3), "s-4", who=operator), Scaled)
    assert isinstance(world.ask(Scale(job=bobs.id, share=1), "s-5", who=BOB), Scaled)
