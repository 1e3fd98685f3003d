"""Answers to the requests of clients, each exactly once (cluster 2; Elan V-D).

The answer to a request that changes state is remembered by the request's id, so a repetition gets the same answer. A
submission is remembered with its job, so that even a crash between the record and the reply does not submit it twice.
Requests that only read are evaluated again.

An id counts for one principal: a request with an id that another principal used is a separate request
(`ClientRequest.name`). A request that a principal is not allowed to make is refused and changes nothing (`authority`).
"""

from __future__ import annotations

import itertools

from ...protocol.errors import ElasticError, NotAllowed, RequestRefused, UserError
from ...protocol.messages import (
    PROTOCOL_VERSION,
    AdoptServer,
    Answer,
    Cancel,
    Checkpoint,
    Controllers,
    ControllerView,
    CordonServer,
    EndLoan,
    Events,
    Exec,
    ExecIO,
    Forecast,
    GetControllers,
    GetEnded,
    GetEvents,
    GetJob,
    GetJobs,
    GetLog,
    GetOutlook,
    GetPolicy,
    GetQuotas,
    GetServers,
    GetUsage,
    JobFound,
    LendGpus,
    OfferSnapshot,
    Pause,
    Ping,
    Pong,
    Profile,
    PutSnapshot,
    ReadLog,
    Refused,
    RemoveServer,
    Request,
    Requeue,
    Resume,
    SaveAll,
    Scale,
    SetPolicy,
    Submit,
    UncordonServer,
    not_served,
)
from ...protocol.model import ServerId
from ...protocol.principals import Principal
from ...protocol.texts import many
from ..cluster import Cluster
from ..events import ClientRequest
from ..inbound.foreign import adopt
from . import executing, snapshots
from .acts import forecast, profile, scale, submit
from .authority import by, check, check_job
from .explaining import explanation
from .finding import find_id, find_job
from .lending import end_loan, lend
from .outlook import outlook
from .pages import Fetched, NotAtHand, ended_page, jobs_page, servers_page
from .pending import pass_on
from .policy import in_use, set_policy
from .quotas import quotas_found
from .servers import act_of, cordon_server, remove_server, uncordon_server
from .stopping import cancel, checkpoint, pause, requeue, resume, save_all
from .usage import report
from .views import full_view

CHANGES = (
    Submit,
    PutSnapshot,
    Scale,
    Profile,
    Cancel,
    Pause,
    Resume,
    Requeue,
    Checkpoint,
    SetPolicy,
    AdoptServer,
    RemoveServer,
    CordonServer,
    UncordonServer,
    LendGpus,
    EndLoan,
    Exec,
)  # requests with answers that are recorded

MAX_REQUEST_ID = 256
MAX_LOG_OFFSET = 2**53
MAX_LOG_BYTES = 4 << 20
MAX_EVENTS_ANSWERED = 10_000
MOST_TOLD = 80  # shown characters of a refused request


def on_request(
    cluster: Cluster, now: float, asked: ClientRequest, records: tuple[tuple[str, bytes | None], ...] = ()
) -> None:
    """Answer a request, or arrange a later answer. `records`: records fetched for it from the archive."""
    request, request_id = asked.envelope.request, asked.envelope.id
    if not 0 < len(request_id) <= MAX_REQUEST_ID:
        text = f"the id of a request has 1 to {MAX_REQUEST_ID} characters, not {len(request_id)}"
        cluster.clients.answer(asked, Refused(reason=text, bad_input=True))
        return
    if reason := not_served(asked.envelope.speaks, "this client"):
        cluster.clients.answer(asked, Refused(reason=reason, bad_input=True))
        return
    known = cluster.clients.answers.get(asked.name)
    if known is not None:
        cluster.clients.answer(asked, known)
        return
    try:
        check(asked.who, request)
        answer = _answer(cluster, now, asked, dict(records))
        if answer is None:
            # Answered later (`answer_undecided`; for a log, by its agent), or when the client repeats the request.
            return
    except NotAtHand as missing:
        cluster.fetch(asked, missing.keys)
        return
    except NotAllowed as error:  # not remembered, because the request is not allowed the next time either
        cluster.clients.audit_refusal(now, asked.who, _act(request), _concerned(request), str(error), request_id)
        cluster.clients.answer(asked, Refused(reason=str(error), not_allowed=True))
        return
    except ElasticError as error:
        answer = Refused(reason=str(error), bad_input=isinstance(error, UserError))
    if changes(request):
        cluster.clients.remember(asked.name, answer)
    cluster.clients.answer(asked, answer)


def _act(request: Request) -> str:
    """Return the name of the request's act in the audit log."""
    if isinstance(request, CordonServer):
        return act_of(request.kind)
    if isinstance(request, Pause):
        return "hold" if request.hold else "pause"
    return _ACTS.get(type(request), type(request).__name__)


_ACTS: dict[type, str] = {
    Submit: "submit",
    OfferSnapshot: "offer a snapshot",
    PutSnapshot: "send a snapshot",
    Scale: "scale",
    Profile: "profile",
    Cancel: "cancel",
    Resume: "resume",
    Requeue: "requeue",
    Checkpoint: "checkpoint",
    SaveAll: "save all jobs",
    GetLog: "read log",
    Exec: "exec",
    ExecIO: "exec",
    SetPolicy: "set policy",
    AdoptServer: "adopt server",
    RemoveServer: "remove server",
    UncordonServer: "uncordon server",
    LendGpus: "lend GPUs",
    EndLoan: "end loan",
}


def _concerned(request: Request) -> str:
    """Return the job, server or policy that the request names, in the client's words."""
    match request:
        case (
            Scale(job=name)
            | Profile(job=name)
            | Cancel(job=name)
            | Pause(job=name)
            | Resume(job=name)
            | Requeue(job=name)
            | Checkpoint(job=name)
            | GetLog(job=name)
            | Exec(job=name)
        ):
            return name[:MOST_TOLD]
        case AdoptServer(server=server) | RemoveServer(server=server):
            return server[:MOST_TOLD]
        case CordonServer(server=server, gpu=gpu) | UncordonServer(server=server, gpu=gpu):
            return server[:MOST_TOLD] + (f":{gpu}" if gpu is not None else "")
        case Submit(spec=spec):
            return spec.name[:MOST_TOLD]
        case EndLoan(loan=loan):
            return loan[:MOST_TOLD]
        case SetPolicy(source=source):
            return source[:MOST_TOLD]
        case _:
            return ""


def changes(request: Request) -> bool:
    """Return whether the answer must be recorded. Dry runs and queries about a checkpoint's progress are not."""
    match request:
        case SetPolicy(dry_run=True) | Checkpoint(step=int()):
            return False
    return isinstance(request, CHANGES)


def _answer(cluster: Cluster, now: float, asked: ClientRequest, fetched: Fetched) -> Answer | None:
    """Return the answer to a request that can be answered at once; None if it cannot yet."""
    match asked.envelope.request:
        case Submit(spec=spec):
            return submit(cluster, now, asked, spec, fetched)
        case OfferSnapshot() as request:
            return snapshots.offer(cluster, now, asked.who, request)
        case PutSnapshot() as request:
            return snapshots.put(cluster, now, asked.who, request)
        case Forecast(spec=spec):
            return forecast(cluster, now, asked, spec, fetched)
        case Scale() as request:
            return scale(cluster, now, asked, request, fetched)
        case Profile(job=name) as request:
            return profile(cluster, now, asked, find_job(cluster, asked.who, name, fetched), request)
        case Cancel(job=name, save=save):
            return cancel(cluster, now, asked, find_job(cluster, asked.who, name, fetched), save)
        case Pause(job=name, hold=hold):
            return pause(cluster, now, asked, find_job(cluster, asked.who, name, fetched), hold)
        case Resume(job=name):
            return resume(cluster, now, asked, find_job(cluster, asked.who, name, fetched))
        case Requeue(job=name):
            return requeue(cluster, now, asked, find_job(cluster, asked.who, name, fetched))
        case Checkpoint(job=name, step=step):
            return checkpoint(cluster, now, asked, find_job(cluster, asked.who, name, fetched), step)
        case SaveAll(for_s=for_s):
            return save_all(cluster, now, asked, for_s)
        case GetJobs() as request:
            return jobs_page(cluster, now, asked.who, request, fetched)
        case GetEnded() as request:
            return ended_page(cluster, now, asked.who, request, fetched)
        case GetJob(job=name, explain=explain):
            job = find_job(cluster, asked.who, name, fetched)
            why = explanation(cluster, now, asked.who, job) if explain else None
            return JobFound(job=full_view(cluster, now, asked.who, job), time_s=now, explanation=why)
        case GetServers() as request:
            return servers_page(cluster, now, request)
        case RemoveServer(server=server):
            return remove_server(cluster, now, asked, server)
        case CordonServer() as request:
            return cordon_server(cluster, now, asked, request)
        case UncordonServer() as request:
            return uncordon_server(cluster, now, asked, request)
        case LendGpus() as request:
            return lend(cluster, now, asked, request)
        case EndLoan(loan=loan):
            return end_loan(cluster, now, asked, loan)
        case AdoptServer(server=server):
            return _adopt(cluster, now, asked, server)
        case GetEvents() as request:
            return _events(cluster, asked.who, request)
        case GetPolicy():
            return in_use(cluster)
        case SetPolicy() as request:
            return set_policy(cluster, now, asked, request)
        case GetOutlook():
            return outlook(cluster, now, asked.who.name)
        case GetQuotas():
            return quotas_found(cluster, now)
        case GetUsage() as request:
            return report(cluster, now, asked.who, request, fetched)
        case GetControllers():
            return _alone(cluster, now)
        case Ping():
            return _pong(cluster, now)
        case GetLog() as request:
            _ask_for_log(cluster, now, asked, request, fetched)
            return None
        case Exec() as request:
            return executing.allow(cluster, now, asked, request, fetched)
        case ExecIO() as request:
            executing.exchange(cluster, now, asked, request, fetched)
            return None


def _adopt(cluster: Cluster, now: float, asked: ClientRequest, server: ServerId) -> Answer:
    answer = adopt(cluster, now, server, by(asked.who))
    cluster.clients.audit(now, asked, "adopt server", server, f"taken over with {many(answer.workers, 'worker')}")
    return answer


def _events(cluster: Cluster, who: Principal, request: GetEvents) -> Answer:
    wanted = None if request.job is None else find_id(cluster, who, request.job)
    limit = max(0, min(request.limit, MAX_EVENTS_ANSWERED))
    newer = list(itertools.takewhile(lambda event: event.number > request.after, reversed(cluster.history.events)))
    found = [event for event in reversed(newer) if wanted is None or event.job == wanted]
    return Events(events=tuple(found[:limit]))


def _alone(cluster: Cluster, now: float) -> Answer:
    """Return this controller alone, the only one that the state machine knows. The shell around it knows the others."""
    settings = cluster.settings
    view = ControllerView(name=cluster.leader.name, leads=True, version=settings.version, since_s=0.0)
    return Controllers(controllers=(view,), asked=view.name, term=cluster.leader.term, time_s=now)


def _pong(cluster: Cluster, now: float) -> Answer:
    return Pong(
        version=cluster.settings.version,
        protocol=PROTOCOL_VERSION,
        cluster=cluster.settings.cluster,
        policy=cluster.planning.policy.name,
        servers=len(cluster.servers.leases) - len(cluster.servers.awaited),
        pid=cluster.settings.pid,
        time_s=now,
    )


def _ask_for_log(cluster: Cluster, now: float, asked: ClientRequest, request: GetLog, fetched: Fetched) -> None:
    """Request the log from the agent of the worker's server. The agent's reply becomes the answer to the client.

    Raises UserError for a bad range or an unknown worker, NotAllowed, and RequestRefused if the server is not
    connected.
    """
    job = find_job(cluster, asked.who, request.job, fetched)
    check_job(asked.who, job, "read the logs of")
    if abs(request.offset) > MAX_LOG_OFFSET or not 1 <= request.limit <= MAX_LOG_BYTES:
        raise UserError(f"a piece of a log begins within {MAX_LOG_OFFSET} bytes and has 1 to {MAX_LOG_BYTES} bytes")
    entry = job.known_worker(request.worker)
    if entry is None:
        raise UserError(f"{job.id} has no worker {request.worker[:80]!r}")
    server = entry.gpu.server
    session = cluster.servers.sessions.get(server)
    if session is None or not session.alive:
        raise RequestRefused(f"the log of {entry.worker} is on server {server}, which is not there")
    message = ReadLog(
        request=asked.name,
        job=job.id,
        worker=entry.worker,
        offset=request.offset,
        limit=request.limit,
        uid=job.uid,
    )
    pass_on(cluster, now, asked, server, message, "the log")
