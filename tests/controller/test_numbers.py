"""Unusable figures (NaN, infinity, absurd sizes) never get into records, views or policies, and do not end the controller."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elasticd.controller.events import AgentMessage, Warn
from elasticd.controller.inbound import messages
from elasticd.controller.jobs.records import JobRecord, Progress, Submission
from elasticd.controller.jobs.throughput import KindRecord
from elasticd.controller.records import state_key, submission_key
from elasticd.controller.requests.validation import refusal
from elasticd.protocol.batches import MAX_BATCH_FACTOR
from elasticd.protocol.messages import (
    AgentHello,
    EventKind,
    GetEvents,
    GetJob,
    GetJobs,
    GetServers,
    ShareChange,
    WorkerReport,
)
from elasticd.protocol.model import (
    Adapter,
    Allocatable,
    CheckpointSpec,
    Determinism,
    Gpu,
    GpuKind,
    GpuRange,
    GpuWiring,
    JobId,
    JobPhase,
    Nic,
    NvLinks,
    Resize,
    Server,
    ServerId,
    Sharding,
    Steady,
    Until,
    Wiring,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)
from elasticd.scheduler.options import WrongOption
from elasticd.scheduler.policies import POLICIES
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.scheduler.speedup_curve import Measured

from .world import World, job_spec

S1 = ServerId("s1")
NAN, INF = math.nan, math.inf
FLOATS = st.sampled_from((NAN, INF, -INF, -1.0, 0.0, 1e-320, 0.1, 1e12, 1e300))
INTS = st.sampled_from((-(2**63), -2, -1, 0, 1, 2, 20, 2**31, 2**53 + 1, 2**63 - 1, 2**64 - 1))
RESIZES = st.builds(
    Resize,
    generation=INTS,
    step=INTS,
    workers_before=INTS,
    workers_after=INTS,
    longest_gap_s=FLOATS,
    median_step_s=FLOATS,
    median_step_after_s=FLOATS,
)


def numbers(value: object) -> list[float]:
    """All numbers in plain values, but for a script's own figures, which may be any finite number."""
    if isinstance(value, dict):
        assert all(math.isfinite(each) for each in (value.get("metrics") or {}).values())
        return [found for key, each in value.items() if key != "metrics" for found in numbers(each)]
    if isinstance(value, list | tuple):
        return [found for each in value for found in numbers(each)]
    return [value] if isinstance(value, int | float) else []


def assert_sane(world: Any, job: str) -> None:
    answers = [world.ask(request) for request in (GetJob(job=job), GetJobs(final_too=True), GetServers(), GetEvents())]
    kept = [msgspec.msgpack.decode(value) for value in world.store.values()]
    for number in numbers([*map(msgspec.to_builtins, answers), *kept]):
        assert math.isfinite(number)
        assert abs(number) <= 2**53


def training(policy: str = "max-min") -> tuple[Any, str, WorkerStatus]:
    world = World({"s1": 2}, policy=policy)
    job = world.submit(job_spec(low=1, high=2, max_steps=1000)).id
    world.settle(job)
    status = world.find(world.roster(job)[0])[1].status
    return world, job, status


def report(world: Any, status: WorkerStatus) -> list[Any]:
    actions = world.feed(AgentMessage(S1, WorkerReport(status=status)))
    world.turn()
    return list(actions)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([kind.name for kind in POLICIES]))
def test_no_number_of_a_status_gets_further_than_the_door(data: Any, policy: str) -> None:
    world, job, status = training(policy)
    figures = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "samples_per_s": FLOATS,
                "median_step_s": FLOATS,
                "saving_s": FLOATS,
                "longest_step_s": FLOATS,
                "steady": st.builds(Steady, generation=st.sampled_from((0, 1, -1)), step_s=FLOATS, steps=INTS),
                "metrics": st.dictionaries(st.sampled_from(("loss", "x" * 1000)), FLOATS),
                "resizes": st.lists(RESIZES, max_size=3).map(tuple),
                "total_steps": st.none() | INTS,
                "epoch": INTS,
                "applied": st.none() | INTS,
                "saved": st.none() | INTS,
                "floor": INTS,
                "pid": INTS,
            },
        )
    )
    poisoned = replace(status, sequence=status.sequence + 1, **figures)
    report(world, poisoned)
    assert_sane(world, job)
    world.pass_time(3.0)
    assert_sane(world, job)
    world.restart()
    world.pass_time(3.0)
    assert_sane(world, job)
    assert EventKind.POLICY_FAILED not in world.kinds()


def test_the_rest_of_a_status_counts_and_each_odd_figure_is_told_once() -> None:
    world, job, status = training()
    for number in range(1, 4):
        metrics = {"loss": NAN, "accuracy": 0.5}
        report(world, replace(status, sequence=status.sequence + number, applied=20 + number, metrics=metrics))
    found = world.ask(GetJob(job=job)).job
    assert found.step == 23
    assert (found.metrics, found.odd_metrics) == ({"accuracy": 0.5}, {"loss": "nan"})
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.ODD_FIGURE]
    assert told == [f"{status.worker} reports metric loss: nan, which cannot be reckoned with"]
    report(world, replace(status, sequence=status.sequence + 9, applied=30, metrics={"loss": -INF}))
    assert_sane(world, job)
    found = world.ask(GetJob(job=job)).job
    assert (found.metrics, found.odd_metrics) == ({}, {"loss": "-inf"}), "nothing older stands for it"
    report(world, replace(status, sequence=status.sequence + 10, applied=31, metrics={"loss": 2.0}))
    found = world.ask(GetJob(job=job)).job
    assert (found.metrics, found.odd_metrics) == ({"loss": 2.0}, {})


def test_an_odd_figure_of_several_parts_is_told_once() -> None:
    """Its parts change with each status; the event does not repeat them."""
    world, _, status = training()
    for number in range(1, 4):
        paces = {status.worker: 1e6 + number}
        report(world, replace(status, sequence=status.sequence + number, applied=20 + number, paces=paces))
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.ODD_FIGURE]
    assert told == [f"{status.worker} reports paces: out of range, which cannot be reckoned with"]


@pytest.mark.parametrize(
    ("ceiling", "kept"), [(-1, 0), (MAX_BATCH_FACTOR, MAX_BATCH_FACTOR), (MAX_BATCH_FACTOR + 1, 0)]
)
def test_the_largest_batch_of_a_script_has_a_bound(ceiling: int, kept: int) -> None:
    world, job, status = training()
    report(world, replace(status, sequence=status.sequence + 1, applied=21, batch_ceiling=ceiling))
    assert world.job(job).statuses[status.worker].batch_ceiling == kept


@pytest.mark.parametrize("field", ["generation", "order", "floor", "sequence", "applied", "pid"])
@pytest.mark.parametrize("value", [-2, 2**60])
def test_a_status_whose_membership_makes_no_sense_is_dropped_as_a_whole(field: str, value: int) -> None:
    world, job, status = training()
    before = world.job(job).statuses[status.worker]
    actions = report(world, replace(status, **{"sequence": status.sequence + 1, field: value}))
    assert world.job(job).statuses[status.worker] is before
    assert any(isinstance(action, Warn) and field in action.text for action in actions)
    report(world, replace(status, sequence=status.sequence + 1, applied=99))
    assert world.ask(GetJob(job=job)).job.step == 99


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"throughput": {1: NAN}}, "throughput"),
        ({"throughput": {1: INF}}, "throughput"),
        ({"throughput": {1: 0.0}}, "throughput"),
        ({"throughput": {1: 1e-300}}, "throughput"),
        ({"throughput": {-1: 1.0}}, "throughput"),
        ({"throughput": {1: 1e10}}, "throughput"),
        ({"gpus": GpuRange(min=10**6, max=10**6), "virtual_workers": 10**6}, "gpus.max"),
        ({"gpus": GpuRange(min=0, max=1)}, "gpus.min"),
        ({"gpus": GpuRange(min=-5, max=-1)}, "gpus.min"),
        ({"checkpoint": CheckpointSpec(every_s=NAN)}, "checkpoint.every"),
        ({"checkpoint": CheckpointSpec(every_s=INF)}, "checkpoint.every"),
        ({"checkpoint": CheckpointSpec(every_s=0.0)}, "checkpoint.every"),
        ({"checkpoint": CheckpointSpec(every_s=-1.0)}, "checkpoint.every"),
        ({"checkpoint": CheckpointSpec(save_timeout_s=NAN)}, "checkpoint.save_timeout"),
        ({"checkpoint": CheckpointSpec(keep=0)}, "checkpoint.keep"),
        ({"sharding": Sharding.OPTIMIZER, "determinism": Determinism.NONE}, "sharding"),
        ({"sharding": Sharding.OPTIMIZER, "determinism": Determinism.STATIC}, "sharding"),
        ({"start_timeout_s": NAN}, "start_timeout"),
        ({"load_timeout_s": -1.0}, "load_timeout"),
        ({"step_timeout_s": NAN}, "step_timeout"),
        ({"pause_timeout_s": 0.0}, "pause_timeout"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 2**60}, "max_steps"),
        ({"until": Until(metric="accuracy", bound=NAN)}, "until"),
        ({"until": Until(metric="", bound=0.9)}, "until"),
        ({"until": Until(metric="m" * 1000, bound=0.9)}, "until"),
        ({"priority": 2**40}, "priority"),
        ({"user": "u" * 1000}, "user"),
        ({"workdir": "/" + "d" * 10_000}, "workdir"),
    ],
)
def test_a_job_with_a_number_that_makes_no_sense_is_refused_with_the_field(changes: dict[str, Any], said: str) -> None:
    assert refusal(job_spec(**changes)).startswith(said)


@pytest.mark.parametrize(
    "server",
    [
        {"gpus": (Gpu(index=0, kind=GpuKind.CPU, name=""), Gpu(index=0, kind=GpuKind.CPU, name=""))},
        {"gpus": (Gpu(index=-1, kind=GpuKind.CPU, name=""),)},
        {"gpus": (Gpu(index=0, kind=GpuKind.CPU, name="", memory_bytes=2**63),)},
        {"gpus": tuple(Gpu(index=i, kind=GpuKind.CPU, name="") for i in range(5000))},
        {"gpus": (), "cpu_cores": -1},
        {"gpus": (), "allocatable": Allocatable(cpus=math.nan, memory_bytes=1)},
        {"gpus": (), "allocatable": Allocatable(cpus=math.inf, memory_bytes=1)},
        {"gpus": (), "allocatable": Allocatable(cpus=1.0, memory_bytes=-1)},
        {"gpus": (), "allocatable": Allocatable(cpus=1.0, memory_bytes=1, worker_cpus=-math.inf)},
        {"gpus": (), "allocatable": Allocatable(cpus=1.0, memory_bytes=1, unheld="x" * 100_000)},
        {"gpus": (), "address": "a" * 1000},
        {"gpus": (), "rack": "r" * 1000},
        {"gpus": (), "wiring": Wiring(driver="d" * 1000)},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, above=("x",) * 1000),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, pcie_bytes_per_s=math.inf),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, peers=(2**60,)),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, peers=(-1,)),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, peers=tuple(range(5000))),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, cpus="0," * 10_000),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, nvlinks=(NvLinks(count=-1),)),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, nvlinks=(NvLinks(count=1, peer=2**60),)),))},
        {"gpus": (), "wiring": Wiring(gpus=(GpuWiring(index=0, nvlinks=(NvLinks(count=1, bytes_per_s=math.nan),)),))},
        {"gpus": (), "wiring": Wiring(nics=(Nic(name="n", above=("x",) * 1000),))},
        {"gpus": (), "wiring": Wiring(nics=tuple(Nic(name="n") for _ in range(5000)))},
        {"gpus": (), "wiring": Wiring(nics=(Nic(name="n", bytes_per_s=math.nan),))},
        {"gpus": (), "wiring": Wiring(adapters=tuple(Adapter(name="m:1") for _ in range(5000)))},
        {"gpus": (), "wiring": Wiring(adapters=(Adapter(name="m:1", link_layer="x" * 1000),))},
    ],
)
def test_a_server_that_cannot_be_is_not_taken_in(server: dict[str, Any]) -> None:
    world = World({})
    told = Server(**{"server": S1, "address": "127.0.0.1", **server})
    actions = world.machine.handle(
        world.now,
        AgentMessage(S1, AgentHello(server=told, incarnation="a", workers=(), starting=(), exited=())),
    )
    assert [type(action) for action in actions] == [Warn]
    assert world.machine.cluster.servers.sessions == {}


@pytest.mark.parametrize("policy", [kind.name for kind in POLICIES])
def test_poison_that_an_older_version_has_recorded_does_not_end_the_controller(policy: str) -> None:
    world, job, _ = training(policy)
    key, submitted = state_key(job), submission_key(job)
    submission = msgspec.msgpack.decode(world.store[submitted], type=Submission)
    spec = replace(submission.spec, throughput={1: NAN, 2: 2.0})
    world.store[submitted] = msgspec.msgpack.encode(replace(submission, spec=spec, submitted_s=NAN))
    record = msgspec.msgpack.decode(world.store[key], type=JobRecord)
    poisoned = replace(
        record,
        attained_gpu_s=INF,
        executed_s=NAN,
        counted_s=INF,
        progress=Progress(step=-5, total_steps=2**60, samples_per_s=NAN, median_step_s=INF, metrics={"loss": NAN}),
        measured=(Measured(share=1, servers=1, recent=(0.0, NAN), times=1, at_s=NAN),),
        shares=(*record.shares, ShareChange(time_s=NAN, share=2, generation=1)),
    )
    world.store[key] = msgspec.msgpack.encode(poisoned)
    kind = KindRecord(
        fingerprint=world.job(job).kind,
        updated_s=NAN,
        measured=(Measured(share=1, servers=1, recent=(INF,), times=1, at_s=0.0),),
    )
    world.store[f"/throughput/{kind.fingerprint}"] = msgspec.msgpack.encode(kind)
    world.restart()
    world.pass_time(5.0)
    assert world.job(job).record.phase is JobPhase.RUNNING
    assert world.job(job).spec.throughput == {2: 2.0}
    assert math.isfinite(world.job(job).attained_gpu_s(world.now))
    assert EventKind.POLICY_FAILED not in world.kinds()
    for number in numbers(msgspec.to_builtins(world.ask(GetJob(job=job)))):
        assert math.isfinite(number)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_policy_file_with_a_number_that_is_none_is_refused(value: float) -> None:
    for document in (
        {"policy": "afs-p", "parameters": {"unit_s": value}},
        {"policy": "tiresias-l", "parameters": {"thresholds_gpu_s": [1.0, value]}},
    ):
        with pytest.raises(WrongOption):
            load_scheduler(document, "test")


def test_a_generation_that_nobody_can_have_ordered_does_not_become_the_jobs() -> None:
    world, job, status = training()
    for generation in (2**45, 2**53):
        report(world, replace(status, sequence=status.sequence + generation % 7, order=generation))
    assert world.job(job).record.generation < 2**40
    world.restart()
    assert world.job(job).record.generation < 2**40


def test_what_a_status_may_change_without_a_second_look_is_how_far_a_worker_is_and_how_fast() -> None:
    """A new field must be compared in `inbound`, or added here."""
    progress = {"applied", "epoch", "total_steps", "samples_per_s", "median_step_s", "steady", "metrics", "note"}
    progress |= {"exchange_s"}  # only shown
    progress.add("odd_metrics")  # a worker that reports them gets a full check (`sensible`)
    progress |= {
        "saving_s",
        "longest_step_s",
        "batch_samples",
        "sequence",
        "saved_file",
        "job",
        "worker",
    }  # a file comes with `saved`; the last two find the earlier status
    status = example_status()
    for name in status.__struct_fields__:
        changed = replace(status, **{name: _other(getattr(status, name))})
        assert (messages._besides_progress(changed) == messages._besides_progress(status)) is (name in progress), name


def example_status() -> WorkerStatus:
    return WorkerStatus(
        job=JobId("j-1"),
        worker=WorkerId("j-1.0"),
        pid=1,
        address="a",
        phase=WorkerPhase.TRAINING,
        generation=1,
        order=1,
        floor=1,
        applied=1,
        sequence=1,
    )


def _other(value: Any) -> Any:
    return "another" if value is None or not isinstance(value, int | float) else value + 1
