"""A store that is older than the cluster: it was restored from a backup, and time has gone on without it (cluster 3).

Nothing tells a controller that its store is old but what the agents say. Then:

* a job's number that an agent has been told to start once is not used again, whatever the store says;
* a job that the store knows, but not as far as its workers are, is *overtaken*. Its generation and the number of its workers are
  set beyond anything that anybody may have seen, since servers that are silent now may have seen more than those that have
  spoken. Its workers are asked to save their state and end, and it starts again from there: no step is lost;
* a job that the store does not know at all is left alone (`guests`).

What users have asked for since the backup is lost, and only they know it: the operator is told.
"""

from __future__ import annotations

from ..protocol.messages import AgentHello
from ..protocol.model import GpuAddress, WorkerId, WorkerStatus, worker_number
from .cluster import Cluster
from .jobs import Job, WorkerRecord, WorkerState

MAX_NUMBER = 10**15  # of a job; more is nobody's
MAX_GENERATION = 2**40  # likewise; far below what a status may hold, as a margin is added each time
MARGIN = 1000  # generations, and workers of a job: more than were ordered unseen


def note_jobs(cluster: Cluster, now: float, hello: AgentHello) -> None:
    """Never use a number again that this agent has seen."""
    if not cluster.next_job <= hello.highest_job <= MAX_NUMBER:
        return
    cluster.next_job = hello.highest_job + 1
    if hello.cluster == cluster.id:
        _tell(cluster, now, f"server {hello.server.server} has run a job with the number {hello.highest_job}")


def ahead(job: Job, worker: WorkerId, status: WorkerStatus | None) -> bool:
    """Does `worker` show that `job` was further than the store says?"""
    if job.final:
        return False
    return _seen(status) > job.kept.generation or worker_number(worker) >= job.kept.worker_count


def overtaken(job: Job, worker: WorkerId, status: WorkerStatus | None) -> bool:
    """Is `worker`, which runs, one of those that are to make room for a new start of `job`?"""
    first, beyond = job.kept.lost_names
    waits = not job.final and (job.kept.overtaken or job.newest is None)  # for them to have saved and ended
    lost = waits and first <= worker_number(worker) < beyond
    return ahead(job, worker, status) or (lost and job.worker(worker) is None)


def bring_forward(
    cluster: Cluster, now: float, job: Job, worker: WorkerId, gpu: GpuAddress | None, status: WorkerStatus | None
) -> None:
    """Make the record of `job` newer than anything of it that runs. `reconcile` then has its workers save and end.

    `gpu`: where `worker` runs; None: it has ended.
    """
    kept = job.kept
    seen = _seen(status)
    if seen > kept.generation or worker_number(worker) >= kept.worker_count:
        _tell(cluster, now, f"{worker} of generation {seen} {'has ended' if gpu is None else f'runs on {gpu}'}")
        before = kept.worker_count if kept.lost_names == (0, 0) else kept.lost_names[0]
        count = max(kept.worker_count, worker_number(worker) + 1) + MARGIN
        generation = max(kept.generation, seen) + MARGIN
        job.update(generation=generation, worker_count=count, lost_names=(before, count))
        text = "is further than the store says: its workers save its state and end, and it starts again from there"
        cluster.tell(now, "overtaken", job.id, text)
    if gpu is not None and job.worker(worker) is None:
        trained = status is not None and status.applied is not None
        entry = WorkerRecord(worker=worker, gpu=gpu, generation=seen, state=WorkerState.RUNNING, trained=trained)
        job.update(workers=(*job.kept.workers, entry))
    job.update(overtaken=True)
    cluster.stir(job)


def _seen(status: WorkerStatus | None) -> int:
    """The newest generation that a worker knows of."""
    seen = max(status.generation, status.order) if status is not None else 0
    return seen if seen <= MAX_GENERATION else 0


def furthest(job: Job) -> WorkerId | None:
    """Who has the newest state of an overtaken job."""
    able = {
        status.worker: (status.applied, status.generation)
        for entry in job.kept.workers
        if (status := job.statuses.get(entry.worker)) is not None
        and status.applied is not None
        and status.phase.may_have_state
    }
    return max(able, key=lambda worker: able[worker], default=None)


def _tell(cluster: Cluster, now: float, evidence: str) -> None:
    if cluster.store_is_old:
        return
    cluster.store_is_old = True
    text = f"the store is older than the cluster: {evidence}, which the store does not know. Requests since then may be lost"
    cluster.tell(now, "store-old", None, text)
    cluster.warn(text)
