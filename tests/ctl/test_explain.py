"""Explanations as text: each part has its line, nothing is wider than the terminal, commands are not broken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticd.ctl.explain import document, lines
from elasticd.protocol.messages import (
    CounterOffer,
    Explanation,
    GpusTaken,
    JobView,
    PromiseState,
    PromiseView,
    Remedy,
    ShareChange,
    ShareForecast,
    ShareStep,
)
from elasticd.protocol.model import GpuAddress, GpuRange, JobId, JobSpec, ServerId

NOW = 1_800_000_000.0
SPEC = JobSpec(
    name="digits", command=("python", "train.py"), gpus=GpuRange(min=2, max=8), virtual_workers=8, workdir="/"
)


def view(**fields: Any) -> JobView:
    usual = {
        field.name: None if field.name in ("started_s", "finished_s", "manual_share", "step", "total_steps", "exit_code")
        else () if field.name in ("workers", "past_workers", "shares", "resizes") else 0
        for field in msgspec.structs.fields(JobView) if field.required
    }  # fmt: skip
    usual |= {"job": "digits-7", "spec": SPEC, "phase": "pending", "reason": "", "metrics": {}}
    return msgspec.convert(msgspec.to_builtins({**usual, **fields}), JobView)


WHY = Explanation(
    phase_since_s=NOW - 200.0,
    reasons=("waits for 2 GPUs: 0 of 4 left by the minimums of earlier jobs", "held-3 has 4 GPUs by hand"),
    decided_gpus=0,
    steps=(ShareStep(stage="policy", gpus=2), ShareStep(stage="excluded-gpus", gpus=0)),
    policy="max-min",
    rule="Every job its minimum, in the order of submission, while that fits",
    least_gpus=2,
    known_gpus=8,
    divided_gpus=4,
    among_jobs=3,
    taken=(GpusTaken(gpus=(GpuAddress(server=ServerId("s1"), index=0), GpuAddress(server=ServerId("s1"), index=1)),
                     why="drain ordered by operator:carol: lent (loan-12): evening peak of the serving cluster"),),
    holders=(ShareForecast(job=JobId("held-3"), before_gpus=4, after_gpus=4, reason=""),),
    before=(JobId("large-5"),),
    remedies=(
        Remedy(kind="scale-auto", text="held-3 is given back to the policy", share_gpus=2, by="alice or operators",
               command="elasticctl scale held-3 auto"),
        Remedy(kind="end", text="held-3 and one-of-a-very-long-name-that-nobody-would-want-4 end", share_gpus=2,
               command="elasticctl cancel held-3 one-of-a-very-long-name-that-nobody-would-want-4"),
        Remedy(kind="more-gpus", text="the cluster has 2 GPUs more", share_gpus=2,
               pushed=(ShareForecast(job=JobId("other-1"), before_gpus=2, after_gpus=1, reason=""),)),
    ),
    tried=3,
)  # fmt: skip
SHARES = (
    ShareChange(time_s=NOW - 900.0, share=4, generation=1, reason="starts: GPUs are free"),
    ShareChange(time_s=NOW - 200.0, share=0, generation=1, reason="makes room for held-3 (0 -> 4)"),
)


def page(width: int | None, job: JobView | None = None, why: Explanation = WHY) -> list[str]:
    return list(lines(job or view(shares=SHARES), why, NOW, width))


def test_all_parts_are_told_each_beside_its_label() -> None:
    told = page(None)
    assert told[0] == "digits-7: pending for 3m20s; it asks for 2 to 8 GPUs"
    for line in (
        "  why         waits for 2 GPUs: 0 of 4 left by the minimums of earlier jobs",
        "              held-3 has 4 GPUs by hand",
        "  decided     max-min: 2 GPUs; then excluded gpus: 0 GPUs",
        "              s1:0-1: drain ordered by operator:carol: lent (loan-12): evening peak of the serving cluster",
        "  held by     held-3 4",
        "  before it   large-5, if GPUs come free",
        "  changes it  it starts with 2 GPUs if held-3 is given back to the policy (alice or operators)",
        "                  elasticctl scale held-3 auto",
        "              it starts with 2 GPUs if the cluster has 2 GPUs more; other-1 (2 -> 1 GPU) would lose by it",
    ):
        assert line in told
    assert [line.split("  ")[-1] for line in told if " -> " in line][:2] == [
        "starts: GPUs are free",
        "makes room for held-3 (0 -> 4)",
    ]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_nothing_is_wider_than_the_terminal_but_a_command_which_is_to_be_copied(width: int) -> None:
    told = page(width)
    commands = [line.strip() for line in told if line.strip().startswith("elasticctl ")]
    assert commands == [remedy.command for remedy in WHY.remedies if remedy.command]
    assert all(len(line) <= width for line in told if line.strip() not in commands)
    assert " ".join(" ".join(told).split()) == " ".join(" ".join(page(None)).split()), "nothing is left out"


def test_many_alike_leave_room_for_other_kinds_and_all_are_shown_on_request() -> None:
    ends = tuple(Remedy(kind="end", text=f"job-{n} ends", share_gpus=2) for n in range(40))
    many = msgspec.structs.replace(WHY, remedies=(*ends, *WHY.remedies), untried=5)
    told = "\n".join(page(None, why=many))
    assert "the cluster has 2 GPUs more" in told
    assert "and 35 more (--all); 5 more were not tried" in told
    everything = "\n".join(lines(view(), many, NOW, None, everything=True))
    assert all(f"job-{n} ends" in everything for n in range(40))


def test_a_job_with_a_deadline_has_its_slack_and_its_minimum_satisfactory_share() -> None:
    promise = PromiseView(
        state=PromiseState.HOLDS, deadline_s=NOW + 7200.0, soft=False, planned_s=NOW + 6000.0, least_gpus=4
    )
    told = page(None, view(promise=promise))
    assert any(line.startswith("  deadline    ") and "holds; planned end" in line for line in told)
    assert "  slack       20m00s; minimum satisfactory share 4 GPUs" in told
    found = document(view(promise=promise), WHY, NOW)
    assert found["slack_s"] == pytest.approx(1200.0)


def late(**fields: Any) -> JobView:
    promise = PromiseView(deadline_s=NOW + 600.0, soft=False, **fields)
    return view(phase="running", share_gpus=8, wanted_gpus=8, elastic=True, promise=promise)


OFFER = CounterOffer(steps=300, more_gpus=2)


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (late(state=PromiseState.NONE, offer=OFFER, offered_s=NOW),
         "at most 300 steps left; or 2 GPUs more in the cluster"),
        (late(state=PromiseState.BREAKS, saved_by="what would save it: at most 9 of the 90 steps left"),
         "what would save it: at most 9 of the 90 steps left"),
    ],
)  # fmt: skip
def test_what_would_keep_a_deadline_is_among_the_changes_and_only_there(job: JobView, told: str) -> None:
    for tried, gpus in ((0, ""), (7, "              its GPUs: none of 7 changes that were tried would help")):
        lines = page(None, job, msgspec.structs.replace(WHY, remedies=(), tried=tried))
        (at,) = [at for at, line in enumerate(lines) if told in line]
        assert lines[at].startswith("  changes it  its deadline: what would ")
        assert lines[at].endswith(told)
        assert lines[at + 1 :] == [gpus] * bool(gpus), "nothing says that nothing helps"
    lines = page(None, job)
    assert sum("changes it" in line for line in lines) == 1
    assert "              it has 2 GPUs if held-3 is given back to the policy (alice or operators)" in lines


def test_a_program_gets_the_same_under_stable_names() -> None:
    found = document(view(shares=SHARES), WHY, NOW)
    assert (found["job"], found["phase"], found["share_gpus"], found["min_gpus"], found["max_gpus"]) == (
        "digits-7", "pending", 0, 2, 8,
    )  # fmt: skip
    assert found["phase_since_s"] == NOW - 200.0
    assert [remedy["kind"] for remedy in found["remedies"]] == ["scale-auto", "end", "more-gpus"]  # type: ignore[index]
    assert found["changes"][1]["reason"] == "makes room for held-3 (0 -> 4)"  # type: ignore[index]


def test_what_others_have_written_moves_no_cursor() -> None:
    told = page(80, why=msgspec.structs.replace(WHY, reasons=("its script\x1b[2J fails\nthere",)))
    assert not any("\x1b" in line for line in told)


def test_a_job_that_is_over_says_when_and_why() -> None:
    over = Explanation(phase_since_s=NOW - 60.0, reasons=("cancelled by alice",))
    told = page(80, view(phase="cancelled"), over)
    assert told == ["digits-7: cancelled 1m00s ago; it asked for 2 to 8 GPUs", "  why         cancelled by alice"]


def test_a_job_that_has_all_is_offered_no_change_and_one_that_helps_not_is_counted() -> None:
    alone = msgspec.structs.replace(WHY, remedies=(), tried=0)
    assert not any(
        "changes it" in line for line in page(None, view(phase="running", share_gpus=8, elastic=True), alone)
    )
    lines = page(None, view(phase="pending", share_gpus=0), msgspec.structs.replace(alone, tried=1))
    assert "  changes it  the one change that was tried would not help" in lines
