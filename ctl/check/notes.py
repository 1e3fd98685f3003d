"""Notes of the workers of a check (`worker.rehearsal.notes`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...worker.kept import Reach

Entries = dict[str, tuple[int, str]]  # by name: digest and text of the value


@dataclass
class Notes:
    """Notes of one worker."""

    joined: bool = False  # the worker has called `elastic.join()`
    loop: dict[str, Any] | None = None
    looks: dict[int, Reach] = field(default_factory=dict)  # by number of applied steps; -1: before the loop
    states: dict[int, Entries] = field(default_factory=dict)  # by number of applied steps
    saves: dict[tuple[str, int], Entries] = field(default_factory=dict)  # by path and applied steps
    over: int | None = None  # number of applied steps at the loop's end; None: not reached
    final: Entries = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Notes:
        """Return the notes written so far."""
        notes = Notes()
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return notes
        notes.joined = True
        for line in lines:
            document = msgspec.json.decode(line)
            if "loop" in document:
                notes.loop = document["loop"]
            elif "look" in document:
                notes.looks[document["look"]] = Reach.of(document["reach"])
            elif "state" in document:
                notes.states[document["state"]] = _entries(document)
            elif "save" in document:
                notes.saves[document["save"], document["step"]] = _entries(document)
            elif "over" in document:
                notes.over, notes.final = document["over"], _entries(document)
        return notes


def _entries(document: dict[str, Any]) -> Entries:
    return {name: (digest, shown) for name, digest, shown in document["entries"]}
