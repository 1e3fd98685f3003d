"""Requests that stop or release jobs: pause, hold, resume, cancel, requeue, checkpoint.

A job that gives up its GPUs at a user's request is preempted as by a policy: its state is saved first
(`reconcile.saving`). Then `JobRecord.withheld` keeps it from running, since policies do not see a withheld job. Its
time of submission stays the same, so it has its old place in the queue when it is resumed.
"""

from __future__ import annotations

import itertools

from ...protocol.errors import NotAllowed, RequestRefused, UserError
from ...protocol.messages import (
    Answer,
    Cancelled,
    Checkpointed,
    EventKind,
    Paused,
    Requeued,
    Resumed,
    Saving,
    Withheld,
    Withholding,
    WriteCheckpoint,
)
from ...protocol.model import JobId, JobPhase
from ...protocol.principals import Role
from ...protocol.texts import over_words
from ..cluster import Cluster
from ..events import ClientRequest
from ..jobs.job import Job
from ..jobs.records import WorkerRecord
from ..reconcile.dependencies import ended_with
from ..reconcile.gangs import may_run_again
from ..reconcile.restarts import end_job
from ..reconcile.targets import retarget
from ..reconcile.withholding import stops_whole, withhold
from .authority import by, check_job

LONGEST_QUIET_S = 600.0
STOPPED = "the cluster is being stopped"
MOST_SAVING = 1000  # most jobs named in an answer
MOST_TOLD = 100  # named jobs that end because they wait for a cancelled one


def pause(cluster: Cluster, now: float, asked: ClientRequest, job: Job, hold: bool) -> Answer | None:
    """Pause or hold the job. `hold`: the job keeps the GPUs that it has.

    Return None if the controller has just started and not all servers have reported. Raises RequestRefused, NotAllowed.
    """
    act, how = ("hold", Withholding.HOLD) if hold else ("pause", Withholding.PAUSE)
    check_job(asked.who, job, act)
    check_unfinished(job)
    before = job.record.withheld
    if before is not None and (before.how is how or hold):
        return Paused(job=job.id, before=before)
    if not hold:
        check_stops(job, act)
        if cluster.servers.awaited:
            return None
    operator = asked.who.role is Role.OPERATOR or (before is not None and before.operator)
    withheld = Withheld(how=how, since_s=now, by=by(asked.who), operator=operator)
    runs = hold and bool(job.record.target)
    text = f"{'held' if hold else 'paused'}{withheld.by}" + (": it runs on, and does not start again" if runs else "")
    cluster.history.add(now, EventKind.HOLDING if hold else EventKind.PAUSED, job.id, text)
    cluster.clients.audit(now, asked, act, job.id, text)
    withhold(cluster, now, job, withheld, text)
    return Paused(job=job.id, runs=runs)


def resume(cluster: Cluster, now: float, asked: ClientRequest, job: Job) -> Answer:
    """Let the job run again. Raises RequestRefused, NotAllowed."""
    check_job(asked.who, job, "resume")
    check_unfinished(job)
    before = job.record.withheld
    if before is None:
        return Resumed(job=job.id)
    if before.operator and asked.who.role is not Role.OPERATOR:
        raise NotAllowed(f"{job.id} was {before.how.past}{before.by}: only operators may let it run again")
    text = f"{before.how.back}d{by(asked.who)}"
    job.update(withheld=None)
    cluster.jobs.mark_dirty(job)
    cluster.history.add(now, EventKind.RESUMED, job.id, text)
    cluster.clients.audit(now, asked, "resume", job.id, text)
    return Resumed(job=job.id, before=before)


def cancel(cluster: Cluster, now: float, asked: ClientRequest, job: Job, save: bool) -> Answer | None:
    """Cancel the job. `save`: if a worker has the state, end the job only once the state is saved.

    Return None if the controller has just started and not all servers have reported. Raises RequestRefused, NotAllowed.
    """
    check_job(asked.who, job, "cancel")
    check_over(job)
    withheld = job.record.withheld
    if save and withheld is not None and withheld.how is Withholding.CANCEL:
        return Cancelled(job=job.id, saving=True)
    text = f"cancelled{by(asked.who)}"
    if not save or not (job.elastic and any(entry.trained for entry in job.workers)):
        job.update(ended_by=asked.who.name)
        ends = _ended_with(cluster, job)
        end_job(cluster, now, job, JobPhase.CANCELLED, text)
        cluster.clients.audit(now, asked, "cancel", job.id, text)
        return Cancelled(job=job.id, ends=ends)
    if cluster.servers.awaited:
        return None
    job.update(ended_by=asked.who.name)
    withheld = Withheld(how=Withholding.CANCEL, since_s=now, by=by(asked.who), operator=asked.who.role is Role.OPERATOR)
    cluster.history.add(now, EventKind.CANCELLING, job.id, f"is being cancelled{withheld.by}: its state is saved first")
    cluster.clients.audit(now, asked, "cancel", job.id, text)
    withhold(cluster, now, job, withheld, text)
    return Cancelled(job=job.id, saving=True, ends=_ended_with(cluster, job))


def _ended_with(cluster: Cluster, job: Job) -> tuple[JobId, ...]:
    return tuple(itertools.islice(ended_with(cluster, job), MOST_TOLD))


def requeue(cluster: Cluster, now: float, asked: ClientRequest, job: Job) -> Answer | None:
    """Preempt the job and let it wait for its turn; a command that may be run again starts from the beginning.

    Return None if the controller has just started and not all servers have reported. Raises RequestRefused, NotAllowed.
    """
    check_job(asked.who, job, "requeue")
    check_unfinished(job)
    if not job.record.target:
        raise RequestRefused(f"{job.id} has no GPUs, and waits for its turn already")
    if not stops_whole(job) and not may_run_again(job):
        raise RequestRefused(
            f"{job.id} has not called elastic.join(), and its command may not be safe to run twice: `--restarts N` allows it"
        )
    if cluster.servers.awaited:
        return None
    if not stops_whole(job):
        job.update(restarts=job.record.restarts + 1)
    text = f"requeued{by(asked.who)}"
    cluster.history.add(now, EventKind.REQUEUED, job.id, text)
    cluster.clients.audit(now, asked, "requeue", job.id, text)
    retarget(cluster, now, job, (), text)
    cluster.planning.request()
    return Requeued(job=job.id)


def checkpoint(cluster: Cluster, now: float, asked: ClientRequest, job: Job, step: int | None) -> Answer:
    """Ask the job's leader for a checkpoint of `step` or later (None: the last step known to be applied).

    The client repeats the request with `step` until the checkpoint exists. Raises RequestRefused, NotAllowed.
    """
    check_job(asked.who, job, "checkpoint")
    kept, order = job.record, job.committed_order
    wanted = step if step is not None else job.steps_done - 1
    saved = kept.saved_step
    if step is None or saved is None or saved < wanted:
        check_unfinished(job)
    if order is None and saved is None:
        raise RequestRefused(f"{job.id} does not train: there is no state to save")
    if wanted < 0:
        raise RequestRefused(f"{job.id} has applied no step yet: there is no state to save")
    if order is None:  # no generation is committed: the job is saving its state, or has saved it
        return _checkpointed(job, saved if saved is not None else wanted)
    leader = job.worker(order.roster.leader)
    if (saved is None or saved < wanted) and leader is not None and not leader.stopping:
        cluster.servers.send(
            leader.gpu.server, WriteCheckpoint(job=job.id, worker=leader.worker, step=wanted, uid=job.uid)
        )
    if step is None:
        text = f"told{by(asked.who)} to save its state, after {wanted + 1:,} steps or more"
        cluster.history.add(now, EventKind.SAVED, job.id, text)
        cluster.clients.audit(now, asked, "checkpoint", job.id, text)
    return _checkpointed(job, wanted)


def _checkpointed(job: Job, wanted: int) -> Checkpointed:
    kept = job.record
    there = kept.saved_file if kept.saved_step is not None and kept.saved_step >= wanted else ""
    return Checkpointed(job=job.id, step=wanted, saved=kept.saved_step, file=there)


def save_all(cluster: Cluster, now: float, asked: ClientRequest, for_s: float) -> Answer | None:
    """Preempt all jobs that can be, before the cluster is stopped, and give no job GPUs for `for_s` seconds.

    Return None if the controller has just started and not all servers have reported. Raises UserError.
    """
    if not 0 <= for_s <= LONGEST_QUIET_S:
        raise UserError(f"for_s: 0 to {LONGEST_QUIET_S:g} seconds, not {for_s:g}")
    if cluster.servers.awaited:
        return None
    cluster.planning.give_nothing_until(now + for_s)
    for job in list(cluster.jobs.index.live.values()):
        if job.record.target and stops_whole(job):
            retarget(cluster, now, job, (), STOPPED, f", since {STOPPED}{by(asked.who)}")
    cluster.planning.request()
    left = [job.id for job in cluster.jobs.index.live.values() if any(map(_saves, job.workers))]
    return Saving(jobs=tuple(left[:MOST_SAVING]))


def _saves(entry: WorkerRecord) -> bool:
    return entry.stopping and entry.trained


def check_over(job: Job) -> None:
    """Raise RequestRefused for a job that is over."""
    if job.final:
        raise RequestRefused(f"{job.id} is over already: it {over_words(job.record.phase)}")


def check_unfinished(job: Job) -> None:
    """Raise RequestRefused for a job that is over, or is being cancelled."""
    check_over(job)
    withheld = job.record.withheld
    if withheld is not None and withheld.how is Withholding.CANCEL:
        raise RequestRefused(f"{job.id} {job.why_withheld}")


def check_stops(job: Job, act: str) -> None:
    """Raise RequestRefused for a job that would lose its work, as its command saves no state."""
    if not stops_whole(job):
        raise RequestRefused(
            f"{job.id} runs, and has not called elastic.join(): its state cannot be saved, so it cannot be {act}d; "
            f"`elasticctl cancel {job.id}` ends it"
        )
