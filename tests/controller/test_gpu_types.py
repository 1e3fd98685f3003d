"""Jobs that request GPU types: rejection, waiting with a reason, and staying on the type of the first step."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.protocol.messages import GetJob, Profile, Refused, Scale, Scaled, Submit, Submitted
from elasticd.protocol.model import Determinism, JobPhase, Severity, Trouble, WorkerPhase

from .world import World, job_spec

A100, V100 = ("NVIDIA A100-SXM4-40GB", 40 << 30), ("Tesla V100-SXM2-16GB", 16 << 30)


def mixed(**servers: int) -> Any:
    """Servers with names in a... have A100s, the others V100s."""
    return World(servers, kinds={name: A100 if name.startswith("a") else V100 for name in servers})


def types(world: Any, job: str) -> set[str]:
    """First letters of the servers in the job's target."""
    return {gpu.server[0] for gpu in world.job(job).record.target}


def lose(world: Any, server: str) -> None:
    world.agents[server].connected = False
    world.pass_time(15.0)
    world.reap()


def reason(world: Any, job: str) -> str:
    return str(world.ask(GetJob(job=job)).job.reason)


# -------------------------------------------------------------------------------------------------- impossible requests


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"low": 9, "high": 9}, "it needs at least 9 GPUs, and the cluster has 8"),
        (
            {"low": 1, "gpu_types": ("H100",)},
            "no server has a GPU of type H100; there are 2 NVIDIA A100-SXM4-40GB and 6 Tesla",
        ),
        (
            {"low": 1, "gpu_memory_bytes": 64 << 30},
            "no GPU has 64 GiB; the largest is NVIDIA A100-SXM4-40GB with 40 GiB",
        ),
        (
            {"low": 1, "gpu_memory_bytes": 40 << 30, "gpu_types": ("V100",)},
            "no GPU of type V100 has 40 GiB; the largest is",
        ),
        ({"low": 4, "gpu_types": ("A100",)}, "it needs at least 4 A100, and the cluster has 2; there are"),
        ({"low": 8, "high": 8}, "it needs at least 8 GPUs of one type, and the cluster has 6; there are"),
        ({"low": 5, "high": 5, "gpus_per_server": 5}, "no server has 5 GPUs; there are"),
        (
            {"low": 6, "high": 6, "gpus_per_server": 2, "gpu_types": ("V100",)},
            "it needs at least 6 V100, 2 on each server, and",
        ),
    ],
)
def test_a_job_that_can_never_run_is_refused_with_what_there_is(changes: dict[str, Any], words: str) -> None:
    world = mixed(a1=2, v1=4, v2=2)
    answer = world.ask(Submit(spec=job_spec(**changes)))
    assert isinstance(answer, Refused)
    assert answer.reason.startswith(f"digits is not admitted: {words}"), answer.reason
    assert not world.machine.cluster.jobs


def test_a_job_that_mixes_types_can_have_all_gpus() -> None:
    world = mixed(a1=2, v1=4, v2=2)
    job = world.submit(job_spec(low=8, high=8, determinism=Determinism.NONE)).id
    assert types(world, job) == {"a", "v"}


def test_where_no_server_is_known_yet_every_job_is_admitted() -> None:
    assert isinstance(World({}).ask(Submit(spec=job_spec(low=8, high=8, gpu_types=("H100",)))), Submitted)


def test_a_job_whose_servers_are_lost_is_admitted_and_told_which_it_waits_for() -> None:
    world = mixed(a1=2, a2=2, v1=4)
    lose(world, "a2")
    job = world.submit(job_spec(low=4, high=4, gpu_types=("A100",))).id
    assert reason(world, job) == "waits for 4 A100: 2 of 4 are there, a2 is lost"
    world.hello("a2")
    world.turn()
    assert len(world.job(job).record.target) == 4


# ------------------------------------------------------------------------------------------------------------ one type only


def test_a_job_without_a_type_begins_on_one_and_stays_there() -> None:
    world = mixed(a1=2, v1=4)
    job = world.submit(job_spec(low=1, high=8)).id
    world.settle(job)
    assert types(world, job) == {"v"}
    assert world.job(job).record.gpu_name == V100[0]
    lose(world, "v1")
    assert world.job(job).record.target == ()
    assert reason(world, job).startswith("waits for 1 Tesla V100-SXM2-16GB: 0 of 4 are there, v1 is lost; it began on")
    world.restart()
    world.pass_time(15.0)
    assert world.job(job).record.target == (), "another controller knows it, too"
    world.agents["v1"].running.clear()
    world.hello("v1")
    world.pass_time(60.0)
    assert types(world, job) == {"v"}


def test_a_job_that_has_not_trained_may_begin_elsewhere() -> None:
    world = mixed(a1=2, v1=4)
    job = world.submit(job_spec(low=1, high=8)).id
    assert types(world, job) == {"v"}
    lose(world, "v1")
    world.pass_time(60.0)
    assert types(world, job) == {"a"}
    world.settle(job)
    assert world.job(job).record.gpu_name == A100[0]


def finds(world: Any, job: str, agnostic: bool) -> None:
    """The leader of a job reports whether its operators have one algorithm on all hardware."""
    committed = world.job(job).committed_order.roster
    world.report(committed.leader, WorkerPhase.TRAINING, committed.generation, 10, hardware_agnostic=agnostic)


def test_a_heterogeneous_job_mixes_types_from_when_its_operators_are_known_to_be_the_same_on_all() -> None:
    world = mixed(a1=2, v1=4)
    job = world.submit(job_spec(low=1, high=8, determinism=Determinism.HETEROGENEOUS)).id
    world.settle(job)
    assert types(world, job) == {"v"}
    finds(world, job, True)
    world.settle(job)
    assert len(world.job(job).record.target) == 6
    world.restart()
    world.pass_time(15.0)
    assert len(world.job(job).record.target) == 6, "another controller knows it, too"


def test_a_heterogeneous_job_whose_operators_differ_by_type_stays_on_one() -> None:
    world = mixed(a1=2, v1=4)
    job = world.submit(job_spec(low=1, high=8, determinism=Determinism.HETEROGENEOUS)).id
    world.settle(job)
    finds(world, job, False)
    world.settle(job)
    assert types(world, job) == {"v"}
    lose(world, "v1")
    assert reason(world, job).startswith("waits for 1 Tesla V100-SXM2-16GB")


def test_a_script_that_was_changed_before_a_restart_is_judged_anew() -> None:
    world = mixed(a1=2, v1=4)
    job = world.submit(job_spec(low=1, high=8, determinism=Determinism.HETEROGENEOUS)).id
    world.settle(job)
    finds(world, job, True)
    world.settle(job)
    finds(world, job, False)
    world.settle(job)
    assert len(types(world, job)) == 1


@pytest.mark.parametrize("determinism", [Determinism.NONE, Determinism.HETEROGENEOUS])
def test_a_job_whose_bits_do_not_depend_on_types_goes_on_with_what_is_left(determinism: Determinism) -> None:
    world = mixed(a1=2, v1=4)
    job = world.submit(job_spec(low=1, high=8, determinism=determinism)).id
    world.settle(job)
    finds(world, job, True)
    world.settle(job)
    assert len(world.job(job).record.target) == 6
    lose(world, "v1")
    world.settle(job)
    assert types(world, job) == {"a"}
    assert world.job(job).record.phase is JobPhase.RUNNING


def test_a_job_that_may_go_elsewhere_migrates_off_the_only_gpus_that_another_one_can_use() -> None:
    world = mixed(a1=2, v1=2)
    first = world.submit(job_spec("first", low=1, high=2, determinism=Determinism.NONE)).id
    world.settle(first)
    assert types(world, first) == {"a"}
    second = world.submit(job_spec("second", low=2, high=2, gpu_types=("A100",))).id
    for _ in range(4):
        world.settle(first, step=20)
        world.settle(second)
        world.pass_time(2.0)
    assert (types(world, first), types(world, second)) == ({"v"}, {"a"})
    assert world.job(first).share_gpus == world.job(second).share_gpus == 2


def test_a_reason_names_the_type_and_what_else_is_free() -> None:
    world = mixed(a1=2, v1=4)
    first = world.submit(job_spec("first", low=2, high=2, gpu_types=("A100",))).id
    world.settle(first)
    second = world.submit(job_spec("second", low=1, high=2, gpu_types=("A100",))).id
    assert reason(world, second) == "waits for 1 A100: all 2 are in use; 4 Tesla V100-SXM2-16GB are free"


def test_so_many_on_each_server() -> None:
    world = mixed(a1=3, a2=4, v1=2)
    job = world.submit(job_spec(low=4, high=4, gpus_per_server=2)).id
    target = world.job(job).record.target
    assert sorted(gpu.server for gpu in target) == ["a1", "a1", "a2", "a2"]


@pytest.mark.parametrize("asked", [{"gpu_types": ("A100",)}, {"gpu_types": ("A100",), "gpus_per_server": 1}])
def test_a_job_gets_no_other_type_for_a_gpu_that_takes_no_new_work(asked: dict[str, Any]) -> None:
    world = mixed(a1=2, v1=4)
    first = world.submit(job_spec("first", low=1, high=2, gpu_types=("A100",))).id
    world.settle(first)
    assert len(world.job(first).record.target) == 2
    world.trouble("a1", Trouble(code="bad", severity=Severity.NO_NEW_WORK, text="bad is wrong"))
    second = world.submit(job_spec("second", low=1, high=1, **asked)).id
    for _ in range(3):
        world.settle(first, step=20)
        world.pass_time(2.0)
    assert types(world, second) <= {"a"}
    assert not world.running(second)


def test_a_job_with_so_many_on_each_server_is_measured_with_whole_servers() -> None:
    world = mixed(a1=2, a2=2, a3=2, a4=2)
    job = world.submit(job_spec(low=2, high=8, gpus_per_server=2)).id
    world.settle(job)
    assert world.ask(Profile(job=job)).shares == (4, 2)
    target = [gpu.server for gpu in world.job(job).record.target]
    assert sorted(target.count(server) for server in set(target)) == [2, 2]


def test_a_refusal_tells_of_several_slots_in_the_plural() -> None:
    world = World({"a": 2, "b": 2}, kinds={"a": ("CPU slot", 0), "b": ("CPU slot", 0)})
    answer = world.ask(Submit(spec=job_spec(low=1, high=1, gpu_types=("A100",))))
    assert answer.reason.endswith("no server has a GPU of type A100; there are 4 CPU slots")


def test_a_share_by_hand_that_is_no_multiple_of_what_a_job_has_on_each_server_is_refused():
    world = World({"s1": 4, "s2": 4})
    job = world.submit(job_spec("big", 4, 8, gpus_per_server=4))
    world.settle(job.id)
    answer = world.ask(Scale(job=job.id, share=2))
    assert isinstance(answer, Refused)
    assert answer.reason == "big-1 has 4 GPUs on each of its servers: its share is a multiple of 4, not 2"
    assert isinstance(world.ask(Scale(job=job.id, share=4)), Scaled)
    assert len(job.record.target) == 4
