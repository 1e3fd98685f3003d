"""A job on a real cluster with agents that report this machine's GPUs: it grows, loses workers, is preempted, resumes, and ends.

All of it goes through `elasticctl`. Afterwards the same script trains alone for as many epochs; no bit may differ.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gpu_job import VIRTUAL_WORKERS
from .runtime.jobs import kill
from .runtime.processes import ROOT, Family, MeasurementFailed, until
from .runtime.record import Applied, Record

STEADY = 8  # steps of each worker after which training counts as steady
WITHIN_S = 120.0


@dataclass(frozen=True)
class Story:
    """Events, and the final digests of the job's workers and of the script alone."""

    acts: list[str]
    took_s: float
    alone_s: float
    digests: list[str]
    alone: str


def story(family: Family, model: str, workers: int, on_slots: bool) -> Story:
    """Play the story. on_slots: CPU slots stand in for GPUs.

    Raises MeasurementFailed, after printing the ends of all logs.
    """
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as directory:
        told = _Told(family, Path(directory), model, workers)
        try:
            began = time.monotonic()
            told.up(on_slots)
            told.play()
            took_s = time.monotonic() - began
        except BaseException:  # including Ctrl-C
            print(told.logs(), file=sys.stderr, flush=True)
            raise
        finally:
            told.down()
        digests, epochs = told.ended()
        began = time.monotonic()
        alone = told.alone(epochs, on_slots)
        return Story(told.acts, took_s, time.monotonic() - began, digests, alone)


class _Told:
    """One cluster with one job."""

    def __init__(self, family: Family, directory: Path, model: str, workers: int) -> None:
        self._family = family
        self._directory = directory
        self._model = model
        self._workers = workers
        self._job = ""
        self._own = directory / "job"
        self._own.mkdir()
        self._record = Record(self._own / "record")
        self.acts: list[str] = []

    # -- the cluster

    def up(self, on_slots: bool) -> None:
        """Start the daemons. Raises MeasurementFailed."""
        self._run("up", "--servers", "1", *(["--gpus", str(self._workers)] if on_slots else []))

    def down(self) -> None:
        self._run("down", "--purge", "--yes")

    def play(self) -> None:
        """Run all events of the job, one after the other."""
        most = self._workers
        answer = self._run(
            *("submit", "--json", "--name", "gpus", "--gpus", f"1:{most}", "--virtual-workers", str(VIRTUAL_WORKERS)),
            *("--checkpoint-every", "5s"),
            *("--", sys.executable, "-m", "benchmarks.gpu_job", self._model, str(self._own)),
        )
        self._job = json.loads(answer)["job"]
        self._scale(1, "one worker")
        if most > 1:
            self._scale(most, f"grows to {most}")
            self._lose(1, "a worker is killed", most)
            self._scale(1, "shrinks to 1")
            self._scale(most, f"grows to {most}")
        loan = json.loads(self._run("lend", str(most), "--for", "1h", "--json"))["loan"]
        self._act("all GPUs are lent: the job waits")
        self._run("reclaim", loan)
        self._until_steady(most, "goes on from its checkpoint")
        time.sleep(6.0)  # during which a checkpoint is written, parallel to training
        self._lose(most, "all workers are killed", most)
        (self._own / "stop").touch()
        self._run("wait", self._job, "--timeout", "2m")
        self._act("ends")

    # -- acts

    def _scale(self, workers: int, act: str) -> None:
        self._run("scale", self._job, str(workers), "--timeout", f"{WITHIN_S:.0f}s")
        self._until_steady(workers, act)

    def _lose(self, count: int, act: str, workers: int) -> None:
        lines = self._record.read()
        pids = list(dict.fromkeys(line.pid for line in reversed(lines)))[:count]
        for pid in pids:
            kill(pid)
        self._until_steady(workers, act, frozenset(pids))

    def _until_steady(self, workers: int, act: str, without: frozenset[int] = frozenset()) -> None:
        before = len(self._record.read())

        def probe() -> list[Applied] | None:
            recent = self._record.read()[before:][-workers * STEADY :]
            pids = {line.pid for line in recent}
            there = len(recent) == workers * STEADY and {line.world for line in recent} == {workers}
            return recent if there and len(pids) == workers and not pids & without else None

        until(f"{act}: {STEADY} steps of {workers} workers", probe, WITHIN_S)
        self._act(act)

    def _act(self, act: str) -> None:
        lines = self._record.read()
        print(f"  cluster: {act} (step {lines[-1].step if lines else 0})", flush=True)
        self.acts.append(act)

    # -- its end

    def ended(self) -> tuple[list[str], int]:
        """Return the digests of all workers that were there at the end, and the epochs that they have trained."""
        found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(self._own.glob("ended-*"))]
        epochs = {each["epochs"] for each in found}
        if len(epochs) != 1 or len(found) != self._workers:
            raise MeasurementFailed(f"{len(found)} of {self._workers} workers came to the end, after {epochs} epochs")
        return [each["digest"] for each in found], epochs.pop()

    def alone(self, epochs: int, on_slots: bool) -> str:
        """Return the digest of one worker without a cluster."""
        own = self._directory / "alone"
        own.mkdir()
        command = [sys.executable, "-m", "benchmarks.gpu_job", self._model, str(own), str(epochs)]
        variables = {"CUDA_VISIBLE_DEVICES": "" if on_slots else "0"}
        process = self._family.start(command, variables, own / "log")
        if process.wait(1800.0):
            raise MeasurementFailed(f"alone it failed:\n{(own / 'log').read_text()[-4000:]}")
        (found,) = own.glob("ended-*")
        return str(json.loads(found.read_text())["digest"])

    def logs(self) -> str:
        """Return the ends of all logs."""
        paths = [
            path for path in sorted(self._directory.rglob("*")) if path.is_file() and "log" in path.suffix + path.name
        ]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2500:]}" for path in paths)

    def _run(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("elasticctl")), "--dir", str(self._directory / "cluster")]
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, start_new_session=True
        )
        if done.returncode:
            raise MeasurementFailed(f"elasticctl {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout
