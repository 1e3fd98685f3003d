"""Terms on the wire."""

from __future__ import annotations

import pytest

from elasticd.protocol.codec import Codec
from elasticd.protocol.errors import PeerError
from elasticd.protocol.messages import PROTOCOL_VERSION, Acknowledged, Standby, ToAgentFromController, not_served
from elasticd.protocol.terms import MOST_TERM, NO_TERM, stamped, unstamped


def test_a_term_survives_the_wire():
    for term in (NO_TERM, 1, 9, 10**6, MOST_TERM):
        assert unstamped(stamped(term, b"message")) == (term, b"message")


def test_a_controller_of_version_1_stamps_nothing():
    assert unstamped([b"message"]) == (NO_TERM, b"message")


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"", b"message"],
        [b"-1", b"message"],
        [b"1.5", b"message"],
        ["²".encode(), b"message"],
        [b"9" * 30, b"message"],
        [b"%d" % (MOST_TERM + 1), b"message"],
        [b"1", b"message", b"more"],
    ],
)
def test_what_is_no_term_is_refused(parts: list[bytes]):
    with pytest.raises(PeerError):
        unstamped(parts)


def test_an_agent_of_version_1_reads_the_last_part_alone():
    codec: Codec[ToAgentFromController] = Codec(ToAgentFromController)
    message = Acknowledged(incarnation="c", sent=1)
    assert codec.decode(stamped(7, codec.encode(message))[-1]) == message
    assert codec.decode(codec.encode(Standby(leader="tcp://c2:7701"))) == Standby(leader="tcp://c2:7701")


def test_a_speaker_may_be_one_version_ahead_and_not_two():
    assert not_served(0, "it") == not_served(PROTOCOL_VERSION, "it") == not_served(PROTOCOL_VERSION + 1, "it") == ""
    assert f"speaks version {PROTOCOL_VERSION + 2}" in not_served(PROTOCOL_VERSION + 2, "this client")
