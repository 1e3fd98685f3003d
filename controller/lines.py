"""Which connection each agent is at: the newest one that has spoken for it. Pure.

An agent says "SERVER#IDENTITY" with each message. What waits in a connection that it has replaced by a newer one is of the past,
and is dropped. Connections of one socket are numbered by ZeroMQ in the order in which they came; the numbers go round.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from ..protocol.errors import PeerError
from ..protocol.model import ServerId

NAME = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,63})(?:#([\x21-\x7e]{0,64}))?")
HEARTBEAT, NO_REPORTS = b"\xaeAgentHeartbeat", b"\xa7reports\x90"  # in MessagePack; what reports say is said once
END = b"\xaaWorkerExit"
AGENTS_OF_A_SERVER = 8  # of which it is known where they are: who has many identities is up to no good
HALF = 1 << 31


def parse(name: bytes) -> tuple[ServerId, str]:
    """Server and identity of an agent. Raises PeerError."""
    match = NAME.fullmatch(name)
    if match is None:
        raise PeerError(f"{name[:80]!r} is not the name of an agent")
    return ServerId(match[1].decode()), (match[2] or b"").decode()


def is_repeated(frames: list[bytes]) -> bool:
    """Does an agent say this message again by itself if it is lost: an end of a worker, or a heartbeat that reports nothing?

    The message is not decoded, since this is asked of each one that comes. Of a spoiled one the answer may be wrong.
    """
    head = frames[-1][:64] if frames else b""
    return END in head or (HEARTBEAT in head and NO_REPORTS in frames[-1])


class AgentLines:
    """By server and identity: a socket's number and a connection's name there, as `runtime.door` has them."""

    def __init__(self) -> None:
        self._lines: dict[ServerId, OrderedDict[str, bytes]] = {}

    def of(self, server: ServerId, agent: str) -> bytes | None:
        lines = self._lines.get(server)
        return None if lines is None else lines.get(agent)

    def spoke(self, server: ServerId, agent: str, peer: bytes) -> bool:
        """A message came from here. False: the agent has a newer connection."""
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
