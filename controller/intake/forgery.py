"""A server speaks only of workers that were sent to it (trust): what else its agent says is refused, counted and told of.

A worker is sent to one server, and its name is never used again. So a report of a worker that the records have on another
server, or that nobody has named yet, is forged, or comes from an agent that is badly wrong. It changes nothing of any job.

One case looks the same and is honest. The store was restored from a backup (`restored`), and the agent keeps workers that the
store does not know. They were started before this controller was. So the agent names them in its first hello to this controller,
and shows the uid of their job, a secret of those servers that have run one of its workers. What it names then is noted: nothing
else may be ahead of the store.

What belongs to no job here is left alone on its server (`guests`): there is nothing to forge.
"""

from __future__ import annotations

import itertools

from ...protocol.messages import AgentHello, EventKind
from ...protocol.model import JobId, ServerId, WorkerId, WorkerStatus, worker_number
from ...protocol.principals import Principal, Role
from ..cluster import Cluster
from ..jobs.job import Job
from ..sessions import Forgeries, Session
from .restored import ahead
from .statuses import MAX_NAME

KEPT_MET = 4096  # workers of a server
MOST_TOLD = 80  # characters of a name that a server may have made up


def note_meeting(cluster: Cluster, server: ServerId, hello: AgentHello) -> None:
    """A server says hello. What it keeps the first time it may have kept since before this controller's time."""
    if server in cluster.met:
        return
    told = {local.worker: local.uid for local in hello.processes} | {ended.worker: ended.uid for ended in hello.exited}
    cluster.met[server] = dict(itertools.islice(told.items(), KEPT_MET))


def may_be_ahead(cluster: Cluster, session: Session, job: Job, worker: WorkerId, uid: str) -> bool:
    """Can a server keep a worker of `job` that the store does not know, or not so far?"""
    return uid == job.uid == cluster.met.get(session.server.server, {}).get(worker)


def fault_of(
    cluster: Cluster, session: Session, job: JobId, worker: WorkerId, uid: str, status: WorkerStatus | None
) -> str:
    """What is wrong with it that this server speaks of `worker`, in words; empty if nothing is known to be.

    `uid`: of the job, as the agent tells it; `status`: what it says of the worker.
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
    """The agent of `server` has spoken of `what`, and may not. It is counted; of many such reports some are told."""
    found = cluster.forged.setdefault(server, Forgeries())
    found.count += 1
    found.last = what
    if not found.told.lets(now):
        return
    text = f"server {server} {sentence(found)}"
    cluster.tell(now, EventKind.SERVER_FORGED, None, text)
    cluster.warn(text, server=server)
    cluster.audit_refusal(now, Principal(role=Role.SERVER, name=server), "report", server, sentence(found))


def refuse_report(cluster: Cluster, now: float, server: ServerId, job: JobId, what: str) -> None:
    """The same, of a worker of `job`. It is not counted where a part of the job's history is lost (`restored`): then an honest
    server may have been sent what nobody here remembers."""
    known = cluster.jobs.get(job)
    if known is None or known.record.lost_generations == (0, 0):
        refuse(cluster, now, server, what)


def sentence(found: Forgeries) -> str:
    """After the server's name."""
    times = "a report was refused" if found.count == 1 else f"{found.count} reports were refused"
    return f"speaks of workers that were never sent to it: {times}, the last one of {found.last}"
