"""Every test that the security page cites exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@cache
def functions_in(file: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_each_test_that_the_page_names_exists(file: str, test: str) -> None:
    assert test.startswith("test_")
    assert test in functions_in(file)


def test_each_row_of_known_faults_and_of_attacks_names_a_test() -> None:
    parts = {part.split("\n", 1)[0]: part for part in PAGE.split("\n## ")}
    for title in ("Known faults of such systems", "Attacks and outcomes"):
        rows = [line for line in parts[title].splitlines() if line.startswith("| ")][2:]
        assert len(rows) > 8
        assert not [row for row in rows if "::" not in row]
