"""`explain --at`: a job's GPUs at a time of the past, and those of the others, from the records of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.ctl.past import Past, document, parts, past, present
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import (
    EventKind,
    Events,
    EventView,
    GetEvents,
    GetJob,
    JobFound,
    Jobs,
    JobView,
    ShareChange,
)
from elasticd.protocol.model import JobId
from tests.ctl.test_explain import NOW, view


def change(ago_s: float, share: int, reason: str = "") -> ShareChange:
    return ShareChange(time_s=NOW - ago_s, share=share, generation=1, reason=reason)


JOB = view(
    submitted_s=NOW - 1000.0,
    shares=(
        change(900.0, 4, "starts: GPUs are free"),
        change(600.0, 0, "makes room for held-3 (0 -> 4)"),
        change(200.0, 2, "held-3 has shrunk"),
    ),
)
HELD = view(job="held-3", submitted_s=NOW - 700.0, shares=(change(600.0, 4), change(200.0, 2)))
LATER = view(job="later-9", submitted_s=NOW - 650.0, shares=())
OVER = view(
    job="over-1",
    phase="finished",
    submitted_s=NOW - 2000.0,
    finished_s=NOW - 500.0,
    shares=(change(1900.0, 1), change(500.0, 0)),
)


def at(ago_s: float, job: JobView = JOB, others: Any = (HELD, LATER, OVER)) -> Past:
    event = EventView(number=1, time_s=NOW - 950.0, kind=EventKind.SUBMITTED, job=JobId("digits-7"), text="submitted")
    return Past(NOW - ago_s, NOW, job, present([*others, job], job, NOW - ago_s), (event,))


def lines(then: Past) -> list[tuple[str, str]]:
    return [(each.label, each.text) for each in parts(then)]


@pytest.mark.parametrize(
    ("ago_s", "state", "why", "held"),
    [
        (950.0, "without GPUs for 50s", None, "over-1 1: 1 GPU"),
        (900.0, "on 4 GPUs for 0s", "starts: GPUs are free", "over-1 1: 1 GPU"),
        (550.0, "without GPUs for 50s", "makes room for held-3 (0 -> 4)", "held-3 4, over-1 1: 5 GPUs"),
        (100.0, "on 2 GPUs for 1m40s", "held-3 has shrunk", "held-3 2: 2 GPUs"),
    ],
)
def test_the_last_change_before_the_time_is_told_with_those_who_held_gpus(
    ago_s: float, state: str, why: str | None, held: str
) -> None:
    told = dict(lines(at(ago_s)))
    assert f": {state}; it asks for 2 to 8 GPUs" in told[""]
    assert told.get("why") == why
    assert told["held by"] == held
    assert told["events"].endswith("submitted")


def test_the_next_change_and_the_jobs_that_waited_are_told() -> None:
    told = dict(lines(at(550.0)))
    assert told["next"].endswith("0 -> 2  held-3 has shrunk")
    assert told["waited, too"] == "later-9"
    assert "next" not in dict(lines(at(100.0)))
    assert dict(lines(at(100.0)))["waited, too"] == "later-9", "over-1 has ended"


def test_a_job_that_was_over_then_is_told_as_such() -> None:
    told = dict(lines(at(400.0, OVER, ())))
    assert told[""].endswith("finished 1m40s before; it asked for 2 to 8 GPUs")
    assert "held by" not in told


def test_the_document_has_the_same_facts() -> None:
    found = document(at(550.0))
    assert (found["share_gpus"], found["since_s"], found["reason"]) == (
        0,
        NOW - 600.0,
        "makes room for held-3 (0 -> 4)",
    )
    assert found["holders"] == [{"job": "held-3", "share_gpus": 4}, {"job": "over-1", "share_gpus": 1}]
    assert found["waiting"] == ["later-9"]
    assert found["next"] == {"time_s": NOW - 200.0, "share_gpus": 2, "reason": "held-3 has shrunk"}


class Cluster:
    """Answers of a controller that knows these jobs; events come two at a time."""

    def __init__(self, job: JobView, *ended: JobView) -> None:
        self.job, self._ended, self.client = job, ended, self
        self.asked_for = 0
        self._events = [
            EventView(number=n, time_s=NOW - 1000.0 + 100.0 * n, kind=EventKind.SUBMITTED, job=None, text=f"event {n}")
            for n in range(1, 9)
        ]

    def ask(self, request: Any, kind: Any) -> Any:
        if isinstance(request, GetJob):
            return JobFound(job=self.job, time_s=NOW)
        assert isinstance(request, GetEvents)
        return Events(events=tuple(each for each in self._events if each.number > request.after)[:2])

    def jobs(self, request: Any) -> Jobs:
        return Jobs(jobs=(self.job, HELD), time_s=NOW, policy="fifo")

    def ended(self, request: Any) -> Any:
        for each in self._ended:
            self.asked_for += 1
            yield each


def test_events_before_the_time_and_jobs_that_were_not_over_are_asked_for() -> None:
    day = 86_400.0
    days_before = [view(job=f"old-{n}", submitted_s=0.0, finished_s=NOW - n * day, shares=()) for n in range(2, 6)]
    cluster: Any = Cluster(JOB, OVER, *days_before)
    then = past(cluster, "digits-7", NOW - 550.0)
    assert [each.text for each in then.events] == ["event 2", "event 3", "event 4"]
    assert [each.job for each in then.others] == ["held-3", "over-1"]
    assert cluster.asked_for <= 2, "jobs that ended on earlier days are not asked for"


@pytest.mark.parametrize(
    ("job", "ago_s", "words"),
    [
        (JOB, -10.0, "that time is in the future"),
        (JOB, 2000.0, "digits-7 was submitted later"),
        (
            view(submitted_s=NOW - 1000.0, started_s=NOW - 990.0, shares=(change(500.0, 2), change(400.0, 4, "grows"))),
            600.0,
            "changes of its share are on record since",
        ),
    ],
)
def test_a_time_without_a_record_is_refused(job: JobView, ago_s: float, words: str) -> None:
    cluster: Any = Cluster(job)
    with pytest.raises(UserError, match=words):
        past(cluster, job.job, NOW - ago_s)
