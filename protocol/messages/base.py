"""Base and protocol version of all messages."""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 2  # version 1 has no terms, and its messages do not state their version
VERSIONS_AHEAD = (
    1  # versions by which a peer may be newer: agents, controllers and clients are upgraded one after the other
)


def not_served(speaks: int, who: str) -> str:
    """Return why a controller of this version does not serve the peer `who` of version `speaks`; empty: it does."""
    newest = PROTOCOL_VERSION + VERSIONS_AHEAD
    if speaks <= newest:
        return ""
    return (
        f"{who} speaks version {speaks} of the protocol, and this controller, which speaks {PROTOCOL_VERSION}, serves versions "
        f"up to {newest}: upgrade the controller"
    )


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class name."""
