"""Reconciliation of the cluster: jobs and workers are brought towards the targets of the scheduler.

See docs/design/scheduling.md and generations.md. `settle` runs once per turn of the controller, after all events of the
turn:

1. one scheduling decision sets the targets (`targets`);
2. every job with a change since the last turn is brought nearer to its target (`orders`, `restarts`, `saving`);
3. ordered workers of which the GPUs have become free are started (`processes`).
"""

from __future__ import annotations

from ..cluster import Cluster
from ..jobs.generations import GiveOrder, StartAgain, furthest, next_step
from ..jobs.job import Job
from .arrays import limit_arrays
from .dependencies import judge_ends
from .draining import note_drained
from .gangs import fall, leave_bad_gpus
from .growth import keep_together
from .orders import give_order
from .processes import start_waiting, stop_unneeded
from .restarts import end_cancelled, start_again
from .saving import see_to_saving, suspend
from .targets import set_targets


def settle(cluster: Cluster, now: float, at_once: bool = False) -> None:
    """Bring all jobs as near to their targets as is possible now.

    `at_once`: make a scheduling decision even if the last one was a moment ago. While a controller that has just started waits
    for agents to reconnect, nothing is done.
    """
    if cluster.servers.awaited:
        return  # agents have yet to report which workers run
    leave_bad_gpus(cluster, now)
    judge_ends(cluster, now)
    limit_arrays(cluster)
    if cluster.planning.unfinished and not cluster.jobs.index.any_off_target:
        cluster.planning.request()
    if cluster.planning.due and (at_once or cluster.may_decide(now)):
        set_targets(cluster, now)
    _steer_dirty(cluster, now)
    judge_ends(cluster, now)
    limit_arrays(cluster)
    if cluster.planning.due and cluster.may_decide(now):  # a job has ended meanwhile, or has given GPUs back
        set_targets(cluster, now)
        _steer_dirty(cluster, now)
        judge_ends(cluster, now)
    start_waiting(cluster, now)
    note_drained(cluster, now)


def _steer_dirty(cluster: Cluster, now: float) -> None:
    for name in cluster.jobs.take_dirty():
        if (job := cluster.jobs.get(name)) is not None:
            _steer(cluster, now, job)


def _steer(cluster: Cluster, now: float, job: Job) -> None:
    if job.final:
        return
    if job.record.overtaken:
        job.update(overtaken=False)
        job.set_target(now, (), "it is further than the controller's store, which was restored from a backup")
        if job.elastic or job.spec.restarts is None:
            suspend(cluster, now, job, furthest(job))
        else:
            fall(cluster, now, job, "it is further than the controller's store, which was restored from a backup")
            if job.final:
                return
    keep_together(cluster, now, job)
    step = next_step(job, cluster.gpu_free, cluster.servers.left_at_once())
    if isinstance(step, StartAgain):
        start_again(cluster, now, job)
        step = (
            next_step(job, cluster.gpu_free, cluster.servers.left_at_once())
            if not job.final and job.newest is None
            else None
        )
    if isinstance(step, GiveOrder):
        give_order(cluster, now, job, step)
    if not job.final:
        stop_unneeded(cluster, now, job)
        see_to_saving(cluster, now, job)
        end_cancelled(cluster, now, job)
