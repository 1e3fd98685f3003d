"""The only place where bytes become messages and messages bytes.

MessagePack through msgspec, which validates types while it decodes. A message is bounded in size; anything that is not a
message of the expected link raises PeerError and is never partly taken.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from .errors import PeerError

MAX_MESSAGE_BYTES = 16 << 20
MAX_REQUEST_BYTES = 1 << 20  # of a client's: the largest is a job with its environment

M = TypeVar("M")


class Codec(Generic[M]):
    """Encodes and decodes the messages of one direction of one link (a union from `messages`)."""

    def __init__(self, incoming: type[M] | object) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(incoming)

    def encode(self, message: msgspec.Struct) -> bytes:
        """Bytes of `message`. Raises PeerError if they would be too many for any receiver."""
        data = self._encoder.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise PeerError(f"a {type(message).__name__} of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        return data

    def decode(self, data: bytes) -> M:
        """The message in `data`. Raises PeerError if it is too large, malformed, or not of this link."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise PeerError(f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise PeerError(f"not a message of this link: {error}") from None
