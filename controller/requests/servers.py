"""Requests of operators about servers: remove, cordon, drain and uncordon."""

from __future__ import annotations

from msgspec.structs import replace

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import (
    CordonServer,
    EventKind,
    ServerCordoned,
    ServerRemoved,
    ServerUncordoned,
    UncordonServer,
)
from ...protocol.model import CordonKind, GpuAddress, ServerId, Trouble
from ...protocol.texts import gpu_count
from ..cluster import Cluster
from ..events import ClientRequest
from ..jobs.job import Job
from ..loans import RESERVATION, lent
from ..reconcile.health import forgive
from ..reconcile.slow_findings import lift
from ..reconcile.tainted import give_back, refresh_taints
from ..records import Cordon, RemovalRecord, Trusted
from ..sessions import Session
from ..taints import NOTHING_OVERRULED, sentences
from .authority import by

MOST_REASON = 500  # characters of an operator's reason
WORKERS_TOLD, MOST_NAME = 8, 80  # limits of a refusal to remove a server: named workers, and characters of each


def remove_server(cluster: Cluster, now: float, asked: ClientRequest, name: ServerId) -> ServerRemoved | None:
    """Forget a server that has no workers.

    Return None while a server known only from the store may still report. A running agent there is not accepted again
    before it is restarted. Otherwise its next message would bring the server back. Raises UserError, RequestRefused.
    """
    session = _known(cluster, name)
    if name in cluster.servers.awaited:
        return None
    if there := _there(cluster, session):
        why = (
            f"drain it first: `elasticctl drain {name}`"
            if session.alive
            else "they count as lost in a moment; try again"
        )
        raise RequestRefused(f"server {name} still has workers of jobs ({there}): {why}")
    ran = session.alive
    if ran:
        removal = RemovalRecord(agent=session.agent, incarnation=session.incarnation, by=str(asked.who), since_s=now)
        cluster.servers.record_removal(name, removal)
    _end_loans_of(cluster, now, name)
    cluster.servers.forget(name)
    how = ", while its agent ran" if ran else ""
    cluster.history.add(now, EventKind.SERVER_REMOVED, None, f"server {name} is removed{by(asked.who)}{how}")
    cluster.clients.audit(now, asked, "remove server", name, f"removed{how}")
    return ServerRemoved(server=name)


def _end_loans_of(cluster: Cluster, now: float, name: ServerId) -> None:
    """Report the loans that lose GPUs, because their server is removed."""
    gone: dict[str, int] = {}
    for server, cordon in lent(cluster):
        if server == name:
            gone[cordon.loan] = gone.get(cordon.loan, 0) + 1
    for loan, count in sorted(gone.items()):
        text = f"{loan} has {gpu_count(count)} fewer: server {name} is removed"
        cluster.history.add(now, EventKind.LOAN_ENDED, None, text)


def _there(cluster: Cluster, session: Session) -> str:
    """Return the first workers that keep a server from being removed, in words; "" if there are none."""
    name = session.server.server
    found = [
        f"{entry.worker} on {entry.gpu}"
        for job in cluster.jobs.index.on_server(name)
        for entry in job.workers
        if entry.gpu.server == name
    ]
    found += [f"{job.id} is to begin there" for job in cluster.jobs.index.on_server(name) if not _workers_on(job, name)]
    found += [f"{worker[:MOST_NAME]}, which nobody needs" for worker in session.orphans]
    found += [f"{worker[:MOST_NAME]}, of a job that is not known" for worker in session.unknown]
    more = [f"and {len(found) - WORKERS_TOLD} more"] if len(found) > WORKERS_TOLD else []
    return ", ".join([*found[:WORKERS_TOLD], *more])


def _workers_on(job: Job, server: ServerId) -> bool:
    return any(entry.gpu.server == server for entry in job.workers)


def cordon_server(cluster: Cluster, now: float, asked: ClientRequest, request: CordonServer) -> ServerCordoned:
    """Cordon a server or GPU until an operator uncordons it, and drain it if requested (`reconcile.draining`).

    A request for the present state changes nothing: the recorded principal and time stay. Raises UserError.
    """
    name, gpu, kind = request.server, request.gpu, request.kind
    session = _known(cluster, name)
    where = _where(session, gpu)
    if len(request.reason) > MOST_REASON or not request.reason.isprintable():
        raise UserError(f"a reason is one line of at most {MOST_REASON} characters")
    answer = ServerCordoned(server=name, gpu=gpu, kind=kind)
    before = cluster.servers.overruled.get(name, NOTHING_OVERRULED)
    known = next((one for one in before.cordons if one.gpu == gpu and not one.loan), None)
    if known is not None and known.kind is kind and request.reason in ("", known.reason):
        return answer
    reason = request.reason or (known.reason if known is not None else "")
    cordon = Cordon(gpu=gpu, reason=reason, by=str(asked.who), since_s=now, kind=kind)
    others = (one for one in before.cordons if one is not known)
    cluster.servers.record_overruled(name, replace(before, cordons=(*others, cordon)))
    because = f": {reason}" if reason else ""
    event, act, text = _WORDS[kind]
    cluster.history.add(now, event, None, f"{where} is {text}{by(asked.who)}{because}")
    cluster.clients.audit(now, asked, act, where, f"{text}{because}")
    refresh_taints(cluster, now, name, reported=True)
    return answer


_WORDS = {
    CordonKind.CORDON: (EventKind.CORDONED, "cordon server", "cordoned"),
    CordonKind.DRAIN: (EventKind.DRAINING, "drain server", "being drained"),
    CordonKind.DRAIN_BY_PREEMPTING: (EventKind.DRAINING, "drain server", "being drained, by preempting"),
}


def act_of(kind: CordonKind) -> str:
    """Return the name of a request of this kind in the audit log."""
    return _WORDS[kind][1]


def uncordon_server(cluster: Cluster, now: float, asked: ClientRequest, request: UncordonServer) -> ServerUncordoned:
    """Use a server or GPU again; with `trust` also in spite of its present faults. Raises UserError.

    A GPU is used in spite of a fault of its whole server only if that fault is trusted, too. Uncordoning a server does
    not change loans and reservations. A single GPU that is lent, and not cordoned otherwise, is taken back from its
    loan.
    """
    name, gpu = request.server, request.gpu
    session = _known(cluster, name)
    where = _where(session, gpu)

    def meant(index: int | None) -> bool:
        return gpu is None or index == gpu

    _take_back(cluster, now, asked, name, gpu)
    before = cluster.servers.overruled.get(name, NOTHING_OVERRULED)
    record = replace(before, cordons=tuple(one for one in before.cordons if one.loan or not meant(one.gpu)))
    spite: list[Trouble] = []
    if request.trust:
        spite = [trouble for trouble in session.troubles if trouble.severity.blocks_new_work and meant(trouble.gpu)]
        trusted = (*(one for one in before.trusted if not meant(one.gpu)), *map(_trusted, spite))
        record = replace(record, trusted=trusted)
    if record != before or request.trust:
        cluster.servers.record_overruled(name, record)
        all_the_same = f", in spite of {'; '.join(trouble.code for trouble in spite)}" if spite else ""
        cluster.history.add(
            now, EventKind.UNCORDONED, None, f"{where} is uncordoned{by(asked.who)}{all_the_same}"[:1000]
        )
        cluster.clients.audit(now, asked, "uncordon server", where, f"uncordoned{all_the_same}"[:1000])
    if request.trust:
        lift(
            cluster, now, name, [one.index for one in session.server.gpus if meant(one.index)], "an operator trusts it"
        )
        forgive(
            cluster, now, name, [one for one in cluster.servers.gpu_health if one.server == name and meant(one.index)]
        )
    else:
        refresh_taints(cluster, now, name, reported=True)
    overruled = tuple(f"{trouble.code}: {trouble.text}" for trouble in spite)
    return ServerUncordoned(server=name, gpu=gpu, trusted=overruled, still=_still(cluster, session, gpu))


def _take_back(cluster: Cluster, now: float, asked: ClientRequest, name: ServerId, gpu: int | None) -> None:
    """Take back a GPU that is lent, and not cordoned otherwise; do nothing for any other GPU."""
    there = [
        one
        for one in cluster.servers.overruled.get(name, NOTHING_OVERRULED).cordons
        if gpu is not None and one.gpu == gpu
    ]
    if len(there) != 1 or not there[0].loan or there[0].loan.startswith(RESERVATION):
        return
    assert gpu is not None
    found = GpuAddress(server=name, index=gpu)
    give_back(cluster, now, there[0].loan, (found,))
    cluster.history.add(now, EventKind.LOAN_ENDED, None, f"{found} of {there[0].loan} is used again{by(asked.who)}")
    cluster.clients.audit(now, asked, "end loan", there[0].loan, f"{found} used again")


def _still(cluster: Cluster, session: Session, gpu: int | None) -> tuple[str, ...]:
    """Return the reasons why the server, or its GPU with this index, still takes no new work."""
    tainted = cluster.servers.tainted.get(session.server.server, {})
    return tuple(
        sentences(len(session.server.gpus), {index: taint for index, taint in tainted.items() if gpu in (None, index)})
    )


def _known(cluster: Cluster, name: ServerId) -> Session:
    session = cluster.servers.sessions.get(name)
    if session is None:
        raise UserError(f"there is no server {name[:80]!r}")
    return session


def _where(session: Session, gpu: int | None) -> str:
    """Return the server or GPU in words. Raises UserError if the server has no such GPU."""
    name = session.server.server
    if gpu is None:
        return f"server {name}"
    if all(one.index != gpu for one in session.server.gpus):
        raise UserError(f"server {name} has no GPU {gpu}")
    return str(GpuAddress(server=name, index=gpu))


def _trusted(trouble: Trouble) -> Trusted:
    return Trusted(gpu=trouble.gpu, code=trouble.code, since_s=trouble.since_s)
