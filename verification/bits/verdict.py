"""Judgement of a history: no bit differs, no step is lost, only the step in flight is repeated, no worker is stuck."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch

from .history import Course
from .points import Entry, read_journal
from .station import slot_of
from .worker import path_of

AT_ONCE_S = 0.1
MOST_REPEATED = 2  # the step in flight, and the one before if only dead workers had applied it
LOG_LINES = 40


@dataclass
class Verdict:
    """Figures of one history, and its problems."""

    seed: int
    model: str
    virtual_workers: int
    duration_s: float
    steps: int = 0  # of the training
    orders: int = 0
    committed: int = 0
    cancelled_orders: int = 0
    joins: int = 0
    leaves: int = 0
    migrations: int = 0
    rehostings: int = 0  # steps after which virtual workers were hosted otherwise, in the same generation
    kills: dict[str, int] = field(default_factory=dict)  # by point
    leaders_killed: int = 0
    two_at_once: int = 0
    repeated_steps: int = 0
    lost_steps: int = 0
    restarts: int = 0
    results: int = 0  # workers that completed the training
    differing_bits: int = 0
    restarted: list[str] = field(default_factory=list)  # reasons of restarts, in the controller's words
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems


# ---------------------------------------------------------------------------------------------------------------- bits


def differing_bits(left: Any, right: Any) -> int:
    """Return the number of bits in which two documents differ; a part that only one has counts as a whole."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return _differing_in_tensors(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        keys = list(dict.fromkeys([*left, *right]))
        return sum(differing_bits(left.get(key), right.get(key)) for key in keys)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        missing = 64 * abs(len(left) - len(right))
        return missing + sum(differing_bits(a, b) for a, b in zip(left, right, strict=False))
    if isinstance(left, float) and isinstance(right, float):
        return _differing_in_tensors(torch.tensor(left, dtype=torch.float64), torch.tensor(right, dtype=torch.float64))
    return 0 if type(left) is type(right) and left == right else 64


def _differing_in_tensors(left: torch.Tensor, right: torch.Tensor) -> int:
    if left.dtype != right.dtype or left.shape != right.shape:
        return 8 * max(left.nbytes, right.nbytes, 1)
    one, other = (each.detach().contiguous().view(-1).view(torch.uint8).numpy() for each in (left, right))
    return int(numpy.unpackbits(one ^ other).sum())


# -------------------------------------------------------------------------------------------------------------- journals


def repeated_and_lost(journals: dict[str, list[Entry]]) -> tuple[int, int, int]:
    """Return the steps that were begun again in a later generation, the most of them in one generation, and the steps that a
    generation began before although one of its members had applied them."""
    first: dict[int, int] = {}  # generation -> the first step begun in it
    begun: dict[int, set[int]] = {}
    had: dict[int, int] = {}  # generation -> the furthest step that a member had applied at its beginning
    for entries in journals.values():
        applied, known = -1, set[int]()
        for entry in entries:
            if entry.what == "began":
                begun.setdefault(entry.generation, set()).add(entry.step)
                first[entry.generation] = min(entry.step, first.get(entry.generation, entry.step))
                if entry.generation not in known:
                    known.add(entry.generation)
                    had[entry.generation] = max(applied, had.get(entry.generation, -1))
            elif entry.what == "applied":
                applied = entry.step
    lost = sum(max(0, had[generation] + 1 - first[generation]) for generation in first)
    repeated, most = 0, 0
    before: set[int] = set()
    for generation in sorted(begun):
        again = len(begun[generation] & before)
        repeated, most = repeated + again, max(most, again)
        before |= begun[generation]
    return repeated, most, lost


def joins_in(journals: dict[str, list[Entry]]) -> int:
    """Return the number of workers that joined a training under way, and applied a step in it."""
    return sum(
        bool(entries) and entries[0].step > 0 and any(e.what == "applied" for e in entries)
        for entries in journals.values()
    )


# -------------------------------------------------------------------------------------------------------------- the whole


def judge(course: Course, model: str, virtual_workers: int, steps: int, reference: dict[str, Any] | None) -> Verdict:
    """Judge a history. reference: the result that the training must have; None: this is the first run."""
    journals = {
        worker: read_journal(path_of(course.directory, slot_of(worker), "journal")) for worker in course.exit_codes
    }
    generations = {entry.generation for entries in journals.values() for entry in entries} | set(course.committed)
    repeated, most, lost = repeated_and_lost(journals)
    kills: dict[str, int] = {}
    for death in course.deaths:
        kills[death.point.value] = kills.get(death.point.value, 0) + 1
    results = _results(course)
    verdict = Verdict(
        seed=course.story.seed,
        model=model,
        virtual_workers=virtual_workers,
        duration_s=course.duration_s,
        steps=steps,
        orders=course.orders,
        committed=len(generations),
        cancelled_orders=len(set(course.rosters) - generations),
        joins=joins_in(journals),
        leaves=sum(code == 0 and worker not in results for worker, code in course.exit_codes.items()),
        migrations=course.migrations,
        rehostings=len(
            {(e.generation, e.step) for entries in journals.values() for e in entries if e.what == "hosted"}
        ),
        kills=kills,
        leaders_killed=sum(death.leader for death in course.deaths),
        two_at_once=sum(
            b.time_s - a.time_s < AT_ONCE_S for a, b in zip(course.deaths, course.deaths[1:], strict=False)
        ),
        repeated_steps=repeated,
        lost_steps=lost,
        restarts=course.restarts,
        results=len(results),
        restarted=[line for line in course.log if "starts again" in line],
    )
    _find_problems(verdict, course, most, results, reference)
    return verdict


def _results(course: Course) -> dict[str, Path]:
    paths = {worker: path_of(course.directory, slot_of(worker), "result") for worker in course.exit_codes}
    return {worker: path for worker, path in paths.items() if path.exists()}


def _find_problems(
    verdict: Verdict, course: Course, most: int, results: dict[str, Path], reference: dict[str, Any] | None
) -> None:
    say = verdict.problems.append
    if not course.finished:
        say("the job stood still")
    if not results:
        say("no worker ended with the whole training")
    for worker, path in results.items():
        document = torch.load(path, weights_only=True)
        bits = differing_bits(document, reference) if reference is not None else 0
        verdict.differing_bits += bits
        if bits:
            say(f"{worker}: {bits} bits differ")
        if document["beside"]["steps"] != verdict.steps:
            say(f"{worker} ended after {document['beside']['steps']} steps instead of {verdict.steps}")
    if verdict.lost_steps:
        say(f"{verdict.lost_steps} steps that a survivor had applied were run again")
    if most > MOST_REPEATED and not verdict.restarts:
        say(f"{most} steps were repeated at once")
    for worker, code in course.exit_codes.items():
        by_story = worker in course.killed or (worker in course.stopped and code < 0)
        if code and not by_story and course.finished:
            say(f"{worker} ended with {code}: {tail(course, worker)}")


def tail(course: Course, worker: str) -> str:
    """Return the end of a worker's log."""
    path = path_of(course.directory, slot_of(worker), "log")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-LOG_LINES:])
