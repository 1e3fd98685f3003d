"""Requests that an agent answers: the controller passes them on, and remembers the client to answer."""

from __future__ import annotations

from ...protocol.errors import RequestRefused
from ...protocol.messages import ReadLog, RunCommand
from ...protocol.model import ServerId
from ...protocol.times import LOG_TIMEOUT_S
from ..cluster import Cluster
from ..events import ClientRequest

MAX_PENDING_LOGS = 1000


def pass_on(
    cluster: Cluster, now: float, asked: ClientRequest, server: ServerId, message: ReadLog | RunCommand, due: str
) -> None:
    """Send `message` to the agent of `server`; its reply becomes the answer. `due`: names the
    reply, for messages. Raises RequestRefused."""
    name = asked.name
    if len(cluster.clients.pending_logs) >= MAX_PENDING_LOGS and name not in cluster.clients.pending_logs:
        raise RequestRefused(f"{MAX_PENDING_LOGS} pieces of logs are being read already; try again in a moment")
    cluster.clients.wait_for_agent(asked, server, now + LOG_TIMEOUT_S, due)
    cluster.servers.send(server, message)
