"""A whole cluster of real daemons for a test: one controller and agents with CPU slots, under a temporary directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import yaml

from elasticd.ctl import standins
from elasticd.ctl.client import Client
from elasticd.protocol.messages import (
    Answer,
    GetJob,
    JobFound,
    JobView,
    Ping,
    Pong,
    Request,
    Scale,
    Scaled,
    Submit,
    Submitted,
)
from elasticd.protocol.model import CheckpointSpec, GpuRange, JobPhase, JobSpec, Resize

SCRIPT = Path(__file__).with_name("train_small.py")
PATIENCE_S = 300.0  # with real processes, on a machine that does much else: what takes longer hangs
ANSWERED_WITHIN_S = (
    120.0  # a controller that competes with tests for two cores has been silent for more than ten seconds
)
T = TypeVar("T")


class PatientClient(Client):
    """Waits for an answer as long as tests wait, where a user is told after ten seconds that none has come."""

    def ask(self, request: Request, timeout_s: float = ANSWERED_WITHIN_S) -> Answer:
        return super().ask(request, timeout_s)


class Cluster:
    """Real daemons; `kill` and `start` one by name: "controller", "s1", "s2", ..."""

    def __init__(
        self,
        directory: Path,
        servers: int,
        slots: int,
        policy: str,
        lease_s: float,
        options: dict[str, object],
        gpu_model: str = "",
        agents_too: dict[str, object] | None = None,
    ) -> None:
        self.directory = directory
        self.sockets = Path("/tmp") / f"elasticd-test-{os.getpid()}-{directory.name[-6:]}"
        self.sockets.mkdir(mode=0o700)
        self.address, agents = f"ipc://{self.sockets}/clients", f"ipc://{self.sockets}/agents"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"s{i + 1}" for i in range(servers)]
        self.write("controller", cluster="test", state_directory=str(directory / "controller"),
                   listen_clients=self.address, listen_agents=agents,
                   policy=policy, server_lease_s=lease_s, **options)  # fmt: skip
        for name in self.names:
            self.write(name, server=name, controller=agents,
                       state_directory=str(directory / name), socket_directory=str(self.sockets / name),
                       **(standins.lay_out(directory, name, gpu_model) if gpu_model else {"cpu_slots": slots}),
                       **(agents_too or {}), allow_root_jobs=True,
                       checkpoint_directory=str(directory / "checkpoints"))  # fmt: skip
        self.start("controller")
        for name in self.names:
            self.start(name)
        self.client = PatientClient(self.address)
        self.until("all servers are there", self.all_there)

    def until(self, what: str, probe: Callable[[], T | None]) -> T:
        """Poll `probe` until it gives something. The failing message is the story."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = probe()
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}\n{self.story()}")

    def write(self, name: str, /, **options: object) -> None:
        (self.directory / f"{name}.yaml").write_text(yaml.safe_dump(options))

    def start(self, name: str, **variables: str) -> None:
        """`variables`: of its environment, beside those of this process."""
        module = "elasticd.controller" if name == "controller" else "elasticd.agent"
        with (self.directory / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", module, "--config", str(self.directory / f"{name}.yaml")]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True,
                                                    env={**os.environ, **variables})  # fmt: skip

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def all_there(self) -> bool:
        answer = self.client.ask(Ping())
        return isinstance(answer, Pong) and answer.servers == len(self.names)

    def submit(self, *arguments: str, gpus: tuple[int, int] = (1, 4), virtual_workers: int = 4, name: str = "job",
               checkpoint_every_s: float = 600.0, save_timeout_s: float | None = None, script: Path = SCRIPT,
               **changes: Any) -> str:  # fmt: skip
        spec = JobSpec(
            name=name,
            command=(sys.executable, str(script), *arguments),
            gpus=GpuRange(min=gpus[0], max=gpus[1]),
            virtual_workers=virtual_workers,
            workdir=str(self.directory),
            checkpoint=CheckpointSpec(every_s=checkpoint_every_s, save_timeout_s=save_timeout_s),
            user="tester",
            **changes,
        )
        answer = self.client.ask(Submit(spec=spec))
        assert isinstance(answer, Submitted), answer
        return answer.job

    def job(self, job: str) -> JobView:
        answer = self.client.ask(GetJob(job=job))
        assert isinstance(answer, JobFound), answer
        return answer.job

    def scale(self, job: str, share: int) -> Resize:
        """Set the share and wait until it trains; what the last switch cost.

        There may be several: GPUs that the job's own leavers have not left yet follow in a later generation.
        """
        answer = self.client.ask(Scale(job=job, share=share), timeout_s=PATIENCE_S)
        assert isinstance(answer, Scaled), answer
        return self.until(
            f"{job} trains on {share}",
            lambda: next(
                (r for r in self.job(job).resizes if r.generation >= answer.generation and r.workers_after == share),
                None,
            ),
        )

    def until_step(self, job: str, step: int) -> JobView:
        def probe() -> JobView | None:
            view = self.job(job)
            return view if view.step is not None and view.step >= step else None

        return self.until(f"{job} reaches step {step}", probe)

    def until_share(self, job: str, share: int) -> JobView:
        def probe() -> JobView | None:
            view = self.job(job)
            return view if view.share_gpus == share else None

        return self.until(f"{job} has {share} GPUs", probe)

    def until_measured(self, job: str, share: int, known: set[int]) -> JobView:
        """The job has been measured with all these shares, has so many GPUs, and nothing more is measured."""

        def probe() -> JobView | None:
            view = self.job(job)
            at_rest = view.share_gpus == view.wanted_gpus == share and view.measuring_gpus is None
            measured = {point.share_gpus for point in view.curve if point.source == "measured"}
            return view if at_rest and known <= measured else None

        return self.until(f"{job} is measured with {known} and has {share} GPUs", probe)

    def until_over(self, job: str) -> JobView:
        def probe() -> JobView | None:
            view = self.job(job)
            return view if view.phase.final else None

        return self.until(f"{job} ends", probe)

    def until_final(self, job: str) -> JobView:
        view = self.until_over(job)
        assert view.phase is JobPhase.FINISHED, f"{view.phase}: {view.reason}\n{self.story()}"
        return view

    def pids(self, job: str) -> dict[str, int]:
        return {w.worker: w.pid for w in self.job(job).workers if w.pid is not None}

    def story(self) -> str:
        """The ends of all logs."""
        parts = []
        for log in sorted(self.directory.rglob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            parts.append("\n".join([f"--- {log.relative_to(self.directory)}", *lines[-60:]]))
        return "\n".join(parts)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for process in psutil.process_iter(["environ", "cmdline"]):
            directory = str(self.directory)
            environ, command = process.info["environ"] or {}, process.info["cmdline"] or []
            ours = directory in " ".join(command) or environ.get("ELASTICD_CHECKPOINT_DIRECTORY", "").startswith(
                directory
            )
            if ours and process.pid != os.getpid():
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    pass
        self.client.close()
        shutil.rmtree(self.sockets, ignore_errors=True)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """A factory of clusters: `make_cluster(servers=1, slots=4, policy="max-min", lease_s=60)`, and options of the controller.
    `gpu_model`: stand-ins for GPUs in place of CPU slots. `agents_too`: options of the agents.

    Jobs are not measured on the way down unless a test wants it: it wants to know where they are.
    """
    clusters: list[Cluster] = []

    def make(
        servers: int = 1,
        slots: int = 4,
        policy: str = "max-min",
        lease_s: float = 60.0,
        gpu_model: str = "",
        agents_too: dict[str, object] | None = None,
        **options: object,
    ) -> Cluster:
        options.setdefault("measuring", {"way_down": False})
        clusters.append(Cluster(tmp_path, servers, slots, policy, lease_s, options, gpu_model, agents_too))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
