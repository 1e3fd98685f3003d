"""Recovery with a store that is older than the cluster, because it was restored from a backup (cluster 3).

Agents remember the newest event that they have received, and the greatest job number that they were asked to start. An
agent that knows more than the store shows that the store is old. Then:

* no number is used again: the numbers of jobs, of events, and of each job's generations and workers are raised above
  any number that may have been used. Servers that have not reported yet may know higher ones than those that have,
  hence the margin. Generations matter most, because only a later generation may overwrite a checkpoint;
* a job with workers that are ahead of the store is *overtaken*: its workers are asked to save their state and end, and
  the job starts again from there, so that no step is lost;
* a job that the store does not know at all is left alone (`foreign`).

Users' requests since the backup are lost, and only the users can repeat them. The controller reports that to the
operator.
"""

from __future__ import annotations

from ...protocol.messages import AgentHello, EventKind
from ...protocol.model import GpuAddress, WorkerId, WorkerStatus, worker_number
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import WorkerRecord, WorkerState

MAX_NUMBER = 10**15  # greatest valid number of a job or an event
# Greatest valid number of a generation or worker; far below the bound of a status, since MARGIN is added each time.
MAX_GENERATION = 2**40
MARGIN = 1000  # added to numbers of jobs, generations and workers: more than were used after the backup


def note_age(cluster: Cluster, now: float, hello: AgentHello) -> None:
    """Raise the numbers if this agent knows a later event or job than the store."""
    ours = hello.cluster == cluster.id
    if ours and cluster.history.next_number <= hello.newest_event <= MAX_NUMBER:
        what = f"has heard of event {hello.newest_event}, and the last one in the store is {cluster.history.next_number - 1}"
        cluster.history.skip_to(hello.newest_event + MARGIN)
        _is_old(cluster, now, f"server {hello.server.server} {what}")
    if cluster.jobs.next_number <= hello.highest_job <= MAX_NUMBER:
        what = f"has run a job with the number {hello.highest_job}, which the store does not know"
        cluster.skip_jobs(hello.highest_job + MARGIN)
        if ours:
            _is_old(cluster, now, f"server {hello.server.server} {what}")


def ahead(job: Job, worker: WorkerId, status: WorkerStatus | None) -> bool:
    """Return whether `worker` shows that `job` had advanced further than the store says."""
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
    """Mark `job` as overtaken, since `worker` is ahead of the record.

    Then `reconcile` ends the job's workers and starts it again. `gpu`: the GPU of `worker`; None: it has ended. `gpus`:
    indices if the worker has several GPUs there.
    """
    seen = _seen(status)
    _is_old(cluster, now, f"{worker} of generation {seen} {'has ended' if gpu is None else f'runs on {gpu}'}")
    _lift(job, seen, worker_number(worker))
    if not job.record.overtaken and job.newest is not None:
        text = "is further than the store says: its workers save its state and end, and it starts again from there"
        cluster.history.add(now, EventKind.OVERTAKEN, job.id, text)
    if gpu is not None and job.worker(worker) is None:
        trained = status is not None and status.applied is not None
        entry = WorkerRecord(
            worker=worker, gpu=gpu, generation=seen, state=WorkerState.RUNNING, trained=trained, gpus=gpus
        )
        job.put_worker(entry)
    job.update(overtaken=True)
    cluster.jobs.mark_dirty(job)


def _seen(status: WorkerStatus | None) -> int:
    """Return the newest generation in a worker's status; 0 if the status has none, or an invalid one."""
    seen = max(status.generation, status.order) if status is not None else 0
    return seen if seen <= MAX_GENERATION else 0


def _renewed(job: Job) -> bool:
    """Return whether the job has been given an order since its numbers were raised.

    The job then continues with that order.
    """
    return job.newest is not None and job.newest.generation > job.record.lost_generations[1]


def _lift(job: Job, generation: int, worker: int) -> None:
    """Raise the numbers of `job` above the given ones, and above those that its lost history may have used."""
    kept = job.record
    inside = generation <= kept.lost_generations[1] and worker < kept.lost_names[1]
    lifted = kept.lost_generations != (0, 0)
    if lifted and (inside or _renewed(job)):
        return
    generations, count = max(kept.generation, generation) + MARGIN, max(kept.worker_count, worker + 1) + MARGIN
    job.update(
        cycle=generations + 1 if job.restart_counted else kept.cycle,  # the job waits for its restart as before
        generation=generations,
        worker_count=count,
        lost_generations=(kept.lost_generations[0] if lifted else kept.generation, generations),
        lost_names=(kept.lost_names[0] if lifted else kept.worker_count, count),
    )


def _is_old(cluster: Cluster, now: float, evidence: str) -> None:
    if not cluster.find_store_old():
        return
    text = f"the store is older than the cluster: {evidence}. Requests since then may be lost"
    cluster.history.add(now, EventKind.STORE_OLD, None, text)
    cluster.warn(text)
    cluster.skip_jobs(cluster.jobs.next_number + MARGIN)
    for job in cluster.jobs.index.live.values():
        _lift(job, 0, 0)
