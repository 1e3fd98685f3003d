"""The state of a deadline, as a sentence and in a table."""

from __future__ import annotations

import pytest

from elasticd.ctl.promises import deadline_line, slack
from elasticd.protocol.messages import CounterOffer, PromiseState, PromiseView
from elasticd.protocol.model import JobId

NOW = 1_800_000_000.0


def view(state: PromiseState, **changes: object) -> PromiseView:
    values = {"state": state, "deadline_s": NOW + 7200.0, "soft": False}
    return PromiseView(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("promise", "words", "cell"),
    [
        (
            view(PromiseState.HOLDS, planned_s=NOW + 6000.0, least_gpus=4),
            ("in 2h00m: holds; planned end ", "with the 4 GPUs that it needs at most"),
            "20m00s",
        ),
        (
            view(PromiseState.PROVISIONAL, waits_for="its throughput", final_by_s=NOW + 70.0),
            ("provisional until its throughput is known, by ",),
            "?",
        ),
        (
            view(
                PromiseState.BREAKS, planned_s=NOW + 7500.0, saved_by="what would save it: 2 GPUs more in the cluster"
            ),
            ("ends 5m00s late, as things are; what would save it: 2 GPUs more",),
            "-5m00s",
        ),
        (view(PromiseState.BREAKS), ("ends late, as things are",), "none"),
        (view(PromiseState.NONE, soft=True), (", soft: not promised: there is no room",), "none"),
        (
            view(PromiseState.NONE, saved_by="bob has 2 GPU-hours left"),
            ("not promised: bob has 2 GPU-hours left",),
            "none",
        ),
        (
            view(
                PromiseState.NONE,
                offer=CounterOffer(deadline_s=NOW + 9000.0, steps=1200, more_gpus=1, consent=(JobId("first-1"),)),
                offered_s=NOW - 60.0,
            ),
            (
                "; what would have saved it at ",
                ": a deadline of ",
                "; or at most 1,200 steps left; or 1 GPU more in the cluster; or first-1 going on without a promise",
            ),
            "none",
        ),
        (view(PromiseState.HOLDS, planned_s=NOW - 10.0, deadline_s=NOW - 5.0), ("5s ago: holds",), "5s"),
    ],
)
def test_each_state_has_its_words(promise: PromiseView, words: tuple[str, ...], cell: str) -> None:
    line = deadline_line(promise, NOW)
    for part in words:
        assert part in line
    assert slack(promise, NOW, None).text == cell


def test_a_job_without_a_deadline_has_no_slack() -> None:
    assert slack(None, NOW, 5.0).text == "-"


def test_the_present_pace_counts_where_it_is_known() -> None:
    promise = view(PromiseState.HOLDS, planned_s=NOW + 7100.0, least_gpus=1)
    assert slack(promise, NOW, 3600.0).text == "1h00m"
    assert deadline_line(promise, NOW, 3600.0).endswith("; at its present pace 1h00m to spare")
    late = view(PromiseState.BREAKS, planned_s=NOW + 7500.0)
    assert slack(late, NOW, 7320.0).text == "-2m00s"
    assert "present pace" not in deadline_line(late, NOW, 7320.0)
