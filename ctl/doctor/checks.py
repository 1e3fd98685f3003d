"""What a check is, and what it finds.

A check is a function that looks at one thing of a *place*: a user's desk, a server, a controller's host. It says what it found
in one sentence, and what mends it in another. It changes nothing, runs with the rights of whoever asks, and may hang: `bounded`
runs each in a process of its own, with a limit.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .places import Place

LIMIT_S = 10.0


class Outcome(enum.Enum):
    """How a thing stands."""

    OK = "ok"
    WARNING = "warning"  # it works, and will not under some condition, or is slow
    FAILURE = "failure"  # something does not work
    ABSENT = "not applicable"  # there is no such thing here, or whoever asks may not see it


class Subject(enum.Enum):
    """What kind of place it is."""

    DESK = "desk"
    CONTROLLER = "controller"
    SERVER = "server"


class Finding(msgspec.Struct, frozen=True):
    """What a check says. `remedy`: what mends it; empty where nothing is to be mended."""

    outcome: Outcome
    found: str
    remedy: str = ""


Look = Callable[["Place"], Finding]


@dataclass(frozen=True)
class Check:
    """`finds` and `remedy` are for the manual: what it looks for, and what usually mends it."""

    name: str
    subject: Subject
    finds: str
    remedy: str
    look: Look
    limit_s: float = LIMIT_S
    once: bool = False  # it looks at the machine, whatever daemons are there


class Register:
    """Collects the checks of one kind of place, in the order in which they stand in the file."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.checks: list[Check] = []

    def check(
        self, name: str, finds: str, remedy: str, limit_s: float = LIMIT_S, once: bool = False
    ) -> Callable[[Look], Look]:
        """Decorates a check."""

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


def failure(found: str, remedy: str) -> Finding:
    return Finding(Outcome.FAILURE, found, remedy)


ORDER = (Outcome.ABSENT, Outcome.OK, Outcome.WARNING, Outcome.FAILURE)


def worst(findings: list[Finding], otherwise: Finding) -> Finding:
    """Several findings as one: the worst outcome, with all sentences of that outcome; `otherwise` if all is well."""
    wrong = [each for each in findings if each.outcome in (Outcome.WARNING, Outcome.FAILURE)]
    if not wrong:
        return otherwise
    outcome = max((each.outcome for each in wrong), key=ORDER.index)
    told = sorted(wrong, key=lambda each: -ORDER.index(each.outcome))
    return Finding(
        outcome,
        "; ".join(dict.fromkeys(each.found for each in told)),
        "; ".join(dict.fromkeys(each.remedy for each in told)),
    )
