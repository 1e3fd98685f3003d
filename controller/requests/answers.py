"""Requests of clients, each answered exactly once (cluster 2; Elan V-D).

What changes something is remembered by its id, so that a repetition gets the first answer again; a submission is remembered
with its job, so that not even a crash between the record and the reply submits it twice. What only reads is read again.

An id counts for one principal: who guesses or repeats that of somebody else makes a request of his own (`ClientRequest.name`).
What a principal may not ask for is refused, and changes nothing (`authority`).
"""

from __future__ import annotations

import itertools

from ...protocol.errors import ElasticError, NotAllowed, RequestRefused, UserError
from ...protocol.messages import (
    PROTOCOL_VERSION,
    AdoptServer,
    Answer,
    Cancel,
    Cancelled,
    EventKind,
    Events,
    ForgetServer,
    GetEnded,
    GetEvents,
    GetJob,
    GetJobs,
    GetLog,
    GetPolicy,
    GetServers,
    JobFound,
    Ping,
    Pong,
    Profile,
    Profiling,
    ReadLog,
    Refused,
    Request,
    Scale,
    Scaled,
    SetPolicy,
    Submit,
    Submitted,
)
from ...protocol.model import JobId, JobPhase, JobSpec, ServerId
from ...protocol.principals import LOCAL_OPERATOR, Principal
from ...protocol.times import FIRST_HELLO_S, LOG_TIMEOUT_S
from ...scheduler.admission import Newcomer, Situation
from ..cluster import Cluster, PendingLog, Undecided
from ..events import ClientRequest
from ..intake.guests import adopt
from ..jobs.job import Job
from ..jobs.records import Submission
from ..reconcile.profiling import profile_now
from ..reconcile.restarts import end_job
from ..reconcile.settle import settle
from .authority import by, check, check_job, signed
from .pages import Fetched, NotAtHand, archived, ended_page, jobs_page, servers_page
from .policy import in_use, set_policy
from .servers import forget_server
from .validation import refusal
from .views import full_view

CHANGES = (Submit, Scale, Profile, Cancel, SetPolicy, AdoptServer, ForgetServer)  # worthless unless they are recorded

MAX_REQUEST_ID = 256
MAX_PENDING_LOGS = 1000
MAX_UNDECIDED = 10_000  # shares set by hand, whose decision is still to come
MAX_LOG_OFFSET = 2**53
MAX_LOG_BYTES = 4 << 20
MAX_EVENTS_ANSWERED = 10_000
MAX_UNFINISHED_JOBS = 100_000
MOST_TOLD = 80  # characters of what somebody has asked for in vain


def on_request(
    cluster: Cluster, now: float, asked: ClientRequest, records: tuple[tuple[str, bytes | None], ...] = ()
) -> None:
    """Answer a request, or arrange that it will be answered. `records`: what was fetched for it from the archive."""
    request, request_id = asked.envelope.request, asked.envelope.id
    if not 0 < len(request_id) <= MAX_REQUEST_ID:
        text = f"the id of a request has 1 to {MAX_REQUEST_ID} characters, not {len(request_id)}"
        cluster.answer(asked, Refused(reason=text, bad_input=True))
        return
    known = cluster.answers.get(asked.name)
    if known is not None:
        cluster.answer(asked, known)
        return
    try:
        check(asked.who, request)
        answer = _answer(cluster, now, asked, dict(records))
        if answer is None:
            return  # it is answered later (`answer_undecided`; a log: by its agent), or when the client repeats it
    except NotAtHand as missing:
        cluster.fetch(asked, missing.keys)
        return
    except NotAllowed as error:  # nothing to remember: it is not allowed the next time either
        cluster.audit_refusal(now, asked.who, _act(request), _concerned(request), str(error), request_id)
        cluster.answer(asked, Refused(reason=str(error), not_allowed=True))
        return
    except ElasticError as error:
        answer = Refused(reason=str(error), bad_input=isinstance(error, UserError))
    if changes(request):
        cluster.remember_answer(asked.name, answer)
    cluster.answer(asked, answer)


def _act(request: Request) -> str:
    """What is asked for, as the audit log calls it."""
    return _ACTS.get(type(request), type(request).__name__)


_ACTS: dict[type, str] = {
    Submit: "submit",
    Scale: "scale",
    Profile: "profile",
    Cancel: "cancel",
    GetLog: "read log",
    SetPolicy: "set policy",
    AdoptServer: "adopt server",
    ForgetServer: "forget server",
}


def _concerned(request: Request) -> str:
    """Which job, server or policy is meant, as the client says it."""
    match request:
        case Scale(job=name) | Profile(job=name) | Cancel(job=name) | GetLog(job=name):
            return name[:MOST_TOLD]
        case AdoptServer(server=server) | ForgetServer(server=server):
            return server[:MOST_TOLD]
        case Submit(spec=spec):
            return spec.name[:MOST_TOLD]
        case SetPolicy(source=source):
            return source[:MOST_TOLD]
        case _:
            return ""


def changes(request: Request) -> bool:
    """Is its answer worthless unless it is recorded? That of a dry run is not."""
    return isinstance(request, CHANGES) and not (isinstance(request, SetPolicy) and request.dry_run)


def _answer(cluster: Cluster, now: float, asked: ClientRequest, fetched: Fetched) -> Answer | None:
    """The answer to a request that can be answered at once; None: not yet."""
    match asked.envelope.request:
        case Submit(spec=spec):
            return _submit(cluster, now, asked, spec)
        case Scale() as request:
            return _scale(cluster, now, asked, request, fetched)
        case Profile(job=name):
            return _profile(cluster, now, asked, find_job(cluster, name, fetched))
        case Cancel(job=name):
            return _cancel(cluster, now, asked, find_job(cluster, name, fetched))
        case GetJobs() as request:
            return jobs_page(cluster, now, asked.who, request, fetched)
        case GetEnded() as request:
            return ended_page(cluster, now, asked.who, request, fetched)
        case GetJob(job=name):
            return JobFound(job=full_view(cluster, now, asked.who, find_job(cluster, name, fetched)), time_s=now)
        case GetServers() as request:
            return servers_page(cluster, now, request)
        case ForgetServer(server=server):
            return forget_server(cluster, now, asked, server)
        case AdoptServer(server=server):
            return _adopt(cluster, now, asked, server)
        case GetEvents() as request:
            return _events(cluster, request)
        case GetPolicy():
            return in_use(cluster)
        case SetPolicy() as request:
            return set_policy(cluster, now, asked, request)
        case Ping():
            return _pong(cluster)
        case GetLog() as request:
            _ask_for_log(cluster, now, asked, request, fetched)
            return None


def find_job(cluster: Cluster, name: str, fetched: Fetched) -> Job:
    """The job with this id, or the only (unfinished) one with this name. Raises UserError, NotAtHand."""
    found = cluster.jobs.get(find_id(cluster, name))
    if found is not None:
        return found
    over = cluster.archive.find(find_id(cluster, name))
    job = archived(over.key, fetched) if over is not None else None
    if job is None:
        raise UserError(f"there is no job {name[:80]!r}")
    return job


def find_id(cluster: Cluster, name: str) -> JobId:
    """The same, and it need not be at hand. Raises UserError."""
    if JobId(name) in cluster.jobs or cluster.archive.find(JobId(name)) is not None:
        return JobId(name)
    named = cluster.index.named(name)
    unfinished = [job.id for job in named if not job.final]
    archived_too, newest = cluster.archive.named(name)
    over = [*(job.id for job in named if job.final), *((newest,) if newest is not None else ())]
    for count, candidates in ((len(unfinished), unfinished), (len(named) + archived_too, over)):
        if count == 1:
            return candidates[0]
        if count:
            names = ", ".join(candidates[:5])
            raise UserError(f"{count} jobs are called {name!r}: name one of {names}")
    raise UserError(f"there is no job {name[:80]!r}")


def _submit(cluster: Cluster, now: float, asked: ClientRequest, told: JobSpec) -> Answer | None:
    """None: a controller that has just started waits a moment for the first agent, which may know of a job that the store,
    restored from a backup, does not: its number must not be used again."""
    who, spec = asked.who, signed(asked.who, told)
    if reason := refusal(spec):
        raise UserError(reason)
    heard = not cluster.awaited or any(session.alive for session in cluster.sessions.values())
    if not heard and 0 <= now - cluster.started_s < FIRST_HELLO_S:
        return None
    if len(cluster.index.live) >= MAX_UNFINISHED_JOBS:
        raise RequestRefused(f"there are {MAX_UNFINISHED_JOBS} unfinished jobs already")
    if reason := _too_many(cluster, who) or _admission_refusal(cluster, spec):
        raise RequestRefused(f"{spec.name} is not admitted: {reason}")
    name = JobId(f"{spec.name}-{cluster.next_job}")
    submission = Submission(
        job=name,
        request=asked.name,
        uid=cluster.new_uid(name),
        spec=spec,
        submitted_s=now,
        owner=who.name,
        account=who.account,
    )
    job = Job(submission)
    cluster.next_job += 1
    cluster.add_job(job)
    cluster.schedule_due = True
    name_told = by(who) or (f" by {spec.user}" if spec.user else "")
    text = f"submitted{name_told}: {spec.gpus.min} to {spec.gpus.max} GPUs"
    cluster.tell(now, EventKind.SUBMITTED, job.id, text)
    cluster.audit(now, asked, "submit", job.id, text)
    return Submitted(job=job.id)


def _too_many(cluster: Cluster, who: Principal) -> str:
    """Whoever runs a cluster of one machine has no bound of his own."""
    most = cluster.settings.open_jobs_per_user
    if who == LOCAL_OPERATOR or (count := cluster.index.of_owner(who.name)) < most:
        return ""
    return f"{who.name} has {count} unfinished jobs already, and may have {most} (open_jobs_per_user)"


def _admission_refusal(cluster: Cluster, spec: JobSpec) -> str:
    situation = Situation(
        gpus=cluster.known_gpus,
        waiting_jobs=cluster.index.without_target,
        user_jobs=cluster.index.of_user(spec.user),
    )
    newcomer = Newcomer(min_gpus=spec.gpus.min, user=spec.user)
    return cluster.decider.scheduler.stages.admission.refusal(newcomer, situation)


def _scale(cluster: Cluster, now: float, asked: ClientRequest, request: Scale, fetched: Fetched) -> Answer | None:
    """Fix the share, or give it back to the policy; the decision is taken at once, so that its generation can be named.

    None: not yet. With very many jobs the scheduler is asked once in a while, and all who have set shares meanwhile are answered
    then; a controller that has just started cannot decide before its servers are back.
    """
    job = find_job(cluster, request.job, fetched)
    check_job(asked.who, job, "scale")
    share, spec = request.share, job.spec
    if share is not None and not 1 <= share <= spec.virtual_workers:
        raise UserError(
            f"{job.id} can use 1 to {spec.virtual_workers} GPUs (as many as it has virtual workers), not {share}"
        )
    if job.final:
        raise RequestRefused(_over(job))
    if cluster.awaited:
        return None
    if share != job.record.manual_share:
        job.update(manual_share=share)
        job.profiling = None
        text = "share given back to the policy" if share is None else f"share fixed at {share} by hand"
        text += by(asked.who)
        if share is not None and share > spec.gpus.max:
            text += f", more than the job asks for (gpus.max is {spec.gpus.max})"
        cluster.tell(now, EventKind.SCALED, job.id, text)
        cluster.audit(now, asked, "scale", job.id, text)
    cluster.schedule_due = True
    cluster.mark_dirty(job)
    if cluster.many_jobs:
        if len(cluster.undecided) >= MAX_UNDECIDED and asked.name not in cluster.undecided:
            raise RequestRefused("too many shares have been set within a second: try again")
        cluster.undecided[asked.name] = Undecided(asked, job, cluster.decisions)
        return None
    settle(cluster, now)
    return _scaled(job)


def answer_undecided(cluster: Cluster) -> None:
    """Answer those who have set shares before the last decision."""
    for name, waiting in list(cluster.undecided.items()):
        if cluster.decisions == waiting.after:
            continue
        del cluster.undecided[name]
        job = waiting.job
        answer = Refused(reason=_over(job)) if job.final else _scaled(job)
        cluster.remember_answer(name, answer)
        cluster.answer(waiting.asked, answer)


def _over(job: Job) -> str:
    return f"{job.id} is over: it has {job.record.phase.value}"


def _scaled(job: Job) -> Scaled:
    """What the last decision has made of it."""
    newest = job.newest
    carried_out = newest is not None and {m.gpu for m in newest.roster.members} == set(job.record.target)
    generation = job.record.generation if carried_out else job.record.generation + 1  # when its GPUs are free
    return Scaled(job=job.id, generation=generation, share=len(job.record.target))


def _profile(cluster: Cluster, now: float, asked: ClientRequest, job: Job) -> Answer | None:
    """Send the job on its way down, whatever is known of it. None: nothing can be decided yet."""
    check_job(asked.who, job, "profile")
    if job.final:
        raise RequestRefused(_over(job))
    if cluster.awaited:
        return None
    shares = profile_now(cluster, now, job)
    cluster.audit(now, asked, "profile", job.id, f"measured with {', '.join(map(str, shares))} GPUs")
    settle(cluster, now)
    return Profiling(job=job.id, shares=shares)


def _cancel(cluster: Cluster, now: float, asked: ClientRequest, job: Job) -> Answer:
    check_job(asked.who, job, "cancel")
    if job.record.phase is JobPhase.CANCELLED:
        return Cancelled(job=job.id)
    if job.final:
        raise RequestRefused(f"{job.id} is over already: it has {job.record.phase.value}")
    text = f"cancelled{by(asked.who)}"
    end_job(cluster, now, job, JobPhase.CANCELLED, text)
    cluster.audit(now, asked, "cancel", job.id, text)
    return Cancelled(job=job.id)


def _adopt(cluster: Cluster, now: float, asked: ClientRequest, server: ServerId) -> Answer:
    answer = adopt(cluster, now, server, by(asked.who))
    cluster.audit(now, asked, "adopt server", server, f"taken over with {answer.workers} workers")
    return answer


def _events(cluster: Cluster, request: GetEvents) -> Answer:
    wanted = None if request.job is None else find_id(cluster, request.job)
    limit = max(0, min(request.limit, MAX_EVENTS_ANSWERED))
    newer = list(itertools.takewhile(lambda event: event.number > request.after, reversed(cluster.events)))
    found = [event for event in reversed(newer) if wanted is None or event.job == wanted]
    return Events(events=tuple(found[:limit]))


def _pong(cluster: Cluster) -> Answer:
    return Pong(
        version=cluster.settings.version,
        protocol=PROTOCOL_VERSION,
        cluster=cluster.settings.cluster,
        policy=cluster.policy.name,
        servers=len(cluster.leases) - len(cluster.awaited),
        pid=cluster.settings.pid,
    )


def _ask_for_log(cluster: Cluster, now: float, asked: ClientRequest, request: GetLog, fetched: Fetched) -> None:
    """Ask the agent where the worker is or was: its answer goes on to the client."""
    job, name = find_job(cluster, request.job, fetched), asked.name
    check_job(asked.who, job, "read the logs of")
    if not 0 <= request.offset <= MAX_LOG_OFFSET or not 1 <= request.limit <= MAX_LOG_BYTES:
        raise UserError(f"a piece of a log starts at 0 or later and has 1 to {MAX_LOG_BYTES} bytes")
    entry = job.known_worker(request.worker)
    if entry is None:
        raise UserError(f"{job.id} has no worker {request.worker[:80]!r}")
    server = entry.gpu.server
    session = cluster.sessions.get(server)
    if session is None or not session.alive:
        raise RequestRefused(f"the log of {entry.worker} is on server {server}, which is not there")
    if len(cluster.pending_logs) >= MAX_PENDING_LOGS and name not in cluster.pending_logs:
        raise RequestRefused(f"{MAX_PENDING_LOGS} pieces of logs are being read already; try again in a moment")
    cluster.pending_logs.pop(name, None)  # they stand in the order of their deadlines
    cluster.pending_logs[name] = PendingLog(asked=asked, server=server, deadline_s=now + LOG_TIMEOUT_S)
    message = ReadLog(
        request=name,
        job=job.id,
        worker=entry.worker,
        offset=request.offset,
        limit=request.limit,
        uid=job.uid,
    )
    cluster.send(server, message)
