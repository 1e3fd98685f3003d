"""From what is wanted to what runs, in one look at the cluster (scheduling.md; worker-runtime 4).

`settle` is called once per loop turn, however many events came: one scheduling decision (`targets`), then every job that
something has happened to is brought nearer to its target (`orders`, `restarts`, `saving`), then workers whose GPUs have become
free are started (`processes`).
"""

from __future__ import annotations

from ..cluster import Cluster
from ..intake.restored import furthest
from ..jobs.generations import GiveOrder, StartAgain, next_step
from ..jobs.job import Job
from .draining import note_drained
from .gangs import fall, leave_bad_gpus
from .growth import keep_together
from .orders import give_order
from .processes import start_waiting, stop_unneeded
from .restarts import end_cancelled, start_again
from .saving import see_to_saving, suspend
from .targets import set_targets


def settle(cluster: Cluster, now: float, at_once: bool = False) -> None:
    """Bring everything as near to what is wanted as can be done now. `at_once`: decide, however lately that was."""
    if cluster.awaited:
        return  # too little is known yet
    leave_bad_gpus(cluster, now)
    if cluster.plan_unfinished and not cluster.index.anyone_astray:
        cluster.schedule_due = True
    if cluster.schedule_due and (at_once or cluster.may_decide(now)):
        set_targets(cluster, now)
    _steer_dirty(cluster, now)
    if cluster.schedule_due and cluster.may_decide(now):  # a job has ended meanwhile, or has given GPUs back
        set_targets(cluster, now)
        _steer_dirty(cluster, now)
    start_waiting(cluster, now)
    note_drained(cluster, now)


def _steer_dirty(cluster: Cluster, now: float) -> None:
    for name in cluster.take_dirty():
        if (job := cluster.jobs.get(name)) is not None:
            _steer(cluster, now, job)


def _steer(cluster: Cluster, now: float, job: Job) -> None:
    if job.final:
        return
    if job.record.overtaken:
        job.update(overtaken=False)
        job.aim(now, (), "it is further than the controller's store, which was restored from a backup")
        job.profiling = None
        cluster.schedule_due = True
        if job.elastic or job.spec.restarts is None:
            suspend(cluster, now, job, furthest(job))
        else:
            fall(cluster, now, job, "it is further than the controller's store, which was restored from a backup")
            if job.final:
                return
    keep_together(cluster, now, job)
    step = next_step(job, cluster.gpu_free, cluster.left_at_once())
    if isinstance(step, StartAgain):
        start_again(cluster, now, job)
        step = (
            next_step(job, cluster.gpu_free, cluster.left_at_once()) if not job.final and job.newest is None else None
        )
    if isinstance(step, GiveOrder):
        give_order(cluster, now, job, step)
    if not job.final:
        stop_unneeded(cluster, now, job)
        see_to_saving(cluster, now, job)
        end_cancelled(cluster, now, job)
