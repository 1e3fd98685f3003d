"""Order of a job's checkpoints: the newest one, overtaken writers, superfluous checkpoints. Pure.

A server that is cut off does not learn that its job continues elsewhere, and may go on writing. So the newest
checkpoint is the one of the greatest generation, and within a generation that of the greatest step. A worker that
resumes from a checkpoint first gives it the number of its own generation (`taken_over`). A writer neither writes
(`overtaken_by`) nor removes checkpoints (`superfluous`) if one of a greater generation exists.

`checkpoint` handles the files. The simulated cluster (`verification.world`), whose checkpoints are no files, decides by
the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"(?:generation-(\d{8,})-)?step-(\d{12,})\.pt")  # earlier versions did not name the generation


@dataclass(frozen=True, order=True)
class Name:
    """Generation and step of a checkpoint's state. The greatest name is the newest."""

    generation: int
    step: int
    file: str = ""

    @classmethod
    def of(cls, generation: int, step: int) -> Name:
        return cls(generation, step, f"generation-{generation:08d}-step-{step:012d}.pt")

    @classmethod
    def parse(cls, file: str) -> Name | None:
        """Return the name of a file; None if it is no checkpoint's."""
        match = _NAME.fullmatch(file)
        return cls(int(match[1] or 0), int(match[2]), file) if match else None


def newest_first(names: Iterable[Name]) -> list[Name]:
    """Return the names in the order in which they are tried for reading."""
    return sorted(names, reverse=True)


def taken_over(name: Name, generation: int) -> Name:
    """Return the name that a checkpoint gets when a worker of `generation` resumes from it."""
    return name if name.generation >= generation else Name.of(generation, name.step)


def overtaken_by(names: Iterable[Name], generation: int) -> int | None:
    """Return the greater generation among these checkpoints, which forbids one of `generation`; None: `generation` may
    write.
    """
    newest = max((name.generation for name in names), default=0)
    return newest if newest > generation else None


def superfluous(names: Iterable[Name], generation: int, keep: int) -> list[Name]:
    """Return the checkpoints that a writer of `generation` removes after its write: all but the `keep` newest, newest
    first.
    """
    ordered = newest_first(names)
    return [] if overtaken_by(ordered, generation) is not None else ordered[max(keep, 1) :]
