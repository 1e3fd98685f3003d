"""Comparison of a part's notes with those of one worker alone: whether bits differ, from which step on, and which names
explain it.

Bits decide: the digests of the job's state after each step and at the end, and of the values given to `run.save`. Names
explain: the values that the script keeps (`worker.kept`), compared before the first step that differs. Pure, but for
reading the script's source.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...worker.kept import Difference, Kind, Reach, differences
from ...worker.source.assigned import Source, Sources
from ...worker.source.unused import Uses
from ...worker.variables import advice
from .driver import Outcome
from .notes import Entries, Notes
from .parts import Kind as PartKind

TOLD_ENTRIES = 3


@dataclass(frozen=True)
class Finding:
    """A difference, for people and programs."""

    tried: str
    what: str  # the difference: the step, and parts of the state
    name: str = ""  # the script's variable
    file: str = ""
    line: int = 0
    remedy: str = ""  # how to change the script
    text: str = ""  # full explanation of the name, in a sentence
    others: tuple[str, ...] = ()  # further names that differ there
    suspect: bool = True  # the name explains the difference; otherwise it was the only visible one


def compare(alone: Outcome, other: Outcome) -> Finding | None:
    """Return the first difference between two outcomes; None: the same bits."""
    first, second = alone.notes[0], other.notes
    late = {worker for step, workers in other.part.entries if step for worker in workers}
    restarts = other.part.kind is PartKind.RESTART
    where = _first_difference(first, second, frozenset(second) if restarts else late)
    tried = _tried(other)
    if where is None and other.refused:
        return refusal(other)
    if where is None and other.failed is None:
        return _without_end(first, other)
    worker, step, what = where or (other.failed or 0, None, "")
    if what.endswith(SAVED_ELSEWHERE) and (counter := _of_counter(first, tried, what)) is not None:
        return counter
    found, sides = _names(first, second, worker, step, other)
    if not found and other.part.kind is PartKind.BACKWARDS and step:
        return _of_bodies(first, step, tried, what)
    if not what:
        what = "no end within the time limit: it hangs" if other.late else f"{other.error}"
    if not found:
        unseen = "" if other.failed is not None and where is None else advice.UNSEEN
        return Finding(tried, what, remedy=unseen, suspect=False)
    sources = sources_of(first)
    best, *rest = found
    place = sources.where(best.name, best.owners)
    return Finding(
        tried,
        what,
        best.name,
        place.file if place is not None else "",
        place.line if place is not None else 0,
        _remedy(best, sources, first) if best.changed else BEFORE,
        advice.sentence(best, sides, sources, _batch_size(first)),
        tuple(each.name for each in rest[:TOLD_ENTRIES]),
    )


def _of_counter(first: Notes, tried: str, what: str) -> Finding | None:
    """Return a finding that names the variable that counts loop bodies; None without one."""
    sources = sources_of(first)
    for name, place in sources.counters.items():
        text = advice.of_counter(sources)
        return Finding(tried, what, name, place.file, place.line, "take run.steps_done in its place", text)
    return None


def _of_bodies(first: Notes, step: int, tried: str, what: str) -> Finding:
    """Return a finding for steps that begin alike but depend on the order of their loop bodies: one body reads a value
    that another changed.
    """
    changed: list[Difference] = []
    if step - 1 in first.looks and step in first.looks:
        changed = differences(first.looks[step], first.looks[step - 1])
    sources = sources_of(first)
    has_no_effect = _has_no_effect(sources)
    changed = [each for each in changed if not has_no_effect(each)]
    if not changed:
        return Finding(tried, what, remedy=advice.UNSEEN, suspect=False)
    best, *rest = changed
    place = sources.where(best.name, best.owners)
    remedy = _remedy(best, sources, first)
    at = f" ({place})" if place is not None else ""
    return Finding(
        tried,
        what,
        best.name,
        place.file if place is not None else "",
        place.line if place is not None else 0,
        remedy,
        f"{best.name} is changed by a loop body{at}, and the step's next body begins with that; {remedy}",
        tuple(each.name for each in rest[:TOLD_ENTRIES]),
    )


def refusal(outcome: Outcome) -> Finding:
    """Return the finding for a script that the library itself refuses."""
    return Finding(_tried(outcome), "refused", text=outcome.error, suspect=False)


SAVED_ELSEWHERE = ", and not on one worker alone"
BEFORE = "make it after elastic.join(), the same in each process (a set: sorted(...))"


def _tried(outcome: Outcome) -> str:
    return outcome.part.tried


def _without_end(first: Notes, other: Outcome) -> Finding | None:
    """Return a finding if all noted values are equal, but the notes end early."""
    last = other.notes[max(other.notes)]
    if last.over == first.over:
        return None
    had = "none" if last.over is None else f"{last.over}"
    return Finding(_tried(other), f"the loop ends after {first.over} steps, and here after {had}", suspect=False)


def _first_difference(
    first: Notes, others: dict[int, Notes], late: Collection[int]
) -> tuple[int, int | None, str] | None:
    """Return worker, applied steps, and a description of the first difference. Steps None: before the first step.

    late: workers that have joined later, which repeat code of the epoch's beginning, such as a save.
    """
    found: list[tuple[int, int, str]] = []
    for worker, notes in others.items():
        for step, entries in notes.states.items():
            names = _differing(first.states.get(step), entries)
            if names:
                found.append((step, worker, f"other bits after step {step}: {_listed(names)}"))
                break
        for (path, step), entries in notes.saves.items():
            if worker not in late and step in first.states and (path, step) not in first.saves:
                found.append((step, worker, f"run.save writes {path} after step {step}{SAVED_ELSEWHERE}"))
                break
            names = _differing(first.saves.get((path, step)), entries)
            if names:
                found.append(
                    (step, worker, f"run.save would write something else to {path} after step {step}: {_listed(names)}")
                )
                break
        if notes.over is not None and notes.over == first.over:
            names = _differing(first.final, notes.final)
            if names:
                found.append((notes.over, worker, f"other bits at the end: {_listed(names)}"))
    if not found:
        return None
    step, worker, what = min(found, key=lambda each: each[:2])
    return worker, step, what


def _differing(ones: Entries | None, others: Entries) -> list[str]:
    """Return the names with different digests in two states."""
    if ones is None:
        return []
    names = [name for name, (digest, _) in others.items() if name in ones and ones[name][0] != digest]
    return names + [name for name in (*ones, *others) if (name in ones) != (name in others)]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name or "all of it" for name in names[:TOLD_ENTRIES])
    return f"{shown} and {len(names) - TOLD_ENTRIES} more" if len(names) > TOLD_ENTRIES else shown


# -- names


def _names(
    first: Notes, others: dict[int, Notes], worker: int, step: int | None, outcome: Outcome
) -> tuple[list[Difference], tuple[str, str]]:
    """Return the differing names, the likeliest first, and the descriptions of the two sides."""
    sides = ("one worker alone", _side(outcome, worker))
    # Before the step that differs: the state that caused the difference. All workers present at that step count.
    last = step if step is not None else max(first.looks, default=-1)
    order = [last - 1, last] if step is not None else [last]
    looks = [at for at in (*order, *range(max(0, last - 1))[::-1], -1) if at in first.looks]
    for at in looks:
        for number in (worker, *(each for each in others if each != worker)):
            notes = others.get(number)
            if notes is None or at not in notes.looks:
                continue
            found = _between(first, notes, at)
            if found:
                return _ranked(found, sources_of(first), outcome), (sides[0], _side(outcome, number))
    return [], sides


def _between(first: Notes, notes: Notes, at: int) -> list[Difference]:
    mine, theirs = first.looks[at], notes.looks[at]
    return differences(_since(mine, first), _since(theirs, notes))


def _since(reach: Reach, notes: Notes) -> Reach:
    begun = notes.looks.get(-1)
    return reach if begun is None else reach.since(begun)


def _side(outcome: Outcome, worker: int) -> str:
    match outcome.part.kind:
        case PartKind.AGAIN:
            return "another run"
        case PartKind.HASH_SEED:
            return "one with another hash seed"
        case PartKind.BACKWARDS:
            return "one with the bodies in reverse"
        case PartKind.RESTART:
            return "one that has restarted"
    joined = next(step for step, workers in outcome.part.entries if worker in workers)
    return f"the worker that joins at step {joined}" if joined else "the first of several workers"


def _ranked(found: list[Difference], sources: Sources, outcome: Outcome) -> list[Difference]:
    """Return the findings sorted by likelihood: variables that only a log reads come last."""
    found = sorted(found, key=_has_no_effect(sources))
    before = outcome.part.kind in (PartKind.AGAIN, PartKind.HASH_SEED)
    return sorted(found, key=lambda each: each.changed) if before else found


def _batch_size(notes: Notes) -> int | None:
    size = (notes.loop or {}).get("batch_size")
    return size if isinstance(size, int) else None


def _remedy(difference: Difference, sources: Sources, notes: Notes) -> str:
    return advice.remedy(difference, sources, _batch_size(notes))


def _has_no_effect(sources: Sources) -> Callable[[Difference], bool]:
    """Return a function which returns whether, by the script's source, only displays depend on a value."""
    scope = sources.loop_scope
    return Uses(sources.trees, scope).is_without_effect if scope is not None else lambda difference: False


def sources_of(notes: Notes) -> Sources:
    """Return the script's files."""
    loop = notes.loop or {}
    if "file" not in loop:
        return Sources(None)
    return _sources(loop["file"], tuple(loop["others"]), loop["line"], loop["function"])


@functools.lru_cache(maxsize=8)
def _sources(file: str, others: tuple[str, ...], line: int, function: str) -> Sources:
    return Sources(Source.read(file), others, line, function)


def without_effect(alone: Outcome, others: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Yield names that differ at the end although the bits are equal: only displayed values depend on them."""
    first = alone.notes[0]
    known: set[str] = set()
    for outcome in others:
        if outcome.part.kind is not PartKind.ROSTER:
            continue
        notes = outcome.notes[max(outcome.notes)]
        at = max((step for step in notes.looks if step in first.looks), default=-1)
        for each in _between(first, notes, at) if at in notes.looks else []:
            if each.changed and each.node.kind is not Kind.MODULE and each.name not in known:
                known.add(each.name)
                place = sources_of(first).where(each.name, each.owners)
                yield {"name": each.name, "at": None if place is None else str(place)}
