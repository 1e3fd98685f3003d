"""Time from `elasticctl submit` to the first applied step on an idle machine, against a plain `python` and `torchrun`.

The clock starts just before the command. Phases are those that `elasticctl status` would show meanwhile.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from elasticd.protocol.messages import Cancel, JobView

from .jobs import Load, MeasuredJob, OurJob, StopResumeJob, TorchrunJob
from .measurement import Goal, Measurement, number
from .processes import ROOT, Family, MeasurementFailed, module, until

GROUP = "beginning"
LOAD = Load("stack-0.1M")
GOAL = Goal(3.0)
FIRST_WITHIN_S = 120.0
POLL_S = 0.01
IDLE_S = 3.0  # between two jobs, in which warm processes are started again


class _Cluster(OurJob):
    """A cluster that runs one job after the other."""

    def __init__(self, family: Family, directory: Path) -> None:
        super().__init__(family, directory, LOAD)
        self._count = 0

    def begin(self) -> tuple[float, dict[str, float]]:
        """Submit a job. Returns the seconds to its first step, and to each observed phase."""
        self._count += 1
        self.record = type(self.record)(self.directory / f"record-{self._count}")
        command = module("train_elastic", LOAD.model, str(self.directory / f"record-{self._count}"))
        arguments = ("submit", "--gpus", "1:4", "--virtual-workers", "4", "--", *command)
        began_s = time.monotonic()
        done = subprocess.run([*self._elasticctl, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MeasurementFailed(f"elasticctl submit: {done.stderr}")
        self._job = done.stdout.strip()  # type: ignore[assignment]
        phases = {"submitted": time.monotonic() - began_s}

        def probe() -> float | None:
            view = self.view()
            phases.setdefault(_phase(view), time.monotonic() - began_s)
            lines = self.lines()
            return lines[0].at_s - began_s if lines else None

        first_s = until("the first step of a job", probe, FIRST_WITHIN_S, POLL_S)
        self._client.ask(Cancel(job=self._job))
        until("the job is over", lambda: (self.view().phase.final and not self.view().workers) or None, FIRST_WITHIN_S)
        time.sleep(IDLE_S)
        return first_s, phases


def _phase(view: JobView) -> str:
    """Return the phase of the job and of its first worker."""
    worker = f", worker {view.workers[0].phase.value}" if view.workers else ""
    return f"{view.phase.value}{worker}"


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure the first job of a new cluster, and later ones."""
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory:
        cluster = _Cluster(family, Path(directory))
        try:
            cluster.up()
            new, new_phases = cluster.begin()
            later = [cluster.begin() for _ in range(2 if quick else 9)]
        finally:
            cluster.close()
    theirs = {rival.name: _rival(family, rival, 1 if quick else 3) for rival in (StopResumeJob, TorchrunJob)}
    beside = f"python by itself: {number(theirs[StopResumeJob.name])} s; torchrun: {number(theirs[TorchrunJob.name])} s"
    seconds = [first_s for first_s, _ in later]
    middle = sorted(later, key=lambda each: each[0])[len(later) // 2]
    detail = {"seconds": seconds, "first": new}
    return [
        Measurement(GROUP, "the first job after `up`", _words(new_phases), new, "s", 1, GOAL, detail).show(),
        Measurement(
            GROUP,
            "a later job, median",
            f"{beside}; {_words(middle[1])}",
            median(seconds),
            "s",
            len(later),
            GOAL,
            detail,
        ).show(),
        Measurement(GROUP, "a later job, worst", beside, max(seconds), "s", len(later), GOAL, detail).show(),
    ]


def _words(phases: dict[str, float]) -> str:
    return "; ".join(f"{name} after {number(after_s)} s" for name, after_s in phases.items())


def _rival(family: Family, regime: type[MeasuredJob], count: int) -> float:
    """Return the median time from the command of one worker to its first step (s)."""
    found = []
    for _ in range(count):
        with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory:
            job = regime(family, Path(directory), LOAD)
            began_s = time.monotonic()
            try:
                job.start(1)
                lines = until(
                    f"the first step, {job.name}", lambda job=job: job.lines() or None, FIRST_WITHIN_S, POLL_S
                )
            finally:
                job.close()
            found.append(lines[0].at_s - began_s)
    return median(found)
