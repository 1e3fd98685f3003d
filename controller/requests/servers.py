"""What operators decide about servers: one is gone for good, takes no new work, or is to be used all the same."""

from __future__ import annotations

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import (
    EventKind,
    ExcludeServer,
    IncludeServer,
    ServerExcluded,
    ServerForgotten,
    ServerIncluded,
)
from ...protocol.model import GpuAddress, ServerId, Trouble
from ..bars import NOTHING_OVERRULED
from ..cluster import Cluster
from ..events import ClientRequest
from ..reconcile.barring import weigh
from ..reconcile.health import forgive
from ..records import Exclusion, OverruleRecord, Trusted
from ..sessions import Session
from .authority import by

MOST_REASON = 500  # characters


def forget_server(cluster: Cluster, now: float, asked: ClientRequest, name: ServerId) -> ServerForgotten | None:
    """Do not know a lost server any more. Raises UserError, RequestRefused. None: it may still be heard of."""
    session = _known(cluster, name)
    if session.alive:
        raise RequestRefused(f"server {name} is there: only a lost server can be forgotten")
    if name in cluster.awaited:
        return None
    if any(True for _ in cluster.index.on_server(name)):
        raise RequestRefused(f"server {name} still has workers of jobs: they count as lost in a moment; try again")
    cluster.forget_server(name)
    cluster.tell(now, EventKind.SERVER_FORGOTTEN, None, f"server {name} is forgotten{by(asked.who)}")
    cluster.audit(now, asked, "forget server", name, "forgotten")
    return ServerForgotten(server=name)


def exclude_server(cluster: Cluster, now: float, asked: ClientRequest, request: ExcludeServer) -> ServerExcluded:
    """Start nothing new on a server, or on one of its GPUs, until an operator includes it. Raises UserError."""
    name, gpu = request.server, request.gpu
    session = _known(cluster, name)
    where = _where(session, gpu)
    if len(request.reason) > MOST_REASON or not request.reason.isprintable():
        raise UserError(f"a reason is one line of at most {MOST_REASON} characters")
    before = cluster.overruled.get(name, NOTHING_OVERRULED)
    exclusion = Exclusion(gpu=gpu, reason=request.reason, by=str(asked.who), since_s=now)
    excluded = (*(one for one in before.excluded if one.gpu != gpu), exclusion)
    trusted = tuple(one for one in before.trusted if gpu is not None and one.gpu != gpu)
    cluster.record_overruled(name, OverruleRecord(excluded=excluded, trusted=trusted))
    because = f": {request.reason}" if request.reason else ""
    cluster.tell(now, EventKind.EXCLUDED, None, f"{where} is excluded{by(asked.who)}{because}")
    cluster.audit(now, asked, "exclude server", where, f"excluded{because}")
    weigh(cluster, now, name)
    return ServerExcluded(server=name, gpu=gpu)


def include_server(cluster: Cluster, now: float, asked: ClientRequest, request: IncludeServer) -> ServerIncluded:
    """Use a server, or one of its GPUs, again, whatever is wrong there now. Raises UserError.

    A GPU is used in spite of what is wrong with its whole server only if that is included, too.
    """
    name, gpu = request.server, request.gpu
    session = _known(cluster, name)
    where = _where(session, gpu)

    def meant(index: int | None) -> bool:
        return gpu is None or index == gpu

    before = cluster.overruled.get(name, NOTHING_OVERRULED)
    spite = [trouble for trouble in session.troubles if trouble.severity.bars and meant(trouble.gpu)]
    record = OverruleRecord(
        excluded=tuple(one for one in before.excluded if not meant(one.gpu)),
        trusted=(*(one for one in before.trusted if not meant(one.gpu)), *map(_trusted, spite)),
    )
    cluster.record_overruled(name, record)
    told = tuple(f"{trouble.code}: {trouble.text}" for trouble in spite)
    all_the_same = f", in spite of {'; '.join(trouble.code for trouble in spite)}" if spite else ""
    cluster.tell(now, EventKind.INCLUDED, None, f"{where} is included{by(asked.who)}{all_the_same}"[:1000])
    cluster.audit(now, asked, "include server", where, f"included{all_the_same}"[:1000])
    forgive(cluster, now, name, [one for one in cluster.gpu_health if one.server == name and meant(one.index)])
    return ServerIncluded(server=name, gpu=gpu, trusted=told)


def _known(cluster: Cluster, name: ServerId) -> Session:
    session = cluster.sessions.get(name)
    if session is None:
        raise UserError(f"there is no server {name[:80]!r}")
    return session


def _where(session: Session, gpu: int | None) -> str:
    """In words. Raises UserError if the server has no such GPU."""
    name = session.server.server
    if gpu is None:
        return f"server {name}"
    if all(one.index != gpu for one in session.server.gpus):
        raise UserError(f"server {name} has no GPU {gpu}")
    return str(GpuAddress(server=name, index=gpu))


def _trusted(trouble: Trouble) -> Trusted:
    return Trusted(gpu=trouble.gpu, code=trouble.code, since_s=trouble.since_s)
