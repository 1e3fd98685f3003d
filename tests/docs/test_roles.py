"""The table of roles and requests in docs/security.md, compared with a controller's answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from elasticd.controller.requests.authority import READS
from elasticd.protocol import messages
from elasticd.protocol.messages import CordonServer, Refused, Request, SetPolicy
from elasticd.protocol.model import ResumeFrom, ServerId, Snapshot
from elasticd.protocol.principals import Principal, Role
from elasticd.protocol.streams import Input
from tests.controller.world import World, job_spec

ROOT = Path(__file__).parents[2]

ALICE = Principal(role=Role.USER, name="alice", account="alice")
COLUMNS = {
    "no key": Principal(role=Role.USER, name=""),
    "server": Principal(role=Role.SERVER, name="s1"),
    "controller": Principal(role=Role.CONTROLLER, name="c"),
    "reader": Principal(role=Role.READER, name="web"),
    "user: another's": Principal(role=Role.USER, name="bob", account="bob"),
    "user: own": ALICE,
    "operator": Principal(role=Role.OPERATOR, name="olga", account="olga"),
}
SECTION = (ROOT / "docs/security.md").read_text().split("\n## What each role may do\n")[1].split("\n## ")[0]
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if "|" in line]
HEAD, ROWS = CELLS[0], [row for row in CELLS[2:] if len(row) == len(CELLS[0])]
KINDS = {kind.__name__: kind for kind in get_args(Request)}
DRY_RUN = "SetPolicy(dry_run)"


def named(row: list[str]) -> list[str]:
    return re.findall(r"`([\w()]+)`", row[1])


def made(name: str, job: Any) -> Request:
    """A request, about `job` if it is about a job."""
    snapshot = Snapshot(digest="0" * 64, bytes=1)
    values: dict[str, Any] = {
        "spec": job_spec(), "snapshot": snapshot, "part": 0, "data": b"", "job": job.id, "share": 1, "for_s": 60.0,
        "server": ServerId("s1"), "gpus": 1, "loan": "loan-1", "worker": next(iter(job.workers)).worker, "offset": 0,
        "document": {"policy": "fifo"}, "exec": "no such", "input": Input(), "command": ("true",),
    }  # fmt: skip
    if name == DRY_RUN:
        return SetPolicy(document={"policy": "fifo"}, dry_run=True)
    kind = KINDS[name]
    wanted = [each for each in kind.__struct_fields__ if each in values]
    if kind in (messages.GetServers, messages.GetEvents, messages.GetUsage):
        wanted = []
    return kind(**{each: values[each] for each in wanted})


def test_each_request_stands_in_one_row() -> None:
    assert HEAD[2:] == list(COLUMNS)
    told = [name for row in ROWS for name in named(row)]
    assert sorted(told) == sorted([*KINDS, DRY_RUN])
    assert CordonServer.__name__ in told


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_controller_allows_what_the_table_says(row: list[str]) -> None:
    assert set(row[2:]) <= {"yes", "no"}
    for name in named(row):
        answers = {}
        for column, who in COLUMNS.items():
            world = World()
            job = world.submit(job_spec(), ALICE)
            world.settle(job.id)
            answer = world.ask(made(name, job), who=who)
            answers[column] = "no" if isinstance(answer, Refused) and answer.not_allowed else "yes"
        assert answers == dict(zip(COLUMNS, row[2:], strict=True)), name


def test_a_submission_that_goes_on_from_another_users_job_is_refused() -> None:
    world = World()
    job = world.submit(job_spec(), ALICE)
    world.settle(job.id)
    world.ask(messages.Cancel(job=job.id), who=ALICE)
    request = messages.Submit(spec=job_spec("next", resume=ResumeFrom(job=job.id)))
    refused = world.ask(request, who=COLUMNS["user: another's"])
    assert isinstance(refused, Refused)
    assert refused.not_allowed
    assert not getattr(world.ask(request, who=ALICE), "not_allowed", False)


def test_the_pages_of_a_reader_need_no_request_that_a_reader_may_not_make() -> None:
    """The logs of jobs are the exception; the page says why it has none."""
    sources = [path.read_text() for room in ("web", "screens") for path in sorted((ROOT / "ctl" / room).glob("*.py"))]
    made = {name for text in sources for name in re.findall(r"\b([A-Z]\w+)\(", text) if name in KINDS}
    assert len(made) > 5
    assert made - {each.__name__ for each in READS} <= {"GetLog"}
