"""Store of a cluster that has run for months: servers, waiting jobs, and ended jobs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from elasticd.controller.jobs.archive import key_of
from elasticd.controller.jobs.records import ArchivedJob, JobRecord, Progress, Submission, WorkerRecord, WorkerState
from elasticd.controller.records import CLUSTER_KEY, ClusterRecord, ServerRecord, server_key, submission_key
from elasticd.controller.store import Put, SqliteStore
from elasticd.protocol.messages import ShareChange
from elasticd.protocol.model import (
    Fault,
    Gpu,
    GpuAddress,
    GpuKind,
    GpuRange,
    JobId,
    JobPhase,
    JobSpec,
    Resize,
    Server,
    ServerId,
    WorkerId,
)
from elasticd.scheduler.speedup_curve import Measured

CLUSTER = "0123456789abcdef0123456789abcdef"
BATCH = 2000
SIZES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 8), (8, 16))  # least and most GPUs
KINDS = 20
SHORTEST_S, LONGEST_S = 120, 3600
DAY_S = 86_400.0


def server(number: int, gpus: int) -> Server:
    """Return a server as its agent describes it."""
    name = f"server{number:04d}"
    slots = tuple(
        Gpu(index=i, kind=GpuKind.CUDA, name="NVIDIA A100-SXM4-40GB", uuid=f"GPU-{name}-{i}", memory_bytes=40 << 30)
        for i in range(gpus)
    )
    return Server(server=ServerId(name), address="127.0.0.1", gpus=slots, cpu_cores=64, memory_bytes=512 << 30)


def spec(chance: random.Random, name: str = "") -> JobSpec:
    """Return a random job; each of its steps takes a second."""
    least, most = chance.choice(SIZES)
    kind = chance.randrange(KINDS)
    return JobSpec(
        name=name or f"train{kind}",
        command=("python", "-u", "train.py", "--config", f"configs/model{kind}.yaml", "--epochs", "90"),
        gpus=GpuRange(min=least, max=most),
        virtual_workers=most,
        workdir=f"/home/user{kind}/projects/model{kind}",
        env={
            "PATH": "/home/user/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "VIRTUAL_ENV": "/home/user/.venv",
            "HOME": f"/home/user{kind}",
            "LANG": "C.UTF-8",
            "USER": f"user{kind}",
        },
        max_steps=chance.randint(SHORTEST_S, LONGEST_S),
        model=f"model{kind}",
        user=f"user{kind}",
    )


def fill(path: Path, servers: int, gpus: int, live: int, ended: int, now: float, fixed: Sequence[int] = ()) -> None:
    """Write a new store: `ended` jobs, then `live` ones that wait, the first of which want these `fixed` numbers of GPUs."""
    store = SqliteStore(path)
    writes: list[Put] = [Put(CLUSTER_KEY, msgspec.msgpack.encode(ClusterRecord(id=CLUSTER)))]
    for number in range(servers):
        known = ServerRecord(server=server(number, gpus), agent=identity(number))
        writes.append(Put(server_key(known.server.server), msgspec.msgpack.encode(known)))
    for write in _jobs(live, ended, now, fixed):
        writes.append(write)
        if len(writes) >= BATCH:
            store.commit((), writes)
            writes.clear()
    store.commit((), writes)
    store.close()


def identity(number: int) -> str:
    """Return the identity of a server's agent."""
    return f"{number:016x}"


def _jobs(live: int, ended: int, now: float, fixed: Sequence[int]) -> Iterator[Put]:
    chance = random.Random(0)
    for number in range(1, ended + live + 1):
        what = spec(chance)
        if 0 <= (place := number - ended - 1) < len(fixed):
            size = GpuRange(min=fixed[place], max=fixed[place])
            what = replace(what, gpus=size, virtual_workers=size.max, max_steps=LONGEST_S)
        job = JobId(f"{what.name}-{number}")
        submission = Submission(
            job=job,
            request=f"{chance.getrandbits(128):032x}",
            uid=f"{chance.getrandbits(64):016x}",
            spec=what,
            submitted_s=now - (ended + live - number) * DAY_S * 30 / (ended + live),
        )
        if number > ended:
            yield Put(submission_key(job), msgspec.msgpack.encode(submission))
            continue
        archived = ArchivedJob(submission=submission, record=_ended(submission, chance))
        yield Put(key_of(submission, archived.record.finished_s or 0.0), msgspec.msgpack.encode(archived))


def _ended(submission: Submission, chance: random.Random) -> JobRecord:
    started_s = submission.submitted_s + chance.uniform(1, 600)
    finished_s = started_s + chance.uniform(SHORTEST_S, LONGEST_S)
    share = submission.spec.gpus.min
    where = chance.randrange(1000)
    past = tuple(
        WorkerRecord(
            worker=WorkerId(f"{submission.job}.{i}"),
            gpu=GpuAddress(server=ServerId(f"server{where:04d}"), index=i),
            generation=1,
            state=WorkerState.ENDED,
            trained=True,
            started_s=started_s,
            joined_s=started_s + 2,
            finished=True,
            fault=Fault.NONE,
            pid=4711,
            exit_code=0,
            ended_s=finished_s,
        )
        for i in range(share)
    )
    resize = Resize(
        generation=2, step=100, workers_before=share, workers_after=share, longest_gap_s=0.1, median_step_s=1.0
    )
    return JobRecord(
        phase=JobPhase.FINISHED,
        started_s=started_s,
        finished_s=finished_s,
        exit_code=0,
        generation=2,
        committed=2,
        worker_count=share,
        past=past,
        shares=tuple(ShareChange(time_s=started_s + i, share=share, generation=1 + i) for i in range(2)),
        resizes=(resize,),
        attained_gpu_s=share * (finished_s - started_s),
        executed_s=finished_s - started_s,
        counted_s=finished_s,
        progressed=True,
        progress=Progress(
            step=submission.spec.max_steps,
            total_steps=submission.spec.max_steps,
            metrics={"loss": 0.1, "accuracy": 0.98},
        ),
        measured=(Measured(share=share, servers=1, recent=(1.0,), times=1, at_s=finished_s),),
    )
