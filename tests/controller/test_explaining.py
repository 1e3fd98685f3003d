"""Explanations of a job's share; each remedy that they suggest is carried out, and must have the stated effect."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from elasticd.controller.inbound.worker_ends import worker_ended
from elasticd.controller.reconcile.causes import why_gone
from elasticd.protocol.messages import (
    Cancel,
    CordonServer,
    EndLoan,
    Explanation,
    GetJob,
    GpusLent,
    LendGpus,
    Refused,
    Remedy,
    Scale,
    SetPolicy,
    Submit,
    UncordonServer,
)
from elasticd.protocol.model import (
    CordonKind,
    Deadline,
    Fault,
    Gpu,
    GpuRange,
    JobPhase,
    Server,
    ServerId,
    Severity,
    Trouble,
)
from elasticd.protocol.principals import LOCAL_OPERATOR, Principal, Role
from elasticd.protocol.texts import RELEASED
from elasticd.scheduler.quotas.terms import Quota, Quotas
from elasticd.scheduler.scheduler import Stages

from .world import Agent, World, job_spec

ALICE, BOB = (Principal(role=Role.USER, name=name) for name in ("alice", "bob"))
Situation = Callable[[], tuple[Any, Any]]  # a test cluster, and the job in question


def explained(world: Any, job: Any, who: Principal = LOCAL_OPERATOR) -> Explanation:
    store, events, targets = dict(world.store), world.story(), _targets(world)
    found = world.ask(GetJob(job=job.id, explain=True), who=who).explanation
    assert isinstance(found, Explanation)
    assert (world.store, world.story(), _targets(world)) == (store, events, targets), "whoever asks changes nothing"
    return found


def _targets(world: Any) -> dict[str, Any]:
    return {job.id: job.record for job in world.machine.cluster.jobs.values()}


def started(world: Any, spec: Any, who: Principal = LOCAL_OPERATOR) -> Any:
    """A training job, and a resizable cluster around it; a job of fixed size runs as a gang."""
    job = world.submit(spec, who=who)
    world.turn()
    for _ in range(4):
        _go_on(world)
    return job


def gang(name: str, gpus: int) -> Any:
    return job_spec(name, gpus, gpus, restarts=0)


# -- situations: each builds the same cluster every time


def behind_gangs() -> tuple[Any, Any]:
    world = World({"s1": 4, "s2": 4})
    started(world, gang("one", 3))
    started(world, gang("two", 2))
    started(world, job_spec("elastic", 1, 4))
    return world, world.submit(job_spec("large", 4, 4))


def behind_the_first_under_fifo() -> tuple[Any, Any]:
    world = World({"s1": 4}, policy="fifo")
    started(world, job_spec("runs", 2, 2))
    world.submit(job_spec("head", 4, 4))
    return world, world.submit(job_spec("last", 2, 2))


def beside_a_share_by_hand() -> tuple[Any, Any]:
    world = World({"s1": 4})
    held = started(world, job_spec("held", 1, 4))
    world.ask(Scale(job=held.id, share=4))
    world.settle(held.id, 20)
    return world, world.submit(job_spec("waits", 1, 2))


def with_its_own_share_by_hand() -> tuple[Any, Any]:
    world = World({"s1": 4})
    job = started(world, job_spec("held", 1, 4))
    world.ask(Scale(job=job.id, share=1))
    world.settle(job.id, 20)
    return world, job


def shrunk_by_another() -> tuple[Any, Any]:
    world = World({"s1": 4})
    job = started(world, job_spec("first", 1, 4))
    started(world, job_spec("second", 1, 4))
    return world, job


def without_lent_and_excluded_gpus() -> tuple[Any, Any]:
    world = World({"s1": 2, "s2": 2, "s3": 2, "s4": 2})
    world.ask(CordonServer(server=ServerId("s1"), kind=CordonKind.DRAIN, reason="new disk"))
    assert isinstance(world.ask(LendGpus(gpus=2, for_s=600.0, reason="evening")), GpusLent)
    world.trouble("s3", Trouble(code="xid-79", severity=Severity.NO_NEW_WORK, text="it is gone", gpu=0))
    world.agents[ServerId("s4")].connected = False
    for _ in range(15):
        world.pass_time(1.0)
    return world, world.submit(job_spec("waits", 2, 4))


def under_quotas() -> tuple[Any, Any]:
    quotas = Quotas(users={"alice": Quota(gpus=3), "bob": Quota(gpus=1)})
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    started(world, job_spec("hers", 1, 4), who=ALICE)
    job = started(world, job_spec("his", 1, 4), who=BOB)
    world.settle("hers-1", 20)
    return world, job


def packed() -> tuple[Any, Any]:
    world = World({"s1": 4}, stages=Stages(packing=True))
    return world, started(world, job_spec("three", 1, 3))


def of_another_type() -> tuple[Any, Any]:
    world = World({"s1": 2, "s2": 4}, kinds={"s1": ("NVIDIA A100", 40 << 30), "s2": ("Tesla V100", 16 << 30)})
    started(world, job_spec("one", 2, 2, gpu_types=("A100",), restarts=0))
    return world, world.submit(job_spec("two", 2, 2, gpu_types=("A100",)))


SITUATIONS = (
    behind_gangs,
    behind_the_first_under_fifo,
    beside_a_share_by_hand,
    with_its_own_share_by_hand,
    shrunk_by_another,
    without_lent_and_excluded_gpus,
    under_quotas,
    packed,
    of_another_type,
)


# -- carrying out the suggested remedies


def do(world: Any, job: Any, remedy: Remedy) -> str:
    """Apply a remedy. Returns the id of the job that must get the GPUs."""
    words = remedy.command.split()[1:]
    match remedy.kind:
        case "end":
            assert words[0] == "cancel"
            for name in words[1:]:
                world.ask(Cancel(job=name))
            world.reap()
        case "scale" | "scale-auto":
            world.ask(Scale(job=words[1], share=None if words[2] == "auto" else int(words[2])))
        case "reclaim":
            assert not isinstance(world.ask(EndLoan(loan=words[1])), Refused)
        case "uncordon":
            server, _, gpu = words[1].partition(":")
            world.ask(UncordonServer(server=ServerId(server), gpu=int(gpu) if gpu else None, trust=False))
        case "mend":
            world.trouble("s3")
        case "server-back":
            world.hello("s4")
        case "quotas" | "packing":
            world.ask(SetPolicy(document={"policy": world.policy, "packing": "none", "quotas": {}}))
        case "more-gpus":
            _add(world, int(remedy.text.split()[3]))
        case "ask-less":
            gpus = remedy.text.rpartition(" ")[2]
            low, _, high = gpus.partition(":")
            world.ask(Cancel(job=job.id))
            spec = msgspec.structs.replace(job.spec, gpus=GpuRange(min=int(low), max=int(high or low)))
            return str(world.ask(Submit(spec=spec)).job)
        case other:
            raise AssertionError(f"nobody knows how to try {other}")
    return str(job.id)


def _add(world: Any, count: int) -> None:
    like = world.agents[ServerId("s1")].server.gpus[0]
    gpus = tuple(Gpu(index=at, kind=like.kind, name=like.name, memory_bytes=like.memory_bytes) for at in range(count))
    world.agents[ServerId("new")] = Agent(Server(server=ServerId("new"), address="127.0.0.1", gpus=gpus))
    world.hello("new")


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_each_thing_that_is_said_to_help_helps_as_much_as_it_is_said_to(situation: Situation) -> None:
    world, job = situation()
    before, found = len(job.record.target), explained(world, job)
    assert found.remedies
    for remedy in found.remedies:
        again, same = situation()
        assert same.record == job.record, "the same world"
        name = do(again, same, remedy)
        again.turn()
        has = len(again.job(name).record.target)
        assert has == remedy.share_gpus > before, f"{remedy}: it has {has}"


@pytest.mark.parametrize(
    ("situation", "kinds"),
    [
        (behind_gangs, {"end", "more-gpus", "ask-less"}),
        (behind_the_first_under_fifo, {"end", "scale", "more-gpus"}),
        (beside_a_share_by_hand, {"scale-auto", "end", "more-gpus"}),
        (with_its_own_share_by_hand, {"scale-auto", "scale"}),
        (shrunk_by_another, {"end", "scale", "more-gpus"}),
        (without_lent_and_excluded_gpus, {"reclaim", "uncordon", "server-back", "more-gpus"}),
        (under_quotas, {"quotas", "end", "scale", "more-gpus"}),
        (packed, {"packing", "scale", "more-gpus"}),
        (of_another_type, {"end", "more-gpus"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_helps_is_found(situation: Situation, kinds: set[str]) -> None:
    world, job = situation()
    assert kinds <= {remedy.kind for remedy in explained(world, job).remedies}


# -- reasons, stages, GPUs


def test_why_a_job_waits_who_has_the_gpus_and_who_is_before_it() -> None:
    world, job = behind_the_first_under_fifo()
    found = explained(world, job)
    assert found.reasons == ("waits behind head-2",)
    assert (found.least_gpus, found.decided_gpus, found.free_gpus) == (2, 0, 2)
    assert (found.known_gpus, found.divided_gpus, found.among_jobs) == (4, 4, 3)
    assert [(one.job, one.after_gpus) for one in found.holders] == [("runs-1", 2)]
    assert found.before == ("head-2",)
    assert found.policy == "fifo"
    assert found.rule.startswith("A job gets its requested GPUs")


def test_a_gpu_that_the_policy_does_not_divide_has_its_reason() -> None:
    world, job = without_lent_and_excluded_gpus()
    found = explained(world, job)
    told = {", ".join(map(str, taken.gpus)): taken.why for taken in found.taken}
    assert told["s1:0, s1:1"] == "drain ordered by operator:local: new disk"
    assert "lent (loan-" in told["s2:0, s2:1"]
    assert told["s3:0"] == "it is gone"
    assert told["s4:0, s4:1"] == "server s4 is lost"
    assert found.known_gpus - found.divided_gpus == sum(len(taken.gpus) for taken in found.taken)


def test_a_stage_that_changes_a_share_is_named() -> None:
    world, job = under_quotas()
    steps = {step.stage: step.gpus for step in explained(world, job).steps}
    assert steps == {"policy": 2, "quotas": 1}
    world, job = packed()
    found = explained(world, job)
    assert {step.stage: step.gpus for step in found.steps} == {"policy": 3, "packing": 2}
    assert any("2 GPUs in place of 3" in reason for reason in found.reasons)
    world, job = with_its_own_share_by_hand()
    assert [(step.stage, step.gpus) for step in explained(world, job).steps] == [("by-hand", 1)]


def test_a_job_gives_way_to_promises_and_says_so() -> None:
    world = World({"s1": 4})
    job = started(world, job_spec("best-effort", 1, 4))
    rates = {1: 1.0, 2: 2.0, 4: 4.0}
    due = job_spec("due", 1, 4, max_steps=150, throughput=rates, deadline=Deadline(in_s=60.0))
    started(world, due)
    found = explained(world, job)
    steps = {step.stage: step.gpus for step in found.steps}
    assert (steps["policy"], steps["promises"]) == (1, 1)  # the policy divides the GPUs that promises leave
    assert "gives GPUs to jobs with deadlines: due-2" in found.reasons


def test_a_job_that_a_promise_has_given_gpus_does_not_say_that_it_waits_for_some() -> None:
    world = World({"s1": 2})
    jobs = [started(world, job_spec(name, 1, 2)) for name in ("first", "second")]
    assert [len(job.record.target) for job in jobs] == [1, 1]
    due = job_spec("due", 1, 2, max_steps=45, throughput={1: 1.0, 2: 1.9}, deadline=Deadline(in_s=60.0))
    job = started(world, due)
    world.reap()
    world.settle(job.id, 5)
    found = explained(world, job)
    assert [(step.stage, step.gpus) for step in found.steps] == [("policy", 1), ("promises", 1)]
    assert not any("waits for" in reason for reason in found.reasons)
    assert "waits for" not in world.ask(GetJob(job=job.id)).job.reason


def test_every_reason_is_told_not_only_the_first() -> None:
    quotas = Quotas(users={"alice": Quota(gpus=1), "bob": Quota(gpus=0, most_gpus=2)})
    world = World({"s1": 4}, stages=Stages(quotas=quotas))
    held = started(world, job_spec("held", 1, 4), who=ALICE)
    world.ask(Scale(job=held.id, share=1))
    job = started(world, job_spec("his", 1, 4), who=BOB)
    reasons = explained(world, job).reasons
    assert any("gives way to quotas" in reason for reason in reasons)
    assert any("held-1 has 1 GPU by hand" in reason for reason in reasons)


# -- the changes of a share


def told_changes(world: Any, job: Any) -> list[tuple[int, str]]:
    return [(change.share, change.reason) for change in world.ask(GetJob(job=job.id)).job.shares]


def test_each_change_of_a_share_has_its_reason() -> None:
    world, job = shrunk_by_another()
    world.ask(Cancel(job="second-2"))
    world.reap()
    world.settle(job.id, 30)
    assert told_changes(world, job) == [
        (4, "starts: GPUs are free"),
        (2, "makes room for second-2 (0 -> 2)"),
        (4, "second-2 was cancelled"),
    ]


def test_a_share_that_a_loan_has_changed_says_so_and_why_it_came_back() -> None:
    world = World({"s1": 4})
    job = started(world, job_spec("first", 1, 4))
    loan = world.ask(LendGpus(gpus=2, for_s=600.0, reason="evening"))
    world.settle(job.id, 20)
    world.ask(EndLoan(loan=loan.loan))
    world.settle(job.id, 30)
    first, less, more = told_changes(world, job)
    assert first == (4, "starts: GPUs are free")
    assert less[0] == 2
    assert less[1] == f"s1:0-1: lent ({loan.loan}): evening, by operator:local"
    assert more == (4, "s1:0-1 can be used")


def test_a_job_that_loses_a_server_says_which() -> None:
    world = World({"s1": 2, "s2": 2})
    job = started(world, job_spec("first", 1, 4))
    world.agents[ServerId("s2")].connected = False
    for _ in range(15):
        agent = world.agents[ServerId("s1")]
        world.pass_time(1.0)
        assert agent.connected
    world.settle(job.id, 20)
    share, reason = told_changes(world, job)[-1]
    assert share == 2
    assert "server s2 is lost" in reason


def test_a_preempted_job_says_for_whom_and_what_it_waits_for() -> None:
    world = World({"s1": 2})
    job = started(world, job_spec("first", 2, 2))
    other = world.submit(job_spec("second", 2, 2))
    world.ask(Scale(job=other.id, share=2))
    world.reap()
    world.turn()
    share, reason = told_changes(world, job)[-1]
    assert share == 0
    assert reason.startswith("makes room for second-2 (0 -> 2)")
    found = explained(world, job)
    assert found.phase_since_s == job.record.shares[-1].time_s


def test_reasons_outlast_a_controller_and_only_those_of_the_last_changes_are_kept() -> None:
    world, job = shrunk_by_another()
    world.restart()
    assert told_changes(world, world.job(job.id))[-1] == (2, "makes room for second-2 (0 -> 2)")
    job = world.job(job.id)
    for share in range(40):
        job.change_share(world.now, 1 + share % 3)
    assert [bool(change.reason) for change in job.record.shares].count(True) <= 16


# -- permissions


def test_a_user_is_told_who_may_do_what_he_may_not() -> None:
    world = World({"s1": 4})
    started(world, gang("hers", 4), who=ALICE)
    job = world.submit(job_spec("his", 1, 4), who=BOB)
    found = explained(world, job, who=BOB)
    assert {remedy.command: remedy.by for remedy in found.remedies if remedy.kind == "end"} == {
        "elasticctl cancel hers-1": "alice or operators"
    }


def test_a_job_that_is_over_has_its_reason_and_nothing_to_change() -> None:
    world = World({"s1": 4})
    job = started(world, job_spec("first", 1, 4))
    world.ask(Cancel(job=job.id))
    world.reap()
    found = explained(world, job)
    assert job.record.phase is JobPhase.CANCELLED
    assert (found.remedies, found.steps) == ((), ())
    assert found.phase_since_s == job.record.finished_s


def test_a_gang_that_runs_is_fixed_and_nothing_changes_that() -> None:
    world = World({"s1": 4})
    job = started(world, gang("fixed", 2))
    found = explained(world, job)
    assert found.decided_gpus is None
    assert found.remedies == ()


def test_an_unknown_job_is_one_clear_error() -> None:
    refused = World({"s1": 4}).ask(GetJob(job="nobody-7", explain=True))
    assert isinstance(refused, Refused)
    assert refused.reason == "there is no job 'nobody-7'"


def test_a_policy_that_fails_leaves_the_reasons_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    world, job = shrunk_by_another()
    monkeypatch.setattr(type(world.machine.cluster.planning.policy), "shares", lambda *_: 1 / 0)
    found = explained(world, job)
    assert found.remedies == ()


# -- the same for random clusters

POLICIES = ("max-min", "fifo", "elastic-fifo", "backfill", "afs-l", "elastic", "srtf", "tiresias-l", "optimus")


def by_chance(seed: int) -> Any:
    """A cluster after random submissions, ends, loans, drains and fixed shares."""
    rng = random.Random(seed)
    servers = {f"s{at + 1}": rng.randint(1, 4) for at in range(rng.randint(1, 3))}
    world = World(servers, policy=rng.choice(POLICIES), stages=Stages(packing=rng.random() < 0.2))
    total = sum(servers.values())
    for number in range(rng.randint(2, 6)):
        low = rng.randint(1, max(1, min(3, total)))
        high = rng.randint(low, max(low, total))
        fixed = rng.random() < 0.3
        started(world, gang(f"gang{number}", low) if fixed else job_spec(f"job{number}", low, high))
        jobs = [job for job in world.machine.cluster.jobs.values() if not job.final]
        chosen = rng.choice(jobs)
        match rng.randint(0, 6):
            case 0:
                world.ask(Scale(job=chosen.id, share=rng.randint(1, chosen.spec.virtual_workers)))
            case 1:
                world.ask(LendGpus(gpus=rng.randint(1, total), for_s=600.0))
            case 2:
                world.ask(CordonServer(server=ServerId(rng.choice(list(servers))), kind=rng.choice(list(CordonKind))))
            case 3:
                world.ask(Cancel(job=chosen.id))
                world.reap()
        world.turn()
    return world


@pytest.mark.parametrize("seed", [*range(10), 102, 105])
def test_in_any_world_what_is_said_to_help_helps(seed: int) -> None:
    world = by_chance(seed)
    for job in [job for job in world.machine.cluster.jobs.values() if not job.final]:
        found, before = explained(world, job), len(job.record.target)
        if found.decided_gpus != before:
            continue  # a resize of the job is in progress
        for remedy in found.remedies:
            again = by_chance(seed)
            same = again.job(job.id)
            assert same.record == job.record
            name = do(again, same, remedy)
            again.turn()
            for _ in range(12):  # other jobs may have to release GPUs first
                _go_on(again)
            has = len(again.job(name).record.target)
            assert has == remedy.share_gpus, f"{again.policy}: {job.id} with {before}: {remedy}: has {has}"


def _go_on(world: Any) -> None:
    """Workers with started peers arrive and commit the current orders."""
    for job in list(world.machine.cluster.jobs.values()):
        world.reap()
        if job.record.target and job.spec.restarts is None and not job.final:
            world.arrive(job.id)
            if job.newest is not None and set(world.roster(job.id)) <= set(world.running(job.id)):
                world.commit(job.id, 20)
    world.turn()


def test_a_job_that_starts_is_not_yet_called_a_gang() -> None:
    world = World({"s1": 2})
    job = world.submit(job_spec("run", 1, 2))
    world.pass_time(5.0)
    assert job.record.phase is JobPhase.STARTING
    assert explained(world, job).reasons == ("its workers are starting",)
    world.pass_time(100.0)
    assert "has not called elastic.join(): runs as a fixed gang of 2 GPUs" in explained(world, job).reasons


def test_a_gpu_of_a_gang_that_has_just_become_one_is_not_of_a_process_that_nobody_knows() -> None:
    world = World({"s1": 2})
    gang = world.submit(job_spec("gang", 1, 1, restarts=0))
    world.machine.cluster.jobs.rows.gangs.clear()  # as before the next decision catches up
    assert why_gone(world.machine.cluster, gang.record.target[0]) == f"{gang.id} has it, a gang of fixed size"


def test_a_worker_that_was_told_to_end_is_released_and_not_killed() -> None:
    world = World({"s1": 2})
    job, cluster = started(world, job_spec("first", 1, 2)), world.machine.cluster
    told, killed = (entry.worker for entry in job.workers)
    job.update_worker(told, stopping=True)
    for worker in (told, killed):
        worker_ended(cluster, world.now, job, job.worker(worker), -15, "killed by SIGTERM", None, Fault.KILLED)
    assert [entry.reason for entry in job.record.past] == [RELEASED, "killed by SIGTERM"]
