"""Output of `elasticctl check`: lines for a terminal of any width, and plain values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..doctor.screen import wrapped
from .driver import Outcome
from .parts import BACKWARDS, Kind, Part
from .verdict import Finding

if TYPE_CHECKING:
    from .trial import Trial

INDENT = 4
KIND_CELLS = max(len(kind.value) for kind in Kind)
GREEN, RED, YELLOW, BOLD = "32", "31", "33", "1"


class Screen:
    """Output of one check."""

    def __init__(self, width: int, colour: bool, quiet: bool) -> None:
        self._width = width
        self._colour = colour
        self._quiet = quiet
        self._parts: list[dict[str, Any]] = []

    def part(self, part: Part, outcome: Outcome, finding: Finding | None) -> None:
        """Show a part that has ended."""
        same = finding is None
        self._parts.append(
            {"part": part.kind.value, "tried": part.tried, "same": same, "took_s": round(outcome.seconds, 2)}
        )
        if self._quiet:
            return
        word, colour = _word(part, finding)
        painted = self._paint(f"{word:<7}", colour)
        head = f"{painted}  {part.kind.value:<{KIND_CELLS}}  {outcome.seconds:5.1f} s  "
        room = self._width - (7 + 2 + KIND_CELLS + 2 + 7 + 2)
        first, *rest = wrapped(part.tried, max(20, room))
        print(head + first, flush=True)
        for line in rest:
            print(" " * (self._width - room) + line)

    def summary(self, trial: Trial, took_s: float) -> Iterator[str]:
        """Yield the verdict."""
        yield ""
        for finding in told_once(trial.findings):
            yield from self._finding(finding, RED)
        for finding in trial.notes:
            yield from self._finding(finding, YELLOW)
            yield from self._below(
                "A job's workers all have one hash seed, so a job ends with the same bits; a run at a desk does not."
            )
        tried = self.scope(trial)
        if trial.refused:
            yield f"{self._paint('not elastic', RED)}: refused in its first steps ({took_s:.0f} s)"
            return
        if trial.findings:
            count = len(trial.findings)
            head = self._paint("not elastic", RED)
            end = "ends with other bits, or fails" if count == 1 else "end with other bits, or fail"
            yield f"{head}: {count} of {len(self._parts) - 1} trials {end} ({took_s:.0f} s)"
        else:
            yield f"{self._paint('elastic: same bits', GREEN)} ({took_s:.0f} s)"
        yield from self._below(tried)
        if trial.without_effect:
            named = ", ".join(
                f"{each['name']} ({each['at']})" if each["at"] else str(each["name"])
                for each in trial.without_effect[:5]
            )
            yield from self._below(
                f"These differ between workers, and change neither the training nor what is saved: {named}."
            )

    def scope(self, trial: Trial) -> str:
        """Return a sentence about the histories that were tested, and those that were not."""
        per = trial.steps_per_epoch
        text = f"Tried: {trial.steps} steps of {trial.virtual_workers} virtual workers"
        if per is None:
            return f"{text}, of data whose epochs have no known length."
        if trial.edges:
            return f"{text}, with {trial.edges} edge{'s' if trial.edges > 1 else ''} between epochs of {per} steps."
        return (
            f"{text}. An epoch has {per} steps, so no edge between epochs was seen: --steps {2 * per + 3} sees two, a smaller "
            "data set does, too."
        )

    def _finding(self, finding: Finding, colour: str) -> Iterator[str]:
        for number, line in enumerate(wrapped(f"{finding.tried}: {finding.what}", self._width)):
            yield self._paint(line, colour) if number == 0 else line
        if finding.text:
            yield from self._below(finding.text.removesuffix(".") + ".")
        elif finding.remedy:
            yield from self._below(finding.remedy + ".")
        if finding.others:
            yield from self._below(f"Others that differ there: {', '.join(finding.others)}.")

    def _below(self, text: str) -> Iterator[str]:
        for line in wrapped(text, self._width - INDENT):
            yield " " * INDENT + line

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text

    def document(self, trial: Trial, took_s: float) -> dict[str, Any]:
        """Return the result as a document for programs."""
        return {
            "verdict": "refused" if trial.refused else "differs" if trial.findings else "same bits",
            "findings": [_plain(each) for each in trial.findings],
            "notes": [_plain(each) for each in trial.notes],
            "without_effect": trial.without_effect,
            "parts": self._parts,
            "steps": trial.steps,
            "steps_per_epoch": trial.steps_per_epoch,
            "edges": trial.edges,
            "virtual_workers": trial.virtual_workers,
            "took_s": round(took_s, 2),
        }


def _word(part: Part, finding: Finding | None) -> tuple[str, str]:
    """Return the word for a part's outcome, and its colour."""
    if finding is None:
        return ("ran" if part.kind is Kind.ALONE else "same"), GREEN
    if finding.what == "refused":
        return "REFUSED", RED
    return ("note", YELLOW) if part.kind is Kind.HASH_SEED else ("DIFFERS", RED)


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding for each name; findings without a name only if no finding has one."""
    named: dict[str, Finding] = {}
    for finding in findings:
        known = named.get(finding.name)
        # Findings of the other parts show two values
        if finding.name and (known is None or known.tried == BACKWARDS.tried):
            named[finding.name] = finding
    return list(named.values()) or list(findings)


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "tried": finding.tried,
        "what": finding.what,
        "name": finding.name or None,
        "file": finding.file or None,
        "line": finding.line or None,
        "remedy": finding.remedy or None,
        "text": finding.text or None,
        "others": list(finding.others),
    }
