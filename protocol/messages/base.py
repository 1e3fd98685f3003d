"""What all messages have in common."""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class name."""
