"""Configured times that depend on one another."""

from __future__ import annotations

import pytest

from elasticd.protocol import times


def test_the_times_fit_together():
    times.check()


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("HEARTBEAT_INTERVAL_S", 5.0, "a heartbeat of an agent may be lost, and its server is not"),
        ("MOST_SERVER_LEASE_S", 100.0, "for each heartbeat interval there is a lease"),
        ("SILENT_INTERVALS", 11, "an agent says hello again before its server is lost"),
        ("CONNECTION_TIMEOUT_S", 20.0, "a broken connection is made anew before a server is lost"),
        ("FIRST_HOLD_S", 1000.0, "a job is first held back for a shorter time"),
        ("ORDER_REPEAT_S", 0.1, "a worker has said whether it follows an order"),
        (
            "LEAST_WORKER_SILENCE_S",
            2.5,
            "an agent that was away for a moment does not take that for a worker's silence",
        ),
        ("WORKER_SILENCE_S", 2.0, "a worker's silence by default may also be set"),
        ("RECORD_PATIENCE_S", 1.0, "how a worker ended is tried to be written down more than once"),
    ],
)
def test_a_rule_between_two_daemons_is_named(monkeypatch, name: str, value: float, rule: str):
    monkeypatch.setattr(times, name, value)
    with pytest.raises(AssertionError, match=rule):
        times.check()


def test_a_time_that_does_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(times, "STOP_GRACE_S", 31.0)
    with pytest.raises(AssertionError, match="a worker that saves has more time"):
        times.check()


def test_the_heartbeats_of_all_agents_together_are_bounded_until_two_lost_ones_would_lose_a_server():
    assert times.paced_interval_s(800, server_lease_s=10.0) == pytest.approx(2.0)
    assert times.paced_interval_s(3, server_lease_s=10.0) < times.LEAST_HEARTBEAT_INTERVAL_S
    assert times.SILENT_INTERVALS * times.paced_interval_s(10_000, server_lease_s=10.0) < 10.0
