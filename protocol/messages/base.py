"""What all messages have in common."""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 2  # 1: no terms, and nobody tells which version he speaks
VERSIONS_AHEAD = (
    1  # a speaker may be newer by so many: agents, controllers and clients are upgraded one after the other
)


def not_served(speaks: int, who: str) -> str:
    """Why a controller of this version does not serve `who`, who speaks that version; empty: it does."""
    newest = PROTOCOL_VERSION + VERSIONS_AHEAD
    if speaks <= newest:
        return ""
    return (
        f"{who} speaks version {speaks} of the protocol, and this controller, which speaks {PROTOCOL_VERSION}, serves versions "
        f"up to {newest}: upgrade the controller"
    )


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class name."""
