"""Encoding of messages into bytes and back, for every link of the project.

MessagePack through msgspec, which validates types while it decodes. Messages are bounded in size. Bytes that are not a
message of the expected link raise PeerError; no part of them is used.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from .errors import PeerError

MAX_MESSAGE_BYTES = 16 << 20
MAX_REQUEST_BYTES = 1 << 20  # largest request of a client: a job with its environment

M = TypeVar("M")


class Codec(Generic[M]):
    """Encoder and decoder for the messages of one direction of one link (a union from `messages`)."""

    def __init__(self, incoming: type[M] | object) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(incoming)

    def encode(self, message: msgspec.Struct) -> bytes:
        """Return the bytes of `message`. Raises PeerError if they exceed `MAX_MESSAGE_BYTES`, which no receiver
        accepts.
        """
        data = self._encoder.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise PeerError(f"a {type(message).__name__} of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        return data

    def decode(self, data: bytes) -> M:
        """Return the message in `data`. Raises PeerError if `data` is too large, malformed, or not a message of this
        link.
        """
        if len(data) > MAX_MESSAGE_BYTES:
            raise PeerError(f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise PeerError(f"not a message of this link: {error}") from None
