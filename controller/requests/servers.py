"""Servers that are gone for good: an operator says so, for nobody else can know."""

from __future__ import annotations

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import EventKind, ServerForgotten
from ...protocol.model import ServerId
from ..cluster import Cluster
from ..events import ClientRequest
from .authority import by


def forget_server(cluster: Cluster, now: float, asked: ClientRequest, name: ServerId) -> ServerForgotten | None:
    """Do not know a lost server any more. Raises UserError, RequestRefused. None: it may still be heard of."""
    session = cluster.sessions.get(name)
    if session is None:
        raise UserError(f"there is no server {name[:80]!r}")
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
