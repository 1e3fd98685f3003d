"""Connections of agents: the newest connection that has sent a message for each agent. Pure.

An agent sends "SERVER#IDENTITY" with each message. Messages that still wait in a replaced connection are outdated, and are
dropped. ZeroMQ numbers the connections of a socket in the order of their arrival; the numbers wrap around.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from ..protocol.errors import PeerError
from ..protocol.model import ServerId

NAME = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,63})(?:#([\x21-\x7e]{0,64}))?")
# Parts of encoded messages (MessagePack). A heartbeat with reports is not repeated.
HEARTBEAT, NO_REPORTS = b"\xaeAgentHeartbeat", b"\xa7reports\x90"
END = b"\xaaWorkerExit"
AGENTS_OF_A_SERVER = 8  # limit of known agents: a server with many identities is faulty or hostile
HALF = 1 << 31


def parse(name: bytes) -> tuple[ServerId, str]:
    """Return the server and the identity of an agent. Raises PeerError if `name` has another form."""
    match = NAME.fullmatch(name)
    if match is None:
        raise PeerError(f"{name[:80]!r} is not the name of an agent")
    return ServerId(match[1].decode()), (match[2] or b"").decode()


def is_repeated(frames: list[bytes]) -> bool:
    """Return whether the agent resends this message if it is lost: the end of a worker, or a heartbeat without reports.

    The message is not decoded, as this is called for each one. For a malformed message the result may be wrong.
    """
    head = frames[-1][:64] if frames else b""
    return END in head or (HEARTBEAT in head and NO_REPORTS in frames[-1])


class AgentConnections:
    """Newest connection of each agent, by server and identity: the socket's number and the connection's name there."""

    def __init__(self) -> None:
        self._lines: dict[ServerId, OrderedDict[str, bytes]] = {}

    def of(self, server: ServerId, agent: str) -> bytes | None:
        lines = self._lines.get(server)
        return None if lines is None else lines.get(agent)

    def spoke(self, server: ServerId, agent: str, peer: bytes) -> bool:
        """Note a message of an agent from the connection `peer`. Returns False if the agent has a newer connection."""
        lines = self._lines.setdefault(server, OrderedDict())
        known = lines.get(agent)
        if known == peer:
            return True
        if known is not None and known[:1] == peer[:1] and not _is_newer(peer, known):
            return False
        lines[agent] = peer
        lines.move_to_end(agent)
        if len(lines) > AGENTS_OF_A_SERVER:
            lines.popitem(last=False)
        return True


def _is_newer(peer: bytes, known: bytes) -> bool:
    return 0 < (int.from_bytes(peer[-4:]) - int.from_bytes(known[-4:])) % (2 * HALF) < HALF
