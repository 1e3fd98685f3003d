"""Bugs planted one by one into a copy of the product: does the world find each of them, and after how many seeds?

    python -m verification.world.planted [--only NAME ...] [--seeds 200]

A search that finds nothing proves little unless it is known to find what is there. Each bug is one that somebody made, or could
easily make: mistakes of the membership protocol that its model also knows (`membership.pml`), faults that reviews have found, and
for each fault that the world itself found, the mending taken back. `bugs.txt` has them, as a name, a file, the text as it is and
the text with the bug. A text that is not in its file any more fails the run: the bug has to be planted anew.
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

from .campaign import cores

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
class Bug:
    """One mistake."""

    name: str  # a sentence that says what is wrong
    file: str
    before: str
    after: str
    options: tuple[str, ...] = ()  # for the search, where the mistake shows in one kind of weather only


@dataclass(frozen=True)
class Found:
    """What the search made of a bug. `seeds` None: it was not found."""

    bug: Bug
    seeds: int | None
    invariant: str
    took_s: float


def bugs(text: str) -> list[Bug]:
    """The bugs of a file. Raises BugsFileError.

    A bug is a block: `== NAME`, `file PATH`, perhaps `options ...`, then the text as it is, each line after `- `, and the text
    with the bug, each line after `+ `.
    """
    found: list[Bug] = []
    for block in text.split("\n== ")[1:]:
        name, *lines = block.splitlines()
        file = options = ""
        before: list[str] = []
        after: list[str] = []
        for line in lines:
            if line.startswith("file "):
                file = line[5:].strip()
            elif line.startswith("options "):
                options = line[8:]
            elif line.startswith("- ") or line == "-":
                before.append(line[2:])
            elif line.startswith("+ ") or line == "+":
                after.append(line[2:])
            elif line.strip() and not line.startswith("#"):
                raise BugsFileError(f"{name}: not understood: {line!r}")
        if not file or not before:
            raise BugsFileError(f"{name}: names no file, or no text to change")
        found.append(Bug(name.strip(), file, "\n".join(before), "\n".join(after), tuple(options.split())))
    return found


def plant(bug: Bug, root: Path) -> None:
    """Change the file. Raises BugsFileError if the text is not there just once."""
    path = root / bug.file
    text = path.read_text()
    if text.count(bug.before) != 1:
        raise BugsFileError(f"{bug.name}: the text is {text.count(bug.before)} times in {bug.file}")
    path.write_text(text.replace(bug.before, bug.after))


def search(bug: Bug, seeds: int, processes: int) -> Found:
    """Plant the bug into a copy, and play histories there until one fails."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        copy = Path(directory)
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        plant(bug, copy)
        command = [sys.executable, "-m", "verification.world", "--seeds", str(seeds), "--processes", str(processes)]
        command += ["--fail-fast", "--as-found", *bug.options]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    took_s = time.monotonic() - began
    if done.returncode == 0:
        return Found(bug, None, "", took_s)
    lines = done.stdout.splitlines()
    seed = next((line.split()[1].rstrip(":") for line in lines if line.startswith("        seed ")), None)
    if seed is None:
        raise BugsFileError(f"{bug.name}: the search itself failed: {done.stderr[-500:]}")
    invariant = next(line.partition(": ")[2] for line in lines if " of " in line and ": " in line)
    return Found(bug, int(seed) + 1, invariant, took_s)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make planted")
    parser.add_argument("--only", nargs="*", help="bugs whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=WITHIN)
    options = parser.parse_args(arguments)
    missed = 0
    print(f"{'seeds':>6} {'s':>5}  bug, and the invariant that it breaks")
    for bug in bugs(BUGS.read_text()):
        if options.only and not any(part in bug.name for part in options.only):
            continue
        found = search(bug, options.seeds, cores())
        missed += found.seeds is None
        print(f"{found.seeds or 'NONE':>6} {found.took_s:5.0f}  {bug.name}\n{'':14}{found.invariant}", flush=True)
    print(f"{missed} not found within {options.seeds} seeds")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
