"""Views for clients: pure functions from the controller's state to the views of `protocol.messages`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, partial

from msgspec.structs import replace

from ...protocol.messages import (
    CordonView,
    CurvePoint,
    JobView,
    LocalWorker,
    ServerState,
    ServerView,
    WorkerStage,
    WorkerView,
)
from ...protocol.model import NO_USE, GpuAddress, JobId, JobPhase, Server, ServerId, Trouble
from ...protocol.principals import Principal
from ...protocol.texts import gpu_count
from ...scheduler.measuring import smaller_shares
from ...scheduler.speedup_curve import Source, points
from ..accounting import spent
from ..cluster import Cluster
from ..inbound import forgery
from ..inbound.foreign import MAX_NAME_CHARS, present, sentence, unknown_sentence
from ..jobs.avoided import Avoided
from ..jobs.job import Job
from ..jobs.lengths import length_of
from ..jobs.records import OrderKind, Progress, WorkerRecord, WorkerState
from ..reconcile import dependencies, slow_findings
from ..reconcile.deadline_admission import promise_view
from ..reconcile.draining import still_there
from ..reconcile.health import troubles as troubles_told
from ..reconcile.idle import idle_sentence, idle_since_s
from ..reconcile.snapshot import fewest
from ..reconcile.tainted import sentence as leaving
from ..records import Cordon
from ..sessions import ForeignServer, Session
from ..taints import NOTHING_OVERRULED, sentences, trusts
from .authority import shown

NAMES_TOLD = 8

Troubles = Callable[[], str]


def troubles_of(cluster: Cluster, now: float) -> Troubles:
    """Return a function that describes the servers that take no new work.

    The text is computed at most once, when needed.
    """
    return cache(partial(troubles_told, cluster, now))


def job_view(cluster: Cluster, now: float, who: Principal, job: Job, troubles: Troubles) -> JobView:
    """Return the full view of a job for `who`."""
    kept, progress, newest = job.record, job.progress(), job.newest
    return JobView(
        job=job.id,
        spec=shown(who, job),
        phase=kept.phase,
        reason=_reason(cluster, now, job, troubles),
        submitted_s=job.submission.submitted_s,
        started_s=kept.started_s,
        finished_s=kept.finished_s,
        share_gpus=job.share_gpus,
        wanted_gpus=0 if job.final else _wanted(job),
        manual_share=kept.manual_share,
        generation=kept.committed,
        ordered_generation=newest.generation if newest is not None else kept.generation,
        step=progress.step,
        total_steps=progress.total_steps if progress.total_steps is not None else job.spec.max_steps,
        epoch=progress.epoch,
        samples_per_s=0.0 if job.final else progress.samples_per_s,
        median_step_s=progress.median_step_s,
        metrics=progress.metrics,
        odd_metrics=progress.odd_metrics,
        workers=tuple(_worker_view(job, entry) for entry in job.workers),
        past_workers=tuple(_past_view(entry) for entry in kept.past),
        shares=kept.shares,
        resizes=kept.resizes,
        restarts=kept.restarts,
        exit_code=kept.exit_code,
        measuring_gpus=job.profiling.share if job.profiling is not None else None,
        owner=job.submission.owner,
        account=job.submission.account,
        batch_changes=kept.batch_changes,
        batch_samples=progress.batch_samples,
        failure=kept.failure,
        gpu_seconds=spent(now, job),
        elastic=job.elastic,
        promise=promise_view(job),
        ended_by=kept.ended_by,
        peak_gpus=kept.peak_gpus,
        does_not_grow="" if kept.phase.final else kept.does_not_grow,
        withheld=None if kept.phase.final else kept.withheld,
        ran_s=job.executed_s(now),
        saved_step=kept.saved_step,
        saved_file=kept.saved_file,
        use=used if (used := kept.use.plus(job.uses.total())) != NO_USE else None,
        busy=job.uses.busy(),
        idle_since_s=idle_since_s(now, job),
    )


def full_view(cluster: Cluster, now: float, who: Principal, job: Job) -> JobView:
    """Return the view of a job with the known facts about its throughput and length."""
    curve = _curve(cluster, now, job)
    view = job_view(cluster, now, who, job, troubles_of(cluster, now))
    return replace(view, curve=curve, length=length_of(cluster.experience.lengths, job))


def _curve(cluster: Cluster, now: float, job: Job) -> tuple[CurvePoint, ...]:
    """Return the measured points by share and servers, and the assumed points.

    Points are assumed for the maximum share, half of it, and so on.
    """
    spec = job.spec
    servers = job.estimated.fewest if job.estimated is not None else fewest(cluster, spec.gpus.max)
    estimated = cluster.estimate(now, job, servers)
    batch = _samples_per_step(job.progress())

    def point(share: int, servers: int | None, rate: float, source: Source) -> CurvePoint:
        samples_per_s = rate * batch if batch else None
        return CurvePoint(
            share_gpus=share, servers=servers, steps_per_s=rate, samples_per_s=samples_per_s, source=source.value
        )

    found = [
        replace(
            point(share, on or None, rate.steps_per_s, rate.source),
            times=rate.times if rate.at_s is not None else 0,
            age_s=max(0.0, now - rate.at_s) if rate.at_s is not None else None,
        )
        for (share, on), rate in estimated.known.items()
    ]
    if estimated.known:
        most = min(spec.gpus.max, len(estimated.curve) - 1)
        exact = points(estimated.known, estimated.fewest)
        found += [
            point(share, int(estimated.fewest[share]), float(estimated.curve[share]), Source.ASSUMED)
            for share in (most, *smaller_shares(most, spec.gpus.min, None))
            if share not in exact
        ]
    return tuple(sorted(found, key=lambda one: (one.share_gpus, one.servers or 0)))


def _samples_per_step(progress: Progress) -> int:
    """Return the global batch in samples, as reported by the job; 0 without a report."""
    return round(progress.samples_per_s * progress.median_step_s)


def _wanted(job: Job) -> int:
    newest = job.newest
    if newest is None or newest.kind is not OrderKind.TARGET:
        return len(job.record.target)  # the newest order may be a step on the way to the target: a union or a recovery
    return len(newest.roster.members)


def _reason(cluster: Cluster, now: float, job: Job, troubles: Troubles) -> str:
    return next(reasons(cluster, now, job, troubles), "")


def reasons(cluster: Cluster, now: float, job: Job, troubles: Troubles) -> Iterator[str]:
    """Yield the reasons for a job's waiting or present state, the most important first.

    "" means that there is no reason.
    """
    if job.final:
        yield job.record.reason
        return
    if cluster.servers.awaited:
        yield f"the controller has just started and waits for {_some(cluster.servers.awaited)}"
    if job.restart_at is not None:
        yield f"starts again in {max(0.0, job.restart_at - now):.0f} s"
    if job.silent and not job.elastic:
        left_s = max(0.0, max(job.silent.values()) - now)
        yield f"waits for {_some(job.silent)}, where its command may still run; at most {left_s:.0f} s more"
    if saves := _saving(now, job):
        yield "; ".join(filter(None, (saves, job.waiting_reason)))
    if not job.record.target and any(avoided.until_s is not None for avoided in job.avoided.all):
        yield _avoidance(now, job.avoided.all)
    held = [entry for entry in job.workers if entry.state is WorkerState.ORDERED]
    if held:
        gpus = [str(gpu) for entry in held for gpu in entry.all_gpus if not cluster.gpu_free(gpu)]
        yield f"waits for {', '.join(gpus or [str(entry.gpu) for entry in held])} to be free"
    if job.record.does_not_grow:
        yield f"does not grow: {job.record.does_not_grow}"
    if refused := job.refusals:
        yield _avoidance(now, refused)
    if job.hold_until is not None:
        yield f"does not grow for {max(0.0, job.hold_until - now):.0f} s: its new workers end at their start"
    newest = job.newest
    late = min(job.latenesses(), key=lambda late: late.until_s, default=None)
    if late is not None and newest is not None and newest.generation > job.record.committed:
        yield f"{late.worker} has not {late.what} yet; at most {max(0.0, late.until_s - now):.0f} s more"
    if job.record.phase is JobPhase.STARTING:
        yield "its workers are starting"
    elif job.gang and job.spec.expected_to_join:
        yield no_join(job)
    yield from _slow_workers(now, job)
    if nothing := idle_sentence(now, job):
        yield nothing
    if job.profiling is not None:
        yield f"measures its throughput with {job.profiling.share} of its {len(job.own_gpus)} GPUs"
    if leaves := leaving(cluster, job):
        yield leaves
    if job.record.withheld is not None:
        yield job.why_withheld
    if waits := dependencies.sentence(cluster, job):
        yield waits
    elif job.beyond_array and job.record.withheld is None:
        yield job.why_withheld
    if job.is_withheld:
        return
    waiting = job.waiting_reason
    yield "; ".join(filter(None, (waiting, troubles()))) if waiting or not job.record.target else ""


def _slow_workers(now: float, job: Job) -> Iterator[str]:
    """Yield a sentence for each worker that computes more slowly than the others, as the job's leader has measured it."""
    for gpu, slow in job.stragglers.items():
        yield slow_findings.evidence(gpu, slow, f", since {max(0.0, now - slow.since_s):.0f} s ago")
    yield from slow_findings.sentences(now, job)


def no_join(job: Job) -> str:
    """Describe a job that was expected to be elastic and runs as a gang."""
    return f"has not called elastic.join(): runs as a fixed gang of {gpu_count(job.share_gpus)}"


def _some(names: Collection[str]) -> str:
    """Return the first names, and the number of others."""
    first = heapq.nsmallest(NAMES_TOLD, names)
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _avoidance(now: float, servers: Iterable[Avoided]) -> str:
    """Return why a job does not use these servers, and when the next one is tried again."""
    found = [(avoided.until_s, avoided.reason) for avoided in servers if avoided.until_s is not None]
    next_s = min(until_s for until_s, _ in found)
    return f"{'; '.join(reason for _, reason in found)}; next try in {max(0.0, next_s - now):.0f} s"


def _saving(now: float, job: Job) -> str:
    """Return in words how long a preempted job may still save its state; "" if it saves none."""
    left_s = [
        entry.stop_by_s - now
        for entry in job.workers
        if entry.stopping and entry.trained and entry.stop_by_s is not None
    ]
    if job.newest is not None or not left_s:
        return ""
    return f"saves its state; at most {max(0.0, *left_s):.0f} s more"


def _worker_view(job: Job, entry: WorkerRecord) -> WorkerView:
    status, used = job.statuses.get(entry.worker), job.uses.reports.get(entry.worker)
    unheard = WorkerStage.ORDERED if entry.state is WorkerState.ORDERED else WorkerStage.STARTING
    if job.gang and job.record.phase is JobPhase.RUNNING:
        unheard = WorkerStage.RUNNING
    return WorkerView(
        worker=entry.worker,
        server=entry.gpu.server,
        gpu=entry.gpu.index,
        gpus=entry.gpus,
        attempt=entry.attempt,
        phase=WorkerStage.of(status.phase) if status is not None else unheard,
        pid=status.pid if status is not None else entry.pid,
        reason="is being stopped" if entry.stopping else status.note if status is not None else "",
        busy=used.busy if used is not None else None,
        use=used.use if used is not None else None,
    )


def _past_view(entry: WorkerRecord) -> WorkerView:
    return WorkerView(
        worker=entry.worker,
        server=entry.gpu.server,
        gpu=entry.gpu.index,
        gpus=entry.gpus,
        attempt=entry.attempt,
        phase=WorkerStage.ENDED,
        pid=entry.pid,
        exit_code=entry.exit_code,
        reason=entry.reason,
    )


def server_view(cluster: Cluster, now: float, name: ServerId) -> ServerView:
    """Return the view of a known server. A GPU counts as used while a process is on it."""
    session, foreign = cluster.servers.sessions.get(name), present(cluster, now, name)
    if foreign is not None and (session is None or not session.alive):
        return _foreign_view(foreign)
    assert session is not None
    used = {
        gpu.index: job
        for gpu in session.server.gpus
        if (job := cluster.jobs.index.on_gpu(GpuAddress(server=name, index=gpu.index))) is not None
    }
    used |= _told_to_run(session.server, session.unknown.values())
    asked = cluster.asked_on(name)
    return ServerView(
        asked_cpus=asked.millicores / 1000,
        asked_memory_bytes=asked.memory_bytes,
        server=session.server,
        alive=session.alive,
        last_heard_s=session.last_heard_s,
        used=dict(sorted(used.items())),
        state=_state(cluster, session),
        trouble="; ".join(_troubles(cluster, now, session)),
        barred={gpu: taint.text for gpu, taint in cluster.servers.tainted.get(name, {}).items()},
        troubles=session.troubles,
        clock_ahead_s=session.clock.ahead_s,
        cordons=tuple(map(_cordon_view, cluster.servers.overruled.get(name, NOTHING_OVERRULED).cordons)),
        still_there=still_there(cluster, name),
        forged=cluster.servers.forged[name].count if name in cluster.servers.forged else 0,
        busy=_busy(cluster, name),
    )


def _busy(cluster: Cluster, name: ServerId) -> dict[int, float]:
    """Return the busy part (0 to 1) of the time by GPU index; all GPUs of one process have their common value."""
    return {
        gpu.index: report.busy
        for job in cluster.jobs.index.on_server(name)
        for entry in job.workers
        if entry.gpu.server == name
        and (report := job.uses.reports.get(entry.worker)) is not None
        and report.busy is not None
        for gpu in entry.all_gpus
    }


def _cordon_view(cordon: Cordon) -> CordonView:
    return CordonView(
        gpu=cordon.gpu,
        kind=cordon.kind,
        reason=cordon.reason,
        by=cordon.by,
        since_s=cordon.since_s,
        drained_s=cordon.drained_s,
        loan=cordon.loan,
        until_s=cordon.until_s,
    )


def _told_to_run(server: Server, workers: Iterable[LocalWorker]) -> dict[int, JobId]:
    """Return the unknown jobs that an agent reports, by the index of the GPU."""
    indices = {gpu.index for gpu in server.gpus}
    return {gpu: JobId(local.job[:MAX_NAME_CHARS]) for local in workers for gpu in local.all_gpus if gpu in indices}


def _state(cluster: Cluster, session: Session) -> ServerState:
    if not session.alive:
        return ServerState.LOST
    name = session.server.server
    faults = [taint for taint in cluster.servers.tainted.get(name, {}).values() if taint.fault is not None]
    wholly = bool(session.server.gpus) and len(faults) == len(session.server.gpus)
    return (
        ServerState.UNFIT
        if wholly or name in cluster.servers.offers_nothing or not cluster.servers.fit(name)
        else ServerState.ALIVE
    )


def _troubles(cluster: Cluster, now: float, session: Session) -> Iterator[str]:
    name = session.server.server
    if not cluster.servers.fit(name):
        yield cluster.servers.health[name].sentence(now)
    if name in cluster.servers.offers_nothing:
        yield f"it offers nothing: {cluster.servers.offers_nothing[name]}"
    yield from sentences(len(session.server.gpus), cluster.servers.tainted.get(name, {}))
    overruled = cluster.servers.overruled.get(name, NOTHING_OVERRULED)
    for trouble in session.troubles:
        if not trouble.severity.blocks_new_work:
            yield _noted(trouble)
        elif trusts(overruled, trouble):
            yield f"{_noted(trouble)} (an operator trusts it)"
    for gpu in dict.fromkeys(one.gpu for one in cluster.servers.slow.get(name, ())):
        yield f"GPU {gpu} is slow for {'; '.join(slow_findings.told(cluster, name, gpu))}"
    if session.unknown:
        yield unknown_sentence(session)
    if name in cluster.servers.forged:
        yield forgery.sentence(cluster.servers.forged[name])


def _noted(trouble: Trouble) -> str:
    return trouble.text if trouble.gpu is None else f"GPU {trouble.gpu}: {trouble.text}"


def _foreign_view(foreign: ForeignServer) -> ServerView:
    used = _told_to_run(foreign.server, foreign.running.values())
    return ServerView(
        server=foreign.server,
        alive=True,
        last_heard_s=foreign.last_heard_s,
        used=used,
        state=ServerState.FOREIGN,
        trouble=sentence(foreign),
    )
