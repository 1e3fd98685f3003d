"""Jobs that ask for cores and memory: refusal, placement under every policy, starts, and reasons."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.protocol.messages import Cancel, GetJob, GetServers, Refused, Scale, StartWorker, Submit, Submitted
from elasticd.protocol.model import Allocatable, Deadline, GpuRange, JobPhase, Processes, ServerId
from elasticd.protocol.texts import memory_text
from elasticd.scheduler.policies import NAMES

from .world import World, job_spec

GIB = 1 << 30
TWO = {"s1": (8.0, 32), "s2": (4.0, 64)}


def two(policy: str = "max-min") -> Any:
    """Two servers of four GPUs each: s1 with more cores, s2 with more memory."""
    return World({"s1": 4, "s2": 4}, policy=policy, amounts=TWO)


def by_server(world: Any, job: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for gpu in world.job(job).record.target:
        found[gpu.server] = found.get(gpu.server, 0) + 1
    return found


def fits(world: Any) -> bool:
    """Whether the workers that run, or were told to start, have no more than there is."""
    for name, (cores, gib) in TWO.items():
        taken = world.machine.cluster.asked_on(ServerId(name))
        if taken.millicores > 1000 * cores or taken.memory_bytes > gib * GIB:
            return False
    return True


def advance(world: Any, job: str) -> None:
    """Let the job's workers arrive, and train together once all of its newest order run."""
    world.reap()
    world.arrive(job)
    if world.roster(job) and set(world.roster(job)) <= set(world.running(job)):
        world.commit(job)


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"cpus": 9.0},
            "each of its workers asks for 9 cores, and the largest server, s1, has 8 cores and 32 GiB of memory",
        ),
        (
            {"memory_bytes": 65 * GIB},
            "each of its workers asks for 65 GiB of memory, and the largest server, s2, has 4 cores and 64 GiB of memory",
        ),
        (
            {"cpus": 4.0, "low": 4, "high": 4},
            "each of its workers asks for 4 cores; with that the cluster has room for 3 GPUs, and it needs at least 4: "
            "the largest server, s1, has 8 cores and 32 GiB of memory",
        ),
        (
            {"memory_bytes": 100 << 40},
            "each of its workers asks for 100 TiB of memory, and the largest server, s2, has 4 cores and 64 GiB of memory",
        ),
        ({"cpus": -1.0}, "cpus: -1 cores are not allowed: 0.01 to 65536"),
        ({"cpus": float("nan")}, "cpus: nan cores are not allowed: 0.01 to 65536"),
        ({"memory_bytes": 1}, "memory: 1 bytes are not allowed: 16777216 to 1125899906842624"),
    ],
)
def test_what_fits_nowhere_is_refused_with_the_largest_server(asked: dict[str, Any], words: str) -> None:
    world = two()
    answer = world.ask(Submit(spec=job_spec(**asked)))
    assert isinstance(answer, Refused)
    assert answer.reason.removeprefix("digits is not admitted: ") == words
    assert not world.machine.cluster.jobs


def test_a_server_whose_agent_cannot_hold_limits_gets_no_job_that_asks_for_them() -> None:
    world = World({"s1": 4, "s2": 4}, amounts={"s2": (4.0, 64)})  # the agent of s1 is of an earlier version
    job = world.submit(job_spec(high=8, cpus=1.0)).id
    assert by_server(world, job) == {"s2": 4}
    alone = World({"s1": 4})
    answer = alone.ask(Submit(spec=job_spec(cpus=1.0)))
    assert answer.reason.endswith("no server can hold workers to that; s1: its agent is of an earlier version")
    alone.agents["s1"].server = replace(
        alone.agents["s1"].server, allocatable=Allocatable(cpus=4, memory_bytes=GIB, unheld="it has no control group")
    )
    alone.hello("s1")
    answer = alone.ask(Submit(spec=job_spec(cpus=1.0)))
    assert answer.reason.endswith("no server can hold workers to that; s1: it has no control group")


def containers(world: Any, **without: str) -> None:
    """Let the agents say why they run no containers; "": they do."""
    for name, why in without.items():
        world.agents[name].server = replace(world.agents[name].server, no_containers=why)
        world.hello(name)


@pytest.mark.parametrize("policy", NAMES)
def test_a_server_that_runs_no_containers_gets_no_job_with_an_image(policy: str) -> None:
    world = World({"s1": 4, "s2": 4}, policy=policy)
    containers(world, s1="podman is not installed", s2="")
    job = world.submit(job_spec(low=1, high=4, image="localhost/x:1")).id
    assert set(by_server(world, job)) <= {"s2"}, "on a server without podman"
    assert by_server(world, job), "it has got no GPU"


def test_without_servers_that_run_containers_a_job_with_an_image_is_refused_with_the_reason() -> None:
    world = World({"s1": 4, "s2": 4})
    image = {"image": "localhost/x:1"}
    answer = world.ask(Submit(spec=job_spec(**image)))
    assert answer.reason.endswith(
        "its workers run in containers, and no server can; s1: its agent is of an earlier version"
    )
    containers(world, s1="podman is not installed", s2="")
    answer = world.ask(Submit(spec=job_spec(low=5, high=8, **image)))
    assert answer.reason.endswith(
        "its workers run in containers, and only 4 GPUs of the cluster are on servers that can; s1: podman is not installed"
    )
    answer = world.ask(Submit(spec=job_spec(deadline=Deadline(in_s=9e6), max_steps=10, **image)))
    assert isinstance(answer, Refused)
    assert "only if every server can run containers, and s1 cannot: podman is not installed" in answer.reason


def test_a_job_with_an_image_waits_for_a_server_with_containers_and_says_so() -> None:
    world = World({"s1": 4, "s2": 4})
    containers(world, s1="podman is not installed", s2="")
    world.submit(job_spec(name="first", low=4, high=4, image="localhost/x:1"))
    waits = world.submit(job_spec(name="second", low=2, high=2, image="localhost/x:1")).id
    answer = world.ask(GetJob(job=waits))
    assert answer.job.reason == (
        "waits for a server that can run its container: the free GPUs are on s1, which cannot: podman is not installed"
    )
    containers(world, s1="")
    world.pass_time(60.0)
    assert by_server(world, waits) == {"s1": 2}


def test_a_hard_deadline_is_promised_only_to_workers_that_ask_for_a_gpus_part() -> None:
    world = two("elasticflow")
    spec = job_spec(cpus=2.0, deadline=Deadline(in_s=3600.0), max_steps=100, throughput={1: 1.0, 2: 2.0, 4: 4.0})
    answer = world.ask(Submit(spec=spec))
    assert answer.reason == (
        "digits is not admitted: a deadline is promised only if each worker asks for no more than a GPU's part of every "
        "server, and not for 2 cores: s2 has 4 cores and 64 GiB of memory for 4 GPUs. Ask for less, or say --soft"
    )
    assert isinstance(world.ask(Submit(spec=replace(spec, cpus=1.0))), Submitted)
    assert isinstance(world.ask(Submit(spec=replace(spec, deadline=Deadline(in_s=3600.0, soft=True)))), Submitted)


# -------------------------------------------------------------------------------------------------------- placement


@pytest.mark.parametrize("policy", sorted(NAMES))
def test_no_policy_gives_a_server_more_than_it_has(policy: str) -> None:
    world = two(policy)
    jobs = [
        world.submit(job_spec("wide", 1, 4, cpus=2.0)).id,
        world.submit(job_spec("large", 1, 1, memory_bytes=30 * GIB)).id,
        world.submit(job_spec("both", 2, 4, cpus=1.5, memory_bytes=8 * GIB)).id,
        world.submit(job_spec("plain", 1, 2)).id,
    ]
    for _ in range(12):
        assert fits(world)
        world.pass_time(10.0)
        for job in jobs:
            advance(world, job)
    assert fits(world)
    assert all(world.job(job).record.target for job in jobs[:2]), "there is room for both of the first"


def test_a_job_that_does_not_fit_beside_another_goes_to_the_other_server() -> None:
    world = two("fifo")
    first = world.submit(job_spec("first", 2, 2, cpus=4.0)).id
    second = world.submit(job_spec("second", 1, 1, cpus=4.0)).id
    assert by_server(world, first) == {"s1": 2}
    assert by_server(world, second) == {"s2": 1}


def test_a_pending_job_names_cores_or_memory_and_starts_when_they_come_free() -> None:
    world = two("fifo")
    first = world.submit(job_spec("first", 3, 3, cpus=4.0)).id
    world.settle(first)
    cores = world.submit(job_spec("cores", 1, 1, cpus=1.0)).id
    told = world.ask(GetJob(job=cores)).job.reason
    assert (
        told
        == "waits for cores: each worker asks for 1 core, and of the servers with a free GPU s1 has most left, no cores"
    )
    assert any("waits for cores" in each for each in world.ask(GetJob(job=cores, explain=True)).explanation.reasons)
    world.ask(Cancel(job=first))
    world.reap()
    world.turn()
    assert len(world.job(cores).record.target) == 1


def test_one_process_for_a_whole_server_asks_once() -> None:
    world = two("fifo")
    job = world.submit(job_spec("torchrun", 4, 4, cpus=6.0, processes=Processes.PER_SERVER, gpus_per_server=4)).id
    assert by_server(world, job) == {"s1": 4}


def test_a_share_set_by_hand_gets_what_fits() -> None:
    world = two()
    job = world.submit(job_spec("wide", 1, 8, cpus=4.0)).id
    world.settle(job)
    assert len(world.job(job).record.target) == 3
    world.ask(Scale(job=job, share=8))
    world.turn()
    assert len(world.job(job).record.target) == 3
    assert fits(world)


def test_a_worker_starts_only_when_the_one_before_has_ended() -> None:
    world = two("fifo")
    first = world.submit(job_spec("first", 3, 3, cpus=4.0)).id
    world.settle(first)
    second = world.submit(job_spec("second", 1, 1, memory_bytes=GIB, cpus=4.0)).id
    world.ask(Cancel(job=first))
    world.turn()
    started = [message for _, message in world.sent if isinstance(message, StartWorker) and message.job == second]
    assert bool(started) == (not world.machine.cluster.asked_on(ServerId("s1")).millicores > 8000 - 4000)
    world.pass_time(60.0)
    assert fits(world)


def test_servers_show_what_is_asked_for() -> None:
    world = two()
    job = world.submit(job_spec(high=1, cpus=2.5, memory_bytes=3 * GIB)).id
    (there,) = [view for view in world.ask(GetServers()).servers if view.used]
    assert (there.asked_cpus, there.asked_memory_bytes) == (2.5, 3 * GIB)
    assert world.job(job).record.phase is not JobPhase.PENDING


def test_a_controller_that_takes_over_counts_what_runs() -> None:
    world = two("fifo")
    first = world.submit(job_spec("first", 3, 3, cpus=4.0)).id
    world.settle(first)
    world.restart()
    second = world.submit(job_spec("second", 1, 1, cpus=1.0)).id
    world.pass_time(5.0)
    assert not world.job(second).record.target
    assert fits(world)
    assert world.job(first).spec.gpus == GpuRange(min=3, max=3)


def test_amounts_of_memory_are_written_in_the_unit_that_suits_them():
    assert [memory_text(size) for size in (500 << 20, 3 << 29, 1 << 30, 100 << 40)] == [
        "500 MiB",
        "1.5 GiB",
        "1 GiB",
        "100 TiB",
    ]
