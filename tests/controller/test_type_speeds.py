"""How fast a job's GPU types are for it is learned once, and the next roster hosts accordingly (EasyScale 3.4)."""

from __future__ import annotations

from typing import Any

from elasticd.controller.jobs.type_speeds import learned
from elasticd.protocol.messages import Scale
from elasticd.protocol.model import Determinism, WorkerId, WorkerPhase
from tests.controller.test_gpu_types import job_spec, mixed

W = [WorkerId(f"job.{number}") for number in range(5)]
TYPES = {W[0]: "A100", W[1]: "A100", W[2]: "V100", W[3]: "V100", W[4]: "V100"}


def test_a_types_pace_is_the_median_of_its_workers() -> None:
    assert learned({}, TYPES, {W[2]: 2.0, W[3]: 2.1, W[4]: 9.0}) == {"V100": 2.1}
    assert learned({}, TYPES, {W[4]: 9.0}) == {}, "one slow worker says nothing of its type"


def test_noise_changes_nothing_and_a_new_measurement_corrects_the_old_one() -> None:
    assert learned({"V100": 2.0}, TYPES, dict.fromkeys(W[2:], 2.05)) == {"V100": 2.0}
    assert learned({"V100": 2.0}, TYPES, {}) == {"V100": 1.0}


def test_workers_of_one_type_say_nothing_of_others() -> None:
    assert learned({"V100": 2.0}, dict.fromkeys(W, "A100"), {W[0]: 3.0}) == {"V100": 2.0}


def told(world: Any, job: str, paces: dict[WorkerId, float]) -> None:
    roster = world.job(job).committed_order.roster
    world.report(roster.leader, WorkerPhase.TRAINING, roster.generation, 20, paces=paces)


def paces_ordered(world: Any, job: str) -> dict[str, float]:
    return {member.gpu.server: member.pace for member in world.job(job).newest.roster.members}


def test_the_next_order_has_the_paces_also_after_a_restart_of_the_controller() -> None:
    world = mixed(a1=2, v1=2)
    job = world.submit(job_spec(low=1, high=4, determinism=Determinism.NONE)).id
    world.settle(job)
    assert paces_ordered(world, job) == {"a1": 1.0, "v1": 1.0}
    slow = [member.worker for member in world.job(job).newest.roster.members if member.gpu.server == "v1"]
    told(world, job, dict.fromkeys(slow, 2.5))
    world.restart()
    world.pass_time(15.0)
    world.ask(Scale(job=job, share=3))
    world.settle(job)
    assert paces_ordered(world, job) == {"a1": 1.0, "v1": 2.5}


def test_the_paces_are_those_of_the_leader_in_the_committed_generation() -> None:
    world = mixed(a1=2, v1=2)
    job = world.submit(job_spec(low=1, high=4, determinism=Determinism.NONE)).id
    world.settle(job)
    roster = world.job(job).committed_order.roster
    slow = {member.worker: 2.5 for member in roster.members if member.gpu.server == "v1"}
    other = next(worker for worker in roster.workers if worker != roster.leader)
    world.report(other, WorkerPhase.TRAINING, roster.generation, 20, paces=slow)
    world.report(roster.leader, WorkerPhase.TRAINING, roster.generation - 1, 21, paces=slow)
    assert world.job(job).record.paces == {}
    world.report(roster.leader, WorkerPhase.TRAINING, roster.generation, 22, paces=slow)
    assert world.job(job).record.paces == {"Tesla V100-SXM2-16GB": 2.5}


def test_paces_that_cannot_be_are_dropped() -> None:
    world = mixed(a1=1, v1=1)
    job = world.submit(job_spec(low=1, high=2, determinism=Determinism.NONE)).id
    world.settle(job)
    for pace in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        told(world, job, {member.worker: pace for member in world.job(job).newest.roster.members[1:]})
        assert world.job(job).record.paces == {}
