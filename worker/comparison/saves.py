"""Comparison of saved values: all workers come to `run.save`, the leader alone writes, and all workers must have the
same value.

A gradient does not depend on all values that a script saves: an average of the weights in a list, a history of losses,
the epoch that a worker takes for the best. So each worker takes a digest of the value that it passes to `run.save`
(`reachable.look`, which neither runs the script's code nor copies large tensors), and the file gets its name when all
workers have reported the same digest.

*A collective must not be in code that only some workers reach.* `if loss < best: run.save(...)` may hold on one worker
alone. So a worker that saves in the loop waits for no other. It notes path and digest. The leader writes to another
name (`staged`). Two integers of the next step's word show whether all workers have noted the same. If so, the file gets
its name when that step is applied, by whichever worker is the first, so the leader may be lost meanwhile. If not,
payloads show the difference, before the update.

*After the loop* there are no more steps to carry the comparison (`last_saves`).

*Loop bodies.* A body runs once for each virtual worker. Only the value of the last body of a step counts, on each
worker. A file that only other bodies save depends on the number of bodies, and counts as a difference.

*A difference* is the script's: a vote of workers cannot decide about a value of which each worker has its own. A new
worker that differs in the step in which it has to agree with the others does not join, as after a cross-check, and the
file is that of the others. Any other difference ends the job, with the file's name in the reason, and without the file.

Not compared: code under a condition that only the leader passes (`if run.is_leader:`), which the leader writes at once;
code that runs again for a state that already includes it; a worker that is alone; jobs with `determinism: none`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..digests import of_values
from ..following import Where
from ..inband import NOTHING, Part, never
from ..kept import Kind, Node, Reach, differences
from ..source.save_calls import is_for_leader
from ..state.verdict import Entry, Verdict, judge
from ..variables.looking import Looking
from ..variables.reachable import Limits, look
from .crosscheck import CrossCheck

LIMITS = Limits(seconds=2.0, items=200_000)
REGISTERED = "what the script has registered"
_ROOT = "saved"  # root name of a saved value in a look
_IN_BODY = frozenset({Where.BEFORE_STEP, Where.BEHIND_STEP})
_DECIDE = "decide it from what is the same on all workers (run.means, run.evaluate, run.agree), or save under `if run.is_leader:`"
_MEAN = (
    'what follows from the batches of one worker, such as a loss, is averaged: run.mean(loss=loss), and run.means["loss"]; '
    "what may differ is saved under `if run.is_leader:`"
)


@dataclass(frozen=True)
class Note:
    """One value that this worker passed to `run.save`."""

    name: str  # the script's path, or a description if the value is no file
    reach: Reach
    target: Path | None = None  # None: the value is no file
    staged: Path | None = None
    step: int = 0  # number of applied steps
    in_body: bool = False  # saved before the update
    partly: bool = False  # only some of this worker's loop bodies saved the value

    @property
    def digest(self) -> int | None:
        """Digest of the value; None if it was not read completely, so that nothing can be concluded."""
        node = self.reach.names.get(_ROOT)
        return 0 if node is None else node.digest

    def plain(self) -> list[Any]:
        return [self.reach.plain(), self.partly]

    @staticmethod
    def of(name: str, plain: Any) -> Note:
        """Return the Note of `plain` values. Raises PeerError for malformed ones."""
        reach, partly = plain
        return Note(name, Reach.of(reach), partly=bool(partly))

    def publish(self) -> None:
        """Give the file its name, unless another worker has done so or this worker does not see the directory."""
        if self.staged is not None and self.target is not None:
            with suppress(FileNotFoundError):
                os.replace(self.staged, self.target)


def by_file(notes: Iterable[Note]) -> dict[str, Note]:
    """Return the notes by the names of their files, in order.

    Directories are ignored: each worker may have its own, with a time in it.
    """
    found: dict[str, Note] = {}
    for note in sorted(notes, key=lambda note: os.path.basename(note.name)):
        base = os.path.basename(note.name)
        numbered = (base, *(f"{base} ({number})" for number in range(2, len(found) + 2)))
        found[next(name for name in numbered if name not in found)] = note
    return found


def looked_at(value: Any) -> Reach:
    """Return digests of this value by the names of its parts. Of tensors beyond a megabyte only some elements count."""
    return look(None, (), (), LIMITS, beside={_ROOT: value})


class Saves:
    """This worker's part in the comparison.

    A participant in the payloads of a step (`inband.Participant`); for the training thread.
    """

    name = "saves"
    slots = 2

    def __init__(
        self, cross_check: CrossCheck, looking: Looking, where: Callable[[], Where], last_body: Callable[[], bool]
    ) -> None:
        """where: returns the script's position. last_body: whether this is the last loop body that this worker runs for
        the step.
        """
        self._cross_check = cross_check
        self._looking = looking
        self._where = where
        self._last_body = last_body
        self._size = 1
        self._pending: dict[str, Note] = {}  # noted but not sent yet, by name
        self._early: dict[str, Note] = {}  # of loop bodies that are not the last of the step
        self._told: dict[str, Note] = {}  # sent in the step in progress
        self._differ = False

    def enter(self, size: int) -> None:
        """Begin a generation of `size` workers."""
        self._size = size

    def note(self, name: str, value: Any, target: Path, step: int) -> Path | None:
        """Note a value that the script saves in its loop after `step` applied steps.

        Returns the path that the leader writes. This is `target` itself if nothing is compared. None: write nothing,
        since another loop body of the step follows.
        """
        where = self._where()
        if self._size == 1 or where is Where.AGAIN or is_for_leader(sys._getframe()):
            return target
        note = Note(name, looked_at(value), target, target.with_name(f".{target.name}.step-{step}"), step)
        note = replace(note, in_body=where in _IN_BODY)
        if where is Where.BEHIND_STEP or (where is Where.BEFORE_STEP and not self._last_body()):
            self._early[name] = note
            return None
        self._early.pop(name, None)
        self._pending[name] = note
        return note.staged

    def begin(self, step: int) -> None:
        """Begin a step. If it begins again, its loop bodies save again."""
        for name, note in self._early.items():
            if note.step < step:
                self._pending[name] = replace(note, partly=True)
        self._early = {}
        self._pending = {name: note for name, note in self._pending.items() if not (note.in_body and note.step == step)}
        self._told = {}

    def applied(self) -> None:
        """Publish the files of the step, since all workers have reported the same digests."""
        for name, note in self._told.items():
            note.publish()
            if self._pending.get(name) is note:
                del self._pending[name]
        self._told = {}

    @property
    def names(self) -> list[str]:
        """Names of the workers, by rank."""
        return self._cross_check.names

    def look(self) -> list[Any]:
        """Take a look at the values that the script keeps, for `sentence`."""
        return self._looking.plain(sys._getframe())

    def left(self) -> list[Note]:
        """Return the notes that no step has carried, at the loop's end or when this worker ends earlier and others
        continue.
        """
        found = list(self._pending.values())
        self._pending = {}
        return found

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        if part.joins:  # its notes are of a step that it has missed
            self._pending = {}
            return NOTHING, NOTHING
        self._told = dict(self._pending)
        own = 0
        if self._told:
            told: list[Any] = [[name, note.digest] for name, note in by_file(self._told.values()).items()]
            if any(note.partly for note in self._told.values()):
                told.append(self._cross_check.rank)  # makes the digests differ, so that all workers read payloads
            own = of_values(told) >> 1
        return own, -own

    wants = never

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        self._differ = greatest[0] != NOTHING and greatest[0] != -greatest[1]
        return self._differ

    def payload(self, part: Part) -> Any:
        if not self._differ or part.joins:
            return None
        notes = {name: note.plain() for name, note in by_file(self._told.values()).items()}
        return {"notes": notes, "look": self.look()}

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Judge the payloads. Raises CommunicatorBroken if the others are to continue without new workers that differ."""
        if not self._differ:
            return
        # payloads of a worker that was blamed for another difference do not count
        payloads = [each or None for each in payloads]
        told = {
            rank: {name: Note.of(name, plain) for name, plain in payload["notes"].items()}
            for rank, payload in enumerate(payloads)
            if payload is not None
        }
        newcomers = self._cross_check.newcomers
        given = next((notes for rank, notes in sorted(told.items()) if rank not in newcomers), {})
        for rank in newcomers & told.keys():  # new workers have run no body of the step before
            told[rank] = {**given, **told[rank]}
        verdict = judge_notes(told, len(payloads), newcomers)
        if verdict is None:
            return
        looks = {rank: payload["look"] for rank, payload in enumerate(payloads) if payload is not None}
        sentence = self.sentence(verdict, told, looks)
        if not newcomers.issuperset(verdict.wrong):
            self._told = self._pending = {}
            self._cross_check.disagree(f"step {part.step}: {sentence}")
        self._cross_check.carry_out(verdict, newcomers, f"step {part.step}: {sentence}")

    def sentence(self, verdict: Verdict, told: Mapping[int, Mapping[str, Note]], looks: Mapping[int, Any]) -> str:
        """Describe the difference in a file, its values on two workers, and the line to write.

        told: notes by rank and name. looks: `Looking.plain` by rank.
        """
        name = verdict.entry
        one, other = next((a, b) for a in sorted(told) for b in sorted(told) if a < b and _differ(told, name, a, b))
        workers = self._cross_check.names[one], self._cross_check.names[other]
        mine, theirs = told[one].get(name), told[other].get(name)
        partly = [workers[number] for number, note in enumerate((mine, theirs)) if note is not None and note.partly]
        why, remedy = self._explained(one, other, looks), _DECIDE
        if partly:
            what = f"{name} is saved in some loop bodies of a step and not in the last one on {partly[0]}"
        elif mine is None or theirs is None:
            has, has_not = workers if theirs is None else workers[::-1]
            what = f"{name} is saved on {has} and not on {has_not}"
        else:
            found = differences(mine.reach, theirs.reach)
            what = f"what {name} would contain differs between {workers[0]} and {workers[1]}"
            if found:
                key = found[0].name.removeprefix(_ROOT)
                shown = _shown(found[0].ones), _shown(found[0].others)
                more = f" and {len(found) - 1} more" if len(found) > 1 else ""
                what = f"{name}: {key or 'it'} is {shown[0]} on {workers[0]} and {shown[1]} on {workers[1]}{more}"
                if shown[0] == shown[1]:
                    what = f"{name}: {key or 'it'} ({shown[0]}) differs between {workers[0]} and {workers[1]}{more}"
            remedy = "" if why and found and found[0].node.kind is Kind.TENSOR else _MEAN
        return "; ".join(each for each in (what, why, remedy) if each) + ". Nothing is written"

    def _explained(self, one: int, other: int, looks: Mapping[int, Any]) -> str:
        if looks.get(one) is None or looks.get(other) is None:
            return ""
        (mine, _), (theirs, _) = self._looking.of_plain(looks[one]), self._looking.of_plain(looks[other])
        found = [each for each in differences(mine, theirs) if each.changed]
        saved = [each for each in found if self._looking.is_saved(each)]
        if not saved and (counter := self._looking.counter()):
            return counter
        names = self._cross_check.names
        return self._looking.sentences(saved or self._looking.likely(found), (names[one], names[other]))


def _differ(told: Mapping[int, Mapping[str, Note]], name: str, one: int, other: int) -> bool:
    mine, theirs = told[one].get(name), told[other].get(name)
    if mine is None or theirs is None:
        return mine is not theirs
    known = mine.digest is not None and theirs.digest is not None
    return mine.partly or theirs.partly or (known and mine.digest != theirs.digest)


def _shown(node: Node | None) -> str:
    return "not there" if node is None else node.shown or f"a {node.type}"


def judge_notes(told: Mapping[int, Mapping[str, Note]], size: int, newcomers: frozenset[int]) -> Verdict | None:
    """Return the verdict on `size` workers' notes; None if all agree.

    told: notes by rank and name; absent ranks do not count.

    newcomers: ranks without a vote.
    """
    names = sorted({name for notes in told.values() for name in notes})
    entries: list[list[Entry] | None] = [None] * size
    unknown = {name for notes in told.values() for name, note in notes.items() if note.digest is None}
    for rank, notes in told.items():
        entries[rank] = [(name, _number(notes.get(name), rank, name in unknown), "") for name in names]
    return judge(entries, newcomers)


def _number(note: Note | None, rank: int, unknown: bool) -> int:
    """Return a number that differs if notes differ. unknown: some worker's value was not read completely."""
    if note is None:
        return -1
    if note.partly:
        return -2 - rank
    return 0 if unknown or note.digest is None else note.digest
