"""One history of one script: the product's controller and agent in this process, with workers as real processes.

The history is counted in steps, so that it is the same in every run: 1 -> 3 workers in the middle of an epoch, the first worker
killed, 2 at the end of an epoch, 3 in a later epoch. The product's controller also handles workers that refuse to join.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from elasticd.protocol.model import JobPhase

from ..bits.nursery import Nursery
from ..bits.station import TICK_S, Station, slot_of
from ..bits.worker import path_of
from ..scripts.worker import Pace
from .digests import files
from .worker import FRESH

VIRTUAL_WORKERS = 4
CHECKPOINT_EVERY_S = 1e9
PACE_S = 0.01  # between two steps outside acts
ACT_PACE_S = 0.12  # between two steps during an act
LONG_PACE_S = 0.8  # during an act that takes longer than PROMPT_S: most scripts have 32 steps
PROMPT_S = 1.0
ACT_S = 20.0  # time limit of an order, after which the history goes on without it
FRESH_FACTOR = 3.0  # on times, where each worker is a new interpreter that has to import torch
LONGEST_S = 150.0  # of a history
MOST_FAILURES = 6


@dataclass(frozen=True)
class Act:
    """After `step` applied steps: set `share` workers, or, where it is 0, kill the oldest worker.

    preempts: stop all workers, which write a checkpoint, and then start `share` new ones, which continue from it.
    """

    step: int
    share: int = 0
    preempts: bool = False


@dataclass(frozen=True)
class Story:
    """Acts of a history, with the initial number of workers."""

    name: str
    share: int
    acts: tuple[Act, ...] = ()
    pace_s: float = PACE_S
    slows: bool = True  # during acts, so that they fall into few steps
    tick_s: float = TICK_S  # at which the acts are decided
    longest_s: float = LONGEST_S


# Scripts of the corpus have epochs of eight steps, and about four of them
_STORIES = (
    Story("1-3-kill-2-3", 1, (Act(3, 3), Act(10), Act(16, 2), Act(19, 3))),
    Story("2", 2),
    Story("edges", 2, (Act(8, 1), Act(16, 3))),
    # Never two workers at a time: only a checkpoint of the middle of an epoch can show what the script has lost
    Story("preempted", 1, (Act(5, 1, preempts=True), Act(12, 1, preempts=True), Act(21, 1, preempts=True))),
    Story("preempted-edges", 1, (Act(7, 1, preempts=True), Act(15, 1, preempts=True), Act(23, 1, preempts=True))),
)
STORIES = {story.name: story for story in _STORIES}
ALONE = Story("1", 1)


@dataclass
class Ending:
    """Result of a history."""

    story: str
    phase: str = ""
    reason: str = ""
    seconds: float = 0.0
    steps: int = 0
    started: int = 0  # workers; more than the acts ask for where some were replaced
    most: int = 0  # largest number of workers that trained at the same time
    missed: int = 0  # orders that were never reached
    saved: dict[str, str] = field(default_factory=dict)  # digests of files, by name
    models: dict[str, str] = field(default_factory=dict)  # digests of the final model, by worker
    codes: dict[str, int] = field(default_factory=dict)  # exit codes of workers that ended by themselves
    errors: list[str] = field(default_factory=list)  # the last lines of failed workers
    warnings: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)  # of the controller


def run_story(nursery: Nursery, directory: Path, sources: Path, script: str, story: Story, fresh: bool) -> Ending:
    """Run the script through the story in a new directory, with a working directory that contains all sources."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "work").mkdir(parents=True)
    for path in sources.glob("*.py"):
        shutil.copy(path, directory / "work")
    pace = Pace(directory / "pace")
    pace.seconds, act_pace_s = story.pace_s, ACT_PACE_S if story.slows else story.pace_s
    slower = FRESH_FACTOR if fresh else 1.0
    station = _Station(nursery, directory, script, fresh, story.tick_s)
    ending = Ending(story.name)
    began = time.monotonic()
    killed: set[str] = set()
    try:
        station.aim(station.free_gpus()[: story.share])
        acts, target, ordered_s = list(story.acts), story.share, began
        failures, gone = 0, ""  # number of failed workers and the killed worker at the last order
        pace.seconds = act_pace_s if story.share > 1 else story.pace_s
        while not (station.job.final and not station.pids):
            station.turn()
            now = time.monotonic()
            ending.most = max(ending.most, len(station.holders()))
            if now > began + story.longest_s * slower:
                ending.reason = f"the job still ran after {now - began:.0f} s"
                break
            failed = [worker for worker, code in station.exit_codes.items() if code > 0]
            if len(failed) > MOST_FAILURES:
                ending.reason = "workers fail again and again"
                break
            done = station.board.furthest() + 1
            reached = len(station.holders()) == len(station.pids) == target and gone not in station.pids
            if ordered_s and now > ordered_s + PROMPT_S and story.slows:
                pace.seconds = LONG_PACE_S * slower
            if ordered_s and (reached or now > ordered_s + ACT_S * slower or len(failed) > failures):
                ending.missed += not reached
                ordered_s, pace.seconds = 0.0, story.pace_s
            if acts and not ordered_s and done >= acts[0].step:
                act = acts.pop(0)
                ordered_s, pace.seconds = now, act_pace_s
                failures, gone = len(failed), ""
                if act.preempts:
                    station.preempt()
                if act.share:
                    target = act.share
                    present = [entry.gpu.index for entry in station.job.workers]
                    stay = present[: act.share]
                    station.aim([*stay, *station.free_gpus()[: act.share - len(stay)]])
                elif len(station.holders()) > 1:  # a single worker is the only holder of the state
                    oldest = min(station.holders(), key=slot_of)
                    killed.add(oldest)
                    gone = oldest
                    station.kill(oldest)
    finally:
        station.close()
    record = station.job.record
    ending.seconds = time.monotonic() - began
    ending.steps = station.board.furthest() + 1
    ending.started = len(station.asked)
    ending.phase = record.phase.value
    ending.reason = ending.reason or str(record.reason or "")
    ending.events = station.story()
    ending.missed += len(acts) + bool(ordered_s)
    for worker, code in station.exit_codes.items():
        log = path_of(directory, slot_of(worker), "log")
        text = log.read_text(errors="replace") if log.exists() else ""
        ending.warnings += [line for line in _warnings(text) if line not in ending.warnings]
        if code and worker not in killed and not (worker in station.told_to_stop and code < 0):
            ending.codes[worker] = code
            last = _error(text)
            if last and last not in ending.errors:
                ending.errors.append(last)
        result = path_of(directory, slot_of(worker), "result")
        found = json.loads(result.read_text()) if result.exists() else {}
        if "model" in found:
            ending.models[worker] = found["model"]
    if record.phase is JobPhase.FINISHED:
        ending.saved = files(directory / "work")
    return ending


class _Station(Station):
    def __init__(self, nursery: Nursery, directory: Path, script: str, fresh: bool, tick_s: float) -> None:
        self._fresh = _Fresh(nursery) if fresh else nursery
        terms = (VIRTUAL_WORKERS, 0, CHECKPOINT_EVERY_S)
        super().__init__(self._fresh, directory, script, *terms, tick_s=tick_s)  # type: ignore[arg-type]


class _Fresh:
    """A nursery with a new interpreter for each worker."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self.descriptor = nursery.descriptor
        self.news = nursery.news

    def start(self, errand: object) -> None:
        errand.variables[FRESH] = "1"  # type: ignore[attr-defined]
        self._nursery.start(errand)  # type: ignore[arg-type]


_ERROR = re.compile(r"^(?:[\w.]*\.)?\w*(?:Error|Exception|Exit|Warning|Interrupt)\b.*")
_WARNING = re.compile(r"\b(?:WARNING|\w*Warning)\b")


def _error(text: str) -> str:
    """Return the last exception's line with the lines of its message; without an exception, the last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    for place in range(len(lines) - 1, -1, -1):
        if _ERROR.match(lines[place]):
            return " ".join(lines[place : place + 3])[:600]
    return lines[-1][:600] if lines else ""


def _warnings(text: str) -> list[str]:
    return [line.strip()[:600] for line in text.splitlines() if _WARNING.search(line)]
