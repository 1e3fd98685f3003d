"""Idle GPUs of jobs: the user is notified, then the GPUs are taken back (field `idle` of configuration and job files).

The idle time of a job counts while the job runs undisturbed and its agents report that all of its GPUs are idle. It
does not count while the job starts, is resized or stops, nor if the use of any GPU is unknown; and each time limit is
extended by the duration of a checkpoint. A job is shrunk to its minimum until its GPUs compute again, and suspended as
by `pause`, with its state saved. Neither is possible for a command that has not called `elastic.join()`, so its user is
only notified: no job is killed for being idle.
"""

from __future__ import annotations

from ...protocol.messages import EventKind, Withheld, Withholding, WorkerUse
from ...protocol.model import NO_USE, Idle, JobPhase
from ...protocol.texts import gpu_count, span
from ...protocol.times import USE_STALE_S
from ..cluster import Cluster
from ..jobs.job import Job
from .withholding import stops_whole, withhold

SAME_S = 1.0  # idle times with beginnings that differ by less are the same one
NO_WAY_BACK = "it has not called elastic.join(), so its state cannot be saved"


def note_use(cluster: Cluster, now: float, job: Job, report: WorkerUse) -> None:
    """Take a report of one worker's use of resources."""
    before_s = job.uses.idle.get(report.worker)
    earlier = job.uses.take(now, report)
    if earlier is not NO_USE:
        job.update(use=job.record.use.plus(earlier))
    if report.idle_s == 0 and (job.record.idle_warned or job.record.idle_shrunk):
        job.update(idle_warned=False, idle_shrunk=False)
        cluster.jobs.mark_dirty(job)
    after_s = job.uses.idle.get(report.worker)
    same = before_s is not None and after_s is not None and abs(after_s - before_s) < SAME_S
    if not (same and job.idle_due_s is not None):  # a report of one of many idle workers rarely changes anything
        _set_timer(cluster, now, job)


def idle_since_s(now: float, job: Job) -> float | None:
    """Return since when all GPUs of a job have been idle (Unix time); None: some compute, or their use is unknown."""
    record, withheld, newest = job.record, job.record.withheld, job.newest
    stops = withheld is not None and withheld.how is not Withholding.HOLD
    if record.phase is not JobPhase.RUNNING or stops or not record.target or job.workers.stopping:
        return None
    if job.elastic and (newest is None or newest.generation > record.committed):
        return None
    since_s = job.uses.idle_since_s(len(job.workers), now - USE_STALE_S)
    return max(since_s, record.phase_since_s or since_s) if since_s is not None else None


def reclaim_idle(cluster: Cluster, now: float, job: Job) -> None:
    """Notify the user of an idle job, or take GPUs back, if a time limit has passed."""
    if job.idle_due_s is None or now < job.idle_due_s:
        return
    since_s, rules = idle_since_s(now, job), _rules(cluster, job)
    if since_s is not None:
        begun_s = _begun_s(job, since_s)
        due = {act for act, after_s in _acts(job, rules).items() if now >= begun_s + after_s}
        if "suspend" in due:
            _suspend(cluster, now, job, since_s)
        elif "shrink" in due:
            _shrink(cluster, now, job, since_s)
        elif "warn" in due:
            _warn(cluster, now, job, since_s, rules)
    job.set_idle_timer(None)
    _set_timer(cluster, now, job)


def rules_changed(cluster: Cluster) -> None:
    """Apply changed rules: each job is judged again at its next report."""
    for job in cluster.jobs.index.live.values():
        job.set_idle_timer(None)


def _set_timer(cluster: Cluster, now: float, job: Job) -> None:
    acts = _acts(job, _rules(cluster, job))
    since_s = idle_since_s(now, job) if acts else None
    due_s = _begun_s(job, since_s) + min(acts.values()) if since_s is not None else None
    if job.set_idle_timer(due_s):
        cluster.jobs.touch(job)


def _rules(cluster: Cluster, job: Job) -> Idle:
    own = job.spec.idle
    return cluster.settings.idle.and_(own) if own else cluster.settings.idle


def _acts(job: Job, rules: Idle) -> dict[str, float]:
    """Return the actions on the job while it stays idle: by name, the seconds after which each is taken."""
    found: dict[str, float] = {}
    if not rules:
        return found
    stops = stops_whole(job)
    if stops and rules.suspend_s is not None:
        found["suspend"] = rules.suspend_s
    if stops and rules.shrink_s is not None and _may_shrink(job):
        found["shrink"] = rules.shrink_s
    times_s = [rules.warn_s] if stops else [rules.warn_s, rules.shrink_s, rules.suspend_s]
    warn_s = min((each for each in times_s if each is not None), default=None)
    if warn_s is not None and not job.record.idle_warned:
        found["warn"] = warn_s
    return found


def _begun_s(job: Job, since_s: float) -> float:
    """Return from when the idle time of a job counts (Unix time): the job may have written a checkpoint first."""
    return since_s + max((status.saving_s for status in job.statuses.values()), default=0.0)


def _may_shrink(job: Job) -> bool:
    return job.elastic and not job.record.idle_shrunk and len(job.record.target) > job.spec.gpus.min


def idle_sentence(now: float, job: Job) -> str:
    """Describe the last action on a job with idle GPUs, for users; "": none was taken."""
    if job.record.idle_shrunk:
        return f"is shrunk to {gpu_count(job.spec.gpus.min)} until its GPUs do something"
    since_s = idle_since_s(now, job) if job.record.idle_warned else None
    return _nothing(job, now - since_s) if since_s is not None else ""


def _nothing(job: Job, idle_s: float) -> str:
    gpus = len(job.record.target)
    return f"its {gpu_count(gpus)} {'has' if gpus == 1 else 'have'} done nothing for {span(idle_s)}"


def _warn(cluster: Cluster, now: float, job: Job, since_s: float, rules: Idle) -> None:
    job.update(idle_warned=True)
    if not stops_whole(job):
        then = f"{NO_WAY_BACK}: `elasticctl cancel {job.id}` ends it"
    else:
        acts = [f"after {span(rules.shrink_s)} it shrinks to {gpu_count(job.spec.gpus.min)}"] if rules.shrink_s else []
        acts += [f"after {span(rules.suspend_s)} it is paused with its state saved"] if rules.suspend_s else []
        then = ", ".join(acts) or f"`elasticctl pause {job.id}` saves its state and gives them back"
    cluster.history.add(now, EventKind.IDLE, job.id, f"{_nothing(job, now - since_s)}; {then}")


def _shrink(cluster: Cluster, now: float, job: Job, since_s: float) -> None:
    text = f"{_nothing(job, now - since_s)}: it shrinks to {gpu_count(job.spec.gpus.min)} until they do something"
    cluster.history.add(now, EventKind.IDLE, job.id, text)
    job.update(idle_shrunk=True, idle_warned=True)
    cluster.jobs.mark_dirty(job)


def _suspend(cluster: Cluster, now: float, job: Job, since_s: float) -> None:
    nothing = _nothing(job, now - since_s)
    text = f"{nothing}: it is paused with its state saved; `elasticctl resume {job.id}` lets it run again"
    cluster.history.add(now, EventKind.IDLE, job.id, text)
    job.update(idle_shrunk=False, idle_warned=False)
    withheld = Withheld(how=Withholding.PAUSE, since_s=now, by=f", as {nothing}")
    withhold(cluster, now, job, withheld, nothing)
