"""Options that pages name exist. Those on simulations have all of `simulate` and `simulate compare`, and so has `--help`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from elasticd.ctl import compare
from elasticd.ctl.main import application, main
from elasticd.ctl.simulate import add_to

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "research.md").read_text()
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def commands() -> list[Any]:
    """`simulate` and `simulate compare`."""
    app = typer.Typer(add_completion=False)
    add_to(app)
    return [typer.main.get_command(app), compare.command()]


def options(command: Any) -> set[str]:
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts) if option[:2] == "--"}


def test_each_option_of_the_page_exists_and_each_option_stands_on_the_page() -> None:
    known = set().union(*map(options, commands()))
    theirs = {"--format"}  # of Slurm's sacct
    named = set(OPTION.findall(PAGE))
    assert named - known - theirs == set()
    assert known - named - {"--no-packing", "--help"} == set()


def test_each_option_stands_in_the_help_and_each_one_that_a_help_names_exists(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = set().union(*map(options, commands()))
    for command, words in zip(commands(), (["simulate"], ["simulate", "compare"]), strict=True):
        monkeypatch.setattr(sys, "argv", ["elasticctl", *words, "--help"])
        with pytest.raises(SystemExit):
            main()
        named = set(OPTION.findall(capsys.readouterr().out))
        assert options(command) - named == set()
        assert named - known - {"--help"} == set()


def test_options_of_simulate_on_the_page_of_commands_exist() -> None:
    lines = [line for line in (DOCS / "commands.md").read_text().splitlines() if "`simulate " in line]
    assert lines
    named = {option for line in lines for option in OPTION.findall(line)}
    assert named - set().union(*map(options, commands())) == set()


def all_options(command: Any) -> set[str]:
    """The options of a command and of its own commands."""
    own = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return own.union(*map(all_options, getattr(command, "commands", {}).values()))


def test_options_of_commands_in_the_pages_exist() -> None:
    known = vars(typer.main.get_command(application([])))["commands"]
    found = 0
    for page in (DOCS.parent / "README.md", DOCS.parent / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))):
        for line in re.findall(r"`(?:elasticctl )?([a-z]+ [^`]*)`", page.read_text()):
            command, *rest = line.partition(" -- ")[0].split()
            if command in known:
                named = {word.partition("=")[0] for word in rest if OPTION.match(word)}
                assert named - all_options(known[command]) - {"--help"} == set(), f"{page.name}: {line}"
                found += len(named)
    assert found > 50
