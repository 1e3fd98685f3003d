"""Verdict on one script: its histories compared with a run of a single worker throughout."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from elasticd.protocol import exits

from .course import Ending
from .script import Expected, Script

LIBRARY = (
    "elastic",
    "UserError",
    "PeerError",
    " of virtual worker ",
    "No gradient depends on it",
    "run for nothing",
)  # in a line: the message is the library's, not Python's
NO_NAMING = ("has lost its initial values",)  # of a worker ended at an unlucky moment: says nothing about the script
TOLD = (
    exits.DIVERGED,
    exits.DISAGREED,
    84,
    85,
)  # exit codes of a worker that differs from the others, or has other code


class Kind(enum.Enum):
    """equal: the same bits, and no message. named: a worker was not admitted, or a warning was given. refused: the script did not
    run. silent: other bits, no message. crashed: an error that is not the library's, or no end."""

    EQUAL = "equal"
    NAMED = "named"
    REFUSED = "refused"
    SILENT = "SILENT"
    CRASHED = "crashed"


@dataclass
class Verdict:
    """Verdict on a script, as written or with the named line added."""

    script: str
    fixed: bool
    kind: Kind
    expected: bool  # the kind is an expected one
    named: bool = False  # a message contains the variable's name
    other_bits: list[str] = field(default_factory=list)  # histories with other bits
    repeatable: bool = True  # runs with one worker end with the same bits; tested where bits differ
    missed: int = 0  # orders of all histories that were not reached
    message: str = ""
    seconds: float = 0.0
    endings: list[Ending] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "kind": self.kind.value}


def judge(script: Script, fixed: bool, alone: Ending, endings: list[Ending]) -> Verdict:
    """Return the worst verdict over all histories."""
    every = [alone, *endings]
    messages = [text for each in every for text in _messages(each)]
    told = [text for each in every for text in _told(each)]
    message = next((text for text in told if script.variable and script.variable in text), "")
    message = message or (told or messages or [each.reason for each in every if each.reason] or [""])[0]
    other = [each for each in endings if each.phase == "finished" and _differ(each, alone)]
    failed = [each for each in every if each.phase != "finished"]
    unlike = any(code in TOLD for each in every for code in each.codes.values())
    if failed:
        kind = Kind.REFUSED if told or unlike else Kind.CRASHED
    elif unlike or (other and told):
        kind = Kind.NAMED
    else:
        kind = Kind.EQUAL
    if not all(map(_is_unlike, other)):  # a message in another history does not help the user of this one
        kind = Kind.SILENT
    names = [each.story for each in other]
    verdict = Verdict(script.name, fixed, kind, False, message=message, other_bits=names, endings=every)
    verdict.named = bool(script.variable) and any(script.variable in text for text in messages)
    verdict.missed = sum(each.missed for each in endings)
    verdict.seconds = sum(each.seconds for each in every)
    verdict.expected = _as_expected(verdict, Expected.EQUAL if fixed else script.expected)
    return verdict


def _messages(ending: Ending) -> list[str]:
    found = (*ending.errors, *ending.warnings)
    return [text for text in found if not any(words in text for words in NO_NAMING)]


def _told(ending: Ending) -> list[str]:
    """Return the messages that are the library's."""
    return [text for text in _messages(ending) if any(word in text for word in LIBRARY)]


def _is_unlike(ending: Ending) -> bool:
    """Return whether the history itself says that its result may differ."""
    return bool(_told(ending)) or any(code in TOLD for code in ending.codes.values())


def _differ(one: Ending, alone: Ending) -> bool:
    models = set(alone.models.values())
    return one.saved != alone.saved or (bool(models) and not set(one.models.values()) <= models)


def _as_expected(verdict: Verdict, expected: Expected) -> bool:
    if expected is Expected.EQUAL:
        return verdict.kind is Kind.EQUAL
    if expected is Expected.EITHER:
        return verdict.kind in (Kind.EQUAL, Kind.NAMED, Kind.REFUSED)
    return verdict.kind in (Kind.NAMED, Kind.REFUSED)
