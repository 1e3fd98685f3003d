"""Phrases that say when a waiting job starts."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from elasticd.ctl import starting
from elasticd.ctl.context import Context
from elasticd.ctl.promises import moment
from elasticd.protocol.errors import RequestRefused, UserError
from elasticd.protocol.messages import GetOutlook, JobView, Outlook, OutlookJob, Withheld, Withholding
from elasticd.protocol.model import After, GpuRange, JobId, JobPhase, JobSpec, ServerId
from elasticd.simulator.forecast import Starts

NOW = 1_790_000_000.0


class Controller:
    """Answers GetOutlook, as `Context.ask` does."""

    def __init__(self, answer: Outlook | Exception) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def ask(self, request: Any, *rest: Any) -> Outlook:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def shared(answer: Outlook | Exception) -> Context:
    return cast(Context, Controller(answer))


def outlook(**more: Any) -> Outlook:
    given = {"requested_gpus": 2, "min_gpus": 2, "max_gpus": 2, "priority": 0, "curve": 0, "submitted_s": NOW - 60.0}
    given |= {"executed_s": 0.0, "attained_gpu_s": 0.0, "changes": 0, "done_s": 0.0, "left_s": 200.0, "fixed": True}
    given |= {"by_hand": None, "time_left_s": None}
    runs = OutlookJob(job=JobId("runs-1"), share=2, waiting_since_s=None, **given)
    waits = OutlookJob(job=JobId("waits-2"), share=0, waiting_since_s=NOW - 60.0, **given)
    servers = ((ServerId("s"), 2),)
    facts: dict[str, Any] = {"policy": {"policy": "fifo"}, "jobs": (runs, waits), "speedups": ((0.0, 1.0, 2.0),)}
    return Outlook(time_s=NOW, servers=servers, **(facts | more))


def view(phase: JobPhase = JobPhase.PENDING, **more: Any) -> JobView:
    facts = dict.fromkeys(JobView.__struct_fields__)
    return JobView(**{**facts, "job": JobId("waits-2"), "phase": phase, **more})


def spec(**more: Any) -> JobSpec:
    return JobSpec(name="new", command=("true",), workdir="/", gpus=GpuRange(min=1, max=1), virtual_workers=1, **more)


@pytest.mark.parametrize(
    ("after_s", "phrase", "document"),
    [
        ((0.0, 0.0), "at once, in 9 of 10 simulations", (NOW, NOW)),
        ((0.0, 0.0, 600.0), f"between now and {moment(NOW + 480.0, NOW)}, in 8 of 10 simulations", (NOW, NOW + 480.0)),
        ((60.0, 60.0), f"at {moment(NOW + 60, NOW)}, in 8 of 10 simulations", None),
        ((60.0, 60.0, math.inf), f"not before {moment(NOW + 60, NOW)}, if at all, in 9 of 10 simulations", None),
        ((math.inf, math.inf), "never, in 9 of 10 simulations with the servers that are connected now", (None, None)),
    ],
)
def test_a_forecast_is_an_interval_in_words_and_in_unix_times(
    after_s: tuple[float, ...], phrase: str, document: tuple[float | None, float | None] | None
) -> None:
    found = Starts(after_s)
    assert starting.phrase(found, NOW) == phrase
    if document is not None:
        told = starting.document(found, NOW)
        assert (told["from_s"], told["to_s"]) == pytest.approx(document)


def test_a_waiting_job_starts_when_the_gang_before_it_ends() -> None:
    told = starting.of_job(shared(outlook()), view())
    assert told is not None
    assert told[0] == f"at {moment(NOW + 100, NOW)}, in 8 of 10 simulations"
    assert (told[1]["from_s"], told[1]["to_s"], told[1]["simulations"]) == (NOW + 100.0, NOW + 100.0, 40)


def test_a_job_that_does_not_wait_for_gpus_alone_has_no_forecast_and_nothing_is_asked() -> None:
    controller = Controller(outlook())
    held = Withheld(how=Withholding.HOLD, since_s=NOW)
    for each in (view(JobPhase.RUNNING), view(withheld=held)):
        assert starting.of_job(cast(Context, controller), each) is None
    assert starting.of_spec(cast(Context, controller), spec(after=(After(job="a-1"),))) is None
    assert controller.asked == []


def test_a_job_that_waits_for_others_is_not_in_the_outlook_and_has_no_forecast() -> None:
    assert starting.of_job(shared(outlook(jobs=())), view()) is None


def test_an_obstacle_is_named() -> None:
    found = Outlook(time_s=NOW, obstacle="there are more than 5000 jobs")
    for told in (starting.of_job(shared(found), view()), starting.of_spec(shared(found), spec())):
        assert told == (
            "no forecast: there are more than 5000 jobs",
            {"obstacle": "there are more than 5000 jobs"},
        )


def test_an_older_controller_gives_no_forecast() -> None:
    for refusal in (RequestRefused("unknown"), UserError("the request is not understood: GetOutlook")):
        assert starting.of_job(shared(refusal), view()) is None


def test_a_job_that_was_not_submitted_is_the_last_of_the_queue() -> None:
    told = starting.of_spec(shared(outlook()), spec(restarts=0))
    assert told is not None
    assert told[1]["from_s"] > NOW + 199.0  # type: ignore[operator]  # behind both jobs


def test_one_request_is_made() -> None:
    controller = Controller(outlook())
    starting.of_job(cast(Context, controller), view())
    assert controller.asked == [GetOutlook()]
