"""Driver of one history: takes the job through its acts, one after the other, and judges the result."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elasticd.protocol.model import JobPhase

from ..bits.nursery import Ended, Nursery
from ..bits.points import Board
from ..bits.station import Station, slot_of
from ..bits.verdict import differing_bits
from ..bits.worker import Errand, path_of
from .acts import Act, Kill, LoseAll, Preempt, Resize, Story, Victim
from .samples import problems, uses
from .worker import Pace

CHECKPOINT_EVERY_S = 0.2
ACT_S = 0.5  # initial estimate of an act's duration
LONGEST_PACE_S = 1.0
PATIENCE_S = 120.0  # without an applied step, the end of an act, or the start or end of a process
LOG_LINES = 30
MOST_FAILURES = 3  # workers that ended with an error, after which the history has failed


@dataclass
class Verdict:
    """Verdict on one script in one history."""

    script: str
    history: str
    seconds: float = 0.0
    acts: int = 0
    kills: int = 0
    restarts: int = 0
    generations: int = 0
    results: int = 0  # workers that reached the end of the script
    differing_bits: int = 0
    differing_logs: int = 0  # workers with a log that differs from that of the script alone
    samples: list[str] = field(default_factory=list)  # problems with samples
    problems: list[str] = field(default_factory=list)  # other problems
    log: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.differing_bits or self.differing_logs or self.samples or self.problems)


@dataclass(frozen=True)
class Alone:
    """Reference result of the script alone."""

    document: dict[str, Any]
    steps: int
    epoch: list[int]  # samples of one epoch


class Stuck(Exception):
    """The job stands still, or has ended before all acts."""


def train_alone(nursery: Nursery, directory: Path, script: str, virtual_workers: int) -> Alone:
    """Run the script outside a cluster, in a child process. Raises Stuck with its output if it fails."""
    directory.mkdir()
    Board(directory / "board")
    variables = {"ELASTIC_VIRTUAL_WORKERS": str(virtual_workers)}
    nursery.start(Errand("alone.0", 0, script, 0, str(directory), variables))
    while not (ended := [news for news in nursery.news() if isinstance(news, Ended)]):
        time.sleep(0.02)
    if ended[0].code:
        raise Stuck(f"{script} alone ended with {ended[0].code}\n{_tail(directory, 0)}")
    document: dict[str, Any] = torch.load(path_of(directory, 0, "result"), weights_only=True)
    return Alone(document, int(document["steps"]), list(document["epoch"]))


class Course:
    """Plays one story. An instance is used once."""

    def __init__(
        self, nursery: Nursery, directory: Path, script: str, virtual_workers: int, story: Story, alone: Alone
    ) -> None:
        directory.mkdir()
        self._directory = directory
        self._story = story
        self._alone = alone
        self._pace = Pace(directory / "pace")
        self._station = Station(nursery, directory, script, virtual_workers, 0, CHECKPOINT_EVERY_S)
        self._rng = random.Random(f"{script} {story}")
        self._verdict = Verdict(script, story.name)
        self._began = time.monotonic()
        self._moved = (self._began, (0, 0, 0, 0))  # time of the last progress, and the counts at that time
        self._killed: set[str] = set()

    def run(self) -> Verdict:
        station, verdict = self._station, self._verdict
        try:
            self._aim(self._rng.sample(station.free_gpus(), self._story.share))
            self._until("the first workers train", self._settled)
            for act in self._story.acts:
                self._note(f"{act}")
                self._play(act)
                verdict.acts += 1
            self._pace.seconds = 0.0
            while not (station.job.final and not station.pids):
                self._turn()
        except Stuck as stuck:
            verdict.problems.append(str(stuck))
        finally:
            station.close()
        self._judge()
        return verdict

    # -- acts

    def _play(self, act: Act) -> None:
        match act:
            case Resize(share, moved, victim, after_s):
                self._aim(self._choose(share, moved))
                if victim is not None:
                    self._wait(after_s)
                    self._kill(victim)
            case Kill(victim):
                self._kill(victim)
            case Preempt(share):
                self._aim([])
                self._until("nobody is left", lambda: not self._station.pids)
                self._aim(self._choose(share, 0))
            case LoseAll():
                self._until("a checkpoint is written", self._has_checkpoint)
                victims = list(self._station.pids)
                self._killed.update(victims)
                for worker in victims:
                    self._station.kill(worker)
                self._until("all are gone", lambda: not set(victims) & set(self._station.pids))
        self._until(f"the end of {act}", self._settled)

    def _has_checkpoint(self) -> bool:
        return any((self._directory / "checkpoints").rglob("*.pt"))

    def _choose(self, share: int, moved: int) -> list[int]:
        present = [gpu.index for gpu in self._station.job.record.target]
        self._rng.shuffle(present)
        stay = present[: max(0, min(len(present), share - moved))]
        return [*stay, *self._rng.sample(self._station.free_gpus(), share - len(stay))]

    def _aim(self, gpus: list[int]) -> None:
        self._target = sorted(gpus)
        self._station.aim(gpus)

    def _settled(self) -> bool:
        """The workers wanted, and no others, train with the state."""
        workers = self._station.job.workers
        there = sorted(entry.gpu.index for entry in workers)
        return there == self._target and len(self._station.holders()) == len(self._station.pids) == len(there)

    def _kill(self, victim: Victim) -> None:
        """Kill a worker. One worker with the state that is to stay is always spared."""
        station = self._station
        stay = [e.worker for e in station.job.workers if e.gpu.index in self._target]
        holders = [worker for worker in station.holders() if worker in stay]
        order = station.job.committed_order or station.job.newest
        leader = order.roster.leader if order is not None else ""
        if victim is Victim.LEADER and leader in station.pids and set(holders) - {leader}:
            chosen = str(leader)
        else:
            spared = self._rng.choice(holders) if holders else ""
            others = [worker for worker in station.pids if worker != spared]
            if not others:
                return
            chosen = self._rng.choice(others)
        self._note(f"kills {chosen}{' (leader)' if chosen == leader else ''}")
        self._killed.add(chosen)
        self._verdict.kills += 1
        station.kill(chosen)
        self._until("it is gone", lambda: chosen not in station.pids)

    # -- time

    def _turn(self) -> None:
        self._station.turn()
        job, board, now = self._station.job, self._station.board, time.monotonic()
        failed = [w for w, code in self._station.exit_codes.items() if code > 0]
        if len(failed) > MOST_FAILURES:
            raise Stuck(f"workers fail again and again: {failed[0]}\n{_tail(self._directory, slot_of(failed[0]))}")
        what = (board.furthest(), self._verdict.acts, len(self._station.asked), len(self._station.exit_codes))
        if what != self._moved[1]:
            self._moved = now, what
        if now > self._moved[0] + PATIENCE_S:
            self._station.ask_for_stacks()
            self._rest(1.0)
            raise Stuck(f"nothing has happened for {PATIENCE_S:.0f} s, in phase {job.record.phase}")
        left = len(self._story.acts) - self._verdict.acts
        took_s = (now - self._began) / (self._verdict.acts + 1)
        steps = max(1, self._alone.steps - board.furthest() - 4)
        self._pace.seconds = min(LONGEST_PACE_S, left * max(ACT_S, took_s) / steps)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._station.turn()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._turn()

    def _until(self, what: str, reached: Callable[[], bool]) -> None:
        while not reached():
            if self._station.job.final:
                raise Stuck(f"the job was over before {what}: {self._station.job.record.reason}")
            self._turn()

    def _note(self, text: str) -> None:
        step, passed_s = self._station.board.furthest(), time.monotonic() - self._began
        self._verdict.log.append(f"{passed_s:7.3f} s  step {step:4d}  {text}")

    # -- the verdict

    def _judge(self) -> None:
        station, verdict, record = self._station, self._verdict, self._station.job.record
        verdict.seconds = time.monotonic() - self._began
        verdict.restarts, verdict.generations = record.restarts, record.generation
        verdict.log += [f"controller: {text}" for text in station.story()]
        if record.phase is not JobPhase.FINISHED:
            verdict.problems.append(f"the job has not finished: {record.phase} {record.reason}")
        for worker, code in station.exit_codes.items():
            stopped = worker in station.told_to_stop and code < 0  # killed before it could obey
            if code and worker not in self._killed and not stopped:
                verdict.problems.append(f"{worker} ended with {code}\n{_tail(self._directory, slot_of(worker))}")
        for _, document in self._results():
            verdict.results += 1
            verdict.differing_bits += differing_bits(_weights(document), _weights(self._alone.document))
            verdict.differing_logs += differing_bits(document["log"], self._alone.document["log"]) > 0
        if not verdict.results:
            verdict.problems.append("no worker came to the end")
        paths = [path_of(self._directory, slot_of(worker), "samples") for worker in station.exit_codes]
        if record.phase is JobPhase.FINISHED:
            verdict.samples = problems(uses(paths), self._alone.steps, self._alone.epoch)

    def _results(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for worker in self._station.exit_codes:
            path = path_of(self._directory, slot_of(worker), "result")
            if path.exists():
                yield worker, torch.load(path, weights_only=True)


def _weights(document: dict[str, Any]) -> dict[str, Any]:
    return {"model": document["model"], "optimizer": document["optimizer"]}


def _tail(directory: Path, slot: int) -> str:
    path = path_of(directory, slot, "log")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-LOG_LINES:])
