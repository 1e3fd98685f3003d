"""What a daemon has done about peers who say more than they may, or more than it can handle: figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..protocol.figures import Figure, Kind, gauge, labelled
from ..protocol.principals import Role


def _none() -> dict[str, int]:
    return {role.value: 0 for role in (Role.USER, Role.OPERATOR, Role.SERVER)}


@dataclass
class Floods:
    """By the role of the peer, from the daemon's start."""

    cut: dict[str, int] = field(default_factory=_none)  # connections
    dropped: dict[str, int] = field(default_factory=_none)  # messages

    def figures(self, waiting: int, prefix: str = "") -> Iterator[Figure]:
        """waiting: messages that are not handled yet. prefix: of the figures' names."""
        text = "Messages that have come in and are not handled yet."
        yield gauge(f"{prefix}messages_waiting", text, float(waiting))
        text = "Connections that were cut since their peer said too much, by its role."
        cut = {role: float(count) for role, count in self.cut.items()}
        yield labelled(Kind.COUNTER, f"{prefix}connections_cut", text, "peer", cut)
        text = "Messages that were dropped unheard since their peer said too much, by its role."
        dropped = {role: float(count) for role, count in self.dropped.items()}
        yield labelled(Kind.COUNTER, f"{prefix}flood_messages_dropped", text, "peer", dropped)
