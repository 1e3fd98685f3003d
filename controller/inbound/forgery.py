"""Check that a server reports only workers that were sent to it (trust). Other reports are refused, counted and shown.

A worker is sent to one server, and its name is never used again. So a report is forged, or comes from a defective
agent, if the records have the worker on another server or if no worker was given that name. Such a report changes
nothing of any job.

One honest case looks the same. The store was restored from a backup (`restored`), and the agent has workers that the
store does not know. They were started before this controller was. So the agent names them in its first hello to this
controller, with the uid of their job, a secret of the servers that have run its workers. The workers of that hello are
noted, and no others may be ahead of the store.

Workers that belong to no job of this cluster are left alone on their server (`foreign`), so a report about them needs no
check.
"""

from __future__ import annotations

from ...protocol.messages import AgentHello, EventKind
from ...protocol.model import JobId, ServerId, WorkerId, WorkerStatus, worker_number
from ...protocol.principals import Principal, Role
from ..cluster import Cluster
from ..jobs.job import Job
from ..sessions import Forgeries, Session
from .restored import ahead
from .statuses import MAX_NAME

MOST_TOLD = 80  # characters of a name that a bad server may have invented


def note_meeting(cluster: Cluster, server: ServerId, hello: AgentHello) -> None:
    """Note the workers in a server's first hello to this controller; they may be older than the controller."""
    told = {local.worker: local.uid for local in hello.processes} | {ended.worker: ended.uid for ended in hello.exited}
    cluster.servers.meet(server, told)


def may_be_ahead(cluster: Cluster, session: Session, job: Job, worker: WorkerId, uid: str) -> bool:
    """Return whether a server may have a worker of `job` that the store does not know, or not in that generation."""
    return uid == job.uid == cluster.servers.met.get(session.server.server, {}).get(worker)


def fault_of(
    cluster: Cluster, session: Session, job: JobId, worker: WorkerId, uid: str, status: WorkerStatus | None
) -> str:
    """Return why this server may not report on `worker`, in words; "" if no fault is known.

    `uid`: the job's uid as sent by the agent. `status`: the reported status of the worker.
    """
    known, name = cluster.jobs.get(job), worker[:MOST_TOLD]
    if len(worker) > MAX_NAME:
        return f"one with a name of {len(worker)} characters"
    if worker.rpartition(".")[0] != job:
        return f"{name} as one of {job[:MOST_TOLD]}"
    if known is None or not known.has_uid(uid):
        return ""
    entry = known.known_worker(worker)
    if entry is not None and entry.gpu.server != session.server.server:
        return f"{name}, which was sent to {entry.gpu.server}"
    if not ahead(known, worker, status) or may_be_ahead(cluster, session, known, worker, uid):
        return ""
    if entry is None and worker_number(worker) >= known.record.worker_count:
        return f"{name}, which was never sent to anybody"
    return f"{name} in a generation of {known.id} that was never ordered"


def refuse(cluster: Cluster, now: float, server: ServerId, what: str) -> None:
    """Count a refused report of the agent of `server` about `what`, and show some of many such reports."""
    found = cluster.servers.refuse_report(server, what)
    if not found.limiter.allow(now):
        return
    text = f"server {server} {sentence(found)}"
    cluster.history.add(now, EventKind.SERVER_FORGED, None, text)
    cluster.warn(text, server=server)
    cluster.clients.audit_refusal(now, Principal(role=Role.SERVER, name=server), "report", server, sentence(found))


def refuse_report(cluster: Cluster, now: float, server: ServerId, job: JobId, what: str) -> None:
    """Refuse a report about a worker of `job`, as `refuse` does.

    The report is not counted if part of the job's history is lost (`restored`). Then an honest server may have workers
    that the store does not know.
    """
    known = cluster.jobs.get(job)
    if known is None or known.record.lost_generations == (0, 0):
        refuse(cluster, now, server, what)


def sentence(found: Forgeries) -> str:
    """Describe the refused reports; the text follows the server's name."""
    times = "a report was refused" if found.count == 1 else f"{found.count} reports were refused"
    return f"speaks of workers that were never sent to it: {times}, the last one of {found.last}"
