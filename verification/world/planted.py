"""Bugs planted one by one into a copy of the product: does the simulation find each of them, and after how many seeds?

    python -m verification.world.planted [--only NAME ...] [--anew] [--record] [--seeds 200] [--processes N] [--markdown]

A search that finds nothing proves little unless it is known to find known bugs. `bugs.txt` has mutants of the membership
protocol that its model also has (`membership.pml`), faults from reviews, and for each fault that the simulation found, its fix
reverted. An entry is a name, a file, the original text and the text with the bug. A text that is no longer in its file fails
the run.

A bug counts as found by a history only if the *baseline*, the product without the bug, passes it. `bugs.txt` records the first
history that found each bug; that one is played first, and the others only if it no longer finds the bug.

Some bugs are *masked*: another rule of the product hides the bug's effect, so that no history can fail. Such a bug names the rule
that masks it, and how to revert the rule (`without`). The baseline then is the product without that rule, and the bug is planted
into a copy of this baseline: a failure is due to the bug alone.

A bug in a part that is not simulated (a lock on a file, a thread, a clock) names a test that fails. A bug that shows only when a
process dies at one particular write names the life that fails (`anywhere`); if that one no longer fails, or with `--anew`, all
lives of its kind are played.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from .campaign import cores

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "protocol",
    "runtime",
    "scheduler",
    "controller",
    "agent",
    "worker",
    "verification",
    "src",
    "configs",
    "systemd",
    "ctl",
    "simulator",
    "tests",
)
BUGS = Path(__file__).parent / "bugs.txt"
WITHIN = 200  # seeds
MOST_BYTES = 3_000_000_000  # for a search: a bug can make simulated processes exchange messages without end
TEST_S = 60  # after which a test counts as hanging


class BugsFileError(Exception):
    """bugs.txt has a syntax error, or does not fit the code any more."""


@dataclass(frozen=True)
class Change:
    """One replaced text of a bug."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Bug:
    """A planted bug."""

    name: str  # a sentence that states the fault
    changes: tuple[Change, ...]
    seed: int | None = None  # of the first history that found it
    mask: str = ""  # the rule that hides its effect; empty: none
    without: tuple[Change, ...] = ()  # the changes that revert that rule
    test: str = ""  # test that fails, for a bug outside the simulation
    life: str = ""  # life of `anywhere` that fails, for a bug that shows only at one write


@dataclass(frozen=True)
class Found:
    """The result of the search for a bug. `seed`: of the first history that found it; None: none did, but perhaps its test."""

    bug: Bug
    seed: int | None
    invariant: str  # broken invariant or failed test; empty: not found
    took_s: float


def bugs(text: str) -> list[Bug]:
    """Return the bugs of a file. Raises BugsFileError.

    A bug is a block: `== NAME`, perhaps `seed NUMBER`, `test FILE::NAME` or `life NAME/STORE/NUMBER:HOW`, and its changes. A
    change is `file PATH`, the original text, each line after `- `, and the text with the bug, each line after `+ `. A further
    change in the same file needs no `file`. Changes after a line `without RULE` revert a rule that masks the bug, and are made
    first.
    """
    return [_bug(block) for block in text.split("\n== ")[1:]]


def _bug(block: str) -> Bug:
    name, *lines = block.splitlines()
    file, seed, mask, test, life = "", None, "", "", ""
    changes: list[Change] = []
    without: list[Change] = []
    before: list[str] = []
    after: list[str] = []

    def close() -> None:
        if before or after:
            if not file or not before:
                raise BugsFileError(f"{name}: names no file, or no text to change")
            (without if mask else changes).append(Change(file, "\n".join(before), "\n".join(after)))
        before.clear()
        after.clear()

    for line in lines:
        if line.startswith("file "):
            close()
            file = line[5:].strip()
        elif line.startswith("seed "):
            seed = int(line[5:])
        elif line.startswith("without "):
            close()
            file, mask = "", line[8:].strip()
        elif line.startswith("test "):
            test = line[5:].strip()
        elif line.startswith("life "):
            life = line[5:].strip()
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
    if mask and not without:
        raise BugsFileError(f"{name}: does not say how to take back that {mask}")
    return Bug(name.strip(), tuple(changes), seed, mask, tuple(without), test, life)


def copy_of_product(root: Path, changes: Sequence[Change]) -> None:
    """Copy the product so that these places can be changed: unchanged folders become links."""
    changed = {Path(change.file).parts[0] for change in changes}
    root.mkdir()
    for folder in FOLDERS:
        if folder in changed or folder == "src":  # it has links to the others
            shutil.copytree(ROOT / folder, root / folder, symlinks=True)
        else:
            (root / folder).symlink_to(ROOT / folder)


def plant(bug: Bug, changes: Iterable[Change], root: Path) -> None:
    """Make changes of the bug in the files. Raises BugsFileError if an original text does not occur exactly once."""
    for change in changes:
        path = root / change.file
        text = path.read_text()
        if text.count(change.before) != 1:
            raise BugsFileError(f"{bug.name}: the text is {text.count(change.before)} times in {change.file}")
        path.write_text(text.replace(change.before, change.after))


def search(bug: Bug, seeds: int, anew: bool) -> Found:
    """Plant the bug into a copy, and play histories there until one fails that the baseline passes.

    `anew`: also if a history is recorded that finds it.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        baseline, copy = Path(directory) / "baseline", Path(directory) / "copy"
        copy_of_product(baseline, bug.without)
        plant(bug, bug.without, baseline)
        copy_of_product(copy, (*bug.without, *bug.changes))
        plant(bug, bug.without, copy)
        plant(bug, bug.changes, copy)
        if bug.test:
            return Found(bug, None, bug.test if _test_fails(bug, copy) else "", time.monotonic() - began)
        if bug.life:
            return Found(bug, None, _broken_life(bug, copy, baseline, anew), time.monotonic() - began)
        ranges = [(0, seeds)] if bug.seed is None or anew else [(bug.seed, bug.seed + 1), (0, seeds)]
        for first, last in ranges:
            while first < last and (failure := _first_failure(bug, copy, first, last)) is not None:
                seed, invariant = failure
                if _passes_as_it_is(seed) if not bug.without else _first_failure(bug, baseline, seed, seed + 1) is None:
                    return Found(bug, seed, invariant, time.monotonic() - began)
                first = seed + 1
    return Found(bug, None, "", time.monotonic() - began)


@cache
def _passes_as_it_is(seed: int) -> bool:
    """Return whether the product without any bug passes the history of this seed. (Cached, as many bugs share histories.)"""
    return _first_failure(Bug("no bug", ()), ROOT, seed, seed + 1) is None


def _first_failure(bug: Bug, copy: Path, first: int, last: int) -> tuple[int, str] | None:
    """Return the seed and the invariant of the first history that fails in `copy`, or None."""
    played = ["-m", "verification.world", "--seeds", f"{first}:{last}", "--processes", "1"]
    done = _in_copy(copy, [*played, "--fail-fast", "--as-found"])
    if done.returncode == 0:
        return None
    lines = done.stdout.splitlines()
    seed = next((line.split()[1].rstrip(":") for line in lines if line.startswith("        seed ")), None)
    if seed is None:
        raise BugsFileError(f"{bug.name}: the search itself failed: {done.stderr[-500:]}")
    return int(seed), next(line.partition(": ")[2] for line in lines if " of " in line and ": " in line)


def _broken_life(bug: Bug, copy: Path, baseline: Path, anew: bool) -> str:
    """Return the invariant that a life breaks in `copy`, and not in `baseline`; empty: none."""
    name, store, *strikes = bug.life.split("/")
    ways = [] if anew else [["--play", bug.life]]
    twice = ["--twice", "4"] if len(strikes) > 1 else []
    for way in (*ways, ["--life", name, "--store", store, *twice, "--fail-fast", "--processes", "1"]):
        done = _in_copy(copy, ["-m", "verification.world.crash_anywhere", *way])
        if done.returncode > 1 or "Traceback" in done.stderr:
            raise BugsFileError(f"{bug.name}: the search itself failed: {done.stderr[-500:]}")
        if done.returncode == 1:
            lines = done.stdout.splitlines()
            again = next(line for line in reversed(lines) if "--play " in line).partition("--play ")[2].rstrip('"')
            if _in_copy(baseline, ["-m", "verification.world.crash_anywhere", "--play", again]).returncode == 0:
                place = next(number for number, line in enumerate(lines) if "--play " in line) - 2
                return lines[place].partition(": ")[0]
    return ""


def _in_copy(root: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = ["prlimit", f"--as={MOST_BYTES}", sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def _test_fails(bug: Bug, copy: Path) -> bool:
    """Return whether the test that the bug names fails in `copy`."""
    shutil.copy(ROOT / "pyproject.toml", copy)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-qx",
        "--assert=plain",
        "-p",
        "no:cacheprovider",
        f"--timeout={TEST_S}",
        bug.test,
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise BugsFileError(f"{bug.name}: the test itself cannot be run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.returncode == 1


def record(path: Path, found: Iterable[Found]) -> None:
    """Write the first history that found each bug into the file."""
    text = path.read_text()
    for one in found:
        head, known = f"\n== {one.bug.name}\n", f"seed {one.bug.seed}\n" if one.bug.seed is not None else ""
        now = f"seed {one.seed}\n" if one.seed is not None else ""
        text = text.replace(head + known, head + now)
    path.write_text(text)


def _part(text: str) -> tuple[int, int]:
    """`2/4` as (2, 4). Raises `ValueError` for anything else, and for a number beyond the parts."""
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make planted")
    parser.add_argument("--only", nargs="*", help="bugs whose name contains one of these")
    parser.add_argument("--part", type=_part, default=(1, 1), help="1/4: the 1st, 5th, 9th, ... of these")
    parser.add_argument("--file", type=Path, default=BUGS, help="another list of bugs")
    parser.add_argument("--anew", action="store_true", help="search for all, whatever is recorded")
    parser.add_argument("--record", action="store_true", help="write into the list which history has found what")
    parser.add_argument("--seeds", type=int, default=WITHIN)
    parser.add_argument("--processes", type=int, default=0, help="else one for each core")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/reports/planted-bugs.md")
    options = parser.parse_args(arguments)
    chosen = [
        bug
        for bug in bugs(options.file.read_text())
        if not options.only or any(part in bug.name for part in options.only)
    ]
    first, step = options.part
    chosen = chosen[first - 1 :: step]
    results = []
    print(f"{'seeds':>6} {'s':>5}  bug, and the invariant that it breaks")
    with ThreadPoolExecutor(options.processes or cores()) as pool:
        for found in pool.map(partial(search, seeds=options.seeds, anew=options.anew), chosen):
            print(_text(found), flush=True)
            results.append(found)
    if options.record:
        record(options.file, results)
    if options.markdown:
        print(table((found.invariant or "not found", _seeds(found)) for found in results))
    missed = sum(not found.invariant for found in results)
    late = sum(found.seed is not None and found.seed >= options.seeds for found in results)
    beyond = f"{late} by a recorded history beyond that, the others " if late else "each "
    within = f"{beyond}within {options.seeds} seeds, by its test, or by crash anywhere"
    print(f"\n{len(results) - missed} of {len(results)} found, {within}")
    return int(missed > 0)


def _seeds(found: Found) -> str:
    """Number of histories until the bug was found: they are played from seed 0 on."""
    if found.bug.test and found.invariant:
        return "test"
    if found.bug.life and found.invariant:
        return "crash anywhere"
    return str(found.seed + 1) if found.seed is not None else "none"


def table(found: Iterable[tuple[str, str]]) -> str:
    """From (invariant or test, histories until the first failure) of each bug, a row for each invariant, tests together."""
    groups: dict[str, list[str]] = {}
    for invariant, seeds in found:
        groups.setdefault("a named test" if seeds == "test" else invariant, []).append(seeds)
    lines = ["| found by | bugs | histories, median | most |", "| --- | ---: | ---: | ---: |"]
    for invariant, all_seeds in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        numbers = sorted(int(seeds) for seeds in all_seeds if seeds.isdigit())
        spread = f"{numbers[(len(numbers) - 1) // 2]} | {numbers[-1]}" if numbers else "- | -"
        lines.append(f"| {invariant} | {len(all_seeds)} | {spread} |")
    return "\n".join(lines)


def _text(found: Found) -> str:
    return f"{_seeds(found):>6} {found.took_s:5.0f}  {_name(found.bug)}\n{'':14}{found.invariant}"


def _name(bug: Bug) -> str:
    return f"{bug.name} (without: {bug.mask})" if bug.mask else bug.name


if __name__ == "__main__":
    sys.exit(main())
