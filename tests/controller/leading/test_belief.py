"""A server that tells a leader of later reigns is believed once in a while."""

from __future__ import annotations

from elasticd.controller.leading.belief import Belief
from elasticd.protocol.model import ServerId

A, B = ServerId("a"), ServerId("b")


def test_each_server_is_believed_once_until_its_time_has_passed() -> None:
    belief = Belief(again_s=600.0)
    assert belief.believes(0.0, A)
    assert not belief.believes(1.0, A)
    assert belief.believes(2.0, B)
    assert not belief.believes(599.0, A)
    assert belief.believes(601.0, A)
    assert not belief.believes(601.5, B)
    assert not belief.believes(700.0, A)
