"""The messages and exit codes that docs/troubleshooting.md explains are those of the product, and complete."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from elasticd.protocol import exits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
FOLDERS = ("agent", "controller", "ctl", "protocol", "scheduler", "worker")
FROM_OTHERS = ("No module named", "DataLoader worker")  # messages of Python and PyTorch
FIRST_CELLS = re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE)
MESSAGES = [quoted for cell in FIRST_CELLS for quoted in re.findall(r"`([^`]+)`", cell)]


def fixed_parts(message: str) -> list[str]:
    """The constant parts of a message: the words between names, numbers and "…"."""
    parts = re.split(r"…|\b[\w-]*\d[\w-]*\b|\b(?:alice and|A100|GPUs?|cancel)\b|'[^']*'", message)
    return [part.strip(" ,;:") for part in parts if len(part.split()) > 1 or "-" in part]


@cache
def literals() -> str:
    """The product's source, with continued strings joined."""
    text = "\n".join(path.read_text() for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize("message", [text for text in MESSAGES if not text.startswith(FROM_OTHERS)])
def test_a_message_that_is_explained_is_one_of_the_product(message: str) -> None:
    parts = fixed_parts(message)
    assert [part for part in parts if part not in literals()] == []


def test_every_exit_code_with_a_meaning_is_explained() -> None:
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert len(codes) > 5
    assert codes <= {int(cell) for cell in FIRST_CELLS if cell.isdecimal()}
