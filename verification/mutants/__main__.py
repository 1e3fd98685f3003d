"""python -m verification.mutants [--only MACHINE ...] [--each 40] [--survivors] [--write]

Tries mutants of the pure machines (`operators`) against their tests and the simulated cluster (`runner`). What has been tried is
written down in out/mutants/tried.jsonl, so that the same command goes on where it was interrupted; `--each` says how many of each
machine, drawn in an order that never changes. A mutant is known by its function and its statement, so what is known of a function
stands until that statement changes. `equivalent.txt` has those that change nothing, each with the reason.
`--write` leaves the rows of machines alone of which nothing is written down there.

Exit code 0: none survives that is not known to change nothing. 1: some do; they are printed. 2: `equivalent.txt` does not fit, or
tests could not be read.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .machines import KEPT, MACHINES, ROOT, Machine
from .operators import Mutant, mutants

TRIED = KEPT / "tried.jsonl"
EQUIVALENT = Path(__file__).parent / "equivalent.txt"
PAGE = ROOT / "docs" / "reports" / "mutants.md"
MARK = "<!-- the table: make mutants ARGS=--write -->\n"
SEED = 1
Z = 1.96  # an interval that holds in 95 of 100 samples


@dataclass(frozen=True)
class Known:
    """The recorded result of one mutant."""

    key: str
    by: str
    killer: str


def known(path: Path) -> dict[str, Known]:
    """Return the recorded results by the mutants' keys; the last record of a mutant counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {one.key: one for one in (Known(**json.loads(line)) for line in lines if line.endswith("}"))}


def equivalents(text: str) -> dict[str, str]:
    """Mutants that change nothing: their keys, and why. A block is `== REASON`, `file`, `in FUNCTION`, `- before`, `+ after`."""
    found = {}
    for block in text.split("\n== ")[1:]:
        reason, *lines = block.splitlines()
        said: dict[str, list[str]] = {}
        for line in lines:
            word, _, rest = line.partition(" ")
            if word in ("file", "in", "-", "+", "number"):
                said.setdefault(word, []).append(rest)
        number = int(said.get("number", ["0"])[0])
        mutant = Mutant(said["file"][0], said["in"][0], "\n".join(said["-"]), "\n".join(said["+"]), number)
        found[mutant.key] = reason.strip()
    return found


def all_of(machine: Machine) -> list[Mutant]:
    return [mutant for file in machine.sources() for mutant, _ in mutants(file, (ROOT / file).read_text())]


def in_order(machine: Machine, found: Sequence[Mutant]) -> list[Mutant]:
    """Drawn: the first of them are a sample of all, whatever is added or taken away elsewhere."""
    return sorted(found, key=lambda mutant: random.Random(f"{SEED}/{machine.name}/{mutant.key}").random())


def interval(killed: int, tried: int) -> tuple[float, float]:
    """Between which shares of all would be killed (Wilson's interval)."""
    if not tried:
        return 0.0, 1.0
    share, square = killed / tried, Z * Z / tried
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / tried + square / (4 * tried))
    return max(0.0, middle - half), min(1.0, middle + half)


def table(tried: dict[str, Known], same: dict[str, str], before: str = "") -> str:
    """Return a Markdown table of each machine's mutants: how many were tried, with which results.

    before: an earlier table, from which rows of machines without results here are kept.
    """
    earlier = {cells[1].strip(): cells for cells in (line.split("|") for line in before.splitlines()) if len(cells) > 9}
    rows = [
        "| machine | mutants | tried | killed by tests | by the world | never end | change nothing | survive | killed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    sums = [0] * 7
    for machine in MACHINES:
        found = all_of(machine)
        of_it = [tried[mutant.key] for mutant in found if mutant.key in tried]
        equal = sum(one.key in same for one in of_it)
        ways = [sum(one.by == way and one.key not in same for one in of_it) for way in ("tests", "world", "time", "")]
        counts = [len(found), len(of_it), *ways[:3], equal, ways[3]]
        if not of_it and machine.name in earlier:
            counts = [int(cell) for cell in earlier[machine.name][2:9]]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        rows.append(_row(machine.name, counts))
    return "\n".join([*rows, _row("all", sums)]) + "\n"


def _row(name: str, counts: Sequence[int]) -> str:
    tried = counts[1] - counts[5]
    killed = sum(counts[2:5])
    low, high = interval(killed, tried)
    share = f"{100 * killed / tried:.1f} % ({100 * low:.0f} to {100 * high:.0f})" if tried else "-"
    return f"| {name} | {' | '.join(map(str, counts))} | {share} |"


def run(machine: Machine, each: int, again: bool, same: dict[str, str]) -> int:
    """Try mutants of one machine, and write down what comes of them. Returns pytest's exit code: 0 if the tests could be read."""
    import pytest

    from verification.bits.nursery import end_with_parent

    from .runner import Runner, Verdict

    end_with_parent()

    def wanted(found: Sequence[Mutant]) -> list[Mutant]:
        tried = known(TRIED)
        drawn = in_order(machine, found)[:each]
        if again:
            drawn = [mutant for mutant in in_order(machine, found) if mutant.key in tried and not tried[mutant.key].by]
            return [mutant for mutant in drawn if mutant.key not in same]
        return [mutant for mutant in drawn if mutant.key not in tried]

    def tell(verdict: Verdict) -> None:
        with TRIED.open("a") as file:
            file.write(json.dumps(asdict(Known(verdict.mutant.key, verdict.by, verdict.killer))) + "\n")
        print(
            f"{verdict.by or 'SURVIVES':>8} {verdict.took_s:6.1f}  {_text(verdict.mutant)}", file=sys.stderr, flush=True
        )

    arguments = [
        "-q",
        "--assert=plain",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:timeout",
        "-o",
        "timeout=0",
    ]
    marks = ["-m", "not cluster and not campaign"]
    return pytest.main([*arguments, *marks, *machine.tried()], plugins=[Runner(machine, wanted, tell)])


def _text(mutant: Mutant) -> str:
    return f"{mutant.file} {mutant.function}\n{'':18}- {mutant.before}\n{'':18}+ {mutant.after}"


def misfits(same: Iterable[str]) -> list[str]:
    """Entries of `equivalent.txt` that are no mutant of the code as it is."""
    there = {mutant.key for machine in MACHINES for mutant in all_of(machine)}
    return [key.replace("\0", " | ") for key in same if key not in there]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--only", nargs="*", help="these machines")
    parser.add_argument("--each", type=int, default=40, help="mutants of each machine")
    parser.add_argument("--survivors", action="store_true", help="try again those that have survived")
    parser.add_argument(
        "--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}, and try nothing"
    )
    options = parser.parse_args(arguments)
    same = equivalents(EQUIVALENT.read_text())
    if lost := misfits(same):
        print("these mutants of equivalent.txt are none any more:\n" + "\n".join(lost), file=sys.stderr)
        return 2
    chosen = [machine for machine in MACHINES if not options.only or machine.name in options.only]
    if options.write:
        head, _, before = PAGE.read_text().partition(MARK)
        PAGE.write_text(head + MARK + "\n" + table(known(TRIED), same, before))
        return 0
    KEPT.mkdir(parents=True, exist_ok=True)
    for machine in chosen:
        child = os.fork()  # pytest is started once in a process
        if child == 0:
            os._exit(run(machine, options.each, options.survivors, same))
        _, status = os.waitpid(child, 0)
        if status:
            print(f"the tests of {machine.name} could not be read, or their process has died", file=sys.stderr)
            return 2
    tried = known(TRIED)
    print(table(tried, same))
    left = [mutant for machine in chosen for mutant in all_of(machine) if mutant.key in tried]
    left = [mutant for mutant in left if not tried[mutant.key].by and mutant.key not in same]
    for mutant in left:
        print(f"survives: {_text(mutant)}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
