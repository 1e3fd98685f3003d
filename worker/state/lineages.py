"""Which of a job's checkpoints is the newest, whose writer has been overtaken, and which are superfluous. Pure.

A server that is cut off does not hear that its job goes on elsewhere, and may write on. So the newest checkpoint is the one of
the greatest generation, and only within a generation that of the greatest step. Whoever goes on from a checkpoint gives it the
number of the own generation first (`taken_over`), and a writer neither writes (`overtaken_by`) nor removes anything
(`superfluous`) where it sees a greater one.

Files are `checkpoint`'s. The simulated cluster (`verification.world`), whose checkpoints are no files, decides by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"(?:generation-(\d{8,})-)?step-(\d{12,})\.pt")  # earlier versions did not name the generation


@dataclass(frozen=True, order=True)
class Name:
    """Which state a checkpoint contains. The greatest is the newest."""

    generation: int
    step: int
    file: str = ""

    @classmethod
    def of(cls, generation: int, step: int) -> Name:
        return cls(generation, step, f"generation-{generation:08d}-step-{step:012d}.pt")

    @classmethod
    def parse(cls, file: str) -> Name | None:
        """The name that a file has; None: that of no checkpoint."""
        match = _NAME.fullmatch(file)
        return cls(int(match[1] or 0), int(match[2]), file) if match else None


def newest_first(names: Iterable[Name]) -> list[Name]:
    """In the order in which whoever needs a state tries to read them."""
    return sorted(names, reverse=True)


def taken_over(name: Name, generation: int) -> Name:
    """The name that a checkpoint has from now on, since a worker of `generation` goes on from it."""
    return name if name.generation >= generation else Name.of(generation, name.step)


def overtaken_by(names: Iterable[Name], generation: int) -> int | None:
    """The generation that goes on where these checkpoints are, so that one of `generation` must write none; None: it may."""
    newest = max((name.generation for name in names), default=0)
    return newest if newest > generation else None


def superfluous(names: Iterable[Name], generation: int, keep: int) -> list[Name]:
    """What a writer of `generation` removes when it has written one, the newest first: all but the `keep` newest."""
    ordered = newest_first(names)
    return [] if overtaken_by(ordered, generation) is not None else ordered[max(keep, 1) :]
