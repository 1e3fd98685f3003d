"""The diffs of docs/frameworks.md are diffs of Python, and short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
DIFFS = {
    section.splitlines()[0]: found[1]
    for section in SECTIONS
    if (found := re.search(r"```diff\n(.*?)```", section, re.DOTALL)) and "sbatch" not in section
}
MOST_ADDED = 5


@pytest.mark.parametrize("title", DIFFS)
def test_a_framework_takes_at_most_five_lines(title: str) -> None:
    lines = DIFFS[title].splitlines()
    assert 0 < sum(line.startswith("+") for line in lines) <= MOST_ADDED


@pytest.mark.parametrize("title", DIFFS)
def test_both_sides_of_a_diff_are_python(title: str) -> None:
    lines = DIFFS[title].splitlines()
    for side in "-+":
        text = "\n".join(line[1:] for line in lines if line[:1] in (" ", side, ""))
        assert ast.parse(text).body


def test_the_frameworks_are_there() -> None:
    assert len(DIFFS) >= 4
