"""A whole check of a script: its parts one after another, and the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import Outcome, Script
    from .parts import Part
    from .verdict import Finding


class Trial:
    """A whole check: its parts, findings and notes."""

    def __init__(self, driver: object, script: Script, label: Callable[[str], None]) -> None:
        from .driver import Driver

        assert isinstance(driver, Driver)
        self._driver = driver
        self._script = script
        self._label = label
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []  # findings that do not matter in a job
        self.without_effect: list[dict[str, object]] = []
        self.refused = False  # the library refused the script in its first steps
        self.error = ""
        self.output: tuple[str, ...] = ()
        self.steps = 0
        self.steps_per_epoch: int | None = None
        self.virtual_workers = 0
        self.edges = 0

    def run(self) -> Iterator[tuple[Part, Outcome, Finding | None]]:
        """Run part after part, and yield each with its outcome and finding."""
        from . import parts, verdict

        alone = self._run(parts.FIRST, self._script.steps)
        if alone.refused:
            self.refused = True
            self.findings.append(verdict.refusal(alone))
            yield parts.FIRST, alone, self.findings[0]
            return
        if self._cannot_run(alone):
            return
        loop = alone.notes[0].loop or {}
        self.steps = alone.notes[0].over or 0
        self.steps_per_epoch = loop["steps_per_epoch"]
        self.virtual_workers = loop["virtual_workers"]
        self.edges = parts.edges(self.steps, self.steps_per_epoch)
        yield parts.FIRST, alone, None
        others: list[Outcome] = []
        for part in parts.planned(self.steps, self.steps_per_epoch, self.virtual_workers):
            outcome = self._run(part, self.steps)
            finding = verdict.compare(alone, outcome)
            if part.kind is parts.Kind.HASH_SEED and finding is not None:
                again = self._run(parts.AGAIN, self.steps)
                random = verdict.compare(alone, again)
                yield parts.AGAIN, again, random
                if random is not None:  # the script is not repeatable at all, so no other part shows anything
                    self.findings.append(random)
                    return
                (self.notes if outcome.failed is None else self.findings).append(finding)
            elif finding is not None:
                self.findings.append(finding)
            others.append(outcome)
            yield part, outcome, finding
        if not self.findings:
            self.without_effect = list(verdict.without_effect(alone, others))

    def _run(self, part: Part, steps: int | None) -> Outcome:
        self._label(part.tried)
        return self._driver.run(part, steps)

    def _cannot_run(self, alone: Outcome) -> bool:
        notes = alone.notes[0]
        if alone.late:
            self.output = alone.output
            self.error = (
                f"the script alone has not come to an end after {self._script.limit_s:.0f} s: its last lines stand above. Where "
                "it only needs longer, --limit 10m"
            )
        elif alone.failed is not None:
            self.output = alone.output
            self.error = f"the script fails by itself: {alone.error}"
        elif not notes.joined:
            self.error = (
                "the script has not called elastic.join(): there is nothing to try (docs/scripts.md has the four lines)"
            )
        elif notes.loop is None or notes.over is None:
            self.error = "the script has ended without coming to the end of its loop over run.epochs() and batches"
        elif not notes.over:
            self.error = "the script's loop has not trained a step"
        return bool(self.error)
