"""Counters of messages dropped and connections cut because a peer sent more than it may, or than the daemon can handle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..protocol.figures import Figure, Kind, gauge, labelled
from ..protocol.principals import CLIENT_ROLES, Role


def _none() -> dict[str, int]:
    return {role.value: 0 for role in (*CLIENT_ROLES, Role.SERVER)}


@dataclass
class Floods:
    """Counts since the daemon's start, by the role of the peer."""

    cut: dict[str, int] = field(default_factory=_none)  # connections
    dropped: dict[str, int] = field(default_factory=_none)  # messages

    def figures(self, waiting: int, prefix: str = "") -> Iterator[Figure]:
        """Yield the metrics. waiting: messages that are not handled yet. prefix: of the metrics' names."""
        text = "Messages that have come in and are not handled yet."
        yield gauge(f"{prefix}messages_waiting", text, float(waiting))
        text = "Connections that were cut since their peer said too much, by its role."
        cut = {role: float(count) for role, count in self.cut.items()}
        yield labelled(Kind.COUNTER, f"{prefix}connections_cut", text, "peer", cut)
        text = "Messages that were dropped unheard since their peer said too much, by its role."
        dropped = {role: float(count) for role, count in self.dropped.items()}
        yield labelled(Kind.COUNTER, f"{prefix}flood_messages_dropped", text, "peer", dropped)
