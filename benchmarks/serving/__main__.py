"""A day of serving on a cluster that also trains: `make bench-serving`

    python -m benchmarks.serving [--quick] [--minutes N] [--slots N] [--json FILE]

A controller and two agents with CPU slots, and two elastic jobs. Serving needs GPUs as in a day of EasyScale's cluster
(`benchmarks.serving.day`), which lasts some minutes here: they are lent to it one by one (`elasticctl lend`), and are returned
when they are no longer needed (`elasticctl reclaim`). Measured are:

* the time from a request until no process of a job is on its GPUs; from the end of loans until all GPUs that are not lent train;
* the fractions of all GPU-seconds that were lent, and that trained;
* workers that did not end by themselves; and whether the models equal those of undisturbed runs, bit for bit.

Results go to out/bench-serving.json and into docs/reports/benchmarks.md (`--quick`: a minute, and nothing is written there).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.pages import fill
from benchmarks.runtime import machine
from benchmarks.runtime.processes import Family, MeasurementFailed, until
from benchmarks.serving.day import Day, demand, reached, table
from benchmarks.small_cluster import TRAIN, WITHIN_S, SmallCluster
from elasticd.protocol.errors import ElasticError
from elasticd.protocol.messages import (
    EndLoan,
    EventKind,
    GpusLent,
    JobView,
    LendGpus,
    LoanEnded,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuAddress, GpuRange, JobPhase, JobSpec

ROOT = Path(__file__).resolve().parents[2]
JOBS = 2
VIRTUAL_WORKERS = 4
PACE_S = 0.02
LOOK_S = 0.02
LOANS_S = 86_400.0  # so long that no loan expires
ENDLESS = 1_000_000_000  # steps
BEGIN = "<!-- bench-serving: written by `make bench-serving`, from here -->"
END = "<!-- bench-serving: to here -->"


class Bench(SmallCluster):
    """The cluster of one run."""

    def __init__(self, family: Family, directory: Path, slots: int) -> None:
        super().__init__(family, directory, slots, policy="max-min")
        self.stop = directory / "stop"
        self.loans: list[str] = []  # of one GPU each, oldest first
        self.jobs: list[str] = []

    def train(self) -> None:
        """Submit the jobs, and wait until they train on all GPUs."""
        for number in range(JOBS):
            spec = JobSpec(
                name=f"train{number}",
                command=self._command(f"model{number}.pt", ENDLESS, PACE_S),
                gpus=GpuRange(min=1, max=VIRTUAL_WORKERS),
                virtual_workers=VIRTUAL_WORKERS,
                workdir=str(self.directory),
            )
            answer = self.client.ask(Submit(spec=spec))
            if not isinstance(answer, Submitted):
                raise MeasurementFailed(f"the job is not taken: {answer}")
            self.jobs.append(answer.job)
        until("the jobs train on all GPUs", lambda: self.trained() == self.gpus or None, WITHIN_S)

    def _command(self, model: str, steps: int, pace_s: float) -> tuple[str, ...]:
        stop = str(self.stop)
        return (sys.executable, str(TRAIN), str(self.directory / model), str(steps), str(pace_s), stop)

    def trained(self) -> int:
        """Return the number of GPUs that train now."""
        return sum(view.share_gpus for view in map(self.view, self.jobs))

    def lend(self, count: int) -> tuple[float, int]:
        """Lend GPUs. Returns the time until they are free (s), and how many of them a job had."""
        had = {
            GpuAddress(server=worker.server, index=worker.gpu)
            for view in map(self.view, self.jobs)
            for worker in view.workers
        }
        began_s, gpus = time.monotonic(), []
        for _ in range(count):
            answer = self.client.ask(LendGpus(gpus=1, for_s=LOANS_S, reason="serving"))
            if not isinstance(answer, GpusLent):
                raise MeasurementFailed(f"nothing is lent: {answer}")
            self.loans.append(answer.loan)
            gpus += answer.gpus
        until("what is lent is free", self._all_free, WITHIN_S, interval_s=LOOK_S)
        return time.monotonic() - began_s, len(had.intersection(gpus))

    def _all_free(self) -> bool | None:
        cordons = [cordon for view in self.client.servers().servers for cordon in view.cordons]
        return True if all(cordon.drained_s is not None for cordon in cordons) else None

    def reclaim(self, count: int) -> None:
        """End the latest loans."""
        for _ in range(count):
            answer = self.client.ask(EndLoan(loan=self.loans.pop()))
            if not isinstance(answer, LoanEnded):
                raise MeasurementFailed(f"a loan does not end: {answer}")

    def finish(self) -> list[JobView]:
        """End the jobs after the present step, and save their models."""
        self.stop.touch()
        until("the jobs are over", self._over, WITHIN_S)
        self.stop.unlink()
        return [self.view(job) for job in self.jobs]

    def _over(self) -> bool | None:
        return True if all(self.view(job).phase.final for job in self.jobs) else None

    def undisturbed(self, number: int, steps: int) -> bool:
        """Return whether the same training alone, in one process, gives the same model."""
        alone = self.directory / "alone"
        alone.mkdir(exist_ok=True)
        command = self._command(
            f"alone/model{number}.pt", steps, 0.0
        )  # the same name, which torch writes into the file
        environ = {**os.environ, "ELASTIC_VIRTUAL_WORKERS": str(VIRTUAL_WORKERS)}
        with (self.directory / f"alone{number}.log").open("wb") as log:
            subprocess.run(command, env=environ, cwd=self.directory, stdout=log, stderr=log, check=True)
        return _digest(alone / f"model{number}.pt") == _digest(self.directory / f"model{number}.pt")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def live(bench: Bench, wanted: list[int], part_s: float) -> Day:
    """Play one day, with each of its parts `part_s` seconds long."""
    day = Day(bench.gpus, lent=[(0.0, 0)])
    began_s, zero_s = time.monotonic(), time.time()
    filling_s: float | None = None  # time of the last end of loans, until all GPUs are in use again
    for part, gpus in enumerate(wanted):
        lent = len(bench.loans)
        if gpus != lent and filling_s is not None:
            day.unfilled += 1
            filling_s = None
        if gpus > lent:
            took_s, taken = bench.lend(gpus - lent)
            day.free_s.append(took_s)
            day.taken.append(taken)
            print(f"{24 * part / len(wanted):4.1f} h: {gpus - lent} more lent after {took_s:.2f} s", flush=True)
            day.lent.append((time.monotonic() - began_s, gpus))
        elif gpus < lent:
            bench.reclaim(lent - gpus)
            filling_s = time.monotonic()
            day.lent.append((time.monotonic() - began_s, gpus))
        while (left_s := began_s + (part + 1) * part_s - time.monotonic()) > 0:
            if filling_s is not None and bench.trained() == bench.gpus - len(bench.loans):
                day.filled_s.append(time.monotonic() - filling_s)
                filling_s = None
            time.sleep(min(left_s, 0.1))
    day.length_s = time.monotonic() - began_s
    views = bench.finish()
    for view in views:
        day.trained.append([(change.time_s - zero_s, change.share) for change in view.shares])
        day.steps.append((view.step or 0) + 1)
        day.killed += (
            view.restarts + len(bench.times_of(view.job, EventKind.LOST)) + (view.phase is not JobPhase.FINISHED)
        )
        day.called_off += sum(worker.exit_code != 0 for worker in view.past_workers)
    day.equal = all(bench.undisturbed(number, steps) for number, steps in enumerate(day.steps))
    return day


def measure(directory: Path, minutes: float, parts: int, slots: int) -> dict[str, Any]:
    with Family() as family:
        bench = Bench(family, directory, slots)
        try:
            bench.train()
            day = live(bench, demand(bench.gpus, parts), 60.0 * minutes / parts)
        except (MeasurementFailed, ElasticError, subprocess.CalledProcessError):
            bench.show_logs()
            raise
        finally:
            bench.client.close()
    return {"machine": machine.describe(), "minutes": minutes, "parts": parts, **dataclasses.asdict(day)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0, help="that the day lasts")
    parser.add_argument("--slots", type=int, default=3, help="of each of the two servers")
    parser.add_argument("--quick", action="store_true", help="a day of a minute, in parts of two hours")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    minutes, parts = (1.0, 12) if options.quick else (options.minutes, 48)
    directory = Path(tempfile.mkdtemp(prefix="serving-"))
    try:
        run = measure(directory, minutes, parts, options.slots)
    except (MeasurementFailed, ElasticError, subprocess.CalledProcessError) as error:
        print(f"bench-serving: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    path = options.json or ROOT / ("out/bench-serving-quick.json" if options.quick else "out/bench-serving.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1))
    day = Day(**{each.name: run[each.name] for each in dataclasses.fields(Day)})
    print(table(day))
    if not options.quick:
        where = run["machine"]
        text = (
            f"A day of {minutes:g} minutes, in {parts} parts; {where['date']}, {where['processor']}, load {where['load']} "
            "at the end."
        )
        fill(ROOT / "docs/reports/benchmarks.md", BEGIN, END, [text, table(day)])
    return 0 if reached(day) else 1


if __name__ == "__main__":
    sys.exit(main())
