"""Requests that create, scale, profile or forecast jobs.

Each act is recorded in the job's history and in the audit log.
"""

from __future__ import annotations

import itertools

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import (
    Answer,
    EventKind,
    Forecasted,
    Profile,
    Profiling,
    Refused,
    Scale,
    Scaled,
    ShareForecast,
    Submitted,
)
from ...protocol.model import JobId, JobPhase, JobSpec
from ...protocol.principals import LOCAL_OPERATOR, Principal, Role
from ...protocol.texts import gpu_count, over_words
from ...protocol.times import FIRST_HELLO_S
from ...scheduler.admission import AdmissionState, Newcomer
from ...scheduler.amounts import Need
from ...scheduler.kinds import Demand, never_fits
from ...scheduler.priorities import ignored
from ...scheduler.quotas.pinned import Pinned
from ..cluster import Cluster
from ..events import ClientRequest
from ..jobs.job import Job
from ..jobs.records import Submission
from ..reconcile import dependencies
from ..reconcile.deadline_admission import Judged, judged, promise_view, told_with
from ..reconcile.profiling import profile_now
from ..reconcile.settle import settle
from . import after, resuming, snapshots
from .authority import by, check_job, signed
from .finding import find_job
from .pages import Fetched
from .validation import refusal

MAX_UNDECIDED = 10_000  # requests that set shares by hand and wait for a decision
MAX_UNFINISHED_JOBS = 100_000
MOST_PUSHED = 100  # jobs that lose GPUs to a share set by hand, in one answer


def submit(cluster: Cluster, now: float, asked: ClientRequest, requested: JobSpec, fetched: Fetched) -> Answer | None:
    """Handle a submission.

    Return None while the answer is pending: jobs with deadlines are judged together, later in the turn. A controller
    that has just started also waits a moment for the first agent. An agent may know of a job that a store restored from
    a backup lacks, and the number of that job must not be used again.

    Raises UserError for an invalid specification, and RequestRefused if the job is not admitted.
    """
    who, spec = asked.who, signed(asked.who, requested)
    if reason := refusal(spec):
        raise UserError(reason)
    spec = resuming.going_on(cluster, who, spec, fetched)
    spec = after.with_ids(cluster, who, spec, fetched)
    snapshots.check(cluster, who, spec)
    heard = not cluster.servers.awaited or any(session.alive for session in cluster.servers.sessions.values())
    if not heard and 0 <= now - cluster.started_s < FIRST_HELLO_S:
        return None
    if len(cluster.jobs.index.live) >= MAX_UNFINISHED_JOBS:
        raise RequestRefused(f"there are {MAX_UNFINISHED_JOBS} unfinished jobs already")
    if reason := _refusal(cluster, who, spec):
        raise RequestRefused(f"{spec.name} is not admitted: {reason}")
    if spec.deadline is None:
        return _taken_in(cluster, now, asked, spec, None)
    if len(cluster.clients.newcomers) >= MAX_UNDECIDED and asked.name not in cluster.clients.newcomers:
        raise RequestRefused("too many jobs with deadlines have been submitted at once: try again")
    cluster.clients.wait_for_admission(asked, spec)
    return None


def answer_newcomers(cluster: Cluster, now: float) -> None:
    """Admit or refuse jobs with deadlines, all that have arrived since the last turn together."""
    if not cluster.clients.newcomers or cluster.servers.awaited:
        return  # the GPUs that could be promised are known only after all servers have reported
    waiting = cluster.clients.take_newcomers()
    jobs = [
        Job(Submission(job=JobId(spec.name), request="", spec=spec, submitted_s=now, owner=asked.who.name))
        for asked, spec in waiting
    ]
    for (asked, spec), found in zip(waiting, judged(cluster, now, jobs), strict=True):
        answer: Answer
        if found.reason:
            answer = Refused(reason=f"{spec.name} is not admitted: {found.reason}")
        elif beyond := _beyond_bounds(cluster, asked.who, spec):  # other jobs of the same turn may have reached a bound
            answer = Refused(reason=f"{spec.name} is not admitted: {beyond}")
        else:
            answer = _taken_in(cluster, now, asked, spec, found)
        cluster.clients.remember(asked.name, answer)
        cluster.clients.answer(asked, answer)


def _taken_in(cluster: Cluster, now: float, asked: ClientRequest, spec: JobSpec, found: Judged | None) -> Submitted:
    """Add the job to the cluster. `found`: the promise; None for a job without a deadline."""
    who = asked.who
    name = JobId(f"{spec.name}-{cluster.jobs.next_number}")
    submission = Submission(
        job=name,
        request=asked.name,
        uid=cluster.jobs.new_uid(name),
        spec=spec,
        submitted_s=now,
        owner=who.name,
        account=who.account,
    )
    job = Job(submission)
    if found is not None:
        job.set_promise(found.state, found.planned)
        job.update(by_s=found.by_s)
    if awaited := dependencies.awaited(cluster, spec):
        job.update(waits_for=awaited)
    if spec.resume is not None:
        job.update(saved_step=spec.resume.step, gpu_name=spec.resume.gpu_name)
    cluster.jobs.submit(job)
    name_told = by(who) or (f" by {spec.user}" if spec.user else "")
    least = f"{spec.gpus.min} to " if spec.gpus.min < spec.gpus.max else ""
    deadline = told_with(now, job, found) if found is not None else ""
    text = f"submitted{name_told}: {least}{gpu_count(spec.gpus.max)}{deadline}{resuming.told(spec)}{after.told(spec)}"
    cluster.history.add(now, EventKind.SUBMITTED, job.id, text)
    cluster.clients.audit(now, asked, "submit", job.id, text)
    mute = "no notice is sent: the operator has set no channel for notices (notify in controller.yaml)"
    told = mute if spec.notify and not cluster.settings.notifies else ""
    notes = (
        told,
        ignored(cluster.planning.decider.scheduler.policy, spec.priority),
        dependencies.sentence(cluster, job),
    )
    return Submitted(job=job.id, promise=promise_view(job), notes=tuple(filter(None, notes)))


def forecast(cluster: Cluster, now: float, asked: ClientRequest, requested: JobSpec, fetched: Fetched) -> Answer | None:
    """Return the outcome that a submission would have.

    Return None if the controller has just started, and cannot tell before its servers are back. Raises UserError, and
    RequestRefused if there is no checkpoint that the job could go on from.
    """
    who, spec = asked.who, signed(asked.who, requested)
    if reason := refusal(spec):
        raise UserError(reason)
    spec = after.with_ids(cluster, who, resuming.going_on(cluster, who, spec, fetched), fetched)
    if cluster.servers.awaited:
        return None
    if reason := _refusal(cluster, who, spec):
        return Forecasted(time_s=now, reason=f"{spec.name} would not be admitted: {reason}")
    job = Job(Submission(job=JobId(spec.name), request="", spec=spec, submitted_s=now, owner=who.name))
    if spec.deadline is None:
        job.update(waits_for=dependencies.awaited(cluster, spec))
        waits = dependencies.sentence(cluster, job)
        return Forecasted(time_s=now, resume=spec.resume, notes=(waits,) if waits else ())
    (found,) = judged(cluster, now, [job])
    if found.reason:
        return Forecasted(time_s=now, reason=f"{spec.name} would not be admitted: {found.reason}", offer=found.offer)
    job.set_promise(found.state, found.planned)
    job.update(by_s=found.by_s)
    return Forecasted(time_s=now, promise=promise_view(job), resume=spec.resume)


def _refusal(cluster: Cluster, who: Principal, spec: JobSpec) -> str:
    """Return why a job is not admitted, whatever its deadline; "" if it is admitted."""
    return (
        _too_urgent(cluster, who, spec)
        or _never_fits(cluster, spec)
        or _beyond_part(cluster, spec)
        or _beyond_bounds(cluster, who, spec)
    )


def _beyond_bounds(cluster: Cluster, who: Principal, spec: JobSpec) -> str:
    """Return why there are too many jobs for another one; "" if there are not."""
    quotas = cluster.planning.decider.scheduler.stages.quotas
    return (
        _too_many(cluster, who)
        or quotas.refusal(spec.user or who.name, cluster.jobs.index.of_user)
        or _admission_refusal(cluster, spec)
    )


def _too_urgent(cluster: Cluster, who: Principal, spec: JobSpec) -> str:
    """Return why the job may not have its priority; "" if it may."""
    settings = cluster.settings
    operator = who.role is Role.OPERATOR
    most = settings.operator_priority if operator else settings.user_priority
    if spec.priority <= most:
        return ""
    option = "operator_priority" if operator else "user_priority"
    return (
        f"its priority is {spec.priority}, and {who.name} may give one of up to {most} ({option}): submit it with that"
    )


def _never_fits(cluster: Cluster, spec: JobSpec) -> str:
    """Return why the job could not run even if all known servers were present and empty.

    The result is "" if it could run, or if no server is known.
    """
    demand = Demand.of(spec)
    return (
        ""
        if cluster.servers.most_gpus(demand) >= spec.gpus.min
        else never_fits(demand, spec.gpus.min, cluster.servers.stocks())
    )


def _beyond_part(cluster: Cluster, spec: JobSpec) -> str:
    """Return why no deadline can be promised to a job that asks for cores or memory; "" otherwise. Plans of deadlines count
    GPUs, so a worker may not take more than a GPU's part of a server.
    """
    need = Need.of(spec)
    if not need or spec.deadline is None or spec.deadline.soft:
        return ""
    for session in cluster.servers.sessions.values():
        whole = session.whole
        if need.container and whole.capacity is not None and whole.capacity.no_containers:
            return (
                f"a deadline is promised to a job with an image only if every server can run containers, and "
                f"{whole.server} cannot: {whole.capacity.no_containers}. Say --soft, or leave the image out"
            )
        if whole.capacity is not None and whole.capacity.most(need, len(whole.gpus)) < len(whole.gpus):
            return (
                f"a deadline is promised only if each worker asks for no more than a GPU's part of every server, and not for "
                f"{need}: {whole.server} has {whole.capacity.left} for {gpu_count(len(whole.gpus))}. Ask for less, or say "
                "--soft"
            )
    return ""


def _too_many(cluster: Cluster, who: Principal) -> str:
    """Return why the user has too many unfinished jobs; "" otherwise.

    The operator of a one-machine cluster has no bound.
    """
    most = cluster.settings.open_jobs_per_user
    if who == LOCAL_OPERATOR or (count := cluster.jobs.index.of_owner(who.name)) < most:
        return ""
    return f"{who.name} has {count} unfinished jobs already, and may have {most} (open_jobs_per_user)"


def _admission_refusal(cluster: Cluster, spec: JobSpec) -> str:
    situation = AdmissionState(
        gpus=cluster.servers.known_gpus,
        waiting_jobs=cluster.jobs.index.without_target,
        user_jobs=cluster.jobs.index.of_user(spec.user),
    )
    newcomer = Newcomer(min_gpus=spec.gpus.min, user=spec.user)
    return cluster.planning.decider.scheduler.stages.admission.refusal(newcomer, situation)


def scale(cluster: Cluster, now: float, asked: ClientRequest, request: Scale, fetched: Fetched) -> Answer | None:
    """Fix the job's share, or return it to the policy.

    The decision is taken at once, so that the answer names its generation. Return None while the answer is pending.
    With very many jobs the scheduler runs only at intervals, and all shares set meanwhile are answered together. A
    controller that has just started cannot decide before its servers have reconnected.
    """
    job = find_job(cluster, asked.who, request.job, fetched)
    check_job(asked.who, job, "scale")
    share, spec = request.share, job.spec
    if job.final:
        raise RequestRefused(_over(job))
    if why := _fixed(job):
        raise RequestRefused(f"{job.id} cannot be scaled: {why}")
    if share is not None and not 1 <= share <= spec.virtual_workers:
        raise UserError(
            f"{job.id} can use 1 to {spec.virtual_workers} GPUs (as many as it has virtual workers), not {share}"
        )
    each = spec.gpus_per_server
    if share is not None and each and share % each:
        raise UserError(
            f"{job.id} has {gpu_count(each)} on each of its servers: its share is a multiple of {each}, not {share}"
        )
    if cluster.servers.awaited:
        return None
    if share is not None and share > (job.record.manual_share or 0):
        _check_by_hand(cluster, asked.who, job, share)
    if job.record.idle_shrunk:
        job.update(idle_shrunk=False)  # a user who sets a share overrules the reaction to idle GPUs
    if share != job.record.manual_share:
        job.set_share_by_hand(share)
        text = "share given back to the policy" if share is None else f"share fixed at {share} by hand"
        text += by(asked.who)
        if share is not None and share > spec.gpus.max:
            text += f", more than the job asks for (gpus.max is {spec.gpus.max})"
        cluster.history.add(now, EventKind.SCALED, job.id, text)
        cluster.clients.audit(now, asked, "scale", job.id, text)
    if share is not None and job.record.does_not_grow:
        job.update(does_not_grow="")  # scaling by hand means that joining workers should be tried again
    cluster.planning.request()
    cluster.jobs.mark_dirty(job)
    if cluster.jobs.many:
        if len(cluster.clients.undecided) >= MAX_UNDECIDED and asked.name not in cluster.clients.undecided:
            raise RequestRefused("too many shares have been set within a second: try again")
        cluster.clients.wait_for_decision(asked, job, cluster.planning.decisions)
        return None
    decisions = cluster.planning.decisions
    settle(cluster, now)
    return _scaled(cluster, job, decisions)


def _check_by_hand(cluster: Cluster, who: Principal, job: Job, share: int) -> None:
    """Check that a share set by hand, which is kept for good, takes no GPUs that are guaranteed to others.

    Raises RequestRefused if it does and the principal is not an operator.
    """
    quotas = cluster.planning.decider.scheduler.stages.quotas
    if who.role is Role.OPERATOR or not quotas.any:
        return
    fixed: dict[str, int] = {}
    live = cluster.jobs.index.live.values()
    for other in live:
        kept = len(other.own_gpus) if other.gang else other.record.manual_share or 0
        if kept and other is not job:
            tenant = quotas.tenant(other.user)
            fixed[tenant] = fixed.get(tenant, 0) + kept
    owners = dict.fromkeys(other.user for other in live)
    most = Pinned(quotas, owners, fixed, cluster.servers.present_gpus).most(quotas.tenant(job.user))
    if share > most:
        raise RequestRefused(
            f"{job.id} cannot keep {gpu_count(share)} by hand: {most} at most, beside what others are guaranteed (quotas); "
            "operators may set more"
        )


def answer_undecided(cluster: Cluster) -> None:
    """Answer the requests that set shares before the last decision was made."""
    for waiting in cluster.clients.take_decided(cluster.planning.decisions):
        job = waiting.job
        answer = Refused(reason=_over(job)) if job.final else _scaled(cluster, job, waiting.after)
        cluster.clients.remember(waiting.asked.name, answer)
        cluster.clients.answer(waiting.asked, answer)


def _fixed(job: Job) -> str:
    """Return why a job cannot be resized, now or soon; "" if it can be, or is expected to become elastic."""
    if job.elastic or (job.spec.expected_to_join and job.record.phase is not JobPhase.RUNNING):
        return ""
    what = "has not called elastic.join()" if job.gang else "is not known to call elastic.join()"
    fixed = f"it is a fixed gang of {gpu_count(len(job.record.target))}" if job.gang else "it starts as a fixed gang"
    return f"its command {what}, so {fixed}"


def _over(job: Job) -> str:
    return f"{job.id} is over: it {over_words(job.record.phase)}"


def _scaled(cluster: Cluster, job: Job, after: int) -> Scaled:
    """Return the result of the last decision for the job. `after`: the number of decisions before the request."""
    newest = job.newest
    carried_out = newest is not None and {m.gpu for m in newest.roster.members} == set(job.record.target)
    # The next order is given once the GPUs are free.
    generation = job.record.generation if carried_out else job.record.generation + 1
    pushed: dict[JobId, ShareForecast] = {}
    for number, losers in cluster.planning.pushes if job.record.manual_share is not None else ():
        for loser in itertools.islice(losers(), MOST_PUSHED) if number > after else ():
            if loser.job != job.id:
                pushed.setdefault(loser.job, loser)
    return Scaled(job=job.id, generation=generation, share=len(job.record.target), pushed=tuple(pushed.values()))


def profile(cluster: Cluster, now: float, asked: ClientRequest, job: Job, request: Profile) -> Answer | None:
    """Measure the job with smaller and smaller shares, even if their throughput is known.

    Return None if no decision is possible yet. Raises RequestRefused, NotAllowed.
    """
    check_job(asked.who, job, "profile")
    if job.final:
        raise RequestRefused(_over(job))
    if cluster.servers.awaited:
        return None
    if not job.elastic:
        what = _fixed(job) or "its command has not called elastic.join() yet"
        raise RequestRefused(f"{job.id} cannot be measured: {what}")
    shares = profile_now(cluster, now, job, request.least, request.most)
    cluster.clients.audit(
        now,
        asked,
        "profile",
        job.id,
        f"measured with {', '.join([*map(str, shares[:-1]), *map(gpu_count, shares[-1:])])}",
    )
    settle(cluster, now)
    return Profiling(job=job.id, shares=shares)
