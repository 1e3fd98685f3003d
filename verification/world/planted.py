"""Bugs planted one by one into a copy of the product: does the world find each of them, and after how many seeds?

    python -m verification.world.planted [--only NAME ...] [--seeds 200] [--processes N] [--markdown]

A search that finds nothing proves little unless it is known to find what is there. Each bug is one that somebody made, or could
easily make: mistakes of the membership protocol that its model also knows (`membership.pml`), faults that reviews have found, and
for each fault that the world itself found, the mending taken back. `bugs.txt` has them, as a name, a file, the text as it is and
the text with the bug. A text that is not in its file any more fails the run: the bug has to be planted anew.

A history counts as found only if the product without the bug passes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .campaign import Settings, cores
from .history import play
from .plan import Shape

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "protocol",
    "runtime",
    "controller",
    "agent",
    "worker",
    "verification",
    "src",
    "configs",
    "systemd",
    "ctl",
    "simulator",
)
BUGS = Path(__file__).parent / "bugs.txt"
WITHIN = 200  # seeds


class BugsFileError(Exception):
    """bugs.txt cannot be understood, or does not fit the code any more."""


@dataclass(frozen=True)
class Change:
    """One place of a mistake."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Bug:
    """One mistake."""

    name: str  # a sentence that says what is wrong
    changes: tuple[Change, ...]
    weather: str = ""  # for the search, where the mistake shows in one kind of weather only


@dataclass(frozen=True)
class Found:
    """What the search made of a bug. `seeds` None: it was not found."""

    bug: Bug
    seeds: int | None
    invariant: str
    took_s: float


def bugs(text: str) -> list[Bug]:
    """The bugs of a file. Raises BugsFileError.

    A bug is a block: `== NAME`, perhaps `weather NAME`, and its places. A place is `file PATH`, the text as it is, each line
    after `- `, and the text with the bug, each line after `+ `. A further place in the same file needs no `file`.
    """
    return [_bug(block) for block in text.split("\n== ")[1:]]


def _bug(block: str) -> Bug:
    name, *lines = block.splitlines()
    file = weather = ""
    changes: list[Change] = []
    before: list[str] = []
    after: list[str] = []

    def close() -> None:
        if before or after:
            if not file or not before:
                raise BugsFileError(f"{name}: names no file, or no text to change")
            changes.append(Change(file, "\n".join(before), "\n".join(after)))
        before.clear()
        after.clear()

    for line in lines:
        if line.startswith("file "):
            close()
            file = line[5:].strip()
        elif line.startswith("weather "):
            weather = line[8:].strip()
        elif line.startswith("- ") or line == "-":
            if after:
                close()
            before.append(line[2:])
        elif line.startswith("+ ") or line == "+":
            after.append(line[2:])
        elif line.strip() and not line.startswith("#"):
            raise BugsFileError(f"{name}: not understood: {line!r}")
    close()
    if not changes:
        raise BugsFileError(f"{name}: changes nothing")
    return Bug(name.strip(), tuple(changes), weather)


def plant(bug: Bug, root: Path) -> None:
    """Change the files. Raises BugsFileError if a text is not there just once."""
    for change in bug.changes:
        path = root / change.file
        text = path.read_text()
        if text.count(change.before) != 1:
            raise BugsFileError(f"{bug.name}: the text is {text.count(change.before)} times in {change.file}")
        path.write_text(text.replace(change.before, change.after))


def search(bug: Bug, seeds: int, processes: int) -> Found:
    """Plant the bug into a copy, and play histories there until one fails that the product itself passes."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        copy = Path(directory)
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        plant(bug, copy)
        first = 0
        while first < seeds and (failure := _first_failure(bug, copy, first, seeds, processes)) is not None:
            seed, invariant = failure
            if not play(Settings(bug.weather, Shape()).plan(seed)).failed:
                return Found(bug, seed + 1, invariant, time.monotonic() - began)
            first = seed + 1
    return Found(bug, None, "", time.monotonic() - began)


def _first_failure(bug: Bug, copy: Path, first: int, seeds: int, processes: int) -> tuple[int, str] | None:
    """The seed and the invariant of the first history that fails in `copy`; None: none does."""
    command = [sys.executable, "-m", "verification.world", "--seeds", f"{first}:{seeds}", "--processes", str(processes)]
    command += ["--fail-fast", "--as-found", "--weather", bug.weather]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = done.stdout.splitlines()
    seed = next((line.split()[1].rstrip(":") for line in lines if line.startswith("        seed ")), None)
    if seed is None:
        raise BugsFileError(f"{bug.name}: the search itself failed: {done.stderr[-500:]}")
    return int(seed), next(line.partition(": ")[2] for line in lines if " of " in line and ": " in line)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make planted")
    parser.add_argument("--only", nargs="*", help="bugs whose name contains one of these")
    parser.add_argument("--file", type=Path, default=BUGS, help="another list of bugs")
    parser.add_argument("--seeds", type=int, default=WITHIN)
    parser.add_argument("--processes", type=int, default=0, help="else one for each core")
    parser.add_argument("--markdown", action="store_true", help="print rows of a table (docs/design/world.md)")
    options = parser.parse_args(arguments)
    missed = 0
    print(_HEAD if options.markdown else f"{'seeds':>6} {'s':>5}  bug, and the invariant that it breaks")
    for bug in bugs(options.file.read_text()):
        if options.only and not any(part in bug.name for part in options.only):
            continue
        found = search(bug, options.seeds, options.processes or cores())
        missed += found.seeds is None
        print(_row(found) if options.markdown else _text(found), flush=True)
    print(f"\n{missed} not found within {options.seeds} seeds")
    return int(missed > 0)


_HEAD = "| bug | breaks | seeds |\n| --- | --- | ---: |"


def _row(found: Found) -> str:
    return f"| {found.bug.name} | {found.invariant or '-'} | {found.seeds or 'not found'} |"


def _text(found: Found) -> str:
    return f"{found.seeds or 'NONE':>6} {found.took_s:5.0f}  {found.bug.name}\n{'':14}{found.invariant}"


if __name__ == "__main__":
    sys.exit(main())
