"""One script of the corpus: the expected verdict, the name that a message must contain, and the line that mends the script."""

from __future__ import annotations

import ast
import enum
import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "scripts"


class Expected(enum.Enum):
    """equal: the same bits in every history, and no message. found: refused, not grown, or named. either: any verdict but other
    bits without a message."""

    EQUAL = "equal"
    FOUND = "found"
    EITHER = "either"


EQUAL, FOUND, EITHER = Expected.EQUAL, Expected.FOUND, Expected.EITHER


@dataclass(frozen=True)
class Script:
    """One script. The first line of its docstring names the idiom that it represents."""

    name: str
    expected: Expected
    variable: str = ""  # name that a message must contain
    line: str = ""  # kind of line that mends the script
    fix: tuple[tuple[str, str], ...] = ()  # replacements in the source that add that line
    fresh: bool = False  # its result depends on the interpreter's start

    @property
    def idiom(self) -> str:
        text = ast.get_docstring(ast.parse(self.source()))
        assert text, f"{self.name} does not say what it stands for"
        return text.splitlines()[0]

    def source(self, fixed: bool = False) -> str:
        """Return the source. Raises ValueError if it lacks a text that the fix replaces."""
        text = (SOURCES / f"{self.name}.py").read_text()
        for old, new in self.fix if fixed else ():
            if old not in text:
                raise ValueError(f"{self.name}.py has no {old!r}")
            text = text.replace(old, new)
        return text

    def write(self, directory: Path, fixed: bool) -> None:
        """Write the script, and the modules that scripts share, into a working directory."""
        for path in SOURCES.glob("shared_*.py"):
            shutil.copy(path, directory)
        (directory / f"{self.name}.py").write_text(self.source(fixed))
