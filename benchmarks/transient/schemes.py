"""One job under a scheme: our runtime in a real cluster, stop-and-resume, or the kept GPUs alone."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path

from benchmarks.runtime.jobs import ForkedJob, Load, StopResumeJob
from benchmarks.runtime.processes import ROOT, Family, MeasurementFailed, module, until
from benchmarks.runtime.record import Applied, Record
from benchmarks.runtime.train_ddp import MICRO_BATCHES
from benchmarks.small_cluster import WITHIN_S, SmallCluster
from benchmarks.transient.course import Course, Part, Step
from elasticd.protocol.messages import EndLoan, GpusLent, LendGpus, LoanEnded, Submit, Submitted
from elasticd.protocol.model import GpuRange, JobSpec

KEPT = 4
VIRTUAL_WORKERS = 24  # so that 4, 5, 6 and 8 workers host equally many, or the least possible number
PACE_S = 0.1  # of a micro-batch
MODEL = "stack-0.1M"
LOOK_S = 0.02
LOAN_S = 86_400.0  # so long that no loan expires


class Scheme(ABC):
    """A job that may use `KEPT` GPUs, and sometimes `extra` more."""

    name: str

    def __init__(self, family: Family, directory: Path, extra: int) -> None:
        directory.mkdir(parents=True)
        self.family, self.directory, self.extra = family, directory, extra

    @abstractmethod
    def start(self) -> None:
        """Start training on the kept GPUs."""

    @abstractmethod
    def take(self) -> float:
        """Take the transient GPUs from the job. Returns when no process is on them any more, in seconds from now."""

    @abstractmethod
    def give(self) -> None:
        """Return the transient GPUs to the job."""

    @abstractmethod
    def close(self) -> None:
        """End the job."""

    @abstractmethod
    def lines(self) -> list[Applied]:
        """Return the steps so far, of each worker."""

    def steady(self, world: int, steps: int) -> None:
        """Wait until the last steps are of `world` workers."""

        def probe() -> bool | None:
            recent = self.lines()[-world * steps :]
            return True if len(recent) == world * steps and {line.world for line in recent} == {world} else None

        until(f"{self.name}: {steps} steps of {world} workers", probe, WITHIN_S)

    def play(self, parts: int, period_s: float, after_s: float) -> Course:
        """Play a course of so many parts, which begins `after_s` from now, with idle GPUs in every other part."""
        course = Course(self.name, KEPT, self.extra)
        self.steady(KEPT, 5)
        time.sleep(after_s)
        began_s = time.monotonic()
        for number in range(parts):
            idle = number % 2 == 0
            if idle:
                self.give()
            else:
                course.freed_s.append(self.take())
            end_s = began_s + (number + 1) * period_s
            time.sleep(max(0.0, end_s - time.monotonic()))
            course.parts.append(Part(end_s - period_s, end_s, KEPT + self.extra if idle else KEPT))
        course.steps = applied(self.lines())
        return course


def applied(lines: list[Applied]) -> list[Step]:
    """Return the steps in the order of time, each when its last worker had applied it."""
    latest: dict[tuple[str, int, int], float] = {}
    for line in lines:
        key = (line.formation, line.world, line.step)
        latest[key] = max(latest.get(key, 0.0), line.at_s)
    return sorted((Step(at_s, world) for (_, world, _), at_s in latest.items()), key=lambda step: step.at_s)


class Ours(Scheme):
    """A controller, an agent with CPU slots, and a borrower that lends GPUs and returns them."""

    name = "elasticctl"

    def start(self) -> None:
        self.cluster = SmallCluster(self.family, self.directory, KEPT + self.extra, "max-min", ("s1",))
        self._record = Record(self.directory / "record")
        self._loan = ""
        if self.extra:
            self.take()
        command = module("train_elastic", MODEL, str(self.directory / "record"), str(PACE_S))
        spec = JobSpec(
            name="train",
            command=tuple(command),
            gpus=GpuRange(min=1, max=KEPT + self.extra),
            virtual_workers=VIRTUAL_WORKERS,
            throughput={gpus: gpus / (VIRTUAL_WORKERS * PACE_S) for gpus in range(1, KEPT + self.extra + 1)},
            workdir=str(ROOT),
        )  # the throughput is known, as the measurement of a new job with fewer GPUs is no part of the comparison
        answer = self.cluster.client.ask(Submit(spec=spec))
        if not isinstance(answer, Submitted):
            raise MeasurementFailed(f"the job is not taken: {answer}")

    def take(self) -> float:
        if not self.extra:
            return 0.0
        began_s = time.monotonic()
        answer = self.cluster.client.ask(LendGpus(gpus=self.extra, for_s=LOAN_S, reason="transient"))
        if not isinstance(answer, GpusLent):
            raise MeasurementFailed(f"nothing is lent: {answer}")
        self._loan = answer.loan
        until("what is lent is free", self._all_free, WITHIN_S, interval_s=LOOK_S)
        return time.monotonic() - began_s

    def _all_free(self) -> bool | None:
        cordons = [cordon for view in self.cluster.client.servers().servers for cordon in view.cordons]
        return True if cordons and all(cordon.drained_s is not None for cordon in cordons) else None

    def give(self) -> None:
        if self.extra:
            answer = self.cluster.client.ask(EndLoan(loan=self._loan))
            if not isinstance(answer, LoanEnded):
                raise MeasurementFailed(f"a loan does not end: {answer}")

    def lines(self) -> list[Applied]:
        return self._record.read()

    def close(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.client.close()


class StopResume(Scheme):
    """torch DDP: a change stops the job, which saves a checkpoint, and starts it with another number of workers."""

    name = "stop-and-resume"
    kind: type[StopResumeJob] = StopResumeJob

    def start(self) -> None:
        pace_s = PACE_S * VIRTUAL_WORKERS / MICRO_BATCHES
        self.job = self.kind(self.family, self.directory / "job", Load(MODEL, pace_s))
        self.job.start(KEPT)

    def take(self) -> float:
        began_s = time.monotonic()
        self.job.stop()
        freed_s = time.monotonic() - began_s
        self.job.go_on(KEPT)
        return freed_s

    def give(self) -> None:
        self.job.resize(KEPT + self.extra)

    def lines(self) -> list[Applied]:
        return self.job.lines()

    def close(self) -> None:
        if hasattr(self, "job"):
            self.job.close()


class WarmResume(StopResume):
    """StopResume with workers forked from a process that has imported torch: as fast as stopping can be."""

    name = "stop-and-resume, forked"
    kind = ForkedJob
