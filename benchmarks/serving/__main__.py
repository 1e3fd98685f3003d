"""A day of serving on a cluster that also trains: `make bench-serving`

    python -m benchmarks.serving [--quick] [--minutes N] [--slots N] [--json FILE]

A controller and two agents with CPU slots, and two elastic jobs. Serving needs GPUs as in a day of EasyScale's cluster
(`benchmarks.serving.day`), which lasts some minutes here: they are lent to it one by one (`elasticctl lend`), and come back when
they are not needed any more (`elasticctl reclaim`). What is measured:

* from a request to nothing of ours being on its GPUs; from the end of loans to training on all GPUs that are not lent;
* GPU-seconds that were lent, and that trained, of all that there are;
* workers that did not end by themselves; and whether the models are those of undisturbed runs, bit for bit.

Results go to out/bench-serving.json and into docs/benchmarks.md (`--quick`: a minute, and nothing is written there).
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

import yaml

from benchmarks.pages import fill
from benchmarks.runtime import machine
from benchmarks.runtime.processes import Family, MeasurementFailed, until
from benchmarks.serving.day import Day, demand, reached, table
from elasticd.ctl.client import Client
from elasticd.protocol.errors import ElasticError
from elasticd.protocol.messages import (
    EndLoan,
    EventKind,
    Events,
    GetEvents,
    GetJob,
    GpusLent,
    JobFound,
    JobView,
    LendGpus,
    LoanEnded,
    Ping,
    Pong,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuAddress, GpuRange, JobPhase, JobSpec

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("train.py")
SERVERS = ("s1", "s2")
JOBS = 2
VIRTUAL_WORKERS = 4
PACE_S = 0.02
WITHIN_S = 300.0
LOOK_S = 0.02
LOANS_S = 86_400.0  # nobody has to end them by the clock
ENDLESS = 1_000_000_000  # steps
BEGIN = "<!-- bench-serving: written by `make bench-serving`, from here -->"
END = "<!-- bench-serving: to here -->"


class Bench:
    """The cluster of one run."""

    def __init__(self, family: Family, directory: Path, slots: int) -> None:
        self._family, self._directory = family, directory
        self.gpus = slots * len(SERVERS)
        clients, agents = f"ipc://{directory}/clients", f"ipc://{directory}/agents"
        self._write("controller", cluster="bench", state_directory=str(directory / "controller"),
                    listen_clients=clients, listen_agents=agents, policy="max-min")  # fmt: skip
        self._start("controller", "elasticd.controller")
        for name in SERVERS:
            self._write(name, server=name, controller=agents, cpu_slots=slots, allow_root_jobs=True,
                        state_directory=str(directory / name), socket_directory=str(directory / f"{name}.run"),
                        checkpoint_directory=str(directory / "checkpoints"))  # fmt: skip
            self._start(name, "elasticd.agent")
        self.client = Client(clients)
        self.stop = directory / "stop"
        self.loans: list[str] = []  # of one GPU each, the oldest first
        self.jobs: list[str] = []
        until("all servers are there", self._all_there, WITHIN_S)

    def _write(self, name: str, /, **options: object) -> None:
        (self._directory / f"{name}.yaml").write_text(yaml.safe_dump(options))

    def _start(self, name: str, module: str) -> None:
        command = [sys.executable, "-m", module, "--config", str(self._directory / f"{name}.yaml")]
        self._family.start(command, log=self._directory / f"{name}.log")

    def _all_there(self) -> bool | None:
        try:
            answer = self.client.ask(Ping())
        except ElasticError:
            return None
        return True if isinstance(answer, Pong) and answer.servers == len(SERVERS) else None

    def train(self) -> None:
        """Submit the jobs, and wait until they train on all GPUs."""
        for number in range(JOBS):
            spec = JobSpec(
                name=f"train{number}",
                command=self._command(f"model{number}.pt", ENDLESS, PACE_S),
                gpus=GpuRange(min=1, max=VIRTUAL_WORKERS),
                virtual_workers=VIRTUAL_WORKERS,
                workdir=str(self._directory),
            )
            answer = self.client.ask(Submit(spec=spec))
            if not isinstance(answer, Submitted):
                raise MeasurementFailed(f"the job is not taken: {answer}")
            self.jobs.append(answer.job)
        until("the jobs train on all GPUs", lambda: self.trained() == self.gpus or None, WITHIN_S)

    def _command(self, model: str, steps: int, pace_s: float) -> tuple[str, ...]:
        stop = str(self.stop)
        return (sys.executable, str(SCRIPT), str(self._directory / model), str(steps), str(pace_s), stop)

    def view(self, job: str) -> JobView:
        answer = self.client.ask(GetJob(job=job))
        if not isinstance(answer, JobFound):
            raise MeasurementFailed(f"{job} is not found: {answer}")
        return answer.job

    def trained(self) -> int:
        """GPUs that train now."""
        return sum(view.share_gpus for view in map(self.view, self.jobs))

    def lost(self, job: str) -> int:
        """How often it has lost a worker that was not to end."""
        answer = self.client.ask(GetEvents(job=job, limit=10_000))
        assert isinstance(answer, Events)
        return sum(event.kind is EventKind.LOST for event in answer.events)

    def lend(self, count: int) -> tuple[float, int]:
        """Until so many GPUs are free (s), and how many of them a job had."""
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
        """The loans that were made last are over."""
        for _ in range(count):
            answer = self.client.ask(EndLoan(loan=self.loans.pop()))
            if not isinstance(answer, LoanEnded):
                raise MeasurementFailed(f"a loan does not end: {answer}")

    def finish(self) -> list[JobView]:
        """The jobs end after the step at hand, and save their models."""
        self.stop.touch()
        until("the jobs are over", self._over, WITHIN_S)
        self.stop.unlink()
        return [self.view(job) for job in self.jobs]

    def _over(self) -> bool | None:
        return True if all(self.view(job).phase.final for job in self.jobs) else None

    def undisturbed(self, number: int, steps: int) -> bool:
        """Does the same training alone, in one process, give the same model?"""
        alone = self._directory / "alone"
        alone.mkdir(exist_ok=True)
        command = self._command(f"alone/model{number}.pt", steps, 0.0)  # a file of torch's has its own name in it
        environ = {**os.environ, "ELASTIC_VIRTUAL_WORKERS": str(VIRTUAL_WORKERS)}
        with (self._directory / f"alone{number}.log").open("wb") as log:
            subprocess.run(command, env=environ, cwd=self._directory, stdout=log, stderr=log, check=True)
        return _digest(alone / f"model{number}.pt") == _digest(self._directory / f"model{number}.pt")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def live(bench: Bench, wanted: list[int], part_s: float) -> Day:
    """One day: each of its parts lasts so long."""
    day = Day(bench.gpus, lent=[(0.0, 0)])
    began_s, zero_s = time.monotonic(), time.time()
    filling_s: float | None = None  # since loans ended, as long as not all GPUs are in use again
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
        day.killed += view.restarts + bench.lost(view.job) + (view.phase is not JobPhase.FINISHED)
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
            for log in sorted(directory.glob("*.log")):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:], sep="\n", file=sys.stderr)
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
        fill(ROOT / "docs/benchmarks.md", BEGIN, END, [text, table(day)])
    return 0 if reached(day) else 1


if __name__ == "__main__":
    sys.exit(main())
