"""One training run under a story: targets set, workers killed, and the course recorded."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elasticd.protocol.model import JobPhase

from .nursery import Nursery
from .points import Point
from .station import Station, slot_of
from .story import Kill, Scene, Story, Target, Who

STANDSTILL_S = (
    90.0  # without an applied step, after which a worker counts as hung; load may delay one by tens of seconds
)
WAIT_FOR_ARMED_STEPS = 30  # for which a scene waits until armed workers have reached their points
WAIT_FOR_ARMED_S = 3.0
STACKS_S = 1.0


@dataclass(frozen=True)
class Death:
    """A worker killed by the story."""

    time_s: float  # since the history's beginning
    worker: str
    point: Point
    leader: bool


@dataclass
class Course:
    """Course of a history, as observed by the driver."""

    story: Story
    directory: Path
    finished: bool = False  # the job has finished, without a standstill
    duration_s: float = 0.0
    orders: int = 0
    rosters: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by ordered generation
    committed: dict[int, None] = field(default_factory=dict)
    migrations: int = 0
    restarts: int = 0
    deaths: list[Death] = field(default_factory=list)
    exit_codes: dict[str, int] = field(default_factory=dict)
    stopped: dict[str, None] = field(default_factory=dict)  # workers stopped by the controller
    log: list[str] = field(default_factory=list)

    @property
    def killed(self) -> dict[str, Point]:
        return {death.worker: death.point for death in self.deaths}


class History:
    """Plays one story. An instance is used once."""

    def __init__(
        self, nursery: Nursery, directory: Path, model: str, virtual_workers: int, epochs: int, story: Story
    ) -> None:
        self._station = Station(nursery, directory, model, virtual_workers, epochs)
        self._story = story
        self._rng = random.Random(story.seed + 1)
        self._course = Course(story, directory)
        self._began = time.monotonic()
        self._pending: list[tuple[float, Kill, list[str]]] = []  # future kills: time, kind, candidates
        self._newcomer_kills: deque[Kill] = deque()
        self._known = 0  # number of workers requested so far
        self._led_by = ""  # leader before the present turn
        self._furthest = (self._began, -1)  # time and number of the last applied step

    def run(self) -> Course:
        """Run until the job's end, or a standstill."""
        station, course = self._station, self._course
        try:
            self._aim(self._rng.sample(station.free_gpus(), self._story.share))
            scenes = self._scenes()
            while not self._over():
                if self._stands_still():
                    self._note(f"nothing has been applied for {STANDSTILL_S:.0f} s")
                    station.ask_for_stacks()
                    self._turn_for(STACKS_S)
                    break
                self._turn()
                next(scenes, None)
            course.finished = station.job.record.phase is JobPhase.FINISHED and not station.pids
        finally:
            station.close()
        self._watch()
        course.duration_s = time.monotonic() - self._began
        course.exit_codes = dict(station.exit_codes)
        course.stopped = dict(station.told_to_stop)
        course.restarts = station.job.record.restarts
        course.log += [f"controller: {text}" for text in station.story()]
        return course

    def _over(self) -> bool:
        return self._station.job.final and not self._station.pids

    def _stands_still(self) -> bool:
        now, step = time.monotonic(), self._station.board.furthest()
        if step != self._furthest[1]:
            self._furthest = now, step
        return now > self._furthest[0] + STANDSTILL_S

    # -- the story

    def _scenes(self) -> Iterator[None]:
        """Generator that plays the scenes; advanced once per turn."""
        step = self._story.scenes[0].after_steps if self._story.scenes else 0
        for number, scene in enumerate(self._story.scenes):
            while self._station.board.furthest() < step or not self._station.holders():
                yield
            yield from self._play(scene)
            following = self._story.scenes[number + 1 : number + 2]
            step = max(self._station.board.furthest(), step) + (following[0].after_steps if following else 0)

    def _play(self, scene: Scene) -> Iterator[None]:
        self._disarm()
        before = [entry.worker for entry in self._station.job.workers]
        self._newcomer_kills = deque(k for k in scene.kills if k.who is Who.NEWCOMERS for _ in range(k.victims))
        if not scene.targets:
            self._arm(scene, before, [])
        for number, target in enumerate(scene.targets):
            due = time.monotonic() + target.after_s
            while time.monotonic() < due:
                yield
            if number == len(scene.targets) - 1:
                chosen = self._choose(target)
                leaving = self._leaving(chosen)
                self._arm(scene, before, leaving)
            else:
                chosen = self._choose(target)
            self._aim(chosen)
        until = self._station.board.furthest() + WAIT_FOR_ARMED_STEPS
        give_up = time.monotonic() + WAIT_FOR_ARMED_S
        while self._awaits() and self._station.board.furthest() < until and time.monotonic() < give_up:
            yield

    def _awaits(self) -> bool:
        living = [worker for worker in self._station.asked if worker not in self._station.exit_codes]
        armed = any(self._station.board.armed(slot_of(worker)) for worker in living)
        return armed or bool(self._pending) or bool(self._newcomer_kills)

    def _disarm(self) -> None:
        self._pending.clear()
        self._newcomer_kills.clear()
        for worker in self._station.asked:
            self._station.board.disarm(slot_of(worker))

    # -- targets

    def _choose(self, target: Target) -> list[int]:
        """Choose GPUs for a new target: as few workers as possible move, but at least `moved`."""
        present = [gpu.index for gpu in self._station.job.record.target]
        self._rng.shuffle(present)
        free = self._station.free_gpus()
        self._rng.shuffle(free)
        stay = present[: max(0, min(len(present), target.share - target.moved))]
        return [*stay, *free[: target.share - len(stay)]] or present

    def _aim(self, gpus: list[int]) -> None:
        before = {gpu.index for gpu in self._station.job.record.target}
        self._station.aim(gpus)
        if before - set(gpus) and set(gpus) - before:
            self._course.migrations += 1
        self._note(f"target {sorted(gpus)}")
        self._watch()

    def _leaving(self, gpus: list[int]) -> list[str]:
        return [entry.worker for entry in self._station.job.workers if entry.gpu.index not in gpus]

    # -- deaths

    def _arm(self, scene: Scene, before: Sequence[str], leaving: Sequence[str]) -> None:
        """Choose victims among present workers, and arm them. One worker with the state that stays is always spared."""
        for kill in scene.kills:
            if kill.who is Who.NEWCOMERS:
                continue
            candidates = self._candidates(kill, leaving)
            self._rng.shuffle(candidates)
            victims = candidates[: kill.victims]
            if kill.point is Point.ANY_TIME:
                self._pending.append((time.monotonic() + kill.after_s, kill, victims))
                continue
            for victim in victims:
                self._station.board.arm(slot_of(victim), kill.point, kill.passes)
                self._note(f"armed {victim}: {kill.point.value}, time {kill.passes}")

    def _candidates(self, kill: Kill, leaving: Sequence[str]) -> list[str]:
        spared = {worker for _, _, victims in self._pending for worker in victims}
        holders = [
            worker
            for worker in self._station.holders()
            if worker not in spared and not self._station.board.armed(slot_of(worker))
        ]
        staying = [worker for worker in holders if worker not in leaving]
        if kill.who is Who.LEAVERS:
            return [worker for worker in holders if worker in leaving] if staying else []
        if len(staying) < 2:
            return []
        leader = self._leader()
        if kill.who is Who.LEADER and leader in staying:
            return [leader]
        keep = self._rng.choice(staying)
        return [worker for worker in holders if worker != keep]

    def _leader(self) -> str:
        newest = self._station.job.committed_order or self._station.job.newest
        return newest.roster.leader if newest is not None else ""

    def _kill_now(self) -> None:
        now = time.monotonic()
        due = [entry for entry in self._pending if now >= entry[0]]
        self._pending = [entry for entry in self._pending if now < entry[0]]
        for _, _, victims in due:
            for victim in victims:
                spare = [worker for worker in self._station.holders() if worker not in victims]
                if victim in self._station.pids and spare:
                    self._died(victim, Point.ANY_TIME)
                    self._station.kill(victim)

    def _died(self, worker: str, point: Point) -> None:
        leader = worker == self._led_by
        self._course.deaths.append(Death(time.monotonic() - self._began, worker, point, leader))
        self._note(f"death of {worker}{' (leader)' if leader else ''}: {point.value}")

    # -- watching

    def _turn(self) -> None:
        self._station.turn()
        self._watch()
        self._kill_now()

    def _turn_for(self, duration_s: float) -> None:
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            self._station.turn()

    def _watch(self) -> None:
        station, course = self._station, self._course
        for order in station.job.record.orders:
            if order.generation not in course.rosters:
                course.rosters[order.generation] = order.roster.workers
                course.orders += 1
        for worker in list(station.asked)[self._known :]:
            self._known += 1
            if self._newcomer_kills:
                kill = self._newcomer_kills.popleft()
                if kill.point is Point.ANY_TIME:
                    self._pending.append((time.monotonic() + kill.after_s, kill, [worker]))
                else:
                    station.board.arm(slot_of(worker), kill.point, kill.passes)
                    self._note(f"armed newcomer {worker}: {kill.point.value}, time {kill.passes}")
        for status in station.job.statuses.values():
            if status.generation:
                course.committed[status.generation] = None
        dead = course.killed
        for worker in station.exit_codes:
            point = station.board.fired(slot_of(worker))
            if point is not None and worker not in dead:
                self._died(worker, point)
        self._led_by = self._leader()

    def _note(self, text: str) -> None:
        step, passed_s = self._station.board.furthest(), time.monotonic() - self._began
        self._course.log.append(f"{passed_s:7.3f} s  step {step:4d}  {text}")
