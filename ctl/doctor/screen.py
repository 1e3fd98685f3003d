"""Output of `elasticctl doctor`: findings as lines for a terminal of any width, and as plain values for programs. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .. import render
from ..tables import STYLES
from .checks import ORDER, Check, Finding, Outcome
from .targets import Target

WORDS = {Outcome.OK: "ok", Outcome.WARNING: "warning", Outcome.FAILURE: "FAILURE", Outcome.ABSENT: "-"}
COLOURS = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.FAILURE: "red", Outcome.ABSENT: "dim"}
OUTCOME_CELLS = 7
LEAST_TEXT = 24  # columns for sentences, however narrow the terminal is


@dataclass(frozen=True)
class Result:
    """Finding of a check at a place."""

    target: Target
    check: Check
    finding: Finding
    took_s: float


def lines_of(result: Result, names: int, width: int, colour: bool) -> Iterator[str]:
    """Yield a finding: its outcome, the check's name in `names` columns, the sentence, and below it the remedy."""
    found = result.finding
    indent = 2 + OUTCOME_CELLS + 2 + names + 2
    if width - indent < LEAST_TEXT:  # narrow: the sentences stand below
        indent = 4
    room = max(LEAST_TEXT, width - indent)
    head = f"  {_paint(WORDS[found.outcome], OUTCOME_CELLS, found.outcome, colour)}  {result.check.name:<{names}}"
    text = wrapped(found.found, room)
    if indent == 4:
        yield head.rstrip()
    else:
        yield f"{head}  {text.pop(0)}"
    for line in text:
        yield " " * indent + line
    if found.remedy:
        for line in wrapped(f"-> {found.remedy}", room):
            yield " " * indent + line


def in_order(results: Sequence[Result]) -> list[Result]:
    """Return faults first, the worst at the top, then the rest; each group in the order of the checks."""
    return sorted(results, key=lambda result: -max(0, ORDER.index(result.finding.outcome) - ORDER.index(Outcome.OK)))


def wrapped(text: str, width: int) -> list[str]:
    """Return lines of at most `width` columns; a longer word stays whole, so that a path can be copied."""
    clean = render.printable(text)
    return textwrap.wrap(clean, width, break_long_words=False, break_on_hyphens=False) or [""]


def summary(results: Sequence[Result], width: int) -> Iterator[str]:
    """Yield the last lines: the number of findings of each outcome, with the names of the faults."""
    silent = [result for result in results if result.finding.outcome is Outcome.ABSENT]
    wrong = [result for result in results if result.finding.outcome is Outcome.FAILURE]
    doubtful = [result for result in results if result.finding.outcome is Outcome.WARNING]
    right = len(results) - len(silent) - len(wrong) - len(doubtful)
    parts = [f"{right} ok"]
    for found, word in ((doubtful, "warning"), (wrong, "failure")):
        if found:
            names = ", ".join(dict.fromkeys(result.check.name for result in found))
            parts.append(f"{len(found)} {word}{'s' if len(found) > 1 else ''} ({names})")
    if silent:
        parts.append(f"{len(silent)} not applicable (--all shows why)")
    yield from wrapped(", ".join(parts), width)


def document(results: Sequence[Result], host: str) -> dict[str, object]:
    """Return the findings as a document for programs."""
    counts = {outcome: sum(each.finding.outcome is outcome for each in results) for outcome in Outcome}
    return {
        "host": host,
        "checks": [
            {
                "subject": result.target.subject.value,
                "file": result.target.daemon.file if result.target.daemon is not None else None,
                "name": result.check.name,
                "outcome": result.finding.outcome.value,
                "found": result.finding.found,
                "remedy": result.finding.remedy,
                "took_s": round(result.took_s, 3),
            }
            for result in results
        ],
        "failures": counts[Outcome.FAILURE],
        "warnings": counts[Outcome.WARNING],
    }


def _paint(text: str, cells: int, outcome: Outcome, colour: bool) -> str:
    padded = f"{text:<{cells}}"
    return f"\x1b[{STYLES[COLOURS[outcome]]}m{padded}\x1b[0m" if colour else padded
