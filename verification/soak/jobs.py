"""Jobs that train during fault injection, and their verdicts."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elasticd.protocol.messages import GetJob, JobFound, JobView, Submit, Submitted
from elasticd.protocol.model import CheckpointSpec, GpuRange, JobPhase, JobSpec

from .cluster import TRAIN, Cluster, Desk
from .train import BATCH

PACE_S = 0.02
SIZE = 256  # samples
CHECKPOINT_EVERY_S = 5.0


@dataclass(frozen=True, order=True)
class Kind:
    """Parameters that determine a job's result."""

    epochs: int
    virtual: int

    @property
    def steps(self) -> int:
        return self.epochs * SIZE // (BATCH * self.virtual)

    def arguments(self, output: Path, pace_s: float = PACE_S) -> list[str]:
        sizes = ["--epochs", str(self.epochs), "--size", str(SIZE)]
        return [str(TRAIN), str(output), *sizes, "--pace", f"{pace_s}"]


@dataclass
class Verdict:
    """Verdict on an ended job. `lost_samples`: pairs of epoch and sample that were not visited exactly once."""

    finished: bool
    lost_samples: int = 0
    equal: bool = True
    reason: str = ""


@dataclass
class Job:
    name: str
    kind: Kind
    output: Path
    steps_file: Path
    id: str = ""
    uid: str = ""
    view: JobView | None = None
    verdict: Verdict | None = None
    applied: list[tuple[float, int]] = field(
        default_factory=list
    )  # first application of each step: Unix time (s), step
    _read: int = 0
    _rest: bytes = b""

    @property
    def trains(self) -> bool:
        return bool(self.applied) and self.verdict is None

    def follow(self) -> None:
        """Read the steps that its workers have recorded since the last call."""
        try:
            with self.steps_file.open("rb") as file:
                file.seek(self._read)
                said = file.read()
        except FileNotFoundError:
            return
        self._read += len(said)
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            time_s, _, step = line.partition(b" ")
            if not self.applied or int(step) > self.applied[-1][1]:
                self.applied.append((float(time_s), int(step)))

    def standstill_s(self, since_s: float, until_s: float) -> float | None:
        """Return the longest time between two new steps that overlaps this period (s); None if it did not train or resume."""
        around = [b - a for (a, _), (b, _) in itertools.pairwise(self.applied) if b >= since_s and a <= until_s]
        return max(around, default=None)

    def servers(self) -> set[str]:
        return {worker.server for worker in self.view.workers} if self.view is not None else set()


class Jobs:
    """A constant number of jobs of a few kinds. Results are compared with the script alone, run once per kind."""

    KINDS = (Kind(16, 4), Kind(24, 4), Kind(16, 2))

    def __init__(self, cluster: Cluster, desk: Desk, rng: random.Random, at_once: int) -> None:
        self._cluster = cluster
        self._desk = desk
        self._rng = rng
        self._at_once = at_once
        self._alone: dict[Kind, Any] = {}
        self.all: list[Job] = []
        self.unanswered = 0  # submissions
        for directory in ("results", "steps", "alone"):
            (cluster.directory / directory).mkdir()

    @property
    def open(self) -> list[Job]:
        return [job for job in self.all if job.verdict is None]

    def prepare(self, kinds: Sequence[Kind] = KINDS) -> None:
        """Compute the undisturbed result of each kind of job."""
        for kind in kinds:
            output = self._cluster.directory / "alone" / f"{kind.epochs}-{kind.virtual}.pt"
            kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC")}
            environment = {**kept, "ELASTIC_VIRTUAL_WORKERS": str(kind.virtual)}
            subprocess.run([sys.executable, *kind.arguments(output, 0.0)], env=environment, check=True)
            self._alone[kind] = _load(output)

    def top_up(self) -> None:
        while len(self.open) < self._at_once and self.submit(self._rng.choice(self.KINDS)) is not None:
            pass

    @property
    def calm(self) -> Path:
        """Path of a file during the existence of which jobs train slowly."""
        return self._cluster.directory / "calm"

    def submit(self, kind: Kind, **environment: str) -> Job | None:
        """Submit a job. environment: of its workers. Returns None if no controller answers."""
        number = len(self.all) + self.unanswered + 1
        directory = self._cluster.directory
        job = Job(f"job{number}", kind, directory / "results" / f"{number}.pt", directory / "steps" / str(number))
        spec = JobSpec(
            name=job.name,
            command=(
                sys.executable,
                *kind.arguments(job.output),
                "--steps",
                str(job.steps_file),
                "--calm",
                str(self.calm),
            ),
            gpus=GpuRange(min=1, max=kind.virtual),
            virtual_workers=kind.virtual,
            workdir=str(directory),
            checkpoint=CheckpointSpec(every_s=CHECKPOINT_EVERY_S),
            user="root",
            env=environment,
        )
        answer = self._desk.ask(Submit(spec=spec), timeout_s=5.0)
        if not isinstance(answer, Submitted):  # it may have been accepted, in which case it trains unobserved
            self.unanswered += 1
            return None
        job.id = answer.job
        self.all.append(job)
        return job

    def look(self, ask: bool) -> list[Job]:
        """Update the progress of all jobs. Returns those that have ended, if `ask`."""
        ended = []
        for job in self.open:
            job.follow()
            if not ask:
                continue
            answer = self._desk.ask(GetJob(job=job.id))
            if not isinstance(answer, JobFound):
                continue
            job.view = answer.job
            if job.view.phase.final:
                job.follow()
                job.verdict = self.judge(job, job.view)
                ended.append(job)
        return ended

    def judge(self, job: Job, view: JobView) -> Verdict:
        if view.phase is not JobPhase.FINISHED:
            return Verdict(False, reason=f"{view.phase.value}: {view.reason}")
        try:
            result = _load(job.output)
        except (OSError, RuntimeError, EOFError) as error:
            return Verdict(False, reason=f"its result cannot be read: {error}")
        left_out = abs(job.kind.epochs - len(result["missed"]))
        lost = sum(result["missed"]) + left_out * SIZE
        return Verdict(True, lost, same(result, self._alone[job.kind]))


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True)
