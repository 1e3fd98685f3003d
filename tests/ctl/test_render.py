"""What people read of owners, and of servers that lie; and how a refusal ends a command."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.console import Console

from elasticd.ctl import render
from elasticd.ctl.client import accepted
from elasticd.protocol.errors import NotAllowed, RequestRefused, UserError
from elasticd.protocol.messages import JobView, Refused
from elasticd.protocol.model import GpuRange, JobSpec

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
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(render.job_table(jobs, 10.0))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_owners_are_shown_where_there_are_several_people():
    head, first, second, third = table(view(1, owner="alice"), view(2, owner="local"), view(3))
    assert head.split()[:3] == ["JOB", "OWNER", "PHASE"]
    assert [line.split()[1] for line in (first, second, third)] == ["alice", "local", "-"]


def test_in_a_cluster_of_ones_own_no_owner_is_shown():
    assert table(view(1, owner="local"), view(2))[0].split()[:2] == ["JOB", "PHASE"]


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
