"""Admission of agents: one agent at a time speaks for a server, by its newest hello (cluster 2).

An agent has an identity, created once in its state directory. While the agent of one identity has a lease on a server's
name, another agent is refused: either two servers were given one name, or a server was reinstalled. The second agent
joins once the lease has expired.

If an operator has removed a server while its agent ran, the agent is refused until it is restarted. Otherwise the
server would be back at once.

An agent with too long a heartbeat interval is refused too, if the loss of one heartbeat would lose the server. Each of
the two configuration files may be right alone, but they do not fit together (`protocol.times`). As with any refused
agent, workers on its server go on, and nothing is started there.

A late or repeated hello must not undo later changes. So an agent numbers its hellos, and its own starts.
"""

from __future__ import annotations

from ...protocol.messages import AgentHello, EventKind, not_served
from ...protocol.model import ServerId
from ...protocol.times import lease_outlasts
from ..cluster import Cluster
from ..sessions import ForeignServer, Session
from .foreign import present


def stale(known: Session | ForeignServer | None, hello: AgentHello) -> bool:
    """Return whether `hello` is not newer than the last one of its agent."""
    if known is None or known.agent != hello.agent:
        return False
    if known.incarnation == hello.incarnation:
        return 0 < hello.number <= known.hello
    return bool(hello.agent) and hello.start < known.start


def refused(cluster: Cluster, now: float, server: ServerId, hello: AgentHello) -> bool:
    """Refuse `hello` if its agent must not speak for `server`; return whether it was refused.

    Reasons are another agent with a lease, too long a heartbeat interval, an unsupported version, and a removed server.
    """
    reason = (
        not_served(hello.speaks, f"the agent of server {server}")
        or _other_agent(cluster, now, server, hello)
        or _too_seldom(cluster, server, hello)
        or _removed(cluster, server, hello)
    )
    if reason:
        _refuse(cluster, now, server, hello, reason)
    else:
        cluster.servers.admit(server, hello.agent)
    return bool(reason)


def _other_agent(cluster: Cluster, now: float, server: ServerId, hello: AgentHello) -> str:
    holder = _holder(cluster, now, server)
    if holder is None or holder.agent in ("", hello.agent):
        return ""
    silence_s = max(0.0, now - holder.last_heard_s)
    return (
        f"another agent is server {server}: identity {holder.agent}, at {holder.server.address}, "
        f"heard of {silence_s:.0f} s ago; this one, {hello.agent or 'without identity'} at {hello.server.address}, "
        "may join under another name, or when the other one's lease has run out"
    )


def _too_seldom(cluster: Cluster, server: ServerId, hello: AgentHello) -> str:
    lease_s, interval_s = cluster.settings.server_lease_s, hello.heartbeat_interval_s
    if lease_outlasts(lease_s, interval_s):
        return ""
    return (
        f"the agent of server {server} says a heartbeat every {interval_s:g} s, and server_lease_s of the controller is "
        f"{lease_s:g} s: it must be more than twice as long, so that a server is not lost with one heartbeat; lower "
        "heartbeat_interval_s in the agent's file, or raise server_lease_s in the controller's"
    )


def _removed(cluster: Cluster, server: ServerId, hello: AgentHello) -> str:
    removal = cluster.servers.removed.get(server)
    if removal is None or (removal.agent, removal.incarnation) != (hello.agent, hello.incarnation):
        return ""
    return (
        f"server {server} has been removed by {removal.by} while this agent ran; started again, it joins as a new server: "
        "`systemctl restart elasticctl-agent`, or `elasticctl up` for one that it has started"
    )


def refuse_older(cluster: Cluster, now: float, server: ServerId, hello: AgentHello) -> None:
    """Refuse a stale `hello` with a reason, if no newer message of its agent arrives any more.

    Then the hello is not late: the agent may have lost the count of its starts, and would be ignored for ever.
    """
    known = cluster.servers.sessions.get(server)
    if known is None or known.alive or known.incarnation == hello.incarnation:
        return
    reason = (
        f"start {hello.start} of the agent of server {server}, and start {known.start} has been heard of: its state directory is "
        "an old copy; when nothing runs on the server, remove identity.json there, and start the agent again"
    )
    _refuse(cluster, now, server, hello, reason)


def _refuse(cluster: Cluster, now: float, server: ServerId, hello: AgentHello, reason: str) -> None:
    cluster.servers.refuse_agent(server, hello.agent, reason)
    if cluster.servers.refuse(server, hello.agent):
        cluster.history.add(now, EventKind.SERVER_REFUSED, None, f"refused an agent: {reason}")


def _holder(cluster: Cluster, now: float, server: ServerId) -> Session | ForeignServer | None:
    session = cluster.servers.sessions.get(server)
    if session is not None and (session.alive or server in cluster.servers.awaited):
        return session
    return present(cluster, now, server)
