"""The controller's log: one line for each change of state, within a bounded rate."""

from __future__ import annotations

import logging
from collections import deque

import pytest

from elasticd.controller.eventlog import AT_ONCE, INTERVAL_S, EventLog
from elasticd.protocol.messages import EventKind, EventView
from elasticd.protocol.model import JobId
from elasticd.runtime import logs


def event(number: int, kind: EventKind = EventKind.STARTED, text: str = "it trains") -> EventView:
    return EventView(number=number, time_s=0.0, kind=kind, job=JobId(f"digits-{number}"), text=text)


def told_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [logs.line(record) for record in caplog.records]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_each_event_is_told_once_and_none_that_was_there_before(lines: pytest.LogCaptureFixture):
    events = deque([event(1)])
    told = EventLog(events, lambda: 0.0)
    told.tell(events)
    assert told_lines(lines) == []
    events += [event(2), EventView(number=3, time_s=0.0, kind=EventKind.SERVER_LOST, job=None, text="server a is lost")]
    told.tell(events)
    told.tell(events)
    assert told_lines(lines) == ["event=started job=digits-2 it trains", "event=server-lost server a is lost"]


def test_a_flood_of_one_kind_is_bounded_and_hides_no_other(lines: pytest.LogCaptureFixture):
    now = [0.0]
    told = EventLog(deque(), lambda: now[0])
    events = deque([event(number) for number in range(1, 5001)], maxlen=10_000)
    events.append(event(5001, EventKind.FAILED, "failed: ValueError"))
    told.tell(events)
    assert len(told_lines(lines)) == AT_ONCE + 1
    assert told_lines(lines)[-1] == "event=failed job=digits-5001 failed: ValueError"
    now[0] = INTERVAL_S
    events.append(event(5002))
    told.tell(events)
    assert (
        told_lines(lines)[-1]
        == f"event=started job=digits-5002 it trains (and {5000 - AT_ONCE} more of its kind before)"
    )


def test_a_history_that_goes_back_is_followed(lines: pytest.LogCaptureFixture):
    """After a failed commit, the controller's state machine is rebuilt from the store."""
    told = EventLog(deque([event(7)]), lambda: 0.0)
    told.tell(deque([event(5)]))
    told.tell(deque([event(5), event(6)]))
    assert told_lines(lines) == ["event=started job=digits-6 it trains"]


def test_a_line_about_a_job_has_its_generation(lines: pytest.LogCaptureFixture):
    told = EventLog(deque(), lambda: 0.0, {JobId("digits-1"): 7}.get)
    told.tell(deque([event(1), event(2)]))
    assert told_lines(lines) == [
        "event=started job=digits-1 generation=7 it trains",
        "event=started job=digits-2 it trains",
    ]
