"""A server that tells a leader of later reigns is believed once in a while."""

from __future__ import annotations

from elasticd.controller.election.term_reports import TermReportLimiter
from elasticd.protocol.model import ServerId

A, B = ServerId("a"), ServerId("b")


def test_each_server_is_believed_once_until_its_time_has_passed() -> None:
    limiter = TermReportLimiter(again_s=600.0)
    assert limiter.allow(0.0, A)
    assert not limiter.allow(1.0, A)
    assert limiter.allow(2.0, B)
    assert not limiter.allow(599.0, A)
    assert limiter.allow(601.0, A)
    assert not limiter.allow(601.5, B)
    assert not limiter.allow(700.0, A)
