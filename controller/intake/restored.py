"""A store that is older than the cluster: it was restored from a backup, and time has gone on without it (cluster 3).

Agents remember how far the cluster's history was when they last heard of it, and the greatest number of a job that they were told
to start. An agent that has heard of more than the store knows shows that the store is old. Then:

* numbers are not used again: those of jobs, of events, and of each job's generations and workers are set beyond anything that
  anybody may have seen. Servers that are silent now may have seen more than those that have spoken, hence the margin. Generations
  matter most: a checkpoint is overwritten only by a later one;
* a job whose workers are further than the store is *overtaken*: they are asked to save their state and end, and it starts again
  from there, so that no step is lost;
* a job that the store does not know at all is left alone (`guests`).

What users have asked for since the backup is lost, and only they know it: the operator is told.
"""

from __future__ import annotations

from ...protocol.messages import AgentHello, EventKind
from ...protocol.model import GpuAddress, WorkerId, WorkerStatus, worker_number
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import WorkerRecord, WorkerState

MAX_NUMBER = 10**15  # of a job or an event; more is nobody's
MAX_GENERATION = 2**40  # likewise; far below what a status may hold, as a margin is added each time
MARGIN = 1000  # of jobs, of generations, of workers of a job: more than were numbered unseen


def note_age(cluster: Cluster, now: float, hello: AgentHello) -> None:
    """Has this agent heard of more than the store knows?"""
    ours = hello.cluster == cluster.id
    if ours and cluster.next_event <= hello.newest_event <= MAX_NUMBER:
        what = f"has heard of event {hello.newest_event}, and the last one in the store is {cluster.next_event - 1}"
        cluster.next_event = hello.newest_event + MARGIN
        _is_old(cluster, now, f"server {hello.server.server} {what}")
    if cluster.next_job <= hello.highest_job <= MAX_NUMBER:
        what = f"has run a job with the number {hello.highest_job}, which the store does not know"
        cluster.skip_jobs(hello.highest_job + MARGIN)
        if ours:
            _is_old(cluster, now, f"server {hello.server.server} {what}")


def ahead(job: Job, worker: WorkerId, status: WorkerStatus | None) -> bool:
    """Does `worker` show that `job` was further than the store says?"""
    kept, number, seen = job.record, worker_number(worker), _seen(status)
    if job.final:
        return False
    if seen > kept.generation or number >= kept.worker_count:
        return True
    (generation, _), (first, beyond) = kept.lost_generations, kept.lost_names
    lost = first <= number < beyond or generation < seen <= kept.lost_generations[1]
    return lost and not _renewed(job)


def bring_forward(
    cluster: Cluster,
    now: float,
    job: Job,
    worker: WorkerId,
    gpu: GpuAddress | None,
    status: WorkerStatus | None,
    gpus: tuple[int, ...] = (),
) -> None:
    """`worker` is ahead of the record of `job`: `reconcile` has all its workers save and end, and starts it again.

    `gpu`: where `worker` runs; None: it has ended. `gpus`: if it has several there.
    """
    seen = _seen(status)
    _is_old(cluster, now, f"{worker} of generation {seen} {'has ended' if gpu is None else f'runs on {gpu}'}")
    _lift(job, seen, worker_number(worker))
    if not job.record.overtaken and job.newest is not None:
        text = "is further than the store says: its workers save its state and end, and it starts again from there"
        cluster.tell(now, EventKind.OVERTAKEN, job.id, text)
    if gpu is not None and job.worker(worker) is None:
        trained = status is not None and status.applied is not None
        entry = WorkerRecord(
            worker=worker, gpu=gpu, generation=seen, state=WorkerState.RUNNING, trained=trained, gpus=gpus
        )
        job.put_worker(entry)
    job.update(overtaken=True)
    cluster.mark_dirty(job)


def _seen(status: WorkerStatus | None) -> int:
    """The newest generation that a worker knows of."""
    seen = max(status.generation, status.order) if status is not None else 0
    return seen if seen <= MAX_GENERATION else 0


def furthest(job: Job) -> WorkerId | None:
    """Who has the newest state of an overtaken job."""
    able = {
        status.worker: (status.applied, status.generation)
        for entry in job.workers
        if (status := job.statuses.get(entry.worker)) is not None
        and status.applied is not None
        and status.phase.may_have_state
    }
    return max(able, key=lambda worker: able[worker], default=None)


def _renewed(job: Job) -> bool:
    """Has it been given an order since its numbers were lifted? Then that is how it goes on."""
    return job.newest is not None and job.newest.generation > job.record.lost_generations[1]


def _lift(job: Job, generation: int, worker: int) -> None:
    """Set the numbers of `job` beyond those that the lost part of its history may have used, at least beyond these."""
    kept = job.record
    inside = generation <= kept.lost_generations[1] and worker < kept.lost_names[1]
    lifted = kept.lost_generations != (0, 0)
    if lifted and (inside or _renewed(job)):
        return
    generations, count = max(kept.generation, generation) + MARGIN, max(kept.worker_count, worker + 1) + MARGIN
    job.update(
        cycle=generations + 1 if job.restart_counted else kept.cycle,  # it waits for its time to start again, as before
        generation=generations,
        worker_count=count,
        lost_generations=(kept.lost_generations[0] if lifted else kept.generation, generations),
        lost_names=(kept.lost_names[0] if lifted else kept.worker_count, count),
    )


def _is_old(cluster: Cluster, now: float, evidence: str) -> None:
    if cluster.store_is_old:
        return
    cluster.store_is_old = True
    text = f"the store is older than the cluster: {evidence}. Requests since then may be lost"
    cluster.tell(now, EventKind.STORE_OLD, None, text)
    cluster.warn(text)
    cluster.skip_jobs(cluster.next_job + MARGIN)
    for job in cluster.index.live.values():
        _lift(job, 0, 0)
