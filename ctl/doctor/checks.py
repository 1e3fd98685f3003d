"""Definition of a check, and of its findings.

A check is a function that examines one aspect of a *place*: a user's desk, a server, a controller's host. It reports
its finding in one sentence, and the remedy in another. It changes nothing, runs with the caller's rights, and may hang:
`bounded` runs each check in a process of its own, with a limit.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from .targets import Subject, Target

LIMIT_S = 10.0


class Outcome(enum.Enum):
    """Outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # the subject works, but is slow, or will fail under some condition
    FAILURE = "failure"  # the subject does not work
    ABSENT = "not applicable"  # the place has no such part, or the caller may not see it


class Finding(msgspec.Struct, frozen=True):
    """Finding of a check. `remedy`: how to repair the fault; "": no fault. `certain`: more time would not change it."""

    outcome: Outcome
    found: str
    remedy: str = ""
    certain: bool = False


Look = Callable[[Target], Finding]


@dataclass(frozen=True)
class Check:
    """A check. `finds` and `remedy` are for the manual: the faults that it finds, and their usual remedies."""

    name: str
    subject: Subject
    finds: str
    remedy: str
    look: Look
    limit_s: float = LIMIT_S
    once: bool = False  # the check examines the machine, and so runs once for all its daemons


class Register:
    """Collects the checks of one kind of place, in the order of the file."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.checks: list[Check] = []

    def check(
        self, name: str, finds: str, remedy: str, limit_s: float = LIMIT_S, once: bool = False
    ) -> Callable[[Look], Look]:
        """Decorate a function as a check."""

        def add(look: Look) -> Look:
            self.checks.append(Check(name, self.subject, finds, remedy, look, limit_s, once))
            return look

        return add


def ok(found: str) -> Finding:
    return Finding(Outcome.OK, found)


def absent(found: str) -> Finding:
    return Finding(Outcome.ABSENT, found)


def warning(found: str, remedy: str) -> Finding:
    return Finding(Outcome.WARNING, found, remedy)


def failure(found: str, remedy: str, certain: bool = False) -> Finding:
    return Finding(Outcome.FAILURE, found, remedy, certain)


ORDER = (Outcome.ABSENT, Outcome.OK, Outcome.WARNING, Outcome.FAILURE)


def worst(findings: list[Finding], otherwise: Finding) -> Finding:
    """Return several findings as one: the worst outcome, with the sentences of all faults; `otherwise` if there is no
    fault.
    """
    wrong = [each for each in findings if each.outcome in (Outcome.WARNING, Outcome.FAILURE)]
    if not wrong:
        return otherwise
    outcome = max((each.outcome for each in wrong), key=ORDER.index)
    ordered = sorted(wrong, key=lambda each: -ORDER.index(each.outcome))
    return Finding(
        outcome,
        "; ".join(dict.fromkeys(each.found for each in ordered)),
        "; ".join(dict.fromkeys(each.remedy for each in ordered)),
    )
