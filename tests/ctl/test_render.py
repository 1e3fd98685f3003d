"""Views of owners and of compromised servers; exit codes of refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticd.ctl import render
from elasticd.ctl.client import accepted
from elasticd.ctl.jobs import _table
from elasticd.ctl.tables import lines
from elasticd.protocol.errors import NotAllowed, RequestRefused, UserError
from elasticd.protocol.messages import Failure, Jobs, JobView, Refused, RefusedJob, UsageReport
from elasticd.protocol.model import GpuRange, GpuSeconds, JobId, JobSpec, ServerId, WorkerId

SPEC = JobSpec(
    name="digits", command=("python", "train.py"), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/"
)


def view(number: int, **fields: Any) -> JobView:
    usual = {
        field.name: None if field.name in ("started_s", "finished_s", "manual_share", "step", "total_steps", "exit_code")
        else () if field.name in ("workers", "past_workers", "shares", "resizes") else 0
        for field in msgspec.structs.fields(JobView) if field.required
    }  # fmt: skip
    usual |= {"job": f"digits-{number}", "spec": SPEC, "phase": "pending", "reason": "", "metrics": {}}
    return msgspec.convert(msgspec.to_builtins({**usual, **fields}), JobView)


def table(*jobs: JobView) -> list[str]:
    return list(lines(render.job_table(jobs, 10.0), 200, False))


def test_each_job_shows_whose_it_is():
    head, first, second, third = table(view(1, owner="alice"), view(2, owner="local"), view(3))
    assert head.split()[:3] == ["JOB", "USER", "PHASE"]
    assert [line.split()[1] for line in (first, second, third)] == ["alice", "-", "-"]


def test_in_a_cluster_of_ones_own_the_user_is_who_was_told_at_the_submission():
    spec = msgspec.to_builtins(msgspec.structs.replace(SPEC, user="bob"))
    assert table(view(1, owner="local", spec=spec))[1].split()[1] == "bob"


def test_a_job_in_full_has_the_same_user_as_in_the_table():
    spec = msgspec.to_builtins(msgspec.structs.replace(SPEC, user="bob"))
    assert "  owner            bob" in render.job_lines(view(1, owner="local", spec=spec), 10.0)


def test_no_directory_and_no_metric_of_somebody_elses_job_reaches_the_terminal_as_it_is():
    spec = msgspec.to_builtins(msgspec.structs.replace(SPEC, workdir="/home/\x1b]0;owned\x07eve"))
    told = render.job_lines(view(1, spec=spec, metrics={"\x1b[2Jloss": 1.0}), 10.0)
    assert "  workdir          /home/eve" in told
    assert "  metrics          loss=1" in told
    assert "\x1b" not in "".join(told)


def test_a_metric_that_is_no_number_is_shown_as_the_word_that_was_reported():
    told = render.job_lines(view(1, metrics={"accuracy": 0.5}, odd_metrics={"loss": "nan"}), 10.0)
    assert "  metrics          accuracy=0.5  loss=nan" in told


def test_a_job_that_is_over_says_how_long_it_was_there_and_not_how_long_ago():
    over = view(1, phase="finished", submitted_s=10.0, finished_s=14.0)
    told = next(line for line in render.job_lines(over, 500.0) if line.startswith("  time"))
    assert told.endswith("over after 4s, restarts 0")


def test_a_submission_speaks_of_a_global_batch_only_where_the_job_is_expected_to_join():
    plain = msgspec.structs.replace(SPEC, restarts=0)
    assert render.submitted("digits-1", plain) == "digits-1: 1 GPU"
    assert "; global batch: the script's batch_size" in render.submitted(
        "digits-1", msgspec.structs.replace(SPEC, restarts=None)
    )


@pytest.mark.parametrize(
    ("owner", "account", "said"),
    [("alice", "alice", "alice"), ("alice", "", "alice"), ("alice", "svc", "alice (runs as svc)"), ("", "", "-")],
)
def test_a_job_in_full_says_whose_it_is(owner: str, account: str, said: str):
    lines = render.job_lines(view(1, owner=owner, account=account), 10.0)
    assert f"  owner            {said}" in lines


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (Refused(reason="no"), RequestRefused, 1),
        (Refused(reason="no", bad_input=True), UserError, 2),
        (Refused(reason="no", not_allowed=True), NotAllowed, 4),
    ],
)
def test_a_refusal_ends_with_the_code_of_its_kind(answer: Refused, kind: type[Exception], code: int):
    with pytest.raises(kind) as raised:
        accepted(answer)
    assert raised.value.exit_code == code  # type: ignore[attr-defined]


FAILURE = Failure(
    attempt=2,
    steps_done=9,
    worker=WorkerId("digits-1.3"),
    server=ServerId("gpu2"),
    error="exit code 1: ValueError: \x1b[31mnan",
    log="/state/jobs/digits-1.ab/digits-1.3.log",
)


def test_a_failed_job_says_where_why_and_what_to_read():
    failed = view(1, phase="failed", reason="it fails again and again", failure=FAILURE, total_steps=64, exit_code=1)
    assert render.failure_lines(failed) == [
        "  failed after     9 steps of 64, in attempt 2",
        "  worker           digits-1.3 on gpu2",
        "  error            exit code 1: ValueError: nan",
        "  log              elasticctl logs digits-1 --worker 3",
        "                   gpu2:/state/jobs/digits-1.ab/digits-1.3.log",
    ]
    assert render.failure_lines(view(1)) == []
    assert "9/64" in table(failed)[1]
    assert "9/64" in table(view(1, phase="failed", failure=FAILURE, total_steps=64, step=-1))[1], "it had begun again"
    killed = view(1, phase="failed", reason="killed by SIGKILL", exit_code=-9)
    assert render.verdict(killed) == "digits-1 failed after 0s: killed by SIGKILL", "no exit code"
    assert render.verdict(failed) == "digits-1 failed after 0s (exit code 1): it fails again and again"


def test_the_global_batch_is_shown_as_far_as_it_is_known():
    assert (
        "  global batch     1 virtual worker x the script's batch_size, which it has not told yet"
        in render.job_lines(view(1), 10.0)
    )
    spec = msgspec.to_builtins(msgspec.structs.replace(SPEC, virtual_workers=4))
    lines = render.job_lines(view(1, spec=spec, batch_samples=128), 10.0)
    assert "  global batch     128 samples (4 virtual workers x 32)" in lines


def test_programs_are_told_the_sum_of_gpu_seconds() -> None:
    told = GpuSeconds(used_gpu_s=1.0, idle_gpu_s=2.0, paused_gpu_s=3.0, lost_gpu_s=4.0)
    (found,) = render.plain([view(1, gpu_seconds=told)])
    assert found["gpu_seconds"]["held_gpu_s"] == told.held_gpu_s == 10.0


def test_a_report_without_rows_says_so_in_words() -> None:
    day = 86_400.0
    report = UsageReport(rows=(), since_s=day, until_s=3 * day, time_s=3 * day)
    assert render.usage_line(report, whole_life=False) == "no GPU was held from 1970-01-02 to 1970-01-03 (UTC)"
    assert render.usage_line(report, whole_life=True) == "no GPU was held since the job was submitted"


@pytest.mark.parametrize(
    ("fields", "length", "told"),
    [
        ({"step": 9}, {"source": "max-steps", "steps": 1000}, "1,000 steps, told by max_steps"),
        ({"step": 9}, {"source": "epochs", "steps": 1000}, "1,000 steps, told by its loop over epochs"),
        (
            {"step": 249, "phase": "finished"},
            {"source": "epochs", "steps": 1000},
            "1,000 steps, told by its loop over epochs; it ended after 250, 25%",
        ),
        (
            {"step": 999, "phase": "finished"},
            {"source": "max-steps", "steps": 1000},
            "1,000 steps, told by max_steps; it ended after 1,000",
        ),
        ({"step": 249, "phase": "finished"}, {"source": "unknown"}, "not told; it ended after 250 steps"),
        ({"step": 9}, {"source": "unknown"}, "not told (max_steps, or epochs over data of known length)"),
        (
            {"step": 9},
            {"source": "ended-jobs", "steps": 800, "least_steps": 100, "most_steps": 5000},
            "not told; jobs that are over suggest 800 steps, two of three times 100 to 5,000",
        ),
    ],
)
def test_a_job_in_full_says_where_its_length_comes_from_and_how_wrong_it_was(
    fields: dict[str, Any], length: dict[str, Any], told: str
) -> None:
    assert f"  length           {told}" in render.job_lines(view(1, length=length, **fields), 10.0)


@pytest.mark.parametrize(
    ("reason", "told"), [("cancelled", "cancelled"), ("cancelled by alice", "cancelled by alice"), ("", "cancelled")]
)
def test_a_job_that_was_cancelled_is_not_told_so_twice(reason: str, told: str) -> None:
    job = view(1, phase="cancelled", reason=reason, finished_s=5.0)
    assert render.outcome(job) == f"digits-1 {told}"
    assert render.verdict(job) == f"digits-1 cancelled after 5s{told.removeprefix('cancelled')}"


def test_a_job_whose_record_was_refused_is_in_the_table_of_jobs_with_the_reason_and_moves_no_cursor():
    refused = RefusedJob(job=JobId("evil-9\x1b[2J"), reason="its seal does not fit its contents")
    page = Jobs(jobs=(), time_s=0.0, policy="max-min", refused=(refused,))
    lines = list(_table(page, everything=False, mine=True))
    assert lines[0].startswith("no unfinished jobs of yours")
    assert lines[1].startswith("evil-9")
    assert lines[1].endswith(" refused: its seal does not fit its contents")
    assert "\x1b" not in lines[1]
