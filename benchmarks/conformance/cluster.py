"""A real cluster on this machine, like the demo's: `elasticctl up`, two servers with four CPU slots each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from elasticd.ctl import jobfile
from elasticd.ctl.client import Client
from elasticd.ctl.jobgpus import GpuOptions
from elasticd.ctl.local import read_address
from elasticd.protocol.messages import (
    Cancel,
    GetJob,
    GetJobs,
    GetServers,
    JobFound,
    Jobs,
    JobView,
    Scale,
    Scaled,
    Servers,
    Submit,
    Submitted,
)
from elasticd.protocol.model import JobId, JobPhase

from ..runtime.processes import ROOT, MeasurementFailed, until
from .kinds import KINDS, Kind

SERVERS, SLOTS = 2, 4
GPUS = SERVERS * SLOTS
POLL_S = 0.2
WARM_START_S = 2.0  # a worker that starts faster was forked from a warm process
WARM_STEPS = 3
PATIENCE_S = 120.0
LOG_LINES = 12


class Cluster:
    """A running cluster; a context manager that leaves nothing behind."""

    def __init__(self, directory: Path, policy: str) -> None:
        self._directory = directory
        self._log = directory.with_name(directory.name + ".log")
        self._policy = policy

    def __enter__(self) -> Cluster:
        self._run("up", "--servers", str(SERVERS), "--gpus", str(SLOTS), "--policy", self._policy)
        address = read_address(self._directory)
        assert address is not None, "a cluster that is up has an address"
        self._client = Client(address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._run("down", "--purge", "--yes")

    def submit(
        self, kind: Kind, name: str, gpus: str, steps: int | None = None, rates: Mapping[int, float] | None = None
    ) -> JobId:
        """Submit a job as `elasticctl submit` does. gpus: a number, or a range such as 1:4. rates: stated steps per second by
        number of GPUs (`throughput` in a job file)."""
        options = jobfile.Overrides(
            name=name,
            gpus=GpuOptions(gpus),
            virtual_workers=kind.virtual_workers,
            max_steps=steps,
            command=(sys.executable, "-m", "benchmarks.conformance.train", *kind.arguments(), name),
        )
        spec = jobfile.build(None, options, ROOT, os.environ)
        answer = self._client.ask(Submit(spec=replace(spec, throughput=dict(rates or {}))))
        assert isinstance(answer, Submitted)
        return answer.job

    def scale(self, job: JobId, share: int) -> None:
        answer = self._client.ask(Scale(job=job, share=share))
        assert isinstance(answer, Scaled)

    def cancel(self, job: JobId) -> None:
        self._client.ask(Cancel(job=job))

    def job(self, job: JobId) -> JobView:
        answer = self._client.ask(GetJob(job=job))
        assert isinstance(answer, JobFound)
        return answer.job

    def jobs(self) -> tuple[JobView, ...]:
        """Return all jobs, in the order of submission."""
        answer = self._client.ask(GetJobs(final_too=True))
        assert isinstance(answer, Jobs)
        return tuple(sorted(answer.jobs, key=lambda job: job.submitted_s))

    def until(self, job: JobId, what: str, reached: Callable[[JobView], bool]) -> JobView:
        """Wait for a condition of a job. Raises MeasurementFailed if the job fails before."""

        def probe() -> JobView | None:
            view = self.job(job)
            if view.phase is JobPhase.FAILED:
                raise MeasurementFailed(f"{job}: {view.reason}\n{self._story()}")
            return view if reached(view) else None

        return until(f"{job} {what}", probe, PATIENCE_S, POLL_S)

    def until_over(self, job: JobId) -> JobView:
        return self.until(job, "is over", lambda view: view.phase.final)

    def until_idle(self) -> None:
        """Wait until no process is on any GPU."""

        def probe() -> bool | None:
            answer = self._client.ask(GetServers())
            assert isinstance(answer, Servers)
            return None if any(server.used for server in answer.servers) else True

        until("all GPUs are free", probe, PATIENCE_S, POLL_S)

    def warm_up(self) -> None:
        """Wait until the agents have their warm processes, as in a cluster that has been up for a while.

        Agents start the standard ones by themselves. If this environment needs others, a first job makes the agents start them.
        """
        kind = KINDS[0]
        deadline = time.monotonic() + PATIENCE_S
        logs = [self._directory / "log" / f"local-{number + 1}.log" for number in range(SERVERS)]
        while time.monotonic() < deadline and not all("workers can be forked" in log.read_text() for log in logs):
            time.sleep(POLL_S)
        while time.monotonic() < deadline:
            job = self.submit(kind, "warm-up", str(SLOTS + 1), WARM_STEPS)  # more GPUs than one server has
            view = self.until_over(job)
            self.until_idle()
            if view.started_s is not None and view.started_s - view.submitted_s < WARM_START_S:
                return
            time.sleep(1.0)
        raise MeasurementFailed(
            f"workers take more than {WARM_START_S:.0f} s to start: is the machine busy?\n{self._story()}"
        )

    def _story(self) -> str:
        """Return the ends of the daemons' logs."""
        logs = sorted((self._directory / "log").glob("*.log"))
        return "\n".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def _run(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("elasticctl")), "--dir", str(self._directory), *arguments]
        with self._log.open("ab") as log:
            # In its own session, since Ctrl-C is for this process, which then ends the cluster.
            done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False, start_new_session=True)
        if done.returncode:
            said = self._log.read_text(errors="replace")[-1500:]
            raise MeasurementFailed(f"elasticctl {arguments[0]} ended with {done.returncode}\n{said}")
