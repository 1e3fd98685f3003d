"""The page on simulations and `elasticctl simulate --help` have the same options."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from elasticd.ctl import compare
from elasticd.ctl.simulate import add_to

PAGE = (Path(__file__).parents[2] / "docs" / "research.md").read_text()


def test_each_option_of_the_page_exists_and_each_option_stands_on_the_page() -> None:
    app = typer.Typer(add_completion=False)
    add_to(app)
    command = typer.main.get_command(app)
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts) if option[:2] == "--"}
    others = {option for each in compare.command().params for option in each.opts}
    theirs = {"--format"}  # of Slurm's sacct
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named - options - others - theirs == set()
    assert options - named - {"--no-packing", "--help"} == set()
