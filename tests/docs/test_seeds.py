"""The table of the papers' mechanisms names planted bugs and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

from verification.world.planted import bugs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reports" / "seeds.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| mechanism"))
]


def test_every_bug_of_the_table_is_planted() -> None:
    planted = {bug.name for bug in bugs((ROOT / "verification" / "world" / "bugs.txt").read_text())}
    named = {bug for *_, bug in ROWS if bug}
    assert len(named) > 10
    assert named <= planted


def test_every_command_of_the_table_is_a_target_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for *_, command, _ in ROWS for target in re.findall(r"make ([a-z-]+)", command)}
    assert len(named) > 5
    assert named <= targets
