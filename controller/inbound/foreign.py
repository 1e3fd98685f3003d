"""Workers on the servers that belong to no job of this cluster (cluster 3).

They are left alone until an operator decides. There are two causes. The server belongs to *another cluster*: its agent
remembers another cluster's id, because the server was moved, or because this controller's store is new. Or the store is
older than the cluster, restored from a backup, and has no job of that name, or one with another uid. The controller
cannot know whether such workers hold a month of somebody's work. So none of them is stopped or forgotten, and nothing
is started in their place. An operator who wants the server runs `elasticctl servers adopt`. Then the workers are asked
to save their state and end, and the server is used once they have ended.

An agent without workers joins by itself, since nothing can be lost.
"""

from __future__ import annotations

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    EventKind,
    ForgetWorkers,
    LocalWorker,
    ServerAdopted,
    StopWorker,
    ToControllerFromAgent,
    WorkerExit,
)
from ...protocol.model import ServerId
from ...protocol.times import LEAST_SAVE_S
from ..cluster import Cluster
from ..sessions import ForeignServer, Session

MAX_JOBS_NAMED, MAX_NAME_CHARS = 8, 80  # jobs named in a message, and characters of each


def is_foreign(cluster: Cluster, hello: AgentHello) -> bool:
    """Return whether this agent has workers of another cluster, or unreported ends of such workers."""
    keeps = hello.processes or hello.workers or hello.starting or hello.exited
    return hello.cluster not in ("", cluster.id) and bool(keeps)


def present(cluster: Cluster, now: float, server: ServerId) -> ForeignServer | None:
    """Return the foreign server of this name, if its agent has reported within the lease; else None."""
    foreign = cluster.servers.foreign.get(server)
    if foreign is None or now >= foreign.last_heard_s + cluster.settings.server_lease_s:
        return None
    return foreign


def receive(cluster: Cluster, now: float, hello: AgentHello) -> None:
    """Handle the hello of a server of another cluster."""
    name = hello.server.server
    foreign = ForeignServer(
        server=hello.server,
        cluster=hello.cluster,
        last_heard_s=now,
        agent=hello.agent,
        incarnation=hello.incarnation,
        start=hello.start,
        hello=hello.number,
        running={local.worker: local for local in hello.processes},
        ended={ended.worker: ended.uid for ended in hello.exited},
    )
    before = cluster.servers.put_foreign(foreign)
    if before is None or before.agent != foreign.agent or not set(foreign.running) <= set(before.running):
        cluster.history.add(now, EventKind.SERVER_FOREIGN, None, f"server {name} {sentence(foreign)}")
    cluster.servers.send_foreign(foreign, Acknowledged(incarnation=cluster.settings.incarnation, sent=0))
    if cluster.servers.adopted.get(name) == foreign.agent:
        _clear(cluster, foreign)


def on_message(cluster: Cluster, now: float, foreign: ForeignServer, message: ToControllerFromAgent) -> None:
    """Handle a message from the agent of a foreign server."""
    foreign.heard(now)
    if isinstance(message, AgentHeartbeat):
        cluster.servers.send_foreign(foreign, Acknowledged(incarnation=cluster.settings.incarnation, sent=foreign.sent))
    elif isinstance(message, WorkerExit):
        foreign.worker_ended(message.worker, message.uid)
        if cluster.servers.adopted.get(foreign.server.server) == foreign.agent:
            _forget(cluster, foreign)


def _clear(cluster: Cluster, foreign: ForeignServer) -> None:
    """Ask the workers of an adopted server to save their state and end."""
    for local in foreign.running.values():
        cluster.servers.send_foreign(foreign, _stop(local))
    _forget(cluster, foreign)


def _forget(cluster: Cluster, foreign: ForeignServer) -> None:
    if ended := foreign.take_ended():
        cluster.servers.send_foreign(foreign, ForgetWorkers(workers=tuple(ended), uids=ended))
    if not foreign.running:  # without workers the agent joins with its next hello
        cluster.servers.ask_for_hello(foreign.server.server, foreign.agent)


def _stop(local: LocalWorker) -> StopWorker:
    return StopWorker(job=local.job, worker=local.worker, uid=local.uid, grace_s=LEAST_SAVE_S, save=True)


# ------------------------------------------------------------------------------------------ workers of jobs that are not known


def report_unknown(cluster: Cluster, now: float, before: Session | None, session: Session) -> None:
    """Report workers of unknown jobs after a member's hello, and stop them if the server was adopted."""
    name = session.server.server
    if session.unknown and not set(session.unknown) <= set(before.unknown if before is not None else ()):
        cluster.history.add(now, EventKind.WORKERS_UNKNOWN, None, f"server {name}: {unknown_sentence(session)}")
    if not session.unknown:
        cluster.servers.record_adoption(name, None)
    elif cluster.servers.adopted.get(name) == session.agent:
        stop_unknown(cluster, session)


def stop_unknown(cluster: Cluster, session: Session) -> None:
    for local in session.unknown.values():
        cluster.servers.send(session.server.server, _stop(local))


def unknown_ended(cluster: Cluster, session: Session, ended: WorkerExit) -> None:
    """Take in the end of a worker, if it was one of an unknown job: its GPUs are free for others."""
    if not session.unknown_ended(ended.worker):
        return
    if not session.unknown:
        cluster.servers.record_adoption(session.server.server, None)
    cluster.planning.request()
    cluster.jobs.mark_waiting_dirty()


# ------------------------------------------------------------------------------------------------------------- the operator


def adopt(cluster: Cluster, now: float, name: ServerId, by: str) -> ServerAdopted:
    """Adopt a server for an operator, and ask foreign workers there to save their state and end.

    `by`: suffix that names the operator, after "is taken over". Raises UserError, RequestRefused.
    """
    foreign, session = present(cluster, now, name), cluster.servers.sessions.get(name)
    if foreign is not None:
        workers = len(foreign.running)
        cluster.servers.record_adoption(name, foreign.agent)
        _clear(cluster, foreign)
    elif session is None:
        raise UserError(f"there is no server {name[:80]!r}")
    elif not session.alive:
        raise RequestRefused(f"server {name} is not there")
    elif not session.unknown:
        raise RequestRefused(f"server {name} is a member of this cluster, and nothing runs there that is not its own")
    else:
        workers = len(session.unknown)
        cluster.servers.record_adoption(name, session.agent)
        stop_unknown(cluster, session)
    what = f": {_workers(workers)} there save their state and end" if workers else ""
    cluster.history.add(now, EventKind.SERVER_ADOPTED, None, f"server {name} is taken over{by}{what}")
    return ServerAdopted(server=name, workers=workers)


def sentence(foreign: ForeignServer) -> str:
    """Describe a server of another cluster for operators; the text follows the server's name."""
    name = foreign.server.server
    keeps = f"{_workers(len(foreign.running))} run there" if foreign.running else "it keeps how workers ended"
    return f"belongs to another cluster: {keeps}; `elasticctl servers adopt {name}` takes it over"


def unknown_sentence(session: Session) -> str:
    """Describe the workers of unknown jobs on a server for operators."""
    jobs = sorted({local.job for local in session.unknown.values()})  # names that a bad agent may have invented
    named = ", ".join(job[:MAX_NAME_CHARS] for job in jobs[:MAX_JOBS_NAMED])
    if len(jobs) > MAX_JOBS_NAMED:
        named += f" and {len(jobs) - MAX_JOBS_NAMED} more"
    what = (
        f"{_workers(len(session.unknown))} of jobs that the store does not know run there ({named}) and keep their GPUs"
    )
    return f"{what}; `elasticctl servers adopt {session.server.server}` has them save their state and end"


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
