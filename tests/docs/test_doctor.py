"""The manual's tables of checks equal those of `elasticctl doctor`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticd.ctl.doctor.command import all_checks
from elasticd.ctl.doctor.targets import Subject

DOCS = Path(__file__).parents[2] / "docs"
HEAD = "| check | what it finds | what mends it |"
TABLES = [
    (Subject.SERVER, "servers.md", "Looking for what is wrong"),
    (Subject.CONTROLLER, "operators.md", "On the controller's machine:"),
    (Subject.DESK, "operators.md", "At a desk:"),
]


def rows_of(subject: Subject) -> list[str]:
    return [
        f"| `{check.name}` | {check.finds} | {check.remedy} |" for check in all_checks() if check.subject is subject
    ]


@pytest.mark.parametrize(("subject", "page", "before"), TABLES)
def test_each_table_has_the_checks_of_its_place(subject: Subject, page: str, before: str) -> None:
    text = (DOCS / page).read_text().partition(before)[2]
    named, _, table = text.partition(HEAD)
    rows = table.partition("\n\n")[0].splitlines()[2:]
    expected = rows_of(subject)
    if (
        subject is Subject.CONTROLLER
    ):  # checks of a server that also apply to the controller's machine are listed with the servers
        shared = [row for row in expected if row in rows_of(Subject.SERVER)]
        assert re.findall(r"`([a-z-]+)`", named) == [row.split("`")[1] for row in shared]
        expected = [row for row in expected if row not in shared]
    assert rows == expected


def test_each_check_says_what_it_finds_and_what_mends_it() -> None:
    for check in all_checks():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", check.name)
        assert len(check.finds.split()) > 3, check.name
        assert len(check.remedy.split()) > 3, check.name
