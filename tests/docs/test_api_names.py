"""The names in docs/api.md, of the papers' APIs, exist in Python and on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import typer

import elasticd
from elasticd.ctl.main import application

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().partition("## Names of the papers")[2].splitlines()
    if line.startswith("| E")
]
COMMANDS: dict[str, click.Command] = vars(typer.main.get_command(application([])))["commands"]


def test_each_call_of_both_tables_has_a_row() -> None:
    names = " ".join(row[0] for row in ROWS)
    edl = ("scaleIn", "scaleOut", "profile", "checkpoint", "elastic_shard_generator", "notify_end_of_minibatch")
    for name in (*edl, "RequestAdjustment", "Report", "Coordinate", "RegisterState", "RegisterHook"):
        assert name in names
    assert all(row[1] or row[2] for row in ROWS)


@pytest.mark.parametrize("name", sorted({each for row in ROWS for each in re.findall(r"`([A-Za-z_.]+)`", row[1])}))
def test_a_name_in_python_exists(name: str) -> None:
    found: object = elasticd
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize("line", sorted({each for row in ROWS for each in re.findall(r"`elasticctl ([^`]+)`", row[2])}))
def test_a_command_and_its_options_exist(line: str) -> None:
    command, *rest = line.split()
    found = COMMANDS[command]
    options = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options
